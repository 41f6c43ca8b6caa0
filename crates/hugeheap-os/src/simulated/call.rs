//! The calls of the simulated kernel, what they record, and what they object to.
//!
//! Terms: a *call* is one method of [`Pages`](crate::Pages) or [`Facts`](crate::Facts), or one event that has a price
//! ([`Call::Fault`] and the two after it). A *violation* is a call that breaks the contract of the trait:
//! it is answered with `EINVAL`, as a kernel would at best, and kept for the test to see.

use super::Pid;
use crate::AddressRange;
use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;

/// The answer of the model: a value or an `errno`.
pub(super) type Outcome<T> = core::result::Result<T, i32>;

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident $text:literal $errors:expr),* $(,)?) => {
        /// A call that can be counted, made to fail, and given a price.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Call { $($(#[$doc])* $name),* }

        impl Call {
            /// All calls, in the order of their declaration.
            pub const ALL: &'static [Call] = &[$(Call::$name),*];

            /// The system call or file it stands for: what [`Error::call`](crate::Error) says when it fails.
            pub const fn name(self) -> &'static str {
                match self { $(Call::$name => $text),* }
            }

            /// The errors a real kernel answers it with now and then; random failures choose among them.
            /// Empty for calls that cannot fail.
            pub const fn plausible_errors(self) -> &'static [i32] {
                match self { $(Call::$name => $errors),* }
            }
        }
    };
}

calls! {
    /// `Pages::reserve`.
    Reserve "mmap(PROT_NONE)" &[libc::ENOMEM],
    /// `Pages::release`.
    Release "munmap" &[libc::ENOMEM],
    /// `Pages::release_part`.
    ReleasePart "munmap(part)" &[libc::ENOMEM],
    /// `Pages::map`.
    Map "mmap(MAP_FIXED)" &[libc::ENOMEM, libc::EAGAIN, libc::EPERM],
    /// `Pages::unmap`.
    Unmap "mmap(MAP_FIXED | PROT_NONE)" &[libc::ENOMEM],
    /// `Pages::advise`.
    Advise "madvise(MADV_HUGEPAGE)" &[libc::EINVAL, libc::ENOMEM, libc::EAGAIN],
    /// `Pages::merge`.
    Merge "madvise(MADV_MERGEABLE)" &[libc::EINVAL, libc::ENOMEM, libc::EAGAIN],
    /// `Pages::populate`.
    Populate "madvise(MADV_POPULATE_WRITE)" &[libc::ENOMEM, libc::EFAULT, libc::EAGAIN, libc::EINVAL],
    /// `Pages::collapse`.
    Collapse "madvise(MADV_COLLAPSE)" &[libc::EAGAIN, libc::ENOMEM, libc::EBUSY, libc::EINVAL],
    /// `Pages::split`.
    Split "madvise(MADV_COLD)" &[libc::EAGAIN, libc::EINVAL, libc::EPERM],
    /// `Pages::decommit`.
    Decommit "madvise(MADV_DONTNEED)" &[libc::EAGAIN, libc::ENOMEM, libc::EINVAL],
    /// `Pages::offer`.
    Offer "madvise(MADV_FREE)" &[libc::EINVAL],
    /// `Pages::protect`.
    Protect "mprotect" &[libc::ENOMEM, libc::EACCES],
    /// `Pages::relocate`.
    Relocate "mremap(MREMAP_DONTUNMAP)" &[libc::EAGAIN, libc::ENOMEM, libc::ENOSYS],
    /// `Pages::name`.
    Name "prctl(PR_SET_VMA_ANON_NAME)" &[libc::EINVAL, libc::ENOSYS, libc::ENOMEM],
    /// `Pages::barrier`.
    Barrier "membarrier" &[libc::ENOSYS, libc::EPERM],
    /// `Pages::residency`.
    Residency "ioctl(PAGEMAP_SCAN)" &[libc::EPERM, libc::ENOSYS],
    /// `Pages::is_resident`.
    IsResident "mincore" &[libc::EAGAIN, libc::ENOSYS],
    /// `Facts::page_sizes`. Cannot fail.
    PageSizes "sysconf(_SC_PAGESIZE)" &[],
    /// `Facts::thp`.
    Thp "open(/sys/kernel/mm/transparent_hugepage/enabled)" &[libc::ENOENT, libc::EACCES],
    /// `Facts::thp_disabled`.
    ThpDisabled "prctl(PR_GET_THP_DISABLE)" &[libc::EINVAL],
    /// `Facts::hugetlb_pool`.
    HugetlbPool "open(/sys/kernel/mm/hugepages)" &[libc::EACCES],
    /// `Facts::hugetlb_pools`.
    HugetlbPools "open(/sys/kernel/mm/hugepages)" &[libc::ENOENT, libc::EACCES],
    /// `Facts::memory_limits`.
    MemoryLimits "open(memory.max)" &[libc::ENOENT, libc::EACCES],
    /// `Facts::pressure`.
    Pressure "open(/proc/pressure/memory)" &[libc::ENOENT, libc::EOPNOTSUPP],
    /// `Facts::available_memory`.
    AvailableMemory "open(/proc/meminfo)" &[libc::EACCES],
    /// `Facts::free_swap`.
    FreeSwap "open(/proc/meminfo)" &[libc::EACCES],
    /// `Facts::total_memory`.
    TotalMemory "open(/proc/meminfo)" &[libc::EACCES],
    /// `Facts::caches`.
    Caches "open(/sys/devices/system/cpu/cpu0/cache)" &[libc::ENOENT],
    /// `Facts::numa_nodes`.
    NumaNodes "open(/sys/devices/system/node)" &[libc::ENOENT],
    /// `Facts::processors`. Cannot fail.
    Processors "sched_getaffinity" &[],
    /// `Facts::capabilities`. Cannot fail.
    Capabilities "probe" &[],
    /// `Facts::address_space_limit`. Cannot fail.
    AddressSpaceLimit "getrlimit(RLIMIT_AS)" &[],
    /// `Facts::data_limit`. Cannot fail.
    DataLimit "getrlimit(RLIMIT_DATA)" &[],
    /// `Pages::exclusive`.
    Exclusive "read(/proc/self/pagemap)" &[libc::ENOENT, libc::EPERM],
    /// `Facts::merges`.
    Merges "read(/sys/kernel/mm/ksm/run)" &[libc::ENOENT, libc::EACCES],
    /// `Facts::merged`.
    Merged "read(/proc/self/ksm_merging_pages)" &[libc::ENOENT],
    /// `Facts::now`. Cannot fail.
    Now "clock_gettime(CLOCK_MONOTONIC)" &[],
    /// `Facts::recently`. Cannot fail.
    Recently "clock_gettime(CLOCK_MONOTONIC_COARSE)" &[],
    /// `Facts::thread_time`. Cannot fail.
    ThreadTime "clock_gettime(CLOCK_THREAD_CPUTIME_ID)" &[],
    /// A page fault that made an OS page resident. Only counted and priced.
    Fault "fault of an OS page" &[],
    /// A page fault that made a huge page resident. Only counted and priced.
    HugeFault "fault of a huge page" &[],
    /// A direct compaction for a huge page. Only counted and priced.
    Compaction "direct compaction" &[],
}

/// How many calls there are.
pub(super) const CALLS: usize = Call::ALL.len();

/// What a touch of memory raises instead of succeeding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// `SIGSEGV`: nothing is mapped there (a violation), or the protection forbids it (not one).
    Segv,
    /// `SIGBUS`: no page of the hugetlb pool could be had.
    Bus,
    /// The memory cgroup or the host is full: the kernel would kill the process.
    Oom,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Segv => "segmentation fault",
            Self::Bus => "bus error: no hugetlb page",
            Self::Oom => "killed: out of memory",
        })
    }
}

impl std::error::Error for Fault {}

/// What is wrong with a call that breaks the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Misuse {
    /// Start or length is not a multiple of the page size that counts here, or an alignment is not a power of two.
    Misaligned,
    /// Length 0 where the call has no meaning then, or a range that wraps around the address space.
    Empty,
    /// The range does not lie in one reservation of this process.
    NotReserved,
    /// A part of the range is mapped already.
    AlreadyMapped,
    /// A part of the range is not mapped.
    NotMapped,
    /// The call is not for hugetlb ranges.
    Hugetlb,
    /// Not exactly what `reserve` returned.
    NotWhole,
    /// Two ranges of different length, or that overlap.
    BadPair,
    /// The process has exited.
    Exited,
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Misaligned => "misaligned",
            Self::Empty => "empty, or wraps around",
            Self::NotReserved => "not in one reservation",
            Self::AlreadyMapped => "mapped already",
            Self::NotMapped => "not mapped",
            Self::Hugetlb => "not for hugetlb ranges",
            Self::NotWhole => "not what reserve returned",
            Self::BadPair => "lengths differ, or ranges overlap",
            Self::Exited => "the process has exited",
        })
    }
}

/// A call that broke the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The call; [`Call::Fault`] for a touch.
    pub call: Call,
    /// The range it was made with.
    pub range: AddressRange,
    /// What is wrong with it.
    pub misuse: Misuse,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}: {}", self.call, self.range, self.misuse)
    }
}

/// A call in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Simulated time when it returned.
    pub at: Duration,
    /// The process that made it: 0 is the first, children count up.
    pub process: usize,
    /// The call.
    pub call: Call,
    /// The range it was about; start and length 0 for facts, start 0 for a failed `reserve`.
    pub range: AddressRange,
    /// `errno`, or 0.
    pub code: i32,
}

/// What has been called so far.
pub(super) struct Record {
    pub(super) log: VecDeque<Entry>,
    capacity: usize,
    pub(super) counts: [u64; CALLS],
    pub(super) failures: [u64; CALLS],
    pub(super) violations: Vec<Violation>,
}

impl Record {
    /// A record that keeps the last `capacity` calls. The room is taken now: facts may not allocate.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            log: VecDeque::with_capacity(capacity),
            capacity,
            counts: [0; CALLS],
            failures: [0; CALLS],
            violations: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, at: Duration, pid: Pid, call: Call, range: AddressRange, code: i32) {
        self.counts[call as usize] += 1;
        self.failures[call as usize] += u64::from(code != 0);
        if self.capacity == 0 {
            return;
        }
        if self.log.len() == self.capacity {
            self.log.pop_front();
        }
        self.log.push_back(Entry { at, process: pid, call, range, code });
    }

    /// Notes a violation; the answer is `EINVAL`.
    pub(super) fn violation(&mut self, call: Call, range: AddressRange, misuse: Misuse) -> i32 {
        self.violations.push(Violation { call, range, misuse });
        libc::EINVAL
    }
}
