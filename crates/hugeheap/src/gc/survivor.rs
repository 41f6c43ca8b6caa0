//! Moving a survivor: what a minor collection does for each, and most of what it costs.
//!
//! ```text
//!   nursery    ├ header ┼ fields ─┤  ──copy──▶  old generation    ├ header, TRACKED ┼ fields ─┤
//!   afterwards ├ new address, FORWARDED ┼ next copied object of the nursery ┤
//! ```
//!
//! Copies whose slots are still to be looked into wait, most of them in a list; the last one is next
//! ([`latest`](super::latest)): a subtree is copied before its neighbour, so that what is reached together lies
//! together. That is the subtree of the first slot, because slots are looked into from the last to the first
//! ([`map`](super::map)). When none waits, everything that survivors lead to was moved.

use super::barrier::Remembered;
use super::header::{FORWARDED, Header, OBJECT_ALIGN, STAYS, TRACKED};
use super::latest::{Copied, Latest, NOT_MAPPED, next_copied, target_of};
use super::map::each_mapped_word;
use super::minor::{Minor, remember};
use super::types::Descriptor;
use crate::object::Source;

impl<S: Source> Minor<'_, S> {
    /// Where an object of the nursery is after the collection.
    ///
    /// For roots, for what is remembered, and for objects of all types; what mapped copies lead to is moved in
    /// [`drain_mapped`](Self::drain_mapped).
    #[inline(always)]
    pub(super) fn move_out(&mut self, object: usize) -> usize {
        // SAFETY: references into the nursery are addresses of live objects, or of what is left of them during
        // a collection.
        let header = unsafe { Header::of(object) };
        if let Some(target) = header.target() {
            return target;
        }
        if header.has(STAYS) {
            return object;
        }
        let types = self.types;
        // SAFETY: as above.
        let ty = unsafe { types.of(object) };
        // SAFETY: as above, and it did not move yet.
        let Some(target) = (unsafe { self.move_to_block(object, header, ty) }) else {
            return self.keep(object);
        };
        // An ephemeron whose key it is and that is met later finds it moved.
        if !ty.is_leaf() || !self.noted.waiting.is_empty() {
            // SAFETY: as above.
            unsafe { next_copied(object).write(self.copied) };
            self.copied = object;
        }
        target
    }

    /// There is no room for an object: it stays.
    #[cold]
    #[inline(never)]
    fn keep(&mut self, object: usize) -> usize {
        // SAFETY: it is an object of the nursery, and did not stay.
        unsafe { self.nursery.keep(object) };
        self.nursery.queue(object);
        self.not_moved += 1;
        object
    }

    /// Visits the slots of an object outside the nursery; says whether it refers to one that stays there.
    #[inline(never)]
    pub(super) fn look_into(&mut self, object: usize, marked: bool) -> bool {
        self.begin_object(object, marked);
        let types = self.types;
        // SAFETY: a live object of this heap, and nobody else runs.
        unsafe { types.of(object).each_slot(object, self) };
        self.end_object();
        self.young
    }

    #[inline(always)]
    pub(super) fn begin_object(&mut self, object: usize, marked: bool) {
        (self.object, self.marked, self.young) = (object, marked, false);
    }

    /// Lets marking know of weak slots.
    #[inline(always)]
    pub(super) fn end_object(&mut self) {
        self.marked = false;
        if core::mem::take(&mut self.has_weak) {
            self.note_weak();
        }
    }

    /// Looks into all copies, and into what has to stay, until there is nothing left.
    pub(super) fn drain(&mut self, remembered: &mut Remembered) {
        let mut from = 0;
        loop {
            while self.copied != 0 {
                if !self.noted.waiting.is_empty() {
                    self.drain_one(remembered);
                } else if self.old.black | self.records {
                    self.drain_mapped::<true>(remembered);
                } else {
                    self.drain_mapped::<false>(remembered);
                }
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

    /// Looks into the last copy, of whatever type, where ephemerons wait for keys.
    fn drain_one(&mut self, remembered: &mut Remembered) {
        let object = self.copied;
        // SAFETY: in the list are objects that were copied.
        let (next, target) = unsafe { (next_copied(object).read(), target_of(object)) };
        self.copied = next;
        self.look_into_any(remembered, object, target);
    }

    /// Looks into copies until there is none left, or an ephemeron waits for a key. `LOOKS`: marking or an
    /// evacuation wants to know of old objects that copies refer to.
    ///
    /// This loop is what a survivor costs. What it needs is in locals, and what is rare in functions of its
    /// own, so that the compiler keeps everything in registers: through `self` it was read again after each
    /// write into an object. Which copy is next, and where its slots are read, is up to [`Latest`].
    #[inline(never)]
    fn drain_mapped<const LOOKS: bool>(&mut self, remembered: &mut Remembered) {
        let types = self.types;
        let nursery = Range { start: self.start, granules: self.granules };
        let mut places = self.old.places();
        let mut latest = Latest::NONE;
        loop {
            let (from, copy) = if let Some(copy) = latest.pop() {
                (copy.object, copy)
            } else if self.copied != 0 {
                let object = self.copied;
                // SAFETY: in the list are objects that were copied; the length was looked at then.
                let (target, map) = unsafe {
                    self.copied = next_copied(object).read();
                    let target = target_of(object);
                    (target, types.of(target).map_of(target).unwrap_or(NOT_MAPPED))
                };
                (target, Copied { object, target, map })
            } else {
                break;
            };
            if copy.map == NOT_MAPPED {
                // SAFETY: what was copied has room for a word behind the header.
                self.copied = unsafe { latest.leave(self.copied) };
                if !self.look_into_any(remembered, copy.object, copy.target) {
                    return;
                }
                places = self.old.places();
                continue;
            }
            if LOOKS {
                (self.object, self.marked) = (copy.target, self.old.black);
            }
            let waiting = latest.count();
            each_mapped_word(copy.map, |index| {
                let slot = (copy.target as *mut usize).wrapping_add(index);
                // SAFETY: slots of a live object can be read and written.
                let word = unsafe { (from as *const usize).wrapping_add(index).read() };
                if !nursery.contains(word) {
                    if LOOKS && word != 0 {
                        self.look_at(slot, word);
                        places = self.old.places();
                    }
                    return;
                }
                // SAFETY: references into the nursery are addresses of live objects, or of what is left of them
                // during a collection.
                let header = unsafe { Header::of(word) };
                let moved = if header.has(FORWARDED | STAYS) {
                    header.target()
                } else {
                    // SAFETY: as above.
                    let ty = unsafe { types.of(word) };
                    // SAFETY: a type has the place of its class, and nobody else uses it meanwhile.
                    let block = unsafe { (*places.byte_add(ty.place.into())).take() };
                    let (target, map) = match block {
                        Some(target) => {
                            // SAFETY: the block has room for the object, is new, and so apart from it.
                            unsafe { move_to(word, header, target, ty.fixed_bytes()) };
                            (target, ty.fixed_map())
                        }
                        None => {
                            let moved = self.move_other(word, header, ty);
                            places = self.old.places();
                            moved
                        }
                    };
                    if map != 0 {
                        if latest.is_full() {
                            // SAFETY: as above.
                            self.copied = unsafe { latest.leave(self.copied) };
                        }
                        // SAFETY: there is room now, and the last one is a copy where there is one more than before.
                        unsafe {
                            if latest.count() > waiting {
                                latest.fetch();
                            }
                            latest.push(Copied { object: word, target, map });
                        }
                    }
                    (target != 0).then_some(target)
                };
                match moved {
                    // SAFETY: as above.
                    Some(target) => unsafe { slot.write(target) },
                    None => remember_copy(remembered, copy.target),
                }
            });
        }
        self.marked = false;
    }

    /// Moves an object of a type whose objects are not all alike, or for which no block is at hand. Answers
    /// where it is, 0: it stays, and its map, [`NOT_MAPPED`] if it has none.
    ///
    /// What calls something else is apart: without that small objects of variable size save no registers, for
    /// 13 instructions less of 214.
    #[inline(never)]
    fn move_other(&mut self, object: usize, header: Header, ty: &Descriptor) -> (usize, u64) {
        // SAFETY: it is a live object of the nursery, of this type, that did not move yet; a block has room for
        // it, is new, and so apart from it.
        unsafe {
            let (bytes, class) = ty.block(object);
            let at_hand = if bytes <= SHORT { self.old.take_at_hand(class) } else { None };
            let Some(target) = at_hand else { return self.move_or_keep(object, header, ty) };
            // Known to the compiler, which leaves the call out.
            core::hint::assert_unchecked(bytes <= SHORT);
            move_to(object, header, target, bytes);
            (target, ty.map_of(target).unwrap_or(NOT_MAPPED))
        }
    }

    /// The same for any object.
    ///
    /// # Safety
    /// It is a live object of the nursery, with this header and of this type, that did not move yet.
    #[inline(never)]
    unsafe fn move_or_keep(&mut self, object: usize, header: Header, ty: &Descriptor) -> (usize, u64) {
        // SAFETY: by the contract.
        unsafe {
            let Some(target) = self.move_to_block(object, header, ty) else {
                self.keep(object);
                return (0, 0);
            };
            (target, ty.map_of(target).unwrap_or(NOT_MAPPED))
        }
    }

    /// Moves an object to a block of its class, if there is one.
    ///
    /// # Safety
    /// As in [`move_or_keep`](Self::move_or_keep).
    #[inline(always)]
    unsafe fn move_to_block(&mut self, object: usize, header: Header, ty: &Descriptor) -> Option<usize> {
        // SAFETY: by the contract; a block has room for the object, is new, and so apart from it.
        unsafe {
            let (bytes, class) = ty.block(object);
            let target = self.old.take(class)?;
            move_to(object, header, target, bytes);
            Some(target)
        }
    }

    /// Looks into a copy of any type. Says no when an ephemeron waits since then.
    #[inline(never)]
    fn look_into_any(&mut self, remembered: &mut Remembered, object: usize, target: usize) -> bool {
        if self.look_into(target, self.old.black) {
            remember(remembered, target);
        }
        self.reached(remembered, object);
        self.noted.waiting.is_empty()
    }
}

/// Remembers a copy that refers to an object which stays, for the first of these.
#[cold]
#[inline(never)]
fn remember_copy(remembered: &mut Remembered, copy: usize) {
    // SAFETY: it is a live object of the old generation.
    if unsafe { Header::of(copy) }.has(TRACKED) {
        remember(remembered, copy);
    }
}

/// Where the nursery is.
#[derive(Clone, Copy)]
struct Range {
    start: usize,
    granules: usize,
}

impl Range {
    #[inline(always)]
    fn contains(self, word: usize) -> bool {
        word.wrapping_sub(self.start).rotate_right(OBJECT_ALIGN.trailing_zeros()) < self.granules
    }
}

/// Moves an object of the nursery to a block, and leaves the new address behind.
///
/// # Safety
/// An object with this header and `bytes` bytes begins at `object`; the block has room for it, is new, and so
/// apart from it.
#[inline(always)]
unsafe fn move_to(object: usize, header: Header, target: usize, bytes: usize) {
    // SAFETY: by the contract; an object has room for the header and one word.
    unsafe {
        copy(object, target, bytes);
        header.with(TRACKED).put(target);
        Header::forwarded(target).put(object);
    }
}

/// Bytes up to which an object is copied without a call: a cache line, as most objects have at most.
const SHORT: usize = 64;

/// Copies an object: the [short](SHORT) ones without a call.
///
/// # Safety
/// `bytes` is a multiple of 16 and not 0; so many can be read and written, apart from each other.
#[inline(always)]
unsafe fn copy(from: usize, to: usize, bytes: usize) {
    // SAFETY: by the contract.
    unsafe {
        let part = |offset| {
            let from = ((from + offset) as *const [u64; 2]).read();
            ((to + offset) as *mut [u64; 2]).write(from);
        };
        part(0);
        if bytes > 16 {
            part(16);
        }
        if bytes > 32 {
            part(32);
        }
        if bytes > 48 {
            part(48);
        }
        if bytes > SHORT {
            let (from, to) = ((from + SHORT) as *const u64, (to + SHORT) as *mut u64);
            core::ptr::copy_nonoverlapping(from, to, (bytes - SHORT) / 8);
        }
    }
}
