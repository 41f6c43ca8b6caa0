//! Requests that get no block: page runs and large blocks, for which the arenas keep all metadata.
//!
//! | bytes | what |
//! |---|---|
//! | 8193 to 1 MiB | a page run: whole heap pages |
//! | above, or aligned to more than a heap page | a large block: whole arenas |
//!
//! Both may be freed by any thread; the arenas' lock orders it.
//!
//! Runs have a [tag](super::runs), and the arenas' lock is not needed to resize them as long as their heap
//! pages stay the same. Of those that were copied as they grew, and of large blocks, the mark of the first page
//! says so from the first time on that they are resized: then they may be resized for each piece that is
//! appended. It is forgotten before the arenas get them back, or move them. What begins at a page of which
//! nothing is said may be anything. See [`resized_length`](super::resized_length).

use super::class::MAX_BINNED;
use super::mistake::Mistake;
use super::resized_length::ResizedLength;
use super::space::{Source, Space};
use crate::arena::{self, ARENA_BYTES, Arenas, BadFree, HEAP_PAGE_BYTES, layout};
use core::ptr::NonNull;
use hugeheap_os::{AddressRange, Os};

/// Largest request, in bytes, that gets a page run. Half an arena: a longer one would cut arenas so that the
/// rest is of little use.
pub(super) const MAX_RUN: usize = ARENA_BYTES / 2;

/// Memory from the arenas, and whether all of it is known to be zero.
pub(super) struct Fresh {
    pub(super) address: NonNull<u8>,
    pub(super) zeroed: bool,
}

/// What came of resizing a block where it is.
pub(super) enum Resized {
    /// It is there, or its pages were moved.
    Here(NonNull<u8>),
    /// It has so many bytes, and has to be copied.
    Has(usize),
}

impl<S: Source> Space<S> {
    /// A page run or large block for what has grown from `have` bytes, and so is likely to grow on: there is
    /// room behind it, where that can be had, or pages to spare. The last arena of a large one may be a huge
    /// page. What would be a run may be a large block, too, on OS pages.
    pub(super) fn allocate_growing(&self, have: usize, bytes: usize) -> Option<NonNull<u8>> {
        let whole = bytes.checked_next_multiple_of(HEAP_PAGE_BYTES)?;
        let exact = ResizedLength::of(bytes);
        let (address, length) = self.source().with(|arenas| {
            if bytes > MAX_RUN {
                return Some((arenas.allocate_large(whole, true)?.address, exact));
            }
            let pages = pages_of(bytes);
            if let Some(alone) = arenas.is_better_alone(pages).then(|| arenas.allocate_alone(whole)).flatten()
            {
                return Some((alone.address, exact));
            }
            if !arenas.is_wasteful() {
                return Some((arenas.allocate_growing(pages)?, exact));
            }
            if !is_little_by_little(have, bytes) {
                return Some((arenas.allocate(pages)?, exact));
            }
            let grown = arenas.allocate_with_spare(pages)?;
            Some((grown.address, with_spare(exact, grown.pages)))
        })?;
        let block = NonNull::new(address.get() as *mut u8)?;
        self.note_resized(block, length);
        Some(block)
    }

    /// A page run or large block, with whether it is zero. `whole`: at the beginning of an arena.
    pub(super) fn allocate_fresh(&self, bytes: usize, whole: bool) -> Option<Fresh> {
        self.source().with(|arenas| {
            if bytes <= MAX_RUN && !whole {
                let pages = layout::heap_pages_for(bytes)? as u32;
                let zeroed = false;
                let address = arenas.allocate(pages)?;
                return Some(Fresh { address: NonNull::new(address.get() as *mut u8)?, zeroed });
            }
            let block = arenas.allocate_large(bytes, false)?;
            Some(Fresh { address: NonNull::new(block.address.get() as *mut u8)?, zeroed: block.zeroed })
        })
    }

    /// Frees the page run or large block that begins at `address`.
    pub(super) fn free_pages(&self, address: usize) -> Result<(), Mistake> {
        self.free_pages_if(address, |_| Ok(()))
    }

    /// The same, if a request of `given` bytes can have got it. To ask first and free then was to take the lock twice.
    pub(super) fn free_pages_sized(&self, address: usize, given: usize) -> Result<(), Mistake> {
        let fits = self.fits_resized(address, given);
        self.free_pages_if(address, |bytes| {
            if fits || fits_pages(bytes, given) { Ok(()) } else { Err(Mistake::WrongSize { bytes, given }) }
        })
    }

    fn free_pages_if(
        &self,
        address: usize,
        check: impl FnOnce(usize) -> Result<(), Mistake>,
    ) -> Result<(), Mistake> {
        self.source().before_free();
        self.forget_resized(address);
        let dropped = self.source().with(|arenas| match arenas.run_bytes(address) {
            Ok(bytes) => {
                check(bytes)?;
                arenas.free(address, (bytes / HEAP_PAGE_BYTES) as u32)?;
                Ok(None)
            }
            Err(BadFree::WrongSize { actual }) => {
                check(actual)?;
                let (_, gone) = arenas.free_large_or_alone(address)?;
                Ok(gone.then(|| self.drop_metadata(address)))
            }
            Err(bad) => Err(Mistake::from(bad)),
        })?;
        if let Some(dropped) = dropped {
            self.metadata_dropped(address, dropped);
        }
        Ok(())
    }

    /// Bytes of the page run or large block that begins at `address`.
    pub(super) fn pages_bytes(&self, address: usize) -> Result<usize, Mistake> {
        self.source().read(|arenas| Ok(bytes_at(arenas, address)?))
    }

    /// Gives a page run or large block another size where it is, or by moving its pages.
    pub(super) fn resize_pages(&self, address: usize, bytes: usize) -> Result<Resized, Mistake> {
        let here = NonNull::new(address as *mut u8).ok_or(Mistake::Foreign)?;
        if self.fits_resized(address, bytes) {
            return Ok(Resized::Here(here));
        }
        let before = self.forget_resized(address);
        // To a heap page: from here on the arenas are not told as long as these stay the same. More than the
        // address space is refused by them.
        let whole = bytes.checked_next_multiple_of(HEAP_PAGE_BYTES).unwrap_or(bytes);
        let mut length = ResizedLength::of(whole);
        let (old, moved, left) = self.source().with(|arenas| {
            let old = bytes_at(arenas, address)?;
            let large = arenas.large_bytes(address).is_ok();
            // One that is as short as a run becomes a run when it shrinks: others have no use for the rest of
            // its arena. At half, so that it does not wander.
            if large && (bytes > MAX_RUN || old <= MAX_RUN && bytes > old / 2) {
                let moved = arenas.resize_large(address, whole)?;
                let left = moved.filter(|moved| moved.get() != address).map(|_| {
                    let range = AddressRange::new(address, old.max(1).next_multiple_of(ARENA_BYTES));
                    (range, self.drop_metadata_left(arenas, range))
                });
                return Ok((old, moved.and_then(|moved| NonNull::new(moved.get() as *mut u8)), left));
            }
            if large || bytes > MAX_RUN {
                return Ok((old, None, None));
            }
            let pages = pages_of(bytes);
            let most = arena::with_spare(pages);
            if is_little_by_little(old, bytes) && arenas.is_wasteful() && arenas.resize(address, most)? {
                length = with_spare(length, most);
                return Ok((old, Some(here), None));
            }
            Ok::<_, Mistake>((old, arenas.resize(address, pages)?.then_some(here), None))
        })?;
        if let Some((range, dropped)) = left {
            self.metadata_left_dropped(range, dropped);
        }
        match (moved, before) {
            (Some(moved), _) => self.note_resized(moved, length),
            // It is as it was, and perhaps stays so: who copies it may have no memory for that. What it has to
            // spare is known nowhere else.
            (None, Some(before)) => self.note_resized(here, before),
            (None, None) => {}
        }
        Ok(moved.map_or(Resized::Has(old), Resized::Here))
    }

    /// Whether what begins at `address` is known to have the length of a request of `bytes` bytes: a page
    /// without a tag, of something live.
    pub(super) fn fits_resized(&self, address: usize, bytes: usize) -> bool {
        let page = self.page(address).filter(|page| bytes > MAX_BINNED && page.address() == address);
        page.and_then(|page| page.mark().resized()).is_some_and(|length| length.fits(bytes))
    }

    /// What begins at `block` is so long now. Without memory for metadata the arenas are asked the next time,
    /// and it has nothing to spare: that would be known nowhere.
    fn note_resized(&self, block: NonNull<u8>, length: ResizedLength) {
        let address = block.as_ptr() as usize;
        let Some(page) = self.page_or_add(address) else {
            if length.spare > 0 {
                let exact = (length.pages - length.spare) as u32;
                let shorter = self.source().with(|arenas| arenas.resize(address, exact));
                debug_assert_eq!(shorter, Ok(true), "a run becomes shorter where it is");
            }
            return;
        };
        if !super::runs::note_length(page, length) {
            page.mark().set_resized(length);
        }
    }

    /// What begins at `address`, if anything does, may be somebody else's soon. Returns what was known of it.
    fn forget_resized(&self, address: usize) -> Option<ResizedLength> {
        // Not of what lies around it, when that is a mistake.
        self.page(address).filter(|page| page.address() == address)?.mark().take_resized()
    }
}

/// Part of its bytes by which what grows little by little grows at most, as a divisor. With 16 what lists have
/// behind their end, where they are rounded up, was enough for some of them to count.
const LITTLE: usize = 64;

/// Whether what has `have` bytes and is to have `bytes` grows little by little: text and buffers do, to which
/// pieces are appended. A list has room for more elements than it needs each time that it grows, and needs no
/// pages to spare.
fn is_little_by_little(have: usize, bytes: usize) -> bool {
    bytes > have && bytes - have < have / LITTLE
}

/// The length of what has more heap pages than it was asked for.
fn with_spare(exact: ResizedLength, pages: u32) -> ResizedLength {
    let pages = pages as usize;
    ResizedLength { pages, spare: pages - exact.pages }
}

/// Whether a request of `given` bytes can have got a page run or large block of `bytes`, without a guard.
pub(super) const fn fits_pages(bytes: usize, given: usize) -> bool {
    let run = bytes % HEAP_PAGE_BYTES == 0 && given.div_ceil(HEAP_PAGE_BYTES) == bytes / HEAP_PAGE_BYTES;
    bytes == given || run && given > MAX_BINNED
}

fn pages_of(bytes: usize) -> u32 {
    bytes.div_ceil(HEAP_PAGE_BYTES) as u32
}

fn bytes_at<O: Os>(arenas: &Arenas<O>, address: usize) -> Result<usize, BadFree> {
    match arenas.run_bytes(address) {
        Err(BadFree::WrongSize { actual }) => Ok(actual),
        result => result,
    }
}
