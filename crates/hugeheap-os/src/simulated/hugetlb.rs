//! Pools of explicit huge pages.
//!
//! Terms: a mapping *reserves* its pages when it is made, if the pool has as many that nobody reserved; a touch then
//! *takes* one. The process that made the mapping *owns* the reservation, a forked child does not. *Surplus* pages are
//! above the pool's size: made on demand up to `overcommit`, or left over when the pool shrank while they were used.
//!
//! ```text
//!            reserve                 touch                      unmap
//!   free ───────────────▶ reserved ──────────▶ in use ─────────────────▶ free
//!     └──────────── touch without reservation ──▲       (surplus: back to the system)
//! ```
//!
//! Invariants: reserved ≤ free ≤ total; total − free pages are in use; surplus ≤ total.
//! Pages are not charged to the memory cgroup and not in RSS, but the host's memory pays for the whole pool.

use super::call::Outcome;
use super::config::Config;
use super::folio::Physical;
use crate::HugetlbPool;

/// A page of a pool in use.
pub(super) type HugetlbId = u32;

/// What a page-table entry of a hugetlb mapping points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HugetlbEntry {
    pub(super) id: HugetlbId,
    pub(super) page_size: usize,
    /// Shared by `fork`: copied before it is written, unless no longer shared then.
    pub(super) cow: bool,
}

#[derive(Clone, Copy)]
struct Used {
    page_size: usize,
    refs: u32,
}

pub(super) struct Pools {
    pools: Vec<HugetlbPool>,
    used: Vec<Option<Used>>,
    free_slots: Vec<HugetlbId>,
    used_bytes: u64,
    reserved_bytes: u64,
    used_limit: Option<u64>,
    reserved_limit: Option<u64>,
}

impl Pools {
    pub(super) fn new(config: &Config, physical: &mut Physical) -> Self {
        let mut pools = Self {
            pools: config.hugetlb.iter().map(|pool| pool.empty_pool()).collect(),
            used: Vec::new(),
            free_slots: Vec::new(),
            used_bytes: 0,
            reserved_bytes: 0,
            used_limit: config.hugetlb_limit,
            reserved_limit: config.hugetlb_reservation_limit,
        };
        pools.pools.sort_by_key(|pool| pool.page_size);
        for pool in &config.hugetlb {
            pools.resize(pool.page_size, pool.pages, physical);
        }
        pools
    }

    pub(super) fn all(&self) -> &[HugetlbPool] {
        &self.pools
    }

    pub(super) fn get(&self, page_size: usize) -> Option<HugetlbPool> {
        self.pools.iter().copied().find(|pool| pool.page_size == page_size)
    }

    fn pool(&mut self, page_size: usize) -> Option<&mut HugetlbPool> {
        self.pools.iter_mut().find(|pool| pool.page_size == page_size)
    }

    pub(super) fn set_overcommit(&mut self, page_size: usize, pages: u64) {
        if let Some(pool) = self.pool(page_size) {
            pool.overcommit = pages;
        }
    }

    pub(super) fn set_limits(&mut self, used: Option<u64>, reserved: Option<u64>) {
        self.used_limit = used;
        self.reserved_limit = reserved;
    }

    /// Tells the host what the pools hold.
    fn settle(&self, physical: &mut Physical) {
        physical.limits.pools = self.pools.iter().map(|pool| pool.total * pool.page_size as u64).sum();
    }

    /// Writes `nr_hugepages`. Returns the pool's size after that, without surplus.
    pub(super) fn resize(&mut self, page_size: usize, pages: u64, physical: &mut Physical) -> u64 {
        let room = physical.free_memory() / page_size.max(1) as u64;
        let is_pmd = page_size == physical.geometry.chunk;
        let Some(pool) = self.pool(page_size) else { return 0 };
        let persistent = pool.total - pool.surplus;
        if pages > persistent {
            // Surplus pages become persistent first, then new ones are made as far as memory goes.
            let adopted = pool.surplus.min(pages - persistent);
            pool.surplus -= adopted;
            let mut made = (pages - persistent - adopted).min(room);
            if let (true, Some(blocks)) = (is_pmd, &mut physical.free_huge) {
                made = made.min(*blocks);
                *blocks -= made;
            }
            pool.total += made;
            pool.free += made;
        } else {
            let dropped = (persistent - pages).min(pool.free - pool.reserved);
            pool.total -= dropped;
            pool.free -= dropped;
            // The rest is in use or promised: it stays as surplus until it is given back.
            pool.surplus += persistent - pages - dropped;
            if let (true, Some(blocks)) = (is_pmd, &mut physical.free_huge) {
                *blocks += dropped;
            }
        }
        let size = pool.total - pool.surplus;
        self.settle(physical);
        size
    }

    /// Promises `pages` to a mapping.
    pub(super) fn reserve(&mut self, page_size: usize, pages: u64, physical: &mut Physical) -> Outcome<()> {
        let bytes = pages * page_size as u64;
        if self.reserved_limit.is_some_and(|limit| self.reserved_bytes + bytes > limit) {
            return Err(libc::ENOMEM);
        }
        let room = physical.free_memory() / page_size as u64;
        let pool = self.pool(page_size).ok_or(libc::EINVAL)?;
        let missing = (pool.reserved + pages).saturating_sub(pool.free);
        if missing > room || pool.surplus + missing > pool.overcommit.max(pool.surplus) {
            return Err(libc::ENOMEM);
        }
        pool.total += missing;
        pool.free += missing;
        pool.surplus += missing;
        pool.reserved += pages;
        self.reserved_bytes += bytes;
        self.settle(physical);
        Ok(())
    }

    /// A mapping of `pages` ends, of which `untouched` were promised and never taken.
    pub(super) fn unreserve(
        &mut self,
        page_size: usize,
        pages: u64,
        untouched: u64,
        physical: &mut Physical,
    ) {
        self.reserved_bytes -= pages * page_size as u64;
        if let Some(pool) = self.pool(page_size) {
            pool.reserved -= untouched;
        }
        self.return_surplus(page_size, physical);
    }

    /// Gives surplus pages nobody was promised back to the system.
    fn return_surplus(&mut self, page_size: usize, physical: &mut Physical) {
        if let Some(pool) = self.pool(page_size) {
            let spare = pool.surplus.min(pool.free - pool.reserved);
            pool.surplus -= spare;
            pool.total -= spare;
            pool.free -= spare;
        }
        self.settle(physical);
    }

    /// Takes a page for a touch: a promised one, or one that nobody was promised. `None` is `SIGBUS`.
    pub(super) fn take(
        &mut self,
        page_size: usize,
        promised: bool,
        physical: &mut Physical,
    ) -> Option<HugetlbId> {
        if self.used_limit.is_some_and(|limit| self.used_bytes + page_size as u64 > limit) {
            return None;
        }
        let room = physical.free_memory() >= page_size as u64;
        let pool = self.pool(page_size)?;
        if promised {
            pool.reserved -= 1;
            pool.free -= 1;
        } else if pool.free > pool.reserved {
            pool.free -= 1;
        } else if pool.surplus < pool.overcommit && room {
            pool.surplus += 1;
            pool.total += 1;
        } else {
            return None;
        }
        self.used_bytes += page_size as u64;
        self.settle(physical);
        let page = Some(Used { page_size, refs: 1 });
        if let Some(id) = self.free_slots.pop() {
            self.used[id as usize] = page;
            return Some(id);
        }
        self.used.push(page);
        u32::try_from(self.used.len() - 1).ok()
    }

    fn page(&mut self, id: HugetlbId) -> &mut Used {
        self.used[id as usize].as_mut().expect("an entry points to a page in use")
    }

    /// One more page table points to the page.
    pub(super) fn share(&mut self, id: HugetlbId) {
        self.page(id).refs += 1;
    }

    pub(super) fn is_shared(&mut self, id: HugetlbId) -> bool {
        self.page(id).refs > 1
    }

    /// One page table fewer points to the page; the last one gives it back to the pool.
    pub(super) fn give_back(&mut self, id: HugetlbId, physical: &mut Physical) {
        let page = self.page(id);
        page.refs -= 1;
        if page.refs > 0 {
            return;
        }
        let page_size = page.page_size;
        self.used[id as usize] = None;
        self.free_slots.push(id);
        self.used_bytes -= page_size as u64;
        if let Some(pool) = self.pool(page_size) {
            pool.free += 1;
        }
        self.return_surplus(page_size, physical);
    }

    /// Compares the records with what a walk over all mappings found: references per page, and per page size the pages
    /// promised to mappings and not taken.
    pub(super) fn check(
        &self,
        refs: &std::collections::BTreeMap<HugetlbId, u32>,
        promised: &std::collections::BTreeMap<usize, u64>,
    ) -> Result<(), String> {
        for (id, page) in self.used.iter().enumerate() {
            let found = refs.get(&(id as HugetlbId)).copied().unwrap_or(0);
            if found != page.map_or(0, |page| page.refs) {
                return Err(format!("hugetlb page {id}: {found} entries"));
            }
        }
        for pool in &self.pools {
            let used = self.used.iter().flatten().filter(|page| page.page_size == pool.page_size).count();
            let waiting = promised.get(&pool.page_size).copied().unwrap_or(0);
            let sound = pool.reserved <= pool.free && pool.free + used as u64 == pool.total;
            if !sound || pool.surplus > pool.total || waiting != pool.reserved {
                return Err(format!("{pool:?}: {used} in use, {waiting} promised"));
            }
        }
        Ok(())
    }
}
