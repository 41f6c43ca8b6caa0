//! How maintenance goes on in the parent of a fork.
//!
//! CPython 3.12 and later count the process's threads when `os.fork` is about to return, and warn when there is
//! more than one. So the fork's handler starts none. It asks for a *pending call*, which the main thread makes
//! when it is back in the interpreter's loop:
//!
//! ```text
//!   os.fork ─▶ handlers before ─▶ fork ─▶ handler in the parent ─▶ threads are counted ─▶ interpreter's loop ─▶ resume
//!                                              └─ Py_AddPendingCall ─────────────────────────────────────────────┘
//! ```

use crate::symbols::{AddPendingCall, IsInitialized, Symbols};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use hugeheap::runtime::runtime;
use std::sync::OnceLock;

/// The interpreter's functions that a fork needs. Set before the first fork that can ask for them.
static FUNCTIONS: OnceLock<(IsInitialized, AddPendingCall)> = OnceLock::new();

/// From now on the parent's maintenance goes on after the interpreter has counted its threads.
pub(crate) fn install(symbols: &Symbols) {
    if let (Some(initialized), Some(add)) = (symbols.is_initialized, symbols.add_pending_call) {
        let _ = FUNCTIONS.set((initialized, add));
        runtime().ask_after_forks(ask);
    }
}

fn ask() {
    let Some((initialized, add)) = FUNCTIONS.get() else { return };
    // SAFETY: the first has no preconditions; the second, on an interpreter that is initialised, may be called
    // by any thread, with the GIL or without.
    unsafe {
        if initialized() == 0 {
            // Nobody counts threads, and nobody would make the call.
            runtime().resume_maintenance();
        } else {
            // When 32 calls are pending already, maintenance goes on at the next event.
            let _ = add(resume, null_mut());
        }
    }
}

unsafe extern "C" fn resume(_argument: *mut c_void) -> c_int {
    runtime().resume_maintenance();
    0
}
