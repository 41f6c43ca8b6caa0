//! OS pages that are made alike, for a kernel that merges equal ones: it takes less memory, and nothing live
//! changes, whatever owners do meanwhile.

use super::vacate::{Blocks, give_up, look, sparse, vacate};
use super::*;
use crate::arena::{ARENA_BYTES, GivenUp};
use hugeheap_os::simulated::Call;
use hugeheap_os::{AddressRange, Pages};

/// Sizes of which nearly each OS page has a live block, when a tenth lives.
const SIZES: [usize; 5] = [16, 48, 64, 256, 576];

/// What the arenas do with each: what is vacant goes, what is not is made alike, and the kernel may merge it.
/// Returns the bytes that were made alike.
fn merge(space: &Space<World>, blocks: &Blocks) -> usize {
    let kernel = &space.source().kernel;
    let mut sum = 0;
    for arena in blocks.arenas() {
        let range = AddressRange::new(arena, ARENA_BYTES);
        // What the test wrote.
        kernel.observe(range).expect("room");
        let (GivenUp { alike, .. }, result) = give_up(space, arena, true, |_| {});
        result.expect("nothing fails");
        sum += alike;
        // SAFETY: contents stay.
        unsafe {
            for half in [arena, arena + ARENA_BYTES / 2] {
                kernel.split(AddressRange::new(half, ARENA_BYTES / 2)).expect("it can be split");
            }
            kernel.merge(range, true).expect("the kernel can");
        }
    }
    sum
}

#[test]
fn a_heap_that_lost_nine_of_ten_blocks_takes_less_than_half_when_the_host_merges() {
    for bytes in SIZES {
        let (space, mut heap, mut blocks) = sparse(bytes);
        let kernel = &space.source().kernel;
        kernel.set_merges(Some(true));
        let alike = merge(space, &blocks);
        let before = kernel.charge();
        assert!(kernel.run_ksmd() > 0, "{bytes}");
        let after = kernel.charge();
        kernel.check().expect("the model is sound");
        assert!(after < before / 2, "{bytes}: {before} to {after}");
        assert!(before - after <= alike as u64, "{bytes}: {alike} alike");
        blocks.check();
        heap.check();
        // All of it is used again, and zeroed blocks are zero though what is free has others' contents.
        for _ in 0..blocks.0.len() {
            let block = heap.allocate_zeroed(bytes).expect("memory");
            assert!(holds(block, bytes, 0));
            fill(block, bytes, 0xee);
            blocks.0.push((block, bytes, 0xee));
        }
        blocks.give_all(&mut heap);
        heap.check_empty();
    }
}

#[test]
fn what_is_merged_is_left_alone_until_blocks_are_taken_or_freed_and_it_was_written() {
    let (space, mut heap, mut blocks) = sparse(64);
    let kernel = &space.source().kernel;
    kernel.set_merges(Some(true));
    assert!(merge(space, &blocks) > 0);
    kernel.run_ksmd();
    heap.collect_all();
    let first = *blocks.arenas().first().expect("some");
    let again = |why: &str| {
        let (GivenUp { alike, .. }, result) = give_up(space, first, true, |_| {});
        result.expect(why);
        alike
    };
    assert_eq!(again("nothing has changed"), 0);
    // Frees alone write nothing to a page: it is merged as before.
    blocks.keep(&mut heap, 2, &mut 3);
    heap.collect_all();
    assert_eq!(again("merged"), 0);
    // Changed and written: their owner's again, and alike with others that are.
    blocks.keep(&mut heap, 2, &mut 4);
    heap.collect_all();
    kernel.touch(AddressRange::new(first, ARENA_BYTES / 4)).expect("room");
    let alike = again("written");
    assert!(0 < alike && alike <= ARENA_BYTES / 4, "{alike}");
    blocks.check();
    blocks.give_all(&mut heap);
    heap.check_empty();
}

/// A write to a page that a child has, too, would make it two.
#[test]
fn pages_that_a_forked_child_still_has_are_not_written() {
    let (space, mut heap, mut blocks) = sparse(64);
    let kernel = &space.source().kernel;
    let first = *blocks.arenas().first().expect("some");
    kernel.observe(AddressRange::new(first, ARENA_BYTES)).expect("room");
    let child = kernel.fork();
    assert_eq!(give_up(space, first, true, |_| {}).0.alike, 0);
    child.exit();
    heap.collect_all();
    // It counted as done: something has to change.
    blocks.keep(&mut heap, 2, &mut 3);
    heap.collect_all();
    assert!(give_up(space, first, true, |_| {}).0.alike > 0);
    blocks.give_all(&mut heap);
    heap.check_empty();
}

/// Nobody who reads a freed block of a hardened heap finds another block's contents there.
#[test]
fn hardened_heaps_are_left_alone() {
    let space = space();
    let mut heap = space.acquire_hardened().expect("memory");
    let (mut blocks, mut seed) = (Blocks::default(), 1);
    blocks.take(&mut heap, 40_000, 64);
    blocks.keep(&mut heap, 10, &mut seed);
    heap.collect_all();
    for arena in blocks.arenas() {
        space.source().kernel.observe(AddressRange::new(arena, ARENA_BYTES)).expect("room");
        assert_eq!(give_up(space, arena, true, |_| {}).0.alike, 0);
    }
    space.set_merges(true);
    assert!(look(space, false).0.iter().all(|vacancy| vacancy.alike == 0));
    blocks.give_all(&mut heap);
}

#[test]
fn where_the_kernel_does_not_tell_whose_pages_are_what_is_vacant_goes_all_the_same() {
    for call in [Call::Exclusive, Call::Reserve, Call::Map] {
        let (space, mut heap, mut blocks) = sparse(576);
        let kernel = &space.source().kernel;
        let first = *blocks.arenas().first().expect("some");
        kernel.observe(AddressRange::new(first, ARENA_BYTES)).expect("room");
        kernel.fail_next(call, libc::ENOMEM, 1);
        let mappings = kernel.mappings();
        let (GivenUp { vacant, alike }, result) = give_up(space, first, true, |_| {});
        assert!(vacant > 0 && alike == 0 && result.is_ok(), "{call:?}: {vacant}, {alike}, {result:?}");
        assert_eq!(kernel.mappings(), mappings, "{call:?}: nothing is left over");
        blocks.give_all(&mut heap);
        heap.check_empty();
    }
}

#[test]
fn a_look_tells_what_could_be_made_alike_if_that_is_asked_for() {
    let (space, mut heap, mut blocks) = sparse(64);
    let spared = |quiet| look(space, quiet).0.iter().map(|vacancy| vacancy.alike).sum::<usize>();
    assert_eq!([spared(false), spared(true)], [0, 0], "it is not asked for");
    // Of the heap's pages some vacant ones are gone already: they are looked at again all the same.
    blocks.arenas().iter().for_each(|&arena| _ = vacate(space, arena, |_| {}));
    heap.collect_all();
    space.set_merges(true);
    let (told, all) = (spared(false), blocks.arenas().len() * ARENA_BYTES);
    assert!(told > all / 4 && told < all, "{told} of {all}");
    merge(space, &blocks);
    heap.collect_all();
    assert!(spared(true) < told / 20, "what was had is told of no more");
    space.set_merges(false);
    assert_eq!(spared(false), 0);
    blocks.give_all(&mut heap);
    heap.check_empty();
}
