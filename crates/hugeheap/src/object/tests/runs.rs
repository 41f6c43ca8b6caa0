//! Page runs that heaps keep: used again without the arenas, handed back by other threads, and given up when
//! nobody needs them.

use super::super::handed::handed;
use super::super::lengths::{KIB, length_of};
use super::super::registry::WAITING;
use super::threads::random;
use super::*;
use crate::arena::ARENA_BYTES;
use core::sync::atomic::Ordering;
use hugeheap_os::simulated::Call;

/// Heap pages that any heap may keep in runs, and one that shows that it needs them.
const ANY: u64 = 32;
const MOST: u64 = 512;

/// What a thread may have handed to it.
const HANDED: usize = 128;

/// How often runs were taken from the arenas.
fn asked(space: &Space<World>) -> u64 {
    space.source().arenas.lock().snapshot().allocations
}

fn pages(space: &Space<World>) -> u64 {
    live(space) / HEAP_PAGE_BYTES as u64
}

impl Heap<World> {
    /// Takes so many, and frees them.
    fn up_and_down(&mut self, count: usize, bytes: usize) {
        let all = self.take_many(count, bytes);
        self.give_all(all);
    }
}

/// Who only takes small blocks never misses a run: what others freed of these would wait for good.
#[test]
fn a_run_that_others_freed_is_taken_when_the_queues_are_looked_at() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let run = heap.take(100_000);
    other.give(run).expect("live");
    assert!(!heap.own().keeps_run(at(run)));
    heap.use_up_until_queues_are_looked_at(1024);
    assert!(heap.own().keeps_run(at(run)));
    heap.check();
    heap.check_empty();
}

/// Of runs and of blocks of spans: kept, spilled, too long to be kept, and given back.
#[test]
fn what_lives_is_what_was_taken_and_not_freed() {
    for bytes in [5_000, 12_000, 30_000, 100_000, 500_000, 700_000] {
        let (_, mut heap) = heap();
        let kib = KIB[length_of(bytes).expect("one of them")];
        let blocks = heap.take_many(60, bytes);
        assert_eq!(heap.own().runs.live(), 60 * kib, "{bytes} bytes");
        heap.give_all(blocks[30..].iter().copied());
        assert_eq!(heap.own().runs.live(), 30 * kib, "{bytes} bytes");
        heap.give_all(blocks[..30].iter().copied());
        assert_eq!(heap.own().runs.live(), 0, "{bytes} bytes");
        heap.trim();
        assert_eq!(heap.own().runs.live(), 0, "{bytes} bytes, and nothing is kept");
        heap.check_empty();
    }
    // With one block of a span come others, for which there is no room.
    let (_, mut heap) = heap();
    heap.up_and_down(16, 32 << 10);
    assert_eq!(heap.own().runs.kib(), 512);
    let block = heap.take(5_000);
    assert_eq!(heap.own().runs.live(), KIB[length_of(5_000).expect("one of them")]);
    heap.give(block).expect("live");
    heap.check_empty();
}

/// One that became shorter was counted with the length that it had once: what is kept would have gone by blocks
/// that did not live.
#[test]
fn what_was_resized_lives_with_the_length_it_has() {
    let (_, mut heap) = heap();
    for (bytes, resized, live) in [(400_000, 100_000, 112), (600_000, 40_000, 48), (200_000, 3_000_000, 0)] {
        let mut run = heap.take(bytes);
        // SAFETY: live, and not used any more by its first address.
        run = unsafe { heap.try_reallocate(run, resized) }.expect("live").expect("memory");
        assert_eq!(heap.own().runs.live(), live, "{bytes} bytes, {resized} now");
        heap.give(run).expect("live");
        assert_eq!(heap.own().runs.live(), 0, "{bytes} bytes, {resized} then");
    }
    heap.check_empty();
}

#[test]
fn of_many_runs_that_replace_each_other_a_part_is_kept_and_few_are_asked_for() {
    let (space, mut heap) = heap();
    let mut state = 1;
    let mut random = || random(&mut state) as usize;
    let mut live: Vec<_> = (0..1500).map(|_| heap.take(8_000 + random() % 32_000)).collect();
    let mut before = 0;
    for round in 0..20_000 {
        if round == 10_000 {
            before = asked(space);
        }
        let gone = live.swap_remove(random() % live.len());
        heap.give(gone).expect("live");
        live.push(heap.take(8_000 + random() % 32_000));
    }
    let asked = asked(space) - before;
    assert!(asked < 10_000 / 40, "{asked} of 10000");
    heap.check();
    heap.give_all(live);
    heap.check_empty();
}

#[test]
fn buffers_that_come_and_go_are_had_without_the_arenas() {
    for (count, bytes) in [(100, 16 << 10), (20, 100_000), (8, 500_000), (1, 200_000)] {
        let (space, mut heap) = heap();
        (0..6).for_each(|_| heap.up_and_down(count, bytes));
        let before = asked(space);
        (0..10).for_each(|_| heap.up_and_down(count, bytes));
        assert_eq!(asked(space), before, "{count} of {bytes} bytes");
        assert!(pages(space) <= MOST);
        heap.check();
        heap.check_empty();
    }
}

/// Each was a large block: an arena of its own, made of OS pages by three system calls.
#[test]
fn what_was_aligned_to_more_than_a_heap_page_had_an_arena_each() {
    for (bytes, align) in
        [(32 << 10, 32 << 10), (64 << 10, 64 << 10), (250_000, 64 << 10), (512 << 10, 512 << 10)]
    {
        let (space, mut heap) = heap();
        let mut state = 7;
        let take = |heap: &mut Heap<World>| {
            let block = heap.allocate_aligned(bytes, align).expect("memory");
            assert_eq!(at(block) % align, 0, "{bytes} bytes");
            assert!(heap.usable_size(block).expect("live") >= bytes);
            block
        };
        let mut blocks: Vec<_> = (0..60).map(|_| take(&mut heap)).collect();
        let arenas = space.source().arenas.lock().snapshot().arenas;
        let needed = 60 * bytes.next_multiple_of(align).div_ceil(HEAP_PAGE_BYTES) as u64;
        assert!(arenas <= needed / 128 + 2, "{arenas} arenas for {bytes} bytes");
        // Others take what lies between, and what is replaced finds the places of others.
        for _ in 0..500 {
            let place = random(&mut state) as usize % blocks.len();
            heap.give(blocks[place]).expect("live");
            let between = heap.allocate(20 << 10).expect("memory");
            blocks[place] = take(&mut heap);
            heap.give(between).expect("live");
        }
        let after = space.source().arenas.lock().snapshot().arenas;
        assert!(after <= arenas + 2, "{after} arenas after {arenas}, for {bytes} bytes");
        heap.check();
        heap.give_all(blocks);
        heap.check_empty();
    }
}

/// What needs less than its alignment would leave the rest of a huge page to nobody.
#[test]
fn a_block_that_would_leave_much_between_itself_and_the_next_is_alone() {
    for (bytes, align) in [(100, 64 << 10), (48 << 10, 32 << 10), (32 << 10, 64 << 10)] {
        let (_, mut heap) = heap();
        let blocks: Vec<_> = (0..3).map(|_| heap.allocate_aligned(bytes, align).expect("memory")).collect();
        assert!(blocks.iter().all(|&block| at(block) % ARENA_BYTES == 0), "{bytes} aligned to {align}");
        heap.give_all(blocks);
        heap.check_empty();
    }
}

#[test]
fn a_program_that_needs_many_once_keeps_few() {
    let (space, mut heap) = heap();
    for bytes in [30_000, 20_000] {
        heap.up_and_down(1000, bytes);
        // Of a span all pages stay where one of its blocks does.
        assert!(pages(space) <= ANY + 4, "{}", pages(space));
    }
    heap.check_empty();
}

#[test]
fn what_others_freed_is_taken_by_its_heap_again() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let mut before = 0;
    for round in 0..20 {
        let buffers = heap.take_many(30, 60_000);
        buffers.iter().for_each(|&buffer| fill(buffer, 60_000, round));
        if round == 2 {
            before = asked(space);
        }
        assert!(buffers.iter().all(|&buffer| holds(buffer, 60_000, round)));
        other.give_all(buffers.iter().copied());
        for &buffer in &buffers {
            assert!(other.give(buffer).is_err(), "freed twice by the same thread");
            assert!(heap.give(buffer).is_err(), "freed by the owner as well");
            assert!(heap.usable_size(buffer).is_err());
        }
        heap.check();
        other.check();
    }
    assert_eq!(asked(space), before);
    other.check();
    heap.check_empty();
}

/// Neither saw the other: the run was in the list of the heap twice, handed out twice, and nobody was told.
#[test]
fn a_run_that_its_owner_and_another_thread_free_at_the_same_instant_is_found_out() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let twice = |bytes| Mistake::TwoThreads { bytes };
    // The other thread was stopped after it had found the run live.
    let run = heap.take(65_536);
    let page = space.page(at(run)).expect("known");
    let tag = page.tag();
    heap.give(run).expect("live");
    assert_eq!(space.free_checked_run(page, tag), Err(twice(65_536)));
    // The owner was.
    let run = heap.take(131_072);
    let page = space.page(at(run)).expect("known");
    other.give(run).expect("live");
    assert_eq!(handed(page).map(|run| run.address), Ok(at(run)));
    page.vacant()[0].store(0, Ordering::Relaxed);
    heap.give(run).expect("found live");
    assert_eq!(handed(page), Err(twice(131_072)));
    assert_eq!(heap.take(131_072), run);
    assert_eq!(handed(page), Err(twice(131_072)), "also when it was handed out again");
    // Not its own any more.
    page.vacant()[0].store(3, Ordering::Relaxed);
    page.mark().tag.store(0, Ordering::Relaxed);
    assert!(handed(page).is_err());
    // It would end the process for that.
    std::mem::forget(heap);
}

#[test]
fn who_does_not_come_is_handed_no_more_than_two_mebibytes() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let buffers = heap.take_many(50, 128 << 10);
    other.give_all(buffers);
    assert_eq!(pages(space), HANDED as u64);
    heap.check();
    // All of it is known to its heap, whether that has room for it or not.
    let again = heap.take_many(50, 128 << 10);
    heap.check();
    heap.give_all(again);
    heap.check_empty();
}

#[test]
fn a_heap_that_nobody_owns_is_handed_nothing() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let buffers = heap.take_many(40, 48_000);
    other.give_all(buffers[..10].iter().copied());
    drop(heap);
    assert_eq!(pages(space), 30 * 3, "what was handed over goes with its owner");
    other.give_all(buffers[10..].iter().copied());
    assert_eq!(pages(space), 0);
    other.check_empty();
}

/// Handed over when its owner was still there, and pushed when it had gone: who does that collects it.
#[test]
fn what_is_handed_over_while_the_owner_leaves_is_collected() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let buffer = heap.take(48_000);
    // The first that is handed over is told to the arenas: then the owner goes.
    space.source().when_asked(move || drop(heap));
    other.give(buffer).expect("live");
    assert!(space.source().asked());
    let shared = space.registry.shared::<World>(1).expect("made");
    assert_eq!(shared.state.load(Ordering::Relaxed), WAITING);
    assert_eq!((shared.inbox.runs.load(Ordering::Relaxed), pages(space)), (0, 0));
    other.check_empty();
}

#[test]
fn what_a_sleeping_owner_keeps_goes_in_two_looks() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    (0..6).for_each(|_| heap.up_and_down(100, 30_000));
    let buffers = heap.take_many(20, 50_000);
    other.give_all(buffers);
    assert!(pages(space) > 200, "{}", pages(space));
    let mut looks = 0;
    while space.give_surplus_runs(true) {
        looks += 1;
        heap.check();
    }
    assert!(looks <= 2 && pages(space) == 0, "{looks} looks, {} pages", pages(space));
    // It goes on as if nothing had happened.
    (0..6).for_each(|_| heap.up_and_down(100, 30_000));
    heap.check();
    other.check();
    heap.check_empty();
}

/// It needed a few a moment ago, which are no more than any heap may keep.
#[test]
fn what_is_left_of_much_is_looked_at_once_more() {
    let (space, mut heap) = heap();
    (0..6).for_each(|_| heap.up_and_down(100, 30_000));
    assert!(space.give_surplus_runs(true));
    heap.up_and_down(10, 30_000);
    assert!(space.give_surplus_runs(true), "the owner may sleep from now on");
    assert_eq!(pages(space), 20);
    assert!(!space.give_surplus_runs(true));
    assert_eq!(pages(space), 0);
    heap.check_empty();
}

#[test]
fn what_an_owner_needs_all_the_time_stays() {
    let (space, mut heap) = heap();
    (0..6).for_each(|_| heap.up_and_down(100, 30_000));
    assert!(space.give_surplus_runs(true), "it may be too much the next time");
    for _ in 0..5 {
        heap.up_and_down(60, 30_000);
        space.give_surplus_runs(true);
        assert_eq!(pages(space), 120);
    }
    let before = asked(space);
    heap.up_and_down(60, 30_000);
    assert_eq!(asked(space), before);
    assert!(!space.give_surplus_runs(false), "asked for: all of it");
    assert_eq!(pages(space), 0);
    heap.check_empty();
}

#[test]
fn who_keeps_more_than_before_is_looked_at_however_little_lives() {
    let due = |space: &Space<World>| space.source().arenas.lock().maintenance_due();
    let (space, mut owner) = heap();
    owner.up_and_down(100, 16 << 10);
    assert!(!due(space), "as any heap may");
    (0..3).for_each(|_| owner.up_and_down(100, 16 << 10));
    assert!(due(space));
    let (space, mut owner) = heap();
    let mut other = space.acquire().expect("memory");
    let buffer = owner.take(48_000);
    assert!(!due(space));
    other.give(buffer).expect("live");
    assert!(due(space), "handed over, and nobody may come for it");
}

#[test]
fn runs_that_are_kept_are_given_up_where_memory_is_short() {
    // As a run of another length, as a block, and as a large block.
    for (bytes, least) in [(300_000, 75), (1000, 90), (1_500_000, 87)] {
        let space = space_with(Config::default(), 32 << 20);
        let mut heap = space.acquire().expect("memory");
        (0..20).for_each(|_| heap.up_and_down(50, 100_000));
        assert!(pages(space) > 300);
        space.source().kernel.fail_every(Call::Reserve, 1, libc::ENOMEM);
        let mut taken = Vec::new();
        while let Some(block) = heap.allocate(bytes) {
            taken.push(block);
        }
        // A large block has arenas of its own.
        let each = bytes.next_multiple_of(if bytes > 1 << 20 { 2 << 20 } else { 1 });
        let percent = taken.len() * each * 100 / (32 << 20);
        assert!(percent >= least, "{percent} % in blocks of {bytes} bytes");
        heap.check();
        heap.give_all(taken);
        heap.check_empty();
    }
}

#[test]
fn a_list_grows_where_only_what_is_kept_is_left() {
    let space = space_with(Config::default(), 32 << 20);
    let mut heap = space.acquire().expect("memory");
    let mut other = space.acquire().expect("memory");
    let list = heap.take(200_000);
    (0..20).for_each(|_| heap.up_and_down(50, 100_000));
    space.source().kernel.fail_every(Call::Reserve, 1, libc::ENOMEM);
    let taken: Vec<_> = core::iter::from_fn(|| other.allocate(16_000)).collect();
    // SAFETY: the list is live and this test's.
    let grown = unsafe { heap.try_reallocate(list, 400_000) }.expect("live").expect("memory");
    heap.check();
    heap.give(grown).expect("live");
    other.give_all(taken);
    other.trim();
    heap.check_empty();
}

/// Its owner trimmed it, and then somebody handed it a run: nobody looks at a heap that waits before somebody
/// adopts it.
#[test]
fn what_is_handed_over_just_before_the_owner_leaves_is_collected() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let buffer = heap.take(48_000);
    heap.trim();
    other.give(buffer).expect("live");
    assert_eq!(pages(space), 3);
    heap.leave();
    core::mem::forget(heap);
    assert_eq!(pages(space), 0);
    other.check_empty();
}

#[test]
fn what_was_on_its_way_is_counted_anew_in_a_forked_child() {
    let (space, mut own) = heap();
    let mut gone = space.acquire_for_thread().expect("memory");
    let buffers = gone.take_many(4, 60_000);
    own.give_all(buffers[..3].iter().copied());
    let counted = &space.registry.shared::<World>(gone.number()).expect("made").inbox.run_pages;
    assert_eq!(counted.load(Ordering::Relaxed), 12);
    // A missing thread was about to hand over 2 MiB.
    counted.fetch_add(HANDED as u32, Ordering::Relaxed);
    core::mem::forget(gone);
    space.lock_for_fork();
    // SAFETY: just locked by this thread.
    unsafe { space.unlock_after_fork() };
    space.after_fork_in_child(&[Some(own.number())]);
    assert_eq!(counted.load(Ordering::Relaxed), 12);
    own.give(buffers[3]).expect("live");
    drop(space.acquire().expect("memory"));
    own.check_empty();
}

/// Who looks does not take runs of an owner that is just taking or keeping one, and the owner waits for who does.
#[test]
fn a_run_is_taken_by_its_owner_or_by_who_looks() {
    let (space, mut heap) = heap();
    (0..6).for_each(|_| heap.up_and_down(100, 30_000));
    let turn = &space.registry.shared::<World>(heap.number()).expect("made").turn;
    let keeping = heap.keeping();
    assert!(space.hold(turn).is_none());
    let before = pages(space);
    assert!(space.give_surplus_runs(false) && pages(space) == before);
    drop(keeping);
    let held = space.hold(turn).expect("nobody is keeping");
    std::thread::scope(|scope| {
        let goes_on = scope.spawn(move || {
            heap.up_and_down(10, 30_000);
            heap
        });
        std::thread::sleep(core::time::Duration::from_millis(50));
        assert!(!goes_on.is_finished(), "it takes what somebody else takes");
        drop(held);
        goes_on.join().expect("the owner").check_empty();
    });
}

/// A thread whose heap is kept in a forked child although it was just keeping a run: what is kept is whole
/// between any two instructions.
#[test]
fn a_heap_whose_owner_was_keeping_a_run_is_not_lost_in_a_forked_child() {
    let (space, mut own) = heap();
    let mut gone = space.acquire_for_thread().expect("memory");
    gone.up_and_down(10, 30_000);
    core::mem::forget(gone.keeping());
    core::mem::forget(gone);
    space.lock_for_fork();
    // SAFETY: just locked by this thread.
    unsafe { space.unlock_after_fork() };
    space.after_fork_in_child(&[Some(own.number())]);
    let mut adopted = space.acquire().expect("memory");
    assert_eq!(adopted.number(), 2);
    let before = asked(space);
    adopted.up_and_down(10, 30_000);
    assert_eq!(asked(space), before);
    adopted.check();
    drop(adopted);
    own.check_empty();
}

#[test]
fn two_threads_that_hand_buffers_to_each_other_lose_none() {
    let space = space();
    let (to, from) = std::sync::mpsc::channel::<Vec<(usize, usize)>>();
    let (back, returned) = std::sync::mpsc::channel::<Vec<(usize, usize)>>();
    let work = move |seed: u64,
                     from: std::sync::mpsc::Receiver<Vec<(usize, usize)>>,
                     to: std::sync::mpsc::Sender<Vec<(usize, usize)>>| {
        let mut seed = seed;
        let mut heap = space.acquire().expect("memory");
        for _ in 0..300 {
            let buffers: Vec<_> = (0..random(&mut seed) % 40)
                .map(|_| {
                    let bytes = 8193 + random(&mut seed) as usize % 200_000;
                    let buffer = heap.take(bytes);
                    fill(buffer, bytes, bytes as u8);
                    (at(buffer), bytes)
                })
                .collect();
            if to.send(buffers).is_err() {
                break;
            }
            for (buffer, bytes) in from.try_iter().flatten() {
                assert!(holds(pointer(buffer), bytes, bytes as u8));
                heap.give(pointer(buffer)).expect("live");
            }
        }
        drop(to);
        for (buffer, bytes) in from.iter().flatten() {
            assert!(holds(pointer(buffer), bytes, bytes as u8));
            heap.give(pointer(buffer)).expect("live");
        }
        heap.check();
    };
    std::thread::scope(|scope| {
        scope.spawn(move || work(1, returned, to));
        scope.spawn(move || work(2, from, back));
        for _ in 0..50 {
            space.give_surplus_runs(true);
            std::thread::yield_now();
        }
    });
    assert_eq!(pages(space), 0);
}
