//! Exhaustion: an error, after everything dead was freed, and a heap that goes on.

use super::*;
use crate::arena::HEAP_PAGE_BYTES;
use hugeheap_os::simulated::Call;

/// Makes lists until there is no more memory. Returns how many.
fn fill(scope: &mut Scope<'_, World>, types: Types3, table: Local<'_>) -> usize {
    for index in 0.. {
        let result = scope.scope(|scope| -> Result<(), Exhausted> {
            let local = scope.allocate(types.text, 624)?;
            scope.bytes(local).fill(index as u8);
            let offset = scope.item(table, index);
            scope.set(table, offset, Some(local));
            Ok(())
        });
        if let Err(error) = result {
            assert_eq!(error.bytes, 640);
            return index;
        }
    }
    unreachable!("the maximum ends it")
}

fn check_filled(scope: &mut Scope<'_, World>, table: Local<'_>, count: usize) {
    for index in 0..count {
        scope.scope(|scope| {
            let offset = scope.item(table, index);
            let local = scope.get(table, offset).expect("memory").expect("set");
            assert!(scope.bytes(local).iter().all(|&byte| byte == index as u8));
        });
    }
}

#[test]
fn the_maximum_is_kept_and_the_heap_goes_on() {
    let checks = Checks { verify: true, barriers: true, poison: true, ..Checks::default() };
    let mut test = Test::new(Settings { maximum: Some(2 << 20), checks, ..Settings::default() });
    test.run(|scope, types| {
        let table = scope.allocate(types.array, 10_000).expect("memory");
        for _ in 0..3 {
            let count = fill(scope, types, table);
            assert!(scope.heap().held_bytes() <= 2 << 20);
            assert!(count * 640 > (2 << 20) - (200 << 10), "{count} objects");
            check_filled(scope, table, count);
            assert!(scope.heap().statistics().not_moved > 0);
            // Half of them die: there is room again.
            for index in (0..count).step_by(2) {
                let offset = scope.item(table, index);
                scope.set(table, offset, None);
            }
            let local = scope.allocate(types.text, 624).expect("there is room again");
            assert!(scope.bytes(local).len() == 624);
        }
        assert_eq!(scope.allocate(types.text, 3 << 20).expect_err("above the maximum").bytes, (3 << 20) + 16);
        assert_eq!(scope.allocate(types.text, usize::MAX).expect_err("no such size").bytes, usize::MAX);
    });
    test.end();
}

/// Where the maximum was reached each survivor took the lock of the arenas, twice, to ask for no page: 1,800 of
/// the 4,000 instructions that it cost.
#[test]
fn each_survivor_of_a_full_heap_asked_the_arenas_for_no_page_at_all() {
    let mut test = Test::new(Settings { maximum: Some(1 << 20), ..Settings::default() });
    let source = test.space.source();
    let locked = || *source.locked.lock();
    test.run(|scope, types| {
        let table = scope.allocate_old(types.array, 5000).expect("memory");
        while scope.allocate_old(types.text, 9000).map(|_| ()).is_ok() {}
        while scope.allocate_old(types.pair, 0).map(|_| ()).is_ok() {}
        scope.collect_minor();
        let before = scope.heap().statistics().not_moved;
        for index in 0..1000 {
            scope.scope(|scope| {
                let local = pair(scope, types, index as u64);
                let offset = scope.item(table, index);
                scope.set(table, offset, Some(local));
            });
        }
        let asked = locked();
        scope.collect_minor();
        let stayed = scope.heap().statistics().not_moved - before;
        assert!(stayed >= 1000, "{stayed} stayed");
        let asked = locked() - asked;
        // Large objects and sweeping ask for themselves.
        assert!(asked < stayed / 4, "{asked} times for {stayed} that stayed");
    });
    test.end();
}

#[test]
fn a_system_without_memory_is_an_error_too() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let table = scope.allocate(types.array, 50_000).expect("memory");
        let kernel = &scope.heap().old.space().source().kernel;
        kernel.fail_every(Call::Map, 1, libc::ENOMEM);
        kernel.fail_every(Call::Reserve, 1, libc::ENOMEM);
        let pauses = scope.heap().statistics().pauses.count;
        let count = fill(scope, types, table);
        check_filled(scope, table, count);
        // Each object that finds no room asked anew.
        let kernel = &scope.heap().old.space().source().kernel;
        let refused = kernel.failures(Call::Map) + kernel.failures(Call::Reserve);
        let pauses = scope.heap().statistics().pauses.count - pauses;
        assert!(refused <= 8 * pauses, "{refused} in {pauses} collections");
        scope.heap().old.space().source().kernel.fail_no_more();
        let local = scope.allocate(types.text, 624).expect("there is memory again");
        assert_eq!(scope.bytes(local).len(), 624);
        scope.collect();
        check_filled(scope, table, count);
    });
    test.end();
}

#[test]
fn wrong_settings_and_no_memory_are_told() {
    let space = space();
    let wrong = |settings| Heap::new(space, settings).err().map(|error| error.to_string());
    assert!(
        wrong(Settings { nursery: Some(1000), ..Settings::default() })
            .is_some_and(|text| text.contains("65536"))
    );
    assert!(
        wrong(Settings { growth: Some(100), ..Settings::default() }).is_some_and(|text| text.contains("110"))
    );
    space.source().kernel.fail_every(Call::Reserve, 1, libc::ENOMEM);
    assert!(wrong(Settings::default()).is_some_and(|text| text.contains("no memory")));
}

#[test]
fn a_whole_collection_of_a_full_heap_leaves_nothing_dead() {
    let mut test = Test::new(Settings { maximum: Some(1 << 20), ..Settings::default() });
    test.run(|scope, types| {
        scope.scope(|scope| {
            let holder = scope.allocate(types.array, 4).expect("memory");
            let old = pair(scope, types, 1);
            scope.collect();
            while scope.allocate_old(types.text, 20_000).is_ok() {}
            // A size of which the old generation has no page yet, and no room for one.
            let young = scope.allocate(types.array, 40).expect("memory");
            let (first, second) = (scope.item(holder, 0), scope.item(young, 0));
            scope.set(holder, first, Some(young));
            scope.set(young, second, Some(old));
        });
        scope.collect();
        assert!(scope.heap().statistics().not_moved > 0, "it had to stay");
        assert_eq!((scope.heap().old_bytes(), scope.heap().held_bytes()), (0, 0));
    });
    test.end();
}

/// Bytes of an object beside which a heap of a mebibyte has few.
const LARGE: usize = (1 << 20) - 3 * HEAP_PAGE_BYTES;

/// Leaves a dead list in a full heap, whose objects are old and young by turns: each old one keeps the young
/// one behind it, which has no room, and that one the next old one. The last keeps nearly all memory.
fn leave_dead_list(scope: &mut Scope<'_, World>, types: Types3) {
    scope.scope(|scope| {
        let large = scope.allocate_old(types.text, LARGE).expect("memory");
        let mut old = Vec::new();
        while let Ok(next) = scope.allocate_old(types.pair, 0) {
            old.push(next);
        }
        for (number, &first) in old.iter().enumerate() {
            scope.scope(|scope| {
                let young = pair(scope, types, 0);
                scope.set(first, LEFT, Some(young));
                scope.set(young, LEFT, Some(old.get(number + 1).copied().unwrap_or(large)));
            });
        }
        scope.collect_minor();
        assert!(scope.heap().statistics().not_moved > 0, "they had to stay");
    });
}

#[test]
fn an_allocation_in_a_heap_full_of_a_dead_list_is_not_refused() {
    let mut test = Test::new(Settings { maximum: Some(1 << 20), ..Settings::default() });
    test.run(|scope, types| {
        leave_dead_list(scope, types);
        scope.allocate_old(types.text, LARGE).expect("nothing is alive");
    });
    test.end();
}

#[test]
fn a_whole_collection_of_a_heap_full_of_a_dead_list_leaves_nothing() {
    let mut test = Test::new(Settings { maximum: Some(1 << 20), ..Settings::default() });
    test.run(|scope, types| {
        leave_dead_list(scope, types);
        scope.collect();
        assert_eq!((scope.heap().old_bytes(), scope.heap().held_bytes()), (0, 0));
    });
    test.end();
}
