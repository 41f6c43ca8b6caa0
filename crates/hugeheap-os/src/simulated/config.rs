//! What the simulated host is like, and the knobs a test turns while it runs.
//!
//! [`Config`] is the host at the start; every field that a running host can change has a setter on [`Kernel`],
//! named after the field. The default is a common host: 4 KiB and 2 MiB pages, 16 GiB of memory, huge pages on
//! advice, empty hugetlb pools, a version 2 cgroup without limit, everything supported but hardware counters.

use super::call::Call;
use super::{Geometry, Kernel};
use crate::{
    Cache, Capabilities, CgroupVersion, HugetlbPool, Khugepaged, NumaNode, PageSizes, Pressure, Thp,
    ThpDefrag, ThpDisabled, ThpMode,
};
use core::time::Duration;

/// A hugetlb pool at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Page size in bytes, a power of two.
    pub page_size: usize,
    /// Pages in the pool.
    pub pages: u64,
    /// Pages that may be added above that when asked for.
    pub overcommit: u64,
}

/// The simulated host at the start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Page sizes; powers of two. Without a huge page size there are no transparent huge pages at all.
    pub page_sizes: PageSizes,
    /// Memory of the host in bytes.
    pub total_memory: u64,
    /// Bytes of swap that are free; nothing is ever swapped out.
    pub free_swap: u64,
    /// Bytes charged to the cgroup by page cache and other processes.
    pub other_charge: u64,
    /// Mode, defragmentation and khugepaged's knobs.
    pub thp: Thp,
    /// Pages of a range that may be shared with another process when khugepaged collapses it (`max_ptes_shared`).
    pub max_ptes_shared: u64,
    /// Whether the first process has huge pages switched off.
    pub thp_disabled: ThpDisabled,
    /// Free blocks of huge-page size in physical memory; `None`: memory is not fragmented.
    pub free_huge_pages: Option<u64>,
    /// Blocks that direct compaction can make when there is no free one.
    pub compactable_huge_pages: u64,
    /// Whether `decommit` of a whole huge-page range also frees its page table (Linux 6.14 and newer), so that the next
    /// touch can get a huge page again.
    pub frees_page_tables: bool,
    /// Whether splitting a huge page frees the parts nobody wrote to (Linux 6.12 and newer).
    pub split_drops_zero: bool,
    /// Whether OS pages of equal contents are merged ([`Kernel::run_ksmd`]); `None`: the kernel cannot.
    pub merges: Option<bool>,
    /// Whether all memory is said to be resident, as `mincore` of gVisor does.
    pub seems_resident: bool,
    /// The hugetlb pools, smallest page first.
    pub hugetlb: Vec<PoolConfig>,
    /// Whether `map` of a hugetlb range also populates it, as the Linux implementation of the trait does: a touch
    /// cannot fail then, but `map` can, with `OutOfMemory`. Without, `map` only reserves.
    pub populate_hugetlb: bool,
    /// Limit of the hugetlb cgroup on pages in use, in bytes: `SIGBUS` at the touch (`hugetlb.*.max`).
    pub hugetlb_limit: Option<u64>,
    /// Limit of the hugetlb cgroup on reservations, in bytes: an error when mapped (`hugetlb.*.rsvd.max`).
    pub hugetlb_reservation_limit: Option<u64>,
    /// Version of the memory cgroup; `None`: the process is in none,
    /// [`memory_limits`](crate::Facts::memory_limits) fails.
    pub cgroup: Option<CgroupVersion>,
    /// `memory.max` in bytes.
    pub cgroup_max: Option<u64>,
    /// `memory.high` in bytes.
    pub cgroup_high: Option<u64>,
    /// Memory pressure of the host.
    pub pressure: Pressure,
    /// Limit on the address space of a process (`ulimit -v`), in bytes.
    pub address_space_limit: Option<u64>,
    /// Limit on the private memory that a process can write, touched or not (`ulimit -d`), in bytes.
    pub data_limit: Option<u64>,
    /// Limit on the mappings of a process (`vm.max_map_count`).
    pub map_limit: usize,
    /// What the kernel supports. Calls it does not support fail.
    pub capabilities: Capabilities,
    /// Caches of a CPU.
    pub caches: Vec<Cache>,
    /// Processors that the process may run on.
    pub processors: usize,
    /// NUMA nodes; empty: one node with all the memory.
    pub numa_nodes: Vec<NumaNode>,
    /// Whether real access follows the model: an access to an address that is only reserved, or protected, crashes the
    /// test with a real `SIGSEGV`. Costs a real system call per change; ignored where the simulated OS page is smaller
    /// than the real one.
    pub enforce_access: bool,
    /// Whether khugepaged runs by itself when simulated time passes.
    pub background_khugepaged: bool,
    /// How many calls the log keeps.
    pub log_capacity: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self::with_page_sizes(4096, Some(2 << 20))
    }
}

impl Config {
    /// The default host with other page sizes: one hugetlb pool of the huge page and, where that is smaller,
    /// one of 1 GiB, both empty.
    ///
    /// # Panics
    /// When a size is not a power of two, or the huge page is not larger than the OS page.
    pub fn with_page_sizes(os: usize, huge: Option<usize>) -> Self {
        let page_sizes = PageSizes { os, huge };
        let ratio = Geometry::new(page_sizes).pages() as u64;
        let mut hugetlb: Vec<_> =
            huge.iter().map(|&page_size| PoolConfig { page_size, pages: 0, overcommit: 0 }).collect();
        if huge.is_some_and(|huge| huge < 1 << 30) {
            hugetlb.push(PoolConfig { page_size: 1 << 30, pages: 0, overcommit: 0 });
        }
        Self {
            page_sizes,
            total_memory: 16 << 30,
            free_swap: 0,
            other_charge: 0,
            thp: Thp {
                mode: ThpMode::Madvise,
                defrag: ThpDefrag::Madvise,
                khugepaged: Some(Khugepaged {
                    defrag: true,
                    pages_to_scan: 8 * ratio,
                    scan_sleep: Duration::from_secs(10),
                    max_ptes_none: ratio - 1,
                }),
            },
            max_ptes_shared: ratio / 2,
            thp_disabled: ThpDisabled::No,
            free_huge_pages: None,
            compactable_huge_pages: 0,
            frees_page_tables: true,
            split_drops_zero: true,
            merges: Some(false),
            seems_resident: false,
            hugetlb,
            populate_hugetlb: false,
            hugetlb_limit: None,
            hugetlb_reservation_limit: None,
            cgroup: Some(CgroupVersion::V2),
            cgroup_max: None,
            cgroup_high: None,
            pressure: Pressure { some_avg10: 0.0, full_avg10: 0.0 },
            address_space_limit: None,
            data_limit: None,
            map_limit: 65530,
            capabilities: Capabilities {
                advise_huge: huge.is_some(),
                collapse: huge.is_some(),
                cold: true,
                populate: true,
                pagemap_scan: true,
                process_madvise: true,
                relocate: true,
                name: true,
                hardware_counters: false,
            },
            caches: vec![
                Cache { level: 1, data: true, size: 32 << 10, shared_by: 1 },
                Cache { level: 1, data: false, size: 32 << 10, shared_by: 1 },
                Cache { level: 2, data: true, size: 1 << 20, shared_by: 1 },
                Cache { level: 3, data: true, size: 32 << 20, shared_by: 8 },
            ],
            processors: 2,
            numa_nodes: Vec::new(),
            enforce_access: false,
            background_khugepaged: false,
            log_capacity: 4096,
        }
    }

    /// The same host with `pages` in the pool of huge pages of the PMD size.
    #[must_use]
    pub fn with_pool(mut self, pages: u64) -> Self {
        let size = self.page_sizes.huge;
        for pool in self.hugetlb.iter_mut().filter(|pool| Some(pool.page_size) == size) {
            pool.pages = pages;
        }
        self
    }

    /// The same host with another mode of transparent huge pages.
    #[must_use]
    pub fn with_thp_mode(mut self, mode: ThpMode) -> Self {
        self.thp.mode = mode;
        self
    }

    /// The same host with `memory.max`.
    #[must_use]
    pub fn with_cgroup_max(mut self, bytes: u64) -> Self {
        self.cgroup_max = Some(bytes);
        self
    }
}

/// Knobs of the running host.
impl Kernel {
    /// Sets the mode of transparent huge pages.
    pub fn set_thp_mode(&self, mode: ThpMode) {
        self.lock().config.thp.mode = mode;
    }

    /// Sets whether equal pages are merged.
    pub fn set_merges(&self, merges: Option<bool>) {
        self.lock().config.merges = merges;
    }

    /// Sets what a page fault may do to find a huge page.
    pub fn set_thp_defrag(&self, defrag: ThpDefrag) {
        self.lock().config.thp.defrag = defrag;
    }

    /// Sets khugepaged's knobs.
    pub fn set_khugepaged(&self, knobs: Khugepaged) {
        self.lock().config.thp.khugepaged = Some(knobs);
    }

    /// Sets what `prctl(PR_SET_THP_DISABLE)` says for this process. Children forked later inherit it.
    pub fn set_process_thp_disabled(&self, disabled: ThpDisabled) {
        let pid = self.pid;
        self.lock().processes[pid].thp_disabled = disabled;
    }

    /// Sets how many free blocks of huge-page size physical memory has; `None`: as many as fit. Each fault or
    /// collapse of a huge page takes one, freeing a whole huge page gives one back.
    pub fn set_free_huge_pages(&self, blocks: Option<u64>) {
        self.lock().physical.free_huge = blocks;
    }

    /// Sets how many blocks direct compaction can make when no block is free.
    pub fn set_compactable_huge_pages(&self, blocks: u64) {
        self.lock().physical.compactable = blocks;
    }

    /// Sets the size of the pool of PMD-size pages. Returns how many pages it has after that: fewer where
    /// memory does not hold them, and pages in use stay as surplus.
    pub fn set_pool(&self, pages: u64) -> u64 {
        let size = self.lock().config.page_sizes.huge.unwrap_or(0);
        self.set_pool_of(size, pages)
    }

    /// Sets the size of the pool with one page size; 0 where there is no such pool.
    pub fn set_pool_of(&self, page_size: usize, pages: u64) -> u64 {
        let state = &mut *self.lock();
        state.pools.resize(page_size, pages, &mut state.physical)
    }

    /// Sets how many pages may be added to a pool above its size.
    pub fn set_pool_overcommit(&self, page_size: usize, pages: u64) {
        self.lock().pools.set_overcommit(page_size, pages);
    }

    /// Sets the hugetlb cgroup's limits: on use (`SIGBUS` at the touch) and on reservations (an error when mapped).
    pub fn set_hugetlb_limits(&self, used: Option<u64>, reserved: Option<u64>) {
        self.lock().pools.set_limits(used, reserved);
    }

    /// Sets `memory.max`. When the charge is above it, reclaims what can be.
    pub fn set_cgroup_max(&self, bytes: Option<u64>) {
        let state = &mut *self.lock();
        state.physical.limits.max = bytes;
        while bytes.is_some_and(|max| state.physical.charge() > max) {
            if state.physical.split_oldest().is_none() {
                break;
            }
            state.physical.events.reclaims += 1;
        }
    }

    /// Sets `memory.high`; takes effect at the next charge.
    pub fn set_cgroup_high(&self, bytes: Option<u64>) {
        self.lock().physical.limits.high = bytes;
    }

    /// Sets the bytes charged to the cgroup by others.
    pub fn set_other_charge(&self, bytes: u64) {
        self.lock().physical.limits.other = bytes;
    }

    /// Sets the host's memory in bytes.
    pub fn set_total_memory(&self, bytes: u64) {
        self.lock().physical.limits.host = bytes;
    }

    /// Sets the host's memory pressure.
    pub fn set_pressure(&self, pressure: Pressure) {
        self.lock().config.pressure = pressure;
    }

    /// Sets the limit on the address space of a process.
    pub fn set_address_space_limit(&self, bytes: Option<u64>) {
        self.lock().config.address_space_limit = bytes;
    }

    /// Sets the limit on the private memory that a process can write.
    pub fn set_data_limit(&self, bytes: Option<u64>) {
        self.lock().config.data_limit = bytes;
    }

    /// Sets the limit on the mappings of a process.
    pub fn set_map_limit(&self, mappings: usize) {
        self.lock().config.map_limit = mappings;
    }

    /// Sets what the kernel supports.
    pub fn set_capabilities(&self, capabilities: Capabilities) {
        self.lock().config.capabilities = capabilities;
    }

    /// Makes the next `times` calls of this kind fail with `code`, an `errno`; after those asked for before.
    pub fn fail_next(&self, call: Call, code: i32, times: u64) {
        self.lock().injector.next(call, code, times);
    }

    /// Makes each `n`-th call of this kind fail with `code`, counted from now; 0 switches it off.
    pub fn fail_every(&self, call: Call, n: u64, code: i32) {
        self.lock().injector.every(call, n, code);
    }

    /// Makes each call fail with a probability of `per_mille` / 1000, with one of its
    /// [plausible errors](Call::plausible_errors). The same seed gives the same failures; 0 switches it off.
    pub fn fail_randomly(&self, seed: u64, per_mille: u32) {
        self.lock().injector.randomly(seed, per_mille);
    }

    /// Switches all failures on demand off.
    pub fn fail_no_more(&self) {
        self.lock().injector.clear();
    }

    /// Sets the simulated time that each call of this kind takes.
    pub fn set_cost(&self, call: Call, cost: Duration) {
        self.lock().clock.set_cost(call, cost);
    }

    /// Sets the simulated time for which others have the processor in each call of this kind: it passes, and is
    /// no thread's.
    pub fn set_preemption(&self, call: Call, time: Duration) {
        self.lock().clock.set_preemption(call, time);
    }

    /// Lets simulated time pass. With [`Config::background_khugepaged`], khugepaged wakes up as often as its
    /// pause says.
    pub fn advance(&self, time: Duration) {
        self.lock().advance(time);
    }

    /// Turns the clock back, as no clock should: what a hypervisor makes of it when it moves a machine. Nothing
    /// else happens.
    pub fn turn_back(&self, time: Duration) {
        let clock = &mut self.lock().clock;
        clock.now = clock.now.saturating_sub(time);
    }

    /// As [`advance`](Self::advance), and the thread works all the while.
    pub fn work(&self, time: Duration) {
        let mut state = self.lock();
        state.clock.worked += time;
        state.advance(time);
    }
}

impl PoolConfig {
    pub(super) const fn empty_pool(self) -> HugetlbPool {
        HugetlbPool {
            page_size: self.page_size,
            total: 0,
            free: 0,
            reserved: 0,
            surplus: 0,
            overcommit: self.overcommit,
        }
    }
}
