//! Breaking sparse arenas so that the charge falls, and collapsing them when they are dense again.

use super::*;
use hugeheap_os::simulated::{Call, PageState};
use hugeheap_os::{Advice, ThpMode};

#[test]
fn sparse_arenas_are_broken_after_the_decay_time_and_the_charge_falls() {
    let mut world = World::new(Policy::Thp, Config::default());
    let live = world.sparse_arenas(10, 1);
    assert_eq!(world.kernel.charge(), 10 * ARENA);
    world.run(0.9);
    assert_eq!(world.heap.snapshot().breaks, 0, "what is freed may be needed again at once");
    world.run(1.5);
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.breaks, snapshot.arenas_broken), (10, 10));
    assert_eq!((snapshot.live, snapshot.retained), (10 * PAGE, 0));
    assert_eq!(world.kernel.charge(), 10 * PAGE, "the charge and not only what is mapped");
    assert_eq!((world.kernel.rss(), world.kernel.stranded()), (10 * PAGE, 0));
    assert_eq!(snapshot.given_back, 10 * (ARENA - PAGE));
    live.iter().for_each(|&page| world.check_contents(page, HEAP_PAGE_BYTES));
    assert_eq!(world.heap.maintain(), Wait::Idle);
}

#[test]
fn khugepaged_does_not_refill_what_was_broken() {
    for mode in [ThpMode::Always, ThpMode::Madvise] {
        let mut world = World::new(Policy::Thp, Config::default().with_thp_mode(mode));
        let live = world.sparse_arenas(10, 1);
        world.run(3.0);
        assert_eq!(world.heap.snapshot().breaks, 10);
        world.kernel.run_khugepaged(1 << 20);
        assert_eq!(world.kernel.charge(), 10 * PAGE, "{mode:?}");
        let advice = world.kernel.mapping_at(live[0]).and_then(|mapping| mapping.advice);
        assert_eq!(advice, Some(Advice::NoHuge));
    }
}

#[test]
fn what_khugepaged_filled_before_is_dropped_with_the_rest() {
    // No huge page at the first touch; khugepaged makes one later, of which the heap hears nothing.
    let mut world = World::new(Policy::Thp, Config::default());
    world.kernel.set_free_huge_pages(Some(0));
    let page = world.take(1);
    world.kernel.set_free_huge_pages(None);
    world.kernel.run_khugepaged(1 << 20);
    assert_eq!(world.kernel.charge(), ARENA);
    // Enough of it is free and known to have been touched for a break.
    let more: Vec<_> = (0..80).map(|_| world.take(1)).collect();
    more.into_iter().for_each(|page| world.free(page, 1));
    world.run(3.0);
    assert_eq!((world.kernel.charge(), world.kernel.stranded()), (PAGE, 0));
    world.check_contents(page, HEAP_PAGE_BYTES);
}

#[test]
fn half_free_is_sparse_and_less_is_not() {
    for (keep, broken) in [(65, 0), (64, 5)] {
        let mut world = World::new(Policy::Thp, Config::default());
        world.sparse_arenas(5, keep);
        world.run(5.0);
        assert_eq!(world.heap.snapshot().breaks, broken, "{keep} kept");
    }
}

#[test]
fn near_the_limit_an_eighth_is_enough_and_there_is_no_waiting() {
    for (keep, broken) in [(113, 0), (112, 20)] {
        let mut world = World::new(Policy::Thp, Config::default().with_cgroup_max(256 * MIB));
        world.sparse_arenas(20, keep);
        world.kernel.set_cgroup_max(Some(40 * MIB));
        world.run(0.01);
        assert_eq!(world.heap.snapshot().breaks, broken, "{keep} kept");
        assert_eq!(world.kernel.stranded(), 0);
    }
}

/// Passes were due after frees only. A program that grew to its limit by runs of which two fit an arena was
/// killed with a third of that kept.
#[test]
fn a_heap_that_only_grows_keeps_nothing_near_the_limit() {
    for slow in [false, true] {
        let mut world = World::new(Policy::Thp, Config::default().with_cgroup_max(260 * MIB));
        let pages = 43;
        // All but the metadata and a few pages of the limit.
        let runs: Vec<_> = (0..370)
            .map(|_| {
                let run = world.take(pages);
                // As the runtime does it after each event; the thread sleeps when nothing is due.
                if world.heap.maintenance_due() || slow && world.heap.oversleeps(u64::MAX) {
                    world.run(if slow { 0.2 } else { 0.000_1 });
                }
                run
            })
            .collect();
        assert_eq!(world.heap.snapshot().live, 370 * u64::from(pages) * PAGE);
        assert!(world.heap.snapshot().retained < 16 * MIB, "{:?}", world.heap.snapshot());
        runs.iter().for_each(|&run| world.check_contents(run, pages as usize * HEAP_PAGE_BYTES));
        // With nothing left to break nobody is waked for nothing.
        let passes = world.heap.counters.passes;
        for _ in 0..100 {
            let page = world.take(1);
            assert!(!world.heap.maintenance_due());
            world.free(page, 1);
        }
        assert!(world.heap.counters.passes <= passes);
        world.check();
    }
}

#[test]
fn breaking_stops_when_enough_is_given_back() {
    let mut world = World::new(Policy::Thp, Config::default());
    world.sparse_arenas(10, 32);
    // Half of what is retained is to be kept.
    let kept = world.heap.snapshot().live + 10 * (ARENA - 32 * PAGE) / 2;
    world.kernel.advance(Duration::from_secs(5));
    world.heap.forget_demand();
    world.heap.demand.record(world.heap.now(), kept);
    world.heap.maintain();
    assert_eq!(world.heap.snapshot().breaks, 5);
    world.check();
}

#[test]
fn whole_arenas_go_before_sparse_ones_are_broken() {
    let mut world = World::new(Policy::Thp, Config::default());
    world.sparse_arenas(5, 1);
    let arenas = world.take_arenas(5);
    world.free_arenas(&arenas);
    world.kernel.advance(Duration::from_secs(5));
    world.heap.forget_demand();
    let keep = world.heap.snapshot().live + 5 * (ARENA - PAGE);
    world.heap.demand.record(world.heap.now(), keep);
    world.heap.maintain();
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.arenas_given_back, snapshot.breaks), (5, 0));
}

#[test]
fn an_arena_that_is_used_again_is_not_broken() {
    let mut world = World::new(Policy::Thp, Config::default());
    world.sparse_arenas(10, 1);
    // All but one are left alone.
    let mut used = world.take(1);
    for _ in 0..20 {
        world.run(0.5);
        world.free(used, 1);
        used = world.take(1);
    }
    assert_eq!(world.heap.snapshot().breaks, 9);
}

#[test]
fn a_broken_arena_that_is_dense_again_is_collapsed() {
    let mut world = World::new(Policy::Thp, Config::default());
    let live = world.sparse_arenas(3, 1);
    world.run(3.0);
    assert_eq!(world.huge_bytes(), 0);
    let refill: Vec<_> = (0..3 * 127).map(|_| world.take(1)).collect();
    assert_eq!(world.heap.snapshot().arenas_full, 3);
    world.run(0.5);
    assert_eq!(world.huge_bytes(), 0);
    world.run(1.0);
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.collapses, snapshot.arenas_thp, snapshot.arenas_broken), (3, 3, 0));
    assert_eq!(world.huge_bytes(), 3 * ARENA);
    live.iter().chain(&refill).for_each(|&page| world.check_contents(page, HEAP_PAGE_BYTES));
    // And broken again.
    refill.into_iter().for_each(|page| world.free(page, 1));
    world.run(40.0);
    assert_eq!(world.heap.snapshot().breaks, 6);
    assert_eq!(world.kernel.charge(), 3 * PAGE);
}

#[test]
fn a_broken_arena_that_is_emptied_is_huge_when_it_is_used_again() {
    let mut world = World::new(Policy::Thp, Config::default());
    let live = world.sparse_arenas(4, 1);
    world.run(3.0);
    assert_eq!(world.heap.snapshot().breaks, 4);
    live.into_iter().for_each(|page| world.free(page, 1));
    world.heap.forget_demand();
    world.run(1.0);
    assert_eq!(world.kernel.charge(), 0);
    world.take_arenas(4);
    assert_eq!((world.huge_bytes(), world.fallbacks()), (4 * ARENA, vec![]));
    assert_eq!(world.heap.snapshot().arenas_broken, 0);
}

#[test]
fn arenas_of_os_pages_give_parts_back_without_being_broken() {
    let mut world = World::new(Policy::Base, Config::default());
    world.sparse_arenas(10, 100);
    world.run(3.0);
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.breaks, snapshot.retained), (0, 0));
    assert_eq!(world.kernel.charge(), 1000 * PAGE);
    assert_eq!((world.kernel.calls(Call::Split), world.kernel.calls(Call::Advise)), (0, 0));
}

#[test]
fn one_arena_is_not_broken_and_collapsed_in_one_pass() {
    // Dense, on OS pages, with enough free for a break: both apply.
    let mut world = World::new(Policy::Dense, Config::default());
    world.sparse_arenas(3, 112);
    world.run(3.0);
    let snapshot = world.heap.snapshot();
    assert_eq!(snapshot.collapses, 3);
    assert_eq!(world.huge_bytes(), 3 * ARENA);
}

#[test]
fn what_is_freed_while_an_arena_is_broken_is_seen() {
    let mut world = World::new(Policy::Thp, Config::default());
    let live = world.sparse_arenas(2, 4);
    world.kernel.advance(Duration::from_secs(3));
    let mut plan = world.heap.plan();
    // All that is live in the first arena, and a part of the second; nothing is taken from them.
    let of_first = |page: &&usize| **page / ARENA_BYTES == live[0] / ARENA_BYTES;
    let (first, second): (Vec<usize>, Vec<usize>) = (
        live.iter().filter(of_first).copied().collect(),
        live.iter().filter(|page| !of_first(page)).copied().collect(),
    );
    first.iter().for_each(|&page| world.free(page, 1));
    world.free(second[0], 1);
    let other = world.take(1);
    assert!(live.iter().all(|page| page / ARENA_BYTES != other / ARENA_BYTES));
    plan.perform(&world.kernel);
    world.free(second[1], 1);
    assert!(matches!(world.heap.complete(plan), Wait::For(0)));
    world.check();
    assert_eq!(world.heap.snapshot().arenas_broken, 2);
    world.check_contents(second[2], HEAP_PAGE_BYTES);
    assert_eq!(world.kernel.page_state(second[2]), PageState::Small);
    world.run(20.0);
    assert_eq!(world.kernel.charge(), world.heap.snapshot().live + world.heap.snapshot().retained);
}

/// What was known of its longest free range before the pass is not true of it any more when the second run is freed.
#[test]
fn the_room_that_came_while_an_arena_is_broken_is_found() {
    let mut world = World::new(Policy::Thp, Config::default());
    let pages: Vec<_> = (0..HEAP_PAGES).map(|_| world.take(1)).collect();
    let number = |page: usize| page % ARENA_BYTES / HEAP_PAGE_BYTES;
    let (live, dead): (Vec<usize>, Vec<usize>) =
        pages.into_iter().partition(|&page| [20, 100, 110].contains(&number(page)));
    dead.into_iter().for_each(|page| world.free(page, 1));
    world.kernel.advance(Duration::from_secs(3));
    let mut plan = world.heap.plan();
    assert!(!plan.is_empty());
    // 79 pages in a row were free. Now 100 are, and then 27 elsewhere.
    [20, 110].iter().for_each(|&wanted| {
        let page = live.iter().find(|&&page| number(page) == wanted).expect("it lives");
        world.free(*page, 1);
    });
    plan.perform(&world.kernel);
    world.heap.complete(plan);
    world.check();
    let run = world.take(100);
    assert_eq!((run / ARENA_BYTES, number(run)), (live[0] / ARENA_BYTES, 0));
}

#[test]
fn more_arenas_than_a_pass_looks_at_are_all_found_and_the_search_ends() {
    let mut world = World::new(Policy::Dense, Config::default());
    // Metadata only: nothing is touched but the dense one, the last.
    for _ in 0..5000 {
        world.heap.allocate(HEAP_PAGES).expect("there is memory");
    }
    let dense = world.take(HEAP_PAGES);
    world.run(60.0);
    assert!(world.kernel.is_huge(dense));
    // The others have no page table, so the kernel refuses: that too comes to an end.
    let before = world.heap.counters.passes;
    world.run(100_000.0);
    world.heap.counters.passes = before;
    world.run(10_000.0);
    assert_eq!(world.heap.counters.passes, before + 1);
}
