//! The bin of a size class: where its next block comes from, and where a freed one goes.
//!
//! ```text
//!   allocate:  1. current window   a word in the bin: one bit per block
//!              2. recent           the windows that blocks were freed in last, latest first: still in the cache
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
//! `recent` holds hints: a window in it may have been opened or emptied since, which its page's summary tells. Windows and not blocks, which was tried:
//! a million objects freed in their order cost a push each. Nor is the window of the last free kept open like the current one, which was
//! tried, too: objects freed in no order cost two changes of window each, 60 instructions more than pymalloc's whole free.

use super::lists::List;
use crate::arena::HEAP_PAGE_BYTES;

/// Windows remembered per bin: the rest of its two cache lines. Objects of one structure lie in few windows.
const RECENT: usize = 8;

/// No window begins here: it is odd.
const NOWHERE: usize = 1;

/// Number of no window. (The last window of the largest region would have it; there a hint is lost.)
const NO_WINDOW: u32 = u32::MAX;

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
    /// Partial pages.
    pub(crate) partial: List,
    /// Sparse ones: mostly free when they were last looked at, left to drain.
    pub(crate) sparse: List,
    /// Numbers of windows in the first region that blocks were freed in, a ring.
    recent: [u32; RECENT],
    /// Index of the last.
    last: u32,
}

const _: () = assert!(size_of::<Bin>() == 128 && RECENT.is_power_of_two());

impl Bin {
    pub(crate) const EMPTY: Self = Self {
        current: Window::NONE,
        page: 0,
        partial: List::EMPTY,
        sparse: List::EMPTY,
        recent: [NO_WINDOW; RECENT],
        last: 0,
    };

    /// Remembers the window of a freed block.
    #[inline]
    pub(crate) fn remember(&mut self, number: usize) {
        self.last = (self.last + 1) % RECENT as u32;
        self.recent[self.last as usize] = number as u32;
    }

    /// The window remembered last.
    #[inline]
    pub(crate) fn recall(&mut self) -> Option<usize> {
        let number = core::mem::replace(&mut self.recent[self.last as usize % RECENT], NO_WINDOW);
        self.last = self.last.wrapping_sub(1) % RECENT as u32;
        (number != NO_WINDOW).then_some(number as usize)
    }

    /// Forgets the windows of a page, the first of which is `first`: the page leaves the bin.
    pub(crate) fn forget(&mut self, first: usize) {
        for number in &mut self.recent {
            if (*number as usize).wrapping_sub(first) < HEAP_PAGE_BYTES / 1024 {
                *number = NO_WINDOW;
            }
        }
    }
}
