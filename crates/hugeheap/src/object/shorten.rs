//! Giving back the address space of metadata, where the arenas [give back](crate::arena) that of heap pages.
//!
//! ```text
//!   arenas    ├─ used ─┤growth┤ ······ gap ······ ├─ large blocks ─┤
//!   marks     ├───────────────┤                   ├────────────────┤
//!   bitmaps   ├───────────────┤                   ├────────────────┤
//!   regions   ├──── first ────┤                   ├──── another ───┤
//! ```
//!
//! Any address of a region has a mark, which is how a free tells what is not a block: a fast path loads it
//! without asking whether it is there. So a region with a gap becomes two, and all heaps are told where the
//! first ends. What it remembers behind the gap, blocks and page runs, a heap finds as before, by where they
//! are from the beginning of the first region: the metadata of both is one array still. Only what is freed
//! there goes the longer way of further regions from now on, and is not remembered again.
//!
//! A gap may have pages with metadata in it: what a large block left is used for small arenas, and once these
//! were given back nothing is used there. What was written stays, so the region is parted where the widest
//! stretch without any lies:
//!
//! ```text
//!   arenas    ├─ used ─┤growth┤ ·············· gap ·············· ├─ large blocks ─┤
//!   written   ██████                        ██    ██               █
//!   regions   ├──── first ────┤             ├──────── another ─────────────────────┤
//! ```
//!
//! Told first, given back afterwards: an address that lies there is mapped by somebody else only after that,
//! and whoever has one sees what was told before.

use super::heap::Core;
use super::space::{Region, Source, Space};
use super::tables::GROUP_PAGES;
use crate::arena::{Cut, HEAP_PAGE_BYTES};
use core::sync::atomic::Ordering;
use hugeheap_os::AddressRange;

impl<S: Source> Space<S> {
    /// Gives back the address space of the metadata of pages that were taken from a region, before these are.
    /// Called with the arenas locked.
    pub(crate) fn shorten(&self, cut: Cut) {
        let _adding = self.adding.lock();
        let Some(region) = self.regions().iter().find(|region| region.start == cut.region) else { return };
        let Some(tables) = region.tables else { return };
        let pages = region.bytes() / HEAP_PAGE_BYTES;
        let first = (cut.kept / HEAP_PAGE_BYTES).min(pages);
        let os = self.source().os();
        let whole_groups = |(first, end): (usize, usize)| {
            (
                (first / HEAP_PAGE_BYTES / GROUP_PAGES * GROUP_PAGES).min(pages),
                (end / HEAP_PAGE_BYTES).min(pages),
            )
        };
        let (end, last) = cut.behind.map_or((pages, pages), whole_groups);
        let (marks, next) = tables.widest_without(first, end);
        // Where nothing is used behind the gap, what was written in it ends the region that begins there.
        let last = if end < pages { last } else { tables.end_of_ready(next, end) };
        if next < last {
            // Only where regions are so many that each is small: what this one has stays.
            if self.is_full() {
                return;
            }
            let (start, len) = (region.start + next * HEAP_PAGE_BYTES, (last - next) * HEAP_PAGE_BYTES);
            self.add_region(AddressRange::new(start, len), tables.behind(next));
        }
        self.tell_end(region, marks);
        tables.release(os, first, marks, next);
        // Of what is in the gap and in the other region: no more than was never written.
        let inside = end.min(last);
        tables.release(os, next, inside, inside);
        tables.release(os, last, last, pages);
    }

    /// Tells all heaps that a region has metadata for so many pages.
    fn tell_end(&self, region: &Region, pages: usize) {
        let bytes = pages * HEAP_PAGE_BYTES;
        region.bytes.store(bytes, Ordering::Relaxed);
        if !self.regions().first().is_some_and(|first| core::ptr::eq(first, region)) {
            return;
        }
        let granules = bytes >> super::class::GRANULE_SHIFT;
        for core in self.registry.numbers().filter_map(|number| self.registry.core::<S>(number)) {
            let own: *const Core<S> = core.as_ptr();
            // SAFETY: cores are never unmapped, and atomics can be changed whatever the owner does. What it
            // does not know yet is 0 and stays so.
            let (granules_near, all) = unsafe { (&(*own).own.granules, &(*own).own.all_granules) };
            granules_near.fetch_min(granules, Ordering::Relaxed);
            all.fetch_min(granules, Ordering::Relaxed);
        }
    }
}
