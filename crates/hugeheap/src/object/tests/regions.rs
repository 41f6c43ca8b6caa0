//! Several regions: blocks beyond the first region take a longer way, and everything holds there too.

use super::super::class::{SHAPES, class_of};
use super::*;
use std::collections::BTreeSet;
use std::thread;

/// Small regions, so that a test needs many.
const SMALL_REGION: usize = 32 << 20;

/// A heap whose first region is full of page runs, which are returned.
fn beyond() -> (&'static Space<World>, Heap<World>, Vec<NonNull<u8>>) {
    let space = space_with(Config::default(), SMALL_REGION);
    let mut heap = space.acquire().expect("memory");
    // The first block makes the first region known.
    let first = heap.take(48);
    let region = &space.regions()[0];
    let inside = |block: &NonNull<u8>| at(*block).wrapping_sub(region.start) < region.bytes();
    let mut runs: Vec<_> = core::iter::repeat_with(|| heap.take(1 << 20)).take_while(inside).collect();
    // The rest of the first region, in single pages.
    let pages: Vec<_> = core::iter::repeat_with(|| heap.take(10_000)).take_while(inside).collect();
    runs.extend(pages);
    runs.push(first);
    (space, heap, runs)
}

#[test]
fn a_heap_of_many_regions() {
    let space = space_with(Config::default(), SMALL_REGION);
    let mut heap = space.acquire().expect("memory");
    let mut blocks = Vec::new();
    while space.regions().len() < 4 {
        for bytes in [48, 512, 1000, 4096] {
            let block = heap.take(bytes);
            fill(block, bytes, blocks.len() as u8);
            blocks.push((block, bytes, blocks.len() as u8));
        }
    }
    heap.check();
    for &(block, bytes, value) in &blocks {
        assert!(holds(block, bytes, value));
        assert!(heap.usable_size(block).expect("live") >= bytes);
    }
    // Every second one, and again; then all.
    let (odd, even): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(index, _)| index % 2 == 1);
    heap.give_all(odd.into_iter().map(|(_, (block, ..))| block));
    heap.check();
    let again = heap.take_many(1000, 512);
    heap.give_all(even.into_iter().map(|(_, (block, ..))| block));
    heap.give_all(again);
    heap.check_empty();
}

#[test]
fn checks_hold_beyond_the_first_region() {
    let (space, mut heap, _runs) = beyond();
    let blocks: Vec<_> = [32, 48, 640].iter().flat_map(|&bytes| heap.take_many(700, bytes)).collect();
    assert!(space.regions().len() >= 2);
    let region = &space.regions()[0];
    let far: Vec<_> = blocks
        .iter()
        .copied()
        .filter(|&block| at(block).wrapping_sub(region.start) >= region.bytes())
        .collect();
    assert!(far.len() > 1000, "{} blocks beyond the first region", far.len());
    for &block in &far {
        let bytes = heap.usable_size(block).expect("live");
        assert_eq!(heap.give(pointer(at(block) + 16)), Err(Mistake::Interior { bytes }));
        assert_eq!(heap.give(pointer(at(block) + 1)), Err(Mistake::Interior { bytes }));
    }
    let freed: BTreeSet<_> = far.iter().copied().step_by(3).collect();
    for &block in &freed {
        heap.give(block).expect("live");
        assert!(matches!(heap.give(block), Err(Mistake::NotLive { .. })));
    }
    heap.check();
    let mut other = space.acquire().expect("memory");
    let rest: Vec<_> = far.iter().copied().filter(|block| !freed.contains(block)).collect();
    for &block in &rest {
        other.give(block).expect("live");
        let twice = other.give(block);
        assert!(matches!(twice, Err(Mistake::TwoThreads { .. } | Mistake::NotLive { .. })), "{twice:?}");
    }
    heap.check();
    heap.trim();
    heap.check();
}

#[test]
fn sized_frees_beyond_the_first_region() {
    let (space, mut heap, _runs) = beyond();
    for bytes in [32, 48, 640, 4096] {
        let blocks = heap.take_many(2000, bytes);
        heap.check();
        for block in blocks {
            // SAFETY: live and not used any more.
            unsafe { heap.free_sized(block, bytes) };
        }
        heap.check();
    }
    assert!(space.regions().len() >= 2);
}

#[test]
fn threads_beyond_the_first_region() {
    let (space, mut heap, _runs) = beyond();
    let before = live(space);
    for _ in 0..3 {
        let blocks: Vec<_> = heap.take_many(3000, 48).into_iter().map(at).collect();
        thread::spawn(move || {
            let mut other = space.acquire().expect("memory");
            other.give_all(blocks.into_iter().map(pointer));
        })
        .join()
        .expect("no panic");
        heap.check();
    }
    heap.trim();
    heap.check();
    assert!(live(space) <= before, "{} of {before}", live(space));
}

#[test]
fn a_heap_that_begins_when_there_are_several_regions() {
    let (space, mut heap, runs) = beyond();
    heap.take_many(700, 48);
    let mut second = space.acquire().expect("memory");
    let blocks = second.take_many(5000, 48);
    second.check();
    heap.give_all(runs);
    let more = second.take_many(500_000, 64);
    second.check();
    second.give_all(blocks.into_iter().chain(more));
    second.check();
    second.trim();
    assert_eq!(second.page_count(), 0);
    heap.check();
}

/// In the first region what is used last lies so far from its start that 32 bits do not hold the number of a block.
#[test]
fn blocks_far_from_the_start_of_the_first_region_are_found_again_without_being_remembered() {
    const FAR: usize = 64 << 30;
    let space = space_with(Config { total_memory: 256 << 30, ..Config::default() }, FAR + REGION);
    let mut heap = space.acquire().expect("memory");
    // The first block makes the region known.
    heap.take(48);
    space.source().arenas.lock().table.use_near();
    let start = space.regions()[0].start;
    let is_far = |block: &NonNull<u8>| at(*block) - start >= FAR;
    for bytes in [16, 48, 144, 512, 1000, 4096] {
        let mut blocks: Vec<_> = core::iter::repeat_with(|| heap.take(bytes))
            .skip_while(|block| !is_far(block))
            .take(300)
            .collect();
        // Freed in an order in which each is the first of its window, and more of them than are remembered.
        blocks.rotate_left(17);
        for (index, &block) in blocks.iter().enumerate().step_by(7) {
            fill(block, bytes, index as u8);
            // SAFETY: the test owns the block.
            assert!(unsafe { !heap.free_near(at(block)) }, "{bytes} bytes");
            if index % 2 == 0 {
                heap.give(block).expect("live");
            } else {
                // SAFETY: as above.
                unsafe { heap.free_sized(block, bytes) };
            }
            assert_eq!(
                heap.give(block),
                Err(Mistake::NotLive { bytes: SHAPES[class_of(bytes)].bytes as usize })
            );
        }
        assert_eq!(heap.own().remembered(class_of(bytes)), 0);
        heap.check();
        let again = heap.take_many(blocks.len().div_ceil(7), bytes);
        let mut live: BTreeSet<_> = blocks
            .iter()
            .enumerate()
            .filter(|(index, _)| index % 7 != 0)
            .map(|(_, block)| at(*block))
            .collect();
        for &block in &again {
            assert!(is_far(&block) && live.insert(at(block)), "a live block twice, or one elsewhere");
        }
        heap.check();
        heap.give_all(live.into_iter().map(pointer));
    }
}
