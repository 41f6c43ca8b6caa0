//! Objects with heap pages of their own.
//!
//! ```text
//!   object   ├ page 0 ──────┼ page 1 ──────┼ page 2 ──────┤    a page run up to half an arena, a large block above
//!   vacant   bit 0: 0 where it lives                           of the first page; the other words, and those of the other pages, are
//!   remote   bit 0: it is marked                               its cards (`cards`)
//! ```

use super::old::{LARGE, Old, Swept};
use super::room;
use crate::arena::{HEAP_PAGE_BYTES, HEAP_PAGES, layout};
use crate::object::Source;
use crate::object::class::MAX_BLOCK;
use crate::object::space::Page;
use core::sync::atomic::Ordering::Relaxed;

impl<S: Source> Old<S> {
    /// Room for an object above [`MAX_BLOCK`], and whether it is known to be zero. `cards`: for an object with cards.
    pub(crate) fn allocate_large(&mut self, bytes: usize, cards: bool) -> Option<(usize, bool)> {
        debug_assert!(bytes > MAX_BLOCK);
        let pages = layout::heap_pages_for(bytes)?;
        let rounded = pages.checked_mul(HEAP_PAGE_BYTES)?;
        let wanted = self.held.checked_add(rounded)?;
        if wanted > self.maximum && self.spare_count > 0 {
            self.give_spares(0);
        }
        // What is dead and not swept yet is in the way.
        while self.held + rounded > self.maximum && self.sweep_page().is_some() {
            self.give_spares(0);
        }
        if self.held + rounded > self.maximum {
            return None;
        }
        // Above half an arena a run would cut arenas so that the rest is of little use.
        let (object, zeroed) = if pages <= HEAP_PAGES as usize / 2 {
            (self.space.source().with(|arenas| arenas.allocate(pages as u32))?.get(), false)
        } else {
            let wanted = (rounded, false);
            let block = room::take(self.space, &mut self.room, wanted, room::left_for_object).ok()?;
            (block.address.get(), block.zeroed)
        };
        let Some(page) = self.space.pages_or_add(object, rounded) else {
            self.free_pages_of(object);
            return None;
        };
        page.vacant()[0].store(!1, Relaxed);
        page.remote()[0].store(u64::from(self.black), Relaxed);
        page.mark().tag.store(self.tag | self.cycle | LARGE as u32, Relaxed);
        if cards {
            self.begin_cards(object, rounded);
        }
        self.large.push(self.space, page);
        self.held += rounded;
        self.used += rounded;
        Some((object, zeroed))
    }

    pub(super) fn pages_of(&self, object: usize, bytes: usize) -> impl Iterator<Item = Page> + use<S> {
        let space = self.space;
        (object..object + bytes).step_by(HEAP_PAGE_BYTES).filter_map(move |address| space.page(address))
    }

    /// Frees heap pages of a large object; returns how many bytes.
    fn free_pages_of(&self, object: usize) -> usize {
        self.space.source().with(|arenas| match arenas.run_bytes(object) {
            Ok(bytes) => {
                let freed = arenas.free(object, (bytes / HEAP_PAGE_BYTES) as u32);
                debug_assert!(freed.is_ok(), "it is a run");
                bytes
            }
            Err(_) => arenas.free_large(object).unwrap_or_default(),
        })
    }

    /// Bytes of the heap pages of a large object.
    pub(super) fn large_bytes(&self, object: usize) -> usize {
        self.space.source().with(|arenas| match arenas.run_bytes(object) {
            Ok(bytes) => bytes,
            Err(_) => arenas.large_bytes(object).unwrap_or_default(),
        })
    }

    pub(super) fn sweep_large(&mut self, page: Page) -> Swept {
        if page.remote()[0].load(Relaxed) & 1 == 0 {
            self.release_large(page);
            return Swept::Empty;
        }
        // The other bits are cards.
        page.remote()[0].store(page.remote()[0].load(Relaxed) & !1, Relaxed);
        page.mark().tag.store(self.tag | self.cycle | LARGE as u32, Relaxed);
        self.large.push(self.space, page);
        Swept::Kept
    }

    pub(super) fn release_large(&mut self, page: Page) {
        let object = page.address();
        let bytes = self.large_bytes(object);
        self.end_cards(object, bytes);
        page.vacant().iter().chain(page.remote()).for_each(|word| word.store(0, Relaxed));
        page.mark().tag.store(0, Relaxed);
        let freed = self.free_pages_of(object);
        debug_assert_eq!(freed, bytes);
        self.held -= bytes;
        self.used -= bytes;
        self.refused = false;
    }
}
