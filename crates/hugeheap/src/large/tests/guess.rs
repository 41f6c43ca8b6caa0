//! Tails of blocks that grow.

use super::*;
use hugeheap_os::ThpDisabled;

/// Less than a sixteenth of an arena.
const LITTLE: usize = ARENA_BYTES / 16 - HEAP_PAGE_BYTES;

/// A list of a million elements had 1.94 MiB more than it used, of a huge page that it had only just begun.
#[test]
fn a_page_that_a_block_has_just_begun_is_no_guess() {
    for arenas in [1, 2, 4, 8, 20] {
        let mut world = world(Policy::Auto);
        let block = take(&mut world, arenas * ARENA_BYTES, true);
        let bytes = arenas * ARENA_BYTES + LITTLE;
        let block = resize(&mut world, block, bytes);
        world.use_all(block, bytes);
        assert_eq!(world.kernel.charge(), bytes as u64, "{arenas}");
        assert_eq!((world.heap.guesses, world.heap.snapshot().retained), (0, 0));
        world.check();
    }
}

#[test]
fn a_page_that_was_begun_is_one_huge_page_as_soon_as_the_block_grows_over_it() {
    for arenas in [1, 3, 9] {
        for more in [HEAP_PAGE_BYTES, ARENA_BYTES / 2, ARENA_BYTES, 3 * ARENA_BYTES] {
            let mut world = world(Policy::Auto);
            let block = take(&mut world, arenas * ARENA_BYTES, true);
            let begun = arenas * ARENA_BYTES + LITTLE;
            let block = resize(&mut world, block, begun);
            world.use_all(block, begun);
            let grown = resize(&mut world, block, begun + more);
            world.check_moved(block, grown, begun);
            world.use_all(grown, begun + more);
            let tail = (begun + more) % ARENA_BYTES;
            let on_os_pages = if tail < ARENA_BYTES / 16 { tail } else { 0 };
            assert_eq!(
                world.huge_bytes(),
                (begun + more - on_os_pages).next_multiple_of(ARENA_BYTES) as u64,
                "{arenas} {more}"
            );
            world.check();
            world.heap.free_large(grown).expect("it is live");
            assert_eq!(world.heap.guesses, 0);
            world.check();
        }
    }
}

#[test]
fn what_is_alone_stays_on_os_pages_however_little_is_touched_of_it() {
    let mut world = world(Policy::Auto);
    let block = world.heap.allocate_alone(HEAP_PAGE_BYTES).expect("memory").address.get();
    world.use_all(block, HEAP_PAGE_BYTES);
    let block = resize(&mut world, block, ARENA_BYTES / 2);
    world.use_all(block, ARENA_BYTES / 2);
    assert_eq!((world.huge_bytes(), world.heap.guesses), (0, 0));
    world.check();
}

/// It would be resident for a moment, and that can be too much.
#[test]
fn no_tail_is_a_huge_page_where_memory_is_scarce() {
    for bytes in [ARENA_BYTES / 2, 9 * ARENA_BYTES / 2, 17 * ARENA_BYTES / 2] {
        let mut world = World::new(Policy::Thp, Config::default().with_cgroup_max(100 * MIB));
        world.take_arenas(30);
        let huge = world.huge_bytes();
        take(&mut world, bytes, true);
        let whole = (bytes - bytes % ARENA_BYTES) as u64;
        assert_eq!(world.huge_bytes() - huge, whole);
        assert_eq!(world.kernel.events().huge_faults, (huge + whole) / ARENA, "nor was it one");
        world.check();
    }
}

/// As many guesses as without it, and no more.
#[test]
fn what_was_begun_becomes_huge_only_where_another_guess_may_be() {
    let mut world = world(Policy::Auto);
    let guess = take(&mut world, ARENA_BYTES / 2, true);
    let block = take(&mut world, ARENA_BYTES, false);
    let block = resize(&mut world, block, ARENA_BYTES + LITTLE);
    world.use_all(block, ARENA_BYTES + LITTLE);
    let block = resize(&mut world, block, 3 * ARENA_BYTES / 2);
    assert_eq!((world.heap.guesses, world.huge_bytes()), (1, 2 * ARENA));
    // Full, it need not be a guess; but what is touched by now is not little.
    world.use_all(block, 3 * ARENA_BYTES / 2);
    let block = resize(&mut world, block, 2 * ARENA_BYTES);
    assert_eq!(world.huge_bytes(), 2 * ARENA);
    world.use_all(block, 2 * ARENA_BYTES);
    world.heap.free_large(guess).expect("it is live");
    world.heap.forget_demand();
    world.run(3.0);
    assert_eq!(world.huge_bytes(), 2 * ARENA, "maintenance finds it");
    assert_eq!(world.kernel.charge(), 2 * ARENA);
    world.check();
}

/// It could not have it later.
#[test]
fn a_page_is_a_guess_from_its_first_byte_where_it_comes_from_a_pool_or_nothing_can_be_collapsed() {
    let capabilities = Capabilities { collapse: false, ..Config::default().capabilities };
    let old = Config { capabilities, ..Config::default() };
    for (policy, config) in [(Policy::Hugetlb, Config::default().with_pool(6)), (Policy::Auto, old)] {
        let mut world = World::new(policy, config);
        let block = take(&mut world, ARENA_BYTES, true);
        let block = resize(&mut world, block, ARENA_BYTES + 1);
        world.use_all(block, ARENA_BYTES + 1);
        assert_eq!((world.huge_bytes(), world.heap.guesses), (2 * ARENA, 1), "{policy:?}");
        world.heap.free_large(block).expect("it is live");
        world.check();
    }
}

#[test]
fn what_was_begun_stays_as_it_is_where_there_are_no_huge_pages() {
    let off = Config { thp_disabled: ThpDisabled::Completely, ..Config::default() };
    for (policy, config) in [(Policy::Base, Config::default()), (Policy::Auto, off)] {
        let mut world = World::new(policy, config);
        let block = take(&mut world, ARENA_BYTES, true);
        let block = resize(&mut world, block, ARENA_BYTES + LITTLE);
        world.use_all(block, ARENA_BYTES + LITTLE);
        let huge = world.huge_bytes();
        let block = resize(&mut world, block, 2 * ARENA_BYTES);
        world.use_all(block, 2 * ARENA_BYTES);
        assert_eq!((world.huge_bytes(), world.heap.guesses), (huge, 0), "{policy:?}");
        assert_eq!(world.kernel.calls(Call::Collapse), 0);
        world.check();
    }
}

#[test]
fn a_refused_huge_page_leaves_what_was_begun_on_os_pages_and_is_no_guess() {
    let mut world = world(Policy::Auto);
    let block = take(&mut world, ARENA_BYTES, true);
    let block = resize(&mut world, block, ARENA_BYTES + LITTLE);
    world.use_all(block, ARENA_BYTES + LITTLE);
    world.kernel.fail_next(Call::Collapse, libc::ENOMEM, 1);
    let grown = resize(&mut world, block, 3 * ARENA_BYTES / 2);
    world.check_moved(block, grown, ARENA_BYTES + LITTLE);
    world.use_all(grown, 3 * ARENA_BYTES / 2);
    assert_eq!((world.huge_bytes(), world.heap.guesses), (ARENA, 0));
    world.check();
}
