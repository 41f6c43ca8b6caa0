//! The simulated kernel's hugetlb pools, and what fork does: a test per fact.

mod simulated_common;

use hugeheap_os::simulated::{Config, Fault, PageState};
use hugeheap_os::{AddressRange, Advice, Backing, ErrorKind, Facts, Pages, Protection};
use simulated_common::{Driver, HUGE, OS, kinds, pages};

const POOL: Backing = Backing::Hugetlb(HUGE);

#[test]
fn mapping_reserves_and_touching_takes() {
    let d = Driver::new(Config::default().with_pool(4));
    let heap = d.reserved(8 * HUGE);
    let range = AddressRange::new(heap.start, 3 * HUGE);
    d.map(range, POOL);
    let pool = d.pool();
    assert_eq!((pool.total, pool.free, pool.reserved, pool.available()), (4, 4, 3, 1));
    d.touch(pages(range, HUGE)[0]);
    let pool = d.pool();
    assert_eq!((pool.free, pool.reserved, pool.available()), (3, 2, 1));
    // An exhausted pool is an error when mapped, not at the touch.
    let more = AddressRange::new(heap.start + 4 * HUGE, 2 * HUGE);
    // SAFETY: a reserved range of this test's own.
    assert_eq!(kinds(unsafe { d.kernel.map(more, POOL) }), Err(ErrorKind::OutOfMemory));
    assert_eq!(d.kernel.page_state(more.start), PageState::Reserved);
    // Neither RSS nor the memory cgroup see them; residency does.
    assert_eq!((d.rss(), d.charge()), (0, 0));
    let residency = d.kernel.residency(heap).unwrap();
    assert_eq!((residency.resident, residency.hugetlb), (HUGE as u64, HUGE as u64));
    d.unmap(range);
    let pool = d.pool();
    assert_eq!((pool.free, pool.reserved), (4, 0));
    d.sound();
}

#[test]
fn unmapping_needs_multiples_of_the_page_size() {
    let d = Driver::new(Config::default().with_pool(2));
    let range = d.mapped(2 * HUGE, POOL);
    // SAFETY: a range of this test's own; the call is refused.
    let refused = unsafe { d.kernel.unmap(AddressRange::new(range.start, OS)) };
    assert_eq!(kinds(refused), Err(ErrorKind::Invalid));
    assert_eq!(d.kernel.violations().len(), 1);
    d.kernel.clear_violations();
    d.unmap(pages(range, HUGE)[0]);
    assert_eq!(d.pool().reserved, 1);
    d.sound();
}

#[test]
fn populate_makes_all_pages_resident() {
    let d = Driver::new(Config::default().with_pool(2));
    let range = d.mapped(2 * HUGE, POOL);
    d.populate(range).unwrap();
    assert_eq!(d.kernel.residency(range).unwrap().hugetlb, 2 * HUGE as u64);
    assert_eq!(d.kernel.page_state(range.start), PageState::Hugetlb);
    d.sound();
}

#[test]
fn overcommit_makes_surplus_pages_and_gives_them_back() {
    let d = Driver::new(Config::default().with_pool(1));
    d.kernel.set_pool_overcommit(HUGE, 2);
    assert_eq!(d.pool().available(), 3);
    let range = d.mapped(3 * HUGE, POOL);
    assert_eq!((d.pool().total, d.pool().surplus), (3, 2));
    d.touch(range);
    d.unmap(range);
    assert_eq!((d.pool().total, d.pool().surplus, d.pool().free), (1, 0, 1));
    d.sound();
}

#[test]
fn shrinking_a_pool_leaves_used_pages_as_surplus() {
    let d = Driver::new(Config::default().with_pool(4));
    let range = d.mapped(3 * HUGE, POOL);
    assert_eq!(d.kernel.set_pool(1), 1);
    assert_eq!((d.pool().total, d.pool().surplus, d.pool().free), (3, 2, 3));
    d.touch(range);
    d.unmap(range);
    assert_eq!((d.pool().total, d.pool().surplus, d.pool().free), (1, 0, 1));
    d.sound();
}

#[test]
fn a_pool_grows_only_as_far_as_memory_goes() {
    let d = Driver::new(Config { total_memory: 8 * HUGE as u64, ..Config::default() });
    d.touch(d.mapped(3 * HUGE, Backing::Thp));
    assert_eq!(d.kernel.set_pool(100), 5);
    assert_eq!(d.kernel.available_memory(), Ok(0));
    assert_eq!(d.kernel.touch(d.mapped(OS, Backing::Base)), Err(Fault::Oom));
    d.kernel.set_pool(0);
    assert_eq!(d.kernel.available_memory(), Ok(5 * HUGE as u64));
    d.kernel.set_free_huge_pages(Some(2));
    assert_eq!(d.kernel.set_pool(100), 2);
    d.sound();
}

#[test]
fn the_hugetlb_cgroup_limits_use_at_the_touch_and_reservations_when_mapped() {
    let d = Driver::new(Config::default().with_pool(4));
    let heap = d.reserved(4 * HUGE);
    d.kernel.set_hugetlb_limits(Some(HUGE as u64), Some(3 * HUGE as u64));
    // SAFETY: a reserved range of this test's own.
    assert_eq!(kinds(unsafe { d.kernel.map(heap, POOL) }), Err(ErrorKind::OutOfMemory));
    let range = AddressRange::new(heap.start, 3 * HUGE);
    d.map(range, POOL);
    assert_eq!(d.kernel.touch(range), Err(Fault::Bus));
    assert_eq!(kinds(d.populate(range)), Err(ErrorKind::Missing));
    assert_eq!(d.kernel.residency(range).unwrap().hugetlb, HUGE as u64);
    assert_eq!(d.kernel.events().buses, 2);
    d.unmap(range);
    d.kernel.set_hugetlb_limits(None, None);
    d.map(heap, POOL);
    d.touch(heap);
    d.sound();
}

#[test]
fn a_childs_write_to_a_shared_page_with_an_empty_pool_is_sigbus() {
    let d = Driver::new(Config::default().with_pool(2));
    let range = d.mapped(2 * HUGE, POOL);
    d.touch(pages(range, HUGE)[0]);
    let child = d.kernel.fork();
    child.touch_read(pages(range, HUGE)[0]).unwrap();
    assert_eq!(child.touch(pages(range, HUGE)[0]), Err(Fault::Bus));
    // The page the parent has not touched is promised to the parent, not to the child.
    assert_eq!(child.touch(pages(range, HUGE)[1]), Err(Fault::Bus));
    d.touch(pages(range, HUGE)[1]);
    // With a spare page it works.
    d.kernel.set_pool(3);
    child.touch(pages(range, HUGE)[0]).unwrap();
    assert_eq!(d.pool().free, 0);
    child.exit();
    assert_eq!(d.pool().free, 1);
    d.sound();
}

#[test]
fn the_parents_write_with_an_empty_pool_takes_the_page_from_the_child() {
    let d = Driver::new(Config::default().with_pool(2));
    let range = d.mapped(2 * HUGE, POOL);
    d.touch(range);
    let child = d.kernel.fork();
    d.touch(pages(range, HUGE)[0]);
    assert_eq!(d.kernel.events().steals, 1);
    assert_eq!(child.touch_read(pages(range, HUGE)[0]), Err(Fault::Bus));
    // What was not taken can be read on.
    child.touch_read(pages(range, HUGE)[1]).unwrap();
    // Nor do spare pages help: the kernel would have to hand out zeros for what was there.
    d.kernel.set_pool(4);
    assert_eq!(child.touch(pages(range, HUGE)[0]), Err(Fault::Bus));
    child.touch(pages(range, HUGE)[1]).unwrap();
    child.exit();
    d.touch(range);
    assert_eq!(d.kernel.events().steals, 1);
    d.sound();
}

#[test]
fn the_parents_write_with_a_spare_page_copies() {
    let d = Driver::new(Config::default().with_pool(2));
    let range = d.mapped(HUGE, POOL);
    d.touch(range);
    let child = d.kernel.fork();
    d.touch(range);
    assert_eq!((d.pool().free, d.kernel.events().steals), (0, 0));
    child.touch(range).unwrap();
    child.exit();
    assert_eq!(d.pool().free, 1);
    d.sound();
}

#[test]
fn advice_and_splitting_are_refused_for_hugetlb() {
    let d = Driver::new(Config::default().with_pool(1));
    let range = d.mapped(HUGE, POOL);
    // SAFETY: a range of this test's own.
    unsafe {
        assert_eq!(kinds(d.kernel.advise(range, Advice::Huge)), Err(ErrorKind::Invalid));
        assert_eq!(kinds(d.kernel.split(range)), Err(ErrorKind::Invalid));
        assert_eq!(kinds(d.kernel.collapse(range)), Err(ErrorKind::Invalid));
        d.kernel.protect(range, Protection::Read).unwrap();
    }
    assert_eq!(d.kernel.touch(range), Err(Fault::Segv));
    assert!(d.kernel.violations().is_empty());
    // SAFETY: as above.
    assert_eq!(kinds(unsafe { d.kernel.decommit(range) }), Err(ErrorKind::Invalid));
    assert_eq!(d.kernel.violations().len(), 1);
}

#[test]
fn one_gib_pages_work() {
    let gib = 1 << 30;
    let d = Driver::new(Config::default());
    assert_eq!(d.kernel.set_pool_of(gib, 2), 2);
    let range = d.kernel.reserve(2 * gib, gib).unwrap();
    d.map(range, Backing::Hugetlb(gib));
    d.touch(AddressRange::new(range.start + 5 * OS, OS));
    let part = AddressRange::new(range.start + gib - HUGE, 2 * HUGE);
    assert_eq!(d.kernel.residency(part).unwrap().hugetlb, HUGE as u64);
    d.unmap(range);
    d.release(range);
    d.sound();
}

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
