//! Collecting for an owner that exists and does nothing.
//!
//! ```text
//!   worker builds a list ─▶ another thread drops it ─▶ the worker's inbox grows ─▶ the worker waits in its pool, for hours
//!                                                          │ every 64th page
//!                                                          ▼
//!                                                     due: heap number ─▶ who can rule out that the owner uses it now visits it
//! ```
//!
//! What other threads free in a heap its owner collects when it next needs blocks. An owner that waits needs
//! none, and kept all of it: eight threads of a pool that had made a list of 40 MB each, one after the other,
//! held 427 MB for lists that were all gone. Nobody else may touch the heap, because its owner uses it without
//! a lock.
//!
//! An interpreter knows more: where all threads that use its heaps need its lock to do so, who holds that lock
//! can [visit](Space::visit) any of them. What does not need the interpreter's lock is the end of a thread,
//! which gives its heap away, and a fork: both wait for a visit. Where nobody has such a lock, and for
//! interpreters that run nothing for a while, see [`idle`](super::idle).
//!
//! A page is announced when the first of its blocks is freed, and collected too early it is announced again. So
//! a visit comes after [`VISIT_AFTER`] pages, most of which are free as a whole by then.

use super::heap::{Heap, Shared};
use super::registry::{LEAVING, OWNED, THREAD};
use super::space::{Source, Space};
use super::tag;
use crate::lock::{Guard, Lock};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU32, Ordering};

/// Pages announced in a heap until a visit is due: a mebibyte, which is what a heap without visits may keep at most.
const VISIT_AFTER: u32 = 64;

/// Who is visited next.
pub(super) struct Visits {
    /// Number of the heap that is due; 0: none. Of several the last one, and the others after as many pages again.
    due: AtomicU32,
    /// Held during a visit, and while a thread's heap becomes somebody else's.
    visiting: Lock<()>,
}

impl Visits {
    /// Nobody is.
    pub(super) const fn new() -> Self {
        Self { due: AtomicU32::new(0), visiting: Lock::new(()) }
    }

    /// Held by who changes a heap that is another's.
    pub(super) fn lock(&self) -> Guard<'_, ()> {
        self.visiting.lock()
    }

    /// The same for who does without, if that would have to wait.
    pub(super) fn try_lock(&self) -> Option<Guard<'_, ()>> {
        self.visiting.try_lock()
    }
}

impl<S: Source> Space<S> {
    /// Before a fork, and before the arenas are locked for it, which a visit does while it is under way.
    pub(crate) fn hold_visits(&self) {
        self.registry.visits.visiting.lock_first().keep_over_fork();
    }

    /// After a fork, in parent and child.
    ///
    /// # Safety
    /// [`hold_visits`](Self::hold_visits) was called by this thread, or by the one that forked this process.
    pub(crate) unsafe fn release_visits(&self) {
        // SAFETY: by the contract above.
        unsafe { self.registry.visits.visiting.unlock_leaked() };
    }

    /// A page was put into the inbox of a heap.
    pub(super) fn count_announced(&self, number: u32, shared: &Shared) {
        let announced = shared.inbox.announced.fetch_add(1, Ordering::Relaxed) + 1;
        if announced % VISIT_AFTER == 0 && matches!(shared.state.load(Ordering::Relaxed), OWNED | THREAD) {
            self.registry.visits.due.store(number, Ordering::Relaxed);
            // Whose owner comes back to it soon is left alone: see `idle`.
            self.source().with(|arenas| arenas.became_partial(VISIT_AFTER.into()));
        }
    }

    /// Nothing lives any more in the first window of a page that is pending. Most that is freed in pending
    /// pages is counted by nobody: so it is for these windows, one in sixteen, that the arenas learn of it when
    /// the owner does not come.
    #[cold]
    #[inline(never)]
    pub(super) fn count_vacant(&self, tag: u32) {
        let Some(shared) = self.registry.shared::<S>(tag::heap(tag)) else { return };
        if (shared.inbox.vacant.fetch_add(1, Ordering::Relaxed) + 1) % VISIT_AFTER == 0 {
            self.source().with(|arenas| arenas.became_partial(VISIT_AFTER.into()));
        }
    }

    /// Whether a heap is due for a visit.
    #[inline(always)]
    pub fn has_due(&self) -> bool {
        self.registry.visits.due.load(Ordering::Relaxed) != 0
    }

    /// The number of the heap that is due, once.
    pub fn take_due(&self) -> Option<u32> {
        match self.registry.visits.due.swap(0, Ordering::Relaxed) {
            0 => None,
            number => Some(number),
        }
    }

    /// Collects for a thread that has heap `number` and does not come: what others freed there goes to the
    /// arenas where whole pages are free. Nothing happens when the heap is not a thread's.
    ///
    /// # Safety
    /// If the heap is a thread's, that thread does not use it before this returns, but for giving it away when it ends.
    pub unsafe fn visit(&'static self, number: u32) {
        let _visiting = self.registry.visits.visiting.lock();
        let Some(shared) = self.registry.shared::<S>(number) else { return };
        if shared.state.load(Ordering::SeqCst) != THREAD {
            return;
        }
        let Some(core) = self.registry.core::<S>(number) else { return };
        ManuallyDrop::new(Heap { core }).collect_for_visit();
    }
}

impl<S: Source> Heap<S> {
    /// The same for a heap that the caller has.
    pub fn collect_for_visit(&mut self) {
        self.collect_all();
        // A quarantine would end: what a hardened heap keeps for it is bounded.
        if self.own().preset.is_none() {
            self.trim();
        }
    }

    /// The thread that has the heap ends: from here on nobody visits it.
    pub(super) fn end_visits(&mut self) {
        let space = self.own().space;
        let _visiting = space.registry.visits.visiting.lock();
        self.shared().state.store(LEAVING, Ordering::SeqCst);
    }
}
