//! A process of which the kernel says that there is none (`ESRCH`), or that has no memory: it has ended, or its
//! main thread alone has.
//!
//! A process whose main thread has ended (`pthread_exit` in `main`) lives on with its memory. But the kernel
//! finds the memory of a process by its main thread: what is opened below /proc/PID is empty, and
//! `process_madvise` answers `ESRCH`, with a descriptor of another thread as well (Linux 6.18). What the other
//! threads show below /proc/PID/task could be looked at; changed it cannot be.

use super::budget::Budget;
use super::{Process, Stop};
use crate::{Error, Result};
use core::time::Duration;

/// How long to wait at most until the kernel has made up its mind, and between looks: a main thread that ends
/// has no memory a moment before its state says that it has ended.
const UNDECIDED: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(1);
/// How long others have to live on: of a process that is killed the main thread may be the first to end.
const SETTLED: Duration = Duration::from_millis(100);

/// Which of the two it is: [`Stop::Gone`] or [`Stop::MainThreadEnded`].
pub fn gone(process: &impl Process) -> Stop {
    let mut undecided = Budget::new(process.now(), UNDECIDED);
    loop {
        let passed = undecided.passed(process.now());
        match process.status() {
            Ok(status) if status.ended || status.has_memory => return Stop::Gone,
            Ok(status) if status.main_thread_ended && passed >= SETTLED => return Stop::MainThreadEnded,
            Ok(_) if passed < UNDECIDED => process.wait(LOOK),
            _ => return Stop::Gone,
        }
    }
}

/// After a look at a process, which may have found nothing because there was no memory any more.
///
/// # Errors
/// `ESRCH` for that.
pub(super) fn must_have_memory(process: &impl Process) -> Result<()> {
    if process.status()?.has_memory { Ok(()) } else { Err(Error::new("read(/proc/PID/status)", libc::ESRCH)) }
}
