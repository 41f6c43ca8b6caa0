//! Taking blocks back by the owner away from its current windows, and what an address lies in.
//!
//! Blocks of other heaps: see [`remote_free`](super::remote_free).

use super::class::{self, CLASSES, Class, GRANULE_SHIFT, MAX_BINNED, MAX_BLOCK, SHAPES, block_class_of};
use super::few::{self, standing_for};
use super::heap::{Core, Heap, Own, Place, Way};
use super::mistake::{self, Mistake};
use super::remote_free::{Elsewhere, InPending};
use super::runs::{bytes_of, check_run};
use super::space::{Page, Source, Space};
use super::span_place::is_of_length;
use super::spans::{SPANNED, SpanBlock};
use super::tag::{self, RUN, SPAN, SPARE};
use crate::arena::HEAP_PAGE_BYTES;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

/// What an address lies in.
pub(super) enum Found {
    /// A page of blocks of that class. Whether a live one begins there is not looked at.
    Block(Page, Class),
    /// A live block of a span, which begins there.
    InSpan(SpanBlock),
    /// A live page run of a heap, or a large block of a hardened one, which begins at that page.
    Run(Page),
    /// What the arenas know of: a page run, a large block, or nothing.
    Pages,
}

/// Away from the function that meets it, which would save registers for it.
#[cold]
#[inline(never)]
fn sized_free_twice(address: usize, class: Class) -> ! {
    mistake::abort("sized free", address, Mistake::TwoThreads { bytes: SHAPES[class].bytes as usize })
}

impl<S: Source> Heap<S> {
    /// Frees a short page run of this heap, or a block in the part of the first region of which none are
    /// remembered. Says no, with nothing changed, for everything else, mistakes included. Any number may be
    /// given.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(never)]
    pub(super) unsafe fn free_of_own(core: NonNull<Core<S>>, address: usize) -> bool {
        let mut heap = Self::borrowed(core);
        let granule = heap.own().granule_of(address);
        match heap.own().way_to_any(granule) {
            // SAFETY: by the contract above; the way is that of the granule.
            Some(way) => unsafe { heap.free_on_way_of_own(granule, way) },
            None => false,
        }
    }

    /// # Safety
    /// As for [`free`](Self::free); the granule lies in the first region, and that is the way from it.
    #[inline(always)]
    pub(super) unsafe fn free_on_way_of_own(&mut self, granule: usize, Way { way, mark, .. }: Way) -> bool {
        if way == tag::tag(0, RUN) as usize {
            return Self::free_run(self.core, granule);
        }
        if way as u32 == self.own().tag ^ SPANNED {
            return Self::free_in_span(self.core, granule, mark);
        }
        if way >= tag::tag(0, CLASSES) as usize || granule < self.own().granules() {
            return false;
        }
        Self::free_behind(self.core, granule)
    }

    /// A block of this heap that is not remembered. A function of its own: runs would save its registers.
    #[inline(never)]
    fn free_behind(core: NonNull<Core<S>>, granule: usize) -> bool {
        let mut heap = Self::borrowed(core);
        let _busy = heap.busy();
        let own = heap.own();
        let address = own.base + (granule << GRANULE_SHIFT);
        own.space.page(address).is_some_and(|page| own.free_in(page, address).is_ok())
    }

    /// Frees what is no block of this heap in the part of the first region of which blocks are remembered: page
    /// runs and blocks of other heaps, each found by its page's tag alone. With each kind tried in turn, a
    /// block of another heap cost 260 instructions.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(never)]
    pub(super) unsafe fn free_sized_far(core: NonNull<Core<S>>, address: NonNull<u8>, bytes: usize) {
        if bytes > MAX_BINNED {
            // SAFETY: by the contract above.
            return unsafe { Self::free_sized_run(core, address, bytes) };
        }
        // SAFETY: by the contract above.
        unsafe { Self::free_sized_of_another(address, bytes, core) }
    }

    /// Frees a block of another heap, for a caller that has the address first. (With the heap first, with
    /// registers to save and the class looked up from the size, it was 16 instructions more.)
    ///
    /// # Safety
    /// As for [`free`](Self::free); at most [`MAX_BINNED`] bytes.
    #[inline(never)]
    pub(super) unsafe fn free_sized_of_another(address: NonNull<u8>, bytes: usize, core: NonNull<Core<S>>) {
        // SAFETY: by the contract above.
        unsafe { core::hint::assert_unchecked(bytes <= MAX_BINNED) };
        // By the table of all heaps: this one may have its classes in groups, and the other one not. A block in
        // a page of a group goes the longer way, also where it is pending: tried here it took every block seven
        // more.
        let fits = |_: &Own<S>, way| tag::is_pending_elsewhere(way ^ tag::way_of(bytes) as u32);
        // SAFETY: by the contract above.
        match unsafe { Self::free_in_pending(core, address.as_ptr() as usize, fits) } {
            InPending::Freed => {}
            // SAFETY: by the contract above.
            InPending::Refused => unsafe { Self::free_sized_farther(address, bytes, core) },
            InPending::Announce(tag) => Self::announce_freed(address.as_ptr() as usize, tag, core),
            InPending::Twice(class) => sized_free_twice(address.as_ptr() as usize, class),
        }
    }

    /// What is in no page that is pending.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(never)]
    unsafe fn free_sized_farther(address: NonNull<u8>, bytes: usize, core: NonNull<Core<S>>) {
        let mut heap = Self::borrowed(core);
        let granule = heap.own().granule_of(address.as_ptr() as usize);
        if let Some(Way { way, mark, .. }) = heap.own().way_to_any(granule) {
            let class = block_class_of(bytes);
            let theirs = tag::class(way as u32);
            if tag::heap(way as u32) != 0 && (theirs == class || theirs == standing_for(class)) {
                // SAFETY: the granule lies in the first region, in a page of another heap and of that class,
                // with that mark.
                match unsafe { heap.own().free_of_other(granule, way, mark) } {
                    Elsewhere::Freed => return,
                    Elsewhere::Refused => {}
                    Elsewhere::Twice => sized_free_twice(address.as_ptr() as usize, theirs),
                }
            }
        }
        // SAFETY: by the contract above.
        unsafe { Self::free_sized_or_abort(core, address, bytes) }
    }

    /// A page run of this heap. A function of its own: blocks of other heaps would save its registers.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(never)]
    pub(super) unsafe fn free_sized_run(core: NonNull<Core<S>>, address: NonNull<u8>, bytes: usize) {
        let mut heap = Self::borrowed(core);
        let granule = heap.own().granule_of(address.as_ptr() as usize);
        let spanned = heap.own().tag ^ SPANNED;
        let freed = heap.own().way_to_any(granule).is_some_and(|Way { way, mark, .. }| {
            if way as u32 == spanned {
                return is_of_length(mark, bytes) && Self::free_in_span(core, granule, mark);
            }
            let fits = mark.free() as usize == bytes.div_ceil(HEAP_PAGE_BYTES);
            way == tag::tag(0, RUN) as usize && fits && Self::free_run(core, granule)
        });
        if !freed {
            // SAFETY: by the contract above.
            unsafe { Self::free_sized_or_abort(core, address, bytes) }
        }
    }

    /// What is left: other regions, pending pages, blocks far behind, runs of other heaps, long runs, large
    /// blocks, mistakes.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(never)]
    unsafe fn free_sized_or_abort(core: NonNull<Core<S>>, address: NonNull<u8>, bytes: usize) {
        let mut heap = Self::borrowed(core);
        let start = address.as_ptr() as usize;
        let space = heap.own().space;
        if space.page(start).is_none_or(|page| page.tag() == 0) {
            // A heap that only frees never asks for pages, where it would learn.
            heap.own().learn();
            if let Err(mistake) = space.free_pages_sized(start, bytes) {
                mistake::abort("sized free", start, mistake);
            }
            return;
        }
        let fits = bytes <= MAX_BLOCK && space.page(start).is_some_and(|page| space.fits(bytes, page.tag()));
        let checked = if fits { Ok(()) } else { space.check_size(start, bytes) };
        // SAFETY: by the contract above.
        let result = checked.and_then(|()| unsafe { heap.try_free(address) });
        if let Err(mistake) = result {
            mistake::abort("sized free", start, mistake);
        }
    }

    /// Frees what is neither a block of this heap in the first region nor a short page run.
    ///
    /// # Errors
    /// When nothing live of this allocator begins at `address`. Nothing is changed.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(always)]
    pub(super) unsafe fn free_elsewhere(core: NonNull<Core<S>>, address: usize) -> Result<(), Mistake> {
        let mut heap = Self::borrowed(core);
        let own = heap.own();
        let granule = own.granule_of(address);
        if let Some(Way { way, mark, .. }) = own.way_to_any(granule) {
            let class = tag::class(way as u32);
            if tag::heap(way as u32) != 0 && class != 0 && class < CLASSES {
                // SAFETY: by the contract above; the granule lies in the first region, in a page of another
                // heap and of that class, with that mark.
                match unsafe { own.free_of_other(granule, way, mark) } {
                    Elsewhere::Freed => return Ok(()),
                    Elsewhere::Refused => {}
                    Elsewhere::Twice => {
                        return Err(Mistake::TwoThreads { bytes: SHAPES[class].bytes as usize });
                    }
                }
            }
        }
        Self::free_farther(core, address)
    }
}

impl<S: Source> Own<S> {
    /// Sees to it that a page with free blocks is found: puts it into a list, or takes it out of the bin when
    /// it has no live block. One without is noted as full.
    pub(super) fn list_or_release(&mut self, page: Page, class: Class) {
        if self.bins[class].page == page.address() {
            return;
        }
        let mark = page.mark();
        let empty = mark.live() == 0 && page.is_empty() && !self.is_quarantined(page, class);
        if empty && self.release(page.address(), mark, class) {
            return;
        }
        if mark.listed() == 0 {
            if self.windows_of(page, class) != 0 {
                self.link_partial(class, page.address());
            } else {
                mark.set_full();
            }
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
            return self.keep_run(page);
        }
        let place = Place::of(page, class, address)?;
        if !self.free_at(page, &place) {
            return Err(Mistake::NotLive { bytes: SHAPES[class].bytes as usize });
        }
        Ok(())
    }

    /// Frees a block; says no, with nothing changed, if it is not live.
    fn free_at(&mut self, page: Page, place: &Place) -> bool {
        if !self.free_bits(page, place) {
            return false;
        }
        if self.preset.is_none() {
            self.list_or_release(page, place.class);
        }
        true
    }

    /// Frees blocks of one window; says no, with nothing changed, if one of them is not live. Afterwards the
    /// page has to be listed, or released.
    pub(super) fn free_bits(&mut self, page: Page, place: &Place) -> bool {
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
        // In the open window they count as before.
        if !core::ptr::eq(self.bins[place.class].current.word(), word) {
            page.mark().remove_live(place.bits.count_ones());
        }
        true
    }
}

impl<S: Source> Space<S> {
    /// Frees what begins at `address` from a thread without a heap of its own.
    ///
    /// # Safety
    /// Nobody uses the block any more. (That it is one is checked: a mistake ends the process with one line.)
    pub unsafe fn free(&self, address: NonNull<u8>) {
        // SAFETY: by the contract above.
        if let Err(mistake) = unsafe { self.try_free(address) } {
            mistake::abort("free", address.as_ptr() as usize, mistake);
        }
    }

    /// The same, or says why that cannot be.
    ///
    /// # Errors
    /// When nothing live of this allocator begins there. Nothing is changed.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    pub unsafe fn try_free(&self, address: NonNull<u8>) -> Result<(), Mistake> {
        let start = address.as_ptr() as usize;
        match self.page(start).map(|page| (page, page.tag())) {
            None | Some((_, 0)) => self.free_pages(start),
            // Who has no heap cannot be missed in a forked child: what is not announced there is used by nobody
            // again, and no more.
            Some((page, tag)) => self.free_remote(page, tag, start, &AtomicUsize::new(0)),
        }
    }

    /// The same for a caller that knows the size it was requested with. A size of another class is a mistake
    /// here as well: a thread that had left its heap freed with any size.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    pub unsafe fn free_sized(&self, address: NonNull<u8>, bytes: usize) {
        let start = address.as_ptr() as usize;
        if let Err(mistake) = self.check_size(start, bytes) {
            mistake::abort("sized free", start, mistake);
        }
        // SAFETY: by the contract above.
        unsafe { self.free(address) }
    }

    /// Bytes that may be used of what begins at `address`.
    ///
    /// # Errors
    /// When nothing live of this allocator begins there.
    pub fn usable_size(&self, address: usize) -> Result<usize, Mistake> {
        match self.find(address)? {
            Found::Block(page, class) => live_bytes(page, class, address),
            Found::InSpan(block) => Ok(block.bytes()),
            Found::Run(page) => Ok(bytes_of(page)),
            Found::Pages => self.pages_bytes(address),
        }
    }

    /// What an address lies in.
    ///
    /// # Errors
    /// When that cannot be live.
    pub(super) fn find(&self, address: usize) -> Result<Found, Mistake> {
        let Some(page) = self.page(address) else { return Ok(Found::Pages) };
        match tag::class(page.tag()) {
            0 => Ok(Found::Pages),
            SPARE => Err(Mistake::NotLive { bytes: 0 }),
            RUN => {
                check_run(page, address)?;
                Ok(Found::Run(page))
            }
            SPAN => {
                let block = SpanBlock::at(page, address)?;
                block.check_live()?;
                Ok(Found::InSpan(block))
            }
            class => Ok(Found::Block(page, class)),
        }
    }

    /// Whether a request of so many bytes, at most [`MAX_BLOCK`], may have a block of a page with that tag.
    fn fits(&self, bytes: usize, tag: u32) -> bool {
        let class = tag::class(tag);
        class::fits(bytes, class) || few::fits_in_group(bytes, class) && !self.is_hardened(tag::heap(tag))
    }

    /// Whether a request of `given` bytes can have got what lies at `address`: for who has to know before it is
    /// freed or resized. That something live begins there is not looked at for blocks;
    /// [`usable_size`](Self::usable_size) does.
    ///
    /// # Errors
    /// When it cannot, or nothing of this allocator lies there.
    pub fn check_size(&self, address: usize, given: usize) -> Result<(), Mistake> {
        let (bytes, fits) = match self.find(address)? {
            Found::Block(page, class) => {
                let fits = given <= MAX_BLOCK && self.fits(given, page.tag());
                (SHAPES[class].bytes as usize, fits)
            }
            Found::InSpan(block) => (block.bytes(), block.fits(given)),
            Found::Run(page) => (bytes_of(page), self.fits_run(page, given)),
            Found::Pages => {
                let bytes = self.pages_bytes(address)?;
                (bytes, self.fits_resized(address, given) || super::pages::fits_pages(bytes, given))
            }
        };
        if fits { Ok(()) } else { Err(Mistake::WrongSize { bytes, given }) }
    }
}

/// Bytes of the live block that begins at `address`, in a page of that class.
///
/// # Errors
/// When none does.
pub(super) fn live_bytes(page: Page, class: Class, address: usize) -> Result<usize, Mistake> {
    let place = Place::of(page, class, address)?;
    let bytes = SHAPES[class].bytes as usize;
    let gone =
        page.vacant()[place.window].load(Ordering::Relaxed) | page.freed_in_window(class, place.window);
    if gone & place.bits != 0 { Err(Mistake::NotLive { bytes }) } else { Ok(bytes) }
}
