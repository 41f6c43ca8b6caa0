//! The lists of a bin: pages with free blocks that are not its current page.
//!
//! First in, first out: the page that had a block freed first is filled first. It had the longest time to get
//! more free blocks, and a program that freed its objects in their order gets them back in that order, so that
//! it walks upwards through memory later. Latest first was tried: refilling and then walking half a million
//! objects took a fifth longer. What was freed last is still reused first, by the bin's recent windows.

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

    /// Takes a page out of the list it is in, if it is in one.
    pub(super) fn unlink(&mut self, class: Class, mark: &Mark) {
        // The owner's alone: no swap, which is an atomic instruction.
        let list = mark.listed();
        if list == 0 {
            return;
        }
        mark.set_listed(0);
        self.listed_pages -= 1;
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
