//! Memory of metadata that nobody needs.
//!
//! ```text
//!   arenas      ▕ used ▏▕ unused, unused, unused, … ▏▕ used ▏
//!   vacant      ├──────┼─ zero: given back ─────────┼──────┤      the same of the other three arrays of `Space`
//! ```
//!
//! Each heap page has 300 bytes beside it, 19 MiB for a gigabyte. They lie on OS pages. When most of a large heap died and its arenas went back,
//! these bytes were a sixth of what was left; so what belongs to arenas without anything live is given back, too. It is zero there: a page is
//! cleared before it is freed (`sweep`, `large`, `nursery`).

use super::old::Old;
use crate::arena::{ARENA_BYTES, HEAP_PAGE_BYTES};
use crate::object::Source;
use core::ops::Range;
use hugeheap_os::{AddressRange, Facts, Pages};

impl<S: Source> Old<S> {
    /// Gives metadata of unused arenas back, of all heaps that share them. After a whole collection, or an evacuation: it makes system calls,
    /// under the lock of the arenas, so that none of them comes into use meanwhile.
    pub(super) fn give_back_metadata(&self) {
        self.space.source().with(|arenas| {
            for region in self.space.regions() {
                let mut run = region.start..region.start;
                for arena in (region.start..region.start + region.bytes()).step_by(ARENA_BYTES) {
                    match arenas.is_unused(arena) {
                        Some(true) if run.end == arena => run.end = arena + ARENA_BYTES,
                        Some(true) => {
                            self.give_back_metadata_of(&run);
                            run = arena..arena + ARENA_BYTES;
                        }
                        _ => {}
                    }
                }
                self.give_back_metadata_of(&run);
            }
        });
    }

    fn give_back_metadata_of(&self, arenas: &Range<usize>) {
        let pages = arenas.len() / HEAP_PAGE_BYTES;
        let Some(page) = self.space.page(arenas.start).filter(|_| pages > 0) else { return };
        let os = self.space.source().os();
        for (start, bytes) in [
            (core::ptr::from_ref(page.vacant()) as usize, size_of_val(page.vacant())),
            (core::ptr::from_ref(page.remote()) as usize, size_of_val(page.remote())),
            (core::ptr::from_ref(page.mark()) as usize, size_of_val(page.mark())),
        ] {
            if let Some(range) = whole_pages(start, pages * bytes, os.os_page()) {
                // SAFETY: metadata of heap pages that nobody uses, nor can begin to while the arenas are locked. It is zero, and still is
                // afterwards. When the call fails nothing changes.
                let _ = unsafe { os.decommit(range) };
            }
        }
    }
}

/// The OS pages that lie in a range as a whole.
fn whole_pages(start: usize, bytes: usize, page: usize) -> Option<AddressRange> {
    let (first, end) = (start.next_multiple_of(page), (start + bytes) / page * page);
    (first < end).then(|| AddressRange { start: first, len: end - first })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gc::{Heap, Layout, Settings, space};
    use hugeheap_os::linux::Linux;

    #[test]
    fn of_a_heap_whose_objects_died_nothing_is_left_beside_the_arenas() {
        let settings = Settings { nursery: Some(64 << 10), ..Settings::default() };
        let mut heap = Heap::new(space(), settings).expect("memory");
        let text = heap.register(Layout::variable(16, 1)).expect("a right layout");
        let count = (16 << 20) / 4096;
        let mut arenas = std::collections::BTreeSet::new();
        heap.scope(|scope| {
            for _ in 0..count {
                scope.allocate_old(text, 4000).expect("memory");
            }
            let old = &scope.heap().old;
            old.each_page(|page, _| _ = arenas.insert(page.address() - page.address() % ARENA_BYTES));
        });
        assert!(arenas.len() >= 8, "{arenas:?}");
        let resident = |arena: usize| {
            let bitmaps = core::ptr::from_ref(space().page(arena).expect("known").vacant()) as usize;
            let range = whole_pages(bitmaps, ARENA_BYTES / HEAP_PAGE_BYTES * 128, Linux::new().os_page());
            range.map_or(0, |range| Linux::new().residency(range).expect("/proc is there").resident)
        };
        let before: u64 = arenas.iter().map(|&arena| resident(arena)).sum();
        heap.scope(|scope| scope.collect());
        // One that somebody else uses meanwhile is left out.
        let unused = |arena: &usize| space().source().with(|arenas| arenas.is_unused(*arena)) == Some(true);
        let after: Vec<_> =
            arenas.iter().filter(|&arena| unused(arena)).map(|&arena| resident(arena)).collect();
        assert!(after.len() >= 6, "{after:?}");
        // Where an OS page is larger than what an arena has, pages are shared with used ones.
        assert!(before == 0 || after.iter().sum::<u64>() == 0, "{before}, then {after:?}");
    }

    #[test]
    fn parts_of_pages_are_left_alone() {
        let range = |start, len| Some(AddressRange { start, len });
        assert_eq!(whole_pages(0x1_0000, 0x4000, 0x1000), range(0x1_0000, 0x4000));
        assert_eq!(whole_pages(0x1_0010, 0x4000, 0x1000), range(0x1_1000, 0x3000));
        assert_eq!(whole_pages(0x1_0000, 0x4000, 0x1_0000), None);
        assert_eq!(whole_pages(0x1_8000, 0x1_8000, 0x1_0000), range(0x2_0000, 0x1_0000));
        assert_eq!(whole_pages(0x1_0000, 0, 0x1000), None);
    }
}
