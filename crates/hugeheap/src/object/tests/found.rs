//! Free blocks are found again, whichever way they went: by random steps through all doors of a heap, each of them followed by a look at everything that is kept.

use super::super::bin::GATHERED;
use super::*;
use proptest::prelude::*;

/// One class of small blocks, of which a window has many, some between, and those of which a page has few.
const SIZES: [usize; 8] = [16, 48, 144, 400, 640, 1472, 2048, 8192];

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
        4 => given.prop_map(|(count, from, apart)| Step::GiveSized(count, from, apart)),
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

    /// Blocks were lost that way: where the windows that were noted had none, gathering took the page for full, and what was free in its other windows was found by nobody.
    #[test]
    fn no_free_block_is_lost_whatever_is_taken_and_freed(
        size in 0..SIZES.len(), steps in prop::collection::vec(step(), 1..60)
    ) {
        let bytes = SIZES[size];
        let (_, mut heap) = heap();
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

/// The windows that are noted are those whose blocks were gathered, and these are taken; the others are found by a look at the page.
#[test]
fn gathering_looks_at_the_whole_page_when_what_is_noted_has_no_block() {
    for bytes in [640, 1472] {
        let (_, mut heap) = heap();
        let blocks_of_page = HEAP_PAGE_BYTES / bytes;
        let mut blocks = heap.take_many(blocks_of_page, bytes);
        assert_eq!(heap.page_count(), heap.own().spare_count as usize + 1, "{bytes} bytes: one page");
        // More than are remembered are free, all over the page: the oldest were forgotten, and no window of theirs is noted.
        let freed: Vec<_> = blocks.drain(1..).collect();
        heap.give_all(freed.iter().copied());
        let mark = heap.own().space.page(page_of(blocks[0])).expect("it has a block").mark();
        mark.set_free(1);
        heap.check();
        let before = heap.page_count();
        // What is remembered, then what a look at the only window that is noted does not find.
        blocks.extend(heap.take_many(freed.len(), bytes));
        assert_eq!(heap.page_count(), before, "{bytes} bytes: the page was left with free blocks");
        assert!(freed.len() > GATHERED, "{bytes} bytes");
        heap.check();
        heap.give_all(blocks);
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

/// A spare page is begun at once where nothing else comes first: others' frees do.
#[test]
fn what_another_thread_freed_is_collected_before_a_spare_page_is_begun() {
    for bytes in [640, 2048] {
        let (space, mut heap) = heap();
        let blocks_of_page = HEAP_PAGE_BYTES / bytes;
        let mut blocks = heap.take_many(4 * blocks_of_page, bytes);
        let spare = heap.take_many(4 * blocks_of_page, bytes);
        heap.give_all(spare);
        assert!(heap.own().spare_count > 0, "{bytes} bytes");
        let first = blocks.remove(0);
        // SAFETY: the block is the test's, and freed once.
        unsafe { space.free(first) };
        let again = heap.take_many(2 * blocks_of_page, bytes);
        assert!(again.contains(&first), "{bytes} bytes");
        heap.check();
        heap.give_all(again.into_iter().chain(blocks));
        heap.check_empty();
    }
}
