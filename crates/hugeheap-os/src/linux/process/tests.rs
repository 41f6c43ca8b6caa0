//! The real kernel: this process as its own target.

use super::*;
use crate::process::PageKind;
use crate::{Backing, Pages};

const HUGE: usize = 2 << 20;
const OS: Linux = Linux::new();

/// Writes one byte to each OS page of a range.
fn fill(range: AddressRange) {
    for address in (range.start..range.end()).step_by(os_page()) {
        // SAFETY: the tests call this for memory they have just mapped.
        unsafe { (address as *mut u8).write_volatile((address >> 12) as u8 | 1) };
    }
}

#[test]
fn the_ways_to_read_page_tables_agree() {
    let memory = OS.reserve(4 * HUGE, HUGE).unwrap();
    let part = AddressRange::new(memory.start, 2 * HUGE);
    // SAFETY: the test owns the memory.
    unsafe { OS.map(part, Backing::Base).unwrap() };
    let page = os_page();
    fill(AddressRange::new(part.start + 3 * page, 5 * page));
    fill(AddressRange::new(part.start + HUGE, page));
    let path = path_of(&Root::REAL, std::process::id(), b"/pagemap").unwrap();
    let mut tables = Tables::open(&path, page).unwrap();
    let mut seen = |scans| {
        let mut pages = Vec::new();
        tables.scans = scans;
        tables
            .runs(memory, &mut |run| {
                assert_eq!(run.kind, PageKind::Small);
                pages.extend((run.range.start..run.range.end()).step_by(page));
            })
            .unwrap();
        pages
    };
    let by_entry = seen(false);
    assert_eq!(by_entry.len(), 6);
    if crate::Facts::capabilities(&OS).pagemap_scan {
        assert_eq!(seen(true), by_entry);
    }
    assert_eq!(tables.shared(AddressRange::new(part.start, HUGE)).unwrap(), 0);
    // SAFETY: as above.
    unsafe { OS.release(memory).unwrap() };
}

#[test]
fn without_physical_pages_a_unit_in_part_resident_counts() {
    let memory = OS.reserve(3 * HUGE, HUGE).unwrap();
    // SAFETY: the test owns the memory.
    unsafe { OS.map(memory, Backing::Base).unwrap() };
    let page = os_page();
    fill(AddressRange::new(memory.start + 7 * page, page));
    fill(AddressRange::new(memory.start + HUGE, HUGE));
    let path = path_of(&Root::REAL, std::process::id(), b"/pagemap").unwrap();
    let mut tables = Tables::open(&path, page).unwrap();
    let mut found = Vec::new();
    for unit in 0..3 {
        let unit = AddressRange::new(memory.start + unit * HUGE, HUGE);
        tables.partial(unit, HUGE, &mut |partial| found.push((partial.page, partial.mapped_here))).unwrap();
    }
    assert_eq!(found, [(memory.start + 7 * page, 1)]);
    // SAFETY: as above.
    unsafe { OS.release(memory).unwrap() };
}

#[test]
fn a_process_that_is_not_there_and_one_that_ends() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let process = LinuxProcess::open(OS, child.id()).unwrap();
    assert!(process.status().unwrap().has_memory);
    assert!(process.mappings().unwrap().iter().any(|mapping| mapping.name == "[stack]"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(process.status().unwrap_err().code, libc::ESRCH);
    assert_eq!(process.mappings().unwrap_err().code, libc::ESRCH);
    assert_eq!(LinuxProcess::open(OS, child.id()).unwrap_err().code, libc::ESRCH);
    assert_eq!(LinuxProcess::status_of(OS, child.id()).unwrap_err().code, libc::ESRCH);
}
