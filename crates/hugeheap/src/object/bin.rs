//! The bin of a size class: where its next block comes from, and where a freed one goes.
//!
//! ```text
//!   allocate:  1. current window   the bin points to its word: one bit per block
//!              2. recent           blocks that were freed last, latest first: still in the cache
//!                 freed            the windows of the latest two
//!              3. current page     its next window with a free block
//!              4. partial          pages with free blocks; then the sparse ones
//!              5. a page           spare, or from the arenas
//!   free:      a bit in the page's bitmap; away from the current window also in the page's summary, and in `recent`
//! ```
//!
//! The bin points to the word of its current window in the page's bitmap: allocating, and freeing what lies beside what was allocated
//! last, finds the word without looking the page up, and never touches the block. A copy of the word in the bin was tried first. It saves an instruction,
//! but then another thread cannot see that a block was freed there already, and a fork can meet bin and bitmap disagreeing.
//!
//! Most objects are freed beside the one before. The first that is freed in a window is remembered in `recent`, and its window is `freed`: its bit in the
//! page's mark is set then, so that the next ones need no more than their bit in the bitmap. There are two such windows, because a program that has
//! replaced some of its objects frees old ones and new ones in turn: with one, each of them was the first in its window, 65 instructions per pair of
//! allocate and free instead of 53. Replacing objects at random pays three for it.
//!
//! `recent` holds hints: a block in it is free in its page's bitmap like any other, and may have been taken that way; its bit tells. So a full
//! ring forgets its oldest without loss. Remembering windows instead of blocks was tried twice. Opened for each, they cost a program that
//! replaces objects at random twice as long, by branches that no predictor knows; with their blocks taken one by one, a quarter more.

use super::class::{CLASSES, SHAPES, SMALL_SHIFT, WINDOWS};
use super::space::Mark;
use crate::arena::ARENA_BYTES;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// Blocks remembered per bin: the rest of its two cache lines, with 32 bits each. With 8 of 64 bits programs that replace objects of many
/// sizes at random opened so many windows that they took a sixth longer; 32, on four lines, made no difference.
pub(super) const RECENT: usize = 16;

/// No window begins here: it is odd.
const NOWHERE: usize = 1;

/// No window has this number.
pub(super) const NO_NUMBER: usize = usize::MAX;

/// No window of the first region has this number in 32 bits: see [`MAX_REGION_ARENAS`](crate::arena::MAX_REGION_ARENAS).
pub(super) const NOT_FREED: u32 = u32::MAX;

const _: () =
    assert!(crate::arena::MAX_REGION_ARENAS * (ARENA_BYTES >> SMALL_SHIFT) / 64 < NOT_FREED as usize);

/// The word of no window.
static NOTHING: AtomicU64 = AtomicU64::new(u64::MAX);

// SAFETY: the address of a static is not null. (`NonNull::from` is not const.)
const NOTHING_AT: NonNull<AtomicU64> = unsafe { NonNull::new_unchecked((&raw const NOTHING).cast_mut()) };

/// A window that a bin has open.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Window {
    /// Its word in the page's bitmap: 1 where no live block begins.
    word: NonNull<AtomicU64>,
    /// Where its blocks begin.
    pub(crate) starts: u64,
    /// Its first byte; [`NOWHERE`] when none is open.
    pub(crate) base: usize,
    /// Its number in the first region, for small blocks there; [`NO_NUMBER`] otherwise.
    pub(crate) number: usize,
    /// Its word in the bitmap of other threads.
    remote: NonNull<AtomicU64>,
}

impl Window {
    pub(crate) const NONE: Self =
        Self { word: NOTHING_AT, starts: 0, base: NOWHERE, number: NO_NUMBER, remote: NOTHING_AT };

    pub(crate) fn new(
        word: &'static AtomicU64,
        remote: &'static AtomicU64,
        starts: u64,
        base: usize,
        number: usize,
    ) -> Self {
        Self { word: NonNull::from(word), starts, base, number, remote: NonNull::from(remote) }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.base != NOWHERE
    }

    #[inline(always)]
    pub(crate) fn word(&self) -> &'static AtomicU64 {
        // SAFETY: made from references to words that are never unmapped.
        unsafe { self.word.as_ref() }
    }

    #[inline(always)]
    fn remote(&self) -> &'static AtomicU64 {
        // SAFETY: as in `word`.
        unsafe { self.remote.as_ref() }
    }

    /// Its free blocks.
    pub(crate) fn free(&self) -> u64 {
        self.word().load(Ordering::Relaxed) & self.starts
    }

    /// Takes a free block out.
    #[inline(always)]
    pub(crate) fn take(&self, shift: u32) -> Option<usize> {
        let vacant = self.word().load(Ordering::Relaxed);
        let free = vacant & self.starts;
        if free == 0 {
            return None;
        }
        let granule = free.trailing_zeros();
        self.word().store(vacant & !(1 << granule), Ordering::Relaxed);
        Some(self.base + ((granule as usize) << shift))
    }

    /// Puts the block of a granule back, for a caller that has not looked at the page's tag; says no when none is live there, or another
    /// thread freed it and the owner has not collected that yet.
    #[inline(always)]
    pub(crate) fn put(&self, granule: usize) -> bool {
        let vacant = self.word().load(Ordering::Relaxed);
        let gone = vacant | self.remote().load(Ordering::Acquire);
        let live = gone >> (granule % 64) & 1 == 0;
        if live {
            self.word().store(with_bit(vacant, granule), Ordering::Relaxed);
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

/// `word` without the bit `index % 64`; one instruction, as in [`with_bit`].
#[inline(always)]
pub(super) fn without_bit(mut word: u64, index: usize) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes a register.
    unsafe {
        core::arch::asm!("btr {}, {}", inout(reg) word, in(reg) index, options(pure, nomem, nostack));
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        word &= !(1 << (index % 64));
    }
    word
}

/// Called where the less frequent way begins. It does nothing, but the compiler lays the other way out as the straight one; without it, each free
/// beside the one before had a jump more.
#[cold]
#[inline]
fn aside() {}

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
    last: u32,
    /// Numbers of the two windows in which blocks were freed last, as long as their pages' marks have their bits; else [`NOT_FREED`], the second
    /// before the first. In 32 bits, as `recent`.
    pub(super) freed: [u32; 2],
    /// Granules of freed blocks in the first region, a ring; 0: none. 32 bits hold those of its first 64 GiB. Blocks beyond are not remembered, only
    /// their windows are: 64 bits for all would be half as many.
    pub(super) recent: [u32; RECENT],
}

const _: () = assert!(size_of::<Bin>() == 128 && RECENT.is_power_of_two());

// What `include/hugeheap_inline.h` reads of a bin: another layout has another number there.
const _: () = assert!(
    offset_of!(Bin, current) == 0
        && offset_of!(Window, word) == 0
        && offset_of!(Window, starts) == 8
        && offset_of!(Window, base) == 16
        && offset_of!(Window, remote) == 32
);

impl Bin {
    const EMPTY: Self = Self {
        current: Window::NONE,
        page: 0,
        windows: 0,
        last: 0,
        freed: [NOT_FREED; 2],
        recent: [0; RECENT],
    };

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

    /// A block was freed in the window `number`, not the current one, of a page with that mark; the window has the word `vacant` now. Says
    /// whether the page has to be looked at: it may be in no list, or have no live block. That is rare; a branch on whether the window had a free
    /// block is not, where windows have few blocks, and is not foreseen.
    #[inline(always)]
    pub(super) fn note_free(&mut self, mark: &Mark, granule: usize, number: usize, vacant: u64) -> bool {
        let [latest, other] = self.freed;
        if number as u32 == latest {
            return vacant == u64::MAX && mark.free() == self.windows;
        }
        aside();
        if number as u32 == other {
            return vacant == u64::MAX && mark.free() == self.windows;
        }
        self.freed = [number as u32, latest];
        // A branch, because what takes no branch needs a register more, which each free would save.
        if let Ok(granule) = u32::try_from(granule) {
            let last = (self.last + 1) % RECENT as u32;
            self.last = last;
            self.recent[last as usize] = granule;
        }
        let window = number % WINDOWS;
        let before = mark.add_free(window);
        // What keeps the page from being empty: windows without a free block, and live blocks in this one.
        let holds = u64::from((before | 1 << window) ^ self.windows) | !vacant;
        before == 0 || holds == 0
    }

    /// The granule of the block remembered last; 0: none.
    #[inline(always)]
    pub(super) fn recall(&mut self) -> usize {
        let last = self.last;
        self.last = last.wrapping_sub(1) % RECENT as u32;
        // SAFETY: `last` is an index of `recent`: it begins as one, and each change keeps it one.
        core::mem::take(unsafe { self.recent.get_unchecked_mut(last as usize) }) as usize
    }

    /// The mark of a page loses the bit of a window.
    #[inline(always)]
    pub(super) fn unmarked(&mut self, number: usize) {
        if self.freed[1] as usize == number {
            self.freed[1] = NOT_FREED;
        } else if self.freed[0] as usize == number {
            self.freed = [self.freed[1], NOT_FREED];
        }
    }

    /// Takes out the window in which a block was freed last.
    #[inline(always)]
    pub(super) fn take_freed(&mut self) -> Option<usize> {
        let [latest, other] = self.freed;
        self.freed = [other, NOT_FREED];
        (latest != NOT_FREED).then_some(latest as usize)
    }

    /// Forgets the blocks of a page, by its index in the first region: the page leaves the bin.
    pub(super) fn forget(&mut self, page: usize) {
        // Written each, not only those of the page: four at a time then, and nothing that a processor has to foresee.
        for granule in &mut self.recent {
            *granule = if *granule as usize / (64 * WINDOWS) == page { 0 } else { *granule };
        }
        for freed in self.freed {
            if freed as usize / WINDOWS == page {
                self.unmarked(freed as usize);
            }
        }
    }
}
