//! Freeing by the owner: the fast paths, and what they end in.
//!
//! ```text
//!   free ─▶ granule ─▶ mark of its page ─▶ way: to the bin, where the page is this heap's and cut into blocks
//!                │                         └─▶ bit of its window: was none live there?  no more than that to check
//!                └─▶ outside, others' pages, runs, mistakes: `release`, `pages`
//! ```
//!
//! A fast path ends with a call wherever it does not know what to do, and has nothing on the stack then. The
//! order of what it gives is that of what it was given: an instruction for each argument that is elsewhere, and
//! where all registers are in use two more to save one. So there are functions of one purpose for callers that
//! have the address first and the heap last.

use super::class::{CLASSES, Class, GRANULE_SHIFT, MAX_BINNED, SHAPES};
use super::freed::IN_WINDOW;
use super::heap::{Core, Heap, Own, Way};
use super::instructions::{in_register, with_bit};
use super::mistake::{self, Mistake};
use super::remote_free::InPending;
use super::space::Source;
use super::tag;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};

impl<S: Source> Heap<S> {
    /// Frees what begins at `address`.
    ///
    /// A mistake is reported with one line on standard error and ends the process.
    ///
    /// # Safety
    /// Nobody uses the block any more. (That it is one is checked.)
    #[inline(always)]
    pub unsafe fn free(&mut self, address: NonNull<u8>) {
        // SAFETY: by the contract above.
        if unsafe { !self.free_near(address.as_ptr() as usize) } {
            Self::free_or_abort(self.core, address);
        }
    }

    #[inline(never)]
    fn free_or_abort(core: NonNull<Core<S>>, address: NonNull<u8>) {
        let mut heap = Self::borrowed(core);
        let granule = heap.own().granule_of(address.as_ptr() as usize);
        if let Some(way) = heap.own().way_to_any(granule) {
            // Tags of heaps have no such bit: it is the page's.
            if tag::is_pending(way.way as u32) {
                return Self::free_pending_or_abort(core, address);
            }
            // SAFETY: whoever frees gives the block up; the way is that of the granule.
            if unsafe { heap.free_on_way_of_own(granule, way) } {
                return;
            }
        }
        Self::free_elsewhere_or_abort(core, address);
    }

    /// What is in a page that is pending.
    #[inline(never)]
    fn free_pending_or_abort(core: NonNull<Core<S>>, address: NonNull<u8>) {
        // SAFETY: whoever frees gives the block up.
        match unsafe { Self::free_in_pending(core, address.as_ptr() as usize, is_block_elsewhere) } {
            InPending::Freed => {}
            InPending::Announce(tag) => Self::announce_freed(address.as_ptr() as usize, tag, core),
            InPending::Refused => Self::free_elsewhere_or_abort(core, address),
            InPending::Twice(class) => free_twice(address, class),
        }
    }

    /// What is no page run and no block of this heap in the first region.
    #[inline(never)]
    fn free_elsewhere_or_abort(core: NonNull<Core<S>>, address: NonNull<u8>) {
        let address = address.as_ptr() as usize;
        // SAFETY: whoever frees gives the block up.
        if let Err(mistake) = unsafe { Self::free_elsewhere(core, address) } {
            mistake::abort("free", address, mistake);
        }
    }

    /// Frees what begins at `address`, or says why that cannot be.
    ///
    /// # Errors
    /// When nothing live of this allocator begins there. Nothing is changed.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(always)]
    pub unsafe fn try_free(&mut self, address: NonNull<u8>) -> Result<(), Mistake> {
        let address = address.as_ptr() as usize;
        // SAFETY: by the contract above.
        unsafe { if self.free_near(address) { Ok(()) } else { self.free_far(address) } }
    }

    /// Frees a block of this heap. Says no, with nothing changed, for anything else, mistakes included: see
    /// [`free_far`](Self::free_far). Any number may be given.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(always)]
    pub unsafe fn free_near(&mut self, address: usize) -> bool {
        let core = self.core;
        let own = self.own();
        let granule = own.granule_of(address);
        match own.way_to(granule) {
            Some(way) if way.way < tag::tag(0, CLASSES) as usize => {
                // SAFETY: the granule lies in the first region, in a page of blocks of this heap.
                Self::is_freed(core, granule, unsafe { own.free_in_word(granule, way) })
            }
            _ => false,
        }
    }

    /// What a free ends with.
    #[inline(always)]
    fn is_freed(core: NonNull<Core<S>>, granule: usize, freed: InWord) -> bool {
        match freed {
            InWord::Refused => return false,
            InWord::Freed => {}
            InWord::Settle => Self::settle(core, granule),
        }
        true
    }

    /// Frees a block of which the caller knows the size it was requested with.
    ///
    /// A mistake, a size of another class included, is reported with one line on standard error and ends the process.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(always)]
    pub unsafe fn free_sized(&mut self, address: NonNull<u8>, bytes: usize) {
        if bytes <= MAX_BINNED {
            let way = tag::way_of(bytes);
            // SAFETY: the way of a request.
            let bin = unsafe { self.own().bin_on(way) };
            // A granule of the current window of its class: then the page is this heap's and of that class.
            let granule =
                (address.as_ptr() as usize).wrapping_sub(bin.current.base).rotate_right(GRANULE_SHIFT);
            if granule < 64 {
                if bin.current.put(granule, bytes > IN_WINDOW) {
                    return;
                }
            } else {
                // SAFETY: by the contract above.
                return unsafe { Self::free_sized_elsewhere(self.core, address, bytes) };
            }
        }
        // SAFETY: by the contract above.
        unsafe { Self::free_sized_far(self.core, address, bytes) }
    }

    /// The same for a caller that does not expect the block in the current window: it is looked for there last,
    /// by the way to its page. For functions that have the address and its size as their first arguments.
    ///
    /// # Safety
    /// As for [`free_sized`](Self::free_sized).
    #[inline(always)]
    pub(crate) unsafe fn free_sized_anywhere(&mut self, address: NonNull<u8>, bytes: usize) {
        let core = self.core;
        if bytes <= MAX_BINNED {
            // SAFETY: by the contract above.
            return match unsafe { self.free_on_way(address, bytes) } {
                // SAFETY: as above.
                InWord::Refused => unsafe { Self::free_sized_of_another(address, bytes, core) },
                InWord::Freed => {}
                InWord::Settle => Self::settle_at(address, bytes, core),
            };
        }
        // SAFETY: as above.
        unsafe { Self::free_sized_run_at(address, bytes, core) }
    }

    /// [`settle`](Self::settle) for who has the address first.
    #[inline(never)]
    fn settle_at(address: NonNull<u8>, _bytes: usize, core: NonNull<Core<S>>) {
        let granule = Self::borrowed(core).own().granule_of(address.as_ptr() as usize);
        Self::settle(core, granule);
    }

    /// [`free_sized_run`](Self::free_sized_run) for who has the address first.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(never)]
    unsafe fn free_sized_run_at(address: NonNull<u8>, bytes: usize, core: NonNull<Core<S>>) {
        // SAFETY: by the contract above.
        unsafe { Self::free_sized_run(core, address, bytes) }
    }

    /// A function of its own, so that what is inlined into callers is short and saves no registers.
    ///
    /// # Safety
    /// As for [`free_sized`](Self::free_sized); at most [`MAX_BINNED`] bytes.
    #[inline(never)]
    unsafe fn free_sized_elsewhere(core: NonNull<Core<S>>, address: NonNull<u8>, bytes: usize) {
        let mut heap = Self::borrowed(core);
        let granule = heap.own().granule_of(address.as_ptr() as usize);
        // In the current window, too: that which was looked at is of another class where objects have headers.
        // SAFETY: by the contract above.
        unsafe {
            if !Self::is_freed(core, granule, heap.free_on_way(address, bytes)) {
                Self::free_sized_of_another(address, bytes, core);
            }
        }
    }

    /// Frees a block of a class that has a bin, if it is this heap's and of the class of `bytes`.
    ///
    /// # Safety
    /// As for [`free_sized`](Self::free_sized); at most [`MAX_BINNED`] bytes.
    #[inline(always)]
    unsafe fn free_on_way(&mut self, address: NonNull<u8>, bytes: usize) -> InWord {
        let own = self.own();
        let granule = own.granule_of(address.as_ptr() as usize);
        match own.way_to(granule) {
            Some(Way { way, window, mark }) => {
                let expected = own.way_of(bytes);
                if way != expected {
                    return InWord::Refused;
                }
                // The one that was looked up is known to have no more than 16 bits.
                let way = Way { way: expected, window, mark };
                // SAFETY: by the contract above, and because the page has this heap's tag and the class.
                unsafe { own.free_in_word(granule, way) }
            }
            None => InWord::Refused,
        }
    }

    /// Frees what the fast path does not know: other regions, other owners, page runs, large blocks.
    ///
    /// # Errors
    /// When nothing live of this allocator begins at `address`. Nothing is changed.
    ///
    /// # Safety
    /// As for [`free`](Self::free). (It was a safe function once, and one that frees what others use.)
    #[inline(always)]
    pub unsafe fn free_far(&mut self, address: usize) -> Result<(), Mistake> {
        // SAFETY: by the contract above.
        match unsafe { self.free_pending(address) } {
            Ok(()) => Ok(()),
            // SAFETY: as above.
            Err(unfreed) => unsafe { self.free_rest(address, unfreed) },
        }
    }

    /// The first half of [`free_far`](Self::free_far): what is in a page in which other threads freed before, which is
    /// nearly all that another thread took. With runs and all else of this heap tried before it, such a free took
    /// twice the instructions.
    ///
    /// Its answer is in registers. With the result of all, which is written where the caller says, it was fifteen
    /// instructions more: for that, and for what the caller then had to save.
    ///
    /// # Errors
    /// What is to be given to [`free_rest`](Self::free_rest). Nothing is changed.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(always)]
    pub unsafe fn free_pending(&mut self, address: usize) -> Result<(), Unfreed> {
        // SAFETY: by the contract above.
        unsafe { Self::free_away(address, self.core) }
    }

    /// The second half of [`free_far`](Self::free_far), where the first one refused.
    ///
    /// # Errors
    /// As for [`free_far`](Self::free_far).
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(always)]
    pub unsafe fn free_rest(&mut self, address: usize, unfreed: Unfreed) -> Result<(), Mistake> {
        // SAFETY: by the contract above.
        unsafe { Self::free_farthest(address, self.core, unfreed) }
    }

    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(never)]
    unsafe fn free_away(address: usize, core: NonNull<Core<S>>) -> Result<(), Unfreed> {
        // SAFETY: by the contract above.
        match unsafe { Self::free_in_pending(core, address, is_block_elsewhere) } {
            InPending::Freed => Ok(()),
            InPending::Refused => Err(Unfreed(Why::Refused)),
            InPending::Announce(tag) => Self::announce_away(address, tag, core),
            InPending::Twice(class) => Err(Unfreed(Why::Twice(class))),
        }
    }

    /// Apart, with the answer: as the last thing called it has the fast path save no registers.
    #[inline(never)]
    fn announce_away(address: usize, tag: u32, core: NonNull<Core<S>>) -> Result<(), Unfreed> {
        Self::announce_freed(address, tag, core);
        Ok(())
    }

    /// What is in no page that is pending.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(never)]
    unsafe fn free_farthest(address: usize, core: NonNull<Core<S>>, unfreed: Unfreed) -> Result<(), Mistake> {
        if let Why::Twice(class) = unfreed.0 {
            return Err(Mistake::TwoThreads { bytes: SHAPES[class].bytes as usize });
        }
        // SAFETY: by the contract above.
        if unsafe { Self::free_of_own(core, address) } {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { Self::free_elsewhere(core, address) }
    }

    /// What is neither a block nor a short page run of this heap in the first region. A function of its own:
    /// those would save its registers.
    #[inline(never)]
    pub(super) fn free_farther(core: NonNull<Core<S>>, address: usize) -> Result<(), Mistake> {
        let heap = Self::borrowed(core);
        // SAFETY: as in `own` and `shared`; two fields.
        let (own, shared) = unsafe { (&mut (*core.as_ptr()).own, &(*core.as_ptr()).shared) };
        // A heap that only frees never asks for pages, where it would learn.
        own.learn();
        let Some(page) = own.space.page(address) else { return own.space.free_pages(address) };
        let tag = page.tag();
        if tag == 0 {
            return own.space.free_pages(address);
        }
        if tag::heap(tag) == tag::heap(own.tag) {
            let busy = heap.busy();
            if !tag::is_pending(tag) {
                return own.free_in(page, address);
            }
            own.collect(shared);
            drop(busy);
            let now = page.tag();
            // The page may be the arenas' since then, or another heap's. If nothing changed, whoever announced
            // it has not put it into the inbox. To wait for that was to spin as long as it was stopped there,
            // and in a forked child without end. What everybody does in a pending page can be done here, too.
            if now != tag {
                return Self::free_farther(core, address);
            }
        }
        own.space.free_remote(page, tag, address, &own.announcing)
    }
}

/// Whether a page is pending, of another heap and of any class, by the difference of its tag and this heap's.
#[inline(always)]
fn is_block_elsewhere<S: Source>(_: &Own<S>, way: u32) -> bool {
    tag::is_pending(way) && tag::heap(way) != 0 && tag::class(way) < CLASSES
}

#[cold]
#[inline(never)]
fn free_twice(address: NonNull<u8>, class: Class) -> ! {
    let bytes = SHAPES[class].bytes as usize;
    mistake::abort("free", address.as_ptr() as usize, Mistake::TwoThreads { bytes })
}

/// What [`Heap::free_pending`] did not free.
#[derive(Debug)]
pub struct Unfreed(Why);

#[derive(Debug)]
enum Why {
    /// It is in no page that is pending, or no live block begins there.
    Refused,
    /// Another thread freed it before, a block of that class.
    Twice(Class),
}

/// What came of freeing a block in its page's bitmap. Told and not done there, so that a fast path can end in it.
enum InWord {
    /// No live block begins there.
    Refused,
    Freed,
    /// Freed, and the page has to be looked at.
    Settle,
}

impl<S: Source> Own<S> {
    /// Frees a block; says no when none is live there.
    ///
    /// # Safety
    /// The granule lies in the first region, in a page of this heap, and that is the way to it.
    #[inline(always)]
    unsafe fn free_in_word(&mut self, granule: usize, way: Way) -> InWord {
        let Way { way, window, mark } = way;
        // Of the number only the address is needed from here on, and there is no register for both.
        let word = in_register(self.vacant.wrapping_add(window) as usize) as *const AtomicU64;
        // SAFETY: by the contract above.
        let word = unsafe { &*word };
        let vacant = word.load(Ordering::Relaxed);
        if vacant >> (granule % 64) & 1 != 0 {
            return InWord::Refused;
        }
        let vacant = with_bit(vacant, granule);
        word.store(vacant, Ordering::Relaxed);
        // SAFETY: by the contract above.
        let bin = unsafe { self.bin_on(way) };
        if core::ptr::eq(word, bin.current.word()) {
            return InWord::Freed;
        }
        // In this order, for who gives vacant OS pages back (`vacate`).
        compiler_fence(Ordering::Release);
        bin.note_free(granule);
        compiler_fence(Ordering::Release);
        if mark.note_free() { InWord::Settle } else { InWord::Freed }
    }
}
