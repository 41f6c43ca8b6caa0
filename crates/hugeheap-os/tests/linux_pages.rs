//! `Pages` on the running kernel: states, contents, and what backs them.
#![cfg(target_os = "linux")]

#[path = "linux_support/mod.rs"]
mod support;

use hugeheap_os::{AddressRange, Advice, Backing, ErrorKind, Facts, Pages, Protection, Residency};
use proptest::prelude::*;
use support::*;

const GIB: usize = 1 << 30;

fn residency(range: AddressRange) -> Residency {
    OS.residency(range).unwrap()
}

fn thp(bytes: usize) -> Residency {
    Residency { resident: bytes as u64, thp: bytes as u64, hugetlb: 0 }
}

fn base(bytes: usize) -> Residency {
    Residency { resident: bytes as u64, ..Residency::default() }
}

#[test]
fn reservations_are_aligned_and_hold_nothing() {
    for align in [PAGE, 16 << 10, 64 << 10, HUGE, 32 << 20, GIB] {
        for len in [PAGE, 3 * PAGE, HUGE, 5 * HUGE + PAGE] {
            let memory = Reserved(OS.reserve(len, align).unwrap());
            assert_eq!((memory.0.start % align, memory.0.len), (0, len));
            assert_reserved(memory.0);
            assert_eq!(residency(memory.0), Residency::default());
        }
    }
    assert_eq!(Reserved(OS.reserve(1, PAGE).unwrap()).0.len, PAGE);
}

#[test]
fn impossible_reservations_fail() {
    for (len, align) in [(0, PAGE), (PAGE, 0), (PAGE, 3 * PAGE), (PAGE, 16)] {
        assert_eq!(OS.reserve(len, align).unwrap_err().kind(), ErrorKind::Invalid, "{len} {align}");
    }
    for (len, align) in [(1 << 60, HUGE), (usize::MAX, PAGE), (usize::MAX - PAGE, HUGE), (PAGE, 1 << 62)] {
        assert_eq!(OS.reserve(len, align).unwrap_err().kind(), ErrorKind::OutOfMemory, "{len} {align}");
    }
}

#[test]
fn a_tight_address_space_limit_leaves_room_for_the_range_without_the_excess() {
    if !in_child("a_tight_address_space_limit_leaves_room_for_the_range_without_the_excess", None) {
        return;
    }
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let used: usize = statm.split(' ').next().unwrap().parse::<usize>().unwrap() * PAGE;
    // Room for 9 huge pages: the excess for this alignment, 15, does not fit.
    let limit = (used + 9 * HUGE) as u64;
    // SAFETY: the structure is read only.
    unsafe {
        let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
    }
    let memory = Reserved(OS.reserve(8 * HUGE, 16 * HUGE).unwrap());
    assert!(memory.0.start % (16 * HUGE) == 0);
    assert_eq!(OS.reserve(2 * HUGE, HUGE).unwrap_err().kind(), ErrorKind::OutOfMemory);
}

#[test]
fn a_part_that_is_released_counts_against_the_limit_no_more() {
    if !in_child("a_part_that_is_released_counts_against_the_limit_no_more", None) {
        return;
    }
    let memory = OS.reserve(64 * HUGE, HUGE).unwrap();
    let used = OS.address_space_limit().map(|limit| limit.used);
    assert_eq!(used, None, "there is no limit yet");
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let used: usize = statm.split(' ').next().unwrap().parse::<usize>().unwrap() * PAGE;
    let limit = libc::rlimit { rlim_cur: used as u64, rlim_max: used as u64 };
    let (kept, part) =
        (AddressRange::new(memory.start, HUGE), AddressRange::new(memory.start + HUGE, 62 * HUGE));
    // SAFETY: the structure is read only; ranges of this test's own.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
        assert_eq!(OS.reserve(32 * HUGE, HUGE).unwrap_err().kind(), ErrorKind::OutOfMemory);
        OS.map(kept, Backing::Plain).unwrap();
        put(kept.start, 7);
        OS.release_part(part).unwrap();
        let other = OS.reserve(32 * HUGE, HUGE).unwrap();
        assert_eq!(get(kept.start), 7);
        OS.map(AddressRange::new(part.end(), HUGE), Backing::Plain).unwrap();
        OS.release(other).unwrap();
    }
}

#[test]
fn zeros_count_against_no_limit_on_memory_before_they_can_be_written() {
    if !in_child("zeros_count_against_no_limit_on_memory_before_they_can_be_written", None) {
        return;
    }
    let memory = Reserved(OS.reserve(64 * HUGE, HUGE).unwrap());
    // SAFETY: the structure is read only.
    unsafe {
        let limit = libc::rlimit { rlim_cur: 32 << 20, rlim_max: 32 << 20 };
        assert_eq!(libc::setrlimit(libc::RLIMIT_DATA, &limit), 0);
    }
    let (part, rest) = (memory.part(HUGE, 2 * PAGE), memory.part(8 * HUGE, 56 * HUGE));
    let lock = HostLock::take();
    // SAFETY: the test owns the range.
    unsafe {
        assert_eq!(OS.map(memory.0, Backing::Plain).unwrap_err().kind(), ErrorKind::OutOfMemory);
        OS.map(memory.0, Backing::Zeros).unwrap();
        assert_eq!((get(memory.0.start), get(part.start)), (0, 0));
        assert_eq!(signal_of(&lock, || put(part.start, 5)), libc::SIGSEGV);
        OS.protect(part, Protection::ReadWrite).unwrap();
        put(part.start, 5);
        assert_eq!(OS.protect(rest, Protection::ReadWrite).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!((get(part.start), get(part.end()), get(rest.start)), (5, 0, 0));
    }
}

/// What `Facts::data_limit` is for: dropping memory does not help, unmapping it does.
#[test]
fn dropped_memory_counts_against_the_limit_on_data_until_it_is_unmapped() {
    if !in_child("dropped_memory_counts_against_the_limit_on_data_until_it_is_unmapped", None) {
        return;
    }
    let memory = Reserved(OS.reserve(128 * HUGE, HUGE).unwrap());
    let (first, second) = (memory.part(0, 64 * HUGE), memory.part(64 * HUGE, 64 * HUGE));
    let bytes = (100 * HUGE) as u64;
    // SAFETY: the structure is read only; the test owns the ranges.
    unsafe {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        assert_eq!(libc::setrlimit(libc::RLIMIT_DATA, &limit), 0);
        assert_eq!(OS.data_limit(), Some(bytes));
        OS.map(first, Backing::Base).unwrap();
        OS.decommit(first).unwrap();
        assert_eq!(OS.map(second, Backing::Base).unwrap_err().kind(), ErrorKind::OutOfMemory);
        OS.unmap(first).unwrap();
        OS.map(second, Backing::Base).unwrap();
    }
}

/// What each backing gives under each mode of the host, touched from the front.
#[test]
fn backings_under_every_host_mode() {
    let _lock = HostLock::take();
    let all = 4 * HUGE;
    for (mode, plain, advised) in
        [("madvise", base(all), thp(all)), ("always", thp(all), thp(all)), ("never", base(all), base(all))]
    {
        let Some(_knob) = Knob::thp(mode) else { return };
        for (backing, expected) in
            [(Backing::Base, base(all)), (Backing::Plain, plain), (Backing::Thp, advised)]
        {
            let memory = Reserved::huge_pages(6);
            let range = memory.part(HUGE, all);
            // SAFETY: the test owns the range.
            unsafe { OS.map(range, backing).unwrap() };
            assert_eq!(residency(range), Residency::default());
            for page in pages_of(range) {
                assert_eq!(get(page), 0);
                put(page, 1);
            }
            assert_eq!(residency(range), expected, "{backing:?} under {mode}");
            assert_eq!(residency(memory.0), expected);
            assert_reserved(memory.huge_page(0));
            assert_reserved(memory.huge_page(5));
        }
    }
}

#[test]
fn collapse_works_under_every_host_mode_unless_advised_against() {
    let _lock = HostLock::take();
    for mode in ["madvise", "always", "never"] {
        let Some(_knob) = Knob::thp(mode) else { return };
        let memory = Reserved::huge_pages(2);
        let range = memory.huge_page(1);
        // SAFETY: the test owns the range.
        unsafe {
            OS.map(range, Backing::Base).unwrap();
            put(range.start + 7 * PAGE, 77);
            assert_eq!(residency(range), base(PAGE));
            assert_eq!(OS.collapse(range).unwrap_err().kind(), ErrorKind::Invalid);
            OS.advise(range, Advice::Huge).unwrap();
            OS.collapse(range).unwrap();
        }
        assert_eq!(residency(range), thp(HUGE), "{mode}");
        assert_eq!(get(range.start + 7 * PAGE), 77);
        assert_eq!(get(range.start), 0);
    }
}

#[test]
fn a_touch_makes_memory_resident_and_changes_nothing() {
    let _lock = HostLock::take();
    let memory = Reserved::huge_pages(2);
    let range = memory.huge_page(1);
    let part = AddressRange { start: range.start, len: 3 * PAGE };
    // SAFETY: the test owns the range.
    unsafe {
        OS.map(range, Backing::Base).unwrap();
        put(range.start + PAGE, 77);
        OS.touch(part).unwrap();
        // Resident for writing: a read alone would map the kernel's page of zeros, which counts as nothing.
        assert_eq!(residency(range), base(3 * PAGE));
        assert_eq!([get(range.start), get(range.start + PAGE), get(range.start + 2 * PAGE)], [0, 77, 0]);
        let Some(_knob) = Knob::thp("madvise") else { return };
        OS.decommit(range).unwrap();
        OS.advise(range, Advice::Huge).unwrap();
        OS.touch(AddressRange { len: PAGE, ..part }).unwrap();
    }
    assert_eq!(residency(range), thp(HUGE), "one touch, one huge page");
}

#[test]
fn unmapped_and_decommitted_memory_reads_as_zero_when_it_comes_back() {
    let _lock = HostLock::take();
    let memory = Reserved::huge_pages(3);
    let range = memory.huge_page(1);
    for backing in [Backing::Base, Backing::Plain, Backing::Thp] {
        // SAFETY: the test owns the range.
        unsafe {
            OS.map(range, backing).unwrap();
            OS.populate(range).unwrap();
            put(range.start, 1);
            OS.decommit(range).unwrap();
            assert_eq!(residency(range).resident, 0);
            assert_eq!(get(range.start), 0);
            put(range.start, 1);
            OS.unmap(range).unwrap();
            assert_reserved(memory.0);
            assert_eq!(residency(memory.0), Residency::default());
        }
    }
    assert_eq!(mappings(memory.0).len(), 1, "nothing of the advice is left: {:?}", mappings(memory.0));
}

#[test]
fn relocated_memory_keeps_contents_and_huge_pages() {
    let _lock = HostLock::take();
    let Some(_mode) = Knob::thp("madvise") else { return };
    let memory = Reserved::huge_pages(8);
    let (from, to) = (memory.part(HUGE, 2 * HUGE), memory.part(5 * HUGE, 2 * HUGE));
    // SAFETY: the test owns the ranges.
    unsafe {
        OS.map(from, Backing::Thp).unwrap();
        pages_of(from).for_each(|page| put(page, (page / PAGE) as u8 | 1));
        assert_eq!(residency(from), thp(2 * HUGE));
        OS.relocate(from, to).unwrap();
        assert_eq!((residency(from), residency(to)), (Residency::default(), thp(2 * HUGE)));
        for (page, old) in pages_of(to).zip(pages_of(from)) {
            assert_eq!(get(page), (old / PAGE) as u8 | 1);
        }
        assert_no_hole(memory.0);
        // The source is mapped and has its backing still.
        put(from.start, 1);
        assert_eq!(residency(from), thp(HUGE));
        OS.unmap(to).unwrap();
        OS.unmap(from).unwrap();
    }
    assert_reserved(memory.0);
}

#[test]
fn what_cannot_be_relocated_is_refused_before_anything_changes() {
    let _lock = HostLock::take();
    let memory = Reserved::huge_pages(4);
    let (from, to) = (memory.huge_page(0), memory.huge_page(2));
    // SAFETY: the test owns the ranges.
    unsafe {
        OS.map(from, Backing::Base).unwrap();
        pages_of(from).for_each(|page| put(page, 3));
        // Two mappings from here on.
        OS.protect(AddressRange::new(from.start, PAGE), Protection::Read).unwrap();
        assert_eq!(OS.relocate(from, to).unwrap_err().kind(), ErrorKind::Unsupported);
        let shorter = AddressRange::new(to.start, PAGE);
        assert_eq!(OS.relocate(from, shorter).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert!(pages_of(from).all(|page| get(page) == 3));
    assert_reserved(to);
}

/// What a child process dies of that does `body`; 0 when it lives.
///
/// Nobody else looks at huge pages meanwhile: a fork that comes between the first touch of one and the next write to
/// it leaves this process with 512 OS pages instead (`relocated_memory_keeps_contents_and_huge_pages` failed so).
fn signal_of(_alone: &HostLock, body: impl FnOnce()) -> i32 {
    // SAFETY: the child touches memory and leaves without running anything of the parent's.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            body();
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 }
    }
}

#[test]
fn protection_is_that_of_the_last_call() {
    let lock = HostLock::take();
    let memory = Reserved::huge_pages(1);
    let page = memory.part(16 * PAGE, 4 * PAGE);
    let reads = || signal_of(&lock, || _ = get(page.start));
    let writes = || signal_of(&lock, || put(page.start, 9));
    assert_eq!((reads(), writes()), (libc::SIGSEGV, libc::SIGSEGV));
    // SAFETY: the test owns the range.
    unsafe {
        OS.map(page, Backing::Base).unwrap();
        put(page.start, 5);
        assert_eq!((reads(), writes()), (0, 0));
        OS.protect(page, Protection::Read).unwrap();
        assert_eq!((reads(), writes()), (0, libc::SIGSEGV));
        assert_eq!(OS.populate(page).unwrap_err().kind(), ErrorKind::Invalid);
        OS.protect(page, Protection::None).unwrap();
        assert_eq!((reads(), writes()), (libc::SIGSEGV, libc::SIGSEGV));
        OS.protect(page, Protection::ReadWrite).unwrap();
    }
    assert_eq!((reads(), writes(), get(page.start)), (0, 0, 5));
}

#[test]
fn a_forked_child_has_pages_of_its_own() {
    let lock = HostLock::take();
    let Some(_mode) = Knob::thp("madvise") else { return };
    let memory = Reserved::huge_pages(4);
    // SAFETY: the test owns the ranges, in both processes.
    unsafe {
        OS.map(memory.huge_page(0), Backing::Base).unwrap();
        put(memory.0.start, 5);
        let signal = signal_of(&lock, || {
            OS.map(memory.huge_page(1), Backing::Thp).unwrap();
            put(memory.huge_page(1).start, 1);
            OS.relocate(memory.huge_page(1), memory.huge_page(2)).unwrap();
            OS.unmap(memory.huge_page(0)).unwrap();
            // Of the child, not of the parent.
            if residency(memory.0) != thp(HUGE) {
                libc::abort();
            }
        });
        assert_eq!(signal, 0);
    }
    assert_eq!(get(memory.0.start), 5);
    assert_eq!(residency(memory.0), base(PAGE));
}

#[test]
fn zero_pages_are_nobodys_memory() {
    let memory = Reserved::huge_pages(2);
    let range = memory.part(0, 2 * HUGE);
    for backing in [Backing::Base, Backing::Thp] {
        // SAFETY: the test owns the range.
        unsafe { OS.map(range, backing).unwrap() };
        assert!(pages_of(range).all(|page| get(page) == 0));
        assert_eq!(residency(range), Residency::default(), "{backing:?}");
        // SAFETY: the test owns the range.
        unsafe { OS.unmap(range).unwrap() };
    }
}

#[test]
fn naming_works_or_says_that_it_does_not() {
    let memory = Reserved::huge_pages(1);
    match OS.name(memory.0, c"hugeheap") {
        Ok(()) => assert!(std::fs::read_to_string("/proc/self/maps").unwrap().contains("[anon:hugeheap]")),
        Err(error) => assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unsupported)),
    }
}

#[test]
fn too_many_mappings_are_a_clean_error() {
    if !in_child("too_many_mappings_are_a_clean_error", None) {
        return;
    }
    let memory = Reserved::huge_pages(300);
    // Every other page mapped: each is a mapping of its own, and splits the reservation once more.
    let mut pages = pages_of(memory.0).step_by(2).map(|page| AddressRange::new(page, PAGE));
    // SAFETY: the test owns the ranges.
    let failure =
        pages.find_map(|page| unsafe { OS.map(page, Backing::Base).err().map(|error| (page, error)) });
    let Some((page, error)) = failure else { return skip("no limit on mappings was met") };
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_reserved(page);
    assert_no_hole(memory.0);
    let mapped = AddressRange::new(memory.0.start, PAGE);
    put(mapped.start, 5);
    // SAFETY: the test owns the ranges.
    unsafe {
        // A move needs a few mappings to spare, and must not have removed its target when it finds none.
        assert!(OS.relocate(mapped, page).is_err());
        assert_reserved(page);
        assert_eq!(get(mapped.start), 5);
        assert!(OS.map(memory.huge_page(299), Backing::Hugetlb(HUGE)).is_err());
    }
    assert_reserved(memory.huge_page(299));
    assert_no_hole(memory.0);
}

#[test]
fn no_other_mapping_ever_falls_into_a_reservation() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let _lock = HostLock::take();
    let memory = Reserved::huge_pages(8);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut strangers = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let stranger = OS.reserve(HUGE, HUGE).unwrap();
                assert!(!memory.0.contains(stranger.start), "{stranger} in {}", memory.0);
                strangers.push(Reserved(stranger));
                if strangers.len() == 16 {
                    strangers.clear();
                }
            }
        });
        let (one, two) = (memory.huge_page(2), memory.huge_page(5));
        for round in 0..2000 {
            // SAFETY: the test owns the ranges.
            unsafe {
                OS.map(one, if round % 2 == 0 { Backing::Thp } else { Backing::Base }).unwrap();
                put(one.start, 1);
                OS.relocate(one, two).unwrap();
                assert_eq!(get(two.start), 1);
                OS.unmap(two).unwrap();
                OS.unmap(one).unwrap();
                // With or without pages in the pool.
                let _ = OS.map(one, Backing::Hugetlb(HUGE));
                OS.unmap(one).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_reserved(memory.0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// More runs than one call of the kernel hands out, and ranges that begin anywhere.
    #[test]
    fn residency_counts_every_touched_page(touched in proptest::collection::vec(any::<bool>(), 1024), from in 0_usize..512, len in 1_usize..512) {
        let memory = Reserved::huge_pages(2);
        // SAFETY: the test owns the range.
        unsafe { OS.map(memory.0, Backing::Base).unwrap() };
        for (index, _) in touched.iter().enumerate().filter(|(_, touched)| **touched) {
            put(memory.0.start + index * PAGE, 1);
        }
        let count = |part: &[bool]| part.iter().filter(|touched| **touched).count();
        prop_assert_eq!(residency(memory.0), base(count(&touched) * PAGE));
        let part = residency(memory.part(from * PAGE, len * PAGE));
        prop_assert_eq!(part, base(count(&touched[from..from + len]) * PAGE));
    }

    /// Any sequence of steps on a few huge pages keeps the states, the contents, and the reservation whole.
    #[test]
    fn any_sequence_keeps_the_invariants(steps in proptest::collection::vec((0_usize..4, 0_u8..7, 0_usize..4), 1..40)) {
        #[derive(Clone, Copy, Debug, PartialEq)]
        enum State { Reserved, Mapped(u8) }
        let memory = Reserved::huge_pages(4);
        let mut states = [State::Reserved; 4];
        for (index, step, other) in steps {
            let range = memory.huge_page(index);
            // SAFETY: the test owns the ranges and tracks their states.
            unsafe {
                match (step, states[index]) {
                    (0, State::Reserved) => { OS.map(range, Backing::Base).unwrap(); states[index] = State::Mapped(0); }
                    (1, State::Reserved) => { OS.map(range, Backing::Thp).unwrap(); states[index] = State::Mapped(0); }
                    (0 | 1, State::Mapped(_)) => { put(range.start, 42); put(range.end() - 1, 42); states[index] = State::Mapped(42); }
                    (2, State::Mapped(_)) => { OS.unmap(range).unwrap(); states[index] = State::Reserved; }
                    (3, State::Mapped(_)) => { OS.decommit(range).unwrap(); states[index] = State::Mapped(0); }
                    (4, State::Mapped(_)) => OS.split(range).unwrap(),
                    (5, State::Mapped(_)) => OS.populate(range).unwrap(),
                    (6, State::Mapped(value)) if states[other] == State::Reserved => {
                        OS.relocate(range, memory.huge_page(other)).unwrap();
                        states[other] = State::Mapped(value);
                        states[index] = State::Mapped(0);
                    }
                    _ => {}
                }
            }
            for (index, state) in states.iter().enumerate() {
                let range = memory.huge_page(index);
                match *state {
                    State::Reserved => assert_reserved(range),
                    State::Mapped(value) => prop_assert_eq!((get(range.start), get(range.end() - 1)), (value, value)),
                }
            }
            assert_no_hole(memory.0);
        }
    }
}

/// A process that is not registered for it is refused: `errno` told so to a C program that had given memory back.
#[test]
fn a_barrier_is_passed_from_the_first_time_on_and_leaves_errno_as_it_was() {
    for _ in 0..3 {
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = libc::EDOM };
        let passed = hugeheap_os::linux::Linux::new().barrier();
        // SAFETY: as above.
        let errno = unsafe { *libc::__errno_location() };
        match passed {
            Ok(()) => {}
            // A sandbox, or a kernel before 4.14.
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Permission | ErrorKind::Unsupported), "{error}")
            }
        }
        assert_eq!(errno, libc::EDOM);
    }
}
