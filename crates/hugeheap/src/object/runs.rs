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

/// Runs kept of each length, at most. A program that replaces blocks at random has by turns none and some of a length free, and goes to the arenas at both ends: with four of each every fifth run
/// of `glibc-thread` did, with these every twentieth. There it took 3 % less time then with one thread, and 6 % with two, which wait for each other's lock; `rptest` 3 and 4 %.
const DEPTHS: [usize; LONGEST] = [16, 12, 8, 8, 6, 5, 4, 4];

/// Where those of a length begin.
const FIRST: [usize; LONGEST + 1] = {
    let mut first = [0; LONGEST + 1];
    let mut length = 0;
    while length < LONGEST {
        first[length + 1] = first[length] + DEPTHS[length];
        length += 1;
    }
    first
};

/// Heap pages in all runs, were all of them there.
const FULL: usize = {
    let (mut pages, mut length) = (0, 0);
    while length < LONGEST {
        pages += DEPTHS[length] * (length + 1);
        length += 1;
    }
    pages
};

/// Heap pages kept at most in all runs: 512 KiB.
const MOST: u32 = 32;

/// The runs that a heap keeps.
///
/// A fork by another thread may come between any two instructions here: the heap is not marked as busy, for which a child would lose all of it. So what is kept changes with one store,
/// that of a count; a run that is being taken or kept at that moment is used by nobody in the child, and no more. (There was a sum of all pages beside the counts, which could
/// be left behind by a run.)
#[derive(Debug)]
pub(crate) struct RunCache {
    /// Addresses, those of a length from [`FIRST`] on.
    runs: [usize; FIRST[LONGEST]],
    counts: [u8; LONGEST],
}

impl RunCache {
    pub(crate) const EMPTY: Self = Self { runs: [0; FIRST[LONGEST]], counts: [0; LONGEST] };

    /// Heap pages in all of them: each count times its length, added up in the highest byte of a product. No byte of it overflows.
    fn pages(&self) -> u32 {
        const LENGTHS: u64 = 0x0102_0304_0506_0708;
        const { assert!(LONGEST == 8 && FULL < 256) };
        (u64::from_le_bytes(self.counts).wrapping_mul(LENGTHS) >> 56) as u32
    }

    fn take(&mut self, pages: usize) -> Option<usize> {
        let count = self.counts[pages - 1] as usize;
        if count == 0 {
            return None;
        }
        self.counts[pages - 1] -= 1;
        Some(self.runs[FIRST[pages - 1] + count - 1])
    }

    fn keep(&mut self, pages: usize, address: usize) -> bool {
        let count = self.counts[pages - 1] as usize;
        if count == DEPTHS[pages - 1] || self.pages() + pages as u32 > MOST {
            return false;
        }
        self.runs[FIRST[pages - 1] + count] = address;
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
        if let Some(page) = page.filter(|_| (start.wrapping_sub(own.base)) / 16 < own.granules()) {
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
        let mut kept = FIRST.iter().zip(&self.runs.counts);
        kept.any(|(&first, &count)| self.runs.runs[first..][..count as usize].contains(&address))
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
        let (mut pages, mut full) = (0, [0; 2]);
        for round in 0..2000_usize {
            // Now many of one length, now all lengths.
            let length = if round / 100 % 2 == 0 { 1 } else { 1 + round * 5 % LONGEST };
            if round % 4 == 0 {
                pages -= cache.take(length).map_or(0, |address| address / 10_000);
            } else if cache.keep(length, length * 10_000 + round) {
                pages += length;
            } else {
                let (depth, most) =
                    (cache.counts[length - 1] as usize == DEPTHS[length - 1], pages + length > MOST as usize);
                assert!(depth || most);
                full[0] += usize::from(depth);
                full[1] += usize::from(most);
            }
            assert_eq!(cache.pages() as usize, pages);
        }
        assert!(full.iter().all(|&times| times > 0), "both bounds were met: {full:?}");
        cache.counts = DEPTHS.map(|depth| depth as u8);
        assert_eq!(cache.pages() as usize, FULL, "more than is ever kept");
    }
}
