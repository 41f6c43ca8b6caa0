//! OS pages of spans in which no live or kept block lies: looking for them, and giving them back.
//!
//! ```text
//!   span of 3 heap pages     ├ 0 ────────┼ 1 ────────┼ 2 ────────┼ 3 ────────┤       0, 1, 3 pooled
//!   OS pages                 x  x  x  x  x  x  -  -  -  x  x  x                      x: vacant
//!
//!   pooled  ─▶ looked: the same at the look before? quiet ─▶ dropped ─▶ gone, until they are taken out of the pool
//! ```
//!
//! As for [pages of blocks](super::vacancy), with one thing that is simpler: nobody takes a block out of the
//! pool without its lock, so who holds that drops what is vacant, and no owner has to be asked. A thread that
//! wants a block of a span of any length, and keeps none, waits for that: the calls for one span, of a few
//! microseconds each.

use super::lengths::Length;
use super::space::{Page, Source, Space};
use super::spans::{GONE, LOOKED, Span};
use super::vacate::drop_os_pages;
use crate::arena::HEAP_PAGE_BYTES;
use hugeheap_os::{AddressRange, Result as OsResult};

/// What a look at a span has found.
pub(super) struct SpanVacancy {
    /// Its heap pages.
    pub(super) pages: usize,
    /// Bytes of blocks that are live or kept.
    pub(super) live: usize,
    /// Bytes that can be given back.
    pub(super) bytes: usize,
    /// Whether it is as it was at the look before.
    pub(super) quiet: bool,
    /// Some OS pages were given back.
    pub(super) gone: bool,
}

impl Span {
    /// The OS pages that lie within blocks of a set, a bit each from the first one on.
    fn os_pages_within(self, blocks: u64, os_page: usize) -> u64 {
        let (bytes, mut within, mut number) = (self.cut().bytes(), 0, 0);
        while blocks >> number != 0 {
            number += (blocks >> number).trailing_zeros();
            let count = (blocks >> number).trailing_ones();
            let first = (number as usize * bytes).div_ceil(os_page);
            // What is behind the last block is nobody's.
            let last = number + count == self.cut().blocks;
            let end = if last { self.bytes() } else { (number + count) as usize * bytes } / os_page;
            if first < end {
                within |= (u64::MAX >> (64 - (end - first))) << first;
            }
            number += count;
        }
        within
    }

    fn bytes(self) -> usize {
        self.cut().pages as usize * HEAP_PAGE_BYTES
    }

    /// OS pages in which nothing lies that is live or kept, and which were not given back.
    fn vacant(self, os_page: usize) -> u64 {
        self.os_pages_within(self.pooled(), os_page) & !self.os_pages_within(self.word(GONE), os_page)
    }
}

// The longest span has 64 OS pages of 4 KiB.
const _: () = {
    let mut length: Length = 0;
    while length < super::lengths::LENGTHS {
        let cut = super::lengths::CUTS[length];
        assert!(cut.blocks == 1 || cut.pages as usize * HEAP_PAGE_BYTES / 4096 <= 64);
        length += 1;
    }
};

impl<S: Source> Space<S> {
    /// Does something with the span that begins at a page, while nobody takes a block out of the pool. `None`:
    /// none begins there, or it is about to go to the arenas as a whole.
    fn with_span<R>(&self, head: Page, work: impl FnOnce(Span) -> R) -> Option<R> {
        Span::at(head)?;
        let _pool = self.spans.lock();
        // Again: it may have been given back.
        Span::at(head).filter(|span| span.pooled() != span.all()).map(work)
    }

    /// Looks at the span that begins at a page, if one does.
    pub(super) fn look_at_span(&self, head: Page, os_page: usize) -> Option<SpanVacancy> {
        self.with_span(head, |span| {
            let (pooled, looked) = (span.pooled(), span.word(LOOKED));
            if looked != pooled {
                span.set_word(LOOKED, pooled);
            }
            SpanVacancy {
                pages: span.cut().pages as usize,
                live: (span.all() & !pooled).count_ones() as usize * span.cut().bytes(),
                bytes: span.vacant(os_page).count_ones() as usize * os_page,
                quiet: looked == pooled,
                gone: span.word(GONE) != 0,
            }
        })
    }

    /// Drops the OS pages of the span that begins at a page, if one does, in which nothing lies that is live or kept.
    pub(super) fn drop_vacant_of_span(
        &self,
        head: Page,
        os_page: usize,
        drop: &mut dyn FnMut(AddressRange) -> OsResult<()>,
        bytes: &mut usize,
    ) -> OsResult<()> {
        let dropped = self.with_span(head, |span| {
            drop_os_pages(head.address(), span.vacant(os_page), os_page, drop, bytes)?;
            span.set_word(GONE, span.pooled());
            Ok(())
        });
        dropped.unwrap_or(Ok(()))
    }

    /// That some of a span was given back is of no meaning any more.
    pub(super) fn forget_vacancy_of_span(&self, head: Page) {
        self.with_span(head, |span| span.set_word(GONE, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::lengths::{CUTS, LONGEST};

    #[test]
    fn vacant_os_pages_of_a_span_are_those_that_no_byte_of_another_block_lies_in() {
        let (space, mut heap) = crate::object::tests::heap();
        for (length, cut) in CUTS.iter().enumerate().skip(LONGEST) {
            let block = heap.allocate(cut.bytes()).expect("memory").as_ptr() as usize;
            let span = Span { head: space.page(block).expect("known"), length };
            for os_page in [4096, 8192, 16 << 10] {
                // All sets of few blocks; of many those of which the blocks next to each other are pooled or
                // not in a few places, which is what ranges depend on.
                let sets = (0..1u64 << cut.blocks)
                    .filter(|set| cut.blocks <= 8 || (set ^ set >> 1).count_ones() <= 4);
                for pooled in sets {
                    let lives = |byte: usize| {
                        let number = byte / cut.bytes();
                        number < cut.blocks as usize && pooled >> number & 1 == 0
                    };
                    let ends = |os: usize| (os * os_page, (os + 1) * os_page - 1);
                    let vacant = (0..span.bytes() / os_page).filter(|&os| {
                        let (first, last) = ends(os);
                        // The rest behind the last block goes with that.
                        let rest =
                            first >= cut.bytes() * cut.blocks as usize && pooled >> (cut.blocks - 1) & 1 == 0;
                        !rest && (first..=last).step_by(1024).all(|byte| !lives(byte)) && !lives(last)
                    });
                    let counted = vacant.fold(0, |pages, os| pages | 1u64 << os);
                    let within = span.os_pages_within(pooled, os_page);
                    assert_eq!(within, counted, "length {length}, pooled {pooled:#b}, {os_page}");
                }
            }
        }
    }
}
