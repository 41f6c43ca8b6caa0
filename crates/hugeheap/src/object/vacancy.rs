//! Looking for OS pages that no live block lies in, in heap pages of which others are live.
//!
//! ```text
//!   heap page, 16 KiB      ├ OS page 0 ──┼ 1 ──────────┼ 2 ──────────┼ 3 ──────────┤
//!   blocks of 640 bytes      x  .  .  .  .  .  .  .  .  .  .  .  x  .  .  .  .  .  .  .  .  .  .  .  .  .         x: live
//!   vacant                      no            yes           no           yes
//! ```
//!
//! A heap that shrinks to a tenth, at random, keeps nearly all of its heap pages: of 32 blocks one is live. No
//! heap page goes back, so the arenas see nothing that they could give back or break. But an OS page of eight
//! blocks has none with a probability of 0.43, and because the allocator keeps nothing inside of free blocks,
//! such a page can be [given back](super::vacate) alone.
//!
//! Nothing is locked and nobody waits: the owners of the heaps go on meanwhile, and what is found may be wrong
//! a moment later. It says where to look again. A page is *quiet* when its count of live blocks, without those
//! that others freed, and its place in the lists are what they were at the look before, half a decay time ago:
//! what a program uses is left alone. States of a page's [`Mark`](super::mark::Mark), for this:
//!
//! | looked | gone | |
//! |---|---|---|
//! | another state | | changed since the look before |
//! | the page's state | another state | quiet |
//! | | the page's state | quiet, and given back already |

use super::alike;
use super::class::{CLASSES, GRANULE_SHIFT, SHAPES, Shape, WINDOWS};
use super::space::{Page, Region, Source, Space};
use super::tables::GROUP_BYTES;
use super::tag::{self, SPAN};
use crate::arena::{ARENA_BYTES, HEAP_PAGE_BYTES, HEAP_PAGES, Vacancy};
use core::sync::atomic::Ordering;
use hugeheap_os::Facts;

/// Arenas looked at in one call. 150 of them, of pages used in part, took 10 ms, so a call takes as long as a
/// pass with sixteen steps may: what is asked of the maintenance thread meanwhile waits.
const LOOK: usize = 256;

/// The words of a page's bitmap, as they were read.
pub(super) type Words = [u64; WINDOWS];

/// What a look has found.
#[derive(Debug)]
pub(crate) struct Look {
    /// The arena after which the next one goes on; `None`: all was looked at.
    pub(crate) next: Option<usize>,
    /// There are vacant OS pages in heap pages that changed since the look before.
    pub(crate) later: bool,
}

/// OS pages of a heap page that no live block lies in, a bit each. None where an OS page is as large as a heap page.
pub(super) fn vacant_os_pages(shape: &Shape, vacant: &Words, os_page: usize) -> u16 {
    let (granules, block) = (os_page >> GRANULE_SHIFT, shape.bytes as usize >> GRANULE_SHIFT);
    if os_page >= HEAP_PAGE_BYTES {
        return 0;
    }
    let is_vacant = |page: &usize| {
        let first = page * granules;
        // A block that begins before the page may reach into it.
        !is_live_in(shape, vacant, first.saturating_sub(block - 1), first + granules)
    };
    (0..HEAP_PAGE_BYTES / os_page).filter(is_vacant).fold(0, |pages, page| pages | 1 << page)
}

/// Whether a live block begins at one of these granules of a page.
fn is_live_in(shape: &Shape, vacant: &Words, from: usize, end: usize) -> bool {
    let last = end - 1;
    (from / 64..=last / 64).any(|window| {
        let above = if window == from / 64 { u64::MAX << (from % 64) } else { u64::MAX };
        let below = if window == last / 64 { u64::MAX >> (63 - last % 64) } else { u64::MAX };
        shape.starts[window] & !vacant[window] & above & below != 0
    })
}

/// What is free in one of two bitmaps.
pub(super) fn both(one: &Words, other: &Words) -> Words {
    core::array::from_fn(|window| one[window] | other[window])
}

/// Live blocks of a page, by its bitmap.
pub(super) fn live_blocks(shape: &Shape, vacant: &Words) -> u32 {
    shape.starts.iter().zip(vacant).map(|(starts, vacant)| (starts & !vacant).count_ones()).sum()
}

impl Page {
    pub(super) fn words(self) -> Words {
        self.vacant().each_ref().map(|word| word.load(Ordering::Relaxed))
    }
}

impl<S: Source> Space<S> {
    /// Looks at the arenas after the one at an address (0: at all of them), and tells of each that has vacant
    /// OS pages or had some that were given back, until it is told that this is enough. `quiet`: pages that
    /// changed since the look before do not count.
    pub(crate) fn look_for_vacancy(
        &self,
        after: usize,
        quiet: bool,
        mut tell: impl FnMut(Vacancy) -> bool,
    ) -> Look {
        let os_page = self.source().os().os_page();
        let merges = self.registry.merges.load(Ordering::Relaxed) && os_page == alike::OS_PAGE;
        let (mut looked, mut later) = (0, false);
        // Once an arena is among them it stays there, and regions are not in the order of their addresses.
        let known = usize::from(after != 0);
        for (start, region) in
            self.arenas_with_pages().skip_while(|&(start, _)| known != 0 && start != after).skip(known)
        {
            // Not before: the one after which it goes on may have none any more.
            if !self.has_metadata(start) {
                continue;
            }
            looked += 1;
            let (vacancy, changed) = self.vacancy_of(start, region, (os_page, merges), quiet);
            later |= changed;
            let some = vacancy.bytes + vacancy.at_hand + vacancy.alike > 0 || vacancy.gone;
            let enough = some && !tell(vacancy);
            if enough || looked == LOOK {
                return Look { next: Some(start), later };
            }
        }
        Look { next: None, later }
    }

    /// The arenas of which a heap page was in use, in the order of the regions and, within one, of their addresses.
    fn arenas_with_pages(&self) -> impl Iterator<Item = (usize, &Region)> {
        let ready = |region: &Region, arena: usize| {
            let page = arena * HEAP_PAGES as usize;
            region.tables.is_some_and(|tables| tables.is_ready(page))
        };
        self.regions().iter().flat_map(move |region| {
            let groups = (0..region.bytes() / ARENA_BYTES).step_by(GROUP_BYTES / ARENA_BYTES);
            let used = groups.filter(move |&arena| ready(region, arena));
            let arenas = used.flat_map(|first| first..first + GROUP_BYTES / ARENA_BYTES);
            let within = arenas.filter(|arena| (arena + 1) * ARENA_BYTES <= region.bytes());
            within.map(move |arena| (region.start + arena * ARENA_BYTES, region))
        })
    }

    /// What can be given back of an arena, and whether there is more in pages that changed since the look before.
    fn vacancy_of(
        &self,
        start: usize,
        region: &Region,
        (os_page, merges): (usize, bool),
        quiet: bool,
    ) -> (Vacancy, bool) {
        let mut vacancy = Vacancy { arena: start, ..Vacancy::default() };
        let mut changed = false;
        for number in 0..HEAP_PAGES as usize {
            let page = region.page(start + number * HEAP_PAGE_BYTES);
            let (tag, mark) = (page.tag(), page.mark());
            let class = tag::class(tag);
            if let Some(span) = (class == SPAN).then(|| self.look_at_span(page, os_page)).flatten() {
                vacancy.blocks |= (u128::MAX >> (HEAP_PAGES as usize - span.pages)) << number;
                vacancy.live += span.live;
                vacancy.gone |= span.gone;
                if span.quiet || !quiet {
                    vacancy.bytes += span.bytes;
                } else {
                    changed |= span.bytes > 0;
                }
            }
            if class == 0 || class >= CLASSES {
                continue;
            }
            let shape = &SHAPES[class];
            // Nobody looks at these where the page is not pending: there are none.
            let freed = if tag::is_pending(tag) { page.freed_by_others(class) } else { [0; WINDOWS] };
            let others: u32 = freed.iter().map(|bits| bits.count_ones()).sum();
            // A page at hand counts more than it has, and the free blocks of its open window.
            let at_hand = mark.may_be_at_hand() && mark.live() != u32::from(shape.blocks);
            let counted = if at_hand { live_blocks(shape, &page.words()) } else { mark.live() };
            let live = counted.min(shape.blocks.into()).saturating_sub(others);
            vacancy.blocks |= 1 << number;
            vacancy.live += (live * shape.bytes) as usize;
            vacancy.gone |= mark.gone() != 0;
            // Of a full page the bitmap is not read.
            if live == u32::from(shape.blocks) || mark.is_gone(others) {
                continue;
            }
            let words = both(&page.words(), &freed);
            let bytes = vacant_os_pages(shape, &words, os_page).count_ones() as usize * os_page;
            // Of groups that are formed of pages with a tenth of small blocks, half is free.
            let spared = (HEAP_PAGE_BYTES - bytes).saturating_sub(2 * (live * shape.bytes) as usize);
            let alike = if merges && !at_hand { spared } else { 0 };
            if !mark.look(others) && quiet {
                changed |= bytes + alike > 0;
            } else if bytes + alike > 0 && !self.is_hardened(tag::heap(tag)) {
                *(if at_hand { &mut vacancy.at_hand } else { &mut vacancy.bytes }) += bytes;
                vacancy.alike += alike;
            }
        }
        (vacancy, changed)
    }

    /// Whether OS pages in which something lives count that can be made [alike](super::merging). From when they
    /// do, those of all pages do: of some what was vacant may be gone, and nothing else was looked for.
    pub(crate) fn set_merges(&self, merges: bool) {
        if !self.registry.merges.swap(merges, Ordering::Relaxed) && merges {
            let arenas = self.arenas_with_pages().filter(|&(start, _)| self.has_metadata(start));
            arenas.for_each(|(start, _)| self.forget_vacancy(start));
        }
    }

    /// An arena is in use throughout again: that some of it was given back is of no meaning any more.
    pub(crate) fn forget_vacancy(&self, start: usize) {
        for number in 0..HEAP_PAGES as usize {
            if let Some(page) = self.page(start + number * HEAP_PAGE_BYTES) {
                if tag::class(page.tag()) == SPAN {
                    self.forget_vacancy_of_span(page);
                } else {
                    page.mark().forget_gone();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Block by block, as anybody would count it.
    fn by_blocks(shape: &Shape, live: &[usize], os_page: usize) -> u16 {
        let mut vacant = (1u32 << (HEAP_PAGE_BYTES / os_page)) - 1;
        for block in live {
            let first = shape.first as usize + block * shape.bytes as usize;
            for byte in first..first + shape.bytes as usize {
                vacant &= !(1 << (byte / os_page));
            }
        }
        vacant as u16
    }

    #[test]
    fn vacant_os_pages_are_those_that_no_byte_of_a_live_block_lies_in() {
        let mut random = 1u64;
        for (class, shape) in SHAPES.iter().enumerate().skip(1) {
            for round in 0..60 {
                let mut words = [u64::MAX; WINDOWS];
                let mut live = Vec::new();
                for block in 0..usize::from(shape.blocks) {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    // From nearly none to half of them.
                    if random >> 33 & 0xff < round * 2 {
                        let first = shape.first as usize + block * shape.bytes as usize;
                        let granule = first >> GRANULE_SHIFT;
                        words[granule / 64] &= !(1 << (granule % 64));
                        live.push(block);
                    }
                }
                assert_eq!(live_blocks(shape, &words), live.len() as u32);
                for os_page in [4096, 8192] {
                    let counted = by_blocks(shape, &live, os_page);
                    assert_eq!(
                        vacant_os_pages(shape, &words, os_page),
                        counted,
                        "class {class}, live {live:?}"
                    );
                }
                assert_eq!(
                    vacant_os_pages(shape, &words, HEAP_PAGE_BYTES),
                    0,
                    "whole heap pages are the arenas'"
                );
                assert_eq!(vacant_os_pages(shape, &words, 64 << 10), 0);
            }
        }
    }
}
