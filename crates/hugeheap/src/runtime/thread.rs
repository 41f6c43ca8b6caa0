//! The maintenance thread: started when something is to be done, ended when nothing is.
//!
//! ```text
//!   None ──ensure──▶ Starting ──created──▶ Running ──nothing to do──▶ Ended ──ensure──▶ Starting: joins the old one first
//!     ▲                 │ refused            │                          │
//!     ├─────────────────┘                    │ before a fork            │ before a fork
//!     │                                      ▼                          ▼
//!     └────── after the fork ───────────── Held: asked to stop, joined, and the kernel has forgotten it
//!
//!   asleep ──time passes, or look_again──▶ pass
//!          ──grow───────────────────────▶ makes arenas ahead
//! ```
//!
//! Who makes the change to Starting or Held has the thread's handle to himself until he makes the next; nobody
//! waits for him but a fork. There was a lock, held over `pthread_create`: in a process whose `malloc` is
//! hugeheap that allocated, the arenas had an event, and the event waited for the lock of its own thread, with
//! all signals blocked. An event that finds Starting or Held has nothing to do: a thread that starts begins
//! with a pass, and after a fork the parent looks again.
//!
//! Invariant: Running becomes Ended under the heap's lock, by the thread, which has just seen there that
//! nothing is due. So an event that leaves something to do is either seen by the thread or finds it ended.
//!
//! The C library is called through [`guest`](super::guest), because it may allocate and free here, in the
//! middle of whatever the event came from.
//!
//! It sleeps for as long as its last pass said. What makes that wrong has to say so with `look_again`: other
//! settings, and a fall of demand while recurring memory is kept. Otherwise, with a decay time of an hour that
//! was lowered to a second, memory stayed for an hour.
//!
//! It runs on a small stack with all signals blocked: a program's handlers run on its own threads only. It has
//! descriptors of its own, none to begin with: a program that does not know of it closes numbers that it may be
//! using, and gets them again ([`separate_descriptors`](hugeheap_os::linux::separate_descriptors)). But not
//! while the process's [leader](super::leader) may end without its being told: as the last thread it would have
//! to write what the program has in its buffers.
//!
//! It does not outlive the leader: who ends that stops it, for good, and one that has to look for itself ends
//! when it sees that.

use super::leader::Leader;
use super::{Linux, Runtime, guest};
use crate::arena::Wait;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

/// Stack of the thread in bytes. A pass uses below 16 KiB; the rest is room for the C library.
const STACK: usize = 128 << 10;

/// Longest sleep, in nanoseconds: an hour, so that arithmetic with time stays in range.
const LONGEST_SLEEP: u64 = 3600 * 1_000_000_000;

/// How often an untold leader is looked at: once a second. It takes 10 µs, and is how much longer than its own
/// threads a process may live.
const LEADER_LOOK: Duration = Duration::from_secs(1);

/// Phases: see the module's text.
const NONE: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
const ENDED: u32 = 3;
const HELD: u32 = 4;

/// How long a fork waits for a thread that is being started, in steps of a tenth of a millisecond: a second. It
/// takes a tenth of one; who takes longer waits in its allocator for a lock that the forking thread has taken
/// for the fork.
const START_WAITS: u32 = 10_000;

/// The thread is asked to end.
const STOP: u32 = 1;

/// The thread is asked to make a pass now.
const LOOK: u32 = 2;

/// The thread is asked to make arenas ahead.
const GROW: u32 = 4;

/// See the module's text.
pub(super) struct MaintenanceThread {
    phase: AtomicU32,
    /// Written in the phase Starting; read by who ended the phases Running or Ended.
    thread: UnsafeCell<MaybeUninit<libc::pthread_t>>,
    /// What the thread is asked: `STOP`, `LOOK` and `GROW`. A futex word.
    asked: AtomicU32,
    /// Until when it sleeps, in nanoseconds of the system's clock; 0: it does not. Written under the heap's
    /// lock, or by who wakes it.
    wakes_at: AtomicU64,
    /// The kernel's number of the thread, written by itself when it begins.
    number: AtomicI32,
    /// The user wants none.
    unwanted: AtomicBool,
    pub(super) leader: Leader,
}

// SAFETY: `thread` belongs to one thread at a time, by the phase; everything else is atomic.
unsafe impl Sync for MaintenanceThread {}

impl MaintenanceThread {
    pub(super) const fn new() -> Self {
        Self {
            phase: AtomicU32::new(NONE),
            thread: UnsafeCell::new(MaybeUninit::uninit()),
            asked: AtomicU32::new(0),
            wakes_at: AtomicU64::new(0),
            number: AtomicI32::new(0),
            unwanted: AtomicBool::new(false),
            leader: Leader::new(),
        }
    }

    /// As the environment says, from now on.
    pub(super) fn heed_environment(&self) {
        self.unwanted.store(super::environment::is_off(c"HUGEHEAP_THREAD"), Ordering::Relaxed);
    }

    /// Whether there is to be none: the user wants none, or the process's leader has ended.
    pub(super) fn is_unwanted(&self) -> bool {
        self.unwanted.load(Ordering::Relaxed) || self.leader.has_ended()
    }

    /// Starts the thread unless it runs or somebody else starts it. False when there is to be none: the system
    /// refuses one, or it is unwanted.
    pub(super) fn ensure(&self, runtime: &'static Runtime) -> bool {
        if self.is_unwanted() {
            return false;
        }
        let before = self.phase.load(Ordering::Acquire);
        if !matches!(before, NONE | ENDED) || !self.change(before, STARTING) {
            return true;
        }
        // Who notes the leader's end looks at the phase afterwards: either it is seen here, or Starting is seen
        // there and waited for.
        if self.is_unwanted() {
            self.change(STARTING, before);
            return false;
        }
        let started = guest::call(|| {
            self.leader.note_thread();
            if before == ENDED {
                self.join();
            }
            self.asked.store(0, Ordering::Relaxed);
            self.spawn(runtime)
        });
        match started {
            Some(started) => {
                self.change(STARTING, if started { RUNNING } else { NONE });
                started
            }
            // Nothing was done: not even joined.
            None => {
                self.change(STARTING, before);
                false
            }
        }
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.phase.compare_exchange(from, to, Ordering::SeqCst, Ordering::Acquire).is_ok()
    }

    /// Ends the thread and waits until it is gone, also from the kernel's count of threads; no new one starts
    /// until [`resume`](Self::resume).
    ///
    /// For one fork, or end of a leader, at a time. A thread that is still being started after [`START_WAITS`]
    /// is left to that: the parent has it then, and the child does not.
    pub(super) fn stop_and_hold(&self) {
        let mut waits = START_WAITS;
        while waits > 0 {
            let before = self.phase.load(Ordering::SeqCst);
            if before == STARTING {
                waits -= 1;
                nap(100_000);
            } else if self.change(before, HELD) {
                if before != NONE {
                    self.ask(STOP);
                    self.join();
                    wait_until_gone(self.number.load(Ordering::Acquire));
                }
                return;
            }
        }
    }

    /// Allows threads again, in the process that was held.
    pub(super) fn resume(&self) {
        self.change(HELD, NONE);
    }

    /// Allows threads again, in the child, which has none, whatever the phase was.
    pub(super) fn resume_in_child(&self) {
        self.phase.store(NONE, Ordering::Release);
    }

    /// Sees to it that a pass is made now, if the thread runs. Without it there is nothing to wake: one that
    /// starts begins with a pass.
    pub(super) fn look_again(&self) {
        self.wakes_at.store(0, Ordering::Relaxed);
        self.ask(LOOK);
    }

    /// Sees to it that arenas are made ahead, if the thread runs.
    pub(super) fn grow(&self) {
        // It is awake, or was asked already: no call.
        if self.asked.fetch_or(GROW, Ordering::Release) == 0 {
            wake(&self.asked);
        }
    }

    /// Until when the thread sleeps, unless it is woken; 0: it does not sleep, or was woken already.
    pub(super) fn wakes_at(&self) -> u64 {
        self.wakes_at.load(Ordering::Relaxed)
    }

    fn ask(&self, what: u32) {
        self.asked.fetch_or(what, Ordering::Release);
        wake(&self.asked);
    }

    /// Also one that was left to be started when its leader ended.
    fn is_stopped(&self) -> bool {
        self.asked.load(Ordering::Acquire) & STOP != 0 || self.leader.has_ended()
    }

    /// Sleeps for `nanoseconds` or until asked for something, and says for what.
    fn sleep(&self, nanoseconds: u64) -> u32 {
        let nanoseconds = nanoseconds.min(LONGEST_SLEEP);
        let time = libc::timespec {
            tv_sec: (nanoseconds / 1_000_000_000) as libc::time_t,
            tv_nsec: (nanoseconds % 1_000_000_000) as libc::c_long,
        };
        if self.asked.load(Ordering::Acquire) == 0 {
            // SAFETY: the futex word lives in a static; the kernel reads the time before it returns.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.asked.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    0,
                    &raw const time,
                );
            }
        }
        // Before the work, so that what is asked during it is not lost.
        self.asked.fetch_and(!(LOOK | GROW), Ordering::AcqRel)
    }

    /// The thread's life.
    fn run(&self, runtime: &Runtime) {
        let mut watch = Watch::new();
        loop {
            watch.separate(self);
            // First, because the program waits for it.
            make_ahead(self, runtime);
            let wait = pass(runtime);
            match wait {
                Wait::For(0) => {
                    if self.is_stopped() {
                        return;
                    }
                }
                Wait::For(time) => {
                    if !self.sleep_for(Duration::from_nanos(time), runtime, &mut watch) {
                        return;
                    }
                }
                Wait::Idle => {
                    if self.is_stopped() {
                        return;
                    }
                    // Under the heap's lock: see the invariant.
                    let heap = runtime.heap.lock();
                    if !heap.maintenance_due() && self.change(RUNNING, ENDED) {
                        return;
                    }
                    drop(heap);
                    if self.phase.load(Ordering::Acquire) == STARTING {
                        // Who started it has not noted that yet.
                        nap(10_000);
                    }
                }
            }
        }
    }

    /// Sleeps until a pass is due, in so much time, or asked for, and makes arenas ahead meanwhile. False: the
    /// thread has to end.
    fn sleep_for(&self, time: Duration, runtime: &Runtime, watch: &mut Watch) -> bool {
        let os = Linux::new();
        let begin = hugeheap_os::Facts::now(&os);
        loop {
            let now = hugeheap_os::Facts::now(&os);
            if watch.leader_is_gone(self, now) {
                return false;
            }
            // Never more than all of it, whatever becomes of the clock.
            let left = time.saturating_sub(now.saturating_sub(begin));
            let nap = watch.longest_nap(self).min(left);
            let asked = self.sleep(nap.as_nanos() as u64);
            if asked & STOP != 0 || self.is_stopped() {
                return false;
            }
            if asked & GROW != 0 {
                make_ahead(self, runtime);
            }
            let watched = asked == 0 && nap < left;
            if !watched && (asked & GROW == 0 || asked & LOOK != 0 || left.is_zero()) {
                return true;
            }
        }
    }

    /// Creates the thread. In the phase Starting.
    fn spawn(&self, runtime: &'static Runtime) -> bool {
        // SAFETY: plain C library calls on objects of this frame; `thread` is this caller's in its phase; the
        // thread gets a reference that lives forever.
        unsafe {
            let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
            if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
                return false;
            }
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
            let mut all = MaybeUninit::<libc::sigset_t>::uninit();
            let mut before = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            let argument = core::ptr::from_ref(runtime).cast_mut().cast();
            let thread = self.thread.get().cast();
            let result = libc::pthread_create(thread, attributes.as_ptr(), entry, argument);
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut());
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            result == 0
        }
    }

    /// Joins a thread that ran. By who ended the phase Running or Ended.
    fn join(&self) {
        // SAFETY: `thread` was written by pthread_create before those phases and not joined since, and is this
        // caller's now.
        unsafe {
            libc::pthread_join((*self.thread.get()).assume_init(), core::ptr::null_mut());
        }
    }
}

/// What the thread does about the process's leader.
struct Watch {
    /// The program's descriptors were left, or that was refused.
    separated: bool,
    /// When an untold leader was looked at last.
    looked: Duration,
}

impl Watch {
    const fn new() -> Self {
        Self { separated: false, looked: Duration::ZERO }
    }

    /// Leaves the program's descriptors, once, as soon as this cannot become the last thread. Where the kernel
    /// refuses, it shares them, as before.
    fn separate(&mut self, thread: &MaintenanceThread) {
        if !self.separated && thread.leader.is_told() {
            hugeheap_os::linux::separate_descriptors();
            self.separated = true;
        }
    }

    fn longest_nap(&self, thread: &MaintenanceThread) -> Duration {
        if thread.leader.is_told() { Duration::MAX } else { LEADER_LOOK }
    }

    /// Whether an untold leader has ended, looked at now and then.
    fn leader_is_gone(&mut self, thread: &MaintenanceThread, now: Duration) -> bool {
        self.separate(thread);
        if self.separated || now.saturating_sub(self.looked) < LEADER_LOOK {
            return false;
        }
        self.looked = now;
        thread.leader.look()
    }
}

/// Makes arenas ahead, as many as are due.
fn make_ahead(thread: &MaintenanceThread, runtime: &Runtime) {
    let os = Linux::new();
    while !thread.is_stopped() {
        let Some(mut ahead) = runtime.heap.lock().begin_ahead() else { return };
        ahead.touch(&os);
        if !runtime.heap.lock().complete_ahead(ahead) {
            return;
        }
    }
}

/// One pass: plan under the lock, perform without it, complete under it.
fn pass(runtime: &Runtime) -> Wait {
    let os = Linux::new();
    let mut host = runtime.heap.lock().host;
    host.refresh(&os);
    let due = runtime.heap.lock().due_look();
    if let Some(due) = due {
        runtime.look(due);
    }
    let mut heap = runtime.heap.lock();
    heap.host = host;
    let mut plan = heap.plan();
    let (mut heap, wait) = runtime.perform(heap, &mut plan);
    let wakes_at = match wait {
        Wait::For(0) | Wait::Idle => 0,
        Wait::For(time) => heap.now().saturating_add(time),
    };
    runtime.thread.wakes_at.store(wakes_at, Ordering::Relaxed);
    // Counting the states of all arenas walks over them with the lock held: when it rests, not between passes
    // that follow at once.
    runtime.publish(&mut heap, wait != Wait::For(0));
    wait
}

extern "C" fn entry(argument: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: the argument is the `&'static Runtime` that `spawn` passed.
    let runtime: &'static Runtime = unsafe { &*argument.cast::<Runtime>() };
    // SAFETY: gettid has no preconditions.
    runtime.thread.number.store(unsafe { libc::gettid() }, Ordering::Release);
    // A panic must not unwind into the C library. There is nothing to save: the process goes on without maintenance.
    if std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| runtime.thread.run(runtime))).is_err() {
        // The standard library's own message goes to a stderr that this thread does not have.
        crate::complain::line(format_args!(
            "the maintenance thread ended by a mistake in hugeheap; nothing is given back while the program idles from now on"
        ));
    }
    core::ptr::null_mut()
}

fn wake(word: &AtomicU32) {
    // SAFETY: the futex word lives in a static.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    }
}

/// `pthread_join` returns when the thread has left its stack, a moment before the kernel takes it off the count
/// of threads that CPython looks at after a fork. Waits for that, about a millisecond at most.
fn wait_until_gone(number: i32) {
    for _ in 0..100 {
        // SAFETY: signal 0 only asks whether the thread exists.
        if unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), number, 0) } != 0 {
            return;
        }
        nap(10_000);
    }
}

/// Sleeps, by a system call only.
pub(super) fn nap(nanoseconds: libc::c_long) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    // SAFETY: the kernel reads the time before it returns.
    unsafe { libc::nanosleep(&raw const time, core::ptr::null_mut()) };
}
