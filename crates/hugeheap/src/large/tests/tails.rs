//! What is resident behind the end of a block.

use super::*;
use hugeheap_os::Pages;

/// More than half of an arena is not used.
const SHORT: usize = 3 * ARENA_BYTES / 8;

/// The program has used so many arenas, which are kept where large blocks are.
fn used(world: &mut World, arenas: usize) {
    let block = take(world, arenas * ARENA_BYTES, false);
    world.heap.free_large(block).expect("it is live");
}

/// It stayed as long as the blocks lived: of blocks of 1.1 MiB that were made of what small objects had left,
/// as much again.
#[test]
fn what_is_resident_behind_the_end_of_a_block_goes_when_nobody_needs_it() {
    for policy in [Policy::Thp, Policy::Dense, Policy::Auto, Policy::Base] {
        for arenas in [0, 2] {
            let mut world = world(policy);
            // Of an arena that others can use half would have to be free.
            let bytes = arenas * ARENA_BYTES + if arenas == 0 { 5 * ARENA_BYTES / 8 } else { SHORT };
            used(&mut world, 10 * (arenas + 1));
            let blocks = [(); 10].map(|()| take(&mut world, bytes, false));
            assert_eq!(world.heap.snapshot().arenas, 10 * (arenas as u64 + 1), "made of what there was");
            // It may be needed again, as it was a moment ago.
            world.run(0.1);
            assert_eq!(world.kernel.charge(), 10 * (arenas as u64 + 1) * ARENA, "{policy:?}");
            world.heap.forget_demand();
            world.run(5.0);
            assert_eq!(world.kernel.charge(), 10 * bytes as u64, "{policy:?}");
            assert_eq!(world.heap.snapshot().retained, 0);
            blocks.iter().for_each(|&block| world.check_contents(block, bytes));
            assert_eq!(world.heap.maintain(), Wait::Idle);
            // Each of them is as good as any other afterwards.
            for &block in &blocks {
                let longer = resize(&mut world, block, bytes + ARENA_BYTES / 4);
                world.check_moved(block, longer, bytes);
                world.use_all(longer, bytes + ARENA_BYTES / 4);
                world.heap.free_large(longer).expect("it is live");
            }
            world.heap.forget_demand();
            world.run(5.0);
            assert_eq!(world.kernel.charge(), 0);
            world.check();
        }
    }
}

#[test]
fn what_a_block_leaves_in_its_last_arena_goes_as_well_as_the_other_arenas() {
    let mut world = world(Policy::Thp);
    let block = take(&mut world, 10 * ARENA_BYTES, false);
    assert_eq!(resize(&mut world, block, 3 * ARENA_BYTES + 1), block);
    world.heap.forget_demand();
    world.run(5.0);
    assert_eq!(world.kernel.charge(), 3 * ARENA + PAGE);
    assert_eq!((world.huge_bytes(), world.heap.snapshot().breaks), (3 * ARENA, 1));
    // It is one huge page again when it is dense again.
    assert_eq!(resize(&mut world, block, 4 * ARENA_BYTES), block);
    world.use_all(block, 4 * ARENA_BYTES);
    world.run(5.0);
    assert_eq!(world.huge_bytes(), 4 * ARENA);
    assert_eq!(world.fallbacks(), []);
    world.check();
}

/// As a new one is, but for half of it.
#[test]
fn the_tail_of_a_long_block_stays_whole_as_long_as_it_wastes_little() {
    for (arenas, free, huge) in [(8, 63, 9), (7, 63, 7), (8, 64, 8), (7, 17, 7), (7, 16, 8)] {
        let mut world = world(Policy::Thp);
        let bytes = (arenas + 1) * ARENA_BYTES - free * HEAP_PAGE_BYTES;
        used(&mut world, arenas + 1);
        let block = take(&mut world, bytes, false);
        world.heap.forget_demand();
        world.run(5.0);
        assert_eq!(world.huge_bytes(), huge * ARENA, "{arenas} {free}");
        world.check_contents(block, bytes);
        world.check();
    }
}

#[test]
fn a_guess_that_does_not_come_true_goes_and_makes_room_for_the_next() {
    let mut world = world(Policy::Thp);
    let mut block = take(&mut world, SHORT, false);
    block = resize(&mut world, block, ARENA_BYTES + SHORT);
    assert_eq!((world.heap.guesses, world.kernel.charge()), (1, ARENA + SHORT as u64));
    world.heap.forget_demand();
    world.run(5.0);
    assert_eq!((world.heap.guesses, world.heap.snapshot().retained), (0, 0));
    world.heap.free_large(block).expect("it is live");
    world.check();
}

/// With a limit of 100 MiB a program that had up to 75 of them live, by turns in small objects and in blocks of 1.5
/// arenas, was killed: the other halves of the last arenas were resident.
#[test]
fn where_a_limit_makes_memory_scarce_the_rest_of_a_tail_goes_at_once() {
    for bytes in [SHORT, 3 * ARENA_BYTES / 2, 2 * ARENA_BYTES + SHORT, 12 * ARENA_BYTES + SHORT] {
        let mut world = World::new(Policy::Thp, Config::default().with_cgroup_max(100 * MIB));
        for _ in 0..3 {
            let all = world.take_arenas(37);
            world.free_arenas(&all);
            world.run(0.05);
            used(&mut world, 37);
            world.run(0.05);
            let count = 75 * MIB as usize / bytes;
            // The kernel refuses a touch above the limit.
            let take = |_| {
                let block = take(&mut world, bytes, false);
                // As the runtime does it.
                if world.heap.maintenance_due() {
                    world.run(0.000_1);
                }
                block
            };
            let blocks: Vec<_> = (0..count).map(take).collect();
            let live = (count * bytes) as u64;
            assert!(world.kernel.charge() < 100 * MIB);
            blocks.iter().for_each(|&block| world.check_contents(block, bytes));
            // What is left when the kernel has taken what it may.
            world.kernel.reclaim();
            assert!(world.kernel.charge() <= live + 2 * ARENA, "{bytes}: {}", world.kernel.charge());
            blocks.iter().for_each(|&block| assert!(world.heap.free_large(block).is_ok()));
            // What is kept is offered to the kernel.
            world.run(0.05);
            world.check();
        }
    }
}

/// A tail that is made then, without a pass; and one that was made before.
#[test]
fn a_tail_goes_when_memory_becomes_scarce_and_nothing_is_tight_yet() {
    let mut world = World::new(Policy::Thp, Config::default().with_cgroup_max(200 * MIB));
    used(&mut world, 2);
    let before = take(&mut world, ARENA_BYTES + SHORT, false);
    assert_eq!(world.heap.snapshot().breaks, 0, "nothing is scarce");
    let arenas = world.take_arenas(52);
    assert!(world.heap.maintenance_due() && !world.heap.is_tight());
    world.run(0.000_1);
    assert_eq!(world.heap.snapshot().breaks, 1);
    used(&mut world, 5);
    let block = take(&mut world, ARENA_BYTES + SHORT, false);
    assert_eq!(world.heap.snapshot().breaks, 2, "at once");
    [before, block].iter().for_each(|&block| world.check_contents(block, ARENA_BYTES + SHORT));
    // With little that lives there is room for what is kept.
    world.free_arenas(&arenas);
    world.heap.free_large(block).expect("it is live");
    used(&mut world, 3);
    take(&mut world, 2 * ARENA_BYTES + SHORT, false);
    assert_eq!(world.heap.snapshot().breaks, 2);
    world.check();
}

/// Nothing else tells of it.
#[test]
fn a_block_that_becomes_shorter_within_its_last_arena_is_looked_at() {
    let mut world = world(Policy::Thp);
    let block = take(&mut world, 2 * ARENA_BYTES, false);
    world.run(5.0);
    assert_eq!(resize(&mut world, block, ARENA_BYTES + SHORT), block);
    world.heap.forget_demand();
    world.run(5.0);
    assert_eq!((world.heap.snapshot().breaks, world.heap.snapshot().retained), (1, 0));
    world.check();
}

/// It would be collapsed as soon as there is room.
#[test]
fn a_tail_that_is_dense_stays_whole_where_memory_is_scarce() {
    let mut world = World::new(Policy::Thp, Config::default().with_cgroup_max(60 * MIB));
    used(&mut world, 20);
    let bytes = 2 * ARENA_BYTES - 16 * HEAP_PAGE_BYTES;
    let _blocks = [(); 10].map(|()| take(&mut world, bytes, false));
    assert_eq!((world.huge_bytes(), world.heap.snapshot().breaks), (20 * ARENA, 0));
    world.check();
}

/// Within a limit that is far away nothing is split for it.
#[test]
fn a_tail_stays_whole_as_long_as_there_is_room() {
    let mut world = World::new(Policy::Thp, Config::default().with_cgroup_max(1000 * MIB));
    used(&mut world, 20);
    let _blocks = [(); 10].map(|()| take(&mut world, ARENA_BYTES + SHORT, false));
    assert_eq!(world.huge_bytes(), 20 * ARENA);
    assert_eq!(world.kernel.calls(Call::Advise), 0);
    // What is dense is left alone for good, whatever is kept.
    let dense = take(&mut world, 2 * ARENA_BYTES - 9 * HEAP_PAGE_BYTES, false);
    world.heap.forget_demand();
    world.run(5.0);
    let last = AddressRange::new(dense + ARENA_BYTES, HEAP_PAGE_BYTES);
    assert_eq!(world.kernel.residency(last).expect("asked").huge(), PAGE);
    world.check();
}

#[test]
fn a_tail_that_cannot_be_shed_stays_as_it_is_and_is_tried_again() {
    for call in [Call::Advise, Call::Decommit, Call::Split] {
        for scarce in [false, true] {
            let config = Config::default().with_cgroup_max(if scarce { 60 * MIB } else { 6000 * MIB });
            let mut world = World::new(Policy::Thp, config);
            used(&mut world, 20);
            world.kernel.fail_every(call, 1, libc::ENOMEM);
            let blocks = [(); 8].map(|()| take(&mut world, ARENA_BYTES + SHORT, false));
            world.heap.forget_demand();
            world.run(3.0);
            assert!(world.kernel.failures(call) > 0, "{call:?}");
            world.kernel.fail_no_more();
            // That it was refused is remembered for some time.
            world.run(400.0);
            assert_eq!(world.kernel.charge(), 8 * (ARENA_BYTES + SHORT) as u64, "{call:?} {scarce}");
            blocks.iter().for_each(|&block| world.check_contents(block, ARENA_BYTES + SHORT));
            world.check();
        }
    }
}

#[test]
fn what_a_pool_promises_a_block_stays() {
    let mut world = World::new(Policy::Hugetlb, Config::default().with_pool(30));
    used(&mut world, 4);
    let block = take(&mut world, ARENA_BYTES + SHORT, false);
    world.heap.forget_demand();
    world.run(5.0);
    assert_eq!(world.heap.snapshot().arenas_hugetlb, 2);
    world.check_contents(block, ARENA_BYTES + SHORT);
    world.check();
}
