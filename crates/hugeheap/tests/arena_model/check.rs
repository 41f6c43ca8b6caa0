//! What the machine compares.

use super::{ARENA_BYTES, AddressRange, HEAP_PAGE_BYTES, Live, Machine, Pass, Policy, Settings, Wait};
use std::time::Duration;

/// Contents are written once per so many bytes: nothing smaller is ever dropped or moved.
const GRAIN: usize = HEAP_PAGE_BYTES;

/// Passes until a heap must have settled, with nothing failing.
const PATIENCE: usize = 1000;

impl Machine {
    pub(super) fn live_bytes(&self) -> u64 {
        self.live.values().map(|live| live.span() as u64).sum()
    }

    /// The live run or block that contains an address.
    pub(super) fn covering(&self, address: usize) -> Option<usize> {
        let (&start, live) = self.live.range(..=address).next_back()?;
        (address < start + live.span()).then_some(start)
    }

    /// Whether an address lies in an arena of a live block.
    pub(super) fn in_block(&self, address: usize) -> bool {
        let mut blocks = self.live.range(..=address).rev().filter(|(_, live)| live.large);
        let last = blocks.next().map(|(start, live)| start + live.bytes.max(1).next_multiple_of(ARENA_BYTES));
        last.is_some_and(|end| address < end)
    }

    pub(super) fn check_apart(&self, address: usize, span: usize) {
        assert_eq!(self.covering(address), None, "{address:#x} is in use");
        let next = self.live.range(address..).next();
        assert!(next.is_none_or(|(&next, _)| next >= address + span), "{address:#x} reaches into the next");
    }

    /// Where words of a pattern are: at the beginning of each heap page, and at the very end.
    fn places(address: usize, bytes: usize) -> impl Iterator<Item = usize> {
        let grains = (0..bytes).step_by(GRAIN).map(move |offset| address + offset);
        let last = (bytes >= 8).then(|| address + bytes - 8);
        grains.filter(move |&at| at + 8 <= address + bytes).chain(last)
    }

    pub(super) fn write(&self, address: usize, live: &Live) {
        self.touch(AddressRange::new(address, live.bytes));
        for at in Self::places(address, live.bytes) {
            // SAFETY: the bytes were handed out by the heap and are this machine's until it frees them.
            unsafe { (at as *mut u64).write_unaligned(live.seed ^ (at - address) as u64 >> 12) };
        }
    }

    /// The first `bytes` of something live are as they were written.
    pub(super) fn check_contents(&self, address: usize, live: &Live, bytes: usize) {
        let last = live.bytes.saturating_sub(8);
        for at in Self::places(address, live.bytes) {
            let offset = at - address;
            // The word at the end may overlap one before it.
            if offset + 8 > bytes || offset != last && offset + 8 > last {
                continue;
            }
            // SAFETY: as in `write`.
            let found = unsafe { (at as *const u64).read_unaligned() };
            assert_eq!(found, live.seed ^ offset as u64 >> 12, "{offset:#x} of {live:?} at {address:#x}");
        }
    }

    pub(super) fn check_zero(&self, address: usize, bytes: usize) {
        for at in Self::places(address, bytes) {
            // SAFETY: as in `write`.
            let found = unsafe { (at as *const u64).read_unaligned() };
            assert_eq!(found, 0, "zero was promised at {at:#x}");
        }
    }

    /// After an operation.
    pub(super) fn check(&self, thoroughly: bool) {
        let violations = self.kernel.violations();
        assert!(violations.is_empty(), "{violations:?}");
        let snapshot = self.heap.snapshot();
        assert_eq!(snapshot.live, self.live_bytes());
        let large: u64 = self.live.values().filter(|live| live.large).map(|live| live.span() as u64).sum();
        assert_eq!(snapshot.large, large);
        if !thoroughly {
            return;
        }
        self.heap.verify().unwrap_or_else(|problem| panic!("{problem}"));
        for (&address, live) in &self.live {
            self.check_contents(address, live, live.bytes);
        }
        // What maintenance just did is not accounted for before it is completed.
        if let (Ok(residency), Pass::None, false) = (self.heap.residency(), &self.pass, self.loose) {
            let known = snapshot.live + snapshot.retained;
            assert!(residency.resident <= known, "{} resident, {known} known", residency.resident);
        }
    }

    /// Lets time pass until maintenance has nothing more to do.
    fn settle(&mut self) {
        self.kernel.fail_no_more();
        self.finish_pass();
        self.heap.refresh_host();
        for _ in 0..PATIENCE {
            match self.heap.maintain() {
                Wait::Idle => {
                    assert!(!self.heap.maintenance_due(), "idle, and something is due");
                    return self.check(true);
                }
                Wait::For(time) => {
                    assert!(time > 0, "maintain returns when nothing is due now");
                    self.kernel.advance(Duration::from_nanos(time));
                }
            }
        }
        panic!("maintenance does not come to an end: {:?}", self.heap.snapshot());
    }

    /// The end of a program: everything settles, first with what is live, then without.
    pub(crate) fn finish(mut self) {
        let page = HEAP_PAGE_BYTES as u64;
        let settings = self.heap.settings();
        self.heap.set(Settings { limit: None, ..settings });
        self.kernel.set_cgroup_max(None);
        self.kernel.set_free_huge_pages(None);
        self.settle();
        let snapshot = self.heap.snapshot();
        // A partial arena below half free pages is not broken; blocks and pool pages never are.
        let blocks = self.live.values().filter(|live| live.large).count() as u64;
        let unbreakable = snapshot.arenas_partial * 64 + (blocks + snapshot.arenas_hugetlb) * 128;
        let bound = snapshot.retention_target + (2 << 20) + unbreakable * page;
        assert!(snapshot.retained <= bound, "{bound} at most: {snapshot:?}");
        // The parent's writes after a fork replace parts of huge pages; the rest is stranded when the child ends.
        assert!(snapshot.forks > 0 || self.kernel.stranded() == 0, "charged and not mapped: {snapshot:?}");

        for (address, live) in std::mem::take(&mut self.live) {
            self.check_contents(address, &live, live.bytes);
            if live.large {
                assert_eq!(self.heap.free_large(address), Ok(live.bytes));
            } else {
                assert_eq!(self.heap.free(address, (live.bytes / HEAP_PAGE_BYTES) as u32), Ok(()));
            }
        }
        // As long as the retention rule remembers.
        for _ in 0..4 {
            self.settle();
            self.kernel.advance(Duration::from_secs(10));
        }
        self.settle();
        let snapshot = self.heap.snapshot();
        assert_eq!((snapshot.live, snapshot.large), (0, 0));
        assert_eq!((snapshot.retained, snapshot.arenas), (0, 0), "{snapshot:?}");
        assert_eq!(self.kernel.charge(), 0, "{snapshot:?}");
        self.kernel.check().unwrap_or_else(|problem| panic!("the simulated kernel: {problem}"));
        assert_eq!(Policy::from_number(snapshot.policy), Some(settings.policy));
    }
}
