//! Programs that limit their own address space: metadata goes with the arenas, and frees stay exact.

use super::unused::give_back;
use super::*;
use crate::arena::ARENA_BYTES;
use proptest::prelude::*;
use std::thread;

/// A long region, of which little is used.
const LONG: usize = 1 << 30;

/// What limits itself to as much has 16 MiB to grow into.
const LIMIT: u64 = 128 << 20;

fn address_space(space: &Space<World>) -> usize {
    space.source().kernel.mapping_list().iter().map(|mapping| mapping.range.len).sum()
}

/// Limits the address space, as a program does to itself.
fn limit(space: &'static Space<World>, bytes: u64) {
    space.source().arenas.lock().cut_address_space(bytes, |cut| space.shorten(cut));
    space.source().kernel.set_address_space_limit(Some(bytes));
}

/// Others have all that is not the heap's.
fn check_foreign(heap: &mut Heap<World>, start: usize) {
    let mapped = heap.own().space.source().kernel.mapping_list();
    let held = |at: usize| mapped.iter().any(|mapping| mapping.range.contains(at));
    let mut foreign = 0;
    for at in (start..start + LONG).step_by(ARENA_BYTES / 2) {
        if !held(at) {
            assert_eq!(heap.give(pointer(at + 4096)), Err(Mistake::Foreign), "{:#x}", at - start);
            assert!(!heap.free_as_near(pointer(at + 4096)));
            assert_eq!(heap.usable_size(pointer(at)), Err(Mistake::Foreign));
            foreign += 1;
        }
    }
    assert!(foreign > 500, "{foreign}");
}

#[test]
fn a_heap_goes_on_under_a_limit_and_tells_what_is_not_its_own() {
    let space = space_with(Config::default(), LONG);
    let (mut heap, mut second) = (space.acquire().expect("memory"), space.acquire().expect("memory"));
    let mut blocks: Vec<_> =
        [16, 48, 512, 8192].iter().flat_map(|&bytes| heap.take_many(500, bytes)).collect();
    blocks.extend(second.take_many(100, 48));
    blocks.push(heap.take(100_000));
    let start = space.regions()[0].start;
    limit(space, LIMIT);
    let used = address_space(space);
    assert!(used < 64 << 20, "{used}");
    for heap in [&mut heap, &mut second] {
        check_foreign(heap, start);
        heap.check();
    }
    // One that begins now, and a thread that frees what it did not allocate.
    let mut third = space.acquire().expect("memory");
    check_foreign(&mut third, start);
    let given: Vec<_> = blocks.drain(..1000).map(at).collect();
    thread::spawn(move || third.give_all(given.into_iter().map(pointer))).join().expect("no panic");
    // Up to the limit, in further regions.
    let before = blocks.len();
    blocks.extend(core::iter::from_fn(|| heap.allocate(4096)));
    let taken = (blocks.len() - before) * 4096;
    assert!(taken > 80 << 20, "{taken}");
    assert!(address_space(space) as u64 <= LIMIT);
    check_foreign(&mut heap, start);
    heap.give_all(blocks);
    heap.check();
    second.check();
}

#[test]
fn blocks_behind_a_gap_are_freed_as_before() {
    let space = space_with(Config::default(), LONG);
    let mut heap = space.acquire().expect("memory");
    let first = heap.take(48);
    let start = space.regions()[0].start;
    // Small blocks take over what large ones leave.
    let large = heap.take(40 * ARENA_BYTES);
    let last = heap.take(2 * ARENA_BYTES);
    heap.give(large).expect("live");
    let mut blocks = Vec::new();
    while blocks.last().is_none_or(|&block| at(block) - start <= LONG / 2) {
        blocks.push(heap.take(4096));
    }
    blocks.extend(heap.take_many(3000, 48));
    limit(space, LIMIT);
    assert_eq!(space.regions().len(), 2, "the part behind the gap is one of its own");
    check_foreign(&mut heap, start);
    assert!(heap.usable_size(last).is_ok());
    heap.check();
    let (near, far): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|&block| at(block) - start < LONG / 2);
    assert!(far.len() > 10);
    heap.give(far[3]).expect("live");
    assert!(matches!(heap.give(far[3]), Err(Mistake::NotLive { .. })));
    heap.give_all(far.iter().enumerate().filter(|&(index, _)| index != 3).map(|(_, &block)| block));
    heap.give_all(near);
    heap.check();
    // Where large blocks were, and nothing of the heap's pages was: its metadata is there all the same.
    let more = heap.take_many(9000, 4096);
    heap.check();
    heap.give_all(more);
    heap.give_all([first, last]);
    heap.check_empty();
}

/// Small blocks took over what a large one left, and were freed before the limit: the marks of nearly all of
/// the region stayed, which was more than the limit leaves where a region is made for a large host.
#[test]
fn metadata_of_pages_that_were_used_behind_keeps_no_more_than_its_own() {
    for is_behind in [false, true] {
        let space = space_with(Config::default(), LONG);
        let mut heap = space.acquire().expect("memory");
        let first = heap.take(48);
        let start = space.regions()[0].start;
        // One that is used after the limit as well, or none.
        let last = is_behind.then(|| heap.take(2 * ARENA_BYTES));
        let large = heap.take(40 * ARENA_BYTES);
        heap.give(large).expect("live");
        let mut blocks = Vec::new();
        while blocks.last().is_none_or(|&block| at(block) - start <= LONG / 2) {
            blocks.push(heap.take(4096));
        }
        blocks.extend(heap.take_many(3000, 4096));
        let far = *blocks.iter().max().expect("some");
        heap.give_all(blocks);
        heap.trim();
        give_back(space);
        let tables = space.regions()[0].tables.expect("the heap's");
        limit(space, LIMIT);
        let [.., marks] = tables.parts(0, tables.pages);
        let mapped = space.source().kernel.mapping_list();
        let marks = mapped.iter().filter(|mapping| marks.contains(mapping.range.start));
        let marks: usize = marks.map(|mapping| mapping.range.len).sum();
        assert!(marks <= 1 << 20, "{marks} bytes of marks are kept");
        assert_eq!(space.regions().len(), 2, "what was written is a region of its own");
        check_foreign(&mut heap, start);
        assert!(heap.usable_size(far).is_err());
        let more = heap.take_many(9000, 4096);
        heap.check();
        heap.give_all(more);
        heap.give_all([first].into_iter().chain(last));
        heap.check_empty();
    }
}

#[test]
fn what_large_blocks_leave_behind_a_gap_is_used_for_blocks() {
    let space = space_with(Config::default(), LONG);
    let mut heap = space.acquire().expect("memory");
    let first = heap.take(48);
    let start = space.regions()[0].start;
    let large = heap.take(20 * ARENA_BYTES);
    limit(space, LIMIT);
    assert_eq!(space.regions().len(), 2, "the part behind the gap is one of its own");
    check_foreign(&mut heap, start);
    heap.give(large).expect("live");
    // All of it, and all that there is to grow into.
    let mut blocks: Vec<_> = core::iter::from_fn(|| heap.allocate(4096)).collect();
    let behind = blocks.iter().filter(|&&block| at(block).wrapping_sub(at(large)) < 20 * ARENA_BYTES).count();
    assert!(behind > 19 * ARENA_BYTES / 4096, "{behind}");
    heap.check();
    blocks.iter().step_by(7).for_each(|&block| fill(block, 4096, 7));
    assert!(blocks.iter().step_by(7).all(|&block| holds(block, 4096, 7)));
    check_foreign(&mut heap, start);
    blocks.push(first);
    heap.give_all(blocks);
    heap.check_empty();
}

#[test]
fn a_limit_set_twice_gives_nothing_back_twice() {
    let space = space_with(Config::default(), LONG);
    let mut heap = space.acquire().expect("memory");
    let first = heap.take(48);
    let start = space.regions()[0].start;
    for bytes in [4 * LIMIT, 2 * LIMIT, LIMIT, LIMIT, LIMIT * 3 / 4] {
        limit(space, bytes);
        check_foreign(&mut heap, start);
        heap.check();
    }
    let blocks = heap.take_many(1000, 512);
    heap.give_all(blocks);
    heap.give(first).expect("live");
    heap.check_empty();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whatever a heap remembers, has at hand or keeps when the region ends before it.
    #[test]
    fn a_limit_at_any_moment_changes_no_block(
        steps in proptest::collection::vec((0u32..12, any::<prop::sample::Index>(), 0usize..6), 1..400)
    ) {
        const SIZES: [usize; 6] = [16, 48, 640, 4096, 20_000, 3 << 20];
        let space = space_with(Config::default(), LONG);
        let mut heaps = [space.acquire().expect("memory"), space.acquire().expect("memory")];
        // What it leaves is taken over by small blocks.
        let large = heaps[0].take(24 * ARENA_BYTES);
        let last = heaps[0].take(2 * ARENA_BYTES);
        let mut blocks: Vec<_> = heaps.iter_mut().flat_map(|heap| heap.take_many(900, 4096)).map(|block| (block, 4096)).collect();
        heaps[0].give(large).expect("live");
        for (number, (what, which, size)) in steps.into_iter().enumerate() {
            let heap = &mut heaps[number % 2];
            let bytes = SIZES[size];
            match what {
                0..=4 => for _ in 0..[60, 60, 20, 40, 3, 1][size] {
                    let Some(block) = heap.allocate(bytes) else { break };
                    fill(block, 16, size as u8);
                    blocks.push((block, bytes));
                },
                5..=9 => for _ in 0..40.min(blocks.len()) {
                    let (block, bytes) = blocks.swap_remove(which.index(blocks.len()));
                    // SAFETY: live, and of that size.
                    if what == 5 { unsafe { heap.free_sized(block, bytes) } } else { heap.give(block).expect("live") }
                },
                10 => { heap.trim(); }
                _ => {
                    limit(space, (3 * LIMIT) >> size);
                    space.source().kernel.set_address_space_limit(None);
                }
            }
            for &(block, bytes) in blocks.iter().rev().take(3) {
                prop_assert!(heap.usable_size(block).expect("live") >= bytes);
            }
        }
        let mut all = std::collections::BTreeSet::new();
        for &(block, bytes) in &blocks {
            prop_assert!(all.insert(at(block)) && heaps[0].usable_size(block).expect("live") >= bytes);
        }
        let [mut first, mut second] = heaps;
        first.check();
        second.check();
        first.give_all(blocks.into_iter().map(|(block, _)| block));
        first.give(last).expect("live");
        for heap in [&mut first, &mut second] {
            heap.trim();
            heap.check();
            prop_assert_eq!(heap.page_count(), 0);
        }
    }
}
