//! Giving back parts of huge pages on the running kernel: the control group's charge falls, not only RSS.
#![cfg(target_os = "linux")]

#[path = "linux_support/mod.rs"]
mod support;

use hugeheap_os::{AddressRange, Advice, Backing, Facts, Pages};
use std::time::Instant;
use support::*;

const COUNT: usize = 64;
/// The page of each huge page that stays.
const KEPT: usize = 5;
const KIB: u64 = 1 << 10;

fn charge() -> u64 {
    OS.memory_limits().unwrap().charge
}

/// Huge pages of the host of which only a part is mapped. `None` on kernels before 6.12.
fn partially_mapped() -> Option<u64> {
    let path = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/stats/nr_anon_partially_mapped";
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Drops all pages of a huge page but [`KEPT`].
fn drop_all_but_one(huge: AddressRange) {
    let kept = KEPT * PAGE;
    // SAFETY: the test owns the range and reads only the kept page again.
    unsafe {
        OS.decommit(AddressRange::new(huge.start, kept)).unwrap();
        OS.decommit(AddressRange::new(huge.start + kept + PAGE, HUGE - kept - PAGE)).unwrap();
    }
}

fn fill(range: AddressRange) {
    pages_of(range).for_each(|page| put(page, (page / PAGE) as u8 | 1));
}

fn assert_kept(memory: &Reserved) {
    for index in 0..COUNT {
        let page = memory.huge_page(index).start + KEPT * PAGE;
        assert_eq!(get(page), (page / PAGE) as u8 | 1);
        assert_eq!(get(page + PAGE), 0, "dropped memory reads as zero");
    }
}

/// How the memory under test gets onto huge pages.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Touched,
    Populated,
    /// By a thread on another CPU, so that nothing this CPU has batched could help.
    TouchedElsewhere,
    Collapsed,
}

fn make_huge(range: AddressRange, origin: Origin) {
    // SAFETY: the test owns the range.
    unsafe {
        match origin {
            Origin::Touched => OS.map(range, Backing::Thp).unwrap(),
            Origin::Populated => {
                OS.map(range, Backing::Thp).unwrap();
                OS.populate(range).unwrap();
            }
            Origin::TouchedElsewhere => {
                OS.map(range, Backing::Thp).unwrap();
                pin_to(0);
                let toucher = std::thread::spawn(move || {
                    pin_to(1);
                    fill(range);
                });
                toucher.join().unwrap();
            }
            Origin::Collapsed => {
                OS.map(range, Backing::Base).unwrap();
                fill(range);
                OS.advise(range, Advice::Huge).unwrap();
                OS.collapse(range).unwrap();
            }
        }
    }
    fill(range);
}

/// Runs `name` in a group of its own under the host lock; true in the child.
fn in_group(name: &str) -> bool {
    if is_child(name) {
        return in_child(name, None);
    }
    let _lock = HostLock::take();
    let Some(group) = Group::new(name) else { return false };
    let Some(_mode) = Knob::thp("madvise") else { return false };
    in_child(name, Some(&group))
}

#[test]
fn charge_falls_when_what_is_left_is_split() {
    if !in_group("charge_falls_when_what_is_left_is_split") {
        return;
    }
    for origin in [Origin::Touched, Origin::Populated, Origin::TouchedElsewhere, Origin::Collapsed] {
        let memory = Reserved::huge_pages(COUNT);
        let before = charge();
        make_huge(memory.0, origin);
        let full = charge() - before;
        let whole = (COUNT * HUGE) as u64;
        assert_eq!(OS.residency(memory.0).unwrap().thp, whole, "{origin:?}");
        assert!(full >= whole - 512 * KIB, "{origin:?}: {full}");

        (0..COUNT).for_each(|index| drop_all_but_one(memory.huge_page(index)));
        let resident = OS.residency(memory.0).unwrap();
        assert_eq!((resident.resident, resident.thp), ((COUNT * PAGE) as u64, 0));
        let stranded = (charge() - before).saturating_sub(resident.resident);
        assert!(stranded > whole / 2, "{origin:?}: nothing stranded: {stranded}");
        let partial = partially_mapped();

        let start = Instant::now();
        // SAFETY: the test owns the range.
        unsafe { OS.split(memory.0).unwrap() };
        let took = start.elapsed();
        let left = charge().saturating_sub(before);
        // Page tables are charged, and each CPU keeps a few charged pages in stock.
        assert!(left < resident.resident + 2048 * KIB, "{origin:?}: {left}");
        if let (Some(partial), Some(now)) = (partial, partially_mapped()) {
            assert!(now + COUNT as u64 <= partial, "{origin:?}: {partial} {now}");
        }
        assert_kept(&memory);
        eprintln!(
            "{origin:?}: charge {} KiB, after decommit {} KiB, after split {} KiB; {took:?} for {COUNT} huge pages",
            full / KIB,
            (stranded + resident.resident) / KIB,
            left / KIB
        );
    }
}

#[test]
fn whole_huge_pages_stay_whole_and_give_their_charge_back_at_once() {
    if !in_group("whole_huge_pages_stay_whole_and_give_their_charge_back_at_once") {
        return;
    }
    let memory = Reserved::huge_pages(COUNT);
    let before = charge();
    make_huge(memory.0, Origin::Touched);
    // SAFETY: the test owns the range.
    unsafe {
        OS.split(memory.0).unwrap();
        assert_eq!(OS.residency(memory.0).unwrap().thp, (COUNT * HUGE) as u64);
        OS.decommit(memory.part(0, COUNT / 2 * HUGE)).unwrap();
        let half = charge() - before;
        assert!(half < (COUNT / 2 * HUGE) as u64 + 2048 * KIB, "{half}");
        OS.unmap(memory.0).unwrap();
    }
    assert!(charge() < before + 2048 * KIB);
    assert_reserved(memory.0);
}

#[test]
fn pages_shared_with_a_forked_child_are_split_after_it_is_gone() {
    if !in_group("pages_shared_with_a_forked_child_are_split_after_it_is_gone") {
        return;
    }
    let memory = Reserved::huge_pages(COUNT);
    let before = charge();
    make_huge(memory.0, Origin::Touched);
    // SAFETY: the child does nothing but wait to be killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: no preconditions.
            unsafe { libc::pause() };
        }
    }
    (0..COUNT).for_each(|index| drop_all_but_one(memory.huge_page(index)));
    // SAFETY: the test owns the range; the child is this process's.
    unsafe {
        OS.split(memory.0).unwrap();
        assert!(charge() - before > (COUNT * HUGE / 2) as u64, "the child still needs all of it");
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
        OS.split(memory.0).unwrap();
    }
    let left = charge().saturating_sub(before);
    assert!(left < (COUNT * PAGE) as u64 + 2048 * KIB, "{left}");
    assert_kept(&memory);
}
