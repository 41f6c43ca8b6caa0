//! Beginning a page without a live block.
//!
//! ```text
//!   refill ─▶ new_page ─▶ cut ─▶ its first window is opened
//!   gather ─▶ begin ────▶ cut ─▶ its next blocks are remembered, in one step: where a spare page is what the long way would come to
//! ```
//!
//! A page of few blocks is used up soon: of those of 2 KiB every eighth allocation needs another one. The long
//! way by lists, queues and regions to the page that lies on top of the spare ones was most of what such a
//! block cost.

use super::class::{Class, GRANULE_SHIFT, SHAPES, WINDOWS};
use super::heap::{Core, Heap, Own, Shared};
use super::mark::Mark;
use super::recent::has_few;
use super::space::{Bitmap, Source};
use crate::arena::HEAP_PAGE_BYTES;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

impl<S: Source> Heap<S> {
    /// See [`Own::begin`]. The heap is busy.
    #[inline(always)]
    pub(super) fn begin(core: NonNull<Core<S>>, class: Class) -> Option<NonNull<u8>> {
        // SAFETY: as in `own` and `shared`; two fields.
        let (own, shared) = unsafe { (&mut (*core.as_ptr()).own, &(*core.as_ptr()).shared) };
        own.begin(shared, class)
    }
}

impl<S: Source> Own<S> {
    /// Begins a spare page for a class whose page at hand is used up, and takes its first block. `None`, with
    /// nothing changed, where something else comes first: more pages with free blocks than
    /// [may drain](super::lists::Lists::may_drain), others' frees, pages from the arenas; for a class of which
    /// blocks are taken from windows; and for pages that lie where blocks are not remembered.
    #[inline(always)]
    fn begin(&mut self, shared: &Shared, class: Class) -> Option<NonNull<u8>> {
        let others = !self.lists[class].may_drain() || shared.inbox.first.load(Ordering::Relaxed) != 0;
        // Of a page at hand that lies elsewhere nobody has looked for a free block.
        let unknown = self.bins[class].page != 0 && self.page_near(class).is_none();
        if !has_few(class) || others || self.spare_count == 0 || unknown {
            return None;
        }
        let last = self.spare_count as usize - 1;
        let address = self.spares[last];
        let page = address.wrapping_sub(self.base) / HEAP_PAGE_BYTES;
        if page >= self.granules() / (64 * WINDOWS) || !self.pass_queue(class) {
            return None;
        }
        self.leave_page(class);
        self.spare_count = last as u32;
        // SAFETY: the page lies in the first region, and has a mark and a bitmap.
        let (mark, words) =
            unsafe { (&*self.marks.add(page), &*self.vacant.add(page * WINDOWS).cast::<Bitmap>()) };
        self.cut(class, address, mark, words);
        self.gather_row(page, mark, class)
    }

    /// Cuts the spare page that begins at an address into blocks of a class, and makes it the one at hand.
    #[inline(always)]
    pub(super) fn cut(&mut self, class: Class, address: usize, mark: &Mark, words: &Bitmap) {
        // What the arenas gave may have been a page run, which keeps other things there.
        for word in words {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        // It was taken out of its list before it was spare.
        debug_assert_eq!(mark.listed(), 0);
        mark.begin_at_hand(SHAPES[class].windows);
        mark.tag.store(self.tag_of(class), Ordering::Release);
        self.bins[class].page = address;
        self.lists[class].pages += 1;
        if self.groups.has(class) {
            self.count_page_of_group(class);
        }
    }

    /// Remembers the first blocks of a page that was just cut, and takes the first of them.
    ///
    /// Only where another page was used up: a class that takes and frees the only block of its first page is
    /// better off with a window.
    #[inline(always)]
    fn gather_row(&mut self, page: usize, mark: &Mark, class: Class) -> Option<NonNull<u8>> {
        let shape = &SHAPES[class];
        let (first, step) =
            ((page * WINDOWS * 64) as u32 + (shape.first >> GRANULE_SHIFT), shape.bytes >> GRANULE_SHIFT);
        let count = self.bins[class].gather_row(first, step, shape.blocks.into());
        if count == usize::from(shape.blocks) {
            mark.set_free(0);
        }
        self.retake(class)
    }
}
