//! What an allocator calls uses no heap: every such call under a counting allocator.
#![cfg(target_os = "linux")]

#[path = "linux_support/mod.rs"]
mod support;

use hugeheap_os::{AddressRange, Advice, Backing, Facts, Pages, Protection};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use support::*;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: passes everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Panics when `call` allocates.
fn without_heap<T>(name: &str, call: impl FnOnce() -> T) -> T {
    let before = ALLOCATIONS.get();
    let result = call();
    assert_eq!(ALLOCATIONS.get(), before, "{name} allocates");
    result
}

#[test]
fn pages_use_no_heap() {
    let range = without_heap("reserve", || OS.reserve(8 * HUGE, HUGE)).unwrap();
    let huge = |index: usize| AddressRange::new(range.start + index * HUGE, HUGE);
    // SAFETY: the test owns the ranges. Whether a call succeeds is not the question here.
    unsafe {
        without_heap("map base", || OS.map(huge(0), Backing::Base)).unwrap();
        without_heap("map plain", || OS.map(huge(1), Backing::Plain)).unwrap();
        without_heap("map thp", || OS.map(huge(2), Backing::Thp)).unwrap();
        without_heap("map zeros", || OS.map(huge(5), Backing::Zeros)).unwrap();
        _ = without_heap("map hugetlb", || OS.map(huge(3), Backing::Hugetlb(HUGE)));
        _ = without_heap("advise", || OS.advise(huge(1), Advice::NoHuge));
        _ = without_heap("populate", || OS.populate(huge(2)));
        _ = without_heap("collapse", || OS.collapse(huge(2)));
        _ = without_heap("residency", || OS.residency(range));
        _ = without_heap("relocate", || OS.relocate(huge(2), huge(4)));
        _ = without_heap("split", || OS.split(huge(4)));
        _ = without_heap("decommit", || OS.decommit(huge(4)));
        _ = without_heap("protect", || OS.protect(huge(4), Protection::Read));
        _ = without_heap("name", || OS.name(range, c"hugeheap"));
        without_heap("unmap", || OS.unmap(range)).unwrap();
        without_heap("release", || OS.release(range)).unwrap();
    }
    let failed = without_heap("failing reserve", || OS.reserve(1 << 60, HUGE));
    assert!(failed.is_err());
}

#[test]
fn facts_of_the_allocation_path_use_no_heap() {
    _ = without_heap("page_sizes", || OS.page_sizes());
    _ = without_heap("thp", || OS.thp());
    _ = without_heap("thp_mode", || OS.thp_mode());
    _ = without_heap("thp_disabled", || OS.thp_disabled());
    _ = without_heap("hugetlb_pool", || OS.hugetlb_pool(HUGE));
    _ = without_heap("memory_limits", || OS.memory_limits());
    _ = without_heap("memory_room", || OS.memory_room());
    _ = without_heap("pressure", || OS.pressure());
    _ = without_heap("available_memory", || OS.available_memory());
    _ = without_heap("free_swap", || OS.free_swap());
    _ = without_heap("total_memory", || OS.total_memory());
    _ = without_heap("address_space_limit", || OS.address_space_limit());
    _ = without_heap("capabilities", || OS.capabilities());
    _ = without_heap("knows_collapse", || OS.knows_collapse());
    _ = without_heap("now", || OS.now());
}
