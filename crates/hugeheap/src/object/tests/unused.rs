//! Metadata of arenas that were given back: its memory goes with theirs, and comes back with them.

use super::super::mark::Mark;
use super::super::ring::Places;
use super::super::space::{Bitmap, PAGE_METADATA_USED};
use super::super::tables::{GROUP_BYTES, GROUP_PAGES, PAGE_METADATA};
use super::resizing::resize;
use super::*;
use crate::arena::{ARENA_BYTES, Beside, Wait};
use core::sync::atomic::Ordering;
use hugeheap_os::simulated::{Call, PageState};
use hugeheap_os::{AddressRange, Pages};

/// Gives back all that nothing lives in, as the maintenance thread does.
pub(super) fn give_back(space: &Space<World>) {
    let world = space.source();
    loop {
        let mut plan = {
            let mut arenas = world.arenas.lock();
            arenas.forget_demand();
            arenas.plan()
        };
        space.perform(&mut plan);
        if world.arenas.lock().complete(plan) != Wait::For(0) {
            return;
        }
    }
}

/// The arenas that have metadata.
pub(super) fn with_metadata(space: &Space<World>) -> impl Iterator<Item = usize> {
    let arenas = space
        .regions()
        .iter()
        .flat_map(|region| (region.start..region.start + region.bytes()).step_by(ARENA_BYTES));
    arenas.filter(|&arena| space.has_metadata(arena))
}

/// Resident bytes of the arrays of all metadata when all that is counted was written: in all, and on huge
/// pages. (The simulated kernel does not see who writes.)
pub(super) fn written(space: &Space<World>) -> (u64, u64) {
    with_metadata(space).for_each(|arena| space.touch(AddressRange::new(arena, ARENA_BYTES)));
    resident(space)
}

/// The same as the kernel has it.
pub(super) fn resident(space: &Space<World>) -> (u64, u64) {
    let kernel = &space.source().kernel;
    let parts = space.regions().iter().flat_map(|region| {
        let tables = region.tables.expect("known regions have some");
        tables.parts(0, tables.pages)
    });
    parts.fold((0, 0), |(all, huge), part| {
        let residency = kernel.residency(part).expect("mapped");
        (all + residency.resident, huge + residency.huge())
    })
}

/// Heap pages in use throughout `arenas` arenas, of no heap, with something written of the metadata of each.
pub(super) struct Held(pub(super) Vec<usize>);

impl Held {
    pub(super) fn take(space: &Space<World>, arenas: usize) -> Self {
        let mut held = Self(Vec::new());
        for _ in 0..arenas {
            let mut pages = [0; ARENA_BYTES / HEAP_PAGE_BYTES];
            let taken = space.take_pages(&mut pages, 0);
            assert_eq!(taken, pages.len(), "memory");
            for page in pages.iter().filter_map(|&page| space.page(page)) {
                page.vacant()[0].store(u64::MAX, Ordering::Relaxed);
                page.remote()[0].store(0, Ordering::Relaxed);
            }
            held.0.extend(pages);
        }
        held.0.sort_unstable();
        held
    }

    pub(super) fn arenas(&self) -> usize {
        self.0.len() * HEAP_PAGE_BYTES / ARENA_BYTES
    }

    /// Gives the arenas back of which it is said by their number, from low addresses upwards.
    pub(super) fn give(&mut self, space: &Space<World>, goes: impl Fn(usize) -> bool) {
        let first = self.0[0] & !(ARENA_BYTES - 1);
        let (gone, stays): (Vec<_>, Vec<_>) =
            self.0.drain(..).partition(|&page| goes((page - first) / ARENA_BYTES));
        gone.chunks(ARENA_BYTES / HEAP_PAGE_BYTES).for_each(|pages| space.give_pages(pages));
        self.0 = stays;
    }
}

/// Arenas of a unit: their marks are on a huge page.
pub(super) const UNIT: usize = (512 << 20) / ARENA_BYTES;

/// Bytes of the metadata of an arena, and of a unit.
pub(super) const ARENA_METADATA: u64 = (ARENA_BYTES / HEAP_PAGE_BYTES * PAGE_METADATA) as u64;
pub(super) const UNIT_METADATA: u64 = UNIT as u64 * ARENA_METADATA;

/// Groups of a unit.
pub(super) const GROUPS: usize = UNIT * ARENA_BYTES / GROUP_BYTES;

/// Bytes of the bitmaps of an arena.
pub(super) const ARENA_BITMAPS: u64 = (ARENA_BYTES / HEAP_PAGE_BYTES * 2 * size_of::<Bitmap>()) as u64;

/// Resident bytes of the bitmaps of groups of the first region.
pub(super) fn bitmaps(space: &Space<World>, groups: core::ops::Range<usize>) -> u64 {
    let tables = space.regions()[0].tables.expect("it is known");
    let parts = tables.parts(groups.start * GROUP_PAGES, groups.end * GROUP_PAGES);
    let bytes = |part: &AddressRange| space.source().kernel.residency(*part).expect("mapped").resident;
    parts[..2].iter().map(bytes).sum()
}

/// A process in which the second unit has metadata on huge pages, and those before and behind it do not count.
pub(super) fn large() -> (&'static Space<World>, Held) {
    let space = space_with(Config::default(), 4 << 30);
    let held = Held::take(space, 2 * UNIT);
    let (all, huge) = written(space);
    assert!(huge >= UNIT_METADATA, "{huge} of {all}");
    (space, held)
}

#[test]
fn a_heap_that_has_become_small_keeps_no_metadata_of_what_it_was() {
    let (space, mut heap) = heap();
    let kept = heap.take_many(100, 48);
    let before = (space.metadata_bytes(), written(space).0);
    for bytes in [48, 512, 8192, 100_000] {
        let blocks = heap.take_many((24 << 20) / bytes, bytes);
        let most = (space.metadata_bytes(), written(space).0);
        assert!(most.1 - before.1 >= 8 * ARENA_METADATA, "{most:?}, {before:?}");
        heap.give_all(blocks);
        heap.trim();
        give_back(space);
        heap.check();
        // What lives keeps its arena, there is one for small runs, and rings stay.
        let after = (space.metadata_bytes(), resident(space).0);
        assert!(
            after.0 <= before.0 + (24 << 10) + 4 * size_of::<Places>()
                && after.1 <= before.1 + 2 * ARENA_METADATA,
            "{after:?}, {before:?}"
        );
    }
    heap.give_all(kept);
    heap.check_empty();
}

#[test]
fn blocks_of_arenas_that_come_back_are_like_any_others() {
    let (space, mut heap) = heap();
    let mut seed = 1;
    for round in 0..6 {
        let mut blocks = heap.take_many(30_000, 16 + 40 * round);
        for (number, &block) in blocks.iter().enumerate() {
            fill(block, 16, number as u8);
        }
        assert!(blocks.iter().enumerate().all(|(number, &block)| holds(block, 16, number as u8)));
        let twice = blocks[7];
        for index in (1..blocks.len()).rev() {
            blocks.swap(index, super::threads::random(&mut seed) as usize % (index + 1));
        }
        heap.give_all(blocks);
        heap.trim();
        give_back(space);
        heap.check();
        // Its page is nobody's, and says so.
        assert!(heap.give(twice).is_err());
    }
    heap.check_empty();
}

#[test]
fn metadata_of_what_others_freed_goes_as_well() {
    let (space, mut heap) = heap();
    let before = written(space).0;
    let blocks: Vec<_> = heap.take_many(100_000, 128).into_iter().map(at).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = space.acquire().expect("memory");
            other.give_all(blocks.iter().copied().map(pointer));
        });
    });
    let most = written(space).0;
    heap.trim();
    give_back(space);
    heap.check();
    let after = resident(space).0;
    assert!(
        most - before > 6 * ARENA_METADATA && after <= before + ARENA_METADATA,
        "{before}, {most}, {after}"
    );
}

/// A heap that has freed all it had, with what was counted and resident then.
fn emptied() -> (&'static Space<World>, Heap<World>, (usize, u64)) {
    let (space, mut heap) = heap();
    let blocks = heap.take_many(100_000, 128);
    let most = (space.metadata_bytes(), written(space).0);
    heap.give_all(blocks);
    heap.trim();
    (space, heap, most)
}

#[test]
fn what_is_kept_for_reuse_keeps_its_metadata() {
    let (space, _heap, most) = emptied();
    // Without that the demand is forgotten.
    let _ = space.source().arenas.lock().maintain();
    assert_eq!((space.metadata_bytes(), resident(space).0), most);
}

/// What is known of a block that was resized is noted beside its first arena, and blocks may have been in the
/// others before. No pass comes to an arena whose memory was moved: what was beside it stayed until the arena
/// was used again.
#[test]
fn a_large_block_that_moves_leaves_no_metadata_behind() {
    let space = space_with(Config::default(), 512 << 20);
    let mut heap = space.acquire().expect("memory");
    let mut as_before = (0, 0);
    for round in 0..2 {
        let small = heap.take_many(3 * ARENA_BYTES / 4096, 4096);
        heap.give_all(small);
        heap.trim();
        // The second time what was blocks is kept for reuse, and large ones come there.
        if round == 0 {
            give_back(space);
            as_before = (with_metadata(space).count(), space.metadata_bytes());
        }
    }
    let mut walls = Vec::new();
    let mut block = heap.take(2 * ARENA_BYTES);
    for arenas in [4, 8, 16, 32] {
        // Nothing is free behind it.
        walls.extend(heap.take_many(12, ARENA_BYTES));
        let moved = resize(&mut heap, block, arenas * ARENA_BYTES);
        assert_ne!(moved, block);
        block = moved;
    }
    heap.give(block).expect("live");
    heap.give_all(walls);
    give_back(space);
    assert_eq!((with_metadata(space).count(), space.metadata_bytes()), as_before);
    heap.check_empty();
}

#[test]
fn where_the_call_fails_metadata_stays_and_is_counted() {
    let (space, _heap, most) = emptied();
    let arena = space.regions()[0].start;
    assert!(space.has_metadata(arena));
    space.source().kernel.fail_every(Call::Decommit, 1, libc::EINVAL);
    space.arena_given_back(arena);
    space.source().kernel.fail_no_more();
    assert_eq!((space.metadata_bytes(), resident(space).0), most);
    space.arena_given_back(arena);
    assert!(space.metadata_bytes() < most.0 && !space.has_metadata(arena));
}

#[test]
fn nothing_is_asked_for_arenas_without_metadata() {
    let space = space();
    let mut pages = [0];
    assert_eq!(space.take_pages(&mut pages, 0), 1);
    let next = (pages[0] & !(ARENA_BYTES - 1)) + 3 * ARENA_BYTES;
    let calls = space.source().kernel.calls(Call::Decommit);
    space.arena_given_back(next);
    space.arena_given_back(64 << 10);
    assert_eq!(space.source().kernel.calls(Call::Decommit), calls);
}

#[test]
fn of_a_unit_that_nobody_uses_whole_huge_pages_go_and_come_back() {
    let (space, mut held) = large();
    let before = resident(space);
    held.give(space, |arena| arena >= UNIT);
    give_back(space);
    let after = resident(space);
    assert!(
        before.0 - after.0 >= UNIT_METADATA && before.1 - after.1 >= UNIT_METADATA,
        "{before:?}, {after:?}"
    );
    assert_eq!(space.source().kernel.calls(Call::Split), 0);
    let again = Held::take(space, UNIT);
    assert_eq!(written(space), before);
    assert_eq!(space.source().kernel.violations(), []);
    drop(again);
}

#[test]
fn counted_is_what_is_in_use_also_of_huge_pages() {
    let (space, mut held) = large();
    let most = space.metadata_bytes();
    held.give(space, |arena| arena >= UNIT);
    give_back(space);
    assert_eq!(most - space.metadata_bytes(), UNIT * ARENA_BYTES / HEAP_PAGE_BYTES * PAGE_METADATA_USED);
    held.0.extend(Held::take(space, UNIT).0);
    assert_eq!(space.metadata_bytes(), most);
}

/// Marks of arenas that large blocks had left, and that went when the program limited itself: what lies there
/// is somebody else's.
#[test]
fn nothing_is_given_back_where_address_space_went_meanwhile() {
    for stays in [0, 16] {
        let (space, mut held) = large();
        let tables = space.regions()[0].tables.expect("it is known");
        held.give(space, |arena| arena >= UNIT + stays);
        let gone = (GROUPS + 12) * GROUP_PAGES;
        tables.release(&space.source().kernel, gone, gone, gone + GROUP_PAGES);
        let foreign = tables.marks() + gone * size_of::<Mark>();
        assert_eq!(space.source().kernel.page_state(foreign), PageState::Foreign);
        let before = bitmaps(space, GROUPS..GROUPS + 8);
        // An arena of the first eight groups: their bitmaps are on huge pages still.
        space.arena_given_back(space.regions()[0].start + (UNIT + 100) * ARENA_BYTES);
        let given = before - bitmaps(space, GROUPS..GROUPS + 8);
        // One is kept for small runs.
        assert!(given >= (7 * 16 - 1) * ARENA_BITMAPS, "{given} with {stays}");
        assert_eq!(space.source().kernel.violations(), []);
    }
}

/// One thread has arenas given back, others use theirs of the same unit, each of which has its metadata for itself.
#[test]
fn metadata_goes_while_others_use_that_of_the_same_unit() {
    let space = space_with(Config::default(), 4 << 30);
    std::thread::scope(|scope| {
        for seed in 1..4u64 {
            scope.spawn(move || {
                let (mut heap, mut state) = (space.acquire().expect("memory"), seed);
                for _ in 0..20 {
                    let bytes = 16 + super::threads::random(&mut state) as usize % 2000;
                    let mut blocks = heap.take_many((6 << 20) / bytes, bytes);
                    blocks.iter().for_each(|&block| fill(block, bytes, seed as u8));
                    assert!(blocks.iter().all(|&block| holds(block, bytes, seed as u8)));
                    let kept = blocks.split_off(blocks.len() / 50);
                    heap.give_all(blocks);
                    heap.trim();
                    assert!(kept.iter().all(|&block| holds(block, bytes, seed as u8)));
                    heap.give_all(kept);
                    heap.trim();
                }
            });
        }
        for _ in 0..200 {
            give_back(space);
            std::thread::yield_now();
        }
    });
    give_back(space);
    assert_eq!(space.source().kernel.violations(), []);
    assert!(resident(space).0 <= 2 * ARENA_METADATA);
}

#[test]
fn a_look_passes_over_arenas_whose_metadata_went() {
    let (space, mut heap) = heap();
    let blocks = heap.take_many((20 << 20) / 64, 64);
    written(space);
    heap.give_all(blocks);
    heap.trim();
    give_back(space);
    // One is for small runs.
    assert!(with_metadata(space).count() <= 1);
    let mut pages = 0;
    let gone = (0..8).map(|arena| space.regions()[0].start + arena * ARENA_BYTES);
    let gone = gone.filter(|&arena| !space.has_metadata(arena)).last().expect("most went");
    // Of what nobody counts nobody reads a mark: this one says that it is of a heap.
    let page = space.page(gone).expect("known");
    page.mark().tag.store(super::super::tag::tag(1, 1), Ordering::Relaxed);
    page.mark().set_gone(1);
    space.walk(&mut |seen| {
        pages += usize::from(matches!(seen, Walk::Page(page) if page.address == gone));
    });
    let mut told = 0;
    space.look_for_vacancy(0, false, |vacancy| {
        told += usize::from(vacancy.arena == gone);
        true
    });
    assert_eq!((pages, told), (0, 0));
}

/// It was passed over to the end when that arena was not among those that have metadata any more.
#[test]
fn a_look_goes_on_after_an_arena_whose_metadata_went_meanwhile() {
    let (space, mut heap) = heap();
    let blocks = heap.take_many((20 << 20) / 64, 64);
    let (mut sparse, mut seen) = (Vec::new(), Vec::new());
    for block in blocks {
        // One of a hundred stays.
        if at(block) / 64 % 100 == 0 { sparse.push(block) } else { heap.give(block).expect("live") }
    }
    let first = space.look_for_vacancy(0, false, |_| false).next.expect("there are more");
    // The first is done with.
    let (gone, stays): (Vec<_>, Vec<_>) =
        sparse.into_iter().partition(|&block| at(block) & !(ARENA_BYTES - 1) == first);
    heap.give_all(gone);
    heap.trim();
    assert_eq!(space.source().arenas.lock().is_unused(first), Some(true));
    space.arena_given_back(first);
    assert!(!space.has_metadata(first));
    space.look_for_vacancy(first, false, |vacancy| {
        seen.push(vacancy.arena);
        true
    });
    let mut left: Vec<_> = stays.iter().map(|&block| at(block) & !(ARENA_BYTES - 1)).collect();
    left.sort_unstable();
    left.dedup();
    assert!(seen.len() >= 8 && seen.len() + 1 >= left.len(), "{seen:x?} of {left:x?}");
}
