//! Page runs that other threads freed: handed to the heap that they were allocated in, which uses them again.
//!
//! ```text
//!   other thread                                    owner
//!   remote[0] |= 1       (twice: mistake)
//!   vacant[0] |= 3       (not live: mistake)
//!         ├─▶ list of the heap's inbox ────────────▶ no run of that length kept: takes all of them, vacant[0] still 3, remote[0] = 0, keeps them
//!         └─▶ full: to the arenas                    thread ends, look (see `surplus`): the same
//! ```
//!
//! A run in that list is in the state of one that is kept: its tag is the heap's, and it does not live; so a
//! second free is found out as for those. The bit in *remote* says that it is on its way.
//!
//! The owner frees by a plain store, so it and another thread may free a run at the same instant and neither
//! sees the other. Then the word is not what the other thread left there any more when the owner takes what was
//! handed to it: it is the owner's 1, or 0 where that has taken the run again. Without a look at that the run
//! was in the owner's list twice, and handed out twice.
//!
//! Runs and large blocks of hardened heaps go to the arenas by whoever frees them; all of them, the owner too,
//! set the bit in *vacant* by an atomic instruction.
//!
//! To give each to the arenas was to take their lock for it at both ends: a thread that fills buffers of 64 KiB
//! for another one took two and a half times as long as with mimalloc.
//!
//! A thread that is stopped between the bit and the list, or after it took all of a list, and is missing in a
//! forked child, takes these runs with it there.

use super::heap::{Heap, Own, Shared};
use super::mistake::{self, Mistake};
use super::registry::{OWNED, THREAD, WAITING};
use super::remote;
use super::run_cache::{Kept, Spilled};
use super::runs::{bytes_of, check_run, is_run};
use super::space::{Page, Source, Space};
use super::tag;
use crate::arena::HEAP_PAGE_BYTES;
use core::sync::atomic::Ordering;

/// Heap pages that a heap may have handed to it and not taken yet: 2 MiB. More is not soon needed by who does
/// not come for it.
const HANDED: u32 = 128;

/// The word of a run that another thread freed: that it does not live, and by whom.
const BY_ANOTHER: u64 = 3;

impl<S: Source> Space<S> {
    /// Frees a run of another heap: back to that, or to the arenas.
    pub(super) fn free_run_remote(&self, page: Page, tag: u32, address: usize) -> Result<(), Mistake> {
        check_run(page, address)?;
        self.free_checked_run(page, tag)
    }

    /// The same for who found it live, and may have been stopped since.
    pub(super) fn free_checked_run(&self, page: Page, tag: u32) -> Result<(), Mistake> {
        let shared = self.registry.shared::<S>(tag::heap(tag));
        if shared.is_some_and(|shared| shared.hardened) {
            return self.free_guarded_run(page, tag);
        }
        let twice = Mistake::TwoThreads { bytes: bytes_of(page) };
        // One that two threads free may be somebody else's by now.
        if !remote::free(&page.remote()[0], 1) || page.tag() != tag {
            return Err(twice);
        }
        if page.vacant()[0].fetch_or(BY_ANOTHER, Ordering::AcqRel) & 1 == 1 {
            return Err(twice);
        }
        let Some(shared) = shared.filter(|shared| self.hand(page, shared)) else {
            return self.take_from(page, tag);
        };
        if shared.state.load(Ordering::SeqCst) == WAITING {
            self.collect_ownerless(tag::heap(tag));
        }
        Ok(())
    }

    /// Frees a run or large block of a hardened heap, for its owner too, which found it live and may have been
    /// stopped since.
    pub(super) fn free_guarded_run(&self, page: Page, tag: u32) -> Result<(), Mistake> {
        let bytes = bytes_of(page);
        if page.vacant()[0].fetch_or(1, Ordering::AcqRel) & 1 == 1 || page.tag() != tag {
            return Err(Mistake::TwoThreads { bytes });
        }
        // Without access to its end it stays as it is: nobody may get it.
        if self.clear_run(page) { self.take_from(page, tag) } else { Ok(()) }
    }

    /// Puts a run that does not live into the list of a heap. Says no where nobody would take it there soon.
    fn hand(&self, page: Page, shared: &Shared) -> bool {
        if !matches!(shared.state.load(Ordering::Relaxed), OWNED | THREAD) {
            return false;
        }
        let pages = u32::from(page.mark().free());
        let before = shared.inbox.run_pages.fetch_add(pages, Ordering::Relaxed);
        if before + pages > HANDED {
            shared.inbox.run_pages.fetch_sub(pages, Ordering::Relaxed);
            return false;
        }
        remote::push(&shared.inbox.runs, page.address(), &page.links().inbox);
        if before == 0 {
            // Whose owner comes for it soon is left alone: see `surplus`.
            self.source().with(|arenas| arenas.keeps_runs());
        }
        true
    }

    /// Takes a run that a thread freed out of the heap that it belongs to, back to the arenas.
    fn take_from(&self, page: Page, tag: u32) -> Result<(), Mistake> {
        // From here on nobody else finds the run: its first page has no tag, and its other pages never had one.
        // It has another one if a second thread freed the run, and the page is somebody else's by now: with a
        // store that lost its tag.
        if page.mark().tag.compare_exchange(tag, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return Err(Mistake::TwoThreads { bytes: bytes_of(page) });
        }
        if page.remote()[0].load(Ordering::Relaxed) != 0 {
            page.remote()[0].store(0, Ordering::Release);
        }
        self.free_pages(page.address())
    }

    /// In a forked child: pages in the list, counted anew. A missing thread may have counted what it did not
    /// put there, or taken what it still counted.
    pub(super) fn recount_handed(&self, shared: &Shared) {
        let link = |page: &Page| self.page(page.links().inbox.load(Ordering::Relaxed));
        let first = self.page(shared.inbox.runs.load(Ordering::Relaxed));
        let pages = core::iter::successors(first, link).map(|page| u32::from(page.mark().free())).sum();
        shared.inbox.run_pages.store(pages, Ordering::Relaxed);
    }

    /// Takes the runs out of a heap's list, one after the other.
    pub(super) fn take_handed_runs(&self, shared: &Shared, mut taken: impl FnMut(Kept)) {
        let mut pages = 0;
        let mut next = remote::take_all(&shared.inbox.runs);
        while let Some(page) = self.page(next) {
            next = page.links().inbox.load(Ordering::Relaxed);
            pages += u32::from(page.mark().free());
            let run = handed(page).unwrap_or_else(|twice| mistake::abort("free", page.address(), twice));
            // Release: who frees it the next time sets it after that.
            page.remote()[0].store(0, Ordering::Release);
            taken(run);
        }
        shared.inbox.run_pages.fetch_sub(pages, Ordering::Relaxed);
    }
}

/// A run that was in a heap's list, or that its owner freed it as well. It may be the arenas' then, or something else.
pub(super) fn handed(page: Page) -> Result<Kept, Mistake> {
    if is_run(page.tag()) && page.vacant()[0].load(Ordering::Relaxed) == BY_ANOTHER {
        return Ok(Kept::run(page.address(), page.mark()));
    }
    Err(Mistake::TwoThreads { bytes: bytes_of(page) })
}

impl<S: Source> Own<S> {
    /// Whether a run that does not live is known: kept, or on its way to this heap. For the verifier.
    pub(super) fn knows_run(&self, shared: &Shared, run: usize) -> bool {
        let link = |page: &Page| self.space.page(page.links().inbox.load(Ordering::Relaxed));
        let first = self.space.page(shared.inbox.runs.load(Ordering::Relaxed));
        let mut handed = core::iter::successors(first, link);
        handed.any(|page| page.address() == run) || self.keeps_run(run)
    }
}

impl<S: Source> Heap<S> {
    /// Keeps what other threads freed.
    pub(super) fn take_handed(&mut self) {
        if self.shared().inbox.runs.load(Ordering::Relaxed) == 0 {
            return;
        }
        // SAFETY: cores are never unmapped; nobody has an exclusive reference to `shared`.
        let shared = unsafe { &(*self.core.as_ptr()).shared };
        let (space, mut spilled) = (self.own().space, Spilled::none());
        space.take_handed_runs(shared, |run| {
            space.give_if_full(&mut spilled);
            let _keeping = self.keeping();
            self.own().keep_or_spill(run, &mut spilled);
        });
        space.give_runs(&spilled);
    }
}

const _: () = assert!(HANDED as usize * HEAP_PAGE_BYTES == 2 << 20);
