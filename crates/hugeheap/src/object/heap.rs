//! A heap of blocks: what it is, and how its owner allocates, in as few instructions as can be.
//!
//! ```text
//!   allocate ─▶ bin of the class ─▶ the block that was freed last          recent
//!                              ├──▶ a bit of its current window            here
//!                              └──▶ none left                              recent, windows, refill
//!   free                                                                  free
//! ```
//!
//! A heap has one owner at a time: a thread, or whoever holds the lock under which it is used. The owner
//! reaches [`Own`]; others only [`Shared`] and the metadata of pages.
//!
//! Invariants, for a page with a heap and a class in its tag:
//! * A bit of `vacant` is 0 exactly where a live block begins, but for blocks freed by other threads that were
//!   not collected yet.
//! * `free` of its mark has bits of windows that may have a free block. Others may have one, too: when no bit
//!   is left, all words are looked at.
//! * What its bin remembers is free, and not in the open window.
//! * `live` of its mark counts its live blocks, those that other threads freed included, and the free ones of
//!   the open window.
//! * It has a live block, or is the page of its bin, or another thread freed in it.
//! * It is the page of its bin, or in one of the bin's lists, or it has no free block and its mark says that it
//!   is full.

use super::apart::Apart;
use super::bin::Bin;
use super::class::{CLASSES, Class, GRANULE_SHIFT, MAX_BINNED, MAX_SMALL, SHAPES, WINDOWS};
use super::few::Groups;
use super::hardened::Preset;
use super::inbox::Queues;
use super::instructions::in_register;
use super::lists::Lists;
use super::mark::Mark;
use super::mistake::Mistake;
use super::ring::{NO_BLOCK, Places, Unused};
use super::run_cache::RunCache;
use super::space::{Page, Source, Space};
use super::spares::{FIRST_MOST, SPARES};
use super::tag::{self, Ways};
use core::mem::{ManuallyDrop, offset_of};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Pages that a heap takes from the arenas at first.
pub(super) const FIRST_BATCH: u32 = 1;

/// The owner's part of a heap.
#[repr(C, align(128))]
pub(crate) struct Own<S: Source> {
    /// First, so that a class in a tag is the way to its bin.
    pub(crate) bins: [Bin; CLASSES],
    /// The ways to the bins of all sizes, for callers that know no size when they are compiled. A copy for each
    /// heap, a kibibyte: the table of all heaps would be an address more to load with each request and each
    /// sized free: `larson` with one thread took 2 to 4 % longer, 1.7 % in the mean of four.
    pub(crate) ways: Ways,
    /// Of a thread's heap.
    pub(super) groups: Groups,
    /// First byte of the first region. Blocks in further regions (only under `ulimit -v`) take the longer way.
    pub(super) base: usize,
    /// Granules of that region, up to 2³²: blocks beyond its first 64 GiB are freed by a longer way, and not
    /// remembered. Atomic because a region can become shorter: see [`shorten`](super::shorten).
    pub(super) granules: AtomicUsize,
    /// All granules of that region.
    pub(super) all_granules: AtomicUsize,
    pub(super) marks: *const Mark,
    pub(super) vacant: *const AtomicU64,
    pub(super) remote: *const AtomicU64,
    /// The first of those that no ring has yet.
    pub(super) unused_places: NonNull<Places>,
    /// What the tags of this heap's pages have in common.
    pub(crate) tag: u32,
    pub(crate) spare_count: u32,
    /// Pages to take from the arenas the next time.
    pub(crate) batch: u32,
    /// Spare pages that it may keep, and whether it gave some away since it took any.
    pub(super) most_spares: u16,
    pub(super) gave_spares: bool,
    pub(crate) lists: [Lists; CLASSES],
    /// Pages in the lists of all bins, and how many there were when the arenas were told last.
    pub(super) listed_pages: u32,
    pub(super) told_pages: u32,
    pub(crate) spares: [usize; SPARES],
    pub(super) runs: RunCache,
    pub(super) pending: Queues,
    /// Of a hardened heap.
    pub(super) preset: Option<NonNull<Preset>>,
    /// A block of another heap whose page the owner marked as pending and perhaps has not put into that heap's
    /// inbox yet; 0: none. For a forked child, where nobody goes on.
    pub(super) announcing: AtomicUsize,
    pub(crate) space: &'static Space<S>,
}

/// What other threads reach of a heap.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Shared {
    /// See `registry`.
    pub(crate) state: AtomicU32,
    /// The system's number of the thread that took the heap after it had left one, and so perhaps after its
    /// last destructor; 0: none such. See `registry`.
    pub(crate) late: AtomicU32,
    /// See `hardened`. Never changed.
    pub(crate) hardened: bool,
    /// Whose turn it is to change the heap's lists. Apart, because the owner writes it all the time.
    pub(crate) turn: Apart<Turn>,
    /// How far the owner was when somebody looked last whether it does anything. See `idle`.
    pub(super) seen: AtomicU32,
    /// Of a hardened heap that waits: how often somebody collected there what may be in its quarantine since;
    /// 0: that is empty. See `waiting`.
    pub(super) quarantined: AtomicU32,
    /// What other threads write.
    pub(crate) inbox: Apart<Inbox>,
}

/// Who changes a heap's lists. See `busy`.
#[derive(Debug)]
pub(crate) struct Turn {
    /// The owner does: a child forked now cannot use the heap.
    pub(crate) busy: AtomicU32,
    /// The owner takes or keeps a page run: nobody else does meanwhile. Of no meaning to a fork.
    pub(super) keeping: AtomicU32,
    /// Somebody else changes them.
    pub(super) held: AtomicU32,
}

/// Where pages are put in which other threads freed.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// The first one, as an address.
    pub(crate) first: AtomicUsize,
    /// How often one was put there. See `visit`.
    pub(crate) announced: AtomicU32,
    /// Pending pages of which the first window became vacant.
    pub(super) vacant: AtomicU32,
    /// The first page run that another thread freed, as an address, and pages in all of them. See `handed`.
    pub(super) runs: AtomicUsize,
    pub(super) run_pages: AtomicU32,
}

/// A heap's memory. Two parts, so that the owner's exclusive reference never covers what others read.
#[repr(C)]
pub(crate) struct Core<S: Source> {
    pub(crate) own: Own<S>,
    pub(crate) shared: Shared,
    /// Last, because most heaps use a few of them.
    places: Unused<CLASSES>,
}

impl<S: Source> Core<S> {
    /// Bytes of it that all heaps use.
    pub(super) const USED: usize = offset_of!(Self, places);

    /// The places for the rings of a new one.
    ///
    /// # Safety
    /// Memory of a core.
    pub(super) unsafe fn places_of(core: *mut Self) -> NonNull<Places> {
        // SAFETY: by the contract.
        Unused::first(unsafe { &raw const (*core).places })
    }
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
        // SAFETY: the handle is the only way to `own`, and `&mut self` makes this its only use; `shared` is
        // another field.
        unsafe { &mut (*self.core.as_ptr()).own }
    }

    /// The handle again, in a function that the fast paths end in. Those get the core by value, so that nothing
    /// of a fast path has to live on the stack: with `&mut self` a third of its instructions saved registers.
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
    ///
    /// It is not placed for a header in front ([`Space::expect_headers`](super::Space::expect_headers)): where
    /// the size is a constant, the way to its class is one, too.
    #[inline(always)]
    pub fn allocate(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        self.allocate_with::<true>(bytes)
    }

    /// The same, by the heap's own table: where the size is no constant. In a thread's heap sizes of 65 bytes
    /// to 2 KiB share ten classes until the page of one is used up.
    #[inline(always)]
    pub fn allocate_by_table(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if bytes > MAX_BINNED {
            return Self::allocate_pages(self.core, bytes);
        }
        let way = self.own().way_of(bytes);
        // SAFETY: the way of a request.
        unsafe { self.allocate_on::<true>(way) }
    }

    /// The same for a caller that has asked the current window itself, as C's inline functions do: it stays
    /// open. [`allocate`](Self::allocate) leaves it where blocks are taken and freed in turn, and the inline
    /// functions would ask in vain from then on.
    #[inline(always)]
    pub fn allocate_after_window(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        self.allocate_with::<false>(bytes)
    }

    #[inline(always)]
    fn allocate_with<const GATHER: bool>(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if bytes > MAX_BINNED {
            return Self::allocate_pages(self.core, bytes);
        }
        // SAFETY: the way of a request.
        unsafe { self.allocate_on::<GATHER>(tag::way_of(bytes)) }
    }

    /// A block of the class that a way leads to.
    ///
    /// # Safety
    /// It is the way of a class.
    #[inline(always)]
    pub(super) unsafe fn allocate_on<const GATHER: bool>(&mut self, way: usize) -> Option<NonNull<u8>> {
        let own = self.own();
        // SAFETY: by the contract.
        let taken =
            unsafe { if own.bin_on(way).remembers() { own.retake_on(way) } else { own.take_on(way) } };
        let (core, class) = (self.core, tag::class_on(way));
        taken.or_else(|| if GATHER { Self::gather_or_refill(core, class) } else { Self::refill(core, class) })
    }

    /// The same as [`allocate_by_table`](Self::allocate_by_table) for programs that take blocks of all sizes, and
    /// free them in whichever order: no window is opened. A block comes from those that are remembered, and when
    /// none is, the next free ones of a page are. Which of window and ring it is was not foreseen where sizes are
    /// mixed, and cost more than an instruction or two for each block that is only taken.
    #[inline(always)]
    pub(crate) fn allocate_remembered(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if bytes > MAX_BINNED {
            return Self::allocate_pages_of(bytes, self.core);
        }
        let core = self.core;
        let own = self.own();
        let way = own.way_of(bytes);
        // SAFETY: the way of a request.
        unsafe { own.retake_on(way) }.or_else(|| Self::gather_on(way, core))
    }

    /// A small block at hand. `None` for larger requests, for 0 bytes, and when there is none: then
    /// [`allocate_far`](Self::allocate_far) is asked.
    #[inline(always)]
    pub fn allocate_near(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if bytes > MAX_SMALL {
            return None;
        }
        let own = self.own();
        // SAFETY: the way of a request.
        unsafe { own.take_on(own.way_of(bytes)) }
    }

    /// What [`allocate`](Self::allocate) does for a request that is not [near](Self::allocate_near).
    #[inline(always)]
    pub fn allocate_far(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if bytes <= MAX_SMALL {
            return Self::refill(self.core, tag::class_on(self.own().way_of(bytes)));
        }
        Self::allocate_more(self.core, bytes)
    }

    /// Requests above [`MAX_SMALL`], for who asks the current window first: a function of its own, so that
    /// those save no registers.
    #[inline(never)]
    fn allocate_more(core: NonNull<Core<S>>, bytes: usize) -> Option<NonNull<u8>> {
        Self::borrowed(core).allocate_by_table(bytes)
    }

    /// [`allocate_pages`](Self::allocate_pages) for who has the bytes first: see `free`.
    #[inline(never)]
    fn allocate_pages_of(bytes: usize, core: NonNull<Core<S>>) -> Option<NonNull<u8>> {
        Self::allocate_pages(core, bytes)
    }

    /// The next block where none is remembered, for who has the way of a class, and opens no window.
    #[inline(never)]
    fn gather_on(way: usize, core: NonNull<Core<S>>) -> Option<NonNull<u8>> {
        Self::gather::<true>(core, tag::class_on(way))
    }

    /// Requests above [`MAX_BINNED`].
    #[inline(never)]
    fn allocate_pages(core: NonNull<Core<S>>, bytes: usize) -> Option<NonNull<u8>> {
        Self::allocate_run(core, bytes)
    }

    /// The next block of a class where none is at hand: its window is opened.
    #[inline(never)]
    pub(super) fn refill_from_page(core: NonNull<Core<S>>, class: Class) -> Option<NonNull<u8>> {
        Self::from_page::<false>(core, class)
    }

    /// The same; those after it are remembered.
    #[inline(never)]
    pub(super) fn gather_from_page(core: NonNull<Core<S>>, class: Class) -> Option<NonNull<u8>> {
        Self::from_page::<true>(core, class)
    }

    #[inline(always)]
    fn from_page<const GATHER: bool>(core: NonNull<Core<S>>, class: Class) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        if class == 0 {
            return heap.allocate(1);
        }
        let _busy = heap.busy();
        // SAFETY: as in `own` and `shared`; two fields.
        let (own, shared) = unsafe { (&mut (*core.as_ptr()).own, &(*core.as_ptr()).shared) };
        own.refill::<GATHER>(shared, class)
    }
}

impl<S: Source> Own<S> {
    /// Makes a heap where it is to be. All of it is never anywhere else: built on the stack and copied from
    /// there it took 18 KiB, more than a thread or a fibre with a small stack has.
    ///
    /// # Safety
    /// Zeroed memory that nobody else knows.
    pub(super) unsafe fn make_at(
        own: *mut Self,
        space: &'static Space<S>,
        number: u32,
        preset: Option<NonNull<Preset>>,
        places: NonNull<Places>,
    ) {
        // SAFETY: by the contract; each write is within the heap, aligned, and of a value that is small or a
        // copy of what is constant.
        unsafe {
            Bin::make_all_at(&raw mut (*own).bins);
            let ways = if space.has_headers() { &tag::HEADED_WAYS } else { &tag::WAYS };
            (&raw mut (*own).ways).copy_from_nonoverlapping(ways, 1);
            (&raw mut (*own).tag).write(tag::tag(number, 0));
            (&raw mut (*own).batch).write(FIRST_BATCH);
            (&raw mut (*own).most_spares).write(FIRST_MOST);
            (&raw mut (*own).unused_places).write(places);
            (&raw mut (*own).runs).write(RunCache::EMPTY);
            Queues::make_at(&raw mut (*own).pending);
            (&raw mut (*own).preset).write(preset);
            (&raw mut (*own).space).write(space);
        }
        // SAFETY: all fields are valid now: of those not written above zero is a count, no address, no page, or
        // a list without pages.
        let made = unsafe { &*own };
        // All are named, so that the compiler asks for a new one.
        let Self {
            base: _,
            granules: _,
            all_granules: _,
            marks: _,
            vacant: _,
            remote: _,
            spare_count: _,
            most_spares: _,
            gave_spares: _,
            lists: _,
            listed_pages: _,
            told_pages: _,
            spares: _,
            announcing: _,
            bins: _,
            unused_places: _,
            ways: _,
            groups: _,
            tag: _,
            batch: _,
            runs: _,
            pending: _,
            preset: _,
            space: _,
        } = made;
    }

    /// The same as [`tag::way_of`], from the heap's own table: an instruction less where the size is no
    /// constant, and to headed classes in a heap that has them.
    #[inline(always)]
    pub(super) fn way_of(&self, bytes: usize) -> usize {
        self.ways[(bytes + 15) >> GRANULE_SHIFT].into()
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

    /// How many blocks of a class are remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self, class: Class) -> usize {
        self.bins[class].ring.latest().count()
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

    /// The granule of an address in the first region. Foreign addresses and those that are not at a granule
    /// give a number that is too large, both at once.
    #[inline(always)]
    pub(super) fn granule_of(&self, address: usize) -> usize {
        address.wrapping_sub(self.base).rotate_right(GRANULE_SHIFT)
    }

    /// The way from a granule of the first region to its bin. `None` for other numbers, and for blocks that are
    /// not remembered.
    #[inline(always)]
    pub(super) fn way_to(&self, granule: usize) -> Option<Way> {
        // SAFETY: the granule lies in the first region.
        (granule < self.granules()).then(|| unsafe { self.way_in_region(granule) })
    }

    /// The same for all blocks of the first region.
    #[inline(always)]
    pub(super) fn way_to_any(&self, granule: usize) -> Option<Way> {
        // SAFETY: the granule lies in the first region.
        (granule < self.all_granules()).then(|| unsafe { self.way_in_region(granule) })
    }

    /// The mark of the page of a window of the first region.
    ///
    /// # Safety
    /// The region has a window of that number.
    #[inline(always)]
    pub(super) unsafe fn mark_of(&self, number: usize) -> &'static Mark {
        // SAFETY: each page of the region has a mark, of four bytes for each window.
        unsafe { &*self.marks.byte_add((number & !(WINDOWS - 1)) * 4) }
    }

    /// # Safety
    /// The granule lies in the first region.
    #[inline(always)]
    unsafe fn way_in_region(&self, granule: usize) -> Way {
        let window = window_number(granule);
        // SAFETY: by the contract.
        let mark = unsafe { self.mark_of(window) };
        Way { way: (mark.tag.load(Ordering::Acquire) ^ self.tag) as usize, window, mark }
    }

    /// Takes over where the first region is, once it is known. A hardened heap never does: all its frees take
    /// the longer way.
    pub(crate) fn learn(&mut self) {
        if let (0, None, Some(first)) = (self.granules(), self.preset, self.space.regions().first()) {
            self.base = first.start;
            self.marks = first.marks;
            self.vacant = first.vacant.cast::<AtomicU64>();
            self.remote = first.remote.cast::<AtomicU64>();
            // Whoever shortens the region does so for all heaps that know it, this one or not.
            let _adding = self.space.adding.lock();
            let granules = first.bytes() >> GRANULE_SHIFT;
            self.all_granules.store(granules, Ordering::Relaxed);
            self.granules.store(granules.min(NO_BLOCK as usize), Ordering::Relaxed);
        }
    }

    /// Granules of the first region in which blocks are remembered.
    #[inline(always)]
    pub(super) fn granules(&self) -> usize {
        // SAFETY: a word of this heap. Another thread may make it less while a program limits itself
        // (`shorten`): either value does for all that lies below both, and nothing lies between yet. Not by an
        // atomic load, which the compiler does not make a part of the comparison: one instruction more for each
        // free.
        unsafe { self.granules.as_ptr().read() }
    }

    /// All granules of the first region.
    #[inline(always)]
    pub(super) fn all_granules(&self) -> usize {
        // SAFETY: as in `granules`.
        unsafe { self.all_granules.as_ptr().read() }
    }

    /// The tag of this heap's pages of a class.
    pub(crate) fn tag_of(&self, class: Class) -> u32 {
        self.tag | tag::tag(0, class)
    }
}

/// The number of the window of a granule in its region. In a register, because three things are made of it,
/// each with a shift of its own otherwise.
#[inline(always)]
pub(super) fn window_number(granule: usize) -> usize {
    in_register(granule / 64)
}

/// Where a free goes from a granule of the first region.
#[derive(Clone, Copy)]
pub(super) struct Way {
    /// To the bin of its class; too long, if its page is not this heap's or somebody else freed in it.
    pub(super) way: usize,
    /// The number of its window.
    pub(super) window: usize,
    /// The mark of its page.
    pub(super) mark: &'static Mark,
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
