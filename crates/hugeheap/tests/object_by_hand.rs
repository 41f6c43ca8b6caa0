//! Heaps that are acquired by hand in a program that started nothing. One test: what starts is the whole process's.
#![cfg(target_os = "linux")]

use hugeheap::object::space;
use hugeheap::runtime::runtime;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Both were missing: a child of a fork waited for ever for a lock that another thread had, and the environment
/// was not read.
#[test]
fn a_heap_acquired_by_hand_has_the_environments_settings_and_survives_forks() {
    // SAFETY: no other thread runs yet that looks at the environment.
    unsafe { std::env::set_var("HUGEHEAP_DECAY", "1.234") };
    let mut heap = space().acquire().expect("memory");
    assert_eq!(runtime().settings().decay, 1_234_000_000);

    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // Has the lock of the arenas most of the time.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = runtime().give_back();
            }
        });
        for _ in 0..200 {
            // SAFETY: the child uses a heap, which it may, and ends without running anything of its parent.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above. Ended by the signal if it waits for ever.
                unsafe { libc::alarm(20) };
                let blocks: Vec<_> = (0..8).map(|_| heap.allocate(400_000)).collect();
                let sound = blocks.iter().all(Option::is_some);
                // SAFETY: blocks of this heap, which nobody uses.
                blocks.into_iter().flatten().for_each(|block| unsafe { heap.free(block) });
                // SAFETY: as above.
                unsafe { libc::_exit(i32::from(!sound)) };
            }
            let mut status = 0;
            // SAFETY: the child that was just made.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            if status != 0 {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!(status, 0, "the child ended otherwise");
        }
        stop.store(true, Ordering::Relaxed);
    });
}
