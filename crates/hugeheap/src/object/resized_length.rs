//! How long a long run or large block is that was resized: a word in the mark of its first page.
//!
//! ```text
//!   31     24 23            0
//!   ├ spare ─┼ heap pages ──┤      0: it is not known, and the arenas are asked
//! ```
//!
//! What grows little by little may have pages *to spare*, behind those that it was asked for. Any request that
//! gets these pages, or fewer by no more than what is spare, leaves it where it is, and is the size of it for
//! who frees it with one.

use crate::arena::HEAP_PAGE_BYTES;

/// Bits for the number of heap pages: 256 GiB. What is longer is not noted.
const PAGES: u32 = 24;

/// See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResizedLength {
    /// All heap pages.
    pub(super) pages: usize,
    /// Those of them that it was not asked for.
    pub(super) spare: usize,
}

impl ResizedLength {
    /// Of what has no more than `bytes` need.
    pub(super) const fn of(bytes: usize) -> Self {
        Self { pages: bytes.div_ceil(HEAP_PAGE_BYTES), spare: 0 }
    }

    pub(super) const fn pack(self) -> u32 {
        let holds = self.pages >> PAGES == 0 && self.spare >> (u32::BITS - PAGES) == 0;
        if holds { (self.spare as u32) << PAGES | self.pages as u32 } else { 0 }
    }

    pub(super) const fn unpack(word: u32) -> Option<Self> {
        if word == 0 {
            return None;
        }
        Some(Self { pages: (word & ((1 << PAGES) - 1)) as usize, spare: (word >> PAGES) as usize })
    }

    /// Whether a request of `bytes` bytes has this length.
    pub(super) const fn fits(self, bytes: usize) -> bool {
        let needs = bytes.div_ceil(HEAP_PAGE_BYTES);
        needs <= self.pages && needs + self.spare >= self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_packed_is_what_is_unpacked(pages in 1_usize..1 << 26, spare in 0_usize..300) {
            let length = ResizedLength { pages, spare };
            let holds = pages < 1 << 24 && spare < 256;
            prop_assert_eq!(ResizedLength::unpack(length.pack()), holds.then_some(length));
        }
    }

    #[test]
    fn it_fits_what_was_asked_for_and_all_up_to_its_end() {
        let length = ResizedLength { pages: 12, spare: 2 };
        let fits = |bytes: usize| length.fits(bytes);
        assert!(!fits(0) && !fits(9 * HEAP_PAGE_BYTES) && !fits(12 * HEAP_PAGE_BYTES + 1));
        assert!(fits(9 * HEAP_PAGE_BYTES + 1) && fits(12 * HEAP_PAGE_BYTES));
        let exact = ResizedLength::of(11 * HEAP_PAGE_BYTES + 1);
        assert!(exact.fits(12 * HEAP_PAGE_BYTES) && !exact.fits(11 * HEAP_PAGE_BYTES));
    }
}
