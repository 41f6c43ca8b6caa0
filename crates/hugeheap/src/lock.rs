//! A lock that fork handlers can hold.
//!
//! A pthread mutex and not std's: `pthread_atfork` handlers take it in one function and release it in two others, in parent and
//! child, which std's guard cannot express. Statically initialised, never destroyed.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

/// Tries before a thread sleeps, about 5 µs of them. What is done under these locks mostly takes below one, and to be woken takes 50: two threads that take and free
/// runs of heap pages slept 1,600 times in a second (`rptest`, voluntary context switches), and do so 60 times with this.
const SPINS: u32 = 100;

/// A value behind a mutex.
pub struct Lock<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through the mutex, so sharing the lock shares the value one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The value while it is locked.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Self {
        Self { mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
        // SAFETY: the mutex is initialised and never moves while it is used: it lives in a static or behind `&self`.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        Guard { lock: self }
    }

    /// The lock if nobody holds it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        // SAFETY: as in `wait`.
        let taken = unsafe { libc::pthread_mutex_trylock(self.mutex.get()) } == 0;
        // A guard only where the lock was taken: one that was made and dropped without released what another thread held.
        if taken { Some(Guard { lock: self }) } else { None }
    }

    /// Releases the lock that a leaked guard of this thread, or of the thread that forked this process, holds.
    ///
    /// # Safety
    /// Such a guard exists, and nobody uses the value through it afterwards.
    pub unsafe fn unlock_leaked(&self) {
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
        // SAFETY: this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(self.lock.mutex.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
