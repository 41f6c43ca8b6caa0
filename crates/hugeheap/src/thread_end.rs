//! What is to be called when a thread ends.
//!
//! ```text
//!   ask(value) ──▶ the thread's value of a key ──▶ the thread ends ──▶ destructor: called with the value, which is null from then on
//!                       └─ asked again, by another destructor ──▶ called again, up to four times in all
//! ```
//!
//! A key of the C library's and not a `thread_local!` with a destructor: that allocates a list in some threads,
//! and is called in an order of its own. Keys are a process's, 1024 of them, and may be used up. The values of
//! the first 32 lie with the thread; for others the C library asks `malloc` for memory, which may be us.

use core::sync::atomic::{AtomicU32, Ordering};

/// Something to be called at the end of threads. A static: its key is never given up.
pub(crate) struct AtThreadEnd {
    /// The key + 1; 0: not made yet, `u32::MAX`: none to be had.
    key: AtomicU32,
    call: unsafe extern "C" fn(*mut libc::c_void),
}

impl AtThreadEnd {
    /// `call` is a function of this library, which is never unloaded once it is in use.
    pub(crate) const fn new(call: unsafe extern "C" fn(*mut libc::c_void)) -> Self {
        Self { key: AtomicU32::new(0), call }
    }

    /// Sees to it that it is called with `value`, not null, when the calling thread ends. False where there is
    /// no key, or no memory for its value.
    pub(crate) fn ask(&self, value: *const libc::c_void) -> bool {
        let key = self.key();
        // SAFETY: the key exists.
        key != u32::MAX && unsafe { libc::pthread_setspecific(key - 1, value) } == 0
    }

    /// Whether it is going to be called for the calling thread. Allocates nothing.
    pub(crate) fn is_asked(&self) -> bool {
        let key = self.key.load(Ordering::Acquire);
        // SAFETY: the key exists.
        !matches!(key, 0 | u32::MAX) && !unsafe { libc::pthread_getspecific(key - 1) }.is_null()
    }

    fn key(&self) -> u32 {
        let key = self.key.load(Ordering::Acquire);
        if key != 0 {
            return key;
        }
        let mut made: libc::pthread_key_t = 0;
        // SAFETY: the destructor lives as long as the process.
        let answer = unsafe { libc::pthread_key_create(&raw mut made, Some(self.call)) };
        let wanted = if answer == 0 { made + 1 } else { u32::MAX };
        match self.key.compare_exchange(0, wanted, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => wanted,
            Err(theirs) => {
                if answer == 0 {
                    // SAFETY: just made and used by nobody.
                    unsafe { libc::pthread_key_delete(made) };
                }
                theirs
            }
        }
    }
}
