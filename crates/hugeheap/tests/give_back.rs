//! Giving back at once, on this process's runtime and a real kernel. One test: the runtime is the process's.

use hugeheap::arena::{ARENA_BYTES, Settings};
use hugeheap::runtime::runtime;
use std::time::Duration;

const ARENAS: usize = 64;

/// Half of what a C program had freed was still retained after `hh_give_back`: the maintenance thread was just
/// giving it back.
#[test]
fn what_the_maintenance_thread_is_giving_back_is_waited_for() {
    runtime().start(Settings { decay: 1_000_000, ..Settings::DEFAULT });
    for round in 0..120 {
        let block = runtime().allocate_large(ARENAS * ARENA_BYTES, false).expect("memory");
        for page in (0..ARENAS * ARENA_BYTES).step_by(4096) {
            // SAFETY: inside the block that was just taken.
            unsafe { ((block.address.get() + page) as *mut u8).write_volatile(1) };
        }
        runtime().free_large(block.address.get()).expect("just taken");
        // The thread begins about a decay time after the free, so that many rounds meet it at work.
        std::thread::sleep(Duration::from_micros(500 + 20 * (round % 60)));
        runtime().give_back();
        let snapshot = runtime().snapshot(false);
        assert_eq!((snapshot.live, snapshot.retained), (0, 0), "round {round}");
    }
}
