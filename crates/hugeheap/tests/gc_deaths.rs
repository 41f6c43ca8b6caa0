//! Mistakes that end a process: each is made in a process of its own, which must end with one line that says
//! what, where and which type.
#![cfg(target_os = "linux")]

use hugeheap::gc::{Checks, Heap, Layout, ProcessHeap, Settings, TypeId, space};
use std::num::NonZeroU32;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// Names the mistake for the child.
const MISTAKE: &str = "HUGEHEAP_TEST_GC_MISTAKE";

/// An old object of 24 bytes with a slot at 16, kept alive, and a young one.
fn old_and_young(heap: &mut ProcessHeap) -> (usize, usize, TypeId) {
    let ty = heap.register(Layout::fixed(24).slots(&[16])).expect("a right layout");
    let (old, young) = heap.scope(|scope| {
        let old = scope.allocate(ty, 0).expect("memory");
        scope.collect_minor();
        let global = scope.global(old).expect("memory");
        let young = scope.allocate(ty, 0).expect("memory");
        (global, scope.object(young))
    });
    (heap.address(&old), young, ty)
}

fn make(mistake: &str) {
    let mut checks = Checks::default();
    match mistake {
        "barrier" => checks.barriers = true,
        "verify" => checks.verify = true,
        "stress" => {
            checks = Checks { verify: true, poison: true, stress: NonZeroU32::new(2), ..checks };
        }
        _ => {}
    }
    let mut heap = Heap::new(space(), Settings { checks, ..Settings::default() }).expect("memory");
    let (old, young, ty) = old_and_young(&mut heap);
    let slot = (old + 16) as *mut usize;
    // SAFETY: none: these are the mistakes.
    unsafe {
        match mistake {
            "barrier" => slot.write(young),
            "verify" => heap.write(old, slot, old + 16),
            "header" => (young as *mut u64).write(0),
            // The address of a young object is kept over calls that collect, and written then.
            _ => {
                for _ in 0..4 {
                    heap.scope(|scope| scope.allocate(ty, 0).map(|_| ())).expect("memory");
                }
                heap.write(old, slot, young + 64);
            }
        }
        if mistake == "header" {
            heap.write(old, slot, young);
        }
    }
    heap.scope(|scope| scope.collect());
}

#[test]
fn each_mistake_ends_the_process_with_a_line() {
    if let Ok(mistake) = std::env::var(MISTAKE) {
        make(&mistake);
        return;
    }
    let expected = [
        ("barrier", "(type 1) was written without the barrier"),
        ("verify", "the slot at offset 16 of the object at"),
        ("header", "has the header of no type (0)"),
        ("stress", "header"),
    ];
    for (mistake, text) in expected {
        let this = std::env::current_exe().expect("the test's own path");
        let output = Command::new(this)
            .args(["--exact", "each_mistake_ends_the_process_with_a_line", "--nocapture"])
            .env(MISTAKE, mistake)
            .output()
            .expect("the test can start itself");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{mistake}: {errors}");
        let lines: Vec<_> = errors.lines().filter(|line| line.starts_with("hugeheap: ")).collect();
        assert_eq!(lines.len(), 1, "{mistake}: {errors}");
        assert!(lines[0].contains(text), "{mistake}: {}", lines[0]);
    }
}
