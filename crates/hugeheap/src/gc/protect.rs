//! Protection of heap pages: the next read or write of one page of the old generation is a fault, and a hook is told.
//!
//! A heap page has 16 KiB, a multiple of the OS page on most machines. Where an OS page is larger, as many heap
//! pages are protected as it has, if all are of the same heap.
//!
//! Collections lift the protections and set them again, so marking and moving are not told. A page whose
//! objects all died, or left, is not protected any more. Protecting splits the page's huge page in the page
//! table; the memory stays one.

use super::fault::{self, Kind};
use super::heap::Heap;
use super::old::Old;
use crate::arena::HEAP_PAGE_BYTES;
use crate::object::Source;
use core::fmt;
use hugeheap_os::{AddressRange, Facts, Pages, Protection};

/// What is a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbid {
    /// Writes.
    Write,
    /// Reads and writes.
    Access,
}

/// Why a page cannot be protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotProtect {
    /// The address is in no heap page of this heap's old generation; or the OS page has other heap pages, too.
    NotOurs,
    /// It is protected already.
    Already,
    /// Too many pages are protected.
    TooMany,
    /// The system refused, with this errno: memory of the hugetlb pool cannot be protected in parts.
    System(i32),
}

impl fmt::Display for CannotProtect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOurs => f.write_str("the address is in no heap page of this heap's old generation"),
            Self::Already => f.write_str("the heap page is protected already"),
            Self::TooMany => f.write_str("too many heap pages are protected"),
            Self::System(errno) => write!(f, "the system refused to protect the heap page (errno {errno})"),
        }
    }
}

impl std::error::Error for CannotProtect {}

impl<S: Source> Old<S> {
    /// The range that is protected for an address: its heap page, or its OS page.
    fn range_of(&self, address: usize) -> Option<AddressRange> {
        let bytes = HEAP_PAGE_BYTES.max(self.space().source().os().os_page());
        let range = AddressRange { start: address - address % bytes, len: bytes };
        (0..bytes).step_by(HEAP_PAGE_BYTES).all(|offset| self.has_page(range.start + offset)).then_some(range)
    }
}

fn protection(forbid: Forbid) -> Protection {
    match forbid {
        Forbid::Write => Protection::Read,
        Forbid::Access => Protection::None,
    }
}

impl<S: Source> Heap<S> {
    /// Protects the heap page of an address. The first access that is forbidden is told to the
    /// [hook](super::set_fault_hook). Returns where the protected range begins, and its bytes.
    ///
    /// # Errors
    /// When it cannot be protected.
    pub fn protect(&mut self, address: usize, forbid: Forbid) -> Result<(usize, usize), CannotProtect> {
        let range = self.old.range_of(address).ok_or(CannotProtect::NotOurs)?;
        // One that the hook lifted is in the list until the next collection.
        self.unprotect_lifted();
        if self.protected.iter().any(|(other, _)| other.start == range.start) {
            return Err(CannotProtect::Already);
        }
        self.protected.try_reserve(1).map_err(|_| CannotProtect::TooMany)?;
        self.set_protection(range, forbid)?;
        self.protected.push((range, forbid));
        self.watch();
        Ok((range.start, range.len))
    }

    /// Lifts the protection of the heap page of an address. Says no when it had none.
    pub fn unprotect(&mut self, address: usize) -> bool {
        let contains = |range: &AddressRange| address.wrapping_sub(range.start) < range.len;
        let Some(index) = self.protected.iter().position(|(range, _)| contains(range)) else { return false };
        let (range, _) = self.protected.swap_remove(index);
        self.lift(range)
    }

    fn set_protection(&self, range: AddressRange, forbid: Forbid) -> Result<(), CannotProtect> {
        // Known before it can happen.
        if !fault::add(range.start, range.len, Kind::Page) {
            return Err(CannotProtect::TooMany);
        }
        // SAFETY: heap pages of this heap. Who accesses them is handled, and that is wanted.
        let protected = unsafe { self.old.space().source().os().protect(range, protection(forbid)) };
        protected.map_err(|error| {
            fault::remove(range.start);
            CannotProtect::System(error.code)
        })
    }

    /// Says no when the hook did it before.
    fn lift(&self, range: AddressRange) -> bool {
        if !fault::remove(range.start) {
            return false;
        }
        // SAFETY: heap pages of this heap; nothing is forbidden any more.
        let lifted = unsafe { self.old.space().source().os().protect(range, Protection::ReadWrite) };
        if let Err(error) = lifted {
            // Only when the kernel has no memory for a mapping less.
            crate::complain::abort(format_args!("the protection of a heap page cannot be lifted: {error}"));
        }
        true
    }

    fn unprotect_lifted(&mut self) {
        self.protected.retain(|(range, _)| fault::is_known(range.start));
    }

    /// Before a collection.
    #[cold]
    pub(super) fn lift_protections(&mut self) {
        let mut protected = core::mem::take(&mut self.protected);
        protected.retain(|&(range, _)| self.lift(range));
        self.protected = protected;
    }

    /// After a collection.
    #[cold]
    pub(super) fn set_protections(&mut self) {
        let mut protected = core::mem::take(&mut self.protected);
        protected.retain(|&(range, forbid)| {
            self.old.range_of(range.start) == Some(range) && self.set_protection(range, forbid).is_ok()
        });
        self.protected = protected;
    }
}
