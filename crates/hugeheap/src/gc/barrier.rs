//! The write barrier, and what it remembers.
//!
//! ```text
//!   write of a reference into an object
//!     header & (TRACKED | CARDS) == 0 ──▶ nothing: young, or remembered already
//!     TRACKED ──▶ flag away, object into the remembered set
//!     CARDS   ──▶ the slot into a list; when that is full, or a collection begins:
//!                 card of the slot dirty; its page into the list if that is its first
//! ```
//!
//! The cards of a table that is written at random places are a cache miss each. Made dirty at once they were
//! one after the other, 90 ns for each write; those of a list are asked for together.
//!
//! One barrier serves both collections. A minor collection looks into what is remembered for references into
//! the nursery. Marking goes on only directly after a minor collection, so an object that was written since it
//! was marked is in what that collection looks into, and what it refers to now is marked there.
//!
//! Where there is no memory to remember, that is noted: the next minor collection looks through the old
//! generation instead.

use super::cards::Dirty;
use super::header::{BARRIER, CARDS, Header, TRACKED};
use super::heap::Heap;
use super::old::Old;
use crate::object::Source;

/// Written slots whose cards are not dirty yet, at most: 4 KiB, which stay in the first cache beside what the
/// program uses. 64 and 4,096 instead took 1.03 and 1.02 of the time of large arrays that are written at random
/// (`wide-arrays` of `hugeheap bench gc`), less than its spread.
const SLOTS: usize = 512;

/// Slots whose cards are asked for before the first of them is made dirty. 1 and 4 instead took 1.09 and 1.12
/// of the time of `wide-arrays`, 32 as much.
const AHEAD: usize = 12;

/// Objects and pages that may hold references into the nursery, or that were written since they were marked.
#[derive(Debug)]
pub(crate) struct Remembered {
    pub(crate) objects: Vec<usize>,
    /// Slots of objects with cards that were written, and whose cards are not dirty yet.
    slots: Vec<usize>,
    /// Heap pages with dirty cards.
    pub(crate) pages: Vec<usize>,
    /// Writes by the program that made it look into another place: an object, or a KiB of a larger one. What a
    /// collection needs for these is mostly waiting for memory, however little survives.
    places: usize,
    /// Something could not be remembered.
    pub(crate) lost: bool,
    /// Entries of each list at most; less than any number only in tests, as where there is no memory.
    pub(crate) most: usize,
}

impl Default for Remembered {
    fn default() -> Self {
        Self {
            objects: Vec::new(),
            slots: Vec::new(),
            pages: Vec::new(),
            places: 0,
            lost: false,
            most: usize::MAX,
        }
    }
}

impl Remembered {
    pub(crate) fn add_object(&mut self, object: usize) {
        self.lost |= !push(&mut self.objects, object, self.most);
    }

    pub(crate) fn add_page(&mut self, page: usize) {
        self.lost |= !push(&mut self.pages, page, self.most);
    }

    /// How many places a collection has to look into because the program wrote there. Of slots whose cards are
    /// not dirty yet each may be one.
    pub(crate) fn places(&self) -> usize {
        self.places + self.slots.len()
    }

    /// A collection looks into all of them.
    pub(crate) fn forget_places(&mut self) {
        self.places = 0;
    }

    /// Whether a slot was written, and its card is not dirty yet.
    pub(crate) fn has_slot(&self, slot: usize) -> bool {
        self.slots.contains(&slot)
    }

    /// Makes the card of a slot dirty.
    fn make_dirty<S: Source>(&mut self, old: &Old<S>, slot: usize) {
        match old.dirty(slot) {
            Dirty::Before => {}
            Dirty::Word => self.places += 1,
            Dirty::Page(page) => {
                self.places += 1;
                self.add_page(page);
            }
        }
    }

    /// Makes the cards of all written slots dirty. Most collections have none.
    #[inline(always)]
    pub(crate) fn make_all_dirty<S: Source>(&mut self, old: &Old<S>) {
        if !self.slots.is_empty() {
            self.make_listed_dirty(old);
        }
    }

    #[inline(never)]
    fn make_listed_dirty<S: Source>(&mut self, old: &Old<S>) {
        let mut slots = core::mem::take(&mut self.slots);
        for (index, &slot) in slots.iter().enumerate() {
            if let Some(&later) = slots.get(index + AHEAD) {
                old.fetch_card(later);
            }
            self.make_dirty(old, slot);
        }
        slots.clear();
        self.slots = slots;
    }
}

/// Pushes if there is memory, and room below `most`.
pub(crate) fn push<T>(to: &mut Vec<T>, value: T, most: usize) -> bool {
    let fits = to.len() < most && to.try_reserve(1).is_ok();
    if fits {
        to.push(value);
    }
    fits
}

impl<S: Source> Heap<S> {
    /// Writes a reference into a slot of an object.
    ///
    /// # Safety
    /// A live object of this heap begins at `object`, `slot` is one of its slots, and `value` is what a slot may hold.
    #[inline(always)]
    pub unsafe fn write(&mut self, object: usize, slot: *mut usize, value: usize) {
        // SAFETY: by the contract.
        unsafe {
            self.before_write(object, slot);
            slot.write(value);
        }
    }

    /// The barrier alone, for a caller that writes by itself: before or after the write, but before the next
    /// call that may collect.
    ///
    /// # Safety
    /// As in [`write`](Self::write).
    #[inline(always)]
    pub unsafe fn before_write(&mut self, object: usize, slot: *mut usize) {
        // SAFETY: by the contract.
        if unsafe { Header::of(object) }.has(BARRIER) {
            // SAFETY: by the contract.
            unsafe { self.remember(object, slot as usize) };
        }
    }

    /// The barrier's slow path.
    ///
    /// # Safety
    /// As in [`write`](Self::write).
    #[inline(never)]
    unsafe fn remember(&mut self, object: usize, slot: usize) {
        // SAFETY: by the contract.
        let header = unsafe { Header::of(object) };
        if header.has(CARDS) {
            let slots = &mut self.remembered.slots;
            if slots.len() < slots.capacity() {
                return slots.push(slot);
            }
            return self.remember_slot(slot);
        }
        self.remembered.places += 1;
        // SAFETY: by the contract.
        unsafe { header.without(TRACKED).put(object) };
        self.remembered.add_object(object);
    }

    /// The list of written slots has no room.
    #[inline(never)]
    fn remember_slot(&mut self, slot: usize) {
        let Self { remembered, old, .. } = self;
        remembered.make_all_dirty(old);
        if remembered.slots.capacity() == 0 {
            let fits = remembered.most >= SLOTS && remembered.slots.try_reserve_exact(SLOTS).is_ok();
            if !fits {
                // No memory for a list, but cards have theirs.
                return remembered.make_dirty(old, slot);
            }
        }
        remembered.slots.push(slot);
    }
}
