//! The minor collection: what is alive in the nursery moves to the old generation, in time that depends on the
//! survivors only.
//!
//! ```text
//!   roots, remembered objects, dirty cards, objects that stay
//!       │ each slot that refers into the nursery
//!       ▼
//!   copy to a block ─▶ header of the old place: the new address; its next word: the list of copies
//!       │ until the list is empty: the slots of each copy
//!       ▼
//!   the nursery is free but for what stays
//! ```
//!
//! Survivors move at once, without ageing in the nursery. Ageing would keep from the old generation what was
//! allocated just before the collection, of a nursery of megabytes a small part; it would copy every other
//! survivor twice, and need room for them and barriers between ages.
//!
//! The list of copies lies in what is left of the objects in the nursery, so a collection needs no memory but
//! the blocks. Copies without slots are not in it. When there is no block for an object it stays, like a pinned
//! one, and the next collection tries again: a collection cannot fail half-way. Whether it is alive is found
//! out in between (`joint`).
//!
//! While a marking is under way the copies are born marked, so this also marks what they refer to, and what
//! small marked objects refer to that were written. Of larger ones and of cards that is left to the steps of
//! marking, which are bounded.

use super::barrier::{Remembered, push};
use super::events::Event;
use super::header::{Header, OBJECT_ALIGN, STAYS, TRACKED};
use super::heap::Heap;
use super::log;
use super::mark::{Marker, Phase};
use super::noted::Noted;
use super::nursery::Nursery;
use super::old::Old;
use super::prefetch::prefetch;
use super::types::{Types, Visit};
use crate::object::Source;
use core::time::Duration;

/// Bytes of a marked object that was written above which what it refers to is marked later: about as much as
/// noting it is looking into it.
const LATER: usize = 128;

/// Remembered objects that are asked for before the first of them is looked into.
const AHEAD: usize = 8;

/// A minor collection that is under way.
pub(super) struct Minor<'a, S: Source> {
    pub(super) types: &'a Types,
    pub(super) nursery: &'a mut Nursery<S>,
    pub(super) old: &'a mut Old<S>,
    pub(super) marker: &'a mut Marker,
    /// The last object that was copied and not looked into, where it was in the nursery; 0: none.
    pub(super) copied: usize,
    /// Where the nursery begins, and its granules: what every slot is compared with.
    pub(super) start: usize,
    pub(super) granules: usize,
    /// The object whose slots are visited.
    pub(super) object: usize,
    /// It is marked.
    pub(super) marked: bool,
    /// An evacuation in steps has to know who refers to what leaves.
    pub(super) records: bool,
    /// It has weak slots that marking may have to clear.
    pub(super) has_weak: bool,
    pub(super) noted: &'a mut Noted,
    /// It refers to an object that stays in the nursery.
    pub(super) young: bool,
    pub(super) not_moved: u64,
}

impl<S: Source> Visit for Minor<'_, S> {
    #[inline(always)]
    fn slot(&mut self, slot: *mut usize) {
        // SAFETY: visited slots can be read and written.
        let word = unsafe { slot.read() };
        if self.is_young(word) {
            self.follow(slot, word);
        } else if self.marked | self.records {
            self.look_at(slot, word);
        }
    }

    fn weak(&mut self, slot: *mut usize) {
        // SAFETY: as above.
        let word = unsafe { slot.read() };
        if !self.nursery.contains(word) {
            if self.marked && self.marker.must_wait(self.nursery, self.old, word) {
                if self.marker.phase == Phase::Clearing {
                    // It is dead. Noted, a table that was written all the time was looked through without end.
                    // SAFETY: visited slots can be written.
                    unsafe { slot.write(0) };
                    self.marker.cleared += 1;
                    return;
                }
                self.has_weak = true;
            }
            self.marker.hold(self.old, self.nursery, self.object, slot, word);
        } else if self.is_reached(word) || !push(&mut self.noted.weak, (self.object, slot), self.marker.most)
        {
            // Without memory to note it, it is like any other slot.
            self.follow(slot, word);
        }
    }

    fn ephemeron(&mut self, key: *mut usize, value: *mut usize) {
        // SAFETY: as above.
        let word = unsafe { key.read() };
        let young = self.nursery.contains(word);
        if young
            && !self.is_reached(word)
            && self.noted.waiting.add(self.object, key, value, self.marker.most)
        {
            return;
        }
        if young {
            self.follow(key, word);
        } else {
            self.marker.hold(self.old, self.nursery, self.object, key, word);
        }
        // What is old lives, as far as this collection is concerned.
        // SAFETY: as above.
        let (word, marked, other) = (unsafe { key.read() }, self.marked, unsafe { value.read() });
        if marked && self.marker.phase == Phase::Clearing {
            // Marking is over: what it did not reach is dead, and so is the value, whatever the key is by now.
            // Nobody may wait for a key: the entry was there in the next marking, when the object had ended.
            // Not so of an object that is not marked: what is to be finalized may lead to the two, and is asked
            // later.
            let dead = self.marker.must_wait(self.nursery, self.old, word);
            if dead || self.marker.must_wait(self.nursery, self.old, other) {
                self.marker.cleared += u64::from(dead);
                // SAFETY: as above.
                unsafe {
                    if dead {
                        key.write(0);
                    }
                    value.write(0);
                }
                return;
            }
        } else if marked && self.marker.must_wait(self.nursery, self.old, word) {
            self.has_weak = true;
            // For marking it waits, unless there is no memory to note it, or the object may move.
            if !self.nursery.contains(self.object) && self.marker.wait(self.object, key, value) {
                self.marked = false;
            } else {
                self.slot(key);
            }
        }
        self.slot(value);
        self.marked = marked;
    }
}

impl<S: Source> Minor<'_, S> {
    /// What [`Nursery::contains`] says.
    #[inline(always)]
    pub(super) fn is_young(&self, word: usize) -> bool {
        word.wrapping_sub(self.start).rotate_right(OBJECT_ALIGN.trailing_zeros()) < self.granules
    }

    /// A slot refers to an old object, of which marking or an evacuation wants to know.
    #[inline(never)]
    pub(super) fn look_at(&mut self, slot: *mut usize, word: usize) {
        if self.marked {
            self.marker.shade(self.old, word);
        }
        self.marker.hold(self.old, self.nursery, self.object, slot, word);
    }

    /// Moves what a slot refers to, and notes it if that stays.
    #[inline(always)]
    pub(super) fn follow(&mut self, slot: *mut usize, word: usize) {
        let object = self.move_out(word);
        if object == word {
            self.young = true;
        } else {
            // SAFETY: visited slots can be written.
            unsafe { slot.write(object) };
        }
    }

    /// Whether an object was looked into in the nursery and moved since, as candidates for finalization are:
    /// what counts is the copy. What is left of it is part of the list of copies.
    pub(super) fn is_left(&self, object: usize) -> bool {
        // SAFETY: as in `move_out`.
        self.nursery.contains(object) && unsafe { Header::of(object) }.target().is_some()
    }

    /// Whether an object of the nursery is known to live.
    pub(super) fn is_reached(&self, object: usize) -> bool {
        // SAFETY: as in `move_out`.
        let header = unsafe { Header::of(object) };
        header.target().is_some() || header.has(STAYS)
    }

    /// Leaves it to marking to look into a marked object that was written, if it is large. Says no when that is
    /// up to this collection.
    fn leaves(&mut self, object: usize) -> bool {
        // SAFETY: a live object of this heap.
        let large = unsafe { self.types.of(object).size(object) } > LATER;
        let leaves = large && self.marker.phase == Phase::Marking;
        if leaves {
            self.marker.look_again(object);
        }
        leaves
    }
}

/// Remembers an object of the old generation for the next collection.
pub(super) fn remember(remembered: &mut Remembered, object: usize) {
    // SAFETY: it is a live object, and nobody else runs.
    unsafe { Header::of(object).without(TRACKED).put(object) };
    remembered.add_object(object);
}

impl<S: Source> Heap<S> {
    /// Empties the nursery, but for what stays. The windows have been retired. Returns the bytes added to the
    /// old generation.
    pub(super) fn minor(&mut self, frame: &mut [usize]) -> usize {
        let begin = self.begin_part(log::MINOR);
        if self.roots.scans.is_empty() {
            if self.nursery.staying() != self.roots.pins.len() {
                self.move_again(&[]);
            }
        } else if let Some(words) = self.scan() {
            self.move_again(&words);
            self.keep_containing(&words);
        } else {
            self.keep_all();
        }
        self.remembered.make_all_dirty(&self.old);
        let lost = core::mem::take(&mut self.remembered.lost);
        if lost {
            self.look_through_old_objects();
            self.marker.departure.abandon();
        }
        let objects = core::mem::take(&mut self.remembered.objects);
        self.remembered.forget_places();
        let Self { types, nursery, old, marker, roots, remembered, finalizers, noted, .. } = self;
        if nursery.staying() > 0 {
            nursery.queue_staying();
        }
        let records = marker.departure.is_under_way();
        let before = old.handed_out;
        let (start, granules) = (nursery.start(), nursery.bytes() / OBJECT_ALIGN);
        let mut minor = Minor {
            types,
            nursery,
            old,
            marker,
            copied: 0,
            start,
            granules,
            object: 0,
            marked: false,
            records,
            has_weak: false,
            noted,
            young: false,
            not_moved: 0,
        };
        roots.each_young(frame, &mut minor, |minor, word| minor.is_young(word));
        for (index, &object) in objects.iter().enumerate() {
            if let Some(&later) = objects.get(index + AHEAD) {
                prefetch(later);
            }
            // SAFETY: what is remembered lives: a dead object is forgotten when marking ends, before it is swept.
            unsafe { Header::of(object).with(TRACKED).put(object) };
            let marked = minor.old.black && minor.old.is_marked(object) && !minor.leaves(object);
            if minor.look_into_old(object, marked) {
                remember(remembered, object);
            }
        }
        if !remembered.pages.is_empty() {
            let pages = core::mem::take(&mut remembered.pages);
            minor.look_into_cards(remembered, &pages);
        }
        minor.drain(remembered);
        let (mut cleared, mut finalized) = (0, 0);
        if minor.has_noted() {
            cleared = minor.clear(remembered);
        }
        if !finalizers.young.is_empty() {
            finalized = minor.finalize(remembered, finalizers, roots);
            cleared += minor.clear(remembered);
        }
        minor.old.settle();
        let after = minor.old.handed_out;
        let (survivors, bytes) = (after.blocks - before.blocks, after.bytes - before.bytes);
        let not_moved = minor.not_moved;
        self.statistics.minor += 1;
        self.statistics.survivors += survivors;
        self.statistics.survived_bytes += bytes as u64;
        self.statistics.not_moved += not_moved;
        if cleared | finalized != 0 {
            self.statistics.cleared += cleared;
            self.statistics.finalized += finalized;
        }
        self.statistics.nursery_bytes += self.nursery.used() as u64;
        self.not_moved = not_moved > 0;
        if lost {
            self.doubtful = true;
            self.remember_what_refers_to_staying();
        }
        let used = self.nursery.used();
        self.nursery.empty();
        if self.watched {
            let event = Event::Minor {
                took: begin.map_or(Duration::ZERO, |begin| self.took(begin)),
                nursery: used,
                survivors,
                survived: bytes,
                staying: self.nursery.staying(),
                not_moved,
                old: self.old.used(),
                held: self.old.held(),
            };
            self.after_minor(begin.map(|_| event));
        }
        bytes
    }

    #[cold]
    fn after_minor(&mut self, event: Option<Event>) {
        if let Some(word) = self.old.poison {
            self.nursery.poison(&self.types, word);
        }
        if self.checks.rotate {
            self.statistics.rotated += u64::from(self.nursery.rotate());
        }
        if let Some(event) = event {
            self.tell(log::MINOR, event);
        }
    }

    /// What stayed because there was no room, or is not pinned any more, is moved again, unless one of these
    /// addresses, in order, is in it.
    fn move_again(&mut self, words: &[usize]) {
        let mut next = self.nursery.next_staying(self.nursery.start());
        while let Some(object) = next {
            // SAFETY: its bit says that it is an object.
            let end = object + unsafe { self.types.of(object).size(object) };
            let word = words.get(words.partition_point(|&word| word < object));
            if !self.roots.pins.contains(object) && word.is_none_or(|&word| word >= end) {
                // SAFETY: its bit says that it is one that stays.
                unsafe { self.nursery.let_go(object) };
            }
            next = self.nursery.next_staying(object + OBJECT_ALIGN);
        }
    }
}
