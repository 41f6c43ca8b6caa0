//! What large blocks left in OS pages, when heap pages come to lie there.

use super::*;
use hugeheap_os::ThpMode;
use hugeheap_os::simulated::Call;

/// Leaves an empty arena of which a large block of so many bytes touched a part, and takes a heap page; says which bytes are huge then, and how many huge pages the kernel gave for it.
fn page_after_block(world: &mut World, bytes: usize) -> (u64, u64) {
    let block = world.heap.allocate_large(bytes, false).expect("there is memory").address.get();
    world.use_all(block, bytes);
    assert_eq!(world.heap.free_large(block), Ok(bytes));
    assert_eq!((world.heap.snapshot().arenas, world.huge_bytes()), (1, 0), "kept, in OS pages");
    let faults = world.kernel.events().huge_faults;
    let page = world.take(1);
    world.check();
    let huge = world.huge_bytes();
    world.free(page, 1);
    (huge, world.kernel.events().huge_faults - faults)
}

/// They stayed in the OS pages of the block for as long as the program ran: an arena in use by many is hardly ever dense and unchanged.
#[test]
fn heap_pages_lay_in_the_os_pages_that_a_large_block_had_left() {
    let mut world = World::new(Policy::Thp, Config::default());
    assert_eq!(page_after_block(&mut world, 700_000), (ARENA, 1));
    assert_eq!(world.kernel.charge(), ARENA, "nothing is left of the block");
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.live, snapshot.retained, snapshot.arenas), (0, ARENA, 1));
}

#[test]
fn what_is_half_resident_is_used_as_it_is() {
    let mut world = World::new(Policy::Thp, Config::default());
    assert_eq!(page_after_block(&mut world, 64 * HEAP_PAGE_BYTES), (0, 0));
    let mut world = World::new(Policy::Thp, Config::default());
    assert_eq!(page_after_block(&mut world, 63 * HEAP_PAGE_BYTES), (ARENA, 1));
}

#[test]
fn so_is_what_can_be_no_huge_page() {
    for (policy, config) in [
        (Policy::Base, Config::default()),
        (Policy::Dense, Config::default()),
        (Policy::Thp, Config::default().with_thp_mode(ThpMode::Never)),
    ] {
        let mut world = World::new(policy, config);
        assert_eq!(page_after_block(&mut world, 700_000), (0, 0), "{policy:?}");
        assert_eq!(world.heap.snapshot().given_back, 0, "{policy:?}");
    }
}

#[test]
fn and_where_memory_may_become_scarce() {
    let under = |config: Config, own: Option<u64>| {
        let settings = Settings { policy: Policy::Thp, limit: own, ..Settings::DEFAULT };
        page_after_block(&mut World::with(settings, config), 700_000).1
    };
    assert_eq!(under(Config::default().with_cgroup_max(64 * MIB), None), 1);
    assert_eq!(under(Config::default().with_cgroup_max(3 * MIB), None), 0);
    assert_eq!(under(Config { data_limit: Some(400 * MIB), ..Config::default() }, None), 0);
    assert_eq!(under(Config::default(), Some(64 * MIB)), 1);
    assert_eq!(under(Config::default(), Some(ARENA)), 0);
}

#[test]
fn a_refusal_leaves_the_arena_in_use() {
    let mut world = World::new(Policy::Thp, Config::default());
    world.kernel.fail_next(Call::Decommit, libc::EINVAL, 1);
    assert_eq!(page_after_block(&mut world, 700_000), (0, 0));
    // In OS pages, and mapped as before.
    let mut world = World::new(Policy::Thp, Config::default());
    world.kernel.fail_next(Call::Advise, libc::EINVAL, 1);
    assert_eq!(page_after_block(&mut world, 700_000), (0, 0));
    assert_eq!(world.fallbacks(), [(Fallback::ThpUnsupported, 1)]);
}
