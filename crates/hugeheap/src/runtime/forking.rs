//! What happens around `fork`.
//!
//! ```text
//!   before: the thread may be a leader ─▶ lock forks ─▶ end the maintenance thread ─▶ lock heap while nobody gives back, and blocks ─▶ copy hugetlb arenas
//!   parent: drop the copies ─▶ unlock            child: copies into place ─▶ own record ─▶ unlock
//!           ─▶ maintenance goes on, now or soon
//! ```
//!
//! The parent may never allocate again, so what it keeps and what was to be done must not wait for its next
//! event: until then a server that had built its tables and forked its workers within the decay time was
//! charged for all that the building had needed. Who cannot have a thread right after the fork says so with
//! [`Runtime::ask_after_forks`], and continues it.
//!
//! In the child maintenance begins with its first event: threads cannot be started here, and what it has not
//! changed it shares. Its [leader](super::leader) is the thread that forked, which is noted before.
//!
//! The order of the locks, on all paths:
//!
//! ```text
//!   forks ─▶ (thread: phase Held) ─▶ visits ─▶ heap ─▶ new heaps (`making`) ─▶ new regions (`adding`) ─▶ publisher ─▶ copies
//! ```
//!
//! There are two spaces with locks for heaps and regions, that of blocks and that of the garbage collector.
//! Nobody has locks of both but a fork, which takes them in that order. (A child found the collector's lock for
//! regions held, and hung at the first page that its heap had no metadata for.)
//!
//! Whoever holds one takes only those to its right. The thread's phase is no lock, and only a fork waits for
//! it, with nothing but its own lock in hand; so a thread may be started wherever no lock but that of visits is
//! held, and an event of the arenas, which starts it, happens under no other. Before, a thread that added a
//! region held `adding` and had such an event, which took the lock of the thread's handle; a fork held that and
//! waited for `adding`.
//!
//! A program's own handlers may allocate while all this is held: those that were registered before ours run
//! after `before`, and before the other two. The thread that forks [passes](crate::lock) what it holds itself.
//! It publishes nothing meanwhile: in the child the record is its parent's.
//!
//! The child's handler makes system calls only, and allocates nothing. Each lock that it takes or finds held
//! was taken by `before`, in the thread that is the child's only one: a lock that another thread may have held
//! at the moment of the fork would be held there for good.

use super::{Runtime, runtime};
use crate::arena::ForkCopies;
use crate::gc;
use crate::lock::Lock;
use crate::object;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// What [`Runtime::ask_after_forks`] was given; null: nothing.
static ASK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Held over a fork: there is one at a time.
static FORKING: Lock<()> = Lock::new(());

/// Copies between the handlers. Its own lock is leaked over the fork like the heap's.
static COPIES: Lock<ForkCopies> = Lock::new(ForkCopies::NONE);

/// Whether the handlers are registered: nobody did ([`NOBODY`](Self::NOBODY)), a thread of a process is at it
/// (their numbers), or they are ([`DONE`](Self::DONE)).
struct Registration(AtomicU64);

static REGISTRATION: Registration = Registration(AtomicU64::new(Registration::NOBODY));

impl Registration {
    const NOBODY: u64 = 0;
    const DONE: u64 = u64::MAX;

    /// Calls `register` unless that was done; when it returns it is, whoever did it. Two see it otherwise: a
    /// request of the C library from within `register`, which cannot wait for itself; and a child that was
    /// forked within it, by another thread, which has no handlers and registers its own.
    fn ensure(&self, register: impl FnOnce()) {
        let (process, thread) = numbers();
        let me = u64::from(process) << 32 | u64::from(thread);
        loop {
            let state = self.0.load(Ordering::Acquire);
            if state == Self::DONE || state == me {
                return;
            }
            if state != Self::NOBODY && (state >> 32) as u32 == process {
                super::thread::nap(100_000);
            } else if self.0.compare_exchange(state, me, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                register();
                return self.is_done();
            }
        }
    }

    fn is_done(&self) {
        self.0.store(Self::DONE, Ordering::Release);
    }
}

/// The kernel's numbers of this process and thread.
pub(super) fn numbers() -> (u32, u32) {
    // SAFETY: these calls have no preconditions.
    unsafe { (libc::getpid() as u32, libc::gettid() as u32) }
}

/// Registers the handlers, or waits until they are: who begins to use the heap while another thread was only
/// about to register them would fork without, when that thread holds the heap's lock perhaps.
pub(super) fn register() {
    REGISTRATION.ensure(|| {
        // SAFETY: the handlers are functions of this library, which is never unloaded once it is in use.
        unsafe {
            libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
        }
    });
}

extern "C" fn before() {
    let runtime = runtime();
    // Before any lock: it may allocate. Without memory for that the child's leader is untold.
    super::guest::call(|| runtime.thread.leader.note_forks());
    // First of the locks, since phases are changed by one fork at a time.
    core::mem::forget(FORKING.lock());
    runtime.thread.stop_and_hold();
    object::space().hold_visits();
    let mut heap = runtime.lock_at_rest();
    object::space().lock_for_fork();
    gc::space_at_hand().lock_for_fork();
    runtime.publisher.lock_for_fork();
    let mut copies = COPIES.lock();
    *copies = heap.before_fork();
    core::mem::forget(copies);
    heap.keep_over_fork();
}

/// Ends the maintenance thread of a process whose leader ends, in the leader; that no other is started is the
/// caller's. Not while another thread forks.
pub(super) fn end_maintenance_thread() {
    let _forks = FORKING.lock();
    runtime().thread.stop_and_hold();
    runtime().thread.resume();
}

/// Says in a child that it is in danger: the fork itself cannot be refused.
fn warn() {
    const LINE: &[u8] = b"hugeheap: no memory to copy pages of the hugetlb pool in a forked child: \
        it may die of SIGBUS when the pool is empty; use policy thp for programs that fork\n";
    // SAFETY: the line is valid for its length; a failed write to stderr cannot be reported anywhere.
    unsafe { libc::write(2, LINE.as_ptr().cast(), LINE.len()) };
}

extern "C" fn in_parent() {
    let runtime = runtime();
    // SAFETY: `before` leaked the guards in this thread.
    unsafe {
        let copies = core::mem::take(COPIES.leaked_mut());
        runtime.heap.leaked_mut().after_fork_in_parent(copies);
        COPIES.unlock_leaked();
        runtime.publisher.unlock_after_fork();
        gc::space_at_hand().unlock_after_fork();
        object::space().unlock_after_fork();
        runtime.heap.unlock_leaked();
        object::space().release_visits();
        runtime.thread.resume();
        FORKING.unlock_leaked();
    }
    runtime.go_on_after_fork();
}

impl Runtime {
    /// From now on `ask` is called in the parent of each fork after which maintenance has something to do, and
    /// sees to it that [`resume_maintenance`](Self::resume_maintenance) is called soon. Without it a thread is
    /// started at once.
    pub fn ask_after_forks(&self, ask: fn()) {
        ASK.store(ask as *mut (), Ordering::Release);
    }

    /// Goes on with the maintenance that a fork interrupted, if there is something to do.
    pub fn resume_maintenance(&'static self) {
        let heap = self.heap.lock();
        if heap.maintenance_due() {
            self.after_event(heap);
        }
    }

    /// In the parent, which has all its threads and locks as before: unlike in the child, anything may be called.
    fn go_on_after_fork(&'static self) {
        let ask = ASK.load(Ordering::Acquire);
        if ask.is_null() {
            return self.resume_maintenance();
        }
        if !self.heap.lock().maintenance_due() {
            return;
        }
        // SAFETY: it was such a function when it was stored.
        let ask: fn() = unsafe { core::mem::transmute(ask) };
        ask();
    }
}

extern "C" fn in_child() {
    let runtime = runtime();
    // Also when the thread that registered this had not noted it yet.
    REGISTRATION.is_done();
    // SAFETY: `before` leaked the guards in the thread that is this process's only one.
    unsafe {
        let copies = core::mem::take(COPIES.leaked_mut());
        if runtime.heap.leaked_mut().after_fork_in_child(copies) > 0 {
            warn();
        }
        // Whoever was giving back for longer than the fork waited is not in this process.
        runtime.performing.store(0, Ordering::Relaxed);
        runtime.publisher.unlock_after_fork();
        runtime.publisher.reopen_in_child();
        // At once: a child that ends by `_exit` before its first event should be seen all the same. No system
        // call that allocates.
        runtime.publisher.publish(runtime.heap.leaked_mut(), 0, true);
        COPIES.unlock_leaked();
        gc::space_at_hand().unlock_after_fork();
        object::space().unlock_after_fork();
        runtime.heap.unlock_leaked();
        object::space().release_visits();
        object::space().after_fork_in_child(&[object::thread_number()]);
        runtime.thread.resume_in_child();
        runtime.thread.leader.begin_in_child();
        FORKING.unlock_leaked();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Settings;
    use core::time::Duration;
    use std::sync::{Mutex, PoisonError, mpsc};
    use std::time::Instant;

    /// Longer than any host needs.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// How long the lock that a test is about is held after the fork began. A fork that does not wait for it is
    /// over by then.
    const HELD: Duration = Duration::from_millis(300);

    /// One at a time: a fork that waits for what another test holds does not come while its own is held.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Forks while another thread is within `hold`, and says whether the child came to its end with `work`. A
    /// child that hangs is killed.
    fn forked_within(hold: impl FnOnce(&dyn Fn()) + Send, work: impl FnOnce()) -> bool {
        // Another test's failure is its own.
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        runtime().start(Settings::DEFAULT);
        let (inside, is_inside) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                hold(&|| {
                    inside.send(()).expect("somebody waits");
                    std::thread::sleep(HELD);
                });
            });
            is_inside.recv().expect("it says so");
            // SAFETY: the child calls `work`, which takes locks of the runtime, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                work();
                // SAFETY: ends the process.
                unsafe { libc::_exit(0) };
            }
            assert!(child > 0, "fork failed");
            ends(child)
        })
    }

    fn ends(child: libc::pid_t) -> bool {
        let began = Instant::now();
        let mut status = -1;
        // SAFETY: waits for a child of this process.
        while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
            if began.elapsed() > PATIENCE {
                // SAFETY: it was not waited for, so the number is still the child's.
                unsafe {
                    libc::kill(child, libc::SIGKILL);
                    libc::waitpid(child, &raw mut status, 0);
                }
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        status == 0
    }

    #[test]
    fn whoever_starts_meanwhile_waits_until_the_handlers_are_registered() {
        let registration = Registration(AtomicU64::new(Registration::NOBODY));
        let (registered, inside) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                registration.ensure(|| {
                    inside.store(1, Ordering::SeqCst);
                    // As when the C library allocates for it.
                    registration.ensure(|| panic!("nested"));
                    std::thread::sleep(HELD);
                    registered.store(1, Ordering::SeqCst);
                });
            });
            while inside.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            registration.ensure(|| panic!("twice"));
            assert_eq!(registered.load(Ordering::SeqCst), 1, "it did not wait");
        });
    }

    #[test]
    fn a_child_forked_while_the_handlers_were_registered_registers_its_own() {
        let (process, thread) = numbers();
        let registration = Registration(AtomicU64::new(u64::from(process + 1) << 32 | u64::from(thread)));
        let mut own = 0;
        registration.ensure(|| own += 1);
        registration.ensure(|| own += 1);
        assert_eq!(own, 1);
    }

    /// As while the record is opened, on a slow file system.
    #[test]
    fn a_fork_waits_for_who_opens_the_record() {
        let hold = |wait: &dyn Fn()| {
            runtime().publisher.lock_for_fork();
            wait();
            // SAFETY: locked above, by this thread.
            unsafe { runtime().publisher.unlock_after_fork() };
        };
        // The handler in the child publishes.
        assert!(forked_within(hold, || ()));
    }

    /// As while a region is added.
    #[test]
    fn a_fork_waits_for_who_adds_a_region() {
        for space in [object::space(), gc::space()] {
            let hold = |wait: &dyn Fn()| {
                space.lock_for_fork();
                wait();
                // SAFETY: locked above, by this thread.
                unsafe { space.unlock_after_fork() };
            };
            assert!(forked_within(hold, || space.lock_for_fork()));
        }
    }
}
