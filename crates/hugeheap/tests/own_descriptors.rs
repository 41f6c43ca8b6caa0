//! The maintenance thread's descriptors, on a real kernel. One test: the runtime is the process's.

use hugeheap::arena::{ARENA_BYTES, Settings};
use hugeheap::runtime::runtime;
use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

/// Longer than any host needs.
const PATIENCE: Duration = Duration::from_secs(60);

fn threads() -> BTreeSet<String> {
    let entries = fs::read_dir("/proc/self/task").expect("/proc");
    entries.map(|entry| entry.expect("/proc").file_name().into_string().expect("a number")).collect()
}

/// What a thread has open, but for the directory that is read here. `None`: it is gone.
fn open_in(thread: &str) -> Option<Vec<String>> {
    let entries = fs::read_dir(format!("/proc/self/task/{thread}/fd")).ok()?;
    let files = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    let files = files.map(|file| file.display().to_string()).filter(|file| !file.starts_with("/proc/"));
    Some(files.collect())
}

/// What the thread of this process has open, as soon as that is nothing.
fn has_a_thread_with_nothing_open() {
    let _pair = std::os::unix::net::UnixStream::pair().expect("sockets");
    let before = threads();
    assert!(
        before.iter().any(|thread| open_in(thread).is_some_and(|open| open.len() >= 2)),
        "the program's own are seen"
    );
    // Long enough for the thread to be there when it is looked at.
    runtime().start(Settings { decay: 3_600_000_000_000, ..Settings::DEFAULT });
    let block = runtime().allocate_large(32 * ARENA_BYTES, false).expect("memory");
    runtime().free_large(block.address.get()).expect("just taken");
    let began = Instant::now();
    loop {
        let new: Vec<_> = threads().difference(&before).cloned().collect();
        if new.iter().any(|thread| open_in(thread).is_some_and(|open| open.is_empty())) {
            break;
        }
        let all: Vec<_> = new.iter().map(|thread| open_in(thread)).collect();
        assert!(began.elapsed() < PATIENCE, "open in the threads that were started: {all:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A forked test program of CPython closed all its numbers while the thread had a file open, and got the number
/// again for a socket. The thread waited for a message on it, and closed it.
///
/// In a child, whose leader is the thread that forked: that of a test program asks for nothing, and where
/// nobody is told when it ends the thread keeps the program's descriptors.
#[test]
fn the_maintenance_thread_uses_no_number_that_the_program_may_close() {
    if !std::thread::spawn(hugeheap_os::linux::separate_descriptors).join().expect("no panic") {
        return eprintln!("skipped: this kernel gives threads no table of their own");
    }
    // SAFETY: the other threads of a test program hold no lock that the child needs: they wait.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let failed = std::panic::catch_unwind(has_a_thread_with_nothing_open).is_err();
        // SAFETY: ends the process.
        unsafe { libc::_exit(failed.into()) };
    }
    let mut status = -1;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child says why");
}
