//! A program with fork handlers of its own, registered before hugeheap's: they run while the locks are kept for
//! the fork. One test: handlers are the whole process's.
#![cfg(target_os = "linux")]

use hugeheap::object::thread_heap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// In which handler blocks are taken and freed, of which size.
static WHERE: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Times that a handler did that.
static DONE: AtomicUsize = AtomicUsize::new(0);

/// What is taken at once: more than a heap has at hand.
const MOST: usize = 40_000_000;

/// Takes blocks and frees all but some.
fn work() {
    let bytes = BYTES.load(Ordering::Relaxed);
    // The program's own allocator is the C library's here.
    let mut blocks: Vec<NonNull<u8>> = Vec::new();
    for _ in 0..MOST / bytes {
        // SAFETY: for one call.
        let mut heap = unsafe { thread_heap() }.expect("memory");
        let block = heap.allocate(bytes).expect("memory");
        // SAFETY: just handed out.
        unsafe { block.write_bytes(1, bytes.min(100)) };
        blocks.push(block);
    }
    for block in blocks.split_off(1) {
        // SAFETY: taken above, and used by nobody; the handle is for this call.
        unsafe { thread_heap().expect("memory").free(block) };
    }
    DONE.fetch_add(1, Ordering::Relaxed);
}

fn in_handler(number: usize) {
    if WHERE.load(Ordering::Relaxed) == number {
        work();
    }
}

extern "C" fn before() {
    in_handler(0);
}

extern "C" fn in_parent() {
    in_handler(1);
}

extern "C" fn in_child() {
    in_handler(2);
}

/// It hung: a handler that needed a heap page waited for its own thread.
#[test]
fn a_program_whose_fork_handlers_allocate_forks() {
    // SAFETY: functions of this program.
    assert_eq!(unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) }, 0);
    for bytes in [100, 10_000, 100_000, 5_000_000] {
        for handler in 0..3 {
            WHERE.store(handler, Ordering::Relaxed);
            BYTES.store(bytes, Ordering::Relaxed);
            let done = DONE.load(Ordering::Relaxed);
            // SAFETY: ends this process if it waits for ever.
            unsafe { libc::alarm(60) };
            // SAFETY: the child uses the heap, and ends without running anything of its parent.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above.
                unsafe { libc::alarm(60) };
                let sound = DONE.load(Ordering::Relaxed) == done + usize::from(handler != 1);
                work();
                // SAFETY: as above.
                unsafe { libc::_exit(i32::from(!sound)) };
            }
            let mut status = 0;
            // SAFETY: the child that was just made.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "{bytes} bytes in handler {handler}");
            assert_eq!(DONE.load(Ordering::Relaxed), done + usize::from(handler != 2));
            work();
            // SAFETY: no preconditions.
            unsafe { libc::alarm(0) };
        }
    }
}
