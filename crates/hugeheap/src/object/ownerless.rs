//! Heaps that wait for an owner: who frees there does what the owner would.
//!
//! ```text
//!   free of a block ─▶ page not pending, heap waits: visit ─▶ freed as by the owner ─▶ emptied pages to the arenas ─▶ heap waits again
//!        │                                             └─▶ pending by now ─┐                                              │
//!        └─▶ else: bit among those of other threads, inbox ◀───────────────┘               something came meanwhile: collect
//!                                     └─▶ heap waits: visit ─▶ collected ─▶ emptied pages to the arenas ─▶ heap waits again ─▶ …
//! ```
//!
//! Nobody comes to collect what is freed there, so whoever frees does, and memory does not stay. Both sides
//! first write (the inbox; the state) and then look (at the state; at the inbox), with sequential consistency,
//! so one of them sees the other.
//!
//! A block is freed in a visit by the owner's fast path. When each was announced, put into the inbox and
//! collected from there, alone, since its page was not pending any more, to take a block and to drop it when
//! its thread had ended took 754 instructions, ten of them atomic; now 276 (`tests/instructions`, `left`).

use super::heap::Heap;
use super::registry::{VISITED, WAITING};
use super::space::{Source, Space};
use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering;

impl<S: Source> Space<S> {
    /// Takes a waiting heap for a moment. It still counts as one that may be waiting.
    pub(super) fn visit_waiting(&self, number: u32) -> Option<ManuallyDrop<Heap<S>>> {
        let visit = Heap::borrowed(self.registry.core::<S>(number)?);
        let state = &visit.shared().state;
        // A look first: most heaps in which others free have an owner.
        if state.load(Ordering::Relaxed) != WAITING {
            return None;
        }
        state.compare_exchange(WAITING, VISITED, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        Some(visit)
    }

    /// Frees a block of a waiting heap. Says no, with nothing changed, where somebody has the heap, and for
    /// what its owner's fast path does not know: mistakes, pages in which others freed. In a hardened heap a
    /// block goes into quarantine when it is collected.
    ///
    /// # Safety
    /// As for [`Heap::free`].
    #[inline(never)]
    pub(super) unsafe fn free_in_waiting(&self, address: usize, number: u32) -> bool {
        let Some(mut visit) = self.visit_waiting(number) else { return false };
        // SAFETY: by the contract above.
        let freed = unsafe { visit.free_near(address) };
        if visit.own().keeps_pages() {
            visit.trim();
        }
        if visit.wait_again() {
            self.collect_ownerless(number);
        }
        freed
    }

    /// Collects for heap `number` if nobody owns it: called after its inbox got a page.
    pub(super) fn collect_ownerless(&self, number: u32) {
        let Some(shared) = self.registry.shared::<S>(number) else { return };
        if shared.state.load(Ordering::SeqCst) != WAITING {
            return;
        }
        while let Some(mut visit) = self.visit_waiting(number) {
            // A visit may find nothing: after an arena was opened all heaps have one.
            let some = shared.inbox.first.load(Ordering::Relaxed) != 0 || visit.own().queued() != 0;
            visit.collect_all();
            let filled = some && shared.hardened && shared.quarantined.fetch_add(1, Ordering::Relaxed) == 0;
            // Nothing else is kept in a heap that waits, but for a quarantine; most visits empty no page.
            if visit.own().keeps_pages() {
                visit.trim_but_quarantine();
            }
            let more = visit.wait_again();
            if filled {
                self.tell_quarantined();
            }
            if !more {
                return;
            }
        }
    }

    /// After an arena was opened: collects for heaps that wait and were left with pages of it.
    pub(super) fn collect_left_behind(&self) {
        if !self.registry.left_behind.load(Ordering::SeqCst)
            || !self.registry.left_behind.swap(false, Ordering::SeqCst)
        {
            return;
        }
        self.registry.numbers().for_each(|number| self.collect_ownerless(number));
    }
}

impl<S: Source> Heap<S> {
    /// Makes the heap wait. Says whether there is something to collect.
    pub(super) fn wait(&mut self) -> bool {
        let hardened = self.shared().hardened;
        self.own().space.registry.waiting(hardened).count.fetch_add(1, Ordering::AcqRel);
        self.wait_again()
    }

    /// The same after a visit: it counts among those that may be waiting.
    ///
    /// The inbox may have got a page since it was collected. And there may be pages in the queues: put there by
    /// who collected for an idle owner, or because they lie in an arena that was closed. Nobody announces those
    /// again. They stayed until somebody adopted the heap, with all that was freed in them.
    pub(super) fn wait_again(&mut self) -> bool {
        let (core, registry) = (self.core, &self.own().space.registry);
        let queued = {
            // Who holds the heap has done so when this begins.
            let _busy = self.busy();
            self.own().queued() != 0
        };
        // SAFETY: cores are never unmapped; from here on the heap is another's, but for this part.
        let shared = unsafe { &(*core.as_ptr()).shared };
        shared.state.store(WAITING, Ordering::SeqCst);
        if queued {
            // First written and then looked, as by who opens the arena: one of them sees the other.
            registry.left_behind.store(true, Ordering::SeqCst);
        }
        shared.inbox.first.load(Ordering::SeqCst) != 0
            || shared.inbox.runs.load(Ordering::SeqCst) != 0
            || queued && registry.closed.load(Ordering::SeqCst) == 0
    }

    /// Gives back what a heap that nobody owns keeps, after it was collected: of a hardened one without what
    /// waits in quarantine, or a block that is freed after its thread's end would be had at once. When that
    /// ends: see `waiting`.
    fn trim_but_quarantine(&mut self) {
        if self.own().preset.is_none() {
            self.trim();
            return;
        }
        let _busy = self.busy();
        let own = self.own();
        own.give_all_spares();
    }
}
