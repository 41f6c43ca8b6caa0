//! Moving a survivor: what a minor collection does for each, and most of what it costs.
//!
//! ```text
//!   nursery    ├ header ┼ fields ─┤  ──copy──▶  old generation    ├ header, TRACKED ┼ fields ─┤
//!   afterwards ├ new address, FORWARDED ┼ next copied object of the nursery ┤
//! ```
//!
//! Copies whose slots are still to be looked into are in a list, the last one first: a subtree is copied before its neighbour, so that what is reached
//! together lies together. The list ends when everything that survivors lead to was moved.

use super::barrier::Remembered;
use super::header::{HEADER_BYTES, Header, STAYS, TRACKED};
use super::minor::{Minor, remember};
use super::types::Descriptor;
use crate::object::Source;

impl<S: Source> Minor<'_, S> {
    /// Where an object of the nursery is after the collection.
    ///
    /// With [`look_into_plain`](Self::look_into_plain) this is what a survivor costs: one loop without calls, in which what differs from object to object is all
    /// that is read from memory. With a call for each slot, allocation and survival of an object of two slots took 290 instructions; they take 170 (`tests/instructions/test_gc.py`).
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
        // SAFETY: the block has room for the object, is new, and so apart from it; an object has room for the header and one word.
        unsafe {
            copy(object, target, bytes);
            header.with(TRACKED).put(target);
            Header::forwarded(target).put(object);
        }
        // An ephemeron whose key it is and that is met later finds it moved.
        if !leaf || !self.noted.waiting.is_empty() {
            // SAFETY: as above.
            unsafe { next_copied(object).write(self.copied) };
            self.copied = object;
        }
        self.survivors += 1;
        self.bytes += bytes;
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

    /// What [`look_into`](Self::look_into) does, for a copy of a plain type.
    #[inline(always)]
    fn look_into_plain(&mut self, ty: &Descriptor, object: usize, marked: bool) -> bool {
        let looks = marked | self.records;
        (self.object, self.marked) = (object, marked);
        let mut young = false;
        ty.each_mapped(object, |slot| {
            // SAFETY: slots of a live object can be read and written.
            let word = unsafe { slot.read() };
            if self.is_young(word) {
                let target = self.move_out(word);
                young |= target == word;
                // SAFETY: as above.
                unsafe { slot.write(target) };
            } else if looks {
                self.look_at(slot, word);
            }
        });
        self.marked = false;
        young
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
                let object = self.copied;
                // SAFETY: in the list are objects that were copied.
                let (next, target) = unsafe { (next_copied(object).read(), Header::of(object).target()) };
                self.copied = next;
                let Some(target) = target else { unreachable!("in the list are objects that were copied") };
                let marked = self.old.black;
                let types = self.types;
                // SAFETY: a copy is a live object of this heap.
                let ty = unsafe { types.of(target) };
                let young = if ty.is_plain() {
                    self.look_into_plain(ty, target, marked)
                } else {
                    self.look_into(target, marked)
                };
                if young {
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
            core::ptr::copy_nonoverlapping((from + 32) as *const u64, (to + 32) as *mut u64, bytes / 8 - 4);
        }
    }
}

/// The next object of the list of copies.
fn next_copied(object: usize) -> *mut usize {
    (object + HEADER_BYTES) as *mut usize
}
