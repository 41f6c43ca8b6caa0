//! Where it is noted what other threads freed in a page, until its owner collects it.
//!
//! ```text
//!   blocks of up to 112 bytes     a bit for each granule: the page's other bitmap, a word for each window
//!   longer ones                   a bit for each 128 bytes: two words, in the page's mark
//!                                 word 0: windows 0 to 7, word 1: windows 8 to 15, eight bits for each
//! ```
//!
//! No two blocks of 128 bytes or more begin in the same 128 bytes. Whoever frees one reads the page's tag, in the
//! same cache line as the words, and whoever collects the page reads and writes all of that line anyway. In the
//! bitmap the bits of eight blocks of 2 KiB are in eight words of two lines: each page that had been freed by another
//! thread took its owner eight atomic exchanges, and both threads two cache lines more that the other one had
//! written.
//!
//! It was one word first, with a bit for each 256 bytes, and for blocks of more than 512 only. A queue between two
//! threads takes 0.9 to 0.95 of the time since blocks of 256 and 512 bytes have their bits there, and about 0.9 since
//! those of 128 and 192 have (`bench/target/release/workloads-hugeheap xmalloc least=192 most=192 --threads 2`, medians
//! of 15 runs by turns); of 2 KiB as long with two words as with one.

use super::class::{Class, GRANULE_SHIFT, SHAPES, SIZES, WINDOWS, small_class_of};
use super::instructions::in_register;
use super::mark::{FREED_WORDS, Mark};
use super::remote;
use super::space::Page;
use super::tag::{self, CLASSES_IN_TAG};
use super::vacancy::Words;
use core::sync::atomic::{AtomicU64, Ordering};

/// Granules for which those words have one bit, as a power of two.
const BIT_SHIFT: u32 = 3;

/// The first class whose blocks are noted there: of each at most one begins where a bit is.
const FIRST: Class = small_class_of(1 << (BIT_SHIFT + GRANULE_SHIFT));

/// Bytes above which a request gets a block of such a class.
pub(super) const IN_WINDOW: usize = (FIRST - 1) << GRANULE_SHIFT;

/// Whether what others free of a class is noted in the mark.
#[inline(always)]
fn is_in_mark(class: Class) -> bool {
    (FIRST..SIZES).contains(&class)
}

/// Windows that share a word.
const SHARING: usize = WINDOWS / FREED_WORDS;

/// Bits of a word for each window, and all of these.
const BITS: u32 = 64 / SHARING as u32;
const BITS_OF_WINDOW: u64 = (1 << BITS) - 1;

const _: () = assert!(BITS << BIT_SHIFT == 64, "those of a window are all of its granules");
const _: () = assert!(BITS == 8 && BIT_SHIFT == 3, "`granules_of` makes a byte of each");

/// The granules of a window, of the word in a mark that it shares.
#[inline(always)]
fn granules_of(word: u64, window: usize) -> u64 {
    const EACH: u64 = u64::MAX / 0xff;
    // Bit n in byte n.
    const DIAGONAL: u64 = 0x8040_2010_0804_0201;
    let bits = word >> (BITS as usize * (window % SHARING)) & BITS_OF_WINDOW;
    let spread = (bits * EACH) & DIAGONAL;
    // The highest bit of each byte that is not 0, and from that all of them.
    ((spread + 0x7f * EACH) >> 7 & EACH) * 0xff
}

/// The blocks of a window of such a class that are noted in that word.
#[inline(always)]
fn blocks_of(class: Class, word: u64, window: usize) -> u64 {
    granules_of(word, window) & SHAPES[class].starts[window]
}

/// Where it is noted for a window of a page with that mark. `word`: the window's in the bitmap.
#[inline(always)]
pub(super) fn word<'a>(class: Class, window: usize, mark: &'a Mark, word: &'a AtomicU64) -> &'a AtomicU64 {
    if is_in_mark(class) { mark.freed(window / SHARING) } else { word }
}

/// The same of the class in a tag: one comparison for both ends.
#[inline(always)]
fn is_noted_in_mark(tag: u32) -> bool {
    tag.wrapping_sub(tag::tag(0, FIRST)) & tag::tag(0, CLASSES_IN_TAG) < tag::tag(0, SIZES - FIRST)
}

/// The word, and the bit in it, for a block that begins at a granule of a page with that mark and tag. `word`: that of
/// its window in the bitmap.
///
/// No branch: where sizes are mixed it is not foreseen which of the two it is.
#[inline(always)]
pub(super) fn place<'a>(
    tag: u32,
    granule: usize,
    mark: &'a Mark,
    word: &'a AtomicU64,
) -> (&'a AtomicU64, u64) {
    let in_mark = is_noted_in_mark(tag);
    let word = if in_mark { mark.freed(granule / 64 / SHARING) } else { word };
    // All ones if it is; the compiler makes a branch of a choice between two numbers.
    let all = in_register(0usize.wrapping_sub(usize::from(in_mark)));
    (word, 1 << (in_register(granule >> (all & BIT_SHIFT as usize)) % 64))
}

/// Which granules of the first window of a page with that tag have no live block: `vacant` is its word in the bitmap
/// of the owner, `freed` where it is noted what others freed.
#[inline(always)]
pub(super) fn gone_of_first_window(tag: u32, vacant: u64, freed: &AtomicU64) -> u64 {
    let freed = freed.load(Ordering::Relaxed);
    vacant | if is_noted_in_mark(tag) { granules_of(freed, 0) } else { freed }
}

/// Whether that may be all of the first window; for certain where what others freed is noted in the bitmap. Where it is
/// noted in a mark that would take more registers than a free has: the way that [asks for
/// certain](gone_of_first_window) is taken for the few blocks of a page that begin there, one of eight or fewer.
#[inline(always)]
pub(super) fn may_be_all_of_first_window(tag: u32, vacant: u64, freed: &AtomicU64) -> bool {
    is_noted_in_mark(tag) || vacant | freed.load(Ordering::Relaxed) == u64::MAX
}

impl Page {
    /// What others freed of a page of that class, by window, and nobody collected.
    pub(super) fn freed_by_others(self, class: Class) -> Words {
        if is_in_mark(class) {
            let words: [u64; FREED_WORDS] =
                core::array::from_fn(|number| self.mark().freed(number).load(Ordering::SeqCst));
            return core::array::from_fn(|window| blocks_of(class, words[window / SHARING], window));
        }
        self.remote().each_ref().map(|word| word.load(Ordering::SeqCst))
    }

    /// The same of one window.
    pub(super) fn freed_in_window(self, class: Class, window: usize) -> u64 {
        if is_in_mark(class) {
            let word = self.mark().freed(window / SHARING).load(Ordering::Relaxed);
            return blocks_of(class, word, window);
        }
        self.remote()[window].load(Ordering::Relaxed)
    }

    /// Takes it, by the owner: of each window that has some.
    #[inline(always)]
    pub(super) fn take_freed(self, class: Class, mut each: impl FnMut(usize, u64)) {
        if is_in_mark(class) {
            for number in 0..FREED_WORDS {
                let mut word = remote::take(self.mark().freed(number));
                while word != 0 {
                    let place = word.trailing_zeros() / BITS;
                    let window = number * SHARING + place as usize;
                    each(window, blocks_of(class, word, window));
                    word &= !(BITS_OF_WINDOW << (BITS * place));
                }
            }
            return;
        }
        for (window, word) in self.remote().iter().enumerate() {
            let bits = remote::take(word);
            if bits != 0 {
                each(window, bits);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::class::{CLASSES, GRANULE_SHIFT};
    use super::super::tests::space;
    use super::*;

    #[test]
    fn the_tag_of_a_page_says_where_it_is_noted() {
        for (heap, pending) in [(1, 0), (2, 0), (0x7_ffff, 0), (1, tag::PENDING), (0x7_ffff, tag::PENDING)] {
            for class in 0..=CLASSES_IN_TAG {
                assert_eq!(is_noted_in_mark(tag::tag(heap, class) | pending), is_in_mark(class), "{class}");
            }
        }
    }

    /// How it is noted, and how it is read, are two functions for each of the two places.
    #[test]
    fn each_block_that_is_noted_is_the_one_that_is_taken() {
        let space = space();
        let mut pages = [0; CLASSES];
        assert_eq!(space.take_pages(&mut pages, 0), CLASSES, "memory");
        for (class, page) in pages.into_iter().enumerate().skip(1) {
            let (shape, page) = (&SHAPES[class], space.page(page).expect("just taken"));
            for block in 0..u32::from(shape.blocks) {
                let address = page.address() + (shape.first + block * shape.bytes) as usize;
                let granule = address >> GRANULE_SHIFT;
                let (window, bit) = (granule / 64 % WINDOWS, 1 << (granule % 64));
                assert_eq!(page.freed_in_window(class, window) & bit, 0, "{} bytes: {block}", shape.bytes);
                let (word, noted) = place(tag::tag(0, class), granule, page.mark(), &page.remote()[window]);
                assert!(remote::free(word, noted), "{} bytes: nobody noted {block} before", shape.bytes);
                assert_eq!(page.freed_in_window(class, window) & bit, bit);
                assert_eq!(page.freed_by_others(class)[window] & bit, bit);
            }
            let first = gone_of_first_window(
                tag::tag(0, class),
                !shape.starts[0],
                place(tag::tag(0, class), page.address() >> GRANULE_SHIFT, page.mark(), &page.remote()[0]).0,
            );
            assert_eq!(first, u64::MAX, "{} bytes", shape.bytes);
            let mut taken = [0; WINDOWS];
            page.take_freed(class, |window, bits| taken[window] |= bits);
            assert_eq!(taken, shape.starts, "{} bytes: all of them, and nothing else", shape.bytes);
            page.take_freed(class, |_, _| panic!("all were taken"));
        }
    }
}
