//! What the policies promise, on the simulated kernel: one test per promise, one file per part.
//!
//! Time passes only when a test says so. [`World::run`] is the maintenance thread: it makes the passes that are due.

mod ahead;
mod breaking;
mod choice;
mod cut;
mod failures;
mod forks;
mod offers;
mod policies;
mod pools;
mod retention;
mod space;
mod vacating;

use super::*;
use crate::telemetry::Fallback;
use hugeheap_os::AddressRange;
use hugeheap_os::simulated::{Config, Kernel};
use std::time::Duration;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const ARENA: u64 = ARENA_BYTES as u64;
pub(crate) const PAGE: u64 = HEAP_PAGE_BYTES as u64;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Passes per second of simulated time that are too many: the thread would be busy for nothing.
const BUSY: u64 = 100;

/// A heap on a simulated kernel, and its maintenance thread.
pub(crate) struct World {
    pub(crate) kernel: Kernel,
    pub(crate) heap: Arenas<Kernel>,
}

impl World {
    pub(crate) fn new(policy: Policy, config: Config) -> Self {
        Self::with(Settings { policy, ..Settings::DEFAULT }, config)
    }

    pub(crate) fn with(settings: Settings, config: Config) -> Self {
        let kernel = Kernel::new(config);
        Self { heap: Arenas::new(kernel.clone(), settings), kernel }
    }

    /// Takes a run and uses all of it.
    pub(crate) fn take(&mut self, pages: u32) -> usize {
        let address = self.heap.allocate(pages).expect("there is memory").get();
        self.use_all(address, pages as usize * HEAP_PAGE_BYTES);
        address
    }

    /// Takes whole arenas.
    pub(crate) fn take_arenas(&mut self, count: usize) -> Vec<usize> {
        (0..count).map(|_| self.take(HEAP_PAGES)).collect()
    }

    pub(crate) fn free(&mut self, address: usize, pages: u32) {
        self.heap.free(address, pages).expect("it is live");
    }

    pub(crate) fn free_arenas(&mut self, addresses: &[usize]) {
        addresses.iter().for_each(|&address| self.free(address, HEAP_PAGES));
    }

    /// Fills `arenas` arenas with runs of one page, then frees all but the first `keep` pages of each.
    pub(crate) fn sparse_arenas(&mut self, arenas: usize, keep: usize) -> Vec<usize> {
        let pages: Vec<_> = (0..arenas * HEAP_PAGES as usize).map(|_| self.take(1)).collect();
        let (live, dead): (Vec<_>, Vec<_>) =
            pages.into_iter().partition(|page| page % ARENA_BYTES / HEAP_PAGE_BYTES < keep);
        dead.into_iter().for_each(|page| self.free(page, 1));
        live
    }

    /// The program writes: the first word of each heap page is its address.
    pub(crate) fn use_all(&self, address: usize, bytes: usize) {
        self.kernel.touch(AddressRange::new(address, bytes)).expect("memory that was handed out can be used");
        for at in (address..address + bytes).step_by(HEAP_PAGE_BYTES) {
            // SAFETY: the test just got these bytes from the heap.
            unsafe { (at as *mut usize).write(at) };
        }
    }

    /// What [`use_all`](Self::use_all) wrote at `written` is now at `address`.
    pub(crate) fn check_moved(&self, written: usize, address: usize, bytes: usize) {
        for offset in (0..bytes).step_by(HEAP_PAGE_BYTES) {
            // SAFETY: live memory of this test.
            let found = unsafe { ((address + offset) as *const usize).read() };
            assert_eq!(found, written + offset, "contents were lost");
        }
    }

    pub(crate) fn check_contents(&self, address: usize, bytes: usize) {
        self.check_moved(address, address, bytes);
    }

    /// Lets time pass, and makes the passes of maintenance that are due in it.
    pub(crate) fn run(&mut self, seconds: f64) {
        let end = self.heap.now() + (seconds * SECOND as f64) as u64;
        let before = self.heap.counters.passes;
        loop {
            self.heap.refresh_host();
            let wait = self.heap.maintain();
            let now = self.heap.now();
            let left = end.saturating_sub(now);
            let idle = wait == Wait::Idle;
            assert!(!idle || !self.heap.maintenance_due(), "idle, and something is due");
            let passes = self.heap.counters.passes - before;
            // Giving back takes a pass per 16 arenas.
            let allowed = 10 + self.heap.counters.arenas_peak + (seconds * BUSY as f64) as u64;
            assert!(passes < allowed, "{passes} passes: {:?}", self.heap.snapshot());
            match wait {
                Wait::For(time) if time <= left => self.kernel.advance(Duration::from_nanos(time)),
                _ => {
                    self.kernel.advance(Duration::from_nanos(left));
                    break;
                }
            }
        }
        self.heap.verify().unwrap_or_else(|problem| panic!("{problem}"));
        assert_eq!(self.kernel.violations(), []);
    }

    /// What the maintenance thread does while the heap grows quickly; returns how many arenas it made.
    pub(crate) fn make_ahead(&mut self) -> u64 {
        let before = self.heap.counters.arenas_ahead;
        while let Some(mut ahead) = self.heap.begin_ahead() {
            ahead.touch(&self.kernel);
            let more = self.heap.complete_ahead(ahead);
            assert_eq!(more, self.heap.ahead_due());
        }
        self.heap.counters.arenas_ahead - before
    }

    pub(crate) fn check(&self) {
        self.heap.verify().unwrap_or_else(|problem| panic!("{problem}"));
        assert_eq!(self.kernel.violations(), []);
        self.kernel.check().unwrap_or_else(|problem| panic!("{problem}"));
    }

    pub(crate) fn fallback(&self, reason: Fallback) -> u64 {
        self.heap.snapshot().fallback(reason)
    }

    /// All fallbacks but zero ones.
    pub(crate) fn fallbacks(&self) -> Vec<(Fallback, u64)> {
        let all = Fallback::ALL.into_iter().map(|reason| (reason, self.fallback(reason)));
        all.filter(|&(_, count)| count > 0).collect()
    }

    pub(crate) fn huge_bytes(&self) -> u64 {
        self.heap.residency().expect("it can be asked").huge()
    }
}
