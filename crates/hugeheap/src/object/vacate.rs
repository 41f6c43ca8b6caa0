//! Giving OS pages back that no live block lies in, while the owners of the heaps go on.
//!
//! ```text
//!   another thread                                            owner
//!   close the arena: its pages are not brought to hand
//!   claim a page: tag |= PENDING, unless it is                its frees in the page are those of any other thread
//!   barrier                                                   (on every processor)
//!   busy?  ── yes: leave the page
//!   read bitmap, count, remembered blocks, bitmap, count      takes blocks that it remembers, ends the free it is in the middle of
//!      differ: leave it; the page is at hand: later
//!   drop the OS pages without a live or remembered block
//!   put the page into the owner's inbox, open the arena       collects it like any other page
//! ```
//!
//! Only the owner changes a page's bitmap, with plain stores and without a look at anything that others could
//! set. So another thread can never be told "this page has no live block" and hold on to that. What it can have
//! is a page of which the owner's fast paths take no more blocks than those that the owner remembers:
//!
//! * *No page of a closed arena comes to hand.* Who brings one to hand is [busy](super::busy), and then looks
//!   whether the arena is closed. The other side closes it, passes the barrier, and looks whether the owner is
//!   busy. One of them sees the other. Of a page that is at hand already more can be taken: its owner has to be
//!   [held](super::vacate_at_hand).
//! * *No block of a pending page is freed by a fast path*, but for one that the owner may be in the middle of:
//!   the tag is another one. And a page of a closed arena stays pending: who would collect it sees to that in
//!   the same way.
//!
//! What is left is that one free, and blocks that are remembered and taken meanwhile. Their steps are, in this order,
//!
//! ```text
//!   free   bit set ─▶ remembered ─▶ counted               take   counted ─▶ not remembered any more ─▶ bit cleared
//! ```
//!
//! so a block whose bit is set without being remembered is one for good, or the count says one block more than
//! the bitmap. Bitmap and count are read before and after what is remembered, and both times have to agree with
//! each other and be the same. What is remembered is read place by place; the owner notes when it moves some of
//! it, and nothing is known of the page then. What other threads freed and nobody collected is free for good as
//! well: its bit is set when it is collected. Then no block can be taken whose bit is set and which is not
//! remembered, as long as the arena is closed and the page is claimed. The owner's stores are seen in their
//! order on x86-64; elsewhere the barrier is passed between the readings.
//!
//! The owner has no instruction more on its fast paths. A block that is free and in an OS page that was dropped
//! reads as zero, and brings its page back when it is written.

use super::busy::Patience;
use super::class::{CLASSES, GRANULE_SHIFT, SHAPES};
use super::heap::Core;
use super::mark::Mark;
use super::merging::Merging;
use super::registry::LOST;
use super::ring::{NO_BLOCK, RECENT, Ring};
use super::space::{Page, Source, Space};
use super::tag::{self, PENDING};
use super::vacancy::{Words, both, live_blocks, vacant_os_pages};
use crate::arena::{ARENA_BYTES, GivenUp, HEAP_PAGE_BYTES, HEAP_PAGES, Tenant};
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use hugeheap_os::{AddressRange, Error, Facts, Pages, Result as OsResult};

/// What came of claiming a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// It is not of the kind, or not worth it.
    Refused,
    /// It is pending since others freed in it, and in its owner's inbox or queues, or about to be.
    NotNeeded,
    Made,
}

/// What was known when somebody began to look for a free block.
#[derive(Clone, Copy)]
pub(super) struct Look {
    /// Arenas opened until then.
    openings: usize,
    /// One was closed then.
    closed: bool,
}

/// No arena is closed.
const NONE: usize = 0;

impl<S: Source> Tenant for Space<S> {
    fn vacate(
        &self,
        arena: AddressRange,
        merge: bool,
        drop: &mut dyn FnMut(AddressRange) -> OsResult<()>,
    ) -> (GivenUp, OsResult<()>) {
        let closed = &self.registry.closed;
        if closed.compare_exchange(NONE, arena.start, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return (GivenUp::default(), Err(Error::new("vacate", libc::EAGAIN)));
        }
        let os_page = self.source().os().os_page();
        let (mut claimed, mut pending) = (0, 0);
        for (number, page) in self.pages_of(arena, u128::MAX) {
            match self.claim_page(page, os_page, merge) {
                Claim::Made => claimed |= 1 << number,
                Claim::NotNeeded => pending |= 1 << number,
                Claim::Refused => {}
            }
        }
        let (mut vacant, mut result) = (0, self.source().os().barrier());
        for (_, page) in self.pages_of(arena, u128::MAX) {
            if result.is_ok() {
                result = self.drop_vacant_of_span(page, os_page, drop, &mut vacant);
            }
        }
        let mut merging =
            if merge && result.is_ok() { Merging::begin(self.source().os(), arena) } else { None };
        for (_, page) in self.pages_of(arena, claimed | pending) {
            if result.is_ok() {
                result = self.drop_vacant(page, os_page, merging.as_mut(), drop, &mut vacant);
            }
        }
        let alike = merging.filter(|_| result.is_ok()).map_or(0, Merging::finish);
        if result.is_ok() {
            let pages = self.pages_of(arena, claimed | pending).map(|(_, page)| page);
            result = self.drop_vacant_at_hand(pages, os_page, drop, &mut vacant);
        }
        for (_, page) in self.pages_of(arena, claimed) {
            self.push_into_inbox(page, page.tag());
        }
        self.open();
        // Not before: it may be this thread that collects them. Those that were pending have been announced.
        for (_, page) in self.pages_of(arena, claimed) {
            self.announced(page.tag());
        }
        for (_, page) in self.pages_of(arena, pending) {
            self.collect_ownerless(tag::heap(page.tag()));
        }
        // Of heaps that wait also pages that were not claimed: what was freed there while the arena was closed.
        self.collect_left_behind();
        (GivenUp { vacant, alike }, result)
    }

    fn given_back(&self, arena: AddressRange) {
        self.arena_given_back(arena.start);
    }
}

impl<S: Source> Space<S> {
    fn pages_of(&self, arena: AddressRange, numbers: u128) -> impl Iterator<Item = (u32, Page)> {
        let chosen = (0..HEAP_PAGES).filter(move |number| numbers >> number & 1 != 0);
        chosen.filter_map(move |number| {
            Some((number, self.page(arena.start + number as usize * HEAP_PAGE_BYTES)?))
        })
    }

    /// Has the owner of a page of blocks leave it to others, if it is worth it. `merge`: also where nothing is vacant.
    pub(super) fn claim_page(&self, page: Page, os_page: usize, merge: bool) -> Claim {
        let tag = page.tag();
        let class = tag::class(tag);
        if class == 0 || class >= CLASSES || self.is_hardened(tag::heap(tag)) {
            return Claim::Refused;
        }
        let free = both(&page.words(), &page.freed_by_others(class));
        let lost = |number| {
            let shared = self.registry.shared::<S>(number);
            shared.is_none_or(|shared| shared.state.load(Ordering::Relaxed) == LOST)
        };
        // A full page has nothing to write to, and of one that has not changed since what could be had was had.
        let alike = || {
            let others = page.freed_by_others(class).iter().map(|bits| bits.count_ones()).sum();
            live_blocks(&SHAPES[class], &free) < SHAPES[class].blocks.into() && !page.mark().is_gone(others)
        };
        let worth = vacant_os_pages(&SHAPES[class], &free, os_page) != 0 || merge && alike();
        // Nobody would collect it in a heap that is lost.
        if !worth || lost(tag::heap(tag)) {
            return Claim::Refused;
        }
        if tag::is_pending(tag) {
            return Claim::NotNeeded;
        }
        match page.mark().tag.compare_exchange(tag, tag | PENDING, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => Claim::Made,
            Err(_) => Claim::Refused,
        }
    }

    /// Whether a page lies in the arena that is closed.
    #[inline(always)]
    pub(super) fn is_closed(&self, page: Page) -> bool {
        let closed = self.closed_arena();
        closed != NONE && page.address().wrapping_sub(closed) < ARENA_BYTES
    }

    /// Drops the OS pages of a pending page that no live or remembered block lies in, and notes the others for merging.
    fn drop_vacant(
        &self,
        page: Page,
        os_page: usize,
        merging: Option<&mut Merging<'_, S::Os>>,
        drop: &mut dyn FnMut(AddressRange) -> OsResult<()>,
        bytes: &mut usize,
    ) -> OsResult<()> {
        let Some((class, free, others)) = self.free_for_good(page)? else { return Ok(()) };
        let vacant = vacant_os_pages(&SHAPES[class], &free, os_page);
        drop_os_pages(page.address(), vacant.into(), os_page, drop, bytes)?;
        if let Some(merging) = merging {
            merging.add(page.address(), &SHAPES[class], &free);
        }
        // Also what could not be had: it is tried again when the page has changed.
        page.mark().set_gone(others);
        Ok(())
    }

    /// The blocks of a pending page that are free and that nobody can take, how many of them others freed, and
    /// the page's class. `None`: nobody knows. See the module's text.
    fn free_for_good(&self, page: Page) -> OsResult<Option<(usize, Words, u32)>> {
        let tag = page.tag();
        let (number, class) = (tag::heap(tag), tag::class(tag));
        let (Some(core), Some(shared)) = (self.registry.core::<S>(number), self.registry.shared::<S>(number))
        else {
            return Ok(None);
        };
        // The tag again: it may have been collected before the barrier.
        if shared.turn.is_taken() || page.tag() != tag || !tag::is_pending(tag) || class >= CLASSES {
            return Ok(None);
        }
        let Some((words, reach)) = at_rest(core, page, self.source().os())? else { return Ok(None) };
        let freed = page.freed_by_others(class);
        let others = freed.iter().map(|bits| bits.count_ones()).sum();
        Ok(Some((class, reach.without_remembered(both(&words, &freed), page), others)))
    }

    /// The arena that is closed, of which no page comes to hand; 0: none.
    #[inline(always)]
    pub(super) fn closed_arena(&self) -> usize {
        self.registry.closed.load(Ordering::SeqCst)
    }

    /// The arena that was closed is one like any other again.
    pub(super) fn open(&self) {
        // First, for who looks: see `begin_look`.
        self.registry.openings.fetch_add(1, Ordering::SeqCst);
        self.registry.closed.store(NONE, Ordering::SeqCst);
    }

    /// Before somebody looks for a free block.
    pub(super) fn begin_look(&self) -> Look {
        let openings = self.registry.openings.load(Ordering::SeqCst);
        Look { openings, closed: self.closed_arena() != NONE }
    }

    /// Whether what was looked for may lie in an arena that was closed meanwhile. Waits until it is open.
    ///
    /// With what was seen at the end only, an arena that was opened just before that was none, and a program
    /// got no memory while it had free blocks.
    #[cold]
    pub(super) fn may_have_missed(&self, look: Look) -> bool {
        let mut patience = Patience::default();
        let mut closed = look.closed;
        while self.closed_arena() != NONE {
            closed = true;
            patience.wait();
        }
        closed || self.registry.openings.load(Ordering::SeqCst) != look.openings
    }

    /// In a forked child: nobody goes on with what a missing thread was giving back. Its pages are claimed:
    /// they are put into the inboxes of their heaps.
    pub(super) fn finish_vacating(&self) {
        let start = self.registry.closed.swap(NONE, Ordering::Relaxed);
        if start == NONE {
            return;
        }
        for (_, page) in self.pages_of(AddressRange::new(start, ARENA_BYTES), u128::MAX) {
            self.finish_announcement_of(page);
        }
    }
}

/// Drops OS pages from an address on, a bit each, in as few ranges as that takes.
pub(super) fn drop_os_pages(
    start: usize,
    vacant: u64,
    os_page: usize,
    drop: &mut dyn FnMut(AddressRange) -> OsResult<()>,
    bytes: &mut usize,
) -> OsResult<()> {
    let mut number = 0;
    while vacant.checked_shr(number).is_some_and(|rest| rest != 0) {
        number += (vacant >> number).trailing_zeros();
        let count = (vacant >> number).trailing_ones();
        let range = AddressRange::new(start + number as usize * os_page, count as usize * os_page);
        drop(range)?;
        *bytes += range.len;
        number += count;
    }
    Ok(())
}

/// The bitmap of a page that is pending, and what the owner's fast paths may take of its class, if they are in
/// the middle of nothing there: neither of a free nor of an allocation. See the module's text. Nothing is known
/// so of a page at hand.
pub(super) fn at_rest<S: Source>(
    core: NonNull<Core<S>>,
    page: Page,
    os: &S::Os,
) -> OsResult<Option<(Words, Reach)>> {
    let agreed = agreed(core, page, os, Page::words, Mark::live)?;
    Ok(agreed.filter(|(_, reach)| !reach.has_at_hand(page)))
}

/// The same of any pending page, by a bitmap and a count that leave the same out.
pub(super) fn agreed<S: Source>(
    core: NonNull<Core<S>>,
    page: Page,
    os: &S::Os,
    words: impl Fn(Page) -> Words,
    live: impl Fn(&Mark) -> u32,
) -> OsResult<Option<(Words, Reach)>> {
    let mark = page.mark();
    let class = tag::class(page.tag());
    in_order(os)?;
    let before = words(page);
    in_order(os)?;
    let count = live(mark);
    in_order(os)?;
    let Some(reach) = Reach::of(core, class, os)? else { return Ok(None) };
    in_order(os)?;
    let again = words(page);
    in_order(os)?;
    let agree = before == again && count == live_blocks(&SHAPES[class], &before) && count == live(mark);
    Ok(agree.then_some((before, reach)))
}

/// What was read before was there before what is read next.
fn in_order<P: Pages>(os: &P) -> OsResult<()> {
    if cfg!(target_arch = "x86_64") {
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
        return Ok(());
    }
    os.barrier()
}

/// What the owner's fast paths may take blocks of a class from.
pub(super) struct Reach {
    /// First byte of the region in which blocks are remembered.
    base: usize,
    page: usize,
    window: usize,
    recent: [u32; RECENT],
}

impl Reach {
    /// `None`: what is remembered was moved meanwhile.
    pub(super) fn of<S: Source>(core: NonNull<Core<S>>, class: usize, os: &S::Os) -> OsResult<Option<Self>> {
        // SAFETY: cores are never unmapped. The owner writes these fields meanwhile, with plain stores of whole
        // words: each is read once, volatile, as what it was or is, and what is made of them is thrown away
        // unless bitmap and count say that the owner was in the middle of nothing.
        unsafe {
            let own = &raw const (*core.as_ptr()).own;
            let bin = &raw const (*own).bins[class];
            let (base, page, window) = (
                (&raw const (*own).base).read_volatile(),
                (&raw const (*bin).page).read_volatile(),
                (&raw const (*bin).current.base).read_volatile(),
            );
            let recent = Ring::read_of_another(&raw const (*bin).ring, || in_order(os))?;
            Ok(recent.map(|recent| Self { base, page, window, recent }))
        }
    }

    /// Whether a page is at hand.
    fn has_at_hand(&self, page: Page) -> bool {
        let start = page.address();
        self.page == start || self.window.wrapping_sub(start) < HEAP_PAGE_BYTES
    }

    /// The number of the window of a page that is open; `None`: it is not at hand. `Some(None)`: it is, and
    /// none of its windows is open.
    pub(super) fn open_window_of(&self, page: Page) -> Option<Option<usize>> {
        let offset = self.window.wrapping_sub(page.address());
        let open = (offset < HEAP_PAGE_BYTES).then_some(offset >> (GRANULE_SHIFT + 6));
        (self.page == page.address()).then_some(open)
    }

    /// Free blocks of a page, but for those that are remembered.
    pub(super) fn without_remembered(&self, mut free: Words, page: Page) -> Words {
        for offset in self.remembered_in(page) {
            let granule = offset >> GRANULE_SHIFT;
            free[granule / 64] &= !(1 << (granule % 64));
        }
        free
    }

    /// Where in a page the blocks are that are remembered.
    pub(super) fn remembered_in(&self, page: Page) -> impl Iterator<Item = usize> {
        let address = |granule: u32| self.base + ((granule as usize) << GRANULE_SHIFT);
        let remembered = self.recent.iter().filter(|&&granule| granule != NO_BLOCK);
        let offsets = remembered.map(move |&granule| address(granule).wrapping_sub(page.address()));
        offsets.filter(|&offset| offset < HEAP_PAGE_BYTES)
    }
}
