//! Evacuation in steps: while the program runs, and without a look at all objects in one pause.
//!
//! ```text
//!   a major collection ends, memory is sparse ─▶ arenas are chosen, what its sweep counted says which
//!        the next one begins at once  ─▶ marking: who refers to an object in such an arena is recorded, as its holder
//!                                     ─▶ sweeping: what lives in these arenas is known
//!        instead of the end of sweeping ─▶ a batch of pages after the other, each in a step: copy, let holders and roots follow, free
//! ```
//!
//! | term | meaning |
//! |---|---|
//! | holder | an object of the old generation that may refer to one that leaves; of an object with cards the card |
//! | batch | pages of one arena whose objects leave in one step |
//! | aside | pages of leaving arenas that are kept from being used again |
//!
//! Invariant, from the end of marking until everything left: what refers to an object in a leaving page is a
//! root, is young and stays, is a recorded holder of its arena, or was written since the last minor collection,
//! which precedes each batch. For marking looked into every live object, each minor collection looks into what
//! was written and copied, and a copy is looked into when it is made.
//!
//! A holder may be gone when its turn comes: it left itself, and is recorded at its new place. Then another
//! object may be at its old one, which is looked into for nothing, or none. No object dies meanwhile but by
//! leaving, because no marking begins.
//!
//! An arena *stays* after all when something in it is pinned meanwhile, when it has more holders than can be
//! looked through in a step, or when there is no memory to record them.

use super::evacuate::{Moved, Use, arenas_of, choose};
use super::events::Event;
use super::header::{CARDS, Header, OBJECT_ALIGN};
use super::heap::Heap;
use super::lists::List;
use super::log;
use super::mark::Marker;
use super::nursery::Nursery;
use super::old::{LEAVING, Leaving, Old};
use super::types::Visit;
use crate::arena::{ARENA_BYTES, HEAP_PAGE_BYTES};
use crate::object::Source;
use crate::object::class::{CLASSES, SHAPES};
use crate::object::space::Page;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::HashMap;

/// Bytes of pages whose objects leave in one step: full ones of objects of 16 bytes take 1 ms.
const BATCH: usize = 128 << 10;

/// Holders of an arena at most: to look through them takes up to 2 ms, in each step. Half an arena of objects
/// of 64 bytes has 16,000.
pub(super) const MOST_HOLDERS: usize = 32 << 10;

/// In place of a holder: a card of a large object, not an object.
const CARD: usize = 1;

/// Pages of an arena, and bytes that live in them, as a sweep found them.
pub(crate) type Survey = HashMap<usize, (u32, usize)>;

/// Who refers to objects in an arena that is leaving.
#[derive(Debug)]
pub(crate) struct Holders {
    arena: usize,
    entries: Vec<usize>,
    stays: bool,
}

/// An evacuation in steps that is under way, beside the pages that leave (`Old`).
#[derive(Debug, Default)]
pub(crate) struct Departure {
    /// One for each leaving arena, in the same order.
    holders: Vec<Holders>,
    /// Objects of the batch at their new places. Empty between steps.
    copies: Vec<usize>,
    moved: Moved,
    took: Duration,
    /// The major collection that ends next was one with an evacuation: the next one is without.
    over: bool,
}

impl Departure {
    /// Whether holders have to be recorded.
    #[inline(always)]
    pub(crate) fn is_under_way(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Something may not have been recorded: all stay.
    pub(crate) fn abandon(&mut self) {
        for holders in &mut self.holders {
            holders.stay();
        }
    }

    /// A slot of an object refers to a word: records the object if that leaves.
    #[inline(never)]
    pub(crate) fn record<S: Source>(
        &mut self,
        old: &Old<S>,
        nursery: &Nursery<S>,
        object: usize,
        slot: usize,
        word: usize,
    ) {
        if word % OBJECT_ALIGN != 0 || object < OBJECT_ALIGN || nursery.has(object) {
            return;
        }
        let Some(page) = old.space.page(word).filter(|&page| old.is_leaving(page)) else { return };
        let arena = page.address() - page.address() % ARENA_BYTES;
        let Ok(index) = self.holders.binary_search_by_key(&arena, |holders| holders.arena) else { return };
        // SAFETY: a live object of this heap.
        let carded = unsafe { Header::of(object) }.has(CARDS)
            && old.space.page(slot).is_some_and(|page| page.links().previous.load(Relaxed) == object);
        self.holders[index].add(if carded { slot - slot % OBJECT_ALIGN + CARD } else { object });
    }
}

impl Holders {
    fn add(&mut self, entry: usize) {
        if self.stays || self.entries.last() == Some(&entry) {
            return;
        }
        if !super::barrier::push(&mut self.entries, entry, MOST_HOLDERS) {
            self.stay();
        }
    }

    fn stay(&mut self) {
        self.stays = true;
        self.entries = Vec::new();
    }
}

impl<S: Source> Old<S> {
    /// In a sweep: a page has that many bytes that live.
    #[inline(always)]
    pub(super) fn count_live(&mut self, page: usize, live: usize) {
        if let Some(survey) = &mut self.survey {
            let arena = page - page % ARENA_BYTES;
            if survey.try_reserve(1).is_ok() {
                let (pages, bytes) = survey.entry(arena).or_default();
                (*pages, *bytes) = (*pages + 1, *bytes + live);
            }
        }
    }

    /// Chooses arenas that leave in the major collection that begins next, by what the last sweep counted.
    ///
    /// Without memory to note them none does.
    fn begin_departure(
        &mut self,
        holders: &mut Vec<Holders>,
        pinned: impl Iterator<Item = usize>,
        all: bool,
    ) {
        let Some(survey) = self.survey.take() else { return };
        self.give_spares(0);
        let Some(stay) = arenas_of(pinned) else { return };
        let mut uses: Vec<Use> = Vec::new();
        if uses.try_reserve(survey.len()).is_err() {
            return;
        }
        let leaves = survey.into_iter().filter(|(arena, _)| stay.binary_search(arena).is_err());
        uses.extend(leaves.map(|(arena, (pages, live))| Use { arena, pages, live }));
        if !all {
            self.retain_own(&mut uses);
            // Classes are not told apart: what is left over in a page of each is little beside an arena.
            choose(&mut uses, |one, sum| sum[1] += one.live.div_ceil(SHAPES[1].bytes as usize));
        }
        if self.leaving.try_reserve(uses.len()).is_err() || holders.try_reserve(uses.len()).is_err() {
            return;
        }
        uses.sort_unstable_by_key(|one| one.arena);
        for bin in &mut self.bins {
            if let Some(page) = bin.close() {
                bin.partial.push(self.space, page);
            }
        }
        for arena in uses.iter().map(|one| one.arena) {
            for address in (arena..arena + ARENA_BYTES).step_by(HEAP_PAGE_BYTES) {
                let Some(page) = self.space.page(address).filter(|_| self.has_page(address)) else {
                    continue;
                };
                let tag = page.mark().tag.load(Relaxed);
                if super::old::class_in(tag) < CLASSES {
                    page.mark().tag.store(tag | LEAVING, Relaxed);
                }
            }
            self.leaving.push(Leaving { arena, pages: List::EMPTY });
            holders.push(Holders { arena, entries: Vec::new(), stays: false });
        }
    }

    /// Of the last leaving arena, copies what lives in some pages. Returns these, and whether there was memory
    /// for everything.
    fn leave_some(&mut self, copies: &mut Vec<usize>, moved: &mut Moved) -> (List, bool) {
        let mut batch = List::EMPTY;
        for _ in 0..BATCH / HEAP_PAGE_BYTES {
            let Some(last) = self.leaving.last_mut() else { break };
            let Some(page) = last.pages.pop(self.space) else { break };
            batch.push(self.space, page);
            let class = super::old::class_in(page.mark().tag.load(Relaxed));
            let room = copies.try_reserve(usize::from(SHAPES[class].blocks)).is_ok();
            if !room || !self.leave_page(page, class, moved, &mut |copy| copies.push(copy)) {
                return (batch, false);
            }
        }
        (batch, true)
    }

    /// Everything refers to the new places: the pages of a batch are free, or stay.
    fn end_batch(&mut self, mut batch: List) -> u64 {
        let mut freed = 0;
        while let Some(page) = batch.pop(self.space) {
            if self.is_left(page) {
                freed += 1;
                self.set_aside(page);
            } else {
                self.stay(page);
            }
        }
        freed
    }

    /// A page without live objects in an arena that is leaving: it is kept from being used again.
    pub(super) fn set_aside(&mut self, page: Page) {
        if self.aside.try_reserve(1).is_err() {
            return self.release(page);
        }
        self.clear_page(page);
        self.aside.push(page.address());
        self.held -= HEAP_PAGE_BYTES;
    }

    /// The last leaving arena is done with: what is left in it stays, its other pages go back.
    fn end_departure_of_last(&mut self) {
        let Some(Leaving { arena, mut pages }) = self.leaving.pop() else { return };
        while let Some(page) = pages.pop(self.space) {
            self.stay(page);
        }
        // Not by a list of its own, for which there may be no memory.
        let mut aside = core::mem::take(&mut self.aside);
        let mut others = 0;
        for index in 0..aside.len() {
            if aside[index] - aside[index] % ARENA_BYTES != arena {
                aside.swap(others, index);
                others += 1;
            }
        }
        self.give_aside(&aside[others..]);
        aside.truncate(others);
        self.aside = aside;
    }
}

/// Writes new addresses into the slots of a holder.
struct FollowHolder<'a, S: Source> {
    old: &'a Old<S>,
    /// It refers to something that is still to leave.
    more: bool,
}

impl<S: Source> Visit for FollowHolder<'_, S> {
    fn slot(&mut self, slot: *mut usize) {
        // SAFETY: visited slots can be read and written.
        unsafe {
            let word = slot.read();
            match self.old.left_to(word) {
                Some(target) => slot.write(target),
                None => self.more |= self.old.leaves(word),
            }
        }
    }
}

/// The same for a copy, which becomes a holder.
struct FollowCopy<'a, S: Source> {
    old: &'a Old<S>,
    nursery: &'a Nursery<S>,
    departure: &'a mut Departure,
    object: usize,
}

impl<S: Source> Visit for FollowCopy<'_, S> {
    fn slot(&mut self, slot: *mut usize) {
        // SAFETY: visited slots can be read and written.
        let word = unsafe { slot.read() };
        match self.old.left_to(word) {
            // SAFETY: as above.
            Some(target) => unsafe { slot.write(target) },
            None => self.departure.record(self.old, self.nursery, self.object, slot as usize, word),
        }
    }
}

impl<S: Source> Heap<S> {
    /// After a major collection in steps: begins an evacuation if memory is sparse, with which the next major
    /// collection begins at once.
    pub(super) fn plan_departure(&mut self) {
        if core::mem::take(&mut self.marker.departure.over) {
            return;
        }
        let most = |percent| (self.old.used() as u128 * u128::from(percent) / 100) as usize;
        let sparse = self.evacuate.is_some_and(|percent| self.old.held() > most(percent));
        if sparse || self.checks.moving {
            let pinned = self.roots.old_pins.iter().chain(self.roots.found.iter());
            self.old.begin_departure(&mut self.marker.departure.holders, pinned, self.checks.moving);
        }
    }

    /// When everything is swept: the next batch. Says no when nothing is left to leave.
    pub(super) fn depart(&mut self, frame: &mut [usize]) -> bool {
        let Some(last) = self.old.leaving.last() else { return false };
        let (begin, arena) = (self.begin_part(log::MAJOR), last.arena);
        let roots = &self.roots;
        let pinned = roots.not_all_found
            || [&roots.old_pins, &roots.found].iter().any(|pins| pins.any_in(arena, arena + ARENA_BYTES));
        let departure = &mut self.marker.departure;
        let stays = pinned || departure.holders.last().is_none_or(|holders| holders.stays);
        let mut moved = Moved::default();
        let mut fits = true;
        if !stays {
            let mut copies = core::mem::take(&mut departure.copies);
            let batch;
            (batch, fits) = self.old.leave_some(&mut copies, &mut moved);
            self.old.settle();
            self.follow_batch(frame, &copies);
            copies.clear();
            self.marker.departure.copies = copies;
            moved.pages = self.old.end_batch(batch);
        }
        if stays || !fits || self.old.leaving.last().is_some_and(|last| last.pages.is_empty()) {
            self.old.end_departure_of_last();
            self.marker.departure.holders.pop();
        }
        self.statistics.moved += moved.objects;
        self.statistics.moved_bytes += moved.bytes;
        self.statistics.freed_pages += moved.pages;
        let took = begin.map_or(Duration::ZERO, |begin| self.took(begin));
        let departure = &mut self.marker.departure;
        departure.moved.add(moved);
        departure.took += took;
        if self.old.leaving.is_empty() {
            departure.over = true;
            let Moved { objects, bytes, pages } = core::mem::take(&mut departure.moved);
            let took = core::mem::take(&mut departure.took);
            departure.copies = Vec::new();
            self.old.give_back_metadata();
            self.statistics.evacuations += 1;
            if begin.is_some() {
                let held = self.old.held();
                self.tell(log::MAJOR, Event::Evacuation { took, moved: objects, bytes, pages, held });
            }
        }
        true
    }

    /// Everything that refers to an object of the batch gets its new address.
    fn follow_batch(&mut self, frame: &mut [usize], copies: &[usize]) {
        if copies.is_empty() {
            return;
        }
        let Self { types, nursery, old, marker, .. } = self;
        let departure = &mut marker.departure;
        // Before copies are recorded: one too many, and the others are forgotten. When that came first, nobody
        // followed what had just left.
        if let Some(holders) = departure.holders.last_mut() {
            holders.entries.retain(|&entry| {
                let mut follow = FollowHolder { old, more: false };
                let card = entry - CARD;
                if entry % OBJECT_ALIGN == 0 {
                    if old.is_live(entry) {
                        // SAFETY: a live object, whether the one that was recorded or another.
                        unsafe { old.each_slot(types, entry, &mut follow) };
                    }
                } else if let Some(object) = old.carded(card).filter(|&object| old.is_live(object)) {
                    // SAFETY: as above.
                    unsafe { types.of(object).each_slot_in(object, card, card + OBJECT_ALIGN, &mut follow) };
                }
                follow.more
            });
        }
        for &object in copies {
            // SAFETY: a live object of this heap; nobody else runs.
            unsafe {
                old.each_slot(types, object, &mut FollowCopy { old, nursery, departure, object });
            }
        }
        self.follow_roots(frame);
    }
}

impl Marker {
    /// Records a holder, if there are any to record.
    #[inline(always)]
    pub(crate) fn hold<S: Source>(
        &mut self,
        old: &Old<S>,
        nursery: &Nursery<S>,
        object: usize,
        slot: *mut usize,
        word: usize,
    ) {
        if self.departure.is_under_way() {
            self.departure.record(old, nursery, object, slot as usize, word);
        }
    }
}
