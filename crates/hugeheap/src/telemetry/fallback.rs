//! Why memory did not get the backing its policy wanted. Every fallback is counted under exactly one reason.

/// The reason of a fallback. The discriminant is the index into [`Snapshot::fallbacks`](super::Snapshot::fallbacks);
/// numbers are part of the schema and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Fallback {
    /// The host's THP mode is `never`: advising does nothing.
    ThpNever = 0,
    /// This process has THP switched off by `prctl(PR_SET_THP_DISABLE)`.
    ThpDisabled = 1,
    /// The kernel has no transparent huge pages, or refused the advice.
    ThpUnsupported = 2,
    /// The hugetlb pool had no free page.
    PoolEmpty = 3,
    /// The kernel has no hugetlb pool of the size, or refused the mapping for another reason.
    PoolRefused = 4,
    /// The process forks, and every page from the pool would be copied each time: no more are taken.
    PoolForks = 5,
    /// The memory limit is near, the cgroup's or `HUGEHEAP_LIMIT`: memory is not rounded up to huge pages.
    MemoryLimit = 6,
    /// A collapse found no free huge page.
    CollapseNoPage = 7,
    /// A collapse was refused by the cgroup, or was busy too often.
    CollapseBusy = 8,
    /// A collapse was refused for another reason.
    CollapseRefused = 9,
    /// No address space was left for arenas (`ulimit -v`, mapping limit): the request went to the previous allocator.
    AddressSpace = 10,
    /// The system had no memory for an arena: the request went to the previous allocator.
    OutOfMemory = 11,
    /// Finding huge pages took too long lately: arenas are made from OS pages and collapsed later.
    Latency = 12,
    /// The maintenance thread could not be started: decay happens when memory is freed, not when the program idles.
    NoThread = 13,
    /// An advice was refused because the process has too many mappings (`vm.max_map_count`).
    MappingLimit = 14,
    /// The first touch of an advised arena found no free huge page.
    NoHugePage = 15,
    /// The system refuses the barrier (`membarrier`) without which vacant OS pages of heap pages in use cannot
    /// be given back: they stay until their heap pages are free.
    NoBarrier = 16,
    /// The system refuses to take kept memory when it is short (`MADV_FREE`: before Linux 4.5, or memory locked
    /// by `mlockall`): less is kept under a memory limit.
    OfferRefused = 17,
    /// OS pages were to be made alike (`HUGEHEAP_MERGE=1`), and the host does not merge equal pages.
    NoMerging = 18,
}

impl Fallback {
    /// Number of reasons the schema has room for.
    pub const ROOM: usize = 24;

    /// All reasons, in the order of the schema.
    pub const ALL: [Self; 19] = [
        Self::ThpNever,
        Self::ThpDisabled,
        Self::ThpUnsupported,
        Self::PoolEmpty,
        Self::PoolRefused,
        Self::PoolForks,
        Self::MemoryLimit,
        Self::CollapseNoPage,
        Self::CollapseBusy,
        Self::CollapseRefused,
        Self::AddressSpace,
        Self::OutOfMemory,
        Self::Latency,
        Self::NoThread,
        Self::MappingLimit,
        Self::NoHugePage,
        Self::NoBarrier,
        Self::OfferRefused,
        Self::NoMerging,
    ];

    /// The name in JSON and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ThpNever => "thp_never",
            Self::ThpDisabled => "thp_disabled",
            Self::ThpUnsupported => "thp_unsupported",
            Self::PoolEmpty => "pool_empty",
            Self::PoolRefused => "pool_refused",
            Self::PoolForks => "pool_forks",
            Self::MemoryLimit => "memory_limit",
            Self::CollapseNoPage => "collapse_no_page",
            Self::CollapseBusy => "collapse_busy",
            Self::CollapseRefused => "collapse_refused",
            Self::AddressSpace => "address_space",
            Self::OutOfMemory => "out_of_memory",
            Self::Latency => "latency",
            Self::NoThread => "no_thread",
            Self::MappingLimit => "mapping_limit",
            Self::NoHugePage => "no_huge_page",
            Self::NoBarrier => "no_barrier",
            Self::OfferRefused => "offer_refused",
            Self::NoMerging => "no_merging",
        }
    }

    /// One line for an operator: what happened and what to do.
    pub const fn hint(self) -> &'static str {
        match self {
            Self::ThpNever => {
                "transparent huge pages are off on this host; set \
                 /sys/kernel/mm/transparent_hugepage/enabled to madvise"
            }
            Self::ThpDisabled => {
                "this process has transparent huge pages switched off by prctl(PR_SET_THP_DISABLE); \
                 start it without the switch"
            }
            Self::ThpUnsupported => "this kernel does not offer transparent huge pages",
            Self::PoolEmpty => {
                "the hugetlb pool had no free page; enlarge /proc/sys/vm/nr_hugepages or use policy thp"
            }
            Self::PoolRefused => "the kernel refused hugetlb pages; see dmesg and the cgroup's hugetlb limit",
            Self::PoolForks => "the process forks; policy thp suits it better than hugetlb",
            Self::MemoryLimit => {
                "the memory limit (the cgroup's or HUGEHEAP_LIMIT) is near; raise it to keep huge pages"
            }
            Self::CollapseNoPage => "no free huge page for a collapse; memory is fragmented or full",
            Self::CollapseBusy => "the cgroup or the kernel refused to collapse for now; it is tried again",
            Self::CollapseRefused => "the kernel refused to collapse an arena",
            Self::AddressSpace => "no address space left for arenas; raise ulimit -v or vm.max_map_count",
            Self::OutOfMemory => "the system had no memory left for an arena",
            Self::Latency => "finding huge pages was slow; memory is compacted less eagerly now",
            Self::NoThread => {
                "no thread could be started (ulimit -u); idle memory is kept until the next free"
            }
            Self::MappingLimit => "too many mappings; raise vm.max_map_count",
            Self::NoHugePage => {
                "no free huge page at first touch: memory is fragmented or full; echo 1 > \
                 /proc/sys/vm/compact_memory helps for a while"
            }
            Self::NoBarrier => {
                "membarrier was refused; allow it in the sandbox's filter of system calls, or vacant OS pages \
                 stay until their heap pages are free"
            }
            Self::OfferRefused => {
                "MADV_FREE was refused (Linux before 4.5, or mlockall): under the memory limit little is kept for reuse"
            }
            Self::NoMerging => {
                "merging was asked for, and the host does not merge equal pages; as root, echo 1 > \
                 /sys/kernel/mm/ksm/run has it do so for all programs that ask for it"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_all_is_the_schema() {
        for (index, reason) in Fallback::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
        }
        const { assert!(Fallback::ALL.len() <= Fallback::ROOM) };
    }
}
