//! A program whose every allocation is served by hugeheap: this binary, libtest included.
//!
//! Tests run in threads of one process, so each of them also meets the blocks and heaps of the others.
#![cfg(target_os = "linux")]

use hugeheap::object::{GlobalHeap, space, thread_heap};
use std::alloc::{GlobalAlloc, Layout};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;

#[global_allocator]
static HEAP: GlobalHeap = GlobalHeap;

/// One at a time: tests that fork, and those that count what the process has.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    // Another test's failure is its own.
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Whether an address is that of a block, page run or large block of ours, and how much of it may be used.
fn usable<T: ?Sized>(value: &T) -> usize {
    let address = std::ptr::from_ref(value).cast::<u8>() as usize;
    space().usable_size(address).expect("it came from the global allocator")
}

#[test]
fn this_program_lives_on_hugeheap() {
    assert!(usable(&*Box::new(7_u64)) >= 8);
    assert!(usable(vec![0_u8; 100].as_slice()) >= 100);
    assert!(usable(vec![0_u8; 100_000].as_slice()) >= 100_000);
    assert!(usable(vec![1_u8; 5 << 20].as_slice()) >= 5 << 20);
    assert!(usable("a line of text that was made at run time".to_owned().as_str()) >= 40);
}

#[test]
fn collections_of_all_kinds() {
    let mut tree = BTreeMap::new();
    let mut table = HashMap::new();
    let mut queue = VecDeque::new();
    for number in 0..100_000_u64 {
        let text = format!("{number:x}").repeat(1 + number as usize % 7);
        tree.insert(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), text.clone());
        table.insert(text, number);
        queue.push_back(Box::new([number; 5]));
        if number % 3 == 0 {
            queue.pop_front();
        }
    }
    let values: HashSet<_> = tree.values().cloned().collect();
    assert!(values.iter().all(|text| table.contains_key(text)));
    for (text, number) in &table {
        assert!(text.starts_with(&format!("{number:x}")));
    }
    let first = queue.front().expect("not empty")[0];
    assert!(queue.iter().zip(first..).all(|(item, number)| **item == [number; 5]));
    tree.retain(|key, _| key % 5 == 0);
    tree.shrink();
    assert!(tree.values().all(|text| values.contains(text)));
}

/// A walk through a tree's nodes, so that the test above frees most of them and copies the rest.
trait Shrink {
    fn shrink(&mut self);
}

impl<K: Ord, V> Shrink for BTreeMap<K, V> {
    fn shrink(&mut self) {
        *self = std::mem::take(self).into_iter().collect();
    }
}

#[test]
fn a_list_grows_to_many_megabytes_and_shrinks() {
    let mut list = Vec::new();
    for number in 0..6_000_000_u32 {
        list.push(number);
    }
    assert!(list.iter().zip(0..).all(|(&item, number)| item == number));
    while list.len() > 10 {
        list.truncate(list.len() / 3);
        list.shrink_to_fit();
        assert!(list.iter().zip(0..).all(|(&item, number)| item == number));
    }
}

#[test]
fn layouts_of_every_alignment() {
    for shift in 0..=21 {
        for size in [1, 24, 100, 600, 5000, 20_000, 1 << 20, 3 << 20] {
            let layout = Layout::from_size_align(size, 1 << shift).expect("a valid layout");
            // SAFETY: the layout is not empty; the block is used within its size and freed with its layout.
            unsafe {
                let block = HEAP.alloc_zeroed(layout);
                assert!(!block.is_null());
                assert_eq!(block as usize % layout.align(), 0);
                assert!(std::slice::from_raw_parts(block, size).iter().all(|&byte| byte == 0));
                block.write_bytes(shift as u8 + 1, size);
                let moved = HEAP.realloc(block, layout, size * 2);
                assert_eq!(moved as usize % layout.align(), 0);
                assert!(std::slice::from_raw_parts(moved, size).iter().all(|&byte| byte == shift as u8 + 1));
                HEAP.dealloc(moved, Layout::from_size_align_unchecked(size * 2, 1 << shift));
            }
        }
    }
}

#[test]
fn what_cannot_be_had_is_null_and_an_error() {
    for size in [isize::MAX as usize - 15, 1 << 50] {
        for align in [1, 64, 1 << 16] {
            let Ok(layout) = Layout::from_size_align(size & !(align - 1), align) else { continue };
            // SAFETY: the layout is not empty.
            assert!(unsafe { HEAP.alloc(layout) }.is_null());
            // SAFETY: as above.
            assert!(unsafe { HEAP.alloc_zeroed(layout) }.is_null());
        }
        assert!(Vec::<u8>::new().try_reserve(size).is_err());
    }
    let mut list = vec![7_u8; 1000];
    assert!(list.try_reserve(1 << 50).is_err());
    assert_eq!(list, [7; 1000]);
}

#[test]
fn alignments_beyond_a_huge_page_are_refused() {
    let layout = Layout::from_size_align(100, 1 << 22).expect("a valid layout");
    // SAFETY: the layout is not empty.
    assert!(unsafe { HEAP.alloc(layout) }.is_null());
}

#[test]
fn threads_free_what_others_made() {
    let (sender, receiver) = mpsc::sync_channel::<Vec<String>>(16);
    let receiver = Arc::new(Mutex::new(receiver));
    thread::scope(|scope| {
        for maker in 0..4 {
            let sender = sender.clone();
            scope.spawn(move || {
                for round in 0..500 {
                    let parcel =
                        (0..50).map(|index| format!("{maker} {round} {index}").repeat(1 + index % 40));
                    sender.send(parcel.collect()).expect("somebody receives");
                }
            });
        }
        drop(sender);
        for _ in 0..3 {
            let receiver = Arc::clone(&receiver);
            scope.spawn(move || {
                loop {
                    let Ok(parcel) = receiver.lock().expect("no panic").recv() else { return };
                    for (index, text) in parcel.iter().enumerate() {
                        assert_eq!(text.matches(&format!(" {index}")).count().min(1), 1);
                    }
                }
            });
        }
    });
}

/// The number of this thread's heap, from a block of it: the owner of its page.
fn heap_number() -> u32 {
    let block = Box::new([0_u64; 6]);
    space().owner(&raw const *block as usize).expect("a block of ours")
}

#[test]
fn heaps_of_ended_threads_are_adopted() {
    let _alone = alone();
    let mut seen = HashSet::new();
    for _ in 0..200 {
        seen.insert(thread::spawn(heap_number).join().expect("no panic"));
    }
    // Other tests' threads take and leave heaps meanwhile.
    assert!(seen.len() < 60, "a heap of its own for almost every thread: {}", seen.len());
}

#[test]
fn values_outlive_the_thread_that_made_them() {
    let lists: Vec<_> = (0..50)
        .map(|index| thread::spawn(move || (0..1000).map(|item| (index, item).into()).collect::<Vec<Pair>>()))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .collect();
    for (index, list) in lists.into_iter().enumerate() {
        assert!(list.into_iter().enumerate().all(|(item, pair)| *pair.0 == (index, item)));
    }
}

/// A value with a block.
struct Pair(Box<(usize, usize)>);

impl From<(usize, usize)> for Pair {
    fn from(pair: (usize, usize)) -> Self {
        Self(Box::new(pair))
    }
}

thread_local! {
    static LATE: Late = Late(vec![1, 2, 3]);
}

static LATE_DROPS: AtomicUsize = AtomicUsize::new(0);

/// Allocates when its thread ends, perhaps after the thread's heap was left.
struct Late(Vec<u32>);

impl Drop for Late {
    fn drop(&mut self) {
        let copy: Vec<_> = self.0.iter().map(|item| item.to_string().repeat(50)).collect();
        assert_eq!(copy[2].len(), 50);
        LATE_DROPS.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn destructors_of_a_thread_may_allocate() {
    for _ in 0..20 {
        thread::spawn(|| LATE.with(|late| assert_eq!(late.0.len(), 3))).join().expect("no panic");
    }
    assert_eq!(LATE_DROPS.load(Ordering::Relaxed), 20);
}

/// Runs `work` in a forked child, and says whether it came to its end.
fn in_child(work: impl FnOnce()) -> bool {
    // SAFETY: the child runs `work` and leaves by `_exit`; it has this thread only, and this allocator is made
    // for that.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0, "fork failed");
        if child == 0 {
            // A child that waits for a lock of a thread that it does not have ends all the same.
            libc::alarm(60);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok();
            libc::_exit(if done { 0 } else { 1 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        if status != 0 {
            eprintln!("the child's status: {status:#x}");
        }
        status == 0
    }
}

/// Threads that allocate and free until they are told to stop; `body` runs beside them.
fn beside_busy_threads(body: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(4);
    thread::scope(|scope| {
        for index in 0..3_usize {
            let (stop, ready) = (&stop, &ready);
            scope.spawn(move || {
                let mut kept: VecDeque<Vec<u8>> = VecDeque::new();
                ready.wait();
                let mut round = index;
                while !stop.load(Ordering::Relaxed) {
                    round = round.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let bytes = [16, 48, 300, 2000, 9000][round >> 40 & 3] + (round >> 50 & 15);
                    kept.push_back(vec![index as u8; bytes]);
                    if kept.len() > 500 {
                        kept.drain(..100);
                    }
                }
            });
        }
        ready.wait();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn a_child_frees_all_that_it_inherited() {
    let _alone = alone();
    // Made by threads that live on in the parent, but do not exist in the child.
    let lists: Vec<Vec<String>> = thread::scope(|scope| {
        let makers: Vec<_> = (0..4_usize)
            .map(|maker| {
                scope.spawn(move || {
                    (0..2000).map(|item| format!("{maker}-{item}").repeat(1 + item % 30)).collect()
                })
            })
            .collect();
        makers.into_iter().map(|maker| maker.join().expect("no panic")).collect()
    });
    beside_busy_threads(|| {
        for _ in 0..30 {
            let inherited = &lists;
            assert!(in_child(|| {
                // SAFETY: the child's copy; the parent keeps its own, and this one is forgotten by `_exit`.
                let mine = unsafe { std::ptr::read(inherited) };
                for (maker, list) in mine.into_iter().enumerate() {
                    assert!(list[7].starts_with(&format!("{maker}-7")));
                    drop(list);
                }
                let again: Vec<_> = (0..5000).map(|item| vec![item as u8; 1 + item % 3000]).collect();
                assert!(
                    again
                        .iter()
                        .enumerate()
                        .all(|(item, bytes)| bytes.iter().all(|&byte| byte == item as u8))
                );
                // SAFETY: for this call.
                unsafe { thread_heap() }.expect("it has one").trim();
            }));
        }
    });
    assert!(lists.iter().all(|list| list.len() == 2000));
}

#[test]
fn a_child_adopts_the_heaps_of_threads_that_it_does_not_have() {
    let _alone = alone();
    beside_busy_threads(|| {
        for _ in 0..20 {
            assert!(in_child(|| {
                let (mut heaps, mut blocks) = (Vec::new(), Vec::new());
                for _ in 0..8 {
                    let mut heap = space().acquire().expect("memory");
                    for bytes in [16, 48, 300, 2000] {
                        blocks.extend((0..500).map(|_| (heap.allocate(bytes).expect("memory"), bytes)));
                    }
                    heaps.push(heap);
                }
                let starts: HashSet<_> = blocks.iter().map(|&(block, _)| block).collect();
                assert_eq!(starts.len(), blocks.len(), "a block was handed out twice");
                for (index, &(block, bytes)) in blocks.iter().enumerate() {
                    // SAFETY: just handed out with that many bytes.
                    unsafe { block.write_bytes(index as u8, bytes) };
                }
                for (index, &(block, bytes)) in blocks.iter().enumerate() {
                    // SAFETY: as above.
                    let found = unsafe { std::slice::from_raw_parts(block.as_ptr(), bytes) };
                    assert!(found.iter().all(|&byte| byte == index as u8), "overwritten");
                    // SAFETY: live and not used any more.
                    unsafe { space().free(block) };
                }
            }));
        }
    });
}

/// A heap is not busy while it takes or keeps a run, so each of the two is one step for a fork.
#[test]
fn a_child_adopts_a_heap_that_was_taking_or_keeping_a_run() {
    let _alone = alone();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // By turns, so that some are kept.
                let runs = [20_000, 40_000, 20_001].map(Vec::<u8>::with_capacity);
                assert!(runs.iter().all(|run| run.capacity() >= 20_000));
            }
        });
        let adopted = (0..400).all(|_| {
            in_child(|| {
                for mut heap in (0..4).map(|_| space().acquire().expect("memory")) {
                    let blocks: Vec<_> = (0..8).map(|_| heap.allocate(20_000).expect("memory")).collect();
                    let starts: HashSet<_> = blocks.iter().collect();
                    assert_eq!(starts.len(), blocks.len(), "a run was handed out twice");
                    // SAFETY: just handed out.
                    blocks.into_iter().for_each(|block| unsafe { heap.free(block) });
                    let kept = heap.trim();
                    assert!((4 * 32_768..1 << 20).contains(&kept), "{kept} bytes were kept");
                }
            })
        });
        stop.store(true, Ordering::Relaxed);
        assert!(adopted);
    });
}

#[test]
fn a_child_can_have_threads_and_children() {
    let _alone = alone();
    let kept: Vec<_> = (0..1000).map(|item| item.to_string()).collect();
    assert!(in_child(|| {
        let sums: Vec<usize> = (0..4)
            .map(|_| thread::spawn(|| (0..1000).map(|item| item.to_string().len()).sum()))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect();
        assert_eq!(sums, [2890; 4]);
        assert!(in_child(|| assert_eq!(kept[999], "999")));
    }));
}

#[test]
fn a_handle_of_the_forking_thread_stays_its_own_in_the_child() {
    let _alone = alone();
    let mut heap = space().acquire().expect("memory");
    let number = |block: std::ptr::NonNull<u8>| space().owner(block.as_ptr() as usize);
    let mine = number(heap.allocate(48).expect("memory"));
    assert!(in_child(|| {
        let mut others: Vec<_> = (0..200).map(|_| space().acquire().expect("memory")).collect();
        for other in &mut others {
            assert_ne!(number(other.allocate(48).expect("memory")), mine, "two owners");
        }
    }));
}

#[test]
fn aligned_blocks_are_resized_where_they_are_and_stay_aligned() {
    let mut moves = 0;
    for align in [32, 64, 4096, 16384, 65536] {
        let mut layout = Layout::from_size_align(50, align).expect("a layout");
        // SAFETY: each layout is that of the block, and each byte is written before it is read.
        unsafe {
            let mut block = HEAP.alloc_zeroed(layout);
            for size in [60, 5000, 8193, 20_000, 21_000, 100_000, 2 << 20, 3 << 20, 30_000, 16_000, 8000, 70]
            {
                assert!(
                    (0..layout.size().min(50))
                        .all(|index| *block.add(index) == index as u8 * u8::from(layout.size() != 50))
                );
                (0..50).for_each(|index| *block.add(index) = index as u8);
                let moved = HEAP.realloc(block, layout, size);
                assert!(!moved.is_null() && moved as usize % align == 0, "{size} bytes, aligned to {align}");
                moves += usize::from(moved != block);
                (block, layout) = (moved, Layout::from_size_align(size, align).expect("a layout"));
                (0..50).for_each(|index| assert_eq!(*block.add(index), index as u8));
            }
            HEAP.dealloc(block, layout);
            for size in [50, 20_000, 3 << 20] {
                let layout = Layout::from_size_align(size, align).expect("a layout");
                let dirty = HEAP.alloc(layout);
                dirty.write_bytes(9, size);
                HEAP.dealloc(dirty, layout);
                let zeroed = HEAP.alloc_zeroed(layout);
                assert!(
                    zeroed as usize % align == 0 && (0..size).all(|index| *zeroed.add(index) == 0),
                    "{size}"
                );
                HEAP.dealloc(zeroed, layout);
            }
        }
    }
    assert!(moves < 5 * 12, "some stay");
}
