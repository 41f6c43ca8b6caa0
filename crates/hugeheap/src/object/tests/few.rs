//! Threads with few blocks: classes in groups, each on its own when there are more.

use super::*;
use crate::object::class::{MAX_SMALL, SHAPES, class_of};
use crate::object::few::standing_for;
use std::collections::BTreeSet;

/// A heap of a thread.
fn grouped() -> (&'static Space<World>, Heap<World>) {
    let (space, mut heap) = heap();
    heap.group();
    (space, heap)
}

fn take(heap: &mut Heap<World>, bytes: usize) -> NonNull<u8> {
    heap.allocate_by_table(bytes).expect("memory")
}

/// The bytes of the block that stands for those of a request.
fn standing(bytes: usize) -> usize {
    SHAPES[standing_for(class_of(bytes))].bytes as usize
}

#[test]
fn few_blocks_of_all_sizes_have_a_page_for_each_group() {
    let (_, mut heap) = grouped();
    let blocks: Vec<_> = (1..=MAX_SMALL).step_by(16).map(|bytes| (bytes, take(&mut heap, bytes))).collect();
    for &(bytes, block) in &blocks {
        assert_eq!(heap.usable_size(block), Ok(standing(bytes)), "{bytes}");
    }
    let pages: BTreeSet<_> = blocks.iter().map(|&(_, block)| page_of(block)).collect();
    let groups: BTreeSet<_> = blocks.iter().map(|&(bytes, _)| standing(bytes)).collect();
    assert_eq!(pages.len(), groups.len());
    assert!(pages.len() * 3 < blocks.len(), "{} pages", pages.len());
    heap.check();
    heap.give_all(blocks.into_iter().map(|(_, block)| block));
    heap.check_empty();
}

#[test]
fn from_the_second_page_of_a_group_on_each_class_is_on_its_own() {
    let (_, mut heap) = grouped();
    for bytes in [150, 1100] {
        let mut blocks = Vec::new();
        let page = HEAP_PAGE_BYTES / standing(bytes);
        for number in 0..4 * page {
            let block = take(&mut heap, bytes);
            let expected =
                if number <= page { standing(bytes) } else { SHAPES[class_of(bytes)].bytes as usize };
            assert_eq!(heap.usable_size(block), Ok(expected), "{bytes}, number {number}");
            blocks.push(block);
        }
        heap.check();
        heap.give_all(blocks);
    }
    heap.check_empty();
}

/// What is lost by rounding up is a part of two pages for each group, however many blocks there are.
#[test]
fn many_blocks_lose_no_more_by_rounding_up_than_some() {
    let (_, mut heap) = grouped();
    let lost = |heap: &mut Heap<World>, count: usize| {
        let blocks: Vec<_> = (0..count).map(|number| 1 + number * 7 % 600).collect();
        let blocks: Vec<_> = blocks.into_iter().map(|bytes| (bytes, take(heap, bytes))).collect();
        let mut lost = 0;
        for &(bytes, block) in &blocks {
            lost += heap.usable_size(block).expect("live") - SHAPES[class_of(bytes)].bytes as usize;
        }
        heap.check();
        heap.give_all(blocks.into_iter().map(|(_, block)| block));
        lost
    };
    let groups: BTreeSet<_> = (1..=600).map(standing).filter(|&bytes| bytes > 64).collect();
    let few = lost(&mut heap, 10_000);
    assert!(few > 0 && few < groups.len() * 2 * HEAP_PAGE_BYTES / 3, "{few} bytes");
    assert_eq!(lost(&mut heap, 40_000), 0, "all are on their own by now");
    heap.check_empty();
}

/// Whoever frees may have groups where the owner has none, and the other way round.
#[test]
fn a_sized_free_accepts_each_size_of_a_group_whoever_frees() {
    let (space, mut first) = grouped();
    let mut second = space.acquire().expect("memory");
    for bytes in (1..=2048).step_by(37) {
        for (from, by) in [(true, false), (true, true), (false, true)] {
            let block = if from { take(&mut first, bytes) } else { second.allocate(bytes).expect("memory") };
            let heap = if by { &mut first } else { &mut second };
            // SAFETY: the block is the test's.
            unsafe { heap.free_sized(block, bytes) };
        }
    }
    first.collect_all();
    second.collect_all();
    second.trim();
    first.check_empty();
    second.check_empty();
}

#[test]
fn a_size_of_another_group_is_a_mistake() {
    let (space, mut heap) = grouped();
    let block = at(take(&mut heap, 150));
    for (given, is_right) in [(128, false), (129, true), (144, true), (192, true), (193, false), (64, false)]
    {
        let expected = if is_right { Ok(()) } else { Err(Mistake::WrongSize { bytes: 192, given }) };
        assert_eq!(space.check_size(block, given), expected, "{given}");
    }
    // A class that stands for none is checked as ever.
    let block = at(take(&mut heap, 60));
    for given in [48, 65] {
        assert_eq!(space.check_size(block, given), Err(Mistake::WrongSize { bytes: 64, given }));
    }
    let alone = at(heap.take(150));
    assert_eq!(space.check_size(alone, 144), Err(Mistake::WrongSize { bytes: 160, given: 144 }));
    heap.trim();
}

#[test]
fn what_is_resized_within_its_group_stays() {
    let (_, mut heap) = grouped();
    let block = take(&mut heap, 130);
    for bytes in [190, 140, 192] {
        // SAFETY: the block is the test's.
        assert_eq!(unsafe { heap.reallocate(block, bytes) }, Some(block), "{bytes}");
    }
    // SAFETY: as above.
    let moved = unsafe { heap.reallocate(block, 193) }.expect("memory");
    assert_ne!(moved, block);
    assert_eq!(heap.usable_size(moved), Ok(256));
    heap.give_all([moved]);
    heap.check_empty();
}

/// A heap that had many blocks begins with groups again when the next thread has it; a handle's has none.
#[test]
fn the_next_thread_begins_with_groups_again() {
    let (space, mut heap) = grouped();
    let blocks: Vec<_> = (0..600).map(|_| take(&mut heap, 150)).collect();
    heap.give_all(blocks);
    drop(heap);
    for together in [true, false] {
        let mut heap = space.acquire().expect("one waits");
        if together {
            heap.group();
        }
        let block = take(&mut heap, 150);
        assert_eq!(heap.usable_size(block), Ok(if together { 192 } else { 160 }));
        heap.give_all([block]);
        heap.check();
    }
}

/// Blocks that are free in pages of their own are used before a page for all of a group is.
#[test]
fn classes_that_have_free_blocks_stay_on_their_own() {
    let (space, mut heap) = grouped();
    let blocks: Vec<_> = (0..600).map(|_| take(&mut heap, 150)).collect();
    let last = blocks.len() - 1;
    assert_eq!(heap.usable_size(blocks[last]), Ok(160));
    heap.give_all(blocks[..last].iter().copied());
    drop(heap);
    let mut heap = space.acquire().expect("one waits");
    heap.group();
    let block = take(&mut heap, 150);
    assert_eq!((page_of(block), heap.usable_size(block)), (page_of(blocks[last]), Ok(160)));
    heap.give_all([block, blocks[last]]);
    heap.check_empty();
}

#[test]
fn hardened_heaps_have_no_groups() {
    let space = space();
    let mut heap = space.acquire_hardened().expect("memory");
    heap.group();
    let block = take(&mut heap, 150);
    assert_eq!(heap.usable_size(block), Ok(160));
    // Nor can a block of a class that stands for others elsewhere be freed with the size of another.
    let block = take(&mut heap, 190);
    let wrong = Mistake::WrongSize { bytes: 192, given: 150 };
    assert_eq!(space.check_size(at(block), 150), Err(wrong));
}

/// Objects with a header keep their place in cache lines, also those of classes that the headed one stands for.
#[test]
fn what_has_a_header_is_led_to_the_headed_class_that_stands_for_it() {
    let space = space();
    space.expect_headers();
    let mut heap = space.acquire().expect("memory");
    heap.group();
    let few = [100, 112, 128].map(|bytes| take(&mut heap, bytes));
    for block in few {
        assert_eq!((heap.usable_size(block), at(block) % 64), (Ok(128), 48));
    }
    heap.check();
    let many: Vec<_> = (0..400).map(|_| take(&mut heap, 112)).collect();
    assert_eq!(heap.usable_size(many[399]), Ok(112), "on its own by now");
    heap.check();
    heap.give_all(few.into_iter().chain(many));
    heap.check_empty();
}
