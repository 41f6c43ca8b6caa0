//! The memory cgroup and the host's memory: what may be charged, and what is done when it may not.
//!
//! Terms: the *charge* is what the group pays for: all folios, also the parts nobody maps, plus `other`, a
//! fixed amount that stands for page cache and other processes. *Reclaim* here is the deferred-split shrinker:
//! the model has no swap and no file cache, so the parts of huge pages nobody maps, and what was offered
//! (`take_offered`, by the fault that would be refused), are the only memory it can get back.
//!
//! ```text
//!   charge ≤ high                 fine
//!   high < charge ≤ max           allowed; counted as throttled; reclaim down to high
//!   charge > max                  reclaim; still above: refused (the process would be killed)
//! ```
//!
//! Left out: page tables and other kernel memory, which a real group pays for too (about 0.2 % of base pages).

use super::folio::Physical;

/// What limits physical memory. In bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// `memory.max`.
    pub(super) max: Option<u64>,
    /// `memory.high`.
    pub(super) high: Option<u64>,
    /// Charged to the group by others.
    pub(super) other: u64,
    /// Memory of the host.
    pub(super) host: u64,
    /// Memory of the host held by hugetlb pools.
    pub(super) pools: u64,
}

/// Who refused a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Cgroup,
    Host,
}

impl Physical {
    /// What the group is charged.
    pub(super) fn charge(&self) -> u64 {
        self.charged + self.limits.other
    }

    /// Memory of the host that is free.
    pub(super) fn free_memory(&self) -> u64 {
        self.limits.host.saturating_sub(self.charge() + self.limits.pools)
    }

    /// Makes room for `bytes`, splitting stranded folios when there is none.
    pub(super) fn make_room(&mut self, bytes: u64) -> Result<(), Refusal> {
        loop {
            let refusal = if self.limits.max.is_some_and(|max| self.charge() + bytes > max) {
                Refusal::Cgroup
            } else if self.free_memory() < bytes {
                Refusal::Host
            } else {
                break;
            };
            if self.split_oldest().is_none() {
                return Err(refusal);
            }
            self.events.reclaims += 1;
        }
        if let Some(high) = self.limits.high {
            if self.charge() + bytes > high {
                self.events.throttles += 1;
            }
            while self.charge() + bytes > high && self.split_oldest().is_some() {
                self.events.reclaims += 1;
            }
        }
        Ok(())
    }

    /// Global or cgroup reclaim: splits everything on the deferred-split queue. Returns the bytes freed.
    pub(super) fn reclaim(&mut self) -> u64 {
        let mut freed = 0;
        while let Some(bytes) = self.split_oldest() {
            freed += bytes;
            self.events.reclaims += 1;
        }
        freed
    }
}
