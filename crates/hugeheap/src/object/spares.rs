//! Spare pages: heap pages without a live block that a heap keeps, whatever blocks they had.
//!
//! ```text
//!   arenas ── none left: take up to 16 ─▶ spare ◀── a page has no live block any more
//!     ▲                                     │ ▲
//!     │                                     ▼ └ last kept, first used
//!     └── more than it may keep: give 16 ◀──┴──▶ begun for a class
//! ```
//!
//! They are taken and given back sixteen at a time, so that the arenas' lock is paid once for so many: a million
//! objects of 64 bytes are 3,900 pages, at 0.4 µs each a tenth of their time.
//!
//! A heap may keep 32 at first, 512 KiB. Whoever takes a batch of objects and drops all of them has more than that
//! without a live block, and comes for them again with the next batch. So a heap that gave some away and has none
//! now may keep 16 more, up to [`SPARES`]. Batches of 300 blocks of 2 to 4 KiB, in 60 pages, took 0.85 of the time
//! with 128 from the beginning, with two threads 0.77 (`bench/target/release/workloads-hugeheap batches least=2049
//! most=4096`). When an owner waits, all of them go, and it may keep 32 again: see [`idle`](super::idle).
//!
//! Invariants: a spare page has this heap's number and the class [`SPARE`] in its tag, and is in no list. There are
//! at most as many as the heap may keep, but for those that a batch from the arenas brought.

use super::heap::Own;
use super::space::Source;
use super::tag::{self, SPARE};
use crate::arena::HEAP_PAGES;
use core::sync::atomic::Ordering;

/// Pages that a heap may keep, at most: 2 MiB.
pub(crate) const SPARES: usize = 128;

/// What it may keep at first.
pub(super) const FIRST_MOST: u16 = 32;

/// Pages that are taken from the arenas at once, at most, and given back at once.
const AT_ONCE: usize = 16;

const _: () = assert!(FIRST_MOST as usize >= AT_ONCE && (SPARES - FIRST_MOST as usize) % AT_ONCE == 0);

/// The heap page of an arena from which on a heap looks for pages: heaps with neighbouring numbers, of threads
/// at work together, begin far from each other. 79 is the golden section of 128, so any few in a row are
/// spread; the first heap begins at 0. A multiple of eight, so that few pages are cut off from the rest.
///
/// From the lowest free page for all, heaps of two threads had pages by turns, and each wrote to lines of
/// metadata that the other one read: with two threads `larson` took a fifth longer, `mstress` and
/// `glibc-thread` 4 to 7 %. Arenas of their own were tried instead. They were no faster, and `rptest` had a
/// fifth more resident memory.
const fn home_of(heap: u32) -> u32 {
    (heap.wrapping_sub(1).wrapping_mul(79) % HEAP_PAGES) & !7
}

impl<S: Source> Own<S> {
    /// The tag of this heap's pages without blocks.
    pub(super) fn spare_tag(&self) -> u32 {
        self.tag | tag::tag(0, SPARE)
    }

    /// Takes pages from the arenas: more than the last time, so that a small heap takes few. Says no when there
    /// is no memory.
    ///
    /// 1, 2, 3, 4 and 6, and from then on 8 to 16, for which policy `auto` has huge pages: a heap of 256 KiB is
    /// on OS pages. With twice as many each time a program that touched eight size classes asked for 8, and had 2.3
    /// MiB of anonymous memory instead of 0.3.
    ///
    /// Until it takes so many, most of its pages stay at hand, and are used in part: the arenas learn of that.
    /// Of threads that took few blocks and freed none nobody looked for what is vacant.
    pub(super) fn take_spares(&mut self) -> bool {
        if core::mem::take(&mut self.gave_spares) && usize::from(self.most_spares) < SPARES {
            self.most_spares += AT_ONCE as u16;
            // Somebody has to come when it is not needed any more, also where little lives.
            self.space.source().with(|arenas| arenas.keeps_runs());
        }
        let batch = self.batch as usize;
        let few = batch < AT_ONCE;
        self.batch = (self.batch * 5 / 4 + 1).min(AT_ONCE as u32);
        let spares = &mut self.spares[..batch];
        let space = self.space;
        let taken = space.take_pages(spares, home_of(tag::heap(self.tag)));
        spares[..taken].reverse();
        for page in self.spares[..taken].iter().filter_map(|&address| space.page(address)) {
            page.mark().tag.store(self.spare_tag(), Ordering::Release);
        }
        self.spare_count = taken as u32;
        if few && taken > 0 {
            self.space.source().with(|arenas| arenas.became_partial(taken as u64));
        }
        self.learn();
        self.spare_count > 0
    }

    /// Keeps a page without live blocks, or gives older ones back.
    pub(super) fn keep_spare(&mut self, address: usize) {
        if self.spare_count >= u32::from(self.most_spares) {
            self.give_spares(AT_ONCE);
            self.gave_spares = true;
        }
        self.spares[self.spare_count as usize] = address;
        self.spare_count += 1;
    }

    /// Gives the `count` oldest spare pages back to the arenas.
    fn give_spares(&mut self, count: usize) {
        let kept = self.spare_count as usize - count;
        for &address in &self.spares[..count] {
            if let Some(mark) = self.mark_at(address) {
                mark.tag.store(0, Ordering::Release);
            }
        }
        self.space.source().before_free();
        self.space.give_pages(&self.spares[..count]);
        self.spares.copy_within(count..count + kept, 0);
        self.spare_count = kept as u32;
    }

    /// Gives all of them back, and says how many there were.
    pub(super) fn give_all_spares(&mut self) -> usize {
        let count = self.spare_count as usize;
        self.give_spares(count);
        self.keep_few_spares();
        count
    }

    /// Takes all of them out of a heap whose owner does nothing: for who gives them to the arenas afterwards.
    pub(super) fn leave_spares(&mut self, mut left: impl FnMut(usize)) {
        for &address in &self.spares[..self.spare_count as usize] {
            if let Some(mark) = self.mark_at(address) {
                mark.tag.store(0, Ordering::Release);
            }
            left(address);
        }
        self.spare_count = 0;
        self.keep_few_spares();
    }

    /// Whether a heap of another thread may keep more than any may at first.
    ///
    /// # Safety
    /// It is a heap's.
    pub(super) unsafe fn may_keep_more_spares(own: *const Self) -> bool {
        // SAFETY: by the contract; read once, as what it was or is.
        unsafe { (&raw const (*own).most_spares).read_volatile() > FIRST_MOST }
    }

    /// Whatever the program came for again, it may not any more.
    fn keep_few_spares(&mut self) {
        (self.most_spares, self.gave_spares) = (FIRST_MOST, false);
    }
}
