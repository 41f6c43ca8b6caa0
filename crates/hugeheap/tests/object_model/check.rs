//! What the machine compares.

use super::{
    AddressRange, Fault, HEAP_PAGE_BYTES, Live, MAX_BLOCK, Machine, Mistake, Space, Wait, World, metadata_of,
    pointer,
};
use hugeheap::object::{Content, Walk};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::time::Duration;

/// Contents of page runs and large blocks are written once per so many bytes: an OS page is the smallest unit
/// that is dropped or moved.
const GRAIN: usize = 4096;

/// Passes until the arenas must have settled, with nothing failing.
const PATIENCE: usize = 1000;

impl Machine {
    /// What is live and contains an address.
    fn covering(&self, address: usize) -> Option<usize> {
        let (&start, live) = self.live.range(..=address).next_back()?;
        (address < start + live.usable).then_some(start)
    }

    pub(super) fn check_apart(&self, address: usize, usable: usize) {
        assert_eq!(self.covering(address), None, "{address:#x} is in use");
        let next = self.live.range(address..).next();
        assert!(next.is_none_or(|(&next, _)| next >= address + usable), "{address:#x} reaches into the next");
    }

    /// Where something is written: everywhere in blocks, here and there in runs, and in the last byte.
    fn places(bytes: usize) -> impl Iterator<Item = usize> {
        let last = (bytes > MAX_BLOCK).then(|| bytes - 1);
        let grain = if bytes > MAX_BLOCK { GRAIN } else { 1 };
        (0..bytes).step_by(grain).chain(last)
    }

    fn value(seed: u64, offset: usize) -> u8 {
        (seed >> 32) as u8 ^ (offset as u64).wrapping_mul(seed | 1).to_le_bytes()[2] ^ offset as u8
    }

    pub(super) fn write(&self, address: usize, live: &Live) {
        self.touch(AddressRange::new(address, live.bytes));
        for offset in Self::places(live.bytes) {
            // SAFETY: the bytes were handed out by a heap and are this machine's until it frees them.
            unsafe { ((address + offset) as *mut u8).write(Self::value(live.seed, offset)) };
        }
    }

    /// The first `bytes` of something live are as they were written.
    pub(super) fn check_contents(&self, address: usize, live: &Live, bytes: usize) {
        for offset in Self::places(live.bytes).filter(|&offset| offset < bytes) {
            // SAFETY: as in `write`.
            let found = unsafe { ((address + offset) as *const u8).read() };
            assert_eq!(found, Self::value(live.seed, offset), "{offset:#x} of {live:?} at {address:#x}");
        }
    }

    pub(super) fn check_zero(&self, address: usize, bytes: usize) {
        // SAFETY: just handed out with that many bytes.
        let found = unsafe { core::slice::from_raw_parts(address as *const u8, bytes) };
        assert!(found.iter().all(|&byte| byte == 0), "zero was promised at {address:#x}");
    }

    /// What the program does with its memory. A limit may be reached (the kernel would kill the process, the
    /// model goes on); anything else is a fault of the heap.
    fn touch(&self, range: AddressRange) {
        match self.world.kernel.touch(range) {
            Ok(()) => {}
            Err(Fault::Oom) => assert!(self.faulty, "out of memory on a host without limits"),
            Err(fault) => panic!("{fault} at {range}"),
        }
    }

    /// After an operation.
    pub(super) fn check(&mut self, thoroughly: bool) {
        let violations = self.world.kernel.violations();
        assert!(violations.is_empty(), "{violations:?}");
        if !thoroughly {
            return;
        }
        for heap in self.heaps.iter_mut().flatten() {
            heap.verify().unwrap_or_else(|problem| panic!("{problem}"));
        }
        let arenas = self.world.arenas.lock();
        arenas.verify().unwrap_or_else(|problem| panic!("{problem}"));
        let snapshot = arenas.snapshot();
        drop(arenas);
        assert!(snapshot.live as usize >= self.live_bytes, "{} live: {snapshot:?}", self.live_bytes);
        for (&address, live) in &self.live {
            self.check_contents(address, live, live.bytes);
        }
        self.check_walk();
    }

    /// A walk meets what is live, each once and with its size, and the statistics count the same.
    fn check_walk(&self) {
        let mut walked = BTreeMap::new();
        self.space.walk(&mut |step| {
            let Walk::Page(page) = step else { return };
            let mut meets =
                |address, bytes| assert_eq!(walked.insert(address, bytes), None, "{address:#x} twice");
            match page.content {
                Content::Blocks(bytes) => page.blocks().for_each(|block| meets(block, bytes)),
                Content::Run(bytes) => meets(page.address, bytes),
                _ => {}
            }
        });
        for (address, &bytes) in &walked {
            let live =
                self.live.get(address).unwrap_or_else(|| panic!("{address:#x} of {bytes} is not live"));
            assert_eq!(live.usable, bytes, "{live:?}");
        }
        // Large blocks are no pages of a heap.
        let missed = self.live.iter().find(|(address, live)| {
            !walked.contains_key(address) && live.usable < HEAP_PAGE_BYTES && !live.aligned
        });
        assert!(missed.is_none(), "{missed:?} is not walked");
        let sum = self.space.statistics();
        let blocks: usize = sum.classes.iter().map(|class| class.live_blocks).sum();
        assert_eq!(blocks + sum.runs, walked.len());
        assert_eq!(sum.live_bytes() + sum.run_bytes, walked.values().sum::<usize>());
    }

    /// The answer to a free of something that is not live, by a heap that can know: the owner of the page knows
    /// best which blocks of an open window are live.
    fn refusal(&mut self, address: usize, number: usize) -> Mistake {
        let owner = self.space.owner(address).map(|number| number as usize - 1);
        let number = owner.filter(|&owner| self.heaps[owner].is_some()).unwrap_or(number);
        let usable = match self.heaps.iter().position(Option::is_some) {
            None => return Mistake::Foreign,
            Some(any) if self.heap(number).is_none() => any,
            Some(_) => number,
        };
        let heap = self.heap(usable).expect("just looked at");
        // SAFETY: it is refused.
        let mistake = unsafe { heap.free_far(address) }.expect_err("nothing live begins there");
        // SAFETY: it is refused, so nothing is freed.
        assert_eq!(unsafe { heap.try_free(pointer(address)) }, Err(mistake), "two ways, two answers");
        mistake
    }

    pub(super) fn wrong_frees(&mut self, picked: usize, number: usize) {
        if self.heaps.iter().all(Option::is_none) {
            return;
        }
        let own = [0_u64; 4];
        let foreign = NonNull::from(&own).as_ptr() as usize & !15;
        assert_eq!(self.refusal(foreign, number), Mistake::Foreign);
        if let Some((address, live)) = self.pick(picked) {
            // A page run has its own length or no size, by whose it is; a large block, which may be small when
            // it is aligned, has none.
            let block = live.usable <= MAX_BLOCK && self.space.owner(address).is_some();
            for offset in [1, 8, 16, live.usable / 2, live.usable - 1, picked % live.usable] {
                // A large block's last arena goes on behind its bytes; that is the arenas' matter.
                if (1..live.usable).contains(&offset) {
                    let mistake = self.refusal(address + offset, number);
                    let Mistake::Interior { bytes } = mistake else { panic!("{mistake:?} inside a block") };
                    assert!(
                        bytes == live.usable || !block && bytes == 0,
                        "{mistake:?} in {live:?} at {offset}"
                    );
                }
            }
        }
        for address in self.gone.clone() {
            if self.live.contains_key(&address) {
                continue;
            }
            let mistake = self.refusal(address, number);
            let inside = self.covering(address).is_some();
            match mistake {
                Mistake::Interior { .. } => {}
                // Inside a block nothing else is right; otherwise the page may have another class, or none.
                Mistake::NotLive { .. } | Mistake::TwoThreads { .. } => assert!(!inside, "{mistake:?}"),
                _ => panic!("{address:#x} was ours, but: {mistake:?}"),
            }
        }
        // Nothing changed.
        self.check(true);
    }

    /// Lets time pass until maintenance has nothing more to do.
    fn settle(&self) {
        for _ in 0..PATIENCE {
            match self.pass() {
                Wait::Idle => return,
                Wait::For(0) => {}
                Wait::For(time) => self.world.kernel.advance(Duration::from_nanos(time)),
            }
        }
        panic!("maintenance does not come to an end: {:?}", self.world.arenas.lock().snapshot());
    }

    /// The end of a program: everything is freed, and all memory goes back.
    pub(crate) fn finish(mut self) {
        self.world.kernel.fail_no_more();
        self.world.kernel.set_cgroup_max(None);
        self.check(true);
        while let Some(waiting) = self.heaps.iter().position(Option::is_none) {
            self.heaps[waiting] = Some(self.space.acquire().expect("one waits"));
        }
        // Heap number `n` is at `n − 1` only if those that wait were taken in their order; from here on it does
        // not matter.
        while let Some((address, _)) = self.pick(0) {
            self.forget(address);
            let heap = self.heap(address / HEAP_PAGE_BYTES).expect("all are here");
            // SAFETY: live, and of no use to the machine any more.
            unsafe { heap.try_free(pointer(address)) }.expect("live");
        }
        self.check(true);
        for heap in self.heaps.iter_mut().flatten() {
            heap.trim();
            heap.verify().unwrap_or_else(|problem| panic!("{problem}"));
            assert_eq!(heap.page_count(), 0);
        }
        let snapshot = self.world.arenas.lock().snapshot();
        assert_eq!((snapshot.live, snapshot.large), (0, 0), "{snapshot:?}");
        // As long as the retention rule remembers.
        for _ in 0..4 {
            self.settle();
            self.world.kernel.advance(Duration::from_secs(10));
        }
        self.settle();
        let snapshot = self.world.arenas.lock().snapshot();
        assert_eq!((snapshot.retained, snapshot.arenas), (0, 0), "{snapshot:?}");
        // What could not be given back with its arena goes with it the next time.
        let left = self.space.metadata_bytes() - metadata_of(&mut self.heaps) - self.metadata;
        assert!(left == 0 || self.faulty, "{left} bytes of metadata");
        self.world.kernel.check().unwrap_or_else(|problem| panic!("the simulated kernel: {problem}"));
        drop(self.heaps);
        // SAFETY: both were leaked in `new`; the heaps, which are all that refer to them, are gone.
        unsafe {
            drop(Box::from_raw(core::ptr::from_ref::<Space<World>>(self.space).cast_mut()));
            drop(Box::from_raw(core::ptr::from_ref::<World>(self.world).cast_mut()));
        }
    }
}
