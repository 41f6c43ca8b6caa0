//! Taking blocks back: by the owner away from its current windows, and from other threads.
//!
//! ```text
//!   other thread                                   owner
//!   remote[window] |= bit       (twice: mistake)
//!   tag |= PENDING ── was not set ─▶ inbox ──────▶ collect: tag &= !PENDING, take the bits, free them
//! ```
//!
//! The tag is changed by compare-and-swap. It fails when the owner changed it since: then the bit was taken, and the page may be
//! somebody else's by now. A page that is pending stays in its heap, because it is in the inbox: the owner's own
//! compare-and-swap to the spare tag fails, and the next collection releases it.
//!
//! The owner's fast path sees a pending tag as a foreign one: a block that another thread freed before is found out before it is freed again.

use super::class::{Class, SHAPES, WINDOWS};
use super::heap::{Own, Place, Shared};
use super::lists::Listed;
use super::mistake::{self, Mistake};
use super::remote;
use super::runs::{bytes_of, check_run};
use super::space::{Page, Source, Space};
use super::tag::{self, RUN, SPARE};
use crate::arena::HEAP_PAGE_BYTES;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

impl<S: Source> Own<S> {
    /// Sees to it that a page with free blocks is found: puts it into a list, or takes it out of the bin when it has no live block.
    pub(super) fn list_or_release(&mut self, page: Page, class: Class) {
        if self.bins[class].page == page.address() {
            return;
        }
        if page.mark().free() != 0 && page.mark().listed.load(Ordering::Relaxed) == 0 {
            self.link(class, page, Listed::Partial);
        }
        if page.is_empty(class) && !self.has_window(page, class) && !self.is_quarantined(page, class) {
            self.release(page, class);
        }
    }

    /// Takes a page without live blocks out of its bin.
    fn release(&mut self, page: Page, class: Class) {
        let (tag, spare) = (self.tag_of(class), self.spare_tag());
        // Fails when another thread's free is announced: the collection comes back to the page.
        if page.mark().tag.compare_exchange(tag, spare, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.unlink(class, page);
            self.bins[class].forget(page.address().wrapping_sub(self.base) / HEAP_PAGE_BYTES);
            self.keep_spare(page);
        }
    }

    /// Frees the block at `address` in a page of this heap.
    pub(super) fn free_in(&mut self, page: Page, address: usize) -> Result<(), Mistake> {
        let class = tag::class(page.tag());
        if class == SPARE {
            return Err(Mistake::NotLive { bytes: 0 });
        }
        if class == RUN {
            check_run(page, address)?;
            self.keep_run(page);
            return Ok(());
        }
        let place = Place::of(page, class, address)?;
        if !self.free_at(page, &place) {
            return Err(Mistake::NotLive { bytes: SHAPES[class].bytes as usize });
        }
        Ok(())
    }

    /// Frees blocks of one window; says no, with nothing changed, if one of them is not live.
    fn free_at(&mut self, page: Page, place: &Place) -> bool {
        if self.preset.is_some() {
            return self.free_hardened(page, place);
        }
        let word = &page.vacant()[place.window];
        let was = word.load(Ordering::Relaxed);
        if was & place.bits != 0 {
            return false;
        }
        word.store(was | place.bits, Ordering::Relaxed);
        page.mark().add_free(place.window);
        self.list_or_release(page, place.class);
        true
    }

    /// Frees what other threads freed.
    #[cold]
    pub(super) fn collect(&mut self, shared: &Shared) {
        let mut next = remote::take_all(&shared.inbox);
        while let Some(page) = self.space.page(next) {
            next = page.links().inbox.load(Ordering::Relaxed);
            self.collect_page(page);
        }
    }

    fn collect_page(&mut self, page: Page) {
        let class = tag::class(remote::acknowledge(&page.mark().tag));
        let shape = &SHAPES[class];
        for window in 0..WINDOWS {
            if shape.windows >> window & 1 == 0 {
                continue;
            }
            let bits = remote::take(&page.remote()[window]);
            if bits == 0 {
                continue;
            }
            if !self.free_at(page, &Place { class, window, bits }) {
                let granule = (window * 64 + bits.trailing_zeros() as usize) << shape.shift;
                let mistake = Mistake::TwoThreads { bytes: shape.bytes as usize };
                mistake::abort("free", page.address() + granule, mistake);
            }
        }
        // A page that could not be released because it was pending.
        if page.tag() == self.tag_of(class) {
            self.list_or_release(page, class);
        }
    }
}

impl<S: Source> Space<S> {
    /// Frees a block in a page of another heap, or of a heap that has no owner now.
    pub(super) fn free_remote(&self, page: Page, tag: u32, address: usize) -> Result<(), Mistake> {
        let class = tag::class(tag);
        if class == SPARE {
            return Err(Mistake::NotLive { bytes: 0 });
        }
        if class == RUN {
            return self.free_run_remote(page, address);
        }
        let bytes = SHAPES[class].bytes as usize;
        let place = Place::of(page, class, address)?;
        if page.vacant()[place.window].load(Ordering::Relaxed) & place.bits != 0 {
            return Err(Mistake::NotLive { bytes });
        }
        if !remote::free(&page.remote()[place.window], place.bits) {
            return Err(Mistake::TwoThreads { bytes });
        }
        let Some(shared) = self.registry.shared::<S>(tag::heap(tag)) else { return Ok(()) };
        if remote::announce(&page.mark().tag, tag) {
            remote::push(&shared.inbox, page.address(), &page.links().inbox);
            self.collect_ownerless(tag::heap(tag));
        }
        Ok(())
    }

    /// Frees a run of another heap: it leaves the heap, back to the arenas.
    fn free_run_remote(&self, page: Page, address: usize) -> Result<(), Mistake> {
        check_run(page, address)?;
        let bytes = bytes_of(page);
        if !remote::free(&page.remote()[0], 1) {
            return Err(Mistake::TwoThreads { bytes });
        }
        if self.is_hardened(tag::heap(page.tag())) && !self.clear_run(page) {
            return Ok(());
        }
        // From here on nobody else finds the run: its first page has no tag, and its other pages never had one.
        page.mark().tag.store(0, Ordering::Release);
        page.remote()[0].store(0, Ordering::Release);
        self.free_pages(address)
    }

    /// Frees what begins at `address` from a thread without a heap of its own.
    ///
    /// # Safety
    /// Nobody uses the block any more. (That it is one is checked: a mistake ends the process with one line.)
    pub unsafe fn free(&self, address: NonNull<u8>) {
        let start = address.as_ptr() as usize;
        let result = match self.page(start).map(|page| (page, page.tag())) {
            None | Some((_, 0)) => self.free_pages(start),
            Some((page, tag)) => self.free_remote(page, tag, start),
        };
        if let Err(mistake) = result {
            mistake::abort("free", start, mistake);
        }
    }

    /// Bytes that may be used of what begins at `address`.
    ///
    /// # Errors
    /// When nothing live of this allocator begins there.
    pub fn usable_size(&self, address: usize) -> Result<usize, Mistake> {
        let Some((page, class)) = self.block_page(address)? else {
            return self.bytes_before_guard(address);
        };
        let place = Place::of(page, class, address)?;
        let bytes = SHAPES[class].bytes as usize;
        let gone = page.vacant()[place.window].load(Ordering::Relaxed)
            | page.remote()[place.window].load(Ordering::Relaxed);
        if gone & place.bits != 0 { Err(Mistake::NotLive { bytes }) } else { Ok(bytes) }
    }

    /// The page of a block and its class; `None` where no blocks are cut.
    pub(super) fn block_page(&self, address: usize) -> Result<Option<(Page, Class)>, Mistake> {
        let Some(page) = self.page(address) else { return Ok(None) };
        match tag::class(page.tag()) {
            0 => Ok(None),
            SPARE => Err(Mistake::NotLive { bytes: 0 }),
            RUN if page.vacant()[0].load(Ordering::Relaxed) & 1 == 1 => Err(Mistake::NotLive { bytes: 0 }),
            RUN => Ok(None),
            class => Ok(Some((page, class))),
        }
    }

    /// Whether something of the given size's class begins at `address`.
    pub(super) fn check_size(&self, address: usize, given: usize) -> Result<(), Mistake> {
        let (bytes, fits) = match self.block_page(address)? {
            Some((_, class)) => {
                let fits = given <= super::class::MAX_BLOCK && super::class::class_of(given) == class;
                (SHAPES[class].bytes as usize, fits)
            }
            None => {
                let bytes = self.bytes_before_guard(address)?;
                if let Some(fits) = self.fits_guarded(address, given) {
                    return if fits { Ok(()) } else { Err(Mistake::WrongSize { bytes, given }) };
                }
                let run = bytes % HEAP_PAGE_BYTES == 0
                    && given.div_ceil(HEAP_PAGE_BYTES) == bytes / HEAP_PAGE_BYTES;
                (bytes, bytes == given || run && given > super::class::MAX_BLOCK)
            }
        };
        if fits { Ok(()) } else { Err(Mistake::WrongSize { bytes, given }) }
    }
}
