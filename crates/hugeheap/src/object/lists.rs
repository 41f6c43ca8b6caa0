//! The lists of a bin: pages with free blocks that are not its current page.
//!
//! ```text
//!   first ─▶ page ─▶ … ─▶ page ◀─ last ◀── a page in which the first block is freed
//!              │             └─▶ to hand, where few of the class's pages are listed
//!              └─▶ to hand, where many are
//! ```
//!
//! First in, first out: the page that had a block freed first is filled first. It had the longest time to get
//! more free blocks, and a program that freed its objects in their order gets them back in that order, so that
//! it walks upwards through memory later. Latest first for all was tried: refilling and then walking half a
//! million objects took a fifth longer. What was freed last is still reused first, by the bin's recent blocks.
//!
//! But where blocks are freed in their order, some at a time, nearly all pages are full. The page that is first
//! in the list is filled with the few blocks that are free there, and so is the next one: each holds blocks of
//! many times, has few of them free again when it is its turn, and none ever becomes empty. With the page that
//! is being freed first, the others have time to become empty. `xmalloc` with blocks of one size (`least=208
//! most=208`) came to another page for every ninth block, and takes a third less time. With the last page for
//! all, where blocks are replaced at random, `alloc-test` took 4 % more: there the last page is the one with
//! the fewest free blocks.

use super::class::{Class, WINDOWS};
use super::heap::Own;
use super::mark::Mark;
use super::space::{Page, Source};
use crate::arena::HEAP_PAGE_BYTES;
use core::sync::atomic::Ordering;

/// Which list a page is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    Partial = 1,
    Sparse = 2,
}

/// A list of pages through their links, by addresses; 0: none. All zero where it has no page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// The lists of a bin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lists {
    pub(crate) partial: List,
    /// Mostly free when they were last looked at, left to drain.
    pub(crate) sparse: List,
    /// Pages in the two.
    pub(super) listed: u32,
    /// Pages cut into blocks of the class, full ones and the one at hand included.
    pub(super) pages: u32,
}

/// Of so many pages of a class at most one may be listed where the last one comes first. Where blocks are
/// replaced at random nearly all are. With 2 instead none of thirteen workloads took another time (`larson`,
/// `alloc-test`, `xmalloc` with one size and with many; five runs by turns).
const LAST_FIRST: u32 = 4;

/// Pages in the lists up to which the last one may come first: 1 MiB, which a processor has in its second
/// cache. Further than that it matters to who walks through the blocks that their pages lie in order. 16 and
/// 32 are too few for a batch of 128 blocks of 2 KiB.
const NEAR: u32 = 64;

/// Of so many pages of a class at most one may be left to drain while there are spare ones: what is free there
/// is an eighth of the class's memory at most. With 16 `xmalloc` with blocks of 2 KiB took 4 % more.
const DRAINING: u32 = 8;

impl Lists {
    /// The partial page to be filled next, as an address; 0: none.
    pub(super) fn next_partial(&self) -> usize {
        let last_first = self.listed <= NEAR && self.listed * LAST_FIRST <= self.pages;
        if last_first { self.partial.last } else { self.partial.first }
    }

    /// Whether so few pages are listed that they may be left to drain while a spare page is used.
    ///
    /// For blocks of which a page has few: a page of blocks of 2 KiB that are freed in their order is empty soon,
    /// and to come to a page costs more than its blocks. With it for all classes peak memory was a twentieth higher
    /// in `thread-pool`, a fifth in `alloc-test`.
    pub(super) fn may_drain(&self) -> bool {
        self.listed * DRAINING <= self.pages
    }
}

/// Pages with free blocks of which the arenas are told at a time: 4 MiB, so that their lock and clock are paid
/// once for so many.
const TOLD: u32 = 256;

impl<S: Source> Own<S> {
    fn list(&mut self, class: Class, list: usize) -> &mut List {
        let lists = &mut self.lists[class];
        if list == Listed::Sparse as usize { &mut lists.sparse } else { &mut lists.partial }
    }

    /// The mark of the page that begins at an address; `None` for 0.
    #[inline(always)]
    pub(super) fn mark_at(&self, address: usize) -> Option<&'static Mark> {
        let page = address.wrapping_sub(self.base) / HEAP_PAGE_BYTES;
        if page < self.all_granules() / (64 * WINDOWS) {
            // SAFETY: the page lies in the first region, which has a mark for each.
            return Some(unsafe { &*self.marks.add(page) });
        }
        self.space.page(address).map(Page::mark)
    }

    /// Puts the page that begins at an address at the end of a list.
    pub(super) fn link(&mut self, class: Class, address: usize, list: Listed) {
        let Some(mark) = self.mark_at(address) else { return };
        let ends = self.list(class, list as usize);
        let previous = core::mem::replace(&mut ends.last, address);
        if previous == 0 {
            ends.first = address;
        }
        mark.links.next.store(0, Ordering::Relaxed);
        mark.links.previous.store(previous, Ordering::Relaxed);
        mark.set_listed(list as usize);
        self.listed_pages += 1;
        self.lists[class].listed += 1;
        if let Some(previous) = self.mark_at(previous) {
            previous.links.next.store(address, Ordering::Relaxed);
        }
    }

    /// Puts a page in which a block was freed at the end of the list of partial pages, and tells the arenas
    /// when these have become many: perhaps OS pages can be given back of them.
    ///
    /// Nothing else tells them. Of a heap that loses nine of ten blocks at random few pages become empty, and
    /// the heap keeps those: it was looked at by chance.
    pub(super) fn link_partial(&mut self, class: Class, address: usize) {
        self.link(class, address, Listed::Partial);
        if self.listed_pages >= self.told_pages + TOLD {
            self.told_pages = self.listed_pages;
            self.space.source().with(|arenas| arenas.became_partial(u64::from(TOLD)));
        }
    }

    /// Takes a page out of its class, and out of the list it is in.
    pub(super) fn leave_class(&mut self, class: Class, mark: &Mark) {
        self.unlink(class, mark);
        self.lists[class].pages -= 1;
    }

    /// Takes a page out of the list it is in, if it is in one.
    pub(super) fn unlink(&mut self, class: Class, mark: &Mark) {
        // The owner's alone: no swap, which is an atomic instruction.
        let list = mark.listed();
        if list == 0 {
            return;
        }
        mark.set_listed(0);
        self.listed_pages -= 1;
        self.lists[class].listed -= 1;
        self.told_pages = self.told_pages.min(self.listed_pages);
        let links = &mark.links;
        let (next, previous) = (links.next.load(Ordering::Relaxed), links.previous.load(Ordering::Relaxed));
        match self.mark_at(previous) {
            Some(previous) => previous.links.next.store(next, Ordering::Relaxed),
            None => self.list(class, list).first = next,
        }
        match self.mark_at(next) {
            Some(next) => next.links.previous.store(previous, Ordering::Relaxed),
            None => self.list(class, list).last = previous,
        }
    }
}
