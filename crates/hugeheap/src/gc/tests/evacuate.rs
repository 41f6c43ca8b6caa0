//! Evacuation: sparse arenas become free, and everything that refers to what moved follows.

use super::*;

/// Bytes of an object of the tests: header, length and text.
const TEXT: usize = 512;

/// Fills a table with texts whose bytes tell their index.
pub(super) fn fill<'s>(scope: &mut Scope<'s, World>, types: Types3, count: usize) -> Local<'s> {
    let table = scope.allocate_old(types.array, count).expect("memory");
    for index in 0..count {
        scope.scope(|scope| {
            let local = scope.allocate_old(types.text, TEXT - 16).expect("memory");
            scope.bytes(local).fill(index as u8);
            let offset = scope.item(table, index);
            scope.set(table, offset, Some(local));
        });
    }
    table
}

/// Whether an object of the table lives on, at random.
fn lives(index: usize) -> bool {
    index.wrapping_mul(0x9e37_79b9) >> 7 & 1023 < 102
}

fn drop_most(scope: &mut Scope<'_, World>, table: Local<'_>) -> usize {
    let count = scope.length(table);
    for index in (0..count).filter(|&index| !lives(index)) {
        let offset = scope.item(table, index);
        scope.set(table, offset, None);
    }
    (0..count).filter(|&index| lives(index)).count()
}

fn check(scope: &mut Scope<'_, World>, table: Local<'_>) {
    for index in 0..scope.length(table) {
        scope.scope(|scope| {
            let offset = scope.item(table, index);
            let found = scope.get(table, offset).expect("memory");
            assert_eq!(found.is_some(), lives(index));
            if let Some(local) = found {
                assert!(scope.bytes(local).iter().all(|&byte| byte == index as u8));
            }
        });
    }
}

/// Arenas that the process keeps memory in.
fn arenas(test: &Test) -> u64 {
    let arenas = test.space.source().arenas.lock().snapshot();
    arenas.arenas_full + arenas.arenas_partial
}

/// A heap with 12 MiB in the old generation.
pub(super) const COUNT: usize = (12 << 20) / TEXT;

#[test]
fn whole_arenas_become_free_when_most_dies_at_random() {
    let mut test = Test::new(Settings::default());
    let table = test.run(|scope, types| {
        let table = fill(scope, types, COUNT);
        scope.global(table).expect("memory")
    });
    assert!(arenas(&test) >= 7);
    test.run(|scope, _| {
        let table = scope.local(&table).expect("memory");
        let living = drop_most(scope, table);
        scope.collect();
        check(scope, table);
        let (live, held) = (scope.heap().old_bytes(), scope.heap().held_bytes());
        assert_eq!(live, living * TEXT + (COUNT * 8 + 16).next_multiple_of(16 << 10));
        assert!(held * 100 <= live * 105, "{held} held for {live}");
        let statistics = *scope.heap().statistics();
        assert_eq!(statistics.evacuations, 1);
        assert!(statistics.moved > living as u64 / 10 * 8 && statistics.freed_pages > 500, "{statistics:?}");
    });
    // The nursery, the arena of the table and what was packed: 1.4 MiB. Without evacuation it is every arena.
    assert!(arenas(&test) <= 4, "{}", arenas(&test));
    test.run(|scope, _| {
        scope.collect();
        assert_eq!(scope.heap().statistics().evacuations, 1, "nothing is gained by a second");
        scope.release(table);
        scope.collect();
        assert_eq!(scope.heap().held_bytes(), 0);
    });
    test.end();
}

#[test]
fn pinned_objects_do_not_move() {
    let mut test =
        Test::new(Settings { checks: Checks { verify: true, ..Checks::default() }, ..Settings::default() });
    test.run(|scope, types| {
        let table = fill(scope, types, COUNT / 2);
        drop_most(scope, table);
        let first = (0..COUNT).find(|&index| lives(index)).expect("some live");
        let offset = scope.item(table, first);
        let local = scope.get(table, offset).expect("memory").expect("lives");
        let (one, two) = (scope.pin(local).expect("memory"), scope.pin(local).expect("memory"));
        let address = scope.object(local);
        scope.collect();
        assert_eq!(scope.object(local), address, "it is pinned");
        assert!(scope.heap().statistics().moved > 0, "others are not");
        scope.release(one);
        scope.heap.checks.moving = true;
        scope.collect();
        assert_eq!(scope.object(local), address, "it is still pinned");
        scope.release(two);
        scope.collect();
        assert_ne!(scope.object(local), address);
        check(scope, table);
    });
    test.end();
}

#[test]
fn everything_that_refers_to_what_moved_follows() {
    let checks = Checks { verify: true, barriers: true, poison: true, moving: true, ..Checks::default() };
    let mut test = Test::new(Settings { checks, ..Settings::default() });
    let weak =
        test.heap.register(Layout::fixed(40).weak_slots(&[16]).ephemerons(&[(24, 32)])).expect("right");
    let held = std::rc::Rc::new(std::cell::Cell::new(0));
    let theirs = std::rc::Rc::clone(&held);
    // SAFETY: the cell lives as long as the callback, and holds a reference or 0.
    unsafe { test.heap.add_roots(Box::new(move |visitor| visitor.slot(theirs.as_ptr()))) }.expect("memory");
    test.run(|scope, types| {
        let target = pair(scope, types, 7);
        let hash = scope.identity_hash(target);
        let holder = scope.allocate(weak, 0).expect("memory");
        for offset in [16, 24, 32] {
            scope.set(holder, offset, Some(target));
        }
        scope.finalize(target).expect("memory");
        // An object that stays in the nursery refers to it, and one that is remembered because it refers to that one.
        let stays = pair(scope, types, 8);
        let pin = scope.pin(stays).expect("memory");
        scope.set(stays, LEFT, Some(target));
        let refers = pair(scope, types, 9);
        scope.set(refers, LEFT, Some(stays));
        scope.set(refers, RIGHT, Some(target));
        held.set(scope.object(target));
        scope.collect();
        for _ in 0..3 {
            scope.scope(|scope| {
                let before = scope.object(target);
                scope.collect();
                let after = scope.object(target);
                assert_ne!(before, after);
                assert_eq!((held.get(), scope.identity_hash(target)), (after, hash));
                for (local, offset) in
                    [(holder, 16), (holder, 24), (holder, 32), (stays, LEFT), (refers, RIGHT)]
                {
                    let found = scope.get(local, offset).expect("memory").expect("it lives");
                    assert_eq!(scope.object(found), after);
                }
                let young = scope.get(refers, LEFT).expect("memory").expect("it lives");
                assert!(scope.same(young, stays) && scope.heap().is_young(scope.object(young)));
            });
        }
        held.set(0);
        scope.release(pin);
        for local in [holder, stays, refers] {
            scope.assign(local, target);
        }
        let other = pair(scope, types, 1);
        scope.assign(target, other);
        for local in [holder, stays, refers] {
            scope.assign(local, other);
        }
        scope.collect();
        scope.collect();
        assert_eq!(scope.heap().finalizable(), 1, "the list of what is to be finalized followed, too");
        let found = scope.next_finalizable().expect("memory").expect("one");
        assert_eq!(scope.read(found, NUMBER), 7);
    });
    test.end();
}

#[test]
fn an_address_that_is_kept_over_a_collection_is_found_when_everything_moves() {
    let checks = Checks { poison: true, moving: true, ..Checks::default() };
    let mut test = Test::new(Settings { checks, ..Settings::default() });
    test.run(|scope, types| {
        let local = pair(scope, types, 1);
        scope.collect();
        let planted = scope.object(local);
        scope.collect();
        let mut frame = [planted];
        assert!(matches!(scope.heap.verify(&mut frame), Err(Mistake::Reference { object: None, .. })));
    });
    test.end();
}

#[test]
fn without_memory_what_cannot_move_stays() {
    let mut test =
        Test::new(Settings { checks: Checks { verify: true, ..Checks::default() }, ..Settings::default() });
    test.run(|scope, types| {
        let table = fill(scope, types, COUNT / 2);
        drop_most(scope, table);
        // Room for a few pages more than what is held now, and no more.
        scope.heap.old.maximum = scope.heap().held_bytes() + (64 << 10);
        scope.heap.checks.moving = true;
        scope.collect();
        check(scope, table);
        scope.heap.old.maximum = usize::MAX;
        let kernel = &scope.heap().old.space().source().kernel;
        kernel.fail_every(hugeheap_os::simulated::Call::Map, 1, libc::ENOMEM);
        scope.collect();
        check(scope, table);
        scope.heap().old.space().source().kernel.fail_no_more();
        scope.collect();
        check(scope, table);
    });
    test.end();
}
