//! Large objects where memory is limited.

use super::*;
use crate::arena::Policy;
use hugeheap_os::simulated::Call;

const MIB: usize = 1 << 20;

fn world(limit: usize) -> &'static Space<World> {
    let space = space_with(1 << 30);
    space.source().kernel.set_cgroup_max(Some(limit as u64));
    space
}

/// Writes all of a new large object, as a program does that was given it.
fn fill(scope: &mut Scope<'_, World>, types: Types3, bytes: usize) -> bool {
    let kernel = scope.heap.old.space().source().kernel.clone();
    let Ok(local) = scope.allocate(types.text, bytes) else { return false };
    let range = AddressRange { start: scope.object(local), len: bytes / PAGE * PAGE };
    kernel.touch(range).expect("there is room for what was handed out");
    true
}

/// A page of the simulated kernel.
const PAGE: usize = 4096;

/// They were mapped, and made resident up to the limit; when the rest was written the kernel killed.
#[test]
fn a_large_object_was_handed_out_that_the_limit_had_no_room_for() {
    let mut test = Test::over(world(100 * MIB), Settings::default());
    test.run(|scope, types| {
        let before = scope.heap.old.space().source().kernel.charge();
        let refused = scope.allocate(types.text, 101 * MIB).expect_err("no room");
        assert_eq!(refused.bytes, 101 * MIB + 16);
        assert_eq!(scope.heap.old.space().source().kernel.charge(), before, "nothing was touched for it");
        for round in 0..4 {
            scope.scope(|scope| {
                let count = (0..100).take_while(|_| fill(scope, types, 10 * MIB)).count();
                assert!((7..=9).contains(&count), "{count} in round {round}");
            });
        }
    });
    test.end();
}

/// What dead objects and others left is kept for a while, and would have been given back; the limit counts it
/// until then.
#[test]
fn what_is_kept_for_reuse_is_no_reason_to_refuse() {
    let mut test = Test::over(world(100 * MIB), Settings::default());
    test.run(|scope, types| {
        scope.scope(|scope| {
            let table = scope.allocate(types.array, 4000).expect("memory");
            for index in 0..4000 {
                scope.scope(|scope| {
                    let local = scope.allocate(types.text, 8000).expect("memory");
                    scope.bytes(local).fill(1);
                    let offset = scope.item(table, index);
                    scope.set(table, offset, Some(local));
                });
            }
            fill(scope, types, 40 * MIB);
        });
        scope.scope(|scope| assert!(fill(scope, types, 80 * MIB)));
        scope.scope(|scope| assert!(fill(scope, types, 60 * MIB)));
    });
    test.end();
}

#[test]
fn without_a_limit_nothing_is_refused_and_little_is_asked() {
    let mut test = Test::over(space_with(1 << 30), Settings::default());
    let asked = |test: &Test| test.space.source().kernel.calls(Call::TotalMemory);
    let before = asked(&test);
    test.run(|scope, types| {
        for _ in 0..50 {
            scope.scope(|scope| assert!(fill(scope, types, 10 * MIB)));
        }
    });
    assert!((1..=3).contains(&(asked(&test) - before)), "{}", asked(&test) - before);
    test.end();
}

/// Pages of a pool are charged to nobody's memory.
#[test]
fn a_limit_on_memory_is_none_on_a_pool() {
    let settings = ArenaSettings { policy: Policy::Hugetlb, region: Some(1 << 30), ..ArenaSettings::DEFAULT };
    let space = space_on(Config::default().with_pool(60), settings);
    space.source().kernel.set_cgroup_max(Some(30 << 20));
    space.source().kernel.set_total_memory(1 << 30);
    let mut test = Test::over(space, Settings { nursery: Some(40 * MIB), ..Settings::default() });
    test.run(|scope, types| {
        assert!(fill(scope, types, 60 * MIB));
        scope.allocate(types.text, 60 * MIB).expect_err("neither the pool nor the limit has room");
    });
    test.end();
}
