//! All interleavings of an owner and a thread that gives back what is vacant in one of its pages.
//!
//! ```text
//!   page     tag, bitmap of two blocks, count           as in `space`, smaller
//!   bin      two places for remembered blocks, as bits, the first of which is read first; at hand        in place of the ring and the page's address
//!   blocks   a cell each: written by who has the block, and by who drops its OS page or makes it like others
//! ```
//!
//! Loom fails where both write at the same time: a block that its owner uses goes. The order of the steps is
//! repeated from `free`, `recent`, `refill` and `vacate`. What the owner stores is seen in its order (release),
//! as on x86-64, or where the barrier is passed between the readings. The barrier itself is a fence on both
//! sides: the owner has one before it looks at what the other thread may have written, where the kernel's comes
//! at any time. (`RUSTFLAGS="--cfg loom" cargo test --release -p hugeheap --lib model`)

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

const CLAIMED: u32 = 1;

/// The blocks of the page.
const A: u32 = 1;
const B: u32 = 2;

#[derive(Default)]
struct Page {
    tag: AtomicU32,
    vacant: AtomicU32,
    count: AtomicU32,
    recent: [AtomicU32; 2],
    moves: AtomicU32,
    at_hand: AtomicU32,
    busy: AtomicU32,
    closed: AtomicU32,
    blocks: [UnsafeCell<u32>; 2],
}

impl Page {
    /// A page in a list: B is live, A is free.
    fn new() -> Arc<Self> {
        let page = Self::default();
        page.vacant.store(A, Ordering::Relaxed);
        page.count.store(1, Ordering::Relaxed);
        Arc::new(page)
    }

    fn write(&self, block: u32) {
        // SAFETY: loom checks that nobody else does.
        self.blocks[block.trailing_zeros() as usize].with_mut(|cell| unsafe { *cell += 1 });
    }

    fn change(word: &AtomicU32, change: impl FnOnce(u32) -> u32) {
        word.store(change(word.load(Ordering::Relaxed)), Ordering::Release);
    }

    /// `Own::free_in_word`; says no where it would be another thread's free.
    fn free(&self, block: u32) -> bool {
        fence(Ordering::SeqCst);
        if self.tag.load(Ordering::Acquire) == CLAIMED {
            return false;
        }
        Self::change(&self.vacant, |vacant| vacant | block);
        Self::change(&self.recent[1], |recent| recent | block);
        Self::change(&self.count, |count| count - 1);
        true
    }

    /// `Own::retake_on`.
    fn retake(&self) -> Option<u32> {
        let recent = self.recent_of_own();
        let block = if recent & B != 0 { B } else { recent };
        if block == 0 {
            return None;
        }
        Self::change(&self.count, |count| count + 1);
        let remembers = |place: &&AtomicU32| place.load(Ordering::Relaxed) & block != 0;
        if let Some(place) = self.recent.iter().find(remembers) {
            Self::change(place, |recent| recent & !block);
        }
        Self::change(&self.vacant, |vacant| vacant & !block);
        self.write(block);
        Some(block)
    }

    fn recent_of_own(&self) -> u32 {
        self.recent.iter().fold(0, |recent, place| recent | place.load(Ordering::Relaxed))
    }

    /// `Bin::forget_if`, of a block of another page: what is remembered moves to the place that is read first.
    fn forget_another(&self) {
        self.busy.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        Self::change(&self.moves, |moves| moves + 1);
        let moved = self.recent[1].load(Ordering::Relaxed);
        Self::change(&self.recent[0], |recent| recent | moved);
        self.recent[1].store(0, Ordering::Release);
        Self::change(&self.moves, |moves| moves + 1);
        self.busy.store(0, Ordering::Release);
    }

    /// `Own::next_page`, and a block of the page.
    fn refill(&self) {
        self.busy.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.closed.load(Ordering::Acquire) == 0 {
            self.at_hand.store(1, Ordering::Release);
        }
        self.busy.store(0, Ordering::Release);
        let free = self.vacant.load(Ordering::Relaxed) & !self.recent_of_own();
        if self.at_hand.load(Ordering::Relaxed) != 0 && free != 0 {
            let block = free & free.wrapping_neg();
            Self::change(&self.vacant, |vacant| vacant & !block);
            self.write(block);
        }
    }

    /// `Space::vacate`. Returns the blocks whose OS pages went.
    fn vacate(&self) -> u32 {
        self.closed.store(1, Ordering::SeqCst);
        self.tag.store(CLAIMED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let vacant = self.vacant_for_good();
        for block in [A, B].into_iter().filter(|block| vacant & block != 0) {
            // Its OS page goes, or stays and gets later, after other pages were looked at, what lives in them
            // (`merging`).
            self.write(block);
            self.write(block);
        }
        // It is pending until the owner collects it, which it does not here.
        self.closed.store(0, Ordering::Release);
        vacant
    }

    fn vacant_for_good(&self) -> u32 {
        if self.busy.load(Ordering::Acquire) != 0 {
            return 0;
        }
        let vacant = self.vacant.load(Ordering::Acquire);
        let count = self.count.load(Ordering::Acquire);
        let at_hand = self.at_hand.load(Ordering::Acquire);
        let moves = self.moves.load(Ordering::Acquire);
        let recent = self.recent.iter().fold(0, |recent, place| recent | place.load(Ordering::Acquire));
        if moves % 2 != 0 || moves != self.moves.load(Ordering::Acquire) {
            return 0;
        }
        let again = self.vacant.load(Ordering::Acquire);
        let live = (!vacant & (A | B)).count_ones();
        if vacant != again || count != live || count != self.count.load(Ordering::Acquire) || at_hand != 0 {
            return 0;
        }
        vacant & !recent
    }
}

/// The owner does that while the page is given back.
fn model(owner: fn(&Page)) {
    loom::model(move || {
        let page = Page::new();
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || page.vacate())
        };
        owner(&page);
        let _ = other.join().unwrap();
    });
}

#[test]
fn what_the_owner_frees_and_takes_in_turn_does_not_go() {
    model(|page| {
        page.write(B);
        for _ in 0..2 {
            if !page.free(B) {
                return;
            }
            assert_eq!(page.retake(), Some(B), "it was freed last");
        }
    });
}

#[test]
fn what_the_owner_remembered_before_does_not_go() {
    model(|page| {
        page.free(B);
        page.retake();
        page.refill();
    });
}

/// A block that was remembered all the time was in no place that was read.
#[test]
fn what_moves_while_it_is_read_does_not_go() {
    model(|page| {
        page.free(B);
        page.forget_another();
        page.retake();
    });
}

#[test]
fn a_page_that_comes_to_hand_does_not_go() {
    model(|page| {
        page.refill();
        page.free(B);
        page.retake();
    });
}

#[test]
fn what_nobody_takes_goes() {
    loom::model(|| {
        assert_eq!(Page::new().vacate(), A);
    });
}
