//! When something could not be remembered: the old generation is looked through instead.
//!
//! ```text
//!   lost ─▶ what old objects refer to in the nursery stays ─▶ a minor collection ─▶ what refers to it is remembered, and nothing else
//! ```
//!
//! It costs what the old generation is, and no memory.

use super::barrier::Remembered;
use super::header::{CARDS, Header, TRACKED};
use super::heap::Heap;
use super::minor::remember;
use super::nursery::Nursery;
use super::old::Old;
use super::types::Visit;
use crate::object::Source;

impl<S: Source> Heap<S> {
    /// Something was not remembered: whatever old objects refer to in the nursery stays there, and nothing is
    /// remembered any more. Nothing can be moved while the pages are walked, because blocks for it would change
    /// their lists.
    pub(super) fn look_through_old_objects(&mut self) {
        let Self { types, nursery, old, .. } = self;
        let mut keep = Keep { nursery };
        old.each_live(|object| {
            // SAFETY: live objects of this heap; the visit changes none of them.
            let header = unsafe {
                old.each_slot(types, object, &mut keep);
                Header::of(object)
            };
            if header.has(CARDS) {
                old.clear_cards(object);
            }
        });
        self.remembered.objects.clear();
        self.remembered.pages.clear();
        // Marked objects that were written are not known either.
        self.marker.overflowed |= self.old.black;
    }

    /// After that: remembers what refers to an object that stays, and nothing else.
    pub(super) fn remember_what_refers_to_staying(&mut self) {
        let Self { types, nursery, old, remembered, .. } = self;
        remembered.objects.clear();
        old.each_live(|object| {
            let mut find = Find { nursery, old, pages: remembered, cards: false, found: false };
            // SAFETY: live objects of this heap; the visit changes none of them, and nobody else runs.
            let header = unsafe { Header::of(object) };
            find.cards = header.has(CARDS);
            // SAFETY: as above.
            unsafe { old.each_slot(types, object, &mut find) };
            if find.found && !find.cards {
                remember(remembered, object);
            } else if !find.cards {
                // SAFETY: as above.
                unsafe { header.with(TRACKED).put(object) };
            }
        });
    }
}

/// Makes objects of the nursery stay.
struct Keep<'a, S: Source> {
    nursery: &'a mut Nursery<S>,
}

impl<S: Source> Visit for Keep<'_, S> {
    fn slot(&mut self, slot: *mut usize) {
        // SAFETY: visited slots can be read.
        let object = unsafe { slot.read() };
        if self.nursery.contains(object) && !self.nursery.is_staying(object) {
            // SAFETY: references into the nursery are addresses of live objects there.
            unsafe { self.nursery.keep(object) };
        }
    }
}

/// Finds references into the nursery; of objects with cards, makes these dirty.
struct Find<'a, S: Source> {
    nursery: &'a Nursery<S>,
    old: &'a Old<S>,
    pages: &'a mut Remembered,
    cards: bool,
    found: bool,
}

impl<S: Source> Visit for Find<'_, S> {
    fn slot(&mut self, slot: *mut usize) {
        // SAFETY: visited slots can be read.
        if !self.nursery.contains(unsafe { slot.read() }) {
            return;
        }
        self.found = true;
        if self.cards {
            if let Some(page) = self.old.dirty(slot as usize).page() {
                self.pages.add_page(page);
            }
        }
    }
}
