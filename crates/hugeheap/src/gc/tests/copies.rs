//! Survivors that are reached through other survivors: of all kinds of types, and where there is no room for them.

use super::*;
use crate::arena::HEAP_PAGE_BYTES;

/// Bytes of an object with a slot that is further away than a map names it.
const FAR: usize = 80 * 8;

/// Makes objects of one kind, each with the one before in a slot; the slot.
type Make<'m> = dyn for<'i> Fn(&mut Scope<'i, World>, u64) -> (Local<'i>, usize) + 'm;

/// An object of a fixed type with its number.
fn numbered<'s>(scope: &mut Scope<'s, World>, ty: TypeId, number: u64) -> Local<'s> {
    let local = scope.allocate(ty, 0).expect("memory");
    scope.write(local, NUMBER, number);
    local
}

/// A chain of objects whose kinds take turns, from the last one on.
fn chain(scope: &mut Scope<'_, World>, kinds: &[&Make<'_>], count: u64, head: Local<'_>) {
    for number in 0..count {
        scope.scope(|scope| {
            let (next, slot) = kinds[number as usize % kinds.len()](scope, number);
            scope.set(next, slot, Some(head));
            scope.assign(head, next);
        });
    }
}

#[test]
fn what_copies_of_all_kinds_lead_to_survives() {
    const COUNT: u64 = 400;
    const CHILD: usize = FAR - 8;
    for marking in [false, true] {
        let checks = Checks { verify: true, poison: true, ..Checks::default() };
        let step = Some(Duration::ZERO);
        let mut test = Test::new(Settings { nursery: Some(1 << 20), step, checks, ..Settings::default() });
        let far = Layout::fixed(FAR).slots(&[16, CHILD]);
        let weak = Layout::fixed(32).slots(&[16]).weak_slots(&[24]);
        let row = Layout::variable(24, 8).slots(&[16]).item_slots(&[0]);
        let [far, weak, row] = [far, weak, row].map(|layout| test.heap.register(layout).expect("right"));
        let Types3 { pair: pairs, text, .. } = test.types();
        let kinds: [&Make<'_>; 6] = [
            &|scope, number| (numbered(scope, pairs, number), LEFT),
            &|scope, number| (numbered(scope, far, number), CHILD),
            &|scope, number| {
                let local = scope.allocate(row, 1).expect("memory");
                let leaf = scope.allocate(text, number as usize).expect("memory");
                scope.bytes(leaf).fill(number as u8);
                let item = scope.item(local, 0);
                scope.set(local, item, Some(leaf));
                (local, 16)
            },
            &|scope, number| (numbered(scope, pairs, number), RIGHT),
            &|scope, number| {
                let local = numbered(scope, weak, number);
                // It is its own, so it stays as long as the object does.
                scope.set(local, 24, Some(local));
                (local, 16)
            },
            // Two in a row that the loop over mapped copies does not look into itself.
            &|scope, number| (numbered(scope, far, number), 16),
        ];
        test.run(|scope, types| {
            if marking {
                // What lives takes more than one step to mark.
                let table = scope.allocate(types.array, 1).expect("memory");
                let item = scope.item(table, 0);
                while scope.heap().phase() != Phase::Marking {
                    scope.scope(|scope| {
                        let more = list(scope, types, 1000);
                        let before = scope.get(table, item).expect("memory");
                        scope.set(more, RIGHT, before);
                        scope.set(table, item, Some(more));
                    });
                }
            }
            let head = pair(scope, types, u64::MAX);
            chain(scope, &kinds, COUNT, head);
            for whole in [false, true] {
                if whole {
                    scope.collect()
                } else {
                    scope.collect_minor()
                }
                scope.scope(|scope| {
                    let at = scope.same_as(head).expect("memory");
                    for number in (0..COUNT).rev() {
                        scope.scope(|scope| {
                            let slot = match number % 6 {
                                0 => LEFT,
                                1 => CHILD,
                                3 => RIGHT,
                                _ => 16,
                            };
                            if number % 6 == 2 {
                                let item = scope.item(at, 0);
                                let leaf = scope.get(at, item).expect("memory").expect("set");
                                assert_eq!(scope.length(leaf), number as usize);
                                assert!(scope.bytes(leaf).iter().all(|&byte| byte == number as u8));
                            } else {
                                assert_eq!(scope.read(at, NUMBER), number);
                            }
                            if number % 6 == 4 {
                                let itself = scope.get(at, 24).expect("memory").expect("it lives");
                                assert!(scope.same(at, itself));
                            }
                            let next = scope.get(at, slot).expect("memory").expect("set");
                            scope.assign(at, next);
                        });
                    }
                    assert_eq!(scope.read(at, NUMBER), u64::MAX);
                });
            }
        });
        test.end();
    }
}

/// The list is moved from its head on, as far as there are blocks; what is left stays, and the last copy refers to it.
#[test]
fn a_list_for_whose_end_there_is_no_room_stays_in_part() {
    const COUNT: u64 = 1000;
    let mut test = Test::checked();
    test.run(|scope, types| {
        let head = list(scope, types, COUNT);
        scope.heap.old.maximum = scope.heap.old.held() + HEAP_PAGE_BYTES;
        scope.collect_minor();
        let Statistics { survivors, not_moved, .. } = *scope.heap().statistics();
        assert!((1..COUNT).contains(&survivors) && not_moved > 0, "{survivors} of {COUNT} moved");
        check_list(scope, head, COUNT);
        scope.heap.old.maximum = usize::MAX;
        scope.collect_minor();
        assert_eq!(scope.heap().statistics().survivors, COUNT, "all have moved, each once");
        check_list(scope, head, COUNT);
    });
    test.end();
}

/// They were lost where those that wait for a key ended the loop.
#[test]
fn copies_that_wait_beside_an_ephemeron_are_looked_into() {
    let mut test = Test::checked();
    let ephemeron = Layout::fixed(32).ephemerons(&[(16, 24)]);
    let ephemeron = test.heap.register(ephemeron).expect("right");
    test.run(|scope, types| {
        // The last root is looked into first: the key is reached after the ephemeron.
        let (holder, root) = (pair(scope, types, 0), pair(scope, types, 0));
        scope.scope(|scope| {
            let (waits, beside) = (scope.allocate(ephemeron, 0).expect("memory"), list(scope, types, 10));
            let (key, value) = (pair(scope, types, 1), pair(scope, types, 2));
            scope.set(holder, LEFT, Some(key));
            scope.set(waits, 16, Some(key));
            scope.set(waits, 24, Some(value));
            scope.set(root, LEFT, Some(waits));
            scope.set(root, RIGHT, Some(beside));
        });
        scope.collect_minor();
        let beside = scope.get(root, RIGHT).expect("memory").expect("set");
        check_list(scope, beside, 10);
        let waits = scope.get(root, LEFT).expect("memory").expect("set");
        let value = scope.get(waits, 24).expect("memory").expect("its key lives");
        assert_eq!(scope.read(value, NUMBER), 2);
    });
    test.end();
}
