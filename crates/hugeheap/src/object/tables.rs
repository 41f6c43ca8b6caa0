//! Where the metadata of a region's heap pages lies, and which part of it can be written.
//!
//! ```text
//!   beside a region   ├ ready ┼ used ┼ vacant ──────────────┼ remote ──────────────┼ marks ───┤     arrays at multiples of the OS page, in a
//!                        │      │     └ group 0 ┘└ group 1 ┘   └ group 0 ┘└ …                     large region at those of the huge page
//!                        │      └── a byte per arena: how many of its heap pages have metadata that is counted (see `unused`)
//!                        └── a byte per group: whether it can be written
//! ```
//!
//! All of it reads as zero from the beginning, so that any address in a region has metadata that says "nothing
//! here". What belongs to a *group* of arenas is made writable when its first heap page is used. At once it
//! would be 2 % of a region that is made for all memory of the host: under `ulimit -d 400000` a program got no
//! block at all, on a host of 24 GB.
//!
//! The address space is reserved together with that of the region. When it was reserved after the first arena
//! of the region had been used, under `ulimit -v` there could be an arena without room for its metadata; it was
//! given back, taken again as the arena at hand, and no other one was used for blocks any more: a program that
//! had run out of memory and freed nearly all of it got `MemoryError` for good.

use super::huge_tables::LARGE_REGION;
use super::mark::Mark;
use super::space::Bitmap;
use crate::arena::{ARENA_BYTES, HEAP_PAGE_BYTES, HEAP_PAGES};
use core::sync::atomic::{AtomicU8, Ordering};
use hugeheap_os::{AddressRange, Backing, Facts, Pages, Protection};

/// Bytes of a region whose metadata is made writable at once: 16 arenas, 32 MiB, for which that is 0.6 MiB.
/// Whole OS pages in each array, also where these have 64 KiB: then their marks are two.
pub(super) const GROUP_BYTES: usize = 16 * ARENA_BYTES;

const _: () = assert!(GROUP_BYTES / HEAP_PAGE_BYTES * size_of::<Mark>() == 128 << 10);

/// Bytes of metadata per heap page.
pub(super) const PAGE_METADATA: usize = 2 * size_of::<Bitmap>() + size_of::<Mark>();

/// Heap pages of a group.
pub(super) const GROUP_PAGES: usize = GROUP_BYTES / HEAP_PAGE_BYTES;

/// The arrays, as numbers of [`Tables::arrays`].
const VACANT: usize = 0;
const REMOTE: usize = 1;
pub(super) const MARKS: usize = 2;
pub(super) const ARRAYS: usize = 3;

/// Bytes per heap page, by array.
pub(super) const ELEMENT: [usize; ARRAYS] = [size_of::<Bitmap>(), size_of::<Bitmap>(), size_of::<Mark>()];

/// The largest OS page there is, in bytes: arm64 and ppc64le can have it.
const LARGEST_OS_PAGE: usize = 64 << 10;

/// A group whose metadata can be written, once and for all.
pub(super) const READY: u8 = 1;

/// A group whose bitmaps were given back: nobody will use a page of it.
const GONE: u8 = 2;

/// A group whose marks were given back. See [`GONE_PARTS`].
const CUT: u8 = 4;

/// Of the metadata of the group something was given back: what lies there now may be somebody else's.
pub(super) const GONE_PARTS: u8 = GONE | CUT;

/// The metadata of a region's heap pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables {
    /// Multiple of the OS page.
    range: AddressRange,
    /// Where the bytes of the arenas begin.
    pub(super) used: usize,
    pub(super) arrays: [usize; ARRAYS],
    /// Heap pages of the region.
    pub(super) pages: usize,
    pub(super) os_page: usize,
    /// The arrays begin at multiples of the huge page.
    pub(super) aligned: bool,
}

impl Tables {
    /// Where the arrays of a region are, in a range that begins at `start`.
    fn at(start: usize, region_bytes: usize, os_page: usize) -> Self {
        let pages = region_bytes / HEAP_PAGE_BYTES;
        let aligned = region_bytes >= LARGE_REGION;
        let multiple = if aligned { ARENA_BYTES } else { os_page };
        let used = start + region_bytes.div_ceil(GROUP_BYTES);
        let mut end = used + region_bytes.div_ceil(ARENA_BYTES);
        let arrays = ELEMENT.map(|bytes| {
            let array = end.next_multiple_of(multiple);
            end = array + pages * bytes;
            array
        });
        let range = AddressRange::new(start, end.next_multiple_of(os_page) - start);
        Self { range, used, arrays, pages, os_page, aligned }
    }

    /// Bytes for a region of so many, at any OS page and wherever they begin: what the arenas are asked to
    /// reserve beside each.
    pub(super) fn bytes(region_bytes: usize) -> usize {
        let tables = Self::at(0, region_bytes, LARGEST_OS_PAGE);
        // Where they begin elsewhere it is at most a huge page farther to its next multiple.
        tables.range.len + if tables.aligned { ARENA_BYTES } else { 0 }
    }

    pub(super) fn vacant(&self) -> usize {
        self.arrays[VACANT]
    }

    pub(super) fn remote(&self) -> usize {
        self.arrays[REMOTE]
    }

    pub(super) fn marks(&self) -> usize {
        self.arrays[MARKS]
    }

    /// Makes the tables of a region readable: in what was reserved beside it, if that is enough, or elsewhere.
    pub(super) fn make<P: Pages + Facts>(
        os: &P,
        region_bytes: usize,
        beside: Option<AddressRange>,
    ) -> Option<Self> {
        let os_page = os.os_page();
        let bytes = Self::bytes(region_bytes);
        let range = match beside {
            Some(range) if range.len >= bytes => range,
            _ => os.reserve(bytes, os_page).ok()?,
        };
        let tables = Self::at(range.start, region_bytes, os_page);
        let bytes =
            (tables.used - range.start + region_bytes.div_ceil(ARENA_BYTES)).next_multiple_of(os_page);
        let ready = AddressRange::new(range.start, bytes);
        // SAFETY: reserved for these tables and used by nobody.
        let made = unsafe {
            os.map(tables.range, Backing::Zeros).and_then(|()| os.protect(ready, Protection::ReadWrite))
        };
        if made.is_err() {
            // SAFETY: the whole reservation, to which nothing refers.
            let _ = unsafe { os.release(range) };
            return None;
        }
        // Only helps to find it in /proc/PID/maps.
        let _ = os.name(tables.range, c"hugeheap metadata");
        Some(tables)
    }

    /// What is known of a group.
    pub(super) fn ready(&self, group: usize) -> &'static AtomicU8 {
        // SAFETY: the array has a byte per group of the region, writable and zero at first, and is never unmapped.
        unsafe { &*((self.range.start + group) as *const AtomicU8) }
    }

    /// Whether the metadata of a heap page can be written.
    #[inline]
    pub(super) fn is_ready(&self, page: usize) -> bool {
        self.ready(page / GROUP_PAGES).load(Ordering::Acquire) & READY != 0
    }

    /// Makes the metadata of the group of a heap page writable, on huge pages if `huge` and there is a large
    /// heap. By one thread at a time. `None`: the system has no memory for it.
    pub(super) fn make_ready<P: Pages>(&self, os: &P, page: usize, huge: bool) -> Option<()> {
        let group = page / GROUP_PAGES;
        let known = self.ready(group);
        if known.load(Ordering::Relaxed) & GONE != 0 {
            return None;
        }
        if huge {
            self.make_huge(os, group);
        }
        let (first, end) = (group * GROUP_PAGES, ((group + 1) * GROUP_PAGES).min(self.pages));
        for part in self.parts(first, end) {
            // SAFETY: a part of the tables, of whole OS pages; more access harms nobody.
            unsafe { os.protect(part, Protection::ReadWrite) }.ok()?;
        }
        known.fetch_or(READY, Ordering::Release);
        Some(())
    }

    /// Behind the last page of `first..end` that can be written, in whole groups. Under the lock of those who
    /// change that.
    pub(super) fn end_of_ready(&self, first: usize, end: usize) -> usize {
        let groups = first.div_ceil(GROUP_PAGES)..end.div_ceil(GROUP_PAGES);
        let ready = |&group: &usize| self.ready(group).load(Ordering::Relaxed) & READY != 0;
        let last = groups.clone().rev().find(ready);
        (last.map_or(groups.start, |group| group + 1) * GROUP_PAGES).min(end)
    }

    /// The widest part of `first..end`, in whole groups, of which nothing can be written: where it begins and
    /// where it ends. Under the same lock. The first part begins at `first` itself.
    pub(super) fn widest_without(&self, first: usize, end: usize) -> (usize, usize) {
        let mut widest = (first.min(end), first.min(end));
        let mut begin = first;
        while begin < end {
            let groups = begin.div_ceil(GROUP_PAGES)..end.div_ceil(GROUP_PAGES);
            let ready = |&group: &usize| self.ready(group).load(Ordering::Relaxed) & READY != 0;
            let next = groups.clone().find(ready).map_or(end, |group| (group * GROUP_PAGES).min(end));
            if next - begin > widest.1 - widest.0 {
                widest = (begin, next);
            }
            begin = next + GROUP_PAGES;
        }
        widest
    }

    /// The tables of the pages from `first` on, a multiple of a group's, as those of a region that begins
    /// there. What is on huge pages stays there, and nothing comes to it: they would begin within an array.
    pub(super) fn behind(&self, first: usize) -> Self {
        let mut arrays = self.arrays;
        for (array, bytes) in arrays.iter_mut().zip(ELEMENT) {
            *array += first * bytes;
        }
        Self {
            range: AddressRange::new(self.range.start + first / GROUP_PAGES, self.range.len),
            used: self.used + first / HEAP_PAGES as usize,
            arrays,
            pages: self.pages - first,
            os_page: self.os_page,
            aligned: false,
        }
    }

    /// Gives back the address space of metadata, in whole groups: the bitmaps of pages `first..end` where none
    /// was ever written, and the marks of `marks..end`. Under the same lock; after all were told that there are
    /// no such pages any more.
    pub(super) fn release<P: Pages>(&self, os: &P, first: usize, marks: usize, end: usize) {
        let marks = marks.next_multiple_of(GROUP_PAGES);
        if marks < end {
            for group in marks / GROUP_PAGES..end.div_ceil(GROUP_PAGES) {
                self.ready(group).fetch_or(CUT, Ordering::Relaxed);
            }
            // SAFETY: a part of the tables; nobody looks at marks there any more. What the system does not take
            // stays, and harms nobody.
            let _ = unsafe { os.release_part(self.parts(marks, end)[MARKS]) };
        }
        let unused = |group: &usize| self.ready(*group).load(Ordering::Relaxed) & (READY | GONE) == 0;
        let (mut next, last) = (first.div_ceil(GROUP_PAGES), end.div_ceil(GROUP_PAGES));
        while let Some(start) = (next..last).find(unused) {
            next = (start..last).find(|group| !unused(group)).unwrap_or(last);
            for group in start..next {
                self.ready(group).fetch_or(GONE, Ordering::Relaxed);
            }
            let parts = self.parts(start * GROUP_PAGES, (next * GROUP_PAGES).min(end));
            for part in [parts[VACANT], parts[REMOTE]] {
                // SAFETY: a part of the tables that was never written; who looks at a bitmap has a mark that
                // says that its page is of a heap.
                let _ = unsafe { os.release_part(part) };
            }
        }
    }

    /// Has the kernel find the memory for the metadata of heap pages, which can be written. What it holds stays.
    pub(super) fn touch<P: Pages>(&self, os: &P, first: usize, end: usize) {
        for part in self.parts(first, end) {
            // SAFETY: a part of the tables, of whole OS pages; the call changes nothing, also of what others
            // write meanwhile. Where it fails the pages are found when they are used.
            let _ = unsafe { os.touch(part) };
        }
    }

    /// The OS pages that hold the metadata of heap pages, of each array.
    pub(super) fn parts(&self, first: usize, end: usize) -> [AddressRange; ARRAYS] {
        core::array::from_fn(|array| {
            let (start, bytes) = (self.arrays[array], ELEMENT[array]);
            let begin = start + first * bytes / self.os_page * self.os_page;
            AddressRange::new(begin, start + (end * bytes).next_multiple_of(self.os_page) - begin)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeheap_os::simulated::{Call, Config, Kernel};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tables_of_any_region_fit_into_what_is_reserved_beside_it(
            arenas in 1usize..5000,
            shift in 12u32..=16,
            place in 0usize..32,
        ) {
            let (region, os_page) = (arenas * ARENA_BYTES, 1usize << shift);
            let tables = Tables::at((1 << 40) + place * LARGEST_OS_PAGE, region, os_page);
            prop_assert!(tables.range.len <= Tables::bytes(region));
            prop_assert!(tables.used >= tables.range.start + region.div_ceil(GROUP_BYTES));
            let mut end = tables.used + arenas;
            let pages = region / HEAP_PAGE_BYTES;
            let multiple = if region >= LARGE_REGION { ARENA_BYTES } else { os_page };
            for (array, bytes) in [(tables.vacant(), 128), (tables.remote(), 128), (tables.marks(), 64)] {
                prop_assert!(array >= end && array % multiple == 0);
                end = array + pages * bytes;
            }
            prop_assert!(end <= tables.range.end());
        }
    }

    #[test]
    fn the_metadata_of_a_group_is_written_after_it_was_made_ready() {
        const PAGES: usize = GROUP_BYTES / HEAP_PAGE_BYTES;
        let kernel = Kernel::new(Config::default());
        // Two groups and a half.
        let tables = Tables::make(&kernel, GROUP_BYTES * 5 / 2, None).expect("memory");
        let word = |page: usize| (tables.vacant() + page * size_of::<Bitmap>()) as *mut u64;
        for page in [0, PAGES, 2 * PAGES + PAGES / 2 - 1] {
            assert!(!tables.is_ready(page));
            // SAFETY: tables read as zero.
            assert_eq!(unsafe { word(page).read() }, 0);
            kernel.fail_every(Call::Protect, 1, libc::ENOMEM);
            assert_eq!(tables.make_ready(&kernel, page, false), None);
            assert!(!tables.is_ready(page));
            kernel.fail_no_more();
            tables.make_ready(&kernel, page, false).expect("memory");
            assert!(tables.is_ready(page));
            // SAFETY: the page's metadata is ready.
            unsafe { word(page).write(7) };
        }
    }

    /// On large OS pages the marks of several arenas share one.
    #[test]
    fn marks_that_share_an_os_page_with_those_that_go_stay() {
        use hugeheap_os::simulated::PageState;
        const PAGES: usize = 20 * ARENA_BYTES / HEAP_PAGE_BYTES;
        let kernel = Kernel::new(Config::with_page_sizes(64 << 10, Some(ARENA_BYTES)));
        let tables = Tables::make(&kernel, 40 * ARENA_BYTES, None).expect("memory");
        tables.make_ready(&kernel, PAGES - 1, false).expect("memory");
        tables.release(&kernel, PAGES, PAGES, 2 * PAGES);
        let mark = |page: usize| tables.marks() + page * size_of::<Mark>();
        assert_ne!(kernel.page_state(mark(PAGES - 1)), PageState::Foreign);
        assert_eq!(kernel.page_state(mark(2 * PAGES - 1)), PageState::Foreign);
        assert_eq!(kernel.violations(), []);
    }

    #[test]
    fn what_is_beside_a_region_is_used_when_it_is_enough() {
        let kernel = Kernel::new(Config::default());
        let region = 4 * ARENA_BYTES;
        let enough = Tables::bytes(region);
        let beside = kernel.reserve(enough.next_multiple_of(64 << 10), 64 << 10).expect("room");
        kernel.fail_every(Call::Reserve, 1, libc::ENOMEM);
        let tables = Tables::make(&kernel, region, Some(beside)).expect("it is enough");
        assert!(beside.encloses(tables.range));
        assert!(Tables::make(&kernel, 2 * region, Some(beside)).is_none());
    }
}
