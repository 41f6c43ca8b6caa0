//! What a minor collection does for dirty cards.
//!
//! ```text
//!   pages     ├ asked for ┼ their words asked for, taken ─┐
//!                                                         ▼
//!   words                              ├ slots asked for ┼ young objects asked for ┼ looked into ┤
//! ```
//!
//! Of a table that is written at random places nearly every card is alone in its page, and leads from one cache
//! miss to the next: what says where the page has dirty cards, these, the slot, the young object. So many pages
//! go that way together, a link at a time for all of them. One after the other, a place took 230 ns.

use super::barrier::Remembered;
use super::cards::{CARD_BYTES, Taken};
use super::header::{CARDS, Header};
use super::mark::Phase;
use super::minor::Minor;
use super::prefetch::prefetch;
use crate::object::Source;
use crate::object::class::WINDOWS;

/// Pages whose cards are taken together: more than a processor has cache misses under way at once. 4 instead
/// took 1.13 of the time of `wide-arrays`, 8 and 32 1.02 and 1.05, less than its spread.
const PAGES: usize = 16;

/// Words of cards that are looked into together, at most: four to a page, where each page has some.
const WORDS: usize = 4 * PAGES;

const _: () = assert!(WORDS >= WINDOWS, "all words of a page");

/// The object whose cards were looked at last. Most are followed by others of the same one.
#[derive(Clone, Copy)]
struct Owner {
    object: usize,
    /// 0: it has no cards that are of interest.
    end: usize,
    /// Marking wants to know of its cards.
    notes: bool,
}

impl Owner {
    const NONE: Self = Self { object: 0, end: 0, notes: false };

    /// Of an address that a page names: the page may be another heap's by now, and what it names anything.
    fn of<S: Source>(minor: &Minor<'_, S>, object: usize) -> Self {
        let owner = Self { object, ..Self::NONE };
        // SAFETY: a live object of this heap.
        if !minor.old.is_live(object) || !unsafe { Header::of(object) }.has(CARDS) {
            return owner;
        }
        let marking = minor.old.black && minor.marker.phase == Phase::Marking;
        Self {
            // SAFETY: as above.
            end: object + unsafe { minor.types.of(object).size(object) },
            notes: marking && minor.old.is_marked(object),
            ..owner
        }
    }
}

impl<S: Source> Minor<'_, S> {
    /// Looks into the dirty cards of pages. A function of its own: most collections have none.
    #[inline(never)]
    pub(super) fn look_into_cards(&mut self, remembered: &mut Remembered, pages: &[usize]) {
        let mut taken = Taken::NOTHING;
        let mut owner = Owner::NONE;
        let mut next = pages;
        self.ask_for(next);
        while !next.is_empty() {
            let group;
            (group, next) = next.split_at(PAGES.min(next.len()));
            group.iter().for_each(|&page| self.old.fetch_dirty(page));
            self.ask_for(next);
            for &page in group {
                self.take_cards(&mut taken, &mut owner, page);
                if taken.is_full() {
                    self.look_into_taken(remembered, &mut taken);
                }
            }
            self.look_into_taken(remembered, &mut taken);
        }
    }

    /// Lets the cache fetch what says where the next pages have dirty cards.
    fn ask_for(&self, pages: &[usize]) {
        pages.iter().take(PAGES).for_each(|&page| self.old.fetch_dirty_words(page));
    }

    /// Takes the dirty cards of a page, and lets the cache fetch the slots.
    #[inline(always)]
    fn take_cards(&mut self, taken: &mut Taken<WORDS>, owner: &mut Owner, page: usize) {
        let Some(object) = self.old.carded(page) else { return };
        if object != owner.object {
            *owner = Owner::of(self, object);
        }
        if page < object || page >= owner.end {
            return;
        }
        let from = taken.words().len();
        self.old.take_dirty(object, page, |cards| taken.push(cards));
        if owner.notes {
            for cards in &taken.words()[from..] {
                if self.old.note(cards) && !self.marker.add_written(page) {
                    // All marked objects are looked into again. What stayed noted would not be listed the next time.
                    self.old.take_noted(page, |_| {});
                }
            }
        }
    }

    fn look_into_taken(&mut self, remembered: &mut Remembered, taken: &mut Taken<WORDS>) {
        for (from, to) in taken.ranges() {
            for slot in (from..to).step_by(8) {
                // SAFETY: a word of a live object of this heap.
                let word = unsafe { (slot as *const usize).read() };
                if self.is_young(word) {
                    prefetch(word);
                }
            }
        }
        let types = self.types;
        for cards in taken.words() {
            // While marking is under way cards are noted for its steps, which are bounded.
            let marked =
                self.old.black && self.marker.phase != Phase::Marking && self.old.is_marked(cards.object);
            for (from, to) in *cards {
                self.begin_object(cards.object, marked);
                // SAFETY: a live object of this heap, and nobody else runs.
                unsafe { types.of(cards.object).each_slot_in(cards.object, from, to, self) };
                self.end_object();
                if self.young {
                    self.dirty_again(remembered, from, to);
                }
            }
        }
        taken.clear();
    }

    /// Some of the slots of a range refer to an object that stays in the nursery.
    #[cold]
    fn dirty_again(&mut self, remembered: &mut Remembered, from: usize, to: usize) {
        for card in (from..to).step_by(CARD_BYTES) {
            if let Some(page) = self.old.dirty(card).page() {
                remembered.add_page(page);
            }
        }
    }
}
