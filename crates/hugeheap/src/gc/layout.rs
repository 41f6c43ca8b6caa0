//! What a type is like, as a program says it.
//!
//! ```text
//!   fixed      ├ header ┼ fields ──────────────┤
//!   variable   ├ header ┼ length ┼ fields ─┼ item 0 ┼ item 1 ┼ …   `length` of them
//! ```
//!
//! The offsets are copied. Where there is no memory for that, the layout notes it, and to register it is
//! refused: a runtime that embeds the heap may register types at any time, and the process was ended then.

use super::header::{HEADER_BYTES, LENGTH_OFFSET};
use super::trace::{PartFunction, Trace, TraceFunction};
use super::types::MAX_TYPES;
use super::weak::WeakPart;
use core::fmt;

/// Largest fixed part and largest item, in bytes: sums of the two and of a length do not overflow.
pub const MAX_PART: usize = 1 << 30;

/// What a type is like, to be [registered](super::Heap::register).
#[derive(Clone, Debug)]
pub struct Layout {
    pub(super) bytes: usize,
    pub(super) item_bytes: usize,
    pub(super) slots: Vec<usize>,
    pub(super) item_slots: Vec<usize>,
    pub(super) weak: WeakPart,
    pub(super) finalized: bool,
    pub(super) trace: Option<Trace>,
    /// Whether there was memory for all offsets.
    whole: bool,
}

/// The same in a vector; `None`: there is no memory.
fn copied<T>(items: impl Iterator<Item = T> + Clone) -> Option<Vec<T>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(items.clone().count()).ok()?;
    copy.extend(items);
    Some(copy)
}

/// Why a type cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadLayout {
    /// No room for the header, and the length where there is one.
    TooSmall,
    /// The fixed part or an item has more than [`MAX_PART`] bytes.
    TooLarge,
    /// A slot is not a whole word inside its part, or lies on the header or on the length.
    Slot {
        /// Its offset.
        offset: usize,
    },
    /// A word is named as a slot twice.
    Twice {
        /// Its offset.
        offset: usize,
    },
    /// Items with slots are not multiples of a word, or do not begin at one.
    Items,
    /// The heap has [`MAX_TYPES`] types.
    TooMany,
    /// No memory for the description.
    NoMemory,
}

impl fmt::Display for BadLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall => {
                write!(f, "the type has no room for its header of {HEADER_BYTES} bytes and its length")
            }
            Self::TooLarge => write!(f, "a part of the type has more than {MAX_PART} bytes"),
            Self::Slot { offset } => write!(
                f,
                "the slot at offset {offset} is not a multiple of 8 inside the type and behind its header and length"
            ),
            Self::Twice { offset } => write!(f, "the word at offset {offset} is named as a slot twice"),
            Self::Items => f.write_str("items with slots must begin at, and have, a multiple of 8 bytes"),
            Self::TooMany => write!(f, "the heap has {MAX_TYPES} types, which is the most"),
            Self::NoMemory => f.write_str("there is no memory to describe the type"),
        }
    }
}

impl std::error::Error for BadLayout {}

impl Layout {
    /// Objects of `bytes` bytes, the header included.
    pub const fn fixed(bytes: usize) -> Self {
        Self::variable(bytes, 0)
    }

    /// Objects with a fixed part of `bytes` bytes, header and length included, and items of `item_bytes` bytes
    /// behind it.
    pub const fn variable(bytes: usize, item_bytes: usize) -> Self {
        let weak =
            WeakPart { slots: Vec::new(), item_slots: Vec::new(), pairs: Vec::new(), item_pairs: Vec::new() };
        Self {
            bytes,
            item_bytes,
            slots: Vec::new(),
            item_slots: Vec::new(),
            weak,
            finalized: false,
            trace: None,
            whole: true,
        }
    }

    /// Offsets as one of the lists of the layout.
    fn list<T: Copy>(&mut self, offsets: &[T]) -> Vec<T> {
        copied(offsets.iter().copied()).unwrap_or_else(|| {
            self.whole = false;
            Vec::new()
        })
    }

    /// Slots of the fixed part, as offsets from the header.
    #[must_use]
    pub fn slots(mut self, offsets: &[usize]) -> Self {
        self.slots = self.list(offsets);
        self
    }

    /// Slots of an item, as offsets from its beginning.
    #[must_use]
    pub fn item_slots(mut self, offsets: &[usize]) -> Self {
        self.item_slots = self.list(offsets);
        self
    }

    /// Weak slots of the fixed part, as offsets from the header: what they refer to may die, and they become 0 then.
    #[must_use]
    pub fn weak_slots(mut self, offsets: &[usize]) -> Self {
        self.weak.slots = self.list(offsets);
        self
    }

    /// Weak slots of an item, as offsets from its beginning.
    #[must_use]
    pub fn weak_item_slots(mut self, offsets: &[usize]) -> Self {
        self.weak.item_slots = self.list(offsets);
        self
    }

    /// Ephemerons of the fixed part, as offsets of key and value from the header: the key is a weak slot, and
    /// the value's object lives if the key's does.
    #[must_use]
    pub fn ephemerons(mut self, pairs: &[(usize, usize)]) -> Self {
        self.weak.pairs = self.list(pairs);
        self
    }

    /// Ephemerons of an item, as offsets of key and value from its beginning: a table with weak keys.
    #[must_use]
    pub fn item_ephemerons(mut self, pairs: &[(usize, usize)]) -> Self {
        self.weak.item_pairs = self.list(pairs);
        self
    }

    /// Every object of the type is registered to be [finalized](super::Heap::finalize) when it is allocated.
    /// Such an object is not taken from a window: the fast path tells nobody.
    #[must_use]
    pub fn finalized(mut self) -> Self {
        self.finalized = true;
        self
    }

    /// Slots named by a function, besides those given as offsets. Such an object has no cards: the function
    /// cannot be asked for a part of it, as that of [`traced_in_parts_by`](Self::traced_in_parts_by) can.
    ///
    /// # Safety
    /// The function keeps the contract of [`TraceFunction`] for every object of the type.
    #[must_use]
    pub unsafe fn traced_by(mut self, function: TraceFunction) -> Self {
        self.trace = Some(Trace::Whole(function));
        self
    }

    /// The same with a function that is asked for parts of an object: a large one has cards, and is marked in steps.
    ///
    /// # Safety
    /// The function keeps the contract of [`PartFunction`] for every object of the type.
    #[must_use]
    pub unsafe fn traced_in_parts_by(mut self, function: PartFunction) -> Self {
        self.trace = Some(Trace::Parts(function));
        self
    }

    pub(super) fn check(&self) -> Result<(), BadLayout> {
        if !self.whole {
            return Err(BadLayout::NoMemory);
        }
        let variable = self.item_bytes > 0;
        let first = if variable { LENGTH_OFFSET + 8 } else { HEADER_BYTES };
        if self.bytes < first {
            return Err(BadLayout::TooSmall);
        }
        if self.bytes > MAX_PART || self.item_bytes > MAX_PART {
            return Err(BadLayout::TooLarge);
        }
        let fits = |offset: usize, bytes: usize| offset % 8 == 0 && offset < bytes && bytes - offset >= 8;
        let mut slots =
            copied(self.slots.iter().copied().chain(self.weak.fixed())).ok_or(BadLayout::NoMemory)?;
        let mut item_slots =
            copied(self.item_slots.iter().copied().chain(self.weak.items())).ok_or(BadLayout::NoMemory)?;
        if let Some(&offset) = slots.iter().find(|&&offset| offset < first || !fits(offset, self.bytes)) {
            return Err(BadLayout::Slot { offset });
        }
        if let Some(&offset) = item_slots.iter().find(|&&offset| !fits(offset, self.item_bytes)) {
            return Err(BadLayout::Slot { offset });
        }
        if !item_slots.is_empty() && (self.bytes % 8 != 0 || self.item_bytes % 8 != 0) {
            return Err(BadLayout::Items);
        }
        for offsets in [&mut slots, &mut item_slots] {
            offsets.sort_unstable();
            if let Some(twice) = offsets.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(BadLayout::Twice { offset: twice[0] });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::types::Types;
    use super::*;

    #[test]
    fn wrong_layouts_are_refused() {
        let mut types = Types::default();
        let mut refused = |layout| types.register(layout).expect_err("wrong");
        assert_eq!(refused(Layout::fixed(7)), BadLayout::TooSmall);
        assert_eq!(refused(Layout::variable(8, 1)), BadLayout::TooSmall);
        assert_eq!(refused(Layout::fixed(MAX_PART + 1)), BadLayout::TooLarge);
        assert_eq!(refused(Layout::fixed(24).slots(&[0])), BadLayout::Slot { offset: 0 });
        assert_eq!(refused(Layout::fixed(24).slots(&[12])), BadLayout::Slot { offset: 12 });
        assert_eq!(refused(Layout::fixed(24).slots(&[8, 24])), BadLayout::Slot { offset: 24 });
        assert_eq!(refused(Layout::fixed(20).slots(&[16])), BadLayout::Slot { offset: 16 });
        assert_eq!(refused(Layout::variable(16, 8).slots(&[8])), BadLayout::Slot { offset: 8 });
        assert_eq!(refused(Layout::variable(16, 8).item_slots(&[8])), BadLayout::Slot { offset: 8 });
        assert_eq!(refused(Layout::variable(20, 8).item_slots(&[0])), BadLayout::Items);
        assert_eq!(refused(Layout::variable(16, 12).item_slots(&[0])), BadLayout::Items);
        assert_eq!(refused(Layout::fixed(16).item_slots(&[0])), BadLayout::Slot { offset: 0 });
        assert!(types.get(0).is_none() && types.get(1).is_none());
    }
}
