//! Taking blocks that a bin remembers, and having it remember some.
//!
//! ```text
//!   free away from the window ─▶ recent ◀── gather: the next free blocks of the page at hand
//!                                  │
//!            allocate ◀─ retake ───┘   none left ─▶ some were freed since that was so last?  yes: gather
//!                                                                                          no: the current window
//! ```
//!
//! Who asks the current window first ([`Heap::allocate_near`]) finds it full as long as blocks are taken and freed in turn somewhere else: then each pair comes here, for 70
//! instructions more (`tests/instructions/test_interpreters.py`). So a window from which two blocks in a row are retaken, and which is one of the page at hand, becomes the current one. With every such
//! window opened, a program that replaces blocks at random would open one for each.
//!
//! A remembered block is free in its page's bitmap, and the page's mark has a bit for its window, like any other: it may be taken, or its page leave the bin,
//! without `recent` being told. So what is gathered is lost to nobody when it is forgotten.

use super::bin::{Window, without_bit};
use super::class::{Class, MEDIUM_SHIFT, SHAPES, SMALL_SHIFT, WINDOWS};
use super::heap::{Core, Heap, Own};
use super::space::Source;
use super::windows::medium_bit_of;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

/// Blocks gathered at once: half of what a bin remembers, so that those freed meanwhile do not overwrite them. With 16, all, programs that take and free blocks in
/// their order had more branches that were not foreseen, and no program had fewer.
const GATHERED: usize = super::bin::RECENT / 2;

impl<S: Source> Heap<S> {
    /// The block of small ones that was freed last is taken again, or the current window has no free one. That it does no more is what keeps it from
    /// saving registers.
    #[inline(never)]
    pub(super) fn refill(core: NonNull<Core<S>>, class: Class) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        let own = heap.own();
        if own.bins[class].remembers() {
            // SAFETY: the class is one of small blocks.
            let retaken = unsafe { own.retake(class) };
            if let Some(block) = retaken {
                let granule = own.granule_of(block.as_ptr() as usize);
                if own.returns_to(class, granule) {
                    return Self::follow(core, class, granule);
                }
                return retaken;
            }
        }
        own.bins[class].forget_all();
        Self::refill_from_windows(core, class)
    }

    /// No small block is remembered that is to be had, or none was freed and the current window has no free one.
    #[inline(never)]
    pub(super) fn gather_or_refill(core: NonNull<Core<S>>, class: Class) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        if heap.own().bins[class].forget_all() > 0 {
            return Self::gather(core, class);
        }
        Self::refill_from_windows(core, class)
    }

    /// Answers the block itself, because what it is given tells the compiler nothing of it: so this is the last thing called.
    #[inline(never)]
    fn follow(core: NonNull<Core<S>>, class: Class, granule: usize) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        // A child forked meanwhile would miss the window.
        let _busy = heap.busy();
        let own = heap.own();
        own.follow(class, granule);
        NonNull::new((own.base as *mut u8).wrapping_add(granule << SMALL_SHIFT))
    }

    #[inline(always)]
    fn refill_from_windows(core: NonNull<Core<S>>, class: Class) -> Option<NonNull<u8>> {
        match Self::borrowed(core).own().bins[class].current.take(SMALL_SHIFT) {
            Some(address) => NonNull::new(address as *mut u8),
            None => Self::refill_from_window(core, class),
        }
    }

    /// A function of its own: the way to the current window would save its registers.
    #[inline(never)]
    fn gather(core: NonNull<Core<S>>, class: Class) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        // A child forked while the window is left would miss its free blocks.
        let busy = heap.busy();
        let taken = heap.own().gather(class);
        drop(busy);
        taken.or_else(|| Self::refill_from_page(core, class))
    }
}

impl<S: Source> Own<S> {
    /// Takes the block that a bin of small blocks remembers last, if it is still free.
    ///
    /// # Safety
    /// The class is one of small blocks.
    #[inline(always)]
    pub(super) unsafe fn retake(&mut self, class: Class) -> Option<NonNull<u8>> {
        // SAFETY: by the contract.
        unsafe { self.retake_at(class, |granule| (granule / 64, granule % 64)) }
    }

    /// Whether the block that was retaken lies in the same window as the one before, while the current window has no free block.
    #[inline(always)]
    fn returns_to(&mut self, class: Class, granule: usize) -> bool {
        let number = (granule / 64) as u32;
        let bin = &mut self.bins[class];
        core::mem::replace(&mut bin.last, number) == number && bin.current.free() == 0
    }

    /// Makes the window of a block that was just retaken the current one, if it is one of the page at hand. The one before is full, so nothing is written back.
    fn follow(&mut self, class: Class, granule: usize) {
        let number = granule / 64;
        if self.page_near(class) != Some(number / WINDOWS) {
            return;
        }
        self.bins[class].last = u32::MAX;
        // SAFETY: a window of the first region.
        let (mark, word, remote) = unsafe {
            (&*self.marks.add(number / WINDOWS), &*self.vacant.add(number), &*self.remote.add(number))
        };
        mark.remove_free(number % WINDOWS);
        let base = self.base + (number << (SMALL_SHIFT + 6));
        self.bins[class].current =
            Window::new(word, remote, SHAPES[class].starts[number % WINDOWS], base, number);
    }

    /// # Safety
    /// `place` tells the number of the window of a granule in a page of the class, and its bit.
    #[inline(always)]
    unsafe fn retake_at(
        &mut self,
        class: Class,
        place: impl Fn(usize) -> (usize, usize),
    ) -> Option<NonNull<u8>> {
        // SAFETY: a class has a bin.
        let granule = unsafe { self.bins.get_unchecked_mut(class) }.recall();
        if granule == 0 {
            return None;
        }
        let (number, bit) = place(granule);
        // SAFETY: bins remember blocks of the first region only.
        let word = unsafe { &*self.vacant.add(number) };
        let vacant = word.load(Ordering::Relaxed);
        if vacant >> bit & 1 == 0 {
            return None;
        }
        word.store(without_bit(vacant, bit), Ordering::Relaxed);
        // SAFETY: no block begins at 0.
        Some(unsafe { NonNull::new_unchecked((self.base as *mut u8).wrapping_add(granule << SMALL_SHIFT)) })
    }

    /// Takes a medium block that is at hand: the one that its bin remembers last, or one of its current window. Never gathers: a page has few of them.
    pub(super) fn take_medium(&mut self, class: Class) -> Option<NonNull<u8>> {
        if self.bins[class].remembers() {
            // SAFETY: the place is that of a granule in a page of the class.
            let taken = unsafe { self.retake_at(class, medium_bit_of) };
            if taken.is_some() {
                return taken;
            }
            self.bins[class].forget_all();
        }
        let taken = self.bins[class].current.take(MEDIUM_SHIFT)?;
        NonNull::new(taken as *mut u8)
    }

    /// Leaves the current window of a class of small blocks, and takes the next free block of the page at hand; its bin remembers those after it, in their order.
    /// `None` when the page has none, or lies where blocks are not remembered.
    fn gather(&mut self, class: Class) -> Option<NonNull<u8>> {
        self.leave_window(class);
        let page = self.page_near(class)?;
        // The last granule of the page fits, so all do.
        u32::try_from((page + 1) * 64 * WINDOWS - 1).ok()?;
        // SAFETY: the page lies in the first region.
        let mark = unsafe { &*self.marks.add(page) };
        let (mut granules, mut count) = ([0; GATHERED], 0);
        let mut windows = mark.free();
        while windows != 0 && count < GATHERED {
            let window = windows.trailing_zeros() as usize;
            windows &= windows - 1;
            let number = page * WINDOWS + window;
            // SAFETY: a window of that page.
            let vacant = unsafe { &*self.vacant.add(number) }.load(Ordering::Relaxed);
            let mut free = vacant & SHAPES[class].starts[window];
            if free == 0 {
                mark.remove_free(window);
            }
            while free != 0 && count < GATHERED {
                granules[count] = (number * 64) as u32 + free.trailing_zeros();
                free &= free - 1;
                count += 1;
            }
        }
        self.bins[class].remember(&granules[..count]);
        // SAFETY: by this function's own contract the class is one of small blocks.
        unsafe { self.retake(class) }
    }
}
