//! Whose turn it is to change a heap's lists: the owner's, which is *busy* then, or that of somebody who *holds*
//! the heap for a moment.
//!
//! ```text
//!   owner   busy = 1 ─▶ held? no ─▶ lists, queues, spare pages change ─▶ busy = 0
//!                          └─ yes ─▶ busy = 0, waits, begins again
//!   other   held = 1 ─▶ barrier ─▶ busy? no ─▶ lists, queues, spare pages change ─▶ held = 0
//!                                     └─ yes ─▶ held = 0: it does not wait
//!   fork by another thread: the child looks ─▶ busy is 0: the heap waits for an owner       registry
//!                                          └─▶ 1: it is lost
//! ```
//!
//! The owner comes by all the time and the others seldom, so the owner has no atomic instruction and no fence:
//! the other side passes a barrier on all processors (`membarrier`). Either the owner's store of *busy* was
//! before that, and is seen, or its look at *held* comes after it, and sees that.
//!
//! What changes with one store, such as a bit of a window, needs no turn: whoever holds a heap must not touch
//! it. See `idle`. What is kept of page runs changes so, too, and who holds a heap may take of it: so its owner
//! is *keeping* meanwhile. That is like being busy, but for a fork, which finds what is kept whole between any
//! two instructions: the child does not lose the heap.
//!
//! Turns are not nested: the inner one would end the outer one's.

use super::heap::{Core, Heap, Turn};
use super::space::{Source, Space};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};
use core::time::Duration;
use hugeheap_os::Pages;

/// How often a thread gives way before it sleeps: some 20 µs where nobody else wants the processor, as long as
/// a heap is held (`idle`).
const GIVES_WAY: u32 = 64;

/// How long it sleeps then: the kernel adds as much again.
const NAP: Duration = Duration::from_micros(50);

impl<S: Source> Heap<S> {
    /// Marks the heap busy until the guard is dropped. Not where it is already.
    #[inline(always)]
    pub(crate) fn busy(&self) -> Busy {
        Busy(Mine::new(self.core, |turn| &turn.busy))
    }

    /// The same where nobody holds the heap. For a fast path, which saves registers for nobody it waits for.
    #[inline(always)]
    pub(super) fn try_busy(&self) -> Option<Busy> {
        Mine::try_new(self.core, |turn| &turn.busy).map(Busy)
    }

    /// Marks the heap as one whose kept runs are being changed, until the guard is dropped.
    #[inline(always)]
    pub(super) fn keeping(&self) -> Keeping {
        Keeping(Mine::new(self.core, |turn| &turn.keeping))
    }

    /// The same where nobody holds the heap, as with [`try_busy`](Self::try_busy).
    #[inline(always)]
    pub(super) fn try_keeping(&self) -> Option<Keeping> {
        Mine::try_new(self.core, |turn| &turn.keeping).map(Keeping)
    }
}

impl Turn {
    /// Whether somebody changes the heap's lists.
    pub(super) fn is_taken(&self) -> bool {
        self.busy.load(Ordering::SeqCst) != 0 || self.held.load(Ordering::SeqCst) != 0
    }
}

/// How long a thread has waited for what another one does in microseconds.
#[derive(Default)]
pub(super) struct Patience(u32);

impl Patience {
    /// Lets others run.
    ///
    /// Not for ever by giving way only: a thread of a real-time class that does that on the processor of one
    /// that is not never lets it run.
    pub(super) fn wait(&mut self) {
        if self.0 < GIVES_WAY {
            self.0 += 1;
            std::thread::yield_now();
        } else {
            std::thread::sleep(NAP);
        }
    }
}

/// See [`Heap::busy`].
pub(crate) struct Busy(#[expect(dead_code, reason = "for its end")] Mine);

/// See [`Heap::keeping`].
pub(super) struct Keeping(#[expect(dead_code, reason = "for its end")] Mine);

/// A mark that the owner has set.
struct Mine(*const AtomicU32);

impl Mine {
    #[inline(always)]
    fn new<S: Source>(core: NonNull<Core<S>>, mark: impl FnOnce(&Turn) -> &AtomicU32) -> Self {
        // SAFETY: cores are never unmapped.
        let turn: &Turn = unsafe { &(*core.as_ptr()).shared.turn };
        let mark = mark(turn);
        let mine = Self::mark(mark);
        if turn.held.load(Ordering::Acquire) != 0 {
            Self::wait(mark, &turn.held);
        }
        mine
    }

    #[inline(always)]
    fn try_new<S: Source>(core: NonNull<Core<S>>, mark: impl FnOnce(&Turn) -> &AtomicU32) -> Option<Self> {
        // SAFETY: cores are never unmapped.
        let turn: &Turn = unsafe { &(*core.as_ptr()).shared.turn };
        let mine = Self::mark(mark(turn));
        (turn.held.load(Ordering::Acquire) == 0).then_some(mine)
    }

    #[inline(always)]
    fn mark(mark: &AtomicU32) -> Self {
        debug_assert_eq!(mark.load(Ordering::Relaxed), 0, "turns are not nested");
        mark.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Self(mark)
    }

    #[cold]
    #[inline(never)]
    fn wait(mark: &AtomicU32, held: &AtomicU32) {
        let mut patience = Patience::default();
        while held.load(Ordering::Acquire) != 0 {
            mark.store(0, Ordering::Release);
            while held.load(Ordering::Acquire) != 0 {
                patience.wait();
            }
            mark.store(1, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
        }
    }
}

impl Drop for Mine {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: cores are never unmapped.
        unsafe { (*self.0).store(0, Ordering::Release) };
    }
}

/// A heap is held, until this is dropped.
pub(super) struct Held(&'static Turn);

impl<S: Source> Space<S> {
    /// Holds the heap with that turn, unless its owner is busy or the system has no barrier.
    ///
    /// For one thread at a time, and not for the owner.
    pub(super) fn hold(&self, turn: &'static Turn) -> Option<Held> {
        turn.held.store(1, Ordering::SeqCst);
        let held = Held(turn);
        let passed = self.source().os().barrier().is_ok();
        let mine = turn.busy.load(Ordering::SeqCst) | turn.keeping.load(Ordering::SeqCst);
        (passed && mine == 0).then_some(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.store(0, Ordering::Release);
    }
}
