//! Finalizers: objects that are handed to the program once they are unreachable, so that it can end what
//! belongs to them.
//!
//! ```text
//!   finalize(object) ─▶ young ─▶ old ── unreachable ─▶ candidate ─┬▶ ready: a root until the program takes it
//!                                                                └▶ old: another candidate refers to it; its turn comes later
//! ```
//!
//! *Ordered*: of two objects where one leads to the other, the first is handed out in an earlier collection,
//! with everything it leads to alive. *Resurrectable once*: what is handed out is an object like any other; it
//! is not handed out again, unless it is registered again.
//!
//! What the candidates lead to, but not they themselves, is kept alive, one candidate after the other. Those
//! that are then reached are led to by another candidate, and wait. When all are, they lie on cycles: the last
//! one whose turn came is led to by none but those of its own cycle (what an earlier one leads to does not get
//! a turn), so it begins.
//!
//! No code of the program runs inside a collection.

use super::heap::{Exhausted, Heap};
use super::scope::{Local, Scope};
use crate::object::Source;

/// Objects that are to be finalized.
#[derive(Debug, Default)]
pub(crate) struct Finalizers {
    /// In the nursery.
    pub(super) young: Vec<usize>,
    /// Of these, found unreachable in the minor collection that is under way.
    pub(super) young_candidates: Vec<usize>,
    /// In the old generation.
    pub(super) old: Vec<usize>,
    /// Up to where `old` was looked through in this marking.
    pub(super) at: usize,
    /// Found unreachable in this marking, in the order of their turns.
    pub(super) candidates: Vec<usize>,
    /// Up to where it was decided about the candidates.
    pub(super) decided: usize,
    /// Candidates that are ready when this marking ends: before, what they lead to may have weak slots to
    /// something dead.
    pub(super) chosen: Vec<usize>,
}

impl Finalizers {
    /// Sees to it that no collection needs memory for the lists.
    fn reserve(&mut self, ready: &mut std::collections::VecDeque<usize>) -> Result<(), Exhausted> {
        let all =
            self.young.len() + self.old.len() + self.candidates.len() + self.chosen.len() + ready.len() + 1;
        let lists = [
            &mut self.young,
            &mut self.young_candidates,
            &mut self.old,
            &mut self.candidates,
            &mut self.chosen,
        ];
        let reserved = lists.into_iter().try_for_each(|list| list.try_reserve(all - list.len()));
        let reserved = reserved.and_then(|()| ready.try_reserve(all - ready.len()));
        reserved.map_err(|_| Exhausted { bytes: all * size_of::<usize>() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.old.is_empty()
    }

    /// A marking begins.
    pub(super) fn begin(&mut self) {
        debug_assert!(self.candidates.is_empty(), "all were decided about");
        (self.at, self.decided) = (0, 0);
    }
}

impl<S: Source> Heap<S> {
    /// Sees to it that an object is handed out by [`next_finalizable`](Self::next_finalizable) once it is unreachable.
    ///
    /// # Errors
    /// When there is no memory to note that.
    ///
    /// # Safety
    /// A live object of this heap begins there.
    pub unsafe fn finalize(&mut self, object: usize) -> Result<(), Exhausted> {
        self.finalizers.reserve(&mut self.roots.ready)?;
        let list =
            if self.nursery.contains(object) { &mut self.finalizers.young } else { &mut self.finalizers.old };
        list.push(object);
        Ok(())
    }

    /// Takes an object that was found unreachable, the first in the order of finalization. It stays alive only
    /// if the caller keeps it. Objects become ready in collections.
    pub fn next_finalizable(&mut self) -> Option<usize> {
        self.roots.ready.pop_front()
    }

    /// Objects that [`next_finalizable`](Self::next_finalizable) can take.
    pub fn finalizable(&self) -> usize {
        self.roots.ready.len()
    }

    /// In marking, when everything reachable is marked: the next candidate's turn. Says no when there is none.
    /// Counts what it looks at.
    pub(super) fn next_candidate(&mut self, budget: &mut usize) -> bool {
        let Self { finalizers, nursery, old, marker, .. } = self;
        while let Some(&object) = finalizers.old.get(finalizers.at) {
            if *budget == 0 {
                return true;
            }
            *budget = budget.saturating_sub(64);
            finalizers.at += 1;
            if !marker.must_wait(nursery, old, object) {
                continue;
            }
            // Room for as many was reserved. The others keep their order, in which they were registered.
            finalizers.candidates.push(object);
            finalizers.old[finalizers.at - 1] = 0;
            marker.look_into(&self.types, nursery, old, object);
            return true;
        }
        false
    }

    /// Decides about candidates. Says no when all are.
    pub(super) fn choose(&mut self, budget: &mut usize) -> bool {
        let Self { finalizers, nursery, old, marker, .. } = self;
        if finalizers.decided == 0 {
            // First the places that candidates left: with those behind them that wait the list was longer than
            // what was reserved.
            finalizers.old.retain(|&object| object != 0);
        }
        while let Some(&object) = finalizers.candidates.get(finalizers.decided) {
            if *budget == 0 {
                return true;
            }
            *budget = budget.saturating_sub(64);
            finalizers.decided += 1;
            let last = finalizers.decided == finalizers.candidates.len();
            if marker.must_wait(nursery, old, object) || last && finalizers.chosen.is_empty() {
                finalizers.chosen.push(object);
                // An ephemeron may wait for it.
                marker.shade(old, object);
                marker.reach(nursery, object);
            } else {
                finalizers.old.push(object);
            }
        }
        finalizers.candidates.clear();
        (finalizers.decided, finalizers.at) = (0, finalizers.old.len());
        false
    }
}

impl<'s, S: Source> Scope<'s, S> {
    /// Sees to it that an object is handed out by [`next_finalizable`](Self::next_finalizable) once it is unreachable.
    ///
    /// # Errors
    /// When there is no memory to note that.
    ///
    /// # Panics
    /// When the handle is one of another heap.
    pub fn finalize(&mut self, local: Local<'_>) -> Result<(), Exhausted> {
        let object = self.object(local);
        // SAFETY: a handle holds a live object.
        unsafe { self.heap.finalize(object) }
    }

    /// Takes an object that was found unreachable.
    ///
    /// # Errors
    /// When there is no memory for the handle; the object is not lost.
    pub fn next_finalizable(&mut self) -> Result<Option<Local<'s>>, Exhausted> {
        if self.heap.finalizable() == 0 {
            return Ok(None);
        }
        let local = self.handle(0)?;
        let object = self.heap.next_finalizable().unwrap_or_default();
        self.heap.roots.stack[local.place()] = object;
        Ok(Some(local))
    }
}
