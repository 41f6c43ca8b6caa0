//! Lengths that were overwritten in old objects: told with one line, instead of followed to where nothing is.
//!
//! ```text
//!   heap page   ├ block ┼ block ┼ block: length 3 ┤          inside its page, whatever it says: not looked at here
//!                             └ length 1000000 ────────▶     beyond it: what room has it really?
//! ```
//!
//! No block lies across heap pages, so what an object says is compared with the end of its page, without asking
//! what the page is cut into: of an array of four slots marking took 355.7 instructions and takes 358.2, of
//! others and of survivors not one more. Only one that seems to reach beyond is looked up, which those with
//! heap pages of their own do rightly. So no collection reads outside of the page, or the pages, that an object
//! lies in. A length that is wrong by less is found by the checks only: [`verify`](super::verify) compares it
//! with the block.

use super::header::Header;
use super::minor::Minor;
use super::old::Old;
use super::types::{Descriptor, Types, Visit};
use super::verify::Mistake;
use crate::arena::HEAP_PAGE_BYTES;
use crate::object::Source;

impl<S: Source> Old<S> {
    /// Bytes of an object of the old generation. Ends the process if these are more than its place has. For one
    /// of the nursery, which may lie across pages, it is what the object says.
    ///
    /// # Safety
    /// An object of this type of this heap begins there; its length may be any.
    #[inline(always)]
    pub(super) unsafe fn size_of(&self, ty: &Descriptor, object: usize) -> usize {
        if ty.fixed_bytes() != 0 {
            return ty.fixed_bytes();
        }
        // SAFETY: by the contract, here and below.
        let (length, bytes) = unsafe { (ty.length(object), ty.size(object)) };
        // Of longer ones the bytes may have wrapped.
        if length >= ty.too_long as usize || object % HEAP_PAGE_BYTES + bytes > HEAP_PAGE_BYTES {
            // SAFETY: as above.
            unsafe { self.check_room(ty, object) };
        }
        bytes
    }

    /// # Safety
    /// As in [`size_of`](Self::size_of).
    #[cold]
    #[inline(never)]
    unsafe fn check_room(&self, ty: &Descriptor, object: usize) {
        // SAFETY: by the contract, here and below.
        let (id, length) = unsafe { (Header::of(object).id(), ty.length(object)) };
        // Its pages name an object with cards: a right one is known without the lock of the arenas.
        let last = ty.bytes_for(length).and_then(|bytes| object.checked_add(bytes - 1));
        if last.is_some_and(|last| self.carded(last) == Some(object)) || !self.has_page(object) {
            return;
        }
        let room = self.room_of(object);
        // SAFETY: as above.
        if unsafe { ty.exceeds(object, room) } {
            // Not a panic: a collection that is left in the middle leaves nothing to go on with.
            crate::complain::abort(format_args!("{}", Mistake::Length { object, id, length, room }));
        }
    }

    /// Names all slots of an object of the old generation, whose length is looked at before.
    ///
    /// # Safety
    /// As in [`size_of`](Self::size_of); nobody else uses its slots.
    #[inline(always)]
    pub(super) unsafe fn each_slot<V: Visit>(&self, types: &Types, object: usize, visit: &mut V) {
        // SAFETY: by the contract.
        unsafe {
            let ty = types.of(object);
            self.size_of(ty, object);
            ty.each_slot(object, visit);
        }
    }
}

impl<S: Source> Minor<'_, S> {
    /// The same as [`look_into`](Self::look_into), for an object that was old before. The length of a copy was
    /// looked at when it was made.
    #[inline(always)]
    pub(super) fn look_into_old(&mut self, object: usize, marked: bool) -> bool {
        // SAFETY: a live object of this heap.
        unsafe { self.old.size_of(self.types.of(object), object) };
        self.look_into(object, marked)
    }
}
