//! Page runs of a heap, up to 1 MiB, and blocks of [spans](super::spans): kept for reuse without the arenas' lock.
//!
//! ```text
//!   allocate ─▶ kept by this heap? ─▶ freed in it by others? ─▶ arenas          others: see `handed`
//!   free     ─▶ room to keep it?   ─▶ make room: runs kept before go to the arenas
//! ```
//!
//! The first page of such a run has the tag of its heap and class [`RUN`]; its bitmap's first bit says whether
//! the run is live (0) or kept (1); its summary has the length in heap pages. The other pages have no tag, so
//! an address in them is looked up in the arenas, which know that it is inside a run.
//!
//! The lock, the clock and the arena's bitmaps cost 115 ns per pair of allocate and free; from here it is 10.
//! How many are kept: [`run_cache`](super::run_cache).

use super::class::{GRANULE_SHIFT, MAX_BINNED, MAX_BLOCK, WINDOWS, class_of};
use super::hardened::BYTES_WORD;
use super::heap::{Core, Heap, Own};
use super::lengths::{self, CUTS, LONGEST, Length};
use super::mark::Mark;
use super::mistake::Mistake;
use super::resized_length::ResizedLength;
use super::run_cache::{Kept, Spilled, TOGETHER};
use super::space::{Page, Source, Space};
use super::span_place::SpanPlace;
use super::spans::{Span, Taken};
use super::tag::{self, RUN};
use crate::arena::HEAP_PAGE_BYTES;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

impl<S: Source> Heap<S> {
    /// Requests above [`MAX_BINNED`](super::MAX_BINNED).
    #[inline(always)]
    pub(super) fn allocate_run(core: NonNull<Core<S>>, bytes: usize) -> Option<NonNull<u8>> {
        match lengths::length_of(bytes) {
            Some(length) => Self::allocate_length(core, length, bytes),
            None => Self::allocate_long(core, bytes),
        }
    }

    /// A request that has that length.
    #[inline(always)]
    pub(super) fn allocate_length(
        core: NonNull<Core<S>>,
        length: Length,
        bytes: usize,
    ) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        let taken = heap.try_keeping().and_then(|_keeping| heap.take_kept(length));
        // Also where somebody holds the heap: it is waited for there.
        taken.or_else(|| Self::new_run(core, length, bytes))
    }

    #[inline(never)]
    fn allocate_long(core: NonNull<Core<S>>, bytes: usize) -> Option<NonNull<u8>> {
        Self::borrowed(core).allocate_fresh(bytes, false).map(|fresh| fresh.address)
    }

    /// A run that the heap keeps, for who is keeping.
    #[inline(always)]
    fn take_kept(&mut self, length: Length) -> Option<NonNull<u8>> {
        let own = self.own();
        let run = own.runs.first(length)?;
        let page = (run.address - own.base) / HEAP_PAGE_BYTES;
        // SAFETY: what is kept lies in the first region, which has a mark for each page.
        let mark = unsafe { &*own.marks.add(page) };
        if lengths::is_span(length) {
            let place = SpanPlace::of_block(mark, run.address, length);
            own.runs.take_first(run, place.link());
            place.begin();
        } else {
            own.runs.take_first(run, &mark.links.next);
            // SAFETY: what is kept lies in the first region.
            unsafe { own.live_word(page) }.store(0, Ordering::Relaxed);
        }
        NonNull::new(run.address as *mut u8)
    }

    #[inline(never)]
    fn new_run(core: NonNull<Core<S>>, length: Length, bytes: usize) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        if heap.is_hardened() {
            return Self::new_hardened(core, bytes);
        }
        heap.take_handed();
        let raised = {
            let _keeping = heap.keeping();
            if let Some(run) = heap.take_kept(length) {
                return Some(run);
            }
            heap.own().runs.missed(length)
        };
        if lengths::is_span(length) {
            if raised {
                heap.own().space.source().with(|arenas| arenas.keeps_runs());
            }
            if let Some(taken) = heap.ask(|space| space.take_blocks(length)) {
                heap.own().learn();
                heap.own().runs.came(length);
                heap.keep_more(&taken);
                return taken.first();
            }
        }
        // There may be room for what is needed of a span, where there is none for all of it.
        let pages = bytes.div_ceil(HEAP_PAGE_BYTES);
        let address = heap.ask(|space| space.allocate_run(pages, 1, raised))?;
        heap.begin_run(address, pages);
        Some(address)
    }

    /// A run of as many heap pages as have a length, that begins at a multiple of `align` of them. Of those
    /// that are kept the first is taken, if it does: where all blocks have that alignment, it does.
    #[inline(never)]
    pub(super) fn allocate_aligned_run(
        core: NonNull<Core<S>>,
        pages: usize,
        align: usize,
    ) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        let length = lengths::length_of(pages * HEAP_PAGE_BYTES)?;
        heap.take_handed();
        let raised = {
            let _keeping = heap.keeping();
            match heap.own().runs.first(length) {
                Some(run) if run.address % (align * HEAP_PAGE_BYTES) == 0 => return heap.take_kept(length),
                Some(_) => false,
                None => heap.own().runs.missed(length),
            }
        };
        let address = heap.ask(|space| space.allocate_run(pages, align, raised))?;
        heap.begin_run(address, pages);
        Some(address)
    }

    /// A run of the arenas is this heap's.
    #[inline(always)]
    fn begin_run(&mut self, address: NonNull<u8>, pages: usize) {
        let own = self.own();
        let start = address.as_ptr() as usize;
        let page = own.space.page_or_add(start);
        own.learn();
        // A run of another region stays one of the arenas'.
        if let Some(page) = page.filter(|_| (start.wrapping_sub(own.base)) / 16 < own.granules()) {
            page.vacant()[0].store(0, Ordering::Relaxed);
            page.vacant()[BYTES_WORD].store(0, Ordering::Relaxed);
            page.mark().set_free(pages as u16);
            page.mark().tag.store(own.tag_of(RUN), Ordering::Release);
            own.runs.came(Kept::run(start, page.mark()).length);
        }
    }

    /// Keeps what came with a block of a span, as far as there is room.
    fn keep_more(&mut self, taken: &Taken) {
        // Long ones are taken one by one. Making ready for none was 45 of 740 instructions for each block that
        // is replaced
        // (`valgrind --tool=callgrind bench/target/release/workloads-hugeheap larson least=4000 most=40000 replacements=600000`).
        if !taken.has_more() {
            return;
        }
        let mut spilled = Spilled::none();
        {
            let _keeping = self.keeping();
            let own = self.own();
            for block in taken.more() {
                own.runs.came(block.length);
                // Kept is what lies in the first region only.
                if own.granule_of(block.address) >= own.all_granules() || !own.keep(block) {
                    own.runs.went(block.length);
                    spilled.add(block);
                }
            }
        }
        self.own().space.give_runs(&spilled);
    }

    /// A hardened heap has no spans: its blocks are placed at random, and checked by their bits alone.
    #[cold]
    fn new_hardened(core: NonNull<Core<S>>, bytes: usize) -> Option<NonNull<u8>> {
        let mut heap = Self::borrowed(core);
        if bytes > heap.own().most_of_class() {
            return heap.allocate_fresh(bytes, false).map(|fresh| fresh.address);
        }
        // SAFETY: a class.
        unsafe { heap.allocate_on::<true>(tag::tag(0, class_of(bytes)) as usize) }
    }

    /// Frees the run at a granule of the first region, in a page that has this heap's tag for runs; says no
    /// when none is live there.
    #[inline(never)]
    pub(super) fn free_run(core: NonNull<Core<S>>, granule: usize) -> bool {
        let mut heap = Self::borrowed(core);
        let own = heap.own();
        // SAFETY: the granule lies in the first region.
        let (mark, word) = unsafe { (own.mark_of(granule / 64), own.live_word(granule / (64 * WINDOWS))) };
        if granule % (64 * WINDOWS) != 0 || word.load(Ordering::Relaxed) & 1 != 0 {
            return false;
        }
        let run = own.base + (granule << GRANULE_SHIFT);
        word.store(1, Ordering::Relaxed);
        let keeping = heap.try_keeping();
        let run = Kept::run(run, mark);
        let kept = keeping.is_some_and(|_keeping| heap.own().keep(run));
        // Also where somebody holds the heap: it is waited for there.
        kept || Self::spill(core, run)
    }

    /// Asks the arenas, and once more without the runs that are kept: these may be in the way. Where the owner
    /// is not busy.
    pub(super) fn ask<R>(&mut self, ask: impl Fn(&Space<S>) -> Option<R>) -> Option<R> {
        let space = self.own().space;
        ask(space).or_else(|| {
            let (given, _) = space.give_shed(|spilled| {
                let _keeping = self.keeping();
                self.own().shed_all(spilled)
            });
            if given { ask(space) } else { None }
        })
    }

    /// Keeps a run for which there is no room, if others can make room for it. Says yes.
    #[inline(never)]
    pub(super) fn spill(core: NonNull<Core<S>>, run: Kept) -> bool {
        let mut heap = Self::borrowed(core);
        let mut spilled = Spilled::none();
        {
            let _keeping = heap.keeping();
            heap.own().keep_or_spill(run, &mut spilled);
        }
        // Not while runs are taken and kept: it may start a thread, for which the C library allocates.
        heap.own().space.give_runs(&spilled);
        true
    }
}

/// A live run has another length now. One that is too long to be kept, or has pages to spare, is one of the
/// arenas' from now on. Says whether it is a heap's.
pub(super) fn note_length(page: Page, length: ResizedLength) -> bool {
    if !is_run(page.tag()) {
        return false;
    }
    if length.pages <= LONGEST && length.spare == 0 {
        page.mark().set_free(length.pages as u16);
        return true;
    }
    page.mark().tag.store(0, Ordering::Release);
    false
}

/// Whether a live run of a heap begins at `address`, in a page with the tag of one.
pub(super) fn check_run(page: Page, address: usize) -> Result<(), Mistake> {
    if page.vacant()[0].load(Ordering::Relaxed) & 1 == 1 {
        return Err(Mistake::NotLive { bytes: 0 });
    }
    if address != page.address() {
        return Err(Mistake::Interior { bytes: bytes_of(page) });
    }
    Ok(())
}

/// Bytes that may be used of the run that begins at a page.
pub(super) fn bytes_of(page: Page) -> usize {
    match page.vacant()[BYTES_WORD].load(Ordering::Relaxed) as usize {
        0 => page.mark().free() as usize * HEAP_PAGE_BYTES,
        bytes => bytes,
    }
}

impl<S: Source> Own<S> {
    /// Bytes of the longest block of a class that this heap has.
    pub(super) fn most_of_class(&self) -> usize {
        if self.preset.is_some() { MAX_BLOCK } else { MAX_BINNED }
    }

    /// The length of the live run that begins at a page, if that is this heap's.
    pub(super) fn length_of_own(&self, page: Page) -> Option<Length> {
        (page.tag() == self.tag_of(RUN)).then(|| Kept::run(page.address(), page.mark()).length)
    }

    /// Finds the link of what is kept.
    #[inline(always)]
    pub(super) fn run_links(&self) -> impl Fn(Kept) -> &'static AtomicUsize + Copy + use<S> {
        let (marks, base) = (self.marks, self.base);
        move |Kept { address, length }| {
            // SAFETY: what is kept lies in the first region, which has a mark for each page.
            let mark: &'static Mark = unsafe { &*marks.add((address - base) / HEAP_PAGE_BYTES) };
            if lengths::is_span(length) {
                SpanPlace::of_block(mark, address, length).link()
            } else {
                &mark.links.next
            }
        }
    }

    /// Keeps what does not live, if there is room for it.
    #[inline(always)]
    pub(super) fn keep(&mut self, run: Kept) -> bool {
        let links = self.run_links();
        self.runs.keep(run, links)
    }

    /// The word that says whether the run at a page lives.
    ///
    /// # Safety
    /// The first region has a page of that number.
    #[inline(always)]
    unsafe fn live_word(&self, page: usize) -> &'static AtomicU64 {
        // SAFETY: by the contract; each page has a bitmap.
        unsafe { &*self.vacant.add(page * WINDOWS) }
    }

    /// Takes a live run of this heap back, where its owner is busy.
    pub(super) fn keep_run(&mut self, page: Page) -> Result<(), Mistake> {
        if self.preset.is_some() {
            return self.space.free_guarded_run(page, self.tag_of(RUN));
        }
        page.vacant()[0].store(1, Ordering::Relaxed);
        let mut spilled = Spilled::none();
        let run = Kept::run(page.address(), page.mark());
        self.keep_or_spill(run, &mut spilled);
        self.space.give_runs(&spilled);
        Ok(())
    }

    /// Keeps a run that does not live, or adds it to what has to go.
    pub(super) fn keep_or_spill(&mut self, run: Kept, spilled: &mut Spilled) {
        let links = self.run_links();
        let fits = self.runs.keep(run, links)
            || self.runs.make_room(run.length, spilled, links) && self.runs.keep(run, links);
        if !fits {
            self.runs.went(run.length);
            spilled.add(run);
        }
    }

    /// Gives all kept runs back to the arenas, where the owner is busy. Returns how many heap pages these got.
    pub(super) fn give_runs(&mut self) -> usize {
        let space = self.space;
        space.give_shed(|spilled| self.shed_all(spilled)).1
    }

    /// Takes out what is kept; says whether there is more.
    fn shed_all(&mut self, spilled: &mut Spilled) -> bool {
        let links = self.run_links();
        self.runs.shed(true, spilled, links)
    }

    /// Whether a page begins a run that this heap keeps: for the verifier.
    pub(super) fn keeps_run(&self, address: usize) -> bool {
        self.runs.runs(self.run_links()).any(|run| run.address == address)
    }
}

impl<S: Source> Space<S> {
    /// A run for a heap. `raised`: that keeps more from now on.
    fn allocate_run(&self, pages: usize, align: usize, raised: bool) -> Option<NonNull<u8>> {
        let address = self.source().with(|arenas| {
            if raised {
                arenas.keeps_runs();
            }
            if align == 1 {
                arenas.allocate(pages as u32)
            } else {
                arenas.allocate_aligned(pages as u32, align as u32)
            }
        })?;
        NonNull::new(address.get() as *mut u8)
    }

    /// Gives back what is shed, as long as there is more. Says whether there was anything, and how many heap
    /// pages the arenas got.
    fn give_shed(&self, mut shed: impl FnMut(&mut Spilled) -> bool) -> (bool, usize) {
        let (mut some, mut pages, mut more) = (false, 0, true);
        while more {
            let mut spilled = Spilled::none();
            more = shed(&mut spilled);
            some |= !spilled.runs().is_empty();
            pages += self.give_runs(&spilled);
        }
        (some, pages)
    }

    /// Makes room for more.
    pub(super) fn give_if_full(&self, spilled: &mut Spilled) {
        if spilled.is_full() {
            self.give_runs(&core::mem::replace(spilled, Spilled::none()));
        }
    }

    /// Gives what was kept back: blocks of spans to the pool, runs to the arenas. Returns how many heap pages
    /// these got.
    pub(super) fn give_runs(&self, spilled: &Spilled) -> usize {
        let (mut runs, mut count, mut pages) = ([0; TOGETHER + 1], 0, 0);
        let mut add = |run: Kept| {
            runs[count] = run.address;
            count += 1;
            pages += CUTS[run.length].pages as usize;
        };
        let (mut blocks, whole) = (0, spilled.runs().iter().copied());
        for run in whole.clone() {
            if lengths::is_span(run.length) {
                blocks += 1;
            } else {
                add(run);
            }
        }
        if blocks > 0 {
            let blocks = whole.filter(|run| lengths::is_span(run.length));
            self.give_blocks(blocks, |span| add(Kept { address: span.head.address(), length: span.length }));
        }
        if count == 0 {
            return pages;
        }
        let runs = &runs[..count];
        self.source().before_free();
        for page in runs.iter().filter_map(|&run| self.page(run)) {
            match Span::at(page) {
                Some(span) => {
                    self.span_pages.fetch_sub(span.cut().pages as usize, Ordering::Relaxed);
                    span.pages().for_each(|page| page.mark().tag.store(0, Ordering::Release));
                }
                None => page.mark().tag.store(0, Ordering::Release),
            }
        }
        let given = self.source().with(|arenas| arenas.free_runs(runs));
        debug_assert!(given.is_ok(), "kept runs are runs of the arenas");
        pages
    }
}

/// Whether a tag is that of a run.
pub(super) fn is_run(tag: u32) -> bool {
    tag::class(tag) == RUN
}
