//! Forks: what a child makes of the heaps of threads that do not exist there.
//!
//! The functions that the fork handlers call are called here as they call them, without a child: what they see
//! is the same.

use super::super::class::GRANULE_SHIFT;
use super::super::heap::Place;
use super::super::registry::{LOST, OWNED, VISITED, WAITING};
use super::super::{freed, remote, tag};
use super::*;
use core::sync::atomic::Ordering;

fn state(space: &Space<World>, number: u32) -> u32 {
    space.registry.shared::<World>(number).expect("made").state.load(Ordering::SeqCst)
}

/// Before, and in the child after a fork by the thread with heap `own`.
fn fork(space: &Space<World>, own: Option<u32>) {
    space.lock_for_fork();
    // SAFETY: just locked by this thread.
    unsafe { space.unlock_after_fork() };
    space.after_fork_in_child(&[own]);
}

/// A heap that belongs to a thread.
fn thread_heap(space: &'static Space<World>) -> Heap<World> {
    space.acquire_for_thread().expect("memory")
}

#[test]
fn the_heaps_of_other_threads_wait_in_the_child() {
    let (space, mut own) = heap();
    let mut gone = thread_heap(space);
    let blocks = gone.take_many(1000, 48);
    let kept = own.take(48);
    // The thread does not exist in the child, and neither does its handle.
    core::mem::forget(gone);
    fork(space, Some(1));
    assert_eq!((state(space, 1), state(space, 2)), (OWNED, WAITING));
    own.give_all(blocks);
    let mut adopted = space.acquire().expect("memory");
    assert_eq!(adopted.number(), 2);
    adopted.check_empty_but(1);
    own.give(kept).expect("live");
    own.check_empty();
}

impl Heap<World> {
    /// Nothing is left of this heap; others have `pages` pages.
    fn check_empty_but(&mut self, pages: u64) {
        self.trim();
        self.check();
        assert_eq!(self.page_count(), 0);
        assert_eq!(live(self.own().space), pages * HEAP_PAGE_BYTES as u64);
    }
}

#[test]
fn a_heap_in_the_middle_of_a_change_is_lost_and_its_blocks_live() {
    let (space, mut own) = heap();
    let mut gone = thread_heap(space);
    let blocks = gone.take_many(1000, 48);
    let busy = gone.busy();
    core::mem::forget((gone, busy));
    fork(space, Some(1));
    assert_eq!(state(space, 2), LOST);
    let pages = live(space);
    fill(blocks[0], 48, 1);
    assert_eq!(own.usable_size(blocks[0]), Ok(48));
    own.give_all(blocks.iter().copied());
    assert_eq!(own.give(blocks[0]), Err(Mistake::TwoThreads { bytes: 48 }), "still checked");
    assert_eq!(live(space), pages, "its pages stay");
    // Never adopted, in grandchildren neither.
    assert_eq!(space.acquire().expect("memory").number(), 3);
    fork(space, Some(1));
    assert_eq!(state(space, 2), LOST);
    own.check();
}

#[test]
fn a_heap_that_somebody_visited_is_lost() {
    let (space, _own) = heap();
    let gone = thread_heap(space);
    gone.shared().state.store(VISITED, Ordering::SeqCst);
    core::mem::forget(gone);
    fork(space, Some(1));
    assert_eq!(state(space, 2), LOST);
}

#[test]
fn heaps_that_wait_or_belong_to_a_handle_stay_as_they_are() {
    let (space, _own) = heap();
    let waiting = space.acquire().expect("memory");
    let mut locked = space.acquire().expect("memory");
    drop(waiting);
    fork(space, Some(1));
    assert_eq!((state(space, 2), state(space, 3)), (WAITING, OWNED));
    let block = locked.take(48);
    locked.give(block).expect("live");
    assert_eq!(space.acquire().expect("memory").number(), 2);
}

/// Its owner was noted a moment after it was taken, and no more from a moment before it was left: in a child
/// that was forked within one of the two nobody ever had the heap again, nor what was free in it, nor what was
/// freed in it afterwards.
#[test]
fn a_heap_that_a_missing_thread_was_about_to_have_or_to_leave_waits_in_the_child() {
    let (space, mut own) = heap();
    let (made, mut leaving) = (thread_heap(space), thread_heap(space));
    let blocks = leaving.take_many(1000, 48);
    leaving.end_visits();
    drop(thread_heap(space));
    let adopted = thread_heap(space);
    core::mem::forget((made, leaving, adopted));
    fork(space, Some(1));
    assert_eq!([2, 3, 4].map(|number| state(space, number)), [WAITING; 3]);
    own.give_all(blocks);
    own.check();
    own.trim();
    assert_eq!(live(space), 0, "what is freed there is collected");
}

/// A missing thread had counted the heap that it was about to leave, or not yet the one that it had just taken.
/// The child looked for a heap that waits each time it needed one, and took heaps for free that were not, more
/// of them with each generation.
#[test]
fn a_child_knows_how_many_heaps_wait_whatever_missing_threads_were_doing() {
    let (space, _own) = heap();
    let waiting = || [false, true].map(|kind| space.registry.waiting(kind).count.load(Ordering::Relaxed));
    let (leaving, lost) = (thread_heap(space), thread_heap(space));
    drop(space.acquire_hardened());
    // As in `leave` and as in `claim`.
    space.registry.waiting(false).count.fetch_add(2, Ordering::Relaxed);
    core::mem::forget((lost.busy(), leaving, lost));
    for _generation in 0..3 {
        fork(space, Some(1));
        assert_eq!((waiting(), space.heaps_in_use()), ([1, 1], 1));
    }
}

#[test]
fn a_thread_without_a_heap_forks() {
    let space = space();
    let mut gone = thread_heap(space);
    let blocks = gone.take_many(100, 48);
    core::mem::forget(gone);
    fork(space, None);
    let mut adopted = space.acquire().expect("memory");
    assert_eq!(adopted.number(), 1);
    adopted.give_all(blocks);
    adopted.check_empty();
}

#[test]
fn what_others_freed_before_the_fork_is_collected_after_it() {
    let (space, mut own) = heap();
    let mut gone = thread_heap(space);
    let blocks = gone.take_many(5000, 64);
    own.give_all(blocks);
    core::mem::forget(gone);
    fork(space, Some(1));
    let mut adopted = space.acquire().expect("memory");
    assert_eq!(adopted.number(), 2);
    adopted.check_empty();
}

#[test]
fn children_of_children() {
    let (space, mut own) = heap();
    let mut blocks = Vec::new();
    for generation in 2..10 {
        let mut gone = thread_heap(space);
        assert_eq!(gone.number(), 2, "generation {generation}");
        blocks.extend(gone.take_many(100, 48));
        core::mem::forget(gone);
        fork(space, Some(1));
    }
    own.give_all(blocks);
    let mut adopted = space.acquire().expect("memory");
    adopted.check_empty();
}

/// Frees a block of another heap up to the moment at which its page is pending and in no inbox.
fn free_without_push(space: &Space<World>, freeing: &mut Heap<World>, block: NonNull<u8>) {
    let page = space.page(at(block)).expect("ours");
    let tag = page.tag();
    let place = Place::of(page, tag::class(tag), at(block)).expect("a block");
    let (word, bit) =
        freed::place(tag, at(block) >> GRANULE_SHIFT, page.mark(), &page.remote()[place.window]);
    assert!(remote::free(word, bit));
    let own = freeing.own();
    assert!(remote::announce(&page.mark().tag, tag, || own.announcing.store(at(block), Ordering::Relaxed)));
}

/// The owner's next free in such a page collected and found nothing, again and again: as long as the other
/// thread was stopped there, and in a forked child, where it does not exist, for ever.
#[test]
fn an_owner_does_not_wait_for_a_thread_that_is_about_to_push() {
    let (space, mut own) = heap();
    let mut other = space.acquire().expect("memory");
    let blocks = own.take_many(3, 64);
    free_without_push(space, &mut other, blocks[0]);
    own.give(blocks[1]).expect("live");
    for freed in [blocks[0], blocks[1]] {
        assert_eq!(own.give(freed), Err(Mistake::TwoThreads { bytes: 64 }), "still checked");
    }
    // The other thread goes on.
    let page = space.page(at(blocks[0])).expect("ours");
    remote::push(&own.shared().inbox.first, page.address(), &page.links().inbox);
    own.give(blocks[2]).expect("live");
    own.check_empty();
}

#[test]
fn a_child_collects_what_a_missing_thread_was_about_to_push() {
    let (space, mut own) = heap();
    let mut gone = thread_heap(space);
    let blocks = own.take_many(1000, 64);
    free_without_push(space, &mut gone, blocks[0]);
    core::mem::forget(gone);
    fork(space, Some(1));
    own.give_all(blocks[1..].iter().copied());
    own.check_empty();
}

/// A page that did get there is not put there twice.
#[test]
fn a_child_leaves_pages_where_they_are() {
    let (space, mut own) = heap();
    let mut gone = thread_heap(space);
    let blocks = own.take_many(1000, 64);
    gone.give(blocks[0]).expect("live");
    let last = *blocks.last().expect("some");
    gone.give(last).expect("live");
    // Between push and the note that it is over.
    gone.own().announcing.store(at(blocks[0]), Ordering::Relaxed);
    core::mem::forget(gone);
    fork(space, Some(1));
    own.give_all(blocks[1..999].iter().copied());
    own.check_empty();
}
