//! What a free of the owner does when its page has to be looked at: the first one of a full page, and the last
//! one of a page.
//!
//! ```text
//!   full  ── a block is freed ─▶ in the list of partial pages          empty: its last live block is freed ─▶ a spare page
//! ```
//!
//! The page at hand is neither: it is not noted as full, and its count never comes to no live block (see
//! `mark`). So a program that takes and frees the only block of its class never comes here.
//!
//! Pages are found by their number in the first region, where all these blocks lie: `glibc-simple` has two such
//! frees for the eight blocks of a page.

use super::class::{CLASSES, Class, SHAPES, WINDOWS};
use super::heap::{Core, Heap, Own};
use super::mark::Mark;
use super::space::{Bitmap, Source, is_vacant};
use super::tag;
use crate::arena::HEAP_PAGE_BYTES;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

impl<S: Source> Heap<S> {
    /// After a block was freed whose page was noted as full, or has no live one any more.
    ///
    /// `extern "C"`, because a function that never unwinds can be the last thing a hook of another language jumps to.
    #[inline(never)]
    pub(super) extern "C" fn settle(core: NonNull<Core<S>>, granule: usize) {
        let mut heap = Self::borrowed(core);
        let _busy = heap.busy();
        let own = heap.own();
        // SAFETY: the caller freed the block at this granule of the first region.
        let mark = unsafe { own.mark_of(granule / 64) };
        let tag = mark.tag.load(Ordering::Relaxed);
        let class = tag::class(tag);
        // Whoever held the heap since the block was freed may have found all of the page free, and given it
        // back: see `idle`.
        if tag::heap(tag) != tag::heap(own.tag) || class >= CLASSES {
            return;
        }
        let page = granule / (64 * WINDOWS);
        if mark.is_full() {
            // Whoever takes the page looks at the other windows. To look at all of them here was in vain where
            // all of the page's blocks are freed before it is.
            mark.add_free(granule / 64 % WINDOWS);
            own.link_partial(class, own.base + page * HEAP_PAGE_BYTES);
        }
        if mark.live() == 0 {
            own.settle_empty(page, mark, class);
        }
    }
}

impl<S: Source> Own<S> {
    /// Takes a page of the first region that has no live block, and is not at hand, out of its bin.
    fn settle_empty(&mut self, page: usize, mark: &Mark, class: Class) {
        // SAFETY: the page lies in the first region, which has a bitmap for each.
        let words = unsafe { &*self.vacant.add(page * WINDOWS).cast::<Bitmap>() };
        // The count alone would do, as far as anybody knows. But what another uses of a page that is given back
        // is memory that two have.
        debug_assert!(is_vacant(words), "its count says so");
        if is_vacant(words) {
            // Where it stays, the collection comes back to it.
            self.release(self.base + page * HEAP_PAGE_BYTES, mark, class);
        }
    }

    /// Takes the page that begins at an address, which has no live block and is not at hand, out of its bin.
    /// Says no where it stays.
    pub(super) fn release(&mut self, address: usize, mark: &Mark, class: Class) -> bool {
        let (tag, spare) = (self.tag_of(class), self.spare_tag());
        // Fails when another thread's free is announced: the collection comes back to the page.
        if mark.tag.compare_exchange(tag, spare, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        self.leave_class(class, mark);
        // Nor is it full any more, if it was in no list.
        mark.set_listed(0);
        // What lies in other regions is not remembered, and to forget a block is always allowed: it is found in
        // its page.
        let page = (address.wrapping_sub(self.base) / HEAP_PAGE_BYTES) as u32;
        self.bins[class]
            .ring
            .forget_if(SHAPES[class].blocks.into(), |granule| granule / (64 * WINDOWS as u32) == page);
        self.keep_spare(address);
        true
    }
}
