//! Pauses on a host that takes long to make an arena.

use super::*;
use crate::arena::{ARENA_BYTES, Ahead, HEAP_PAGE_BYTES};
use crate::gc::pacing::{LEAST_PART, STEP};
use crate::gc::ready::SCARCE_PART;
use core::cell::RefCell;
use hugeheap_os::simulated::Call;
use hugeheap_os::{AddressRange, Facts, Pages};

/// What making an arena takes: it shows in a pause, and fits one.
const TAKES: Duration = Duration::from_micros(1500);

/// Bytes of the text that each pair of the list has: most of the memory, so that there are not too many objects.
const TEXT: usize = 480;

/// A heap whose old generation grows by so many arenas, in parts of at most one.
fn grow(takes: Duration, waiting: Option<Waiting>, arenas: usize) -> Test {
    let space = space();
    space.source().kernel.set_cost(Call::HugeFault, takes);
    grow_in(space, waiting, arenas)
}

fn grow_in(space: &'static Space<World>, waiting: Option<Waiting>, arenas: usize) -> Test {
    let World { waiting: happens, .. } = space.source();
    *happens.lock() = waiting;
    let mut test = Test::over(space, Settings { nursery: Some(ARENA_BYTES), ..Settings::default() });
    test.run(|scope, types| {
        let count = (arenas * ARENA_BYTES / (PAIR + TEXT)) as u64;
        let head = pair(scope, types, 0);
        for number in 1..count {
            scope.scope(|scope| {
                let next = pair(scope, types, number);
                scope.set(next, LEFT, Some(head));
                let text = scope.allocate(types.text, TEXT - 16).expect("memory");
                scope.set(next, RIGHT, Some(text));
                scope.assign(head, next);
            });
        }
        check_list(scope, head, count);
    });
    test
}

/// The maintenance thread makes what is due; the program sees as much time pass.
pub(super) fn makes(world: &World, _: Duration) {
    loop {
        let Some(mut ahead) = world.arenas.lock().begin_ahead() else { return };
        ahead.touch(&world.kernel);
        world.arenas.lock().complete_ahead(ahead);
    }
}

#[test]
fn a_minor_collection_finds_the_arenas_that_it_needs() {
    let test = grow(2 * TAKES, Some(makes), 16);
    let snapshot = test.space.source().arenas.lock().snapshot();
    // But for those of the nursery and of the first collections, when nobody knew yet how long one takes.
    assert!(snapshot.arenas_ahead + 6 >= snapshot.arenas, "{} of {}", snapshot.arenas_ahead, snapshot.arenas);
    test.end();
}

#[test]
fn a_minor_collection_finds_the_metadata_of_the_arenas_that_it_needs() {
    let test = grow(2 * TAKES, Some(makes), 16);
    let World { arenas, kernel, .. } = test.space.source();
    // The simulated kernel knows of metadata that was touched, not of what the collector writes.
    let touched = |arena: usize| {
        let vacant = test.space.page(arena).expect("known").vacant();
        let bytes = ARENA_BYTES / HEAP_PAGE_BYTES * size_of_val(vacant);
        let bitmaps = AddressRange::new(core::ptr::from_ref(vacant) as usize, bytes);
        kernel.residency(bitmaps).expect("mapped").resident == bytes as u64
    };
    let all = test
        .space
        .regions()
        .iter()
        .flat_map(|region| (region.start..region.start + region.bytes()).step_by(ARENA_BYTES));
    let ahead = arenas.lock().snapshot().arenas_ahead;
    assert!(ahead >= 8, "{ahead}");
    assert_eq!(all.filter(|&arena| touched(arena)).count() as u64, ahead);
    test.end();
}

std::thread_local! {
    /// What the thread of [`makes_slowly`] is making, and when it will have done so.
    static UNDER_WAY: RefCell<Option<(Ahead, Duration)>> = const { RefCell::new(None) };
}

/// The maintenance thread needs much longer for an arena than the program waits at a time.
fn makes_slowly(world: &World, time: Duration) {
    world.kernel.advance(time);
    UNDER_WAY.with_borrow_mut(|under_way| {
        let now = world.kernel.now();
        let mut arenas = world.arenas.lock();
        if let Some((mut ahead, _)) = under_way.take_if(|(_, done)| *done <= now) {
            ahead.touch(&world.kernel);
            arenas.complete_ahead(ahead);
        }
        if under_way.is_none() {
            *under_way = arenas.begin_ahead().map(|ahead| (ahead, now + TAKES));
        }
    });
}

/// It made another one meanwhile, behind the thread: such pauses were 9 to 20 ms.
#[test]
fn a_minor_collection_waits_for_the_arena_that_is_being_made() {
    const COUNT: u64 = 20_000;
    let mut test = grow(2 * TAKES, Some(makes), 16);
    let World { arenas, kernel, waiting, .. } = test.space.source();
    *waiting.lock() = Some(makes_slowly);
    // What is at hand is somebody else's now, and a thread has just begun to make the next arena.
    let mut taken = Vec::new();
    {
        let mut arenas = arenas.lock();
        while arenas.ready(1).bytes > 0 {
            taken.push(arenas.allocate(1).expect("it is at hand").get());
        }
        arenas.expect_growth(ARENA_BYTES as u64, test.space);
        let ahead = arenas.begin_ahead().expect("it is due");
        UNDER_WAY.set(Some((ahead, kernel.now() + TAKES)));
    }
    let before = arenas.lock().snapshot();
    test.run(|scope, types| {
        let head = list(scope, types, COUNT);
        scope.collect_minor();
        check_list(scope, head, COUNT);
    });
    let after = arenas.lock().snapshot();
    let (all, ahead) = (after.arenas - before.arenas, after.arenas_ahead - before.arenas_ahead);
    assert!(all >= 1 && all == ahead, "{ahead} of {all} by the thread");
    taken.into_iter().for_each(|page| arenas.lock().free(page, 1).expect("live"));
    test.end();
}

/// An arena that is being made, and all heap pages that were at hand, taken.
fn under_way(test: &Test) -> (Ahead, Vec<usize>) {
    let mut arenas = test.space.source().arenas.lock();
    arenas.expect_growth(0, test.space);
    let ahead = arenas.begin_ahead().expect("it is due");
    let mut taken = Vec::new();
    while arenas.ready(2 * ARENA_BYTES as u64).bytes > 0 {
        taken.push(arenas.allocate(1).expect("it is at hand").get());
    }
    (ahead, taken)
}

/// The average does not tell of the first arena that takes long.
#[test]
fn while_the_first_arena_that_takes_long_is_made_there_is_no_time_for_a_larger_nursery() {
    let mut test = grow(TAKES / 10, None, 64);
    let World { arenas, kernel, .. } = test.space.source();
    let (ahead, taken) = under_way(&test);
    test.heap.begin = kernel.now();
    assert!(test.heap.has_time_for(2 * ARENA_BYTES));
    kernel.advance(Duration::from_millis(1));
    assert!(!test.heap.has_time_for(2 * ARENA_BYTES));
    arenas.lock().complete_ahead(ahead);
    taken.into_iter().for_each(|page| arenas.lock().free(page, 1).expect("live"));
    test.end();
}

/// The average told little of it: 8 MiB were found in 22 ms then.
#[test]
fn one_arena_that_took_long_is_enough_to_know_and_a_pause_has_what_is_left_of_it() {
    let mut test = grow(TAKES / 10, None, 16);
    let World { arenas, kernel, .. } = test.space.source();
    let free = arenas.lock().snapshot().retained as usize;
    kernel.advance(10 * STEP);
    let has_time = |test: &mut Test, spent: Duration, arenas: usize| {
        test.heap.begin = kernel.now() - spent;
        test.heap.has_time_to_find(arenas * ARENA_BYTES)
    };
    assert!(has_time(&mut test, Duration::ZERO, 8));
    assert!(has_time(&mut test, STEP, 8) && !has_time(&mut test, 2 * STEP, 8));
    kernel.set_cost(Call::HugeFault, STEP / 2);
    let block = arenas.lock().allocate_large(free + ARENA_BYTES, false).expect("memory").address.get();
    assert!(has_time(&mut test, Duration::ZERO, 4) && !has_time(&mut test, Duration::ZERO, 5));
    assert!(has_time(&mut test, STEP, 2) && !has_time(&mut test, STEP, 3));
    arenas.lock().free_large(block).expect("live");
    test.end();
}

/// One collection of half as much, where the next arena was nearly there, was followed by four until all of the
/// nursery was used again.
#[test]
fn an_arena_that_will_soon_be_there_limits_one_collection_and_one_that_takes_long_the_next_ones() {
    const MIB: usize = 1 << 20;
    let mut test = grow(TAKES / 10, None, 64);
    let World { arenas, kernel, waiting, .. } = test.space.source();
    let (ahead, taken) = under_way(&test);
    let heap = &mut test.heap;
    heap.old.grows = true;
    heap.set_part(2 * MIB);
    assert_eq!(heap.part_for_ready(MIB, false), SCARCE_PART);
    assert_eq!(heap.nursery.paced, 2 * MIB, "it is not even worth a wait");
    heap.nursery.part = SCARCE_PART;
    // The rest of the time of a pause, in which it does not come.
    heap.begin = kernel.now();
    *waiting.lock() = Some(|world, time| world.kernel.advance(time));
    kernel.advance(Duration::from_millis(1));
    assert_eq!(heap.part_for_ready(SCARCE_PART, true), SCARCE_PART, "little survived because little could");
    assert_eq!(heap.nursery.paced, LEAST_PART);
    assert!(heap.elapsed() > STEP && heap.elapsed() < 2 * STEP, "{:?}", heap.elapsed());
    arenas.lock().complete_ahead(ahead);
    assert_eq!(heap.part_for_ready(SCARCE_PART, true), LEAST_PART, "all that the pace allows");
    taken.into_iter().for_each(|page| arenas.lock().free(page, 1).expect("live"));
    test.end();
}

/// Of the first that takes long nobody knows before the thread has begun to make it: a collection of 4 MiB
/// waited for it in a pause of 6 ms.
#[test]
fn before_an_arena_is_begun_no_more_of_the_nursery_is_used_than_there_is_memory_for() {
    const PART: usize = 2 * ARENA_BYTES;
    let mut test = grow(TAKES / 10, None, 64);
    let World { arenas, kernel, .. } = test.space.source();
    test.heap.old.grows = true;
    test.heap.set_part(PART);
    assert_eq!(test.heap.part_for_ready(PART, false), PART, "none was made: there is nobody who will");
    makes(test.space.source(), Duration::ZERO);
    assert_eq!(test.heap.part_for_ready(PART, false), PART);
    // One of them is used.
    let mut taken = Vec::new();
    let left = (ARENA_BYTES + LEAST_PART) as u64;
    while arenas.lock().ready(PART as u64).bytes > left {
        taken.push(arenas.lock().allocate(1).expect("it is at hand").get());
    }
    let before = kernel.now();
    assert_eq!(test.heap.part_for_ready(PART, false), ARENA_BYTES);
    assert_eq!((test.heap.nursery.paced, kernel.now()), (PART, before), "for once, and without a wait");
    makes(test.space.source(), Duration::ZERO);
    assert_eq!(test.heap.part_for_ready(ARENA_BYTES, false), PART);
    taken.into_iter().for_each(|page| arenas.lock().free(page, 1).expect("live"));
    test.end();
}

#[test]
fn a_pause_that_waits_ends_in_time_though_no_arena_comes() {
    let test = grow(TAKES, Some(|world, time| world.kernel.advance(time)), 16);
    let longest = Duration::from_nanos(test.heap.statistics().pauses.longest);
    assert!(longest > STEP && longest <= 2 * STEP, "{longest:?}");
    // What is not there cannot be used up: less survives at once.
    let helped = grow(TAKES, Some(makes), 16);
    let collections = |test: &Test| test.heap.statistics().minor;
    assert!(
        collections(&test) >= 2 * collections(&helped),
        "{} and {}",
        collections(&test),
        collections(&helped)
    );
    helped.end();
    let snapshot = test.space.source().arenas.lock().snapshot();
    assert_eq!(snapshot.arenas_ahead, 0);
    test.end();
}

#[test]
fn nobody_waits_where_there_is_no_thread_or_arenas_are_quick() {
    let alone = grow(TAKES, None, 16);
    assert_eq!(alone.space.source().arenas.lock().snapshot().arenas_ahead, 0);
    alone.end();
    let quick = grow(TAKES / 10, Some(|_, _| panic!("it takes as long to make it")), 48);
    assert_eq!(quick.heap.nursery.part, ARENA_BYTES);
    quick.end();
}

#[test]
fn a_pause_in_which_another_program_ran_is_no_reason_to_use_less_of_the_nursery() {
    let space = space();
    let kernel = &space.source().kernel;
    kernel.set_cost(Call::HugeFault, TAKES / 10);
    kernel.set_preemption(Call::HugeFault, 5 * STEP);
    let test = grow_in(space, None, 48);
    let longest = Duration::from_nanos(test.heap.statistics().pauses.longest);
    assert!(longest >= 5 * STEP, "{longest:?}");
    assert_eq!(test.heap.nursery.part, ARENA_BYTES);
    test.end();
}
