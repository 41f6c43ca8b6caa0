//! Which arena a run is taken from, and where in it.

use super::arenas::GROWN;
use super::order::Order;
use super::table::Table;
use super::*;

/// Bitmaps of an arena whose longest free range has `free` pages, with `runs` runs.
fn arena(free: u32, runs: u32) -> (u128, u128) {
    let in_use = bitmap::mask(0, HEAP_PAGES - free);
    (in_use, bitmap::mask(0, runs))
}

/// The order as the design puts it: smallest sufficient longest free range, then most runs, then oldest.
fn plainly(arenas: &[(u32, u32, u32)], pages: u32) -> Option<usize> {
    let sufficient = (0..arenas.len()).filter(|&index| arenas[index].0 >= pages);
    sufficient.min_by_key(|&index| (arenas[index].0, u32::MAX - arenas[index].1, arenas[index].2))
}

#[test]
fn the_choice_is_that_of_the_design_for_every_small_heap() {
    let kinds: Vec<_> =
        [1, 2, 64].into_iter().flat_map(|free| [1, 2, 3, 8].map(|runs| (free, runs))).collect();
    let ages = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for (first, second, third) in kinds.iter().flat_map(|&a| {
        let kinds = &kinds;
        kinds.iter().flat_map(move |&b| kinds.iter().map(move |&c| (a, b, c)))
    }) {
        for age in ages {
            let kinds = [first, second, third];
            let arenas: Vec<_> = (0..3).map(|index| (kinds[index].0, kinds[index].1, age[index])).collect();
            let mut table = small_table();
            let mut order = Order::NEW;
            for (index, &(free, runs, age)) in arenas.iter().enumerate() {
                let id = ArenaId(index as u32);
                let record = table.arena_mut(id);
                (record.in_use, record.starts) = arena(free, runs);
                record.serial = age;
                order.insert(&mut table, id);
            }
            for pages in [1, 2, 3, 64, 65] {
                let expected = plainly(&arenas, pages).map(|index| ArenaId(index as u32));
                assert_eq!(order.best(&table, pages), expected, "{pages} of {arenas:?}");
            }
        }
    }
}

/// A table of three arenas; one for all calls, since a region is a mapping.
fn small_table() -> Table {
    Table::for_tests(3)
}

#[test]
fn small_runs_go_high_and_big_ones_low() {
    let mut world = World::new(Policy::Thp, Config::default());
    let small = world.take(1);
    let big = world.take(64);
    let data_stack = world.take(15);
    let least_big = world.take(16);
    assert_eq!(big % ARENA_BYTES, 0);
    assert_eq!(small - big, 127 * HEAP_PAGE_BYTES);
    assert_eq!(data_stack - big, 112 * HEAP_PAGE_BYTES);
    assert_eq!(least_big - big, 64 * HEAP_PAGE_BYTES);
}

#[test]
fn a_kept_arena_is_reused_before_memory_is_asked_for() {
    let mut world = World::new(Policy::Thp, Config::default());
    let arenas = world.take_arenas(3);
    world.free(arenas[1], HEAP_PAGES);
    world.free(arenas[0], HEAP_PAGES);
    let maps = world.kernel.calls(hugeheap_os::simulated::Call::Map);
    assert_eq!(world.take(1) / ARENA_BYTES, arenas[0] / ARENA_BYTES, "the one emptied last is the warmest");
    assert_eq!(world.take(HEAP_PAGES), arenas[1]);
    assert_eq!(world.kernel.calls(hugeheap_os::simulated::Call::Map), maps);
}

#[test]
fn a_partial_arena_is_filled_before_an_empty_one() {
    let mut world = World::new(Policy::Thp, Config::default());
    let partial = world.take(64);
    let empty = world.take(HEAP_PAGES);
    world.free(empty, HEAP_PAGES);
    assert_eq!(world.take(64), partial + 64 * HEAP_PAGE_BYTES);
}

#[test]
fn a_broken_arena_is_filled_only_when_no_whole_one_has_room() {
    let mut world = World::new(Policy::Thp, Config::default());
    let live = world.sparse_arenas(3, 2);
    world.run(3.0);
    assert_eq!(world.heap.snapshot().arenas_broken, 3);
    let whole = world.take(127);
    assert_eq!(world.take(1) / ARENA_BYTES, whole / ARENA_BYTES);
    assert_eq!(world.take(1) / ARENA_BYTES, live[0] / ARENA_BYTES);
}

#[test]
fn small_runs_of_policy_auto_share_one_arena_of_os_pages() {
    let mut world = World::new(Policy::Auto, Config::default());
    let chunk = world.take(1);
    let first = world.take(64);
    let second = world.take(64);
    assert_eq!(first / ARENA_BYTES, second / ARENA_BYTES, "one huge page holds both");
    assert_ne!(chunk / ARENA_BYTES, first / ARENA_BYTES);
    assert_eq!(world.kernel.charge(), ARENA + PAGE);
    assert_eq!(world.huge_bytes(), ARENA);
    // When it is full, small runs go where the others are.
    (0..127).for_each(|_| {
        world.take(1);
    });
    assert_eq!(world.heap.snapshot().arenas, 2);
    world.take(1);
    assert_eq!(world.heap.snapshot().arenas, 3);
    world.check();
}

#[test]
fn the_arena_for_small_runs_is_a_huge_page_once_the_heap_has_grown() {
    let mut world = World::new(Policy::Auto, Config::default());
    let mut small: Vec<_> = (0..120).map(|_| world.take(1)).collect();
    let mut arenas = world.take_arenas(GROWN as usize - 2);
    world.run(3.0);
    assert_eq!(world.huge_bytes(), (GROWN - 2) * ARENA);
    // Small runs come and go all the time, or never again.
    arenas.push(world.take(HEAP_PAGES));
    world.run(0.1);
    assert_eq!(world.huge_bytes(), GROWN * ARENA);
    world.check();
    for round in 0..100 {
        let run = small.swap_remove(round * 7 % small.len());
        world.free(run, 1);
        small.push(world.take(1));
        world.run(0.01);
    }
    assert_eq!(world.heap.snapshot().collapses, 1);
    // It is no reason to keep a huge page for a few small runs.
    world.free_arenas(&arenas);
    for run in small.drain(4..) {
        world.free(run, 1);
    }
    world.run(5.0);
    assert_eq!(world.kernel.charge(), 4 * PAGE);
    world.check();
}

#[test]
fn the_arena_for_small_runs_is_collapsed_though_it_changes_all_the_time() {
    let mut world = World::new(Policy::Auto, Config::default());
    let arenas = world.take_arenas(GROWN as usize);
    let mut small: Vec<_> = (0..100).map(|_| world.take(1)).collect();
    world.run(2.0);
    assert_eq!(world.huge_bytes(), GROWN * ARENA, "it is not dense");
    small.extend((0..20).map(|_| world.take(1)));
    for round in 0..150 {
        let run = small.swap_remove(round * 7 % small.len());
        world.free(run, 1);
        small.push(world.take(1));
        world.run(0.01);
    }
    assert_eq!(world.huge_bytes(), (GROWN + 1) * ARENA);
    world.free_arenas(&arenas);
    world.check();
}

#[test]
fn what_small_runs_left_is_used_before_other_pages_in_a_heap_that_has_grown() {
    let mut world = World::new(Policy::Auto, Config::default());
    let run = world.take(15);
    let small: Vec<_> = (0..60).map(|_| world.take(1)).collect();
    world.free(run, 15);
    let arena = small[0] & !(ARENA_BYTES - 1);
    let take = |world: &mut World| {
        let mut pages = [0; 8];
        assert_eq!(world.heap.allocate_pages(&mut pages, 0), 8);
        pages.iter().for_each(|&page| world.use_all(page, HEAP_PAGE_BYTES));
        pages.iter().filter(|&page| page & !(ARENA_BYTES - 1) == arena).count()
    };
    // In a small heap it is left alone, whatever was left there.
    while world.heap.snapshot().arenas < GROWN {
        assert_eq!(take(&mut world), 0);
    }
    let before = world.kernel.charge();
    assert_eq!(
        (take(&mut world), take(&mut world), take(&mut world)),
        (8, 7, 0),
        "what is resident, and no more"
    );
    assert_eq!((world.kernel.charge(), world.heap.snapshot().arenas), (before, GROWN));
    world.check();
}

#[test]
fn pages_of_a_growing_heap_are_no_small_runs() {
    let mut world = World::new(Policy::Auto, Config::default());
    let mut pages = [0; 8];
    assert_eq!(world.heap.allocate_pages(&mut pages[..4], 0), 4);
    assert_eq!(world.huge_bytes(), 0, "a small heap is on OS pages");
    assert_eq!(world.heap.allocate_pages(&mut pages, 0), 8);
    assert_eq!(world.huge_bytes(), ARENA);
    world.check();
}

#[test]
fn the_arena_for_small_runs_is_not_taken_by_a_large_block() {
    let mut world = World::new(Policy::Auto, Config::default());
    // It lies where large blocks are, because it was one.
    let block = world.heap.allocate_large(3 * ARENA_BYTES, false).expect("there is memory").address.get();
    world.heap.free_large(block).expect("it is live");
    world.heap.forget_demand();
    world.run(1.0);
    let small = world.take(1);
    assert!((block..block + 3 * ARENA_BYTES).contains(&small));
    world.free(small, 1);
    world.check();
    let block = world.heap.allocate_large(3 * ARENA_BYTES, false).expect("there is memory").address.get();
    assert!(!(block..block + 3 * ARENA_BYTES).contains(&small));
    assert_eq!(world.take(1), small);
    world.check();
}

#[test]
fn the_arena_for_small_runs_counts_as_an_arena_while_it_has_memory() {
    let mut world = World::new(Policy::Auto, Config::default());
    let small: Vec<_> = (0..3).map(|_| world.take(1)).collect();
    assert_eq!(world.heap.snapshot().arenas, 1);
    small.into_iter().for_each(|run| world.free(run, 1));
    world.kernel.advance(Duration::from_secs(2));
    world.run(1.0);
    assert_eq!((world.heap.snapshot().arenas, world.kernel.charge()), (0, 0));
    world.take(1);
    assert_eq!(world.heap.snapshot().arenas, 1);
    world.check();
}

#[test]
fn wrong_frees_are_told_apart_and_change_nothing() {
    let mut world = World::new(Policy::Thp, Config::default());
    let run = world.take(64);
    let block = world.heap.allocate_large(3 << 20, false).expect("there is memory").address.get();
    let before = world.heap.snapshot();
    let local = 0_u64;
    assert_eq!(world.heap.free(&raw const local as usize, 1), Err(BadFree::Foreign));
    assert_eq!(world.heap.free(0, 1), Err(BadFree::Foreign));
    assert_eq!(world.heap.free(usize::MAX, 1), Err(BadFree::Foreign));
    assert_eq!(world.heap.free(run, 63), Err(BadFree::WrongSize { actual: 1 << 20 }));
    assert_eq!(world.heap.free(run + 1, 64), Err(BadFree::Interior));
    assert_eq!(world.heap.free(run + HEAP_PAGE_BYTES, 63), Err(BadFree::Interior));
    assert_eq!(world.heap.free(run + 64 * HEAP_PAGE_BYTES, 1), Err(BadFree::NotLive));
    assert_eq!(world.heap.free_large(run), Err(BadFree::WrongSize { actual: 1 << 20 }));
    assert_eq!(world.heap.free(block, 1), Err(BadFree::WrongSize { actual: 3 << 20 }));
    assert_eq!(world.heap.free_large(block + ARENA_BYTES), Err(BadFree::Interior));
    assert_eq!(world.heap.resize_large(block + 1, 5), Err(BadFree::Interior));
    assert_eq!(world.heap.large_bytes(run), Err(BadFree::WrongSize { actual: 1 << 20 }));
    assert_eq!(world.heap.snapshot(), before);
    world.free(run, 64);
    assert_eq!(world.heap.free(run, 64), Err(BadFree::NotLive));
    world.check();
}

#[test]
fn bursts_in_broken_arenas_reuse_what_the_last_one_left() {
    let mut world = World::new(Policy::Thp, Config::default());
    world.sparse_arenas(40, 1);
    world.run(5.0);
    assert_eq!(world.heap.snapshot().arenas_broken, 40);
    let mut charges = Vec::new();
    for _ in 0..10 {
        let burst: Vec<_> = (0..4 * HEAP_PAGES).map(|_| world.take(1)).collect();
        charges.push(world.kernel.charge());
        burst.into_iter().for_each(|page| world.free(page, 1));
        // Sooner than anything is given back.
        world.run(0.05);
    }
    assert_eq!(charges, [charges[0]; 10]);
}
