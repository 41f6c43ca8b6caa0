//! Where the next block of a class comes from.
//!
//! ```text
//!   bin of a class    page ─▶ window     next window with a free block ─▶ partial ─▶ unswept ─▶ a new page
//!                     full, partial, unswept: lists of the other pages
//!
//!   window   settled ──── opened: all its free blocks count as occupied, and as marked where objects are born so ───▶ taken
//!               ▲                                                                                                      │
//!               └──────── settle: what was not handed out is free again, and not marked ◀── bits: what is left ────────┘
//! ```
//!
//! While a window is taken, handing out a block changes a word of the bin and nothing else. Before, it changed
//! a word of each bitmap too: of 30 ns for an object that survived, with its marking, that took 4.
//!
//! Invariant: who reads bitmaps, but for the bits of objects it knows, finds all windows settled. So whoever
//! takes blocks settles in the end: minor collections and evacuations once, an allocation in the old generation
//! each time.

use super::lists::List;
use super::old::{LEAVING, Old, SPARES};
use crate::arena::HEAP_PAGE_BYTES;
use crate::object::Source;
use crate::object::class::{CLASSES, Class, GRANULE_SHIFT, SHAPES, WINDOWS, class_of};
use crate::object::space::Page;
use core::sync::atomic::Ordering::Relaxed;

/// Unswept pages looked at for one window before a new page is taken: bounds the pause when all of them are full.
const SWEEP_TRIES: usize = 16;

/// Classes with a place for free blocks: a power of two, so that a class needs no comparison.
pub(super) const FREES: usize = 64;

const _: () = assert!(CLASSES <= FREES && FREES * size_of::<Free>() <= u16::MAX as usize);

/// Free blocks of the taken window of a class.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct Free {
    /// 0: none, or no window is taken.
    bits: u64,
    /// Where the window begins.
    start: usize,
    /// What was free when the window was taken.
    taken: u64,
}

const _: () = assert!(size_of::<Free>() == 32, "found by a shift");

impl Free {
    pub(super) const NONE: Self = Self { bits: 0, start: 0, taken: 0 };

    /// How many bytes after that of class 0 the one of a class is.
    pub(super) const fn place_of(class: Class) -> u16 {
        (class * size_of::<Self>()) as u16
    }

    /// A block, if one is left.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<usize> {
        let bits = core::num::NonZero::new(self.bits)?;
        self.bits &= self.bits - 1;
        Some(self.start + ((bits.trailing_zeros() as usize) << GRANULE_SHIFT))
    }

    /// How many blocks were handed out.
    fn handed_out(&self) -> usize {
        (self.taken ^ self.bits).count_ones() as usize
    }
}

/// How much was handed out of windows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HandedOut {
    pub(super) blocks: u64,
    /// Of these.
    pub(super) bytes: usize,
}

impl HandedOut {
    /// A window of a class is taken no more. Returns the bytes that were handed out of it.
    fn add(&mut self, class: Class, window: &Free) -> usize {
        let blocks = window.handed_out();
        let bytes = blocks * SHAPES[class].bytes as usize;
        self.blocks += blocks as u64;
        self.bytes += bytes;
        bytes
    }
}

/// All pages of a class.
pub(super) struct Bin {
    /// The window of the page, and what is free in it while it is settled.
    window: usize,
    rest: u64,
    pub(super) page: Option<Page>,
    pub(super) partial: List,
    pub(super) full: List,
    pub(super) unswept: List,
}

impl Bin {
    pub(super) const EMPTY: Self = Self {
        window: WINDOWS,
        rest: 0,
        page: None,
        partial: List::EMPTY,
        full: List::EMPTY,
        unswept: List::EMPTY,
    };

    /// The bin has no page of its own any more. Returns the one it had.
    pub(super) fn close(&mut self) -> Option<Page> {
        (self.window, self.rest) = (WINDOWS, 0);
        self.page.take()
    }
}

impl<S: Source> Old<S> {
    /// Room for one object of `bytes` bytes, at most [`MAX_BLOCK`](crate::object::class::MAX_BLOCK). Contents
    /// undefined. `None`: no memory, or the maximum is reached.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Option<usize> {
        let block = self.take(class_of(bytes));
        self.settle();
        block
    }

    /// A block of a class; afterwards all windows have to be [settled](Self::settle).
    #[inline(always)]
    pub(super) fn take(&mut self, class: Class) -> Option<usize> {
        if self.free[class % FREES].bits == 0 && !self.next_window(class) {
            return None;
        }
        // SAFETY: it has one, or the window that was just taken has.
        unsafe { core::hint::assert_unchecked(self.free[class % FREES].bits != 0) };
        self.take_at_hand(class)
    }

    /// The same where one is left of the window that is taken.
    #[inline(always)]
    pub(super) fn take_at_hand(&mut self, class: Class) -> Option<usize> {
        self.free[class % FREES].take()
    }

    /// The first of the free blocks of all classes. Only until something else is done with this generation.
    #[inline(always)]
    pub(super) fn places(&mut self) -> *mut Free {
        self.free.as_mut_ptr()
    }

    /// What was not handed out of the taken windows is free again.
    pub(super) fn settle(&mut self) {
        let mut classes = core::mem::take(&mut self.taken);
        while classes != 0 {
            let class = classes.trailing_zeros() as Class;
            classes &= classes - 1;
            let bin = &mut self.bins[class];
            let free = &mut self.free[class];
            self.used += self.handed_out.add(class, free);
            bin.rest = free.bits;
            (free.bits, free.taken) = (0, 0);
            let Some(page) = bin.page.filter(|_| bin.rest != 0) else { continue };
            let vacant = &page.vacant()[bin.window];
            vacant.store(vacant.load(Relaxed) | bin.rest, Relaxed);
            if self.black {
                let marks = &page.remote()[bin.window];
                marks.store(marks.load(Relaxed) & !bin.rest, Relaxed);
            }
        }
    }

    /// Takes the next window with a free block. Says no when there is no memory.
    #[inline(never)]
    fn next_window(&mut self, class: Class) -> bool {
        let mut tries = 0;
        let free = &mut self.free[class];
        if free.taken != 0 {
            self.used += self.handed_out.add(class, free);
            free.taken = 0;
        }
        loop {
            if self.take_window(class) {
                return true;
            }
            let bin = &mut self.bins[class];
            if let Some(full) = bin.close() {
                bin.full.push(self.space, full);
            }
            let next = if let Some(page) = bin.partial.pop(self.space) {
                if page.mark().tag.load(Relaxed) & LEAVING != 0 {
                    // The next sweep finds it there.
                    bin.full.push(self.space, page);
                    continue;
                }
                page
            } else if tries < SWEEP_TRIES && !bin.unswept.is_empty() {
                tries += 1;
                self.sweep_class(class);
                continue;
            } else if let Some(page) = self.new_page(class) {
                page
            } else if self.sweep_page().is_some() {
                // No new page, but what is not swept yet may have some.
                continue;
            } else {
                return false;
            };
            self.bins[class].page = Some(next);
        }
    }

    /// Takes the window of the bin's page, or the next one there with a free block.
    fn take_window(&mut self, class: Class) -> bool {
        let (bin, shape) = (&mut self.bins[class], &SHAPES[class]);
        let Some(page) = bin.page else { return false };
        let mut free = core::mem::take(&mut bin.rest);
        if free == 0 {
            let first = if bin.window == WINDOWS { 0 } else { bin.window + 1 };
            let free_in = |window: usize| page.vacant()[window].load(Relaxed) & shape.starts[window];
            let Some(window) = (first..WINDOWS).find(|&window| free_in(window) != 0) else { return false };
            (bin.window, free) = (window, free_in(window));
        }
        let vacant = &page.vacant()[bin.window];
        vacant.store(vacant.load(Relaxed) & !free, Relaxed);
        if self.black {
            let marks = &page.remote()[bin.window];
            marks.store(marks.load(Relaxed) | free, Relaxed);
        }
        let start = page.address() + ((bin.window * 64) << GRANULE_SHIFT);
        self.free[class] = Free { bits: free, start, taken: free };
        self.taken |= 1 << class;
        true
    }

    fn new_page(&mut self, class: Class) -> Option<Page> {
        if self.spare_count == 0 && !self.take_spares() {
            return None;
        }
        self.spare_count -= 1;
        let page = self.space.page(self.spares[self.spare_count])?;
        page.vacant().iter().for_each(|word| word.store(u64::MAX, Relaxed));
        // It is 0. Without this the first marking of a large heap touched all mark bitmaps for the first time:
        // thousands of page faults in a step.
        page.remote()[0].store(0, Relaxed);
        page.mark().tag.store(self.tag | self.cycle | class as u32, Relaxed);
        Some(page)
    }

    /// Takes pages from the arenas, twice as many as the last time.
    ///
    /// Once they have none they are not asked again in the same pause: each survivor asked, under a limit on
    /// address space with three calls that were refused and a wait, and a collection took seconds. Nor are they
    /// asked where the maximum leaves no room for a page: there, too, each survivor took their lock, for 1,800
    /// instructions.
    fn take_spares(&mut self) -> bool {
        if self.refused {
            return false;
        }
        let batch = self.batch.min(self.maximum.saturating_sub(self.held) / HEAP_PAGE_BYTES);
        if batch == 0 {
            return false;
        }
        self.batch = (self.batch * 2).min(SPARES / 2);
        self.wait_for_arena();
        let spares = &mut self.spares[..batch];
        let mut taken = self.space.take_pages(spares, 0);
        // Here the program waits: the next arena is made meanwhile, by somebody else.
        let expected = self.expected;
        self.space.source().with(|arenas| arenas.expect_growth(expected, self.space));
        self.grows = true;
        while taken > 0 && !self.leaving.is_empty() {
            let kept = self.put_aside(taken);
            taken = kept.unwrap_or(0);
            // Without memory to note them the same ones would be taken again, for ever.
            if kept != Some(0) {
                break;
            }
            let spares = &mut self.spares[..batch];
            taken = self.space.take_pages(spares, 0);
        }
        self.spares[..taken].reverse();
        self.spare_count += taken;
        self.held += taken * HEAP_PAGE_BYTES;
        self.refused = taken == 0;
        self.spare_count > 0
    }

    /// Of the first spare pages, keeps those that are not in arenas that are evacuated. Returns how many.
    /// `None`: there is no memory to note the others, so all are given back, which ends the evacuation.
    fn put_aside(&mut self, taken: usize) -> Option<usize> {
        let mut kept = 0;
        for index in 0..taken {
            let page = self.spares[index];
            if self.leaving_at(page).is_none() {
                self.spares[kept] = page;
                kept += 1;
            } else if self.aside.try_reserve(1).is_ok() {
                self.aside.push(page);
            } else {
                let back = self.space.source().with(|arenas| {
                    arenas
                        .free_pages(&self.spares[..kept])
                        .and_then(|()| arenas.free_pages(&self.spares[index..taken]))
                });
                debug_assert!(back.is_ok(), "they were just taken");
                return None;
            }
        }
        Some(kept)
    }

    /// Gives pages back to the arenas that were put aside.
    pub(super) fn give_aside(&mut self, pages: &[usize]) {
        let freed = self.space.source().with(|arenas| arenas.free_pages(pages));
        debug_assert!(freed.is_ok(), "they were taken as single pages");
        self.refused = false;
    }

    /// Gives spare pages back to the arenas, but for `keep`.
    pub(super) fn give_spares(&mut self, keep: usize) {
        let given = &self.spares[keep..self.spare_count];
        let freed = self.space.source().with(|arenas| arenas.free_pages(given));
        debug_assert!(freed.is_ok(), "spare pages are runs of one page");
        self.held -= given.len() * HEAP_PAGE_BYTES;
        self.refused = false;
        self.spare_count = keep;
    }
}
