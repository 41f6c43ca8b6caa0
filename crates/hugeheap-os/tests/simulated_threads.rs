//! Threads of a test are real: what one of them asks the simulated kernel for has to reach the others.

use hugeheap_os::linux::Linux;
use hugeheap_os::simulated::{Config, Kernel};
use hugeheap_os::{Os, Pages};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, compiler_fence};

/// Turns that each thread tries to take.
const TURNS: usize = 20_000;

/// Bytes between two places that no cache and no prefetcher has both of.
const APART: usize = 4096 + 64;

/// Places that the owner writes to before it takes its turn: what it stores afterwards has to wait for them,
/// some microseconds, and is not seen by others as long.
const BEFORE: usize = 16;

/// How often both had their turn at once, with a barrier of one of them and none of the other: as an allocator
/// has it, whose owner comes by all the time and the others seldom.
fn both_at_once(os: &impl Os) -> usize {
    let [owner, other] = [AtomicU32::new(0), AtomicU32::new(0)];
    let (round, had) = (AtomicUsize::new(0), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    // Both begin a round as close together as can be.
    let meet = |turn: usize, late: usize| {
        round.fetch_add(1, Ordering::SeqCst);
        let mut spins = 0_u32;
        while round.load(Ordering::SeqCst) < 2 * turn + 2 {
            spins += 1;
            if spins > 10_000 {
                std::thread::yield_now();
            }
        }
        (0..late).for_each(|_| std::hint::spin_loop());
    };
    let cold: Vec<AtomicU32> = (0..(64 << 20) / 4).map(|_| AtomicU32::new(0)).collect();
    let mut both = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..TURNS {
                meet(2 * turn, 0);
                for place in 0..BEFORE {
                    let place = (turn * BEFORE + place) * APART / 4 % cold.len();
                    cold[place].store(1, Ordering::Relaxed);
                }
                owner.store(1, Ordering::Relaxed);
                compiler_fence(Ordering::SeqCst);
                had[0].store(usize::from(other.load(Ordering::Relaxed) == 0), Ordering::SeqCst);
                meet(2 * turn + 1, 0);
            }
        });
        for turn in 0..TURNS {
            meet(2 * turn, turn % 32);
            other.store(1, Ordering::SeqCst);
            os.barrier().expect("asked before");
            had[1].store(usize::from(owner.load(Ordering::SeqCst) == 0), Ordering::SeqCst);
            meet(2 * turn + 1, 0);
            both += had[0].load(Ordering::SeqCst) * had[1].load(Ordering::SeqCst);
            owner.store(0, Ordering::SeqCst);
            other.store(0, Ordering::SeqCst);
        }
    });
    both
}

/// It was a fence of the caller alone, so a test of two threads lost a block in one of some hundred runs.
#[test]
fn the_barrier_was_one_of_the_caller_alone() {
    if let Err(error) = Linux::new().barrier() {
        println!("skipped: this host has no barrier: {error}");
        return;
    }
    assert_eq!(both_at_once(&Kernel::new(Config::default())), 0);
}
