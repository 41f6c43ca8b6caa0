//! Each check finds the mistake that it is for.

use super::*;
use std::num::NonZeroU32;

/// An old pair, and a young one.
fn old_and_young(test: &mut Test) -> (usize, usize) {
    let (global, young) = test.run(|scope, types| {
        let old = pair(scope, types, 1);
        scope.collect_minor();
        let global = scope.global(old).expect("memory");
        let young = pair(scope, types, 2);
        (global, scope.object(young))
    });
    (test.heap.address(&global), young)
}

#[test]
fn a_missing_barrier_is_found() {
    let mut test = Test::new(Settings::default());
    let (old, young) = old_and_young(&mut test);
    assert_eq!(test.heap.verify_barriers(), Ok(()));
    // SAFETY: the planted mistake: a write into a live object without the barrier.
    unsafe { ((old + RIGHT) as *mut usize).write(young) };
    let found = test.heap.verify_barriers().expect_err("planted");
    assert_eq!(found, Mistake::Barrier { object: old, offset: RIGHT, id: test.pair.number() });
    // SAFETY: the mistake is taken back: told to the barrier, it is none.
    unsafe { test.heap.before_write(old, (old + RIGHT) as *mut usize) };
    assert_eq!(test.heap.verify_barriers(), Ok(()));
}

#[test]
fn a_missing_barrier_in_a_large_array_is_found() {
    let mut test = Test::new(Settings::default());
    let (_, young) = old_and_young(&mut test);
    let global = test.run(|scope, types| {
        let array = scope.allocate(types.array, 10_000).expect("memory");
        scope.global(array).expect("memory")
    });
    let array = test.heap.address(&global);
    // SAFETY: planted, as above; the slot before it is told to the barrier, in another card.
    unsafe {
        ((array + 16 + 8 * 7000) as *mut usize).write(young);
        test.heap.write(array, (array + 16 + 8 * 6000) as *mut usize, young);
    }
    let found = test.heap.verify_barriers().expect_err("planted");
    assert_eq!(found, Mistake::Barrier { object: array, offset: 16 + 8 * 7000, id: test.array.number() });
}

#[test]
fn a_reference_to_nothing_is_found() {
    let mut test = Test::new(Settings::default());
    let (old, _) = old_and_young(&mut test);
    for wrong in [0x10, old + 16, old + 64, old & !0xffff_ffff] {
        // SAFETY: planted: the slot holds the address of no object.
        unsafe { ((old + LEFT) as *mut usize).write(wrong) };
        let found = test.heap.verify(&mut []).expect_err("planted");
        assert_eq!(found, Mistake::Reference { object: Some(old), offset: LEFT, word: wrong });
    }
    // SAFETY: the mistake is taken back.
    unsafe { ((old + LEFT) as *mut usize).write(0) };
    let mut frame = [old + 32];
    let found = test.heap.verify(&mut frame).expect_err("planted");
    assert_eq!(found, Mistake::Reference { object: None, offset: 0, word: old + 32 });
    assert_eq!(test.heap.verify(&mut []), Ok(()));
}

#[test]
fn an_overwritten_header_is_found() {
    let mut test = Test::new(Settings::default());
    let (old, _) = old_and_young(&mut test);
    // SAFETY: planted: somebody writes over the end of the object before.
    unsafe { (old as *mut u64).write(12345) };
    assert_eq!(test.heap.verify(&mut []), Err(Mistake::Header { object: old, word: 12345 }));
    // SAFETY: taken back.
    unsafe { test.pair.header().with(TRACKED).put(old) };
    assert_eq!(test.heap.verify(&mut []), Ok(()));
}

#[test]
fn an_overwritten_length_is_found_before_the_slots_behind_it_are() {
    let mut test = Test::new(Settings::default());
    for items in [10, 10_000] {
        let global = test.run(|scope, types| {
            let array = scope.allocate(types.array, items).expect("memory");
            scope.collect();
            scope.global(array).expect("memory")
        });
        let (array, id) = (test.heap.address(&global), test.array.number());
        let at = (array + 8) as *mut usize;
        let room = (16 + 8 * items).next_multiple_of(if items > 1000 { 16 << 10 } else { 16 });
        // What wraps is no small object.
        for length in [(room - 16) / 8 + 1, 1 << 40, (1 << 61) + 1, usize::MAX] {
            // SAFETY: planted: somebody writes over the length of a live object.
            unsafe { at.write(length) };
            let found = Mistake::Length { object: array, id, length, room };
            assert_eq!(test.heap.verify(&mut []), Err(found.clone()));
            assert_eq!(test.heap.verify_barriers(), Err(found));
        }
        // SAFETY: taken back.
        unsafe { at.write(items) };
        assert_eq!((test.heap.verify(&mut []), test.heap.verify_barriers()), (Ok(()), Ok(())));
    }
}

#[test]
fn a_forgotten_root_is_found_by_poison_at_the_next_collection() {
    let checks = Checks { poison: true, stress: NonZeroU32::new(3), ..Checks::default() };
    let mut test = Test::new(Settings { checks, ..Settings::default() });
    let mut forgotten = 0;
    test.run(|scope, types| {
        scope.scope(|scope| {
            pair(scope, types, 1);
            let local = pair(scope, types, 2);
            forgotten = scope.object(local);
        });
        // Under stress the third allocation collects; without, the nursery would have to be full.
        pair(scope, types, 3);
        // SAFETY: the address is in the nursery, which is mapped.
        let words = unsafe { (forgotten as *const [u64; 4]).read() };
        assert_eq!(words[3], POISON, "{words:x?}");
    });
    let mut frame = [forgotten + 16];
    assert!(matches!(test.heap.verify(&mut frame), Err(Mistake::Reference { object: None, .. })));
}

#[test]
fn a_slot_that_nobody_wrote_is_found_where_freed_memory_is_overwritten() {
    for poison in [true, false] {
        let checks = Checks { poison, ..Checks::default() };
        let mut test = Test::new(Settings { checks, ..Settings::default() });
        let (old, _) = old_and_young(&mut test);
        // SAFETY: planted: what a new object's slot holds before it is written, and keeps when it moves.
        unsafe { ((old + LEFT) as *mut u64).write(POISON) };
        let found = Mistake::Reference { object: Some(old), offset: LEFT, word: POISON as usize };
        assert!(found.to_string().ends_with("it was never written, or got what was read of a freed object"));
        assert_eq!(test.heap.verify(&mut []), if poison { Err(found) } else { Ok(()) });
        assert_eq!(test.heap.verify_barriers(), Ok(()));
        // SAFETY: taken back.
        unsafe { ((old + LEFT) as *mut u64).write(0) };
    }
}

#[test]
fn freed_blocks_are_poisoned() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let (keep, dead) = (pair(scope, types, 1), pair(scope, types, 2));
        scope.collect_minor();
        let address = scope.object(dead);
        scope.assign(dead, keep);
        scope.collect();
        // SAFETY: the page has a live object, so it is still there.
        assert_eq!(unsafe { (address as *const [u64; 4]).read() }, [POISON; 4]);
        assert_eq!(scope.read(keep, NUMBER), 1);
    });
    test.end();
}

#[test]
fn stress_collects_every_so_many_allocations_and_changes_nothing() {
    for every in [1, 7] {
        let checks = Checks {
            verify: true,
            barriers: true,
            poison: true,
            stress: NonZeroU32::new(every),
            ..Checks::default()
        };
        let mut test = Test::new(Settings { checks, ..Settings::default() });
        test.run(|scope, types| {
            let head = list(scope, types, 210);
            check_list(scope, head, 210);
            assert_eq!(scope.heap().statistics().minor, 210 / u64::from(every));
        });
        test.end();
    }
}

#[test]
fn books_that_contradict_the_pages_are_found() {
    let mut test = Test::new(Settings::default());
    let (old, _) = old_and_young(&mut test);
    let page = test.space.page(old).expect("known");
    let before = page.vacant()[0].load(std::sync::atomic::Ordering::Relaxed);
    // Planted in metadata only: an object begins where none can.
    page.vacant()[0].store(before & !2, std::sync::atomic::Ordering::Relaxed);
    assert!(matches!(test.heap.verify(&mut []), Err(Mistake::Books(_))));
    page.vacant()[0].store(before, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(test.heap.verify(&mut []), Ok(()));
}
