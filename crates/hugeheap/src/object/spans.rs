//! Spans: page runs that are cut into blocks of one [length](super::lengths), for requests of which whole heap
//! pages would waste much.
//!
//! ```text
//!   heap pages    ├ head ─────────┼───────────────┼───────────────┤       3 pages, 4 blocks of 12 KiB
//!   blocks        ├ 0 ────────┼ 1 ────────┼ 2 ────────┼ 3 ────────┤
//!   begin there     0, 1            2               3
//!
//!   mark of each page    its place in the span, and what is noted of the blocks that begin there: see `span_place`
//!   words of the head    pooled: blocks that nobody keeps     gone: those of them whose OS pages were given back
//!
//!   live ── free ─▶ kept, by the heap of whoever frees it ── spilled, surplus ─▶ pooled ── all of a span are ─▶ the arenas
//!    ▲                 │                                                          │
//!    └─────────────────┴──────────────────────────────────────────────────────────┘
//! ```
//!
//! A span belongs to no heap: its blocks are taken and freed by any thread, and each heap keeps some, by the
//! same rules as page runs (see [`run_cache`](super::run_cache)). So nothing has to be handed to an owner, and
//! the pooled blocks of all threads fill the same spans. Of several that have pooled blocks the one with the
//! fewest is used first, so that others drain.
//!
//! The lock of the pool is taken alone, and nothing else is locked under it (but the arenas by the verifier,
//! who is alone). Who holds it may read and change the words of all heads, and no block is taken out of the
//! pool meanwhile.
//!
//! A thread that is stopped between the pool and its heap, and is missing in a forked child, takes that block
//! with it there.

use super::class::{GRANULE_SHIFT, WINDOWS};
use super::heap::{Core, Heap};
use super::lengths::{CUTS, Cut, LONGEST, Length, MOST_BLOCKS, SPANS, fits_span, is_span};
use super::mark::{Mark, SPAN_BLOCKS};
use super::mistake::Mistake;
use super::run_cache::{Kept, Spilled};
use super::space::{Page, Source, Space};
use super::span_place::{SpanPage, SpanPlace};
use super::tag::{self, SPAN};
use crate::arena::HEAP_PAGE_BYTES;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The tag of all pages of spans.
pub(super) const SPANNED: u32 = tag::tag(0, SPAN);

/// Words of a head's bitmap, by what they are for. Read and written under the lock of the pool.
const POOLED: usize = 0;
/// See [`span_vacancy`](super::span_vacancy).
pub(super) const GONE: usize = 1;
pub(super) const LOOKED: usize = 2;
const NEXT: usize = 3;
const PREVIOUS: usize = 4;

const _: () = assert!(PREVIOUS < WINDOWS && MOST_BLOCKS <= 64);

/// Bytes of blocks that a heap takes out of the pool at once, one to be used and the others to be kept: the
/// lock is paid once for a few. A heap of 51 MiB in blocks of 4 to 8 KiB is filled, and emptied at random, six
/// times in 61 million instructions instead of 71.
const AT_ONCE: usize = 32 << 10;

/// KiB of pooled blocks that are news for the arenas: as much as in heap pages that heaps have in lists.
const TOLD: u32 = 1 << 10;

/// Spans with pooled blocks.
#[derive(Debug)]
pub(super) struct Pool {
    /// Heads, as addresses, by length and by how many of the blocks are pooled, less one. Spans without a
    /// pooled block are in no list.
    first: [[usize; MOST_BLOCKS]; SPANS],
    /// KiB that came since the arenas were told.
    news: u32,
}

/// A span, by its first page.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) head: Page,
    pub(super) length: Length,
}

/// Blocks of a span that were taken out of the pool.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    span: Span,
    /// The number of the one that lives now.
    first: usize,
    /// Those that do not live: the heap that wanted one keeps them, or gives them back.
    more: u64,
}

impl Taken {
    /// The first blocks of a set, which is not empty.
    fn choose(span: Span, from: u64, most: usize) -> Self {
        let (mut left, mut more) = (from & (from - 1), 0);
        for _ in 1..most {
            more |= left & left.wrapping_neg();
            left &= left.saturating_sub(1);
        }
        Self { span, first: from.trailing_zeros() as usize, more }
    }

    /// The block that lives.
    pub(super) fn first(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.span.address_of(self.first) as *mut u8)
    }

    /// Whether there are others than the first.
    pub(super) fn has_more(&self) -> bool {
        self.more != 0
    }

    /// The others.
    pub(super) fn more(&self) -> impl Iterator<Item = Kept> {
        let Self { span, more, .. } = *self;
        let numbers = (0..span.cut().blocks as usize).filter(move |number| more >> number & 1 != 0);
        numbers.map(move |number| Kept { address: span.address_of(number), length: span.length })
    }
}

/// A block of a span.
#[derive(Clone, Copy)]
pub(super) struct SpanBlock {
    span: Span,
    /// Its number in the span.
    number: usize,
    place: SpanPlace,
}

/// Blocks of a length that are taken at once.
fn at_once(length: Length) -> usize {
    (AT_ONCE / CUTS[length].bytes()).max(1)
}

impl Span {
    /// The span that a page belongs to, which has the tag of one. `None`: it is being made, or given back.
    pub(super) fn of(page: Page) -> Option<Self> {
        let place = SpanPage::of(page.mark());
        let length = place.length()?;
        let head = page.before(place.number()).filter(|head| head.tag() == SPANNED)?;
        (SpanPage::of(head.mark()) == SpanPage::new(0, length)).then_some(Self { head, length })
    }

    /// The span that begins at a page, if one does.
    pub(super) fn at(page: Page) -> Option<Self> {
        if page.tag() == SPANNED {
            Self::of(page).filter(|span| span.head.address() == page.address())
        } else {
            None
        }
    }

    pub(super) fn cut(self) -> &'static Cut {
        &CUTS[self.length]
    }

    pub(super) fn all(self) -> u64 {
        (1 << self.cut().blocks) - 1
    }

    /// A word of the head.
    pub(super) fn word(self, word: usize) -> u64 {
        self.head.vacant()[word].load(Ordering::Relaxed)
    }

    pub(super) fn set_word(self, word: usize, value: u64) {
        self.head.vacant()[word].store(value, Ordering::Relaxed);
    }

    pub(super) fn pooled(self) -> u64 {
        self.word(POOLED)
    }

    fn address_of(self, number: usize) -> usize {
        self.head.address() + number * self.cut().bytes()
    }

    /// The place of a block.
    fn place_of(self, number: usize) -> SpanPlace {
        let address = self.address_of(number);
        let page = self.head.behind((address - self.head.address()) / HEAP_PAGE_BYTES);
        SpanPlace::of_block(page.mark(), address, self.length)
    }

    /// Its pages.
    pub(super) fn pages(self) -> impl Iterator<Item = Page> {
        (0..self.cut().pages as usize).map(move |number| self.head.behind(number))
    }

    /// The blocks that begin in one of its pages, as addresses, and which of them do not live.
    pub(super) fn blocks_in(self, page: Page) -> impl Iterator<Item = (usize, bool)> {
        let bytes = self.cut().bytes();
        let first = (page.address() - self.head.address()).div_ceil(bytes);
        let numbers = first..self.cut().blocks as usize;
        let within = numbers.map(move |number| (number, self.address_of(number)));
        within
            .take_while(move |&(_, address)| address < page.address() + HEAP_PAGE_BYTES)
            .map(move |(number, address)| (address, self.place_of(number).is_idle()))
    }
}

impl SpanBlock {
    /// The block that begins at an address in a page with the tag of a span.
    pub(super) fn at(page: Page, address: usize) -> Result<Self, Mistake> {
        let Some(span) = Span::of(page) else { return Err(Mistake::NotLive { bytes: 0 }) };
        let (offset, bytes) = (address.wrapping_sub(span.head.address()), span.cut().bytes());
        let number = offset / bytes;
        match SpanPlace::find(page.mark(), address % HEAP_PAGE_BYTES) {
            Some((place, _)) if number < span.cut().blocks as usize => Ok(Self { span, number, place }),
            _ => Err(Mistake::Interior { bytes }),
        }
    }

    pub(super) fn length(&self) -> Length {
        self.span.length
    }

    pub(super) fn bytes(&self) -> usize {
        self.span.cut().bytes()
    }

    pub(super) fn check_live(&self) -> Result<(), Mistake> {
        if self.place.is_idle() { Err(Mistake::NotLive { bytes: self.bytes() }) } else { Ok(()) }
    }

    /// Whether a request of so many bytes can have got it.
    pub(super) fn fits(&self, bytes: usize) -> bool {
        fits_span(bytes, self.length())
    }

    fn kept(&self) -> Kept {
        Kept { address: self.span.address_of(self.number), length: self.length() }
    }
}

impl Pool {
    pub(super) const NONE: Self = Self { first: [[0; MOST_BLOCKS]; SPANS], news: 0 };

    /// The list of the spans of a length of which so many blocks are pooled.
    fn list(&mut self, length: Length, pooled: u64) -> Option<&mut usize> {
        self.first[length - LONGEST].get_mut((pooled.count_ones() as usize).wrapping_sub(1))
    }

    /// Notes which blocks of a span are pooled, and puts it where it belongs. `find`: the page at an address.
    fn set_pooled(&mut self, span: Span, pooled: u64, find: impl Fn(usize) -> Option<Page>) {
        let was = span.pooled();
        if let Some(first) = self.list(span.length, was) {
            let (next, previous) = (span.word(NEXT), span.word(PREVIOUS));
            match find(previous as usize) {
                Some(previous) => previous.vacant()[NEXT].store(next, Ordering::Relaxed),
                None => *first = next as usize,
            }
            if let Some(next) = find(next as usize) {
                next.vacant()[PREVIOUS].store(previous, Ordering::Relaxed);
            }
        }
        span.set_word(POOLED, pooled);
        // One that is in the pool as a whole goes to the arenas.
        if pooled == span.all() {
            return;
        }
        if let Some(first) = self.list(span.length, pooled) {
            let (next, start) = (*first, span.head.address());
            *first = start;
            span.set_word(NEXT, next as u64);
            span.set_word(PREVIOUS, 0);
            if let Some(next) = find(next) {
                next.vacant()[PREVIOUS].store(start as u64, Ordering::Relaxed);
            }
        }
    }

    /// Takes out what was chosen of a span of which those blocks are pooled.
    fn take(&mut self, taken: Taken, pooled: u64, find: impl Fn(usize) -> Option<Page>) -> Taken {
        let Taken { span, first, more } = taken;
        self.set_pooled(span, pooled & !(1 << first | more), find);
        span.place_of(first).begin();
        taken
    }

    /// The head of the span of a length with the fewest pooled blocks.
    fn fullest(&self, length: Length) -> Option<usize> {
        self.first[length - LONGEST].iter().copied().find(|&head| head != 0)
    }
}

impl<S: Source> Heap<S> {
    /// Frees the block of a span at a granule of the first region, in a page with the tag of one and that mark.
    /// Says no, with nothing changed, when none is live there.
    #[inline(never)]
    pub(super) fn free_in_span(core: NonNull<Core<S>>, granule: usize, mark: &'static Mark) -> bool {
        let mut heap = Self::borrowed(core);
        let own = heap.own();
        let address = own.base + (granule << GRANULE_SHIFT);
        let Some((place, length)) = SpanPlace::find(mark, address % HEAP_PAGE_BYTES) else { return false };
        if !place.end() {
            return false;
        }
        let block = Kept { address, length };
        let keeping = heap.try_keeping();
        let kept = keeping.is_some_and(|_keeping| heap.own().runs.keep(block, |_| place.link()));
        // Also where somebody holds the heap: it is waited for there.
        kept || Self::spill(core, block)
    }
}

impl<S: Source> Space<S> {
    /// Frees the block of a span at an address in a page with the tag of one, for who keeps none.
    pub(super) fn free_to_pool(&self, page: Page, address: usize) -> Result<(), Mistake> {
        let block = SpanBlock::at(page, address)?;
        if !block.place.end() {
            return Err(Mistake::NotLive { bytes: block.bytes() });
        }
        let mut given = Spilled::none();
        given.add(block.kept());
        self.give_runs(&given);
        Ok(())
    }

    /// A live block of a length, of a span that has one pooled, or of a new one; and some more, if they are short.
    pub(super) fn take_blocks(&self, length: Length) -> Option<Taken> {
        self.take_pooled(length).or_else(|| self.new_span(length))
    }

    /// Bytes of all spans, from which requests between [`MAX_BINNED`](super::MAX_BINNED) and 72 KiB are served,
    /// live and kept; and the most there ever were.
    pub fn span_bytes(&self) -> (usize, usize) {
        let bytes = |pages: &AtomicUsize| pages.load(Ordering::Relaxed) * HEAP_PAGE_BYTES;
        (bytes(&self.span_pages), bytes(&self.most_span_pages))
    }

    fn take_pooled(&self, length: Length) -> Option<Taken> {
        let mut pool = self.spans.lock();
        let span = Span { head: self.page(pool.fullest(length)?)?, length };
        let (pooled, gone) = (span.pooled(), span.word(GONE));
        // Those that are resident, if there are. What is not is brought back for who needs it only.
        let (from, most) = match pooled & !gone {
            0 => (pooled, 1),
            resident => (resident, at_once(length)),
        };
        let taken = pool.take(Taken::choose(span, from, most), pooled, |address| self.page(address));
        span.set_word(GONE, gone & !(1 << taken.first));
        Some(taken)
    }

    /// Takes a page run from the arenas, cuts it, and takes its first blocks.
    fn new_span(&self, length: Length) -> Option<Taken> {
        let cut = CUTS[length];
        let start = self.source().with(|arenas| arenas.allocate(cut.pages))?.get();
        let ready = |page: usize| self.page_or_add(start + page * HEAP_PAGE_BYTES).is_some();
        if !(0..cut.pages as usize).all(ready) {
            let freed = self.free_pages(start);
            debug_assert!(freed.is_ok(), "just allocated");
            return None;
        }
        let span = Span { head: self.page(start)?, length };
        for word in [POOLED, GONE, NEXT, PREVIOUS] {
            span.set_word(word, 0);
        }
        // No state that a look can have seen.
        span.set_word(LOOKED, u64::MAX);
        // Afterwards, and the head first: who finds a page of a span looks there.
        for (number, page) in span.pages().enumerate() {
            SpanPage::new(number, length).note(page.mark());
            for block in 0..SPAN_BLOCKS {
                page.mark().idle(block).store(1, Ordering::Relaxed);
            }
            page.mark().tag.store(SPANNED, Ordering::Release);
        }
        let pages = self.span_pages.fetch_add(cut.pages as usize, Ordering::Relaxed) + cut.pages as usize;
        self.most_span_pages.fetch_max(pages, Ordering::Relaxed);
        let taken = Taken::choose(span, span.all(), at_once(length));
        Some(self.spans.lock().take(taken, span.all(), |address| self.page(address)))
    }

    /// Puts blocks that do not live into the pool. `ended` is told of each span of which all are there now.
    /// Nobody finds it any more: it is in no list, and none of its blocks lives or is kept. It is to go to the
    /// arenas.
    pub(super) fn give_blocks(&self, blocks: impl Iterator<Item = Kept>, mut ended: impl FnMut(Span)) {
        let mut pool = self.spans.lock();
        for block in blocks {
            let found = self.page(block.address).map(|page| SpanBlock::at(page, block.address));
            let Some(Ok(SpanBlock { span, number, .. })) = found else { continue };
            let pooled = span.pooled() | 1 << number;
            pool.set_pooled(span, pooled, |address| self.page(address));
            pool.news += span.cut().kib();
            if pooled == span.all() {
                ended(span);
            }
        }
        let news = if pool.news < TOLD { 0 } else { core::mem::take(&mut pool.news) };
        drop(pool);
        if news > 0 {
            let pages = (news as usize).div_ceil(HEAP_PAGE_BYTES >> 10);
            self.source().with(|arenas| arenas.became_partial(pages as u64));
        }
    }

    /// Compares the lists of the pool with what the heads of all spans say. `pages`: all pages of the space.
    pub(super) fn verify_spans(&self, pages: impl Iterator<Item = Page>) -> Result<(), String> {
        let pool = self.spans.lock();
        let mut listed = 0;
        for page in pages.filter(|page| page.tag() == SPANNED) {
            let span = Span::of(page).ok_or("a page of no span")?;
            let number = (page.address() - span.head.address()) / HEAP_PAGE_BYTES;
            if SpanPage::of(page.mark()) != SpanPage::new(number, span.length) {
                return Err(format!("page {:#x} has no place in its span", page.address()));
            }
            if number != 0 {
                continue;
            }
            let start = page.address();
            let run = self.source().with(|arenas| arenas.run_bytes(start));
            if run != Ok(span.cut().pages as usize * HEAP_PAGE_BYTES) {
                return Err(format!("span {start:#x} is {run:?} for the arenas"));
            }
            let idle = (0..span.cut().blocks as usize).filter(|&number| span.place_of(number).is_idle());
            let idle = idle.fold(0, |idle, number| idle | 1u64 << number);
            if span.pooled() & !idle != 0 || span.word(GONE) & !span.pooled() != 0 {
                return Err(format!(
                    "span {start:#x}: idle {idle:#x}, pooled {:#x}, gone {:#x}",
                    span.pooled(),
                    span.word(GONE)
                ));
            }
            listed += usize::from(span.pooled() != 0);
        }
        for (number, lists) in pool.first.iter().enumerate() {
            for (count, &first) in (1..).zip(lists) {
                let (mut next, mut previous) = (first, 0);
                while next != 0 {
                    let page = self
                        .page(next)
                        .filter(|page| page.tag() == SPANNED)
                        .ok_or("no span in a list of the pool")?;
                    let span = Span::of(page).ok_or("a span of no length in a list of the pool")?;
                    let right = span.length == LONGEST + number && span.pooled().count_ones() == count;
                    if !right || span.word(PREVIOUS) as usize != previous || listed == 0 {
                        return Err(format!("span {next:#x} in the wrong list, or a broken link"));
                    }
                    listed -= 1;
                    (previous, next) = (next, span.word(NEXT) as usize);
                }
            }
        }
        if listed == 0 { Ok(()) } else { Err(format!("{listed} spans with pooled blocks are in no list")) }
    }
}

const _: () = assert!(is_span(LONGEST) && !is_span(LONGEST - 1));
