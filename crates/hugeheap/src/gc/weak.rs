//! Slots that keep nothing alive: weak references, and ephemerons.
//!
//! | slot | its object lives … | when not |
//! |---|---|---|
//! | weak | if something else refers to it | it becomes 0 |
//! | ephemeron: key and value | the key as of a weak slot; the value if the key lives | both become 0 |
//!
//! They are named by the type, or by its trace function, so nobody has to tell the collector of an object that
//! has some: it meets those that live. What is found dead is cleared before finalizers are asked for, so a
//! finalizer cannot bring back what somebody was told is gone.
//!
//! A minor collection clears what refers to a dead young object before it ends. Marking notes the objects that
//! have such slots; when it is over they are looked through in steps (`Phase::Clearing`), and until that is
//! over a [read](Heap::weak) answers 0 for what was not marked.

use super::header::OBJECT_ALIGN;
use super::heap::Heap;
use super::joint::is_unreached;
use super::mark::Phase;
use super::nursery::Nursery;
use super::old::Old;
use super::types::{Descriptor, Visit};
use crate::object::Source;

/// The offsets of a type's weak slots and ephemerons, from the header and from the beginning of an item.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeakPart {
    pub(crate) slots: Vec<usize>,
    pub(crate) item_slots: Vec<usize>,
    pub(crate) pairs: Vec<(usize, usize)>,
    pub(crate) item_pairs: Vec<(usize, usize)>,
}

impl WeakPart {
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.pairs.is_empty() && !self.has_items()
    }

    pub(crate) fn has_items(&self) -> bool {
        !self.item_slots.is_empty() || !self.item_pairs.is_empty()
    }

    /// All offsets in the fixed part.
    pub(crate) fn fixed(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.slots.iter().copied().chain(self.pairs.iter().flat_map(|&(key, value)| [key, value]))
    }

    /// All offsets in an item.
    pub(crate) fn items(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.item_slots.iter().copied().chain(self.item_pairs.iter().flat_map(|&(key, value)| [key, value]))
    }

    /// Names those that lie in `from..to`; an ephemeron when one of its slots does.
    ///
    /// # Safety
    /// As in [`Descriptor::each_slot`], of the type that this is a part of.
    pub(crate) unsafe fn each_in<V: Visit>(
        &self,
        descriptor: &Descriptor,
        object: usize,
        (from, to): (usize, usize),
        visit: &mut V,
    ) {
        let inside = |slot: usize| (from..to).contains(&slot);
        let mut each = |at: usize, slots: &[usize], pairs: &[(usize, usize)]| {
            for slot in slots.iter().map(|offset| at + offset).filter(|&slot| inside(slot)) {
                visit.weak(slot as *mut usize);
            }
            for (key, value) in pairs.iter().map(|&(key, value)| (at + key, at + value)) {
                if inside(key) || inside(value) {
                    visit.ephemeron(key as *mut usize, value as *mut usize);
                }
            }
        };
        each(object, &self.slots, &self.pairs);
        if self.has_items() {
            // SAFETY: by the contract.
            let range = unsafe { descriptor.items_in(object, from, to) };
            for item in range {
                each(
                    object + descriptor.bytes + item * descriptor.item_bytes,
                    &self.item_slots,
                    &self.item_pairs,
                );
            }
        }
    }
}

/// Clears the weak slots and ephemerons of marked objects.
pub(super) struct Clear<'a, S: Source> {
    pub(super) old: &'a Old<S>,
    pub(super) nursery: &'a Nursery<S>,
    /// What stays in the nursery is marked, too.
    pub(super) joint: bool,
    pub(super) cleared: u64,
}

impl<S: Source> Clear<'_, S> {
    fn is_dead(&self, slot: *mut usize) -> bool {
        // SAFETY: visited slots can be read.
        let word = unsafe { slot.read() };
        is_unreached(self.joint, self.nursery, self.old, word)
    }

    fn clear(&mut self, slot: *mut usize) {
        // SAFETY: visited slots can be written.
        unsafe { slot.write(0) };
        self.cleared += 1;
    }
}

impl<S: Source> Visit for Clear<'_, S> {
    fn slot(&mut self, _slot: *mut usize) {}

    fn weak(&mut self, slot: *mut usize) {
        if self.is_dead(slot) {
            self.clear(slot);
        }
    }

    fn ephemeron(&mut self, key: *mut usize, value: *mut usize) {
        let dead = self.is_dead(key);
        if dead {
            self.clear(key);
        }
        // The key may be another one since: what waited for the one before is dead all the same.
        if dead || self.is_dead(value) {
            // SAFETY: visited slots can be written.
            unsafe { value.write(0) };
        }
    }
}

impl<S: Source> Heap<S> {
    /// Reads a weak slot, or one of an ephemeron: 0 when what it refers to is found dead. A word that is no
    /// reference is answered as it is.
    ///
    /// The slot itself may hold the address of a dead object for a while, so it is not read in another way.
    ///
    /// # Safety
    /// `slot` is a slot of a live object of this heap.
    #[inline]
    pub unsafe fn weak(&self, slot: *const usize) -> usize {
        // SAFETY: by the contract.
        let word = unsafe { slot.read() };
        if self.marker.phase == Phase::Clearing && word % OBJECT_ALIGN == 0 && self.old.is_unmarked(word) {
            0
        } else {
            word
        }
    }
}
