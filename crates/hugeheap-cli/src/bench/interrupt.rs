//! Ending an experiment on request: what was made (files, cgroups) is removed first.
//!
//! The handler only notes the signal. The measured process has the terminal's signal too and ends; then the
//! experiment looks here and stops.

use std::sync::atomic::{AtomicI32, Ordering};

static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    SIGNAL.store(signal, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP are noted instead of ending the process.
pub fn watch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all zero is a valid value of this plain struct, which is then filled.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // Not restarted: a wait for a measured process shall not outlast the request.
        action.sa_flags = 0;
        // SAFETY: the handler only stores to an atomic number.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
}

/// The signal that was noted.
pub fn noted() -> Option<i32> {
    match SIGNAL.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(signal),
    }
}
