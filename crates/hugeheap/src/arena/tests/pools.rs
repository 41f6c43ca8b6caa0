//! Policy `hugetlb`: the pool first, and what happens without it is invisible to the program.

use super::*;
use hugeheap_os::Facts;
use hugeheap_os::simulated::Call;

/// Where a program's runs are, relative to the first: it allocates and frees for a while.
fn addresses(pool: u64, disturb: impl Fn(&World, usize)) -> (Vec<usize>, World) {
    let mut world = World::new(Policy::Hugetlb, Config::default().with_pool(pool));
    let mut live: Vec<(usize, u32)> = Vec::new();
    let mut all = Vec::new();
    for step in 0..400 {
        disturb(&world, step);
        let pages = [64, 1, 128, 16, 7][step % 5];
        let address = world.take(pages);
        all.push(address);
        live.push((address, pages));
        if step % 3 == 0 {
            let (address, pages) = live.swap_remove(step * 7 % live.len());
            world.check_contents(address, pages as usize * HEAP_PAGE_BYTES);
            world.free(address, pages);
        }
    }
    for &(address, pages) in &live {
        world.check_contents(address, pages as usize * HEAP_PAGE_BYTES);
    }
    world.check();
    let first = all[0] & !(ARENA_BYTES - 1);
    (all.into_iter().map(|address| address.wrapping_sub(first)).collect(), world)
}

#[test]
fn a_program_runs_the_same_whatever_the_pool_holds() {
    let (with, world) = addresses(1000, |_, _| {});
    let arenas = world.heap.snapshot().arenas;
    assert_eq!(world.heap.snapshot().arenas_hugetlb, arenas);
    assert_eq!(world.fallbacks(), []);
    assert_eq!(world.huge_bytes(), arenas * ARENA);

    let (half, world) = addresses(arenas / 2, |_, _| {});
    assert_eq!(with, half);
    assert_eq!(world.fallbacks(), [(Fallback::PoolEmpty, arenas - arenas / 2)]);
    assert_eq!(world.heap.snapshot().arenas_hugetlb, arenas / 2);
    assert_eq!(world.huge_bytes(), arenas * ARENA, "the rest is transparent");

    let (without, world) = addresses(0, |_, _| {});
    assert_eq!(with, without);
    assert_eq!(world.fallbacks(), [(Fallback::PoolEmpty, arenas)]);

    let refused = |world: &World, step| {
        if step == 100 {
            world.kernel.fail_every(Call::Map, 2, libc::EPERM);
        }
    };
    let (refused, world) = addresses(1000, refused);
    assert_eq!(with, refused);
    assert!(world.fallback(Fallback::PoolRefused) > 0);

    let shrunk = |world: &World, step| {
        world.kernel.set_pool(if step % 50 < 25 { 0 } else { 1000 });
    };
    let (shrunk, world) = addresses(1000, shrunk);
    assert_eq!(with, shrunk);
    assert!(world.fallback(Fallback::PoolEmpty) > 0);
    assert_eq!(world.kernel.events().buses, 0);
}

#[test]
fn a_pool_of_zero_is_the_same_as_thp() {
    let mut pool = World::new(Policy::Hugetlb, Config::default());
    let mut thp = World::new(Policy::Thp, Config::default());
    for world in [&mut pool, &mut thp] {
        let arenas = world.take_arenas(10);
        world.free_arenas(&arenas[5..]);
        world.run(5.0);
    }
    let (mut one, two) = (pool.heap.snapshot(), thp.heap.snapshot());
    assert_eq!(one.fallback(Fallback::PoolEmpty), 10);
    one.fallbacks = two.fallbacks;
    one.policy = two.policy;
    assert_eq!(one, two);
}

#[test]
fn pages_of_the_pool_are_reserved_before_use_and_go_back_to_it() {
    let mut world = World::new(Policy::Hugetlb, Config::default().with_pool(4));
    let free = |world: &World| {
        let pool = world.kernel.hugetlb_pool(ARENA_BYTES).expect("readable").expect("there is one");
        pool.available()
    };
    let run = world.heap.allocate(1).expect("there is memory").get();
    assert_eq!(free(&world), 3, "before anything was touched");
    world.use_all(run, HEAP_PAGE_BYTES);
    let arenas = world.take_arenas(3);
    assert_eq!(free(&world), 0);
    world.free_arenas(&arenas);
    world.free(run, 1);
    world.run(3.0);
    assert_eq!(free(&world), 4);
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.retained, snapshot.arenas), (0, 0));
    // And are taken again.
    world.take_arenas(4);
    assert_eq!(free(&world), 0);
    assert_eq!(world.fallbacks(), []);
}

#[test]
fn a_sparse_arena_from_the_pool_is_left_whole() {
    let mut world = World::new(Policy::Hugetlb, Config::default().with_pool(2));
    let live = world.sparse_arenas(2, 1);
    world.run(10.0);
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.breaks, snapshot.arenas_hugetlb), (0, 2));
    live.iter().for_each(|&page| world.check_contents(page, HEAP_PAGE_BYTES));
}

#[test]
fn the_pools_cgroup_limit_is_a_fallback_and_no_crash() {
    let mut world = World::new(Policy::Hugetlb, Config::default().with_pool(10));
    world.kernel.set_hugetlb_limits(None, Some(3 * ARENA));
    world.take_arenas(6);
    assert_eq!(world.heap.snapshot().arenas_hugetlb, 3);
    assert_eq!(world.fallbacks(), [(Fallback::PoolEmpty, 3)]);
}

#[test]
fn one_arena_has_one_reason() {
    // The pool is empty, the mode is never: only the first is counted, the policy in force tells the rest.
    let config = Config::default().with_thp_mode(hugeheap_os::ThpMode::Never);
    let mut world = World::new(Policy::Hugetlb, config);
    world.take_arenas(3);
    assert_eq!(world.fallbacks(), [(Fallback::PoolEmpty, 3)]);
    assert_eq!(world.heap.snapshot().effective_policy, Policy::Base as u32);
}
