//! Metadata of an arena that is made ahead.
//!
//! ```text
//!   the maintenance thread   ├ touches an arena ┼ touches its metadata ┤
//!   a collection                                                         takes its pages: nothing is found by a fault
//! ```
//!
//! A collector marks and sweeps with bitmaps beside the heap pages, on OS pages. In a heap that grew to two
//! gigabytes, 9,600 of these were touched first in pauses of minor collections; 550 are now
//! (`perf record -e page-faults -c 1 -g hugeheap bench worker gc churn 1073741824 -`). Most take microseconds,
//! but a hypervisor that has to find the memory can take as long for one as for a huge page.

use super::space::{Source, Space};
use crate::arena::{Beside, HEAP_PAGE_BYTES};
use core::fmt;
use hugeheap_os::AddressRange;

impl<S: Source> Beside for Space<S> {
    fn touch(&self, arena: AddressRange) {
        // A region that is not known is when its first page is taken.
        let Some(page) = self.page(arena.start) else { return };
        let pages = arena.len / HEAP_PAGE_BYTES;
        // No memory: whoever takes its first page is told.
        let Some(tables) = self.make_ready(page, pages).and(page.region().tables) else { return };
        tables.touch(self.source().os(), page.index, page.index + pages);
    }
}

impl<S: Source> fmt::Debug for Space<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space").field("regions", &self.regions().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::ARENA_BYTES;
    use crate::object::tests::space;
    use core::slice;
    use hugeheap_os::Pages;

    #[test]
    fn metadata_of_an_arena_that_nobody_used_is_found_before_it_is_used() {
        let space = space();
        let mut page = [0];
        assert_eq!(space.take_pages(&mut page, 0), 1);
        let arena = AddressRange::new(page[0] - page[0] % ARENA_BYTES + ARENA_BYTES, ARENA_BYTES);
        let kernel = space.source().os();
        let first = space.page(arena.start).expect("of the same region");
        let pages = ARENA_BYTES / HEAP_PAGE_BYTES;
        let (vacant, remote) = (core::ptr::from_ref(first.vacant()), core::ptr::from_ref(first.remote()));
        let bitmaps = [vacant as usize, remote as usize]
            .map(|start| AddressRange::new(start, pages * size_of_val(first.vacant())));
        let resident = || bitmaps.map(|range| kernel.residency(range).expect("mapped").resident);
        assert_eq!(resident(), [0, 0]);
        space.touch(arena);
        assert_eq!(resident(), bitmaps.map(|range| range.len as u64));
        for range in bitmaps {
            // SAFETY: bitmaps of a known region, which nobody uses.
            let words = unsafe { slice::from_raw_parts(range.start as *const u64, range.len / 8) };
            assert!(words.iter().all(|&word| word == 0));
        }
    }

    #[test]
    fn of_a_region_that_is_not_known_nothing_is_touched() {
        let space = space();
        space.touch(AddressRange::new(64 << 20, ARENA_BYTES));
        assert_eq!(space.source().kernel.violations(), []);
        assert_eq!(space.regions().len(), 0);
    }
}
