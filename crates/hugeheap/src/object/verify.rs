//! Recomputes everything that is kept of a heap's pages from the bitmaps. For tests and for debugging; walks
//! all pages and allocates.
//!
//! | kept | recomputed from |
//! |---|---|
//! | windows with free blocks in a page's mark | its bitmap |
//! | lists, the page at hand, spare pages | tags and marks of all pages |
//! | pages of a class | tags of all pages |
//! | the current window of a bin | its place, its class, its page's bitmap |
//! | live blocks in a page's mark | its bitmap |
//! | recent blocks | tags and bitmaps of their pages, the current window |
//! | pending tags | the inbox and the queues |
//! | where sizes lead | their groups |
//!
//! Other threads must not free in the heap meanwhile: what they have begun would be half done.

use super::class::{CLASSES, Class, GRANULE_SHIFT, SHAPES, WINDOWS};
use super::heap::{Core, Heap, Own, Place, Shared};
use super::lists::Listed;
use super::ring::Places;
use super::runs::is_run;
use super::space::{Page, Source, Space};
use super::spares::SPARES;
use super::tag::{self, SPARE};
use super::windows::window_of;
use crate::arena::HEAP_PAGE_BYTES;
use core::fmt::Write;
use core::sync::atomic::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Where a walk over a heap found a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    AtHand(Class),
    List(Class, usize),
    Spare,
}

impl<S: Source> Heap<S> {
    /// Compares every list, mark and tag of this heap with its bitmaps.
    ///
    /// # Errors
    /// What does not agree: a defect of this crate, or memory that a program has overwritten.
    #[doc(hidden)]
    pub fn verify(&mut self) -> Result<(), String> {
        let core = self.core;
        // SAFETY: two fields, and `&mut self` makes this the only use of `own`.
        let (own, shared) = unsafe { (&(*core.as_ptr()).own, &(*core.as_ptr()).shared) };
        let mut problems = String::new();
        let inbox = own.inbox_pages(shared, &mut problems);
        let mut found = own.walk(&mut problems);
        for class in 1..CLASSES {
            if let Err(problem) = own.verify_current(class) {
                let _ = writeln!(problems, "current window of class {class}: {problem}");
            }
            own.verify_recent(class, &mut problems);
            if let Err(problem) = own.verify_row(class) {
                let _ = writeln!(problems, "row of class {class}: {problem}");
            }
        }
        let mut pages = [0; CLASSES];
        for page in own.space.pages().filter(|page| tag::heap(page.tag()) == tag::heap(own.tag)) {
            if let Some(pages) = pages.get_mut(tag::class(page.tag())) {
                *pages += 1;
            }
            let place = found.remove(&page.address());
            if let Err(problem) = own.verify_page(page, place, inbox.contains(&page.address()), shared) {
                let class = tag::class(page.tag());
                let _ = writeln!(
                    problems,
                    "page {:#x} class {class} {:?} {place:?}: {problem}",
                    page.address(),
                    page.mark()
                );
            }
        }
        for (address, place) in found {
            let _ = writeln!(problems, "page {address:#x} {place:?} is not this heap's");
        }
        for (class, &pages) in pages.iter().enumerate() {
            let counted = own.lists[class].pages;
            if counted != pages {
                let _ = writeln!(problems, "{pages} pages of class {class}, counted as {counted}");
            }
        }
        if let Err(problem) = own.verify_ways() {
            let _ = writeln!(problems, "{problem}");
        }
        if let Err(problem) = own.space.verify_spans(own.space.pages()) {
            let _ = writeln!(problems, "{problem}");
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Bytes of metadata that the heap has itself. More when it has its first page of another class, and never less.
    #[doc(hidden)]
    pub fn metadata_bytes(&mut self) -> usize {
        let rings = self.own().bins.iter().filter(|bin| bin.ring.has_places()).count();
        Core::<S>::USED + rings * size_of::<Places>()
    }

    /// Heap pages that belong to this heap, spare ones included.
    #[doc(hidden)]
    pub fn page_count(&mut self) -> usize {
        let own = self.own();
        own.space.pages().filter(|page| tag::heap(page.tag()) == tag::heap(own.tag)).count()
    }
}

impl<S: Source> Space<S> {
    /// The number of the heap that has the heap page of an address, if it is cut into blocks or spare. Spans have none.
    #[doc(hidden)]
    pub fn owner(&self, address: usize) -> Option<u32> {
        let tag = self.page(address)?.tag();
        Some(tag::heap(tag)).filter(|&number| number != 0)
    }

    /// All heap pages of all known regions.
    fn pages(&self) -> impl Iterator<Item = Page> + '_ {
        let starts = self
            .regions()
            .iter()
            .flat_map(|region| (region.start..region.start + region.bytes()).step_by(HEAP_PAGE_BYTES));
        starts.filter_map(|address| self.page(address))
    }
}

fn check(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

impl<S: Source> Own<S> {
    fn inbox_pages(&self, shared: &Shared, problems: &mut String) -> BTreeSet<usize> {
        let mut pages = BTreeSet::new();
        let first = self.space.page(shared.inbox.first.load(Ordering::SeqCst));
        let inbox =
            core::iter::successors(first, |page| self.space.page(page.links().inbox.load(Ordering::Relaxed)));
        for page in inbox.chain(self.queued_pages()) {
            let address = page.address();
            if !pages.insert(address) {
                let _ = writeln!(problems, "page {address:#x} is in the inbox twice");
                break;
            }
            if tag::heap(page.tag()) != tag::heap(self.tag) {
                let _ = writeln!(problems, "page {address:#x} in the inbox is not this heap's");
            }
        }
        pages
    }

    /// Where the bins and the spare pages say that pages are.
    fn walk(&self, problems: &mut String) -> BTreeMap<usize, Found> {
        let mut found = BTreeMap::new();
        let mut note = |address: usize, place: Found, problems: &mut String| {
            let twice = found.insert(address, place);
            if let Some(first) = twice {
                let _ = writeln!(problems, "page {address:#x} is {first:?} and {place:?}");
            }
            twice.is_some()
        };
        for class in 1..CLASSES {
            let bin = &self.bins[class];
            if bin.page != 0 {
                note(bin.page, Found::AtHand(class), problems);
            }
            for (head, list) in [
                (self.lists[class].partial.first, Listed::Partial),
                (self.lists[class].sparse.first, Listed::Sparse),
            ] {
                let (mut next, mut previous) = (head, 0);
                while next != 0 {
                    let Some(page) = self.space.page(next) else {
                        let _ = writeln!(problems, "{next:#x} in a list of class {class} is no page");
                        break;
                    };
                    let links = page.links();
                    if links.previous.load(Ordering::Relaxed) != previous {
                        let _ = writeln!(problems, "page {next:#x}: broken link in a list of class {class}");
                    }
                    if note(next, Found::List(class, list as usize), problems) {
                        break;
                    }
                    (previous, next) = (next, links.next.load(Ordering::Relaxed));
                }
            }
        }
        if self.spare_count > u32::from(self.most_spares) {
            let _ = writeln!(problems, "{} spare pages", self.spare_count);
        }
        for &spare in &self.spares[..(self.spare_count as usize).min(SPARES)] {
            note(spare, Found::Spare, problems);
        }
        for class in 1..CLASSES {
            let of_class = |place: &&Found| matches!(place, Found::List(of, _) if *of == class);
            let (counted, listed) = (self.lists[class].listed, found.values().filter(of_class).count());
            if listed != counted as usize {
                let _ = writeln!(problems, "{listed} pages in lists of class {class}, counted as {counted}");
            }
        }
        let listed: u32 = self.lists.iter().map(|lists| lists.listed).sum();
        if listed != self.listed_pages {
            let _ = writeln!(problems, "{listed} pages in lists, counted as {}", self.listed_pages);
        }
        found
    }

    fn verify_page(
        &self,
        page: Page,
        place: Option<Found>,
        in_inbox: bool,
        shared: &Shared,
    ) -> Result<(), String> {
        let (tag, mark) = (page.tag(), page.mark());
        let class = tag::class(tag);
        if is_run(tag) {
            let kept = page.vacant()[0].load(Ordering::Relaxed) & 1 == 1;
            check(
                kept == self.knows_run(shared, page.address()),
                "a run that is kept and not known, or the other way round",
            )?;
            return check(place.is_none() && !in_inbox, "a run in a list");
        }
        let run = self.space.source().with(|arenas| arenas.run_bytes(page.address()));
        check(run == Ok(HEAP_PAGE_BYTES), &format!("for the arenas it is {run:?}"))?;
        check(tag::is_pending(tag) == in_inbox, "pending, and not in the inbox, or the other way round")?;
        if class == SPARE {
            check(place == Some(Found::Spare), "tagged as spare, and not kept as such")?;
            check(page.mark().listed() == 0, "spare, and listed")?;
            return check(!in_inbox, "spare, and in the inbox");
        }
        check((1..CLASSES).contains(&class), "its tag has no class")?;
        let listed = page.mark().listed();
        match place {
            Some(Found::Spare) => return Err("kept as spare, and not tagged as such".to_owned()),
            Some(Found::AtHand(of)) => {
                check(of == class && listed == 0, "at hand of another class, or listed")?;
                check(!mark.is_full(), "at hand, and noted as full")?;
            }
            Some(Found::List(of, list)) => check(of == class && listed == list, "in the wrong list")?,
            None => {
                check(listed == 0, "listed, and in no list")?;
                check(mark.is_full(), "not noted as full, so that nobody finds what is freed there")?;
            }
        }
        check(
            !page.is_empty()
                || matches!(place, Some(Found::AtHand(_)))
                || in_inbox
                || self.is_quarantined(page, class),
            "no live block, and not released",
        )?;
        self.verify_bitmaps(page, class, in_inbox, place)
    }

    fn verify_bitmaps(
        &self,
        page: Page,
        class: Class,
        in_inbox: bool,
        place: Option<Found>,
    ) -> Result<(), String> {
        let (shape, mark) = (&SHAPES[class], page.mark());
        let current = &self.bins[class].current;
        let (mut free, mut live) = (0, 0);
        for window in 0..WINDOWS {
            let (starts, base) = (shape.starts[window], page.address() + (window << (GRANULE_SHIFT + 6)));
            let vacant = page.vacant()[window].load(Ordering::Relaxed);
            check(vacant | starts == u64::MAX, "a live block where none begins")?;
            let open = starts != 0 && current.base == base;
            live += if open { starts } else { !vacant & starts }.count_ones();
            free |= u16::from(!open && vacant & starts & !self.quarantined(class, base) != 0) << window;
            let remote = page.freed_in_window(class, window);
            check(remote & vacant == 0, "another thread freed what is not live")?;
            check(remote == 0 || in_inbox, "another thread's free was forgotten")?;
        }
        let at_hand = matches!(place, Some(Found::AtHand(_)));
        let counted = if at_hand { mark.live_at_hand() } else { mark.live() };
        check(live == counted, &format!("live, or free in the open window: {live}"))?;
        check(place.is_some() || free == 0, "free blocks that nobody finds")?;
        let noted = self.preset.is_none() || mark.free() & free == free;
        check(noted, &format!("windows with free blocks: {free:#x}"))
    }

    fn verify_current(&self, class: Class) -> Result<(), String> {
        let (shape, current) = (&SHAPES[class], &self.bins[class].current);
        if !current.is_open() {
            return check(current.free() == 0, "free blocks nowhere");
        }
        let page = self.space.page(current.base).ok_or("its page is unknown")?;
        check(page.address() == self.bins[class].page, "its page is not the one at hand")?;
        check(tag::class(page.tag()) == class, "its page has another class")?;
        check(tag::heap(page.tag()) == tag::heap(self.tag), "its page is another heap's")?;
        let window = window_of(page, current.base);
        check(page.address() + (window << (GRANULE_SHIFT + 6)) == current.base, "it begins in a window")?;
        check(current.starts == shape.starts[window], "blocks begin elsewhere")?;
        check(core::ptr::eq(current.word(), &page.vacant()[window]), "its word is another's")
    }

    /// What a row is: blocks of the page at hand, all of them free, and none remembered.
    fn verify_row(&self, class: Class) -> Result<(), String> {
        let (bin, bytes) = (&self.bins[class], SHAPES[class].bytes as usize);
        let Some(first) = bin.row() else { return Ok(()) };
        let address = |granule: u32| self.base + ((granule as usize) << GRANULE_SHIFT);
        let page = self.space.page(bin.page).ok_or("no page is at hand")?;
        let row = address(first)..page.address() + HEAP_PAGE_BYTES;
        check(row.start >= page.address() && row.start < row.end, "it lies in another page")?;
        for block in row.clone().step_by(bytes).filter(|block| block + bytes <= row.end) {
            let place = Place::of(page, class, block).map_err(|_| "no block begins there")?;
            let vacant = page.vacant()[place.window].load(Ordering::Relaxed);
            check(vacant & place.bits != 0, "a block of it lives")?;
        }
        check(
            !bin.ring.latest().any(|granule| row.contains(&address(granule))),
            "a block of it is remembered",
        )
    }

    fn verify_recent(&self, class: Class, problems: &mut String) {
        let bin = &self.bins[class];
        let mut seen = BTreeSet::new();
        for granule in bin.ring.latest().map(|granule| granule as usize) {
            let address = self.base + (granule << GRANULE_SHIFT);
            let page =
                self.space.page(address).filter(|page| page.tag() & !tag::PENDING == self.tag_of(class));
            let is_free = page.and_then(|page| {
                let place = Place::of(page, class, address).ok()?;
                let vacant = page.vacant()[place.window].load(Ordering::Relaxed);
                Some(
                    vacant & place.bits != 0
                        && !core::ptr::eq(&page.vacant()[place.window], bin.current.word()),
                )
            });
            if is_free != Some(true) || !seen.insert(granule) {
                let _ = writeln!(
                    problems,
                    "class {class} remembers granule {granule}, which is not its own, not free, in the open window, or twice there"
                );
            }
        }
    }
}
