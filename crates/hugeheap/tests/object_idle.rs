//! What others freed in the heaps of threads that sleep, and collecting for owners while they work: on this
//! process's runtime and a real kernel.
//!
//! One test at a time: what is given back is the whole process's.
#![cfg(target_os = "linux")]

mod written_blocks;

use hugeheap::object::{Heap, Source, space};
use hugeheap::runtime::runtime;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use written_blocks::{Block, Random};

static ALONE: Mutex<()> = Mutex::new(());

/// Bytes of the largest blocks.
const MOST: u64 = 8192;

/// The same of buffers.
const BUFFERS: u64 = 256 << 10;

/// So many MiB of blocks.
fn many<S: Source>(heap: &mut Heap<S>, random: &mut Random, mib: usize, most: u64) -> Vec<Block> {
    let (mut blocks, mut bytes) = (Vec::new(), 0);
    while bytes < mib << 20 {
        blocks.push(Block::take(heap, random, most));
        bytes += blocks.last().map_or(0, |block| block.bytes);
    }
    blocks
}

/// A thread pool's workers build lists, one drops them, and the workers wait for what comes next.
#[test]
fn what_was_freed_in_the_heaps_of_threads_that_sleep_goes_back() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = runtime().snapshot(false).live;
    let (sleeps, wakes) = (Barrier::new(5), Barrier::new(5));
    thread::scope(|scope| {
        let (sender, receiver) = channel();
        for seed in 1..=4 {
            let (sender, sleeps, wakes) = (sender.clone(), &sleeps, &wakes);
            scope.spawn(move || {
                let mut heap = space().acquire().expect("memory");
                let mut random = Random(seed);
                sender.send(many(&mut heap, &mut random, 24, MOST)).expect("somebody drops it");
                sleeps.wait();
                wakes.wait();
                // It goes on where it was.
                let blocks = many(&mut heap, &mut random, 24, MOST);
                blocks.iter().for_each(Block::check);
                blocks.into_iter().for_each(|block| block.give(&mut heap));
            });
        }
        sleeps.wait();
        let full = runtime().snapshot(false).live;
        assert!(full - before > 90 << 20, "{full}");
        let mut heap = space().acquire().expect("memory");
        for _ in 0..4 {
            receiver.recv().expect("a list").into_iter().for_each(|block| block.give(&mut heap));
        }
        // A decay time for the looks, and some for a busy machine.
        let until = Instant::now() + Duration::from_secs(20);
        let left = loop {
            let left = runtime().snapshot(false).live.saturating_sub(before);
            if left < 4 << 20 || Instant::now() > until {
                break left;
            }
            thread::sleep(Duration::from_millis(50));
        };
        wakes.wait();
        assert!(left < 4 << 20, "{left} bytes of {full}");
    });
}

/// Threads that read into buffers keep them for the next time, some megabytes each, and what others freed of
/// theirs. Those that sleep do not.
#[test]
fn buffers_of_threads_that_sleep_go_back() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = runtime().give_back();
    let before = runtime().snapshot(false).live;
    let (sleeps, wakes) = (Barrier::new(5), Barrier::new(5));
    thread::scope(|scope| {
        let (sender, receiver) = channel();
        for seed in 1..=4 {
            let (sender, sleeps, wakes) = (sender.clone(), &sleeps, &wakes);
            scope.spawn(move || {
                let mut heap = space().acquire().expect("memory");
                let mut random = Random(seed);
                let mut work = || {
                    for _ in 0..8 {
                        let buffers = many(&mut heap, &mut random, 4, BUFFERS);
                        buffers.into_iter().for_each(|buffer| buffer.give(&mut heap));
                    }
                    many(&mut heap, &mut random, 1, BUFFERS)
                };
                sender.send(work()).expect("somebody drops it");
                sleeps.wait();
                wakes.wait();
                // It goes on where it was.
                sender.send(work()).expect("somebody drops it");
            });
        }
        let mut heap = space().acquire().expect("memory");
        let mut drop_four = || {
            for _ in 0..4 {
                receiver.recv().expect("buffers").into_iter().for_each(|buffer| buffer.give(&mut heap));
            }
        };
        drop_four();
        sleeps.wait();
        let kept = runtime().snapshot(false).live.saturating_sub(before);
        let until = Instant::now() + Duration::from_secs(20);
        let left = loop {
            let left = runtime().snapshot(false).live.saturating_sub(before);
            if left < kept / 4 || Instant::now() > until {
                break left;
            }
            thread::sleep(Duration::from_millis(50));
        };
        wakes.wait();
        // The pages at hand, of blocks that are smaller, stay: one for each class and thread.
        assert!(kept > 16 << 20, "they keep some for the next time: {kept}");
        assert!(left < kept / 4, "{left} bytes of {kept}");
        drop_four();
    });
}

/// A server's threads have a few blocks of each size, and wait. Nothing was freed; nearly all of their heap
/// pages is vacant.
#[test]
fn of_the_pages_of_threads_that_have_few_blocks_and_wait_little_stays() {
    const THREADS: usize = 64;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = runtime().snapshot(false);
    let (waits, goes_on) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
    thread::scope(|scope| {
        for seed in 1..=THREADS as u64 {
            let (waits, goes_on) = (&waits, &goes_on);
            scope.spawn(move || {
                let mut heap = space().acquire().expect("memory");
                let mut random = Random(seed);
                let blocks: Vec<_> = (0..60).map(|_| Block::take(&mut heap, &mut random, 4096)).collect();
                waits.wait();
                goes_on.wait();
                let more = many(&mut heap, &mut random, 1, 4096);
                blocks.iter().chain(&more).for_each(Block::check);
                blocks.into_iter().chain(more).for_each(|block| block.give(&mut heap));
            });
        }
        waits.wait();
        let full = runtime().snapshot(false).live - before.live;
        let until = Instant::now() + Duration::from_secs(20);
        let mut vacated = 0;
        while vacated < full / 2 && Instant::now() < until {
            thread::sleep(Duration::from_millis(50));
            vacated = runtime().snapshot(false).vacated - before.vacated;
        }
        goes_on.wait();
        assert!(full > 16 << 20, "{full} bytes of heap pages");
        assert!(vacated >= full / 2, "{vacated} of {full} bytes");
    });
}

/// Takes blocks and hands them on, frees what it is handed, and sleeps now and then.
fn work(seed: u64, own: &Receiver<Vec<Block>>, next: &Sender<Vec<Block>>, stop: &AtomicBool) {
    let mut heap = space().acquire().expect("memory");
    let mut random = Random(seed);
    let mut kept = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let mut blocks: Vec<_> =
            (0..random.below(4000)).map(|_| Block::take(&mut heap, &mut random, MOST)).collect();
        blocks.extend((0..random.below(40)).map(|_| Block::take(&mut heap, &mut random, BUFFERS)));
        kept.extend(blocks.split_off(blocks.len() - blocks.len() / 10));
        // Some are freed here, most elsewhere.
        for _ in 0..random.below(400) {
            if let Some(block) = blocks.pop() {
                block.give(&mut heap);
            }
        }
        let _ = next.send(blocks);
        for blocks in own.try_iter() {
            blocks.into_iter().for_each(|block| block.give(&mut heap));
        }
        if kept.len() > 20_000 {
            kept.drain(..).for_each(|block| block.give(&mut heap));
        }
        if random.below(8) == 0 {
            thread::sleep(Duration::from_millis(random.below(20)));
        }
    }
    kept.into_iter().for_each(|block| block.give(&mut heap));
}

#[test]
fn owners_go_on_while_somebody_collects_for_them_and_others_free() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (mut senders, mut receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| channel()).unzip();
        // Each hands on to the next one.
        senders.rotate_left(1);
        for seed in 1..=3 {
            let (next, own) = (senders.pop().expect("three"), receivers.pop().expect("three"));
            let stop = &stop;
            scope.spawn(move || work(seed, &own, &next, stop));
        }
        let mut heap = space().acquire().expect("memory");
        let mut random = Random(9);
        let until = Instant::now() + Duration::from_secs(5);
        while Instant::now() < until {
            for _ in 0..20 {
                let _ = runtime().give_back();
            }
            fork_and_check(&mut heap, &mut random);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A child has all blocks of its parent, and its heap.
fn fork_and_check<S: Source>(heap: &mut Heap<S>, random: &mut Random) {
    let mut blocks = many(heap, random, 1, MOST);
    // SAFETY: the child uses its heap, which it may, and ends without running anything of its parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above. Ended by the signal if it waits for ever.
        unsafe { libc::alarm(20) };
        let sound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            blocks.extend(many(heap, random, 2, BUFFERS));
            blocks.drain(..).for_each(|block| block.give(heap));
            let _ = runtime().give_back();
        }));
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(sound.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child ended otherwise");
    blocks.into_iter().for_each(|block| block.give(heap));
}
