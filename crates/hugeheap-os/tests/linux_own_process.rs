//! Collapse and release of a process by itself, on the real kernel. The only test of its program: it changes
//! all of the process.

#![cfg(target_os = "linux")]

use hugeheap_os::linux::{Linux, LinuxProcess};
use hugeheap_os::process::{Change, CollapseOptions, Derivation, Process, ReleaseOptions, collapse, release};
use hugeheap_os::{AddressRange, Backing, Facts, Pages};

const HUGE: usize = 2 << 20;
const OS: Linux = Linux::new();

fn os_page() -> usize {
    OS.page_sizes().os
}

/// Writes one byte to each OS page of a range.
fn fill(range: AddressRange) {
    for address in (range.start..range.end()).step_by(os_page()) {
        // SAFETY: the tests call this for memory they have just mapped.
        unsafe { (address as *mut u8).write_volatile((address >> 12) as u8 | 1) };
    }
}

fn intact(range: AddressRange) -> bool {
    (range.start..range.end())
        .step_by(os_page())
        // SAFETY: as in `fill`.
        .all(|address| unsafe { (address as *const u8).read_volatile() == (address >> 12) as u8 | 1 })
}

#[test]
fn one_s_own_process_is_collapsed_and_released() {
    let own = LinuxProcess::own().unwrap();
    if own.allows(Change::Collapse).is_err() || own.page_sizes().huge != Some(HUGE) {
        return;
    }
    let memory = OS.reserve(4 * HUGE, HUGE).unwrap();
    // SAFETY: the test owns the memory.
    unsafe { OS.map(memory, Backing::Plain).unwrap() };
    fill(memory);
    let report = collapse(&own, &CollapseOptions::default(), &mut |_| {}).unwrap();
    let Ok(residency) = OS.residency(memory) else { return };
    if report.stop.is_some() && residency.thp == 0 {
        // No huge page to be had at the moment.
        return;
    }
    assert!(residency.thp >= HUGE as u64, "{residency:?} {report:?}");
    assert!(intact(memory));
    // All but the first page of each is dropped: stranded.
    let page = os_page();
    for unit in (memory.start..memory.end()).step_by(HUGE) {
        // SAFETY: as above; what is dropped is needed no more.
        unsafe { OS.decommit(AddressRange::new(unit + page, HUGE - page)).unwrap() };
    }
    let broken = || {
        let mut found = Vec::new();
        for unit in (memory.start..memory.end()).step_by(HUGE) {
            own.partial_pages(AddressRange::new(unit, HUGE), &mut |partial| {
                found.push((partial.page == unit, partial.mapped_here, partial.mapped));
            })
            .unwrap();
        }
        found
    };
    if own.derivation() == Derivation::Folios {
        let mapped = broken().first().and_then(|(_, _, mapped)| *mapped);
        assert_eq!(broken(), vec![(true, 1, mapped); residency.thp as usize / HUGE]);
        // Kernels without counts for each page do not tell.
        assert!(mapped.is_none_or(|mapped| mapped == 1));
    }
    let report = release(&own, &ReleaseOptions::default(), &mut |_| {}).unwrap();
    assert!(report.split as usize >= residency.thp as usize / HUGE, "{report:?}");
    for unit in (memory.start..memory.end()).step_by(HUGE) {
        assert!(intact(AddressRange::new(unit, page)));
    }
    if own.derivation() == Derivation::Folios {
        assert_eq!(broken(), []);
    }
    // SAFETY: as above.
    unsafe { OS.release(memory).unwrap() };
}
