//! Which free block is handed out: pages fill up, mostly free ones drain, and memory goes back.

use super::super::class::class_of;
use super::super::recent::FEW;
use super::super::ring::RECENT;
use super::super::spares::FIRST_MOST;
use super::*;
use std::collections::BTreeSet;

const BYTES: usize = 64;
const BLOCKS: usize = HEAP_PAGE_BYTES / BYTES;

#[test]
fn a_heap_with_blocks_of_few_sizes_needs_no_huge_page() {
    let (space, mut heap) = heap();
    let arenas = || space.source().with(|arenas| arenas.snapshot());
    let mut blocks: Vec<_> = (1..=16).map(|class| heap.take(16 * class)).collect();
    assert_eq!((arenas().arenas_base, arenas().arenas_thp), (1, 0), "sixteen heap pages of OS pages");
    blocks.push(heap.take(17 * 16));
    assert_eq!((arenas().arenas_base, arenas().arenas_thp), (1, 1), "it is growing");
    heap.give_all(blocks);
    heap.check_empty();
}

#[test]
fn free_blocks_are_used_before_new_pages() {
    let (space, mut heap) = heap();
    for bytes in [16, 48, 576, 640, 4096] {
        let blocks = heap.take_many(20 * HEAP_PAGE_BYTES / bytes, bytes);
        let before = live(space);
        let odd: Vec<_> = blocks.iter().copied().skip(1).step_by(2).collect();
        heap.give_all(odd.iter().copied());
        heap.check();
        let again = heap.take_many(odd.len(), bytes);
        assert_eq!(live(space), before, "{bytes} bytes");
        heap.check();
        let even = blocks.into_iter().step_by(2);
        heap.give_all(even.chain(again));
    }
    heap.check_empty();
}

#[test]
fn mostly_free_pages_are_left_to_drain() {
    let (_, mut heap) = heap();
    let pages: Vec<_> = by_page(&heap.take_many(12 * BLOCKS, BYTES)).into_values().collect();
    let window = 1024 / BYTES;
    let (full, sparse): (Vec<_>, Vec<_>) = pages.iter().enumerate().partition(|(index, _)| index % 2 == 1);
    // The last window of some pages, and all but the first one of others.
    full.iter().for_each(|(_, blocks)| heap.give_all(blocks[BLOCKS - window..].iter().copied()));
    sparse.iter().for_each(|(_, blocks)| heap.give_all(blocks[window..].iter().copied()));
    heap.check();
    // The blocks freed last are in the cache and come first, wherever they are.
    let recent = recent(&mut heap, BYTES);
    let taken = heap.take_many(recent + full.len() * window, BYTES);
    heap.check();
    // They lie in the last pages that were thinned out.
    let remembered = recent.div_ceil(BLOCKS - window);
    for (_, blocks) in &sparse[..sparse.len() - remembered] {
        let page = page_of(blocks[0]);
        assert!(taken.iter().all(|&block| page_of(block) != page), "handed out in a page that should drain");
        heap.give_all(blocks[..window].iter().copied());
        assert_eq!(tag::class(heap.own().space.page(page).expect("known").tag()), tag::SPARE, "it drained");
    }
    // With nothing else left they are used before a new page is.
    let before = heap.page_count();
    heap.take_many(BLOCKS, BYTES);
    assert_eq!(heap.page_count(), before);
    heap.check();
}

/// They wandered from one window to the next, and lay in all OS pages of their page after a while.
#[test]
fn few_blocks_that_are_replaced_at_random_stay_at_the_beginning_of_their_page() {
    let (_, mut heap) = heap();
    let mut random = 1u64;
    let mut below = |limit: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % limit
    };
    let first = heap.take(32);
    let mut blocks = vec![first];
    // More come and go at a time than are remembered.
    for (count, grows) in (0..1000).map(|round| if round % 2 == 0 { (50, true) } else { (10, false) }) {
        while blocks.len() != count {
            if grows {
                blocks.push(heap.take(32));
            } else {
                let block = blocks.swap_remove(below(blocks.len()));
                heap.give(block).expect("live");
            }
        }
        let offset = |block: &NonNull<u8>| block.as_ptr() as usize - page_of(first);
        assert!(blocks.iter().all(|block| offset(block) < 4096));
    }
    heap.check();
    heap.give_all(blocks);
    heap.check_empty();
}

#[test]
fn a_page_comes_back_when_its_last_block_is_freed() {
    let (space, mut heap) = heap();
    for bytes in [48, 1024] {
        let blocks = heap.take_many(64 * HEAP_PAGE_BYTES / bytes, bytes);
        let mut freed = 0;
        for page in by_page(&blocks).into_values() {
            heap.give_all(page);
            freed += 1;
            let kept = live(space) / HEAP_PAGE_BYTES as u64;
            assert!(kept <= 66 - freed + u64::from(FIRST_MOST), "{kept} pages after {freed} were freed");
        }
        heap.trim();
    }
    heap.check_empty();
}

/// The same whichever block is the last: what is looked at beside a window that becomes empty may be empty too
/// while another one is not.
#[test]
fn a_page_comes_back_in_whatever_order_its_blocks_are_freed() {
    let (_, mut heap) = heap();
    for bytes in [32, 144, 576, 640, 2048, 4096] {
        for order in 0..5 {
            let blocks = heap.take_many(6 * (HEAP_PAGE_BYTES / bytes), bytes);
            let pages = by_page(&blocks).into_values().collect::<Vec<_>>();
            // The bin has the last page at hand.
            for (index, page) in pages[..pages.len() - 1].iter().enumerate() {
                let mut rest = page.clone();
                let address = page_of(page[0]);
                while !rest.is_empty() {
                    let place = match order {
                        0 => 0,
                        1 => rest.len() - 1,
                        2 => (rest.len() % 2) * (rest.len() - 1),
                        3 => rest.len() / 2,
                        // Another order in each page, the same in each run.
                        _ => (rest.len() * 7919 + index * 31) % rest.len().max(2) % rest.len(),
                    };
                    heap.give(rest.swap_remove(place)).expect("live");
                    if rest.len() < 3 {
                        heap.check();
                    }
                }
                let tag = heap.own().space.page(address).expect("known").tag();
                let at_hand = heap.own().bins[class_of(bytes)].page == address;
                assert!(
                    at_hand || [0, tag::SPARE].contains(&tag::class(tag)),
                    "{bytes} bytes, order {order}"
                );
            }
            heap.give_all(pages[pages.len() - 1].iter().copied());
        }
    }
    heap.check_empty();
}

#[test]
fn a_heap_with_few_blocks_takes_few_pages() {
    let (space, mut heap) = heap();
    heap.take(48);
    assert_eq!(live(space), HEAP_PAGE_BYTES as u64);
    heap.take(100);
    assert!(live(space) <= 3 * HEAP_PAGE_BYTES as u64, "{}", live(space));
}

#[test]
fn a_program_at_the_border_of_a_page_leaves_the_arenas_alone() {
    let (space, mut heap) = heap();
    let blocks = heap.take_many(10 * BLOCKS, BYTES);
    let before = space.source().arenas.lock().snapshot();
    for _ in 0..100 {
        let more = heap.take_many(BLOCKS, BYTES);
        heap.give_all(more);
    }
    let after = space.source().arenas.lock().snapshot();
    assert!(after.allocations - before.allocations <= u64::from(FIRST_MOST), "{after:?}");
    assert_eq!(after.frees, before.frees);
    heap.give_all(blocks);
    heap.check_empty();
}

#[test]
fn a_random_drop_of_nine_tenths_is_refilled_without_a_new_page() {
    let (space, mut heap) = heap();
    let mut blocks = heap.take_many(20_000, BYTES);
    let mut state = 9;
    for index in (1..blocks.len()).rev() {
        blocks.swap(index, super::threads::random(&mut state) as usize % (index + 1));
    }
    let kept = blocks.split_off(18_000);
    let before = live(space);
    heap.give_all(blocks);
    heap.check();
    let again = heap.take_many(18_000, BYTES);
    assert!(live(space) <= before, "{} of {before}", live(space));
    heap.check();
    heap.give_all(kept.into_iter().chain(again));
    heap.check_empty();
}

#[test]
fn blocks_freed_last_come_first_and_the_open_window_goes_on_after_them() {
    for bytes in [48, 1000] {
        let (_, mut heap) = heap();
        let blocks = heap.take_many(20 * RECENT, bytes);
        let next = heap.take(bytes);
        heap.give(next).expect("live");
        // Some of them are remembered; the rest waits in its pages.
        let freed: Vec<_> = blocks.iter().copied().step_by(7).take(2 * RECENT).collect();
        heap.give_all(freed.iter().copied());
        heap.check();
        let recent = recent(&mut heap, bytes);
        assert_eq!(recent, RECENT, "{bytes} bytes");
        let last: Vec<_> = freed.iter().rev().take(recent).copied().collect();
        assert_eq!(heap.take_many(recent, bytes), last, "{bytes} bytes: latest first");
        assert_eq!(heap.take(bytes), next, "{bytes} bytes: older ones are forgotten");
        heap.check();
        let live = blocks.into_iter().filter(|block| !freed.contains(block) || last.contains(block));
        heap.give_all(live.chain([next]));
        heap.check_empty();
    }
}

#[test]
fn however_many_blocks_are_remembered_none_is_handed_out_twice() {
    let (_, mut heap) = heap();
    let mut blocks = heap.take_many(10 * BLOCKS, BYTES);
    for freed in 1..=3 * RECENT {
        blocks.rotate_left(97);
        heap.give_all(blocks.drain(..freed));
        // One more, so that what is remembered beyond its last block is looked at as well.
        blocks.extend(heap.take_many(freed + 1, BYTES));
        let distinct: BTreeSet<_> = blocks.iter().map(|&block| at(block)).collect();
        assert_eq!(distinct.len(), blocks.len(), "{freed} freed");
        heap.check();
    }
    heap.give_all(blocks);
    heap.check_empty();
}

/// How many blocks are remembered.
fn recent(heap: &mut Heap<World>, bytes: usize) -> usize {
    heap.own().remembered(class_of(bytes))
}

/// Takes and frees in turn until its blocks come from what was gathered: the open window is left.
fn gathering(heap: &mut Heap<World>, bytes: usize) -> Vec<NonNull<u8>> {
    let mut blocks = heap.take_many(3 * (HEAP_PAGE_BYTES / bytes) + 5, bytes);
    let class = class_of(bytes);
    assert_eq!(heap.own().bins[class].current.is_open(), class < FEW, "{bytes} bytes");
    heap.give(blocks.swap_remove(0)).expect("live");
    blocks.extend(heap.take_many(2, bytes));
    assert!(!heap.own().bins[class].current.is_open(), "{bytes} bytes: left");
    heap.check();
    blocks
}

#[test]
fn a_program_that_takes_and_frees_in_turn_gets_the_next_blocks_of_the_page_in_their_order() {
    for bytes in [16, 48, 144, 400, 576, 1024, 1472] {
        let (_, mut heap) = heap();
        let mut blocks = gathering(&mut heap, bytes);
        let first = *blocks.last().expect("some");
        // What is freed meanwhile comes first, and the rest of what was gathered after it.
        let given = blocks.swap_remove(1);
        heap.give(given).expect("live");
        assert_eq!(heap.take(bytes), given);
        blocks.push(given);
        let next = heap.take_many(40, bytes);
        let beside = next.iter().take_while(|&&block| page_of(block) == page_of(first));
        for (number, block) in beside.enumerate() {
            assert_eq!(at(*block) - at(first), (number + 1) * bytes, "{bytes} bytes: block {number}");
        }
        heap.check();
        heap.give_all(blocks.into_iter().chain(next));
        heap.check_empty();
    }
}

#[test]
fn a_window_is_open_again_when_nothing_was_freed_for_a_while() {
    for bytes in [16, 64, 400] {
        let (_, mut heap) = heap();
        let mut blocks = gathering(&mut heap, bytes);
        blocks.extend(heap.take_many(RECENT, bytes));
        assert!(heap.own().bins[class_of(bytes)].current.is_open(), "{bytes} bytes");
        heap.give_all(blocks);
        heap.check_empty();
    }
}

#[test]
fn what_was_gathered_is_found_again_when_it_is_forgotten() {
    let (space, mut heap) = heap();
    let mut blocks = gathering(&mut heap, BYTES);
    // Freed ones overwrite what was gathered, and all are forgotten when the first is found taken.
    let freed: Vec<_> = blocks.drain(..2 * RECENT).collect();
    heap.give_all(freed);
    let before = live(space);
    // All free blocks of the three pages and a part are handed out before another page is taken.
    let room = 4 * BLOCKS - blocks.len();
    blocks.extend(heap.take_many(room, BYTES));
    assert_eq!(live(space), before);
    heap.check();
    heap.give_all(blocks);
    heap.check_empty();
}

/// Of a page without a live block the next ones are remembered without a look at its windows.
#[test]
fn what_was_gathered_of_a_new_page_is_found_again_when_it_is_forgotten() {
    for bytes in [640, 1472, 2048, 3264, 4096] {
        let (_, mut heap) = heap();
        let blocks_of_page = HEAP_PAGE_BYTES / bytes;
        let mut blocks = heap.take_many(RECENT * blocks_of_page, bytes);
        let pages = by_page(&blocks);
        assert_eq!(pages.len(), RECENT, "{bytes} bytes");
        blocks.push(heap.take(bytes));
        let before = heap.page_count();
        // As many as are remembered, and no page without a live one.
        let freed: Vec<_> = pages.into_values().map(|blocks| blocks[0]).collect();
        blocks.retain(|block| !freed.contains(block));
        heap.give_all(freed);
        heap.check();
        blocks.extend(heap.take_many(RECENT + blocks_of_page - 1, bytes));
        assert_eq!(heap.page_count(), before, "{bytes} bytes: free blocks were left");
        heap.check();
        heap.give_all(blocks);
        heap.check_empty();
    }
}

#[test]
fn the_window_stays_open_for_who_asks_it_itself() {
    let (_, mut heap) = heap();
    let mut blocks = heap.take_many(3 * BLOCKS + 5, BYTES);
    for _ in 0..3 {
        heap.give(blocks.swap_remove(0)).expect("live");
        for _ in 0..2 {
            blocks.push(heap.allocate_after_window(BYTES).expect("memory"));
        }
        assert!(heap.own().bins[class_of(BYTES)].current.is_open());
    }
    heap.check();
    heap.give_all(blocks);
    heap.check_empty();
}

/// Takes a block as the interpreters' hooks do.
fn take_near(heap: &mut Heap<World>, bytes: usize) -> (NonNull<u8>, bool) {
    match heap.allocate_near(bytes) {
        Some(block) => (block, true),
        None => (heap.allocate_far(bytes).expect("memory"), false),
    }
}

#[test]
fn a_block_that_is_taken_and_freed_in_turn_is_at_hand_for_who_asks_the_window() {
    for bytes in [16, 48, 400] {
        let (_, mut heap) = heap();
        // Two windows of a page, the second one full.
        let mut blocks = heap.take_many(2, bytes);
        let first = page_of(blocks[0]);
        let is_full = |heap: &mut Heap<World>| {
            let current = heap.own().bins[class_of(bytes)].current;
            current.base != first && current.free() == 0
        };
        while !is_full(&mut heap) {
            blocks.push(heap.take(bytes));
        }
        let mut given = blocks.remove(1);
        let mut at_hand = 0;
        for _ in 0..8 {
            assert!(heap.free_as_near(given), "{bytes} bytes");
            let taken = take_near(&mut heap, bytes);
            assert_eq!(taken.0, given, "{bytes} bytes");
            given = taken.0;
            at_hand += u32::from(taken.1);
            heap.check();
        }
        // Once to see it, once to be sure.
        assert_eq!(at_hand, 6, "{bytes} bytes");
        let own = heap.own();
        let mark = own.space.page(first).expect("it has blocks").mark();
        assert_eq!(own.bins[class_of(bytes)].current.base, first, "{bytes} bytes");
        assert_eq!(mark.free() & 1, 0, "{bytes} bytes: nobody else has to find an open window");
        heap.give(given).expect("live");
        heap.give_all(blocks);
        heap.check_empty();
    }
}

#[test]
fn blocks_of_many_windows_taken_in_turn_open_none() {
    let (_, mut heap) = heap();
    let blocks = heap.take_many(BLOCKS, BYTES);
    let base = heap.own().bins[class_of(BYTES)].current.base;
    for number in 1..200 {
        // A window has 16 of them, and the next one is 37 further on.
        let block = blocks[number * 37 % BLOCKS];
        assert!(heap.free_as_near(block));
        assert_eq!(take_near(&mut heap, BYTES).0, block);
        assert_eq!(heap.own().bins[class_of(BYTES)].current.base, base);
    }
    heap.check();
    heap.give_all(blocks);
    heap.check_empty();
}

#[test]
fn a_page_without_live_blocks_is_handed_out_from_its_beginning_to_its_end() {
    for bytes in [16, 48, 64, 144, 576, 640, 1472, 2048, 3264, 4096] {
        let (_, mut heap) = heap();
        let blocks = heap.take_many(2 * (HEAP_PAGE_BYTES / bytes), bytes);
        let pages = by_page(&blocks);
        assert_eq!(pages.len(), 2, "{bytes} bytes");
        for (page, blocks) in pages {
            let expected: Vec<_> = (0..HEAP_PAGE_BYTES / bytes).map(|index| page + index * bytes).collect();
            assert_eq!(blocks.into_iter().map(at).collect::<Vec<_>>(), expected, "{bytes} bytes");
        }
        heap.check();
        heap.give_all(blocks);
        heap.check_empty();
    }
}

#[test]
fn a_page_is_used_up_before_another_one_whatever_was_freed_in_it() {
    for bytes in [16, 48, 64, 144, 576] {
        let blocks_of_page = HEAP_PAGE_BYTES / bytes;
        for taken in [1, blocks_of_page / 3, blocks_of_page - 1, blocks_of_page] {
            let (_, mut heap) = heap();
            let mut blocks = heap.take_many(taken, bytes);
            heap.give(blocks.swap_remove(taken / 2)).expect("live");
            heap.check();
            // No block of the rest is lost, and none is handed out twice.
            blocks.extend(heap.take_many(blocks_of_page - taken + 1, bytes));
            assert_eq!(by_page(&blocks).len(), 1, "{bytes} bytes, {taken} taken");
            blocks.sort_unstable();
            assert!(blocks.is_sorted_by(|block, next| block < next), "{bytes} bytes, {taken} taken");
            heap.check();
            heap.give_all(blocks);
            heap.check_empty();
        }
    }
}

#[test]
fn what_was_not_handed_out_of_a_page_is_found_after_a_trim() {
    let (_, mut heap) = heap();
    let blocks = heap.take_many(10, BYTES);
    heap.trim();
    heap.check();
    let all: Vec<_> = blocks.into_iter().chain(heap.take_many(BLOCKS - 10, BYTES)).collect();
    assert_eq!(by_page(&all).len(), 1);
    heap.give_all(all);
    heap.check_empty();
}

#[test]
fn what_is_freed_in_a_page_that_was_full_at_a_trim_is_found() {
    let (_, mut heap) = heap();
    let mut blocks = heap.take_many(BLOCKS, BYTES);
    assert_eq!(by_page(&blocks).len(), 1);
    heap.trim();
    heap.check();
    // More than are remembered.
    heap.give_all(blocks.split_off(BLOCKS - 2 * RECENT));
    heap.check();
    blocks.extend(heap.take_many(2 * RECENT, BYTES));
    assert_eq!(by_page(&blocks).len(), 1);
    heap.give_all(blocks);
    heap.check_empty();
}

/// They were taken from there and from the window, and the page's count was too high for good.
#[test]
fn a_window_that_becomes_the_current_one_takes_its_remembered_blocks_along() {
    const BYTES: usize = 256;
    let (_, mut heap) = heap();
    let blocks = heap.take_many(1024 / BYTES + 1, BYTES);
    heap.give_all(blocks);
    // The rest of the open window, and two of the other one, which is followed then.
    let near = |heap: &mut Heap<World>| heap.allocate_near(BYTES).or_else(|| heap.allocate_far(BYTES));
    let mut blocks: Vec<_> = (0..1024 / BYTES + 2).map(|_| near(&mut heap).expect("memory")).collect();
    assert_eq!(recent(&mut heap, BYTES), 0, "they are the window's");
    heap.check();
    blocks.extend(heap.take_many(2, BYTES));
    heap.check();
    heap.give_all(blocks);
    heap.check_empty();
}

#[test]
fn what_is_freed_in_the_open_window_is_not_remembered_by_whichever_way_it_is_freed() {
    let (_, mut heap) = heap();
    let first = heap.take(BYTES);
    let second = heap.take(BYTES);
    // SAFETY: the test owns the blocks.
    unsafe {
        heap.free_sized_anywhere(first, BYTES);
        heap.check();
        heap.free_sized(second, BYTES);
    }
    assert_eq!(recent(&mut heap, BYTES), 0);
    heap.check_empty();
}
