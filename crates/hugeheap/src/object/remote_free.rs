//! Freeing blocks of other heaps.
//!
//! ```text
//!   other thread                                   owner
//!   remote[window] |= bit       (twice: mistake)
//!   tag |= PENDING ── was not set ─▶ inbox ──────▶ collect (see `inbox`): tag &= !PENDING, take the bits, free them
//! ```
//!
//! Setting the pending bit is a compare-and-swap. It fails when the owner changed it since: then the bit was
//! taken, and the page may be somebody else's by now. A page that is pending stays in its heap, because it is
//! in the inbox, or is about to be: the owner's own compare-and-swap to the spare tag fails, and the next
//! collection releases it.
//!
//! The owner's fast path sees a pending tag as a foreign one: a block that another thread freed before is found
//! out before it is freed again.
//!
//! Most such frees meet a page that is pending already, and end with its bit ([`Heap::free_in_pending`]). Of a
//! heap that waits for an owner see [`ownerless`](super::ownerless).

use super::class::{Class, GRANULE_SHIFT, SHAPES};
use super::freed;
use super::heap::{Core, Heap, Own, Place, Way};
use super::instructions::in_register;
use super::mark::Mark;
use super::mistake::Mistake;
use super::remote;
use super::space::{Page, Source, Space};
use super::tag::{self, RUN, SPAN, SPARE};
use crate::arena::HEAP_PAGE_BYTES;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What came of freeing a block of another heap.
pub(super) enum Elsewhere {
    /// No live block begins there, and nothing was changed: [`Space::free_remote`] knows why.
    Refused,
    Freed,
    /// Another thread freed it before. Not left to a second attempt: the block may be taken again by then.
    Twice,
}

/// What came of freeing a block in a page that is pending.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum InPending {
    /// It is none, or not of another heap, or no live block begins there; and nothing was changed.
    Refused,
    Freed,
    /// Freed, and somebody may have to be [told](Heap::announce_freed). With the tag that the page had before.
    Announce(u32),
    /// Another thread freed it before, a block of that class.
    Twice(Class),
}

/// Whether an address lies in the first window of its page.
fn is_in_first_window(address: usize) -> bool {
    address % HEAP_PAGE_BYTES < 64 << GRANULE_SHIFT
}

impl<S: Source> Heap<S> {
    /// Frees a block of another heap, in the first region, in a page in which others freed before: what nearly
    /// all frees of other heaps' blocks are. Saves no registers, as long as what follows is the last thing
    /// called. `fits`: whether the page is pending, of another heap and of a class that may be, by the
    /// difference of its tag and this heap's.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(always)]
    pub(super) unsafe fn free_in_pending(
        core: NonNull<Core<S>>,
        address: usize,
        fits: impl FnOnce(&Own<S>, u32) -> bool,
    ) -> InPending {
        let mut heap = Self::borrowed(core);
        let own = heap.own();
        let granule = own.granule_of(address);
        let Some(Way { way, mark, .. }) = own.way_to_any(granule) else { return InPending::Refused };
        let tag = way as u32 ^ own.tag;
        if !fits(own, way as u32) {
            return InPending::Refused;
        }
        // Addresses, each in one register, and the window made anew for each: of the parts that they are made of
        // there are more than registers that need not be saved.
        let window = in_register(granule) / 64;
        let vacant = own.vacant.wrapping_add(window);
        let mark = in_register(core::ptr::from_ref(mark) as usize) as *const Mark;
        // SAFETY: windows of the first region have words, and its pages marks.
        let (vacant, mark) = unsafe { (&*(in_register(vacant as usize) as *const AtomicU64), &*mark) };
        if vacant.load(Ordering::Relaxed) & 1 << (granule % 64) != 0 {
            return InPending::Refused;
        }
        let freed = own.remote.wrapping_add(in_register(granule) / 64);
        // SAFETY: as above.
        let freed = unsafe { &*(in_register(freed as usize) as *const AtomicU64) };
        let (freed, bit) = freed::place(tag, granule, mark, freed);
        // Made again, or read again, where few frees need it: there is no register to keep it in.
        let again = || in_register(tag as usize) as u32;
        if !remote::free(freed, bit) {
            return InPending::Twice(tag::class(again()));
        }
        let may_be_all = || freed::may_be_all_of_first_window(again(), vacant.load(Ordering::Relaxed), freed);
        let look = is_in_first_window(address) && may_be_all();
        if look || !remote::is_still_pending(&mark.tag, tag) {
            InPending::Announce(tag)
        } else {
            InPending::Freed
        }
    }

    /// Goes on where a block was freed in a page that was pending, with that tag: it may have been collected
    /// since, or a window of it have no live block any more.
    #[inline(never)]
    pub(super) fn announce_freed(address: usize, tag: u32, core: NonNull<Core<S>>) {
        let mut heap = Self::borrowed(core);
        let own = heap.own();
        let granule = own.granule_of(address);
        let Some(Way { window, mark, .. }) = own.way_to_any(granule) else { return };
        // SAFETY: windows of the first region have words.
        let (vacant, freed) = unsafe { (&*own.vacant.add(window), &*own.remote.add(window)) };
        let (freed, _) = freed::place(tag, granule, mark, freed);
        own.space.announce(vacant.load(Ordering::Relaxed), freed, (mark, tag), address, &own.announcing);
    }
}

impl<S: Source> Own<S> {
    /// Frees a block of another heap.
    ///
    /// # Safety
    /// As for [`free`](super::Heap::free); the granule lies in the first region, in a page with that mark, and
    /// `way` is the difference of its tag, that of another heap and of a class, and this heap's.
    #[inline(always)]
    pub(super) unsafe fn free_of_other(&self, granule: usize, way: usize, mark: &Mark) -> Elsewhere {
        let number = granule / 64;
        // SAFETY: windows of the first region have words.
        let words = unsafe { (&*self.vacant.add(number), &*self.remote.add(number)) };
        let address = self.base + (granule << GRANULE_SHIFT);
        self.space.free_for_owner(words, (mark, way as u32 ^ self.tag), address, &self.announcing)
    }
}

impl<S: Source> Space<S> {
    /// Frees a block in a page of another heap, or of a heap that has no owner now. `announcing`: the caller's.
    pub(super) fn free_remote(
        &self,
        page: Page,
        tag: u32,
        address: usize,
        announcing: &AtomicUsize,
    ) -> Result<(), Mistake> {
        let class = tag::class(tag);
        if class == SPARE {
            return Err(Mistake::NotLive { bytes: 0 });
        }
        if class == RUN {
            return self.free_run_remote(page, tag, address);
        }
        if class == SPAN {
            return self.free_to_pool(page, address);
        }
        let bytes = SHAPES[class].bytes as usize;
        let place = Place::of(page, class, address)?;
        let words = (&page.vacant()[place.window], &page.remote()[place.window]);
        match self.free_for_owner(words, (page.mark(), tag), address, announcing) {
            Elsewhere::Freed => Ok(()),
            Elsewhere::Refused => Err(Mistake::NotLive { bytes }),
            Elsewhere::Twice => Err(Mistake::TwoThreads { bytes }),
        }
    }

    /// Frees a block that is another's, by its bit in the words (vacant, remote) of its window. The tag is what
    /// the page's mark had before.
    #[inline(always)]
    fn free_for_owner(
        &self,
        (vacant, freed): (&AtomicU64, &AtomicU64),
        (mark, tag): (&Mark, u32),
        address: usize,
        announcing: &AtomicUsize,
    ) -> Elsewhere {
        // Where no live block begins it is 1, also inside of blocks.
        let (owners, granule) = (vacant.load(Ordering::Relaxed), address >> GRANULE_SHIFT);
        if owners & 1 << (granule % 64) != 0 {
            return Elsewhere::Refused;
        }
        // SAFETY: whoever frees gives the block up.
        if !tag::is_pending(tag) && unsafe { self.free_in_waiting(address, tag::heap(tag)) } {
            return Elsewhere::Freed;
        }
        let (freed, bit) = freed::place(tag, granule, mark, freed);
        if !remote::free(freed, bit) {
            return Elsewhere::Twice;
        }
        self.announce(owners, freed, (mark, tag), address, announcing);
        Elsewhere::Freed
    }

    /// After a block's bit was set among those of other threads: has the page collected. The tag is what the
    /// mark had before.
    #[inline(always)]
    fn announce(
        &self,
        owners: u64,
        freed: &AtomicU64,
        (mark, tag): (&Mark, u32),
        address: usize,
        announcing: &AtomicUsize,
    ) {
        if remote::announce(&mark.tag, tag, || announcing.store(address, Ordering::Relaxed)) {
            self.put_into_inbox(address, tag);
            announcing.store(0, Ordering::Relaxed);
        } else if is_in_first_window(address) && freed::gone_of_first_window(tag, owners, freed) == u64::MAX {
            self.count_vacant(tag);
        }
    }

    /// The page of an address became pending: a function of its own, because few frees of its blocks do that.
    #[inline(never)]
    pub(super) fn put_into_inbox(&self, address: usize, tag: u32) {
        let Some(page) = self.page(address) else { return };
        self.push_into_inbox(page, tag);
        self.announced(tag);
    }

    /// Puts a page that became pending into the inbox of its heap.
    pub(super) fn push_into_inbox(&self, page: Page, tag: u32) {
        if let Some(shared) = self.registry.shared::<S>(tag::heap(tag)) {
            remote::push(&shared.inbox.first, page.address(), &page.links().inbox);
        }
    }

    /// After a page was put into an inbox: sees to it that somebody collects it.
    pub(super) fn announced(&self, tag: u32) {
        if let Some(shared) = self.registry.shared::<S>(tag::heap(tag)) {
            self.collect_ownerless(tag::heap(tag));
            self.count_announced(tag::heap(tag), shared);
        }
    }
}
