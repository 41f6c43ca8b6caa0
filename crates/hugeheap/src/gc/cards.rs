//! Cards: which slots of a large object were written.
//!
//! ```text
//!   heap page    ├ 1 KiB ┼ 1 KiB ┼ … 16 of them ────────────────────┤
//!   remote       [0]      [1]      …  [15]     a bit for each granule of two slots: dirty, written since the last minor collection
//!   vacant       [2]               …  [9]      a bit for two granules: noted, written since marking looked there
//!                [1]                           bit n < 16: remote[n] is not 0; bit 16 + n: vacant[2 + n] is not 0
//!   links        previous: the address of the object, in every page of an object with cards
//! ```
//!
//! A write into a large array of references must not make the next minor collection look through all of it, and marking must not do so in one
//! step. So the barrier keeps cards instead of the whole object. The minor collection looks for young objects in dirty cards and no more; what
//! else was written there while marking is under way is noted, and marked in steps.
//!
//! A card is as small as a granule. With cards of 256 bytes each write at a random place of a table made the collector look at 32
//! references to anywhere; when the minor collection marked these as well, pauses in a table of 120 MB were 60 to 190 ms, and when marking did,
//! it could not keep up.
//!
//! Bit 0 of `remote[0]` and `vacant[0]` of the first page say whether the object is marked and lives (`large`): the first two granules of an
//! object have one bit, the second one's.

use super::header::OBJECT_ALIGN;
use super::old::Old;
use super::prefetch::prefetch;
use crate::arena::HEAP_PAGE_BYTES;
use crate::object::Source;
use crate::object::class::WINDOWS;
use crate::object::space::Page;
use core::sync::atomic::Ordering::Relaxed;

/// Bytes of a card.
pub(crate) const CARD_BYTES: usize = OBJECT_ALIGN;

/// Bytes for which there is one bit that marking has to look there.
const NOTED_BYTES: usize = 2 * CARD_BYTES;

/// The word of `vacant` that says which others are not 0.
const SUMMARY: usize = 1;

/// The first word of noted cards in `vacant`.
const NOTED: usize = 2;

/// Words of noted cards.
const NOTED_WORDS: usize = WINDOWS * CARD_BYTES / NOTED_BYTES;

/// Shift of these in the summary.
const NOTED_SHIFT: usize = WINDOWS;

/// The bits of the dirty ones in the summary.
const DIRTY: u64 = (1 << NOTED_SHIFT) - 1;

const _: () = assert!(WINDOWS * 64 * CARD_BYTES == HEAP_PAGE_BYTES && NOTED + NOTED_WORDS <= WINDOWS);

/// What became dirty with a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dirty {
    /// Nothing else: its KiB had a dirty card.
    Before,
    /// The first of its KiB, the 64 cards of a word.
    Word,
    /// The first of its page, too.
    Page(usize),
}

impl Dirty {
    /// The page that has to be remembered.
    pub(crate) fn page(self) -> Option<usize> {
        if let Self::Page(page) = self { Some(page) } else { None }
    }
}

/// Cards that were taken from a page: ranges of addresses, each as long as possible but for ends of words.
#[derive(Clone)]
pub(crate) struct Cards {
    object: usize,
    at: usize,
    card: usize,
    words: [u64; WINDOWS],
    word: usize,
}

impl Cards {
    /// The object they are of.
    pub(crate) fn object(&self) -> usize {
        self.object
    }

    /// Lets the cache fetch the slots.
    pub(crate) fn fetch(&self) {
        self.clone().for_each(|(from, _)| prefetch(from));
    }
}

impl Iterator for Cards {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        while *self.words.get(self.word)? == 0 {
            self.word += 1;
        }
        let bits = &mut self.words[self.word];
        let first = bits.trailing_zeros();
        let count = (*bits >> first).trailing_ones();
        *bits &= !(u64::MAX >> (64 - count) << first);
        let from = self.at + (self.word * 64 + first as usize) * self.card;
        let to = from + count as usize * self.card;
        Some((if from == self.object + CARD_BYTES { self.object } else { from }, to))
    }
}

/// Bit n of it is bit 2n or bit 2n + 1.
fn halve(bits: u64) -> u64 {
    let mut bits = (bits | bits >> 1) & 0x5555_5555_5555_5555;
    bits = (bits | bits >> 1) & 0x3333_3333_3333_3333;
    bits = (bits | bits >> 2) & 0x0f0f_0f0f_0f0f_0f0f;
    bits = (bits | bits >> 4) & 0x00ff_00ff_00ff_00ff;
    bits = (bits | bits >> 8) & 0x0000_ffff_0000_ffff;
    (bits | bits >> 16) & 0xffff_ffff
}

impl<S: Source> Old<S> {
    /// Makes the card of a slot of an object with cards dirty. Says what has a dirty card now and had none before.
    pub(crate) fn dirty(&self, slot: usize) -> Dirty {
        let Some(page) = self.space.page(slot) else { return Dirty::Before };
        let (word, bit) = place(page, slot);
        let cards = &page.remote()[word];
        cards.store(cards.load(Relaxed) | bit, Relaxed);
        let before = summary(page);
        page.vacant()[SUMMARY].store(before | 1 << word, Relaxed);
        if before & DIRTY == 0 {
            Dirty::Page(page.address())
        } else if before & 1 << word == 0 {
            Dirty::Word
        } else {
            Dirty::Before
        }
    }

    /// Whether the card of a slot of an object with cards is dirty.
    pub(crate) fn is_dirty(&self, slot: usize) -> bool {
        self.space.page(slot).is_some_and(|page| {
            let (word, bit) = place(page, slot);
            page.remote()[word].load(Relaxed) & bit != 0
        })
    }

    /// The object with cards that an address is in.
    pub(crate) fn carded(&self, address: usize) -> Option<usize> {
        let object = self.space.page(address)?.links().previous.load(Relaxed);
        (object != 0).then_some(object)
    }

    /// Takes the dirty cards of a page. `None`: the object is gone.
    pub(crate) fn take_dirty(&self, page: usize) -> Option<Cards> {
        let page = self.space.page(page)?;
        let object = page.links().previous.load(Relaxed);
        if object == 0 {
            // The page may be one of blocks by now, whose bitmaps the words are part of.
            return None;
        }
        let mut words = [0; WINDOWS];
        let before = summary(page);
        for index in (0..WINDOWS).filter(|index| before >> index & 1 != 0) {
            let kept = u64::from(index == 0 && object == page.address());
            let bits = page.remote()[index].load(Relaxed);
            page.remote()[index].store(bits & kept, Relaxed);
            words[index] = bits & !kept;
        }
        page.vacant()[SUMMARY].store(before & !DIRTY, Relaxed);
        Some(Cards { object, at: page.address(), card: CARD_BYTES, words, word: 0 })
    }

    /// Notes that marking has to look into these cards. Says whether none of their page was noted.
    pub(crate) fn note(&self, cards: &Cards) -> bool {
        let Some(page) = self.space.page(cards.at) else { return false };
        let before = summary(page);
        let mut after = before;
        for index in 0..NOTED_WORDS {
            let bits = halve(cards.words[2 * index]) | halve(cards.words[2 * index + 1]) << 32;
            if bits != 0 {
                let noted = &page.vacant()[NOTED + index];
                noted.store(noted.load(Relaxed) | bits, Relaxed);
                after |= 1 << (NOTED_SHIFT + index);
            }
        }
        page.vacant()[SUMMARY].store(after, Relaxed);
        before >> NOTED_SHIFT == 0 && after >> NOTED_SHIFT != 0
    }

    /// Takes the noted cards of a page.
    pub(crate) fn take_noted(&self, page: usize) -> Option<Cards> {
        let page = self.space.page(page)?;
        let object = page.links().previous.load(Relaxed);
        let mut words = [0; WINDOWS];
        let before = summary(page);
        for index in (0..NOTED_WORDS).filter(|index| before >> (NOTED_SHIFT + index) & 1 != 0) {
            words[index] = page.vacant()[NOTED + index].load(Relaxed);
            page.vacant()[NOTED + index].store(0, Relaxed);
        }
        page.vacant()[SUMMARY].store(before & DIRTY, Relaxed);
        Some(Cards { object, at: page.address(), card: NOTED_BYTES, words, word: 0 })
    }

    /// Makes all cards of an object with cards clean.
    pub(crate) fn clear_cards(&self, object: usize) {
        for page in self.pages_of(object, self.large_bytes(object)) {
            let _ = self.take_dirty(page.address());
        }
    }

    /// Pages of an object have cards from now on.
    pub(super) fn begin_cards(&self, object: usize, bytes: usize) {
        for page in self.pages_of(object, bytes) {
            page.links().previous.store(object, Relaxed);
        }
    }

    /// An object ends: its pages have no cards any more.
    pub(super) fn end_cards(&self, object: usize, bytes: usize) {
        for page in self.pages_of(object, bytes) {
            if page.links().previous.load(Relaxed) != 0 {
                let _ = (self.take_dirty(page.address()), self.take_noted(page.address()));
                page.links().previous.store(0, Relaxed);
            }
        }
    }
}

fn summary(page: Page) -> u64 {
    page.vacant()[SUMMARY].load(Relaxed)
}

/// Word and bit of a slot's card in a page.
fn place(page: Page, slot: usize) -> (usize, u64) {
    let card = slot % HEAP_PAGE_BYTES / CARD_BYTES;
    let first = card == 0 && page.links().previous.load(Relaxed) == page.address();
    (card / 64, 1 << (card % 64 + usize::from(first)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn cards_are_ranges(words in prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()], WINDOWS)) {
            let cards = Cards { object: 0, at: 1 << 20, card: 16, words: words.clone().try_into().expect("as many"), word: 0 };
            let mut found = vec![0; WINDOWS];
            let mut last = 0;
            for (from, to) in cards {
                prop_assert!(from >= last && from < to, "in order");
                for card in (from - (1 << 20)) / 16..(to - (1 << 20)) / 16 {
                    found[card / 64] |= 1_u64 << (card % 64);
                }
                last = to;
            }
            prop_assert_eq!(found, words);
        }

        #[test]
        fn half_the_bits_say_where_some_are(bits: u64) {
            let half = halve(bits);
            for bit in 0..64 {
                prop_assert_eq!(half >> bit & 1 != 0, bit < 32 && bits >> (2 * bit) & 3 != 0);
            }
        }
    }
}
