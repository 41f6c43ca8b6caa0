//! OS pages of pages at hand: given back while their heap is held, whatever the owner has there.

use super::threads::random;
use super::vacate::{Blocks, SIZES, look, sparse, vacant_bytes, vacate, would_wait};
use super::*;
use crate::arena::ARENA_BYTES;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::BTreeSet;

/// What the owner's fast paths have goes on while OS pages of the page at hand go: whoever drops them has zeroed these.
#[test]
fn of_the_page_at_hand_go_those_that_the_owner_would_have_to_come_for() {
    for bytes in SIZES {
        let (space, mut heap, mut blocks) = sparse(bytes);
        // One from the lists comes to hand, with a window open and without, and blocks are remembered and not.
        for count in [1, 40, 3, 18] {
            blocks.take(&mut heap, count, bytes);
            if count % 3 != 1 {
                let (block, ..) = blocks.0.pop().expect("just taken");
                heap.give(block).expect("live");
            }
            let class = class::class_of(bytes);
            let page = heap.own().bins[class].page;
            assert_ne!(page, 0);
            let mut taken = Blocks::default();
            let window = heap.own().bins[class].current.free().count_ones() as usize;
            let (mut ready, mut gone) = (heap.own().remembered(class) + window, 0);
            let given = vacate(space, page & !(ARENA_BYTES - 1), |range| {
                if range.start & !(HEAP_PAGE_BYTES - 1) == page {
                    assert!(would_wait(&heap), "nobody opens a window meanwhile");
                    gone += range.len;
                    if ready > 0 {
                        ready -= 1;
                        taken.take(&mut heap, 1, bytes);
                    }
                }
            });
            assert_eq!(given.1, Ok(()));
            taken.check();
            blocks.check();
            assert!(vacant_bytes(space, page & !(ARENA_BYTES - 1)) >= gone);
            blocks.0.append(&mut taken.0);
            heap.check();
        }
        blocks.give_all(&mut heap);
        heap.check_empty();
    }
}

/// A thread that has a few blocks of each size has a page of each at hand, and nothing in most of it.
#[test]
fn few_blocks_of_many_sizes_keep_an_os_page_of_each() {
    let (space, mut heap) = heap();
    let sizes = (1..class::SIZES).map(|class| class::SHAPES[class].bytes as usize);
    let sizes: Vec<_> = sizes.filter(|&bytes| bytes <= class::MAX_BINNED).collect();
    let mut blocks = Blocks::default();
    sizes.iter().for_each(|&bytes| blocks.take(&mut heap, 1, bytes));
    let pages: BTreeSet<_> = blocks.0.iter().map(|&(block, ..)| page_of(block)).collect();
    assert!(pages.len() >= 30, "{}", pages.len());
    let (_, changed) = look(space, true);
    assert!(changed);
    let (told, _) = look(space, true);
    assert_eq!(told.iter().map(|vacancy| vacancy.live).sum::<usize>(), sizes.iter().sum());
    assert!(told.iter().all(|vacancy| vacancy.bytes == 0 && vacancy.at_hand > 0), "{told:?}");
    let given: usize = blocks.arenas().iter().map(|&arena| vacate(space, arena, |_| {}).0).sum();
    // One has the open window, and a block of which a part is in the next.
    assert!(given >= pages.len() * HEAP_PAGE_BYTES / 2, "{given} of {} pages", pages.len());
    blocks.check();
    assert!(look(space, true).0.iter().all(|vacancy| vacancy.bytes + vacancy.at_hand == 0), "all was had");
    sizes.iter().for_each(|&bytes| blocks.take(&mut heap, 100, bytes));
    heap.check();
    blocks.give_all(&mut heap);
    heap.check_empty();
}

/// Whoever is in the middle of changing its lists is not waited for, and keeps its pages at hand as they are.
#[test]
fn pages_at_hand_of_a_heap_that_is_busy_stay_as_they_are() {
    let (space, mut heap) = heap();
    let mut blocks = Blocks::default();
    blocks.take(&mut heap, 1, 64);
    let arena = *blocks.arenas().first().expect("one");
    let busy = heap.busy();
    assert_eq!(vacate(space, arena, |_| unreachable!()), (0, Ok(())));
    drop(busy);
    heap.collect_all();
    assert_eq!(vacate(space, arena, |_| {}), (HEAP_PAGE_BYTES - 4096, Ok(())));
    blocks.check();
}

/// Neither before it is counted, nor after it was taken and before its bit is cleared.
#[test]
fn a_page_at_hand_in_the_middle_of_a_free_or_an_allocation_is_left_alone() {
    let (space, mut heap) = heap();
    let mut blocks = Blocks::default();
    // More than a window of them.
    blocks.take(&mut heap, 40, 64);
    let arena = *blocks.arenas().first().expect("one");
    let page = space.page(page_of(blocks.0[0].0)).expect("known");
    let first = (at(blocks.0[0].0) - page.address()) >> 4;
    page.vacant()[first / 64].fetch_or(1 << (first % 64), Ordering::Relaxed);
    assert_eq!(vacate(space, arena, |_| unreachable!()), (0, Ok(())), "a free");
    page.vacant()[first / 64].fetch_and(!(1 << (first % 64)), Ordering::Relaxed);
    page.mark().add_live(1);
    assert_eq!(vacate(space, arena, |_| unreachable!()), (0, Ok(())), "an allocation");
    page.mark().remove_live(1);
    assert!(vacate(space, arena, |_| {}).0 > 0);
    blocks.check();
    heap.check();
}

/// Tells another thread to end, also where this one fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Real threads: one takes and frees a few blocks of some sizes, another one gives back what is vacant.
#[test]
fn few_blocks_that_come_and_go_keep_their_contents() {
    for bytes in [16, 48, 64, 256, 640, 1000] {
        let (space, mut heap) = heap();
        let (stop, given) = (AtomicBool::new(false), AtomicUsize::new(0));
        let mut blocks = Blocks::default();
        blocks.take(&mut heap, 2, bytes);
        let arena = *blocks.arenas().first().expect("one");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    given.fetch_add(vacate(space, arena, |_| {}).0, Ordering::Relaxed);
                }
            });
            let _stop = Stop(&stop);
            let mut seed = bytes as u64;
            let mut steps = 0;
            while steps < 30_000 || given.load(Ordering::Relaxed) == 0 {
                steps += 1;
                assert!(steps < 1 << 27, "nothing was given back");
                match random(&mut seed) % 4 {
                    0 => blocks.take(&mut heap, 1 + (random(&mut seed) % 3) as usize, bytes),
                    _ if blocks.0.len() < 2 => {}
                    either => {
                        let places = if either == 1 { blocks.0.len() } else { 1 };
                        let index = blocks.0.len() - 1 - random(&mut seed) as usize % places;
                        let (block, bytes, value) = blocks.0.swap_remove(index);
                        assert!(holds(block, bytes, value), "{block:p}, {bytes} bytes");
                        heap.give(block).expect("live");
                    }
                }
            }
        });
        heap.check();
        blocks.give_all(&mut heap);
        heap.check_empty();
    }
}
