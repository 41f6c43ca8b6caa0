//! Short page runs of a heap: 8 KiB to 128 KiB, kept for reuse without the arenas' lock.
//!
//! The first page of such a run has the tag of its heap and class [`RUN`]; its bitmap's first bit says whether the run is live (0) or
//! kept (1); its summary has the length in heap pages. The other pages have no tag, so an address in them is looked up in the arenas,
//! which know that it is inside a run.
//!
//! The lock, the clock and the arena's bitmaps cost 115 ns per pair of allocate and free; from here it is 10.

use super::class::WINDOWS;
use super::hardened::BYTES_WORD;
use super::heap::{Heap, Own};
use super::mistake::Mistake;
use super::pages::MAX_RUN;
use super::space::{Page, Source};
use super::tag::{self, RUN};
use crate::arena::HEAP_PAGE_BYTES;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, compiler_fence};

/// Longest run that is kept, in heap pages: 128 KiB. Longer ones are used for longer than the lock takes.
pub(super) const LONGEST: usize = 8;

/// Runs kept per length. A program that replaces blocks at random has a few of each length free at a time.
const DEPTH: usize = 4;

/// Heap pages kept at most in all runs: 512 KiB.
const MOST: u32 = 32;

/// The runs that a heap keeps.
///
/// A fork by another thread may come between any two instructions here: the heap is not marked as busy, for which a child would lose all of it. So what is kept changes with one store,
/// that of a count; a run that is being taken or kept at that moment is used by nobody in the child, and no more. (There was a sum of all pages beside the counts, which could
/// be left behind by a run.)
#[derive(Debug)]
pub(crate) struct RunCache {
    /// By length − 1, addresses.
    runs: [[usize; DEPTH]; LONGEST],
    counts: [u8; LONGEST],
}

impl RunCache {
    pub(crate) const EMPTY: Self = Self { runs: [[0; DEPTH]; LONGEST], counts: [0; LONGEST] };

    /// Heap pages in all of them: each count times its length, added up in the highest byte of a product. No byte of it overflows.
    fn pages(&self) -> u32 {
        const LENGTHS: u64 = 0x0102_0304_0506_0708;
        const { assert!(LONGEST == 8 && DEPTH * LONGEST * (LONGEST + 1) / 2 < 256) };
        (u64::from_le_bytes(self.counts).wrapping_mul(LENGTHS) >> 56) as u32
    }

    fn take(&mut self, pages: usize) -> Option<usize> {
        let count = self.counts[pages - 1] as usize;
        if count == 0 {
            return None;
        }
        self.counts[pages - 1] -= 1;
        Some(self.runs[pages - 1][count - 1])
    }

    fn keep(&mut self, pages: usize, address: usize) -> bool {
        let count = self.counts[pages - 1] as usize;
        if count == DEPTH || self.pages() + pages as u32 > MOST {
            return false;
        }
        self.runs[pages - 1][count] = address;
        // What is counted is there.
        compiler_fence(Ordering::Release);
        self.counts[pages - 1] += 1;
        true
    }
}

impl<S: Source> Heap<S> {
    /// Requests above [`MAX_BLOCK`](super::MAX_BLOCK).
    pub(super) fn allocate_run(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let pages = bytes.div_ceil(HEAP_PAGE_BYTES);
        let own = self.own();
        if pages > LONGEST || bytes > MAX_RUN {
            return self.allocate_fresh(bytes, false).map(|fresh| fresh.address);
        }
        let Some(address) = own.runs.take(pages) else { return self.new_run(pages, bytes) };
        let page = (address - own.base) / HEAP_PAGE_BYTES;
        // SAFETY: runs of the first region only are kept.
        unsafe { (*own.vacant.add(page * WINDOWS)).store(0, Ordering::Relaxed) };
        NonNull::new(address as *mut u8)
    }

    #[inline(never)]
    fn new_run(&mut self, pages: usize, bytes: usize) -> Option<NonNull<u8>> {
        if self.is_hardened() {
            return self.allocate_fresh(bytes, false).map(|fresh| fresh.address);
        }
        let own = self.own();
        let address = own.space.allocate_pages(pages * HEAP_PAGE_BYTES)?;
        let start = address.as_ptr() as usize;
        let page = own.space.page_or_add(start);
        own.learn();
        // A run of another region stays one of the arenas'.
        if let Some(page) = page.filter(|_| (start.wrapping_sub(own.base)) / 16 < own.granules) {
            page.vacant()[0].store(0, Ordering::Relaxed);
            page.vacant()[BYTES_WORD].store(0, Ordering::Relaxed);
            page.mark().set_free(pages as u16);
            page.mark().tag.store(own.tag_of(RUN), Ordering::Release);
        }
        Some(address)
    }

    /// Frees the run at a granule of the first region, in a page that has this heap's tag for runs; says no when none is live there.
    pub(super) fn free_run(&mut self, granule: usize) -> bool {
        let own = self.own();
        let Some(page) = own.space.page(own.base + granule * 16) else { return false };
        let live = granule % (64 * WINDOWS) == 0 && page.vacant()[0].load(Ordering::Relaxed) & 1 == 0;
        if !live {
            return false;
        }
        own.keep_run(page);
        true
    }
}

/// A live run has another length now. One that is too long to be kept is one of the arenas' from now on.
pub(super) fn note_length(page: Page, pages: u32) {
    if !is_run(page.tag()) {
        return;
    }
    if pages as usize <= LONGEST {
        page.mark().set_free(pages as u16);
    } else {
        page.mark().tag.store(0, Ordering::Release);
    }
}

/// Whether a live run of a heap begins at `address`, in a page with the tag of one.
pub(super) fn check_run(page: Page, address: usize) -> Result<(), Mistake> {
    if page.vacant()[0].load(Ordering::Relaxed) & 1 == 1 {
        return Err(Mistake::NotLive { bytes: 0 });
    }
    if address != page.address() {
        return Err(Mistake::Interior { bytes: bytes_of(page) });
    }
    Ok(())
}

/// Bytes that may be used of the run that begins at a page.
pub(super) fn bytes_of(page: Page) -> usize {
    match page.vacant()[BYTES_WORD].load(Ordering::Relaxed) as usize {
        0 => page.mark().free() as usize * HEAP_PAGE_BYTES,
        bytes => bytes,
    }
}

impl<S: Source> Own<S> {
    /// Takes a live run of this heap back.
    pub(super) fn keep_run(&mut self, page: Page) {
        page.vacant()[0].store(1, Ordering::Relaxed);
        if self.preset.is_some() {
            self.clear_and_give(page);
        } else if !self.runs.keep(page.mark().free() as usize, page.address()) {
            self.give_run(page);
        }
    }

    /// A function of its own, as `give_run`: keeping a run is frequent and needs few registers.
    #[inline(never)]
    fn clear_and_give(&mut self, page: Page) {
        // Without access to its end it stays as it is: nobody may get it.
        if self.space.clear_run(page) {
            self.give_run(page);
        }
    }

    #[inline(never)]
    fn give_run(&mut self, page: Page) {
        page.mark().tag.store(0, Ordering::Release);
        let given = self.space.free_pages(page.address());
        debug_assert!(given.is_ok(), "kept runs are runs of the arenas");
    }

    /// Gives all kept runs back to the arenas. Returns their pages.
    pub(super) fn give_runs(&mut self) -> usize {
        let kept = self.runs.pages() as usize;
        for pages in 1..=LONGEST {
            while let Some(address) = self.runs.take(pages) {
                if let Some(page) = self.space.page(address) {
                    self.give_run(page);
                }
            }
        }
        kept
    }

    /// Whether a page begins a run that this heap keeps: for the verifier.
    pub(super) fn keeps_run(&self, address: usize) -> bool {
        let kept = self.runs.counts.iter().zip(&self.runs.runs);
        kept.into_iter().any(|(&count, runs)| runs[..count as usize].contains(&address))
    }
}

/// Whether a tag is that of a run.
pub(super) fn is_run(tag: u32) -> bool {
    tag::class(tag) == RUN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_kept_are_those_of_all_runs() {
        let mut cache = RunCache::EMPTY;
        let mut pages = 0;
        for round in 0..200_usize {
            let length = 1 + round * 5 % LONGEST;
            if round % 3 == 0 {
                pages -= cache.take(length).map_or(0, |address| address / 1000);
            } else if cache.keep(length, length * 1000 + round) {
                pages += length;
            } else {
                assert!(pages + length > MOST as usize || cache.counts[length - 1] as usize == DEPTH);
            }
            assert_eq!(cache.pages() as usize, pages);
        }
        cache.counts = [DEPTH as u8; LONGEST];
        assert_eq!(cache.pages(), 144, "more than is ever kept");
    }
}
