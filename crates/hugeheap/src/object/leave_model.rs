//! All interleavings of an owner that leaves its heap, one that collects for idle owners, and one that closes an arena.
//!
//! ```text
//!   heap     state, turns, queue       as in `heap::Shared` and `inbox`, of pages that nobody announces again
//!   arena    closed, left behind       as in the registry
//! ```
//!
//! Loom fails where two change the queue at the same time, or where a page is left in the queue of a heap that
//! waits, while no arena is closed. The order of the steps is repeated from `ownerless`, `busy`, `idle` and
//! `vacate`. Where one side writes and then looks, a fence stands between; so it does for the barrier, on both
//! sides. (`RUSTFLAGS="--cfg loom" cargo test --release -p hugeheap --lib model`)

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::thread;

const WAITING: u32 = 0;
const OWNED: u32 = 1;
const VISITED: u32 = 2;
const LEAVING: u32 = 5;

#[derive(Default)]
struct Heap {
    state: AtomicU32,
    busy: AtomicU32,
    held: AtomicU32,
    queue: UnsafeCell<u32>,
    closed: AtomicBool,
    left_behind: AtomicBool,
}

impl Heap {
    /// Owned, with so many pages in its queue.
    fn new(queued: u32) -> Arc<Self> {
        let heap = Self { queue: UnsafeCell::new(queued), ..Self::default() };
        heap.state.store(OWNED, Ordering::Relaxed);
        Arc::new(heap)
    }

    fn change_queue(&self, change: impl FnOnce(u32) -> u32) {
        // SAFETY: loom checks that nobody else does.
        self.queue.with_mut(|queue| unsafe { *queue = change(*queue) });
    }

    fn queued(&self) -> u32 {
        // SAFETY: as above.
        self.queue.with(|queue| unsafe { *queue })
    }

    /// `Busy`, around a look at the queue.
    fn queued_in_turn(&self) -> bool {
        loop {
            self.busy.store(1, Ordering::Release);
            fence(Ordering::SeqCst);
            if self.held.load(Ordering::Acquire) == 0 {
                break;
            }
            self.busy.store(0, Ordering::Release);
            thread::yield_now();
        }
        let queued = self.queued() != 0;
        self.busy.store(0, Ordering::Release);
        queued
    }

    /// `Heap::leave`.
    fn leave(&self) {
        self.state.store(LEAVING, Ordering::Release);
        if self.wait() {
            self.collect_ownerless();
        }
    }

    /// `Heap::wait`.
    fn wait(&self) -> bool {
        let queued = self.queued_in_turn();
        self.state.store(WAITING, Ordering::Release);
        if queued {
            self.left_behind.store(true, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        queued && !self.closed.load(Ordering::Acquire)
    }

    /// `Space::collect_ownerless`.
    fn collect_ownerless(&self) {
        while self.state.compare_exchange(WAITING, VISITED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            fence(Ordering::SeqCst);
            if !self.closed.load(Ordering::Acquire) {
                self.change_queue(|_| 0);
            }
            if !self.wait() {
                return;
            }
        }
    }

    /// `Space::collect_some`: a page in which something lives goes from the inbox to the queue.
    fn collect_for_idle(&self) {
        if self.state.load(Ordering::Acquire) != OWNED {
            return;
        }
        self.held.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.busy.load(Ordering::Acquire) == 0 && self.state.load(Ordering::Acquire) == OWNED {
            self.change_queue(|queued| queued + 1);
        }
        self.held.store(0, Ordering::Release);
    }

    /// What `Space::vacate` does when nobody looks at the arena any more.
    fn open(&self) {
        self.closed.store(false, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.left_behind.swap(false, Ordering::AcqRel) {
            self.collect_ownerless();
        }
    }
}

/// The owner leaves meanwhile.
fn model(queued: u32, closed: bool, other: fn(&Heap)) {
    loom::model(move || {
        let heap = Heap::new(queued);
        heap.closed.store(closed, Ordering::Relaxed);
        let thread = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || other(&heap))
        };
        heap.leave();
        thread.join().unwrap();
        assert_eq!(heap.state.load(Ordering::Relaxed), WAITING);
        assert_eq!(heap.queued(), 0, "nobody comes back to it");
    });
}

#[test]
fn who_leaves_sees_what_was_queued_for_him() {
    model(0, false, Heap::collect_for_idle);
}

#[test]
fn what_waits_for_an_arena_is_collected_when_it_is_opened() {
    model(1, true, Heap::open);
}
