//! Frees by other threads, heaps of ended threads, many threads at once.

use super::super::heap::Own;
use super::super::tag;
use super::*;
use core::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;

impl Heap<World> {
    pub(super) fn state(&self) -> u32 {
        self.shared().state.load(Ordering::SeqCst)
    }

    fn inbox_is_empty(&self) -> bool {
        // SAFETY: nobody else uses the heap meanwhile.
        let queues = unsafe { (*self.core.as_ptr()).own.queues_are_empty() };
        queues && self.shared().inbox.first.load(Ordering::SeqCst) == 0
    }

    /// Uses up pages of blocks of that size, in which nobody else frees, until it was time to look at the queues.
    pub(super) fn use_up_until_queues_are_looked_at(&mut self, bytes: usize) {
        // SAFETY: nobody else uses the heap meanwhile.
        let patience = |heap: &Self| unsafe { Own::progress(&raw const (*heap.core.as_ptr()).own).patience };
        let mut before = patience(self);
        for _ in 0..10_000 {
            let page = self.take_many(HEAP_PAGE_BYTES / bytes + 1, bytes);
            self.give_all(page);
            let now = patience(self);
            if now > before {
                return;
            }
            before = now;
        }
        panic!("nobody looked at the queues");
    }
}

/// Blocks on the way to another thread.
struct Parcel(Vec<NonNull<u8>>);

// SAFETY: the sender does not use the blocks any more.
unsafe impl Send for Parcel {}

/// Sizes of all kinds: small and medium blocks, page runs, large blocks.
const SIZES: [usize; 8] = [16, 48, 200, 512, 1000, 5000, 30_000, 2_500_000];

/// It is in no list before, nor is it put into one.
#[test]
fn a_full_page_of_which_others_freed_all_blocks_is_spare_and_not_noted_as_full() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let blocks = heap.take_many(1000, 48);
    let page = space.page(page_of(blocks[0])).expect("it has blocks");
    assert!(page.mark().is_full());
    other.give_all(blocks.iter().copied().filter(|&block| page_of(block) == page.address()));
    // Freed in a page that is pending: all are collected.
    heap.give(blocks[999]).expect("live");
    other.give(blocks[998]).expect("live");
    heap.give(blocks[997]).expect("live");
    assert_eq!((tag::class(page.tag()), page.mark().is_full()), (tag::SPARE, false));
    heap.give_all(blocks[..997].iter().copied().filter(|&block| page_of(block) != page.address()));
    heap.check_empty();
}

#[test]
fn heaps_in_use_are_those_that_somebody_owns() {
    let (space, heap) = heap();
    let other = space.acquire().expect("memory");
    assert_eq!(space.heaps_in_use(), 2);
    drop(heap);
    assert_eq!(space.heaps_in_use(), 1, "it waits");
    let adopted = space.acquire().expect("memory");
    assert_eq!(space.heaps_in_use(), 2);
    drop((other, adopted));
    assert_eq!(space.heaps_in_use(), 0);
}

/// Each took more than the one before, up to 16 pages for one block.
#[test]
fn a_heap_that_is_used_again_takes_as_few_pages_as_the_first() {
    let (space, heap) = heap();
    drop(heap);
    for _ in 0..20 {
        let mut heap = space.acquire().expect("memory");
        let block = heap.take(100);
        assert_eq!(space.source().arenas.lock().snapshot().live, HEAP_PAGE_BYTES as u64);
        // SAFETY: nobody uses it.
        unsafe { heap.free(block) };
    }
}

/// It was stopped after it had looked at the tag. The page lost the tag of what it is now.
#[test]
fn who_frees_a_run_that_another_thread_freed_before_and_is_something_else_by_now_is_told() {
    let (space, mut owner) = heap();
    let run = owner.take(HEAP_PAGE_BYTES);
    let page = space.page(at(run)).expect("known");
    let seen = page.tag();
    // SAFETY: nobody uses it.
    unsafe { space.free(run) };
    owner.take_handed();
    owner.trim();
    assert_eq!(page.tag(), 0);
    // The arenas hand the page out again, to another heap, which cuts it, and a block lives there.
    let now = tag::tag(tag::heap(seen) + 1, 3);
    page.vacant()[0].store(!1, Ordering::Relaxed);
    page.mark().tag.store(now, Ordering::Relaxed);
    assert!(matches!(space.free_run_remote(page, seen, at(run)), Err(Mistake::TwoThreads { .. })));
    assert_eq!(page.tag(), now);
}

#[test]
fn what_others_freed_is_used_again() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    // Whole pages: with a rest at hand one of those in which others freed is not needed, and waits.
    const BLOCKS: usize = 80 * (HEAP_PAGE_BYTES / 64);
    let blocks = heap.take_many(BLOCKS, 64);
    let before = live(space);
    other.give_all(blocks.iter().copied());
    heap.check();
    other.check();
    assert!(!heap.inbox_is_empty());
    let again = heap.take_many(BLOCKS, 64);
    assert!(
        live(space) <= before + (usize::from(super::super::spares::FIRST_MOST) * HEAP_PAGE_BYTES) as u64,
        "{}",
        live(space)
    );
    assert!(heap.inbox_is_empty());
    heap.check();
    other.give_all(again);
    heap.check_empty();
    assert_eq!(other.page_count(), 0);
}

#[test]
fn pages_of_heaps_that_grow_together_share_no_cache_line_of_marks() {
    let (space, _first) = heap();
    let mut heaps: Vec<_> = (0..4).map(|_| space.acquire().expect("memory")).collect();
    let mut blocks: Vec<Vec<_>> = vec![Vec::new(); heaps.len()];
    // By turns; three quarters of an arena together.
    for _ in 0..24 {
        for (heap, blocks) in heaps.iter_mut().zip(&mut blocks) {
            blocks.extend(heap.take_many(HEAP_PAGE_BYTES / 512, 512));
        }
    }
    let lines = |blocks: &[NonNull<u8>]| -> BTreeSet<usize> {
        blocks.iter().map(|&block| at(block) / HEAP_PAGE_BYTES / 8).collect()
    };
    let all: Vec<_> = blocks.iter().flat_map(|blocks| lines(blocks)).collect();
    let distinct: BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len(), "lines of eight marks, each of one heap");
    for (heap, blocks) in heaps.iter_mut().zip(blocks) {
        heap.give_all(blocks);
        heap.check();
    }
}

#[test]
fn a_block_is_collected_once_however_often_its_page_is_announced() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    for bytes in [48, 1000] {
        let blocks = heap.take_many(2000, bytes);
        for (index, &block) in blocks.iter().enumerate() {
            other.give(block).expect("live");
            if index % 7 == 0 {
                let one = heap.take(bytes);
                heap.check();
                heap.give(one).expect("live");
            }
            if index % 100 == 0 {
                heap.trim();
                heap.check();
            }
        }
    }
    heap.check_empty();
}

#[test]
fn pages_wait_pending_until_their_class_needs_blocks_and_the_first_is_taken_first() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let per_page = HEAP_PAGE_BYTES / 64;
    let blocks = heap.take_many(4 * per_page, 64);
    let mut stays = heap.take_many(1, 1000);
    other.give_all(blocks.iter().copied());
    // Another class that has blocks collects none of them.
    stays.extend(heap.take_many(10, 1000));
    assert!(!heap.inbox_is_empty());
    // One page is enough for one block: the one that was announced first.
    let one = heap.take(64);
    assert_eq!(page_of(one), page_of(blocks[0]));
    assert!(!heap.inbox_is_empty());
    heap.check();
    heap.give_all(stays);
    heap.give(one).expect("live");
    heap.check_empty();
}

#[test]
fn what_others_freed_is_collected_for_every_class_before_the_heap_grows() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let blocks = heap.take_many(20_000, 64);
    let before = live(space);
    other.give_all(blocks);
    // More pages than the heap keeps, and fewer than it uses up until it collects everything anyway.
    const PAGES: usize = 2 * super::super::spares::FIRST_MOST as usize;
    let others = heap.take_many(PAGES * HEAP_PAGE_BYTES / 1024, 1024);
    assert!(live(space) <= before, "{} after {before}", live(space));
    heap.check();
    heap.give_all(others);
    heap.check_empty();
}

#[test]
fn what_others_freed_does_not_wait_for_a_class_that_is_used_no_more() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let blocks = heap.take_many(20_000, 64);
    let mut keep = heap.take_many(1000, 1024);
    other.give_all(blocks);
    let before = heap.page_count();
    // Ever the same memory of another class.
    for _ in 0..100 {
        heap.give_all(keep);
        keep = heap.take_many(1000, 1024);
    }
    assert!(heap.inbox_is_empty());
    assert!(heap.page_count() < before * 2 / 3, "{} of {before} pages", heap.page_count());
    heap.check();
}

#[test]
fn pages_that_a_class_comes_to_soon_wait_and_those_beyond_are_collected() {
    // Of the second one spare pages are begun by a shorter way.
    for bytes in [64, 2048] {
        const PAGES: usize = 100;
        const FEW: usize = 10;
        let (space, mut heap) = heap();
        let mut other = space.acquire().expect("memory");
        let per_page = HEAP_PAGE_BYTES / bytes;
        let blocks = heap.take_many(PAGES * per_page, bytes);
        let (theirs, own) = blocks.split_at(PAGES / 2 * per_page);
        other.give_all(theirs.iter().copied());
        // It has used up more pages than wait, so it may come to all of them.
        heap.use_up_until_queues_are_looked_at(1024);
        assert_eq!(heap.own().queued(), PAGES / 2, "{bytes} bytes");
        heap.check();
        // Now it has used up few: those wait that had the least time for more free blocks.
        let again = heap.take_many(FEW * per_page, bytes);
        assert_eq!(page_of(again[0]), page_of(theirs[0]), "announced first");
        heap.use_up_until_queues_are_looked_at(1024);
        assert_eq!(heap.own().queued(), FEW, "{bytes} bytes");
        let last = heap.own().queued_pages().last().expect("some wait");
        assert_eq!(last.address(), page_of(theirs[theirs.len() - 1]));
        heap.check();
        // And now none.
        heap.use_up_until_queues_are_looked_at(1024);
        assert_eq!(heap.own().queued(), 0, "{bytes} bytes");
        heap.give_all(again);
        heap.give_all(own.iter().copied());
        heap.check_empty();
    }
}

#[test]
fn a_page_in_which_others_freed_is_found_again_when_all_is_collected_just_as_it_is_used_up() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    // Four to a page: often enough that each thing that is done now and then is done with such a page at hand.
    for _ in 0..1000 {
        let block = heap.take(4000);
        other.give(block).expect("live");
        heap.check();
    }
    heap.check_empty();
}

#[test]
fn others_free_in_the_open_window_and_the_page_at_hand() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let blocks = heap.take_many(10, 48);
    other.give(blocks[3]).expect("live");
    heap.check();
    // The owner's window is open all the time; it frees and takes beside it.
    heap.give(blocks[4]).expect("live");
    heap.check();
    let more = heap.take_many(400, 48);
    heap.check();
    heap.give_all(more);
    heap.give_all(blocks[5..].iter().copied());
    heap.give_all(blocks[..3].iter().copied());
    heap.check_empty();
}

#[test]
fn the_owner_frees_the_rest_of_a_page_that_is_pending() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    for bytes in [64, 1024] {
        let blocks = heap.take_many(4 * HEAP_PAGE_BYTES / bytes, bytes);
        for page in blocks.chunks(HEAP_PAGE_BYTES / bytes) {
            other.give(page[0]).expect("live");
            heap.give_all(page[1..].iter().copied());
            heap.check();
        }
    }
    heap.check_empty();
}

#[test]
fn a_thread_that_ends_leaves_its_blocks_live() {
    let space = space();
    let parcel = thread::spawn(move || {
        let mut heap = space.acquire().expect("memory");
        let blocks: Vec<_> = SIZES.iter().flat_map(|&bytes| heap.take_many(5, bytes)).collect();
        for (index, &block) in blocks.iter().enumerate() {
            fill(block, SIZES[index / 5], index as u8);
        }
        Parcel(blocks)
    })
    .join()
    .expect("no panic");
    let mut adopted = space.acquire().expect("memory");
    assert_eq!(adopted.number(), 1, "the heap of the ended thread");
    adopted.check();
    for (index, block) in parcel.0.into_iter().enumerate() {
        assert!(holds(block, SIZES[index / 5], index as u8));
        adopted.give(block).expect("live");
    }
    adopted.check_empty();
}

#[test]
fn a_waiting_heap_keeps_no_page_without_blocks() {
    let (space, mut heap) = heap();
    let blocks: Vec<_> = SIZES.iter().flat_map(|&bytes| heap.take_many(20, bytes)).collect();
    heap.give_all(blocks);
    drop(heap);
    assert_eq!(live(space), 0);
}

#[test]
fn what_is_freed_in_a_waiting_heap_is_collected_at_once() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let blocks = heap.take_many(10_000, 64);
    drop(heap);
    for (index, page) in blocks.chunks(HEAP_PAGE_BYTES / 64).enumerate() {
        let before = live(space);
        other.give_all(page.iter().copied());
        assert!(live(space) < before, "page {index}: nothing came back");
    }
    assert_eq!(live(space), 0);
    let mut adopted = space.acquire().expect("memory");
    assert_eq!(adopted.number(), 1);
    adopted.check_empty();
}

#[test]
fn heaps_are_adopted_before_new_ones_are_made() {
    let space = space();
    let mut heaps: Vec<_> = (0..20).map(|_| space.acquire().expect("memory")).collect();
    let numbers: Vec<_> = heaps.iter_mut().map(|heap| heap.number()).collect();
    assert_eq!(numbers, (1..=20).collect::<Vec<_>>());
    heaps.drain(5..8);
    let mut again: Vec<_> =
        (0..3).map(|_| space.acquire().expect("memory").number_and(|heap| heap)).collect();
    again.sort_by_key(|&(number, _)| number);
    assert_eq!(again.iter().map(|&(number, _)| number).collect::<Vec<_>>(), [6, 7, 8]);
    assert_eq!(space.acquire().expect("memory").number(), 21);
}

impl Heap<World> {
    fn number_and<T>(mut self, keep: impl FnOnce(Self) -> T) -> (u32, T) {
        (self.number(), keep(self))
    }
}

#[test]
fn a_thread_without_a_heap_can_free() {
    let (space, mut heap) = heap();
    let blocks: Vec<_> = SIZES.iter().flat_map(|&bytes| heap.take_many(50, bytes)).collect();
    let parcel = Parcel(blocks);
    thread::spawn(move || {
        let parcel = parcel;
        for block in parcel.0 {
            // SAFETY: live and not used any more.
            unsafe { space.free(block) };
        }
    })
    .join()
    .expect("no panic");
    heap.check_empty();
}

#[test]
fn page_runs_change_hands() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    for bytes in [15_000, 30_000, 48_000, 131_072, 131_073, 1 << 20] {
        let runs = heap.take_many(10, bytes);
        // Kept by their heap, and used again.
        heap.give(runs[0]).expect("live");
        heap.check();
        assert_eq!(other.give(runs[0]), Err(Mistake::NotLive { bytes: 0 }), "{bytes}");
        let again = heap.take(bytes);
        heap.check();
        // Freed by others: by one with a heap and one without.
        other.give_all(runs[1..5].iter().copied());
        for &run in &runs[5..] {
            // SAFETY: live and not used any more.
            unsafe { space.free(run) };
        }
        for &run in &runs[1..] {
            assert_eq!(heap.give(run), Err(Mistake::NotLive { bytes: 0 }), "{bytes}");
            assert_eq!(other.give(run), Err(Mistake::NotLive { bytes: 0 }), "{bytes}");
        }
        other.give(again).expect("live");
        heap.check();
        other.check();
    }
    heap.check_empty();
}

#[test]
fn page_runs_of_a_waiting_heap_go_back_when_they_are_freed() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let runs = heap.take_many(50, 30_000);
    drop(heap);
    other.give_all(runs);
    assert_eq!(live(space), 0);
    let mut adopted = space.acquire().expect("memory");
    assert_eq!(adopted.number(), 1);
    adopted.check_empty();
}

/// A little generator: what matters is that threads do different things.
pub(super) fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn threads_that_send_blocks_to_each_other_lose_none() {
    const THREADS: usize = 4;
    const ROUNDS: u64 = 300;
    let space = space();
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel::<Parcel>()).unzip();
    thread::scope(|scope| {
        for (index, receiver) in receivers.into_iter().enumerate() {
            let senders = senders.clone();
            scope.spawn(move || {
                let mut heap = space.acquire().expect("memory");
                let mut state = 1 + index as u64;
                for _ in 0..ROUNDS {
                    let bytes = SIZES[random(&mut state) as usize % 6];
                    let blocks = heap.take_many(random(&mut state) as usize % 100, bytes);
                    for &block in &blocks {
                        // The first bytes say what is in the rest.
                        fill(block, bytes, bytes as u8);
                        // SAFETY: the block is this thread's and has 16 bytes at least.
                        unsafe { block.cast::<usize>().write(bytes) };
                    }
                    let to = random(&mut state) as usize % THREADS;
                    // The receiver may have ended: then the parcel is this thread's again.
                    if let Err(mpsc::SendError(parcel)) = senders[to].send(Parcel(blocks)) {
                        heap.give_all(parcel.0);
                    }
                    while let Ok(parcel) = receiver.try_recv() {
                        for block in parcel.0 {
                            // SAFETY: the block came with the parcel.
                            let bytes = unsafe { block.cast::<usize>().read() };
                            assert!(holds(pointer(at(block) + 8), bytes - 8, bytes as u8));
                            heap.give(block).expect("live");
                        }
                    }
                }
                drop(senders);
                for parcel in receiver {
                    heap.give_all(parcel.0);
                }
            });
        }
        drop(senders);
    });
    // All heaps wait: what was freed in them was collected.
    for _ in 0..THREADS {
        let mut heap = space.acquire().expect("memory");
        heap.check();
        core::mem::forget(heap);
    }
    assert_eq!(live(space), 0);
}

#[test]
fn many_threads_come_and_go() {
    let space = space();
    let mut left: Vec<Parcel> = Vec::new();
    for round in 0..20 {
        let threads: Vec<_> = (0..8)
            .map(|index| {
                let inherited = left.pop();
                thread::spawn(move || {
                    let mut heap = space.acquire().expect("memory");
                    let blocks = heap.take_many(300, SIZES[(round + index) % 6]);
                    if let Some(parcel) = inherited {
                        heap.give_all(parcel.0);
                    }
                    Parcel(blocks)
                })
            })
            .collect();
        left.extend(threads.into_iter().map(|thread| thread.join().expect("no panic")));
    }
    // Eight at a time. One that waits is passed over while another thread collects what was freed in it
    // remotely, which each may do once at a time.
    assert!(space.registry.numbers().end <= 17, "heaps are adopted: {:?}", space.registry.numbers());
    for parcel in left {
        for block in parcel.0 {
            // SAFETY: live and not used any more.
            unsafe { space.free(block) };
        }
    }
    assert_eq!(live(space), 0);
}

#[test]
fn owners_and_others_free_in_the_same_pages() {
    let space = space();
    for bytes in [32, 48, 1024] {
        thread::scope(|scope| {
            let mut heap = space.acquire().expect("memory");
            let (sender, receiver) = mpsc::channel::<Parcel>();
            scope.spawn(move || {
                let mut other = space.acquire().expect("memory");
                for parcel in receiver {
                    other.give_all(parcel.0);
                }
            });
            for _ in 0..200 {
                let blocks = heap.take_many(200, bytes);
                let (theirs, mine): (Vec<_>, Vec<_>) =
                    blocks.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
                let parcel = Parcel(theirs.into_iter().map(|(_, block)| block).collect());
                sender.send(parcel).expect("the thread waits");
                heap.give_all(mine.into_iter().map(|(_, block)| block));
            }
        });
        assert_eq!(live(space), 0, "{bytes} bytes");
    }
}

#[test]
fn the_state_of_a_heap_says_who_has_it() {
    let (space, heap) = heap();
    assert_eq!(heap.state(), super::super::registry::OWNED);
    let shared = space.registry.shared::<World>(1).expect("made");
    drop(heap);
    assert_eq!(shared.state.load(Ordering::SeqCst), super::super::registry::WAITING);
}
