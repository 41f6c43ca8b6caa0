//! A heap of blocks: what its owner does, in as few instructions as can be.
//!
//! ```text
//!   allocate ─▶ bin of the class ─▶ the block that was freed last          windows
//!                              ├──▶ a bit of its current window            here
//!                              └──▶ none left                              windows, gather, refill
//!   free ─▶ index of the granule ─▶ tag of its page: ours, small           here
//!              │                      └─▶ a bit of its window             here
//!              └─▶ tag of somebody else, page run, large, foreign          release, pages
//! ```
//!
//! A heap has one owner at a time: a thread, or whoever holds the lock under which it is used. The owner reaches [`Own`]; others
//! only [`Shared`] and the metadata of pages.
//!
//! Invariants, for a page with a heap and a class in its tag:
//! * A bit of `vacant` is 0 exactly where a live block begins, but for blocks freed by other threads that were not collected yet.
//! * `free` of its mark has a bit for each window with a free block, but for the open window; and perhaps for some without.
//! * A page with a bit in `free` is the page of its bin or in one of the bin's lists.

use super::bin::{Bin, with_bit};
use super::class::{
    CLASSES, Class, MAX_BLOCK, MAX_SMALL, SHAPES, SMALL, SMALL_SHIFT, WINDOWS, medium_class_of,
    small_class_of,
};
use super::hardened::Preset;
use super::inbox::Queues;
use super::lists::Lists;
use super::mistake::{self, Mistake};
use super::runs::RunCache;
use super::space::{Mark, Page, Region, Source, Space};
use super::tag;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Heap pages without blocks that a heap keeps, at most: 256 KiB. They are taken and given back in halves, so that the arenas' lock
/// and clock are paid once per eight pages: a million objects of 64 bytes are 3,900 pages, at 0.4 µs each a tenth of their time.
pub(crate) const SPARES: usize = 16;

/// The owner's part of a heap.
#[repr(C, align(128))]
pub(crate) struct Own<S: Source> {
    /// First, so that a class in a tag is the way to its bin.
    pub(crate) bins: [Bin; CLASSES],
    /// First byte of the first region. Blocks in further regions (only under `ulimit -v`) take the longer way.
    pub(super) base: usize,
    /// Granules of 16 bytes in that region.
    pub(super) granules: usize,
    pub(super) marks: *const Mark,
    pub(super) vacant: *const AtomicU64,
    pub(super) remote: *const AtomicU64,
    /// What the tags of this heap's pages have in common.
    pub(crate) tag: u32,
    pub(crate) spare_count: u32,
    /// Pages to take from the arenas the next time.
    pub(crate) batch: u32,
    pub(crate) lists: [Lists; CLASSES],
    pub(crate) spares: [usize; SPARES],
    pub(super) runs: RunCache,
    pub(super) pending: Queues,
    /// Of a hardened heap.
    pub(super) preset: Option<NonNull<Preset>>,
    /// A block of another heap whose page the owner marked as pending and perhaps has not put into that heap's inbox yet; 0: none. For a forked child, where
    /// nobody goes on.
    pub(super) announcing: AtomicUsize,
    pub(crate) space: &'static Space<S>,
}

/// What other threads reach of a heap.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Shared {
    /// See `registry`.
    pub(crate) state: AtomicU32,
    /// The owner changes lists: a child forked now cannot use the heap.
    pub(crate) busy: AtomicU32,
    /// First page in which other threads freed, as an address.
    pub(crate) inbox: AtomicUsize,
    /// How often a page was put there. See `visit`.
    pub(crate) announced: AtomicU32,
    /// The system's number of the thread that took the heap after it had left one, and so perhaps after its last destructor; 0: none such. See `registry`.
    pub(crate) late: AtomicU32,
    /// See `hardened`. Never changed.
    pub(crate) hardened: bool,
}

/// A heap's memory. Two parts, so that the owner's exclusive reference never covers what others read.
#[repr(C)]
pub(crate) struct Core<S: Source> {
    pub(crate) own: Own<S>,
    pub(crate) shared: Shared,
}

/// A heap of blocks, used by its owner.
///
/// Dropping it leaves its blocks live: the heap waits for another owner, and other threads may free in it meanwhile.
pub struct Heap<S: Source> {
    pub(crate) core: NonNull<Core<S>>,
}

// SAFETY: a heap may change its owner; only one has the handle at a time.
unsafe impl<S: Source> Send for Heap<S> {}

impl<S: Source> Heap<S> {
    /// The owner's part.
    #[inline(always)]
    pub(crate) fn own(&mut self) -> &mut Own<S> {
        // SAFETY: the handle is the only way to `own`, and `&mut self` makes this its only use; `shared` is another field.
        unsafe { &mut (*self.core.as_ptr()).own }
    }

    /// The handle again, in a function that the fast paths end in. Those get the core by value, so that nothing of a fast path has to live on the
    /// stack: with `&mut self` a third of its instructions saved registers.
    #[inline(always)]
    pub(super) fn borrowed(core: NonNull<Core<S>>) -> ManuallyDrop<Self> {
        ManuallyDrop::new(Self { core })
    }

    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: cores are never unmapped, and nobody has an exclusive reference to `shared`.
        unsafe { &(*self.core.as_ptr()).shared }
    }

    /// A block, page run or large block of at least `bytes` bytes, aligned to 16. 0 bytes are 1. Contents undefined.
    /// `None` when the system has no memory.
    #[inline(always)]
    pub fn allocate(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        self.allocate_with::<true>(bytes)
    }

    /// The same for a caller that has asked the current window itself, as C's inline functions do: it stays open. [`allocate`](Self::allocate) leaves it where
    /// blocks are taken and freed in turn, and the inline functions would ask in vain from then on.
    #[inline(always)]
    pub fn allocate_after_window(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        self.allocate_with::<false>(bytes)
    }

    #[inline(always)]
    fn allocate_with<const GATHER: bool>(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if bytes <= MAX_SMALL {
            let class = small_class_of(bytes);
            // SAFETY: at most the highest small class.
            let taken = unsafe {
                let own = self.own();
                if own.bins.get_unchecked(class).remembers() {
                    own.retake(class)
                } else {
                    self.take_at_hand(class)
                }
            };
            return taken.or_else(|| {
                if GATHER { Self::gather_or_refill(self.core, class) } else { Self::refill(self.core, class) }
            });
        }
        Self::allocate_more(self.core, bytes)
    }

    /// A small block at hand. `None` for larger requests, for 0 bytes, and when there is none: then
    /// [`allocate_far`](Self::allocate_far) is asked.
    #[inline(always)]
    pub fn allocate_near(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if bytes > MAX_SMALL {
            return None;
        }
        // SAFETY: at most the highest small class.
        unsafe { self.take_at_hand(small_class_of(bytes)) }
    }

    /// What [`allocate`](Self::allocate) does for a request that is not [near](Self::allocate_near).
    #[inline(always)]
    pub fn allocate_far(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if bytes <= MAX_SMALL {
            return Self::refill(self.core, small_class_of(bytes));
        }
        Self::allocate_more(self.core, bytes)
    }

    /// A block of the current window of a class of small blocks.
    ///
    /// # Safety
    /// `class` is at most [`SMALL`]. Class 0, of no bytes, has a bin without blocks.
    #[inline(always)]
    unsafe fn take_at_hand(&mut self, class: Class) -> Option<NonNull<u8>> {
        // SAFETY: by the contract above the class has a bin.
        let bin = unsafe { self.own().bins.get_unchecked_mut(class) };
        let address = bin.current.take(SMALL_SHIFT)?;
        // SAFETY: no block begins at 0.
        Some(unsafe { NonNull::new_unchecked(address as *mut u8) })
    }

    /// Requests above [`MAX_SMALL`].
    #[inline(never)]
    fn allocate_more(core: NonNull<Core<S>>, bytes: usize) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        if bytes > MAX_BLOCK {
            return heap.allocate_run(bytes);
        }
        let class = medium_class_of(bytes);
        match heap.own().take_medium(class) {
            Some(block) => Some(block),
            None => Self::refill_from_page(core, class),
        }
    }

    #[inline(never)]
    pub(super) fn refill_from_page(core: NonNull<Core<S>>, class: Class) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        if class == 0 {
            return heap.allocate(1);
        }
        let _busy = heap.busy();
        // SAFETY: as in `own` and `shared`; two fields.
        let (own, shared) = unsafe { (&mut (*core.as_ptr()).own, &(*core.as_ptr()).shared) };
        NonNull::new(own.refill(shared, class)? as *mut u8)
    }

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
        let address = address.as_ptr() as usize;
        // SAFETY: whoever frees gives the block up.
        if unsafe { Self::free_medium(core, address) } {
            return;
        }
        // SAFETY: as above.
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
        if unsafe { self.free_near(address) } { Ok(()) } else { self.free_far(address) }
    }

    /// Frees a small block of this heap. Says no, with nothing changed, for anything else, mistakes included: see
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
            Some((way, mark)) if way <= tag::tag(0, SMALL) as usize => {
                // SAFETY: the granule lies in the first region, in a page of this heap of small blocks, with that mark.
                Self::is_freed(core, granule, unsafe { own.free_in_word::<true>(granule, way, mark) })
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
        if bytes <= MAX_SMALL {
            let (class, start) = (small_class_of(bytes), address.as_ptr() as usize);
            // SAFETY: at most the highest small class.
            let bin = unsafe { self.own().bins.get_unchecked_mut(class) };
            // A granule of the current window of its class: then the page is this heap's and of that class.
            let granule = start.wrapping_sub(bin.current.base).rotate_right(SMALL_SHIFT);
            if granule < 64 {
                if bin.current.put(granule) {
                    return;
                }
            } else {
                let way = tag::tag(0, class) as usize;
                // SAFETY: by the contract above; the block is not in the current window.
                return unsafe { Self::free_sized_elsewhere(self.core, address, way, bytes) };
            }
        }
        // SAFETY: by the contract above.
        unsafe { Self::free_sized_far(self.core, address, bytes) }
    }

    /// A function of its own, so that what is inlined into callers is short and saves no registers.
    ///
    /// # Safety
    /// As for [`free`](Self::free); `bytes` is at most [`MAX_SMALL`], `expected` the way to the bin of its class, and the address is not in the current window of that.
    #[inline(never)]
    unsafe fn free_sized_elsewhere(
        core: NonNull<Core<S>>,
        address: NonNull<u8>,
        expected: usize,
        bytes: usize,
    ) {
        let mut heap = Self::borrowed(core);
        let granule = heap.own().granule_of(address.as_ptr() as usize);
        if let Some((way, mark)) = heap.own().way_to(granule) {
            if way == expected {
                // SAFETY: by the contract above, and because the page has this heap's tag and the class.
                let freed = unsafe { heap.own().free_in_word::<false>(granule, way, mark) };
                if Self::is_freed(core, granule, freed) {
                    return;
                }
            }
        }
        // SAFETY: by the contract above.
        unsafe { Self::free_sized_far(core, address, bytes) }
    }

    /// Frees what the fast path does not know: medium blocks, other regions, other owners, page runs, large blocks.
    ///
    /// # Errors
    /// When nothing live of this allocator begins at `address`. Nothing is changed.
    #[inline(never)]
    pub fn free_far(&mut self, address: usize) -> Result<(), Mistake> {
        let core = self.core;
        // SAFETY: whoever frees gives the block up.
        if unsafe { Self::free_medium(core, address) } {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { Self::free_elsewhere(core, address) }
    }

    /// What is neither a small block nor a medium one nor a short page run of this heap. A function of its own: those would save its registers.
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
            // The page may be the arenas' since then, or another heap's. If nothing changed, whoever announced it has not put it into the inbox. To wait for that
            // was to spin as long as it was stopped there, and in a forked child without end. What everybody does in a pending page can be done here, too.
            if now != tag {
                return Self::free_farther(core, address);
            }
        }
        own.space.free_remote(page, tag, address, &own.announcing)
    }
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
    pub(crate) const fn new(space: &'static Space<S>, number: u32) -> Self {
        Self {
            base: 0,
            granules: 0,
            marks: core::ptr::null(),
            vacant: core::ptr::null(),
            remote: core::ptr::null(),
            tag: tag::tag(number, 0),
            spare_count: 0,
            batch: 1,
            bins: Bin::all(),
            lists: [Lists::EMPTY; CLASSES],
            spares: [0; SPARES],
            runs: RunCache::EMPTY,
            pending: Queues::EMPTY,
            preset: None,
            announcing: AtomicUsize::new(0),
            space,
        }
    }

    /// The granule of an address in the first region. Foreign addresses and those that are not at a granule give a number that is too
    /// large, both at once.
    #[inline(always)]
    pub(super) fn granule_of(&self, address: usize) -> usize {
        address.wrapping_sub(self.base).rotate_right(SMALL_SHIFT)
    }

    /// The way from a granule of the first region to its bin (too long, if its page is not this heap's or somebody else freed
    /// in it), and the mark of its page. `None` for other numbers.
    #[inline(always)]
    pub(super) fn way_to(&self, granule: usize) -> Option<(usize, &'static Mark)> {
        if granule >= self.granules {
            return None;
        }
        // SAFETY: the granule lies in the first region, so its page has a mark.
        let mark = unsafe { &*self.marks.add(granule / (64 * WINDOWS)) };
        Some(((mark.tag.load(Ordering::Acquire) ^ self.tag) as usize, mark))
    }

    /// Frees a small block; says no when none is live there.
    ///
    /// # Safety
    /// The granule lies in the first region, in a page of this heap with that mark, and `way` leads to the bin of its class.
    #[inline(always)]
    unsafe fn free_in_word<const CURRENT: bool>(
        &mut self,
        granule: usize,
        way: usize,
        mark: &Mark,
    ) -> InWord {
        let number = granule / 64;
        // SAFETY: by the contract above; tags hold multiples of a bin's size.
        let (word, bin) = unsafe { (&*self.vacant.add(number), &mut *self.bins.as_mut_ptr().byte_add(way)) };
        let vacant = word.load(Ordering::Relaxed);
        if vacant >> (granule % 64) & 1 != 0 {
            return InWord::Refused;
        }
        let vacant = with_bit(vacant, granule);
        word.store(vacant, Ordering::Relaxed);
        if CURRENT && number == bin.current.number {
            return InWord::Freed;
        }
        if bin.note_free(mark, granule, number, vacant) { InWord::Settle } else { InWord::Freed }
    }

    /// Takes over where the first region is, once it is known. A hardened heap never does: all its frees take the longer way.
    pub(crate) fn learn(&mut self) {
        if let (0, None, Some(first)) = (self.granules, self.preset, self.space.regions().first()) {
            let Region { start, bytes, marks, vacant, remote, .. } = *first;
            self.base = start;
            self.granules = bytes >> SMALL_SHIFT;
            self.marks = marks;
            self.vacant = vacant.cast::<AtomicU64>();
            self.remote = remote.cast::<AtomicU64>();
        }
    }

    /// The tag of this heap's pages of a class.
    pub(crate) fn tag_of(&self, class: Class) -> u32 {
        self.tag | tag::tag(0, class)
    }
}

/// Where an address is in its page.
pub(crate) struct Place {
    pub(crate) class: Class,
    pub(crate) window: usize,
    /// Its bit; or those of several blocks of the window.
    pub(crate) bits: u64,
}

impl Place {
    /// The place of an address in a page of `class`, where a block begins.
    pub(crate) fn of(page: Page, class: Class, address: usize) -> Result<Self, Mistake> {
        let shape = &SHAPES[class];
        let offset = address - page.address();
        let granule = offset >> shape.shift;
        let (window, bit) = (granule / 64, 1 << (granule % 64));
        if offset % (1 << shape.shift) != 0 || shape.starts[window] & bit == 0 {
            return Err(Mistake::Interior { bytes: shape.bytes as usize });
        }
        Ok(Self { class, window, bits: bit })
    }
}
