//! A thread with a table of descriptors of its own.
//!
//! ```text
//!   before                        after `separate_descriptors`
//!   program's threads ─┐          program's threads ──▶ 0 1 2 3 … as they were
//!   library's thread  ─┴▶ table   library's thread  ──▶ (empty)
//! ```
//!
//! A number belongs to the process. A program that closes all numbers above 2 after a fork, as servers and test
//! programs do, also closes the one that a library's thread has open just then, and its next socket gets the
//! number. The library's `read` waited on that socket for a message meant for the program, and its `close`
//! would have closed it. Threads of a library that the program does not know of therefore take themselves out
//! of it.
//!
//! The empty table holds nothing of the program open either: who waits for the end of a pipe whose writers have
//! closed it does not wait for the library.

use core::ffi::{c_int, c_uint};

/// Gives the calling thread an empty table of descriptors of its own. The other threads keep theirs, and
/// nothing in it is closed. False where the kernel (before 5.9) or a filter refuses: the thread then shares the
/// table as before.
///
/// For threads that a library started and that run nobody else's code: what the program has open, stderr too,
/// is not there any more; see [`write_to_stderr`]. `close_range(2)` with `CLOSE_RANGE_UNSHARE`; it copies no
/// descriptor, so no file is flushed and no lock of a file is let go.
pub fn separate_descriptors() -> bool {
    // SAFETY: the table that is emptied is the calling thread's alone: the kernel made it for this call.
    unsafe { libc::syscall(libc::SYS_close_range, 0, c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) == 0 }
}

/// Writes to the process's stderr in one call, from threads with a [table of their own](separate_descriptors),
/// too. Allocates nothing; what cannot be written is lost, for there is nobody to tell.
pub fn write_to_stderr(text: &[u8]) {
    if write(libc::STDERR_FILENO, text) >= 0 || crate::Error::last("write").code != libc::EBADF {
        return;
    }
    // SAFETY: system calls on numbers; both descriptors are this function's own and used nowhere else.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
        if process < 0 {
            return;
        }
        let stderr = libc::syscall(libc::SYS_pidfd_getfd, process, libc::STDERR_FILENO, 0);
        if stderr >= 0 {
            write(stderr as c_int, text);
            libc::close(stderr as c_int);
        }
        libc::close(process as c_int);
    }
}

fn write(descriptor: c_int, text: &[u8]) -> isize {
    // SAFETY: the pointer and the length describe `text`, which is borrowed for the call.
    unsafe { libc::write(descriptor, text.as_ptr().cast(), text.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    fn is_open(descriptor: c_int) -> bool {
        // SAFETY: asks about a number.
        unsafe { libc::fcntl(descriptor, libc::F_GETFD) >= 0 }
    }

    /// Runs `body` in a thread with a table of its own; `None` where the kernel has none.
    fn separated<T: Send>(body: impl FnOnce() -> T + Send) -> Option<T> {
        std::thread::scope(|scope| {
            scope.spawn(|| separate_descriptors().then(body)).join().expect("no panic")
        })
    }

    #[test]
    fn a_separated_thread_holds_nothing_of_the_program_open() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let (apart, is_apart) = mpsc::channel();
        let (done, is_done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                apart.send(separate_descriptors()).unwrap();
                let _ = is_done.recv();
            });
            if is_apart.recv().unwrap() {
                drop(writer);
                // Waits for good where the thread has a copy.
                assert_eq!(reader.read(&mut [0; 1]).unwrap(), 0);
            } else {
                eprintln!("skipped: this kernel gives threads no table of their own");
            }
            drop(done);
        });
    }

    #[test]
    fn a_separated_thread_closes_nothing_of_the_program() {
        let pair = UnixStream::pair().unwrap();
        let numbers = [0, 1, 2, pair.0.as_raw_fd(), pair.1.as_raw_fd()];
        let before = numbers.map(is_open);
        let Some(inside) = separated(|| numbers.map(is_open)) else {
            return eprintln!("skipped: this kernel gives threads no table of their own");
        };
        assert_eq!(inside, [false; 5]);
        assert_eq!(numbers.map(is_open), before);
    }

    /// In a process of its own, whose stderr is looked at.
    #[test]
    fn a_separated_thread_reaches_stderr() {
        let program = std::env::current_exe().unwrap();
        let child = "linux::descriptors::tests::says_something_from_a_separated_thread";
        let output = std::process::Command::new(program)
            .args(["--exact", child, "--ignored", "--nocapture"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("said apart") || text.contains("skipped"), "{text}");
    }

    #[test]
    #[ignore = "the child of another test"]
    fn says_something_from_a_separated_thread() {
        if separated(|| write_to_stderr(b"said apart\n")).is_none() {
            eprintln!("skipped: this kernel gives threads no table of their own");
        }
    }
}
