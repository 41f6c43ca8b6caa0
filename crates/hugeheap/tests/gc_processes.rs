//! Heaps of several threads, and of a forked child.
#![cfg(target_os = "linux")]

use hugeheap::gc::{Exhausted, Heap, Layout, Local, ProcessHeap, Scope, Settings, TypeId, space};
use hugeheap::runtime::Runtime;
use hugeheap::telemetry::numbers;
use hugeheap_os::Facts;
use hugeheap_os::linux::Linux;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const NEXT: usize = 16;

/// One at a time: what other threads of the parent write to after a fork is the child's alone from then on, and
/// counted as un-shared.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // Another test's failure is its own.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A list of the numbers below `count`.
fn list<'s>(scope: &mut Scope<'s, Runtime>, ty: TypeId, count: u64) -> Result<Local<'s>, Exhausted> {
    let head = scope.allocate(ty, 0)?;
    for number in 1..count {
        scope.scope(|inner| -> Result<(), Exhausted> {
            let next = inner.allocate(ty, 0)?;
            inner.write(next, 8, number);
            inner.set(next, NEXT, Some(head));
            inner.assign(head, next);
            Ok(())
        })?;
    }
    Ok(head)
}

fn sum(scope: &mut Scope<'_, Runtime>, head: Local<'_>) -> Result<u64, Exhausted> {
    scope.scope(|scope| {
        let at = scope.same_as(head)?;
        let mut sum = scope.read(at, 8);
        while scope.scope(|inner| -> Result<bool, Exhausted> {
            let Some(next) = inner.get(at, NEXT)? else { return Ok(false) };
            inner.assign(at, next);
            Ok(true)
        })? {
            sum += scope.read(at, 8);
        }
        Ok(sum)
    })
}

fn heap() -> (ProcessHeap, TypeId) {
    let settings = Settings { nursery: Some(256 << 10), ..Settings::default() };
    let mut heap = Heap::new(space(), settings).expect("memory");
    let ty = heap.register(Layout::fixed(24).slots(&[NEXT])).expect("a right layout");
    (heap, ty)
}

#[test]
fn each_thread_has_heaps_of_its_own() {
    let _alone = alone();
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            std::thread::spawn(move || {
                let (mut heap, ty) = heap();
                for round in 0..5 {
                    let count = 2000 * (thread + 1) + round;
                    heap.scope(|scope| {
                        let head = list(scope, ty, count).expect("memory");
                        scope.collect();
                        scope.verify().expect("no mistake");
                        assert_eq!(sum(scope, head), Ok(count * (count - 1) / 2));
                    });
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// Bytes of this process's memory that it shares with nobody, from the kernel.
fn private() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("smaps_rollup");
    let line = text.lines().find(|line| line.starts_with("Private_Dirty:")).expect("the kernel's line");
    line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).expect("a number") << 10
}

/// Memory that the child's own work needs without any heap: its stack, the lists of the C library's heap.
const OWN: u64 = 256 << 10;

#[test]
fn a_forked_child_that_collects_goes_on_sharing() {
    let _alone = alone();
    let (mut heap, ty) = heap();
    heap.scope(|scope| {
        const COUNT: u64 = 1_000_000;
        let head = list(scope, ty, COUNT).expect("memory");
        scope.prepare_fork();
        let held = scope.heap().held_bytes() as u64;
        // SAFETY: the child collects and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let before = private();
            scope.collect();
            let unshared = private().saturating_sub(before);
            let right = sum(scope, head) == Ok(COUNT * (COUNT - 1) / 2);
            eprintln!("{unshared} bytes of {held} are not shared any more");
            let code = if !right {
                2
            } else if unshared > held / 50 + OWN {
                1
            } else {
                0
            };
            // SAFETY: ends the child without the test's own end.
            unsafe { libc::_exit(code) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status}");
        assert_eq!(libc::WEXITSTATUS(status), 0, "1: too much is not shared; 2: the list is wrong");
        assert_eq!(sum(scope, head), Ok(COUNT * (COUNT - 1) / 2));
    });
}

#[test]
fn other_processes_can_read_what_its_heaps_do_though_the_arenas_do_not_change() {
    let _alone = alone();
    let (mut heap, ty) = heap();
    let linux = Linux::new();
    let limit = linux.now() + Duration::from_secs(120);
    let mut seen = None;
    heap.scope(|scope| {
        let kept = list(scope, ty, 100).expect("memory");
        // Later ones than those that the first collections showed.
        while seen.is_none_or(|seen| seen < scope.heap().statistics().minor / 2) {
            for _ in 0..100 {
                scope.collect_minor();
            }
            assert!(linux.now() < limit, "nothing is shown: {seen:?}");
            let numbers =
                numbers::of_process(linux, std::process::id(), limit).expect("this process can be read");
            let Some(snapshot) = numbers.map(|numbers| numbers.snapshot) else { continue };
            assert!(
                snapshot.gc_minor == 0 || snapshot.gc_heaps > 0 && snapshot.gc_pauses >= snapshot.gc_minor
            );
            if snapshot.gc_minor > 1000 && snapshot.gc_nursery >= 256 << 10 && snapshot.gc_pause_total > 0 {
                assert!(snapshot.gc_pause_lengths.iter().sum::<u64>() > 1000, "{snapshot:?}");
                seen = Some(snapshot.gc_minor);
            }
        }
        assert_eq!(sum(scope, kept).expect("memory"), 99 * 50);
    });
}
