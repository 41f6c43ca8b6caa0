//! All interleavings of an owner and a thread that gives back what is vacant in the page that it has at hand.
//!
//! ```text
//!   page     tag, bitmaps of two windows, count         as in `space`, smaller: O alone in the first window, A and B in the second
//!   bin      the open window; remembered blocks, as bits    in place of the window's word and the ring
//!   turn     busy, held
//!   blocks   a cell each: written by who has the block, and by who drops its OS page
//! ```
//!
//! Loom fails where both write at the same time: a block that its owner uses goes. The order of the steps is
//! repeated from `free`, `recent`, `windows`, `busy` and `vacate_at_hand`. What the owner stores is seen in its
//! order (release). The barrier is a fence on both sides: the owner has one before it looks at what the other
//! thread may have written, where the kernel's comes at any time.
//! (`RUSTFLAGS="--cfg loom" cargo test --release -p hugeheap --lib model`)

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

const CLAIMED: u32 = 1;

/// The blocks of the page.
const O: u32 = 1;
const A: u32 = 2;
const B: u32 = 4;

/// What the windows consist of.
const WINDOWS: [u32; 2] = [O, A | B];

#[derive(Default)]
struct Page {
    tag: AtomicU32,
    vacant: [AtomicU32; 2],
    count: AtomicU32,
    open: AtomicU32,
    recent: AtomicU32,
    busy: AtomicU32,
    held: AtomicU32,
    blocks: [UnsafeCell<u32>; 3],
}

impl Page {
    /// The first window is open, and its block free; B is live.
    fn new() -> Arc<Self> {
        let page = Self::default();
        page.vacant[0].store(O, Ordering::Relaxed);
        page.vacant[1].store(A, Ordering::Relaxed);
        page.count.store(2, Ordering::Relaxed);
        Arc::new(page)
    }

    fn write(&self, block: u32) {
        // SAFETY: loom checks that nobody else does.
        self.blocks[block.trailing_zeros() as usize].with_mut(|cell| unsafe { *cell += 1 });
    }

    fn change(word: &AtomicU32, change: impl FnOnce(u32) -> u32) {
        word.store(change(word.load(Ordering::Relaxed)), Ordering::Release);
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed) as usize
    }

    /// `Window::take`.
    fn take(&self) -> Option<u32> {
        let (word, starts) = (&self.vacant[self.open()], WINDOWS[self.open()]);
        let free = word.load(Ordering::Relaxed) & starts;
        let block = free & free.wrapping_neg();
        if block == 0 {
            return None;
        }
        Self::change(word, |vacant| vacant & !block);
        self.write(block);
        Some(block)
    }

    /// `Window::put`: without a look at the tag.
    fn put(&self, block: u32) {
        self.write(block);
        Self::change(&self.vacant[self.open()], |vacant| vacant | block);
    }

    /// `Own::free_in_word`, of B away from the open window; says no where it would be another thread's free.
    fn free(&self) -> bool {
        self.write(B);
        fence(Ordering::SeqCst);
        if self.tag.load(Ordering::Acquire) == CLAIMED {
            return false;
        }
        Self::change(&self.vacant[1], |vacant| vacant | B);
        if self.open() == 0 {
            Self::change(&self.recent, |recent| recent | B);
            Self::change(&self.count, |count| count - 1);
        }
        true
    }

    /// `Own::retake_on`.
    fn retake(&self) -> bool {
        if self.recent.load(Ordering::Relaxed) != B {
            return false;
        }
        Self::change(&self.count, |count| count + 1);
        self.recent.store(0, Ordering::Release);
        Self::change(&self.vacant[1], |vacant| vacant & !B);
        self.write(B);
        true
    }

    /// `Own::follow`: what is remembered is forgotten, and the second window opened, unless the heap is held.
    fn open_next(&self) {
        self.busy.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.held.load(Ordering::Acquire) == 0 {
            self.recent.store(0, Ordering::Release);
            let free = self.vacant[1].load(Ordering::Relaxed).count_ones();
            Self::change(&self.count, |count| count + free);
            self.open.store(1, Ordering::Release);
        }
        self.busy.store(0, Ordering::Release);
    }

    /// `Space::vacate`, with the heap held. Returns the blocks whose OS pages went.
    fn vacate(&self) -> u32 {
        self.tag.store(CLAIMED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.held.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let vacant = if self.busy.load(Ordering::Acquire) == 0 { self.vacant_for_good() } else { 0 };
        for block in [O, A, B].into_iter().filter(|block| vacant & block != 0) {
            self.write(block);
        }
        self.held.store(0, Ordering::Release);
        vacant
    }

    fn vacant_for_good(&self) -> u32 {
        let open = self.open.load(Ordering::Acquire) as usize;
        let words = || {
            let [first, second] = self.vacant.each_ref().map(|word| word.load(Ordering::Acquire));
            (first | second) & !WINDOWS[open]
        };
        let vacant = words();
        let count = self.count.load(Ordering::Acquire);
        let recent = self.recent.load(Ordering::Acquire);
        let again = words();
        let live = (!vacant & (O | A | B)).count_ones();
        if vacant != again || count != live || count != self.count.load(Ordering::Acquire) {
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
fn what_is_taken_from_the_open_window_does_not_go() {
    model(|page| {
        for _ in 0..2 {
            let block = page.take().expect("free");
            page.put(block);
        }
    });
}

/// With the heap held, and the page not claimed, the bitmap was the same twice.
#[test]
fn what_is_freed_and_taken_in_turn_beside_the_open_window_does_not_go() {
    model(|page| {
        for _ in 0..2 {
            if !page.free() {
                return;
            }
            assert!(page.retake(), "it was freed last");
        }
    });
}

#[test]
fn what_is_taken_from_the_next_window_does_not_go() {
    model(|page| {
        page.take();
        page.open_next();
        page.take();
    });
}

#[test]
fn what_was_remembered_and_is_taken_from_the_next_window_does_not_go() {
    model(|page| {
        page.free();
        page.open_next();
        page.take();
        page.take();
    });
}

#[test]
fn what_nobody_takes_goes() {
    loom::model(|| {
        assert_eq!(Page::new().vacate(), A);
    });
}
