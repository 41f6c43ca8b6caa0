//! Blocks that come and go: who asks the current window first keeps it, a global allocator has none.

use super::super::class::class_of;
use super::super::ring::{GATHERED, GATHERED_OF_FEW};
use super::*;

/// In one window of its page with 31 others.
const BYTES: usize = 32;

fn is_open(heap: &mut Heap<World>) -> bool {
    heap.own().bins[class_of(BYTES)].current.is_open()
}

/// Which of window and ring has the next block, and where a freed one goes, was foreseen by no predictor where
/// both happened: `larson` with 50 blocks took half as long again, batches of 300 a third.
#[test]
fn a_global_allocator_opens_no_window() {
    let (_, mut heap) = heap();
    let mut blocks = Vec::new();
    for taken in 1..=3000 {
        blocks.push(heap.allocate_remembered(BYTES).expect("memory"));
        assert!(!is_open(&mut heap), "{taken} taken");
    }
    for block in blocks {
        // SAFETY: blocks of a test are used by it alone.
        unsafe { heap.free_sized_anywhere(block, BYTES) };
    }
    heap.check_empty();
}

/// What is remembered keeps its OS page with a thread that waits.
#[test]
fn few_blocks_are_gathered_of_the_only_page_of_a_class_unless_it_takes_many_in_a_row() {
    let (_, mut heap) = heap();
    fn take(heap: &mut Heap<World>, blocks: &mut Vec<NonNull<u8>>) -> usize {
        blocks.push(heap.allocate_remembered(BYTES).expect("memory"));
        heap.own().remembered(class_of(BYTES)) + 1
    }
    let mut blocks = Vec::new();
    assert_eq!(take(&mut heap, &mut blocks), GATHERED_OF_FEW);
    (1..GATHERED_OF_FEW).for_each(|_| _ = take(&mut heap, &mut blocks));
    // Which one of them is freed and comes back first.
    let freed = blocks.pop().expect("some");
    // SAFETY: blocks of a test are used by it alone.
    unsafe { heap.free_sized_anywhere(freed, BYTES) };
    assert_eq!(take(&mut heap, &mut blocks), 1);
    assert_eq!(take(&mut heap, &mut blocks), GATHERED_OF_FEW, "one was freed meanwhile");
    (1..GATHERED_OF_FEW).for_each(|_| _ = take(&mut heap, &mut blocks));
    assert_eq!(take(&mut heap, &mut blocks), GATHERED, "none was freed meanwhile");
    let mut most = 0;
    while blocks.len() < 3 * HEAP_PAGE_BYTES / BYTES {
        most = most.max(take(&mut heap, &mut blocks));
    }
    assert_eq!(most, GATHERED);
    heap.give_all(blocks);
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
