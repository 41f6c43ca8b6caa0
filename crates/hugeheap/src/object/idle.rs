//! Collecting for an owner that does nothing, without its word.
//!
//! ```text
//!   worker builds a list ─▶ another thread drops it ─▶ pages in the worker's inbox ─▶ the worker sleeps in its pool
//!                                                        │ every 64th: news for the arenas
//!                                                        ▼
//!                                                     look ─▶ half a decay time ─▶ look: it has used up no page since ─▶ hold it, collect 64 pages, hold it again …
//! ```
//!
//! An owner that needs no blocks collects nothing, and what others freed in its heap is kept for as long as it
//! sleeps. An interpreter's threads are [visited](super::visit) by who has the interpreter's lock. Here nobody
//! has a lock. But who [holds](super::busy) a heap has its lists, queues, inbox and spare pages for itself, and
//! of a *pending* page the owner's fast paths touch nothing, but for
//!
//! * a block that is remembered, and taken,
//! * a free that began before the page was pending,
//! * the page at hand.
//!
//! A page [at rest](super::vacate::at_rest) that has no remembered block and no live one is none of these:
//! there is no block in it that could be freed. It goes back to the arenas. (A thread that frees one of its
//! blocks a second time, and is stopped between two instructions for as long as all this takes, is not found
//! out.) One thing the owner may still be about to do: to [settle](super::settle) the page, after it freed the
//! last block. It takes its turn for that, and finds a page with another tag.
//!
//! A page in which something lives stays in the queues, for the owner. What others freed in it cannot be
//! collected without its word: it may be in the middle of a free there, for as long as it likes, of which
//! nothing is seen yet, and both would change the bitmap and the count. (A model of that, with steps like
//! these, failed at once.) But [OS pages](super::vacate) go of such pages, too. One in which nobody freed,
//! which was claimed for that, is the owner's again.
//!
//! What is done here is done for as many pages at a time as take the owner microseconds to wait for. It has to
//! wait if it comes to change its lists meanwhile, but for nothing else. The pages go to the arenas afterwards:
//! that may take their lock, measure a peak that is about to end, or start a thread, for which the C library
//! allocates.

use super::busy::Held;
use super::class::{CLASSES, Class};
use super::heap::{Core, Own, Shared};
use super::inbox::freed_twice;
use super::registry::{OWNED, THREAD};
use super::remote;
use super::space::{Page, Source, Space};
use super::spares::SPARES;
use super::tag::{self, PENDING};
use super::vacate::at_rest;
use crate::lock::Guard;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

/// Pages that are looked at while a heap is held: 6 to 17 µs in the median, with two processors for four
/// threads, after 16 µs for the barrier. Half as many would have half of the time go to barriers.
const AT_A_TIME: usize = 64;

/// Attempts to hold a heap whose owner is busy, each with a barrier. It is busy for a microsecond, unless it
/// was stopped there.
const TRIES: u32 = 3;

/// Where in a heap's queues the next pages are.
struct Walk {
    class: Class,
    /// The first page of the class that was put back; 0: none was.
    put_back: usize,
    /// Pages that are still looked at: the owner may put others into its queues meanwhile.
    left: usize,
}

/// Pages taken out of a heap that is held, for the arenas.
struct Vacant {
    pages: [usize; AT_A_TIME + SPARES],
    count: usize,
}

impl Default for Vacant {
    fn default() -> Self {
        Self { pages: [0; AT_A_TIME + SPARES], count: 0 }
    }
}

impl Vacant {
    fn add(&mut self, page: usize) {
        self.pages[self.count] = page;
        self.count += 1;
    }
}

impl<S: Source> Space<S> {
    /// Collects for owners that are idle, and gives their spare pages back to the arenas. `quiet`: only for
    /// those that have used up no page since the last time.
    ///
    /// Says whether something is left for the next time.
    pub(crate) fn collect_for_idle(&'static self, quiet: bool) -> bool {
        self.registry.numbers().fold(false, |later, number| self.collect_for_owner(number, quiet) | later)
    }

    fn collect_for_owner(&'static self, number: u32, quiet: bool) -> bool {
        let (Some(core), Some(shared)) = (self.registry.core::<S>(number), self.registry.shared::<S>(number))
        else {
            return false;
        };
        // SAFETY: cores are never unmapped. The owner changes these fields with plain stores of whole words:
        // each is read once, as what it was or is.
        let seen = unsafe { Own::progress(&raw const (*core.as_ptr()).own) };
        let waits = seen.waits || shared.inbox.first.load(Ordering::Relaxed) != 0;
        if shared.hardened || !(waits || seen.spares || seen.keeps_more) || !is_owned(shared) {
            return false;
        }
        if shared.seen.swap(seen.patience, Ordering::Relaxed) != seen.patience && quiet {
            // A program that does something has spare pages nearly always: they are no reason to look again, unless
            // they may be many.
            return waits || seen.keeps_more;
        }
        let mut walk = None;
        loop {
            match self.collect_some(core, shared, &mut walk) {
                Some(true) => {}
                Some(false) => return false,
                // Who is busy does something, and collects for itself now and then. (In a forked child the heap
                // of a missing thread may be busy for good.)
                None => return seen.keeps_more && is_owned(shared),
            }
        }
    }

    /// Collects some pages of a heap; says whether there may be more. `None`: nobody can do that there now.
    fn collect_some(
        &'static self,
        core: NonNull<Core<S>>,
        shared: &'static Shared,
        walk: &mut Option<Walk>,
    ) -> Option<bool> {
        let (_visiting, held) = self.hold_owned(shared)?;
        // SAFETY: cores are never unmapped, and the heap is held. The owner changes fields of `own` all the
        // same, on its fast paths: those of its bins, which are neither read nor written through this
        // reference.
        let own = unsafe { &mut (*core.as_ptr()).own };
        let mut vacant = Vacant::default();
        let more = own.collect_held(&held, core, shared, walk, &mut vacant);
        if !more {
            own.leave_spares(|page| vacant.add(page));
        }
        drop(held);
        if vacant.count > 0 {
            self.source().before_free();
            self.give_pages(&vacant.pages[..vacant.count]);
        }
        Some(more)
    }

    /// Holds a heap, if somebody owns it and is not busy for long. A fork, and a thread that ends, wait for it:
    /// so each time anew.
    pub(super) fn hold_owned(&self, shared: &'static Shared) -> Option<(Guard<'_, ()>, Held)> {
        let visiting = self.registry.visits.lock();
        if !is_owned(shared) {
            return None;
        }
        let held = (0..TRIES).find_map(|_| {
            let held = self.hold(&shared.turn);
            if held.is_none() {
                std::thread::yield_now();
            }
            held
        })?;
        // Again: who leaves the heap says so before it takes its last turn.
        is_owned(shared).then_some((visiting, held))
    }
}

pub(super) fn is_owned(shared: &Shared) -> bool {
    matches!(shared.state.load(Ordering::SeqCst), OWNED | THREAD)
}

impl<S: Source> Own<S> {
    /// Looks at some of the pages in which others freed; says whether there are more.
    fn collect_held(
        &mut self,
        held: &Held,
        core: NonNull<Core<S>>,
        shared: &Shared,
        walk: &mut Option<Walk>,
        vacant: &mut Vacant,
    ) -> bool {
        let space = self.space;
        let link = |page| space.page(page).map(|page| &page.links().inbox);
        for _ in 0..AT_A_TIME {
            // What was announced comes first: those that have to wait are in the queues then.
            if walk.is_none() {
                match space.page(remote::take_first(&shared.inbox.first, link)) {
                    Some(page) if self.collect_at_rest(held, core, page, vacant) => {}
                    Some(page) => self.queue(page),
                    None => *walk = Some(Walk { class: 1, put_back: 0, left: self.queued() }),
                }
                continue;
            }
            let Some(Walk { class, put_back, left }) = walk else { continue };
            if *class == CLASSES || *left == 0 {
                return false;
            }
            if matches!(self.first_queued(*class), first if first == 0 || first == *put_back) {
                (*class, *put_back) = (*class + 1, 0);
                continue;
            }
            let Some(page) = self.take_queued(*class) else { return false };
            *left -= 1;
            if !self.collect_at_rest(held, core, page, vacant) {
                self.queue(page);
                if *put_back == 0 {
                    *put_back = page.address();
                }
            }
        }
        true
    }

    /// Takes a pending page of this heap in which nothing lives, if the owner's fast paths have nothing to do
    /// with it; and one in which nobody freed is not pending any more. Says no for all others.
    fn collect_at_rest(&mut self, _: &Held, core: NonNull<Core<S>>, page: Page, vacant: &mut Vacant) -> bool {
        let (mark, class) = (page.mark(), tag::class(page.tag()));
        if self.space.is_closed(page) {
            return false;
        }
        let freed = page.freed_by_others(class);
        let nobody = freed.iter().all(|&bits| bits == 0);
        if nobody && mark.live() != 0 {
            let tag = remote::acknowledge(&mark.tag) & !PENDING;
            let since = page.freed_by_others(class).iter().any(|&bits| bits != 0);
            if since && remote::announce(&mark.tag, tag, || {}) {
                self.queue(page);
            }
            return true;
        }
        let Ok(Some((words, reach))) = at_rest(core, page, self.space.source().os()) else { return false };
        let lives = words.iter().zip(&freed).any(|(vacant, freed)| vacant | freed != u64::MAX);
        if lives || reach.remembered_in(page).next().is_some() {
            return false;
        }
        page.take_freed(class, |window, bits| {
            let twice = bits & words[window];
            if twice != 0 {
                freed_twice(page, class, window, twice);
            }
        });
        self.leave_class(class, mark);
        mark.tag.store(0, Ordering::Release);
        vacant.add(page.address());
        true
    }
}
