//! The maintenance thread: started when something is to be done, ended when nothing is.
//!
//! ```text
//!   None ──ensure──▶ Running ──nothing to do──▶ Ended ──ensure (joins the old one)──▶ Running
//!                       │ stop (before a fork): asks, joins, waits until the kernel has forgotten it
//!                       └──────────────────────────▶ None
//!
//!   asleep ──time passes, or look_again──▶ pass
//!          ──grow───────────────────────▶ makes arenas ahead
//! ```
//!
//! It sleeps for as long as its last pass said. What makes that wrong has to say so with `look_again`: other settings, and a fall of
//! demand while recurring memory is kept. Otherwise, with a decay time of an hour that was lowered to a second, memory stayed for an hour.
//!
//! It runs on a small stack with all signals blocked: a program's handlers run on its own threads only.

use super::{Linux, Runtime};
use crate::arena::Wait;
use crate::lock::Lock;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Stack of the thread in bytes. A pass uses below 16 KiB; the rest is room for the C library.
const STACK: usize = 128 << 10;

/// Longest sleep, in nanoseconds: an hour, so that arithmetic with time stays in range.
const LONGEST_SLEEP: u64 = 3600 * 1_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    None,
    Running,
    Ended,
}

struct Handle {
    phase: Phase,
    thread: MaybeUninit<libc::pthread_t>,
}

/// The thread is asked to end.
const STOP: u32 = 1;

/// The thread is asked to make a pass now.
const LOOK: u32 = 2;

/// The thread is asked to make arenas ahead.
const GROW: u32 = 4;

/// See the module's text.
pub(super) struct MaintenanceThread {
    handle: Lock<Handle>,
    /// What the thread is asked: `STOP`, `LOOK` and `GROW`. A futex word.
    asked: AtomicU32,
    /// Until when it sleeps, in nanoseconds of the system's clock; 0: it does not. Written under the heap's lock, or by who wakes it.
    wakes_at: AtomicU64,
    /// The kernel's number of the thread, written by itself when it begins.
    number: AtomicI32,
}

impl MaintenanceThread {
    pub(super) const fn new() -> Self {
        Self {
            handle: Lock::new(Handle { phase: Phase::None, thread: MaybeUninit::uninit() }),
            asked: AtomicU32::new(0),
            wakes_at: AtomicU64::new(0),
            number: AtomicI32::new(0),
        }
    }

    /// Starts the thread unless it runs. False when the system refuses one.
    pub(super) fn ensure(&self, runtime: &'static Runtime) -> bool {
        let mut handle = self.handle.lock();
        match handle.phase {
            Phase::Running => return true,
            Phase::Ended => join(&mut handle),
            Phase::None => {}
        }
        self.asked.store(0, Ordering::Relaxed);
        if spawn(&mut handle, runtime) {
            handle.phase = Phase::Running;
            true
        } else {
            handle.phase = Phase::None;
            false
        }
    }

    /// Ends the thread and waits until it is gone, also from the kernel's count of threads. Keeps the handle locked, so that no new one
    /// starts, until [`resume`](Self::resume).
    pub(super) fn stop_and_hold(&self) {
        let mut handle = self.handle.lock();
        if handle.phase != Phase::None {
            self.ask(STOP);
            join(&mut handle);
            wait_until_gone(self.number.load(Ordering::Acquire));
            handle.phase = Phase::None;
        }
        core::mem::forget(handle);
    }

    /// Allows threads again, in the parent or in the child.
    ///
    /// # Safety
    /// `stop_and_hold` was called by this thread, or by the one that forked this process.
    pub(super) unsafe fn resume(&self) {
        // SAFETY: the guard was leaked there.
        unsafe { self.handle.unlock_leaked() };
    }

    /// Sees to it that a pass is made now, if the thread runs. Without it there is nothing to wake: one that starts begins with a pass.
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

    fn is_stopped(&self) -> bool {
        self.asked.load(Ordering::Acquire) & STOP != 0
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
        loop {
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
                    let until = runtime.heap.lock().now().saturating_add(time);
                    if !self.sleep_until(until, runtime) {
                        return;
                    }
                }
                Wait::Idle => {
                    // The handle's lock is what `ensure` takes: an event either sees the thread running and its own
                    // work is seen here, or finds it ended and starts another.
                    if self.is_stopped() {
                        return;
                    }
                    // Whoever stops the thread holds that lock while it waits, so it must not be waited for here.
                    let Some(mut handle) = self.handle.try_lock() else { continue };
                    if !runtime.heap.lock().maintenance_due() {
                        handle.phase = Phase::Ended;
                        return;
                    }
                }
            }
        }
    }

    /// Sleeps until a pass is due or asked for, and makes arenas ahead meanwhile. False: the thread has to end.
    fn sleep_until(&self, until: u64, runtime: &Runtime) -> bool {
        let os = Linux::new();
        loop {
            let left = until.saturating_sub(hugeheap_os::Facts::now(&os).as_nanos() as u64);
            let asked = self.sleep(left);
            if asked & STOP != 0 {
                return false;
            }
            if asked & GROW != 0 {
                make_ahead(self, runtime);
            }
            if asked & GROW == 0 || asked & LOOK != 0 || left == 0 {
                return true;
            }
        }
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
    let mut heap = runtime.heap.lock();
    heap.host = host;
    let plan = heap.plan();
    let (mut heap, wait) = runtime.perform(heap, plan);
    let wakes_at = match wait {
        Wait::For(0) | Wait::Idle => 0,
        Wait::For(time) => heap.now().saturating_add(time),
    };
    runtime.thread.wakes_at.store(wakes_at, Ordering::Relaxed);
    // Counting the states of all arenas walks over them with the lock held: when it rests, not between passes that follow at once.
    runtime.publish(&mut heap, wait != Wait::For(0));
    wait
}

extern "C" fn entry(argument: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: the argument is the `&'static Runtime` that `spawn` passed.
    let runtime: &'static Runtime = unsafe { &*argument.cast::<Runtime>() };
    // SAFETY: gettid has no preconditions.
    runtime.thread.number.store(unsafe { libc::gettid() }, Ordering::Release);
    // A panic must not unwind into the C library. There is nothing to save: the process goes on without maintenance.
    let _ = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| runtime.thread.run(runtime)));
    core::ptr::null_mut()
}

fn spawn(handle: &mut Handle, runtime: &'static Runtime) -> bool {
    // SAFETY: plain C library calls on objects of this frame; the thread gets a reference that lives forever.
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
        let result = libc::pthread_create(handle.thread.as_mut_ptr(), attributes.as_ptr(), entry, argument);
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        result == 0
    }
}

fn join(handle: &mut Handle) {
    // SAFETY: called only in the phases Running and Ended, in which `thread` was written by pthread_create and not joined yet.
    unsafe {
        libc::pthread_join(handle.thread.assume_init(), core::ptr::null_mut());
    }
}

fn wake(word: &AtomicU32) {
    // SAFETY: the futex word lives in a static.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    }
}

/// `pthread_join` returns when the thread has left its stack, a moment before the kernel takes it off the count of threads that
/// CPython looks at after a fork. Waits for that, about a millisecond at most.
fn wait_until_gone(number: i32) {
    for _ in 0..100 {
        // SAFETY: signal 0 only asks whether the thread exists.
        if unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), number, 0) } != 0 {
            return;
        }
        let time = libc::timespec { tv_sec: 0, tv_nsec: 10_000 };
        // SAFETY: the kernel reads the time before it returns.
        unsafe { libc::nanosleep(&raw const time, core::ptr::null_mut()) };
    }
}
