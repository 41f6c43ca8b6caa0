//! The real kernel: this process as its own target.

use super::super::testing;
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
    let _alone = testing::alone();
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
    let _alone = testing::alone();
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

/// A child of two threads, of which the main one ends at a byte in the pipe that is returned. The other one
/// waits for ever.
fn beheadable() -> (u32, std::os::fd::OwnedFd) {
    extern "C" fn wait(_: *mut core::ffi::c_void) -> *mut core::ffi::c_void {
        loop {
            // SAFETY: no preconditions.
            unsafe { libc::pause() };
        }
    }
    let mut pipe = [0; 2];
    // SAFETY: the child makes system calls, and a thread; the memory that it needs for it is taken with the C
    // library's locks as `fork` leaves them.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let child = libc::fork();
        if child == 0 {
            let mut thread = core::mem::zeroed();
            libc::pthread_create(&raw mut thread, core::ptr::null(), wait, core::ptr::null_mut());
            let mut byte = 0_u8;
            libc::read(pipe[0], (&raw mut byte).cast(), 1);
            // The thread, not the process.
            libc::syscall(libc::SYS_exit, 0);
        }
        libc::close(pipe[0]);
        (child as u32, std::os::fd::FromRawFd::from_raw_fd(pipe[1]))
    }
}

/// What the simulated process that lives on does.
#[test]
fn a_process_without_its_main_thread_is_told_from_one_that_has_ended() {
    use std::io::Write;
    let _alone = testing::alone();
    let memory = OS.reserve(2 * HUGE, HUGE).unwrap();
    // SAFETY: the test owns the memory, and its child the copy.
    unsafe { OS.map(memory, Backing::Plain).unwrap() };
    fill(memory);
    let (child, pipe) = beheadable();
    let process = LinuxProcess::open(OS, child).unwrap();
    let resident = || {
        let mut pages = 0;
        process.pages(memory, &mut |run| pages += run.range.len / os_page()).unwrap();
        pages
    };
    let before = process.status().unwrap();
    assert!(before.has_memory && !before.main_thread_ended);
    let pages = memory.len / os_page();
    assert_eq!(resident(), pages);
    // Both threads are there before the one ends.
    let tasks = || std::fs::read_dir(format!("/proc/{child}/task")).unwrap().count();
    while tasks() < 2 {
        std::thread::yield_now();
    }
    std::fs::File::from(pipe).write_all(b"x").unwrap();
    while process.status().unwrap().has_memory {
        std::thread::yield_now();
    }
    assert_eq!(crate::process::gone(&process), crate::process::Stop::MainThreadEnded);
    let after = process.status().unwrap();
    assert!(after.main_thread_ended && !after.ended && !after.has_memory);
    assert_eq!(process.mappings().unwrap(), []);
    assert_eq!(process.details(Duration::MAX).map(|(details, _)| details.len()).unwrap_or(0), 0);
    assert_eq!(resident(), pages, "these page tables were opened before");
    assert_eq!(process.collapse(memory).unwrap_err().code, libc::ESRCH);
    assert_eq!(process.allows(Change::Collapse).unwrap_err().code, libc::ESRCH);
    // SAFETY: a child that was not waited for.
    unsafe { libc::kill(child as i32, libc::SIGKILL) };
    assert_eq!(crate::process::gone(&process), crate::process::Stop::Gone);
    // SAFETY: as above; the memory is the test's.
    unsafe {
        libc::waitpid(child as i32, core::ptr::null_mut(), 0);
        OS.release(memory).unwrap();
    }
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

/// Two that work on one process count each other's work as theirs.
#[test]
fn a_process_is_taken_by_one_at_a_time_and_let_go_also_by_the_end_of_its_taker() {
    let child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let open = || LinuxProcess::open(Linux::new(), child.id());
    let (Ok(first), Ok(second)) = (open(), open()) else { return ended(child) };
    first.take().unwrap();
    assert_eq!(second.take().unwrap_err().code, libc::EALREADY);
    first.let_go();
    second.take().unwrap();
    assert_eq!(first.take().unwrap_err().code, libc::EALREADY);
    drop(second);
    first.take().unwrap();
    // Another process is another's.
    let own = LinuxProcess::own().unwrap();
    own.take().unwrap();
    own.let_go();
    ended(child);
}

fn ended(mut child: std::process::Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}
