//! The walk finds what is live, and nothing else.

use super::super::space::PAGE_METADATA_USED;
use super::super::walk::{Content, Walk, WalkedPage};
use super::*;
use std::collections::BTreeSet;

fn pages(space: &Space<World>) -> Vec<WalkedPage> {
    let mut pages = Vec::new();
    space.walk(&mut |step| {
        if let Walk::Page(page) = step {
            pages.push(page);
        }
    });
    pages
}

fn live_blocks(space: &Space<World>) -> BTreeSet<usize> {
    pages(space).iter().flat_map(|page| page.blocks().collect::<Vec<_>>()).collect()
}

const SIZES: [usize; 6] = [16, 48, 576, 640, 3264, 4096];

#[test]
fn every_live_block_is_found_and_no_other() {
    let (space, mut heap) = heap();
    let mut other = space.acquire_hardened().expect("memory");
    let mut blocks = Vec::new();
    for bytes in SIZES {
        blocks.extend(heap.take_many(1000, bytes));
        blocks.extend(other.take_many(1000, bytes));
    }
    let (kept, freed): (Vec<_>, Vec<_>) =
        blocks.into_iter().enumerate().partition(|(index, _)| index % 3 == 0);
    // By their heap and by another one, which the owner has not collected.
    freed.into_iter().for_each(|(index, block)| {
        let heap = if index % 2 == 0 { &mut heap } else { &mut other };
        heap.give(block).expect("live");
    });
    let expected: BTreeSet<_> = kept.iter().map(|&(_, block)| at(block)).collect();
    assert_eq!(live_blocks(space), expected, "with open windows, blocks in quarantine and in the inbox");
    heap.trim();
    other.trim();
    assert_eq!(live_blocks(space), expected);
    heap.give_all(kept.into_iter().map(|(_, block)| block));
    heap.trim();
    other.trim();
    assert_eq!(live_blocks(space), BTreeSet::new());
}

#[test]
fn blocks_freed_by_another_thread_are_free_before_their_owner_collects_them() {
    let (space, mut heap) = heap();
    let blocks = heap.take_many(1000, 48);
    let mut other = space.acquire().expect("memory");
    other.give_all(blocks[..100].iter().copied());
    let found = live_blocks(space);
    assert!(blocks[..100].iter().all(|&block| !found.contains(&at(block))));
    assert!(blocks[100..].iter().all(|&block| found.contains(&at(block))));
}

#[test]
fn pages_are_told_with_their_heap_and_content_in_their_arena() {
    let (space, mut heap) = heap();
    let mut hardened = space.acquire_hardened().expect("memory");
    let (small, medium, run) = (heap.take(48), heap.take(3000), heap.take(30_000));
    let kept = heap.take(48_000);
    heap.give(kept).expect("live");
    let guarded = hardened.take(20_000);
    let (mut regions, mut arenas, mut found) = (Vec::new(), Vec::new(), Vec::new());
    space.walk(&mut |step| match step {
        Walk::Region(range) => regions.push(range),
        Walk::Arena(range) => arenas.push(range),
        Walk::Page(page) => {
            let inside =
                |range: &hugeheap_os::AddressRange| page.address.wrapping_sub(range.start) < range.len;
            assert!(regions.last().is_some_and(inside) && arenas.last().is_some_and(inside), "{page:?}");
            found.push((page.address, page.heap, page.content));
        }
    });
    assert_eq!((regions.len(), arenas.len()), (1, 1));
    assert!(found.is_sorted_by_key(|(address, ..)| address));
    for expected in [
        (page_of(small), 1, Content::Blocks(48)),
        (page_of(medium), 1, Content::Blocks(3264)),
        (at(run), 1, Content::Run(32_768)),
        (at(kept), 1, Content::KeptRun(49_152)),
        (at(guarded), 2, Content::Run(20_480)),
    ] {
        assert!(found.contains(&expected), "{expected:?} in {found:?}");
    }
    let others = found.iter().filter(|(_, _, content)| *content == Content::Spare).count();
    assert_eq!(found.len(), 5 + others);
}

#[test]
fn a_space_without_blocks_has_nothing_to_walk_over() {
    let (space, _heap) = heap();
    space.walk(&mut |step| panic!("{step:?}"));
    assert_eq!(space.statistics().live_bytes(), 0);
}

#[test]
fn statistics_are_the_sum_of_what_is_live() {
    let (space, mut heap) = heap();
    let blocks = heap.take_many(1000, 48);
    let _medium = heap.take_many(7, 3264);
    let _run = heap.take(30_000);
    // Of two spans of three heap pages one is left.
    let spanned = heap.take_many(6, 12_000);
    heap.give_all(spanned[3..].iter().copied());
    heap.give_all(blocks.into_iter().skip(400));
    heap.trim();
    let statistics = space.statistics();
    let of = |bytes| *statistics.classes.iter().find(|class| class.block_bytes == bytes).expect("a class");
    let (small, medium) = (of(48), of(3264));
    assert_eq!((small.live_blocks, small.live_bytes), (400, 19_200));
    assert_eq!((medium.pages, medium.live_blocks, medium.live_bytes), (2, 7, 22_848));
    for class in statistics.classes {
        assert_eq!(class.live_bytes + class.free_bytes, class.pages * HEAP_PAGE_BYTES);
    }
    assert_eq!((statistics.runs, statistics.run_bytes, statistics.spare_pages), (1, 32_768, 0));
    let spans = of(12 << 10);
    assert_eq!((spans.pages, spans.live_blocks, spans.live_bytes), (3, 3, 36 << 10));
    assert_eq!(statistics.live_bytes(), 19_200 + 22_848 + (36 << 10));
    // Everything the arenas count is told, and nothing twice.
    let pages: usize = statistics.classes.iter().map(|class| class.pages).sum();
    assert_eq!((pages * HEAP_PAGE_BYTES + statistics.run_bytes) as u64, live(space));
}

#[test]
fn metadata_is_counted_once_per_page() {
    let (space, mut heap) = heap();
    let before = space.metadata_bytes();
    assert!(before >= crate::object::heap::Core::<World>::USED, "that of the heap itself");
    let blocks = heap.take_many(50 * HEAP_PAGE_BYTES / 512, 512);
    let used = space.metadata_bytes();
    // Fifty pages, and the rest of the last batch that was taken from the arenas.
    assert!((50..=50 + 16).contains(&((used - before) / PAGE_METADATA_USED)), "{before} before, then {used}");
    heap.give_all(blocks);
    heap.trim();
    heap.take_many(50 * HEAP_PAGE_BYTES / 512, 512);
    // The same pages again, but for the first sixteen: a heap that grows is not kept apart. And batches may end
    // elsewhere.
    assert!(space.metadata_bytes() <= used + (16 + 8) * PAGE_METADATA_USED);
}

#[test]
fn statistics_as_json() {
    let (space, mut heap) = heap();
    heap.take_many(5, 4096);
    heap.trim();
    let mut text = String::new();
    space.statistics().write_json(&mut text).expect("a string takes all");
    assert_eq!(
        text,
        "{\"regions\": 1, \"arenas\": 1, \"spare_pages\": 0, \"runs\": 0, \"run_bytes\": 0, \"kept_run_bytes\": 0, \
         \"classes\": [{\"block_bytes\": 4096, \"pages\": 2, \"live_blocks\": 5, \"live_bytes\": 20480, \
         \"free_bytes\": 12288}]}"
    );
}

#[test]
fn a_walk_beside_threads_at_work_sees_whole_pages() {
    let space = space();
    let mut heap = space.acquire().expect("memory");
    let kept = heap.take_many(2000, 64);
    let expected: BTreeSet<_> = kept.iter().map(|&block| at(block)).collect();
    std::thread::scope(|scope| {
        for seed in 1..3 {
            scope.spawn(move || {
                let (mut heap, mut state) = (space.acquire().expect("memory"), seed);
                for _ in 0..200 {
                    let bytes = SIZES[super::threads::random(&mut state) as usize % 6];
                    let blocks = heap.take_many(100, bytes);
                    heap.give_all(blocks);
                    heap.trim();
                }
            });
        }
        for _ in 0..20 {
            let found = live_blocks(space);
            assert!(expected.is_subset(&found), "a live block was not found");
        }
    });
}
