//! Blocks that are freed in their order, some at a time: which of the pages with free blocks comes to hand.

use super::super::class::class_of;
use super::super::ring::RECENT;
use super::*;
use std::collections::{BTreeSet, VecDeque};

/// How often a queue is renewed: the fewer times, the fewer pages are scattered.
const ROUNDS: usize = 150;

/// Pages that come to hand for a thousand blocks of a queue of so many: `batch` blocks come, and as many of the
/// oldest ones go.
fn pages_of_a_queue(bytes: usize, batch: usize, length: usize) -> usize {
    let (_, mut heap) = heap();
    let class = class_of(bytes);
    let mut queue: VecDeque<_> = heap.take_many(length, bytes).into();
    let (mut at_hand, mut pages, mut blocks) = (0, 0, 0);
    for _ in 0..ROUNDS * length / batch {
        for _ in 0..batch {
            queue.push_back(heap.take(bytes));
            let now = heap.own().bins[class].page;
            pages += usize::from(core::mem::replace(&mut at_hand, now) != now);
            blocks += 1;
        }
        heap.give_all(queue.drain(..batch));
    }
    heap.check();
    heap.give_all(queue);
    heap.check_empty();
    pages * 1000 / blocks
}

/// Each page had blocks of many times, and few free ones when it was its turn: for ever. Which queue it is
/// decides how bad that is, so these are many. With the oldest page first always they came to 832 pages.
#[test]
fn blocks_of_a_queue_are_not_scattered_over_ever_more_pages() {
    let mut pages = 0;
    for bytes in [112, 144, 208] {
        for (batch, length) in
            [50, 128, 300, 1000].into_iter().flat_map(|batch| [(batch, 8192), (batch, 14_600)])
        {
            pages += pages_of_a_queue(bytes, batch, length);
        }
    }
    assert!(pages < 650, "{pages} pages");
}

/// The pages of which the next blocks come, and those in which one was freed: of 600 pages of 2 KiB blocks so
/// many, and all of another one.
fn next_pages_where_blocks_are_free_in(listed: usize) -> (BTreeSet<usize>, BTreeSet<usize>) {
    const BYTES: usize = 2048;
    let (_, mut heap) = heap();
    let pages: Vec<_> =
        by_page(&heap.take_many(600 * HEAP_PAGE_BYTES / BYTES, BYTES)).into_values().collect();
    let first_blocks = |pages: &[Vec<_>]| pages.iter().map(|page| page[0]).collect::<Vec<_>>();
    // Not the page at hand.
    let (spare, rest) = pages[..599].split_at(1);
    let (partial, others) = rest.split_at(listed);
    heap.give_all(spare.concat());
    heap.give_all(first_blocks(partial));
    // Not what is remembered.
    heap.give_all(first_blocks(&others[..RECENT]));
    heap.take_many(RECENT, BYTES);
    let taken = heap.take_many(4, BYTES);
    heap.check();
    (taken.into_iter().map(page_of).collect(), first_blocks(partial).into_iter().map(page_of).collect())
}

/// Of blocks of which a page has few those of a queue are freed together: its page is empty soon.
#[test]
fn few_pages_with_few_blocks_may_become_empty_while_there_is_a_spare_one() {
    let (taken, partial) = next_pages_where_blocks_are_free_in(8);
    assert!(taken.is_disjoint(&partial) && taken.len() == 1, "{taken:x?}");
    let (taken, partial) = next_pages_where_blocks_are_free_in(60);
    assert!(taken.is_subset(&partial), "{taken:x?}");
}

/// Of so many pages one block is freed in so many. Where in the order of these is the page that the next block
/// comes from? What is remembered is of another page.
fn place_of_the_next_block(pages: usize, listed: usize) -> (usize, usize) {
    const BYTES: usize = 208;
    let (_, mut heap) = heap();
    let blocks = heap.take_many(pages * (HEAP_PAGE_BYTES / BYTES), BYTES);
    // The last page is at hand, and has no free block.
    let pages: Vec<_> = by_page(&blocks).into_values().collect();
    let freed: Vec<_> = pages[..listed].iter().map(|page| page[0]).collect();
    heap.give_all(freed.iter().copied());
    heap.give_all(pages[listed][..RECENT].iter().copied());
    heap.take_many(RECENT, BYTES);
    let next = page_of(heap.take(BYTES));
    heap.check();
    let place =
        freed.iter().position(|&block| page_of(block) == next).expect("a page in which one was freed");
    // The newest one of all is that of the remembered blocks, and full again.
    (place, listed - 1)
}

#[test]
fn the_newest_page_comes_first_where_few_of_the_class_have_free_blocks() {
    for (pages, listed, newest_first) in [
        (400, 50, true),
        (400, 60, true),
        // Too many for a cache: the order of their pages matters to who walks through the blocks.
        (400, 70, false),
        // More than a quarter.
        (100, 20, true),
        (100, 30, false),
    ] {
        let (place, newest) = place_of_the_next_block(pages, listed);
        let expected = if newest_first { newest } else { 0 };
        assert_eq!(place, expected, "{listed} of {pages} pages have free blocks");
    }
}
