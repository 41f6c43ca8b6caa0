//! Ending an experiment on request: what was made (files, cgroups) is removed first, and what was measured is told.
//!
//! ```text
//!   signal ──▶ handler: noted, passed to the measured process ──▶ that ends
//!                                                                  │
//!   trials, series: leave_off() ─▶ complete rounds until then ◀────┘
//!   report:         left_off()  ─▶ marked as interrupted; status 128 + signal
//! ```
//!
//! The measured process has a terminal's signal too; one sent to this process alone is passed on.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// The process that is measured; 0: none.
static MEASURED: AtomicI32 = AtomicI32::new(0);
/// The signal that ends it; 0: the one that came.
static ENDED_BY: AtomicI32 = AtomicI32::new(0);
/// Whether less was measured than planned because of the signal.
static LEFT_OFF: AtomicBool = AtomicBool::new(false);

extern "C" fn note(signal: libc::c_int) {
    SIGNAL.store(signal, Ordering::SeqCst);
    pass(signal);
}

/// Ends the measured process.
fn pass(signal: libc::c_int) {
    let measured = MEASURED.load(Ordering::SeqCst);
    if measured > 0 {
        let by = ENDED_BY.load(Ordering::SeqCst);
        // SAFETY: kill may be called in a handler; what was interrupted finds its error number unchanged.
        unsafe {
            let error = *libc::__errno_location();
            libc::kill(measured, if by > 0 { by } else { signal });
            *libc::__errno_location() = error;
        }
    }
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
    match SIGNAL.load(Ordering::SeqCst) {
        0 => None,
        signal => Some(signal),
    }
}

/// Whether a measurement is to leave off here, with something left to measure.
pub(crate) fn leave_off() -> bool {
    let is_asked = noted().is_some();
    LEFT_OFF.fetch_or(is_asked, Ordering::Relaxed);
    is_asked
}

/// The signal because of which less was measured than planned.
pub(crate) fn left_off() -> Option<i32> {
    noted().filter(|_| LEFT_OFF.load(Ordering::Relaxed))
}

/// Lets what `command` starts end by `SIGKILL` with this process: that cannot be passed on, and what is
/// measured may run for hours. What it starts in its turn does not end with it.
pub(crate) fn end_with_this(command: &mut Command) {
    let own = std::process::id() as libc::pid_t;
    // SAFETY: the closure runs between fork and exec and makes system calls on numbers alone.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            if libc::getppid() != own {
                libc::raise(libc::SIGKILL);
            }
            Ok(())
        });
    }
}

/// A process that a signal ends, too, as long as this lives. To be dropped before it is waited for: then its
/// number may be another's.
#[derive(Debug)]
pub(crate) struct Measured(());

impl Measured {
    /// A program: it gets the signal, and may remove what it made.
    pub(crate) fn program(pid: libc::pid_t) -> Self {
        Self::new(pid, 0)
    }

    /// A copy of this process: it has nothing to remove, and may not have got rid of this process's handler yet.
    pub(crate) fn copy(pid: libc::pid_t) -> Self {
        Self::new(pid, libc::SIGKILL)
    }

    fn new(pid: libc::pid_t, by: libc::c_int) -> Self {
        ENDED_BY.store(by, Ordering::SeqCst);
        MEASURED.store(pid, Ordering::SeqCst);
        // One that came before there was a process to end.
        noted().into_iter().for_each(pass);
        Self(())
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        MEASURED.store(0, Ordering::SeqCst);
    }
}
