//! Opening and leaving windows.
//!
//! A page's mark has no bit for the open window: nobody else has to find it. The bit is back when the bin leaves the window with free
//! blocks, or when a block is freed there later.

use super::bin::{Window, with_bit};
use super::class::{CLASSES, Class, MEDIUM_SHIFT, SHAPES, SMALL, SMALL_SHIFT, WINDOWS};
use super::heap::{Core, Heap, Own};
use super::space::{Page, Source};
use super::tag::{self, RUN};
use crate::arena::HEAP_PAGE_BYTES;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

/// Whether a page has to be looked at after a free: it had free blocks in the windows `before`, and the block's window has the word `vacant` now. That
/// is rare: it may be in no list, or all windows have free blocks, and this one no live one. One branch, which is never taken for long:
/// a branch on the window alone, tried first, is not foreseen where a window has few blocks, and cost a third of the time of medium blocks.
#[inline(always)]
pub(super) fn settles(before: u16, window: usize, vacant: u64, windows: u16) -> bool {
    (before == 0) | ((before | 1 << window == windows) & (vacant == u64::MAX))
}

/// Where the bit of a granule of the first region is: the index of its word there, the bit, the window in its page.
#[inline(always)]
pub(super) fn bit_of(class: Class, granule: usize) -> (usize, usize, usize) {
    if class <= SMALL {
        return (granule / 64, granule % 64, granule / 64 % WINDOWS);
    }
    const PAGE: usize = 64 * WINDOWS;
    let index = (granule % PAGE) >> (MEDIUM_SHIFT - SMALL_SHIFT);
    (granule / PAGE * WINDOWS + index / 64, index % 64, index / 64)
}

impl<S: Source> Heap<S> {
    /// After a block was freed in a page that had no free block before, or may have no live one now. Says yes, for the caller to end with.
    #[inline(never)]
    pub(super) fn settle(core: NonNull<Core<S>>, class: Class, granule: usize) -> bool {
        let mut heap = Self::borrowed(core);
        let _busy = heap.busy();
        let own = heap.own();
        if let Some(page) = own.space.page(own.base + (granule << SMALL_SHIFT)) {
            own.list_or_release(page, class);
        }
        true
    }

    /// Frees a medium block or a short page run of this heap; says no for everything else.
    ///
    /// # Safety
    /// As for [`free`](Self::free); the granule lies in the first region, and `way` is the difference of its page's tag and the heap's.
    #[inline(never)]
    pub(super) unsafe fn free_medium(core: NonNull<Core<S>>, granule: usize, way: usize) -> bool {
        let mut heap = Self::borrowed(core);
        let class = way >> tag::CLASS_SHIFT;
        if class == RUN && way == tag::tag(0, RUN) as usize {
            return heap.free_run(granule);
        }
        if class >= CLASSES || granule % (1 << (MEDIUM_SHIFT - SMALL_SHIFT)) != 0 {
            return false;
        }
        let own = heap.own();
        let (number, bit, window) = bit_of(class, granule);
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
        let before = mark.add_free(window);
        bin.remember(granule);
        if settles(before, window, vacant, bin.windows) {
            return Self::settle(core, class, granule);
        }
        true
    }
}

impl<S: Source> Own<S> {
    /// Takes the block at a granule that a bin remembers, if it is still free and not in the current window.
    #[inline(always)]
    pub(super) fn retake(&mut self, class: Class, granule: usize) -> bool {
        let (number, bit, _) = bit_of(class, granule);
        // SAFETY: bins remember blocks of the first region only.
        let word = unsafe { &*self.vacant.add(number) };
        let vacant = word.load(Ordering::Relaxed);
        if vacant >> bit & 1 == 0 {
            return false;
        }
        // A subtraction, because the bit is known to be set: one instruction less than clearing it.
        word.store(vacant - (1 << bit), Ordering::Relaxed);
        true
    }

    /// Opens the next window of the current page, if that is one of small blocks in the first region, and takes a block.
    #[inline]
    pub(super) fn advance(&mut self, class: Class) -> Option<usize> {
        let page = self.bins[class].page.wrapping_sub(self.base) / HEAP_PAGE_BYTES;
        if class > SMALL || page >= self.granules / (64 * WINDOWS) {
            return None;
        }
        // SAFETY: the page lies in the first region.
        let mark = unsafe { &*self.marks.add(page) };
        loop {
            let free = mark.free();
            if free == 0 {
                return None;
            }
            let window = free.trailing_zeros() as usize;
            mark.remove_free(window);
            let starts = SHAPES[class].starts[window];
            let number = page * WINDOWS + window;
            // SAFETY: as above.
            let (word, remote) = unsafe { (&*self.vacant.add(number), &*self.remote.add(number)) };
            if word.load(Ordering::Relaxed) & starts != 0 {
                let base = self.base + (number << (SMALL_SHIFT + 6));
                let bin = &mut self.bins[class];
                bin.current = Window::new(word, remote, starts, base, number);
                return bin.current.take(SMALL_SHIFT);
            }
        }
    }

    /// Opens a window of a page that `free` has a bit for; `None` when it has no free block all the same.
    pub(super) fn open(&mut self, page: Page, class: Class, window: usize) -> Option<Window> {
        let (word, shape) = (&page.vacant()[window], &SHAPES[class]);
        let starts = shape.starts[window];
        page.mark().remove_free(window);
        if word.load(Ordering::Relaxed) & starts == 0 {
            return None;
        }
        let base = page.address() + (window << (shape.shift + 6));
        Some(Window::new(word, &page.remote()[window], starts, base, self.window_number(class, base)))
    }

    /// The number of a window of small blocks in the first region; `usize::MAX` for others, which the fast path does not look for.
    pub(super) fn window_number(&self, class: Class, base: usize) -> usize {
        let granule = base.wrapping_sub(self.base) >> SMALL_SHIFT;
        if class <= SMALL && granule < self.granules { granule / 64 } else { usize::MAX }
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

    /// Whether a page has the open window of a bin.
    pub(super) fn has_window(&self, page: Page, class: Class) -> bool {
        self.bins[class].current.base.wrapping_sub(page.address()) < HEAP_PAGE_BYTES
    }
}

/// The window of an address in its page.
pub(super) fn window_of(page: Page, class: Class, address: usize) -> usize {
    debug_assert!(address.wrapping_sub(page.address()) < crate::arena::HEAP_PAGE_BYTES);
    (address - page.address()) >> (SHAPES[class].shift + 6)
}
