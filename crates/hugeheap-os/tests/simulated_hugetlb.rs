//! The simulated kernel's hugetlb pools: a test per fact.

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

/// What the Linux implementation of the trait does: a touch never meets an empty pool.
#[test]
fn mapping_can_populate() {
    let d = Driver::new(Config { populate_hugetlb: true, ..Config::default().with_pool(3) });
    let range = d.mapped(2 * HUGE, POOL);
    assert_eq!((d.pool().free, d.pool().reserved), (1, 0));
    assert_eq!(d.kernel.residency(range).unwrap().hugetlb, 2 * HUGE as u64);
    d.kernel.set_hugetlb_limits(Some(2 * HUGE as u64), None);
    let more = d.reserved(HUGE);
    // SAFETY: a reserved range of this test's own.
    assert_eq!(kinds(unsafe { d.kernel.map(more, POOL) }), Err(ErrorKind::OutOfMemory));
    assert_eq!((d.kernel.page_state(more.start), d.pool().free), (PageState::Reserved, 1));
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
