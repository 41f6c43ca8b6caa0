//! A machine that runs operations on heaps of blocks over the simulated kernel, beside a plain model of what
//! they should do.
//!
//! ```text
//!   4 bytes ──▶ operation ──▶ 1 to 3 Heaps on one Space     addresses, sizes, refusals
//!                         └─▶ model                         what is live, and what was written to it
//! ```
//!
//! Any bytes are a program: the property tests and the fuzz target make them. Every block may be freed by every
//! heap, and by none; a heap may be left and found again. What is compared: addresses (aligned, apart), usable
//! sizes, the answers to wrong frees, contents, zeroed memory, and the kernel's own objections. Now and then:
//! everything that heaps and arenas keep (`verify`), and what a walk meets and the statistics count.

mod check;
mod grow;
mod world;

use hugeheap::arena::{Arenas, HEAP_PAGE_BYTES, Policy, Settings, Wait};
use hugeheap::lock::Lock;
use hugeheap::object::{Heap, MAX_BLOCK, Mistake, Source, Space};
use hugeheap_os::simulated::{Config, Fault, Kernel};
use hugeheap_os::{AddressRange, ThpMode};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::time::Duration;

/// One operation: its number and three parameters.
pub(crate) type Code = [u8; 4];

/// The host and the settings at the start.
pub(crate) type Start = [u8; 8];

/// Live bytes above which nothing more is allocated: keeps the tests quick.
const ENOUGH: usize = 24 << 20;

/// Freed addresses that are tried again.
const GONE: usize = 64;

/// Arenas on a simulated kernel, behind a lock.
pub(crate) struct World {
    arenas: Lock<Arenas<Kernel>>,
    kernel: Kernel,
}

impl Source for World {
    type Os = Kernel;
    fn with<R>(&'static self, work: impl FnOnce(&mut Arenas<Kernel>) -> R) -> R {
        work(&mut self.arenas.lock())
    }
    fn os(&self) -> &Kernel {
        &self.kernel
    }
}

/// Something handed out.
#[derive(Clone, Copy, Debug)]
struct Live {
    /// Bytes asked for.
    bytes: usize,
    /// Bytes that it keeps from others.
    usable: usize,
    /// What was written is derived from this.
    seed: u64,
    /// It was asked for with an alignment, which may take a larger place.
    aligned: bool,
}

/// See the module's text.
pub(crate) struct Machine {
    world: &'static World,
    space: &'static Space<World>,
    /// `None`: nobody has it, it waits. Heap number `n` is at `n − 1`.
    heaps: Vec<Option<Heap<World>>>,
    live: BTreeMap<usize, Live>,
    /// Sum of the usable bytes of what is live.
    live_bytes: usize,
    gone: Vec<usize>,
    seed: u64,
    steps: u64,
    /// Heaps are threads': sizes have their classes in groups.
    grouped: bool,
    /// Bytes of metadata when there were only the heaps, but for what these have themselves.
    metadata: usize,
    /// Calls may be made to fail, and limits set: requests may be refused.
    faulty: bool,
}

fn pointer(address: usize) -> NonNull<u8> {
    NonNull::new(address as *mut u8).expect("no block begins at 0")
}

/// Bytes of metadata that heaps have themselves.
fn metadata_of(heaps: &mut [Option<Heap<World>>]) -> usize {
    heaps.iter_mut().flatten().map(Heap::metadata_bytes).sum()
}

fn acquire(space: &'static Space<World>, grouped: bool) -> Option<Heap<World>> {
    let mut heap = space.acquire()?;
    if grouped {
        heap.group();
    }
    Some(heap)
}

impl Machine {
    /// A machine on the host that `start` describes. Without `faulty` no request may be refused.
    pub(crate) fn new(start: Start, faulty: bool) -> Self {
        let mode = [ThpMode::Madvise, ThpMode::Madvise, ThpMode::Always, ThpMode::Never];
        let mut config =
            Config::default().with_pool(u64::from(start[2] % 24)).with_thp_mode(mode[start[1] as usize % 4]);
        config.log_capacity = 16;
        if faulty && start[7] % 4 == 0 {
            config.cgroup_max = Some((64 + u64::from(start[7])) << 20);
        }
        let kernel = Kernel::new(config);
        let settings = Settings {
            policy: Policy::ALL[start[0] as usize % Policy::ALL.len()],
            decay: 100_000_000,
            region: Some([32 << 20, 64 << 20, 256 << 20][start[3] as usize % 3]),
            ..Settings::DEFAULT
        };
        let arenas = Lock::new(Arenas::new(kernel.clone(), settings));
        // Taken back in `finish`.
        let world: &'static World = Box::leak(Box::new(World { arenas, kernel }));
        let space: &'static Space<World> = Box::leak(Box::new(Space::new(world)));
        if start[5] % 2 == 1 {
            space.expect_headers();
        }
        let grouped = start[5] / 2 % 2 == 1;
        let mut heaps: Vec<_> = (0..1 + start[4] as usize % 3).map(|_| acquire(space, grouped)).collect();
        let metadata = space.metadata_bytes() - metadata_of(&mut heaps);
        Self {
            world,
            space,
            heaps,
            live: BTreeMap::new(),
            live_bytes: 0,
            gone: Vec::new(),
            seed: 1,
            steps: 0,
            grouped,
            metadata,
            faulty,
        }
    }

    /// Runs one operation.
    pub(crate) fn step(&mut self, code: Code) {
        let [operation, a, b, c] = code;
        let (wide, heap) = (usize::from(a) << 8 | usize::from(b), usize::from(c));
        self.world.kernel.advance(Duration::from_micros(10));
        match operation % 44 {
            0 => self.allocate(wide % 577, heap, Kind::Plain),
            1 => self.allocate(wide % 2100, heap, Kind::ByTable),
            2 => self.allocate(wide % 577, heap, Kind::Near),
            3 => self.allocate(wide % 577, heap, Kind::AfterWindow),
            4 => self.allocate(577 + wide % (MAX_BLOCK - 576), heap, Kind::Plain),
            5 => self.allocate(pages_bytes(a, b), heap, Kind::Plain),
            6 => self.allocate(wide % 600 * (1 + usize::from(c) % 20), heap, Kind::Zeroed),
            7 => self.allocate(wide % 20_000, heap, Kind::Aligned(1 << (c % 22))),
            8 => (0..2 + b % 64).for_each(|_| self.allocate(usize::from(a) * 4, heap, Kind::Plain)),
            9 => (0..2 + b % 64).for_each(|_| self.allocate(usize::from(a) * 4, heap, Kind::Near)),
            10 => (0..2 + b % 16).for_each(|_| self.allocate(usize::from(a) * 64, heap, Kind::Plain)),
            11..=13 => self.free(wide, heap, Way::Plain),
            14 => self.free(wide, heap, Way::Near),
            15 => self.pairs(wide, heap, 2 + c % 8),
            16 => self.free(wide, heap, Way::Sized),
            17 => self.free(wide, heap, Way::NoHeap),
            18..=20 => self.free_many(wide, heap),
            21 | 22 => self.resize(wide, heap, usize::from(c) * usize::from(a)),
            23 => self.resize(wide, heap, pages_bytes(c, b)),
            24 | 25 => self.wrong_frees(wide, heap),
            26 => self.trim(heap),
            27 => self.leave_or_return(heap),
            28 => self.maintain(u64::from(a) * u64::from(b)),
            29 if self.faulty => self.inject(a, b, c),
            30 => self.write_again(wide),
            31 => self.allocate_nothing(heap),
            32..=37 => self.grow(wide, heap, c / 3),
            38 => (0..3 + b % 30).for_each(|n| self.grow(wide + usize::from(n), heap, c / 3)),
            39 => self.allocate(pages_bytes(7, b) / (1 + usize::from(c % 8)), heap, Kind::Plain),
            40 => self.free_asked(wide, heap),
            41 => self.sizes(wide, usize::from(c) * 37),
            42 => {
                self.resize(wide, heap, HEAP_PAGE_BYTES * (1 + usize::from(b) % 68) + usize::from(c) % 3 - 1)
            }
            _ => self.allocate(200_000 + 2000 * usize::from(a) + usize::from(c), heap, Kind::Plain),
        }
        self.steps += 1;
        self.check(self.steps % 16 == 0);
    }

    /// A heap that somebody has, if there is one.
    fn heap(&mut self, number: usize) -> Option<&mut Heap<World>> {
        let count = self.heaps.len();
        self.heaps[number % count].as_mut()
    }

    fn allocate(&mut self, bytes: usize, number: usize, kind: Kind) {
        if self.live_bytes > ENOUGH {
            return;
        }
        let Some(heap) = self.heap(number) else { return };
        let block = match kind {
            Kind::Plain => heap.allocate(bytes),
            Kind::Near => heap.allocate_near(bytes).or_else(|| heap.allocate_far(bytes)),
            Kind::ByTable => heap.allocate_by_table(bytes),
            Kind::AfterWindow => heap.allocate_after_window(bytes),
            Kind::Zeroed => heap.allocate_zeroed(bytes),
            Kind::Aligned(align) => heap.allocate_aligned(bytes, align),
        };
        let Some(block) = block else { return self.refused() };
        let usable = heap.usable_size(block).expect("just handed out");
        let address = block.as_ptr() as usize;
        assert!(usable >= bytes.max(1), "{usable} bytes for {bytes}");
        assert_eq!(address % 16, 0);
        match kind {
            Kind::Plain | Kind::ByTable | Kind::Near | Kind::AfterWindow => {}
            Kind::Zeroed => self.check_zero(address, bytes),
            Kind::Aligned(align) => assert_eq!(address % align, 0, "{bytes} bytes aligned to {align}"),
        }
        self.handed_out(address, bytes, usable);
        if let Some(live) = self.live.get_mut(&address) {
            live.aligned = matches!(kind, Kind::Aligned(_));
        }
    }

    fn allocate_nothing(&mut self, number: usize) {
        let Some(heap) = self.heap(number) else { return };
        assert_eq!(heap.allocate(usize::MAX - number), None);
        assert_eq!(heap.allocate_aligned(48, 48), None);
        assert_eq!(heap.allocate_array(usize::MAX / 2, 3), None);
    }

    fn handed_out(&mut self, address: usize, bytes: usize, usable: usize) {
        self.check_apart(address, usable);
        self.seed = self.seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let live = Live { bytes, usable, seed: self.seed, aligned: false };
        self.write(address, &live);
        self.live.insert(address, live);
        self.live_bytes += usable;
    }

    /// Only when something was made to fail.
    fn refused(&self) {
        assert!(self.faulty, "refused on a host with memory: {:?}", self.world.arenas.lock().snapshot());
    }

    /// Something live.
    fn pick(&self, number: usize) -> Option<(usize, Live)> {
        let (&address, &live) = self.live.iter().nth(number % self.live.len().max(1))?;
        Some((address, live))
    }

    fn forget(&mut self, address: usize) -> Live {
        let live = self.live.remove(&address).expect("picked from what is live");
        self.check_contents(address, &live, live.bytes);
        self.live_bytes -= live.usable;
        if self.gone.len() == GONE {
            self.gone.remove(0);
        }
        self.gone.push(address);
        live
    }

    fn free(&mut self, picked: usize, number: usize, way: Way) {
        let Some((address, _)) = self.pick(picked) else { return };
        let live = self.forget(address);
        let space = self.space;
        // SAFETY: live, and of no use to the machine any more.
        unsafe {
            match (way, self.heap(number)) {
                (Way::Plain, Some(heap)) => heap.try_free(pointer(address)).expect("live"),
                (Way::Near, Some(heap)) => {
                    if !heap.free_near(address) {
                        heap.free_far(address).expect("live");
                    }
                }
                // An aligned block has more than its size asks for: what it can be used for always fits.
                (Way::Sized, Some(heap)) if live.aligned || picked % 2 == 0 => {
                    heap.free_sized(pointer(address), live.usable);
                }
                (Way::Sized, Some(heap)) => heap.free_sized(pointer(address), live.bytes),
                _ => space.free(pointer(address)),
            }
        }
    }

    /// Frees a block, and takes and frees one of its size several times, as an interpreter does for each number
    /// in a loop.
    fn pairs(&mut self, picked: usize, number: usize, times: u8) {
        let Some((_, live)) = self.pick(picked) else { return };
        self.free(picked, number, Way::Near);
        let Some(heap) = self.heap(number) else { return };
        for _ in 0..times {
            let Some(block) = heap.allocate_near(live.bytes).or_else(|| heap.allocate_far(live.bytes)) else {
                return self.refused();
            };
            let taken = block.as_ptr() as usize;
            // SAFETY: nobody uses it.
            if unsafe { !heap.free_near(taken) } {
                // SAFETY: the model gives it up.
                unsafe { heap.free_far(taken) }.expect("live");
            }
        }
    }

    /// Every so-and-so-manieth of what lies behind an address.
    fn free_many(&mut self, picked: usize, number: usize) {
        let Some((first, _)) = self.pick(picked) else { return };
        let stride = 1 + picked % 3;
        let addresses: Vec<_> = self
            .live
            .range(first..)
            .step_by(stride)
            .take(8 + picked % 120)
            .map(|(&address, _)| address)
            .collect();
        for address in addresses {
            self.forget(address);
            let space = self.space;
            // SAFETY: as in `free`.
            unsafe {
                match self.heap(number) {
                    Some(heap) => heap.try_free(pointer(address)).expect("live"),
                    None => space.free(pointer(address)),
                }
            }
        }
    }

    fn resize(&mut self, picked: usize, number: usize, bytes: usize) {
        let Some((address, live)) = self.pick(picked) else { return };
        if bytes > live.bytes && self.live_bytes > ENOUGH {
            return;
        }
        let Some(heap) = self.heap(number) else { return };
        // SAFETY: live and the machine's.
        let moved = unsafe { heap.try_reallocate(pointer(address), bytes) }.expect("live");
        let Some(moved) = moved else {
            self.refused();
            return self.check_contents(address, &live, live.bytes);
        };
        let usable = heap.usable_size(moved).expect("just handed out");
        assert!(usable >= bytes.max(1), "{usable} bytes for {bytes}");
        let moved = moved.as_ptr() as usize;
        self.live.remove(&address);
        self.live_bytes -= live.usable;
        if moved != address {
            self.gone.push(address);
        }
        self.check_contents(moved, &live, live.bytes.min(bytes));
        self.handed_out(moved, bytes, usable);
    }

    fn trim(&mut self, number: usize) {
        if let Some(heap) = self.heap(number) {
            assert_eq!(heap.trim() % HEAP_PAGE_BYTES, 0);
            assert_eq!(heap.trim(), 0, "everything went the first time");
        }
    }

    /// A heap's owner ends; or a new owner finds a heap, as long as one waits.
    fn leave_or_return(&mut self, number: usize) {
        let number = number % self.heaps.len();
        if self.heaps[number].take().is_none() {
            let found = acquire(self.space, self.grouped).expect("one waits");
            // The first that waits.
            let waiting = self.heaps.iter().position(Option::is_none).expect("this one");
            self.heaps[waiting] = Some(found);
        }
    }

    fn maintain(&mut self, milliseconds: u64) {
        self.world.kernel.advance(Duration::from_millis(milliseconds / 20));
        while self.pass() == Wait::For(0) {}
    }

    /// A pass of maintenance.
    fn pass(&self) -> Wait {
        let mut plan = {
            let mut arenas = self.world.arenas.lock();
            arenas.refresh_host();
            arenas.plan()
        };
        self.space.perform(&mut plan);
        self.world.arenas.lock().complete(plan)
    }

    fn write_again(&mut self, picked: usize) {
        let Some((address, live)) = self.pick(picked) else { return };
        self.check_contents(address, &live, live.bytes);
        let live = Live { seed: live.seed ^ 0x5a5a_5a5a, ..live };
        self.write(address, &live);
        self.live.insert(address, live);
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Plain,
    /// As for a size that no compiler knows.
    ByTable,
    /// As the interpreters' hooks ask.
    Near,
    /// As C's inline functions do.
    AfterWindow,
    Zeroed,
    Aligned(usize),
}

#[derive(Clone, Copy)]
enum Way {
    Plain,
    /// As the interpreters' hooks do.
    Near,
    Sized,
    /// By a thread without a heap.
    NoHeap,
}

/// Page runs, large blocks, and sizes at their borders.
fn pages_bytes(a: u8, b: u8) -> usize {
    let (a, b) = (usize::from(a), usize::from(b));
    match a % 8 {
        0..=3 => MAX_BLOCK + 1 + b * 200,
        4 => (1 << 20) - 1 + a / 8 % 3,
        5 => (1 << 20) + 1 + b * 9000,
        6 => (1 + b % 3) * HEAP_PAGE_BYTES - 1 + a / 8 % 3,
        _ => (2 << 20) - 1 + a / 8 % 3,
    }
}
