//! Beginning a page without a live block.
//!
//! ```text
//!   refill ─▶ new_page ─▶ cut ─▶ its first window is opened, or its first blocks are remembered
//!   gather ─▶ begin ────▶ cut ─▶ its first blocks are remembered, in one step: where a spare page is what the long way would come to
//!   collect ─▶ begin_again ────▶ as after `cut`: a page of the class that needs one, of which others freed all blocks
//! ```
//!
//! A page of few blocks is used up soon: of those of 2 KiB every eighth allocation needs another one. The long
//! way by lists, queues and regions to the page that lies on top of the spare ones was most of what such a
//! block cost.

use super::class::{Class, GRANULE_SHIFT, SHAPES, WINDOWS};
use super::heap::{Core, Heap, Own, Shared};
use super::mark::Mark;
use super::recent::has_few;
use super::ring::Places;
use super::space::{Bitmap, Page, Source};
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
    /// nothing changed, where something else comes first: pages with free blocks, of which a class with few to a
    /// page has more than [may drain](super::lists::Lists::may_drain), others' frees, pages from the arenas; and for
    /// pages that lie where blocks are not remembered.
    #[inline(always)]
    fn begin(&mut self, shared: &Shared, class: Class) -> Option<NonNull<u8>> {
        let lists = &self.lists[class];
        let may_drain = lists.listed == 0 || has_few(class) && lists.may_drain();
        let others = !may_drain || shared.inbox.first.load(Ordering::Relaxed) != 0;
        // Of a page at hand that lies elsewhere nobody has looked for a free block.
        let unknown = self.bins[class].page != 0 && self.page_near(class).is_none();
        if others || self.spare_count == 0 || unknown {
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
        self.gather(class)
    }

    /// Makes a page of a class that has none at hand, and of which no block is remembered, the one at hand, if the
    /// page has no live block; says no otherwise.
    ///
    /// What one thread takes and another frees comes back in whole pages. Each became a spare one, by an atomic
    /// exchange of its tag and a look at all that is remembered, and was cut again.
    pub(super) fn begin_again(&mut self, page: Page, class: Class) -> bool {
        let mark = page.mark();
        if self.preset.is_some() || mark.live() != 0 || !page.is_empty() {
            return false;
        }
        if mark.listed() != 0 {
            // It lay in an arena that was closed when the lists were looked at.
            self.unlink(class, mark);
        }
        mark.begin_at_hand(SHAPES[class].windows);
        self.bring_to_hand_from_beginning(page.address(), class);
        true
    }

    /// A page without a live block is the one at hand.
    #[inline(always)]
    fn bring_to_hand_from_beginning(&mut self, address: usize, class: Class) {
        self.bins[class].set_page(address);
        if let Some(page) = self.page_near(class) {
            self.bins[class].begin_row((page * WINDOWS * 64) as u32 + (SHAPES[class].first >> GRANULE_SHIFT));
        }
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
        let bin = &mut self.bins[class];
        if !bin.ring.has_places() {
            // SAFETY: as many as there are bins, one after the other.
            self.unused_places = unsafe { bin.ring.set_places(self.unused_places) };
            self.space.add_metadata(size_of::<Places>());
        }
        self.bring_to_hand_from_beginning(address, class);
        self.lists[class].pages += 1;
        if self.groups.has(class) {
            self.count_page_of_group(class);
        }
    }
}
