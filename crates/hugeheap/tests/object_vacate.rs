//! OS pages without a live block are given back while the owners of the heaps allocate and free: on this
//! process's runtime and a real kernel.
//!
//! One test at a time: what is given back is the whole process's.
#![cfg(target_os = "linux")]

mod written_blocks;

use hugeheap::object::space;
use hugeheap::runtime::runtime;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use written_blocks::{Block, Random};

static ALONE: Mutex<()> = Mutex::new(());

/// Grows, loses most of it, and goes on with what is left: takes and frees in turn, in rows, and at random.
fn live(seed: u64, stop: &AtomicBool) -> u64 {
    let mut heap = space().acquire().expect("memory");
    let mut random = Random(seed);
    let mut blocks: Vec<Block> = Vec::new();
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut bytes = 0;
        while bytes < 24 << 20 {
            let block = Block::take(&mut heap, &mut random, 8192);
            bytes += block.bytes;
            blocks.push(block);
        }
        let mut kept = Vec::new();
        for block in blocks.drain(..) {
            if random.below(100) < 4 {
                kept.push(block);
            } else {
                block.give(&mut heap);
            }
        }
        blocks = kept;
        for _ in 0..30 {
            for _ in 0..random.below(2000) {
                if random.below(2) == 0 {
                    blocks.push(Block::take(&mut heap, &mut random, 8192));
                } else if !blocks.is_empty() {
                    let which = random.below(blocks.len() as u64) as usize;
                    blocks.swap_remove(which).give(&mut heap);
                }
            }
            for _ in 0..random.below(200) {
                Block::take(&mut heap, &mut random, 512).give(&mut heap);
            }
            let row: Vec<_> =
                (0..random.below(60)).map(|_| Block::take(&mut heap, &mut random, 256)).collect();
            row.into_iter().for_each(|block| block.give(&mut heap));
        }
        blocks.iter().for_each(Block::check);
        rounds += 1;
    }
    blocks.into_iter().for_each(|block| block.give(&mut heap));
    rounds
}

#[test]
fn no_live_block_loses_its_contents_while_owners_go_on() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let stop = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    let before = runtime().snapshot(false).vacated;
    thread::scope(|scope| {
        for seed in 1..=3 {
            let (stop, rounds) = (&stop, &rounds);
            scope.spawn(move || rounds.fetch_add(live(seed, stop), Ordering::Relaxed));
        }
        let until = Instant::now() + Duration::from_secs(4);
        while Instant::now() < until {
            runtime().give_back();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let given = runtime().snapshot(false).vacated - before;
    println!("{} rounds, {} MiB of live heap pages given back", rounds.into_inner(), given >> 20);
    assert!(given > 0, "nothing was tried");
}

/// What a child is in the middle of, when the other thread of its parent was giving back.
#[test]
fn a_forked_child_has_all_of_its_blocks_and_goes_on() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                runtime().give_back();
            }
        });
        let mut heap = space().acquire().expect("memory");
        let mut random = Random(7);
        for round in 0..60 {
            let mut blocks: Vec<_> = (0..4000).map(|_| Block::take(&mut heap, &mut random, 8192)).collect();
            let mut kept = Vec::new();
            for block in blocks.drain(..) {
                if random.below(100) < 8 { kept.push(block) } else { block.give(&mut heap) }
            }
            // SAFETY: the child uses its heap, which it may, and ends without running anything of its parent.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let sound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    kept.iter().for_each(Block::check);
                    let more: Vec<_> = (0..2000).map(|_| Block::take(&mut heap, &mut random, 4096)).collect();
                    kept.iter().chain(&more).for_each(Block::check);
                    kept.drain(..).chain(more).for_each(|block| block.give(&mut heap));
                }));
                // SAFETY: as above.
                unsafe { libc::_exit(i32::from(sound.is_err())) };
            }
            let mut status = 0;
            // SAFETY: the child that was just made.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "round {round}");
            kept.into_iter().for_each(|block| block.give(&mut heap));
        }
        stop.store(true, Ordering::Relaxed);
    });
}
