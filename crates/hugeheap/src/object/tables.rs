//! Where the metadata of a region's heap pages lies, and which part of it can be written.
//!
//! ```text
//!   beside a region   ├ ready ┼ vacant ──────────────┼ remote ──────────────┼ marks ───┤     each at a multiple of the OS page
//!                        │      └ group 0 ┘└ group 1 ┘   └ group 0 ┘└ …
//!                        └── a byte per group: whether it can be written
//! ```
//!
//! All of it reads as zero from the beginning, so that any address in a region has metadata that says "nothing here". What belongs to a
//! *group* of arenas is made writable when its first heap page is used. At once it would be 2 % of a region that is made for all
//! memory of the host: under `ulimit -d 400000` a program got no block at all, on a host of 24 GB.
//!
//! The address space is reserved together with that of the region. When it was reserved after the first arena of the region had been used, under
//! `ulimit -v` there could be an arena without room for its metadata; it was given back, taken again as the arena at hand, and no other one was
//! used for blocks any more: a program that had run out of memory and freed nearly all of it got `MemoryError` for good.

use super::mark::Mark;
use super::space::Bitmap;
use crate::arena::{ARENA_BYTES, HEAP_PAGE_BYTES};
use core::sync::atomic::{AtomicU8, Ordering};
use hugeheap_os::{AddressRange, Backing, Facts, Pages, Protection};

/// Bytes of a region whose metadata is made writable at once: 16 arenas, 32 MiB, for which that is 0.6 MiB. Whole OS pages in each array, also where
/// these have 64 KiB: then their marks are two.
pub(super) const GROUP_BYTES: usize = 16 * ARENA_BYTES;

const _: () = assert!(GROUP_BYTES / HEAP_PAGE_BYTES * size_of::<Mark>() == 128 << 10);

/// Bytes of metadata per heap page.
pub(super) const PAGE_METADATA: usize = 2 * size_of::<Bitmap>() + size_of::<Mark>();

/// Heap pages of a group.
pub(super) const GROUP_PAGES: usize = GROUP_BYTES / HEAP_PAGE_BYTES;

/// Arrays, with that of ready groups.
const ARRAYS: usize = 4;

/// A group whose metadata can be written, once and for all.
const READY: u8 = 1;

/// A group whose bitmaps were given back: nobody will use a page of it.
const GONE: u8 = 2;

/// The metadata of a region's heap pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables {
    /// Multiple of the OS page.
    range: AddressRange,
    pub(super) vacant: usize,
    pub(super) remote: usize,
    pub(super) marks: usize,
    /// Heap pages of the region.
    pages: usize,
    os_page: usize,
}

impl Tables {
    /// Where the arrays of a region are, in a range that begins at `start`.
    fn at(start: usize, region_bytes: usize, os_page: usize) -> Self {
        let pages = region_bytes / HEAP_PAGE_BYTES;
        let mut next = start + region_bytes.div_ceil(GROUP_BYTES).next_multiple_of(os_page);
        let mut array = |bytes: usize| {
            let at = next;
            next += bytes.next_multiple_of(os_page);
            at
        };
        let vacant = array(pages * size_of::<Bitmap>());
        let remote = array(pages * size_of::<Bitmap>());
        let marks = array(pages * size_of::<Mark>());
        Self { range: AddressRange::new(start, next - start), vacant, remote, marks, pages, os_page }
    }

    /// Bytes for a region: per heap page, and for rounding. What the arenas are asked to reserve beside each.
    pub(super) fn needs<P: Facts>(os: &P) -> (usize, usize) {
        // A byte per group is less than one per heap page, which keeps the sum a bound.
        (PAGE_METADATA + 1, ARRAYS * os.os_page())
    }

    /// Makes the tables of a region readable: in what was reserved beside it, if that is enough, or elsewhere.
    pub(super) fn make<P: Pages + Facts>(
        os: &P,
        region_bytes: usize,
        beside: Option<AddressRange>,
    ) -> Option<Self> {
        let os_page = os.os_page();
        let bytes = Self::at(0, region_bytes, os_page).range.len;
        let range = match beside {
            Some(range) if range.len >= bytes => range,
            _ => os.reserve(bytes, os_page).ok()?,
        };
        let tables = Self::at(range.start, region_bytes, os_page);
        let ready = AddressRange::new(range.start, tables.vacant - range.start);
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

    fn ready(&self, group: usize) -> &'static AtomicU8 {
        // SAFETY: the array has a byte per group of the region, writable and zero at first, and is never unmapped.
        unsafe { &*((self.range.start + group) as *const AtomicU8) }
    }

    /// Whether the metadata of a heap page can be written.
    #[inline]
    pub(super) fn is_ready(&self, page: usize) -> bool {
        self.ready(page / GROUP_PAGES).load(Ordering::Acquire) == READY
    }

    /// Makes the metadata of the group of a heap page writable. By one thread at a time. `None`: the system has no memory for it.
    pub(super) fn make_ready<P: Pages>(&self, os: &P, page: usize) -> Option<()> {
        let group = page / GROUP_PAGES;
        if self.ready(group).load(Ordering::Relaxed) == GONE {
            return None;
        }
        let (first, end) = (group * GROUP_PAGES, ((group + 1) * GROUP_PAGES).min(self.pages));
        for part in self.parts(first, end) {
            // SAFETY: a part of the tables, of whole OS pages, of which nobody writes anything yet; more access harms nobody.
            unsafe { os.protect(part, Protection::ReadWrite) }.ok()?;
        }
        self.ready(group).store(READY, Ordering::Release);
        Some(())
    }

    /// Behind the last page of `first..end` that can be written, in whole groups. Under the lock of those who change that.
    pub(super) fn end_of_ready(&self, first: usize, end: usize) -> usize {
        let groups = first.div_ceil(GROUP_PAGES)..end.div_ceil(GROUP_PAGES);
        let last = groups.clone().rev().find(|&group| self.ready(group).load(Ordering::Relaxed) == READY);
        (last.map_or(groups.start, |group| group + 1) * GROUP_PAGES).min(end)
    }

    /// The tables of the pages from `first` on, a multiple of a group's, as those of a region that begins there.
    pub(super) fn behind(&self, first: usize) -> Self {
        Self {
            range: AddressRange::new(self.range.start + first / GROUP_PAGES, self.range.len),
            vacant: self.vacant + first * size_of::<Bitmap>(),
            remote: self.remote + first * size_of::<Bitmap>(),
            marks: self.marks + first * size_of::<Mark>(),
            pages: self.pages - first,
            os_page: self.os_page,
        }
    }

    /// Gives back the address space of metadata, in whole groups: the bitmaps of pages `first..end` where none was ever written, and the marks of `marks..end`. Under the same lock; after all were told that there are no
    /// such pages any more.
    pub(super) fn release<P: Pages>(&self, os: &P, first: usize, marks: usize, end: usize) {
        let marks = marks.next_multiple_of(GROUP_PAGES);
        if marks < end {
            let [_, _, part] = self.parts(marks, end);
            // SAFETY: a part of the tables; nobody looks at marks there any more. What the system does not take stays, and harms nobody.
            let _ = unsafe { os.release_part(part) };
        }
        let unused = |group: &usize| self.ready(*group).load(Ordering::Relaxed) == 0;
        let (mut next, last) = (first.div_ceil(GROUP_PAGES), end.div_ceil(GROUP_PAGES));
        while let Some(start) = (next..last).find(unused) {
            next = (start..last).find(|group| !unused(group)).unwrap_or(last);
            let [vacant, remote, _] = self.parts(start * GROUP_PAGES, (next * GROUP_PAGES).min(end));
            for group in start..next {
                self.ready(group).store(GONE, Ordering::Relaxed);
            }
            for part in [vacant, remote] {
                // SAFETY: a part of the tables that was never written; who looks at a bitmap has a mark that says that its page is of a heap.
                let _ = unsafe { os.release_part(part) };
            }
        }
    }

    /// Has the kernel find the memory for the metadata of heap pages, which can be written. What it holds stays.
    pub(super) fn touch<P: Pages>(&self, os: &P, first: usize, end: usize) {
        for part in self.parts(first, end) {
            // SAFETY: a part of the tables, of whole OS pages; the call changes nothing, also of what others write meanwhile. Where it fails
            // the pages are found when they are used.
            let _ = unsafe { os.touch(part) };
        }
    }

    /// The OS pages that hold the metadata of heap pages, of each array.
    fn parts(&self, first: usize, end: usize) -> [AddressRange; 3] {
        let part = |array: usize, bytes: usize| {
            let start = array + first * bytes / self.os_page * self.os_page;
            AddressRange::new(start, array + (end * bytes).next_multiple_of(self.os_page) - start)
        };
        [
            part(self.vacant, size_of::<Bitmap>()),
            part(self.remote, size_of::<Bitmap>()),
            part(self.marks, size_of::<Mark>()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeheap_os::simulated::{Call, Config, Kernel};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tables_of_any_region_fit_into_what_is_reserved_beside_it(arenas in 1usize..5000, shift in 12u32..=16) {
            let (region, os_page) = (arenas * ARENA_BYTES, 1usize << shift);
            let kernel = Kernel::new(Config::with_page_sizes(os_page, Some(ARENA_BYTES)));
            let (per_page, more) = Tables::needs(&kernel);
            let tables = Tables::at(1 << 40, region, os_page);
            prop_assert!(tables.range.len <= region / HEAP_PAGE_BYTES * per_page + more);
            let mut end = tables.range.start + region.div_ceil(GROUP_BYTES);
            let pages = region / HEAP_PAGE_BYTES;
            for (array, bytes) in [(tables.vacant, 128), (tables.remote, 128), (tables.marks, size_of::<Mark>())] {
                prop_assert!(array >= end && array % os_page == 0);
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
        let word = |page: usize| (tables.vacant + page * size_of::<Bitmap>()) as *mut u64;
        for page in [0, PAGES, 2 * PAGES + PAGES / 2 - 1] {
            assert!(!tables.is_ready(page));
            // SAFETY: tables read as zero.
            assert_eq!(unsafe { word(page).read() }, 0);
            kernel.fail_every(Call::Protect, 1, libc::ENOMEM);
            assert_eq!(tables.make_ready(&kernel, page), None);
            assert!(!tables.is_ready(page));
            kernel.fail_no_more();
            tables.make_ready(&kernel, page).expect("memory");
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
        tables.make_ready(&kernel, PAGES - 1).expect("memory");
        tables.release(&kernel, PAGES, PAGES, 2 * PAGES);
        let mark = |page: usize| tables.marks + page * size_of::<Mark>();
        assert_ne!(kernel.page_state(mark(PAGES - 1)), PageState::Foreign);
        assert_eq!(kernel.page_state(mark(2 * PAGES - 1)), PageState::Foreign);
        assert_eq!(kernel.violations(), []);
    }

    #[test]
    fn what_is_beside_a_region_is_used_when_it_is_enough() {
        let kernel = Kernel::new(Config::default());
        let region = 4 * ARENA_BYTES;
        let (per_page, more) = Tables::needs(&kernel);
        let enough = region / HEAP_PAGE_BYTES * per_page + more;
        let beside = kernel.reserve(enough.next_multiple_of(64 << 10), 64 << 10).expect("room");
        kernel.fail_every(Call::Reserve, 1, libc::ENOMEM);
        let tables = Tables::make(&kernel, region, Some(beside)).expect("it is enough");
        assert!(beside.encloses(tables.range));
        assert!(Tables::make(&kernel, 2 * region, Some(beside)).is_none());
    }
}
