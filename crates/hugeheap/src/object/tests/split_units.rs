//! Metadata on huge pages of which a part goes: units that are split, and joined again.

use super::super::tables::{GROUP_BYTES, GROUP_PAGES, MARKS};
use super::unused::*;
use super::*;
use crate::arena::{ARENA_BYTES, Policy};
use core::sync::atomic::Ordering;
use hugeheap_os::Facts;

#[test]
fn while_more_than_a_quarter_of_a_unit_is_in_use_it_stays_on_huge_pages() {
    let (space, mut held) = large();
    let before = resident(space);
    held.give(space, |arena| arena >= UNIT && arena % 3 != 0);
    give_back(space);
    assert_eq!(resident(space), before);
}

#[test]
fn of_a_unit_of_which_little_is_in_use_the_rest_goes() {
    let (space, mut held) = large();
    let before = resident(space);
    let stays = |arena: usize| arena < UNIT || arena % 8 == 0;
    for &page in held.0.iter().filter(|&&page| page % ARENA_BYTES == 0) {
        space.page(page).expect("known").vacant()[1].store(page as u64, Ordering::Relaxed);
    }
    held.give(space, |arena| !stays(arena));
    give_back(space);
    space.source().kernel.run_khugepaged(1 << 20);
    let after = resident(space);
    let gone = before.0 - after.0;
    assert!(gone >= UNIT_METADATA * 7 / 8, "{gone} of {UNIT_METADATA}");
    // Those that stay have theirs.
    for &page in held.0.iter().filter(|&&page| page % ARENA_BYTES == 0) {
        assert_eq!(space.page(page).expect("known").vacant()[1].load(Ordering::Relaxed), page as u64);
    }
    // Of each group there is one that is in use: what is freed later goes as well.
    held.give(space, |arena| arena >= UNIT);
    give_back(space);
    let none = before.0 - resident(space).0;
    assert!(none >= UNIT_METADATA, "{none} of {UNIT_METADATA}");
    assert_eq!(space.source().kernel.violations(), []);
}

#[test]
fn a_unit_that_was_split_has_huge_pages_when_it_is_in_use_again() {
    let (space, mut held) = large();
    let huge = |space| resident(space).1;
    let before = huge(space);
    held.give(space, |arena| arena >= UNIT && arena % 8 != 0);
    give_back(space);
    assert!(before - huge(space) >= UNIT_METADATA);
    let some = Held::take(space, UNIT / 4);
    space.source().kernel.run_khugepaged(1 << 20);
    assert!(before - huge(space) >= UNIT_METADATA, "too few are in use");
    let more = Held::take(space, UNIT - UNIT / 8 - some.arenas());
    written(space);
    space.source().kernel.run_khugepaged(1 << 20);
    assert_eq!(huge(space), before);
    assert!(!space.regions()[0].tables.expect("it is known").is_split(GROUPS));
    assert_eq!(space.source().kernel.violations(), []);
    drop((some, more));
}

#[test]
fn a_unit_that_was_split_stays_so_where_no_huge_pages_are_wanted_any_more() {
    let (space, mut held) = large();
    held.give(space, |arena| arena >= UNIT && arena % 8 != 0);
    give_back(space);
    let split = resident(space).1;
    {
        let mut arenas = space.source().arenas.lock();
        let settings = arenas.settings();
        arenas.set(Settings { policy: Policy::Base, ..settings });
    }
    let all = Held::take(space, UNIT - UNIT / 8);
    space.source().kernel.run_khugepaged(1 << 20);
    assert_eq!(resident(space).1, split);
    drop(all);
}

/// Of a huge page that is mapped as a whole the kernel splits nothing when it is asked for all of it.
#[test]
fn the_charge_falls_when_a_unit_is_split() {
    let space = space_with(Config { split_drops_zero: false, ..Config::default() }, 4 << 30);
    let mut held = Held::take(space, 2 * UNIT);
    written(space);
    let kernel = &space.source().kernel;
    let charge = || kernel.memory_limits().expect("in a cgroup").charge;
    held.give(space, |arena| arena >= UNIT && arena % 8 != 0);
    {
        // The arenas alone, without their metadata.
        let mut arenas = space.source().arenas.lock();
        arenas.forget_demand();
        let _ = arenas.maintain();
    }
    let before = (charge(), resident(space).0);
    space.arena_given_back(space.regions()[0].start + (UNIT + 1) * ARENA_BYTES);
    let gone = UNIT_METADATA / 8 * 7;
    assert_eq!((before.0 - charge(), before.1 - resident(space).0), (gone, gone));
    assert_eq!(kernel.violations(), []);
}

/// What of the bitmaps of some groups of the second unit of a region goes, of which first all but `half` and
/// then all but `few` arenas are given back.
fn bitmaps_that_go(space: &Space<World>, held: &mut Held, [first, half, few, end]: [usize; 4]) -> u64 {
    const GROUP_ARENAS: usize = GROUP_BYTES / ARENA_BYTES;
    let groups = first / GROUP_ARENAS..end / GROUP_ARENAS;
    let tables = space.regions()[0].tables.expect("it is known");
    assert!(tables.is_huge(0, groups.start) && !tables.is_huge(MARKS, groups.start));
    let before = bitmaps(space, groups.clone());
    for stays in [half, few] {
        held.give(space, |arena| arena >= stays);
        give_back(space);
    }
    assert_eq!(space.source().kernel.violations(), []);
    before - bitmaps(space, groups)
}

/// The marks of arenas that were given back before went at once, and so nobody asked for their bitmaps any more.
#[test]
fn bitmaps_on_huge_pages_go_after_marks_that_were_not() {
    // The last unit of a region, too short for a huge page of marks.
    let groups = 8;
    let config = Config { split_drops_zero: false, ..Config::default() };
    let space = space_with(config, (4 << 30) + groups * GROUP_BYTES);
    let first = (4 << 30) / ARENA_BYTES;
    let end = first + groups * GROUP_BYTES / ARENA_BYTES;
    let mut held = Held::take(space, end);
    written(space);
    let gone = bitmaps_that_go(space, &mut held, [first, first + 64, first + 16, end]);
    assert_eq!(gone, (end - first - 16) as u64 * ARENA_BITMAPS);
}

#[test]
fn bitmaps_on_huge_pages_go_after_marks_whose_address_space_went() {
    let space = space_with(Config { split_drops_zero: false, ..Config::default() }, 4 << 30);
    let mut held = Held::take(space, 2 * UNIT);
    written(space);
    let tables = space.regions()[0].tables.expect("it is known");
    held.give(space, |arena| arena >= UNIT + 192);
    give_back(space);
    let cut = (GROUPS + 12) * GROUP_PAGES;
    tables.release(&space.source().kernel, cut, cut, 2 * GROUPS * GROUP_PAGES);
    let gone = bitmaps_that_go(space, &mut held, [UNIT, UNIT + 80, UNIT + 16, UNIT + 128]);
    assert_eq!(gone, 112 * ARENA_BITMAPS);
}

/// With 64 KiB the bitmaps of four arenas lie on one, and the marks of eight.
#[test]
fn on_large_os_pages_those_go_that_arenas_side_by_side_share() {
    let config = Config { split_drops_zero: false, ..Config::with_page_sizes(64 << 10, Some(ARENA_BYTES)) };
    let space = space_with(config, 4 << 30);
    let mut held = Held::take(space, 2 * UNIT);
    let before = (written(space).0, space.metadata_bytes());
    held.give(space, |arena| arena >= UNIT && arena % 16 >= 8 && arena % 64 != 8);
    held.give(space, |arena| arena >= UNIT && arena % 16 < 8 && arena % 32 != 0);
    give_back(space);
    let gone = before.0 - resident(space).0;
    assert!(gone >= UNIT_METADATA / 2, "{gone} of {UNIT_METADATA}");
    let counted = before.1 - space.metadata_bytes();
    assert!(counted > 0 && counted as u64 <= gone, "{counted}");
    assert_eq!(space.source().kernel.violations(), []);
}
