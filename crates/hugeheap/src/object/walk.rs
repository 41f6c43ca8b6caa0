//! A walk over everything that is cut into blocks: regions, arenas, heap pages, blocks; and the statistics of
//! classes made from it.
//!
//! ```text
//!   Region ─▶ Arena ─▶ Page ─▶ blocks      from low addresses to high ones; an arena only if a heap has a page in it
//!      │         └ 2 MiB with at least one tag
//!      └ the parts of it that the arenas have mapped
//! ```
//!
//! Reads tags and bitmaps; allocates nothing, changes nothing, touches no block. The arenas' lock is held only
//! to ask for a range or for the length of a run.
//!
//! Other threads go on meanwhile. Of each page the walk sees one moment: its tag is the same before and after
//! its bitmap was read. Two pages may be of two moments. Blocks that a thread has freed in another's page count
//! as free as soon as the page is announced as pending; those in quarantine are free.
//!
//! Page runs without a tag and large blocks belong to no heap; the arenas' snapshot counts them.

use super::class::{Class, GRANULE_SHIFT, SHAPES, SIZES, WINDOWS, plain};
use super::lengths::{CUTS, Cut, LONGEST, SPANS};
use super::runs::bytes_of;
use super::space::{Page, Source, Space};
use super::spans::Span;
use super::tag::{self, RUN, SPAN, SPARE};
use crate::arena::{ARENA_BYTES, HEAP_PAGE_BYTES};
use core::fmt;
use core::sync::atomic::{Ordering, fence};
use hugeheap_os::AddressRange;

/// What a walk comes to.
#[derive(Clone, Copy, Debug)]
pub enum Walk {
    /// A region in which heap pages are cut into blocks. Its arenas follow.
    Region(AddressRange),
    /// An arena in which a heap has a page. Those pages follow.
    Arena(AddressRange),
    /// A heap page that belongs to a heap.
    Page(WalkedPage),
}

/// A heap page of a heap, as it was at one moment.
#[derive(Clone, Copy, Debug)]
pub struct WalkedPage {
    /// Its first byte.
    pub address: usize,
    /// The number of its heap; 0: of a span, whose blocks are any heap's.
    pub heap: u32,
    /// What it is used for.
    pub content: Content,
    /// Its place in [`Statistics::classes`].
    kind: usize,
    live: [u64; WINDOWS],
}

/// What a heap page is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Cut into blocks of that many bytes. Those of a span may be longer than the page: they are told of where
    /// they begin.
    Blocks(usize),
    /// Kept without blocks.
    Spare,
    /// It begins a page run, or a large block of a hardened heap, of that many bytes, which is in use.
    Run(usize),
    /// It begins a page run of that many bytes that the heap keeps for later.
    KeptRun(usize),
}

impl WalkedPage {
    /// Number of live blocks that begin there.
    pub fn live_blocks(&self) -> u32 {
        self.live.iter().map(|word| word.count_ones()).sum()
    }

    /// Addresses of the live blocks, upwards.
    pub fn blocks(&self) -> impl Iterator<Item = usize> + '_ {
        self.live.iter().enumerate().flat_map(move |(window, &word)| {
            let base = self.address + (window << (GRANULE_SHIFT + 6));
            let rest = core::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
            rest.take_while(|&word| word != 0)
                .map(move |word| base + ((word.trailing_zeros() as usize) << GRANULE_SHIFT))
        })
    }
}

impl<S: Source> Space<S> {
    /// Walks over all regions, arenas and heap pages of this space's heaps, upwards within each region.
    ///
    /// `see` must not allocate or free in this space: the walk would be of a heap that the walk itself changes.
    pub fn walk(&self, see: &mut dyn FnMut(Walk)) {
        for region in self.regions() {
            see(Walk::Region(AddressRange { start: region.start, len: region.bytes() }));
            for index in 0.. {
                let Some(range) = self.source().with(|arenas| arenas.mapped_range(index)) else { break };
                if range.start.wrapping_sub(region.start) < region.bytes() {
                    (range.start..range.start + range.len)
                        .step_by(ARENA_BYTES)
                        .for_each(|arena| self.walk_arena(arena, see));
                }
            }
        }
    }

    fn walk_arena(&self, arena: usize, see: &mut dyn FnMut(Walk)) {
        if !self.has_metadata(arena) {
            return;
        }
        let mut told = false;
        for address in (arena..arena + ARENA_BYTES).step_by(HEAP_PAGE_BYTES) {
            let Some(page) = self.page(address).and_then(|page| self.look(page)) else { continue };
            if !core::mem::replace(&mut told, true) {
                see(Walk::Arena(AddressRange { start: arena, len: ARENA_BYTES }));
            }
            see(Walk::Page(page));
        }
    }

    /// A page as it is at one moment; `None` when it is no heap's.
    fn look(&self, page: Page) -> Option<WalkedPage> {
        loop {
            let seen = page.tag();
            if seen == 0 {
                return None;
            }
            let (class, address) = (tag::class(seen), page.address());
            let (mut kind, mut live) = (class, [0; WINDOWS]);
            let content = match class {
                SPARE => Content::Spare,
                RUN => {
                    let kept = page.vacant()[0].load(Ordering::Relaxed) & 1 == 1;
                    let bytes = bytes_of(page);
                    if kept { Content::KeptRun(bytes) } else { Content::Run(bytes) }
                }
                SPAN => match Span::of(page) {
                    Some(span) => {
                        kind = SIZES + span.length - LONGEST;
                        for (block, _) in span.blocks_in(page).filter(|(_, idle)| !idle) {
                            let granule = (block - address) >> GRANULE_SHIFT;
                            live[granule / 64] |= 1 << (granule % 64);
                        }
                        Content::Blocks(span.cut().bytes())
                    }
                    // It is being made, or given back: of no moment at which it is a span.
                    None => return None,
                },
                _ => {
                    live = live_words(page, class, tag::is_pending(seen));
                    kind = plain(class);
                    Content::Blocks(SHAPES[class].bytes as usize)
                }
            };
            fence(Ordering::Acquire);
            // Pending may come and go: the bitmap is of this class all the same.
            if page.tag() & !tag::PENDING == seen & !tag::PENDING {
                return Some(WalkedPage { address, heap: tag::heap(seen), content, kind, live });
            }
        }
    }

    /// What the heaps of this space have, by class.
    pub fn statistics(&self) -> Statistics {
        let mut sum = Statistics::NONE;
        let blocks = SHAPES[..SIZES].iter().map(|shape| shape.bytes as usize);
        let bytes = blocks.chain(CUTS[LONGEST..].iter().map(Cut::bytes));
        for (class, bytes) in sum.classes.iter_mut().zip(bytes) {
            class.block_bytes = bytes;
        }
        self.walk(&mut |step| sum.add(&step));
        for class in &mut sum.classes {
            // A span may have begun or ended between two of its pages.
            class.free_bytes = (class.pages * HEAP_PAGE_BYTES).saturating_sub(class.live_bytes);
        }
        sum
    }
}

/// The live blocks of a page. The bitmap of other threads is read only where the tag says that it has bits: it
/// is not resident elsewhere.
fn live_words(page: Page, class: Class, pending: bool) -> [u64; WINDOWS] {
    let (shape, mut live) = (&SHAPES[class], [0; WINDOWS]);
    for window in (0..WINDOWS).filter(|&window| shape.starts[window] != 0) {
        let freed = if pending { page.freed_in_window(class, window) } else { 0 };
        live[window] = shape.starts[window] & !page.vacant()[window].load(Ordering::Relaxed) & !freed;
    }
    live
}

/// What the heaps of a space have of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStatistics {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Heap pages.
    pub pages: usize,
    /// Live blocks.
    pub live_blocks: usize,
    /// Bytes of those.
    pub live_bytes: usize,
    /// Bytes of the pages without live blocks, the rest behind the last block included.
    pub free_bytes: usize,
}

impl ClassStatistics {
    const NONE: Self = Self { block_bytes: 0, pages: 0, live_blocks: 0, live_bytes: 0, free_bytes: 0 };
}

/// What the heaps of a space have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// By class, from small blocks to large ones: those of heap pages, of which the first has none, and those of spans.
    pub classes: [ClassStatistics; SIZES + SPANS],
    /// Regions in which there are heap pages.
    pub regions: usize,
    /// Arenas in which a heap has a page.
    pub arenas: usize,
    /// Heap pages kept without blocks.
    pub spare_pages: usize,
    /// Page runs (and large blocks of hardened heaps) in use.
    pub runs: usize,
    /// Bytes of those.
    pub run_bytes: usize,
    /// Bytes of page runs that heaps keep for later. (Blocks of spans that are kept count as free.)
    pub kept_run_bytes: usize,
}

impl Statistics {
    const NONE: Self = Self {
        classes: [ClassStatistics::NONE; SIZES + SPANS],
        regions: 0,
        arenas: 0,
        spare_pages: 0,
        runs: 0,
        run_bytes: 0,
        kept_run_bytes: 0,
    };

    fn add(&mut self, step: &Walk) {
        let page = match step {
            Walk::Region(_) => return self.regions += 1,
            Walk::Arena(_) => return self.arenas += 1,
            Walk::Page(page) => page,
        };
        match page.content {
            Content::Blocks(bytes) => {
                let (class, live) = (&mut self.classes[page.kind], page.live_blocks() as usize);
                class.pages += 1;
                class.live_blocks += live;
                class.live_bytes += live * bytes;
            }
            Content::Spare => self.spare_pages += 1,
            Content::Run(bytes) => {
                self.runs += 1;
                self.run_bytes += bytes;
            }
            Content::KeptRun(bytes) => self.kept_run_bytes += bytes,
        }
    }

    /// Bytes of live blocks of all classes.
    pub fn live_bytes(&self) -> usize {
        self.classes.iter().map(|class| class.live_bytes).sum()
    }

    /// Writes a JSON object: the numbers, and an array of the classes that have pages. Allocates nothing by itself.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_json(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        write!(to, "{{\"regions\": {}, \"arenas\": {}", self.regions, self.arenas)?;
        write!(to, ", \"spare_pages\": {}, \"runs\": {}", self.spare_pages, self.runs)?;
        write!(to, ", \"run_bytes\": {}, \"kept_run_bytes\": {}", self.run_bytes, self.kept_run_bytes)?;
        to.write_str(", \"classes\": [")?;
        for (index, class) in self.classes.iter().filter(|class| class.pages > 0).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            let ClassStatistics { block_bytes, pages, live_blocks, live_bytes, free_bytes } = class;
            write!(
                to,
                "{comma}{{\"block_bytes\": {block_bytes}, \"pages\": {pages}, \"live_blocks\": {live_blocks}"
            )?;
            write!(to, ", \"live_bytes\": {live_bytes}, \"free_bytes\": {free_bytes}}}")?;
        }
        to.write_str("]}")
    }
}
