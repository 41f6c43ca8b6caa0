//! Forks while another thread gives back, on this process's runtime and a real kernel. One test: the runtime is
//! the process's.

use hugeheap::arena::{ARENA_BYTES, Settings};
use hugeheap::runtime::runtime;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ARENAS: usize = 16;

/// Takes what a plan can have at most, touches it, and gives it back.
fn use_and_give_back() {
    let block = runtime().allocate_large(ARENAS * ARENA_BYTES, false).expect("memory");
    for page in (0..ARENAS * ARENA_BYTES).step_by(4096) {
        // SAFETY: inside the block that was just taken.
        unsafe { ((block.address.get() + page) as *mut u8).write_volatile(1) };
    }
    runtime().free_large(block.address.get()).expect("just taken");
    runtime().give_back();
}

/// What the child finds: 0, or what is wrong.
fn in_child() -> i32 {
    let began = Instant::now();
    runtime().give_back();
    if began.elapsed() > Duration::from_millis(500) {
        return 1;
    }
    if runtime().snapshot(false).retained > 0 { 2 } else { 0 }
}

fn fork_in(round: u64) -> Result<(), String> {
    std::thread::sleep(Duration::from_micros(700 + 130 * (round % 40)));
    // SAFETY: the child uses the runtime, which is made for that, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the process.
        unsafe { libc::_exit(in_child()) };
    }
    let mut status = -1;
    // SAFETY: waits for the child that was just made.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    match status {
        _ if waited != child => Err(format!("round {round}: no child")),
        0 => Ok(()),
        _ if !libc::WIFEXITED(status) => Err(format!("round {round}: ended by a signal")),
        _ if libc::WEXITSTATUS(status) == 1 => {
            Err(format!("round {round}: waited for a thread that is not there"))
        }
        _ => Err(format!("round {round}: arenas are retained that nobody gives back")),
    }
}

/// Arenas that another thread was giving back at the moment of a fork stayed in its plan in the child, for good.
#[test]
fn a_child_has_no_arenas_that_another_thread_was_giving_back() {
    runtime().start(Settings::DEFAULT);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                use_and_give_back();
            }
        });
        let wrong = (0..200).find_map(|round| fork_in(round).err());
        // Before it fails: the thread would be waited for.
        ends.store(true, Ordering::Relaxed);
        assert_eq!(wrong, None);
    });
}
