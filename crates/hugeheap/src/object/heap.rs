//! A heap of blocks: what its owner does, in as few instructions as can be.
//!
//! ```text
//!   allocate ─▶ bin of the class ─▶ the block that was freed last          recent
//!                              ├──▶ a bit of its current window            here
//!                              └──▶ none left                              recent, windows, refill
//!   free ─▶ index of the granule ─▶ tag of its page: ours, blocks          here
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
//! * What its bin remembers is free, and not in the open window.
//! * `live` of its mark counts its live blocks, those that other threads freed included, and the free ones of the open window.
//! * It has a live block, or is the page of its bin, or another thread freed in it.
//! * It is the page of its bin, or in one of the bin's lists, or it has no free block and its mark says that it is full.

use super::bin::{Bin, NO_BLOCK, with_bit};
use super::class::{CLASSES, Class, GRANULE_SHIFT, MAX_BLOCK, MAX_SMALL, SHAPES, WINDOWS, small_class_of};
use super::hardened::Preset;
use super::inbox::Queues;
use super::lists::Lists;
use super::mark::Mark;
use super::mistake::{self, Mistake};
use super::runs::RunCache;
use super::space::{Page, Region, Source, Space};
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
    /// Granules of that region, up to 2³²: blocks beyond its first 64 GiB are freed by a longer way, and not remembered.
    pub(super) granules: usize,
    /// All granules of that region.
    pub(super) all_granules: usize,
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
        if bytes > MAX_BLOCK {
            return Self::allocate_pages(self.core, bytes);
        }
        let way = tag::way_of(bytes);
        // SAFETY: the way of a request.
        let taken = unsafe {
            let own = self.own();
            if own.bin_on(way).remembers() { own.retake_on(way) } else { own.take_on(way) }
        };
        let (core, class) = (self.core, tag::class_on(way));
        taken.or_else(|| if GATHER { Self::gather_or_refill(core, class) } else { Self::refill(core, class) })
    }

    /// The same as [`allocate`](Self::allocate) in two instructions less where a block is remembered, and three more where none is.
    #[inline(always)]
    pub(crate) fn allocate_remembered(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if bytes > MAX_BLOCK {
            return Self::allocate_pages(self.core, bytes);
        }
        let way = tag::way_of(bytes);
        // SAFETY: the way of a request.
        let taken = unsafe {
            let own = self.own();
            match own.retake_on(way) {
                None if !own.bin_on(way).remembers() => own.take_on(way),
                retaken => retaken,
            }
        };
        let (core, class) = (self.core, tag::class_on(way));
        taken.or_else(|| Self::gather_or_refill(core, class))
    }

    /// A small block at hand. `None` for larger requests, for 0 bytes, and when there is none: then
    /// [`allocate_far`](Self::allocate_far) is asked.
    #[inline(always)]
    pub fn allocate_near(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if bytes > MAX_SMALL {
            return None;
        }
        // SAFETY: at most the highest small class.
        unsafe { self.own().take_on(small_class_of(bytes) << tag::CLASS_SHIFT) }
    }

    /// What [`allocate`](Self::allocate) does for a request that is not [near](Self::allocate_near).
    #[inline(always)]
    pub fn allocate_far(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if bytes <= MAX_SMALL {
            return Self::refill(self.core, small_class_of(bytes));
        }
        Self::allocate_more(self.core, bytes)
    }

    /// Requests above [`MAX_SMALL`], for who asks the current window first: a function of its own, so that those save no registers.
    #[inline(never)]
    fn allocate_more(core: NonNull<Core<S>>, bytes: usize) -> Option<NonNull<u8>> {
        Self::borrowed(core).allocate_with::<true>(bytes)
    }

    /// Requests above [`MAX_BLOCK`].
    #[inline(never)]
    fn allocate_pages(core: NonNull<Core<S>>, bytes: usize) -> Option<NonNull<u8>> {
        Self::borrowed(core).allocate_run(bytes)
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
        if unsafe { Self::free_of_own(core, address) } {
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
            Some((way, mark)) if way < tag::tag(0, CLASSES) as usize => {
                // SAFETY: the granule lies in the first region, in a page of blocks of this heap, with that mark.
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
        if bytes <= MAX_BLOCK {
            let (way, start) = (tag::way_of(bytes), address.as_ptr() as usize);
            // SAFETY: the way of a request.
            let bin = unsafe { self.own().bin_on(way) };
            // A granule of the current window of its class: then the page is this heap's and of that class.
            let granule = start.wrapping_sub(bin.current.base).rotate_right(GRANULE_SHIFT);
            if granule < 64 {
                if bin.current.put(granule) {
                    return;
                }
            } else {
                // SAFETY: by the contract above.
                return unsafe { Self::free_sized_elsewhere(self.core, address, way, bytes) };
            }
        }
        // SAFETY: by the contract above.
        unsafe { Self::free_sized_far(self.core, address, bytes) }
    }

    /// The same for a caller that does not expect the block in the current window: it is looked for there last, by the way to its page.
    ///
    /// # Safety
    /// As for [`free_sized`](Self::free_sized).
    #[inline(always)]
    pub(crate) unsafe fn free_sized_anywhere(&mut self, address: NonNull<u8>, bytes: usize) {
        // SAFETY: by the contract above.
        unsafe {
            if bytes <= MAX_BLOCK {
                return Self::free_on_way::<true>(self.core, address, tag::way_of(bytes), bytes);
            }
            Self::free_sized_far(self.core, address, bytes);
        }
    }

    /// A function of its own, so that what is inlined into callers is short and saves no registers.
    ///
    /// # Safety
    /// As for [`free_on_way`](Self::free_on_way).
    #[inline(never)]
    unsafe fn free_sized_elsewhere(
        core: NonNull<Core<S>>,
        address: NonNull<u8>,
        expected: usize,
        bytes: usize,
    ) {
        // SAFETY: by the contract above.
        unsafe { Self::free_on_way::<false>(core, address, expected, bytes) }
    }

    /// # Safety
    /// As for [`free_sized`](Self::free_sized); `expected` is the way of `bytes`.
    #[inline(always)]
    unsafe fn free_on_way<const CURRENT: bool>(
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
                let freed = unsafe { heap.own().free_in_word::<CURRENT>(granule, way, mark) };
                if Self::is_freed(core, granule, freed) {
                    return;
                }
            }
        }
        // SAFETY: by the contract above.
        unsafe { Self::free_sized_far(core, address, bytes) }
    }

    /// Frees what the fast path does not know: other regions, other owners, page runs, large blocks.
    ///
    /// # Errors
    /// When nothing live of this allocator begins at `address`. Nothing is changed.
    #[inline(never)]
    pub fn free_far(&mut self, address: usize) -> Result<(), Mistake> {
        let core = self.core;
        // SAFETY: whoever frees gives the block up.
        if unsafe { Self::free_of_own(core, address) } {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { Self::free_elsewhere(core, address) }
    }

    /// What is neither a block nor a short page run of this heap in the first region. A function of its own: those would save its registers.
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
            all_granules: 0,
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

    /// The bin that a way leads to.
    ///
    /// # Safety
    /// It is the way of a class.
    #[inline(always)]
    pub(super) unsafe fn bin_on(&mut self, way: usize) -> &mut Bin {
        // SAFETY: by the contract; ways are multiples of a bin's size.
        unsafe { &mut *self.bins.as_mut_ptr().byte_add(way) }
    }

    /// A block of the current window of the bin that a way leads to.
    ///
    /// # Safety
    /// It is the way of a class. Class 0, of no bytes, has a bin without blocks.
    #[inline(always)]
    unsafe fn take_on(&mut self, way: usize) -> Option<NonNull<u8>> {
        // SAFETY: by the contract.
        let address = unsafe { self.bin_on(way) }.current.take()?;
        // SAFETY: no block begins at 0.
        Some(unsafe { NonNull::new_unchecked(address as *mut u8) })
    }

    /// The granule of an address in the first region. Foreign addresses and those that are not at a granule give a number that is too
    /// large, both at once.
    #[inline(always)]
    pub(super) fn granule_of(&self, address: usize) -> usize {
        address.wrapping_sub(self.base).rotate_right(GRANULE_SHIFT)
    }

    /// The way from a granule of the first region to its bin (too long, if its page is not this heap's or somebody else freed
    /// in it), and the mark of its page. `None` for other numbers, and for blocks that are not remembered.
    #[inline(always)]
    pub(super) fn way_to(&self, granule: usize) -> Option<(usize, &'static Mark)> {
        // SAFETY: the granule lies in the first region.
        (granule < self.granules).then(|| unsafe { self.way_in_region(granule) })
    }

    /// The same for all blocks of the first region.
    #[inline(always)]
    pub(super) fn way_to_any(&self, granule: usize) -> Option<(usize, &'static Mark)> {
        // SAFETY: the granule lies in the first region.
        (granule < self.all_granules).then(|| unsafe { self.way_in_region(granule) })
    }

    /// The mark of the page of a window of the first region.
    ///
    /// # Safety
    /// The region has a window of that number.
    #[inline(always)]
    pub(super) unsafe fn mark_of(&self, number: usize) -> &'static Mark {
        // SAFETY: each page of the region has a mark, of two bytes for each window.
        unsafe { &*self.marks.byte_add((number & !(WINDOWS - 1)) * 2) }
    }

    /// # Safety
    /// The granule lies in the first region.
    #[inline(always)]
    unsafe fn way_in_region(&self, granule: usize) -> (usize, &'static Mark) {
        // SAFETY: by the contract.
        let mark = unsafe { self.mark_of(granule / 64) };
        ((mark.tag.load(Ordering::Acquire) ^ self.tag) as usize, mark)
    }

    /// Frees a block; says no when none is live there.
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
        // SAFETY: by the contract above.
        let word = unsafe { &*self.vacant.add(number) };
        let vacant = word.load(Ordering::Relaxed);
        if vacant >> (granule % 64) & 1 != 0 {
            return InWord::Refused;
        }
        let vacant = with_bit(vacant, granule);
        word.store(vacant, Ordering::Relaxed);
        // SAFETY: by the contract above.
        let bin = unsafe { self.bin_on(way) };
        if CURRENT && number == bin.current.number {
            return InWord::Freed;
        }
        bin.note_free(granule);
        if mark.note_free() { InWord::Settle } else { InWord::Freed }
    }

    /// Takes over where the first region is, once it is known. A hardened heap never does: all its frees take the longer way.
    pub(crate) fn learn(&mut self) {
        if let (0, None, Some(first)) = (self.granules, self.preset, self.space.regions().first()) {
            let Region { start, bytes, marks, vacant, remote, .. } = *first;
            self.base = start;
            self.all_granules = bytes >> GRANULE_SHIFT;
            self.granules = self.all_granules.min(NO_BLOCK as usize);
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
        let granule = offset >> GRANULE_SHIFT;
        let (window, bit) = (granule / 64, 1 << (granule % 64));
        if offset % (1 << GRANULE_SHIFT) != 0 || shape.starts[window] & bit == 0 {
            return Err(Mistake::Interior { bytes: shape.bytes as usize });
        }
        Ok(Self { class, window, bits: bit })
    }
}
