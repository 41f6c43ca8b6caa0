//! Where a block of a [span](super::spans) is noted: in the mark of the page in which it begins, where a free
//! finds it with the tag.
//!
//! ```text
//!   tag      of a span, and of no heap: the same for all
//!   free     15   12 11     7 6         0
//!            ├ number ┼ length ┼ first ────┤     of the page in its span; units of 256 bytes to the first block that begins in the page, as many as a page has if none does
//!   idle     for each of the up to four blocks that begin there 1 if it does not live
//!   links    for each of them the next one that its heap keeps
//! ```
//!
//! So whether a block begins at an address is a multiplication by the inverse of its length, and a comparison.
//! With a division for it, and one by the length for its number, a stack of buffers (the peers' workload
//! `buffers`) took a third longer than with page runs.
//!
//! A free sets *idle* by an atomic exchange: who finds it set has met a second free, of whatever thread. A
//! block that is kept or pooled has it set; who takes it from there clears it by a store, which nobody else
//! does meanwhile.

use super::lengths::{CUTS, LONGEST, Length, SPANS, UNIT, fits_span};
use super::mark::Mark;
use crate::arena::HEAP_PAGE_BYTES;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Where the state of a block is.
#[derive(Clone, Copy)]
pub(super) struct SpanPlace {
    /// Of the page in which it begins.
    mark: &'static Mark,
    /// Which of those that begin there it is.
    block: usize,
}

/// What the mark of a page says of its place in a span. What is none can be read where somebody else has the
/// page by now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct SpanPage(u16);

impl SpanPage {
    pub(super) fn new(number: usize, length: Length) -> Self {
        let (start, units) = (number * PAGE_UNITS, CUTS[length].bytes() / UNIT);
        let first = (start.next_multiple_of(units) - start).min(PAGE_UNITS);
        Self((number << 12 | (length - LONGEST) << 7 | first) as u16)
    }

    #[inline(always)]
    pub(super) fn of(mark: &Mark) -> Self {
        Self(mark.free())
    }

    /// Notes it.
    pub(super) fn note(self, mark: &Mark) {
        mark.set_free(self.0);
    }

    pub(super) fn number(self) -> usize {
        usize::from(self.0 >> 12)
    }

    #[inline(always)]
    pub(super) fn length(self) -> Option<Length> {
        let span = usize::from(self.0 >> 7 & 31);
        if span < SPANS { Some(LONGEST + span) } else { None }
    }

    /// Bytes to the first block that begins there.
    #[inline(always)]
    fn first(self) -> usize {
        usize::from(self.0 & 127) * UNIT
    }
}

/// Units of a heap page.
const PAGE_UNITS: usize = HEAP_PAGE_BYTES / UNIT;

const _: () = assert!(SPANS <= 32 && PAGE_UNITS < 128);

/// Bytes of a block.
#[inline(always)]
fn bytes_of(length: Length) -> usize {
    CUTS[length].bytes()
}

/// 2³² divided by the bytes of a block of each span, rounded up.
const INVERSES: [u64; SPANS] = {
    let (mut inverses, mut span) = ([0; SPANS], 0);
    while span < SPANS {
        inverses[span] = (1u64 << 32).div_ceil(CUTS[LONGEST + span].bytes() as u64);
        span += 1;
    }
    inverses
};

/// Which block it is that lies so many bytes behind the first one of its page: a division, by a multiplication.
/// Of what lies in no page any number.
#[inline(always)]
fn block_behind(behind: usize, length: Length) -> usize {
    ((behind as u32 as u64 * INVERSES[length - LONGEST]) >> 32) as usize
}

impl SpanPlace {
    /// The place of a block of a length that begins in a page. Who walks while its owner goes on may have found a page
    /// that is of something else by now: then it is one of that mark, whichever.
    #[inline(always)]
    pub(super) fn of_block(mark: &'static Mark, address: usize, length: Length) -> Self {
        let behind = (address % HEAP_PAGE_BYTES).wrapping_sub(SpanPage::of(mark).first());
        Self { mark, block: block_behind(behind, length) }
    }

    /// The place of the block that begins so many bytes into a page, with its length. `None`: none does.
    #[inline(always)]
    pub(super) fn find(mark: &'static Mark, offset: usize) -> Option<(Self, Length)> {
        let page = SpanPage::of(mark);
        let length = page.length()?;
        let (behind, bytes) = (offset.wrapping_sub(page.first()), bytes_of(length));
        let block = block_behind(behind, length);
        if behind != block * bytes {
            return None;
        }
        Some((Self { mark, block }, length))
    }

    #[inline(always)]
    pub(super) fn link(self) -> &'static AtomicUsize {
        self.mark.span_link(self.block)
    }

    pub(super) fn is_idle(self) -> bool {
        self.mark.idle(self.block).load(Ordering::Relaxed) != 0
    }

    /// It lives from now on: by who has taken it.
    #[inline(always)]
    pub(super) fn begin(self) {
        self.mark.idle(self.block).store(0, Ordering::Relaxed);
    }

    /// It does not live any more. Says no where it did not.
    #[inline(always)]
    pub(super) fn end(self) -> bool {
        self.mark.idle(self.block).swap(1, Ordering::AcqRel) == 0
    }
}

/// Whether a request of so many bytes can have got a block of the span that a page with that mark is of.
#[inline(always)]
pub(super) fn is_of_length(mark: &Mark, bytes: usize) -> bool {
    SpanPage::of(mark).length().is_some_and(|length| fits_span(bytes, length))
}

#[cfg(test)]
mod tests {
    use super::super::tests::space;
    use super::*;

    /// A walk beside two threads that handed blocks to each other ended with an overflow, in a build that looks for
    /// those.
    #[test]
    fn a_page_that_is_of_something_else_by_now_has_places_too() {
        let space = space();
        let mut pages = [0];
        assert_eq!(space.take_pages(&mut pages, 0), 1, "memory");
        let page = space.page(pages[0]).expect("just taken");
        // Its first block begins behind that of which the place is asked for.
        for free in [1, 127, u16::MAX] {
            page.mark().set_free(free);
            for length in LONGEST..LONGEST + SPANS {
                let place = SpanPlace::of_block(page.mark(), page.address(), length);
                let links = core::array::from_fn::<_, 4, _>(|block| {
                    core::ptr::from_ref(page.mark().span_link(block))
                });
                assert!(links.contains(&core::ptr::from_ref(place.link())), "{length}: {free}");
                assert!(!place.is_idle());
            }
        }
        page.mark().set_free(0);
    }
}
