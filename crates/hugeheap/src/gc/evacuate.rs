//! Evacuation: live objects leave sparse arenas, so that whole huge pages become free.
//!
//! ```text
//!   before   ▕█░░░░░░█░░▏▕░░█░░░░░░░▏▕░█░░░█░░░░▏▕██████████▏       arenas of the old generation
//!              leaving     leaving     leaving     dense: stays
//!   after    ▕          ▏▕          ▏▕          ▏▕██████████▏▕█████░░░░░▏
//!              free        free        free                    packed
//! ```
//!
//! | step | what |
//! |---|---|
//! | choose | arenas of which less than [`SPARSE`] lives, if that frees at least one arena more than what leaves them needs |
//! | leave | each live object is copied; its old place holds the new address |
//! | follow | every slot and every root that refers to an old place gets the new address |
//! | free | the pages go back to the arenas |
//!
//! Here it happens in one pause, when everything is swept: in a whole collection that the program asks for, and
//! in one that makes room before an allocation is refused. It takes about as long as marking everything at
//! once. `depart` does it in steps.
//!
//! An arena with something that cannot move is not chosen: a pinned object, an object with heap pages of its
//! own, a heap page of somebody else. When there is no memory for what leaves, the rest stays where it is.

use super::events::Event;
use super::header::{Header, OBJECT_ALIGN};
use super::heap::Heap;
use super::lists::List;
use super::log;
use super::mark::Phase;
use super::old::{LEAVING, Leaving, Old};
use super::types::{Types, Visit};
use crate::arena::{ARENA_BYTES, HEAP_PAGE_BYTES, HEAP_PAGES};
use crate::object::Source;
use crate::object::class::{CLASSES, Class, GRANULE_SHIFT, SHAPES, WINDOWS};
use crate::object::space::Page;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::BinaryHeap;

/// Percent of an arena below which what lives in it leaves: then memory is at most 1.25 of what lives.
const SPARSE: usize = 80;

/// What an evacuation did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    pub(crate) pages: u64,
}

impl Moved {
    pub(super) fn add(&mut self, other: Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.pages += other.pages;
    }
}

/// What of the heap is in an arena.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) arena: usize,
    pub(super) pages: u32,
    pub(super) live: usize,
}

/// Which arenas leave: pure. `uses` are those that can; `blocks` says how many blocks of each class an arena has.
pub(super) fn choose(uses: &mut Vec<Use>, mut blocks: impl FnMut(&Use, &mut [usize; CLASSES])) {
    uses.retain(|one| one.live * 100 < ARENA_BYTES * SPARSE);
    uses.sort_unstable_by_key(|one| (one.live, one.arena));
    let mut sum = [0; CLASSES];
    let (mut best, mut most) = (0, 0);
    for (index, one) in uses.iter().enumerate() {
        blocks(one, &mut sum);
        let pages = |class: Class| sum[class].div_ceil(usize::from(SHAPES[class].blocks).max(1));
        let pages: usize = (0..CLASSES).map(pages).sum();
        let gain = (index + 1).saturating_sub(pages.div_ceil(HEAP_PAGES as usize));
        if gain > most {
            (best, most) = (index + 1, gain);
        }
    }
    uses.truncate(best);
}

fn arena_of(page: usize) -> usize {
    page - page % ARENA_BYTES
}

/// The arenas of what is pinned, in order. `None`: there is no memory for them.
pub(super) fn arenas_of(pinned: impl Iterator<Item = usize>) -> Option<Vec<usize>> {
    let mut arenas: Vec<usize> = Vec::new();
    for arena in pinned.map(arena_of) {
        if arenas.last() != Some(&arena) {
            arenas.try_reserve(1).ok()?;
            arenas.push(arena);
        }
    }
    arenas.sort_unstable();
    Some(arenas)
}

impl<S: Source> Old<S> {
    /// Makes the pages of sparse arenas leave their bins. Says no when it is not worth it, or there is no
    /// memory to find out.
    fn begin_leaving(&mut self, pinned: impl Iterator<Item = usize>, all: bool) -> bool {
        debug_assert!(!self.has_unswept() && self.leaving.is_empty());
        self.give_spares(0);
        let Some(pages) = self.blocks_pages() else { return false };
        let Some(stay) = arenas_of(pinned) else { return false };
        let mut uses: Vec<Use> = Vec::new();
        for &(page, class, blocks) in &pages {
            let (arena, live) = (arena_of(page), blocks as usize * SHAPES[class as usize].bytes as usize);
            if let Some(last) = uses.last_mut().filter(|last| last.arena == arena) {
                (last.pages, last.live) = (last.pages + 1, last.live + live);
                continue;
            }
            if uses.try_reserve(1).is_err() {
                return false;
            }
            uses.push(Use { arena, pages: 1, live });
        }
        uses.retain(|one| stay.binary_search(&one.arena).is_err());
        if !all {
            self.retain_own(&mut uses);
            choose(&mut uses, |one, sum| {
                let first = pages.partition_point(|&(page, ..)| page < one.arena);
                for &(_, class, blocks) in pages[first..].iter().take(one.pages as usize) {
                    sum[class as usize] += blocks as usize;
                }
            });
        }
        if self.leaving.try_reserve(uses.len()).is_err() {
            return false;
        }
        self.leaving.extend(uses.iter().map(|one| Leaving { arena: one.arena, pages: List::EMPTY }));
        self.leaving.sort_unstable_by_key(|leaving| leaving.arena);
        for class in 0..CLASSES {
            let bin = &mut self.bins[class];
            let open = bin.close();
            let lists = [core::mem::take(&mut bin.partial), core::mem::take(&mut bin.full)];
            for (index, mut list) in lists.into_iter().enumerate() {
                let mut first = open.filter(|_| index == 0);
                while let Some(page) = first.take().or_else(|| list.pop(self.space)) {
                    let leaving = self.leaving_at(page.address());
                    let bin = &mut self.bins[class];
                    if let Some(index) = leaving {
                        page.mark().tag.store(page.mark().tag.load(Relaxed) | LEAVING, Relaxed);
                        self.leaving[index].pages.push(self.space, page);
                    } else if index == 0 {
                        bin.partial.push(self.space, page);
                    } else {
                        bin.full.push(self.space, page);
                    }
                }
            }
        }
        !self.leaving.is_empty()
    }

    /// Keeps those arenas of which nobody else has a page.
    pub(super) fn retain_own(&self, uses: &mut Vec<Use>) {
        uses.retain(|one| {
            self.space.source().with(|arenas| arenas.pages_in_use(one.arena) == Some(one.pages))
        });
    }

    /// Address, class and number of live blocks of each page of blocks, by address.
    fn blocks_pages(&self) -> Option<Vec<(usize, u8, u16)>> {
        let mut pages = Vec::new();
        pages.try_reserve(self.held / HEAP_PAGE_BYTES + 1).ok()?;
        self.each_page(|page, class| {
            if class < CLASSES {
                let live: u32 =
                    (0..WINDOWS).map(|window| page.vacant()[window].load(Relaxed).count_zeros()).sum();
                pages.push((page.address(), class as u8, live as u16));
            }
        });
        // Not by `sort_unstable`, which calls itself for what it has parted: with the 60,000 pages of a
        // gigabyte that took 7 KB of stack, and more with more.
        Some(BinaryHeap::from(pages).into_sorted_vec())
    }

    /// Copies what lives in the leaving pages to others, until there is no memory.
    fn leave(&mut self) -> Moved {
        let mut moved = Moved::default();
        let mut fits = true;
        for index in 0..self.leaving.len() {
            let pages = core::mem::take(&mut self.leaving[index].pages);
            for page in pages.pages(self.space) {
                let class = super::old::class_in(page.mark().tag.load(Relaxed));
                fits = fits && self.leave_page(page, class, &mut moved, &mut |_| {});
            }
            self.leaving[index].pages = pages;
        }
        moved
    }

    /// Copies what lives in a page, and tells of each copy. Says no when there is no memory for all of it.
    pub(super) fn leave_page(
        &mut self,
        page: Page,
        class: Class,
        moved: &mut Moved,
        copied: &mut impl FnMut(usize),
    ) -> bool {
        let shape = &SHAPES[class];
        for window in 0..WINDOWS {
            let mut live = !page.vacant()[window].load(Relaxed) & shape.starts[window];
            while live != 0 {
                let bit = live & live.wrapping_neg();
                live ^= bit;
                let object =
                    page.address() + ((window * 64 + bit.trailing_zeros() as usize) << GRANULE_SHIFT);
                let Some(target) = self.take(class) else { return false };
                // SAFETY: both are blocks of the class; the new one is apart from all live ones.
                unsafe {
                    let words = shape.bytes as usize / 8;
                    core::ptr::copy_nonoverlapping(object as *const u64, target as *mut u64, words);
                    Header::forwarded(target).put(object);
                }
                let vacant = &page.vacant()[window];
                vacant.store(vacant.load(Relaxed) | bit, Relaxed);
                self.used -= shape.bytes as usize;
                moved.objects += 1;
                moved.bytes += u64::from(shape.bytes);
                copied(target);
            }
        }
        true
    }

    /// Where an object is that left its place.
    #[inline(always)]
    pub(super) fn left_to(&self, word: usize) -> Option<usize> {
        if word % OBJECT_ALIGN != 0 {
            return None;
        }
        let page = self.space.page(word)?;
        if !self.is_leaving(page) {
            return None;
        }
        // SAFETY: a slot refers to an object or to what is left of one.
        unsafe { Header::of(word) }.target()
    }

    /// Whether a word is the address of something in a leaving page.
    pub(super) fn leaves(&self, word: usize) -> bool {
        word % OBJECT_ALIGN == 0 && self.space.page(word).is_some_and(|page| self.is_leaving(page))
    }

    /// Whether everything left a page.
    pub(super) fn is_left(&self, page: Page) -> bool {
        if let Some(poison) = self.poison {
            let class = super::old::class_in(page.mark().tag.load(Relaxed));
            for window in 0..WINDOWS {
                let vacant = page.vacant()[window].load(Relaxed) & SHAPES[class].starts[window];
                self.poison_blocks(page.address(), class, window, vacant, poison);
            }
        }
        page.vacant().iter().all(|word| word.load(Relaxed) == u64::MAX)
    }

    /// What is in a page does not leave it.
    pub(super) fn stay(&mut self, page: Page) {
        let tag = page.mark().tag.load(Relaxed) & !LEAVING;
        page.mark().tag.store(tag, Relaxed);
        self.bins[super::old::class_in(tag)].partial.push(self.space, page);
    }

    /// Every slot has the new address: the pages are free, or go back to their bins.
    fn end_leaving(&mut self) -> u64 {
        let mut freed = 0;
        for mut leaving in core::mem::take(&mut self.leaving) {
            while let Some(page) = leaving.pages.pop(self.space) {
                if self.is_left(page) {
                    freed += 1;
                    self.release(page);
                } else {
                    self.stay(page);
                }
            }
        }
        let aside = core::mem::take(&mut self.aside);
        self.give_aside(&aside);
        freed
    }
}

/// Writes the new addresses.
struct Follow<'a, S: Source> {
    old: &'a Old<S>,
}

impl<S: Source> Visit for Follow<'_, S> {
    #[inline(always)]
    fn slot(&mut self, slot: *mut usize) {
        // SAFETY: visited slots can be read and written.
        unsafe {
            if let Some(target) = self.old.left_to(slot.read()) {
                slot.write(target);
            }
        }
    }
}

fn follow_all<S: Source>(types: &Types, old: &Old<S>, follow: &mut Follow<'_, S>) {
    old.each_live(|object| {
        // SAFETY: a live object of this heap; nobody else runs.
        unsafe { old.each_slot(types, object, follow) };
    });
}

impl<S: Source> Heap<S> {
    /// Packs what lives in sparse arenas, if a major collection is over and nothing is young but what stays.
    /// Says whether anything moved.
    pub(super) fn evacuate(&mut self, frame: &mut [usize]) -> bool {
        debug_assert!(self.marker.phase == Phase::Idle);
        let begin = self.begin_part(log::MAJOR);
        let Self { types, old, roots, .. } = self;
        let pinned = roots.old_pins.iter().chain(roots.found.iter());
        if !old.begin_leaving(pinned, self.checks.moving) {
            return false;
        }
        let mut moved = old.leave();
        old.settle();
        follow_all(types, old, &mut Follow { old });
        self.follow_roots(frame);
        let Self { old, statistics, .. } = self;
        moved.pages = old.end_leaving();
        statistics.evacuations += 1;
        statistics.moved += moved.objects;
        statistics.moved_bytes += moved.bytes;
        statistics.freed_pages += moved.pages;
        if let Some(begin) = begin {
            let (took, held) = (self.took(begin), self.old.held());
            let Moved { objects, bytes, pages } = moved;
            self.tell(log::MAJOR, Event::Evacuation { took, moved: objects, bytes, pages, held });
        }
        moved.objects > 0
    }

    /// The same for what refers to objects without being one of the old generation.
    pub(super) fn follow_roots(&mut self, frame: &mut [usize]) {
        let Self { types, nursery, old, roots, remembered, finalizers, .. } = self;
        let mut follow = Follow { old };
        roots.each(frame, &mut follow);
        let mut staying = nursery.next_staying(nursery.start());
        while let Some(object) = staying {
            // SAFETY: an object that stays is alive until the next minor collection.
            unsafe { types.of(object).each_slot(object, &mut follow) };
            staying = nursery.next_staying(object + OBJECT_ALIGN);
        }
        for object in remembered.objects.iter_mut().chain(&mut finalizers.old) {
            *object = old.left_to(*object).unwrap_or(*object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_leaves_frees_more_than_it_needs(lives in prop::collection::vec(0usize..128, 0..60)) {
            // One class, whose blocks fill a page: 16 bytes.
            let per_page = usize::from(SHAPES[1].blocks);
            let mut uses: Vec<_> = lives.iter().enumerate().map(|(arena, &pages)| {
                Use { arena, pages: 128, live: pages * HEAP_PAGE_BYTES }
            }).collect();
            choose(&mut uses, |one, sum| sum[1] += one.live / HEAP_PAGE_BYTES * per_page);
            let leaving: usize = uses.iter().map(|one| lives[one.arena]).sum();
            prop_assert!(uses.is_empty() || leaving.div_ceil(128) < uses.len());
            prop_assert!(uses.iter().all(|one| lives[one.arena] * 100 < 128 * SPARSE));
            // What stays is dense, or nearly nothing is left that could be gained.
            let sparse: Vec<_> = lives.iter().filter(|&&pages| pages * 100 < 128 * SPARSE).collect();
            let all: usize = sparse.iter().copied().sum();
            prop_assert!(sparse.len() - all.div_ceil(128) <= uses.len() - leaving.div_ceil(128));
        }
    }
}
