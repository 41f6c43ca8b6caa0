//! Where a bin's next block comes from when no recent window has one: the page at hand, other pages, a new one.
//!
//! The order keeps pages and arenas full so that others drain: what was freed last, then the page at hand, then
//! pages with few free windows, then those that are mostly free, and new pages last, which the arenas take from
//! their fullest arena. (Of blocks of which a page has few a spare page may come before: see [`begin`](super::begin).)

use super::class::{CLASSES, Class, SHAPES};
use super::heap::{Own, Shared};
use super::lists::Listed;
use super::space::{Page, Source};
use super::window::Window;
use super::windows::windows_at_hand;
use crate::arena::ARENA_BYTES;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

/// Pages of the list of partial ones looked at to find one that is not sparse. Each look is a cache miss; after
/// this many the list is sparse throughout, and any page will do.
const LOOK: u32 = 8;

/// Whether three quarters of a page's windows are empty: it is left to drain as long as there is another.
fn is_sparse(page: Page, class: Class) -> bool {
    let shape = &SHAPES[class];
    // Of nearly all pages that is told by how many blocks live there.
    let few = page.mark().live() * 4 <= u32::from(shape.blocks);
    few && page.empty_windows(class).count_ones() * 4 >= shape.windows.count_ones() * 3
}

impl<S: Source> Own<S> {
    /// A block from the next window or page: the bin has no free block in an open window. `None` when the
    /// system has no memory. `GATHER`: the blocks after it are remembered, where they can be.
    pub(super) fn refill<const GATHER: bool>(
        &mut self,
        shared: &Shared,
        class: Class,
    ) -> Option<NonNull<u8>> {
        if self.preset.is_some() {
            return NonNull::new(self.refill_hardened(shared, class)? as *mut u8);
        }
        // Full, so nothing is written back.
        self.bins[class].current = Window::NONE;
        loop {
            let look = self.space.begin_look();
            let gathered = if GATHER { self.gather(class) } else { None };
            if gathered.is_some() {
                return gathered;
            }
            if self.next_window(class) {
                return NonNull::new(self.bins[class].current.take()? as *mut u8);
            }
            // Used up, so it leaves before others' blocks in it are collected: in the page at hand they are in
            // no list, and with it left only afterwards nobody found them again.
            self.leave_page(class);
            self.collect_now_and_then(shared, class);
            if self.next_page(class) {
                continue;
            }
            // A page of which others freed all blocks is the one at hand afterwards, or a spare one.
            let collected = self.collect_for(shared, class);
            let at_hand = self.bins[class].page != 0;
            if collected && (at_hand || self.next_page(class) || self.spare_count == 0) {
                continue;
            }
            // What there is may lie in an arena that is closed for a moment.
            if !self.new_page(class) && !self.space.may_have_missed(look) {
                // What is kept may be in the way.
                if self.give_runs() == 0 || !self.new_page(class) {
                    return None;
                }
            }
        }
    }

    /// Opens the next window with a free block in the current page.
    fn next_window(&mut self, class: Class) -> bool {
        let Some(page) = self.current_page(class) else { return false };
        loop {
            let windows = windows_at_hand(page.mark(), page.vacant(), class);
            if windows == 0 {
                return false;
            }
            if let Some(open) = self.open(page, class, windows.trailing_zeros() as usize) {
                self.bins[class].set_current(open);
                return true;
            }
        }
    }

    /// The page at hand has no free block: the first one that is freed there sees to it that it is found.
    pub(super) fn leave_page(&mut self, class: Class) {
        if let Some(mark) = self.mark_at(self.bins[class].page) {
            mark.leave_hand();
            mark.set_full();
        }
        self.bins[class].set_page(0);
    }

    fn current_page(&self, class: Class) -> Option<Page> {
        match self.bins[class].page {
            0 => None,
            address => self.space.page(address),
        }
    }

    /// Makes a page with free blocks, which is in no list, the current one.
    fn bring_to_hand(&mut self, class: Class, page: Page) {
        page.mark().come_to_hand();
        self.bins[class].set_page(page.address());
    }

    /// Makes a page with free blocks the current one; the one before has none left.
    pub(super) fn next_page(&mut self, class: Class) -> bool {
        let closed = self.space.closed_arena();
        if closed != 0 {
            return self.next_page_outside(class, closed);
        }
        for look in 0.. {
            let Some(page) = self.space.page(self.lists[class].next_partial()) else { break };
            self.unlink(class, page.mark());
            if !is_sparse(page, class) || look == LOOK {
                self.bring_to_hand(class, page);
                return true;
            }
            self.link(class, page.address(), Listed::Sparse);
        }
        let Some(page) = self.space.page(self.lists[class].sparse.first) else { return false };
        self.unlink(class, page.mark());
        self.bring_to_hand(class, page);
        true
    }

    /// The same while OS pages of an arena are given back: the first page that lies elsewhere, whichever it is.
    #[cold]
    fn next_page_outside(&mut self, class: Class, closed: usize) -> bool {
        let lists = self.lists[class];
        for first in [lists.partial.first, lists.sparse.first] {
            let listed = core::iter::successors(self.space.page(first), |page| {
                self.space.page(page.links().next.load(Ordering::Relaxed))
            });
            let mut outside = listed.filter(|page| page.address().wrapping_sub(closed) >= ARENA_BYTES);
            if let Some(page) = outside.next() {
                self.unlink(class, page.mark());
                self.bring_to_hand(class, page);
                return true;
            }
        }
        false
    }

    /// Makes a page without live blocks the current one.
    pub(super) fn new_page(&mut self, class: Class) -> bool {
        // Those it takes are its only ones.
        if self.spare_count == 0 && !self.take_spares() {
            return false;
        }
        self.spare_count -= 1;
        let address = self.spares[self.spare_count as usize];
        let Some(page) = self.space.page(address) else { return false };
        self.cut(class, address, page.mark(), page.vacant());
        true
    }

    /// Gives back what the heap keeps without live blocks: spare pages, and pages that bins hold. Returns the
    /// number of spare pages given back.
    pub(super) fn trim(&mut self, shared: &Shared) -> usize {
        self.collect(shared);
        for class in 1..CLASSES {
            self.leave_window(class);
            self.end_quarantine(class);
            let Some(page) = self.current_page(class) else { continue };
            page.mark().leave_hand();
            self.bins[class].set_page(0);
            self.list_or_release(page, class);
        }
        self.give_all_spares() + self.give_runs()
    }

    /// Whether it keeps pages or runs that nobody uses.
    pub(super) fn keeps_pages(&self) -> bool {
        self.spare_count > 0 || self.runs.kib() > 0
    }
}
