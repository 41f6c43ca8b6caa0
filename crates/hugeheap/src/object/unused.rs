//! Memory of the metadata of arenas that were given back.
//!
//! ```text
//!   arena        in use ─▶ empty ─▶ given back, by one thread, which has it for itself until it says so
//!                                      │
//!   its metadata on OS pages ──────────┴──▶ given back as well: 10 OS pages of three arrays
//!                on huge pages:             all arenas of the *unit* unused ──▶ given back as whole huge pages, and has huge pages when it is used again
//!                                           a quarter in use, or less ────────▶ split; that of the arenas that are not in use goes
//!                                           more ─────────────────────────────▶ stays
//!                                           split, and half of them in use again ─▶ the kernel is asked for huge pages again
//! ```
//!
//! A *unit* is the groups of arenas whose marks are on one huge page, 512 MiB, with the two huge pages of each
//! bitmap. Each heap page has 192 bytes of metadata resident, and 128 more when other threads free in it: of a
//! heap that had ten gigabytes, 120 MB stayed for good beside whatever it had left.
//!
//! Nothing has to be noted for that in a group: it can be written as before, and reads as zero, which is how it
//! was before its first use. What a page in nobody's hands keeps there is of no meaning: its tag is 0, and who
//! takes it writes all words. A free by another thread that comes late finds the tag 0 as before.
//!
//! How many heap pages of an arena are counted as used is a byte. It says which arenas have metadata at all:
//! who looks at all marks passes over the others, for whose marks the kernel would have to find an OS page of
//! zeros, after which it makes no huge page there.

use super::huge_tables::{UNIT, groups_of};
use super::space::{PAGE_METADATA_USED, Page, Region, Source, Space};
use super::tables::{ARRAYS, GROUP_BYTES, GROUP_PAGES, Tables};
use crate::arena::{ARENA_BYTES, Arenas, HEAP_PAGES, Plan};
use core::ops::Range;
use core::sync::atomic::{AtomicU8, Ordering};
use hugeheap_os::AddressRange;

/// Arenas of a group.
const GROUP_ARENAS: usize = GROUP_BYTES / ARENA_BYTES;

/// Heap pages of an arena.
const PAGES: usize = HEAP_PAGES as usize;

/// The part of a unit's arenas up to which it is split when they are in use: a quarter. Three quarters of its
/// ten MiB go then, and what is left is on OS pages. At half a heap that lost every second arena would have no
/// huge page of metadata any more.
const SPARSE: usize = 4;

/// The part of a unit's arenas from which on it has huge pages again: half, so that a heap that varies a little
/// is not split again and again.
const REFILLED: usize = 2;

const _: () = assert!(SPARSE > REFILLED && PAGES < u8::MAX as usize);

/// What went of an arena's metadata.
#[derive(Clone, Copy)]
pub(super) struct Dropped {
    /// Heap pages that were counted.
    pages: usize,
    /// Some of it is on huge pages, and goes with that of others.
    huge: bool,
}

impl Tables {
    /// Heap pages of an arena whose use is counted.
    fn used_pages(&self, arena: usize) -> &'static AtomicU8 {
        // SAFETY: the array has a byte per arena of the region, writable and zero at first, and is never unmapped.
        unsafe { &*((self.used + arena) as *const AtomicU8) }
    }

    /// Whether an arena has metadata that was used.
    pub(super) fn is_used(&self, arena: usize) -> bool {
        self.used_pages(arena).load(Ordering::Relaxed) != 0
    }

    /// Counts a heap page. Says whether it is the first one of its arena.
    fn note_used(&self, page: usize) -> bool {
        self.used_pages(page / PAGES).fetch_add(1, Ordering::Relaxed) == 0
    }

    /// What arenas have is zero: they have none. Returns how many pages were counted.
    pub(super) fn forget_used(&self, arenas: Range<usize>) -> usize {
        arenas.map(|arena| usize::from(self.used_pages(arena).swap(0, Ordering::Relaxed))).sum()
    }

    /// The arenas of the unit that an arena belongs to, in the region.
    fn unit_of(&self, arena: usize) -> Range<usize> {
        const ARENAS: usize = UNIT * GROUP_ARENAS;
        let first = arena / ARENAS * ARENAS;
        first..(first + ARENAS).min(self.pages / PAGES)
    }

    /// Whether the arrays of an arena of a split unit are better on huge pages again.
    fn is_refilled(&self, arena: usize) -> bool {
        let unit = self.unit_of(arena);
        let enough = unit.len() / REFILLED;
        self.is_split(unit.start / GROUP_ARENAS)
            && unit.filter(|&arena| self.is_used(arena)).count() >= enough
    }
}

impl<S: Source> Space<S> {
    /// Carries out a plan of this space's arenas, without their lock, as [`Plan::perform`] does, and gives back
    /// the metadata of those that go. The plan is then [completed](Arenas::complete) as after that.
    pub fn perform(&self, plan: &mut Plan) {
        plan.perform_with(self.source().os(), self);
    }

    /// A page was taken from the arenas whose metadata was not in use.
    pub(super) fn count_page(&self, page: Page) {
        let Some(tables) = page.region().tables else { return };
        self.add_metadata(PAGE_METADATA_USED);
        if !tables.note_used(page.index) || !tables.is_refilled(page.index / PAGES) {
            return;
        }
        if self.source().with(|arenas| arenas.advises()) {
            let _adding = self.adding.lock();
            tables.join(self.source().os(), page.index / GROUP_PAGES);
        }
    }

    /// Whether heap pages of an arena were used since its metadata was given back. Of one that has none nobody
    /// has to look at the marks.
    pub(super) fn has_metadata(&self, arena: usize) -> bool {
        self.page(arena)
            .is_some_and(|page| page.region().tables.is_some_and(|tables| tables.is_used(page.index / PAGES)))
    }

    /// An arena without anything live was given back, and nobody can use it, nor cut it out of its region,
    /// before the caller says that this is done. Gives back the memory of its metadata.
    pub(super) fn arena_given_back(&self, arena: usize) {
        let dropped = self.drop_metadata(arena);
        self.metadata_dropped(arena, dropped);
    }

    /// The first half: what is on OS pages. May be called with the arenas locked, so that nobody uses the arena.
    pub(super) fn drop_metadata(&self, arena: usize) -> Dropped {
        let mut dropped = Dropped { pages: 0, huge: false };
        let Some(page) = self.page(arena) else { return dropped };
        let (Some(tables), number) = (page.region().tables, page.index / PAGES) else { return dropped };
        if tables.is_used(number) {
            let _adding = self.adding.lock();
            for array in 0..ARRAYS {
                if tables.is_huge(array, page.index / GROUP_PAGES) {
                    dropped.huge = true;
                    continue;
                }
                let pages = page.index..page.index + PAGES;
                // SAFETY: of an arena that nobody uses nor can begin to, as the caller says.
                let pages = unsafe { tables.give_back_of(self.source().os(), array, pages) };
                dropped.pages += pages.unwrap_or(0);
            }
        }
        dropped
    }

    /// The first half for what a large block has left behind, with the arenas locked: of those of its arenas
    /// whose memory went with it. No pass comes to them. (What stayed is kept for reuse, and has its metadata.)
    pub(super) fn drop_metadata_left(&self, arenas: &Arenas<S::Os>, left: AddressRange) -> Dropped {
        let mut sum = Dropped { pages: 0, huge: false };
        for arena in (left.start..left.end()).step_by(ARENA_BYTES) {
            if self.has_metadata(arena) && arenas.is_given_back(arena) {
                let dropped = self.drop_metadata(arena);
                sum.pages += dropped.pages;
                sum.huge |= dropped.huge;
            }
        }
        sum
    }

    /// The second half for that.
    pub(super) fn metadata_left_dropped(&self, left: AddressRange, dropped: Dropped) {
        self.uncount(dropped.pages);
        // An arena of each unit that it lies in.
        for arena in (left.start..left.end()).step_by(UNIT * GROUP_BYTES).chain([left.end() - ARENA_BYTES]) {
            self.metadata_dropped(arena, Dropped { pages: 0, ..dropped });
        }
    }

    /// The second half, without a lock: counts it, and gives back what is on huge pages, of arenas that are not
    /// in use then.
    pub(super) fn metadata_dropped(&self, arena: usize, dropped: Dropped) {
        self.uncount(dropped.pages);
        let Some(page) = self.page(arena).filter(|_| dropped.huge) else { return };
        if let Some(tables) = page.region().tables {
            self.unit_given_back(page.region(), tables, page.index / PAGES);
        }
    }

    /// The same of an arena with metadata on huge pages.
    fn unit_given_back(&self, region: &Region, tables: Tables, arena: usize) {
        let unit = tables.unit_of(arena);
        for array in 0..ARRAYS {
            for first in groups(&unit).step_by(groups_of(array)) {
                let in_use = self.huge_page_given_back(region, tables, &unit, (array, first));
                if in_use > unit.len() / SPARSE {
                    return;
                }
                if in_use > 0 {
                    self.split_given_back(region, tables, &unit);
                    return;
                }
            }
        }
    }

    /// Gives back one huge page of a unit, by its array and its first group, if no arena of the unit is in use.
    /// Returns how many are. One at a time: the arenas are locked.
    fn huge_page_given_back(
        &self,
        region: &Region,
        tables: Tables,
        unit: &Range<usize>,
        (array, first): (usize, usize),
    ) -> usize {
        let (in_use, forgotten) = self.source().with(|arenas| {
            let in_use = unit.clone().filter(|&arena| is_in_use(arenas, region, arena)).count();
            let _adding = self.adding.lock();
            if in_use > 0 || !tables.is_huge(array, first) {
                return (in_use, 0);
            }
            let pages = first * GROUP_PAGES..(first + groups_of(array)) * GROUP_PAGES;
            // SAFETY: nobody uses an arena of it, nor can begin to while the arenas are locked; of none was it
            // given back for good.
            (0, unsafe { tables.give_back_of(self.source().os(), array, pages) }.unwrap_or(0))
        });
        self.uncount(forgotten);
        in_use
    }

    /// Splits a unit, and gives back what belongs to its unused arenas.
    fn split_given_back(&self, region: &Region, tables: Tables, unit: &Range<usize>) {
        {
            let _adding = self.adding.lock();
            tables.part(self.source().os(), unit.start / GROUP_ARENAS);
        }
        for group in groups(unit) {
            self.group_given_back(region, tables, group);
        }
    }

    /// Gives back the metadata of the unused arenas of a group in a unit that was split. A group at a time: the
    /// arenas are locked. Of arenas side by side at once: they may share OS pages.
    ///
    /// Also of those that are counted as without any: their marks may have gone before, on OS pages of their
    /// own, when their bitmaps were on a huge page. Those stayed for good when it was asked which arenas are
    /// counted.
    pub(super) fn group_given_back(&self, region: &Region, tables: Tables, group: usize) {
        let arenas_of = group * GROUP_ARENAS..((group + 1) * GROUP_ARENAS).min(tables.pages / PAGES);
        let forgotten = self.source().with(|arenas| {
            let _adding = self.adding.lock();
            if tables.is_gone(group) {
                return 0;
            }
            let unused = |arena: &usize| !is_in_use(arenas, region, *arena);
            let mut forgotten = 0;
            let mut next = arenas_of.start;
            while let Some(first) = (next..arenas_of.end).find(unused) {
                next = (first..arenas_of.end).find(|arena| !unused(arena)).unwrap_or(arenas_of.end);
                // SAFETY: nobody uses these arenas, nor can begin to while the arenas are locked; the group has
                // all of its metadata.
                forgotten += unsafe { tables.give_back(self.source().os(), first * PAGES..next * PAGES) };
            }
            forgotten
        });
        self.uncount(forgotten);
    }

    /// Gives back the memory of the metadata of a page and those behind it, `count` in all, with the arenas locked.
    ///
    /// # Safety
    /// Nobody needs what is there, nor uses it, nor can begin to meanwhile.
    pub(crate) unsafe fn give_back_metadata(&self, page: Page, count: usize) {
        let Some(tables) = page.region().tables else { return };
        let _adding = self.adding.lock();
        // SAFETY: by the contract above.
        let forgotten = unsafe { tables.give_back(self.source().os(), page.index..page.index + count) };
        self.uncount(forgotten);
    }

    /// So many pages are not counted any more.
    fn uncount(&self, pages: usize) {
        if pages > 0 {
            self.remove_metadata(pages * PAGE_METADATA_USED);
        }
    }
}

/// Whether anybody uses an arena. One that never was in use is not.
fn is_in_use<O: hugeheap_os::Os>(arenas: &Arenas<O>, region: &Region, arena: usize) -> bool {
    arenas.is_unused(region.start + arena * ARENA_BYTES) == Some(false)
}

/// The groups of arenas.
fn groups(arenas: &Range<usize>) -> Range<usize> {
    arenas.start / GROUP_ARENAS..arenas.end.div_ceil(GROUP_ARENAS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeheap_os::simulated::{Config, Kernel};

    fn counted(tables: &Tables) -> Vec<usize> {
        (0..tables.pages / PAGES).filter(|&arena| tables.is_used(arena)).collect()
    }

    fn in_use(os_page: usize) -> (Kernel, Tables) {
        let kernel = Kernel::new(Config::with_page_sizes(os_page, Some(ARENA_BYTES)));
        let tables = Tables::make(&kernel, 2 * GROUP_BYTES, None).expect("address space");
        for arena in 0..2 * GROUP_ARENAS {
            tables.make_ready(&kernel, arena * PAGES, false).expect("memory");
            assert!(tables.note_used(arena * PAGES) && !tables.note_used(arena * PAGES + 5));
        }
        (kernel, tables)
    }

    #[test]
    fn an_arena_is_counted_until_its_marks_go() {
        let (kernel, tables) = in_use(4096);
        for array in 0..ARRAYS {
            // SAFETY: nobody uses them.
            let forgotten = unsafe { tables.give_back_of(&kernel, array, 3 * PAGES..5 * PAGES) };
            assert_eq!(forgotten, Some(if array + 1 == ARRAYS { 4 } else { 0 }));
        }
        assert_eq!(counted(&tables), (0..3).chain(5..32).collect::<Vec<_>>());
        assert!(tables.note_used(4 * PAGES), "the first one again");
    }

    /// The marks of eight arenas lie on one.
    #[test]
    fn on_large_os_pages_those_are_forgotten_whose_marks_went() {
        let (kernel, tables) = in_use(64 << 10);
        // SAFETY: nobody uses them.
        let forgotten = unsafe { tables.give_back(&kernel, 3 * PAGES..5 * PAGES) };
        assert_eq!((forgotten, counted(&tables).len()), (0, 32));
        // SAFETY: as above.
        let forgotten = unsafe { tables.give_back(&kernel, 3 * PAGES..26 * PAGES) };
        assert_eq!(forgotten, 2 * 16);
        assert_eq!(counted(&tables), (0..8).chain(24..32).collect::<Vec<_>>());
    }

    #[test]
    fn behind_a_gap_the_same_arenas_are_counted() {
        let (_kernel, tables) = in_use(4096);
        tables.forget_used(0..2 * GROUP_ARENAS);
        let behind = tables.behind(GROUP_PAGES);
        behind.note_used(3 * PAGES);
        assert_eq!((counted(&tables), counted(&behind)), (vec![GROUP_ARENAS + 3], vec![3]));
    }
}
