//! What arenas are made of under each policy, and which reason is counted when it is not that.

use super::*;
use hugeheap_os::simulated::Call;
use hugeheap_os::{Advice, Facts, ThpDisabled, ThpMode};

const MODES: [ThpMode; 3] = [ThpMode::Always, ThpMode::Madvise, ThpMode::Never];

fn advice(world: &World, address: usize) -> Option<Advice> {
    world.kernel.mapping_at(address).and_then(|mapping| mapping.advice)
}

/// A full arena under `policy`, and its address.
fn one_arena(policy: Policy, config: Config) -> (World, usize) {
    let mut world = World::new(policy, config);
    let address = world.take(HEAP_PAGES);
    world.check();
    (world, address)
}

#[test]
fn base_has_no_huge_page_under_any_mode() {
    for mode in MODES {
        let (mut world, address) = one_arena(Policy::Base, Config::default().with_thp_mode(mode));
        assert_eq!(advice(&world, address), Some(Advice::NoHuge));
        world.run(10.0);
        world.kernel.run_khugepaged(1 << 20);
        assert_eq!(world.huge_bytes(), 0, "{mode:?}");
        assert_eq!(world.fallbacks(), []);
    }
}

#[test]
fn thp_is_huge_from_the_first_touch_unless_the_mode_is_never() {
    for mode in MODES {
        let (world, address) = one_arena(Policy::Thp, Config::default().with_thp_mode(mode));
        // Advised also where that does nothing now.
        assert_eq!(advice(&world, address), Some(Advice::Huge));
        let never = mode == ThpMode::Never;
        assert_eq!(world.huge_bytes(), if never { 0 } else { ARENA });
        assert_eq!(world.fallbacks(), if never { vec![(Fallback::ThpNever, 1)] } else { vec![] });
        let effective = if never { Policy::Base } else { Policy::Thp };
        assert_eq!(world.heap.snapshot().effective_policy, effective as u32);
    }
}

#[test]
fn dense_is_never_advised_at_first_and_collapsed_when_dense_under_every_mode() {
    for mode in MODES {
        let mut world = World::new(Policy::Dense, Config::default().with_thp_mode(mode));
        let sparse = world.take(64);
        assert_eq!(world.huge_bytes(), 0, "{mode:?}");
        assert_ne!(advice(&world, sparse), Some(Advice::Huge));
        world.run(5.0);
        assert_eq!(world.huge_bytes(), 0, "half full is not dense");
        // Seven eighths are.
        world.take(48);
        world.run(0.5);
        assert_eq!(world.huge_bytes(), 0, "changed too lately");
        world.run(1.0);
        assert_eq!(world.huge_bytes(), ARENA, "{mode:?}");
        let snapshot = world.heap.snapshot();
        assert_eq!((snapshot.collapses, snapshot.arenas_thp), (1, 1));
        assert_eq!(snapshot.retained, 16 * PAGE, "the holes were filled");
        assert_eq!(world.fallbacks(), []);
        world.check_contents(sparse, 64 * HEAP_PAGE_BYTES);
    }
}

/// A collapse fills what was never touched: 100 MiB of buffers of 64 KiB, of which the program wrote 4 each,
/// were resident as a whole a decay time later.
#[test]
fn buffers_that_are_used_in_part_are_no_huge_pages_before_the_program_uses_the_rest() {
    let mut world = World::new(Policy::Dense, Config::default());
    let runs: Vec<usize> = (0..32).map(|_| world.heap.allocate(4).expect("memory").get()).collect();
    for &run in &runs {
        world.use_all(run, HEAP_PAGE_BYTES);
    }
    world.run(5.0);
    assert_eq!(world.huge_bytes(), 0);
    for &run in &runs {
        world.use_all(run, 4 * HEAP_PAGE_BYTES);
    }
    world.run(60.0);
    assert_eq!(world.huge_bytes(), ARENA);
    world.check();
}

/// Runs of 4 heap pages that fill an arena, of which a quarter was used, found sparse and left alone.
fn buffers_left_alone() -> (World, Vec<usize>) {
    let mut world = World::new(Policy::Dense, Config::default());
    let runs: Vec<usize> = (0..32).map(|_| world.heap.allocate(4).expect("memory").get()).collect();
    for &run in &runs {
        world.use_all(run, HEAP_PAGE_BYTES);
    }
    world.run(80.0);
    (world, runs)
}

/// An arena that stays sparse kept the maintenance thread for 950 decay times, and with it a child that CPython 3.12
/// had forked from a thread.
#[test]
fn an_arena_that_stays_sparse_is_asked_about_four_times() {
    let (mut world, _) = buffers_left_alone();
    assert_eq!(world.kernel.calls(Call::Residency), 4);
    assert_eq!(world.heap.maintain(), Wait::Idle);
    assert!(!world.heap.maintenance_due(), "a thread would be started");
    world.run(3000.0);
    assert_eq!((world.kernel.calls(Call::Residency), world.huge_bytes()), (4, 0));
    world.check();
}

#[test]
fn an_arena_that_was_left_alone_is_asked_about_once_more_after_each_change() {
    let (mut world, mut runs) = buffers_left_alone();
    for asked in 5..10 {
        let run = runs.pop().expect("there are some");
        world.free(run, 4);
        assert_eq!(world.heap.allocate(4).expect("memory").get(), run);
        runs.insert(0, run);
        world.run(2000.0);
        assert_eq!(world.kernel.calls(Call::Residency), asked, "nothing was touched meanwhile");
        assert_eq!(world.heap.maintain(), Wait::Idle);
    }
    for &run in &runs {
        world.use_all(run, 4 * HEAP_PAGE_BYTES);
    }
    world.run(2000.0);
    assert_eq!(world.huge_bytes(), 0, "that nobody tells");
    world.free(runs[0], 4);
    world.run(2.0);
    assert_eq!(world.huge_bytes(), ARENA);
    world.check();
}

/// After eight answers it was left alone, whatever they were.
#[test]
fn an_arena_that_fills_slowly_is_asked_about_until_it_is_dense() {
    let mut world = World::new(Policy::Dense, Config::default());
    let run = world.heap.allocate(HEAP_PAGES).expect("memory").get();
    for pages in 1..=112 {
        world.use_all(run, pages * HEAP_PAGE_BYTES);
        assert_eq!(world.heap.snapshot().collapses, 0, "{pages}");
        world.run(30.0);
    }
    world.run(320.0);
    let asked = world.kernel.calls(Call::Residency);
    assert!(asked < 20, "{asked}: not ever more seldom");
    assert_eq!(world.huge_bytes(), ARENA);
    world.check();
}

#[test]
fn auto_is_thp_where_that_works_and_dense_where_the_mode_is_never() {
    for mode in MODES {
        let (mut world, _) = one_arena(Policy::Auto, Config::default().with_thp_mode(mode));
        let never = mode == ThpMode::Never;
        assert_eq!(world.huge_bytes(), if never { 0 } else { ARENA });
        let effective = if never { Policy::Dense } else { Policy::Thp };
        assert_eq!(world.heap.snapshot().effective_policy, effective as u32);
        world.run(3.0);
        assert_eq!(world.huge_bytes(), ARENA);
        assert_eq!(world.fallbacks(), []);
    }
}

#[test]
fn a_process_with_thp_switched_off_gets_os_pages_and_a_reason() {
    for policy in [Policy::Thp, Policy::Auto] {
        let config = Config { thp_disabled: ThpDisabled::Completely, ..Config::default() };
        let (mut world, _) = one_arena(policy, config);
        world.run(5.0);
        assert_eq!(world.huge_bytes(), 0);
        assert_eq!(world.fallbacks(), [(Fallback::ThpDisabled, 1)]);
        assert_eq!(world.heap.snapshot().passes, 1, "nothing to do, and no calls that must fail");
        assert_eq!(world.kernel.calls(Call::Collapse), 0);
    }
    let config = Config { thp_disabled: ThpDisabled::ExceptAdvised, ..Config::default() };
    let (world, _) = one_arena(Policy::Auto, config);
    assert_eq!((world.huge_bytes(), world.fallbacks()), (ARENA, vec![]));
}

#[test]
fn a_kernel_without_transparent_huge_pages_is_a_reason() {
    let config = Config::with_page_sizes(4096, None);
    for policy in [Policy::Thp, Policy::Auto, Policy::Dense] {
        let (mut world, _) = one_arena(policy, config.clone());
        world.run(5.0);
        assert_eq!(world.fallbacks(), [(Fallback::ThpUnsupported, 1)]);
    }
}

#[test]
fn larger_os_and_huge_pages_work() {
    for os in [16 << 10, 64 << 10] {
        let config = Config::with_page_sizes(os, Some(os * os / 8));
        let mut world = World::new(Policy::Auto, config);
        let arenas = world.take_arenas(3);
        assert_eq!(world.fallbacks(), [(Fallback::ThpUnsupported, 3)]);
        world.free_arenas(&arenas);
        if os <= HEAP_PAGE_BYTES {
            world.run(3.0);
            assert_eq!(world.kernel.charge(), 0);
        }
    }
}

#[test]
fn a_host_whose_sys_is_closed_is_asked_by_touching() {
    let kernel_says_no = Config::default();
    let mut world = World::new(Policy::Auto, kernel_says_no);
    world.kernel.fail_every(Call::Thp, 1, libc::EACCES);
    world.take(HEAP_PAGES);
    assert_eq!((world.huge_bytes(), world.fallbacks()), (ARENA, vec![]));
}

#[test]
fn a_missing_huge_page_is_counted_once_and_made_up_for_when_dense() {
    for policy in [Policy::Thp, Policy::Auto, Policy::Hugetlb] {
        let mut world = World::new(policy, Config::default());
        world.kernel.set_free_huge_pages(Some(0));
        let first = if policy == Policy::Hugetlb { Fallback::PoolEmpty } else { Fallback::NoHugePage };
        let half = world.take(64);
        world.take(64);
        world.take_arenas(2);
        assert_eq!(world.fallbacks(), [(first, 3)], "once per arena");
        assert_eq!(world.heap.snapshot().arenas_base, 3);
        assert_eq!(world.heap.snapshot().arenas_thp, 0);
        world.kernel.set_free_huge_pages(None);
        world.free(half, 64);
        world.run(3.0);
        assert_eq!(world.huge_bytes(), 2 * ARENA, "the full ones, not the one half empty");
        assert_eq!(world.heap.snapshot().arenas_thp, 2);
        assert_eq!(world.fallbacks(), [(first, 3)]);
        world.take(64);
        world.run(3.0);
        assert_eq!(world.huge_bytes(), 3 * ARENA);
    }
}

#[test]
fn a_collapse_that_finds_no_huge_page_is_tried_again_later_and_later() {
    let mut world = World::new(Policy::Dense, Config::default());
    world.kernel.set_free_huge_pages(Some(0));
    world.take(HEAP_PAGES);
    world.run(1000.0);
    let tries = world.fallback(Fallback::CollapseNoPage);
    assert!((3..12).contains(&tries), "{tries}");
    world.kernel.set_free_huge_pages(None);
    world.run(400.0);
    assert_eq!(world.huge_bytes(), ARENA, "memory that is short now is not short forever");
}

#[test]
fn an_arena_collapsed_without_advice_is_advised_when_it_is_supplied_anew() {
    // It was made by `dense` on unadvised memory; given back and made by `thp`, it must be advised.
    let mut world = World::new(Policy::Dense, Config::default());
    let address = world.take(HEAP_PAGES);
    world.run(3.0);
    assert_eq!(world.huge_bytes(), ARENA);
    world.free(address, HEAP_PAGES);
    world.heap.forget_demand();
    world.run(1.0);
    assert_eq!(world.kernel.charge(), 0);
    world.heap.set(Settings { policy: Policy::Thp, ..world.heap.settings() });
    assert_eq!(world.take(HEAP_PAGES), address);
    assert_eq!((world.huge_bytes(), world.fallbacks()), (ARENA, vec![]));
}

#[test]
fn slow_huge_pages_make_auto_collapse_later_instead() {
    let mut world = World::new(Policy::Auto, Config::default());
    world.kernel.set_cost(Call::HugeFault, Duration::from_millis(60));
    let mut arenas = 0;
    while world.fallback(Fallback::Latency) == 0 {
        world.take(HEAP_PAGES);
        arenas += 1;
        assert!(arenas < 20, "60 ms per page is slow");
    }
    assert!(arenas > 2, "one slow page is forgiven");
    let huge = world.huge_bytes();
    world.take(HEAP_PAGES);
    assert_eq!(world.huge_bytes(), huge);
    assert_eq!(world.fallbacks(), [(Fallback::Latency, 2)]);
    // In the background they are collapsed, and after a while new arenas are huge at once again.
    world.kernel.set_cost(Call::HugeFault, Duration::ZERO);
    world.run(15.0);
    assert_eq!(world.huge_bytes(), huge + 2 * ARENA);
    world.take(HEAP_PAGES);
    assert_eq!(world.huge_bytes(), huge + 3 * ARENA);
    assert_eq!(world.fallbacks(), [(Fallback::Latency, 2)]);
}

#[test]
fn a_busy_host_does_not_make_huge_pages_slow() {
    let mut world = World::new(Policy::Auto, Config::default());
    world.kernel.set_preemption(Call::HugeFault, Duration::from_millis(60));
    world.take_arenas(20);
    assert_eq!((world.huge_bytes(), world.fallbacks()), (20 * ARENA, vec![]));
}

#[test]
fn near_the_cgroup_limit_nothing_is_huge_and_nothing_retained() {
    for policy in [Policy::Thp, Policy::Auto] {
        let mut world = World::new(policy, Config::default().with_cgroup_max(256 * MIB));
        let arenas = world.take_arenas(100);
        assert_eq!(world.fallbacks(), []);
        // The margin is 16 MiB.
        world.kernel.set_cgroup_max(Some(212 * MIB));
        world.run(0.1);
        world.take(HEAP_PAGES);
        assert_eq!(world.fallbacks(), [(Fallback::MemoryLimit, 1)]);
        assert_eq!(world.huge_bytes(), 100 * ARENA);
        // What is freed now goes at once, though the demand was high a moment ago.
        world.free_arenas(&arenas[..10]);
        world.run(0.1);
        let snapshot = world.heap.snapshot();
        assert_eq!(snapshot.arenas_given_back, 10, "{snapshot:?}");
        assert_eq!(world.kernel.charge(), 91 * ARENA);
    }
}

#[test]
fn the_limit_that_is_near_may_be_high_and_counts_what_cannot_be_dropped() {
    let config = Config { cgroup_high: Some(128 * MIB), cgroup_max: Some(1 << 30), ..Config::default() };
    let mut world = World::new(Policy::Auto, config);
    world.take_arenas(64);
    let tight = world.fallback(Fallback::MemoryLimit);
    // The margin is 16 MiB; limits are read again every 2 MiB.
    assert!((7..=9).contains(&tight), "{tight}");
    // Page cache does not count.
    let mut world = World::new(Policy::Auto, Config::default().with_cgroup_max(128 * MIB));
    world.kernel.set_other_charge(100 * MIB);
    world.take_arenas(10);
    assert_eq!(world.kernel.memory_limits().map(|limits| limits.charge), Ok(120 * MIB));
    assert_eq!(world.fallbacks(), []);
}

#[test]
fn above_the_users_limit_nothing_is_huge_and_nothing_retained() {
    let mut world = World::with(Settings { limit: Some(20 * MIB), ..Settings::DEFAULT }, Config::default());
    let arenas = world.take_arenas(15);
    assert_eq!(world.fallbacks(), [(Fallback::MemoryLimit, 5)]);
    assert_eq!(world.huge_bytes(), 10 * ARENA);
    world.free_arenas(&arenas[..3]);
    assert_eq!(world.heap.snapshot().retention_target, 0);
    world.run(0.01);
    assert_eq!(world.heap.snapshot().retained, 0);
    assert_eq!(world.kernel.charge(), 12 * ARENA);
}

#[test]
fn dense_arenas_made_near_the_limit_are_collapsed_when_it_is_far_again() {
    let mut world = World::new(Policy::Auto, Config::default().with_cgroup_max(64 * MIB));
    world.take_arenas(28);
    let huge = world.huge_bytes();
    assert!(huge < 28 * ARENA);
    world.run(20.0);
    assert_eq!(world.huge_bytes(), huge, "not while it is near");
    assert_eq!(world.kernel.calls(Call::Collapse), 0);
    world.kernel.set_cgroup_max(Some(256 * MIB));
    world.run(5.0);
    assert_eq!(world.huge_bytes(), 28 * ARENA);
}

#[test]
fn changing_the_policy_changes_arenas_made_later() {
    let mut world = World::new(Policy::Base, Config::default());
    world.take_arenas(2);
    world.heap.set(Settings { policy: Policy::Thp, ..world.heap.settings() });
    world.take_arenas(2);
    assert_eq!(world.huge_bytes(), 2 * ARENA);
    assert_eq!(world.heap.settings().policy, Policy::Thp);
    // And dense arenas made before are collapsed.
    world.run(3.0);
    assert_eq!(world.huge_bytes(), 4 * ARENA);
}

#[test]
fn each_new_arena_costs_two_cheap_questions() {
    let mut world = World::new(Policy::Auto, Config::default());
    world.take_arenas(1);
    let sizes = world.kernel.calls(Call::PageSizes);
    world.take_arenas(49);
    // Before the touch and after it: cheap questions, and never what opens files.
    assert_eq!((world.kernel.calls(Call::IsResident), world.kernel.calls(Call::Residency)), (100, 0));
    assert_eq!(world.kernel.calls(Call::PageSizes), sizes, "nor is a size of pages read again");
    assert_eq!(world.kernel.calls(Call::Populate), 50);
    let calls = world.kernel.calls(Call::Map);
    let run = world.take_arenas(1);
    assert_eq!(world.kernel.calls(Call::Map), calls + 1);
    world.free_arenas(&run);
    world.take_arenas(1);
    assert_eq!(world.kernel.calls(Call::IsResident), 102, "a kept arena costs no call");
}

/// As gVisor's `mincore` says of all memory: then what backs the page decides.
#[test]
fn where_all_seems_resident_the_kernel_is_asked_what_backs_the_page() {
    for (huge_pages, huge, answers) in
        [(None, 3 * ARENA, true), (Some(0), 0, true), (None, 3 * ARENA, false), (Some(0), 0, false)]
    {
        let mut world = World::new(Policy::Thp, Config { seems_resident: answers, ..Config::default() });
        world.kernel.set_free_huge_pages(huge_pages);
        if !answers {
            // No answer is like the answer that it was there.
            world.kernel.fail_every(Call::IsResident, 1, libc::ENOSYS);
        }
        world.take_arenas(3);
        assert_eq!((world.kernel.calls(Call::Residency), world.huge_bytes()), (3, huge));
        let missing = world.heap.snapshot().fallback(Fallback::NoHugePage);
        assert_eq!(missing, if huge == 0 { 3 } else { 0 });
    }
}

#[test]
fn advice_that_is_refused_leaves_memory_that_works() {
    let mut world = World::new(Policy::Thp, Config::default());
    world.take(HEAP_PAGES);
    world.kernel.fail_next(Call::Map, libc::EAGAIN, 1);
    let address = world.take(HEAP_PAGES);
    assert_eq!(world.fallbacks(), [(Fallback::MappingLimit, 1)], "too many mappings");
    assert_eq!(world.heap.snapshot().effective_policy, Policy::Base as u32);
    world.kernel.fail_next(Call::Map, libc::EINVAL, 1);
    world.take(HEAP_PAGES);
    assert_eq!(world.fallbacks(), [(Fallback::ThpUnsupported, 1), (Fallback::MappingLimit, 1)]);
    // The same for memory that is mapped already.
    world.heap.set(Settings { policy: Policy::Base, ..world.heap.settings() });
    world.free(address, HEAP_PAGES);
    world.heap.forget_demand();
    world.run(1.0);
    world.kernel.fail_next(Call::Advise, libc::EAGAIN, 1);
    assert_eq!(world.take(HEAP_PAGES), address);
    assert_eq!(world.fallback(Fallback::MappingLimit), 2);
    world.check();
}
