//! The simulated kernel's collapse, khugepaged and relocation against what the real kernel does: a test per fact.
//!
//! Facts marked "measured" were seen on Linux 6.18 (x86-64, mode `madvise`), the others are from its documentation.

mod simulated_common;

use hugeheap_os::simulated::{Config, Fault, PageState};
use hugeheap_os::{AddressRange, Advice, Backing, ErrorKind, Facts, Protection, ThpMode};
use simulated_common::{Driver, HUGE, OS, pages};

#[test]
fn collapse_ignores_the_mode_and_obeys_nohugepage() {
    let d = Driver::new(Config::default().with_thp_mode(ThpMode::Never));
    let heap = d.mapped(HUGE, Backing::Plain);
    d.touch(pages(heap, OS)[9]);
    assert_eq!(d.collapse(heap), Ok(()));
    assert_eq!((d.thp(heap), d.charge()), (HUGE as u64, HUGE as u64));
    // Advice against does not take huge pages away that are there (measured).
    d.advise(heap, Advice::NoHuge);
    assert_eq!(d.thp(heap), HUGE as u64);
    assert_eq!(d.collapse(heap), Err(ErrorKind::Invalid));
    d.sound();
}

/// Measured: `EINVAL` where nothing was ever touched; success where only a page table is left.
#[test]
fn collapse_needs_a_page_table() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(2 * HUGE, Backing::Plain);
    assert_eq!(d.collapse(heap), Err(ErrorKind::Invalid));
    d.touch(pages(heap, OS)[0]);
    d.decommit(heap.start, OS);
    // The range that can be is collapsed all the same.
    assert_eq!(d.collapse(heap), Err(ErrorKind::Invalid));
    assert_eq!(d.thp(heap), HUGE as u64);
    assert_eq!(d.collapse(pages(heap, HUGE)[0]), Ok(()));
    d.sound();
}

#[test]
fn collapse_says_why_it_failed() {
    let d = Driver::new(Config { free_huge_pages: Some(0), ..Config::default() });
    let heap = d.mapped(HUGE, Backing::Plain);
    d.touch(heap);
    assert_eq!(d.collapse(heap), Err(ErrorKind::OutOfMemory));
    d.kernel.set_free_huge_pages(None);
    // The new page is charged before the old ones are freed.
    d.kernel.set_cgroup_max(Some(2 * HUGE as u64 - 1));
    assert_eq!(d.collapse(heap), Err(ErrorKind::Busy));
    assert_eq!(d.thp(heap), 0);
    d.kernel.set_cgroup_max(Some(2 * HUGE as u64));
    assert_eq!(d.collapse(heap), Ok(()));
    assert_eq!(d.charge(), HUGE as u64);
    d.sound();
}

/// Measured: protecting a part splits the page table, not the folio; it takes a collapse to mend it.
#[test]
fn protecting_a_part_splits_the_page_table_only() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(HUGE, Backing::Thp);
    d.touch(heap);
    let part = pages(heap, OS)[0];
    d.protect(part, Protection::Read);
    assert_eq!(d.kernel.page_state(heap.start + OS), PageState::Part);
    assert_eq!((d.charge(), d.partially_mapped()), (HUGE as u64, 0));
    assert_eq!(d.kernel.touch(part), Err(Fault::Segv));
    d.kernel.touch_read(part).unwrap();
    d.protect(part, Protection::ReadWrite);
    assert_eq!((d.thp(heap), d.kernel.mappings()), (0, 1));
    assert_eq!(d.collapse(heap), Ok(()));
    assert_eq!(d.thp(heap), HUGE as u64);
    d.sound();
}

#[test]
fn khugepaged_refills_sparse_ranges_at_its_default() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(4 * HUGE, Backing::Thp);
    d.touch(heap);
    for arena in pages(heap, HUGE) {
        d.decommit(arena.start + OS, HUGE - OS);
        d.split(arena.start, OS);
    }
    assert_eq!(d.charge(), 4 * OS as u64);
    // Two huge-page ranges' worth of scanning, then the rest.
    assert_eq!(d.kernel.run_khugepaged(1024), 2);
    assert_eq!(d.charge(), (2 * HUGE + 2 * OS) as u64);
    assert_eq!(d.kernel.run_khugepaged(1024), 2);
    assert_eq!(d.kernel.run_khugepaged(1 << 20), 0);
    assert_eq!((d.rss(), d.charge()), (4 * HUGE as u64, 4 * HUGE as u64));
    d.sound();
}

#[test]
fn khugepaged_obeys_max_ptes_none_advice_and_mode() {
    let d = Driver::new(Config::default());
    let mut knobs = d.kernel.thp().unwrap().khugepaged.unwrap();
    knobs.max_ptes_none = 511 - 64;
    d.kernel.set_khugepaged(knobs);
    let heap = d.mapped(2 * HUGE, Backing::Plain);
    for (arena, touched) in pages(heap, HUGE).into_iter().zip([64, 65]) {
        d.touch(AddressRange::new(arena.start, touched * OS));
    }
    assert_eq!(d.kernel.run_khugepaged(1 << 20), 0, "not advised");
    d.advise(heap, Advice::Huge);
    d.kernel.set_thp_mode(ThpMode::Never);
    assert_eq!(d.kernel.run_khugepaged(1 << 20), 0, "never");
    d.kernel.set_thp_mode(ThpMode::Madvise);
    assert_eq!(d.kernel.run_khugepaged(1 << 20), 1);
    assert!(!d.kernel.is_huge(heap.start) && d.kernel.is_huge(heap.start + HUGE));
    d.advise(heap, Advice::NoHuge);
    d.kernel.set_thp_mode(ThpMode::Always);
    knobs.max_ptes_none = 511;
    d.kernel.set_khugepaged(knobs);
    assert_eq!(d.kernel.run_khugepaged(1 << 20), 0, "advised against");
    d.sound();
}

#[test]
fn khugepaged_scans_16_mib_per_10_s_by_default() {
    let d = Driver::new(Config { background_khugepaged: true, ..Config::default() });
    let heap = d.mapped(32 * HUGE, Backing::Plain);
    d.touch(heap);
    d.advise(heap, Advice::Huge);
    d.kernel.advance(core::time::Duration::from_millis(9999));
    assert_eq!(d.thp(heap), 0);
    d.kernel.advance(core::time::Duration::from_millis(1));
    assert_eq!(d.thp(heap), 16 << 20);
    d.kernel.advance(core::time::Duration::from_secs(20));
    assert_eq!(d.thp(heap), 48 << 20);
    d.sound();
}

#[test]
fn relocation_moves_huge_pages_whole_and_breaks_unaligned_ones() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(2 * HUGE, Backing::Thp);
    d.touch(heap);
    d.fill(heap);
    let other = d.reserved(3 * HUGE);
    d.relocate(pages(heap, HUGE)[0], pages(other, HUGE)[0]);
    assert_eq!((d.thp(other), d.thp(heap), d.rss()), (HUGE as u64, HUGE as u64, 2 * HUGE as u64));
    let unaligned = AddressRange::new(other.start + HUGE + OS, HUGE);
    d.relocate(pages(heap, HUGE)[1], unaligned);
    assert_eq!((d.thp(unaligned), d.rss(), d.charge()), (0, 2 * HUGE as u64, 2 * HUGE as u64));
    assert_eq!(d.kernel.page_state(unaligned.start), PageState::Part);
    d.expect_filled(pages(other, HUGE)[0], heap.start);
    d.expect_filled(unaligned, heap.start + HUGE);
    d.expect_zero(heap);
    // The old range is mapped as it was.
    d.touch(pages(heap, OS)[0]);
    assert_eq!(d.thp(heap), HUGE as u64);
    d.sound();
}
