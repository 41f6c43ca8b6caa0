//! The minor collection: what is alive in the nursery moves to the old generation, in time that depends on the survivors only.
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
//! Survivors move at once, without ageing in the nursery. Ageing would keep from the old generation what was allocated just before the
//! collection, of a nursery of megabytes a small part; it would copy every other survivor twice, and need room for them and barriers
//! between ages.
//!
//! The list of copies lies in what is left of the objects in the nursery, so a collection needs no memory but the blocks. When there is no
//! block for an object it stays, like a pinned one, and the next collection tries again: a collection cannot fail half-way.
//!
//! While a marking is under way the copies are born marked, so this also marks what they refer to, and what marked objects refer to that were
//! written.

use super::barrier::{Remembered, push};
use super::ephemeron::Waiting;
use super::events::Event;
use super::finalizer::Finalizers;
use super::header::{CARDS, Header, OBJECT_ALIGN, STAYS, TRACKED};
use super::heap::Heap;
use super::large::CARD_BYTES;
use super::log;
use super::mark::{Marker, Phase};
use super::nursery::Nursery;
use super::old::Old;
use super::roots::Roots;
use super::types::{Types, Visit};
use crate::object::Source;
use core::time::Duration;

/// What a minor collection has to come back to. Kept from one to the next, because making it costs more than a look whether it is empty.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    /// Weak slots that refer to objects not known to live, and whose they are.
    weak: Vec<(usize, *mut usize)>,
    /// Ephemerons whose key is not known to live.
    waiting: Waiting,
}

/// A minor collection that is under way.
struct Minor<'a, S: Source> {
    types: &'a Types,
    nursery: &'a mut Nursery<S>,
    old: &'a mut Old<S>,
    marker: &'a mut Marker,
    /// The last object that was copied and not looked into, where it was in the nursery; 0: none.
    copied: usize,
    /// The object whose slots are visited.
    object: usize,
    /// It is marked.
    marked: bool,
    /// It has weak slots that marking may have to clear.
    has_weak: bool,
    noted: &'a mut Noted,
    /// It refers to an object that stays in the nursery.
    young: bool,
    survivors: u64,
    bytes: usize,
    not_moved: u64,
}

impl<S: Source> Visit for Minor<'_, S> {
    #[inline(always)]
    fn slot(&mut self, slot: *mut usize) {
        // SAFETY: visited slots can be read and written.
        let word = unsafe { slot.read() };
        if self.nursery.contains(word) {
            self.follow(slot, word);
        } else if self.marked {
            self.marker.shade(self.old, word);
        }
    }

    fn weak(&mut self, slot: *mut usize) {
        // SAFETY: as above.
        let word = unsafe { slot.read() };
        if !self.nursery.contains(word) {
            self.has_weak |= self.marked && self.marker.must_wait(self.nursery, self.old, word);
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
        }
        // What is old lives, as far as this collection is concerned.
        // SAFETY: as above.
        let (word, marked, other) = (unsafe { key.read() }, self.marked, unsafe { value.read() });
        if self.marker.phase == Phase::Clearing && self.marker.must_wait(self.nursery, self.old, other) {
            // Marking is over: it is dead, whatever the key is by now.
            // SAFETY: as above.
            return unsafe { value.write(0) };
        }
        if marked && self.marker.must_wait(self.nursery, self.old, word) {
            self.has_weak = true;
            // For marking it waits, unless there is no memory to note it, or the object may move.
            let noted = !self.nursery.contains(self.object) && self.marker.wait(self.object, key, value);
            if noted {
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
    /// Moves what a slot refers to, and notes it if that stays.
    #[inline(always)]
    fn follow(&mut self, slot: *mut usize, word: usize) {
        let object = self.move_out(word);
        if object == word {
            self.young = true;
        } else {
            // SAFETY: visited slots can be written.
            unsafe { slot.write(object) };
        }
    }

    /// Whether an object was looked into in the nursery and moved since, as candidates for finalization are: what counts is the copy. What is
    /// left of it is part of the list of copies.
    fn is_left(&self, object: usize) -> bool {
        // SAFETY: as in `move_out`.
        self.nursery.contains(object) && unsafe { Header::of(object) }.target().is_some()
    }

    /// Whether an object of the nursery is known to live.
    fn is_reached(&self, object: usize) -> bool {
        // SAFETY: as in `move_out`.
        let header = unsafe { Header::of(object) };
        header.target().is_some() || header.has(STAYS)
    }

    /// Where an object of the nursery is after the collection.
    #[inline]
    fn move_out(&mut self, object: usize) -> usize {
        // SAFETY: references into the nursery are addresses of live objects, or of what is left of them during a collection.
        let header = unsafe { Header::of(object) };
        if let Some(target) = header.target() {
            return target;
        }
        if header.has(STAYS) {
            return object;
        }
        // SAFETY: as above.
        let bytes = unsafe { self.types.of(object).size(object) };
        let Some(target) = self.old.allocate(bytes) else {
            // SAFETY: it is an object of the nursery, and did not stay.
            unsafe { self.nursery.keep(object) };
            self.nursery.queue(object);
            self.not_moved += 1;
            return object;
        };
        // SAFETY: the block has room for the object, is new, and so apart from it; an object has room for the header and one word.
        unsafe {
            core::ptr::copy_nonoverlapping(object as *const u64, target as *mut u64, bytes / 8);
            header.with(TRACKED).put(target);
            Header::forwarded(target).put(object);
            next_copied(object).write(self.copied);
        }
        self.copied = object;
        self.survivors += 1;
        self.bytes += bytes;
        target
    }

    /// Visits the slots of an object outside the nursery; says whether it refers to one that stays there.
    fn look_into(&mut self, object: usize, marked: bool) -> bool {
        self.begin_object(object, marked);
        let types = self.types;
        // SAFETY: a live object of this heap, and nobody else runs.
        unsafe { types.of(object).each_slot(object, self) };
        self.end_object();
        self.young
    }

    #[inline(always)]
    fn begin_object(&mut self, object: usize, marked: bool) {
        (self.object, self.marked, self.young) = (object, marked, false);
    }

    /// Lets marking know of weak slots.
    #[inline(always)]
    fn end_object(&mut self) {
        self.marked = false;
        if core::mem::take(&mut self.has_weak) {
            self.note_weak();
        }
    }

    #[inline(never)]
    fn note_weak(&mut self) {
        if !self.marker.add_weak(self.object) {
            let mut strong = Strong { marker: self.marker, old: self.old };
            // SAFETY: as in `look_into`.
            unsafe { self.types.of(self.object).each_slot(self.object, &mut strong) };
        }
    }

    /// Looks into all copies, and into what has to stay, until there is nothing left.
    fn drain(&mut self, remembered: &mut Remembered) {
        let mut from = 0;
        loop {
            while self.copied != 0 {
                let object = self.copied;
                // SAFETY: in the list are objects that were copied.
                let (next, target) = unsafe { (next_copied(object).read(), Header::of(object).target()) };
                self.copied = next;
                let Some(target) = target else { unreachable!("in the list are objects that were copied") };
                let marked = self.old.black;
                if self.look_into(target, marked) {
                    remember(remembered, target);
                }
                self.reached(remembered, object);
            }
            if !self.nursery.has_queued() {
                return;
            }
            from = from.max(self.nursery.start());
            let Some(object) = self.nursery.unqueue(from) else { return };
            from = object;
            self.look_into(object, false);
            self.reached(remembered, object);
        }
    }

    /// Looks into the ephemerons that waited for a key.
    #[inline(always)]
    fn reached(&mut self, remembered: &mut Remembered, key: usize) {
        if !self.noted.waiting.is_empty() {
            self.resolve(remembered, key);
        }
    }

    #[inline(never)]
    fn resolve(&mut self, remembered: &mut Remembered, key: usize) {
        let mut at = self.noted.waiting.take(key);
        while let Some((entry, next)) = self.noted.waiting.next(at) {
            at = next;
            if self.is_left(entry.object) {
                continue;
            }
            self.begin_object(entry.object, self.old.black && self.old.is_marked(entry.object));
            self.ephemeron(entry.key, entry.value);
            self.end_object();
            self.note_young(remembered, entry.object, entry.value);
        }
    }

    /// After a slot was looked into: sees to it that the object is looked into again if the slot refers to an object that stays.
    fn note_young(&mut self, remembered: &mut Remembered, object: usize, slot: *mut usize) {
        if !self.young || self.nursery.contains(object) {
            return;
        }
        // SAFETY: a live object of the old generation.
        let header = unsafe { Header::of(object) };
        if header.has(CARDS) {
            if let Some(page) = self.old.dirty(slot as usize) {
                remembered.add_page(page);
            }
        } else if header.has(TRACKED) {
            remember(remembered, object);
        }
    }

    /// Whether there is something to [`clear`](Self::clear).
    fn has_noted(&self) -> bool {
        !self.noted.weak.is_empty() || !self.noted.waiting.is_empty()
    }

    /// Everything reachable is known: clears what refers to anything else. Returns how many slots.
    #[inline(never)]
    fn clear(&mut self, remembered: &mut Remembered) -> u64 {
        let mut cleared = 0;
        for (object, slot) in core::mem::take(&mut self.noted.weak) {
            // SAFETY: noted slots are in live objects, or in what is left of one in the nursery; both can be read.
            let word = unsafe { slot.read() };
            if self.is_left(object) || !self.nursery.contains(word) {
                continue;
            }
            if self.is_reached(word) {
                self.young = false;
                self.follow(slot, word);
                self.note_young(remembered, object, slot);
            } else {
                // SAFETY: as above.
                unsafe { slot.write(0) };
                cleared += 1;
            }
        }
        let mut waiting = core::mem::take(&mut self.noted.waiting);
        waiting.drain(|entry| {
            if self.is_left(entry.object) {
                return;
            }
            // SAFETY: slots of live objects.
            unsafe {
                entry.key.write(0);
                entry.value.write(0);
            }
            cleared += 1;
        });
        cleared
    }

    /// Hands over what is to be finalized and was not reached. See `finalizer`.
    fn finalize(
        &mut self,
        remembered: &mut Remembered,
        finalizers: &mut Finalizers,
        roots: &mut Roots,
    ) -> u64 {
        let before = roots.ready.len();
        let mut reached = 0;
        for index in 0..finalizers.young.len() {
            let object = finalizers.young[index];
            if self.is_reached(object) {
                finalizers.young[reached] = object;
                reached += 1;
            } else {
                // Room for as many was reserved.
                finalizers.young_candidates.push(object);
                self.look_into(object, false);
                self.drain(remembered);
            }
        }
        finalizers.young.truncate(reached);
        let last = finalizers.young_candidates.last().copied();
        for object in finalizers.young_candidates.drain(..) {
            let alone = Some(object) == last && roots.ready.len() == before;
            if !self.is_reached(object) || alone {
                let target = self.move_out(object);
                roots.ready.push_back(target);
            } else {
                finalizers.young.push(object);
            }
        }
        self.drain(remembered);
        let Finalizers { young, old, .. } = finalizers;
        young.retain(|&object| {
            let target = self.move_out(object);
            if target != object {
                old.push(target);
            }
            target == object
        });
        (roots.ready.len() - before) as u64
    }

    fn cards(&mut self, remembered: &mut Remembered, page: usize) {
        let Some((object, mut cards)) = self.old.take_cards(page) else { return };
        let marked = self.old.black && self.old.is_marked(object);
        while cards != 0 {
            let card = page + cards.trailing_zeros() as usize * CARD_BYTES;
            cards &= cards - 1;
            self.begin_object(object, marked);
            let types = self.types;
            // SAFETY: as in `look_into`.
            unsafe { types.of(object).each_slot_in(object, card, card + CARD_BYTES, self) };
            self.end_object();
            if self.young {
                if let Some(page) = self.old.dirty(card) {
                    remembered.add_page(page);
                }
            }
        }
    }
}

/// Shades all slots of a marked object, weak ones like others.
struct Strong<'a, S: Source> {
    marker: &'a mut Marker,
    old: &'a Old<S>,
}

impl<S: Source> Visit for Strong<'_, S> {
    fn slot(&mut self, slot: *mut usize) {
        // SAFETY: visited slots can be read.
        self.marker.shade(self.old, unsafe { slot.read() });
    }
}

/// The next object of the list of copies.
fn next_copied(object: usize) -> *mut usize {
    (object + super::header::HEADER_BYTES) as *mut usize
}

/// Remembers an object of the old generation for the next collection.
fn remember(remembered: &mut Remembered, object: usize) {
    // SAFETY: it is a live object, and nobody else runs.
    unsafe { Header::of(object).without(TRACKED).put(object) };
    remembered.add_object(object);
}

impl<S: Source> Heap<S> {
    /// Empties the nursery, but for what stays. The windows have been retired. Returns the bytes added to the old generation.
    pub(super) fn minor(&mut self, frame: &mut [usize]) -> usize {
        let begin = self.begin_part(log::MINOR);
        if self.roots.scans.is_empty() {
            if self.nursery.staying() != self.roots.pins.len() {
                self.move_again(&[]);
            }
        } else {
            let words = self.scan();
            self.move_again(&words);
            self.keep_containing(&words);
        }
        let lost = core::mem::take(&mut self.remembered.lost);
        if lost {
            self.look_through_old_objects();
        }
        let objects = core::mem::take(&mut self.remembered.objects);
        let pages = core::mem::take(&mut self.remembered.pages);
        let Self { types, nursery, old, marker, roots, remembered, finalizers, noted, .. } = self;
        let mut staying = nursery.next_staying(nursery.start());
        while let Some(object) = staying {
            nursery.queue(object);
            staying = nursery.next_staying(object + OBJECT_ALIGN);
        }
        let mut minor = Minor {
            types,
            nursery,
            old,
            marker,
            copied: 0,
            object: 0,
            marked: false,
            has_weak: false,
            noted,
            young: false,
            survivors: 0,
            bytes: 0,
            not_moved: 0,
        };
        roots.each(frame, &mut minor);
        for object in objects {
            // SAFETY: what is remembered lives: a dead object is forgotten when marking ends, before it is swept.
            unsafe { Header::of(object).with(TRACKED).put(object) };
            let marked = minor.old.black && minor.old.is_marked(object);
            if minor.look_into(object, marked) {
                remember(remembered, object);
            }
        }
        for page in pages {
            minor.cards(remembered, page);
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
        let (survivors, bytes, not_moved) = (minor.survivors, minor.bytes, minor.not_moved);
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

    /// What stayed because there was no room, or is not pinned any more, is moved again, unless one of these addresses, in order, is in it.
    fn move_again(&mut self, words: &[usize]) {
        let mut next = self.nursery.next_staying(self.nursery.start());
        while let Some(object) = next {
            // SAFETY: its bit says that it is an object.
            let end = object + unsafe { self.types.of(object).size(object) };
            let word = words.get(words.partition_point(|&word| word < object));
            if !self.roots.pins.contains_key(&object) && word.is_none_or(|&word| word >= end) {
                // SAFETY: its bit says that it is one that stays.
                unsafe { self.nursery.let_go(object) };
            }
            next = self.nursery.next_staying(object + OBJECT_ALIGN);
        }
    }

    /// Something was not remembered: whatever old objects refer to in the nursery stays there, and nothing is remembered any more. Nothing can
    /// be moved while the pages are walked, because blocks for it would change their lists.
    fn look_through_old_objects(&mut self) {
        let Self { types, nursery, old, .. } = self;
        let mut keep = Keep { nursery };
        old.each_live(|object| {
            // SAFETY: live objects of this heap; the visit changes none of them.
            let header = unsafe {
                types.of(object).each_slot(object, &mut keep);
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
    fn remember_what_refers_to_staying(&mut self) {
        let Self { types, nursery, old, remembered, .. } = self;
        remembered.objects.clear();
        old.each_live(|object| {
            let mut find = Find { nursery, old, pages: remembered, cards: false, found: false };
            // SAFETY: live objects of this heap; the visit changes none of them, and nobody else runs.
            let header = unsafe { Header::of(object) };
            find.cards = header.has(CARDS);
            // SAFETY: as above.
            unsafe { types.of(object).each_slot(object, &mut find) };
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
            if let Some(page) = self.old.dirty(slot as usize) {
                self.pages.add_page(page);
            }
        }
    }
}
