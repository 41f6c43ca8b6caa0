//! Heaps that wait for an owner, and those of which nobody is told that theirs is gone: how they are found.

use super::super::registry::WAITING;
use super::*;
use core::sync::atomic::Ordering;
use std::collections::BTreeSet;

impl Space<World> {
    /// How many heaps are looked at for one that waits, at most.
    fn looked_at_for_next(&self, hardened: bool) -> usize {
        let waiting = self.registry.waiting(hardened);
        let numbers = self.registry.numbers_from(waiting.from());
        let waits = |number: u32| {
            let shared = self.registry.shared::<World>(number).expect("made");
            shared.hardened == hardened && shared.state.load(Ordering::SeqCst) == WAITING
        };
        numbers.take_while(|&number| !waits(number)).count() + 1
    }
}

#[test]
fn a_heap_that_was_taken_too_late_to_be_left_is_adopted_when_its_thread_is_gone() {
    let space = space();
    let (lives, mut gone) = (space.acquire_late(GONE + 1), space.acquire_late(GONE).expect("memory"));
    let blocks = gone.take_many(100, 48);
    core::mem::forget((gone, lives));
    let mut adopted = space.acquire().expect("memory");
    assert_eq!((adopted.number(), adopted.state()), (2, super::super::registry::OWNED));
    adopted.give_all(blocks);
    adopted.check_empty();
    let made = space.acquire().map(|mut heap| heap.number());
    assert_eq!(made, Some(3), "once, and not that of a thread that lives");
}

/// To take heaps that waited was quadratic, because each search began at the first of all.
#[test]
fn heaps_that_wait_are_found_in_one_round_however_many_there_are() {
    let space = space();
    let take = |count: usize| (0..count).map(|_| space.acquire().expect("memory")).collect::<Vec<_>>();
    let mut heaps = take(300);
    for order in 0..3 {
        match order {
            0 => heaps.clear(),
            1 => heaps.drain(..).rev().for_each(drop),
            _ => drop(heaps.split_off(150)),
        }
        let mut looked_at = 0;
        while heaps.len() < 300 {
            looked_at += space.looked_at_for_next(false);
            heaps.extend(space.acquire());
        }
        // Once round, and past those that are owned.
        assert!(looked_at <= 2 * 300, "{order}: {looked_at}");
    }
    // As many as there were, each once.
    let numbers: BTreeSet<_> = heaps.iter_mut().map(Heap::number).collect();
    assert_eq!(numbers, (1..301).collect());
}

/// One that waits had every search for one of the other kind look at all.
#[test]
fn a_heap_of_the_other_kind_that_waits_is_not_looked_for() {
    let space = space();
    drop(space.acquire_hardened());
    let count = |hardened| space.registry.waiting(hardened).count.load(Ordering::Relaxed);
    assert_eq!([count(false), count(true)], [0, 1]);
    let mut ordinary = space.acquire().expect("memory");
    assert_eq!((ordinary.number(), count(true)), (2, 1));
    drop(ordinary);
    assert_eq!([count(false), count(true)], [1, 1]);
    assert_eq!(space.acquire_hardened().map(|mut heap| heap.number()), Some(1));
}

/// Where all heaps of threads are late, each new thread asked for all of them.
#[test]
fn of_many_late_heaps_some_are_asked_for_each_time_and_in_the_end_all() {
    let space = space();
    let lives: Vec<_> = (0..1000).map(|_| space.acquire_late(GONE + 1).expect("memory")).collect();
    core::mem::forget((lives, space.acquire_late(GONE)));
    let found = (0..1001 / 64 + 1).find_map(|_| {
        let mut heap = core::mem::ManuallyDrop::new(space.acquire().expect("memory"));
        (heap.number() == 1001).then_some(())
    });
    assert!(found.is_some());
}

/// A heap can be noted as such by who takes it late, and again because nobody will be told that the thread ends.
#[test]
fn a_heap_that_is_late_for_two_reasons_is_counted_once() {
    let space = space();
    let heap = space.acquire_late(GONE).expect("memory");
    space.note_late(&heap, GONE);
    core::mem::forget(heap);
    let (adopted, made) = (space.acquire(), space.acquire());
    assert_eq!([adopted, made].map(|heap| heap.map(|mut heap| heap.number())), [Some(1), Some(2)]);
    assert_eq!(space.registry.late.load(Ordering::Relaxed), 0);
}

#[test]
fn a_heap_whose_thread_is_gone_is_not_adopted_during_a_visit() {
    let space = space();
    core::mem::forget(space.acquire_late(GONE));
    let visiting = space.registry.visits.lock();
    let made = space.acquire().map(|mut heap| heap.number());
    drop(visiting);
    assert_eq!(made, Some(2));
}

#[test]
fn a_heap_that_was_taken_late_and_is_left_is_a_heap_like_others() {
    let space = space();
    drop(space.acquire_late(GONE));
    let (first, second) = (space.acquire(), space.acquire());
    assert_eq!([first, second].map(|heap| heap.map(|mut heap| heap.number())), [Some(1), Some(2)]);
}

#[test]
fn what_is_freed_in_a_waiting_heap_goes_back_at_once() {
    for (count, bytes) in [(1, 64), (10, 64), (1000, 64), (1000, 16), (40, 1000), (3, 4096)] {
        let (space, mut other) = heap();
        let mut gone = space.acquire().expect("memory");
        let blocks = gone.take_many(count, bytes);
        drop(gone);
        let before = live(space);
        assert!(before > 0);
        // From both ends, so that no page is emptied in its order.
        let (first, last) = blocks.split_at(count / 2);
        for &block in first.iter().chain(last.iter().rev()) {
            // SAFETY: used by nobody else.
            unsafe { other.free_sized(block, bytes) };
        }
        assert_eq!(live(space), 0, "{count} blocks of {bytes} bytes");
        let mut adopted = space.acquire().expect("memory");
        adopted.verify().expect("sound");
        assert!(adopted.take_many(count, bytes).iter().all(|&block| space.usable_size(at(block)).is_ok()));
    }
}

#[test]
fn a_block_of_a_waiting_heap_is_freed_once() {
    let (space, mut other) = heap();
    let mut gone = space.acquire().expect("memory");
    let (block, _keeps) = (gone.take(64), gone.take(64));
    drop(gone);
    // SAFETY: refused, or used by nobody else.
    unsafe {
        assert!(other.try_free(pointer(at(block) + 16)).is_err(), "within it");
        assert_eq!(other.try_free(block), Ok(()));
        assert_eq!(other.try_free(block), Err(Mistake::NotLive { bytes: 64 }));
    }
    let mut adopted = space.acquire().expect("memory");
    assert_eq!(adopted.take(64), block, "and is had again");
    adopted.verify().expect("sound");
}

/// A small program is spared the maintenance thread, unless it has threads of its own. Who has heaps by hand has
/// none of either.
#[test]
fn with_a_second_thread_a_small_heap_is_looked_at() {
    for by_hand in [false, true] {
        let space = space();
        let acquire = || if by_hand { space.acquire() } else { space.acquire_for_thread() }.expect("memory");
        let is_due = || space.source().arenas.lock().has_look_ahead();
        let mut first = acquire();
        let blocks = first.take_many(60 * 16, 1024);
        assert!(!is_due(), "a small heap of one thread");
        let mut second = acquire();
        second.take(64);
        assert_eq!(is_due(), !by_hand);
        first.give_all(blocks);
        core::mem::forget((first, second));
    }
}
