//! The bin of a size class: where its next block comes from, and where a freed one goes.
//!
//! ```text
//!   allocate:  1. ring             the block that was freed last: still in the cache
//!              2. current window   the bin points to its word: one bit per block
//!              3. current page     its next window with a free block; or some of its free blocks go to the ring
//!              4. partial          pages with free blocks; then the sparse ones
//!              5. a page           spare, or from the arenas
//!   free:      a bit in the page's bitmap; away from the current window the block is also put on top of the ring
//! ```
//!
//! The bin points to the word of its current window in the page's bitmap: allocating, and freeing what lies
//! beside what was allocated last, finds the word without looking the page up, and never touches the block. A
//! copy of the word in the bin was tried first. It saves an instruction, but then another thread cannot see
//! that a block was freed there already, and a fork can meet bin and bitmap disagreeing.
//!
//! A block in the [ring](super::ring) is free in its page's bitmap like any other, and its page is found, so it
//! may be forgotten at any time. But it is taken from nowhere else: windows are opened where none of their blocks
//! is remembered. To note the window of a block in its page's mark when it is forgotten was tried, too, while
//! each free noted it: a pair of blocks that replace each other at random cost 4 instructions less, one of blocks
//! that are freed in their order up to 20 more. Now nobody notes it.
//!
//! A free away from the current window does the same whatever was freed before. Until it did, the first block
//! that was freed in a window was remembered, and those after it in the latest two windows needed the bit only:
//! cheaper where blocks are freed in their order. But where they are freed at random no predictor knows which
//! it is, nor whether the current window still has a block: a program that replaces blocks of 8 to 500 bytes
//! had 0.40 branches per pair that were not foreseen, and has 0.24, and takes an eighth less time
//! (`valgrind --tool=callgrind --branch-sim=yes bench/target/release/workloads-hugeheap larson`). Remembering
//! windows instead of blocks was tried twice, too. Opened for each, they cost such a program twice as long;
//! with their blocks taken one by one, a quarter more.
//!
//! Who asks is of three kinds:
//!
//! * A global allocator of Rust opens no window: when the ring has no block, the next free ones of the page are
//!   [gathered](super::heap::Own::gather) there. Which of the two has the next
//!   block, and whether a freed one lies in the window, is not foreseen where sizes are mixed.
//! * The holder of a heap's handle mostly takes blocks of one size in a row, and its size is known when it is
//!   compiled: the current window has them for the fewest instructions. When all remembered blocks were taken
//!   again, and some of them had been freed since that was so last, the window is left and the next ones are
//!   gathered, until nothing is freed for a while. Blocks of which a window has few are always gathered: opening a
//!   window for each costs more.
//! * The interpreters' hooks ask the current window first ([`Heap::allocate_near`](super::Heap::allocate_near)):
//!   they are called for objects that are mostly made one after the other, and have no register to spare. They
//!   never leave it for that, nor does C, which has the window inline. But it follows where blocks are taken and
//!   freed in turn ([`recent`](super::recent)).
//!
//! Of a page of which no block was taken yet the free ones are known without a look at its bitmap: a *row*, from
//! a granule to the end of the page. What is gathered of it is an addition for each block, four at once.

use super::class::CLASSES;
use super::ring::{NO_BLOCK, Ring};
use super::window::Window;
use core::mem::offset_of;

/// What happened in a bin since no block was remembered; more than nothing means that who takes a block looks
/// there first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
struct Since(u8);

impl Since {
    /// Nothing: no block is remembered.
    const NOTHING: Self = Self(0);
    /// Blocks were gathered.
    const GATHERED: Self = Self(1);
    /// A block was freed away from the current window.
    const FREED: Self = Self(2);
}

/// The bin of a class.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Bin {
    /// Where blocks are taken from.
    pub(crate) current: Window,
    /// The page whose windows become current, 0: none. Set by [`set_page`](Self::set_page).
    pub(crate) page: usize,
    /// The blocks that it remembers.
    pub(super) ring: Ring,
    /// Where a row begins: the granule of a block of the page at hand that is free, and so are all behind it.
    /// [`NO_BLOCK`]: nobody knows of one. It may be forgotten at any time, and is when a window is opened.
    row: u32,
    /// The number of the window of the block that was retaken last, its lowest bits, for who asks the current
    /// window first.
    pub(super) window: u16,
    /// It stays when all that was remembered is taken again, until it is [asked for](Self::begin_anew).
    since: Since,
}

const _: () = assert!(size_of::<Bin>() == 64);

// Where `include/hugeheap_inline.h` looks for its window: another layout has another number there.
const _: () = assert!(offset_of!(Bin, current) == 0);

impl Bin {
    const fn empty() -> Self {
        Self {
            current: Window::NONE,
            page: 0,
            ring: Ring::empty(),
            window: u16::MAX,
            since: Since::NOTHING,
            row: NO_BLOCK,
        }
    }

    /// Makes the bins of a new heap, one after the other: see [`Own::make_at`](super::heap::Own::make_at).
    ///
    /// # Safety
    /// Memory that nobody else knows.
    pub(super) unsafe fn make_all_at(bins: *mut [Self; CLASSES]) {
        for class in 0..CLASSES {
            // SAFETY: by the contract; within the bins.
            unsafe { bins.cast::<Self>().add(class).write(Self::empty()) };
        }
    }

    /// A block was freed away from the current window.
    #[inline(always)]
    pub(super) fn note_free(&mut self, granule: usize) {
        self.ring.push(granule);
        self.since = Since::FREED;
    }

    /// Another window is current.
    #[inline(always)]
    pub(super) fn set_current(&mut self, window: Window) {
        self.current = window;
        self.row = NO_BLOCK;
    }

    /// Another page is at hand, or none.
    #[inline(always)]
    pub(super) fn set_page(&mut self, address: usize) {
        self.page = address;
        self.row = NO_BLOCK;
    }

    /// No block of the page at hand lives, and its first one has that granule.
    #[inline(always)]
    pub(super) fn begin_row(&mut self, first: u32) {
        self.row = first;
    }

    /// The granule of the first free block of the [row](Self::row) of the page at hand, if it has one.
    #[inline(always)]
    pub(super) fn row(&self) -> Option<u32> {
        (self.row != NO_BLOCK).then_some(self.row)
    }

    /// Has the ring remember the first blocks of a row: their granules are `step` apart, and it ends before
    /// `end`. Says where the rest of it begins, `end` if there is none.
    #[inline(always)]
    pub(super) fn gather_row(&mut self, first: u32, step: u32, end: u32) -> u32 {
        let rest = self.ring.gather_row(first, step, end);
        self.since = Since::GATHERED;
        self.row = if rest == end { NO_BLOCK } else { rest };
        rest
    }

    /// All but the first `left` places of a [room](Ring::room) of the ring, of so many, were written. Says whether
    /// there is one.
    #[inline(always)]
    pub(super) fn gathered(&mut self, left: usize, length: usize) -> bool {
        let any = self.ring.gathered(left, length);
        self.row = NO_BLOCK;
        self.since = if any { Since::GATHERED } else { Since::NOTHING };
        any
    }

    /// Whether blocks are remembered, or all were taken again and some of them were freed ones.
    #[inline(always)]
    pub(super) fn remembers(&self) -> bool {
        self.since != Since::NOTHING
    }

    /// No block is remembered: says whether all that were had been gathered, and none was freed meanwhile.
    #[inline(always)]
    pub(super) fn was_gathered(&self) -> bool {
        self.since == Since::GATHERED
    }

    /// No block is remembered: says whether the next ones are better gathered than taken from the current
    /// window, because one was remembered that had been freed since this was asked last.
    #[inline(always)]
    pub(super) fn begin_anew(&mut self) -> bool {
        core::mem::replace(&mut self.since, Since::NOTHING) == Since::FREED
    }
}
