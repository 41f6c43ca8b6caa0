//! Memory of metadata that nobody needs.
//!
//! ```text
//!   arenas      ▕ used ▏▕ unused, unused, unused, … ▏▕ used ▏
//!   vacant      ├──────┼─ zero: given back ─────────┼──────┤      the same of the other three arrays of `Space`
//! ```
//!
//! Each heap page has 300 bytes beside it, 19 MiB for a gigabyte. They lie on OS pages. When most of a large
//! heap died and its arenas went back, these bytes were a sixth of what was left; so what belongs to arenas
//! without anything live is given back, too. It is zero there: a page is cleared before it is freed (`sweep`,
//! `large`, `nursery`).

use super::old::Old;
use crate::arena::{ARENA_BYTES, HEAP_PAGE_BYTES};
use crate::object::Source;
use core::ops::Range;

impl<S: Source> Old<S> {
    /// Gives metadata of unused arenas back, of all heaps that share them. After a whole collection, or an
    /// evacuation: it makes system calls, under the lock of the arenas, so that none of them comes into use
    /// meanwhile.
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
        // SAFETY: metadata of heap pages that nobody uses, nor can begin to while the arenas are locked; a page
        // is cleared before it is freed.
        unsafe { self.space.give_back_metadata(page, pages) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gc::{Heap, Layout, Settings, space};
    use hugeheap_os::linux::Linux;
    use hugeheap_os::{AddressRange, Pages};

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
            let range = AddressRange::new(bitmaps, ARENA_BYTES / HEAP_PAGE_BYTES * 128);
            Linux::new().residency(range).expect("/proc is there").resident
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
}
