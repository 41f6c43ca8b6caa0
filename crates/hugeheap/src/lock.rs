//! A lock that fork handlers can hold.
//!
//! A pthread mutex and not std's: `pthread_atfork` handlers take it in one function and release it in two
//! others, in parent and child, which std's guard cannot express. Statically initialised, never destroyed.
//!
//! ```text
//!   fork ─▶ our handler keeps the locks ─▶ the program's own handlers: may allocate ─▶ fork ─▶ the same ─▶ our handlers release them
//!                                             └─ in this thread the locks are passed
//! ```
//!
//! A program may have fork handlers of its own, and those that were registered before ours run while the locks
//! are kept. The thread that forks *passes* what it keeps itself: nobody else is within, and what the lock is
//! for is at rest. Before, a handler that needed a heap page waited for its own thread.
//!
//! A mutex is given to whoever comes when it is free, and who was woken for it comes late. Threads that take a
//! lock again and again, as those of hardened heaps do for each page run, kept a fork from it: woken five times
//! for one lock, and as many times it was taken already (`strace` of the thread that forks, among six that
//! allocate). So who is to fork comes *first*: the others do not ask for the lock as long as that one waits.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;

/// Tries before a thread sleeps, about 5 µs of them. What is done under these locks mostly takes below one, and
/// to be woken takes 50: two threads that take and free runs of heap pages slept 1,600 times in a second
/// (`rptest`, voluntary context switches), and do so 60 times with this.
const SPINS: u32 = 100;

/// How long a thread lets another one come first, in steps of [`NAP`]: a second. What is done under a lock
/// takes less; the others go on if it ever does not.
const NAPS: u32 = 10_000;

/// A step of that. About what it takes to be woken.
const NAP: Duration = Duration::from_micros(100);

/// A value behind a mutex.
pub struct Lock<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    /// The thread that keeps it over a fork, as the C library names it, in the child as well; 0: none.
    keeper: AtomicUsize,
    /// Somebody comes first, and waits.
    preferred: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through the mutex, so sharing the lock shares the value one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The value while it is locked.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Its thread keeps the lock over a fork, and goes on doing so.
    passes: bool,
}

impl<T> Lock<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Self {
        Self {
            mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            keeper: AtomicUsize::new(0),
            preferred: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        if self.preferred.load(Ordering::Relaxed) {
            self.let_by();
        }
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    /// Waits for the lock as one for whom the others wait. By one thread at a time.
    pub fn lock_first(&self) -> Guard<'_, T> {
        self.preferred.store(true, Ordering::Relaxed);
        let guard = self.try_lock().unwrap_or_else(|| self.wait());
        self.preferred.store(false, Ordering::Relaxed);
        guard
    }

    /// Waits until the one that comes first has the lock.
    #[cold]
    #[inline(never)]
    fn let_by(&self) {
        if self.is_kept_here() {
            return;
        }
        // A free leaves the error number as it was.
        // SAFETY: the location is this thread's, for its life.
        let errno = unsafe { *libc::__errno_location() };
        for _ in 0..NAPS {
            if !self.preferred.load(Ordering::Relaxed) {
                break;
            }
            std::thread::sleep(NAP);
        }
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }

    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        if self.is_kept_here() {
            return Guard { lock: self, passes: true };
        }
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
        // SAFETY: the mutex is initialised and never moves while it is used: it lives in a static or behind `&self`.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        Guard { lock: self, passes: false }
    }

    /// Whether this thread keeps the lock over a fork.
    pub fn is_kept_here(&self) -> bool {
        self.keeper.load(Ordering::Relaxed) == this_thread()
    }

    /// The lock if nobody holds it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        // SAFETY: as in `wait`.
        let taken = unsafe { libc::pthread_mutex_trylock(self.mutex.get()) } == 0;
        // A guard only where the lock was taken: one that was made and dropped without released what another
        // thread held.
        if taken { Some(Guard { lock: self, passes: false }) } else { None }
    }

    /// Releases the lock that a leaked guard of this thread, or of the thread that forked this process, holds.
    ///
    /// # Safety
    /// Such a guard exists, and nobody uses the value through it afterwards.
    pub unsafe fn unlock_leaked(&self) {
        self.keeper.store(0, Ordering::Relaxed);
        // In a forked child whoever came first may not exist: another thread that was about to fork. In the
        // parent that one waits like others.
        self.preferred.store(false, Ordering::Relaxed);
        // SAFETY: the caller says that this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
    }

    /// The value, while a leaked guard holds the lock.
    ///
    /// # Safety
    /// This thread, or the one that forked this process, holds the lock by a leaked guard; no other reference exists.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn leaked_mut(&self) -> &mut T {
        // SAFETY: exclusive by the caller's promise.
        unsafe { &mut *self.value.get() }
    }
}

impl<T> Guard<'_, T> {
    /// Keeps the lock over a fork, until [`unlock_leaked`](Lock::unlock_leaked): this thread passes it meanwhile.
    pub fn keep_over_fork(self) {
        self.lock.keeper.store(this_thread(), Ordering::Relaxed);
        core::mem::forget(self);
    }
}

fn this_thread() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() as usize }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard's existence means that this thread holds the mutex.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` makes this the only reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if !self.passes {
            // SAFETY: this thread holds the mutex.
            unsafe { libc::pthread_mutex_unlock(self.lock.mutex.get()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fork waited for seconds, among threads that took the lock again as soon as they had released it.
    #[test]
    fn who_comes_first_waits_for_those_that_are_within_and_no_other() {
        use core::sync::atomic::AtomicU64;
        const THREADS: u64 = 3;
        static TAKEN: Lock<u64> = Lock::new(0);
        static ROUNDS: AtomicU64 = AtomicU64::new(0);
        static END: AtomicBool = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while !END.load(Ordering::Relaxed) {
                        let mut taken = TAKEN.lock();
                        *taken += 1;
                        ROUNDS.fetch_add(1, Ordering::Relaxed);
                        // Longer than it takes to be woken and to find the lock taken again.
                        let begin = std::time::Instant::now();
                        while begin.elapsed() < Duration::from_micros(300) {
                            core::hint::spin_loop();
                        }
                    }
                });
            }
            let mut most = 0;
            for _ in 0..20 {
                while ROUNDS.swap(0, Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                // From here on they are told, however long it takes to come to the lock.
                TAKEN.preferred.store(true, Ordering::SeqCst);
                let before = ROUNDS.load(Ordering::SeqCst);
                let guard = TAKEN.lock_first();
                most = most.max(ROUNDS.load(Ordering::Relaxed) - before);
                drop(guard);
            }
            END.store(true, Ordering::Relaxed);
            // Each may have been about to take it.
            assert!(most <= THREADS, "{most} times the lock was others'");
        });
    }

    /// In a child of a program in which two threads fork at once each request waited a second for the other
    /// one, which it does not have.
    #[test]
    fn nobody_waits_in_a_child_for_one_that_came_first_in_the_parent() {
        let lock = Lock::new(0);
        lock.lock().keep_over_fork();
        lock.preferred.store(true, Ordering::Relaxed);
        // SAFETY: kept by this thread.
        unsafe { lock.unlock_leaked() };
        assert!(!lock.preferred.load(Ordering::Relaxed));
    }

    #[test]
    fn one_thread_at_a_time() {
        static COUNT: Lock<u64> = Lock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *COUNT.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*COUNT.lock(), 40_000);
    }

    #[test]
    fn a_refused_lock_stays_with_its_holder() {
        let lock = Lock::new(1);
        let held = lock.lock();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let refused = scope.spawn(|| lock.try_lock().is_none());
                assert!(refused.join().expect("it does not panic"));
            }
        });
        drop(held);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn who_keeps_a_lock_over_a_fork_passes_it_and_nobody_else() {
        let lock = Lock::new(1);
        lock.lock().keep_over_fork();
        *lock.lock() = 2;
        assert_eq!(*lock.lock(), 2, "it is kept on");
        assert!(lock.try_lock().is_none());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *lock.lock());
            std::thread::sleep(core::time::Duration::from_millis(50));
            assert!(!other.is_finished());
            // SAFETY: kept by this thread.
            unsafe { lock.unlock_leaked() };
            assert_eq!(other.join().expect("it does not panic"), 2);
        });
        assert!(!lock.is_kept_here() && lock.try_lock().is_some());
    }

    #[test]
    fn a_leaked_guard_is_released_by_hand() {
        let lock = Lock::new(1);
        core::mem::forget(lock.lock());
        // SAFETY: the guard above was leaked by this thread.
        unsafe {
            *lock.leaked_mut() = 2;
            lock.unlock_leaked();
        }
        assert_eq!(*lock.lock(), 2);
    }
}
