//! Arenas made before they are needed: when, how many, and where they go when growth stops.

use super::*;
use crate::arena::ahead::{
    Beside, EXPECTED_FROM, LATE, LEAST, MOST_EXPECTED, ONE_FROM, QUICK, SHOWS, TWO_FROM,
};
use hugeheap_os::simulated::Call;

/// A collector that has nothing beside its arenas.
#[derive(Debug)]
struct Nothing;

static NOTHING: Nothing = Nothing;

impl Beside for Nothing {
    fn touch(&self, _: AddressRange) {}
}

const LARGE: usize = TWO_FROM as usize;
const MOST: u64 = 2;

/// A heap that took so many arenas in quick succession.
fn grown(policy: Policy, config: Config, arenas: usize) -> World {
    let mut world = World::new(policy, config);
    for _ in 0..arenas {
        world.take(HEAP_PAGES);
        world.kernel.advance(Duration::from_nanos(QUICK / 4));
    }
    world
}

#[test]
fn what_was_made_ahead_is_what_the_program_gets_next() {
    let mut world = grown(Policy::Thp, Config::default(), LARGE);
    assert!(world.heap.maintenance_due());
    assert_eq!(world.make_ahead(), MOST);
    assert!(!world.heap.ahead_due());
    let faults = world.kernel.events().huge_faults;
    for _ in 0..50 {
        world.take(HEAP_PAGES);
        assert_eq!(world.make_ahead(), 1);
    }
    // Each was cleared by the thread, none by the program.
    assert_eq!(world.kernel.events().huge_faults, faults + 50);
    assert_eq!(world.heap.snapshot().arenas, LARGE as u64 + 50 + MOST);
    assert_eq!(world.heap.snapshot().retained, MOST * ARENA);
    world.check();
}

#[test]
fn of_a_small_heap_no_arena_is_made_ahead_and_of_a_medium_one_one() {
    assert_eq!(grown(Policy::Thp, Config::default(), ONE_FROM as usize - 1).make_ahead(), 0);
    assert_eq!(grown(Policy::Thp, Config::default(), ONE_FROM as usize).make_ahead(), 1);
    assert_eq!(grown(Policy::Thp, Config::default(), 4 * LARGE).make_ahead(), MOST);
}

#[test]
fn only_quick_growth_counts() {
    let mut world = grown(Policy::Thp, Config::default(), LARGE);
    world.kernel.advance(Duration::from_nanos(QUICK));
    assert_eq!(world.make_ahead(), 0, "it has stopped");
    for _ in 0..LEAST - 1 {
        world.take(HEAP_PAGES);
        assert!(!world.heap.ahead_due(), "not yet");
    }
    world.take(HEAP_PAGES);
    assert_eq!(world.make_ahead(), MOST);
    for _ in 0..20 {
        world.kernel.advance(Duration::from_nanos(QUICK + 1));
        world.take(HEAP_PAGES);
        assert_eq!(world.make_ahead(), 0, "slow growth");
    }
}

#[test]
fn growth_can_be_announced() {
    let mut world = grown(Policy::Thp, Config::default(), LARGE);
    for _ in 0..3 {
        world.kernel.advance(Duration::from_nanos(10 * QUICK));
        world.take(HEAP_PAGES);
        assert!(!world.heap.ahead_due(), "it is slow");
    }
    world.heap.expect_growth(0, &NOTHING);
    assert!(world.heap.ahead_due());
    assert_eq!(world.make_ahead(), MOST);
    world.heap.expect_growth(0, &NOTHING);
    assert!(!world.heap.ahead_due(), "they are there");
    let mut small = grown(Policy::Thp, Config::default(), EXPECTED_FROM as usize / 2);
    small.heap.expect_growth(0, &NOTHING);
    assert!(!small.heap.ahead_due(), "of a small heap it would be much");
}

/// A heap of a few arenas, each of which took so many nanoseconds.
fn slow(cost: u64) -> World {
    let mut world = World::new(Policy::Thp, Config::default());
    world.kernel.set_cost(Call::HugeFault, Duration::from_nanos(cost));
    (0..8).for_each(|_| _ = world.take(HEAP_PAGES));
    world
}

#[test]
fn where_arenas_take_long_those_that_a_pause_may_take_are_made_whatever_the_size() {
    for (expected, arenas) in [(0, 0), (1, 1), (ARENA, 1), (ARENA + 1, 2), (9 * ARENA, MOST_EXPECTED)] {
        let mut world = slow(2 * SHOWS);
        assert!(!world.heap.ready(ARENA).comes);
        world.heap.expect_growth(expected, &NOTHING);
        let ready = world.heap.ready(9 * ARENA);
        assert_eq!((ready.bytes, ready.is_made, ready.comes), (0, false, arenas > 0));
        assert!(ready.takes >= Duration::from_nanos(SHOWS), "{ready:?}");
        assert_eq!(world.make_ahead(), arenas, "for {expected} bytes");
        let ready = world.heap.ready(9 * ARENA);
        assert_eq!((ready.bytes, ready.is_made, ready.comes), (arenas * ARENA, false, false));
        assert_eq!(world.heap.ready(5).bytes, 5 * arenas.min(1), "no more than is asked for");
        world.run(3.0);
        assert_eq!(world.heap.snapshot().retained, 0, "nobody needed them");
        world.check();
    }
    let mut quick = slow(SHOWS / 5);
    quick.heap.expect_growth(9 * ARENA, &NOTHING);
    assert_eq!((quick.make_ahead(), quick.heap.ready(ARENA).comes), (0, false));
    let mut large = grown(Policy::Thp, Config::default(), LARGE);
    large.heap.expect_growth(9 * ARENA, &NOTHING);
    assert!(
        large.heap.ahead_due() && !large.heap.ready(ARENA).comes,
        "making it oneself takes no longer than to wait"
    );
}

#[test]
fn of_a_heap_that_is_not_small_those_are_made_also_where_arenas_are_quick() {
    for (arenas, made) in [
        (EXPECTED_FROM - 1, 0),
        (EXPECTED_FROM, MOST_EXPECTED),
        (ONE_FROM, MOST_EXPECTED),
        (TWO_FROM, MOST_EXPECTED),
    ] {
        let mut world = grown(Policy::Thp, Config::default(), arenas as usize);
        world.heap.expect_growth(9 * ARENA, &NOTHING);
        assert_eq!(world.make_ahead(), made, "{arenas}");
    }
}

/// Such an arena was 6 to 8 ms in the next pause: its time was not known before it was over.
#[test]
fn the_first_arena_that_takes_long_is_known_as_such_while_it_is_made() {
    let mut world = grown(Policy::Thp, Config::default(), LARGE);
    world.heap.expect_growth(ARENA, &NOTHING);
    let ahead = world.heap.begin_ahead().expect("due");
    assert!(world.heap.ready(ARENA).is_made && !world.heap.ready(ARENA).comes, "it will soon be there");
    world.kernel.advance(Duration::from_nanos(LATE));
    assert!(world.heap.ready(ARENA).comes, "it takes long");
    world.heap.complete_ahead(ahead);
    assert_eq!((world.heap.ready(ARENA).is_made, world.heap.ready(ARENA).bytes), (false, ARENA));
}

/// A heap whose table had left 224 KiB of its last arena took these for what its next collection would find,
/// and made arenas in its pauses.
#[test]
fn what_is_left_of_a_large_block_is_not_ready_for_others() {
    let mut world = World::new(Policy::Thp, Config::default());
    world.heap.allocate_large(ARENA_BYTES - 14 * HEAP_PAGE_BYTES, true).expect("there is memory");
    assert_eq!((world.heap.retained(), world.heap.ready(ARENA).bytes), (14 * PAGE, 0));
    // What heap pages are taken from is.
    world.take(100);
    assert_eq!((world.heap.retained(), world.heap.ready(ARENA).bytes), (42 * PAGE, 28 * PAGE));
    world.check();
}

#[test]
fn empty_arenas_that_are_kept_are_enough() {
    let mut world = grown(Policy::Thp, Config::default(), LARGE);
    let arenas = world.take_arenas(20);
    world.free_arenas(&arenas);
    for left in (0..20).rev() {
        world.take(HEAP_PAGES);
        assert_eq!(world.heap.ahead_due(), left < MOST);
    }
    assert_eq!(world.make_ahead(), MOST);
}

#[test]
fn when_growth_stops_they_are_kept_for_the_decay_time_and_given_back() {
    let mut world = grown(Policy::Thp, Config::default(), LARGE);
    world.make_ahead();
    world.run(0.9);
    assert_eq!(world.heap.snapshot().retained, MOST * ARENA);
    world.run(0.2);
    assert_eq!((world.heap.snapshot().retained, world.kernel.charge()), (0, LARGE as u64 * ARENA));
    assert_eq!(world.heap.maintain(), Wait::Idle);
}

#[test]
fn near_the_memory_limit_nothing_is_made_ahead_and_nothing_of_it_kept() {
    let limit = 2 * LARGE as u64 * ARENA;
    let config = Config { cgroup_max: Some(limit), ..Config::default() };
    let mut world = grown(Policy::Thp, config, LARGE);
    assert_eq!(world.make_ahead(), MOST);
    world.heap.set(Settings { limit: Some(world.heap.mapped_bytes()), ..world.heap.settings() });
    world.take(HEAP_PAGES);
    assert_eq!(world.make_ahead(), 0);
    world.run(0.01);
    assert_eq!(world.heap.snapshot().retained, 0);
}

#[test]
fn of_os_pages_and_with_one_processor_nothing_is_made_ahead() {
    assert_eq!(grown(Policy::Base, Config::default(), LARGE).make_ahead(), 0);
    assert_eq!(grown(Policy::Dense, Config::default(), LARGE).make_ahead(), 0);
    let config = Config { processors: 1, ..Config::default() };
    assert_eq!(grown(Policy::Thp, config, LARGE).make_ahead(), 0);
}

#[test]
fn pages_of_the_pool_are_taken_ahead_and_go_back_to_it() {
    let mut config = Config { populate_hugetlb: true, ..Config::default() };
    config.hugetlb[0].pages = LARGE as u64 + MOST;
    let mut world = grown(Policy::Hugetlb, config, LARGE);
    assert_eq!(world.make_ahead(), MOST);
    assert_eq!(world.heap.snapshot().arenas_hugetlb, LARGE as u64 + MOST);
    world.run(2.0);
    assert_eq!(world.heap.snapshot().arenas_hugetlb, LARGE as u64);
    world.check();
}

#[test]
fn no_memory_and_no_huge_page_end_it_until_the_next_growth() {
    let config = Config { free_huge_pages: Some(LARGE as u64 + 1), ..Config::default() };
    let mut world = grown(Policy::Thp, config, LARGE);
    assert_eq!(world.make_ahead(), 2, "the second is of OS pages");
    assert_eq!(world.fallback(Fallback::NoHugePage), 1);
    world.take(HEAP_PAGES);
    world.take(HEAP_PAGES);
    assert_eq!(world.make_ahead(), 0);
    world.check();

    let mut world = grown(Policy::Thp, Config::default(), LARGE);
    world.kernel.fail_every(Call::Map, 1, libc::ENOMEM);
    assert_eq!(world.make_ahead(), 0);
    assert_eq!(world.fallbacks(), [], "nobody asked for it");
    assert!(!world.heap.ahead_due());
    world.check();
}

#[test]
fn what_a_collector_has_beside_arenas_is_touched_with_them() {
    #[derive(Debug)]
    struct Noted(std::sync::Mutex<Vec<usize>>);
    impl Beside for Noted {
        fn touch(&self, arena: AddressRange) {
            assert_eq!(arena.len, ARENA_BYTES);
            self.0.lock().unwrap().push(arena.start);
        }
    }
    let noted: &'static Noted = Box::leak(Box::new(Noted(std::sync::Mutex::default())));
    let mut world = slow(2 * SHOWS);
    world.heap.expect_growth(2 * ARENA, noted);
    assert_eq!(world.make_ahead(), 2);
    let beside = noted.0.lock().unwrap().clone();
    assert_eq!(beside.len(), 2);
    for _ in 0..2 {
        let taken = world.take(HEAP_PAGES);
        assert!(beside.contains(&taken), "{beside:x?}");
    }
    // Nobody said how much: the program of blocks does not need what a collector has.
    let mut large = grown(Policy::Thp, Config::default(), LARGE);
    assert_eq!(large.make_ahead(), MOST);
    assert_eq!(noted.0.lock().unwrap().len(), 2);
}

#[test]
fn the_heap_is_used_while_an_arena_is_made() {
    let mut world = grown(Policy::Thp, Config::default(), LARGE);
    let mut ahead = world.heap.begin_ahead().expect("it grows");
    let others = world.take_arenas(3);
    world.heap.verify().expect("consistent with a busy arena");
    let mut second = world.heap.begin_ahead().expect("there is room for two");
    assert!(world.heap.begin_ahead().is_none());
    world.free_arenas(&others);
    second.touch(&world.kernel);
    ahead.touch(&world.kernel);
    assert!(!world.heap.complete_ahead(second));
    assert!(!world.heap.complete_ahead(ahead));
    world.run(5.0);
    assert_eq!(world.kernel.charge(), LARGE as u64 * ARENA);
    world.check();
}

#[test]
fn any_order_of_events_with_calls_that_fail_loses_nothing() {
    for seed in 1..=6_u64 {
        let mut random = seed;
        let mut below = move |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % bound
        };
        let policy = [Policy::Thp, Policy::Auto, Policy::Hugetlb][seed as usize % 3];
        let mut world = grown(policy, Config::default().with_pool(190), LARGE);
        let mut live = Vec::new();
        let mut begun = Vec::new();
        world.kernel.fail_randomly(seed, 30);
        for _ in 0..400 {
            match below(10) {
                0..4 => live.extend(world.heap.allocate(HEAP_PAGES)),
                4 if !live.is_empty() => {
                    let place = below(live.len() as u64) as usize;
                    world.free(live.swap_remove(place).get(), HEAP_PAGES);
                }
                5 => begun.extend(world.heap.begin_ahead()),
                6 if !begun.is_empty() => {
                    let mut ahead = begun.swap_remove(below(begun.len() as u64) as usize);
                    if below(8) > 0 {
                        ahead.touch(&world.kernel);
                    }
                    world.heap.complete_ahead(ahead);
                }
                7 => world.kernel.advance(Duration::from_nanos(below(2 * QUICK))),
                8 if below(10) == 0 => _ = world.heap.maintain(),
                _ => {}
            }
            world.heap.verify().unwrap_or_else(|problem| panic!("seed {seed}: {problem}"));
        }
        begun.into_iter().for_each(|ahead| _ = world.heap.complete_ahead(ahead));
        world.kernel.fail_no_more();
        live.into_iter().for_each(|address| world.free(address.get(), HEAP_PAGES));
        world.run(1000.0);
        let snapshot = world.heap.snapshot();
        // As after any demand that recurs, two arenas may stay.
        assert!(snapshot.retained <= 2 * ARENA, "seed {seed}: {snapshot:?}");
        assert_eq!(snapshot.live, LARGE as u64 * ARENA, "seed {seed}");
        world.check();
    }
}
