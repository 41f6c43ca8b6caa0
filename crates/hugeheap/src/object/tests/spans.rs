//! Blocks of spans: of every length, freed by whomever, in spans that others use up, and given back.

use super::super::lengths::{CUTS, LONGEST, length_of};
use super::super::spans::{SPANNED, Span};
use super::threads::random;
use super::*;
use crate::arena::{ARENA_BYTES, Tenant};
use core::ops::RangeInclusive;
use hugeheap_os::simulated::Call;
use proptest::prelude::*;

/// The lengths of spans, in bytes.
pub(super) fn lengths() -> impl Iterator<Item = usize> {
    CUTS[LONGEST..].iter().map(|cut| cut.bytes())
}

pub(super) fn pages(space: &Space<World>) -> usize {
    live(space) as usize / HEAP_PAGE_BYTES
}

#[test]
fn blocks_of_a_length_fill_their_spans_without_touching_each_other() {
    for bytes in lengths() {
        let (space, mut heap) = heap();
        let cut = CUTS[length_of(bytes).expect("a length")];
        let blocks = heap.take_many(5 * cut.blocks as usize, bytes);
        for (number, &block) in blocks.iter().enumerate() {
            assert_eq!(heap.usable_size(block), Ok(bytes));
            fill(block, bytes, number as u8);
        }
        assert_eq!(pages(space), 5 * cut.pages as usize, "{bytes}");
        for (number, &block) in blocks.iter().enumerate() {
            assert!(holds(block, bytes, number as u8), "{bytes}");
        }
        heap.check();
        heap.give_all(blocks);
        heap.check_empty();
    }
}

#[test]
fn a_wrong_free_of_a_block_of_a_span_is_told() {
    for bytes in lengths() {
        let (space, mut heap) = heap();
        let mut other = space.acquire().expect("memory");
        let mut hardened = space.acquire_hardened().expect("memory");
        let blocks = heap.take_many(9, bytes);
        for &block in &blocks {
            for offset in (16..bytes).step_by(1008).chain([bytes - 16, 1, 1024, bytes / 2]) {
                for heap in [&mut heap, &mut other, &mut hardened] {
                    assert_eq!(heap.give(pointer(at(block) + offset)), Err(Mistake::Interior { bytes }));
                }
            }
        }
        for (number, &block) in blocks.iter().enumerate() {
            match number % 4 {
                0 => heap.give(block).expect("live"),
                1 => other.give(block).expect("live"),
                2 => hardened.give(block).expect("live"),
                // SAFETY: live and not used any more.
                _ => unsafe { space.free(block) },
            }
            // Kept by a heap, or pooled, or its span went.
            for heap in [&mut heap, &mut other, &mut hardened] {
                assert!(matches!(heap.give(block), Err(Mistake::NotLive { .. })));
                assert!(matches!(heap.usable_size(block), Err(Mistake::NotLive { .. })));
                // SAFETY: refused.
                assert!(unsafe { heap.try_reallocate(block, 100) }.is_err());
            }
        }
        // And after its span went.
        heap.trim();
        other.trim();
        assert_eq!(pages(space), 0);
        assert!(matches!(heap.give(blocks[0]), Err(Mistake::NotLive { bytes: 0 } | Mistake::Foreign)));
        heap.check_empty();
    }
}

/// Fifteen blocks of 8.5 KiB leave 512 bytes of eight heap pages, where a sixteenth would begin.
#[test]
fn no_block_begins_in_the_rest_of_a_span() {
    let (_, mut heap) = heap();
    let blocks = heap.take_many(15, 8704);
    let rest = pointer(at(blocks[0]) + 15 * 8704);
    assert_eq!(heap.give(rest), Err(Mistake::Interior { bytes: 8704 }));
    assert_eq!(heap.usable_size(rest), Err(Mistake::Interior { bytes: 8704 }));
    heap.give_all(blocks);
    heap.check_empty();
}

#[test]
fn a_size_of_another_length_is_told() {
    let (space, mut heap) = heap();
    let classes: Vec<RangeInclusive<usize>> =
        vec![4097..=4352, 6145..=7168, 8193..=8704, 16_385..=17_408, 65_537..=73_728];
    for sizes in classes {
        let block = heap.take(*sizes.start());
        let bytes = *sizes.end();
        for given in [sizes.start() - 1, bytes + 1, 100, 1 << 20] {
            assert_eq!(space.check_size(at(block), given), Err(Mistake::WrongSize { bytes, given }));
        }
        assert_eq!(space.check_size(at(block), bytes), Ok(()));
        heap.give(block).expect("live");
        for given in sizes.clone().step_by(100) {
            let block = heap.take(bytes);
            // SAFETY: live and not used any more.
            unsafe { heap.free_sized(block, given) };
            let block = heap.take(bytes);
            // SAFETY: as before.
            unsafe { space.free_sized(block, given) };
        }
    }
    heap.check_empty();
}

#[test]
fn what_one_thread_freed_another_uses_in_the_spans_that_are_fullest() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let bytes = 14 << 10;
    let blocks = heap.take_many(64 * 8, bytes);
    let full = pages(space);
    // Of the first half of the spans one block in eight is freed, of the others seven. (What is kept is given
    // to the pool.)
    let freed: Vec<_> = blocks.iter().enumerate().filter(|&(n, _)| (n % 8 == 0) == (n < 256)).collect();
    heap.give_all(freed.iter().map(|&(_, &block)| block));
    heap.trim();
    assert_eq!(pages(space), full, "a block of each span lives");
    let again = other.take_many(32, bytes);
    let gaps: Vec<_> = blocks[..256].iter().step_by(8).map(|&block| at(block)).collect();
    assert!(again.iter().all(|&block| gaps.contains(&at(block))), "the gaps of full spans come first");
    heap.check();
    let more = other.take_many(32 * 7, bytes);
    assert_eq!(pages(space), full);
    let rest = blocks.iter().enumerate().filter(|&(n, _)| (n % 8 == 0) != (n < 256));
    heap.give_all(rest.map(|(_, &block)| block));
    other.give_all(again.into_iter().chain(more));
    other.trim();
    heap.check_empty();
}

#[test]
fn blocks_of_spans_come_and_go_without_the_arenas() {
    for (count, bytes) in [(200, 9000), (100, 17_000), (50, 70_000), (1, 40_000)] {
        let (space, mut heap) = heap();
        let up_and_down = |heap: &mut Heap<World>| {
            let blocks = heap.take_many(count, bytes);
            heap.give_all(blocks);
        };
        (0..12).for_each(|_| up_and_down(&mut heap));
        let before = space.source().arenas.lock().snapshot().allocations;
        (0..10).for_each(|_| up_and_down(&mut heap));
        assert_eq!(space.source().arenas.lock().snapshot().allocations, before, "{count} of {bytes}");
        heap.check_empty();
    }
}

/// A run of the pages that one block needs may be there where there is none for a span.
#[test]
fn where_there_is_no_room_for_a_span_there_may_be_for_a_run() {
    let space = space_with(Config::default(), 4 << 20);
    let mut heap = space.acquire().expect("memory");
    let first = heap.take(30_000);
    heap.give(first).expect("live");
    space.source().kernel.fail_every(Call::Reserve, 1, libc::ENOMEM);
    let all: Vec<_> = core::iter::from_fn(|| heap.allocate(30_000)).collect();
    assert!(all.len() > 100);
    // Every second run: two heap pages each, and a span of blocks of 20 KiB has five.
    heap.give_all(all.iter().copied().step_by(2));
    let more: Vec<_> = core::iter::from_fn(|| heap.allocate(20_000)).collect();
    assert_eq!(more.len(), all.len().div_ceil(2));
    assert!(more.iter().all(|&block| heap.usable_size(block) == Ok(32 << 10)));
    heap.check();
    heap.give_all(more.into_iter().chain(all.into_iter().skip(1).step_by(2)));
    heap.check_empty();
}

#[test]
fn without_memory_for_metadata_a_span_is_not_made_and_nothing_is_lost() {
    let (space, mut heap) = heap();
    space.source().kernel.fail_every(Call::Protect, 1, libc::ENOMEM);
    let _ = heap.allocate(20_000);
    space.source().kernel.fail_no_more();
    let blocks = heap.take_many(20, 20_000);
    heap.check();
    heap.give_all(blocks);
    heap.trim();
    heap.check();
}

#[test]
fn resized_blocks_keep_their_contents_and_stay_where_their_length_does() {
    let (_, mut heap) = heap();
    let mut seed = 7;
    let mut block = heap.take(10_000);
    let mut have = 10_000;
    fill(block, have, 1);
    for round in 2..200u8 {
        let bytes = 8193 + random(&mut seed) as usize % 80_000;
        // SAFETY: live, and the old address is not used any more.
        let moved = unsafe { heap.try_reallocate(block, bytes) }.expect("live").expect("memory");
        assert!(holds(moved, have.min(bytes), round - 1), "{have} to {bytes}");
        fill(moved, bytes, round);
        (block, have) = (moved, bytes);
    }
    heap.give(block).expect("live");
    let block = heap.take(10_000);
    // SAFETY: as before.
    let grown = unsafe { heap.try_reallocate(block, 17_000) }.expect("live").expect("memory");
    assert_eq!(heap.usable_size(grown), Ok(32 << 10), "a run, for what grows on");
    heap.give(grown).expect("live");
    let block = heap.take(17_000);
    for bytes in [16_385, 17_408, 16_900] {
        // SAFETY: as before.
        assert_eq!(unsafe { heap.try_reallocate(block, bytes) }, Ok(Some(block)));
    }
    heap.give(block).expect("live");
    heap.check_empty();
}

/// What grew was copied six times between 4 and 8 KiB.
#[test]
fn what_grows_beyond_4_kib_has_room_up_to_8_and_can_be_freed_with_its_size() {
    let (space, mut heap) = heap();
    for bytes in [4097, 5000, 8192] {
        let block = heap.take(3000);
        fill(block, 3000, 5);
        // SAFETY: live, and the old address is not used any more.
        let grown = unsafe { heap.try_reallocate(block, bytes) }.expect("live").expect("memory");
        assert!(holds(grown, 3000, 5));
        assert_eq!(heap.usable_size(grown), Ok(8192));
        for more in [4097, 6000, 8192] {
            // SAFETY: as before.
            assert_eq!(unsafe { heap.try_reallocate(grown, more) }, Ok(Some(grown)), "{bytes} to {more}");
            assert_eq!(space.check_size(at(grown), more), Ok(()));
        }
        for given in [4096, 8193] {
            let mistake = Mistake::WrongSize { bytes: 8192, given };
            assert_eq!(space.check_size(at(grown), given), Err(mistake));
        }
        // SAFETY: live and not used any more.
        unsafe { heap.free_sized(grown, bytes) };
    }
    heap.check_empty();
}

#[test]
fn aligned_blocks_are_aligned_whatever_their_length() {
    let (_, mut heap) = heap();
    for shift in 4..=14 {
        for bytes in (8193..80_000).step_by(1777) {
            let align = 1 << shift;
            let blocks: Vec<_> =
                (0..3).map(|_| heap.allocate_aligned(bytes, align).expect("memory")).collect();
            for &block in &blocks {
                assert_eq!(at(block) % align, 0, "{bytes} aligned to {align}");
                fill(block, bytes, shift as u8);
            }
            // SAFETY: live, and the old address is not used any more.
            let grown = unsafe { heap.reallocate_aligned(blocks[0], bytes, bytes + 9000, align) };
            let grown = grown.expect("memory");
            assert!(at(grown) % align == 0 && holds(grown, bytes, shift as u8));
            // So that the next one of that length begins where no heap page does.
            let before = heap.take(bytes / 2 + 4200);
            // SAFETY: as before.
            let short = unsafe { heap.reallocate_aligned(blocks[1], bytes, bytes / 2 + 4200, align) };
            let short = short.expect("memory");
            assert!(
                at(short) % align == 0 && holds(short, bytes / 2, shift as u8),
                "{bytes} to the half, {align}"
            );
            heap.give_all([grown, short, before, blocks[2]]);
        }
    }
    heap.check_empty();
}

#[test]
fn two_threads_that_hand_blocks_of_spans_to_each_other_lose_none() {
    let (space, heap) = heap();
    drop(heap);
    let (to_b, from_a) = std::sync::mpsc::sync_channel::<(usize, usize, u8)>(50);
    let (to_a, from_b) = std::sync::mpsc::sync_channel::<(usize, usize, u8)>(50);
    let work = |to: std::sync::mpsc::SyncSender<(usize, usize, u8)>,
                from: std::sync::mpsc::Receiver<_>,
                seed: u64| {
        move || {
            let mut heap = space.acquire().expect("memory");
            let mut seed = seed;
            let mut own = Vec::new();
            for round in 0..4000 {
                let bytes = 8193 + random(&mut seed) as usize % 66_000;
                let block = heap.take(bytes);
                let value = round as u8;
                fill(block, bytes, value);
                if round % 3 == 0 {
                    let _ =
                        to.try_send((at(block), bytes, value)).map_err(|_| own.push((block, bytes, value)));
                } else {
                    own.push((block, bytes, value));
                }
                for (block, bytes, value) in from.try_iter().map(|(a, b, v)| (pointer(a), b, v)) {
                    assert!(holds(block, bytes, value));
                    heap.give(block).expect("live");
                }
                if own.len() > 40 {
                    let (block, bytes, value) = own.swap_remove(random(&mut seed) as usize % own.len());
                    assert!(holds(block, bytes, value));
                    // SAFETY: live and not used any more.
                    unsafe { heap.free_sized(block, bytes) };
                }
            }
            drop(to);
            for (block, bytes, value) in from.iter().map(|(a, b, v)| (pointer(a), b, v)) {
                assert!(holds(block, bytes, value));
                heap.give(block).expect("live");
            }
            heap.give_all(own.into_iter().map(|(block, ..)| block));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work(to_b, from_b, 1));
        scope.spawn(work(to_a, from_a, 2));
        // Somebody looks, and gives back, all the time.
        scope.spawn(|| {
            for _ in 0..300 {
                let mut arenas = Vec::new();
                space.look_for_vacancy(0, false, |vacancy| {
                    arenas.push(vacancy.arena);
                    true
                });
                for arena in arenas {
                    let range = hugeheap_os::AddressRange::new(arena, ARENA_BYTES);
                    let _ = space.vacate(range, false, &mut |range| {
                        // SAFETY: nothing lives there, and nobody takes it meanwhile.
                        unsafe { core::ptr::write_bytes(range.start as *mut u8, 0, range.len) };
                        Ok(())
                    });
                }
                space.give_surplus_runs(false);
                let _ = space.statistics();
            }
        });
    });
    let mut heap = space.acquire().expect("memory");
    heap.check_empty();
}

#[test]
fn a_forked_child_finds_the_pool_as_it_was() {
    let (space, mut heap) = heap();
    let blocks = heap.take_many(40, 20_000);
    heap.give_all(blocks[..13].iter().copied());
    heap.trim();
    space.lock_for_fork();
    // SAFETY: just locked by this thread.
    unsafe { space.unlock_after_fork() };
    space.after_fork_in_child(&[Some(heap.number())]);
    heap.check();
    let more = heap.take_many(13, 20_000);
    heap.give_all(more.into_iter().chain(blocks[13..].iter().copied()));
    heap.check_empty();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any requests of two heaps, freed by either: nothing overlaps, everything is found, and afterwards
    /// nothing is left.
    #[test]
    fn any_sequence_of_requests(steps in proptest::collection::vec((0..8u8, 8193..90_000usize, 0..1000usize), 1..150)) {
        let (space, mut one) = heap();
        let mut other = space.acquire().expect("memory");
        let mut live: Vec<(NonNull<u8>, usize, u8)> = Vec::new();
        for (number, (step, bytes, which)) in steps.into_iter().enumerate() {
            let heap = if which % 2 == 0 { &mut one } else { &mut other };
            let value = number as u8;
            match step {
                0..=3 => {
                    let block = heap.take(bytes);
                    prop_assert!(heap.usable_size(block).expect("live") >= bytes);
                    fill(block, bytes, value);
                    live.push((block, bytes, value));
                }
                4..=5 if !live.is_empty() => {
                    let (block, bytes, value) = live.swap_remove(which % live.len());
                    prop_assert!(holds(block, bytes, value));
                    heap.give(block).expect("live");
                    prop_assert!(heap.give(block).is_err());
                }
                6 if !live.is_empty() => {
                    let index = which % live.len();
                    let (block, had, before) = live[index];
                    // SAFETY: live, and the old address is not used any more.
                    let moved = unsafe { heap.try_reallocate(block, bytes) }.expect("live").expect("memory");
                    prop_assert!(holds(moved, had.min(bytes), before));
                    fill(moved, bytes, value);
                    live[index] = (moved, bytes, value);
                }
                7 => _ = heap.trim(),
                _ => {}
            }
            if number % 16 == 0 {
                one.check();
            }
        }
        for (block, bytes, value) in live {
            prop_assert!(holds(block, bytes, value));
            one.give(block).expect("live");
        }
        other.trim();
        one.check_empty();
    }
}

#[test]
fn every_page_of_a_span_knows_its_place() {
    let (space, mut heap) = heap();
    for (length, cut) in CUTS.iter().enumerate().skip(LONGEST) {
        let block = heap.take(cut.bytes());
        for number in 0..cut.pages as usize {
            let page = space.page(page_of(block) + number * HEAP_PAGE_BYTES).expect("known");
            assert_eq!(page.tag(), SPANNED);
            let span = Span::of(page).expect("a span");
            assert_eq!((span.length, span.head.address()), (length, at(block)));
            let begin: Vec<_> = span.blocks_in(page).collect();
            let expected = (0..cut.blocks as usize).map(|block| block * cut.bytes());
            let expected = expected.filter(|offset| offset / HEAP_PAGE_BYTES == number);
            let expected: Vec<_> = expected.map(|offset| (at(block) + offset, offset != 0)).collect();
            assert_eq!(begin, expected, "page {number} of length {length}");
        }
    }
}

#[test]
fn what_a_request_gets_is_known_before() {
    let (_, mut heap) = heap();
    for bytes in
        (0..MAX_BLOCK).step_by(37).chain((MAX_BLOCK..600 << 10).step_by(977)).chain([1 << 20, 3_000_000])
    {
        let block = heap.take(bytes);
        assert_eq!(heap.usable_size(block), Ok(block_bytes(bytes)), "{bytes}");
        heap.give(block).expect("live");
    }
    heap.check_empty();
}

#[test]
fn who_keeps_more_blocks_than_before_is_looked_at() {
    let due = |space: &Space<World>| space.source().arenas.lock().maintenance_due();
    let (space, mut heap) = heap();
    let up_and_down = |heap: &mut Heap<World>| {
        let blocks = heap.take_many(40, 17_000);
        heap.give_all(blocks);
    };
    up_and_down(&mut heap);
    assert!(!due(space), "as any heap may");
    (0..3).for_each(|_| up_and_down(&mut heap));
    assert!(due(space));
}

#[test]
fn nobody_takes_from_the_pool_during_a_fork() {
    let (space, heap) = heap();
    let is_free = || {
        std::thread::scope(|scope| scope.spawn(|| space.spans.try_lock().is_some()).join().expect("no panic"))
    };
    space.lock_for_fork();
    assert!(!is_free());
    // SAFETY: just locked by this thread.
    unsafe { space.unlock_after_fork() };
    assert!(is_free());
    drop(heap);
}
