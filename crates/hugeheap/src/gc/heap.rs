//! The heap: one per thread, with types, nursery, old generation and roots of its own. Its settings, and its
//! collections as a whole.

use super::barrier::Remembered;
use super::events::Listeners;
use super::finalizer::Finalizers;
use super::layout::{BadLayout, Layout};
use super::log;
use super::mark::{Marker, Phase};
use super::noted::Noted;
use super::nursery::Nursery;
use super::nursery_size::{LEAST_NURSERY, NurserySize};
use super::old::Old;
use super::overdue::Overdue;
use super::pacing::{GROWTH, MANY, Pacing, STEP};
use super::protect::Forbid;
use super::roots::Roots;
use super::statistics::Statistics;
use super::types::{TypeId, Types};
use super::verify::{Checks, POISON};
use super::window::Window;
use crate::object::{MAX_BLOCK, Source, Space};
use crate::telemetry::collectors::{COLLECTORS, Collector};
use core::fmt;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use hugeheap_os::{AddressRange, Facts};

/// Largest object, in bytes, that is allocated in the nursery; larger ones begin in the old generation, in heap
/// pages of their own.
pub const MAX_YOUNG: usize = MAX_BLOCK;

/// Least growth in percent: with less a major collection would follow the other.
const LEAST_GROWTH: u32 = 110;

/// What a user can set on a heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of the nursery, rounded down to heap pages. `None`: [chosen](super::nursery_bytes) from the caches
    /// and the memory limit; it grows, to [64 MiB](super::MOST_NURSERY) at most, while many objects survive
    /// that can be copied within two steps.
    pub nursery: Option<usize>,
    /// Bytes that the old generation may have at most. `None`: no limit of its own.
    pub maximum: Option<usize>,
    /// At how many percent of what was alive after a major collection the next one begins. `None`: 182.
    pub growth: Option<u32>,
    /// At how many percent of what lives the memory of the old generation is when a major collection in steps
    /// is followed by one that evacuates, in steps too. `None`: only whole collections evacuate.
    pub evacuate: Option<u32>,
    /// How long a step of a major collection may take; with the minor collection before it a pause is to take
    /// twice that at most. `None`: 2 ms. Longer ones are for throughput.
    pub step: Option<Duration>,
    /// What is checked while the program runs.
    pub checks: Checks,
}

/// There is no memory for an object, after everything dead was freed. The heap is as usable as before: a
/// program that drops references can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// Bytes that were asked for.
    pub bytes: usize,
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the heap has no room for {} bytes, after a collection", self.bytes)
    }
}

impl std::error::Error for Exhausted {}

/// Why a heap cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHeap {
    /// The nursery is set to less than [`LEAST_NURSERY`].
    Nursery {
        /// What is set.
        bytes: usize,
    },
    /// The growth is set to less than 110 percent.
    Growth {
        /// What is set.
        percent: u32,
    },
    /// There is no memory for the nursery.
    NoMemory {
        /// Its bytes.
        bytes: usize,
        /// What is left of memory, below the limits of the control groups and on the host: fewer bytes, or else
        /// the system refused.
        left: u64,
    },
}

impl fmt::Display for BadHeap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nursery { bytes } => {
                write!(f, "a nursery of {bytes} bytes is too small; set at least {LEAST_NURSERY}")
            }
            Self::Growth { percent } => {
                write!(f, "a growth of {percent} percent is too little; set at least {LEAST_GROWTH}")
            }
            Self::NoMemory { bytes, left } if *left < *bytes as u64 => write!(
                f,
                "there is no memory for a nursery of {bytes} bytes: {left} are left below the limit on memory or on the host; set a smaller one"
            ),
            Self::NoMemory { bytes, .. } => write!(
                f,
                "there is no memory for a nursery of {bytes} bytes: the system gave no address space or no pages; set a smaller one"
            ),
        }
    }
}

impl std::error::Error for BadHeap {}

/// Heaps made so far: their numbers.
static HEAPS: AtomicU32 = AtomicU32::new(0);

/// A garbage-collected heap. It belongs to one thread; a process may have several.
pub struct Heap<S: Source> {
    pub(super) types: Types,
    pub(super) nursery: Nursery<S>,
    pub(super) nursery_size: NurserySize,
    pub(super) old: Old<S>,
    pub(super) roots: Roots,
    pub(super) remembered: Remembered,
    pub(super) marker: Marker,
    pub(super) noted: Noted,
    pub(super) protected: Vec<(AddressRange, Forbid)>,
    /// A check, a listener or a protected page wants something in collections: one look instead of ten.
    pub(super) watched: bool,
    pub(super) finalizers: Finalizers,
    /// Identity hashes made so far.
    pub(super) hashes: u32,
    pub(super) pacing: Pacing,
    pub(super) overdue: Overdue,
    pub(super) statistics: Statistics,
    /// Of these, what is in the sums of the process.
    pub(super) counted: Collector,
    pub(super) listeners: Listeners,
    pub(super) evacuate: Option<u32>,
    /// When the collection that is under way began.
    pub(super) begin: Duration,
    /// The thread's processor time by then, if somebody will ask: it takes a system call.
    pub(super) worked: Option<Duration>,
    /// The last minor collection was of those that are measured: the next one may be, too.
    pub(super) measured: bool,
    pub(super) checks: Checks,
    /// The window while no caller has it.
    pub(super) window: Window,
    pub(super) number: u32,
    /// The last minor collection could not move everything.
    pub(super) not_moved: bool,
    /// Since the last whole collection one left objects in the nursery because nobody knew what refers to them.
    /// They may be dead, like those for which there was no room.
    pub(super) doubtful: bool,
    /// Bytes allocated in the old generation at once since the last collection.
    pub(super) added: usize,
    /// Allocations since the last collection, where each is counted.
    pub(super) allocations: u32,
    /// Objects that stay left no room in the nursery at the last collection: until the next one objects begin
    /// in the old generation.
    pub(super) crowded: bool,
}

impl<S: Source> Heap<S> {
    /// A heap over a space, which all garbage-collected heaps over the same arenas share, and no heap of blocks.
    ///
    /// # Errors
    /// When a setting makes no sense, or there is no memory for the nursery.
    pub fn new(space: &'static Space<S>, settings: Settings) -> Result<Self, BadHeap> {
        let mut place = MaybeUninit::uninit();
        Self::make_in(&mut place, space, settings)?;
        // SAFETY: it was made there.
        Ok(unsafe { place.assume_init() })
    }

    /// The same where the heap is to be, for a thread or a fibre with a small stack: a heap has 10 KB, and
    /// returned by [`new`](Self::new) it is copied a few times. Who has the place drops it.
    ///
    /// # Errors
    /// As for [`new`](Self::new); nothing is there then.
    pub fn make_in<'a>(
        place: &'a mut MaybeUninit<Self>,
        space: &'static Space<S>,
        settings: Settings,
    ) -> Result<&'a mut Self, BadHeap> {
        let step = settings.step.unwrap_or(STEP);
        let nursery_size = match settings.nursery {
            Some(bytes) if bytes < LEAST_NURSERY => return Err(BadHeap::Nursery { bytes }),
            Some(bytes) => NurserySize::set(bytes),
            None => NurserySize::for_host(space.source().os()),
        };
        let bytes = nursery_size.least();
        let growth = settings.growth.unwrap_or(GROWTH);
        if growth < LEAST_GROWTH {
            return Err(BadHeap::Growth { percent: growth });
        }
        let maximum = settings.maximum.unwrap_or(usize::MAX);
        space.reserve_beside();
        let nursery = Nursery::new(space, bytes).map_err(|left| BadHeap::NoMemory { bytes, left })?;
        let number = HEAPS.fetch_add(1, Ordering::Relaxed);
        COLLECTORS.made();
        let heap = place.as_mut_ptr();
        // SAFETY: each write is within the place and aligned; nothing of value was there.
        unsafe {
            (&raw mut (*heap).types).write(Types::default());
            (&raw mut (*heap).nursery).write(nursery);
            (&raw mut (*heap).nursery_size).write(nursery_size);
            Old::make_at(&raw mut (*heap).old, space, number, maximum);
            (&raw mut (*heap).old.poison).write(settings.checks.poison.then_some(POISON));
            (&raw mut (*heap).roots).write(Roots::default());
            (&raw mut (*heap).remembered).write(Remembered::default());
            (&raw mut (*heap).marker).write(Marker::default());
            (&raw mut (*heap).noted).write(Noted::default());
            (&raw mut (*heap).protected).write(Vec::new());
            (&raw mut (*heap).watched).write(true);
            (&raw mut (*heap).finalizers).write(Finalizers::default());
            (&raw mut (*heap).hashes).write(0);
            (&raw mut (*heap).pacing).write(Pacing::new(growth, bytes, maximum, step));
            (&raw mut (*heap).overdue).write(Overdue::new(space.source().os().now(), bytes));
            (&raw mut (*heap).evacuate).write(settings.evacuate);
            (&raw mut (*heap).statistics).write(Statistics::default());
            (&raw mut (*heap).counted).write(Collector::default());
            (&raw mut (*heap).listeners).write(Listeners::new(log::log()));
            (&raw mut (*heap).begin).write(Duration::ZERO);
            (&raw mut (*heap).worked).write(None);
            (&raw mut (*heap).measured).write(false);
            (&raw mut (*heap).checks).write(settings.checks);
            (&raw mut (*heap).window).write(Window::EMPTY);
            (&raw mut (*heap).number).write(number);
            (&raw mut (*heap).not_moved).write(false);
            (&raw mut (*heap).doubtful).write(false);
            (&raw mut (*heap).added).write(0);
            (&raw mut (*heap).allocations).write(0);
            (&raw mut (*heap).crowded).write(false);
        }
        // SAFETY: all fields were written.
        let heap = unsafe { place.assume_init_mut() };
        // All are named, so that the compiler asks for a new one.
        let Self {
            types: _,
            nursery: _,
            nursery_size: _,
            old: _,
            roots: _,
            remembered: _,
            marker: _,
            noted: _,
            protected: _,
            watched: _,
            finalizers: _,
            hashes: _,
            pacing: _,
            overdue: _,
            statistics: _,
            counted: _,
            listeners: _,
            evacuate: _,
            begin: _,
            worked: _,
            measured: _,
            checks: _,
            window: _,
            number: _,
            not_moved: _,
            doubtful: _,
            added: _,
            allocations: _,
            crowded: _,
        } = heap;
        heap.set_part(heap.pacing.first_part());
        heap.watch();
        heap.count_all();
        Ok(heap)
    }

    /// Finds out whether something is wanted in collections.
    pub(super) fn watch(&mut self) {
        let checks = self.checks;
        self.watched = checks.verify
            || checks.barriers
            || checks.poison
            || checks.rotate
            || !self.protected.is_empty()
            || self.listeners.wants_any();
    }

    /// Registers a type.
    ///
    /// # Errors
    /// When the layout makes no sense, or there are too many types.
    pub fn register(&mut self, layout: Layout) -> Result<TypeId, BadLayout> {
        self.types.register(layout)
    }

    /// The numbers of this heap since it was made.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Where the major collection is.
    pub fn phase(&self) -> Phase {
        self.marker.phase
    }

    /// Bytes of the nursery.
    pub fn nursery_bytes(&self) -> usize {
        self.nursery.bytes()
    }

    /// Bytes of objects in the old generation: of the live ones, and of dead ones that are not known to be dead yet.
    pub fn old_bytes(&self) -> usize {
        self.old.used()
    }

    /// Bytes of heap pages and large blocks that the old generation has.
    pub fn held_bytes(&self) -> usize {
        self.old.held()
    }

    /// Whether an object is in the nursery, so that it may move.
    pub fn is_young(&self, object: usize) -> bool {
        self.nursery.contains(object)
    }

    /// Hands the window out: from now on it is the caller's, who passes it to each call that may collect and
    /// [returns](Self::return_window) it in the end.
    pub fn take_window(&mut self) -> Window {
        core::mem::replace(&mut self.window, Window::EMPTY)
    }

    /// Takes the window back.
    pub fn return_window(&mut self, mut window: Window) {
        // There are two where every allocation is counted: the caller's is empty then.
        if window.room() > self.window.room() {
            core::mem::swap(&mut window, &mut self.window);
        }
        self.nursery.retire(&mut window);
    }

    /// A minor collection, and a step of the major one if that is due.
    ///
    /// # Safety
    /// As in [`allocate_slow`](Self::allocate_slow).
    pub unsafe fn collect_minor(&mut self, window: &mut Window, frame: &mut [usize]) {
        self.collect_some(window, frame);
    }

    /// A whole collection: afterwards everything unreachable is free, and heap pages without live objects are
    /// given back to the arenas.
    ///
    /// # Safety
    /// As in [`allocate_slow`](Self::allocate_slow).
    pub unsafe fn collect(&mut self, window: &mut Window, frame: &mut [usize]) {
        self.collect_all(window, frame);
        self.old.trim();
        self.old.give_back_metadata();
        // Who asks for a whole collection wants memory back: of 100 MiB that live a nursery of 16 is a sixth.
        // It grows again in a few collections.
        let least = self.nursery_size.least();
        if self.nursery.bytes() > least {
            self.set_nursery(least, |nursery| nursery.shrink(least));
        }
    }

    pub(super) fn collect_some(&mut self, window: &mut Window, frame: &mut [usize]) {
        self.pause(window, |heap| {
            let survived = heap.minor(frame);
            if heap.watched {
                heap.checked("a minor collection");
            }
            heap.measured = survived >= MANY || heap.nursery.part < heap.nursery.bytes();
            if heap.measured {
                let all = heap.nursery.part == heap.nursery.bytes();
                let took = heap.work();
                let took = heap.pacing.minor(survived, took);
                heap.go_on(frame, survived + heap.added);
                let limited = heap.nursery.part < heap.nursery.paced;
                heap.set_part(heap.pacing.part(heap.nursery.paced, took));
                heap.resize_nursery(survived, all && heap.nursery.paced == heap.nursery.bytes());
                // Of a nursery that has just grown as well.
                heap.nursery.part = heap.part_for_ready(survived, limited);
            } else {
                heap.go_on(frame, survived + heap.added);
                if heap.nursery.bytes() > heap.nursery_size.least() {
                    heap.resize_nursery(survived, false);
                }
            }
            if heap.not_moved {
                // The old generation has no room: it is time to make some, whatever the pace.
                heap.whole(frame);
            }
        });
    }

    /// Makes the nursery as large as what survived asks for. `all`: all of it was used, and may be again.
    #[inline(never)]
    fn resize_nursery(&mut self, survived: usize, all: bool) {
        let (now, can) = (self.nursery.bytes(), self.pacing.can_survive());
        let Some(bytes) = self.nursery_size.next(now, survived, all, can) else { return };
        if bytes < now {
            self.set_nursery(bytes, |nursery| nursery.shrink(bytes));
            return;
        }
        let limited = !self.has_time_to_find(bytes - now);
        let extended = self.set_nursery(bytes, |nursery| nursery.extend(bytes, limited));
        if !extended && self.has_time_for(bytes) {
            self.set_nursery(bytes, |nursery| nursery.replace(bytes));
        }
    }

    /// Goes on with a nursery of another size, if that can be. Says whether it can.
    fn set_nursery(&mut self, bytes: usize, resize: impl FnOnce(&mut Nursery<S>) -> bool) -> bool {
        let resized = resize(&mut self.nursery);
        if resized {
            self.pacing.nursery = bytes;
            self.set_part(self.pacing.most());
        }
        resized
    }

    /// Uses so much of the nursery, of which what is ready may take away.
    pub(super) fn set_part(&mut self, paced: usize) {
        (self.nursery.paced, self.nursery.part) = (paced, paced);
    }

    pub(super) fn collect_all(&mut self, window: &mut Window, frame: &mut [usize]) {
        self.pause(window, |heap| {
            heap.minor(frame);
            // Before marking follows references that are none.
            heap.checked("a minor collection");
            heap.whole(frame);
        });
    }

    /// Ends the major collection that is under way, and makes another from beginning to end. Directly after a
    /// minor collection.
    fn whole(&mut self, frame: &mut [usize]) {
        let (begin, from) = (self.begin_part(log::MAJOR), self.marker.phase);
        if self.must_not_mark() {
            return;
        }
        self.finish(frame);
        let doubtful = self.doubtful || self.not_moved;
        if doubtful {
            if !self.begin_joint(frame) {
                return self.tell_step(begin, from);
            }
            self.doubtful = false;
        } else if self.must_not_mark() {
            return self.tell_step(begin, from);
        } else {
            self.begin_marking(frame);
        }
        self.finish(frame);
        self.tell_step(begin, from);
        self.evacuate(frame);
        if doubtful {
            self.minor(frame);
        }
    }

    /// Measures a collection, with all windows retired.
    fn pause(&mut self, window: &mut Window, collect: impl FnOnce(&mut Self)) {
        let os = self.old.space().source().os();
        let begin = os.now();
        self.begin = begin;
        self.worked = self.measured.then(|| os.thread_time());
        self.nursery.retire(window);
        if self.window.cursor != 0 {
            let mut own = self.take_window();
            self.nursery.retire(&mut own);
        }
        if self.watched {
            self.lift_protections();
            self.before_collection();
        }
        self.old.refused = false;
        collect(self);
        self.old.refused = false;
        (self.added, self.allocations, self.crowded) = (0, 0, false);
        if self.watched {
            self.checked("a collection");
            self.set_protections();
            self.tell_arenas();
        }
        let nanoseconds = os.now().saturating_sub(begin).as_nanos() as u64;
        self.statistics.pauses.record(nanoseconds);
        self.count();
    }
}

impl<S: Source> Drop for Heap<S> {
    fn drop(&mut self) {
        self.count_end();
        self.lift_protections();
        self.nursery.release();
        self.old.release_all();
    }
}

impl<S: Source> fmt::Debug for Heap<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap")
            .field("nursery_bytes", &self.nursery_bytes())
            .field("old_bytes", &self.old_bytes())
            .field("phase", &self.phase())
            .finish_non_exhaustive()
    }
}
