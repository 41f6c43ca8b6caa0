//! All interleavings of an owner, threads that hand page runs to it, and one that takes what it keeps.
//!
//! ```text
//!   Run      live, bit of others, link, contents      as in `space`, smaller
//!   Heap     list of the inbox, state                 as in `heap::Shared`
//!   kept     a cell: the runs that are kept           in place of the lists of `run_cache`
//! ```
//!
//! Loom fails where two have a run's contents at the same time, or change what is kept. The steps of the list
//! are those of `remote`; the order in which they are called is repeated from `handed`, `surplus`, `busy` and
//! `registry`. The barrier is a fence on both sides, as in `idle_model`.
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
#[expect(dead_code, reason = "runs are not announced")]
mod remote;

/// As in `handed`.
const BY_ANOTHER: u32 = 3;

const WAITING: u32 = 0;
const OWNED: u32 = 1;
const VISITED: u32 = 2;

struct Run {
    vacant: AtomicU32,
    remote: AtomicU64,
    link: AtomicUsize,
    contents: UnsafeCell<u32>,
}

/// A heap with two live runs, the addresses of which are 1 and 2.
struct Heap {
    list: AtomicUsize,
    state: AtomicU32,
    keeping: AtomicU32,
    held: AtomicU32,
    kept: UnsafeCell<Vec<usize>>,
    runs: [Run; 2],
}

impl Heap {
    fn new() -> Arc<Self> {
        let run = || Run {
            vacant: AtomicU32::new(0),
            remote: AtomicU64::new(0),
            link: AtomicUsize::new(0),
            contents: UnsafeCell::new(0),
        };
        Arc::new(Self {
            list: AtomicUsize::new(0),
            state: AtomicU32::new(OWNED),
            keeping: AtomicU32::new(0),
            held: AtomicU32::new(0),
            kept: UnsafeCell::new(Vec::new()),
            runs: [run(), run()],
        })
    }

    fn write(&self, run: usize) {
        // SAFETY: loom checks that nobody else does.
        self.runs[run - 1].contents.with_mut(|contents| unsafe { *contents += 1 });
    }

    /// `Space::free_run_remote`; says no where it is known to be freed.
    fn free(&self, run: usize) -> bool {
        let Run { vacant, remote: bit, link, .. } = &self.runs[run - 1];
        if vacant.load(Ordering::Relaxed) & 1 == 1 || !remote::free(bit, 1) {
            return false;
        }
        if vacant.fetch_or(BY_ANOTHER, Ordering::AcqRel) & 1 == 1 {
            return false;
        }
        self.write(run);
        remote::push(&self.list, run, link);
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) == WAITING {
            self.collect_ownerless();
        }
        true
    }

    /// `Heap::free_run`, by the owner; says no where it is known to be freed.
    fn free_own(&self, run: usize) -> bool {
        let vacant = &self.runs[run - 1].vacant;
        let live = vacant.load(Ordering::Relaxed) & 1 == 0;
        if live {
            // A plain store. Loom would have it come before what it overwrites as well; of a swap it knows
            // which of the two was first.
            vacant.swap(1, Ordering::Relaxed);
        }
        live
    }

    /// `handed`: whether a run in the list was freed by who put it there only.
    fn is_handed(&self, run: usize) -> bool {
        self.runs[run - 1].vacant.load(Ordering::Relaxed) == BY_ANOTHER
    }

    /// `Space::take_handed_runs`.
    fn take_handed(&self) -> Vec<usize> {
        let mut taken = Vec::new();
        let mut next = remote::take_all(&self.list);
        while next != 0 {
            let run = next;
            next = self.runs[run - 1].link.load(Ordering::Relaxed);
            self.runs[run - 1].remote.store(0, Ordering::Release);
            self.write(run);
            taken.push(run);
        }
        taken
    }

    /// `Keeping`; `None`: it has to wait.
    fn keeping<R>(&self, work: impl FnOnce(&mut Vec<usize>) -> R) -> Option<R> {
        self.keeping.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        let its = self.held.load(Ordering::Acquire) == 0;
        // SAFETY: loom checks that nobody else changes it.
        let result = its.then(|| self.kept.with_mut(|kept| work(unsafe { &mut *kept })));
        self.keeping.store(0, Ordering::Release);
        result
    }

    /// `Space::shed_some`.
    fn shed(&self) -> Vec<usize> {
        self.held.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let rests = self.keeping.load(Ordering::Acquire) == 0;
        // SAFETY: as in `keeping`.
        let runs = if rests {
            self.kept.with_mut(|kept| core::mem::take(unsafe { &mut *kept }))
        } else {
            Vec::new()
        };
        self.held.store(0, Ordering::Release);
        runs.iter().for_each(|&run| self.write(run));
        runs
    }

    fn collect_ownerless(&self) {
        while self.state.compare_exchange(WAITING, VISITED, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            self.take_handed();
            if !self.wait() {
                return;
            }
        }
    }

    /// `Heap::wait`: says whether there is something to collect.
    fn wait(&self) -> bool {
        self.state.store(WAITING, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.list.load(Ordering::SeqCst) != 0
    }
}

/// A thread that frees these runs, one after the other.
fn free<const N: usize>(heap: &Arc<Heap>, runs: [usize; N]) -> thread::JoinHandle<[bool; N]> {
    let heap = Arc::clone(heap);
    thread::spawn(move || runs.map(|run| heap.free(run)))
}

#[test]
fn each_run_is_taken_once() {
    loom::model(|| {
        let heap = Heap::new();
        let freed = free(&heap, [1, 2]);
        let mut taken = heap.take_handed();
        assert_eq!(freed.join().unwrap(), [true; 2]);
        taken.extend(heap.take_handed());
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
    });
}

#[test]
fn a_run_that_two_threads_free_is_handed_over_once() {
    loom::model(|| {
        let heap = Heap::new();
        let freed = free(&heap, [1]);
        let also = heap.free(1);
        assert_eq!(freed.join().unwrap(), [!also], "one of them is told");
        assert_eq!(heap.take_handed(), [1]);
        assert!(!heap.free(1), "and everybody who does it later");
    });
}

#[test]
fn a_run_that_its_owner_frees_as_well_is_known_to_be_when_it_is_taken_at_the_latest() {
    loom::model(|| {
        let heap = Heap::new();
        let freed = free(&heap, [1]);
        let own = heap.free_own(1);
        let [other] = freed.join().unwrap();
        assert!(own || other, "one of them is right");
        assert!(!(own && other && heap.is_handed(1)), "nobody is told");
        assert!(own || heap.is_handed(1), "who did nothing wrong is told");
    });
}

#[test]
fn what_is_handed_over_while_the_owner_leaves_does_not_stay() {
    loom::model(|| {
        let heap = Heap::new();
        let freed = free(&heap, [1]);
        heap.take_handed();
        if heap.wait() {
            heap.collect_ownerless();
        }
        assert_eq!(freed.join().unwrap(), [true]);
        assert_eq!(heap.list.load(Ordering::SeqCst), 0, "nobody came");
        assert_eq!(heap.state.load(Ordering::SeqCst), WAITING);
    });
}

#[test]
fn what_is_kept_is_taken_by_its_owner_or_by_who_looks() {
    loom::model(|| {
        let heap = Heap::new();
        heap.keeping(|kept| kept.push(1));
        let looks = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || heap.shed())
        };
        let taken = heap.keeping(Vec::pop).flatten();
        taken.into_iter().for_each(|run| heap.write(run));
        let kept = heap.keeping(|kept| kept.push(2));
        let shed = looks.join().unwrap();
        let left = heap.keeping(|kept| core::mem::take(kept)).expect("nobody looks");
        let mut all: Vec<_> = taken.into_iter().chain(shed).chain(left).collect();
        all.sort_unstable();
        assert_eq!(all, if kept.is_some() { vec![1, 2] } else { vec![1] });
    });
}
