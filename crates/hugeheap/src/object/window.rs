//! A window that a bin has open: the part of a page's bitmap from which blocks are taken, one bit after the other.
//!
//! ```text
//!                      1 KiB of the page: 64 granules
//!   base ─▶ ├───┼───┼───┼───┼───┼───┼ … ┤
//!   starts    1   0   0   1   0   0   …      where a block begins
//!   word      1   1   1   0   1   1   …      1 where no live block begins       and starts: what is free
//!   remote    0   0   0   1   0   0   …      what other threads freed, until the owner collects it
//! ```
//!
//! The words are those of the page's bitmaps, not copies: see [`bin`](super::bin).

use super::class::GRANULE_SHIFT;
use super::instructions::with_bit;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// No window begins here: it is odd.
const NOWHERE: usize = 1;

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
    /// Where other threads note what they free: its word in their bitmap, or the one in its page's mark (see
    /// [`freed`](super::freed)).
    remote: NonNull<AtomicU64>,
}

impl Window {
    pub(crate) const NONE: Self = Self { word: NOTHING_AT, starts: 0, base: NOWHERE, remote: NOTHING_AT };

    pub(crate) fn new(
        word: &'static AtomicU64,
        remote: &'static AtomicU64,
        starts: u64,
        base: usize,
    ) -> Self {
        Self { word: NonNull::from(word), starts, base, remote: NonNull::from(remote) }
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
    pub(crate) fn take(&self) -> Option<usize> {
        let vacant = self.word().load(Ordering::Relaxed);
        let free = vacant & self.starts;
        if free == 0 {
            return None;
        }
        let granule = free.trailing_zeros();
        self.word().store(vacant & !(1 << granule), Ordering::Relaxed);
        Some(self.base + ((granule as usize) << GRANULE_SHIFT))
    }

    /// Puts the block of a granule back, for a caller that has not looked at the page's tag; says no when none
    /// is live there, or another thread freed it and the owner has not collected that yet. `in_mark`: what others freed
    /// is noted [in the mark](super::freed). Then it says no where they freed any block of this half of the page: the
    /// bit of this one is a shift away, and collecting them all is the next thing to do anyway.
    #[inline(always)]
    pub(crate) fn put(&self, granule: usize, in_mark: bool) -> bool {
        let vacant = self.word().load(Ordering::Relaxed);
        let remote = self.remote().load(Ordering::Acquire);
        let gone = if in_mark { vacant } else { vacant | remote };
        let live = gone >> (granule % 64) & 1 == 0 && (!in_mark || remote == 0);
        if live {
            self.word().store(with_bit(vacant, granule), Ordering::Relaxed);
        }
        live
    }
}

// What `include/hugeheap_inline.h` reads of a window: another layout has another number there.
const _: () = assert!(
    offset_of!(Window, word) == 0
        && offset_of!(Window, starts) == 8
        && offset_of!(Window, base) == 16
        && offset_of!(Window, remote) == 24
);
