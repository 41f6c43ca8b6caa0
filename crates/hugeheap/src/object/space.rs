//! The metadata of heap pages, and how an address finds it without a lock.
//!
//! ```text
//!   region    ├─ arenas ─────────────────────────────────────────────────────┤  owned by `arena`
//!             page 0   page 1   page 2 …                                        index = (address − start) / 16 KiB
//!   marks     ├ 64 B ┤                tag, summary, count: all that a free of the owner needs; lists of pages (see `mark`)
//!   vacant    ├ 128 B ─────┤          bitmap: 1 where no live block begins; changed by the owner only
//!   remote    ├ 128 B ─────┤          bitmap: 1 where another thread freed; not resident before it is needed
//! ```
//!
//! Three arrays per region, beside it (see `tables`): 2 % of the address space, of which what is touched
//! becomes resident: 192 bytes per page of blocks, 1.2 % of the heap, and 128 more when other threads free in
//! the page. Their memory goes back with that of their arenas (see `unused`).
//!
//! A region that is known stays known, so readers take no lock: `count` is raised after the region was written.
//! It only becomes shorter, see [`shorten`](super::shorten).

use super::class::{Class, SHAPES, WINDOWS};
use super::mark::{Links, Mark};
use super::spans::Pool;
use super::tables::{GROUP_BYTES, PAGE_METADATA, Tables};
use crate::arena::{Arenas, HEAP_PAGE_BYTES, HEAP_PAGES, MAX_REGIONS};
use crate::lock::Lock;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use hugeheap_os::{AddressRange, Backing, Os, Pages};

/// Where heap pages come from: arenas behind a lock.
///
/// The process's runtime is one; a test has arenas on a simulated kernel.
pub trait Source: Sync + 'static {
    /// The operating system under the arenas.
    type Os: Os;
    /// Called before a heap is acquired: what has to be there before the first one.
    fn begin(&'static self) {}
    /// Works on the arenas, locked; afterwards sees to it that maintenance happens.
    fn with<R>(&'static self, work: impl FnOnce(&mut Arenas<Self::Os>) -> R) -> R;
    /// Reads what the arenas know, locked. Nothing is due after that.
    fn read<R>(&'static self, read: impl FnOnce(&Arenas<Self::Os>) -> R) -> R {
        self.with(|arenas| read(arenas))
    }
    /// Called before memory goes back to the arenas: what is told of the peak has to be looked at while it lasts.
    fn before_free(&'static self) {}
    /// Called now and then when numbers of a heap changed that no event of the arenas tells: whoever publishes
    /// numbers may do so.
    fn changed(&'static self) {}
    /// Called when bytes of metadata were used for the first time, without a lock: whoever publishes numbers
    /// counts them.
    fn metadata_used(&'static self, _bytes: usize) {}
    /// Called when bytes of metadata that were counted were given back, without a lock.
    fn metadata_given_back(&'static self, _bytes: usize) {}
    /// Waits, while a maintenance thread makes arenas. Says no, at once, where there is no such thread.
    fn wait_for_arenas(&'static self, _time: Duration) -> bool {
        false
    }
    /// Gives back to the system what is kept for reuse, now: there is no room for what is wanted otherwise. Not
    /// under a lock.
    fn give_back_all(&'static self) {
        self.with(|arenas| {
            arenas.forget_demand();
            let _ = arenas.maintain();
        });
    }
    /// Whether a thread of this process, of that number with the system, has ended.
    fn is_gone(&self, _thread: u32) -> bool {
        false
    }
    /// The operating system.
    fn os(&self) -> &Self::Os;
    /// Whether its heaps are hardened where nothing else is asked for.
    fn hardened(&self) -> bool {
        false
    }
}

/// A bitmap over a heap page: a word per window.
pub(crate) type Bitmap = [AtomicU64; WINDOWS];

const _: () = assert!(size_of::<Bitmap>() == 128);

/// Bytes of metadata of a heap page that its owner writes, by and by; the bitmap of other threads is not
/// counted, because nobody notes when it is touched first.
pub(super) const PAGE_METADATA_USED: usize = PAGE_METADATA - size_of::<Bitmap>();

/// A region as the allocator of blocks sees it.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) start: usize,
    /// Has metadata for the pages before.
    pub(super) bytes: AtomicUsize,
    pub(crate) marks: *const Mark,
    pub(crate) vacant: *const Bitmap,
    pub(crate) remote: *const Bitmap,
    /// `None`: of no region.
    pub(super) tables: Option<Tables>,
}

impl Region {
    const fn none() -> Self {
        Self {
            start: 0,
            bytes: AtomicUsize::new(0),
            marks: core::ptr::null(),
            vacant: core::ptr::null(),
            remote: core::ptr::null(),
            tables: None,
        }
    }

    /// Bytes that have metadata.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        // SAFETY: a word of a known region. Another thread may make it less meanwhile: see `Own::granules`.
        unsafe { self.bytes.as_ptr().read() }
    }

    /// The heap page that contains an address of this region, which is a known one of its space.
    pub(super) fn page(&self, address: usize) -> Page {
        Page { region: self, index: (address - self.start) / HEAP_PAGE_BYTES }
    }
}

/// The metadata of one heap page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    region: *const Region,
    pub(super) index: usize,
}

impl Page {
    #[inline(always)]
    pub(super) fn region(self) -> &'static Region {
        // SAFETY: made by `Space::page` from a region that is known, which is never changed or moved: spaces
        // live as long as the process.
        unsafe { &*self.region }
    }

    /// The page so many before it, if its region has that.
    pub(super) fn before(self, pages: usize) -> Option<Self> {
        let index = self.index.checked_sub(pages)?;
        Some(Self { region: self.region, index })
    }

    /// The page so many behind it, of which the caller knows that its region has it.
    pub(super) fn behind(self, pages: usize) -> Self {
        debug_assert!((self.index + pages) * HEAP_PAGE_BYTES < self.region().bytes());
        Self { region: self.region, index: self.index + pages }
    }

    pub(crate) fn address(self) -> usize {
        self.region().start + self.index * HEAP_PAGE_BYTES
    }

    /// Whether its metadata can be written.
    fn is_ready(self) -> bool {
        self.region().tables.is_some_and(|tables| tables.is_ready(self.index))
    }

    pub(crate) fn mark(self) -> &'static Mark {
        // SAFETY: a Page is made by `Space::page` for an address inside a region; its arrays have an
        // initialised (zeroed) element for each of the region's pages and are never unmapped.
        unsafe { &*self.region().marks.add(self.index) }
    }

    pub(crate) fn vacant(self) -> &'static Bitmap {
        // SAFETY: as in `mark`.
        unsafe { &*self.region().vacant.add(self.index) }
    }

    pub(crate) fn remote(self) -> &'static Bitmap {
        // SAFETY: as in `mark`.
        unsafe { &*self.region().remote.add(self.index) }
    }

    pub(crate) fn links(self) -> &'static Links {
        &self.mark().links
    }

    pub(crate) fn tag(self) -> u32 {
        self.mark().tag.load(Ordering::Acquire)
    }

    /// Windows without a live block, among those of its class. What is in the open window counts as live.
    pub(crate) fn empty_windows(self, class: Class) -> u16 {
        let vacant = |window: &usize| self.vacant()[*window].load(Ordering::Relaxed) == u64::MAX;
        let windows = SHAPES[class].windows;
        (0..WINDOWS).filter(vacant).fold(0, |empty, window| empty | 1 << window) & windows
    }

    /// Whether it has no live block.
    pub(crate) fn is_empty(self) -> bool {
        is_vacant(self.vacant())
    }
}

/// Whether a page with that bitmap has no live block.
#[inline(always)]
pub(super) fn is_vacant(words: &Bitmap) -> bool {
    // No branch for each: nearly always it is.
    words.iter().fold(u64::MAX, |all, word| all & word.load(Ordering::Relaxed)) == u64::MAX
}

/// All metadata of heap pages over one source of arenas: of heaps of blocks, or of [garbage-collected
/// heaps](crate::gc::Heap). These need one of their own, because the same words of a page mean something else
/// to them.
pub struct Space<S: 'static> {
    source: &'static S,
    regions: UnsafeCell<[Region; MAX_REGIONS]>,
    count: AtomicUsize,
    /// Held while a region is added or shortened, or metadata made writable. Taken with the arenas locked, or
    /// alone; nothing else is locked under it, and nobody calls the source: what follows an event of the arenas
    /// may start a thread, for which the C library allocates, which may be us.
    pub(super) adding: Lock<()>,
    metadata: AtomicUsize,
    /// Heaps that are made from now on are for objects with headers.
    headers: AtomicBool,
    pub(super) registry: super::registry::Registry,
    /// Of blocks that no heap keeps. Taken alone, and nothing else is locked under it.
    pub(super) spans: Lock<Pool>,
    /// Heap pages of all spans, and the most there ever were.
    pub(super) span_pages: AtomicUsize,
    pub(super) most_span_pages: AtomicUsize,
}

// SAFETY: `regions` is written under `adding` beyond `count`, and read below it; everything behind its pointers
// is atomic.
unsafe impl<S: Source> Sync for Space<S> {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl<S: Source> Send for Space<S> {}

impl<S: Source> Space<S> {
    /// No heap page is cut yet.
    pub const fn new(source: &'static S) -> Self {
        Self {
            source,
            regions: UnsafeCell::new([const { Region::none() }; MAX_REGIONS]),
            count: AtomicUsize::new(0),
            adding: Lock::new(()),
            metadata: AtomicUsize::new(0),
            headers: AtomicBool::new(false),
            registry: super::registry::Registry::new(),
            spans: Lock::new(Pool::NONE),
            span_pages: AtomicUsize::new(0),
            most_span_pages: AtomicUsize::new(0),
        }
    }

    pub(crate) fn source(&self) -> &'static S {
        self.source
    }

    /// Has heaps that are made from now on put objects that have a header of 16 bytes in front, and fill one or
    /// two cache lines with it, where the object begins with a cache line. For interpreters whose collector
    /// looks at headers: CPython's takes half as long for some heaps. It holds for what
    /// [`Heap::allocate_near`](super::Heap::allocate_near) and its counterpart give, for zeroed and for resized
    /// blocks. The blocks themselves begin 16 bytes before a cache line; those that are asked for with an
    /// alignment have it all the same.
    pub fn expect_headers(&self) {
        self.headers.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_headers(&self) -> bool {
        self.headers.load(Ordering::Relaxed)
    }

    /// Bytes of metadata in use: of heap pages in arenas that were not given back since, and of heaps. (Nearly
    /// all of what is reserved is never touched.) Of a large heap the last huge pages of metadata are resident
    /// as a whole: up to 4 MiB more.
    pub fn metadata_bytes(&self) -> usize {
        self.metadata.load(Ordering::Relaxed)
    }

    /// Counts metadata that is used for the first time.
    pub(super) fn add_metadata(&self, bytes: usize) {
        self.metadata.fetch_add(bytes, Ordering::Relaxed);
        self.source.metadata_used(bytes);
    }

    /// Counts metadata that was given back.
    pub(super) fn remove_metadata(&self, bytes: usize) {
        self.metadata.fetch_sub(bytes, Ordering::Relaxed);
        self.source.metadata_given_back(bytes);
    }

    /// The regions that are known.
    pub(crate) fn regions(&self) -> &[Region] {
        let count = self.count.load(Ordering::Acquire);
        // SAFETY: elements below `count` were written before it was raised and are never written again.
        unsafe { core::slice::from_raw_parts(self.regions.get().cast::<Region>(), count) }
    }

    /// The heap page that contains an address, if it lies in a known region.
    pub(crate) fn page(&self, address: usize) -> Option<Page> {
        self.regions().iter().find_map(|region| {
            let offset = address.wrapping_sub(region.start);
            (offset < region.bytes()).then_some(Page { region, index: offset / HEAP_PAGE_BYTES })
        })
    }

    /// The same for a page that was just taken from the arenas: its metadata may be written. `None`: there is
    /// no memory for metadata.
    pub(crate) fn page_or_add(&self, address: usize) -> Option<Page> {
        self.pages_or_add(address, HEAP_PAGE_BYTES)
    }

    /// The same for all pages of a range that was just taken; returns the first.
    pub(crate) fn pages_or_add(&self, address: usize, bytes: usize) -> Option<Page> {
        let page = self.page(address).or_else(|| {
            self.add(address)?;
            self.page(address)
        })?;
        // Not by a look at the mark: that found an OS page of zeros, after which the kernel makes no huge page there.
        if !page.is_ready() || bytes > HEAP_PAGE_BYTES {
            self.make_ready(page, bytes.div_ceil(HEAP_PAGE_BYTES))?;
        }
        if !page.mark().is_used() {
            page.mark().set_used();
            self.count_page(page);
        }
        Some(page)
    }

    /// Takes single heap pages that have metadata, as many as `to` has room for, looked for from heap page
    /// number `from` of an arena on; returns how many. Fewer when the system has no more memory.
    pub(crate) fn take_pages(&self, to: &mut [usize], from: u32) -> usize {
        let taken = self.source.with(|arenas| arenas.allocate_pages(to, from));
        let usable = to[..taken].iter().take_while(|&&page| self.page_or_add(page).is_some()).count();
        if usable == taken {
            return taken;
        }
        self.give_pages(&to[usable..taken]);
        if usable > 0 { usable } else { self.take_pages_elsewhere(to) }
    }

    /// The same when there was no memory for the metadata of what the arenas gave first, and would give again
    /// while anything lives there: of an arena's worth of pages and more, those that have it.
    #[cold]
    fn take_pages_elsewhere(&self, to: &mut [usize]) -> usize {
        let mut pages = [0; HEAP_PAGES as usize];
        let taken = self.source.with(|arenas| arenas.allocate_pages(&mut pages, 0));
        let mut kept = 0;
        for index in 0..taken {
            if kept < to.len() && self.page_or_add(pages[index]).is_some() {
                to[kept] = pages[index];
                pages.swap(kept, index);
                kept += 1;
            }
        }
        self.give_pages(&pages[kept..taken]);
        kept
    }

    /// Gives heap pages back to the arenas, each a run of its own.
    pub(super) fn give_pages(&self, pages: &[usize]) {
        let freed = self.source.with(|arenas| arenas.free_pages(pages));
        debug_assert!(freed.is_ok(), "runs of one page");
    }

    /// Makes the metadata of `count` heap pages writable.
    pub(super) fn make_ready(&self, page: Page, count: usize) -> Option<()> {
        let tables = page.region().tables?;
        let groups = (page.index..page.index + count).step_by(GROUP_BYTES / HEAP_PAGE_BYTES);
        for index in groups.chain([page.index + count - 1]) {
            if tables.is_ready(index) {
                continue;
            }
            let huge = self.source.with(|arenas| arenas.advises());
            let _adding = self.adding.lock();
            if !tables.is_ready(index) {
                tables.make_ready(self.source.os(), index, huge)?;
            }
        }
        Some(())
    }

    /// Has the arenas reserve room for metadata beside each region from now on. Before the first page is taken:
    /// a region that is there already gets its metadata elsewhere.
    pub(crate) fn reserve_beside(&self) {
        self.source.with(|arenas| arenas.reserve_beside(Tables::bytes));
    }

    /// Keeps regions from being added, and blocks of spans from being taken and given, during a fork.
    pub(super) fn lock_regions(&self) {
        self.adding.lock_first().keep_over_fork();
        self.spans.lock_first().keep_over_fork();
    }

    /// # Safety
    /// [`lock_regions`](Self::lock_regions) was called by this thread, or by the one that forked this process.
    pub(super) unsafe fn unlock_regions(&self) {
        // SAFETY: by the contract above.
        unsafe {
            self.spans.unlock_leaked();
            self.adding.unlock_leaked();
        }
    }

    /// Adds the region of an address, unless it is known by now.
    ///
    /// In the order arenas, `adding`. The other way round the maintenance thread was started under `adding`: a
    /// fork by another thread held the lock of that start and waited for `adding`.
    fn add(&self, address: usize) -> Option<()> {
        self.source.with(|arenas| {
            let _adding = self.adding.lock();
            if self.page(address).is_some() {
                return Some(());
            }
            if self.is_full() {
                return None;
            }
            let (range, beside) = arenas.region_of(address)?;
            let tables = Tables::make(self.source.os(), range.len, beside)?;
            self.add_region(range, tables);
            Some(())
        })
    }

    /// Whether no further region can be known. Under `adding`.
    pub(super) fn is_full(&self) -> bool {
        self.count.load(Ordering::Relaxed) == MAX_REGIONS
    }

    /// Makes a region known. Under `adding`, where there is room for one.
    pub(super) fn add_region(&self, range: AddressRange, tables: Tables) {
        let count = self.count.load(Ordering::Relaxed);
        assert!(count < MAX_REGIONS);
        let region = Region {
            start: range.start,
            bytes: AtomicUsize::new(range.len),
            marks: tables.marks() as *const Mark,
            vacant: tables.vacant() as *const Bitmap,
            remote: tables.remote() as *const Bitmap,
            tables: Some(tables),
        };
        // SAFETY: under `adding` nobody else writes, and nobody reads at `count` before it is raised.
        unsafe { self.regions.get().cast::<Region>().add(count).write(region) };
        self.count.store(count + 1, Ordering::Release);
    }
}

/// Zeroed memory for metadata, which is never given back.
pub(super) fn map_metadata<P: Pages>(os: &P, bytes: usize) -> Option<AddressRange> {
    // A multiple of the OS page everywhere.
    let bytes = bytes.next_multiple_of(64 << 10);
    let range = os.reserve(bytes, 64 << 10).ok()?;
    // SAFETY: just reserved and used by nobody.
    if unsafe { os.map(range, Backing::Plain) }.is_err() {
        // SAFETY: the reservation was made above and nothing refers to it.
        let _ = unsafe { os.release(range) };
        return None;
    }
    // Only helps to find it in /proc/PID/maps.
    let _ = os.name(range, c"hugeheap metadata");
    Some(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Settings;
    use core::sync::atomic::AtomicBool;
    use hugeheap_os::simulated::{Config, Kernel};

    /// Arenas after each event of which another thread could fork.
    struct Forks {
        arenas: Lock<Arenas<Kernel>>,
        kernel: Kernel,
        space: AtomicUsize,
        under: AtomicBool,
    }

    impl Source for Forks {
        type Os = Kernel;
        fn with<R>(&'static self, work: impl FnOnce(&mut Arenas<Kernel>) -> R) -> R {
            let result = work(&mut self.arenas.lock());
            let space = self.space.load(Ordering::Relaxed) as *const Space<Self>;
            // SAFETY: the space is leaked below.
            if let Some(space) = unsafe { space.as_ref() } {
                self.under.fetch_or(space.adding.try_lock().is_none(), Ordering::Relaxed);
            }
            result
        }
        fn os(&self) -> &Kernel {
            &self.kernel
        }
    }

    /// What follows an event starts the maintenance thread, which allocates and may have to wait for a fork:
    /// not under a lock of this layer.
    #[test]
    fn no_event_happens_while_a_region_is_added() {
        let kernel = Kernel::new(Config { enforce_access: true, ..Config::default() });
        let arenas = Lock::new(Arenas::new(kernel.clone(), Settings::DEFAULT));
        let (space, under) = (AtomicUsize::new(0), AtomicBool::new(false));
        let forks: &'static Forks = Box::leak(Box::new(Forks { arenas, kernel, space, under }));
        let space: &'static Space<Forks> = Box::leak(Box::new(Space::new(forks)));
        forks.space.store(core::ptr::from_ref(space) as usize, Ordering::Relaxed);
        let mut heap = space.acquire().expect("memory");
        assert!(heap.allocate(48).is_some() && space.regions().len() == 1);
        assert!(!forks.under.load(Ordering::Relaxed), "the source was called under the lock");
    }
}
