//! Large blocks on the simulated kernel.

mod guess;
mod places;
mod tails;

use crate::arena::tests::{ARENA, MIB, PAGE, World};
use crate::arena::{ARENA_BYTES, BadFree, HEAP_PAGE_BYTES, HEAP_PAGES, Policy, Settings, Wait};
use crate::telemetry::Fallback;
use hugeheap_os::Capabilities;
use hugeheap_os::simulated::{Call, Config};
use hugeheap_os::{AddressRange, Facts};
use std::time::Duration;

fn world(policy: Policy) -> World {
    World::new(policy, Config::default())
}

fn take(world: &mut World, bytes: usize, growing: bool) -> usize {
    let block = world.heap.allocate_large(bytes, growing).expect("there is memory").address.get();
    world.use_all(block, bytes);
    block
}

fn resize(world: &mut World, address: usize, bytes: usize) -> usize {
    world.heap.resize_large(address, bytes).expect("it is live").expect("there is memory").get()
}

#[test]
fn a_block_is_counted_in_heap_pages() {
    let mut world = world(Policy::Thp);
    let block = take(&mut world, 3 * ARENA_BYTES + 1, false);
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.live, snapshot.large), (3 * ARENA + PAGE, 3 * ARENA + PAGE));
    assert_eq!((snapshot.arenas, snapshot.arenas_full), (4, 4));
    assert_eq!(world.heap.large_bytes(block), Ok(3 * ARENA_BYTES + 1));
    assert_eq!(world.heap.free_large(block), Ok(3 * ARENA_BYTES + 1));
    assert_eq!(world.heap.free_large(block), Err(BadFree::NotLive));
    assert_eq!(world.heap.snapshot().live, 0);
    world.check();
}

#[test]
fn a_tail_is_a_huge_page_only_where_that_wastes_little() {
    let huge = |bytes: usize, growing: bool| {
        let mut world = world(Policy::Thp);
        take(&mut world, bytes, growing);
        assert_eq!(world.kernel.charge() - world.huge_bytes(), world.kernel.charge() % ARENA);
        world.huge_bytes() / ARENA
    };
    assert_eq!(huge(3 * MIB as usize, false), 1, "half a tail");
    assert_eq!(huge(ARENA_BYTES + 112 * HEAP_PAGE_BYTES, false), 2, "seven eighths");
    assert_eq!(huge(ARENA_BYTES + 111 * HEAP_PAGE_BYTES, false), 1);
    assert_eq!(huge(16 * MIB as usize + 8 * HEAP_PAGE_BYTES, false), 9, "a waste of an eighth at most");
    assert_eq!(huge(16 * MIB as usize + 7 * HEAP_PAGE_BYTES, false), 8, "less than a sixteenth is used");
    assert_eq!(huge(3 * MIB as usize, true), 2, "it grows");
}

#[test]
fn of_many_blocks_that_grew_few_tails_are_huge_pages() {
    for growing in [false, true] {
        let mut world = world(Policy::Thp);
        let mut tails = 0;
        for _ in 0..100 {
            // A list of 150,000 elements.
            let block = take(&mut world, 5 * ARENA_BYTES / 8, growing);
            if !growing {
                // It was larger, and grows now.
                world.heap.resize_large(block, 11 * ARENA_BYTES / 8).expect("live").expect("memory");
            }
            let bytes = world.heap.snapshot().live;
            tails = world.huge_bytes();
            assert!(tails <= ARENA.max(bytes / 16), "{tails} of {bytes}");
            world.heap.verify().unwrap_or_else(|problem| panic!("{problem}"));
        }
        assert!(tails >= 3 * ARENA);
    }
}

#[test]
fn a_tail_that_is_nearly_full_is_no_guess_any_more() {
    let mut world = world(Policy::Thp);
    let block = take(&mut world, ARENA_BYTES / 2, true);
    assert_eq!(resize(&mut world, block, ARENA_BYTES / 16 * 13), block);
    take(&mut world, ARENA_BYTES / 2, true);
    assert_eq!(world.huge_bytes(), ARENA, "it could end there");
    assert_eq!(resize(&mut world, block, ARENA_BYTES / 16 * 14), block);
    take(&mut world, ARENA_BYTES / 2, true);
    assert_eq!(world.huge_bytes(), 2 * ARENA);
    world.check();
}

#[test]
fn a_guess_that_came_true_makes_room_for_the_next() {
    let mut world = world(Policy::Thp);
    let mut block = take(&mut world, ARENA_BYTES / 2, true);
    let other = take(&mut world, ARENA_BYTES / 2, true);
    assert_eq!(world.huge_bytes(), ARENA, "one guess at a time");
    let mut bytes = ARENA_BYTES / 2;
    while bytes < 4 * ARENA_BYTES {
        bytes += bytes / 8;
        block = resize(&mut world, block, bytes);
        world.use_all(block, bytes);
        let begun = bytes - bytes % ARENA_BYTES;
        let tail = (bytes - begun).div_ceil(HEAP_PAGE_BYTES) as u32;
        let huge = if tail < HEAP_PAGES / 16 { begun } else { begun + ARENA_BYTES };
        assert_eq!(world.huge_bytes(), huge as u64, "all of what grows, but for what has just begun");
        world.check();
    }
    world.heap.free_large(block).expect("live");
    world.run(5.0);
    assert_eq!(world.huge_bytes(), 0);
    let grown = resize(&mut world, other, 9 * ARENA_BYTES / 8);
    assert_eq!(world.huge_bytes(), ARENA, "nobody else guesses");
    world.heap.free_large(grown).expect("live");
    world.check();
}

#[test]
fn a_block_grows_in_place_where_there_is_room() {
    let mut world = world(Policy::Thp);
    let block = take(&mut world, 4 * ARENA_BYTES, true);
    let faults = world.kernel.events().huge_faults;
    assert_eq!(resize(&mut world, block, 5 * ARENA_BYTES + 5), block);
    assert_eq!(resize(&mut world, block, 6 * ARENA_BYTES), block);
    world.kernel.touch(AddressRange::new(block, 6 * ARENA_BYTES)).expect("it is live");
    assert_eq!(world.kernel.events().huge_faults, faults + 2);
    assert_eq!(world.kernel.calls(Call::Relocate), 0);
    world.check_contents(block, 4 * ARENA_BYTES);
    assert_eq!(world.heap.snapshot().live, 6 * ARENA);
    world.check();
}

#[test]
fn a_block_is_extended_where_it_is_or_stays_as_it_is() {
    let mut world = world(Policy::Thp);
    let block = take(&mut world, 2 * ARENA_BYTES, true);
    let extend = |world: &mut World, block: usize, arenas: usize, room: u64| {
        let extended = world.heap.extend_large_within(block, arenas * ARENA_BYTES, room).expect("it is live");
        world.check();
        (extended, world.heap.large_bytes(block).expect("it is live") / ARENA_BYTES)
    };
    assert_eq!(extend(&mut world, block, 3, ARENA - 1), (false, 2), "an arena has to come from the system");
    assert_eq!(extend(&mut world, block, 3, ARENA), (true, 3));
    world.check_contents(block, 2 * ARENA_BYTES);
    assert_eq!(extend(&mut world, block, 3, 0), (true, 3));
    resize(&mut world, block, 2 * ARENA_BYTES);
    assert_eq!(extend(&mut world, block, 3, 0), (true, 3), "what was its own is resident");
    assert_eq!(world.heap.snapshot().large, 3 * ARENA);
    let end = world.heap.extend_large_within(block + ARENA_BYTES, ARENA_BYTES, 0);
    assert_eq!(end, Err(BadFree::Interior));
    let mut world = self::world(Policy::Thp);
    let above = take(&mut world, ARENA_BYTES, false);
    let below = take(&mut world, ARENA_BYTES, false);
    assert_eq!(below + ARENA_BYTES, above);
    let half = take(&mut world, ARENA_BYTES / 2, false);
    assert_eq!(
        world.heap.extend_large_within(half, ARENA_BYTES, ARENA / 2 - 1),
        Ok(false),
        "the rest of its arena"
    );
    assert_eq!(world.heap.extend_large_within(half, ARENA_BYTES, ARENA / 2), Ok(true));
    world.heap.free_large(half).expect("live");
    assert!(world.heap.has_room_behind(below, ARENA_BYTES));
    assert!(!world.heap.has_room_behind(below, 2 * ARENA_BYTES));
    assert_eq!(extend(&mut world, below, 2, u64::MAX), (false, 1), "what lies behind it is in use");
    assert_eq!(world.heap.snapshot().large, 2 * ARENA);
}

#[test]
fn a_block_without_room_moves_without_copying_and_stays_huge() {
    let mut world = world(Policy::Thp);
    let first = take(&mut world, 4 * ARENA_BYTES, false);
    let below = take(&mut world, 4 * ARENA_BYTES, false);
    assert!(below < first);
    let moved = resize(&mut world, below, 6 * ARENA_BYTES);
    assert_ne!(moved, below);
    world.check_moved(below, moved, 4 * ARENA_BYTES);
    world.kernel.touch(AddressRange::new(moved, 6 * ARENA_BYTES)).expect("it is live");
    let events = world.kernel.events();
    assert_eq!((events.huge_faults, events.faults), (10, 0), "two new ones: nothing was copied");
    assert_eq!(world.huge_bytes(), 10 * ARENA);
    assert_eq!(world.heap.snapshot().live_peak, 10 * ARENA);
    assert_eq!(world.heap.large_bytes(below), Err(BadFree::NotLive));
    world.check_contents(first, 4 * ARENA_BYTES);
    world.check();
}

#[test]
fn a_tail_of_another_kind_does_not_keep_the_rest_from_being_moved() {
    let mut world = world(Policy::Thp);
    take(&mut world, ARENA_BYTES, false);
    // Four huge pages and a tail of OS pages: two mappings.
    let block = take(&mut world, 4 * ARENA_BYTES + 3 * HEAP_PAGE_BYTES, false);
    assert_eq!(world.huge_bytes(), 5 * ARENA);
    let moved = resize(&mut world, block, 8 * ARENA_BYTES);
    assert_ne!(moved, block);
    world.check_moved(block, moved, 4 * ARENA_BYTES + 3 * HEAP_PAGE_BYTES);
    assert_eq!(world.kernel.calls(Call::Relocate), 2);
    assert_eq!(world.kernel.failures(Call::Relocate), 0);
    world.check();
}

#[test]
fn where_pages_cannot_be_moved_they_are_copied() {
    let mut world = world(Policy::Thp);
    let capabilities = world.kernel.capabilities();
    world.kernel.set_capabilities(Capabilities { relocate: false, ..capabilities });
    take(&mut world, ARENA_BYTES, false);
    let block = take(&mut world, 5 * ARENA_BYTES + 777, false);
    let moved = resize(&mut world, block, 9 * ARENA_BYTES);
    assert_ne!(moved, block);
    world.check_moved(block, moved, 5 * ARENA_BYTES + 777);
    assert!(world.kernel.calls(Call::Relocate) <= 3, "it is not asked again and again");
    world.check();
}

#[test]
fn a_move_that_fails_anywhere_changes_nothing() {
    for policy in [Policy::Thp, Policy::Base, Policy::Hugetlb] {
        for relocations in 0..4 {
            for maps in 1..8 {
                let mut world = World::new(policy, Config::default().with_pool(3));
                take(&mut world, ARENA_BYTES, false);
                let bytes = 4 * ARENA_BYTES + 3 * HEAP_PAGE_BYTES;
                let block = take(&mut world, bytes, false);
                let before = world.heap.snapshot();
                if relocations > 0 {
                    world.kernel.fail_every(Call::Relocate, relocations, libc::ENOMEM);
                }
                world.kernel.fail_every(Call::Map, maps, libc::ENOMEM);
                let result = world.heap.resize_large(block, 9 * ARENA_BYTES).expect("it is live");
                world.kernel.fail_no_more();
                world.check();
                let address = match result {
                    Some(address) => address.get(),
                    None => {
                        let after = world.heap.snapshot();
                        assert_eq!((before.live, before.large), (after.live, after.large));
                        assert_eq!(world.heap.large_bytes(block), Ok(bytes));
                        block
                    }
                };
                world.check_moved(block, address, bytes);
                let length = world.heap.large_bytes(address).expect("it is live");
                world.use_all(address, length);
                world.heap.free_large(address).expect("it is live");
                world.run(3.0);
                let one = if policy == Policy::Base { ARENA } else { world.kernel.charge() };
                assert_eq!(world.kernel.charge(), one);
                assert_eq!(world.heap.snapshot().live, ARENA);
                assert_eq!(world.heap.snapshot().retained, 0);
            }
        }
    }
}

#[test]
fn a_shrunk_block_stays_and_its_end_is_reused() {
    let mut world = world(Policy::Thp);
    let block = take(&mut world, 10 * ARENA_BYTES, false);
    assert_eq!(resize(&mut world, block, 3 * ARENA_BYTES + 1), block);
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.live, snapshot.retained), (3 * ARENA + PAGE, 7 * ARENA - PAGE));
    world.check_contents(block, 3 * ARENA_BYTES);
    let faults = world.kernel.events().huge_faults;
    let arenas = world.take_arenas(6);
    assert_eq!(world.kernel.events().huge_faults, faults);
    assert!(arenas.iter().all(|arena| (block + 4 * ARENA_BYTES..block + 10 * ARENA_BYTES).contains(arena)));
    // Now small arenas are in the way.
    assert_ne!(resize(&mut world, block, 6 * ARENA_BYTES), block);
    world.check();
}

#[test]
fn shrinking_and_growing_within_an_arena_counts_pages() {
    let mut world = world(Policy::Thp);
    let block = take(&mut world, 2 * ARENA_BYTES, false);
    for pages in [1, 100, 3, 128, 127] {
        let bytes = ARENA_BYTES + pages * HEAP_PAGE_BYTES;
        assert_eq!(resize(&mut world, block, bytes), block);
        assert_eq!(world.heap.snapshot().live, bytes as u64);
        assert_eq!(world.heap.snapshot().retained, 2 * ARENA - bytes as u64);
        world.check();
    }
}

#[test]
fn a_block_of_nothing_is_a_block() {
    let mut world = world(Policy::Thp);
    let block = world.heap.allocate_large(0, false).expect("there is memory").address.get();
    assert_eq!(world.heap.large_bytes(block), Ok(0));
    assert_eq!(resize(&mut world, block, 5 * ARENA_BYTES) % ARENA_BYTES, 0);
    let grown = world.heap.snapshot();
    assert_eq!(grown.large, 5 * ARENA);
    world.check();
}

#[test]
fn memory_promised_to_be_zero_is_zero() {
    for policy in Policy::ALL {
        let mut world = World::new(policy, Config::default().with_pool(3));
        let mut promised = 0;
        for round in 0..30 {
            let bytes = (1 + round % 5) * ARENA_BYTES + 5000;
            let block = world.heap.allocate_large(bytes, round % 2 == 0).expect("there is memory");
            let address = block.address.get();
            if block.zeroed {
                promised += 1;
                for at in (address..address + bytes).step_by(4096) {
                    // SAFETY: the block is this test's.
                    assert_eq!(unsafe { (at as *const u8).read() }, 0, "{policy}");
                }
            }
            world.use_all(address, bytes);
            let address = resize(&mut world, address, bytes / 2);
            if round % 3 == 0 {
                let address = resize(&mut world, address, bytes * 2);
                world.use_all(address, bytes * 2);
                world.heap.free_large(address).expect("it is live");
            } else {
                world.heap.free_large(address).expect("it is live");
            }
            if round % 4 == 0 {
                world.run(40.0);
            }
        }
        assert!((8..30).contains(&promised), "{policy}: {promised}");
    }
}

#[test]
fn a_block_may_be_freed_resized_or_moved_while_it_is_collapsed() {
    for performed in [false, true] {
        for what in 0..5 {
            let mut world = world(Policy::Dense);
            let other = take(&mut world, ARENA_BYTES, false);
            let block = take(&mut world, 4 * ARENA_BYTES, false);
            world.kernel.advance(Duration::from_secs(3));
            let mut plan = world.heap.plan();
            assert!(!plan.is_empty());
            if performed {
                plan.perform(&world.kernel);
            }
            let mut kept = 4 * ARENA_BYTES;
            let address = match what {
                0 => {
                    world.heap.free_large(block).expect("it is live");
                    // Nothing is allocated from what is worked on.
                    let arenas = world.take_arenas(4);
                    assert!(arenas.iter().all(|arena| !(block..block + 4 * ARENA_BYTES).contains(arena)));
                    0
                }
                1 => {
                    kept = ARENA_BYTES + 9;
                    resize(&mut world, block, kept)
                }
                2 => {
                    world.heap.free_large(other).expect("it is live");
                    resize(&mut world, block, 5 * ARENA_BYTES)
                }
                3 => resize(&mut world, block, 7 * ARENA_BYTES),
                _ => {
                    resize(&mut world, block, 3 * ARENA_BYTES);
                    resize(&mut world, block, 4 * ARENA_BYTES)
                }
            };
            if !performed {
                plan.perform(&world.kernel);
            }
            assert!(matches!(world.heap.complete(plan), Wait::For(0)));
            world.check();
            if address != 0 {
                world.check_moved(block, address, kept.min(3 * ARENA_BYTES));
                let length = world.heap.large_bytes(address).expect("it is live");
                world.use_all(address, length);
                assert_eq!(world.heap.free_large(address), Ok(length));
            }
            world.run(5.0);
            assert_eq!(world.kernel.charge(), world.heap.snapshot().live);
        }
    }
}

#[test]
fn a_dense_block_is_collapsed_whether_it_was_born_dense_or_became_so() {
    let mut world = world(Policy::Dense);
    take(&mut world, 3 * ARENA_BYTES, false);
    world.run(3.0);
    assert_eq!(world.huge_bytes(), 3 * ARENA);
    let block = take(&mut world, ARENA_BYTES + HEAP_PAGE_BYTES, false);
    world.run(3.0);
    assert_eq!(world.huge_bytes(), 4 * ARENA);
    let grown = resize(&mut world, block, 2 * ARENA_BYTES);
    world.use_all(grown, 2 * ARENA_BYTES);
    world.run(3.0);
    assert_eq!(world.huge_bytes(), 5 * ARENA);
    assert_eq!(world.fallbacks(), []);
}

#[test]
fn a_growing_list_seldom_moves_and_copies_nothing() {
    let mut world = world(Policy::Auto);
    let others: Vec<_> = (0..4).map(|_| take(&mut world, 3 * ARENA_BYTES, false)).collect();
    let mut bytes = MIB as usize;
    let mut block = take(&mut world, bytes, true);
    let mut moves = 0;
    while bytes < 200 * MIB as usize {
        let more = bytes + bytes / 8 + 6;
        let new = resize(&mut world, block, more);
        world.check_moved(block, new, bytes);
        moves += usize::from(new != block);
        (block, bytes) = (new, more);
        world.use_all(block, bytes);
    }
    assert!(moves < 15, "{moves} moves of 46 growths");
    // One in sixteen ends at the beginning of a page.
    let faults = world.kernel.events().faults;
    assert!(faults <= 46 / 16 * (ARENA / 16 / 4096), "{faults}");
    assert_eq!(world.huge_bytes(), world.heap.snapshot().large.next_multiple_of(ARENA));
    assert_eq!(world.heap.snapshot().live_peak, world.heap.snapshot().live);
    others.iter().for_each(|&other| world.check_contents(other, 3 * ARENA_BYTES));
    world.check();
}

#[test]
fn blocks_in_regions_of_their_size_only() {
    let settings = Settings { policy: Policy::Thp, region: Some(8 * ARENA_BYTES), ..Settings::DEFAULT };
    let mut world = World::with(settings, Config::default());
    let small = world.take(HEAP_PAGES);
    let mut block = take(&mut world, 3 * ARENA_BYTES, true);
    for arenas in 4..40 {
        let new = resize(&mut world, block, arenas * ARENA_BYTES);
        world.check_moved(block, new, (arenas - 1) * ARENA_BYTES);
        world.use_all(new, arenas * ARENA_BYTES);
        block = new;
    }
    world.check_contents(small, ARENA_BYTES);
    assert_eq!(world.fallback(Fallback::AddressSpace), 0);
    world.check();
}

/// A block of 2 GiB was resident before its program had written a byte of it, and filled its control group.
#[test]
fn a_large_block_that_nobody_touched_was_resident() {
    let mut world = world(Policy::Thp);
    let block = world.heap.allocate_large(1 << 30, false).expect("there is memory");
    assert!(block.zeroed);
    assert_eq!(world.kernel.charge(), ARENA, "the first arena tells whether there are huge pages");
    let block = block.address.get();
    let somewhere = AddressRange::new(block + 77 * ARENA_BYTES + 5 * HEAP_PAGE_BYTES, HEAP_PAGE_BYTES);
    world.kernel.touch(somewhere).expect("it is live");
    assert_eq!(
        (world.kernel.charge(), world.huge_bytes()),
        (2 * ARENA, 2 * ARENA),
        "a huge page where it is touched"
    );
    let grown = resize(&mut world, block, 2 << 30);
    assert_eq!(world.kernel.charge(), 3 * ARENA);
    world.heap.free_large(grown).expect("it is live");
    world.heap.forget_demand();
    world.run(3.0);
    let snapshot = world.heap.snapshot();
    assert_eq!((world.kernel.charge(), snapshot.retained, snapshot.arenas), (0, 0, 0));
    world.check();
}

/// A touch of its few pages makes all of the last arena resident, and nobody knew of the rest.
#[test]
fn what_is_resident_behind_the_end_of_a_large_block_counts_as_kept() {
    let mut world = world(Policy::Thp);
    for pages in [1, 2, 100, 127] {
        let bytes = 20 * ARENA_BYTES + pages * HEAP_PAGE_BYTES;
        let block = world.heap.allocate_large(bytes, false).expect("there is memory").address.get();
        world.kernel.touch(AddressRange::new(block, bytes)).expect("it is live");
        let known = world.heap.snapshot().live + world.heap.snapshot().retained;
        let resident = world.heap.residency().expect("asked").resident;
        assert!(resident <= known, "{pages}: {resident} of {known}");
    }
    world.check();
}

/// What is live of a large block is dense whatever was touched of it, and a collapse fills what was not.
#[test]
fn maintenance_does_not_fill_a_large_block_that_is_used_in_part() {
    for policy in [Policy::Thp, Policy::Dense, Policy::Auto] {
        let mut world = world(policy);
        let block =
            world.heap.allocate_large(64 * ARENA_BYTES, false).expect("there is memory").address.get();
        for arena in 0..32 {
            let page = AddressRange::new(block + arena * ARENA_BYTES, HEAP_PAGE_BYTES);
            world.kernel.touch(page).expect("it is live");
        }
        let charge = world.kernel.charge();
        world.run(100.0);
        assert_eq!(world.kernel.charge(), charge, "{policy:?}");
        assert_eq!(world.fallbacks(), [], "{policy:?}");
        assert_eq!(world.heap.snapshot().collapses, 0);
        // An idle process is left in peace after a while.
        world.run(3000.0);
        assert_eq!(world.heap.maintain(), Wait::Idle);
        world.heap.free_large(block).expect("it is live");
        world.heap.forget_demand();
        world.run(3.0);
        assert_eq!(world.kernel.charge(), 0, "what was put off does not keep it");
        world.check();
    }
}

/// After eight answers it was left alone, whatever they were.
#[test]
fn a_large_block_that_fills_slowly_is_asked_about_until_it_is_dense() {
    let mut world = world(Policy::Dense);
    let block = world.heap.allocate_large(2 * ARENA_BYTES, false).expect("there is memory").address.get();
    for pages in 1..=32 {
        for part in [block, block + ARENA_BYTES] {
            world.use_all(part, pages * 4 * HEAP_PAGE_BYTES);
        }
        world.run(60.0);
    }
    world.run(320.0);
    assert_eq!(world.huge_bytes(), 2 * ARENA);
    world.check();
}

#[test]
fn what_a_program_found_is_asked_later_and_counted() {
    let mut world = world(Policy::Thp);
    world.kernel.set_free_huge_pages(Some(3));
    let block = take(&mut world, 6 * ARENA_BYTES, false);
    assert_eq!(world.huge_bytes(), 3 * ARENA);
    assert_eq!(
        (world.heap.snapshot().arenas_thp, world.fallback(Fallback::NoHugePage)),
        (1, 0),
        "of the first it is known"
    );
    world.kernel.set_free_huge_pages(None);
    world.run(5.0);
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.arenas_thp, snapshot.collapses, world.fallback(Fallback::NoHugePage)), (6, 3, 3));
    assert_eq!(world.huge_bytes(), 6 * ARENA);
    world.check_contents(block, 6 * ARENA_BYTES);
    world.check();
}

#[test]
fn a_pool_still_promises_a_large_block_all_its_pages() {
    let mut world = world(Policy::Hugetlb);
    assert_eq!(world.kernel.set_pool(4), 4);
    let block = world.heap.allocate_large(6 * ARENA_BYTES, false).expect("there is memory").address.get();
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.arenas_hugetlb, world.fallback(Fallback::PoolEmpty)), (4, 2));
    assert_eq!(world.kernel.charge(), 0, "what is not from the pool is not touched");
    world.use_all(block, 6 * ARENA_BYTES);
    world.check();
}

fn take_alone(world: &mut World, bytes: usize) -> usize {
    let block = world.heap.allocate_alone(bytes).expect("there is memory").address.get();
    world.use_all(block, bytes);
    block
}

/// It was kept, in OS pages: one more reason for the next one to be alone.
#[test]
fn what_was_alone_was_kept_when_it_was_freed() {
    let mut world = world(Policy::Thp);
    let block = take_alone(&mut world, 700_000);
    let longer = resize(&mut world, block, 900_000);
    world.use_all(longer, 900_000);
    assert_eq!(world.heap.free_large(longer), Ok(900_000));
    world.check();
    let snapshot = world.heap.snapshot();
    assert_eq!((world.kernel.charge(), snapshot.retained, snapshot.arenas), (0, 0, 0));
    assert_eq!(world.heap.free_large(longer), Err(BadFree::NotLive));
}

#[test]
fn what_was_alone_and_has_come_to_need_two_arenas_is_a_large_block_like_any_other() {
    let mut world = world(Policy::Thp);
    let behind = take(&mut world, 3 * ARENA_BYTES, false);
    let block = take_alone(&mut world, 700_000);
    world.heap.free_large(behind).expect("it is live");
    assert_eq!(resize(&mut world, block, 3 << 20), block, "there is room behind it");
    world.use_all(block, 3 << 20);
    let retained = world.heap.snapshot().retained;
    assert_eq!(world.heap.free_large(block), Ok(3 << 20));
    assert_eq!(world.heap.snapshot().retained, retained + (3 << 20), "kept");
    // And so is the next one there.
    let next = take(&mut world, 700_000, false);
    assert_eq!(next, block);
    assert_eq!(world.heap.free_large(next), Ok(700_000));
    assert_eq!(world.heap.snapshot().retained, retained + (3 << 20));
    world.check();
}

#[test]
fn what_is_alone_may_be_freed_while_it_is_collapsed() {
    let bytes = ARENA_BYTES - HEAP_PAGE_BYTES;
    for performed in [false, true] {
        let mut world = world(Policy::Dense);
        let block = take_alone(&mut world, bytes);
        world.kernel.advance(Duration::from_secs(3));
        let mut plan = world.heap.plan();
        assert!(!plan.is_empty());
        if performed {
            plan.perform(&world.kernel);
        }
        assert_eq!(world.heap.free_large(block), Ok(bytes));
        if !performed {
            plan.perform(&world.kernel);
        }
        world.heap.complete(plan);
        world.check();
        assert!(world.heap.snapshot().retained >= bytes as u64, "somebody worked on it, and it is kept");
        let page = world.take(1);
        world.free(page, 1);
        world.check();
    }
}

#[test]
fn what_was_alone_and_is_a_huge_page_by_now_is_kept() {
    let mut world = world(Policy::Dense);
    let bytes = ARENA_BYTES - HEAP_PAGE_BYTES;
    let block = take_alone(&mut world, bytes);
    world.run(5.0);
    assert_eq!(world.huge_bytes(), ARENA);
    assert_eq!(world.heap.free_large(block), Ok(bytes));
    assert_eq!((world.heap.snapshot().retained, world.huge_bytes()), (ARENA, ARENA));
    world.check();
}
