//! One runtime per process: the heap behind a lock, its maintenance thread, its fork handlers, its published record.
//!
//! ```text
//!   any thread ──lock──▶ Arenas ◀──lock── maintenance thread (exists only while something is to be done)
//!                          │
//!                          └──▶ Record in a shared file, when HUGEHEAP_TELEMETRY names a directory
//! ```
//!
//! Rules that everything here keeps:
//! * Nothing here allocates from the process's heap: the runtime may sit below the allocator of the process.
//!   The C library does, when it starts a thread (the tables of its thread-local storage) and when it notes the
//!   fork handlers: so no lock is held there, and the thread's own heap is not in use ([`guest`]).
//! * The lock is held for bit operations and for the system calls that obtain memory, never for those that give
//!   it back. (But for those that give metadata back where others could begin to use it: one huge page of it,
//!   or what belongs to 16 arenas, at a time.)
//! * The maintenance thread is started by the first event that leaves something to do, blocks all signals, ends
//!   when nothing is left, does not exist during a fork, and not without the process's [leader]. So an idle
//!   process has the threads it started itself, and CPython's warning about forks of multi-threaded processes
//!   (3.12) is not provoked.

mod environment;
mod errno;
mod forking;
mod guest;
mod leader;
mod numbers;
mod publisher;
mod record_file;
mod scarce;
mod thread;

pub use crate::lock::{Guard, Lock};
pub(crate) use environment::hardened as hardened_by_environment;
pub(crate) use environment::variable;
pub use environment::{
    Setting, SettingError, children_inherit, disabled_by_environment, parse_bytes, settings_from_environment,
    tell_what_is_passed_over,
};

use crate::arena::{Arenas, BadFree, DueLook, HEAP_PAGES, Plan, Settings, Wait, layout};
use crate::large::LargeBlock;
use crate::object;
use crate::telemetry::{HookState, Level, Snapshot};
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use hugeheap_os::linux::Linux;
use hugeheap_os::{Facts, Pages};
use publisher::Publisher;
use thread::MaintenanceThread;

/// The runtime of this process. There is one; it does nothing before [`start`](Self::start).
pub struct Runtime {
    heap: Lock<Arenas<Linux>>,
    thread: MaintenanceThread,
    publisher: Publisher,
    started: AtomicBool,
    /// Live bytes above which the next free measures coverage at the peak. `u64::MAX`: never.
    measure_above: AtomicU64,
    foreign_frees: AtomicU64,
    /// Plans of maintenance that are being performed. Changed under the heap's lock.
    performing: AtomicU32,
    /// When the next pass on a thread of the program's is due, in nanoseconds of the system's clock; 0: with
    /// the next event that leaves something to do. Changed under the heap's lock.
    inline_at: AtomicU64,
}

/// How long [`Runtime::give_back`] and a fork wait for what others are giving back, in steps of a tenth of a
/// millisecond: a second in all. A plan has 16 arenas at most, and takes some milliseconds; who is kept longer
/// has threads that give back all the time.
const WAITS: u32 = 10_000;

static RUNTIME: Runtime = Runtime {
    heap: Lock::new(Arenas::new(Linux::new(), Settings::DEFAULT).with_tenant()),
    thread: MaintenanceThread::new(),
    publisher: Publisher::new(),
    started: AtomicBool::new(false),
    measure_above: AtomicU64::new(u64::MAX),
    foreign_frees: AtomicU64::new(0),
    performing: AtomicU32::new(0),
    inline_at: AtomicU64::new(0),
};

/// The runtime of this process.
pub const fn runtime() -> &'static Runtime {
    &RUNTIME
}

impl Runtime {
    /// Applies the settings and, the first time, registers the fork handlers and opens the published record if
    /// the environment asks for one.
    pub fn start(&'static self, settings: Settings) {
        // Before the heap's lock is taken for the first time, and before anybody is told that this has started.
        forking::register();
        // Once, and before anything could start the thread.
        if !self.started.load(Ordering::Acquire) {
            self.thread.heed_environment();
        }
        self.set(|now| *now = settings);
        if !self.started.swap(true, Ordering::AcqRel) {
            self.publisher.numbers.want();
            self.listen();
            // Last: the C library may allocate for it.
            self.note_thread();
        }
    }

    /// The calling thread uses the heap. Where it is the process's leader, its end has to be told.
    pub(crate) fn note_thread(&self) {
        self.thread.leader.note_thread();
    }

    /// Starts with the settings in force, if nobody did: for a program that allocates before it is configured.
    pub(crate) fn ensure_started(&'static self) {
        if !self.started.load(Ordering::Acquire) {
            let settings = settings_from_environment().map_or_else(
                |error| {
                    crate::complain::line(format_args!("{error}; the default is used"));
                    Settings::DEFAULT
                },
                |(settings, _)| settings,
            );
            environment::tell_telemetry();
            self.start(settings);
        }
    }

    /// Works on the arenas; afterwards publishes, and sees to it that maintenance happens.
    pub(crate) fn work<R>(&'static self, work: impl FnOnce(&mut Arenas<Linux>) -> R) -> R {
        let mut heap = self.heap.lock();
        let result = work(&mut heap);
        self.after_event(heap);
        result
    }

    /// Reads what the arenas know: nothing is published, and no maintenance is due after that.
    pub(crate) fn read_arenas<R>(&self, read: impl FnOnce(&Arenas<Linux>) -> R) -> R {
        read(&self.heap.lock())
    }

    /// Opens the published record if the environment asks for one; all that a process without hugeheap's memory does.
    pub fn listen(&self) {
        if !self.publisher.is_open() {
            self.publisher.open();
        }
        if self.publisher.is_open() {
            self.measure_above.store(0, Ordering::Relaxed);
        }
    }

    /// Changes the settings of the running heap.
    pub fn configure(&'static self, change: impl FnOnce(&mut Settings)) {
        self.set(change);
    }

    fn set(&'static self, change: impl FnOnce(&mut Settings)) {
        let mut heap = self.heap.lock();
        let before = heap.settings();
        let mut settings = before;
        change(&mut settings);
        heap.set(settings);
        if settings == before {
            return;
        }
        self.after_event(heap);
        self.thread.look_again();
    }

    /// Before a limit of so many bytes holds for the address space of this process: gives back what of it is
    /// reserved and not used, but for a part to grow into. See [`arena`](crate::arena).
    ///
    /// For whoever sees that the program limits itself. Between a `fork` that called no handlers and `exec` the
    /// lock may be held for good: it is not waited for without end.
    pub fn limit_address_space(&'static self, bytes: u64) {
        scarce::note_limit();
        for _ in 0..WAITS {
            if let Some(mut heap) = self.heap.try_lock() {
                heap.cut_address_space(bytes, |cut| object::space().shorten(cut));
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// The settings in force.
    pub fn settings(&self) -> Settings {
        self.heap.lock().settings()
    }

    /// Says what this process is, for telemetry.
    pub fn describe(&self, state: HookState, level: Level, version: &[u8]) {
        self.publisher.describe(state, level, version);
        self.publish(&mut self.heap.lock(), true);
    }

    /// Whether the address may be from this heap. Lock-free would need the table to be immutable; the lock is short.
    pub fn owns(&self, address: usize) -> bool {
        self.heap.lock().owns(address)
    }

    /// Takes memory for `bytes` bytes: a page run up to an arena, a large block above. Contents undefined.
    pub fn allocate(&'static self, bytes: usize) -> Option<NonZeroUsize> {
        let pages = layout::heap_pages_for(bytes)?;
        let mut heap = self.heap.lock();
        let address = match u32::try_from(pages) {
            Ok(pages) if pages <= HEAP_PAGES => heap.allocate(pages),
            _ => heap.allocate_large(bytes, false).map(|block| block.address),
        };
        self.after_event(heap);
        address
    }

    /// Takes a large block, whatever its size. `growing`: it is expected to grow; see [`Arenas::allocate_large`].
    pub fn allocate_large(&'static self, bytes: usize, growing: bool) -> Option<LargeBlock> {
        let mut heap = self.heap.lock();
        let block = heap.allocate_large(bytes, growing);
        self.after_event(heap);
        block
    }

    /// Gives a large block a new length; see [`Arenas::resize_large`].
    ///
    /// # Errors
    /// When no large block begins at `address`.
    pub fn resize_large(
        &'static self,
        address: usize,
        bytes: usize,
    ) -> Result<Option<NonZeroUsize>, BadFree> {
        let mut heap = self.heap.lock();
        if heap.refit_large(address, bytes)? {
            return Ok(NonZeroUsize::new(address));
        }
        let result = heap.resize_large(address, bytes);
        self.after_event(heap);
        result
    }

    /// Takes memory of `bytes` bytes back, as [`allocate`](Self::allocate) handed it out.
    ///
    /// # Errors
    /// When nothing of that size is live at `address`. `Foreign` addresses are counted: they belong to somebody else.
    pub fn free(&'static self, address: usize, bytes: usize) -> Result<(), BadFree> {
        self.measure_peak();
        let mut heap = self.heap.lock();
        let result = match layout::heap_pages_for(bytes) {
            Some(pages) if pages <= HEAP_PAGES as usize => heap.free(address, pages as u32),
            _ => heap.large_bytes(address).and_then(|actual| {
                if actual == bytes {
                    heap.free_large(address).map(|_| ())
                } else {
                    Err(BadFree::WrongSize { actual })
                }
            }),
        };
        if result == Err(BadFree::Foreign) {
            self.foreign_frees.fetch_add(1, Ordering::Relaxed);
        }
        self.after_event(heap);
        result
    }

    /// Frees the large block at `address`.
    ///
    /// # Errors
    /// When none begins there.
    pub fn free_large(&'static self, address: usize) -> Result<usize, BadFree> {
        self.measure_peak();
        let mut heap = self.heap.lock();
        let result = heap.free_large(address);
        self.after_event(heap);
        result
    }

    /// Bytes of the large block at `address`.
    ///
    /// # Errors
    /// When none begins there.
    pub fn large_bytes(&self, address: usize) -> Result<usize, BadFree> {
        self.heap.lock().large_bytes(address)
    }

    /// The numbers now; with `measure`, what the kernel says about resident memory and charge is asked first.
    pub fn snapshot(&self, measure: bool) -> Snapshot {
        if measure {
            self.measure(false);
        }
        let heap = self.heap.lock();
        let mut snapshot = heap.snapshot();
        snapshot.foreign_frees = self.foreign_frees.load(Ordering::Relaxed);
        self.publisher.fill(&mut snapshot);
        snapshot
    }

    /// Gives back now what the retention rule would keep, on the caller's thread, and waits for what others are
    /// giving back. Returns the bytes given back meanwhile.
    pub fn give_back(&self) -> u64 {
        let _kept = errno::Kept::new();
        let mut heap = self.heap.lock();
        let before = heap.counters.given_back;
        heap.forget_demand();
        heap.refresh_data_limit();
        let mut waits = WAITS;
        let mut after = Some(0);
        loop {
            let mut plan = heap.plan();
            if !plan.is_empty() {
                heap = self.perform(heap, &mut plan).0;
                continue;
            }
            let _ = heap.complete_in_place(&plan);
            if let Some(start) = after {
                drop(heap);
                after = self.look(DueLook { after: start, quiet: false, asked: true });
                heap = self.heap.lock();
                continue;
            }
            // Arenas in another thread's plan are in no other, and are retained until it is done.
            if waits == 0 || self.performing.load(Ordering::Relaxed) == 0 {
                break;
            }
            waits -= 1;
            drop(heap);
            std::thread::sleep(Duration::from_micros(100));
            heap = self.heap.lock();
        }
        let given = heap.counters.given_back - before;
        self.publish(&mut heap, true);
        given
    }

    /// The arenas, while nobody is giving back, for a fork: in the child nobody would ever complete it, and the
    /// arenas in that plan were neither used nor given back any more.
    fn lock_at_rest(&self) -> Guard<'_, Arenas<Linux>> {
        for _ in 0..WAITS {
            let heap = self.heap.lock_first();
            if self.performing.load(Ordering::Relaxed) == 0 {
                return heap;
            }
            drop(heap);
            std::thread::sleep(Duration::from_micros(100));
        }
        self.heap.lock_first()
    }

    /// The last words before the process ends: measures and publishes, if somebody listens.
    pub fn finish(&self) {
        if self.publisher.is_open() {
            self.measure_peak();
            self.measure(false);
            self.publish(&mut self.heap.lock(), true);
        }
    }

    /// After every event: publishes, and sees to it that maintenance happens.
    fn after_event(&'static self, mut heap: Guard<'_, Arenas<Linux>>) {
        self.publish(&mut heap, false);
        let due = heap.maintenance_due();
        let oversleeps = due && heap.oversleeps(self.thread.wakes_at());
        let grows = heap.ahead_due();
        drop(heap);
        if due {
            let _kept = errno::Kept::new();
            if !self.thread.ensure(self) {
                self.maintain_inline();
            }
        }
        if oversleeps {
            self.thread.look_again();
        }
        if grows {
            self.thread.grow();
        }
    }

    /// Where there is no thread: one short pass on the caller's thread, without the lock over system calls.
    /// Apart: plans are kibibytes, which no other event needs of its stack.
    ///
    /// Not with each event, but when the last pass said, as the thread would: while a gigabyte is kept for
    /// reuse something is due all the time.
    #[inline(never)]
    fn maintain_inline(&self) {
        let mut heap = self.heap.lock();
        // What follows a pass may be an event itself. Where each led to the next pass, a heap of gigabytes that
        // was given back had a stack of hundreds.
        if self.performing.load(Ordering::Relaxed) > 0 {
            return;
        }
        heap.leave_ahead();
        heap.leave_looks();
        let next = self.inline_at.load(Ordering::Relaxed);
        if heap.now() < next && !heap.oversleeps(next) {
            return;
        }
        if !self.thread.is_unwanted() {
            heap.count(crate::telemetry::Fallback::NoThread);
        }
        let mut plan = heap.plan();
        let (heap, wait) = self.perform(heap, &mut plan);
        let next = match wait {
            Wait::For(0) | Wait::Idle => 0,
            Wait::For(time) => heap.now().saturating_add(time),
        };
        self.inline_at.store(next, Ordering::Relaxed);
    }

    /// Looks for heap pages of which a part is vacant. Returns where the next look goes on.
    fn look(&self, due: DueLook) -> Option<usize> {
        let heaps = object::space();
        // Heaps that wait need no barrier.
        let mut waits = due.after == 0 && heaps.end_waiting_quarantines(due.quiet);
        // Without it nobody can be collected for, nor any OS page be given back, and huge pages would be broken
        // for that.
        if Linux::new().barrier().is_err() {
            self.heap.lock().cannot_vacate();
            return None;
        }
        if self.heap.lock().wants_merging() {
            let host = Linux::new().merges().unwrap_or(false);
            self.heap.lock().note_merging(host);
        }
        heaps.set_merges(self.heap.lock().merges());
        let mut told = self.heap.lock().begin_look(due);
        waits |= due.after == 0 && heaps.give_surplus_runs(due.quiet);
        // First: what is collected may be free as a whole.
        waits |= due.after == 0 && heaps.collect_for_idle(due.quiet);
        let look = heaps.look_for_vacancy(due.after, due.quiet, |vacancy| told.note(vacancy));
        let refilled = self.heap.lock().looked(&told, look.next, look.later | waits);
        refilled
            .into_iter()
            .filter(|&start| start != 0)
            .for_each(|start| object::space().forget_vacancy(start));
        look.next
    }

    /// Performs a plan without the lock, and completes it.
    fn perform<'a>(
        &'a self,
        heap: Guard<'a, Arenas<Linux>>,
        plan: &mut Plan,
    ) -> (Guard<'a, Arenas<Linux>>, Wait) {
        self.performing.fetch_add(1, Ordering::Relaxed);
        drop(heap);
        object::space().perform(plan);
        let mut heap = self.heap.lock();
        let wait = heap.complete_in_place(plan);
        self.performing.fetch_sub(1, Ordering::Relaxed);
        (heap, wait)
    }

    /// Measures coverage if live memory is at a peak that was not measured: asked before it falls. Only while
    /// somebody listens.
    pub(crate) fn measure_peak(&self) {
        if self.measure_above.load(Ordering::Relaxed) == u64::MAX {
            return;
        }
        let live = self.heap.lock().counters.live;
        if live > self.measure_above.load(Ordering::Relaxed) {
            // A tenth above the last one, so that a growing heap is measured a logarithmic number of times.
            self.measure_above.store(live + live / 10, Ordering::Relaxed);
            self.measure(true);
        }
    }

    fn measure(&self, at_peak: bool) {
        let linux = Linux::new();
        let mut sum = hugeheap_os::Residency::default();
        let mut index = 0;
        loop {
            // One range at a time: the lock is not held while the kernel looks.
            let range = self.heap.lock().mapped_range(index);
            let Some(range) = range else { break };
            index += 1;
            match hugeheap_os::Pages::residency(&linux, range) {
                Ok(residency) => sum += residency,
                Err(_) => return,
            }
        }
        let charge = linux.memory_limits().map_or(0, |limits| limits.charge);
        let asks = self.heap.lock().wants_merging();
        let merged = if asks { linux.merged().unwrap_or(0) } else { 0 };
        let counters = &mut self.heap.lock().counters;
        counters.merged = merged;
        (counters.resident, counters.huge, counters.charge) = (sum.resident, sum.huge(), charge);
        if at_peak {
            (counters.peak_resident, counters.peak_huge, counters.peak_charge) =
                (sum.resident, sum.huge(), charge);
        }
    }

    /// Publishes the numbers now, if somebody may read them.
    pub(crate) fn publish_all(&self) {
        self.publish(&mut self.heap.lock(), true);
    }

    /// Counts metadata beside that of the arenas.
    pub(crate) fn add_metadata(&self, bytes: usize) {
        self.publisher.metadata.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Some of that was given back.
    pub(crate) fn remove_metadata(&self, bytes: usize) {
        self.publisher.metadata.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    fn publish(&self, heap: &mut Guard<'_, Arenas<Linux>>, whole: bool) {
        self.publisher.publish(heap, self.foreign_frees.load(Ordering::Relaxed), whole);
    }
}
