//! Address space and memory that run out, and come back.

use super::*;
use hugeheap_os::simulated::Call;

fn in_regions(bytes: usize) -> World {
    let settings = Settings { policy: Policy::Thp, region: Some(bytes), ..Settings::DEFAULT };
    World::with(settings, Config::default())
}

#[test]
fn a_full_region_is_followed_by_another() {
    let mut world = in_regions(4 * ARENA_BYTES);
    let arenas = world.take_arenas(50);
    assert_eq!(world.fallbacks(), []);
    assert!(arenas.iter().all(|&arena| world.heap.owns(arena) && world.heap.owns(arena + ARENA_BYTES - 1)));
    let block = world.heap.allocate_large(9 * ARENA_BYTES, true).expect("a region of its size");
    world.use_all(block.address.get(), 9 * ARENA_BYTES);
    arenas.iter().for_each(|&arena| world.check_contents(arena, ARENA_BYTES));
    world.free_arenas(&arenas);
    world.heap.free_large(block.address.get()).expect("it is live");
    world.run(3.0);
    assert_eq!(world.kernel.charge(), 0);
}

#[test]
fn when_no_region_can_be_added_requests_are_refused_and_counted_until_something_is_freed() {
    let mut world = in_regions(ARENA_BYTES);
    let arenas = world.take_arenas(64);
    let before = world.heap.snapshot();
    assert_eq!(world.heap.allocate(1), None);
    assert_eq!(world.heap.allocate_large(1, false), None);
    assert_eq!(world.fallbacks(), [(Fallback::AddressSpace, 2)]);
    let after = world.heap.snapshot();
    assert_eq!((before.live, before.arenas, before.metadata), (after.live, after.arenas, after.metadata));
    world.free_arenas(&arenas[7..8]);
    assert_eq!(world.take(HEAP_PAGES), arenas[7]);
    world.check();
}

#[test]
fn under_a_limit_on_address_space_regions_are_small_and_the_rest_is_left_alone() {
    let config = Config { address_space_limit: Some(1 << 30), ..Config::default() };
    let mut world = World::new(Policy::Auto, config);
    world.take_arenas(1);
    let first = world.kernel.mapping_list().iter().map(|mapping| mapping.range.len).sum::<usize>();
    assert!(first <= 140 << 20, "{first}");
    let mut count = 1;
    while let Some(arena) = world.heap.allocate(HEAP_PAGES) {
        world.use_all(arena.get(), ARENA_BYTES);
        count += 1;
    }
    assert!(count > 400, "nearly all of it can be used: {count} arenas");
    assert_eq!(world.fallbacks(), [(Fallback::AddressSpace, 1)]);
    assert_eq!(world.heap.allocate(1), None, "also not for small runs");
    assert_eq!(world.fallbacks(), [(Fallback::AddressSpace, 2)], "one request, one reason");
    world.kernel.set_address_space_limit(None);
    world.take_arenas(1);
    world.check();
}

#[test]
fn a_small_limit_on_address_space_is_not_used_up_by_one_region() {
    let config = Config { address_space_limit: Some(80 << 20), ..Config::default() };
    let mut world = World::new(Policy::Auto, config);
    world.take_arenas(1);
    let reserved = world.kernel.mapping_list().iter().map(|mapping| mapping.range.len).sum::<usize>();
    assert!(reserved <= 20 << 20, "{reserved}");
    world.take_arenas(20);
    world.check();
}

#[test]
fn room_left_behind_blocks_is_used_when_there_is_no_other() {
    let settings = Settings { policy: Policy::Thp, region: Some(16 * ARENA_BYTES), ..Settings::DEFAULT };
    let mut world = World::with(settings, Config::default());
    // Half as much again is left behind it.
    world.heap.allocate_large(8 * ARENA_BYTES, true).expect("there is memory");
    world.kernel.fail_every(Call::Reserve, 1, libc::ENOMEM);
    world.take_arenas(8);
    assert_eq!(world.fallbacks(), []);
    assert_eq!(world.heap.allocate(HEAP_PAGES), None);
    assert_eq!(world.fallbacks(), [(Fallback::AddressSpace, 1)]);
    world.check();
}

#[test]
fn a_large_block_is_had_where_small_arenas_were_when_there_is_no_other_place() {
    let mut world = in_regions(16 * ARENA_BYTES);
    let arenas = world.take_arenas(16);
    world.kernel.fail_every(Call::Reserve, 1, libc::ENOMEM);
    assert_eq!(world.heap.allocate_large(2 * ARENA_BYTES, true), None);
    // Some of them kept, some given back.
    world.free_arenas(&arenas[8..11]);
    world.run(3.0);
    world.free_arenas(&arenas[4..8]);
    let large = world.heap.allocate_large(6 * ARENA_BYTES, true).expect("seven in a row").address.get();
    assert_eq!(large, arenas[4]);
    world.use_all(large, 6 * ARENA_BYTES);
    world.check();
    // It does not grow over small arenas, and leaves its own to them again.
    assert_eq!(world.heap.resize_large(large, 8 * ARENA_BYTES), Ok(None));
    world.check_contents(large, 6 * ARENA_BYTES);
    world.heap.free_large(large).expect("it is live");
    world.take_arenas(7);
    world.check();
    world.free_arenas(&arenas);
    // What was needed again is kept longer.
    world.run(100.0);
    assert_eq!(world.kernel.charge(), 0);
}

#[test]
fn a_large_block_may_begin_among_small_arenas_and_end_where_none_was() {
    let mut world = in_regions(16 * ARENA_BYTES);
    let arenas = world.take_arenas(5);
    world.free_arenas(&arenas[2..]);
    world.kernel.fail_every(Call::Reserve, 1, libc::ENOMEM);
    let large = world.heap.allocate_large(14 * ARENA_BYTES, false).expect("14 in a row").address.get();
    assert_eq!(large, arenas[2]);
    assert_eq!(world.heap.allocate(HEAP_PAGES), None, "no arena of the block is handed out again");
    world.use_all(large, 14 * ARENA_BYTES);
    world.check();
    world.heap.free_large(large).expect("it is live");
    world.take_arenas(14);
    world.check();
}

#[test]
fn a_block_that_fits_no_region_is_refused_and_takes_no_address_space() {
    let mut world = World::new(Policy::Thp, Config::default());
    world.take(1);
    let mappings = world.kernel.mapping_list().len();
    let small = world.heap.allocate_large(100, false).expect("there is memory").address.get();
    for bytes in [usize::MAX, usize::MAX / 2, 6 << 50, (2 << 40) + 1] {
        assert_eq!(world.heap.allocate_large(bytes, true), None, "{bytes}");
        assert_eq!(world.heap.resize_large(small, bytes), Ok(None));
    }
    assert_eq!(world.fallbacks(), [(Fallback::AddressSpace, 8)]);
    assert!(world.kernel.mapping_list().len() <= mappings + 4);
    assert_eq!(world.heap.large_bytes(small), Ok(100));
    world.check();
}

#[test]
fn a_region_of_just_the_size_needed_is_tried_last() {
    let mut world = in_regions(64 * ARENA_BYTES);
    // 64, 32, 16, 8: too much; 5 is possible, and 4 would be too little.
    world.kernel.set_address_space_limit(Some(6 * ARENA));
    let block = world.heap.allocate_large(5 * ARENA_BYTES, false).expect("five arenas and their metadata");
    world.use_all(block.address.get(), 5 * ARENA_BYTES);
    world.check();
}

#[test]
fn metadata_that_cannot_be_had_leaves_no_reservation_behind() {
    let mut world = in_regions(64 * ARENA_BYTES);
    world.kernel.fail_every(Call::Map, 1, libc::ENOMEM);
    assert_eq!(world.heap.allocate(1), None);
    assert_eq!(world.kernel.mapping_list().len(), 0);
    world.kernel.fail_no_more();
    world.take(1);
    world.check();
}

#[test]
fn a_system_out_of_memory_refuses_and_recovers() {
    for policy in Policy::ALL {
        let mut world = World::new(policy, Config::default());
        let arenas = world.take_arenas(4);
        world.kernel.fail_every(Call::Map, 1, libc::ENOMEM);
        for _ in 0..3 {
            assert_eq!(world.heap.allocate(HEAP_PAGES), None);
        }
        assert_eq!(world.fallback(Fallback::OutOfMemory), 3, "{policy}");
        // What is mapped is still of use.
        world.free(arenas[0], HEAP_PAGES);
        assert_eq!(world.take(HEAP_PAGES), arenas[0]);
        world.kernel.fail_no_more();
        world.take_arenas(4);
        assert_eq!(world.fallback(Fallback::OutOfMemory), 3);
        assert_eq!(world.heap.snapshot().arenas, 8);
        world.check();
    }
}

#[test]
fn a_block_that_gets_half_of_its_memory_gives_it_back() {
    let mut world = World::new(Policy::Thp, Config::default());
    world.take(HEAP_PAGES);
    world.kernel.fail_every(Call::Map, 4, libc::ENOMEM);
    assert_eq!(world.heap.allocate_large(10 * ARENA_BYTES, false), None);
    assert_eq!(world.fallbacks(), [(Fallback::OutOfMemory, 1)]);
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.live, snapshot.large), (ARENA, 0));
    world.check();
    world.run(3.0);
    assert_eq!(world.kernel.charge(), ARENA);
}

#[test]
fn unreadable_facts_are_no_reason_to_fail() {
    let mut world = World::new(Policy::Auto, Config::default());
    for call in [Call::Thp, Call::ThpDisabled, Call::MemoryLimits, Call::TotalMemory, Call::Name] {
        world.kernel.fail_every(call, 1, libc::EACCES);
    }
    let arenas = world.take_arenas(3);
    world.run(1.0);
    world.free_arenas(&arenas);
    world.run(3.0);
    assert_eq!(world.kernel.charge(), 0);
}

fn can_take_pages(world: &mut World, pages: u32) {
    for _ in 0..pages {
        world.heap.allocate(1).expect("there is memory for a small run");
    }
    world.check();
}

/// Under `ulimit -d` a request for 1 GB was refused and left nothing of the limit: 5,455 blocks of 48 bytes
/// later nothing was to be had any more.
#[test]
fn a_refused_large_block_left_nothing_of_the_limit_on_data() {
    for policy in [Policy::Auto, Policy::Thp, Policy::Base] {
        let mut world = World::new(policy, Config { data_limit: Some(400 << 20), ..Config::default() });
        world.take(1);
        let (data, charge) = (world.kernel.data(), world.kernel.charge());
        assert_eq!(world.heap.allocate_large(1_000_000_000, false), None);
        assert_eq!(world.fallback(Fallback::OutOfMemory), 1);
        assert_eq!((world.kernel.data(), world.kernel.charge()), (data, charge), "{policy:?}");
        can_take_pages(&mut world, 10 * HEAP_PAGES);
    }
}

#[test]
fn a_block_that_cannot_grow_leaves_the_limit_on_data_to_others() {
    let mut world = World::new(Policy::Thp, Config { data_limit: Some(400 << 20), ..Config::default() });
    let block = world.heap.allocate_large(10 * ARENA_BYTES, true).expect("there is memory").address.get();
    world.use_all(block, 10 * ARENA_BYTES);
    let data = world.kernel.data();
    assert_eq!(world.heap.resize_large(block, 1 << 30), Ok(None));
    assert_eq!(world.kernel.data(), data);
    world.check_contents(block, 10 * ARENA_BYTES);
    can_take_pages(&mut world, HEAP_PAGES);
}

/// Given back, it cost no memory and counted all the same.
#[test]
fn what_was_given_back_still_counted_against_the_limit_on_data() {
    let mut world = World::new(Policy::Thp, Config { data_limit: Some(400 << 20), ..Config::default() });
    let mut blocks = Vec::new();
    while let Some(block) = world.heap.allocate_large(3_000_000, false) {
        blocks.push(block.address.get());
    }
    blocks.into_iter().for_each(|block| _ = world.heap.free_large(block).expect("it is live"));
    world.heap.forget_demand();
    world.run(3.0);
    let metadata = world.heap.snapshot().metadata;
    assert_eq!((world.heap.snapshot().arenas, world.kernel.data()), (0, metadata));
    can_take_pages(&mut world, 10 * HEAP_PAGES);
}

/// It counts until it is unmapped: the C library was refused a megabyte while 120 were kept.
#[test]
fn of_what_is_freed_under_a_limit_on_data_little_is_kept() {
    let mut world = World::new(Policy::Thp, Config { data_limit: Some(200 * ARENA), ..Config::default() });
    let block = world.heap.allocate_large(90 * ARENA_BYTES, false).expect("there is memory").address.get();
    let pages = world.take_arenas(90);
    world.heap.free_large(block).expect("it is live");
    world.check();
    assert!(world.kernel.data() <= (90 + 25 + 2) * ARENA, "{}", world.kernel.data());
    world.free_arenas(&pages);
    world.check();
    let retained = world.heap.snapshot().retained;
    assert!((20 * ARENA..=25 * ARENA).contains(&retained), "{retained}");
    assert!(world.kernel.data() <= (25 + 2) * ARENA);
}

/// Nobody told the heap of a limit that was set later: it learns of it when it is refused memory.
#[test]
fn arenas_given_back_before_there_was_a_limit_on_data_lose_their_access_when_one_is_refused() {
    let mut world = World::new(Policy::Thp, Config::default());
    let block = world.heap.allocate_large(100 * ARENA_BYTES, false).expect("there is memory").address.get();
    world.heap.free_large(block).expect("it is live");
    world.heap.forget_demand();
    world.run(3.0);
    assert!(world.kernel.data() > 100 * ARENA, "without a limit nothing is unmapped");
    assert_eq!(world.kernel.calls(Call::Unmap), 0);
    world.kernel.set_data_limit(Some(world.kernel.data()));
    // More than was given back: it is reached whatever part of these is used again.
    let mut taken = 0;
    while world.heap.allocate(HEAP_PAGES).is_some() {
        taken += 1;
    }
    assert_eq!(taken, 100);
    world.check();
}

/// The records of a region's arenas can be written, used or not. Of four times the memory of a large host they
/// took most of the limit, or all of it.
#[test]
fn records_take_a_small_part_of_a_limit_on_data_however_large_the_host_is() {
    for memory in [8 << 10, 256 << 10, 1024 << 10] {
        for limit in [8, 64, 150, 4096] {
            let config =
                Config { total_memory: memory * MIB, data_limit: Some(limit * MIB), ..Config::default() };
            let mut world = World::new(Policy::Thp, config);
            let arenas = core::iter::from_fn(|| world.heap.allocate(HEAP_PAGES)).count() as u64;
            assert!(arenas >= (limit * MIB - limit * MIB / 16) / ARENA - 1, "{limit} on {memory}: {arenas}");
            assert!(world.heap.snapshot().metadata <= limit * MIB / 16);
            world.check();
        }
    }
}

/// They were counted after the arena was filed as empty, and under a limit on data what is kept is given up there.
#[test]
fn pages_that_empty_an_arena_under_a_small_limit_on_data_are_counted_first() {
    let mut world = World::new(Policy::Thp, Config { data_limit: Some(12 * MIB), ..Config::default() });
    let mut pages = [0; HEAP_PAGES as usize];
    assert_eq!(world.heap.allocate_pages(&mut pages, 0), pages.len());
    let [kept, gone] = [16, 110].map(|pages| world.take(pages));
    world.free(gone, 110);
    world.heap.free_pages(&pages).expect("they live");
    let snapshot = world.heap.snapshot();
    assert_eq!(snapshot.live, 16 * PAGE);
    assert!(snapshot.retained <= 12 * MIB / 8 + ARENA, "{}", snapshot.retained);
    world.free(kept, 16);
    world.check();
}
