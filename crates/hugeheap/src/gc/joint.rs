//! Joint marking: what stays in the nursery is marked as what is old is, where it may be dead.
//!
//! ```text
//!   roots ─▶ old ─▶ stays ─▶ old        reached
//!            old ◀─▶ stays              a cycle through both: free when marking ends
//! ```
//!
//! What a minor collection finds no room for stays, and what is old keeps it alive, dead or not. As roots of a
//! marking, as pinned objects are, such ones would keep what is old alive in turn: a full heap whose garbage is
//! a cycle through both was never emptied, and allocations in it were refused with everything dead. So a whole
//! collection directly after such a minor one reaches them from the roots, or not at all.
//!
//! It is over before the program goes on, so they do not move meanwhile, and marking knows them from old ones
//! only by where their mark is: a young object is never [`TRACKED`], so that flag says it. They wait on the
//! same stack, for the same weak slots and ephemerons. Words of a scan are looked at again, because what they
//! kept in the nursery looks like the others.

use super::barrier::push;
use super::header::{Header, OBJECT_ALIGN, TRACKED};
use super::heap::Heap;
use super::mark::Marker;
use super::nursery::Nursery;
use super::old::Old;
use super::types::Types;
use crate::object::Source;

/// Whether an object that stays was reached.
fn is_reached(object: usize) -> bool {
    // SAFETY: the callers name objects that stay.
    unsafe { Header::of(object) }.has(TRACKED)
}

/// Whether a word refers to an object that marking has not reached. `joint`: those that stay are marked, too;
/// otherwise what is young lives.
pub(super) fn is_unreached<S: Source>(joint: bool, nursery: &Nursery<S>, old: &Old<S>, word: usize) -> bool {
    if nursery.contains(word) {
        joint && nursery.is_staying(word) && !is_reached(word)
    } else {
        word % OBJECT_ALIGN == 0 && old.is_unmarked(word)
    }
}

impl Marker {
    /// Marks what a slot refers to, if that is an object that stays, and says whether it was not.
    pub(super) fn reach<S: Source>(&mut self, nursery: &Nursery<S>, word: usize) -> bool {
        let reaches = self.joint && nursery.contains(word) && nursery.is_staying(word) && !is_reached(word);
        if reaches {
            // SAFETY: its bit says that it is an object, and nobody else runs.
            unsafe { Header::of(word).with(TRACKED).put(word) };
            self.overflowed |= !push(&mut self.stack, word, self.most);
        }
        reaches
    }

    /// What did not fit on the stack may stay: all that was reached is looked into again.
    pub(super) fn again_staying<S: Source>(&mut self, types: &Types, nursery: &Nursery<S>, old: &Old<S>) {
        let mut next = nursery.next_staying(nursery.start()).filter(|_| self.joint);
        while let Some(object) = next {
            if is_reached(object) {
                self.enter(types, nursery, old, object);
            }
            next = nursery.next_staying(object + OBJECT_ALIGN);
        }
    }
}

impl<S: Source> Heap<S> {
    /// Begins a marking that is over before the program goes on. Directly after a minor collection. Says no
    /// where there is no memory to note what a scan found.
    pub(super) fn begin_joint(&mut self, frame: &mut [usize]) -> bool {
        let words = if self.roots.scans.is_empty() { Some(Vec::new()) } else { self.scan() };
        let Some(words) = words.filter(|_| !self.roots.not_all_found) else { return false };
        // Room for as many was reserved.
        self.finalizers.old.append(&mut self.finalizers.young);
        self.marker.joint = true;
        self.begin_marking(frame);
        if words.is_empty() {
            return true;
        }
        let mut next = self.nursery.next_staying(self.nursery.start());
        while let Some(object) = next {
            // SAFETY: its bit says that it is an object.
            let end = object + unsafe { self.types.of(object).size(object) };
            if words.get(words.partition_point(|&word| word < object)).is_some_and(|&word| word < end) {
                self.marker.reach(&self.nursery, object);
            }
            next = self.nursery.next_staying(object + OBJECT_ALIGN);
        }
        true
    }

    /// Everything reachable is marked, and nothing else refers to what stays and was not reached: its room is free.
    #[cold]
    pub(super) fn end_joint(&mut self) {
        self.marker.joint = false;
        let Self { nursery, finalizers, .. } = self;
        let mut next = nursery.next_staying(nursery.start());
        while let Some(object) = next {
            // SAFETY: its bit says that it is an object that stays, and nobody else runs.
            unsafe {
                if is_reached(object) {
                    Header::of(object).without(TRACKED).put(object);
                } else {
                    nursery.let_go(object);
                }
            }
            next = nursery.next_staying(object + OBJECT_ALIGN);
        }
        let super::finalizer::Finalizers { young, old, .. } = finalizers;
        old.retain(|&object| {
            let stays = nursery.contains(object);
            if stays {
                // As above.
                young.push(object);
            }
            !stays
        });
    }
}
