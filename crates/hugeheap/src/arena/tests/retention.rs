//! How much is kept: the demand of the recent past, a little more after a regret, nothing when idle.

use super::*;

#[test]
fn a_burst_is_kept_for_the_decay_time_and_then_given_back() {
    let mut world = World::new(Policy::Thp, Config::default());
    world.run(10.0);
    let arenas = world.take_arenas(100);
    world.run(2.0);
    world.free_arenas(&arenas);
    world.run(0.8);
    assert_eq!(world.heap.snapshot().retained, 100 * ARENA);
    world.run(0.5);
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.retained, snapshot.arenas), (0, 0));
    assert_eq!((snapshot.given_back, snapshot.arenas_given_back), (100 * ARENA, 100));
    assert_eq!(world.kernel.charge(), 0);
    assert_eq!(world.heap.maintain(), Wait::Idle);
}

#[test]
fn half_of_a_burst_goes_when_half_is_needed() {
    let mut world = World::new(Policy::Thp, Config::default());
    let arenas = world.take_arenas(100);
    world.free_arenas(&arenas[50..]);
    world.run(3.0);
    assert_eq!(world.kernel.charge(), 50 * ARENA);
    assert_eq!(world.heap.snapshot().retained, 0);
}

#[test]
fn a_steady_program_gives_nothing_back_and_faults_no_more() {
    let mut world = World::new(Policy::Thp, Config::default());
    for _ in 0..50 {
        let arenas = world.take_arenas(50);
        world.run(0.1);
        world.free_arenas(&arenas);
        world.run(0.1);
    }
    assert_eq!(world.kernel.events().huge_faults, 50);
    assert_eq!(world.heap.snapshot().given_back, 0);
}

#[test]
fn a_cyclic_program_is_learnt_and_forgotten() {
    let mut world = World::new(Policy::Thp, Config::default());
    for _ in 0..20 {
        let arenas = world.take_arenas(50);
        world.run(1.0);
        world.free_arenas(&arenas);
        world.run(4.0);
    }
    assert_eq!(world.kernel.events().huge_faults, 100, "once, and once regretted");
    assert_eq!(world.heap.snapshot().regretted, 50 * ARENA);
    // Twice the pause after the last free, of which 4 s are over.
    world.run(3.5);
    assert_eq!(world.heap.snapshot().retained, 50 * ARENA);
    world.run(1.0);
    assert_eq!((world.heap.snapshot().retained, world.kernel.charge()), (0, 0));
    assert_eq!(world.heap.maintain(), Wait::Idle);
}

#[test]
fn a_program_with_long_pauses_keeps_its_memory_for_longer_than_one_with_short_pauses() {
    for (pause, kept) in [(1.5, 3.0), (10.0, 20.0), (25.0, 30.0)] {
        let mut world = World::new(Policy::Thp, Config::default());
        for _ in 0..6 {
            let arenas = world.take_arenas(50);
            world.run(0.1);
            world.free_arenas(&arenas);
            world.run(pause);
        }
        assert_eq!(world.heap.snapshot().given_back, 50 * ARENA, "pause {pause} s");
        world.run(kept - pause - 0.5);
        assert_eq!(world.kernel.charge(), 50 * ARENA, "pause {pause} s");
        world.run(1.0);
        assert_eq!(world.kernel.charge(), 0, "pause {pause} s");
    }
}

#[test]
fn a_burst_while_recurring_memory_is_kept_needs_an_earlier_look() {
    let mut world = World::new(Policy::Thp, Config::default());
    for _ in 0..3 {
        let arenas = world.take_arenas(10);
        world.run(0.1);
        world.free_arenas(&arenas);
        world.run(10.0);
    }
    world.heap.refresh_host();
    let Wait::For(time) = world.heap.maintain() else { panic!("ten arenas are kept") };
    let look = world.heap.now() + time;
    assert!(time > 5 * SECOND, "{time}");
    assert!(!world.heap.oversleeps(look));
    let burst = world.take_arenas(100);
    assert!(!world.heap.oversleeps(look), "nothing fell yet");
    world.free_arenas(&burst);
    assert!(world.heap.oversleeps(look));
    assert!(
        !world.heap.oversleeps(world.heap.now() + SECOND),
        "an eighth of the decay time, and some time for the look"
    );
}

/// The peak left the short window between a plan, which still kept what it needs, and the completion: nobody
/// looked again, and the memory stayed for good.
#[test]
fn what_is_forgotten_during_a_pass_is_seen_by_the_next() {
    let mut world = World::new(Policy::Thp, Config::default());
    let mut last = world.take(HEAP_PAGES);
    let arenas = world.take_arenas(20);
    world.free_arenas(&arenas);
    let mut kept = 0;
    loop {
        world.kernel.advance(Duration::from_millis(50));
        let plan = world.heap.plan();
        if !plan.is_empty() {
            assert!(kept > 3, "the decay time is a second");
            let _ = world.heap.complete(plan);
            break;
        }
        kept += 1;
        // The program goes on meanwhile, for longer than a part of the short window.
        world.kernel.advance(Duration::from_millis(130));
        world.free(last, HEAP_PAGES);
        last = world.take(HEAP_PAGES);
        assert_ne!(
            world.heap.complete(plan),
            Wait::Idle,
            "{} bytes are retained",
            world.heap.snapshot().retained
        );
    }
}

#[test]
fn other_settings_are_a_reason_to_look() {
    let mut world = World::with(Settings { decay: 3600 * SECOND, ..Settings::DEFAULT }, Config::default());
    let arenas = world.take_arenas(20);
    world.free_arenas(&arenas);
    world.run(3.0);
    assert_eq!(world.heap.snapshot().retained, 20 * ARENA);
    world.heap.settled = world.heap.counters.retained;
    assert!(!world.heap.maintenance_due());
    world.heap.set(world.heap.settings());
    assert!(!world.heap.maintenance_due(), "nothing is other");
    world.heap.set(Settings { decay: SECOND / 1000, ..world.heap.settings() });
    assert!(world.heap.maintenance_due());
    world.run(0.1);
    assert_eq!(world.heap.snapshot().retained, 0);
}

#[test]
fn a_small_regret_keeps_little() {
    let mut world = World::new(Policy::Thp, Config::default());
    let arenas = world.take_arenas(100);
    world.free_arenas(&arenas[50..]);
    world.run(3.0);
    let regret = world.take_arenas(3);
    world.free_arenas(&arenas[..50]);
    world.free_arenas(&regret);
    world.run(1.5);
    assert_eq!(world.heap.snapshot().retained, 3 * ARENA);
    assert_eq!(world.heap.snapshot().regretted, 3 * ARENA);
    world.run(40.0);
    assert_eq!(world.heap.snapshot().retained, 0);
}

#[test]
fn what_was_dropped_of_a_broken_arena_and_is_needed_again_is_a_regret() {
    let mut world = World::new(Policy::Thp, Config::default());
    world.sparse_arenas(4, 8);
    world.run(3.0);
    assert_eq!(world.heap.snapshot().breaks, 4);
    (0..40).for_each(|_| {
        world.take(1);
    });
    assert_eq!(world.heap.snapshot().regretted, 40 * PAGE);
    world.check();
}

#[test]
fn the_target_is_never_exceeded_after_maintenance() {
    let mut world = World::new(Policy::Thp, Config::default());
    let mut live = Vec::new();
    let mut seed = 12345_u64;
    for _ in 0..300 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let wanted = (seed >> 33) as usize % 60;
        while live.len() < wanted {
            live.push(world.take(HEAP_PAGES));
        }
        while live.len() > wanted {
            let index = (seed >> 40) as usize % live.len();
            let arena = live.swap_remove(index);
            world.free(arena, HEAP_PAGES);
        }
        world.run((seed >> 50) as f64 / 8192.0);
        world.heap.maintain();
        let snapshot = world.heap.snapshot();
        assert!(snapshot.retained <= snapshot.retention_target, "{snapshot:?}");
        assert_eq!(world.kernel.charge(), snapshot.live + snapshot.retained);
    }
    assert!(world.heap.snapshot().given_back > 0);
}

#[test]
fn the_longest_empty_go_first() {
    let mut world = World::new(Policy::Thp, Config::default());
    let arenas = world.take_arenas(20);
    for &arena in &arenas {
        world.free(arena, HEAP_PAGES);
    }
    // The demand that was: twelve.
    world.heap.forget_demand();
    world.heap.demand.record(world.heap.now(), 12 * ARENA);
    world.heap.maintain();
    let kept = world.take_arenas(12);
    assert_eq!(kept, arenas[8..].iter().rev().copied().collect::<Vec<_>>());
    assert_eq!(world.heap.snapshot().arenas_given_back, 8);
}

#[test]
fn another_decay_time_forgets_the_demand_but_not_what_was_counted() {
    let mut world = World::new(Policy::Thp, Config::default());
    for _ in 0..3 {
        let arenas = world.take_arenas(10);
        world.free_arenas(&arenas);
        world.run(4.0);
    }
    let regretted = world.heap.snapshot().regretted;
    assert_eq!(regretted, 10 * ARENA);
    world.heap.set(Settings { decay: SECOND / 10, ..world.heap.settings() });
    assert_eq!(world.heap.snapshot().regretted, regretted);
    let arenas = world.take_arenas(10);
    world.free_arenas(&arenas);
    world.run(0.2);
    assert_eq!(world.heap.snapshot().retained, 0);
}

#[test]
fn three_quarters_of_an_arena_start_no_thread_and_more_do() {
    let mut world = World::new(Policy::Thp, Config::default());
    let runs: Vec<_> = (0..7).map(|_| world.take(16)).collect();
    // The rest of the huge page counts, too: 16 heap pages.
    for &run in &runs[..5] {
        world.free(run, 16);
    }
    assert!(!world.heap.maintenance_due());
    world.free(runs[5], 16);
    assert!(world.heap.maintenance_due());
}

#[test]
fn the_first_huge_page_of_a_program_that_starts_starts_no_thread() {
    let mut world = World::new(Policy::Thp, Config::default());
    let pages: Vec<_> = (0..30).map(|_| world.take(1)).collect();
    for &page in &pages[10..] {
        world.free(page, 1);
    }
    assert_eq!(world.heap.snapshot().retained, ARENA - 10 * PAGE);
    assert!(!world.heap.maintenance_due());
}

#[test]
fn a_small_process_that_is_done_keeps_what_lives_and_no_huge_page() {
    let mut world = World::new(Policy::Thp, Config::default());
    let pages: Vec<_> = (0..120).map(|_| world.take(1)).collect();
    for &page in &pages[4..] {
        world.free(page, 1);
    }
    assert_eq!(world.kernel.charge(), ARENA);
    assert!(world.heap.maintenance_due());
    world.run(3.0);
    assert_eq!(world.kernel.charge(), 4 * PAGE);
}

#[test]
fn blocks_are_kept_and_given_back_like_arenas() {
    let mut world = World::new(Policy::Thp, Config::default());
    let block = world.heap.allocate_large(20 * ARENA_BYTES, false).expect("there is memory").address.get();
    world.use_all(block, 20 * ARENA_BYTES);
    world.heap.free_large(block).expect("it is live");
    world.run(0.5);
    assert_eq!(world.heap.snapshot().retained, 20 * ARENA);
    // Small arenas use what a block left.
    let arenas = world.take_arenas(20);
    assert_eq!(world.kernel.events().huge_faults, 20);
    world.free_arenas(&arenas);
    world.run(2.0);
    assert_eq!((world.kernel.charge(), world.heap.snapshot().arenas), (0, 0));
}

#[test]
fn a_clock_that_goes_back_keeps_no_memory_for_as_long() {
    for back in [3600, 1 << 40].map(Duration::from_secs) {
        let mut world = World::new(Policy::Thp, Config::default());
        world.kernel.advance(Duration::from_secs(7200));
        // Regretted once, so that both windows know of it.
        for _ in 0..2 {
            let arenas = world.take_arenas(50);
            world.run(0.1);
            world.free_arenas(&arenas);
            world.run(2.0);
        }
        assert_eq!(world.kernel.charge(), 50 * ARENA);
        world.kernel.turn_back(back);
        world.run(5.0);
        let snapshot = world.heap.snapshot();
        assert_eq!((snapshot.retained, snapshot.retention_target), (0, 0), "{snapshot:?}");
        assert_eq!(world.kernel.charge(), 0);
        assert_eq!(world.heap.maintain(), Wait::Idle);
    }
}

#[test]
fn what_failed_is_tried_again_though_the_clock_went_back() {
    let mut world = World::new(Policy::Thp, Config::default());
    world.kernel.advance(Duration::from_secs(7200));
    let arenas = world.take_arenas(10);
    world.run(0.1);
    world.free_arenas(&arenas);
    world.kernel.fail_every(hugeheap_os::simulated::Call::Decommit, 1, libc::ENOMEM);
    world.run(2.0);
    assert_eq!(world.kernel.charge(), 10 * ARENA);
    world.kernel.fail_no_more();
    world.kernel.turn_back(Duration::from_secs(3600));
    world.run(11.0);
    assert_eq!((world.heap.snapshot().retained, world.kernel.charge()), (0, 0));
}
