//! Blocks that come and go in the current window of a global allocator: where few of a class live, they are
//! gathered instead.

use super::super::class::class_of;
use super::*;

/// In one window of its page with 31 others.
const BYTES: usize = 32;

/// Takes a block and frees the one before it, as a global allocator does, so many times.
fn turns(heap: &mut Heap<World>, mut block: NonNull<u8>, count: usize) -> NonNull<u8> {
    for _ in 0..count {
        // SAFETY: blocks of a test are used by it alone.
        unsafe { heap.free_sized_anywhere(block, BYTES) };
        block = heap.allocate_remembered(BYTES).expect("memory");
        heap.check();
    }
    block
}

fn is_open(heap: &mut Heap<World>) -> bool {
    heap.own().bins[class_of(BYTES)].current.is_open()
}

/// Whether a freed block lies in the window, and whether one is remembered, was foreseen by no predictor where
/// both happened: `larson` with 50 blocks took half as long again.
#[test]
fn a_window_in_which_blocks_come_and_go_is_left() {
    let (_, mut heap) = heap();
    let mut block = heap.allocate_remembered(BYTES).expect("memory");
    block = turns(&mut heap, block, 15);
    assert!(is_open(&mut heap), "not for a few");
    block = turns(&mut heap, block, 1);
    assert!(!is_open(&mut heap));
    // And it stays so.
    block = turns(&mut heap, block, 100);
    assert!(!is_open(&mut heap));
    heap.give(block).expect("live");
    heap.check_empty();
}

#[test]
fn turns_are_counted_anew_in_each_window() {
    let (_, mut heap) = heap();
    let mut block = heap.allocate_remembered(BYTES).expect("memory");
    let mut blocks = Vec::new();
    for _ in 0..10 {
        blocks.push(turns(&mut heap, block, 10));
        assert!(is_open(&mut heap));
        // More than the window has left.
        blocks.extend((0..32).map(|_| heap.allocate_remembered(BYTES).expect("memory")));
        block = blocks.pop().expect("some");
    }
    heap.give_all(blocks.into_iter().chain([block]));
    heap.check_empty();
}

/// They ask the window first, and would ask in vain.
#[test]
fn who_asks_the_window_first_keeps_it() {
    let (_, mut heap) = heap();
    let mut block = heap.take(BYTES);
    for _ in 0..100 {
        assert!(heap.free_as_near(block));
        block = heap.allocate_near(BYTES).expect("at hand");
        assert!(is_open(&mut heap));
    }
    heap.give(block).expect("live");
    heap.check_empty();
}
