//! OS pages of spans: what nobody needs of them is found, given back, and comes again.

use super::super::lengths::{CUTS, length_of};
use super::spans::{lengths, pages};
use super::*;
use crate::arena::{ARENA_BYTES, GivenUp, Tenant};

/// One block of each span lives: all other OS pages can go, and what lives stays.
#[test]
fn os_pages_of_pooled_blocks_are_given_back_and_come_again() {
    for bytes in lengths() {
        let (space, mut heap) = heap();
        let cut = CUTS[length_of(bytes).expect("a length")];
        let blocks = heap.take_many(6 * cut.blocks as usize, bytes);
        blocks.iter().for_each(|&block| fill(block, bytes, 3));
        let (live, gone): (Vec<_>, Vec<_>) =
            blocks.iter().enumerate().partition(|(number, _)| number % cut.blocks as usize == 1);
        heap.give_all(gone.iter().map(|&(_, &block)| block));
        heap.trim();
        let mut told = Vec::new();
        // The first look sees what changed.
        for quiet in [true, false] {
            told.clear();
            let look = space.look_for_vacancy(0, quiet, |vacancy| {
                told.push(vacancy);
                true
            });
            assert_eq!((told.is_empty(), look.later), (quiet, quiet), "{bytes}");
        }
        let vacancy = told[0];
        assert_eq!(vacancy.live, live.len() * bytes);
        assert_eq!(vacancy.blocks.count_ones() as usize, pages(space));
        let arena = hugeheap_os::AddressRange::new(vacancy.arena, ARENA_BYTES);
        let mut dropped = Vec::new();
        let (GivenUp { vacant: freed, .. }, result) = space.vacate(arena, false, &mut |range| {
            // SAFETY: nothing lives there, which is what is tested.
            unsafe { core::ptr::write_bytes(range.start as *mut u8, 0, range.len) };
            dropped.push(range);
            Ok(())
        });
        assert_eq!((result, freed), (Ok(()), vacancy.bytes), "{bytes}");
        // Each live block takes at most the OS pages that it begins and ends in besides its own.
        let most = pages(space) * HEAP_PAGE_BYTES - live.len() * bytes;
        assert!(freed <= most && freed + live.len() * 2 * 4096 + 6 * 1024 >= most, "{freed} of {most}");
        assert!(live.iter().all(|&(_, &block)| holds(block, bytes, 3)));
        let (again, _) = space.vacate(arena, false, &mut |_| panic!("they are gone"));
        assert_eq!(again.vacant, 0);
        heap.check();
        // Nothing is told of any more, but that it happened.
        space.look_for_vacancy(0, false, |vacancy| {
            assert!(vacancy.gone && vacancy.bytes == 0);
            true
        });
        // One that is taken again has memory again, and is told of when it is pooled the next time.
        let taken = heap.take(bytes);
        fill(taken, bytes, 4);
        heap.give(taken).expect("live");
        heap.trim();
        let mut bytes_told = 0;
        space.look_for_vacancy(0, false, |vacancy| {
            bytes_told += vacancy.bytes;
            true
        });
        assert!(bytes_told > 0 && bytes_told <= bytes + 8192, "{bytes_told}");
        // The arena is in use again as a whole: it is looked at as if nothing had gone.
        space.forget_vacancy(vacancy.arena);
        space.look_for_vacancy(0, false, |again| {
            assert_eq!((again.bytes, again.gone), (vacancy.bytes, false));
            true
        });
        heap.give_all(live.into_iter().map(|(_, &block)| block));
        heap.check_empty();
    }
}

#[test]
fn what_is_kept_by_a_heap_is_not_given_back() {
    let (space, mut heap) = heap();
    let blocks = heap.take_many(8, 20_000);
    heap.give_all(blocks[1..].iter().copied());
    space.look_for_vacancy(0, false, |vacancy| panic!("{vacancy:?}"));
    heap.give(blocks[0]).expect("live");
    heap.check_empty();
}

#[test]
fn of_pooled_blocks_those_that_are_resident_are_taken_first() {
    let (space, mut heap) = heap();
    let blocks = heap.take_many(8, 20 << 10);
    heap.give(blocks[1]).expect("live");
    heap.trim();
    let arena = hugeheap_os::AddressRange::new(at(blocks[0]) & !(ARENA_BYTES - 1), ARENA_BYTES);
    let (dropped, _) = space.vacate(arena, false, &mut |_| Ok(()));
    assert_eq!(dropped.vacant, 20 << 10);
    heap.give(blocks[3]).expect("live");
    heap.trim();
    assert_eq!([heap.take(20 << 10), heap.take(20 << 10)], [blocks[3], blocks[1]]);
    heap.give_all(blocks);
    heap.check_empty();
}

#[test]
fn a_new_span_is_not_quiet_where_one_like_it_was() {
    let (space, mut heap) = heap();
    // Keeps the arena and its metadata.
    let _other = heap.take(30_000);
    let quiet = |space: &Space<World>| space.look_for_vacancy(0, true, |vacancy| panic!("{vacancy:?}")).later;
    let block = heap.take(40 << 10);
    assert!(quiet(space), "seen for the first time");
    heap.give(block).expect("live");
    heap.trim();
    assert_eq!(heap.take(40 << 10), block);
    assert!(quiet(space), "it is another one");
}

#[test]
fn much_that_is_pooled_is_news_for_the_arenas() {
    let look = |space: &Space<World>| space.source().arenas.lock().has_look_ahead();
    let (space, mut heap) = heap();
    let blocks = heap.take_many(2000, 20 << 10);
    assert!(!look(space), "nothing was freed");
    // One in four stays, so that no span goes back to the arenas.
    heap.give_all(blocks.iter().enumerate().filter(|(n, _)| n % 4 != 0).map(|(_, &block)| block));
    heap.trim();
    assert!(look(space));
    heap.give_all(blocks.into_iter().step_by(4));
    heap.check_empty();
}

/// Between the last of its blocks and the arenas: whoever dropped OS pages of it then would drop what the next
/// one writes there.
#[test]
fn a_span_that_is_about_to_go_is_left_alone() {
    let (space, mut heap) = heap();
    let blocks = heap.take_many(86, 12 << 10);
    let (last, others) = blocks.split_last().expect("some");
    for &block in others {
        // SAFETY: live and not used any more.
        unsafe { space.free(block) };
    }
    let arena = hugeheap_os::AddressRange::new(at(*last) & !(ARENA_BYTES - 1), ARENA_BYTES);
    // The arenas are told of a mebibyte in the pool before the span goes.
    space.source().when_asked(move || {
        assert_eq!(space.vacate(arena, false, &mut |_| panic!("it is about to go")).0.vacant, 0);
        space.look_for_vacancy(0, false, |vacancy| panic!("{vacancy:?}"));
    });
    // SAFETY: as before.
    unsafe { space.free(*last) };
    assert!(space.source().asked());
    heap.check_empty();
}
