//! Cards: which slots of a large object were written.
//!
//! ```text
//!   heap page    ├ 1 KiB ┼ 1 KiB ┼ … 16 of them ────────────────────┤
//!   remote       [0]      [1]      …  [15]     a bit for each granule of two slots: dirty, written since the last minor collection
//!   vacant       [2]               …  [9]      a bit for two granules: noted, written since marking looked there
//!                [1]                           bit n: vacant[2 + n] is not 0
//!   mark         free                          bit n: remote[n] is not 0
//!   links        previous: the address of the object, in every page of an object with cards
//! ```
//!
//! A write into a large array of references must not make the next minor collection look through all of it, and
//! marking must not do so in one step. So the barrier keeps cards instead of the whole object. The minor
//! collection looks for young objects in dirty cards and no more; what else was written there while marking is
//! under way is noted, and marked in steps.
//!
//! A card is as small as a granule. With cards of 256 bytes each write at a random place of a table made the
//! collector look at 32 references to anywhere; when the minor collection marked these as well, pauses in a
//! table of 120 MB were 60 to 190 ms, and when marking did, it could not keep up.
//!
//! Which words have dirty cards stands in the page's mark, which has a cache line, because the barrier has to
//! know it at once: whether the page was dirty before is a branch that nobody foresees. It stood beside the
//! cards first, a cache miss for each write at a random place.
//!
//! Bit 0 of `remote[0]` and `vacant[0]` of the first page say whether the object is marked and lives (`large`):
//! the first two granules of an object have one bit, the second one's.

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
pub(crate) const NOTED_WORDS: usize = WINDOWS * CARD_BYTES / NOTED_BYTES;

/// Words of a bitmap in a cache line.
const LINE_WORDS: usize = 8;

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

/// The cards of a word that were taken from a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cards {
    /// The object they are of.
    pub(crate) object: usize,
    /// Where the first one of the word begins.
    at: usize,
    /// One bit for each, and how many bytes that is.
    bits: u64,
    card: usize,
}

impl Cards {
    const NONE: Self = Self { object: 0, at: 0, bits: 0, card: CARD_BYTES };
}

/// Ranges of addresses, each as long as possible.
impl Iterator for Cards {
    type Item = (usize, usize);

    #[inline(always)]
    fn next(&mut self) -> Option<(usize, usize)> {
        if self.bits == 0 {
            return None;
        }
        let first = self.bits.trailing_zeros();
        let count = (self.bits >> first).trailing_ones();
        self.bits &= !(u64::MAX >> (64 - count) << first);
        let from = self.at + first as usize * self.card;
        let to = from + count as usize * self.card;
        Some((if from == self.object + CARD_BYTES { self.object } else { from }, to))
    }
}

/// Words of cards that were taken and not looked into, `N` at most.
pub(crate) struct Taken<const N: usize> {
    words: [Cards; N],
    count: usize,
}

impl<const N: usize> Taken<N> {
    pub(crate) const NOTHING: Self = Self { words: [Cards::NONE; N], count: 0 };

    pub(crate) fn words(&self) -> &[Cards] {
        &self.words[..self.count]
    }

    /// All ranges of all words.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.words().iter().copied().flatten()
    }

    /// Whether all words of another page may not fit.
    pub(crate) fn is_full(&self) -> bool {
        self.count + WINDOWS > N
    }

    /// Adds a word, and lets the cache fetch its slots.
    #[inline(always)]
    pub(crate) fn push(&mut self, cards: Cards) {
        cards.for_each(|(from, _)| prefetch(from));
        self.words[self.count] = cards;
        self.count += 1;
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
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

/// The numbers of the bits that are set, upwards.
fn bits_of(mut bits: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}

impl<S: Source> Old<S> {
    /// Makes the card of a slot of an object with cards dirty. Says what has a dirty card now and had none before.
    pub(crate) fn dirty(&self, slot: usize) -> Dirty {
        let Some(page) = self.space.page(slot) else { return Dirty::Before };
        let (word, bit) = place(page, slot);
        let cards = &page.remote()[word];
        cards.store(cards.load(Relaxed) | bit, Relaxed);
        let before = page.mark().add_free(word);
        if before == 0 {
            Dirty::Page(page.address())
        } else if before & 1 << word == 0 {
            Dirty::Word
        } else {
            Dirty::Before
        }
    }

    /// Lets the cache fetch what making the card of a slot dirty needs.
    #[inline(always)]
    pub(crate) fn fetch_card(&self, slot: usize) {
        if let Some(page) = self.space.page(slot) {
            prefetch(&raw const page.remote()[slot % HEAP_PAGE_BYTES / (64 * CARD_BYTES)] as usize);
            prefetch(&raw const *page.mark() as usize);
        }
    }

    /// Whether the card of a slot of an object with cards is dirty.
    pub(crate) fn is_dirty(&self, slot: usize) -> bool {
        self.space.page(slot).is_some_and(|page| {
            let (word, bit) = place(page, slot);
            page.remote()[word].load(Relaxed) & bit != 0
        })
    }

    /// The object with cards that an address may be in. What it is if the object ended since, nobody knows.
    pub(crate) fn carded(&self, address: usize) -> Option<usize> {
        let object = self.space.page(address)?.links().previous.load(Relaxed);
        (object != 0).then_some(object)
    }

    /// Lets the cache fetch what says where a page has dirty cards.
    #[inline(always)]
    pub(crate) fn fetch_dirty_words(&self, page: usize) {
        if let Some(page) = self.space.page(page) {
            prefetch(&raw const *page.mark() as usize);
            prefetch(&raw const *page.links() as usize);
        }
    }

    /// Lets the cache fetch the dirty cards of a page.
    #[inline(always)]
    pub(crate) fn fetch_dirty(&self, page: usize) {
        if let Some(page) = self.space.page(page) {
            let dirty = page.mark().free();
            for line in [0, LINE_WORDS] {
                if dirty >> line & 0xff != 0 {
                    prefetch(&raw const page.remote()[line] as usize);
                }
            }
        }
    }

    /// Takes the dirty cards of a page of an object.
    #[inline(always)]
    pub(crate) fn take_dirty(&self, object: usize, page: usize, mut take: impl FnMut(Cards)) {
        let Some(page) = self.space.page(page) else { return };
        let dirty = page.mark().free();
        page.mark().set_free(0);
        for index in bits_of(dirty.into()) {
            let kept = u64::from(index == 0 && object == page.address());
            let bits = page.remote()[index].load(Relaxed);
            page.remote()[index].store(bits & kept, Relaxed);
            let at = page.address() + index * 64 * CARD_BYTES;
            take(Cards { object, at, bits: bits & !kept, card: CARD_BYTES });
        }
    }

    /// Notes that marking has to look into these cards, which were dirty. Says whether none of their page was noted.
    pub(crate) fn note(&self, cards: &Cards) -> bool {
        let Some(page) = self.space.page(cards.at) else { return false };
        let word = cards.at % HEAP_PAGE_BYTES / (64 * CARD_BYTES);
        let noted = &page.vacant()[NOTED + word / 2];
        noted.store(noted.load(Relaxed) | halve(cards.bits) << (word % 2 * 32), Relaxed);
        let summary = &page.vacant()[SUMMARY];
        let before = summary.load(Relaxed);
        summary.store(before | 1 << (word / 2), Relaxed);
        before == 0
    }

    /// Lets the cache fetch the noted cards of a page.
    #[inline(always)]
    pub(crate) fn fetch_noted(&self, page: usize) {
        if let Some(page) = self.space.page(page) {
            prefetch(&raw const page.vacant()[SUMMARY] as usize);
            prefetch(&raw const *page.links() as usize);
        }
    }

    /// Takes the noted cards of a page.
    #[inline(always)]
    pub(crate) fn take_noted(&self, page: usize, mut take: impl FnMut(Cards)) {
        let Some(page) = self.space.page(page) else { return };
        let object = page.links().previous.load(Relaxed);
        let noted = page.vacant()[SUMMARY].load(Relaxed);
        page.vacant()[SUMMARY].store(0, Relaxed);
        for index in bits_of(noted) {
            let bits = page.vacant()[NOTED + index].load(Relaxed);
            page.vacant()[NOTED + index].store(0, Relaxed);
            take(Cards { object, at: page.address() + index * 64 * NOTED_BYTES, bits, card: NOTED_BYTES });
        }
    }

    /// Makes all cards of an object with cards clean.
    pub(crate) fn clear_cards(&self, object: usize) {
        for page in self.pages_of(object, self.large_bytes(object)) {
            self.take_dirty(object, page.address(), |_| {});
        }
    }

    /// Pages of an object have cards from now on.
    ///
    /// Noted cards are written at once, though they are 0 and nobody needs them before marking looks into the
    /// object: a minor collection that found a table of a gigabyte marked touched the OS pages of all of them
    /// first, twice each, by reading and by writing. These were 409 page faults and up to 9.5 ms of one pause.
    /// The object itself has 128 times as many bytes to be touched.
    pub(super) fn begin_cards(&self, object: usize, bytes: usize) {
        for page in self.pages_of(object, bytes) {
            debug_assert_eq!((page.mark().free(), page.vacant()[SUMMARY].load(Relaxed)), (0, 0));
            page.vacant()[SUMMARY].store(0, Relaxed);
            page.links().previous.store(object, Relaxed);
        }
    }

    /// An object ends: its pages have no cards any more.
    pub(super) fn end_cards(&self, object: usize, bytes: usize) {
        for page in self.pages_of(object, bytes) {
            if page.links().previous.load(Relaxed) != 0 {
                self.take_dirty(object, page.address(), |_| {});
                self.take_noted(page.address(), |_| {});
                page.links().previous.store(0, Relaxed);
            }
        }
    }
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
        fn cards_are_ranges(bits in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()]) {
            let cards = Cards { object: 0, at: 1 << 20, bits, card: 16 };
            let (mut found, mut last) = (0, 0);
            for (from, to) in cards {
                prop_assert!(from >= last && from < to, "in order");
                for card in (from - (1 << 20)) / 16..(to - (1 << 20)) / 16 {
                    found |= 1_u64 << card;
                }
                last = to + 1;
            }
            prop_assert_eq!(found, bits);
        }

        #[test]
        fn half_the_bits_say_where_some_are(bits: u64) {
            let half = halve(bits);
            for bit in 0..64 {
                prop_assert_eq!(half >> bit & 1 != 0, bit < 32 && bits >> (2 * bit) & 3 != 0);
            }
        }

        #[test]
        fn bits_are_told_upwards(bits: u64) {
            let expected: Vec<_> = (0..64).filter(|&bit| bits >> bit & 1 != 0).collect();
            prop_assert_eq!(bits_of(bits).collect::<Vec<_>>(), expected);
        }
    }
}
