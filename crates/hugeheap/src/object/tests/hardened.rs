//! The hardened preset: one test per property, and every check and list as in other heaps.

use super::super::global;
use super::super::hardened::{GUARDS, QUARANTINE};
use super::threads::random;
use super::*;
use core::sync::atomic::Ordering;
use hugeheap_os::simulated::Call;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::thread;

fn hardened() -> (&'static Space<World>, Heap<World>) {
    let space = space();
    (space, space.acquire_hardened().expect("memory"))
}

/// A size of each kind of block.
const SIZES: [usize; 6] = [16, 48, 576, 640, 5440, 8192];

/// A short run, a long one, and a large block.
const RUNS: [usize; 3] = [42_000, 300_000, 3_000_000];

#[test]
fn a_freed_block_is_zero() {
    let (_, mut heap) = hardened();
    for bytes in SIZES {
        let block = heap.take(bytes);
        fill(block, bytes, 0xa5);
        heap.give(block).expect("live");
        assert!(holds(block, bytes, 0), "{bytes}");
    }
    heap.check_empty();
}

#[test]
fn a_block_freed_by_another_thread_is_zero_before_it_is_used_again() {
    let (space, mut heap) = hardened();
    for bytes in SIZES {
        let blocks = heap.take_many(200, bytes);
        blocks.iter().for_each(|&block| fill(block, bytes, 0xa5));
        let addresses: Vec<_> = blocks.into_iter().map(at).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut other = space.acquire_hardened().expect("memory");
                addresses.iter().for_each(|&address| other.give(pointer(address)).expect("live"));
            });
        });
        let again = heap.take_many(200, bytes);
        assert!(again.iter().all(|&block| holds(block, bytes, 0)), "{bytes}");
        heap.check();
        heap.give_all(again);
    }
    heap.check_empty();
}

#[test]
fn freed_page_runs_and_large_blocks_are_zero() {
    let (space, mut heap) = hardened();
    // Keeps the arena.
    let kept = heap.take(20_000);
    for (bytes, remote) in RUNS.into_iter().flat_map(|bytes| [(bytes, false), (bytes, true)]) {
        let block = heap.take(bytes);
        fill(block, bytes, 0xa5);
        if remote {
            let mut other = space.acquire_hardened().expect("memory");
            other.give(block).expect("live");
        } else {
            heap.give(block).expect("live");
        }
        let mut other = space.acquire().expect("memory");
        // The arenas hand out the fullest place first, so what was just freed.
        let again = other.take(bytes);
        assert_eq!(again, block, "{bytes}: the test looks at other memory");
        assert!(holds(again, bytes, 0), "{bytes}");
        other.give(again).expect("live");
        other.trim();
    }
    heap.give(kept).expect("live");
    heap.check_empty();
}

/// Offsets of all blocks of a page in the order in which a new heap hands them out.
fn offsets(heap: &mut Heap<World>, bytes: usize) -> Vec<usize> {
    heap.take_many(HEAP_PAGE_BYTES / bytes, bytes)
        .into_iter()
        .map(|block| at(block) % HEAP_PAGE_BYTES)
        .collect()
}

#[test]
fn blocks_are_handed_out_in_random_order() {
    // 8192: two orders only.
    for bytes in [16, 48, 576, 640] {
        let (mut one, mut other) = (hardened().1, hardened().1);
        let (first, second) = (offsets(&mut one, bytes), offsets(&mut other, bytes));
        // By chance once in 25! heaps.
        assert!(!first.is_sorted(), "{bytes}");
        assert_ne!(first, second, "{bytes}: the order is the same in every heap");
        let (mut all, mut same) = (first, second);
        all.sort_unstable();
        same.sort_unstable();
        assert_eq!(all, same, "every block of a page, each once");
        all.dedup();
        assert_eq!(all.len(), HEAP_PAGE_BYTES / bytes, "every block of a page, each once");
    }
    assert!(offsets(&mut heap().1, 48).is_sorted(), "an ordinary heap goes upwards");
}

#[test]
fn a_freed_block_is_not_handed_out_before_others_were_freed() {
    let (_, mut heap) = hardened();
    for bytes in SIZES {
        let mut live = heap.take_many(3 * QUARANTINE, bytes);
        let freed = live.pop().expect("taken");
        heap.give(freed).expect("live");
        for round in 1..QUARANTINE {
            // More than are free in the page at hand, so that the choice would come to it.
            let more = heap.take_many(HEAP_PAGE_BYTES / bytes, bytes);
            assert!(!more.contains(&freed), "{bytes}: after {round} frees");
            live.extend(more);
            heap.check();
            heap.give(live.swap_remove(0)).expect("live");
        }
        heap.give(live.swap_remove(0)).expect("live");
        let pages = heap.page_count();
        let mut taken = Vec::new();
        while !taken.contains(&freed) {
            taken.push(heap.take(bytes));
            assert_eq!(heap.page_count(), pages, "{bytes}: it is free again, and a new page was taken");
        }
        heap.give_all(live.into_iter().chain(taken));
        heap.check();
    }
    heap.check_empty();
}

/// Whoever freed in a heap that waits trimmed it, and so the quarantine ended with the free that it was for.
#[test]
fn a_block_freed_after_its_thread_ended_is_not_handed_out_before_others_were_freed() {
    for bytes in SIZES {
        let (space, mut heap) = hardened();
        let mut live = heap.take_many(3 * QUARANTINE, bytes);
        let freed = live.pop().expect("taken");
        let mut other = space.acquire_hardened().expect("memory");
        drop(heap);
        other.give(freed).expect("live");
        let mut adopted = space.acquire_hardened().expect("memory");
        assert_eq!(adopted.number(), 1);
        for round in 1..QUARANTINE {
            let more = adopted.take_many(HEAP_PAGE_BYTES / bytes, bytes);
            assert!(!more.contains(&freed), "{bytes}: after {round} frees");
            live.extend(more);
            adopted.check();
            adopted.give(live.swap_remove(0)).expect("live");
        }
        adopted.give_all(live);
        adopted.check_empty();
    }
}

/// The pages are given back that are not needed for that.
#[test]
fn what_is_freed_after_its_thread_ended_goes_back_but_for_the_quarantine() {
    let (space, mut heap) = hardened();
    let blocks = heap.take_many(100_000, 48);
    let mut other = space.acquire_hardened().expect("memory");
    drop(heap);
    other.give_all(blocks);
    assert!(super::live(space) <= (QUARANTINE * HEAP_PAGE_BYTES) as u64, "{}", super::live(space));
    space.acquire_hardened().expect("memory").check_empty();
}

/// A hardened heap that waits, with blocks in its quarantine that another has freed, and two that live.
fn quarantined() -> (&'static Space<World>, Heap<World>, [NonNull<u8>; 2]) {
    let (space, mut heap) = hardened();
    let blocks: Vec<_> = SIZES.iter().flat_map(|&bytes| heap.take_many(3000, bytes)).collect();
    let live = [heap.take(48), heap.take(48)];
    let mut other = space.acquire_hardened().expect("memory");
    drop(heap);
    other.give_all(blocks);
    other.trim();
    assert!(super::live(space) > (QUARANTINE * HEAP_PAGE_BYTES) as u64, "{}", super::live(space));
    (space, other, live)
}

/// For good: 1.4 MiB for each heap.
#[test]
fn a_quarantine_ends_when_its_heap_waits_and_nobody_freed_there_for_two_looks() {
    let (space, mut other, [first, last]) = quarantined();
    let before = super::live(space);
    assert!(space.end_waiting_quarantines(true), "it was not known before");
    assert_eq!(super::live(space), before);
    other.give(first).expect("live");
    assert!(space.end_waiting_quarantines(true), "somebody freed there since");
    assert_eq!(super::live(space), before);
    assert!(!space.end_waiting_quarantines(true));
    assert!(super::live(space) <= 2 * HEAP_PAGE_BYTES as u64, "{}", super::live(space));
    // The count begins anew: what was seen before is not what is seen now.
    other.give(last).expect("live");
    assert!(space.end_waiting_quarantines(true));
    assert!(!space.end_waiting_quarantines(true));
    assert_eq!(super::live(space), 0);
    assert!(!space.end_waiting_quarantines(true), "nothing is left");
    other.check();
    space.acquire_hardened().expect("memory").check_empty();
}

#[test]
fn a_quarantine_of_a_heap_that_waits_ends_when_it_is_asked_for() {
    let (space, mut other, live) = quarantined();
    other.give_all(live);
    assert!(!space.end_waiting_quarantines(false));
    assert_eq!(super::live(space), 0);
}

/// An owner frees on, and what it has freed is its own.
#[test]
fn a_quarantine_goes_on_when_its_heap_was_adopted() {
    let (space, mut other, live) = quarantined();
    assert!(space.end_waiting_quarantines(true));
    let mut adopted = space.acquire_hardened().expect("memory");
    assert_eq!(adopted.number(), 1);
    let before = super::live(space);
    assert!(!space.end_waiting_quarantines(true) && !space.end_waiting_quarantines(false));
    assert_eq!(super::live(space), before);
    // It waits again, and what was seen then is not what is seen now.
    drop(adopted);
    other.give_all(live);
    assert!(space.end_waiting_quarantines(true));
    assert!(super::live(space) > 0);
    assert!(!space.end_waiting_quarantines(true));
    assert_eq!(super::live(space), 0);
}

/// The child has nobody who would trim what a missing thread had in quarantine.
#[test]
fn a_quarantine_of_a_missing_thread_ends_in_the_child() {
    let space = space();
    let mut missing = space.acquire_as(true, super::super::registry::THREAD).expect("memory");
    let blocks = missing.take_many(100, 48);
    missing.give_all(blocks);
    core::mem::forget(missing);
    space.after_fork_in_child(&[]);
    assert!(super::live(space) > 0);
    assert!(space.end_waiting_quarantines(true));
    assert!(!space.end_waiting_quarantines(true));
    assert_eq!(super::live(space), 0);
}

#[test]
fn a_page_stays_while_a_block_of_it_is_in_quarantine() {
    let (_, mut heap) = hardened();
    let first = heap.take_many(2, 8192);
    heap.give_all(first.iter().copied());
    // Another class takes no page in which a block of this one was just freed.
    let others = heap.take_many(200, 4096);
    assert!(others.iter().all(|&block| page_of(block) != page_of(first[0])));
    heap.check();
    heap.give_all(others);
    heap.check_empty();
}

/// Does a deed of a test of these modules in a child of this test's binary, with a variable of the environment;
/// says how the child ended.
pub(super) fn child(test: &str, (name, value): (&str, &str), deed: impl FnOnce()) -> Output {
    const DEED: &str = "HUGEHEAP_TEST_DEED";
    if std::env::var_os(DEED).is_some() {
        deed();
        std::process::exit(0);
    }
    let test = format!("object::tests::{test}");
    Command::new(std::env::current_exe().expect("this binary has a path"))
        .args(["--exact", &test, "--nocapture", "--test-threads=1"])
        .env(DEED, &test)
        .env(name, value)
        .output()
        .expect("this binary runs again")
}

/// The signal by which a child ended that did a deed.
fn signal_of(test: &str, deed: impl FnOnce()) -> Option<i32> {
    let output = child(&format!("hardened::{test}"), ("HUGEHEAP_HARDENED", "0"), deed);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{said}");
    output.status.signal()
}

#[test]
fn the_environment_asks_for_hardened_heaps() {
    let test = "hardened::the_environment_asks_for_hardened_heaps";
    for (value, hardened) in [("1", true), ("0", false), ("yes", false)] {
        let output = child(test, ("HUGEHEAP_HARDENED", value), || {
            // SAFETY: the only one of this thread in use.
            let mut heap = unsafe { global::thread_heap() }.expect("memory");
            println!("hardened {}", heap.is_hardened());
            std::thread::spawn(|| {
                // SAFETY: as above.
                println!("hardened {}", unsafe { global::thread_heap() }.expect("memory").is_hardened())
            })
            .join()
            .expect("no panic");
        });
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(out.matches(&format!("hardened {hardened}\n")).count(), 2, "{value}: {out}{err}");
        let told = err.contains("HUGEHEAP_HARDENED must be 0 or 1");
        assert_eq!(told, value == "yes", "{value}: {err}");
    }
}

/// Writes in front of and at the guard of what a process's hardened heap hands out.
fn overrun(bytes: usize, past: usize) {
    let mut heap = global::space().acquire_hardened().expect("memory");
    let block = heap.allocate(bytes).expect("memory");
    let usable = heap.usable_size(block).expect("live");
    assert!((bytes..bytes + 4096).contains(&usable), "{usable} bytes of {bytes}");
    fill(block, usable, 1);
    // SAFETY: the guard, if past is 0: the process ends, which is what is looked for. Else the last byte.
    unsafe { block.as_ptr().add(usable - past).write_volatile(1) };
}

#[test]
fn a_write_behind_a_short_run_faults() {
    assert_eq!(signal_of("a_write_behind_a_short_run_faults", || overrun(RUNS[0], 0)), Some(libc::SIGSEGV));
}

#[test]
fn a_write_behind_a_long_run_faults() {
    assert_eq!(signal_of("a_write_behind_a_long_run_faults", || overrun(RUNS[1], 0)), Some(libc::SIGSEGV));
}

#[test]
fn a_write_behind_a_large_block_faults() {
    assert_eq!(signal_of("a_write_behind_a_large_block_faults", || overrun(RUNS[2], 0)), Some(libc::SIGSEGV));
}

#[test]
fn the_last_byte_before_a_guard_may_be_written() {
    let test = "the_last_byte_before_a_guard_may_be_written";
    assert_eq!(signal_of(test, || RUNS.into_iter().for_each(|bytes| overrun(bytes, 1))), None);
}

#[test]
fn without_a_guard_page_from_the_system_it_is_memory_all_the_same() {
    let (space, mut heap) = hardened();
    // Metadata is there.
    for bytes in [48].into_iter().chain(RUNS) {
        let block = heap.take(bytes);
        heap.give(block).expect("live");
    }
    for bytes in RUNS {
        space.source().kernel.fail_every(Call::Protect, 1, libc::ENOMEM);
        let block = heap.take(bytes);
        space.source().kernel.fail_no_more();
        fill(block, bytes, 1);
        assert_eq!(heap.usable_size(block), Ok(bytes.next_multiple_of(4096)));
        heap.give(block).expect("live");
        assert_eq!(heap.give(block), Err(Mistake::NotLive { bytes: 0 }));
    }
    heap.check_empty();
}

/// Guards took all mappings that the system allows, and then there was no memory at all.
#[test]
fn guards_leave_half_of_the_mappings_to_others() {
    let (space, mut heap) = hardened();
    let guards = |space: &Space<World>| space.registry.guards.load(Ordering::Relaxed);
    let first = heap.take(20_000);
    assert_eq!(guards(space), 1);
    // As if the others had been taken.
    space.registry.guards.store(GUARDS - 1, Ordering::Relaxed);
    let last = heap.take(20_000);
    let without = heap.take(20_000);
    assert_eq!(guards(space), GUARDS, "the system is not asked for one more");
    heap.give(without).expect("live");
    assert_eq!(guards(space), GUARDS, "it had none");
    heap.give(first).expect("live");
    assert_eq!(guards(space), GUARDS - 1);
    let guarded = heap.take(20_000);
    assert_eq!(guards(space), GUARDS);
    heap.give_all([last, guarded]);
    assert_eq!(guards(space), GUARDS - 2);
    heap.check_empty();
}

/// A wrong free is refused with that answer, by this heap and, if it can see it, another one.
fn refused(heap: &mut Heap<World>, address: usize, mistake: Mistake) {
    let before = live(heap.own().space);
    assert_eq!(heap.give(pointer(address)), Err(mistake));
    // SAFETY: it is refused.
    assert_eq!(unsafe { heap.free_far(address) }, Err(mistake));
    let mut other = heap.own().space.acquire().expect("memory");
    assert_eq!(other.give(pointer(address)), Err(mistake));
    heap.check();
    assert_eq!(live(heap.own().space), before);
}

#[test]
fn wrong_frees_are_told_apart() {
    let (_, mut heap) = hardened();
    let outside = Box::new([0_u64; 8]);
    refused(&mut heap, &raw const *outside as usize, Mistake::Foreign);
    for bytes in SIZES {
        let blocks = heap.take_many(100, bytes);
        for inside in [1, 8, bytes / 32 * 16, bytes - 1].into_iter().filter(|&inside| inside > 0) {
            refused(&mut heap, at(blocks[50]) + inside, Mistake::Interior { bytes });
        }
        let wrong = heap.own().space.check_size(at(blocks[50]), bytes + 1);
        assert_eq!(wrong, Err(Mistake::WrongSize { bytes, given: bytes + 1 }));
        // In the quarantine, and out of it again.
        for &block in &blocks[..2 * QUARANTINE] {
            heap.give(block).expect("live");
            refused(&mut heap, at(block), Mistake::NotLive { bytes });
            assert_eq!(heap.usable_size(block), Err(Mistake::NotLive { bytes }));
        }
        let rest = &blocks[2 * QUARANTINE..];
        rest.iter().for_each(|&block| {
            // SAFETY: live, and used by nobody else.
            unsafe { heap.free_sized(block, bytes) }
        });
        heap.check();
    }
    heap.check_empty();
}

#[test]
fn wrong_frees_of_page_runs_and_large_blocks_are_told_apart() {
    let (_, mut heap) = hardened();
    for bytes in RUNS {
        let block = heap.take(bytes);
        for inside in [16, 4096, HEAP_PAGE_BYTES, bytes - 1] {
            let mistake = heap.give(pointer(at(block) + inside)).expect_err("nothing begins there");
            assert!(matches!(mistake, Mistake::Interior { .. }), "{mistake:?}");
        }
        let space = heap.own().space;
        let usable = bytes.next_multiple_of(4096);
        let given = usable + 1;
        assert_eq!(space.check_size(at(block), given), Err(Mistake::WrongSize { bytes: usable, given }));
        // SAFETY: live, and used by nobody else.
        unsafe { heap.free_sized(block, bytes) };
        heap.check();
        refused(&mut heap, at(block), Mistake::NotLive { bytes: 0 });
    }
    heap.check_empty();
}

#[test]
fn two_threads_that_free_a_block_are_found_out() {
    let (space, mut heap) = hardened();
    let block = heap.take(48);
    let mut other = space.acquire().expect("memory");
    other.give(block).expect("live");
    assert_eq!(other.give(block), Err(Mistake::TwoThreads { bytes: 48 }));
    assert_eq!(heap.give(block), Err(Mistake::NotLive { bytes: 48 }));
    heap.check_empty();
}

/// The second one was stopped after it had found it live. It was never told, and cleared what may have been
/// somebody else's by then.
#[test]
fn two_threads_that_free_a_page_run_or_large_block_at_the_same_instant_are_found_out() {
    let (space, mut heap) = hardened();
    let mut other = space.acquire().expect("memory");
    for bytes in RUNS {
        for owner_first in [false, true] {
            let block = heap.take(bytes);
            let page = space.page(at(block)).expect("known");
            let tag = page.tag();
            if owner_first { heap.give(block) } else { other.give(block) }.expect("live");
            let twice = Mistake::TwoThreads { bytes: bytes.next_multiple_of(4096) };
            assert_eq!(space.free_checked_run(page, tag), Err(twice));
            // Where something else begins by now, too.
            page.vacant()[0].store(0, Ordering::Relaxed);
            assert_eq!(space.free_checked_run(page, tag), Err(twice));
            assert!(heap.give(block).is_err());
        }
    }
    heap.check_empty();
}

#[test]
fn hardened_heaps_are_adopted_as_such_only() {
    let (space, mut heap) = hardened();
    let block = heap.take(48);
    let number = heap.number();
    drop(heap);
    let mut ordinary = space.acquire().expect("memory");
    assert_ne!(ordinary.number(), number);
    assert!(!ordinary.is_hardened());
    let mut adopted = space.acquire_hardened().expect("memory");
    assert_eq!((adopted.number(), adopted.is_hardened()), (number, true));
    drop(ordinary);
    assert_ne!(
        space.acquire_hardened().expect("memory").number(),
        2,
        "an ordinary one is not adopted as hardened"
    );
    adopted.give(block).expect("live");
    adopted.check_empty();
}

#[test]
fn resized_blocks_keep_their_contents() {
    let (_, mut heap) = hardened();
    let sizes =
        [1, 48, 700, 8192, 8193, 16_384, 20_000, 20_001, 24_000, 300_000, 3_000_000, 3_100_000, 20_000, 100];
    let (mut block, mut have) = (heap.take(1), 1);
    for bytes in sizes {
        fill(block, have, 7);
        // SAFETY: live; the old address is not used again.
        block = unsafe { heap.try_reallocate(block, bytes) }.expect("live").expect("memory");
        assert!(holds(block, have.min(bytes), 7), "{have} to {bytes}");
        assert!(heap.usable_size(block).expect("live") >= bytes);
        have = bytes;
        heap.check();
    }
    heap.give(block).expect("live");
    heap.check_empty();
}

#[test]
fn aligned_and_zeroed_requests() {
    let (_, mut heap) = hardened();
    for (bytes, align) in [(100, 64), (100, 16_384), (40_000, 16_384), (100, 2 << 20), (5 << 20, 2 << 20)] {
        let block = heap.allocate_aligned(bytes, align).expect("memory");
        assert_eq!(at(block) % align, 0);
        fill(block, heap.usable_size(block).expect("live"), 1);
        heap.give(block).expect("live");
        let zeroed = heap.allocate_zeroed(bytes).expect("memory");
        assert!(holds(zeroed, bytes, 0));
        heap.give(zeroed).expect("live");
        heap.check();
    }
    assert_eq!(heap.allocate(usize::MAX), None);
    assert_eq!(heap.allocate(usize::MAX - 4095), None);
    heap.check_empty();
}

#[test]
fn what_is_kept_agrees_after_any_sequence() {
    let (space, mut heap) = hardened();
    let mut other = space.acquire_hardened().expect("memory");
    let (mut blocks, mut state) = (Vec::new(), 5);
    for step in 0..30_000 {
        let bytes = match random(&mut state) % 50 {
            0 => RUNS[random(&mut state) as usize % 2],
            1..20 => 48,
            _ => 1 + random(&mut state) as usize % 8192,
        };
        if blocks.len() < 300 || random(&mut state) % 2 == 0 {
            let block = heap.take(bytes);
            fill(block, bytes, step as u8);
            blocks.push((block, bytes, step as u8));
        } else {
            let (block, bytes, value) = blocks.swap_remove(random(&mut state) as usize % blocks.len());
            assert!(holds(block, bytes, value), "somebody else wrote into {block:?}");
            let owner = if random(&mut state) % 4 == 0 { &mut other } else { &mut heap };
            owner.give(block).expect("live");
        }
        if step % 1000 == 0 {
            heap.check();
        }
    }
    heap.give_all(blocks.into_iter().map(|(block, ..)| block));
    drop(other);
    heap.check_empty();
}

#[test]
fn without_memory_the_quarantine_is_used_before_a_request_fails() {
    let (space, mut heap) = hardened();
    // The first arena.
    let mut blocks = heap.take_many(1, 8192);
    space.source().kernel.fail_every(Call::Map, 1, libc::ENOMEM);
    space.source().kernel.fail_every(Call::Reserve, 1, libc::ENOMEM);
    while let Some(block) = heap.allocate(8192) {
        blocks.push(block);
    }
    let freed = blocks.pop().expect("taken");
    heap.give(freed).expect("live");
    assert_eq!(heap.allocate(8192), Some(freed));
    assert_eq!(heap.allocate(8192), None);
    heap.check();
    heap.give_all(blocks.into_iter().chain([freed]));
    space.source().kernel.fail_no_more();
    heap.check_empty();
}
