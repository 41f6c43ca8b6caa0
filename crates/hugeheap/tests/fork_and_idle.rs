//! A process that forks while memory is kept, and does nothing more, on a real kernel. One test: the runtime is
//! the process's.

use hugeheap::arena::{ARENA_BYTES, Settings};
use hugeheap::runtime::runtime;
use std::time::{Duration, Instant};

const ARENAS: usize = 32;

/// Longer than any host needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The maintenance thread was ended before the fork, and started again by the next event only, which did not
/// come. The child, which had no event either, held it, too.
#[test]
fn a_parent_that_only_waits_after_a_fork_gives_its_memory_back() {
    runtime().start(Settings { decay: 200_000_000, ..Settings::DEFAULT });
    let block = runtime().allocate_large(ARENAS * ARENA_BYTES, false).expect("memory");
    for page in (0..ARENAS * ARENA_BYTES).step_by(4096) {
        // SAFETY: inside the block that was just taken.
        unsafe { ((block.address.get() + page) as *mut u8).write_volatile(1) };
    }
    runtime().free_large(block.address.get()).expect("just taken");
    // SAFETY: the child looks at the runtime's numbers, which is made for that, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let holds = runtime().snapshot(false).retained >= ARENA_BYTES as u64;
        // SAFETY: ends the process.
        unsafe { libc::_exit(holds.into()) };
    }
    let mut status = -1;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child holds what the parent kept");
    let began = Instant::now();
    // To ask is no event.
    while runtime().snapshot(false).retained > 0 {
        assert!(began.elapsed() < PATIENCE, "{} bytes are kept", runtime().snapshot(false).retained);
        std::thread::sleep(Duration::from_millis(20));
    }
}
