//! Processes of the simulated kernel: what fork shares and what it breaks, a test per fact.

mod simulated_common;

use hugeheap_os::simulated::Config;
use hugeheap_os::{AddressRange, Advice, Backing, Pages};
use simulated_common::{Driver, HUGE, OS, pages};

#[test]
fn fork_shares_and_the_first_write_copies_an_os_page() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(2 * HUGE, Backing::Thp);
    d.touch(heap);
    let child = d.kernel.fork();
    assert_eq!((child.rss(), d.charge()), (2 * HUGE as u64, 2 * HUGE as u64));
    child.touch(pages(heap, OS)[0]).unwrap();
    // The child's page table is split, one page is copied; the parent keeps its huge page (measured).
    assert!(!child.is_huge(heap.start + OS) && d.kernel.is_huge(heap.start));
    assert_eq!((child.rss(), d.charge()), (2 * HUGE as u64, (2 * HUGE + OS) as u64));
    // Splitting leaves pages alone that another process shares.
    // SAFETY: contents do not change.
    unsafe { child.split(pages(heap, OS)[3]).unwrap() };
    assert_eq!(d.kernel.events().splits, 0);
    child.exit();
    assert_eq!(d.charge(), 2 * HUGE as u64);
    d.touch(heap);
    assert_eq!((d.thp(heap), d.kernel.events().copies), (2 * HUGE as u64, 1));
    d.sound();
}

#[test]
fn fork_copies_os_pages_before_they_are_written() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(4 * OS, Backing::Base);
    d.touch(heap);
    let child = d.kernel.fork();
    assert_eq!(d.charge(), 4 * OS as u64);
    child.touch_read(heap).unwrap();
    assert_eq!(d.charge(), 4 * OS as u64);
    child.touch(pages(heap, OS)[0]).unwrap();
    d.touch(pages(heap, OS)[1]);
    assert_eq!((d.charge(), d.kernel.events().copies), (6 * OS as u64, 2));
    // No longer shared: written in place.
    d.touch(pages(heap, OS)[0]);
    child.touch(pages(heap, OS)[1]).unwrap();
    assert_eq!(d.kernel.events().copies, 2);
    child.exit();
    d.touch(heap);
    assert_eq!((d.charge(), d.kernel.events().copies), (4 * OS as u64, 2));
    d.sound();
}

#[test]
fn khugepaged_leaves_ranges_alone_that_are_shared_too_much() {
    let d = Driver::new(Config { max_ptes_shared: 2, ..Config::default() });
    let heap = d.mapped(2 * HUGE, Backing::Plain);
    d.touch(AddressRange::new(heap.start, 2 * OS));
    d.touch(AddressRange::new(heap.start + HUGE, 3 * OS));
    let child = d.kernel.fork();
    d.advise(heap, Advice::Huge);
    assert_eq!(d.kernel.run_khugepaged(1 << 20), 1);
    assert!(d.kernel.is_huge(heap.start) && !d.kernel.is_huge(heap.start + HUGE));
    child.exit();
    assert_eq!(d.kernel.run_khugepaged(1 << 20), 1);
    d.sound();
}

/// A copy keeps what is known of the page: it is not dropped as never written when its huge page is split later.
#[test]
fn a_copied_page_counts_as_written_when_the_original_was() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(HUGE, Backing::Thp);
    d.touch(pages(heap, OS)[0]);
    let child = d.kernel.fork();
    d.populate(heap).unwrap();
    assert_eq!(d.collapse(heap), Ok(()));
    d.split(heap.start, OS);
    assert_eq!(d.rss(), OS as u64);
    child.exit();
    assert_eq!(d.charge(), OS as u64);
    d.sound();
}

/// Measured: dropping a part in the child strands nothing while the parent maps it all.
#[test]
fn what_a_child_drops_is_not_stranded_while_the_parent_maps_it() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(HUGE, Backing::Thp);
    d.touch(heap);
    let child = d.kernel.fork();
    // SAFETY: contents do not change.
    unsafe { child.decommit(AddressRange::new(heap.start + OS, HUGE - OS)).unwrap() };
    assert_eq!((child.rss(), d.partially_mapped()), (OS as u64, 0));
    d.unmap(heap);
    assert_eq!((d.partially_mapped(), d.charge()), (1, HUGE as u64));
    // SAFETY: contents do not change.
    unsafe { child.split(pages(heap, OS)[0]).unwrap() };
    assert_eq!(d.charge(), OS as u64);
    d.sound();
}

/// Measured: the parent's huge page is gone after it wrote while a child lived, and does not come back by itself.
#[test]
fn a_parent_that_writes_while_a_child_lives_loses_its_huge_page() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(HUGE, Backing::Thp);
    d.touch(heap);
    let child = d.kernel.fork();
    d.touch(pages(heap, OS)[0]);
    assert!(child.is_huge(heap.start));
    child.exit();
    // One part of the old folio is mapped by nobody now: it is stranded.
    assert_eq!((d.partially_mapped(), d.charge()), (1, (HUGE + OS) as u64));
    d.touch(heap);
    assert_eq!(d.thp(heap), 0);
    assert_eq!(d.collapse(heap), Ok(()));
    assert_eq!((d.thp(heap), d.charge()), (HUGE as u64, HUGE as u64));
    d.sound();
}

#[test]
fn collapse_in_the_child_unshares() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(HUGE, Backing::Thp);
    d.touch(heap);
    let child = d.kernel.fork();
    child.touch(pages(heap, OS)[0]).unwrap();
    // SAFETY: contents do not change.
    unsafe { child.collapse(heap).unwrap() };
    assert!(child.is_huge(heap.start) && d.kernel.is_huge(heap.start));
    assert_eq!(d.charge(), 2 * HUGE as u64);
    d.sound();
}

#[test]
fn a_childs_calls_never_change_the_parents_contents() {
    let d = Driver::new(Config::default());
    let heap = d.mapped(HUGE, Backing::Thp);
    d.touch(heap);
    d.fill(heap);
    let child = d.kernel.fork();
    // SAFETY: the child's ranges; nothing of the child is kept.
    unsafe {
        child.decommit(pages(heap, OS)[0]).unwrap();
        child.unmap(heap).unwrap();
        child.release(heap).unwrap();
    }
    d.expect_filled(heap, heap.start);
    assert_eq!((child.rss(), d.rss()), (0, HUGE as u64));
    let own = child.reserve(HUGE, HUGE).unwrap();
    // SAFETY: the child's own reservation.
    unsafe { child.map(own, Backing::Plain).unwrap() };
    child.touch(own).unwrap();
    assert_eq!(child.rss(), HUGE as u64);
    child.exit();
    assert_eq!(d.charge(), HUGE as u64);
    assert!(child.reserve(HUGE, HUGE).is_err());
    assert_eq!(d.kernel.violations().len(), 1);
    d.kernel.clear_violations();
    d.sound();
}
