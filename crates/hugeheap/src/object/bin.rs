//! The bin of a size class: where its next block comes from, and where a freed one goes.
//!
//! ```text
//!   allocate:  1. recent           the block that was freed last: still in the cache
//!              2. current window   the bin points to its word: one bit per block
//!              3. current page     its next window with a free block; or some of its free blocks become recent ones
//!              4. partial          pages with free blocks; then the sparse ones
//!              5. a page           spare, or from the arenas
//!   free:      a bit in the page's bitmap; away from the current window also in the page's summary, and in `recent`
//! ```
//!
//! The bin points to the word of its current window in the page's bitmap: allocating, and freeing what lies beside what was allocated
//! last, finds the word without looking the page up, and never touches the block. A copy of the word in the bin was tried first. It saves an instruction,
//! but then another thread cannot see that a block was freed there already, and a fork can meet bin and bitmap disagreeing.
//!
//! `recent` holds hints: a block in it is free in its page's bitmap like any other, and may have been taken that way; its bit tells. So it forgets
//! the oldest without loss, and all of them as soon as one turns out to be taken.
//!
//! A free away from the current window does the same whatever was freed before: the bit, the summary, `recent`. Until it did, the first block that was freed in a
//! window was remembered, and those after it in the latest two windows needed the bit only. A pair of blocks that are freed in their order cost 56 instructions, and
//! costs 76. But where they are freed at random no predictor knows which it is, nor whether the current window still has a block: a program that replaces
//! blocks of 8 to 500 bytes had 0.40 branches per pair that were not foreseen, and has 0.24, and takes an eighth less time
//! (`valgrind --tool=callgrind --branch-sim=yes bench/target/release/workloads-hugeheap larson`). Remembering windows instead of blocks was
//! tried twice, too. Opened for each, they cost such a program twice as long; with their blocks taken one by one, a quarter more.
//!
//! Programs are of two kinds, and change between them. One takes blocks in a row: the current window has them for the fewest instructions. The other takes and
//! frees in turn, and each time it was not foreseen whether a block is remembered, nor whether the one that is freed lies in the current window. So once
//! all remembered ones are taken again, and some of them were freed since that was so last, the window is left and the next free blocks of the page are remembered
//! ([`Own::gather`](super::heap::Own::gather)): now the answers are yes and no until nothing is freed for a while. In `mstress` that saves every third
//! of the branches that were not foreseen, one in two allocations, for a twelfth more instructions.
//!
//! The interpreters' hooks ask the current window first ([`Heap::allocate_near`](super::Heap::allocate_near)): they are called for objects that are mostly made
//! one after the other, and have no register to spare. They never leave it for that, nor does C, which has the window inline. But it follows where blocks are taken and
//! freed in turn ([`recent`](super::recent)).

use super::class::{CLASSES, SHAPES, WINDOWS};
use super::space::Mark;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// Blocks remembered per bin: a power of two that has room in its two cache lines, with 32 bits each. With 8 of 64 bits programs that replace objects of many
/// sizes at random opened so many windows that they took a sixth longer; 32, on four lines, made no difference.
pub(super) const RECENT: usize = 16;

/// What a free adds to [`Bin::remembered`].
const FREED: u32 = 1 << 16 | 1;

/// No window begins here: it is odd.
const NOWHERE: usize = 1;

/// No window has this number.
pub(super) const NO_NUMBER: usize = usize::MAX;

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
    /// What a free writes instead of a mark that stays as it is.
    nothing: u16,
    /// The lower half: blocks that were freed or gathered since all were forgotten, less those that were taken again. The next one goes to this index of `recent`,
    /// modulo its length; of more than that the oldest are overwritten, and what is found in their place is looked at like any other. The upper half: those that
    /// were freed. In one word, because a free has one addition for both then. (After 65,536 frees without an allocation the lower half is 0: none is remembered.)
    remembered: u32,
    /// The number of the window of the block that was retaken last, for who asks the current window first.
    pub(super) last: u32,
    /// Granules of freed blocks in the first region; 0: none, or one of a page that left the bin. 32 bits hold those of its first 64 GiB. Blocks beyond are not
    /// remembered: 64 bits for all would be half as many.
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
        nothing: 0,
        remembered: 0,
        last: u32::MAX,
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
        // A branch, because what takes no branch needs a register more, which each free would save.
        if let Ok(granule) = u32::try_from(granule) {
            let next = self.remembered;
            self.recent[next as usize % RECENT] = granule;
            self.remembered = next.wrapping_add(FREED);
        }
        // SAFETY: a field of this bin, which the reference does not outlive.
        let nothing = unsafe { AtomicU16::from_ptr(&raw mut self.nothing) };
        let (before, with) = mark.add_free_or(number, nothing);
        // What keeps the page from being empty: windows without a free block, and live blocks in this one.
        let holds = u64::from(with ^ self.windows) | !vacant;
        before == 0 || holds == 0
    }

    /// Whether blocks are remembered, or all were taken again and some of them were freed ones.
    #[inline(always)]
    pub(super) fn remembers(&self) -> bool {
        self.remembered != 0
    }

    /// The granule of the block remembered last, which is forgotten; 0: none that is to be had.
    #[inline(always)]
    pub(super) fn recall(&mut self) -> usize {
        // Read once more: with what `remembers` read each pair of a block that is taken and freed would have an instruction more, for a register.
        // SAFETY: a field of this bin.
        let remembered = unsafe { (&raw const self.remembered).read_volatile() };
        if remembered as u16 == 0 {
            return 0;
        }
        self.remembered = remembered - 1;
        self.recent[(remembered - 1) as usize % RECENT] as usize
    }

    /// Forgets all remembered blocks: all were taken, or one was found to be. Returns how many were freed since the last time, modulo 65,536.
    #[inline(always)]
    pub(super) fn forget_all(&mut self) -> u32 {
        core::mem::take(&mut self.remembered) >> 16
    }

    /// Remembers the blocks of these granules, the first of them to be taken first; none was [remembered](Self::forget_all) before.
    pub(super) fn remember(&mut self, granules: &[u32]) {
        for (place, &granule) in self.recent.iter_mut().zip(granules.iter().rev()) {
            *place = granule;
        }
        self.remembered = granules.len() as u32;
    }

    /// Forgets the blocks of a page, by its index in the first region: the page leaves the bin.
    pub(super) fn forget(&mut self, page: usize) {
        // Written each, not only those of the page: four at a time then, and nothing that a processor has to foresee.
        for granule in &mut self.recent {
            *granule = if *granule as usize / (64 * WINDOWS) == page { 0 } else { *granule };
        }
    }
}
