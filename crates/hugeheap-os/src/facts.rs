//! The trait for facts about the host and this process, and the types of the facts.
//!
//! A fact is what the kernel says at the moment of the call; nothing is cached here. A fact that cannot be
//! read is an `Err` with the reason, or `None` in a field whose absence is normal. Never a guess.
//!
//! The calls an allocator makes (page sizes, [`Thp`], [`Facts::thp_disabled`], [`MemoryLimits`], free pages of
//! a pool, [`Pressure`], the clock) allocate nothing from the process's heap. The others (lists of pools,
//! caches, nodes) may.

use crate::Result;
use core::time::Duration;

/// Page sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSizes {
    /// The OS page, 4096 on most machines.
    pub os: usize,
    /// The huge page (PMD size), 2 MiB on x86-64. `None` where the kernel has no transparent huge pages.
    pub huge: Option<usize>,
}

/// Mode of transparent huge pages: `/sys/kernel/mm/transparent_hugepage/enabled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThpMode {
    /// Every mapping that can hold a huge page gets it.
    Always,
    /// Only mappings advised with `MADV_HUGEPAGE`.
    Madvise,
    /// None; only an explicit collapse makes huge pages.
    Never,
}

/// What a page fault may do to find a huge page: `transparent_hugepage/defrag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThpDefrag {
    /// Every fault reclaims and compacts directly.
    Always,
    /// Faults wake the background threads and go on with OS pages.
    Defer,
    /// Direct for advised mappings, background for the others.
    DeferMadvise,
    /// Direct for advised mappings only.
    Madvise,
    /// Neither.
    Never,
}

/// khugepaged's knobs: `transparent_hugepage/khugepaged/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Khugepaged {
    /// Whether it may compact memory to find huge pages (`defrag`).
    pub defrag: bool,
    /// OS pages scanned per wake-up (`pages_to_scan`).
    pub pages_to_scan: u64,
    /// Pause between wake-ups.
    pub scan_sleep: Duration,
    /// Pages of a range that may be absent and are filled with zero when it collapses (`max_ptes_none`, 0 to 511).
    pub max_ptes_none: u64,
}

/// Transparent huge pages on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thp {
    /// The global mode, with the override for the PMD size (`hugepages-2048kB/enabled`) already applied where
    /// there is one.
    pub mode: ThpMode,
    /// What faults may do.
    pub defrag: ThpDefrag,
    /// The background collapser's knobs; `None` where they cannot be read.
    pub khugepaged: Option<Khugepaged>,
}

/// Whether this process has transparent huge pages switched off: `PR_GET_THP_DISABLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThpDisabled {
    /// Not switched off.
    No,
    /// Switched off entirely.
    Completely,
    /// Switched off but for ranges advised with `MADV_HUGEPAGE` (kernel 6.18 and newer).
    ExceptAdvised,
}

/// One pool of explicit huge pages of one size: `/sys/kernel/mm/hugepages/hugepages-*kB/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugetlbPool {
    /// Page size in bytes.
    pub page_size: usize,
    /// Pages in the pool (`nr_hugepages`).
    pub total: u64,
    /// Pages not handed out, reserved ones included (`free_hugepages`).
    pub free: u64,
    /// Pages promised to mappings that have not touched them (`resv_hugepages`).
    pub reserved: u64,
    /// Pages above the pool's size now (`surplus_hugepages`).
    pub surplus: u64,
    /// Pages that may be added above the pool's size (`nr_overcommit_hugepages`).
    pub overcommit: u64,
}

impl HugetlbPool {
    /// Pages a new mapping can still reserve.
    pub const fn available(self) -> u64 {
        // Who wants no bound writes the largest number there is.
        self.free.saturating_sub(self.reserved).saturating_add(self.overcommit.saturating_sub(self.surplus))
    }
}

/// Version of the control groups the memory controller is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CgroupVersion {
    /// `memory.limit_in_bytes`, `memory.usage_in_bytes`.
    V1,
    /// `memory.max`, `memory.high`, `memory.current`.
    V2,
}

/// Limits and charge of this process's memory cgroup. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Which interface they come from.
    pub version: CgroupVersion,
    /// Above this the kernel kills: the least `memory.max` of the group and its parents. `None`: no limit.
    pub max: Option<u64>,
    /// Above this the kernel throttles and reclaims: the least `memory.high`. `None`: no limit.
    pub high: Option<u64>,
    /// What the group is charged now (`memory.current`). Memory RSS does not show is in it.
    pub charge: u64,
    /// The charge without file cache that can be dropped, where the statistics tell (`anon` of `memory.stat`,
    /// `rss` of v1).
    pub anonymous: Option<u64>,
}

impl MemoryLimits {
    /// The group's own level, where it has a limit.
    pub fn level(&self) -> Option<MemoryLevel> {
        let limit = self.max.into_iter().chain(self.high).min()?;
        Some(MemoryLevel { limit, charge: self.charge, kept: self.anonymous })
    }
}

/// A limit on memory and what is charged against it: of a memory cgroup, or of one above it. In bytes.
///
/// The room of a group is that of its tightest level. The least limit of all levels says nothing beside the
/// group's own charge: the groups beside it are charged against the limit of their parent, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLevel {
    /// The lesser of the level's limits (`max` and `high`).
    pub limit: u64,
    /// What the level is charged, with all groups below it.
    pub charge: u64,
    /// Of that, what cannot be dropped: anonymous memory and shared memory. `None` where the statistics do not tell.
    pub kept: Option<u64>,
}

impl MemoryLevel {
    /// What can still be charged.
    pub const fn room(&self) -> u64 {
        self.limit.saturating_sub(self.charge)
    }

    /// What can be charged when all that can be dropped is.
    pub fn room_at_most(&self) -> u64 {
        self.limit.saturating_sub(self.kept.unwrap_or(self.charge).min(self.charge))
    }
}

/// Pressure stall information: share of time, in percent, over the last 10 seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// Some task waited for memory.
    pub some_avg10: f32,
    /// All tasks waited for memory.
    pub full_avg10: f32,
}

/// One cache of a CPU: `/sys/devices/system/cpu/cpu*/cache/index*/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// 1 is nearest to the CPU.
    pub level: u8,
    /// Whether it holds data (unified caches do).
    pub data: bool,
    /// Size in bytes.
    pub size: usize,
    /// How many CPUs share it.
    pub shared_by: u32,
}

/// One NUMA node. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// The kernel's number of the node.
    pub id: u32,
    /// Memory of the node.
    pub total: u64,
    /// Free memory of the node.
    pub free: u64,
}

/// Which calls this kernel really serves, each probed with a harmless call on memory of our own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// `MADV_HUGEPAGE` is accepted.
    pub advise_huge: bool,
    /// `MADV_COLLAPSE` is known (6.1).
    pub collapse: bool,
    /// `MADV_COLD` is known (5.4): the call that makes the kernel split a partially mapped huge page.
    pub cold: bool,
    /// `MADV_POPULATE_WRITE` is known (5.14).
    pub populate: bool,
    /// `ioctl(PAGEMAP_SCAN)` answers (6.7).
    pub pagemap_scan: bool,
    /// `process_madvise` on oneself is allowed (6.13 for every advice).
    pub process_madvise: bool,
    /// `mremap(MREMAP_DONTUNMAP)` works on private memory (5.7).
    pub relocate: bool,
    /// `PR_SET_VMA_ANON_NAME` works (5.17 and a kernel option).
    pub name: bool,
    /// Hardware counters can be opened by this process.
    pub hardware_counters: bool,
}

/// Facts about the host and this process. See the module's text for what may allocate.
pub trait Facts {
    /// Page sizes. Does not allocate.
    fn page_sizes(&self) -> PageSizes;

    /// The OS page in bytes, for who needs no more: on Linux the huge page's size is read from a file each
    /// time. Does not allocate.
    fn os_page(&self) -> usize;

    /// The transparent-huge-page knobs. Does not allocate.
    ///
    /// # Errors
    /// `Missing` on a kernel without transparent huge pages; `Permission` where /sys is closed.
    fn thp(&self) -> Result<Thp>;

    /// The mode alone, for who needs no more and asks often: on Linux the knobs are seven files. Does not allocate.
    ///
    /// # Errors
    /// As of [`thp`](Self::thp).
    fn thp_mode(&self) -> Result<ThpMode> {
        Ok(self.thp()?.mode)
    }

    /// Whether this process has transparent huge pages switched off. Does not allocate.
    fn thp_disabled(&self) -> Result<ThpDisabled>;

    /// The pool of explicit huge pages of one size, `None` when the kernel has none of it. Does not allocate.
    fn hugetlb_pool(&self, page_size: usize) -> Result<Option<HugetlbPool>>;

    /// All pools of explicit huge pages, smallest page first. May allocate.
    fn hugetlb_pools(&self) -> Result<Vec<HugetlbPool>>;

    /// Limits and charge of this process's memory cgroup. Does not allocate.
    ///
    /// # Errors
    /// `Missing` where the process is in no memory cgroup or its files cannot be found.
    fn memory_limits(&self) -> Result<MemoryLimits>;

    /// The levels that limit this process's memory: its cgroup and those above it, as far as they have limits
    /// and can be seen, the group first. May allocate.
    ///
    /// # Errors
    /// As [`memory_limits`](Facts::memory_limits).
    fn memory_levels(&self) -> Result<Vec<MemoryLevel>> {
        Ok(self.memory_limits()?.level().into_iter().collect())
    }

    /// Bytes that this process can be charged more before the kernel kills: of its memory cgroup and those
    /// above it, the least that is left below a `max` when all that can be dropped is. What could be swapped
    /// out is not counted. `None`: no such limit. Does not allocate.
    ///
    /// # Errors
    /// As [`memory_limits`](Facts::memory_limits).
    fn memory_room(&self) -> Result<Option<u64>> {
        let limits = self.memory_limits()?;
        let level = MemoryLimits { high: None, ..limits }.level();
        Ok(level.map(|level| level.room_at_most()))
    }

    /// Bytes of the host's swap that are free: as much the kernel can swap out before it kills, where a memory
    /// cgroup may swap. Does not allocate.
    ///
    /// # Errors
    /// When the system does not tell.
    fn free_swap(&self) -> Result<u64>;

    /// Memory pressure of the host. Does not allocate.
    fn pressure(&self) -> Result<Pressure>;

    /// Memory that could be had without swapping, in bytes (`MemAvailable`). Does not allocate.
    fn available_memory(&self) -> Result<u64>;

    /// Memory of the host in bytes (`MemTotal`). Does not allocate.
    fn total_memory(&self) -> Result<u64>;

    /// The caches of CPU 0 and who shares them. May allocate.
    fn caches(&self) -> Result<Vec<Cache>>;

    /// Processors that this thread may run on, at least 1. Does not allocate.
    fn processors(&self) -> usize;

    /// The NUMA nodes that have memory. May allocate.
    fn numa_nodes(&self) -> Result<Vec<NumaNode>>;

    /// Which calls work here. Makes and drops a small mapping; does not allocate from the heap.
    fn capabilities(&self) -> Capabilities;

    /// [`Capabilities::collapse`] alone, for who needs no more: on Linux all together are some 20 system calls.
    /// Does not allocate.
    fn knows_collapse(&self) -> bool {
        self.capabilities().collapse
    }

    /// The limit on this process's address space (`RLIMIT_AS`) in bytes, and what of it is used. `None`: no limit.
    /// Does not allocate.
    fn address_space_limit(&self) -> Option<AddressSpaceLimit>;

    /// The limit on this process's private memory that can be written (`RLIMIT_DATA`) in bytes, touched or not.
    /// `None`: no limit. Does not allocate.
    fn data_limit(&self) -> Option<u64>;

    /// Whether the host merges OS pages of equal contents now (`/sys/kernel/mm/ksm/run` is 1). Does not allocate.
    ///
    /// # Errors
    /// `Missing` on a kernel that cannot; `Permission` where /sys is closed.
    fn merges(&self) -> Result<bool>;

    /// Bytes of this process's memory in OS pages that were merged with equal ones. Does not allocate.
    ///
    /// # Errors
    /// Where the kernel does not tell (before Linux 5.19).
    fn merged(&self) -> Result<u64>;

    /// Time since an arbitrary point, never going back. Does not allocate.
    fn now(&self) -> Duration;

    /// [`now`](Self::now) as of the kernel's last timer interrupt, 10 ms ago at most: for a quarter of the time that it
    /// takes to read the clock itself. Does not allocate.
    fn recently(&self) -> Duration;

    /// Time a processor has worked for the calling thread, in the kernel too, never going back: what something
    /// really took on a busy host. Does not allocate.
    fn thread_time(&self) -> Duration;
}

/// The limit on a process's address space. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressSpaceLimit {
    /// The soft limit.
    pub limit: u64,
    /// Address space in use now (`VmSize`); the limit itself when it cannot be read.
    pub used: u64,
}
