//! Pages in which other threads freed, and when their owner collects them.
//!
//! ```text
//!   other thread: first free in a page ─▶ inbox ─▶ queue of its class ─▶ collected: its blocks are free, its tag not pending
//!                                         sorted out    when that class needs blocks, one page at a time
//! ```
//!
//! A page stays pending until it is collected: whoever frees in it meanwhile needs no more than its bit. So a
//! page is collected as late as can be, and the one that was announced first is the first. When all of the
//! inbox was collected each time any class had used up a page, a thread that only takes blocks and one that
//! only frees them had every page announced and collected again for a few blocks each, on cache lines that both
//! of them wrote: 210 ns per block.
//!
//! Memory does not wait for a class that needs nothing: everything is collected before pages are taken from the
//! arenas, when the owner frees in a page that is pending. With only that page's class collected there, a
//! program that was done kept 6 MiB for good. And now and then ([`SELDOM`]) all but as many pages of each class
//! as it has used up since the last time: it comes to these soon.

use super::class::{CLASSES, Class, GRANULE_SHIFT, SHAPES};
use super::heap::{Own, Place, Shared};
use super::lists::List;
use super::mistake::{self, Mistake};
use super::remote;
use super::run_cache::Spilled;
use super::space::{Page, Source};
use super::tag;
use core::sync::atomic::Ordering;

/// After so many times that some class has used up its page, the pages in the queues are collected that no
/// class comes to soon: four mebibytes of new blocks, so what waits costs no more than that is used.
///
/// Seconds of `xmalloc --threads 2` and, with eight blocks to a page, of `xmalloc --threads 2 most=4096` (seven
/// runs, by turns): all pages after 64 times 0.77 and 2.09; as here after 64 times 0.73 and 2.07, 128 0.69 and 1.93,
/// 256 0.65 and 1.90; never 0.64 and 1.80. All pages after 64 times were 4.7 blocks to a collected page of
/// eight, and the pages that this left empty went to the arenas and came back; never are 7.2.
const SELDOM: u32 = 256;

/// Pending pages of a class.
#[derive(Debug)]
struct Queue {
    pages: List,
    /// How many these are.
    waiting: u32,
    /// Pages that the class has used up since all queues were looked at.
    used: u32,
}

/// Pending pages by class, linked as in the inbox, first announced first.
#[derive(Debug)]
pub(crate) struct Queues {
    queues: [Queue; CLASSES],
    /// Pages in all of them.
    pages: usize,
    /// Until those are collected that no class comes to soon.
    patience: u32,
}

impl Queues {
    /// Makes those of a new heap: see [`Own::make_at`](super::heap::Own::make_at).
    ///
    /// # Safety
    /// Zeroed memory that nobody else knows.
    pub(super) unsafe fn make_at(queues: *mut Self) {
        // SAFETY: by the contract.
        unsafe { (&raw mut (*queues).patience).write(SELDOM) };
    }
}

/// How far an owner is, as others see it.
pub(super) struct Progress {
    /// Changes whenever a class has used up its page.
    pub(super) patience: u32,
    /// Pages are in the queues.
    pub(super) waits: bool,
    /// Pages without live blocks are kept.
    pub(super) spares: bool,
    /// It may keep more of them than any heap at first.
    pub(super) keeps_more: bool,
}

impl<S: Source> Own<S> {
    /// Frees what other threads freed, in all pages.
    #[cold]
    pub(super) fn collect(&mut self, shared: &Shared) {
        let mut next = remote::take_all(&shared.inbox.first);
        while let Some(page) = self.space.page(next) {
            next = page.links().inbox.load(Ordering::Relaxed);
            if self.space.is_closed(page) {
                self.queue(page);
            } else {
                self.collect_page(page, false);
            }
        }
        self.collect_queues();
        self.collect_runs(shared);
    }

    /// Keeps or gives back the page runs that other threads freed.
    fn collect_runs(&mut self, shared: &Shared) {
        let space = self.space;
        let mut spilled = Spilled::none();
        space.take_handed_runs(shared, |run| {
            space.give_if_full(&mut spilled);
            self.keep_or_spill(run, &mut spilled);
        });
        space.give_runs(&spilled);
    }

    /// Frees what other threads freed where that helps a class that has no free block known, and no page at hand.
    /// Says whether it did anything.
    pub(super) fn collect_for(&mut self, shared: &Shared, class: Class) -> bool {
        self.sort_inbox(shared);
        // What is not spare has to come from the arenas.
        self.collect_next(class, true) || self.spare_count == 0 && self.collect_queues()
    }

    /// Pages in the queues.
    pub(super) fn queued(&self) -> usize {
        self.pending.pages
    }

    /// The first page of a queue, as an address; 0: none.
    pub(super) fn first_queued(&self, class: Class) -> usize {
        self.pending.queues[class].pages.first
    }

    /// How far a heap of another thread is.
    ///
    /// # Safety
    /// It is a heap's.
    pub(super) unsafe fn progress(own: *const Self) -> Progress {
        // SAFETY: by the contract; each is read once, as what it was or is.
        unsafe {
            Progress {
                patience: (&raw const (*own).pending.patience).read_volatile(),
                waits: (&raw const (*own).pending.pages).read_volatile() != 0,
                spares: (&raw const (*own).spare_count).read_volatile() != 0,
                keeps_more: Self::may_keep_more_spares(own),
            }
        }
    }

    /// Called whenever a class has used up its page.
    pub(super) fn collect_now_and_then(&mut self, shared: &Shared, class: Class) {
        self.pending.queues[class].used += 1;
        self.pending.patience -= 1;
        if self.pending.patience == 0 {
            self.pending.patience = SELDOM;
            self.collect_surplus(shared);
        }
    }

    /// The same for a class of which no page waits in its queue. Says no, with nothing changed, where one does
    /// or it is time to look at all queues.
    #[inline(always)]
    pub(super) fn pass_queue(&mut self, class: Class) -> bool {
        let queue = &mut self.pending.queues[class];
        let passes = queue.pages.first == 0 && self.pending.patience > 1;
        queue.used += u32::from(passes);
        self.pending.patience -= u32::from(passes);
        passes
    }

    /// Collects the pages that no class comes to soon, those first that had the longest time for more free blocks.
    #[cold]
    fn collect_surplus(&mut self, shared: &Shared) {
        self.sort_inbox(shared);
        for class in 1..CLASSES {
            let soon = core::mem::take(&mut self.pending.queues[class].used);
            while self.pending.queues[class].waiting > soon && self.collect_next(class, false) {}
        }
        self.collect_runs(shared);
    }

    /// Moves the pages of the inbox to the queues of their classes.
    fn sort_inbox(&mut self, shared: &Shared) {
        // The page that was announced last is the first: turned round.
        let (mut page, mut later) = (remote::take_all(&shared.inbox.first), 0);
        while let Some(earlier) = self.space.page(page) {
            let next = earlier.links().inbox.load(Ordering::Relaxed);
            earlier.links().inbox.store(later, Ordering::Relaxed);
            (later, page) = (page, next);
        }
        while let Some(page) = self.space.page(later) {
            later = page.links().inbox.load(Ordering::Relaxed);
            self.queue(page);
        }
    }

    /// Puts a page at the end of the queue of its class. It is pending, so its class does not change.
    pub(super) fn queue(&mut self, page: Page) {
        page.links().inbox.store(0, Ordering::Relaxed);
        let queue = &mut self.pending.queues[tag::class(page.tag())];
        queue.waiting += 1;
        let last = core::mem::replace(&mut queue.pages.last, page.address());
        match self.space.page(last) {
            Some(last) => last.links().inbox.store(page.address(), Ordering::Relaxed),
            None => queue.pages.first = page.address(),
        }
        self.pending.pages += 1;
    }

    /// Collects the first page of a queue; says no when there is none, or it has to wait. `wanted`: see
    /// [`collect_page`](Self::collect_page).
    fn collect_next(&mut self, class: Class, wanted: bool) -> bool {
        let first = self.space.page(self.first_queued(class));
        if first.is_none_or(|page| self.space.is_closed(page)) {
            return false;
        }
        let Some(page) = self.take_queued(class) else { return false };
        self.collect_page(page, wanted);
        true
    }

    /// Takes the first page of a queue.
    pub(super) fn take_queued(&mut self, class: Class) -> Option<Page> {
        let queue = &mut self.pending.queues[class];
        let page = self.space.page(queue.pages.first)?;
        queue.waiting -= 1;
        queue.pages.first = page.links().inbox.load(Ordering::Relaxed);
        if queue.pages.first == 0 {
            queue.pages.last = 0;
        }
        self.pending.pages -= 1;
        Some(page)
    }

    /// Collects all queues; says no when they are empty, or what is there has to wait.
    pub(super) fn collect_queues(&mut self) -> bool {
        let before = self.pending.pages;
        if before == 0 {
            return false;
        }
        for class in 1..CLASSES {
            while self.collect_next(class, false) {}
        }
        self.pending.pages < before
    }

    /// `wanted`: its class has no page at hand, and no other one.
    fn collect_page(&mut self, page: Page, wanted: bool) {
        let class = tag::class(remote::acknowledge(&page.mark().tag));
        // No window of a page that is not at hand is open.
        if self.preset.is_none() && self.bins[class].page != page.address() {
            free_windows(page, class);
        } else {
            page.take_freed(class, |window, bits| {
                if !self.free_bits(page, &Place { class, window, bits }) {
                    freed_twice(page, class, window, bits);
                }
            });
        }
        // Once for all windows. Also a page that could not be released because it was pending.
        let stays = page.tag() & !tag::PENDING == self.tag_of(class);
        if stays && !(wanted && self.begin_again(page, class)) {
            self.list_or_release(page, class);
        }
    }

    /// The pages in the queues: for the verifier.
    pub(super) fn queued_pages(&self) -> impl Iterator<Item = Page> + '_ {
        let firsts = self.pending.queues.iter().map(|queue| queue.pages.first);
        firsts.flat_map(|first| {
            core::iter::successors(self.space.page(first), |page| {
                self.space.page(page.links().inbox.load(Ordering::Relaxed))
            })
        })
    }

    /// Whether nothing waits in the queues: for tests.
    #[cfg(test)]
    pub(super) fn queues_are_empty(&self) -> bool {
        self.pending.pages == 0 && self.queued_pages().next().is_none()
    }
}

/// Frees what other threads freed, in a page of which no window is open. What its mark says of all of it is
/// changed once: window by window that was a tenth of what `xmalloc`'s producer does.
fn free_windows(page: Page, class: Class) {
    let (mut windows, mut blocks) = (0, 0);
    page.take_freed(class, |window, bits| {
        let word = &page.vacant()[window];
        let vacant = word.load(Ordering::Relaxed);
        if vacant & bits != 0 {
            freed_twice(page, class, window, bits);
        }
        word.store(vacant | bits, Ordering::Relaxed);
        windows |= 1 << window;
        blocks += SHAPES[class].blocks_of(window, bits);
    });
    page.mark().add_windows(windows);
    page.mark().remove_live(blocks);
}

/// The owner freed one of the blocks of a window that another thread freed.
#[cold]
pub(super) fn freed_twice(page: Page, class: Class, window: usize, bits: u64) -> ! {
    let granule = (window * 64 + bits.trailing_zeros() as usize) << GRANULE_SHIFT;
    let mistake = Mistake::TwoThreads { bytes: SHAPES[class].bytes as usize };
    mistake::abort("free", page.address() + granule, mistake)
}
