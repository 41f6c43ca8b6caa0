//! All interleavings of an owner, a thread that frees, and one that collects for the owner.
//!
//! ```text
//!   page     tag, bitmap of two blocks, bits of others, count      as in `space`, smaller
//!   bin      remembered blocks, as bits; at hand                   in place of the ring and the page's address
//!   list     whether the page was taken out; a cell, changed in turn    as the lists, queues and spare pages of a heap
//!   counted  a cell: who changes the count, with plain steps       as the mark's state
//! ```
//!
//! Loom fails where two change the list or the count at the same time, or a block is had by two. The order of
//! the steps is repeated from `free`, `recent`, `busy` and `idle`. What the owner stores is seen in its order
//! (release). The barrier is a fence on both sides: the owner has one before it looks at what another may have
//! written, where the kernel's comes at any time.
//! (`RUSTFLAGS="--cfg loom" cargo test --release -p hugeheap --lib model`)

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

const PENDING: u32 = 1;

/// The page belongs to the arenas.
const GONE: u32 = 2;

/// The blocks of the page.
const A: u32 = 1;
const B: u32 = 2;

#[derive(Default)]
struct Heap {
    tag: AtomicU32,
    vacant: AtomicU32,
    remote: AtomicU32,
    count: AtomicU32,
    counted: UnsafeCell<u32>,
    recent: AtomicU32,
    busy: AtomicU32,
    held: AtomicU32,
    list: UnsafeCell<bool>,
    blocks: [UnsafeCell<u32>; 2],
}

impl Heap {
    /// Both blocks are live, and others free A.
    fn new() -> Arc<Self> {
        let heap = Self::default();
        heap.count.store(2, Ordering::Relaxed);
        Arc::new(heap)
    }

    fn write(&self, block: u32) {
        // SAFETY: loom checks that nobody else does.
        self.blocks[block.trailing_zeros() as usize].with_mut(|cell| unsafe { *cell += 1 });
    }

    fn change(word: &AtomicU32, change: impl FnOnce(u32) -> u32) {
        word.store(change(word.load(Ordering::Relaxed)), Ordering::Release);
    }

    fn count(&self, change: impl FnOnce(u32) -> u32) {
        // SAFETY: as above.
        self.counted.with_mut(|cell| unsafe { *cell += 1 });
        Self::change(&self.count, change);
    }

    /// `Own::free_in_word`; says no where it would go another way.
    fn free(&self, block: u32) -> bool {
        fence(Ordering::SeqCst);
        if self.tag.load(Ordering::Acquire) != 0 {
            return false;
        }
        Self::change(&self.vacant, |vacant| vacant | block);
        Self::change(&self.recent, |recent| recent | block);
        self.count(|count| count - 1);
        true
    }

    /// `Own::retake_on`.
    fn retake(&self) -> Option<u32> {
        let block = self.recent.load(Ordering::Relaxed);
        if block == 0 {
            return None;
        }
        self.count(|count| count + 1);
        Self::change(&self.recent, |recent| recent & !block);
        Self::change(&self.vacant, |vacant| vacant & !block);
        self.write(block);
        Some(block)
    }

    /// `Busy`, around a look at the lists: whether the page was taken out of them. `None`: it has to wait for its turn.
    fn in_turn(&self) -> Option<bool> {
        self.busy.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        let its = self.held.load(Ordering::Acquire) == 0;
        // SAFETY: loom checks that nobody else changes it.
        let taken = its.then(|| self.list.with_mut(|list| unsafe { *list }));
        self.busy.store(0, Ordering::Release);
        taken
    }

    /// `Space::free_for_owner`, for A; says whether the page is to be announced.
    fn free_remote(&self) -> bool {
        self.write(A);
        self.remote.fetch_or(A, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.announce()
    }

    fn announce(&self) -> bool {
        self.tag.compare_exchange(0, PENDING, Ordering::AcqRel, Ordering::SeqCst).is_ok()
    }

    /// `Space::collect_some`, for a page that is pending.
    fn collect(&self) {
        self.held.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.busy.load(Ordering::Acquire) == 0
            && self.tag.load(Ordering::Acquire) == PENDING
            && self.at_rest().is_some_and(|vacant| vacant | self.remote.load(Ordering::Acquire) == A | B)
        {
            let bits = self.remote.swap(0, Ordering::AcqRel);
            assert_eq!(self.vacant.load(Ordering::Relaxed) & bits, 0);
            // SAFETY: loom checks that nobody else does: what belongs to the page is the arenas' from here on.
            self.counted.with_mut(|cell| unsafe { *cell += 1 });
            self.write(A);
            self.write(B);
            // SAFETY: as in `in_turn`.
            self.list.with_mut(|list| unsafe { *list = true });
            self.tag.store(GONE, Ordering::Release);
        }
        self.held.store(0, Ordering::Release);
    }

    fn at_rest(&self) -> Option<u32> {
        let vacant = self.vacant.load(Ordering::Acquire);
        let count = self.count.load(Ordering::Acquire);
        let recent = self.recent.load(Ordering::Acquire);
        let again = self.vacant.load(Ordering::Acquire);
        let live = (!vacant & (A | B)).count_ones();
        let agree = vacant == again && count == live && count == self.count.load(Ordering::Acquire);
        (agree && recent == 0).then_some(vacant)
    }
}

/// The owner does that while another frees A, and collects.
fn model(owner: fn(&Heap)) {
    loom::model(move || {
        let heap = Heap::new();
        let other = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || {
                if heap.free_remote() {
                    heap.collect();
                }
            })
        };
        owner(&heap);
        let _ = other.join().unwrap();
    });
}

#[test]
fn what_the_owner_frees_and_takes_in_turn_is_its_own() {
    model(|heap| {
        heap.write(B);
        for _ in 0..2 {
            if !heap.free(B) {
                return;
            }
            assert_eq!(heap.retake(), Some(B), "it was freed last");
        }
    });
}

/// `Heap::settle`, after a free: the page is in the lists, or gone. They are changed by one at a time.
#[test]
fn a_page_is_settled_by_one_of_them() {
    model(|heap| {
        let freed = heap.free(B);
        // The block was remembered, and is not any more: others were freed since.
        heap.recent.store(0, Ordering::Release);
        let taken = heap.in_turn();
        let is_gone = heap.tag.load(Ordering::Acquire) == GONE;
        assert!(taken != Some(true) || freed && is_gone, "it has no live block");
    });
}

#[test]
fn a_page_without_live_blocks_goes() {
    loom::model(|| {
        let heap = Heap::new();
        heap.free(B);
        heap.retake();
        heap.free(B);
        heap.recent.store(0, Ordering::Relaxed);
        assert!(heap.free_remote());
        heap.collect();
        assert_eq!(heap.tag.load(Ordering::Relaxed), GONE);
    });
}

/// A page that was claimed, and in which nobody has freed so far: it is the owner's again, or pending and
/// announced once.
#[test]
fn what_is_freed_while_a_page_becomes_the_owners_again_is_announced() {
    loom::model(|| {
        let heap = Heap::new();
        heap.tag.store(PENDING, Ordering::Relaxed);
        let other = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || heap.free_remote())
        };
        // `Own::collect_at_rest`.
        let acknowledged = heap.remote.load(Ordering::SeqCst) == 0;
        let mut announced = !acknowledged;
        if acknowledged {
            heap.tag.fetch_and(!PENDING, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let since = heap.remote.load(Ordering::SeqCst) != 0;
            announced = since && heap.announce();
        }
        assert_ne!(announced, other.join().unwrap(), "by one of them");
        assert_eq!(heap.tag.load(Ordering::Relaxed), PENDING);
    });
}
