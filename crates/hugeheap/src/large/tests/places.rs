//! Where large blocks come to lie, among what is kept, and under a limit on data.

use super::{resize, take, world};
use crate::arena::tests::{ARENA, World};
use crate::arena::{ARENA_BYTES, HEAP_PAGE_BYTES, HEAP_PAGES, Policy};
use hugeheap_os::simulated::{Call, Config};

/// Its place was empty last, so heap pages took it, and the block found no row of arenas.
#[test]
fn a_block_that_comes_again_finds_its_place_though_heap_pages_were_used_before() {
    let mut world = world(Policy::Thp);
    let bytes = 7 * ARENA_BYTES;
    let mut places = None;
    for _ in 0..4 {
        let block = take(&mut world, bytes, false);
        let pages = world.take_arenas(10);
        let other = take(&mut world, bytes, false);
        let taken = [block.min(other), block.max(other)];
        assert_eq!((*places.get_or_insert(taken), world.heap.snapshot().arenas), (taken, 24));
        world.free_arenas(&pages);
        for block in [other, block] {
            world.heap.free_large(block).expect("live");
        }
        world.check();
    }
    // Where all the others are in use, heap pages do come there.
    let pages = world.take_arenas(24);
    assert_eq!(world.heap.snapshot().arenas, 24);
    world.free_arenas(&pages);
    world.run(60.0);
    assert_eq!(world.heap.snapshot().arenas, 0);
    world.check();
}

/// The highest idle arenas were taken, which had been given back, while as much was kept below.
#[test]
fn what_is_kept_is_used_before_new_memory_wherever_it_is() {
    let mut world = world(Policy::Thp);
    let [high, middle, low] = [3, 2, 5].map(|arenas| take(&mut world, arenas * ARENA_BYTES, false));
    world.heap.free_large(high).expect("live");
    world.run(60.0);
    assert_eq!(world.heap.snapshot().arenas, 7, "it was given back");
    for block in [low, middle] {
        world.heap.free_large(block).expect("live");
    }
    // The two lie side by side.
    let again = take(&mut world, 6 * ARENA_BYTES, false);
    assert_eq!((again, world.heap.snapshot().arenas), (low, 7));
    world.heap.free_large(again).expect("live");
    let whole = take(&mut world, 7 * ARENA_BYTES, false);
    world.heap.free_large(whole).expect("live");
    // Of several rows the shortest, and one with room for what grows.
    let [one, two] = [5, 1].map(|arenas| take(&mut world, arenas * ARENA_BYTES, false));
    world.heap.free_large(one).expect("live");
    assert_eq!(take(&mut world, ARENA_BYTES, true), one, "there is room behind");
    assert_eq!((take(&mut world, ARENA_BYTES, false), two), (low + 6 * ARENA_BYTES, low + 5 * ARENA_BYTES));
    assert_eq!(world.heap.snapshot().arenas, 7);
    // What is kept is too short: all of it is new.
    let longer = take(&mut world, 5 * ARENA_BYTES, false);
    assert_eq!(world.heap.snapshot().arenas, 12);
    assert!(longer > low + 6 * ARENA_BYTES || longer < low);
    world.check();
}

/// The second arena is on OS pages, of which the block had a part: no resident row as a whole.
#[test]
fn a_block_with_a_tail_finds_the_place_of_the_last_one() {
    let mut world = world(Policy::Thp);
    let bytes = 3 * ARENA_BYTES / 2;
    let blocks = [(); 4].map(|()| take(&mut world, bytes, false));
    let charge = world.kernel.charge();
    for &block in blocks.iter().chain(&blocks) {
        world.heap.free_large(block).expect("it is live");
        assert_eq!(take(&mut world, bytes, false), block);
        assert_eq!(world.kernel.charge(), charge);
    }
    // Of two the one that was left last, though the other is higher.
    for block in [blocks[0], blocks[2]] {
        world.heap.free_large(block).expect("it is live");
    }
    assert_eq!([(); 2].map(|()| take(&mut world, bytes, false)), [blocks[2], blocks[0]]);
    // Not where it is somebody else's by now, and not for what is to grow.
    world.heap.free_large(blocks[1]).expect("it is live");
    let pages = world.take(HEAP_PAGES);
    assert!((blocks[1]..blocks[1] + 2 * ARENA_BYTES).contains(&pages));
    assert_ne!(take(&mut world, bytes, false), blocks[1]);
    world.heap.free_large(blocks[2]).expect("it is live");
    let grows = take(&mut world, bytes, true);
    assert!(world.heap.has_room_behind(grows, 2 * bytes));
    world.check();
}

/// It brings its memory along, so what is resident where it comes to would be given back.
#[test]
fn a_block_that_moves_leaves_what_is_kept_for_others() {
    let mut world = world(Policy::Thp);
    let [_first, kept, _between, grows, _behind] =
        [1, 6, 1, 2, 1].map(|arenas| take(&mut world, arenas * ARENA_BYTES, false));
    world.heap.free_large(kept).expect("live");
    let grown = resize(&mut world, grows, 5 * ARENA_BYTES);
    assert!(grown < grows && world.heap.snapshot().retained >= 6 * ARENA);
    world.check();
}

/// What had been moved was filed as given back, so that it lost its write access for the copy of the rest, and
/// was then copied back to where nothing can be written: a list that grew under `ulimit -d` ended the process.
#[test]
fn a_block_that_a_limit_on_data_keeps_from_moving_stays_as_it_was() {
    let mut refused = 0;
    for policy in [Policy::Thp, Policy::Base] {
        for room in 0..14 {
            let mut world = World::new(policy, Config::default());
            take(&mut world, ARENA_BYTES, false);
            let bytes = 4 * ARENA_BYTES + 3 * HEAP_PAGE_BYTES;
            let block = take(&mut world, bytes, false);
            let used = 6 * ARENA;
            world.kernel.set_data_limit(Some(used + room * ARENA));
            // The kernel moves what is on huge pages, and not the tail.
            world.kernel.fail_every(Call::Relocate, 2, libc::EINVAL);
            let moved = world.heap.resize_large(block, 7 * ARENA_BYTES).expect("it is live");
            world.kernel.fail_no_more();
            world.check();
            refused += u32::from(moved.is_none());
            let address = moved.map_or(block, |address| address.get());
            world.check_moved(block, address, bytes);
            world.use_all(address, bytes);
            world.heap.free_large(address).expect("it is live");
            world.check();
        }
    }
    assert!((8..20).contains(&refused), "{refused}");
}

/// It lay in no row for a block, and counts against the limit.
#[test]
fn what_is_kept_goes_where_a_limit_on_data_leaves_no_room_for_a_block() {
    let mut world = World::new(Policy::Thp, Config::default());
    let between = take(&mut world, ARENA_BYTES, false);
    world.kernel.set_data_limit(Some(40 * ARENA));
    let pages = world.take_arenas(36);
    world.free_arenas(&pages);
    let block = take(&mut world, 28 * ARENA_BYTES, false);
    world.check();
    // Nor is there room for both when it moves.
    world.heap.free_large(between).expect("live");
    world.heap.free_large(block).expect("live");
    let [_above, small] = [1, 12].map(|arenas| take(&mut world, arenas * ARENA_BYTES, false));
    let pages = world.take_arenas(5);
    world.free_arenas(&pages);
    assert_eq!(world.heap.snapshot().retained, 5 * ARENA);
    world.kernel.set_data_limit(Some(world.kernel.data() + 13 * ARENA));
    let (supplied, refused) = (world.kernel.events().huge_faults, world.kernel.failures(Call::Relocate));
    assert_ne!(resize(&mut world, small, 14 * ARENA_BYTES), small);
    // It is moved all the same, and not copied.
    assert!(world.kernel.failures(Call::Relocate) > refused);
    assert!(world.kernel.events().huge_faults <= supplied + 2);
    world.check();
}
