//! How large a pool is to become: pure.
//!
//! Terms: the *size* of a pool is its persistent pages, what `nr_hugepages` is set to. *Surplus* pages are
//! above it, made on demand or left over in use from a larger pool; the kernel counts them in `nr_hugepages`
//! when that is read. *Free* pages are neither used nor reserved.
//!
//! ```text
//!   ├──────────── total (nr_hugepages as read) ────────────┤
//!   ├────────── size ──────────┼───────── surplus ─────────┤
//!   ├── used ──┼── reserved ──┼── free ──┤                    (used and reserved pages may be surplus too)
//! ```

/// A share of the host's memory that growing a pool leaves available. The kernel has no such limit: it reclaims
/// until nothing is left, and then kills for the next page that anybody needs. A twentieth is what a host of 16
/// GiB needs for its own services (about 800 MiB).
const KEEP_FREE: u64 = 20;

/// One pool, of one page size, on all nodes or on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    /// Page size in bytes.
    pub(crate) page: u64,
    /// `None`: all nodes together.
    pub(crate) node: Option<u32>,
    pub(crate) total: u64,
    /// Not handed out, reserved ones included.
    pub(crate) unused: u64,
    /// Of one node it is not known.
    pub(crate) reserved: Option<u64>,
    pub(crate) surplus: u64,
    pub(crate) overcommit: Option<u64>,
}

impl Pool {
    pub(crate) const fn size(self) -> u64 {
        self.total.saturating_sub(self.surplus)
    }

    pub(crate) fn free(self) -> u64 {
        self.unused.saturating_sub(self.reserved.unwrap_or(0))
    }
}

/// Memory of the host, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) available: u64,
    /// What the user wants to keep, instead of [`KEEP_FREE`].
    pub(crate) keep: Option<u64>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// A size.
    Size(u64),
    /// Free pages.
    Free(u64),
    /// No free pages.
    Nothing,
}

/// What a wish comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The size that was wished for.
    pub(crate) wanted: u64,
    /// The size to ask for: less when the host needs its memory.
    pub(crate) size: u64,
    /// Memory that is kept available, when that is why.
    pub(crate) kept: Option<u64>,
}

pub(crate) fn plan(pool: Pool, wish: Wish, memory: Memory) -> Plan {
    let wanted = match wish {
        Wish::Size(size) => size,
        Wish::Free(pages) if pool.free() >= pages => pool.size(),
        // Surplus pages become persistent first, and free none.
        Wish::Free(pages) => pool.total.saturating_add(pages - pool.free()),
        Wish::Nothing => pool.size().saturating_sub(pool.free()),
    };
    let keep = memory.keep.unwrap_or(memory.total / KEEP_FREE);
    let room = memory.available.saturating_sub(keep) / pool.page;
    let most = pool.total.saturating_add(room);
    if wanted > most {
        Plan { wanted, size: most, kept: Some(keep) }
    } else {
        Plan { wanted, size: wanted, kept: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 2 << 20;
    const PLENTY: Memory = Memory { total: 16 << 30, available: 12 << 30, keep: None };

    fn pool(total: u64, unused: u64, reserved: u64, surplus: u64) -> Pool {
        Pool { page: PAGE, node: None, total, unused, reserved: Some(reserved), surplus, overcommit: Some(0) }
    }

    #[test]
    fn ensuring_counts_what_is_free_only() {
        let has = pool(100, 30, 10, 0);
        assert_eq!(plan(has, Wish::Free(20), PLENTY).size, 100);
        assert_eq!(plan(has, Wish::Free(25), PLENTY).size, 105);
        assert_eq!(plan(pool(100, 0, 0, 40), Wish::Free(5), PLENTY).size, 105, "surplus pages are in use");
        assert_eq!(
            plan(pool(100, 30, 10, 40), Wish::Free(20), PLENTY).size,
            60,
            "as many are free: nothing is to be made of the surplus"
        );
    }

    #[test]
    fn releasing_keeps_what_is_used_and_reserved() {
        assert_eq!(plan(pool(100, 30, 10, 0), Wish::Nothing, PLENTY).size, 80);
        assert_eq!(plan(pool(10, 10, 0, 0), Wish::Nothing, PLENTY).size, 0);
    }

    #[test]
    fn the_host_keeps_what_it_needs() {
        let memory = Memory { total: 16 << 30, available: 1 << 30, keep: None };
        let kept = (16 << 30) / KEEP_FREE;
        let planned = plan(pool(10, 0, 0, 0), Wish::Size(1000), memory);
        assert_eq!(planned, Plan { wanted: 1000, size: 10 + ((1 << 30) - kept) / PAGE, kept: Some(kept) });
        // Nothing is kept from who gets all that was wished for.
        let most = planned.size;
        assert_eq!(
            plan(pool(10, 0, 0, 0), Wish::Size(most), memory),
            Plan { wanted: most, size: most, kept: None }
        );
        let all = Memory { keep: Some(0), ..memory };
        assert_eq!(plan(pool(10, 0, 0, 0), Wish::Size(1000), all).size, 10 + 512);
        let none = Memory { available: 0, ..memory };
        assert_eq!(plan(pool(10, 0, 0, 0), Wish::Size(5), none).size, 5, "shrinking needs no memory");
    }

    proptest! {
        #[test]
        fn no_plan_takes_what_is_to_be_kept(total: u32, unused: u32, reserved: u32, surplus: u32, pages: u64, available in 0_u64..1 << 44, keep in 0_u64..1 << 44) {
            let memory = Memory { total: 1 << 44, available, keep: Some(keep) };
            let pool = pool(total.into(), unused.into(), reserved.into(), surplus.into());
            for wish in [Wish::Size(pages), Wish::Free(pages), Wish::Nothing] {
                let plan = plan(pool, wish, memory);
                prop_assert!(plan.size <= plan.wanted);
                let grown = plan.size.saturating_sub(pool.total);
                prop_assert!(grown == 0 || grown * PAGE <= available - keep);
            }
        }
    }
}
