//! All interleavings of an owner and two threads that free, as far as the lock-free steps and the registry's states go.
//!
//! ```text
//!   Pages   tag, one word of remote bits, link          as in `space`, smaller
//!   Heap    inbox, state                                as in `heap::Shared`
//!   owner   what it did with bits it took: `freed`      in place of the bitmap
//! ```
//!
//! The steps themselves are those of `remote`: this module has a copy of that file on loom's atomics. The order
//! in which they are called is repeated from `remote_free` and `ownerless`. Loom knows sequentially consistent
//! fences, but takes accesses of that order for acquire and release: where one side writes and then looks, a
//! fence stands between, for what the accesses mean together.
//! (`RUSTFLAGS="--cfg loom" cargo test --release -p hugeheap --lib model`)

use super::tag;
use atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

mod atomic {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

    pub(super) fn written_before_look() {
        fence(Ordering::SeqCst);
    }
}

#[path = "remote.rs"]
mod remote;

const WAITING: u32 = 0;
const OWNED: u32 = 1;
const VISITED: u32 = 2;

/// A page's tag: of heap 1, class 3.
const TAG: u32 = tag::tag(1, 3);
const SPARE: u32 = tag::tag(1, tag::SPARE);

struct Page {
    tag: AtomicU32,
    remote: AtomicU64,
    link: AtomicUsize,
    /// What the owner has taken; its own, so only whoever has the heap may touch it, which loom checks.
    freed: UnsafeCell<u64>,
}

impl Page {
    /// By whoever has the heap.
    fn free(&self, bits: u64) {
        self.freed.with_mut(|freed| {
            // SAFETY: loom checks that nobody else has it.
            let freed = unsafe { &mut *freed };
            assert_eq!(*freed & bits, 0, "taken twice");
            *freed |= bits;
        });
    }
}

/// A heap with two pages, the addresses of which are 1 and 2.
struct Heap {
    inbox: AtomicUsize,
    state: AtomicU32,
    pages: [Page; 2],
}

impl Heap {
    fn new(state: u32) -> Arc<Self> {
        let page = || Page {
            tag: AtomicU32::new(TAG),
            remote: AtomicU64::new(0),
            link: AtomicUsize::new(0),
            freed: UnsafeCell::new(0),
        };
        Arc::new(Self { inbox: AtomicUsize::new(0), state: AtomicU32::new(state), pages: [page(), page()] })
    }

    /// Another thread frees a block: `Space::free_remote`.
    fn free(&self, address: usize, bit: u64) -> bool {
        let page = &self.pages[address - 1];
        let tag = page.tag.load(Ordering::Acquire);
        if tag & tag::PENDING == 0 && self.free_in_waiting(page, tag, bit) {
            return true;
        }
        if !remote::free(&page.remote, bit) {
            return false;
        }
        // As `Heap::free_in_pending` does; elsewhere it is the first look of `announce`.
        if tag & tag::PENDING != 0 && remote::is_still_pending(&page.tag, tag) {
            return true;
        }
        if remote::announce(&page.tag, tag, || {}) {
            remote::push(&self.inbox, address, &page.link);
            fence(Ordering::SeqCst);
            self.collect_ownerless();
        }
        true
    }

    /// `Space::free_in_waiting`: says whether the block is freed.
    fn free_in_waiting(&self, page: &Page, tag: u32, bit: u64) -> bool {
        if self.state.load(Ordering::Relaxed) != WAITING || !self.claim(VISITED) {
            return false;
        }
        let here = page.tag.load(Ordering::Acquire) == tag;
        if here {
            page.free(bit);
        }
        self.wait_again();
        here
    }

    /// `Own::collect`, by whoever has the heap. Returns the pages seen.
    fn collect(&self) -> Vec<usize> {
        let mut seen = Vec::new();
        let mut next = remote::take_all(&self.inbox);
        while next != 0 {
            assert!(!seen.contains(&next), "page {next} is in the inbox twice");
            seen.push(next);
            let page = next;
            next = self.pages[page - 1].link.load(Ordering::Relaxed);
            self.collect_page(page);
        }
        seen
    }

    fn collect_page(&self, address: usize) {
        let page = &self.pages[address - 1];
        remote::acknowledge(&page.tag);
        page.free(remote::take(&page.remote));
    }

    /// `Own::collect_held`: one page after the other.
    fn collect_one_by_one(&self) {
        let link = |address: usize| Some(&self.pages[address.checked_sub(1)?].link);
        loop {
            match remote::take_first(&self.inbox, link) {
                0 => return,
                page => self.collect_page(page),
            }
        }
    }

    /// `Own::release`: the page has no live block any more. Says no when a free is announced.
    fn release(&self, address: usize) -> bool {
        let tag = &self.pages[address - 1].tag;
        tag.compare_exchange(TAG, SPARE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn freed(&self, address: usize) -> u64 {
        // SAFETY: loom checks that nobody else has it.
        self.pages[address - 1].freed.with(|freed| unsafe { *freed })
    }

    fn claim(&self, state: u32) -> bool {
        self.state.compare_exchange(WAITING, state, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// `Space::collect_ownerless`.
    fn collect_ownerless(&self) {
        if self.state.load(Ordering::SeqCst) == WAITING && self.claim(VISITED) {
            self.collect();
            self.leave();
        }
    }

    /// The drop of a handle.
    fn leave(&self) {
        self.collect();
        self.wait_again();
    }

    /// `Heap::wait_again`, and what follows.
    fn wait_again(&self) {
        self.state.store(WAITING, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.inbox.load(Ordering::SeqCst) != 0 {
            self.collect_ownerless();
        }
    }
}

#[test]
fn every_block_that_two_threads_free_in_a_page_is_taken_once() {
    loom::model(|| {
        let heap = Heap::new(OWNED);
        let threads = [1, 2].map(|bit| {
            let heap = Arc::clone(&heap);
            thread::spawn(move || assert!(heap.free(1, bit)))
        });
        heap.collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        heap.collect();
        assert_eq!(heap.freed(1), 3, "a block was forgotten");
        assert_eq!(heap.pages[0].tag.load(Ordering::Relaxed), TAG);
        assert_eq!(heap.pages[0].remote.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn two_pages_find_their_way_through_the_inbox() {
    loom::model(|| {
        let heap = Heap::new(OWNED);
        let threads = [1, 2].map(|address| {
            let heap = Arc::clone(&heap);
            thread::spawn(move || assert!(heap.free(address, 1)))
        });
        heap.collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        heap.collect();
        assert_eq!((heap.freed(1), heap.freed(2)), (1, 1), "a page was forgotten");
    });
}

#[test]
fn pages_that_are_taken_one_by_one_come_each_time_others_free_in_them() {
    loom::model(|| {
        let heap = Heap::new(OWNED);
        let thread = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || [(1, 1), (2, 1), (1, 2)].map(|(page, bit)| assert!(heap.free(page, bit))))
        };
        heap.collect_one_by_one();
        thread.join().unwrap();
        heap.collect_one_by_one();
        assert_eq!((heap.freed(1), heap.freed(2)), (3, 1), "a page was forgotten");
        assert_eq!(heap.inbox.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_page_that_is_freed_in_again_while_it_is_collected_comes_again() {
    loom::model(|| {
        let heap = Heap::new(OWNED);
        let thread = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || {
                assert!(heap.free(1, 1));
                assert!(heap.free(1, 2));
            })
        };
        heap.collect();
        heap.collect();
        thread.join().unwrap();
        heap.collect();
        assert_eq!(heap.freed(1), 3, "a block was forgotten");
    });
}

#[test]
fn a_free_that_saw_the_page_pending_is_not_forgotten_when_it_is_collected_meanwhile() {
    loom::model(|| {
        let heap = Heap::new(OWNED);
        assert!(heap.free(1, 1));
        let thread = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || assert!(heap.free(1, 2)))
        };
        heap.collect();
        thread.join().unwrap();
        heap.collect();
        assert_eq!(heap.freed(1), 3, "a block was forgotten");
    });
}

#[test]
fn a_block_that_two_threads_free_is_taken_once_or_known_to_be_freed_twice() {
    loom::model(|| {
        let heap = Heap::new(OWNED);
        let threads = [(); 2].map(|()| {
            let heap = Arc::clone(&heap);
            thread::spawn(move || heap.free(1, 1))
        });
        let freed = threads.map(|thread| thread.join().unwrap());
        heap.collect();
        assert_eq!(freed.iter().filter(|&&freed| freed).count(), 1, "the mistake is known");
        assert_eq!(heap.freed(1), 1);
    });
}

#[test]
fn a_page_leaves_its_heap_only_when_no_free_is_announced() {
    // The page has two live blocks, which two threads free. The owner releases the page as soon as it has taken both.
    loom::model(|| {
        let heap = Heap::new(OWNED);
        let threads = [1, 2].map(|bit| {
            let heap = Arc::clone(&heap);
            thread::spawn(move || assert!(heap.free(1, bit)))
        });
        let mut released = false;
        let mut look = || {
            let seen = heap.collect();
            assert!(!released || seen.is_empty(), "a page in the inbox that is not the heap's any more");
            if !released && heap.freed(1) == 3 {
                released = heap.release(1);
            }
        };
        look();
        look();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        look();
        look();
        assert!(released, "empty, nothing announced, and not released");
        assert_eq!(heap.pages[0].tag.load(Ordering::Relaxed), SPARE);
        assert_eq!(heap.inbox.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn what_is_freed_while_the_owner_leaves_does_not_stay() {
    loom::model(|| {
        let heap = Heap::new(OWNED);
        let thread = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || assert!(heap.free(1, 1)))
        };
        heap.leave();
        thread.join().unwrap();
        assert_eq!(heap.state.load(Ordering::SeqCst), WAITING);
        assert_eq!(heap.inbox.load(Ordering::SeqCst), 0, "nobody came");
        assert_eq!(heap.freed(1), 1);
    });
}

#[test]
fn two_threads_free_in_a_waiting_heap() {
    loom::model(|| {
        let heap = Heap::new(WAITING);
        let thread = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || assert!(heap.free(1, 1)))
        };
        assert!(heap.free(2, 1));
        thread.join().unwrap();
        assert_eq!(heap.state.load(Ordering::SeqCst), WAITING);
        assert_eq!(heap.inbox.load(Ordering::SeqCst), 0, "nobody came");
        assert_eq!((heap.freed(1), heap.freed(2)), (1, 1));
    });
}

#[test]
fn two_threads_free_in_a_page_of_a_waiting_heap() {
    loom::model(|| {
        let heap = Heap::new(WAITING);
        let thread = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || assert!(heap.free(1, 1)))
        };
        assert!(heap.free(1, 2));
        thread.join().unwrap();
        assert_eq!(heap.inbox.load(Ordering::SeqCst), 0, "nobody came");
        assert_eq!(heap.freed(1), 3);
    });
}

#[test]
fn a_waiting_heap_is_adopted_by_one_while_another_visits() {
    loom::model(|| {
        let heap = Heap::new(WAITING);
        let thread = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || assert!(heap.free(1, 1)))
        };
        let adopted = heap.claim(OWNED);
        if adopted {
            heap.collect();
        }
        thread.join().unwrap();
        if adopted {
            heap.collect();
        }
        assert_eq!(heap.inbox.load(Ordering::SeqCst), 0, "nobody came");
        assert_eq!(heap.freed(1), 1);
    });
}
