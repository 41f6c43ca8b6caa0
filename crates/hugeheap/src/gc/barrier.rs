//! The write barrier, and what it remembers.
//!
//! ```text
//!   write of a reference into an object
//!     header & (TRACKED | CARDS) == 0 ──▶ nothing: young, or remembered already
//!     TRACKED ──▶ flag away, object into the remembered set
//!     CARDS   ──▶ card of the slot dirty; its page into the list if that is its first
//! ```
//!
//! One barrier serves both collections. A minor collection looks into what is remembered for references into the nursery. Marking goes on only
//! directly after a minor collection, so an object that was written since it was marked is in what that collection looks into, and what
//! it refers to now is marked there.
//!
//! Where there is no memory to remember, that is noted: the next minor collection looks through the old generation instead.

use super::cards::Dirty;
use super::header::{BARRIER, CARDS, Header, TRACKED};
use super::heap::Heap;
use crate::object::Source;

/// Objects and pages that may hold references into the nursery, or that were written since they were marked.
#[derive(Debug)]
pub(crate) struct Remembered {
    pub(crate) objects: Vec<usize>,
    /// Heap pages with dirty cards.
    pub(crate) pages: Vec<usize>,
    /// Writes by the program that made it look into another place: an object, or a KiB of a larger one. What a collection needs for these is mostly waiting for
    /// memory, however little survives.
    pub(crate) places: usize,
    /// Something could not be remembered.
    pub(crate) lost: bool,
    /// Entries of each list at most; less than any number only in tests, as where there is no memory.
    pub(crate) most: usize,
}

impl Default for Remembered {
    fn default() -> Self {
        Self { objects: Vec::new(), pages: Vec::new(), places: 0, lost: false, most: usize::MAX }
    }
}

impl Remembered {
    pub(crate) fn add_object(&mut self, object: usize) {
        self.lost |= !push(&mut self.objects, object, self.most);
    }

    pub(crate) fn add_page(&mut self, page: usize) {
        self.lost |= !push(&mut self.pages, page, self.most);
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

    /// The barrier alone, for a caller that writes by itself: before or after the write, but before the next call that may collect.
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
            match self.old.dirty(slot) {
                Dirty::Before => {}
                Dirty::Word => self.remembered.places += 1,
                Dirty::Page(page) => {
                    self.remembered.places += 1;
                    self.remembered.add_page(page);
                }
            }
            return;
        }
        self.remembered.places += 1;
        // SAFETY: by the contract.
        unsafe { header.without(TRACKED).put(object) };
        self.remembered.add_object(object);
    }
}
