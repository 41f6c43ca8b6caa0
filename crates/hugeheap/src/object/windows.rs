//! Opening and leaving windows.
//!
//! The open window is one of the page at hand, and the page's mark has no bit for it: nobody else has to find it. The bit is back when the bin leaves the
//! window with free blocks, or when a block is freed there later.

use super::bin::{NO_NUMBER, Window, with_bit, without_bit};
use super::class::{CLASSES, Class, MEDIUM_SHIFT, SHAPES, SMALL, SMALL_SHIFT, WINDOWS};
use super::heap::{Core, Heap, Own};
use super::space::{Page, Source};
use super::tag::{self, RUN};
use crate::arena::HEAP_PAGE_BYTES;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

/// Where the bit of a granule of the first region is: the number of its window there, and the bit.
#[inline(always)]
pub(super) fn bit_of(class: Class, granule: usize) -> (usize, usize) {
    if class <= SMALL { (granule / 64, granule % 64) } else { medium_bit_of(granule) }
}

/// The same in a page of medium blocks.
#[inline(always)]
pub(super) fn medium_bit_of(granule: usize) -> (usize, usize) {
    const PAGE: usize = 64 * WINDOWS;
    let index = (granule % PAGE) >> (MEDIUM_SHIFT - SMALL_SHIFT);
    (granule / PAGE * WINDOWS + index / 64, index % 64)
}

impl<S: Source> Heap<S> {
    /// Takes a block from a window near at hand. All that it calls comes last, also its next attempt, so that nothing has to be kept meanwhile: with
    /// a loop a fifth of its instructions saved registers, and blocks of 144 bytes come here for every seventh.
    #[inline(never)]
    pub(super) fn refill_from_window(core: NonNull<Core<S>>, class: Class) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        // A child forked while a window is opened would have a part of it.
        let busy = heap.busy();
        let number = heap.own().window_near(class);
        if number == NO_NUMBER {
            drop(busy);
            return Self::refill_from_page(core, class);
        }
        let taken = heap.own().open_near(class, number);
        drop(busy);
        match taken {
            Some(address) => NonNull::new(address as *mut u8),
            None => Self::refill(core, class),
        }
    }

    /// After a block was freed in a page that had no free block before, or may have no live one now.
    ///
    /// `extern "C"`, because a function that never unwinds can be the last thing a hook of another language jumps to.
    #[inline(never)]
    pub(super) extern "C" fn settle(core: NonNull<Core<S>>, granule: usize) {
        if Self::borrowed(core).own().is_settled(granule) {
            return;
        }
        let mut heap = Self::borrowed(core);
        let _busy = heap.busy();
        let own = heap.own();
        if let Some(page) = own.space.page(own.base + (granule << SMALL_SHIFT)) {
            own.list_or_release(page, tag::class(page.tag()));
        }
    }

    /// Frees a medium block or a short page run of this heap. Says no, with nothing changed, for everything else, mistakes included. Any number may be
    /// given.
    ///
    /// A function that finds its way itself, so that whoever is not [near](Self::free_near) needs no more than a call of it: with its caller
    /// looking at the tag, and returning more than yes or no, a block of 1,000 bytes cost 30 instructions more.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(never)]
    pub(super) unsafe fn free_medium(core: NonNull<Core<S>>, address: usize) -> bool {
        let mut heap = Self::borrowed(core);
        let own = heap.own();
        let granule = own.granule_of(address);
        match own.way_to(granule) {
            // SAFETY: by the contract above; the granule lies in the first region, and the way is that of its page.
            Some((way, _)) if way > tag::tag(0, SMALL) as usize => unsafe {
                Self::free_on_way(core, granule, way)
            },
            _ => false,
        }
    }

    /// # Safety
    /// As for [`free`](Self::free); the granule lies in the first region, and `way` is the difference of its page's tag and the heap's; it is not that of a page of
    /// small blocks.
    #[inline(always)]
    pub(super) unsafe fn free_on_way(core: NonNull<Core<S>>, granule: usize, way: usize) -> bool {
        let mut heap = Self::borrowed(core);
        let class = way >> tag::CLASS_SHIFT;
        if class == RUN && way == tag::tag(0, RUN) as usize {
            return heap.free_run(granule);
        }
        if class >= CLASSES || granule % (1 << (MEDIUM_SHIFT - SMALL_SHIFT)) != 0 {
            return false;
        }
        let own = heap.own();
        let (number, bit) = medium_bit_of(granule);
        let bin = &mut own.bins[class];
        let offset = (own.base + (granule << SMALL_SHIFT)).wrapping_sub(bin.current.base);
        if offset < 64 << MEDIUM_SHIFT {
            return bin.current.put(bit);
        }
        // SAFETY: the granule lies in the first region.
        let (word, mark) = unsafe { (&*own.vacant.add(number), &*own.marks.add(number / WINDOWS)) };
        let vacant = word.load(Ordering::Relaxed);
        if vacant >> bit & 1 != 0 {
            return false;
        }
        let vacant = with_bit(vacant, bit);
        word.store(vacant, Ordering::Relaxed);
        if bin.note_free(mark, granule, number, vacant) {
            Self::settle(core, granule);
        }
        true
    }
}

impl<S: Source> Own<S> {
    /// Whether the page of a block that was just freed can stay as it is, found out at little cost. No means nothing.
    ///
    /// A page all of whose windows have free blocks is looked at each time one of them becomes empty: sixteen times until it is, when its blocks are
    /// freed in their order, and as often when they are freed at random. Looking at all windows each time was a fortieth of the instructions of a
    /// program that frees every other object, fills the gaps, and frees all. Beside the window there mostly is one with a live block.
    #[inline(always)]
    fn is_settled(&self, granule: usize) -> bool {
        let first = granule / (64 * WINDOWS) * WINDOWS;
        // SAFETY: the caller freed the block at this granule of the first region, so its page has a mark, and words for all windows.
        let mark = unsafe { &*self.marks.add(first / WINDOWS) };
        // With another window in the mark the page is known to its bin already.
        if mark.free().count_ones() < 2 {
            return false;
        }
        let (number, _) = bit_of(tag::class(mark.tag.load(Ordering::Relaxed)), granule);
        let holds = |window: usize| {
            // SAFETY: as above; a window of the same page.
            unsafe { &*self.vacant.add(first + window % WINDOWS) }.load(Ordering::Relaxed) != u64::MAX
        };
        holds(number + 1) || holds(number + WINDOWS - 1)
    }

    /// The page at hand of a class of small blocks, as its number in the first region, if it lies there.
    #[inline(always)]
    pub(super) fn page_near(&self, class: Class) -> Option<usize> {
        debug_assert!(class <= SMALL);
        // SAFETY: a class has a bin.
        let page = unsafe { self.bins.get_unchecked(class) }.page.wrapping_sub(self.base) / HEAP_PAGE_BYTES;
        (page < self.granules / (64 * WINDOWS)).then_some(page)
    }

    /// The number of the next window of the bin's page, if that is one of small blocks in the first region; else [`NO_NUMBER`]. It may have no free block all the same.
    #[inline(always)]
    pub(super) fn window_near(&self, class: Class) -> usize {
        let Some(page) = self.page_near(class) else { return NO_NUMBER };
        // SAFETY: the page lies in the first region.
        match unsafe { &*self.marks.add(page) }.free() {
            0 => NO_NUMBER,
            free => page * WINDOWS + free.trailing_zeros() as usize % WINDOWS,
        }
    }

    /// Opens the window of that number and takes a block, if it has one.
    #[inline(always)]
    pub(super) fn open_near(&mut self, class: Class, number: usize) -> Option<usize> {
        // SAFETY: a window of the first region, and a class has a shape.
        let (mark, word, remote, shape) = unsafe {
            (
                &*self.marks.add(number / WINDOWS),
                &*self.vacant.add(number),
                &*self.remote.add(number),
                SHAPES.get_unchecked(class),
            )
        };
        mark.remove_free(number % WINDOWS);
        let starts = shape.starts[number % WINDOWS];
        let vacant = word.load(Ordering::Relaxed);
        if vacant & starts == 0 {
            return None;
        }
        let base = self.base + (number << (SMALL_SHIFT + 6));
        // SAFETY: a class has a bin.
        unsafe { self.bins.get_unchecked_mut(class) }.current =
            Window::new(word, remote, starts, base, number);
        let granule = (vacant & starts).trailing_zeros() as usize;
        word.store(without_bit(vacant, granule), Ordering::Relaxed);
        Some(base + (granule << SMALL_SHIFT))
    }

    /// Opens a window of a page that `free` has a bit for; `None` when it has no free block all the same.
    pub(super) fn open(&self, page: Page, class: Class, window: usize) -> Option<Window> {
        let (word, shape) = (&page.vacant()[window], &SHAPES[class]);
        let starts = shape.starts[window];
        page.mark().remove_free(window);
        if word.load(Ordering::Relaxed) & starts == 0 {
            return None;
        }
        let base = page.address() + (window << (shape.shift + 6));
        Some(Window::new(word, &page.remote()[window], starts, base, self.window_number(class, base)))
    }

    /// The number of a window of small blocks in the first region; [`NO_NUMBER`] for others, which the fast path does not look for.
    pub(super) fn window_number(&self, class: Class, base: usize) -> usize {
        let granule = base.wrapping_sub(self.base) >> SMALL_SHIFT;
        if class <= SMALL && granule < self.granules { granule / 64 } else { NO_NUMBER }
    }

    /// Leaves the current window of a bin.
    pub(super) fn leave_window(&mut self, class: Class) {
        let left = core::mem::replace(&mut self.bins[class].current, Window::NONE);
        if left.free() == 0 {
            return;
        }
        if let Some(page) = self.space.page(left.base) {
            page.mark().add_free(window_of(page, class, left.base));
            self.list_or_release(page, class);
        }
    }
}

/// The window of an address in its page.
pub(super) fn window_of(page: Page, class: Class, address: usize) -> usize {
    debug_assert!(address.wrapping_sub(page.address()) < crate::arena::HEAP_PAGE_BYTES);
    (address - page.address()) >> (SHAPES[class].shift + 6)
}
