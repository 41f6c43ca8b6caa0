//! What an embedder can set, at its ends: a heap that works, or an error that says why there is none.

use super::*;

const MIB: usize = 1 << 20;

fn made(settings: Settings) -> Result<Heap<World>, BadHeap> {
    Heap::new(space(), settings)
}

/// The size was rounded up to whole arenas, and wrapped: the heap had a nursery of an arena that it took for
/// all addresses, and wrote behind it.
#[test]
fn a_nursery_of_nearly_all_addresses_was_one_of_an_arena() {
    for bytes in
        [usize::MAX, usize::MAX - MIB, usize::MAX - 2 * MIB + 1, usize::MAX - 2 * MIB, usize::MAX / 2]
    {
        let settings = Settings { nursery: Some(bytes), ..Settings::default() };
        let error = made(settings).map(|_| ()).expect_err("no such memory");
        assert!(matches!(error, BadHeap::NoMemory { .. }), "{bytes:#x}: {error}");
        assert!(error.to_string().contains("no memory for a nursery"), "{error}");
    }
}

/// A step is doubled, and counted in nanoseconds: some wrapped to a step of 0, others were a panic.
#[test]
fn a_step_of_centuries_is_one_without_end() {
    for step in [Duration::from_nanos(1 << 63), Duration::from_nanos(u64::MAX), Duration::MAX, Duration::ZERO]
    {
        let settings = Settings { step: Some(step), nursery: Some(256 << 10), ..Settings::default() };
        let mut test = Test::over(space(), settings);
        test.run(|scope, types| {
            let head = list(scope, types, 20_000);
            check_list(scope, head, 20_000);
        });
        if !step.is_zero() {
            assert_eq!(test.heap.nursery.part, 256 << 10, "{step:?}: all may survive");
        }
        test.end();
    }
}

#[test]
fn the_least_and_the_greatest_of_each_other_setting_make_a_heap_that_works() {
    let none = Settings::default();
    for settings in [
        Settings { maximum: Some(usize::MAX), ..none },
        Settings { maximum: Some(usize::MAX - 1), growth: Some(u32::MAX), ..none },
        Settings { growth: Some(u32::MAX), evacuate: Some(u32::MAX), ..none },
        Settings { growth: Some(110), evacuate: Some(0), ..none },
    ] {
        let mut test = Test::over(space(), settings);
        test.run(|scope, types| {
            let head = list(scope, types, 20_000);
            scope.collect();
            check_list(scope, head, 20_000);
        });
        test.end();
    }
    for maximum in [0, 1, crate::arena::HEAP_PAGE_BYTES - 1] {
        let mut test = Test::over(space(), Settings { maximum: Some(maximum), ..none });
        test.run(|scope, types| {
            let local = pair(scope, types, 7);
            scope.collect();
            assert_eq!(scope.read(local, NUMBER), 7);
            scope.allocate_old(types.text, 1).expect_err("the old generation may have nothing");
            scope.allocate(types.text, 100_000).expect_err("nor anything large");
        });
        test.end();
    }
}

/// Lengths whose bytes, heap pages or arenas wrap, and the last ones below.
#[test]
fn an_object_of_nearly_all_addresses_is_refused() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        for bits in 40..=64 {
            let last = usize::MAX >> (64 - bits);
            for length in [last, last - 15, last - 4096, last - 2 * MIB, last / 8] {
                for ty in [types.text, types.array] {
                    let refused =
                        scope.allocate(ty, length).is_err() && scope.allocate_old(ty, length).is_err();
                    assert!(refused, "{length:#x}");
                }
            }
        }
    });
    test.end();
}

/// It was made resident as a whole, up to the limit, and the kernel killed when the rest of it was written.
#[test]
fn a_nursery_larger_than_the_memory_limit_was_taken_up_to_the_limit() {
    let space = space_with(1 << 30);
    let kernel = &space.source().kernel;
    kernel.set_cgroup_max(Some(100 << 20));
    let refused = |bytes: usize| {
        let error =
            Heap::new(space, Settings { nursery: Some(bytes), ..Settings::default() }).expect_err("no room");
        assert!(error.to_string().contains("are left below the limit on memory"), "{error}");
        error
    };
    assert_eq!(refused(101 << 20), BadHeap::NoMemory { bytes: 101 << 20, left: 100 << 20 });
    assert_eq!(kernel.charge(), 0, "nothing was touched for it");
    kernel.set_cgroup_max(None);
    refused(17 << 30);
    assert_eq!(kernel.charge(), 0, "nothing was touched for it");
    kernel.set_cgroup_max(Some(100 << 20));
    // What the arenas keep is given back for it.
    let settings = Settings { nursery: Some(60 << 20), ..Settings::default() };
    for _ in 0..3 {
        Test::over(space, settings).end();
    }
    let other = Test::over(space, settings);
    assert!(matches!(refused(60 << 20), BadHeap::NoMemory { left, .. } if left < 60 << 20));
    other.end();
}
