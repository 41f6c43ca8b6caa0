//! Real faults: protected heap pages, and nurseries that were emptied. What ends a process is done in one of its own.
#![cfg(target_os = "linux")]

use hugeheap::gc::{CannotProtect, Checks, Fault, Forbid, Heap, Layout, Settings, set_fault_hook, space};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

const CASE: &str = "HUGEHEAP_TEST_GC_FAULT";

static FAULTS: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicUsize = AtomicUsize::new(0);

extern "C" fn allow(fault: &Fault) -> bool {
    assert!(fault.address - fault.start < fault.bytes);
    FAULTS.fetch_add(1, Ordering::Relaxed);
    LAST.store(fault.address, Ordering::Relaxed);
    true
}

#[test]
fn a_protected_page_is_told_once_and_the_program_goes_on() {
    let mut heap = Heap::new(space(), Settings::default()).expect("memory");
    let ty = heap.register(Layout::fixed(24).slots(&[16])).expect("a right layout");
    let global = heap.scope(|scope| {
        let local = scope.allocate(ty, 0).expect("memory");
        scope.write(local, 8, 7);
        scope.collect();
        scope.global(local).expect("memory")
    });
    let object = heap.address(&global);
    let word = (object + 8) as *mut u64;
    set_fault_hook(Some(allow));
    // SAFETY: a word of a live object.
    let read = || unsafe { word.read_volatile() };
    // SAFETY: as above.
    let write = |value| unsafe { word.write_volatile(value) };
    let faults = || FAULTS.load(Ordering::Relaxed);

    let (start, bytes) = heap.protect(object, Forbid::Write).expect("an old page");
    assert!(object - start < bytes && bytes % 16384 == 0);
    assert_eq!(heap.protect(object, Forbid::Write), Err(CannotProtect::Already));
    assert_eq!((read(), faults()), (7, 0), "reading is allowed");
    write(8);
    assert_eq!((read(), faults(), LAST.load(Ordering::Relaxed)), (8, 1, object + 8));
    write(9);
    assert_eq!(faults(), 1, "once");

    heap.protect(object, Forbid::Access).expect("lifted by the fault");
    // A collection looks into the page without being told, and keeps the protection.
    heap.scope(|scope| scope.collect());
    assert_eq!(faults(), 1);
    assert_eq!((read(), faults()), (9, 2));

    heap.protect(object, Forbid::Access).expect("lifted by the fault");
    assert!(heap.unprotect(object) && !heap.unprotect(object));
    assert_eq!((read(), faults()), (9, 2));
    let on_the_stack = 0u64;
    assert_eq!(heap.protect(&raw const on_the_stack as usize, Forbid::Write), Err(CannotProtect::NotOurs));

    // Its objects die: the page goes, and whoever gets it next is not disturbed.
    heap.protect(object, Forbid::Access).expect("an old page");
    heap.release(global);
    heap.scope(|scope| {
        scope.collect();
        for _ in 0..50_000 {
            scope.scope(|scope| scope.allocate(ty, 0).map(|local| scope.write(local, 8, 1))).expect("memory");
        }
        scope.collect();
    });
    assert_eq!(faults(), 2);
}

/// What is done in a process of its own.
fn make(case: &str) {
    let rotate = case == "rotate";
    let settings = Settings {
        nursery: Some(64 << 10),
        checks: Checks { rotate, ..Checks::default() },
        ..Settings::default()
    };
    let mut heap = Heap::new(space(), settings).expect("memory");
    let ty = heap.register(Layout::fixed(16)).expect("a right layout");
    let address = heap.scope(|scope| {
        let local = scope.allocate(ty, 0).expect("memory");
        let young = scope.object(local);
        scope.collect_minor();
        if rotate { young } else { scope.object(local) }
    });
    if case == "no hook" {
        heap.protect(address, Forbid::Access).expect("an old page");
    }
    let address = if case == "foreign" {
        heap.protect(address, Forbid::Access).expect("an old page");
        8
    } else {
        address
    };
    // SAFETY: none: this is the mistake.
    let value = unsafe { (address as *const u64).read_volatile() };
    println!("{value} was read");
}

#[test]
fn a_mistake_ends_the_process_with_a_line() {
    if let Ok(case) = std::env::var(CASE) {
        return make(&case);
    }
    let expected = [
        ("rotate", libc::SIGABRT, "is in a nursery that was emptied"),
        ("no hook", libc::SIGABRT, "is in the protected heap page"),
        // None of ours: it ends as it does without us.
        ("foreign", libc::SIGSEGV, ""),
    ];
    for (case, signal, text) in expected {
        let output = Command::new(std::env::current_exe().expect("the test's own path"))
            .args(["--exact", "a_mistake_ends_the_process_with_a_line", "--nocapture"])
            .env(CASE, case)
            .output()
            .expect("the test can start itself");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(signal), "{case}: {errors}");
        let lines: Vec<_> = errors.lines().filter(|line| line.starts_with("hugeheap: ")).collect();
        assert!(
            lines.len() == usize::from(!text.is_empty()) && lines.iter().all(|line| line.contains(text)),
            "{case}: {errors}"
        );
    }
}

#[test]
fn rotated_nurseries_change_nothing_for_a_program_that_is_right() {
    let checks = Checks { rotate: true, verify: true, ..Checks::default() };
    let settings = Settings { nursery: Some(64 << 10), checks, ..Settings::default() };
    let mut heap = Heap::new(space(), settings).expect("memory");
    let ty = heap.register(Layout::fixed(24).slots(&[16])).expect("a right layout");
    heap.scope(|scope| {
        let head = scope.allocate(ty, 0).expect("memory");
        for number in 1..10_000 {
            scope.scope(|scope| {
                let next = scope.allocate(ty, 0).expect("memory");
                scope.write(next, 8, number);
                scope.set(next, 16, Some(head));
                scope.assign(head, next);
            });
        }
        assert_eq!(scope.read(head, 8), 9_999);
        let statistics = scope.heap().statistics();
        assert!(statistics.rotated > 3 && statistics.rotated == statistics.minor, "{statistics:?}");
    });
}
