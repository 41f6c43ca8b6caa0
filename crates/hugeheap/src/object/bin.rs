//! The bin of a size class: where its next block comes from.
//!
//! ```text
//!   1. current window   a word in the bin: one bit test per block
//!   2. recent           the last blocks freed elsewhere: still in the cache
//!   3. current page     its next window with a free block
//!   4. partial          pages with free blocks, the last freed in first; then the sparse ones
//!   5. a page           spare, or from the arenas
//! ```
//!
//! The current window's word lives in the bin, not in the page's bitmap, so that allocating touches neither the bitmap nor the block. While it does,
//! the bitmap says that all of its blocks are live; the truth is written back when the bin leaves the window.
//!
//! `recent` holds hints: a block that was freed is free in its page's bitmap like any other, and may be taken that way first. So an entry is looked up
//! before it is used, and a full ring forgets its oldest without loss.

/// Blocks remembered per bin. One cache line: a program that replaces objects at random frees and allocates in turn, and one
/// that frees a tree of a few objects gets them back in order.
pub(crate) const RECENT: usize = 8;

/// No page in a window begins here: it is odd.
const NOWHERE: usize = 1;

/// The bin of a class.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Bin {
    /// Bits of the current window: 1 where no live block begins.
    pub(crate) vacant: u64,
    /// Where its blocks begin.
    pub(crate) starts: u64,
    /// Its first byte; [`NOWHERE`] without a window.
    pub(crate) base: usize,
    /// Its number in the first region, for small blocks there; `usize::MAX` otherwise.
    pub(crate) window: usize,
    /// The page of the window, 0: none.
    pub(crate) page: usize,
    /// First page of the list of partial pages.
    pub(crate) partial: usize,
    /// First page of the list of sparse ones: mostly free when they were last looked at, left to drain.
    pub(crate) sparse: usize,
    /// Entries of `recent`, and the index of the last.
    pub(crate) depth: u32,
    pub(crate) last: u32,
    /// Addresses of blocks freed outside the current window.
    pub(crate) recent: [usize; RECENT],
}

const _: () = assert!(size_of::<Bin>() == 128 && RECENT.is_power_of_two());

impl Bin {
    pub(crate) const EMPTY: Self = Self {
        vacant: u64::MAX,
        starts: 0,
        base: NOWHERE,
        window: usize::MAX,
        page: 0,
        partial: 0,
        sparse: 0,
        depth: 0,
        last: 0,
        recent: [0; RECENT],
    };

    /// Leaves the current window, whose word was written back.
    pub(crate) fn close(&mut self) {
        self.vacant = u64::MAX;
        self.starts = 0;
        self.base = NOWHERE;
        self.window = usize::MAX;
    }

    pub(crate) fn has_window(&self) -> bool {
        self.base != NOWHERE
    }

    /// Remembers a freed block.
    #[inline]
    pub(crate) fn remember(&mut self, address: usize) {
        self.last = (self.last + 1) % RECENT as u32;
        self.recent[self.last as usize] = address;
        self.depth = (self.depth + 1).min(RECENT as u32);
    }

    /// The block remembered last.
    #[inline]
    pub(crate) fn recall(&mut self) -> Option<usize> {
        if self.depth == 0 {
            return None;
        }
        let address = self.recent[self.last as usize];
        self.last = self.last.wrapping_sub(1) % RECENT as u32;
        self.depth -= 1;
        Some(address)
    }

    /// Forgets the blocks of a heap page: the page leaves the bin.
    pub(crate) fn forget(&mut self, page: usize) {
        for address in &mut self.recent {
            if (*address).wrapping_sub(page) < crate::arena::HEAP_PAGE_BYTES {
                *address = 0;
            }
        }
    }
}
