//! Visits: what others freed in the heap of a thread that does not come.

use super::*;
use core::mem::ManuallyDrop;

/// Enough for some hundred pages.
const BLOCKS: usize = 100_000;
const BYTES: usize = 64;

/// A heap that belongs to a thread.
fn thread_heap(space: &'static Space<World>) -> ManuallyDrop<Heap<World>> {
    ManuallyDrop::new(space.acquire_for_thread().expect("memory"))
}

/// Frees blocks of others as an interpreter's hook does; answers how often somebody was visited.
fn free_and_visit(space: &'static Space<World>, heap: &mut Heap<World>, blocks: Vec<NonNull<u8>>) -> u32 {
    let mut visits = 0;
    for block in blocks {
        heap.give(block).expect("live");
        if space.has_due() {
            let number = space.take_due().expect("somebody is due");
            // SAFETY: the test is its only thread.
            unsafe { space.visit(number) };
            visits += 1;
        }
    }
    visits
}

#[test]
fn what_a_thread_that_does_nothing_made_goes_back() {
    let (space, mut own) = heap();
    let mut worker = thread_heap(space);
    let mut visits = 0;
    for _ in 0..5 {
        let blocks = worker.take_many(BLOCKS, BYTES);
        visits += free_and_visit(space, &mut own, blocks);
        let left = live(space) as usize;
        assert!(left <= 3 << 20, "{left} bytes are left of {}", BLOCKS * BYTES);
    }
    assert!(visits > 5 && !space.has_due());
    // The thread goes on with what is left.
    let block = worker.take(BYTES);
    worker.give(block).expect("live");
    worker.end_visits();
    drop(ManuallyDrop::into_inner(worker));
    own.check();
    assert_eq!(live(space), 0);
}

#[test]
fn without_visits_all_of_it_stays() {
    let (space, mut own) = heap();
    let mut worker = thread_heap(space);
    let blocks = worker.take_many(BLOCKS, BYTES);
    own.give_all(blocks);
    assert!(live(space) as usize >= BLOCKS * BYTES);
    assert!(space.has_due());
}

#[test]
fn a_heap_that_is_no_threads_is_not_visited() {
    let (space, mut own) = heap();
    let mut other = space.acquire().expect("memory");
    let blocks = other.take_many(BLOCKS, BYTES);
    assert!(free_and_visit(space, &mut own, blocks) > 0, "due, but its owner may use it at any time");
    assert!(live(space) as usize >= BLOCKS * BYTES);
    other.collect_for_visit();
    assert_eq!(live(space), 0, "its owner can");
    // SAFETY: there are no such heaps.
    unsafe { [0, 77, u32::MAX].into_iter().for_each(|number| space.visit(number)) };
    let mut ended = thread_heap(space);
    let (number, block) = (ended.number(), ended.take(BYTES));
    ended.end_visits();
    // SAFETY: the test is its only thread.
    unsafe { space.visit(number) };
    ended.give(block).expect("live");
    ended.check_empty();
}

#[test]
fn a_visit_ends_no_quarantine() {
    let space = space();
    let mut own = space.acquire().expect("memory");
    let worker = space.acquire_as(true, super::super::registry::THREAD);
    let mut worker = ManuallyDrop::new(worker.expect("memory"));
    let blocks = worker.take_many(BLOCKS, BYTES);
    let last = *blocks.last().expect("some");
    assert!(free_and_visit(space, &mut own, blocks) > 0);
    assert!(worker.give(last).is_err(), "it is known to be free");
    worker.check();
    assert!(space.source().arenas.lock().snapshot().live > 0);
}
