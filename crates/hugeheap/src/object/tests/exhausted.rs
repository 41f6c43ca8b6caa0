//! Memory exhausted: requests get nothing, what there is stays as it is, and later everything works again.

use super::*;
use hugeheap_os::simulated::Call;

const OUT_OF_MEMORY: i32 = libc::ENOMEM;

/// Calls that get memory. All of them fail from now on, each time.
fn refuse_everything(space: &Space<World>) {
    for call in [Call::Reserve, Call::Map] {
        space.source().kernel.fail_every(call, 1, OUT_OF_MEMORY);
    }
}

/// Takes blocks until there is no memory. Never more than the first arena has room for.
fn exhaust(heap: &mut Heap<World>, bytes: usize) -> Vec<NonNull<u8>> {
    let most = (crate::arena::ARENA_BYTES / bytes).max(1) * 130;
    let blocks: Vec<_> = core::iter::from_fn(|| heap.allocate(bytes)).take(most).collect();
    assert!(blocks.len() < most, "memory came from somewhere");
    blocks
}

#[test]
fn nothing_is_had_and_later_everything() {
    let (space, mut heap) = heap();
    for bytes in [48, 1000, 20_000, 1 << 20] {
        let block = heap.take(bytes);
        fill(block, bytes, 7);
        refuse_everything(space);
        let mut blocks = exhaust(&mut heap, bytes);
        for more in [bytes, 3 << 20, 40 << 20] {
            assert_eq!(heap.allocate(more), None, "{more} bytes");
        }
        heap.check();
        assert!(holds(block, bytes, 7));
        // What is freed is had again, without the system.
        if let Some(last) = blocks.pop() {
            heap.give(last).expect("live");
            blocks.push(heap.take(bytes));
        }
        space.source().kernel.fail_no_more();
        blocks.extend(heap.take_many(100, bytes));
        heap.check();
        heap.give_all(blocks);
        heap.give(block).expect("live");
        heap.check_empty();
    }
}

#[test]
fn a_process_without_any_memory_gets_no_heap_and_then_one() {
    let space = space();
    refuse_everything(space);
    assert!(space.acquire().is_none());
    space.source().kernel.fail_no_more();
    let mut heap = space.acquire().expect("memory");
    refuse_everything(space);
    for bytes in [0, 1, 48, 1000, 20_000, 3 << 20] {
        assert_eq!(heap.allocate(bytes), None, "{bytes} bytes");
        assert_eq!(heap.allocate_zeroed(bytes), None, "{bytes} bytes");
        assert_eq!(heap.allocate_aligned(bytes, 4096), None, "{bytes} bytes");
    }
    heap.check();
    space.source().kernel.fail_no_more();
    let block = heap.take(48);
    heap.give(block).expect("live");
    heap.check_empty();
}

#[test]
fn pages_without_metadata_go_back() {
    let space = space();
    let mut heap = space.acquire().expect("memory");
    // The arenas have a region and an arena; the metadata of its pages is what cannot be had.
    let run = space.source().with(|arenas| arenas.allocate(37)).expect("memory").get();
    let before = live(space);
    for call in [Call::Map, Call::Protect] {
        space.source().kernel.fail_every(call, 1, OUT_OF_MEMORY);
        for bytes in [48, 4000] {
            assert_eq!(heap.allocate(bytes), None);
        }
        assert_eq!(live(space), before, "pages without metadata are of no use");
        heap.check();
        space.source().kernel.fail_no_more();
    }
    heap.take(48);
    heap.check();
    assert_eq!(space.source().with(|arenas| arenas.free(run, 37)), Ok(()));
}

#[test]
fn metadata_needs_no_address_space_that_was_not_there_with_the_region() {
    let space = space_with(Config::default(), 32 << 20);
    let mut heap = space.acquire().expect("memory");
    let mut runs = vec![heap.take(1 << 20)];
    // As if the limit were reached each time a region was reserved; no block has been asked for yet.
    space.source().kernel.fail_every(Call::Reserve, 1, OUT_OF_MEMORY);
    let block = heap.take(48);
    while let Some(run) = heap.allocate(1 << 20) {
        runs.push(run);
        assert!(runs.len() <= 32, "memory came from somewhere");
    }
    heap.give_all(runs);
    let blocks = heap.take_many(10_000, 640);
    heap.give_all(blocks);
    heap.give(block).expect("live");
    heap.check_empty();
}

#[test]
fn an_arena_without_metadata_does_not_stand_before_those_that_have_it() {
    const GROUP: usize = super::super::tables::GROUP_BYTES;
    let space = space_with(Config::default(), 4 * GROUP);
    let mut heap = space.acquire().expect("memory");
    let first = heap.take(48);
    // The group of the first arena is full of runs, but for a little; the next arena's metadata cannot be had.
    // They are no heap's, which would have metadata.
    let region = space.regions()[0].start;
    let take = || space.source().with(|arenas| arenas.allocate(64)).expect("memory").get();
    let give = |run| assert_eq!(space.source().with(|arenas| arenas.free(run, 64)), Ok(()));
    let mut runs: Vec<_> = core::iter::repeat_with(take).take((GROUP >> 20) + 1).collect();
    // Makes room in the first group.
    give(runs.swap_remove(5));
    space.source().kernel.fail_every(Call::Protect, 1, OUT_OF_MEMORY);
    let mut blocks: Vec<_> = core::iter::from_fn(|| heap.allocate(640)).collect();
    assert!(blocks.len() > 1000 && blocks.iter().all(|&block| at(block) - region < GROUP));
    let last = runs.pop().expect("many");
    let beyond = last - region >= GROUP;
    assert!(beyond, "the last run lies in the next group");
    runs.into_iter().for_each(give);
    // All of it can be used for blocks, although the arenas take the one first that cannot: a run lives in it.
    let more = heap.take_many(GROUP * 3 / 4 / 704, 640);
    blocks.extend(more);
    heap.check();
    space.source().kernel.fail_no_more();
    blocks.extend(heap.take_many(20 * (crate::arena::ARENA_BYTES / 640), 640));
    assert!(blocks.iter().any(|&block| at(block) - region >= GROUP));
    heap.give_all(blocks);
    heap.give(first).expect("live");
    give(last);
    heap.check_empty();
}

#[test]
fn resizing_without_memory_changes_nothing() {
    for (bytes, more) in [(48, 64), (48, 20_000), (1000, 3 << 20), (20_000, 100_000), (1 << 20, 3 << 20)] {
        // Without arenas that an earlier case left: what grows takes them as they are.
        let (space, mut heap) = heap();
        let block = heap.take(bytes);
        fill(block, bytes, 9);
        refuse_everything(space);
        let blocks = exhaust(&mut heap, more);
        // SAFETY: the block is live and this test's.
        assert_eq!(unsafe { heap.try_reallocate(block, more) }, Ok(None), "{bytes} to {more}");
        assert!(holds(block, bytes, 9));
        heap.check();
        space.source().kernel.fail_no_more();
        // SAFETY: as above.
        let moved = unsafe { heap.try_reallocate(block, more) }.expect("live").expect("memory");
        assert!(holds(moved, bytes, 9));
        heap.give(moved).expect("live");
        heap.give_all(blocks);
        heap.check_empty();
    }
}

#[test]
fn calls_that_fail_now_and_then_lose_nothing() {
    for seed in 0..20 {
        let (space, mut heap) = heap();
        space.source().kernel.fail_randomly(seed, 300);
        let mut blocks = Vec::new();
        let mut state = seed + 1;
        for _ in 0..2000 {
            let random = super::threads::random(&mut state) as usize;
            let bytes = [48, 500, 3000, 20_000, 1 << 20, 3 << 20][random % 6];
            if random >> 8 & 1 == 0 || blocks.is_empty() {
                if let Some(block) = heap.allocate(bytes).filter(|_| blocks.len() < 300) {
                    fill(block, bytes.min(64), random as u8);
                    blocks.push((block, bytes.min(64), random as u8));
                }
            } else {
                let (block, bytes, value) = blocks.swap_remove((random >> 9) % blocks.len());
                assert!(holds(block, bytes, value));
                heap.give(block).expect("live");
            }
        }
        heap.check();
        space.source().kernel.fail_no_more();
        heap.give_all(blocks.into_iter().map(|(block, ..)| block));
        // Blocks beyond the 300 were dropped above and are still live: give them back with the heap's pages.
        heap.check();
    }
}
