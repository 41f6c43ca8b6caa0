//! Free blocks are found again, whichever way they went: by random steps through all doors of a heap, each of
//! them followed by a look at everything that is kept.

use super::super::class::{SHAPES, class_of};
use super::super::ring::RECENT;
use super::super::spares::FIRST_MOST;
use super::*;
use proptest::prelude::*;

/// One class of small blocks, of which a window has many, some between, and those of which a page has few.
const SIZES: [usize; 8] = [16, 48, 144, 400, 640, 1472, 2048, 4096];

#[derive(Clone, Debug)]
enum Step {
    /// So many blocks.
    Take(usize),
    /// The same as a global allocator does.
    TakeRemembered(usize),
    /// The same as the interpreters' hooks do.
    TakeNear(usize),
    /// So many of those that live, from a place of them on, so far from each other.
    Give(usize, usize, usize),
    /// The same with their size, as a global allocator does.
    GiveSized(usize, usize, usize),
    /// The same by another thread.
    GiveElsewhere(usize, usize, usize),
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    let count = 1..40usize;
    let given = (1..40usize, 0..1000usize, 1..60usize);
    prop_oneof![
        3 => count.clone().prop_map(Step::Take),
        3 => count.clone().prop_map(Step::TakeRemembered),
        1 => count.prop_map(Step::TakeNear),
        4 => given.clone().prop_map(|(count, from, apart)| Step::Give(count, from, apart)),
        4 => given.clone().prop_map(|(count, from, apart)| Step::GiveSized(count, from, apart)),
        1 => given.prop_map(|(count, from, apart)| Step::GiveElsewhere(count, from, apart)),
        1 => Just(Step::Trim),
    ]
}

impl Heap<World> {
    fn take_remembered(&mut self, bytes: usize) -> NonNull<u8> {
        self.allocate_remembered(bytes).expect("memory")
    }

    /// Frees a block of the test with its size, as a global allocator does.
    fn give_sized(&mut self, address: NonNull<u8>, bytes: usize) {
        // SAFETY: blocks of a test are used by it alone.
        unsafe { self.free_sized_anywhere(address, bytes) };
    }

    fn take_as_near(&mut self, bytes: usize) -> NonNull<u8> {
        self.allocate_near(bytes).or_else(|| self.allocate_far(bytes)).expect("memory")
    }
}

fn take_some(live: &mut Vec<NonNull<u8>>, count: usize, mut take: impl FnMut() -> NonNull<u8>) {
    live.extend((0..count).map(|_| take()));
}

/// Of what lives, what is given.
fn some(live: &mut Vec<NonNull<u8>>, count: usize, from: usize, apart: usize) -> Vec<NonNull<u8>> {
    let mut given = Vec::new();
    let mut place = from;
    while given.len() < count && !live.is_empty() {
        place %= live.len();
        given.push(live.remove(place));
        place += apart - 1;
    }
    given
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Blocks were lost that way: where the windows that were noted had none, gathering took the page for full,
    /// and what was free in its other windows was found by nobody.
    #[test]
    fn no_free_block_is_lost_whatever_is_taken_and_freed(
        size in 0..SIZES.len(), steps in prop::collection::vec(step(), 1..60)
    ) {
        let bytes = SIZES[size];
        let (space, mut heap) = heap();
        let mut live = Vec::new();
        for step in steps {
            match step {
                Step::Take(count) => take_some(&mut live, count, || heap.take(bytes)),
                Step::TakeRemembered(count) => take_some(&mut live, count, || heap.take_remembered(bytes)),
                Step::TakeNear(count) => take_some(&mut live, count, || heap.take_as_near(bytes)),
                Step::Give(count, from, apart) => heap.give_all(some(&mut live, count, from, apart)),
                Step::GiveSized(count, from, apart) => {
                    let given = some(&mut live, count, from, apart);
                    given.into_iter().for_each(|block| heap.give_sized(block, bytes));
                }
                Step::GiveElsewhere(count, from, apart) => {
                    let given = some(&mut live, count, from, apart);
                    // SAFETY: blocks of a test are used by it alone.
                    given.into_iter().for_each(|block| unsafe { space.free(block) });
                }
                Step::Trim => _ = heap.trim(),
            }
            let distinct: std::collections::BTreeSet<_> = live.iter().map(|&block| at(block)).collect();
            prop_assert_eq!(distinct.len(), live.len(), "a block was handed out twice");
            heap.check();
        }
        heap.give_all(live);
        heap.check_empty();
    }
}

/// A page may have a note of a window whose block was taken again, and none of one with a free block: then all
/// of it is looked at.
///
/// With the first look as the last one such a page was left as a full one, and its free block was found by nobody.
#[test]
fn gathering_looks_at_the_whole_page_when_what_is_noted_has_no_block() {
    for bytes in [640, 1472] {
        let (space, mut heap) = heap();
        let blocks_of_page = HEAP_PAGE_BYTES / bytes;
        let page = heap.take_many(blocks_of_page, bytes);
        let mut others = heap.take_many((2 * RECENT / blocks_of_page + 1) * blocks_of_page, bytes);
        // Frees as many as are remembered, of other pages, none of which becomes empty, and takes them again.
        let elsewhere_in_turn = |heap: &mut Heap<World>, others: &[NonNull<u8>]| {
            let mut given: Vec<_> = others.iter().copied().rev().step_by(2).take(RECENT).collect();
            heap.give_all(given.iter().copied());
            let mut again = heap.take_many(RECENT, bytes);
            given.sort_unstable();
            again.sort_unstable();
            assert_eq!(again, given, "{bytes} bytes");
        };
        // So these pages are in the list before it, and full.
        elsewhere_in_turn(&mut heap, &others);
        // One of its last windows is noted, and has no free block any more.
        heap.give(page[blocks_of_page - 1]).expect("live");
        assert_eq!(heap.take(bytes), page[blocks_of_page - 1], "{bytes} bytes");
        // Another thread's free notes one of the first. The next free in a page where one waits collects both.
        let elsewhere = others.remove(0);
        // SAFETY: blocks of a test are used by it alone, and freed once.
        unsafe {
            space.free(page[1]);
            space.free(elsewhere);
        }
        heap.give(others.remove(0)).expect("live");
        // One between them, which is not noted, and not remembered for long.
        let between = page[blocks_of_page / 2];
        heap.give(between).expect("live");
        elsewhere_in_turn(&mut heap, &others);
        heap.check();
        assert!(heap.own().spare_count > 0, "{bytes} bytes: one could be begun");
        let before = heap.page_count() - heap.own().spare_count as usize;
        let found = heap.take_many(4, bytes);
        assert!(found.contains(&page[1]) && found.contains(&between), "{bytes} bytes: {found:?}");
        assert_eq!(heap.page_count() - heap.own().spare_count as usize, before, "{bytes} bytes");
        heap.check();
        let kept = page.into_iter().filter(|block| !found.contains(block)).collect::<Vec<_>>();
        heap.give_all(kept.into_iter().chain(found).chain(others));
        heap.check_empty();
    }
}

/// It lies in the first 64 GiB and in no list: a heap whose pages are elsewhere has to take the long way to them.
#[test]
fn a_page_at_hand_that_lies_in_another_region_is_not_left_with_free_blocks() {
    let space = space_with(Config::default(), 2 << 20);
    let mut heap = space.acquire().expect("memory");
    for bytes in [640, 2048] {
        let mut blocks = Vec::new();
        for _ in 0..4 {
            // More than a region has room for.
            blocks.extend(heap.take_many(3 * (2 << 20) / bytes, bytes));
            heap.check();
            let kept = blocks.split_off(blocks.len() / 3);
            heap.give_all(core::mem::replace(&mut blocks, kept));
            heap.check();
        }
        assert!(space.regions().len() > 1);
        heap.give_all(blocks);
        heap.check();
    }
    heap.check_empty();
}

/// A heap with spare pages, and as many blocks as fill so many pages.
fn heap_with_spares(pages: usize, bytes: usize) -> (&'static Space<World>, Heap<World>, Vec<NonNull<u8>>) {
    let (space, mut heap) = heap();
    let blocks_of_page = HEAP_PAGE_BYTES / bytes;
    let blocks = heap.take_many(pages * blocks_of_page, bytes);
    let more = heap.take_many(4 * blocks_of_page, bytes);
    heap.give_all(more);
    assert!(heap.own().spare_count > 2, "{bytes} bytes");
    (space, heap, blocks)
}

// A spare page is begun at once where nothing else comes first.

#[test]
fn a_page_with_free_blocks_is_used_up_before_a_spare_page_is_begun() {
    for bytes in [640, 2048] {
        let blocks_of_page = HEAP_PAGE_BYTES / bytes;
        let (_, mut heap, mut blocks) = heap_with_spares(2 * RECENT / blocks_of_page + 2, bytes);
        let first = blocks.remove(0);
        heap.give(first).expect("live");
        // More than are remembered, so that it is forgotten; and all the others taken again.
        let given: Vec<_> = blocks[blocks_of_page..].iter().copied().step_by(2).take(RECENT).collect();
        heap.give_all(given.iter().copied());
        assert_eq!(heap.take_many(RECENT, bytes).len(), given.len());
        let next = heap.take_many(blocks_of_page + 1, bytes);
        assert!(next.contains(&first), "{bytes} bytes");
        heap.check();
        heap.give_all(blocks.into_iter().chain(next));
        heap.check_empty();
    }
}

#[test]
fn what_another_thread_freed_is_collected_before_a_spare_page_is_begun() {
    for bytes in [640, 2048] {
        for in_queue in [false, true] {
            let (space, mut heap, mut blocks) = heap_with_spares(4, bytes);
            let other = heap.take_many(2, 48);
            let first = blocks.remove(0);
            // SAFETY: blocks of a test are used by it alone, and freed once.
            unsafe { space.free(first) };
            if in_queue {
                // A class that needs a page sorts the inbox, and collects only what is its own.
                let more = heap.take_many(HEAP_PAGE_BYTES / 48, 48);
                heap.give_all(more);
                assert!(!heap.own().queues_are_empty(), "{bytes} bytes");
            }
            let again = heap.take_many(2 * (HEAP_PAGE_BYTES / bytes), bytes);
            assert!(again.contains(&first), "{bytes} bytes");
            heap.check();
            heap.give_all(again.into_iter().chain(blocks).chain(other));
            heap.check_empty();
        }
    }
}

/// It became a spare one, where all that a heap keeps were there, and half of these went to the arenas.
#[test]
fn a_page_that_others_freed_as_a_whole_is_begun_again_where_its_class_needs_one() {
    for bytes in SIZES.into_iter().filter(|&bytes| bytes != 4096) {
        let (space, mut heap) = heap();
        let mut other = space.acquire().expect("memory");
        let blocks = heap.take_many(SHAPES[class_of(bytes)].blocks.into(), bytes);
        let page = page_of(blocks[0]);
        let mut more = heap.take_many((FIRST_MOST as usize + 2) * (HEAP_PAGE_BYTES / 4096), 4096);
        while heap.own().spare_count < u32::from(FIRST_MOST) {
            heap.give(more.pop().expect("enough")).expect("live");
        }
        other.give_all(blocks);
        let again = heap.take(bytes);
        assert_eq!((page_of(again), heap.own().spare_count), (page, u32::from(FIRST_MOST)), "{bytes} bytes");
        heap.check();
        heap.give_all(more.into_iter().chain([again]));
        heap.check_empty();
    }
}

/// What waits in the queue of a class that needs nothing is collected when another one has begun pages for a while.
#[test]
fn beginning_spare_pages_does_not_put_off_what_is_collected_now_and_then() {
    const BYTES: usize = 2048;
    let (space, mut heap, blocks) = heap_with_spares(4, BYTES);
    let other = heap.take_many(2 * (HEAP_PAGE_BYTES / 48), 48);
    // SAFETY: blocks of a test are used by it alone, and freed once.
    unsafe { space.free(other[0]) };
    // A class that needs a page sorts the inbox.
    let third = heap.take(1024);
    assert!(!heap.own().queues_are_empty());
    // Twice: of what a class has used up until the first time as much may wait.
    heap.use_up_until_queues_are_looked_at(BYTES);
    heap.use_up_until_queues_are_looked_at(BYTES);
    assert!(heap.own().queues_are_empty());
    heap.give_all(blocks.into_iter().chain(other.into_iter().skip(1)).chain([third]));
    heap.check_empty();
}
