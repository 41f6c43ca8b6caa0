//! Moving a survivor: what a minor collection does for each, and most of what it costs.
//!
//! ```text
//!   nursery    ├ header ┼ fields ─┤  ──copy──▶  old generation    ├ header, TRACKED ┼ fields ─┤
//!   afterwards ├ new address, FORWARDED ┼ next copied object of the nursery ┤
//! ```
//!
//! Copies whose slots are still to be looked into are in a list, the last one first: a subtree is copied before its neighbour, so that what is reached
//! together lies together. That is the subtree of the first slot, because slots are looked into from the last to the first ([`map`](super::map)). The list ends when everything that survivors lead to was moved.

use super::barrier::Remembered;
use super::header::{FORWARDED, HEADER_BYTES, Header, OBJECT_ALIGN, STAYS, TRACKED};
use super::map::each_mapped_word;
use super::minor::{Minor, remember};
use super::prefetch::prefetch;
use super::types::{Descriptor, Types};
use crate::object::Source;

impl<S: Source> Minor<'_, S> {
    /// Where an object of the nursery is after the collection.
    ///
    /// For roots, for what is remembered, and for objects of all types; what mapped copies lead to is moved in [`drain_mapped`](Self::drain_mapped).
    #[inline(always)]
    pub(super) fn move_out(&mut self, object: usize) -> usize {
        // SAFETY: references into the nursery are addresses of live objects, or of what is left of them during a collection.
        let header = unsafe { Header::of(object) };
        if let Some(target) = header.target() {
            return target;
        }
        if header.has(STAYS) {
            return object;
        }
        let types = self.types;
        // SAFETY: as above.
        let (bytes, class, leaf) = unsafe {
            let ty = types.of(object);
            let (bytes, class) = ty.block(object);
            (bytes, class, ty.is_leaf())
        };
        let Some(target) = self.old.take(class) else { return self.keep(object) };
        // SAFETY: the block has room for the object, is new, and so apart from it.
        unsafe { move_to(object, header, target, bytes) };
        // An ephemeron whose key it is and that is met later finds it moved.
        if !leaf || !self.noted.waiting.is_empty() {
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
        let (next, copy) = unsafe { (next_copied(object).read(), Copied::of(self.types, object)) };
        self.copied = next;
        self.look_into_any(remembered, object, copy.target);
    }

    /// Looks into copies until there is none left, or an ephemeron waits for a key. `LOOKS`: marking or an evacuation wants to know of old
    /// objects that copies refer to.
    ///
    /// This loop is what a survivor costs. What it needs is in locals, and what is rare in functions of its own, so that the compiler keeps
    /// everything in registers: through `self` it was read again after each write into an object. The copy that was made last is looked into
    /// next without having been in the list; what others lead to is asked for when they are put there. For a node of a tree it was 142 instructions, and then 107.
    ///
    /// Slots of that one are read where it was: the list has not written there yet. From the copy, the next address was known only after the word with the free blocks, the type and the class, and
    /// after the copy came back from the store buffer: 17 to 21 ns for a node, and 12 to 15 now.
    #[inline(never)]
    fn drain_mapped<const LOOKS: bool>(&mut self, remembered: &mut Remembered) {
        let types = self.types;
        let nursery = Range { start: self.start, granules: self.granules };
        let (mut copied, mut last): (usize, Option<Copied<'_>>) = (self.copied, None);
        loop {
            let (copy, from) = match last.take() {
                Some(copy) => (copy, copy.object),
                None if copied != 0 => {
                    let object = copied;
                    // SAFETY: in the list are objects that were copied.
                    let copy = unsafe {
                        copied = next_copied(object).read();
                        Copied::of(types, object)
                    };
                    (copy, copy.target)
                }
                None => break,
            };
            // SAFETY: the length was looked at when it was copied.
            let Some(map) = (unsafe { copy.ty.map_of(from) }) else {
                self.copied = copied;
                if self.look_into_any(remembered, copy.object, copy.target) {
                    copied = self.copied;
                    continue;
                }
                return;
            };
            if LOOKS {
                (self.object, self.marked) = (copy.target, self.old.black);
            }
            each_mapped_word(map, |index| {
                let slot = (copy.target as *mut usize).wrapping_add(index);
                // SAFETY: slots of a live object can be read and written.
                let word = unsafe { (from as *const usize).wrapping_add(index).read() };
                if !nursery.contains(word) {
                    if LOOKS && word != 0 {
                        self.look_at(slot, word);
                    }
                    return;
                }
                // SAFETY: references into the nursery are addresses of live objects, or of what is left of them during a collection.
                let header = unsafe { Header::of(word) };
                let moved = if header.has(FORWARDED | STAYS) {
                    header.target()
                } else {
                    // SAFETY: as above.
                    let (ty, size, class) = unsafe {
                        let ty = types.of(word);
                        let (size, class) = ty.block(word);
                        (ty, size, class)
                    };
                    match self.old.take(class).map(|target| (size, target)) {
                        Some((size, target)) => {
                            // SAFETY: the block has room for the object, is new, and so apart from it.
                            unsafe { move_to(word, header, target, size) };
                            if !ty.is_leaf() {
                                if let Some(copy) = last.replace(Copied { object: word, target, ty }) {
                                    // It waits, and what it leads to comes meanwhile: a tenth to a sixth of the time of all pauses of `gcbench`.
                                    // SAFETY: slots of a live object can be read.
                                    unsafe {
                                        let map = copy.ty.map_of(copy.object).unwrap_or(0);
                                        let slots = copy.object as *const usize;
                                        each_mapped_word(map, |index| {
                                            prefetch(slots.wrapping_add(index).read())
                                        });
                                    }
                                    // SAFETY: an object that was copied has room for a word behind the header.
                                    unsafe { next_copied(copy.object).write(copied) };
                                    copied = copy.object;
                                }
                            }
                            Some(target)
                        }
                        None => {
                            self.copied = copied;
                            let moved = self.move_any(word);
                            copied = self.copied;
                            moved
                        }
                    }
                };
                match moved {
                    // SAFETY: as above.
                    Some(target) => unsafe { slot.write(target) },
                    None => remember_copy(remembered, copy.target),
                }
            });
        }
        self.marked = false;
        self.copied = 0;
    }

    /// Moves an object of a type whose objects differ in size, or for which there may be no room; nothing: it stays.
    #[inline(never)]
    fn move_any(&mut self, object: usize) -> Option<usize> {
        let target = self.move_out(object);
        (target != object).then_some(target)
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

/// A copy whose slots have to be looked into.
#[derive(Clone, Copy)]
struct Copied<'a> {
    /// Where it was in the nursery.
    object: usize,
    target: usize,
    ty: &'a Descriptor,
}

impl<'a> Copied<'a> {
    /// # Safety
    /// What is left of an object that was copied begins there.
    #[inline(always)]
    unsafe fn of(types: &'a Types, object: usize) -> Self {
        // SAFETY: by the contract; a copy is a live object of this heap.
        unsafe {
            let Some(target) = Header::of(object).target() else {
                unreachable!("in the list are objects that were copied")
            };
            Self { object, target, ty: types.of(target) }
        }
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
/// An object with this header and `bytes` bytes begins at `object`; the block has room for it, is new, and so apart from it.
#[inline(always)]
unsafe fn move_to(object: usize, header: Header, target: usize, bytes: usize) {
    // SAFETY: by the contract; an object has room for the header and one word.
    unsafe {
        copy(object, target, bytes);
        header.with(TRACKED).put(target);
        Header::forwarded(target).put(object);
    }
}

/// Copies an object: the small ones, which most are, without a call.
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
        if bytes > 64 {
            core::ptr::copy_nonoverlapping((from + 64) as *const u64, (to + 64) as *mut u64, bytes / 8 - 8);
        }
    }
}

/// The next object of the list of copies.
fn next_copied(object: usize) -> *mut usize {
    (object + HEADER_BYTES) as *mut usize
}
