//! A nursery that grows and shrinks.

use super::ready::makes;
use super::*;
use crate::arena::{ARENA_BYTES, HEAP_PAGES};
use crate::gc::pacing::STEP;
use hugeheap_os::simulated::Call;

/// `ENOMEM`.
const OUT_OF_MEMORY: i32 = 12;

/// Bytes of a text: so large that a nursery is full soon.
const TEXT: usize = 2 << 10;

/// A heap with the nursery that is chosen, and steps of that length.
fn heap(step: Duration) -> Test {
    Test::as_set(space(), Settings { step: Some(step), ..Settings::default() })
}

/// Allocates so many bytes of texts, and keeps each `every`th in a list that ends with the scope.
fn fill(test: &mut Test, bytes: usize, every: usize) {
    test.run(|scope, types| {
        let head = pair(scope, types, 0);
        let mut count = 1;
        for number in 0..bytes / TEXT {
            scope.scope(|scope| {
                let text = scope.allocate(types.text, TEXT - 16).expect("memory");
                scope.write(text, 16, number as u64);
                if number % every == 0 {
                    let next = pair(scope, types, count);
                    scope.set(next, LEFT, Some(head));
                    scope.set(next, RIGHT, Some(text));
                    scope.assign(head, next);
                    count += 1;
                }
            });
        }
        check_list(scope, head, count);
    });
}

/// A heap whose nursery has grown; what it was, and what it is.
fn grown() -> (Test, usize, usize) {
    let mut test = heap(5 * STEP);
    let least = test.heap.nursery_bytes();
    fill(&mut test, 16 * least, 2);
    let grown = test.heap.nursery_bytes();
    assert!(grown >= 4 * least, "{grown} of {least}");
    (test, least, grown)
}

#[test]
fn a_nursery_grows_while_many_survive_and_is_given_back_when_few_do() {
    let (mut test, least, grown) = grown();
    let live = |test: &Test| test.space.source().arenas.lock().snapshot().live;
    let before = live(&test);
    fill(&mut test, 70 * grown, usize::MAX);
    assert_eq!(test.heap.nursery_bytes(), least);
    assert!(before - live(&test) >= (grown - least) as u64, "{before} {}", live(&test));
    test.end();
}

/// It was another block, whose memory the kernel had to find in the pause.
#[test]
fn a_smaller_nursery_is_the_beginning_of_the_one_before() {
    let (mut test, least, grown) = grown();
    let World { arenas, kernel, .. } = test.space.source();
    let start = test.heap.nursery.start();
    let (faults, snapshot) = (kernel.calls(Call::HugeFault), arenas.lock().snapshot());
    test.run(|scope, _| scope.collect());
    assert_eq!((test.heap.nursery.start(), test.heap.nursery_bytes()), (start, least));
    assert_eq!(kernel.calls(Call::HugeFault), faults);
    let now = arenas.lock().snapshot();
    assert_eq!(now.large + (grown - least) as u64, snapshot.large);
    // It goes on in it.
    fill(&mut test, 4 * least, 8);
    test.end();
}

/// It was another block each time: what it had stayed resident beside it, and all of the new one was found in
/// the pause.
#[test]
fn a_larger_nursery_begins_where_the_one_before_did() {
    let mut test = heap(5 * STEP);
    let World { arenas, .. } = test.space.source();
    let start = test.heap.nursery.start();
    let resident = |test: &Test| {
        let snapshot = arenas.lock().snapshot();
        (snapshot.live + snapshot.retained) as usize - test.heap.old.held()
    };
    let before = resident(&test);
    let least = test.heap.nursery_bytes();
    fill(&mut test, 3 * least, 2);
    let now = test.heap.nursery_bytes();
    assert!(now > least);
    assert_eq!(test.heap.nursery.start(), start);
    // One more than what it grew by, of what is at hand of the old generation's last arena.
    assert!(resident(&test) <= before + now - least + ARENA_BYTES, "{} {before} {now}", resident(&test));
    test.end();
}

/// Takes what lies behind the nursery, and all else from the upper end of the region to there.
fn enclose(test: &Test) -> Vec<usize> {
    let mut arenas = test.space.source().arenas.lock();
    let behind = test.heap.nursery.start() + ARENA_BYTES;
    let mut take = || arenas.allocate_large(ARENA_BYTES, false).expect("memory").address.get();
    let mut blocks = vec![take()];
    while blocks.last() != Some(&behind) {
        blocks.push(take());
    }
    blocks
}

fn free_large(test: &Test, blocks: Vec<usize>) {
    let mut arenas = test.space.source().arenas.lock();
    for block in blocks {
        arenas.free_large(block).expect("live");
    }
}

#[test]
fn a_nursery_with_a_block_behind_it_grows_in_another_place() {
    let mut test = heap(5 * STEP);
    let (start, least) = (test.heap.nursery.start(), test.heap.nursery_bytes());
    let blocks = enclose(&test);
    fill(&mut test, 16 * least, 2);
    assert!(test.heap.nursery_bytes() > least);
    assert_ne!(test.heap.nursery.start(), start);
    free_large(&test, blocks);
    test.end();
}

/// Each collection read the files that say what is left, for an extension that what lies behind the nursery did
/// not allow.
#[test]
fn a_nursery_that_something_is_behind_asks_for_no_memory_in_vain() {
    let mut test = heap(STEP);
    let kernel = &test.space.source().kernel;
    let blocks = enclose(&test);
    let (bytes, before) = (test.heap.nursery_bytes() + ARENA_BYTES, kernel.calls(Call::AvailableMemory));
    assert!(!test.heap.nursery.extend(bytes, false));
    assert_eq!(kernel.calls(Call::AvailableMemory), before);
    free_large(&test, blocks);
    assert!(test.heap.nursery.extend(bytes, false));
    assert!(kernel.calls(Call::AvailableMemory) > before);
    test.heap.nursery.empty();
    test.end();
}

/// Metadata of sixteen arenas is made writable at once: the extension needs that of some more.
#[test]
fn a_nursery_without_memory_for_its_metadata_is_not_extended() {
    let space = space_with(64 * ARENA_BYTES);
    let bytes = 30 * ARENA_BYTES;
    let mut test = Test::over(space, Settings { nursery: Some(bytes), ..Settings::default() });
    let World { arenas, kernel, .. } = space.source();
    let before = arenas.lock().snapshot().large;
    kernel.fail_every(Call::Protect, 1, OUT_OF_MEMORY);
    assert!(!test.heap.nursery.extend(bytes + 16 * ARENA_BYTES, false));
    assert!(kernel.failures(Call::Protect) > 0);
    assert_eq!((test.heap.nursery_bytes(), arenas.lock().snapshot().large), (bytes, before));
    kernel.fail_every(Call::Protect, 0, 0);
    assert!(test.heap.nursery.extend(bytes + 16 * ARENA_BYTES, false));
    test.end();
}

#[test]
fn a_nursery_of_which_all_survives_stays_as_it_is() {
    let mut test = heap(5 * STEP);
    let least = test.heap.nursery_bytes();
    fill(&mut test, 16 * least, 1);
    assert_eq!(test.heap.nursery_bytes(), least);
    test.end();
}

#[test]
fn a_whole_collection_makes_a_nursery_small_again() {
    let (mut test, least, _) = grown();
    test.run(|scope, types| {
        let kept = list(scope, types, 1000);
        scope.collect();
        assert_eq!(scope.heap().nursery_bytes(), least);
        check_list(scope, kept, 1000);
    });
    // It goes on as before, and grows again.
    fill(&mut test, 16 * least, 2);
    assert!(test.heap.nursery_bytes() >= 4 * least);
    test.end();
}

#[test]
fn a_nursery_stays_as_it_is_where_a_larger_one_does_not_fit_into_a_pause() {
    let space = space();
    // The time of a pause for one and a half huge pages of survivors: of the smallest nursery all can survive,
    // not of twice as much.
    space.source().kernel.set_cost(Call::HugeFault, 4 * STEP / 3);
    let mut test = Test::as_set(space, Settings { nursery: None, ..Settings::default() });
    let least = test.heap.nursery_bytes();
    fill(&mut test, 32 * least, 2);
    assert_eq!(test.heap.nursery_bytes(), least);
    test.end();
}

#[test]
fn a_nursery_does_not_grow_beyond_what_may_survive_within_a_pause() {
    let space = space();
    // All of the time of a pause for thirty huge pages.
    space.source().kernel.set_cost(Call::HugeFault, STEP / 3);
    let mut test = Test::as_set(space, Settings { step: Some(5 * STEP), ..Settings::default() });
    let least = test.heap.nursery_bytes();
    fill(&mut test, 64 * least, 2);
    let (now, can) = (test.heap.nursery_bytes(), test.heap.pacing.can_survive());
    assert!(least < now && now <= can && can < 2 * now, "{now} of {least}, where {can} can survive");
    test.end();
}

/// The thread makes arenas, so that pauses are short; the larger nursery was made in one, of as many times what
/// an arena takes.
#[test]
fn a_nursery_does_not_grow_where_its_memory_takes_longer_to_find_than_a_pause_may() {
    // One arena is added, for which a pause has all of its time.
    let too_long = 2 * STEP + Duration::from_micros(1);
    for (takes, resident, grows) in
        [(too_long, false, false), (too_long, true, true), (STEP / 40, false, true), (STEP / 40, true, true)]
    {
        let space = space();
        let World { arenas, kernel, waiting, .. } = space.source();
        kernel.set_cost(Call::HugeFault, takes);
        *waiting.lock() = Some(makes);
        let mut test = Test::as_set(space, Settings { nursery: None, ..Settings::default() });
        let least = test.heap.nursery_bytes();
        if resident {
            let blocks: Vec<_> =
                (0..64).map(|_| arenas.lock().allocate(HEAP_PAGES).expect("memory").get()).collect();
            blocks.into_iter().for_each(|block| arenas.lock().free(block, HEAP_PAGES).expect("live"));
        }
        fill(&mut test, 64 * least, 4);
        let now = test.heap.nursery_bytes();
        assert_eq!(now > least, grows, "{takes:?}, resident: {resident}: {now} of {least}");
        test.end();
    }
}

#[test]
fn a_nursery_with_a_pinned_object_stays_where_it_is() {
    let mut test = heap(5 * STEP);
    let least = test.heap.nursery_bytes();
    let pinned = test.run(|scope, types| {
        let young = pair(scope, types, 5);
        scope.pin(young).expect("memory")
    });
    fill(&mut test, 16 * least, 2);
    assert_eq!(test.heap.nursery_bytes(), least);
    test.heap.release(pinned);
    fill(&mut test, 16 * least, 2);
    assert!(test.heap.nursery_bytes() > least);
    test.end();
}

#[test]
fn nurseries_that_take_turns_keep_their_size() {
    let checks = Checks { rotate: true, ..Checks::default() };
    let mut test = Test::as_set(space(), Settings { step: Some(5 * STEP), checks, ..Settings::default() });
    let least = test.heap.nursery_bytes();
    fill(&mut test, 16 * least, 2);
    assert!(test.heap.statistics().rotated > 0);
    assert_eq!(test.heap.nursery_bytes(), least);
    test.end();
}

#[test]
fn without_room_for_a_larger_one_a_nursery_stays_as_it_is() {
    let space = space_with(5 * ARENA_BYTES);
    let mut test = Test::as_set(space, Settings { step: Some(5 * STEP), ..Settings::default() });
    let least = test.heap.nursery_bytes();
    // The region there is, and no other.
    fill(&mut test, ARENA_BYTES, 2);
    let blocks = enclose(&test);
    space.source().kernel.fail_every(Call::Reserve, 1, OUT_OF_MEMORY);
    fill(&mut test, 10 * least, 4);
    assert!(space.source().kernel.failures(Call::Reserve) > 0, "it did not try");
    assert!(test.heap.nursery_bytes() <= ARENA_BYTES, "{}", test.heap.nursery_bytes());
    free_large(&test, blocks);
    test.end();
}
