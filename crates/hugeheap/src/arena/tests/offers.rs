//! Kept memory under a memory limit: what else grows there is not killed for it.

use super::*;
use crate::arena::offer::Offer;
use hugeheap_os::simulated::Call;
use hugeheap_os::{Advice, Backing, Pages};

/// Memory of the process that is not this heap's: what glibc takes.
fn elsewhere(world: &World, bytes: u64) -> AddressRange {
    let range = world.kernel.reserve(bytes as usize, ARENA_BYTES).unwrap();
    // SAFETY: the test just reserved the range, and nobody else has it.
    unsafe {
        world.kernel.map(range, Backing::Base).unwrap();
        world.kernel.advise(range, Advice::NoHuge).unwrap();
    }
    range
}

/// Arenas that were in use and are kept, on a host with that limit.
fn kept(policy: Policy, limit: u64, arenas: usize) -> World {
    let mut world = World::new(policy, Config::default().with_cgroup_max(limit));
    let all = world.take_arenas(arenas);
    world.free_arenas(&all);
    world
}

fn made(world: &World) -> usize {
    world.heap.table.used().filter(|&id| world.heap.arena(id).offer == Offer::Made).count()
}

#[test]
fn a_process_that_grows_elsewhere_is_not_killed_for_what_is_kept() {
    for policy in [Policy::Thp, Policy::Auto, Policy::Base] {
        let mut world = kept(policy, 150 * MIB, 60);
        world.run(0.02);
        assert_eq!(made(&world), 60, "{policy:?}");
        assert_eq!(world.heap.snapshot().retained, 60 * ARENA, "kept all the same");
        assert_eq!(world.kernel.charge(), 60 * ARENA);
        let range = elsewhere(&world, 124 * MIB);
        world.kernel.touch(range).unwrap_or_else(|fault| panic!("{policy:?}: {fault}"));
        assert!(world.kernel.events().taken >= 90 * MIB);
        // SAFETY: what the test mapped.
        unsafe { world.kernel.release(range).unwrap() };
        // What was taken is used again, and what was written is taken no more.
        let all = world.take_arenas(60);
        let range = elsewhere(&world, 20 * MIB);
        world.kernel.touch(range).unwrap();
        all.iter().for_each(|&arena| world.check_contents(arena, ARENA_BYTES));
        assert_eq!(made(&world), 0);
        world.check();
    }
}

#[test]
fn using_an_offered_arena_again_costs_no_fault() {
    let mut world = kept(Policy::Thp, 150 * MIB, 20);
    world.run(0.02);
    let before = world.kernel.events();
    let again = world.take_arenas(20);
    let after = world.kernel.events();
    assert_eq!((before.huge_faults, before.faults), (after.huge_faults, after.faults));
    assert_eq!(world.heap.snapshot().arenas_thp, 20);
    world.free_arenas(&again);
    world.check();
}

#[test]
fn an_arena_that_was_taken_and_comes_back_on_os_pages_is_not_called_huge() {
    let mut world = kept(Policy::Thp, 150 * MIB, 20);
    world.run(0.02);
    assert_eq!(world.kernel.reclaim(), 20 * ARENA);
    world.kernel.set_free_huge_pages(Some(5));
    let again = world.take_arenas(20);
    assert_eq!(world.heap.snapshot().arenas_thp, 5);
    assert_eq!(world.huge_bytes(), 5 * ARENA);
    again.iter().for_each(|&arena| world.check_contents(arena, ARENA_BYTES));
    world.check();
}

#[test]
fn a_large_block_of_offered_arenas_is_not_called_zeroed() {
    let mut world = World::new(Policy::Thp, Config::default().with_cgroup_max(150 * MIB));
    let block = world.heap.allocate_large(40 << 20, false).unwrap();
    world.use_all(block.address.get(), 40 << 20);
    world.heap.free_large(block.address.get()).unwrap();
    world.run(0.02);
    assert_eq!(made(&world), 20);
    world.kernel.reclaim();
    let block = world.heap.allocate_large(40 << 20, false).unwrap();
    assert!(!block.zeroed);
    world.use_all(block.address.get(), 40 << 20);
    world.kernel.reclaim();
    world.check_contents(block.address.get(), 40 << 20);
    world.check();
}

#[test]
fn without_a_limit_or_of_little_beside_it_nothing_is_offered() {
    let mut world = World::new(Policy::Thp, Config::default());
    let all = world.take_arenas(60);
    world.free_arenas(&all);
    world.run(0.5);
    assert_eq!(world.kernel.calls(Call::Offer), 0);
    let mut world = kept(Policy::Thp, 64 * 32 * ARENA, 60);
    world.run(0.5);
    assert_eq!(world.kernel.calls(Call::Offer), 0);
    assert_eq!(world.heap.snapshot().retained, 60 * ARENA);
}

#[test]
fn arenas_in_use_again_within_a_millisecond_are_not_offered_and_the_thread_becomes_patient() {
    let mut world = World::new(Policy::Thp, Config::default().with_cgroup_max(150 * MIB));
    let before = world.heap.counters.passes;
    for _ in 0..1000 {
        let all = world.take_arenas(10);
        world.free_arenas(&all);
        world.run(0.000_5);
    }
    assert_eq!(world.kernel.calls(Call::Offer), 0);
    assert!(world.heap.maintenance_due());
    world.run(0.3);
    assert_eq!(made(&world), 10);
    assert!(world.heap.counters.passes - before < 2100);
}

#[test]
fn what_becomes_kept_wakes_a_thread_that_sleeps_over_it() {
    let mut world = kept(Policy::Thp, 150 * MIB, 20);
    world.run(0.02);
    let Wait::For(time) = world.heap.maintain() else { panic!("twenty arenas are kept") };
    let look = world.heap.now() + time;
    assert!(!world.heap.offers_before(look));
    let all = world.take_arenas(20);
    world.free_arenas(&all);
    assert!(world.heap.maintenance_due() && world.heap.oversleeps(look));
    assert!(!world.heap.oversleeps(0), "it does not sleep");
}

#[test]
fn the_longest_empty_arenas_are_still_given_back_first() {
    let mut world = World::new(Policy::Thp, Config::default().with_cgroup_max(300 * MIB));
    let all = world.take_arenas(40);
    for &arena in &all {
        world.free(arena, HEAP_PAGES);
        world.kernel.advance(Duration::from_millis(1));
    }
    world.run(0.02);
    assert_eq!(made(&world), 40);
    let emptied = world.heap.empty.all(&world.heap.table).map(|id| world.heap.arena(id).changed_at);
    assert!(emptied.is_sorted_by(|later, earlier| later >= earlier));
    world.run(3.0);
    assert_eq!(world.heap.snapshot().retained, 0);
    world.check();
}

#[test]
fn where_the_kernel_refuses_a_quarter_of_what_the_limit_leaves_is_kept() {
    let mut world = World::new(Policy::Thp, Config::default().with_cgroup_max(200 * MIB));
    world.kernel.fail_every(Call::Offer, 1, libc::EINVAL);
    let all = world.take_arenas(60);
    world.free_arenas(&all);
    world.run(0.02);
    assert!(world.heap.snapshot().retained <= 50 * MIB, "{:?}", world.heap.snapshot());
    // Less than that: here the passes that follow at once do not read the charge again, as those of the thread do.
    assert!(world.heap.snapshot().retained >= 24 * MIB);
    assert_eq!(world.fallback(Fallback::OfferRefused), 1);
    // Others grow, and a pass sees that within a tenth of a second.
    let range = elsewhere(&world, 120 * MIB);
    world.kernel.touch(range).unwrap();
    world.run(0.12);
    // A quarter of 80 MiB, and up to an arena more: only whole ones are given back.
    assert!(world.heap.snapshot().retained <= 22 * MIB, "{:?}", world.heap.snapshot());
    world.run(3.0);
    assert_eq!(world.fallback(Fallback::OfferRefused), 1, "counted once");
    world.check();
}

#[test]
fn a_pool_s_pages_are_not_offered() {
    let mut config = Config::default().with_cgroup_max(150 * MIB);
    config.hugetlb[0].pages = 60;
    let mut world = World::new(Policy::Hugetlb, config);
    let all = world.take_arenas(40);
    world.free_arenas(&all);
    world.run(0.5);
    assert_eq!(world.kernel.calls(Call::Offer), 0);
    world.check();
}
