//! Offering memory on the running kernel: it stays until a control group is short of memory, and then nobody is
//! killed for it.
#![cfg(target_os = "linux")]

#[path = "linux_support/mod.rs"]
mod support;

use hugeheap_os::{Advice, Backing, ErrorKind, Pages};
use support::*;

const COUNT: usize = 40;

/// Huge pages, each OS page of them written, or OS pages where the host has none.
fn written(backing: Backing) -> Reserved {
    let memory = Reserved::huge_pages(COUNT);
    // SAFETY: the test owns the range.
    unsafe { OS.map(memory.0, backing).unwrap() };
    pages_of(memory.0).for_each(|page| put(page, 7));
    memory
}

#[test]
fn what_is_offered_stays_where_it_is_and_what_is_written_then_is_kept() {
    for backing in [Backing::Thp, Backing::Base] {
        let memory = written(backing);
        let before = OS.residency(memory.0).unwrap();
        // SAFETY: the test gives the contents up.
        unsafe { OS.offer(memory.0).unwrap() };
        assert_eq!(OS.residency(memory.0).unwrap(), before);
        assert!(pages_of(memory.0).all(|page| [0, 7].contains(&get(page))));
        pages_of(memory.0).for_each(|page| put(page, 9));
        assert!(pages_of(memory.0).all(|page| get(page) == 9));
    }
}

#[test]
fn a_group_without_room_takes_what_is_offered_and_kills_nobody() {
    const NAME: &str = "a_group_without_room_takes_what_is_offered_and_kills_nobody";
    let group = if is_child(NAME) { None } else { Group::new("offer") };
    if !is_child(NAME) {
        let Some(group) = &group else { return };
        // Once what is offered, and half of it.
        group.limit((COUNT * HUGE * 3 / 2) as u64);
    }
    if !in_child(NAME, group.as_ref()) {
        return;
    }
    for backing in [Backing::Thp, Backing::Base] {
        let memory = written(backing);
        let first = memory.huge_page(0);
        // SAFETY: the test gives the contents up.
        unsafe { OS.offer(memory.0).unwrap() };
        pages_of(first).for_each(|page| put(page, 9));
        let other = Reserved::huge_pages(COUNT);
        // SAFETY: the test owns the range.
        unsafe {
            OS.map(other.0, Backing::Base).unwrap();
            OS.advise(other.0, Advice::NoHuge).unwrap();
        }
        pages_of(other.0).for_each(|page| put(page, 1));
        assert!(OS.residency(memory.0).unwrap().resident < (COUNT * HUGE * 3 / 4) as u64);
        assert!(pages_of(first).all(|page| get(page) == 9), "what was written is not taken");
        assert!(pages_of(memory.0).skip(512).all(|page| [0, 7].contains(&get(page))));
    }
}

#[test]
fn locked_memory_is_not_offered() {
    let memory = written(Backing::Base);
    let page = memory.part(0, PAGE);
    // SAFETY: the test owns the page.
    if unsafe { libc::mlock(page.start as *const _, page.len) } != 0 {
        return skip("memory cannot be locked");
    }
    // SAFETY: as above.
    assert_eq!(unsafe { OS.offer(page) }.map_err(|error| error.kind()), Err(ErrorKind::Invalid));
}
