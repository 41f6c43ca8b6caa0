//! Which tails of large blocks are huge pages.
//!
//! ```text
//!   used of the tail   < 1/16         1/16 ‥ 7/8                    ≥ 7/8
//!                      OS pages       OS pages, or a huge page      huge page
//!                         │           in a block of 16 MiB or as       ▲
//!                         │           a guess                          │
//!                         └─ the block grows: one huge page, with ─────┘
//!                            what was touched
//! ```
//!
//! Of a block of at least [`ROUND_UP`] a huge page wastes an eighth at most.
//!
//! A *guess* is a tail that is a huge page because its block grows (it was resized upwards): a list that is
//! appended to will fill the page. Guesses that did not come true yet are bounded, because most lists end
//! somewhere in a page: without a bound, a hundred lists of 1.2 MiB each took 210 MiB.
//!
//! Of a page that a block has only just begun nearly all would be wasted, and OS pages for it are a few faults.
//! A list of a million elements ends 64 KiB into its fifth page, and its program had 1.4 % more than on stock
//! for it; a block of 16 MiB and a header had an eighth more. What was touched of the page is little when the
//! block grows over it, and to make one huge page of that takes as long as its first touch would have.

use super::{ARENA_BYTES, ArenaId, Arenas, FULL_TAIL, ROUND_UP};
use crate::arena::layout::HEAP_PAGES;
use crate::arena::{Made, Policy, State};
use hugeheap_os::Os;

/// Part of the live bytes that may be in guesses at once, as a divisor; one guess may always be.
const GUESSED: u64 = 16;

/// Heap pages in use from which on a tail may be a huge page. With an eighth of the arena a list that grows to
/// half a million elements has 59 faults of OS pages more on its way
/// (`hugeheap bench obmalloc --workloads fragmentation`), and no less memory.
const BEGUN: u32 = HEAP_PAGES / 16;

impl<O: Os> Arenas<O> {
    /// Whether an arena that has no memory, and of which a block of `bytes` bytes uses so many heap pages, is
    /// to be a huge page.
    pub(super) fn rounds_up(&mut self, id: ArenaId, pages: u32, bytes: usize, growing: bool) -> bool {
        if pages >= FULL_TAIL {
            return true;
        }
        if self.is_scarce() || pages < BEGUN && self.may_catch_up() {
            return false;
        }
        if bytes >= ROUND_UP {
            return true;
        }
        let guess = growing && self.may_guess();
        if guess {
            self.begin_guess(id);
        }
        guess
    }

    /// The tail of a block of `bytes` bytes, which grows, is used up to heap page `pages` from now on: where
    /// little of it is touched, and it had no huge page for that reason, it gets one.
    pub(super) fn catch_up(&mut self, id: ArenaId, pages: u32, bytes: usize) {
        let arena = self.table.arena(id);
        let begun = arena.touched.count_ones() < BEGUN && arena.made == Made::Base && !arena.busy;
        // The first arena of a block may be one that is to stay on OS pages.
        if !begun || arena.state != State::LargeRest || !self.may_catch_up() || !self.advises() {
            return;
        }
        if self.rounds_up(id, pages, bytes, true) && !self.collapse_now(id) {
            // It grows on without it, and is found when it is dense.
            self.end_guess(id);
        }
    }

    /// Whether what had no huge page at first can have one later. One of a pool cannot come later.
    fn may_catch_up(&self) -> bool {
        self.may_collapse() && self.settings.policy != Policy::Hugetlb
    }

    fn may_guess(&self) -> bool {
        self.guesses == 0 || (self.guesses + 1) * ARENA_BYTES as u64 <= self.counters.live / GUESSED
    }

    fn begin_guess(&mut self, id: ArenaId) {
        self.table.arena_mut(id).guess = true;
        self.guesses += 1;
    }

    /// The tail is full by now, or no tail any more.
    pub(crate) fn end_guess(&mut self, id: ArenaId) {
        self.guesses -= u64::from(core::mem::take(&mut self.table.arena_mut(id).guess));
    }
}
