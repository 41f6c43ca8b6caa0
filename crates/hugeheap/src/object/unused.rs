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
//! A *unit* is the groups of arenas whose marks are on one huge page, 512 MiB, with the two huge pages of each bitmap. Each heap page has 192 bytes of metadata resident, and 128 more when other threads free in it: of a heap that had ten
//! gigabytes, 120 MB stayed for good beside whatever it had left.
//!
//! Nothing has to be noted for that in a group: it can be written as before, and reads as zero, which is how it was before its first use. What a page in nobody's hands keeps there is of no meaning: its tag is
//! 0, and who takes it writes all words. A free by another thread that comes late finds the tag 0 as before.
//!
//! How many heap pages of an arena are counted as used is a byte. It says which arenas have metadata at all: who looks at all marks passes over the others, for whose marks the kernel would have to find an OS page of zeros, after which it
//! makes no huge page there.

use super::huge_tables::{UNIT, groups_of};
use super::space::{PAGE_METADATA_USED, Page, Region, Source, Space};
use super::tables::{ARRAYS, GROUP_BYTES, GROUP_PAGES, Tables};
use crate::arena::{ARENA_BYTES, Arenas, HEAP_PAGES};
use core::ops::Range;
use core::sync::atomic::{AtomicU8, Ordering};

/// Arenas of a group.
const GROUP_ARENAS: usize = GROUP_BYTES / ARENA_BYTES;

/// Heap pages of an arena.
const PAGES: usize = HEAP_PAGES as usize;

/// The part of a unit's arenas up to which it is split when they are in use: a quarter. Three quarters of its ten MiB go then, and what is left is on OS pages. At half a heap that lost every second arena would have no huge page of metadata any more.
const SPARSE: usize = 4;

/// The part of a unit's arenas from which on it has huge pages again: half, so that a heap that varies a little is not split again and again.
const REFILLED: usize = 2;

const _: () = assert!(SPARSE > REFILLED && PAGES < u8::MAX as usize);

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
        // Where OS pages are large, marks can be given back and counted as before; never to none.
        let add = |count: u8| Some(count.saturating_add(1));
        self.used_pages(page / PAGES).fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) == Ok(0)
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
        let used = |unit: Range<usize>| unit.filter(|&arena| self.is_used(arena)).count();
        self.is_split(unit.start / GROUP_ARENAS) && used(unit.clone()) >= unit.len() / REFILLED
    }
}

impl<S: Source> Space<S> {
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

    /// Whether heap pages of an arena were used since its metadata was given back. Of one that has none nobody has to look at the marks.
    pub(super) fn has_metadata(&self, arena: usize) -> bool {
        self.page(arena)
            .is_some_and(|page| page.region().tables.is_some_and(|tables| tables.is_used(page.index / PAGES)))
    }

    /// An arena without anything live was given back, and nobody can use it before the caller says that this is done. Gives back the memory of its metadata.
    pub(super) fn arena_given_back(&self, arena: usize) {
        let Some(page) = self.page(arena) else { return };
        let (Some(tables), number) = (page.region().tables, page.index / PAGES) else { return };
        if !tables.is_used(number) {
            return;
        }
        let mut forgotten = 0;
        let mut huge = false;
        {
            let _adding = self.adding.lock();
            let os = self.source().os();
            for array in 0..ARRAYS {
                if tables.is_huge(array, page.index / GROUP_PAGES) {
                    huge = true;
                } else if reaches(page.region(), number) && !tables.is_gone(number / GROUP_ARENAS) {
                    // SAFETY: of an arena that nobody uses nor can begin to, as the caller says; of a region that has it.
                    forgotten += unsafe { tables.give_back_of(os, array, page.index..page.index + PAGES) };
                }
            }
        }
        self.uncount(forgotten);
        if huge {
            self.unit_given_back(page.region(), tables, number);
        }
    }

    /// The same of an arena with metadata on huge pages.
    fn unit_given_back(&self, region: &Region, tables: Tables, arena: usize) {
        let (unit, os) = (tables.unit_of(arena), self.source().os());
        let (in_use, forgotten) = self.source().with(|arenas| {
            let in_use = unit.clone().filter(|&arena| is_in_use(arenas, region, arena)).count();
            if in_use > 0 || !reaches(region, unit.end - 1) {
                return (in_use, 0);
            }
            let _adding = self.adding.lock();
            let huge = |array: usize, first: usize| tables.is_huge(array, first);
            let mut forgotten = 0;
            for array in 0..ARRAYS {
                for first in groups(&unit).step_by(groups_of(array)).filter(|&first| huge(array, first)) {
                    let pages = first * GROUP_PAGES..(first + groups_of(array)) * GROUP_PAGES;
                    // SAFETY: nobody uses an arena of it, nor can begin to while the arenas are locked; the region has it.
                    forgotten += unsafe { tables.give_back_of(os, array, pages) };
                }
            }
            (in_use, forgotten)
        });
        self.uncount(forgotten);
        if in_use > 0 && in_use <= unit.len() / SPARSE {
            {
                let _adding = self.adding.lock();
                tables.part(os, unit.start / GROUP_ARENAS);
            }
            for group in groups(&unit) {
                self.group_given_back(region, tables, group);
            }
        }
    }

    /// Gives back the metadata of the unused arenas of a group in a unit that was split. A group at a time: the arenas are locked.
    fn group_given_back(&self, region: &Region, tables: Tables, group: usize) {
        let arenas_of = group * GROUP_ARENAS..((group + 1) * GROUP_ARENAS).min(tables.pages / PAGES);
        let forgotten = self.source().with(|arenas| {
            let _adding = self.adding.lock();
            if tables.is_gone(group) {
                return 0;
            }
            let unused = |arena: &usize| {
                tables.is_used(*arena) && reaches(region, *arena) && !is_in_use(arenas, region, *arena)
            };
            let mut forgotten = 0;
            for arena in arenas_of.filter(unused) {
                for array in (0..ARRAYS).filter(|&array| !tables.is_huge(array, group)) {
                    let pages = arena * PAGES..(arena + 1) * PAGES;
                    // SAFETY: nobody uses the arena, nor can begin to while the arenas are locked; the region has it.
                    forgotten += unsafe { tables.give_back_of(self.source().os(), array, pages) };
                }
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

/// Whether a region has metadata of all of an arena, under the lock of those who change that.
fn reaches(region: &Region, arena: usize) -> bool {
    (arena + 1) * ARENA_BYTES <= region.bytes()
}

/// Whether anybody uses an arena. One that never was in use is not.
fn is_in_use<O: hugeheap_os::Os>(arenas: &Arenas<O>, region: &Region, arena: usize) -> bool {
    arenas.is_unused(region.start + arena * ARENA_BYTES) == Some(false)
}

/// The groups of arenas.
fn groups(arenas: &Range<usize>) -> Range<usize> {
    arenas.start / GROUP_ARENAS..arenas.end.div_ceil(GROUP_ARENAS)
}
