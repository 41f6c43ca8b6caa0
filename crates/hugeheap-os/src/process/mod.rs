//! One process, this or another: what its memory consists of, and changing that from outside.
//!
//! Terms: a *unit* is one huge-page-aligned range of huge-page size of a process's address space; what the
//! kernel can put on a huge page. A unit is *dense* when nearly all its OS pages are resident. A *partial huge
//! page* is one of which the process maps a part, with entries of its own; the rest of it is stranded when
//! nobody maps it. The *picture* is what was gathered about a process at one time. Its process goes on running:
//! the picture is old when it is looked at.
//!
//! ```text
//!   collapse()   release()            gather, plan, do, look again: whole operations on any Process
//!       │  │        │  │
//!       │  └ pace ──┘  │              pure: how long to wait after a call, when to give up
//!       │    ended     │              whether a process without memory has ended, or its main thread alone has
//!       │   taken      │              no two of these at one process at once
//!       └── plan ──────┘              pure: which units, in which order, how much memory may grow
//!            │
//!         picture                     what is where, gathered under a deadline
//!            │
//!       trait Process                 linux::LinuxProcess, simulated::RemoteProcess
//! ```
//!
//! Nothing here changes contents. What it changes is what backs them: `collapse` copies a unit to a new huge
//! page (holes become zero pages, memory may grow), `split` makes the kernel take a partial huge page apart.
//!
//! For this process itself (no privilege needed):
//!
//! ```no_run
//! use hugeheap_os::linux::LinuxProcess;
//! use hugeheap_os::process::{CollapseOptions, ReleaseOptions, collapse, release};
//!
//! let own = LinuxProcess::own()?;
//! let made = collapse(&own, &CollapseOptions::default(), &mut |_| {})?;
//! println!("{} huge pages made", made.collapsed);
//! let freed = release(&own, &ReleaseOptions::default(), &mut |_| {})?;
//! println!("{} huge pages taken apart", freed.split);
//! # Ok::<(), hugeheap_os::Error>(())
//! ```

mod budget;
mod collapse;
mod ended;
mod pace;
mod picture;
mod release;
mod taken;

pub use collapse::{CollapseOptions, CollapsePlan, CollapseReport, Skipped, Step, collapse};
pub use ended::gone;
pub use pace::{Outcome, Pace, Stop, Tally};
pub use picture::{MappingPicture, Picture, Unit};
pub use release::{Partial, ReleaseOptions, ReleasePlan, ReleaseReport, Stranded, look, release};

use crate::{AddressRange, Advice, MemoryLevel, MemoryLimits, PageSizes, Result, ThpDisabled};
use core::time::Duration;

/// What a mapping is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MappingKind {
    /// Private memory without a file: the heap, `mmap`, stacks of threads.
    Anonymous,
    /// The main thread's stack.
    Stack,
    /// Shared memory without a name (`shmem`, `memfd`).
    Shared,
    /// A file.
    File,
    /// Pages of a hugetlb pool.
    Hugetlb,
    /// What the kernel maps for itself (`[vdso]`, `[vvar]`).
    Special,
}

impl MappingKind {
    /// Its name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::Stack => "stack",
            Self::Shared => "shared",
            Self::File => "file",
            Self::Hugetlb => "hugetlb",
            Self::Special => "special",
        }
    }
}

/// One mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessMapping {
    /// Where it is.
    pub range: AddressRange,
    /// What it is of.
    pub kind: MappingKind,
    /// Whether the process may read it.
    pub readable: bool,
    /// Whether the process may write to it.
    pub writable: bool,
    /// Name or path as the kernel writes it; empty for none.
    pub name: String,
}

/// What a run of neighbouring OS pages consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageKind {
    /// Mapped with entries of their own.
    Small,
    /// Mapped by a huge page's entry, or pages of a hugetlb pool.
    Huge,
    /// The shared page of zeros: nobody's memory.
    Zero,
    /// Written out to swap.
    Swapped,
}

/// What the page tables say about a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// Where.
    pub range: AddressRange,
    /// What.
    pub kind: PageKind,
}

/// What a process says about itself cheaply: no walk of page tables. In bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStatus {
    /// Its name (`comm`).
    pub name: String,
    /// Resident memory (`VmRSS`): without hugetlb pages and without what is stranded.
    pub resident: u64,
    /// Resident memory without a file (`RssAnon`).
    pub anonymous: u64,
    /// Resident memory of hugetlb pools (`HugetlbPages`).
    pub hugetlb: u64,
    /// Written out to swap (`VmSwap`).
    pub swapped: u64,
    /// Size of its page tables (`VmPTE`).
    pub page_tables: u64,
    /// Whether it has transparent huge pages switched off (`THP_enabled`); `None` where the kernel does not
    /// tell (before 5.0).
    pub thp_disabled: Option<ThpDisabled>,
    /// Whether it has memory of its own: not so a kernel thread, nor a process that has ended and was not waited for.
    pub has_memory: bool,
    /// Whether it has ended and was not waited for (`Z`, `X`).
    pub ended: bool,
    /// Whether its main thread has ended while others run: it lives, and what /proc shows of its memory is empty.
    pub main_thread_ended: bool,
    /// The user it runs as (effective).
    pub user: u32,
    /// The process that started it, or took it over; 0 for none.
    pub parent: u32,
}

/// What the kernel says of one mapping when asked for all of it. Costs a walk of its page tables. In bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappingDetail {
    /// Its first address.
    pub start: usize,
    /// Resident memory, hugetlb pages too.
    pub resident: u64,
    /// Resident memory without a file.
    pub anonymous: u64,
    /// Mapped by huge pages of either kind.
    pub huge: u64,
    /// The last advice.
    pub advice: Option<Advice>,
    /// Whether a huge page of any size may be put here, by mode, advice, kind and size; `None` before Linux 5.0.
    pub eligible: Option<bool>,
    /// Size of the pages it is made of: larger than the OS page for hugetlb.
    pub page_size: u64,
    /// Whether its memory is locked (`mlock`): advice to split is refused.
    pub locked: bool,
}

/// A huge page of which this process maps a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialPage {
    /// Tells huge pages apart within one look at a process.
    pub identity: u64,
    /// The first OS page of it that the process maps.
    pub page: usize,
    /// OS pages of it that this process maps in the range looked at.
    pub mapped_here: u32,
    /// OS pages of it that somebody maps; `None` where the kernel does not say.
    pub mapped: Option<u32>,
    /// Entries of all page tables that point to it; `None` where the kernel does not say. More than this
    /// process has: another maps it, too.
    pub entries: Option<u32>,
}

/// A change of what backs memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// [`Process::collapse`].
    Collapse,
    /// [`Process::split`].
    Split,
}

/// How partial huge pages are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Derivation {
    /// Exactly: the physical pages behind the process's page tables, and who maps them (`/proc/kpageflags`,
    /// `/proc/kpagecount`; needs `CAP_SYS_ADMIN`).
    Folios,
    /// An upper bound: units of which a part is resident. Whether a huge page is behind them is not known.
    Tables,
}

impl Derivation {
    /// Its name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Folios => "folios",
            Self::Tables => "page_tables",
        }
    }
}

/// One process: facts about it and changes of what backs its memory. May allocate.
///
/// Every method answers `ESRCH` ([`Missing`](crate::ErrorKind::Missing)) when the process is gone, `EPERM` or `EACCES`
/// ([`Permission`](crate::ErrorKind::Permission)) when this one may not do that, and never anything about a
/// different process that was given the same number meanwhile.
pub trait Process {
    /// Its number.
    fn id(&self) -> u32;

    /// Page sizes of the host.
    fn page_sizes(&self) -> PageSizes;

    /// Facts that cost no walk of its page tables.
    ///
    /// # Errors
    /// See [the trait](Process).
    fn status(&self) -> Result<ProcessStatus>;

    /// Its mappings in the order of addresses. No walk of its page tables.
    ///
    /// # Errors
    /// See [the trait](Process).
    fn mappings(&self) -> Result<Vec<ProcessMapping>>;

    /// Details of its mappings in the order of addresses, until `deadline` (on its clock), and whether all are
    /// there. The deadline is looked at between mappings: one large one takes as long as its page tables are.
    ///
    /// # Errors
    /// See [the trait](Process).
    fn details(&self, deadline: Duration) -> Result<(Vec<MappingDetail>, bool)>;

    /// Hands what is resident or swapped in `range` to `visit`, in the order of addresses. Costs a walk of the
    /// page tables of the range.
    ///
    /// # Errors
    /// See [the trait](Process).
    fn pages(&self, range: AddressRange, visit: &mut dyn FnMut(PageRun)) -> Result<()>;

    /// Whether [`pages`](Process::pages) tells huge pages from others (Linux 6.7 and newer). Where it does not,
    /// all are `Small`.
    fn tells_huge(&self) -> bool;

    /// OS pages of `unit` that this process does not map alone: shared since a `fork`, or the page of zeros.
    ///
    /// # Errors
    /// See [the trait](Process).
    fn shared_pages(&self, unit: AddressRange) -> Result<u32>;

    /// How [`partial_pages`](Process::partial_pages) is answered here.
    fn derivation(&self) -> Derivation;

    /// Hands the huge pages of which a part is mapped in `unit` to `visit`. One that is mapped in several units
    /// is handed out for each, with the same identity.
    ///
    /// # Errors
    /// See [the trait](Process).
    fn partial_pages(&self, unit: AddressRange, visit: &mut dyn FnMut(PartialPage)) -> Result<()>;

    /// Limits and charge of the memory cgroup *of that process*.
    ///
    /// # Errors
    /// `Missing` where it is in none, or it cannot be seen from here.
    fn memory_limits(&self) -> Result<MemoryLimits>;

    /// The levels that limit the memory *of that process*: its cgroup and those above it, as far as they have
    /// limits and can be seen.
    ///
    /// # Errors
    /// As [`memory_limits`](Process::memory_limits).
    fn memory_levels(&self) -> Result<Vec<MemoryLevel>> {
        Ok(self.memory_limits()?.level().into_iter().collect())
    }

    /// Whether a change is possible and allowed, tried without changing anything.
    ///
    /// # Errors
    /// `Permission`, and `Unsupported` or `Invalid` on a kernel without the call, or the advice, for that process.
    fn allows(&self, change: Change) -> Result<()>;

    /// Takes the process for changes, until [`let_go`](Process::let_go): no other taker has it meanwhile, in
    /// whatever process of this host.
    ///
    /// Two that work on one process count each other's huge pages as theirs, and the rest that each leaves to
    /// the process is the other's time.
    ///
    /// # Errors
    /// `EALREADY` when another has it. A system that cannot tell answers that nobody has.
    fn take(&self) -> Result<()> {
        Ok(())
    }

    /// Gives back what [`take`](Process::take) took. Whose descriptor is closed, or who ends, gives back, too.
    fn let_go(&self) {}

    /// Puts a range, multiples of the huge page, on huge pages now. Contents do not change. Memory may grow.
    ///
    /// # Errors
    /// As [`Pages::collapse`](crate::Pages::collapse), and see [the trait](Process).
    fn collapse(&self, range: AddressRange) -> Result<()>;

    /// Makes the kernel split the partial huge pages that `pages` (each one OS page) belong to. Contents do not
    /// change. Answers how many of `pages`, from the first on, were treated, at least one.
    ///
    /// # Errors
    /// When the first could not be treated: the reason. See [the trait](Process).
    fn split(&self, pages: &[usize]) -> Result<usize>;

    /// Whether work on it is to end: asked before each call, and nothing is asked of the kernel after it.
    fn is_interrupted(&self) -> bool {
        false
    }

    /// Time since an arbitrary point, never going back.
    fn now(&self) -> Duration;

    /// Waits.
    fn wait(&self, time: Duration);
}
