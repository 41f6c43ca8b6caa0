//! Opening and leaving windows.
//!
//! The open window is one of the page at hand, and the page's mark has no bit for it: nobody else has to find
//! it. The bit is back when the bin leaves the window with free blocks, when a block of it is the first one to
//! be freed in a full page, or when all words of the page are looked at for want of another one: other frees
//! only count. With a bit for each free, a free of a block took four instructions and a branch more, and a look
//! at all words is needed once for all the blocks that were freed meanwhile.

use super::class::{Class, GRANULE_SHIFT, SHAPES, WINDOWS};
use super::freed;
use super::heap::{Core, Heap, Own};
use super::instructions::{in_register, without_bit};
use super::mark::Mark;
use super::space::{Bitmap, Page, Source};
use super::window::Window;
use crate::arena::HEAP_PAGE_BYTES;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// No window has this number.
const NO_NUMBER: usize = usize::MAX;

impl<S: Source> Heap<S> {
    /// Takes a block from a window near at hand, one of those that the page's mark has noted. All that it calls
    /// comes last, also its next attempt, and what would have to wait, or to look at all windows, is left to
    /// [`refill_from_page`](Self::refill_from_page): so nothing has to be kept meanwhile. With a loop, or a
    /// call in between, a fifth of its instructions saved registers, and blocks of 144 bytes come here for
    /// every seventh.
    #[inline(never)]
    pub(super) fn refill_from_window(core: NonNull<Core<S>>, class: Class) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        // A child forked while a window is opened would have a part of it.
        let Some(busy) = heap.try_busy() else { return Self::refill_from_page(core, class) };
        let number = heap.own().window_noted(class);
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
}

impl<S: Source> Own<S> {
    /// The page at hand of a class, as its number in the first region, if it lies where blocks are remembered.
    #[inline(always)]
    pub(super) fn page_near(&self, class: Class) -> Option<usize> {
        // SAFETY: a class has a bin.
        let page = unsafe { self.bins.get_unchecked(class) }.page.wrapping_sub(self.base) / HEAP_PAGE_BYTES;
        (page < self.granules() / (64 * WINDOWS)).then_some(page)
    }

    /// The number of the next noted window of the bin's page, if that lies where blocks are remembered; else
    /// [`NO_NUMBER`]. It may have no free block all the same.
    #[inline(always)]
    fn window_noted(&self, class: Class) -> usize {
        let Some(page) = self.page_near(class) else { return NO_NUMBER };
        // SAFETY: the page lies in the first region, and has a mark.
        match unsafe { &*self.marks.add(page) }.free() {
            0 => NO_NUMBER,
            windows => page * WINDOWS + windows.trailing_zeros() as usize % WINDOWS,
        }
    }

    /// Windows that may have a free block, of the page at hand where that lies where blocks are remembered; 0
    /// when it is full. No window of it is open with a free block.
    #[inline(always)]
    pub(super) fn windows_near(&self, page: usize, class: Class) -> u16 {
        // SAFETY: the page lies in the first region, and has a mark and a bitmap.
        let (mark, words) =
            unsafe { (&*self.marks.add(page), &*self.vacant.add(page * WINDOWS).cast::<Bitmap>()) };
        windows_at_hand(mark, words, class)
    }

    /// The same of a page that is not at hand.
    pub(super) fn windows_of(&self, page: Page, class: Class) -> u16 {
        match page.mark().free() {
            0 => look_for_windows(page.mark(), page.vacant(), class),
            windows => windows,
        }
    }

    /// Opens the window of that number and takes a block, if it has one.
    #[inline(always)]
    pub(super) fn open_near(&mut self, class: Class, number: usize) -> Option<usize> {
        // Addresses, each in one register, and each made when it is needed: otherwise there are not registers enough.
        // SAFETY: a window of the first region, and a class has a shape and a bin.
        let (mark, word, shape) = unsafe {
            let mark = in_register(core::ptr::from_ref(self.mark_of(number)) as usize) as *const Mark;
            let word = in_register(self.vacant.add(number) as usize) as *const AtomicU64;
            (&*mark, &*word, SHAPES.get_unchecked(class))
        };
        mark.remove_free(number % WINDOWS);
        let starts = shape.starts[number % WINDOWS];
        let vacant = word.load(Ordering::Relaxed);
        if vacant & starts == 0 {
            return None;
        }
        mark.add_live(shape.blocks_of(number % WINDOWS, vacant & starts));
        let base = self.base + (number << (GRANULE_SHIFT + 6));
        // SAFETY: as above.
        unsafe {
            let remote = &*self.remote.add(number);
            self.bins.get_unchecked_mut(class).set_current(Window::new(
                word,
                freed::word(class, number % WINDOWS, mark, remote),
                starts,
                base,
            ));
        }
        let granule = (vacant & starts).trailing_zeros() as usize;
        word.store(without_bit(vacant, granule), Ordering::Relaxed);
        Some(base + (granule << GRANULE_SHIFT))
    }

    /// Opens a window of a page that `free` has a bit for; `None` when it has no free block all the same.
    pub(super) fn open(&self, page: Page, class: Class, window: usize) -> Option<Window> {
        let (word, shape) = (&page.vacant()[window], &SHAPES[class]);
        let starts = shape.starts[window];
        page.mark().remove_free(window);
        if word.load(Ordering::Relaxed) & starts == 0 {
            return None;
        }
        let base = page.address() + (window << (GRANULE_SHIFT + 6));
        page.mark().add_live((word.load(Ordering::Relaxed) & starts).count_ones());
        Some(Window::new(word, freed::word(class, window, page.mark(), &page.remote()[window]), starts, base))
    }

    /// Leaves the current window of a bin.
    pub(super) fn leave_window(&mut self, class: Class) {
        let left = core::mem::replace(&mut self.bins[class].current, Window::NONE);
        if left.free() == 0 {
            return;
        }
        if let Some(page) = self.space.page(left.base) {
            page.mark().remove_live(left.free().count_ones());
            page.mark().add_free(window_of(page, left.base));
            debug_assert_eq!(page.address(), self.bins[class].page, "which stays at hand");
        }
    }
}

/// Windows that may have a free block, of a page at hand, no window of which is open with one; 0 when it is full.
///
/// That is known by how many of its blocks are live: so a page of which all were taken is not looked at.
#[inline(always)]
pub(super) fn windows_at_hand(mark: &Mark, words: &Bitmap, class: Class) -> u16 {
    match mark.free() {
        0 if mark.live_at_hand() == u32::from(SHAPES[class].blocks) => 0,
        0 => look_for_windows(mark, words, class),
        windows => windows,
    }
}

/// Notes the windows with free blocks of a page, and returns them.
#[inline(never)]
fn look_for_windows(mark: &Mark, words: &Bitmap, class: Class) -> u16 {
    let mut windows = 0;
    for (window, (word, starts)) in words.iter().zip(&SHAPES[class].starts).enumerate() {
        windows |= u16::from(word.load(Ordering::Relaxed) & starts != 0) << window;
    }
    mark.set_free(windows);
    windows
}

/// The window of an address in its page.
pub(super) fn window_of(page: Page, address: usize) -> usize {
    debug_assert!(address.wrapping_sub(page.address()) < crate::arena::HEAP_PAGE_BYTES);
    (address - page.address()) >> (GRANULE_SHIFT + 6)
}
