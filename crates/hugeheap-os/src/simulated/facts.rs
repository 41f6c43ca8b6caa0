//! The simulated kernel as [`Facts`]: what the configuration and the model say.

use super::Kernel;
use super::call::Call;
use crate::{
    AddressRange, AddressSpaceLimit, Cache, Capabilities, Facts, HugetlbPool, MemoryLimits, NumaNode,
    PageSizes, Pressure, Result, Thp, ThpDisabled,
};
use core::time::Duration;

const NOTHING: AddressRange = AddressRange::new(0, 0);

impl Kernel {
    /// A fact that can fail.
    fn fact<T>(&self, call: Call, read: impl FnOnce(&super::State) -> super::call::Outcome<T>) -> Result<T> {
        self.call(call, NOTHING, |state, _| {
            state.injector.ask(call)?;
            read(state)
        })
    }

    /// A fact that cannot fail.
    fn certain<T>(&self, call: Call, read: impl FnOnce(&super::State) -> T) -> T {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.clock.spend(call, 1);
        state.record.note(state.clock.now, self.pid, call, NOTHING, 0);
        read(state)
    }
}

impl Facts for Kernel {
    fn page_sizes(&self) -> PageSizes {
        self.certain(Call::PageSizes, |state| state.config.page_sizes)
    }

    /// Not counted among the calls: a constant to a real process.
    fn os_page(&self) -> usize {
        self.lock().config.page_sizes.os
    }

    fn thp(&self) -> Result<Thp> {
        self.fact(Call::Thp, |state| {
            if state.physical.geometry.has_huge { Ok(state.config.thp) } else { Err(libc::ENOENT) }
        })
    }

    fn thp_disabled(&self) -> Result<ThpDisabled> {
        self.fact(Call::ThpDisabled, |state| Ok(state.processes[self.pid].thp_disabled))
    }

    fn hugetlb_pool(&self, page_size: usize) -> Result<Option<HugetlbPool>> {
        self.fact(Call::HugetlbPool, |state| Ok(state.pools.get(page_size)))
    }

    fn hugetlb_pools(&self) -> Result<Vec<HugetlbPool>> {
        self.fact(Call::HugetlbPools, |state| Ok(state.pools.all().to_vec()))
    }

    fn memory_limits(&self) -> Result<MemoryLimits> {
        self.fact(Call::MemoryLimits, |state| {
            let limits = &state.physical.limits;
            Ok(MemoryLimits {
                version: state.config.cgroup.ok_or(libc::ENOENT)?,
                max: limits.max,
                high: limits.high,
                charge: state.physical.charge(),
                // `anon` counts what is mapped: the kernel does not show stranded memory there either.
                anonymous: Some(state.physical.mapped),
            })
        })
    }

    fn pressure(&self) -> Result<Pressure> {
        self.fact(Call::Pressure, |state| Ok(state.config.pressure))
    }

    fn available_memory(&self) -> Result<u64> {
        self.fact(Call::AvailableMemory, |state| Ok(state.physical.free_memory()))
    }

    fn free_swap(&self) -> Result<u64> {
        self.fact(Call::FreeSwap, |state| Ok(state.config.free_swap))
    }

    fn total_memory(&self) -> Result<u64> {
        self.fact(Call::TotalMemory, |state| Ok(state.physical.limits.host))
    }

    fn caches(&self) -> Result<Vec<Cache>> {
        self.fact(Call::Caches, |state| Ok(state.config.caches.clone()))
    }

    fn processors(&self) -> usize {
        self.certain(Call::Processors, |state| state.config.processors)
    }

    fn numa_nodes(&self) -> Result<Vec<NumaNode>> {
        self.fact(Call::NumaNodes, |state| {
            let all =
                NumaNode { id: 0, total: state.physical.limits.host, free: state.physical.free_memory() };
            let nodes = &state.config.numa_nodes;
            Ok(if nodes.is_empty() { vec![all] } else { nodes.clone() })
        })
    }

    fn capabilities(&self) -> Capabilities {
        self.certain(Call::Capabilities, |state| state.config.capabilities)
    }

    fn address_space_limit(&self) -> Option<AddressSpaceLimit> {
        self.certain(Call::AddressSpaceLimit, |state| {
            let used = state.address_space(self.pid);
            state.config.address_space_limit.map(|limit| AddressSpaceLimit { limit, used })
        })
    }

    fn data_limit(&self) -> Option<u64> {
        self.certain(Call::DataLimit, |state| state.config.data_limit)
    }

    fn merges(&self) -> Result<bool> {
        self.fact(Call::Merges, |state| state.config.merges.ok_or(libc::ENOENT))
    }

    fn merged(&self) -> Result<u64> {
        self.fact(Call::Merged, |state| Ok(state.merged(self.pid)))
    }

    fn now(&self) -> Duration {
        self.certain(Call::Now, |state| state.clock.now)
    }

    fn recently(&self) -> Duration {
        self.certain(Call::Recently, |state| state.clock.noted())
    }

    fn thread_time(&self) -> Duration {
        self.certain(Call::ThreadTime, |state| state.clock.worked)
    }
}
