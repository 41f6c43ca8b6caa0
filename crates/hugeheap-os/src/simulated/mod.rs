//! A simulated kernel: deterministic, with its own time, and with faults on demand.
//!
//! [`Kernel`] is [`Pages`](crate::Pages) and [`Facts`](crate::Facts) without an operating system's moods. Tests
//! drive policies with it: they set the host's mode, let a mutator touch memory, let time pass, make calls
//! fail, and look at the truth that a real kernel hides (what is stranded, what is charged for it, which page
//! is on which folio).
//!
//! ```
//! use hugeheap_os::{Backing, Pages, simulated::{Config, Kernel}};
//!
//! const HUGE: usize = 2 << 20;
//! let kernel = Kernel::new(Config::default());
//! let range = kernel.reserve(HUGE, HUGE).unwrap();
//! // SAFETY: the range was just reserved; nothing else uses it.
//! unsafe { kernel.map(range, Backing::Thp).unwrap() };
//! kernel.touch(range).unwrap();
//! assert_eq!(kernel.residency(range).unwrap().thp, HUGE as u64);
//!
//! // All but the first OS page are dropped: RSS falls, the charge does not, until the rest is split.
//! let (first, rest) = (hugeheap_os::AddressRange::new(range.start, 4096),
//!                      hugeheap_os::AddressRange::new(range.start + 4096, HUGE - 4096));
//! // SAFETY: nothing is kept in the range.
//! unsafe { kernel.decommit(rest).unwrap() };
//! assert_eq!((kernel.rss(), kernel.charge()), (4096, HUGE as u64));
//! // SAFETY: contents do not change.
//! unsafe { kernel.split(first).unwrap() };
//! assert_eq!((kernel.rss(), kernel.charge()), (4096, 4096));
//! assert!(kernel.violations().is_empty());
//! ```
//!
//! # What is modelled, and where
//!
//! ```text
//!   Kernel (handle: one process) ──▶ State (one host, one lock)
//!                                      ├─ processes ── reservations ── mappings      vma
//!                                      │                    │      └── page tables   table
//!                                      │                    └── real memory          host
//!                                      ├─ physical memory: folios, charge            folio, cgroup
//!                                      ├─ hugetlb pools                              hugetlb
//!                                      └─ clock, failures, record                    inject, call
//! ```
//!
//! Calls: `mapping`, `content`, `collapse` (with khugepaged); page faults: `fault`; processes: `fork`; one
//! process seen from another: `process`.
//!
//! * **Contents are real.** Reserved addresses can be read and written; decommitted and unmapped ranges are
//!   really zero, and split, collapse and relocate really keep contents. But the model learns of accesses only
//!   through [`touch`](Kernel::touch), [`touch_read`](Kernel::touch_read), `populate` and
//!   [`observe`](Kernel::observe).
//! * **One cgroup, one host** for all processes. A child made by [`fork`](Kernel::fork) has its own mappings
//!   and shares folios.
//! * **fork and hugetlb**: a child has no reservation. Its write to a shared page, or first touch of another,
//!   with no spare page in the pool is [`Fault::Bus`]. The parent's write with no spare page takes the page
//!   from the child, and every later access of the child to it is [`Fault::Bus`].
//! * **The same calls give the same answers**, but for addresses, which the real system chooses.
//!
//! # What is left out
//! mTHP (folios between the two sizes), swap, page cache, NUMA placement, page tables in the charge, `anon_vma`
//! when mappings merge, and the rule that khugepaged wants pages to be referenced. Unlike the traits promise
//! for a real system, calls allocate from the process's heap: the simulated kernel cannot serve the allocator
//! it runs on.

mod call;
mod cgroup;
mod collapse;
mod config;
mod content;
mod facts;
mod fault;
mod folio;
mod fork;
mod host;
mod hugetlb;
mod inject;
mod mapping;
mod merging;
mod pages;
mod process;
mod table;
mod truth;
mod vma;

pub use call::{Call, Entry, Fault, Misuse, Violation};
pub use config::{Config, PoolConfig};
pub use process::RemoteProcess;
pub use truth::{Events, Mapping, PageState};

use crate::{PageSizes, ThpDisabled};
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of a process: its place in [`State::processes`].
type Pid = usize;

/// A process on a simulated host. Clones are handles of the same process. See the [module's text](self).
///
/// The real memory of a reservation lives until it is released, its process [exits](Kernel::exit), or the last handle
/// of the host is dropped: nothing may point into it after that.
#[derive(Clone)]
pub struct Kernel {
    shared: Arc<Mutex<State>>,
    pid: Pid,
}

/// Page sizes in the form the model needs.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    os: usize,
    /// The huge page; without one, 512 OS pages: only the unit of page tables then.
    chunk: usize,
    has_huge: bool,
}

impl Geometry {
    fn new(sizes: PageSizes) -> Self {
        let chunk = sizes.huge.unwrap_or(512 * sizes.os);
        let sound = sizes.os.is_power_of_two() && chunk.is_power_of_two() && chunk > sizes.os;
        assert!(sound, "page sizes are powers of two, the huge page is larger: {sizes:?}");
        Self { os: sizes.os, chunk, has_huge: sizes.huge.is_some() }
    }

    /// OS pages in a chunk.
    const fn pages(self) -> usize {
        self.chunk / self.os
    }

    const fn chunk_of(self, address: usize) -> usize {
        address & !(self.chunk - 1)
    }

    /// Which OS page of its chunk an address is in.
    const fn index(self, address: usize) -> usize {
        (address & (self.chunk - 1)) / self.os
    }
}

struct Process {
    /// In the order they were made.
    spaces: Vec<table::Space>,
    thp_disabled: ThpDisabled,
    exited: bool,
}

/// The host.
struct State {
    config: Config,
    /// Whether real access follows the model.
    enforced: bool,
    physical: folio::Physical,
    pools: hugetlb::Pools,
    processes: Vec<Process>,
    next_space: u64,
    clock: inject::Clock,
    injector: inject::Injector,
    record: call::Record,
    cursor: collapse::Cursor,
    /// When khugepaged wakes up next, if it runs by itself.
    wakes: Duration,
}

impl Kernel {
    /// Starts a host with one process.
    ///
    /// # Panics
    /// When page sizes are no powers of two.
    pub fn new(config: Config) -> Self {
        let geometry = Geometry::new(config.page_sizes);
        for pool in &config.hugetlb {
            let sound = pool.page_size.is_power_of_two() && pool.page_size >= geometry.os;
            assert!(sound, "not a page size: {pool:?}");
        }
        let limits = cgroup::Limits {
            max: config.cgroup_max,
            high: config.cgroup_high,
            other: config.other_charge,
            host: config.total_memory,
            pools: 0,
        };
        let mut physical = folio::Physical::new(geometry, limits);
        physical.free_huge = config.free_huge_pages;
        physical.compactable = config.compactable_huge_pages;
        physical.split_drops_zero = config.split_drops_zero;
        let pools = hugetlb::Pools::new(&config, &mut physical);
        let first = Process { spaces: Vec::new(), thp_disabled: config.thp_disabled, exited: false };
        let state = State {
            enforced: config.enforce_access && geometry.os >= host::page(),
            physical,
            pools,
            processes: vec![first],
            next_space: 0,
            clock: inject::Clock::new(),
            injector: inject::Injector::new(),
            record: call::Record::new(config.log_capacity),
            cursor: (0, 0, 0),
            wakes: config.thp.khugepaged.map_or(Duration::MAX, |knobs| knobs.scan_sleep),
            config,
        };
        Self { shared: Arc::new(Mutex::new(state)), pid: 0 }
    }

    /// The state. A panic of a test that holds the lock does not take the handle's other users down.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Kernel {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

impl core::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (rss, charge) = (self.rss(), self.charge());
        f.debug_struct("Kernel")
            .field("process", &self.pid)
            .field("rss", &rss)
            .field("charge", &charge)
            .finish()
    }
}

impl State {
    /// Lets time pass, with khugepaged at work.
    fn advance(&mut self, time: Duration) {
        let end = self.clock.now + time;
        if let (true, Some(knobs)) = (self.config.background_khugepaged, self.config.thp.khugepaged) {
            // A pause of zero would never end.
            let pause = knobs.scan_sleep.max(Duration::from_millis(1));
            while self.wakes <= end {
                self.clock.now = self.clock.now.max(self.wakes);
                self.khugepaged(knobs.pages_to_scan);
                self.wakes = self.clock.now + pause;
            }
        }
        self.clock.now = self.clock.now.max(end);
    }
}
