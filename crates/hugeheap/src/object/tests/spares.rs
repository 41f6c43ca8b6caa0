//! How many pages without a live block a heap keeps.

use super::super::class::{MAX_BINNED, SHAPES, class_of};
use super::super::spares::{FIRST_MOST, SPARES};
use super::*;

/// Of blocks of which a page has many, and few.
const SIZES: [usize; 4] = [16, 64, 500, 3000];

/// Pages that a heap has, beside `kept` that it may keep: those at hand.
fn kept_at_most(space: &Space<World>, kept: usize, at_hand: usize) {
    let pages = live(space) / HEAP_PAGE_BYTES as u64;
    assert!(pages <= (kept + at_hand) as u64, "{pages} pages kept without a block, of {kept}");
}

/// Takes blocks of so many pages and frees all of them.
fn batch(heap: &mut Heap<World>, pages: usize, bytes: usize) {
    let blocks = heap.take_many(pages * usize::from(SHAPES[class_of(bytes)].blocks), bytes);
    heap.give_all(blocks);
    heap.check();
}

#[test]
fn spare_pages_are_few() {
    for bytes in SIZES {
        let (space, mut heap) = heap();
        batch(&mut heap, 100, bytes);
        kept_at_most(space, FIRST_MOST.into(), 1);
        // It had enough for this one.
        batch(&mut heap, 20, bytes);
        kept_at_most(space, FIRST_MOST.into(), 1);
        heap.check_empty();
    }
}

/// With 32 for all, each batch of 60 pages had 30 of them from the arenas, by the lock that all threads share.
#[test]
fn who_comes_again_for_what_it_gave_away_keeps_it_the_next_time() {
    for bytes in SIZES {
        for pages in [40, 60, 120] {
            let (space, mut heap) = heap();
            for _ in 0..8 {
                batch(&mut heap, pages, bytes);
            }
            let before = space.source().arenas.lock().snapshot();
            for _ in 0..20 {
                batch(&mut heap, pages, bytes);
            }
            let after = space.source().arenas.lock().snapshot();
            assert_eq!((after.allocations, after.frees), (before.allocations, before.frees), "{pages} pages");
            // Not more than it came for, and sixteen.
            kept_at_most(space, pages + 16, 1);
            heap.check_empty();
        }
    }
}

/// That it gave some away counts once, and not each time it takes some.
#[test]
fn who_only_grows_afterwards_keeps_little_more() {
    let (space, mut heap) = heap();
    batch(&mut heap, 100, 64);
    batch(&mut heap, 300, 64);
    kept_at_most(space, usize::from(FIRST_MOST) + 16, 1);
    heap.check_empty();
}

#[test]
fn no_heap_keeps_more_than_two_mebibytes() {
    let (space, mut heap) = heap();
    for round in 0..40 {
        batch(&mut heap, 300, SIZES[round % SIZES.len()]);
        kept_at_most(space, SPARES, SIZES.len());
    }
    assert_eq!(SPARES * HEAP_PAGE_BYTES, 2 << 20);
    heap.check_empty();
}

/// What it came for was in another time of the program.
#[test]
fn who_waits_keeps_nothing_and_few_afterwards() {
    for by_itself in [false, true] {
        let (space, mut heap) = heap();
        for _ in 0..12 {
            batch(&mut heap, 200, 64);
        }
        assert!(heap.own().spare_count > FIRST_MOST.into());
        if by_itself {
            heap.trim();
        } else {
            // As long as it may keep many somebody comes again: the first look sees that it did something.
            assert!(space.collect_for_idle(true));
            assert!(!space.collect_for_idle(true));
        }
        assert_eq!(heap.own().spare_count, 0);
        kept_at_most(space, 0, 1);
        batch(&mut heap, 200, 64);
        kept_at_most(space, FIRST_MOST.into(), 1);
        heap.check_empty();
    }
}

/// A program with little memory is not looked at for anything else, and slept with 2 MiB that nobody used.
#[test]
fn a_look_is_due_where_more_may_be_kept_than_at_first() {
    let (space, mut heap) = heap();
    // It gives some away with the first one, and comes for them again with the second.
    for due in [false, true] {
        batch(&mut heap, 60, 64);
        assert_eq!(space.source().arenas.lock().has_look_ahead(), due);
    }
    assert!(space.collect_for_idle(true), "it did something");
    batch(&mut heap, 60, 64);
    assert!(space.collect_for_idle(true), "and does");
    assert!(!space.collect_for_idle(true));
    kept_at_most(space, 0, 1);
    heap.check_empty();
}

/// It has none for the moment, or is just changing its lists: that is no reason never to come again.
#[test]
fn who_may_keep_many_is_looked_at_again_also_when_nothing_can_be_had_of_it() {
    let (space, mut heap) = heap();
    (0..2).for_each(|_| batch(&mut heap, 60, 64));
    let mut blocks = Vec::new();
    while heap.own().spare_count > 0 {
        blocks.push(heap.take(64));
    }
    assert!(space.collect_for_idle(true), "it did something");
    let busy = heap.busy();
    assert!(space.collect_for_idle(true), "it is busy");
    drop(busy);
    assert!(!space.collect_for_idle(true));
    heap.give_all(blocks);
    heap.check_empty();
}

/// The arenas have the pages that a heap gives away: another one takes them.
#[test]
fn what_a_heap_does_not_keep_is_there_for_others() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    batch(&mut heap, 200, 64);
    let before = space.source().arenas.lock().snapshot().arenas;
    let blocks = other.take_many(120 * HEAP_PAGE_BYTES / MAX_BINNED, MAX_BINNED);
    assert_eq!(space.source().arenas.lock().snapshot().arenas, before);
    other.give_all(blocks);
    heap.trim();
    other.check_empty();
}
