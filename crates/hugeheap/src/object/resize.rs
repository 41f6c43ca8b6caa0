//! Aligned, zeroed and resized requests.
//!
//! ```text
//!   resize ─▶ a block of this heap, and stays a block ─▶ its class stays: there it is
//!         │                                          └─▶ another: taken, copied, freed
//!         ├─▶ a page run of this heap, or long, and keeps its heap pages: there it is
//!         └─▶ looked for everywhere: others' blocks, spans, page runs, large blocks, mistakes
//! ```
//!
//! The first way is that of a string or a vector that grows from the beginning. While it was the second one,
//! which looked for the block three times, to take 40 bytes, have them grow to 80 and free them cost 271
//! instructions; now it is 140 (`tests/instructions`, `grow`).

use super::class::{CLASSES, Class, MAX_BINNED, MAX_BLOCK, SHAPES, WINDOWS, aligned_class_of, fits};
use super::hardened::is_guarded;
use super::heap::{Core, Heap, Own, Way};
use super::lengths::{self, GROWN};
use super::mistake::Mistake;
use super::pages::{MAX_RUN, Resized};
use super::release::{Found, live_bytes};
use super::runs::bytes_of;
use super::space::Source;
use super::tag::{self, RUN};
use crate::arena::{ARENA_BYTES, HEAP_PAGE_BYTES};
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

/// Bytes up to which what grows gets a run like any other: it is copied for little more than the lock costs.
/// Longer ones have room behind them, for the next time. Runs, and not blocks of spans: what grew is likely to
/// grow on, into the rest of its last heap page or the one behind it.
const COPIED: usize = 48 << 10;

/// The same of what grows by half or more, as a vector that doubles does: there is hardly room behind it for as
/// much the next time, and a run that its heap keeps is taken and freed without a lock. A program in C that
/// doubles blocks from 16 to 128 KiB and frees them takes 1.25 times as long without this, with two threads 2.4
/// times.
const COPIED_LEAPING: usize = 128 << 10;

/// The part of a run that may lie between it and the next one for the sake of its alignment. Of blocks of 48
/// KiB aligned to 32 it would be a third: a thousand had 68 MiB resident instead of 51.
const GAP: usize = 8;

impl<S: Source> Heap<S> {
    /// Like [`allocate`](Self::allocate), aligned to `align`, a power of two up to a huge page (2 MiB). `None`
    /// for others.
    pub fn allocate_aligned(&mut self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if !align.is_power_of_two() || align > ARENA_BYTES {
            return None;
        }
        if align <= 16 {
            return self.allocate_by_table(bytes);
        }
        let most = self.own().most_of_class();
        if let Some(class) =
            aligned_class_of(bytes, align).filter(|&class| SHAPES[class].bytes as usize <= most)
        {
            // Not by its bytes: a heap for objects with headers has others for these, which are not aligned.
            // SAFETY: a class.
            return unsafe { self.allocate_on::<true>(tag::tag(0, class) as usize) };
        }
        if align <= HEAP_PAGE_BYTES {
            // A page run begins at a heap page. By the way of all of them, which finds those that are kept: a
            // program that takes and frees buffers of 4 to 40 KB, aligned to 4096 bytes, took four times as
            // long otherwise.
            let bytes = bytes.max(most + 1);
            return match lengths::aligned_length_of(bytes, align) {
                Some(length) => Self::allocate_length(self.core, length, bytes),
                None => self.allocate(bytes),
            };
        }
        // All were large blocks: 2 MiB of address space, three system calls and OS pages for each. What would
        // leave more to others, of huge pages, and what is longer than a run, still is.
        let (pages, align_pages) = (bytes.div_ceil(HEAP_PAGE_BYTES), align / HEAP_PAGE_BYTES);
        let between = pages.wrapping_neg() % align_pages;
        if GAP * between <= pages && (1..=lengths::LONGEST).contains(&pages) && !self.is_hardened() {
            return Self::allocate_aligned_run(self.core, pages, align_pages);
        }
        self.allocate_fresh(bytes.max(1), true).map(|fresh| fresh.address)
    }

    /// Like [`allocate`](Self::allocate), all of it zero. Memory that is known to be fresh from the system is
    /// not written.
    pub fn allocate_zeroed(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        // Of a page run nobody knows whether it was used before, so it may be one that is kept.
        let (address, zeroed) = if bytes <= MAX_BINNED {
            let way = self.own().way_of(bytes);
            // SAFETY: the way of a request.
            (unsafe { self.allocate_on::<true>(way)? }, false)
        } else if bytes <= MAX_RUN {
            (self.allocate(bytes)?, false)
        } else {
            let fresh = self.allocate_fresh(bytes, false)?;
            (fresh.address, fresh.zeroed)
        };
        if !zeroed {
            // SAFETY: just handed out with at least `bytes` bytes.
            unsafe { address.write_bytes(0, bytes) };
        }
        Some(address)
    }

    /// The same, aligned as by [`allocate_aligned`](Self::allocate_aligned).
    pub fn allocate_aligned_zeroed(&mut self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if is_aligned_anyway(bytes, align) {
            return self.allocate_zeroed(bytes);
        }
        let block = self.allocate_aligned(bytes, align)?;
        // SAFETY: just handed out with at least `bytes` bytes.
        unsafe { block.write_bytes(0, bytes) };
        Some(block)
    }

    /// `count` elements of `size` bytes, all zero. `None` also when that is more than the address space.
    pub fn allocate_array(&mut self, count: usize, size: usize) -> Option<NonNull<u8>> {
        self.allocate_zeroed(count.checked_mul(size)?)
    }

    /// Gives what begins at `address` another size. Contents stay up to the lesser size. It is moved unless its
    /// class stays the same, or its pages can be resized where they are. `Ok(None)`: the system has no memory,
    /// nothing has changed.
    ///
    /// # Errors
    /// When nothing live of this allocator begins at `address`.
    ///
    /// # Safety
    /// As for [`free`](Self::free): after success nobody uses the old address any more.
    #[inline(always)]
    pub unsafe fn try_reallocate(
        &mut self,
        address: NonNull<u8>,
        bytes: usize,
    ) -> Result<Option<NonNull<u8>>, Mistake> {
        // SAFETY: by the contract above.
        unsafe {
            match self.reallocate_near(address, bytes)? {
                None => Self::reallocate_far(self.core, address, bytes),
                near => Ok(near),
            }
        }
    }

    /// The same for a block of this heap that stays a block, of the first region, and for what keeps its heap
    /// pages. `Ok(None)`: it is something else, a mistake included, or there is no memory, and nothing has
    /// changed.
    ///
    /// # Safety
    /// As for [`try_reallocate`](Self::try_reallocate).
    #[inline(always)]
    unsafe fn reallocate_near(
        &mut self,
        address: NonNull<u8>,
        bytes: usize,
    ) -> Result<Option<NonNull<u8>>, Mistake> {
        // A request for 0 bytes is one for a byte: no class is looked up for it here.
        if bytes.wrapping_sub(1) >= MAX_BINNED {
            return Ok(self.has_pages_for(address, bytes).then_some(address));
        }
        let own = self.own();
        let granule = own.granule_of(address.as_ptr() as usize);
        let Some(Way { way, window, .. }) = own.way_to(granule) else { return Ok(None) };
        if way >= tag::tag(0, CLASSES) as usize {
            return Ok(None);
        }
        // SAFETY: windows of the first region have words.
        let vacant = unsafe { &*own.vacant.add(window) };
        if vacant.load(Ordering::Relaxed) >> (granule % 64) & 1 != 0 {
            return Ok(None);
        }
        let becomes = own.way_of(bytes);
        if becomes == way {
            return Ok(Some(address));
        }
        // SAFETY: the way of a request.
        let Some(moved) = (unsafe { self.allocate_on::<true>(becomes) }) else { return Ok(None) };
        let have = SHAPES[tag::class_on(way)].bytes as usize;
        // SAFETY: both are live and apart, and have at least the bytes copied; the caller gives the old one up.
        unsafe {
            core::ptr::copy_nonoverlapping(address.as_ptr(), moved.as_ptr(), have.min(bytes));
            self.try_free(address)?;
        }
        Ok(Some(moved))
    }

    /// Whether a page run of this heap, or a long run or large block that was resized, begins at an address of
    /// the first region and has the heap pages of a request of `bytes` bytes. Says no for what goes the far
    /// way, mistakes included.
    #[inline(always)]
    fn has_pages_for(&mut self, address: NonNull<u8>, bytes: usize) -> bool {
        let own = self.own();
        let granule = own.granule_of(address.as_ptr() as usize);
        let Some(Way { way, window, mark }) = own.way_to_any(granule) else { return false };
        if granule % (64 * WINDOWS) != 0 || bytes <= MAX_BLOCK {
            return false;
        }
        if way == tag::tag(0, RUN) as usize {
            // SAFETY: windows of the first region have words.
            let lives = unsafe { &*own.vacant.add(window) }.load(Ordering::Relaxed) & 1 == 0;
            return lives && bytes.div_ceil(HEAP_PAGE_BYTES) == usize::from(mark.free());
        }
        // Of a page without a tag.
        way == own.tag as usize && mark.resized().is_some_and(|length| length.fits(bytes))
    }

    /// [`try_reallocate`](Self::try_reallocate) of whatever begins there.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn reallocate_far(
        core: NonNull<Core<S>>,
        address: NonNull<u8>,
        bytes: usize,
    ) -> Result<Option<NonNull<u8>>, Mistake> {
        let mut heap = Self::borrowed(core);
        // A heap that has only had long runs and large blocks does not know where they lie.
        heap.own().learn();
        let have = match heap.resize_here(address, bytes)? {
            Resized::Here(resized) => return Ok(Some(resized)),
            Resized::Has(have) => have,
        };
        let grows = bytes > have && bytes > MAX_BINNED && heap.own().preset.is_none();
        let copied = if bytes - have.min(bytes) >= have / 2 { COPIED_LEAPING } else { COPIED };
        let moved = match lengths::run_length(bytes.div_ceil(HEAP_PAGE_BYTES)) {
            _ if !grows => heap.allocate_far(bytes),
            _ if bytes <= MAX_BLOCK => Self::allocate_length(core, GROWN, bytes),
            Some(run) if bytes <= copied => Self::allocate_length(core, run, bytes),
            _ => heap.ask(|space| space.allocate_growing(have, bytes)),
        };
        let Some(moved) = moved else { return Ok(None) };
        // SAFETY: both are live and apart, and have at least the bytes copied; the caller gives the old one up.
        unsafe {
            core::ptr::copy_nonoverlapping(address.as_ptr(), moved.as_ptr(), have.min(bytes));
            heap.try_free(address)?;
        }
        Ok(Some(moved))
    }

    /// The same as [`try_reallocate`](Self::try_reallocate) without copying, where that is possible.
    fn resize_here(&mut self, address: NonNull<u8>, bytes: usize) -> Result<Resized, Mistake> {
        let start = address.as_ptr() as usize;
        let space = self.own().space;
        let (have, stays) = match space.find(start)? {
            Found::Block(page, class) => (live_bytes(page, class, start)?, self.own().may_have(bytes, class)),
            Found::InSpan(block) => (block.bytes(), block.fits(bytes)),
            // Without the arenas' lock: text that grew by a few bytes at a time took it, and read the clock,
            // each time, and took twice as long as with stock CPython.
            Found::Run(page) if bytes > MAX_BLOCK && space.fits_run(page, bytes) => (bytes_of(page), true),
            Found::Run(page) if bytes <= MAX_BLOCK || is_guarded(page) => (bytes_of(page), false),
            Found::Pages if bytes <= MAX_BLOCK => (space.pages_bytes(start)?, false),
            Found::Pages => return space.resize_pages(start, bytes),
            Found::Run(page) => {
                let before = self.own().length_of_own(page);
                let resized = space.resize_pages(start, bytes);
                let after = self.own().length_of_own(page);
                self.own().runs.resized(before, after);
                return resized;
            }
        };
        Ok(if stays { Resized::Here(address) } else { Resized::Has(have) })
    }

    /// [`try_reallocate`](Self::try_reallocate), but a mistake ends the process with one line on standard error.
    ///
    /// # Safety
    /// As for [`try_reallocate`](Self::try_reallocate).
    #[inline(always)]
    pub unsafe fn reallocate(&mut self, address: NonNull<u8>, bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: by the contract above.
        match unsafe { self.try_reallocate(address, bytes) } {
            Ok(moved) => moved,
            Err(mistake) => abort_reallocate(address, mistake),
        }
    }

    /// Like [`reallocate`](Self::reallocate) of a block of `old` bytes, aligned as by
    /// [`allocate_aligned`](Self::allocate_aligned) before and afterwards.
    ///
    /// # Safety
    /// As for [`try_reallocate`](Self::try_reallocate); the block has at least `old` bytes.
    pub unsafe fn reallocate_aligned(
        &mut self,
        address: NonNull<u8>,
        old: usize,
        bytes: usize,
        align: usize,
    ) -> Option<NonNull<u8>> {
        if is_aligned_anyway(bytes, align) {
            // SAFETY: by the contract above.
            return unsafe { self.reallocate(address, bytes) };
        }
        let moved = self.allocate_aligned(bytes, align)?;
        // SAFETY: both are live and apart, and have at least the bytes copied; the caller gives the old one up.
        unsafe {
            core::ptr::copy_nonoverlapping(address.as_ptr(), moved.as_ptr(), old.min(bytes));
            self.free(address);
        }
        Some(moved)
    }

    /// Bytes that may be used of what begins at `address`.
    ///
    /// # Errors
    /// When nothing live of this allocator begins there.
    pub fn usable_size(&mut self, address: NonNull<u8>) -> Result<usize, Mistake> {
        let start = address.as_ptr() as usize;
        self.own().space.usable_size(start)
    }
}

impl<S: Source> Own<S> {
    /// Whether a request of so many bytes may have a block of that class here.
    fn may_have(&self, bytes: usize, class: Class) -> bool {
        let in_group = bytes <= MAX_BINNED && tag::class_on(self.way_of(bytes)) == class;
        in_group || bytes <= MAX_BLOCK && fits(bytes, class)
    }
}

#[cold]
#[inline(never)]
fn abort_reallocate(address: NonNull<u8>, mistake: Mistake) -> ! {
    super::mistake::abort("reallocate", address.as_ptr() as usize, mistake)
}

/// Whether a request is aligned to that, a power of two, whether it is asked for or not: by the granule of all
/// blocks, or because it gets heap pages of its own, or whole arenas.
const fn is_aligned_anyway(bytes: usize, align: usize) -> bool {
    let by_length = if align <= HEAP_PAGE_BYTES {
        lengths::is_whole(bytes)
    } else {
        align <= ARENA_BYTES && bytes > MAX_RUN
    };
    align.is_power_of_two() && (align <= 16 || by_length)
}
