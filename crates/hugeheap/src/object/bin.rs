//! The bin of a size class: where its next block comes from, and where a freed one goes.
//!
//! ```text
//!   allocate:  1. current window   a word in the bin: one bit per block
//!              2. recent           the blocks that were freed last, latest first: still in the cache
//!              3. current page     its next window with a free block
//!              4. partial          pages with free blocks; then the sparse ones
//!              5. a page           spare, or from the arenas
//!   free:      current window      a bit in the bin
//!              any other           a bit in the page's bitmap, and in its summary
//! ```
//!
//! The word of the current window lives in the bin, not in the page's bitmap: allocating, and freeing what lies beside what was
//! allocated last, touches neither the bitmap nor the block. While a window is open the bitmap says that all of its blocks are live; the truth
//! is written back when the bin leaves it. A window without a free block needs no writing back.
//!
//! `recent` holds hints: a block in it is free in its page's bitmap like any other, and may have been taken that way; its bit tells. So a full
//! ring forgets its oldest without loss. Remembering windows instead of blocks was tried: it is less work for objects freed in their order, but
//! a program that replaces objects at random opens a window for each, by branches that no predictor knows, and took twice as long.

use super::class::{CLASSES, SHAPES};
use crate::arena::HEAP_PAGE_BYTES;

/// Blocks remembered per bin: the rest of its two cache lines.
pub(super) const RECENT: usize = 8;

/// No window begins here: it is odd.
const NOWHERE: usize = 1;

/// A window that a bin has open.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Window {
    /// 1 where no live block begins.
    pub(crate) vacant: u64,
    /// Where its blocks begin.
    pub(crate) starts: u64,
    /// Its first byte; [`NOWHERE`] when none is open.
    pub(crate) base: usize,
    /// Its number in the first region, for small blocks there; `usize::MAX` otherwise.
    pub(crate) number: usize,
}

impl Window {
    pub(crate) const NONE: Self = Self { vacant: u64::MAX, starts: 0, base: NOWHERE, number: usize::MAX };

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.base != NOWHERE
    }

    /// Its free blocks.
    #[inline(always)]
    pub(crate) fn free(&self) -> u64 {
        self.vacant & self.starts
    }

    /// Takes a free block out.
    #[inline(always)]
    pub(crate) fn take(&mut self, shift: u32) -> Option<usize> {
        let free = self.free();
        if free == 0 {
            return None;
        }
        let granule = free.trailing_zeros();
        self.vacant &= !(1 << granule);
        Some(self.base + ((granule as usize) << shift))
    }

    /// Puts the block of a granule back; says no when none is live there.
    #[inline(always)]
    pub(crate) fn put(&mut self, granule: usize) -> bool {
        let live = self.vacant >> (granule % 64) & 1 == 0;
        if live {
            self.vacant = with_bit(self.vacant, granule);
        }
        live
    }
}

/// `word` with the bit `index % 64` set.
///
/// One instruction; from `word | 1 << index` the compiler makes four here, because it hoists the shift over the test of the same bit.
#[inline(always)]
pub(super) fn with_bit(mut word: u64, index: usize) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes a register.
    unsafe {
        core::arch::asm!("bts {}, {}", inout(reg) word, in(reg) index, options(pure, nomem, nostack));
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        word |= 1 << (index % 64);
    }
    word
}

/// The bin of a class.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Bin {
    /// Where blocks are taken from.
    pub(crate) current: Window,
    /// The page whose windows become current, 0: none.
    pub(crate) page: usize,
    /// Windows of the class's pages in which a block begins.
    pub(super) windows: u16,
    /// Index of the last entry of `recent`.
    last: usize,
    /// Granules of freed blocks in the first region, a ring; 0: none.
    pub(super) recent: [usize; RECENT],
}

const _: () = assert!(size_of::<Bin>() == 128 && RECENT.is_power_of_two());

impl Bin {
    const EMPTY: Self = Self { current: Window::NONE, page: 0, windows: 0, last: 0, recent: [0; RECENT] };

    /// The bins of a new heap.
    pub(crate) const fn all() -> [Self; CLASSES] {
        let mut bins = [const { Self::EMPTY }; CLASSES];
        let mut class = 0;
        while class < CLASSES {
            bins[class].windows = SHAPES[class].windows;
            class += 1;
        }
        bins
    }

    /// Remembers a freed block by its granule in the first region.
    #[inline(always)]
    pub(crate) fn remember(&mut self, granule: usize) {
        self.last = (self.last + 1) % RECENT;
        self.recent[self.last] = granule;
    }

    /// The granule of the block remembered last; 0: none.
    #[inline(always)]
    pub(crate) fn recall(&mut self) -> usize {
        let last = self.last % RECENT;
        self.last = last.wrapping_sub(1) % RECENT;
        core::mem::take(&mut self.recent[last])
    }

    /// Forgets the blocks of a page, the first granule of which is `first`: the page leaves the bin.
    pub(crate) fn forget(&mut self, first: usize) {
        for granule in &mut self.recent {
            if granule.wrapping_sub(first) < HEAP_PAGE_BYTES / 16 {
                *granule = 0;
            }
        }
    }
}
