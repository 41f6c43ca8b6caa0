//! Pages of a hugetlb pool on the running kernel. All of it needs the privilege to size the pool.
#![cfg(target_os = "linux")]

#[path = "linux_support/mod.rs"]
mod support;

use hugeheap_os::{Backing, ErrorKind, Facts, Pages, Residency};
use support::*;

const HUGETLB: Backing = Backing::Hugetlb(HUGE);

fn available() -> u64 {
    OS.hugetlb_pool(HUGE).unwrap().unwrap().available()
}

fn hugetlb(bytes: usize) -> Residency {
    Residency { resident: bytes as u64, thp: 0, hugetlb: bytes as u64 }
}

#[test]
fn pool_pages_come_populated_and_go_back() {
    let _lock = HostLock::take();
    let Some(_pool) = Knob::pool(4) else { return };
    let memory = Reserved::huge_pages(6);
    let range = memory.part(2 * HUGE, 3 * HUGE);
    for _ in 0..3 {
        // SAFETY: the test owns the range.
        unsafe {
            OS.map(range, HUGETLB).unwrap();
            assert_eq!((OS.residency(memory.0).unwrap(), available()), (hugetlb(3 * HUGE), 1));
            pages_of(range).for_each(|page| {
                assert_eq!(get(page), 0);
                put(page, 1);
            });
            // Part by part, too.
            OS.unmap(memory.huge_page(3)).unwrap();
            assert_eq!((OS.residency(range).unwrap(), available()), (hugetlb(2 * HUGE), 2));
            assert_reserved(memory.huge_page(3));
            assert_eq!(get(memory.huge_page(4).start), 1);
            OS.unmap(range).unwrap();
        }
        assert_eq!(available(), 4);
        assert_reserved(memory.0);
    }
}

#[test]
fn an_exhausted_pool_is_a_clean_error_and_leaves_the_range_reserved() {
    let _lock = HostLock::take();
    let Some(_pool) = Knob::pool(2) else { return };
    let memory = Reserved::huge_pages(4);
    let range = memory.part(HUGE, 3 * HUGE);
    // SAFETY: the test owns the range.
    unsafe {
        assert_eq!(OS.map(range, HUGETLB).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_reserved(memory.0);
        assert_eq!(available(), 2);
        OS.map(memory.part(HUGE, 2 * HUGE), HUGETLB).unwrap();
        assert_eq!(OS.map(memory.huge_page(3), HUGETLB).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_reserved(memory.huge_page(3));
        OS.map(memory.huge_page(3), Backing::Thp).unwrap();
        put(memory.huge_page(3).start, 1);
        OS.unmap(memory.0).unwrap();
    }
    assert_eq!(available(), 2);
}

#[test]
fn both_kinds_of_huge_page_are_told_apart() {
    let _lock = HostLock::take();
    let (Some(_pool), Some(_mode)) = (Knob::pool(2), Knob::thp("madvise")) else { return };
    let memory = Reserved::huge_pages(4);
    // SAFETY: the test owns the ranges.
    unsafe {
        OS.map(memory.huge_page(0), HUGETLB).unwrap();
        OS.map(memory.huge_page(1), Backing::Thp).unwrap();
        OS.map(memory.huge_page(2), HUGETLB).unwrap();
        OS.map(memory.huge_page(3), Backing::Base).unwrap();
    }
    put(memory.huge_page(1).start, 1);
    put(memory.huge_page(3).start, 1);
    let expected =
        Residency { resident: (3 * HUGE + PAGE) as u64, thp: HUGE as u64, hugetlb: 2 * HUGE as u64 };
    assert_eq!(OS.residency(memory.0).unwrap(), expected);
}

#[test]
fn pool_pages_are_not_relocated() {
    let _lock = HostLock::take();
    let Some(_pool) = Knob::pool(1) else { return };
    let memory = Reserved::huge_pages(2);
    let (from, to) = (memory.huge_page(0), memory.huge_page(1));
    // SAFETY: the test owns the ranges.
    unsafe {
        OS.map(from, HUGETLB).unwrap();
        put(from.start, 9);
        assert_eq!(OS.relocate(from, to).unwrap_err().kind(), ErrorKind::Unsupported);
    }
    assert_reserved(to);
    assert_eq!(get(from.start), 9);
}

#[test]
fn sizes_without_a_pool_are_refused() {
    let _lock = HostLock::take();
    let memory = Reserved::huge_pages(4);
    let range = memory.huge_page(1);
    // SAFETY: the test owns the range.
    unsafe {
        for size in [0, 3, PAGE, 1 << 17, 1 << 30, 1 << 40, 3 * HUGE] {
            assert_eq!(
                OS.map(range, Backing::Hugetlb(size)).unwrap_err().kind(),
                ErrorKind::Invalid,
                "{size}"
            );
        }
        let crooked = memory.part(HUGE + PAGE, HUGE);
        assert_eq!(OS.map(crooked, HUGETLB).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_reserved(memory.0);
}

/// The hugetlb controller (v1) charges at the fault, which then is a SIGBUS: the populated pages must show it
/// as an error.
#[test]
fn a_control_group_limit_is_an_error_and_not_a_signal() {
    const NAME: &str = "a_control_group_limit_is_an_error_and_not_a_signal";
    if !is_child(NAME) {
        let _lock = HostLock::take();
        let parent = std::path::Path::new("/sys/fs/cgroup/hugetlb");
        if !parent.join("cgroup.procs").exists() {
            return skip("no hugetlb controller");
        }
        let Some(_pool) = Knob::pool(2) else { return };
        let group = Group(parent.join(format!("hugeheap-test-{}", std::process::id())));
        std::fs::create_dir(&group.0).unwrap();
        std::fs::write(group.0.join("hugetlb.2MB.limit_in_bytes"), "2097152").unwrap();
        in_child(NAME, Some(&group));
        return;
    }
    in_child(NAME, None);
    let memory = Reserved::huge_pages(2);
    // SAFETY: the test owns the range.
    unsafe {
        assert_eq!(OS.map(memory.0, HUGETLB).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_reserved(memory.0);
        OS.map(memory.huge_page(0), HUGETLB).unwrap();
    }
}
