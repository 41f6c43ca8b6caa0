//! Taking blocks that a bin remembers, and having it remember some.
//!
//! ```text
//!   free away from the window ─▶ ring ◀── gather: the next free blocks of the page at hand
//!                                  │
//!            allocate ◀─ retake ───┘   none left ─▶ gather; by a handle, if some were freed since that was so last,
//!                                                   else the current window
//! ```
//!
//! Who asks the current window first ([`Heap::allocate_near`]) finds it full as long as blocks are taken and
//! freed in turn somewhere else: then each pair comes here, for 70 instructions more
//! (`tests/instructions/test_interpreters.py`). So a window from which two blocks in a row are retaken, and
//! which is one of the page at hand, becomes the current one. With every such window opened, a program that
//! replaces blocks at random would open one for each.
//!
//! A remembered block is free in its page's bitmap, like any other, and is taken from nowhere else: a window is
//! opened only where no block of it is remembered. So one look at its place is enough. Its page is at hand or
//! in a list, so it is lost to nobody when it is forgotten.

use super::class::{Class, GRANULE_SHIFT, SHAPES, SIZES, WINDOWS, small_class_of};
use super::freed;
use super::heap::{Core, Heap, Own, window_number};
use super::instructions::without_bit;
use super::ring::{GATHERED, GATHERED_OF_FEW, RECENT};
use super::space::{Bitmap, Source};
use super::tag;
use super::window::Window;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, compiler_fence};

/// The first class of which blocks are always gathered: above 512 bytes a window has one or two, and to open it
/// costs as much as to gather eight. From 256 bytes on no program with one thread was faster, and `xmalloc`
/// with two took a quarter longer.
pub(super) const FEW: Class = small_class_of(MANY) + 1;

/// Bytes above which a request gets a block of a class of which a window [has few](has_few).
pub(super) const MANY: usize = 512;

/// Whether a window has so few blocks of that class that they are always gathered.
#[inline(always)]
pub(super) fn has_few(class: Class) -> bool {
    (FEW..SIZES).contains(&class)
}

impl<S: Source> Heap<S> {
    /// The block that was freed last is taken again, or the current window has no free one. That it does no
    /// more is what keeps it from saving registers.
    #[inline(never)]
    pub(super) fn refill(core: NonNull<Core<S>>, class: Class) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        let own = heap.own();
        let Some(block) = own.retake(class) else {
            own.bins[class].begin_anew();
            return Self::refill_from_windows(core, class);
        };
        let granule = own.granule_of(block.as_ptr() as usize);
        if own.returns_to(class, granule) {
            return Self::follow(core, class, granule);
        }
        Some(block)
    }

    /// No block is remembered; and the current window has no free one, or some were freed.
    #[inline(never)]
    pub(super) fn gather_or_refill(core: NonNull<Core<S>>, class: Class) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        if heap.own().bins[class].begin_anew() || has_few(class) {
            return Self::gather::<false>(core, class);
        }
        Self::refill_from_windows(core, class)
    }

    /// Answers the block itself, because what it is given tells the compiler nothing of it: so this is the last
    /// thing called.
    #[inline(never)]
    fn follow(core: NonNull<Core<S>>, class: Class, granule: usize) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        // A child forked meanwhile would miss the window.
        let _busy = heap.busy();
        let own = heap.own();
        own.follow(class, granule);
        NonNull::new((own.base as *mut u8).wrapping_add(granule << GRANULE_SHIFT))
    }

    #[inline(always)]
    fn refill_from_windows(core: NonNull<Core<S>>, class: Class) -> Option<NonNull<u8>> {
        match Self::borrowed(core).own().bins[class].current.take() {
            Some(address) => NonNull::new(address as *mut u8),
            None => Self::refill_from_window(core, class),
        }
    }

    /// A block of the page at hand, or of a spare one; those after it are remembered. `ALWAYS`: of other pages, too.
    /// Otherwise a window of these is opened: who takes and frees the only block of its class by a handle has it
    /// there.
    ///
    /// A function of its own: the way to the current window would save its registers.
    #[inline(never)]
    pub(super) fn gather<const ALWAYS: bool>(core: NonNull<Core<S>>, class: Class) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        // A child forked while the window is left would miss its free blocks.
        let busy = heap.busy();
        let taken = heap.own().gather(class).or_else(|| Self::begin(core, class));
        drop(busy);
        taken.or_else(|| {
            if ALWAYS { Self::gather_from_page(core, class) } else { Self::refill_from_page(core, class) }
        })
    }
}

impl<S: Source> Own<S> {
    /// Takes the block that a bin remembers last.
    pub(super) fn retake(&mut self, class: Class) -> Option<NonNull<u8>> {
        // SAFETY: the way of a class.
        unsafe { self.retake_on(class << tag::CLASS_SHIFT) }
    }

    /// # Safety
    /// The way is that of a class.
    #[inline(always)]
    pub(super) unsafe fn retake_on(&mut self, way: usize) -> Option<NonNull<u8>> {
        // SAFETY: by the contract; bins remember free blocks of their own pages in the first region, each once.
        unsafe {
            let (granule, place) = self.bin_on(way).ring.last()?;
            let window = window_number(granule);
            let (word, mark) = (&*self.vacant.add(window), self.mark_of(window));
            // Counted first, for a child that another thread forks in between: there a block may be free that
            // counts as live, and none live that does not, or its page was given back. And remembered until it
            // is counted, for who gives vacant OS pages back (`vacate`).
            mark.add_live(1);
            compiler_fence(Ordering::Release);
            self.bin_on(way).ring.recall_from(place);
            compiler_fence(Ordering::Release);
            let vacant = word.load(Ordering::Relaxed);
            debug_assert!(vacant >> (granule % 64) & 1 != 0, "a remembered block is free");
            word.store(without_bit(vacant, granule), Ordering::Relaxed);
            // No block begins at 0.
            Some(NonNull::new_unchecked((self.base as *mut u8).wrapping_add(granule << GRANULE_SHIFT)))
        }
    }

    /// Whether the block that was retaken lies in the same window as the one before, while the current window
    /// has no free block.
    #[inline(always)]
    fn returns_to(&mut self, class: Class, granule: usize) -> bool {
        let number = (granule / 64) as u16;
        let bin = &mut self.bins[class];
        core::mem::replace(&mut bin.window, number) == number && bin.current.free() == 0
    }

    /// Makes the window of a block that was just retaken the current one, if it is one of the page at hand. The
    /// one before is full, so nothing is written back.
    fn follow(&mut self, class: Class, granule: usize) {
        let number = granule / 64;
        if self.page_near(class) != Some(number / WINDOWS) {
            return;
        }
        self.bins[class].window = u16::MAX;
        // SAFETY: a window of the first region.
        let (mark, word, remote) =
            unsafe { (self.mark_of(number), &*self.vacant.add(number), &*self.remote.add(number)) };
        mark.remove_free(number % WINDOWS);
        let base = self.base + (number << (GRANULE_SHIFT + 6));
        let place = number % WINDOWS;
        let freed = freed::word(class, place, mark, remote);
        let window = Window::new(word, freed, SHAPES[class].starts[place], base);
        // From now on its free blocks are taken from there.
        self.bins[class].ring.forget_if(RECENT, |granule| granule / 64 == number as u32);
        mark.add_live(window.free().count_ones());
        self.bins[class].set_current(window);
    }

    /// Leaves the current window of a class, and takes the next free block of the page at hand; its bin remembers
    /// those after it, in their order. `None` when the page has none, or lies where blocks are not
    /// remembered.
    pub(super) fn gather(&mut self, class: Class) -> Option<NonNull<u8>> {
        if self.bins[class].current.is_open() {
            self.leave_window(class);
        }
        let page = self.page_near(class)?;
        if self.lists[class].pages == 1 && !self.bins[class].was_gathered() {
            return self.gather_from_beginning(page, class);
        }
        if let Some(first) = self.bins[class].row() {
            return self.gather_row(page, class, first);
        }
        // What is noted may have no free block. Then all are looked at: to leave the page at once was to leave
        // it as full with blocks in other windows, which nobody found.
        loop {
            let windows = self.windows_near(page, class);
            if windows == 0 {
                return None;
            }
            if self.gather_of::<GATHERED>(page, class, windows) {
                return self.retake(class);
            }
        }
    }

    /// Takes the first block of a row of the page at hand, which [begins](super::bin::Bin::row) there; its bin
    /// remembers those after it.
    #[inline(always)]
    pub(super) fn gather_row(&mut self, page: usize, class: Class, first: u32) -> Option<NonNull<u8>> {
        let shape = &SHAPES[class];
        let step = shape.bytes >> GRANULE_SHIFT;
        let end =
            (page * WINDOWS * 64) as u32 + (shape.first >> GRANULE_SHIFT) + u32::from(shape.blocks) * step;
        let rest = self.bins[class].gather_row(first, step, end);
        // SAFETY: the page lies in the first region, and has a mark.
        let mark = unsafe { &*self.marks.add(page) };
        // None of those before the rest has a free block that was not freed since.
        let window = rest / 64 % WINDOWS as u32;
        let windows = if rest == end { 0 } else { shape.windows >> window << window };
        mark.set_free(windows);
        self.retake(class)
    }

    /// Takes the first free block of the page at hand, the only one of its class; its bin remembers those after
    /// it. `None` when it has none.
    ///
    /// So few blocks lie at the beginning of their page, however often they are replaced, and a thread that has
    /// few of each size keeps few OS pages when it waits. With the windows that had not come yet first, live
    /// blocks wandered all over the page: 256 threads of `idle-threads` had 28 MiB when they idled, and have
    /// 25 (`bench/target/release/workloads-hugeheap idle-threads --mode memory --idle 4`). With a look at all
    /// windows instead of a walk that ends at the eighth block `glibc-simple` took 6 % longer.
    #[inline(always)]
    fn gather_from_beginning(&mut self, page: usize, class: Class) -> Option<NonNull<u8>> {
        // SAFETY: the page lies in the first region, and has a mark.
        let mark = unsafe { &*self.marks.add(page) };
        let shape = &SHAPES[class];
        let any = mark.live_at_hand() != u32::from(shape.blocks)
            && self.gather_of::<GATHERED_OF_FEW>(page, class, shape.windows);
        if any { self.retake(class) } else { None }
    }

    /// Has the bin remember the next free blocks of these windows of a page, up to so many. Says no when they have
    /// none.
    #[inline(always)]
    fn gather_of<const MOST: usize>(&mut self, page: usize, class: Class, mut windows: u16) -> bool {
        let first = page * WINDOWS;
        // SAFETY: the page lies in the first region, and has a word for each window.
        let (mark, words) = unsafe { (self.mark_of(first), &*self.vacant.add(first).cast::<Bitmap>()) };
        let starts = &SHAPES[class].starts;
        let bin = &mut self.bins[class];
        let (room, mut left) = (bin.ring.room::<MOST>(), MOST);
        while windows != 0 {
            let window = windows.trailing_zeros() as usize % WINDOWS;
            let mut free = words[window].load(Ordering::Relaxed) & starts[window];
            while free != 0 && left > 0 {
                left -= 1;
                room[left] = ((first + window) * 64) as u32 + free.trailing_zeros();
                free &= free - 1;
            }
            if free != 0 {
                break;
            }
            windows &= windows - 1;
        }
        // What of the others is forgotten is found when none of these has one.
        mark.set_free(windows);
        bin.gathered(left, MOST)
    }
}
