//! Objects with heap pages of their own, and their cards.
//!
//! ```text
//!   object   ├ page 0 ──────┼ page 1 ──────┼ page 2 ──────┤    a page run up to half an arena, a large block above
//!   vacant   [0] lives, [1] cards   [1] cards   [1] cards       64 cards of 256 bytes to a page
//!   links    previous: the address of the object, in every page of an object with cards
//! ```
//!
//! A write into a large array of references must not make the next minor collection look through all of it, and marking must not do so in one
//! step. So the barrier keeps cards instead of the whole object: a dirty card holds a slot that was written since.

use super::old::{LARGE, Old, Swept};
use crate::arena::{HEAP_PAGE_BYTES, HEAP_PAGES, layout};
use crate::object::Source;
use crate::object::class::MAX_BLOCK;
use crate::object::space::Page;
use core::sync::atomic::Ordering::Relaxed;

/// Bytes of a card: of a page's metadata one word of 64 bits is the cards of the page.
pub(crate) const CARD_BYTES: usize = HEAP_PAGE_BYTES / 64;

/// The word of `vacant` that holds the cards of a heap page of a large object; word 0 says whether the object lives.
const CARD_WORD: usize = 1;

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
        let (object, zeroed) = self.space.source().with(|arenas| {
            // Above half an arena a run would cut arenas so that the rest is of little use.
            if pages <= HEAP_PAGES as usize / 2 {
                return arenas.allocate(pages as u32).map(|address| (address.get(), false));
            }
            arenas.allocate_large(rounded, false).map(|block| (block.address.get(), block.zeroed))
        })?;
        let Some(page) = self.space.page_or_add(object) else {
            self.free_pages_of(object);
            return None;
        };
        page.vacant()[0].store(!1, Relaxed);
        page.remote()[0].store(u64::from(self.black), Relaxed);
        page.mark().tag.store(self.tag | self.cycle | LARGE as u32, Relaxed);
        if cards {
            for page in self.pages_of(object, rounded) {
                page.links().previous.store(object, Relaxed);
            }
        }
        self.large.push(self.space, page);
        self.held += rounded;
        self.used += rounded;
        Some((object, zeroed))
    }

    fn pages_of(&self, object: usize, bytes: usize) -> impl Iterator<Item = Page> + use<S> {
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
        page.remote()[0].store(0, Relaxed);
        page.mark().tag.store(self.tag | self.cycle | LARGE as u32, Relaxed);
        self.large.push(self.space, page);
        Swept::Kept
    }

    pub(super) fn release_large(&mut self, page: Page) {
        let object = page.address();
        let bytes = self.large_bytes(object);
        for page in self.pages_of(object, bytes) {
            if page.links().previous.load(Relaxed) != 0 {
                page.links().previous.store(0, Relaxed);
                page.vacant()[CARD_WORD].store(0, Relaxed);
            }
        }
        page.vacant().iter().chain(page.remote()).for_each(|word| word.store(0, Relaxed));
        page.mark().tag.store(0, Relaxed);
        let freed = self.free_pages_of(object);
        debug_assert_eq!(freed, bytes);
        self.held -= bytes;
        self.used -= bytes;
    }

    /// Makes the card of a slot of an object with cards dirty. Returns its page when it had no dirty card before.
    pub(crate) fn dirty(&self, slot: usize) -> Option<usize> {
        let page = self.space.page(slot)?;
        let cards = &page.vacant()[CARD_WORD];
        let before = self.cards_of(page);
        cards.store(before | 1 << (slot % HEAP_PAGE_BYTES / CARD_BYTES), Relaxed);
        (before == 0).then(|| page.address())
    }

    /// Takes the dirty cards of a page: its object, and a bit per card. `None`: the object is gone.
    pub(crate) fn take_cards(&self, page: usize) -> Option<(usize, u64)> {
        let page = self.space.page(page)?;
        let object = page.links().previous.load(Relaxed);
        if object == 0 {
            // The page may be one of blocks by now, whose bitmap the word is part of.
            return None;
        }
        let cards = self.cards_of(page);
        page.vacant()[CARD_WORD].store(0, Relaxed);
        Some((object, cards))
    }

    /// Makes all cards of an object with cards clean.
    pub(crate) fn clear_cards(&self, object: usize) {
        for page in self.pages_of(object, self.large_bytes(object)) {
            page.vacant()[CARD_WORD].store(0, Relaxed);
        }
    }

    /// Whether the card of a slot of an object with cards is dirty.
    pub(crate) fn is_dirty(&self, slot: usize) -> bool {
        self.space
            .page(slot)
            .is_some_and(|page| self.cards_of(page) >> (slot % HEAP_PAGE_BYTES / CARD_BYTES) & 1 == 1)
    }

    fn cards_of(&self, page: Page) -> u64 {
        page.vacant()[CARD_WORD].load(Relaxed)
    }
}
