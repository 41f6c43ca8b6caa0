//! [`Facts`] for Linux: which module answers what.

use super::{Linux, capabilities, cgroup, hardware, host, pools, thp, vm};
use crate::{
    AddressSpaceLimit, Cache, Capabilities, Facts, HugetlbPool, MemoryLevel, MemoryLimits, NumaNode,
    PageSizes, Pressure, Result, Thp, ThpDisabled, ThpMode,
};
use core::time::Duration;

impl Facts for Linux {
    fn page_sizes(&self) -> PageSizes {
        PageSizes { os: vm::os_page(), huge: thp::huge_page(&self.root).ok() }
    }

    fn os_page(&self) -> usize {
        vm::os_page()
    }

    fn thp(&self) -> Result<Thp> {
        thp::knobs(&self.root)
    }

    fn thp_mode(&self) -> Result<ThpMode> {
        thp::mode(&self.root)
    }

    fn thp_disabled(&self) -> Result<ThpDisabled> {
        thp::disabled()
    }

    fn hugetlb_pool(&self, page_size: usize) -> Result<Option<HugetlbPool>> {
        pools::of_size(&self.root, page_size)
    }

    fn hugetlb_pools(&self) -> Result<Vec<HugetlbPool>> {
        pools::all(&self.root)
    }

    fn memory_limits(&self) -> Result<MemoryLimits> {
        cgroup::limits(&self.root)
    }

    fn memory_levels(&self) -> Result<Vec<MemoryLevel>> {
        cgroup::levels_of(&self.root, b"self")
    }

    fn memory_room(&self) -> Result<Option<u64>> {
        cgroup::room(&self.root)
    }

    fn free_swap(&self) -> Result<u64> {
        host::meminfo(&self.root, b"SwapFree")
    }

    fn pressure(&self) -> Result<Pressure> {
        host::pressure(&self.root)
    }

    fn available_memory(&self) -> Result<u64> {
        host::meminfo(&self.root, b"MemAvailable")
    }

    fn total_memory(&self) -> Result<u64> {
        host::meminfo(&self.root, b"MemTotal")
    }

    fn caches(&self) -> Result<Vec<Cache>> {
        hardware::caches(&self.root)
    }

    fn processors(&self) -> usize {
        hardware::processors()
    }

    /// # Errors
    /// `Missing` on a kernel without NUMA, whose memory is all one node.
    fn numa_nodes(&self) -> Result<Vec<NumaNode>> {
        hardware::numa_nodes(&self.root)
    }

    fn capabilities(&self) -> Capabilities {
        capabilities::probe()
    }

    fn knows_collapse(&self) -> bool {
        capabilities::knows_collapse()
    }

    fn address_space_limit(&self) -> Option<AddressSpaceLimit> {
        host::address_space_limit(&self.root)
    }

    fn data_limit(&self) -> Option<u64> {
        host::data_limit()
    }

    fn merges(&self) -> Result<bool> {
        host::merges(&self.root)
    }

    fn merged(&self) -> Result<u64> {
        host::merged(&self.root)
    }

    fn now(&self) -> Duration {
        host::now()
    }

    fn recently(&self) -> Duration {
        host::recently()
    }

    fn thread_time(&self) -> Duration {
        host::thread_time()
    }
}
