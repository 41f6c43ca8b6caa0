//! Opening and leaving windows.
//!
//! Opening writes "all live" into the page's bitmap, so that another thread that frees there sees no block as free; leaving
//! writes the truth back. Only a window with free blocks is ever left that way: one without them is forgotten, because the bitmap
//! says the truth already.

use super::bin::Window;
use super::class::{Class, SHAPES, SMALL, SMALL_SHIFT, WINDOWS};
use super::heap::{Heap, Own};
use super::space::{Page, Source};
use crate::arena::HEAP_PAGE_BYTES;
use core::sync::atomic::Ordering;

impl<S: Source> Heap<S> {
    /// After a block of window `number` was freed, the first one, or one that leaves the word all ones.
    #[inline(never)]
    pub(super) fn settle(&mut self, class: Class, number: usize, vacant: u64) {
        let own = self.own();
        // SAFETY: called with windows of the first region.
        let mark = unsafe { &*own.marks.add(number / WINDOWS) };
        let before = mark.free();
        mark.freed(number % WINDOWS, vacant);
        own.bins[class].remember(number);
        // Rarer still: the page may be in no list, or has no live block.
        if before == 0 || mark.empty() == SHAPES[class].windows {
            let _busy = self.busy();
            let own = self.own();
            if let Some(page) = own.space.page(own.base + (number << (SMALL_SHIFT + 6))) {
                own.list_or_release(page, class);
            }
        }
    }
}

impl<S: Source> Own<S> {
    /// Opens the window that a block was freed in last, and takes a block.
    #[inline]
    pub(super) fn reopen(&mut self, class: Class) -> Option<usize> {
        loop {
            let number = self.bins[class].recall()?;
            // SAFETY: bins remember windows of the first region only.
            let mark = unsafe { &*self.marks.add(number / WINDOWS) };
            // Otherwise it was opened since.
            if mark.free() >> (number % WINDOWS) & 1 == 1 {
                return self.open_near(class, number);
            }
        }
    }

    /// Opens the next window of the current page, if that is one of small blocks in the first region, and takes a block.
    #[inline]
    pub(super) fn advance(&mut self, class: Class) -> Option<usize> {
        let page = self.bins[class].page.wrapping_sub(self.base) / HEAP_PAGE_BYTES;
        if class > SMALL || page >= self.granules / (64 * WINDOWS) {
            return None;
        }
        // SAFETY: the page lies in the first region.
        let windows = unsafe { (*self.marks.add(page)).free() };
        if windows == 0 {
            return None;
        }
        self.open_near(class, page * WINDOWS + windows.trailing_zeros() as usize)
    }

    /// Opens a window of small blocks of the first region that `free` of its page has a bit for, and takes a block.
    #[inline(always)]
    fn open_near(&mut self, class: Class, number: usize) -> Option<usize> {
        // SAFETY: as said above: the region has a word and a mark for it.
        let (word, mark) = unsafe { (&*self.vacant.add(number), &*self.marks.add(number / WINDOWS)) };
        let window = number % WINDOWS;
        let (vacant, starts) = (word.load(Ordering::Relaxed), SHAPES[class].starts[window]);
        mark.opened(window);
        word.store(!starts, Ordering::Relaxed);
        let base = self.base + (number << (SMALL_SHIFT + 6));
        let bin = &mut self.bins[class];
        bin.current = Window { vacant, starts, base, number };
        bin.current.take(SMALL_SHIFT)
    }

    /// Opens a window of a page that `free` has a bit for.
    pub(super) fn open(&mut self, page: Page, class: Class, window: usize) -> Window {
        let (word, shape) = (&page.vacant()[window], &SHAPES[class]);
        let (vacant, starts) = (word.load(Ordering::Relaxed), shape.starts[window]);
        page.mark().opened(window);
        word.store(!starts, Ordering::Relaxed);
        let base = page.address() + (window << (shape.shift + 6));
        Window { vacant, starts, base, number: self.window_number(class, base) }
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
            let window = window_of(page, class, left.base);
            page.vacant()[window].store(left.vacant, Ordering::Relaxed);
            page.mark().freed(window, left.vacant);
            self.list_or_release(page, class);
        }
    }

    /// The open window that contains an address, if one does.
    pub(super) fn open_window(&mut self, class: Class, address: usize) -> Option<&mut Window> {
        let window = &mut self.bins[class].current;
        let inside = address.wrapping_sub(window.base) < 64 << SHAPES[class].shift;
        (window.is_open() && inside).then_some(window)
    }
}

/// The window of an address in its page.
pub(super) fn window_of(page: Page, class: Class, address: usize) -> usize {
    debug_assert!(address.wrapping_sub(page.address()) < crate::arena::HEAP_PAGE_BYTES);
    (address - page.address()) >> (SHAPES[class].shift + 6)
}
