//! A machine that runs operations on arenas over the simulated kernel, beside a plain model of what they should do.
//!
//! ```text
//!   4 bytes ──▶ operation ──▶ Arenas<Kernel>   addresses, refusals, counters
//!                         └─▶ model            which runs and blocks are live, and what was written to them
//! ```
//!
//! Any bytes are a program: the property tests and the fuzz target make them. What is compared after each
//! operation: addresses (aligned, ours, apart), the counters, the exact answer to wrong frees, contents, and
//! the kernel's own objections. Now and then: every list and counter of the heap ([`Arenas::verify`]), the
//! kernel's residency, its own books.

mod check;
mod world;

use hugeheap::arena::{
    ARENA_BYTES, Arenas, BadFree, HEAP_PAGE_BYTES, HEAP_PAGES, Plan, Policy, Settings, Wait,
};
use hugeheap_os::simulated::{Config, Fault, Kernel};
use hugeheap_os::{AddressRange, ThpMode};
use std::collections::BTreeMap;
use std::time::Duration;

/// One operation: its number and three parameters.
pub(crate) type Code = [u8; 4];

/// The host and the settings at the start.
pub(crate) type Start = [u8; 8];

const MILLISECOND: u64 = 1_000_000;

/// Live bytes above which nothing more is allocated: keeps the tests quick.
const ENOUGH: u64 = 40 << 20;

/// Something handed out.
#[derive(Clone, Copy, Debug)]
struct Live {
    bytes: usize,
    /// What was written is derived from this.
    seed: u64,
    large: bool,
}

impl Live {
    /// Bytes that it keeps from others: whole heap pages.
    fn span(&self) -> usize {
        self.bytes.max(1).next_multiple_of(HEAP_PAGE_BYTES)
    }
}

#[derive(Default)]
enum Pass {
    #[default]
    None,
    Planned(Plan),
    Performed(Plan),
}

/// See the module's text.
pub(crate) struct Machine {
    kernel: Kernel,
    heap: Arenas<Kernel>,
    live: BTreeMap<usize, Live>,
    freed: Vec<(usize, Live)>,
    pass: Pass,
    seed: u64,
    steps: u64,
    /// Calls may be made to fail, and limits set: requests may be refused.
    faulty: bool,
    /// Something else than the heap may have made memory resident: khugepaged, or a touch after the mode was changed.
    loose: bool,
}

impl Machine {
    /// A machine on the host that `start` describes. Without `faulty` no request may be refused.
    pub(crate) fn new(start: Start, faulty: bool) -> Self {
        let mode = [ThpMode::Madvise, ThpMode::Madvise, ThpMode::Always, ThpMode::Never];
        let mode = mode[start[1] as usize % 4];
        let mut config = Config::default().with_pool(u64::from(start[2] % 24)).with_thp_mode(mode);
        config.log_capacity = 16;
        config.capabilities.relocate = start[4] % 4 != 0;
        config.frees_page_tables = start[5] % 4 != 0;
        config.split_drops_zero = start[6] % 2 == 0;
        if faulty && start[7] % 4 == 0 {
            config.cgroup_max = Some((64 + u64::from(start[7])) << 20);
        }
        let kernel = Kernel::new(config);
        let settings = Settings {
            policy: Policy::ALL[start[0] as usize % Policy::ALL.len()],
            decay: 100 * MILLISECOND,
            region: Some([32 << 20, 64 << 20, 1 << 30][start[3] as usize % 3]),
            ..Settings::DEFAULT
        };
        Self {
            heap: Arenas::new(kernel.clone(), settings),
            kernel,
            live: BTreeMap::new(),
            freed: Vec::new(),
            pass: Pass::None,
            seed: 1,
            steps: 0,
            faulty,
            // Where the mode cannot be read, unadvised memory becomes huge without the heap's knowledge.
            loose: faulty && mode == ThpMode::Always,
        }
    }

    /// Runs one operation.
    pub(crate) fn step(&mut self, code: Code) {
        let [operation, a, b, c] = code;
        let wide = usize::from(a) << 8 | usize::from(b);
        self.kernel.advance(Duration::from_micros(10));
        match operation % 32 {
            0..=7 => self.allocate(run_pages(a, b)),
            8..=13 => self.free(false, wide),
            14 | 15 => self.allocate_large(large_bytes(wide), c % 2 == 1),
            16 => self.free(true, wide),
            17 | 18 => self.resize(wide, usize::from(c)),
            19..=21 => self.pass(),
            22 => self.maintain(),
            23 => self.kernel.advance(Duration::from_nanos(u64::from(a) * u64::from(b) * MILLISECOND / 20)),
            24 => self.wrong_frees(wide),
            25 if self.faulty => self.inject(a, b, c),
            26 => self.change_settings(a, b),
            27 => self.fork(),
            28 => self.change_host(a, b),
            29 => {
                self.kernel.run_khugepaged(u64::from(a) * 512);
                self.loose = true;
            }
            30 => self.heap.refresh_host(),
            _ => self.write_again(wide),
        }
        self.steps += 1;
        self.check(self.steps % 16 == 0);
    }

    fn allocate(&mut self, pages: u32) {
        if self.live_bytes() > ENOUGH {
            return;
        }
        let before = self.heap.snapshot();
        match self.heap.allocate(pages) {
            Some(address) => {
                let bytes = pages as usize * HEAP_PAGE_BYTES;
                assert_eq!(address.get() % HEAP_PAGE_BYTES, 0);
                assert_eq!(self.heap.run_bytes(address.get()), Ok(bytes));
                self.handed_out(address.get(), bytes, false);
            }
            None => self.refused(&before),
        }
    }

    fn allocate_large(&mut self, bytes: usize, growing: bool) {
        if self.live_bytes() > ENOUGH {
            return;
        }
        let before = self.heap.snapshot();
        match self.heap.allocate_large(bytes, growing) {
            Some(block) => {
                let address = block.address.get();
                assert_eq!(address % ARENA_BYTES, 0);
                assert_eq!(self.heap.large_bytes(address), Ok(bytes));
                if block.zeroed {
                    self.check_zero(address, bytes);
                }
                self.handed_out(address, bytes, true);
            }
            None => self.refused(&before),
        }
    }

    /// Notes a request that was not served: only on a faulty host, counted, and nothing else changed.
    fn refused(&self, before: &hugeheap::telemetry::Snapshot) {
        assert!(self.faulty, "refused on a host without faults: {before:?}");
        let after = self.heap.snapshot();
        assert_eq!((before.live, before.allocations), (after.live, after.allocations));
        let sum = |fallbacks: &[u64]| fallbacks.iter().sum::<u64>();
        assert!(sum(&after.fallbacks) > sum(&before.fallbacks), "refused without a reason");
    }

    fn handed_out(&mut self, address: usize, bytes: usize, large: bool) {
        assert!(self.heap.owns(address) && self.heap.owns(address + bytes.max(1) - 1));
        let live = Live { bytes, seed: self.seed, large };
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.check_apart(address, live.span());
        self.write(address, &live);
        self.live.insert(address, live);
    }

    /// One of the live runs or blocks.
    fn pick(&self, large: bool, number: usize) -> Option<(usize, Live)> {
        let matching = || self.live.iter().filter(|(_, live)| live.large == large);
        let count = matching().count();
        if count == 0 {
            return None;
        }
        matching().nth(number % count).map(|(&address, &live)| (address, live))
    }

    fn free(&mut self, large: bool, number: usize) {
        let Some((address, live)) = self.pick(large, number) else { return };
        self.check_contents(address, &live, live.bytes);
        if large {
            assert_eq!(self.heap.free_large(address), Ok(live.bytes));
        } else {
            assert_eq!(self.heap.free(address, (live.bytes / HEAP_PAGE_BYTES) as u32), Ok(()));
        }
        self.live.remove(&address);
        self.freed.push((address, live));
        if self.freed.len() > 64 {
            self.freed.remove(0);
        }
    }

    fn resize(&mut self, number: usize, size: usize) {
        let Some((address, live)) = self.pick(true, number) else { return };
        let bytes = match size % 8 {
            0..=3 => live.bytes + live.bytes / 8 + size,
            4 => live.bytes * 2,
            5 => live.bytes / 2,
            _ => size * 70_001,
        };
        if bytes as u64 > ENOUGH / 4 || bytes > live.bytes && self.live_bytes() > ENOUGH {
            return;
        }
        let before = self.heap.snapshot();
        match self.heap.resize_large(address, bytes).expect("the block is live") {
            Some(new) => {
                self.live.remove(&address);
                let grown = Live { bytes, ..live };
                self.check_apart(new.get(), grown.span());
                self.check_contents(new.get(), &live, live.bytes.min(bytes));
                self.write(new.get(), &grown);
                self.live.insert(new.get(), grown);
                assert_eq!(self.heap.large_bytes(new.get()), Ok(bytes));
                if new.get() != address {
                    self.freed.push((address, live));
                }
            }
            None => {
                self.refused(&before);
                self.check_contents(address, &live, live.bytes);
                assert_eq!(self.heap.large_bytes(address), Ok(live.bytes));
            }
        }
    }

    /// The next part of a pass of maintenance: anything may happen between the parts.
    fn pass(&mut self) {
        self.pass = match std::mem::take(&mut self.pass) {
            Pass::None => Pass::Planned(self.heap.plan()),
            Pass::Planned(mut plan) => {
                plan.perform(&self.kernel);
                Pass::Performed(plan)
            }
            Pass::Performed(plan) => {
                if self.heap.complete(plan) == Wait::Idle {
                    assert!(!self.heap.maintenance_due(), "idle, and something is due");
                }
                Pass::None
            }
        };
    }

    fn finish_pass(&mut self) {
        while !matches!(self.pass, Pass::None) {
            self.pass();
        }
    }

    fn maintain(&mut self) {
        // A second pass beside one that is under way is allowed: a user may ask to give back while the thread works.
        if self.heap.maintain() == Wait::Idle {
            assert!(!self.heap.maintenance_due(), "idle, and something is due");
        }
    }

    fn wrong_frees(&mut self, number: usize) {
        let before = self.heap.snapshot();
        let foreign = &raw const self.seed as usize & !(HEAP_PAGE_BYTES - 1);
        assert_eq!(self.heap.free(foreign, 1), Err(BadFree::Foreign));
        assert_eq!(self.heap.free_large(foreign), Err(BadFree::Foreign));
        if let Some((address, live)) = self.pick(false, number) {
            let pages = (live.bytes / HEAP_PAGE_BYTES) as u32;
            for wrong in [pages + 1, pages - 1, HEAP_PAGES].into_iter().filter(|&wrong| wrong != pages) {
                assert_eq!(self.heap.free(address, wrong), Err(BadFree::WrongSize { actual: live.bytes }));
            }
            assert_eq!(self.heap.free(address + 8, pages), Err(BadFree::Interior));
            if pages > 1 {
                assert_eq!(self.heap.free(address + HEAP_PAGE_BYTES, pages - 1), Err(BadFree::Interior));
            }
            assert_eq!(self.heap.free_large(address), Err(BadFree::WrongSize { actual: live.bytes }));
        }
        if let Some((address, live)) = self.pick(true, number) {
            assert_eq!(self.heap.free(address, 1), Err(BadFree::WrongSize { actual: live.bytes }));
            assert_eq!(self.heap.free_large(address + HEAP_PAGE_BYTES), Err(BadFree::Interior));
            assert_eq!(self.heap.resize_large(address + 16, 1), Err(BadFree::Interior));
        }
        for &(address, freed) in &self.freed {
            if self.covering(address).is_none() {
                let pages = (freed.bytes / HEAP_PAGE_BYTES).clamp(1, HEAP_PAGES as usize) as u32;
                // Behind the end of a block, in its last arena, nothing begins, but the block goes on.
                let expected = if self.in_block(address) { BadFree::Interior } else { BadFree::NotLive };
                assert_eq!(self.heap.free(address, pages), Err(expected), "freed twice");
                assert_eq!(self.heap.free_large(address), Err(expected), "freed twice");
            }
        }
        let mut after = self.heap.snapshot();
        // Asking costs no time here, but the retention rule forgets in the course of time.
        after.retention_target = before.retention_target;
        assert_eq!(before, after, "a wrong free changed something");
    }

    fn write_again(&mut self, number: usize) {
        let picked = self.pick(number % 2 == 0, number / 2);
        if let Some((address, live)) = picked {
            self.check_contents(address, &live, live.bytes);
            let live = Live { seed: live.seed ^ 0x5a5a, ..live };
            self.write(address, &live);
            self.live.insert(address, live);
        }
    }

    /// What the program does with its memory. A limit may be reached (the kernel would kill the process, the
    /// model goes on); anything else is a fault of the heap.
    fn touch(&self, range: AddressRange) {
        match self.kernel.touch(range) {
            Ok(()) => {}
            Err(Fault::Oom) => assert!(self.faulty, "out of memory on a host without limits"),
            Err(fault) => panic!("{fault} at {range}"),
        }
    }
}

fn run_pages(a: u8, b: u8) -> u32 {
    match a % 8 {
        0..=2 => 1 + u32::from(b) % 16,
        3 | 4 => 64,
        5 => 16,
        6 => HEAP_PAGES,
        _ => 1 + u32::from(b) % HEAP_PAGES,
    }
}

fn large_bytes(wide: usize) -> usize {
    match wide % 8 {
        0..=3 => (2 << 20) + wide * 97,
        4 | 5 => wide % 5 * ARENA_BYTES + 1,
        6 => 16 * ARENA_BYTES / 2 + wide,
        _ => wide,
    }
}
