//! What stays in the nursery for want of room: alive if something reachable refers to it, and free with what it
//! leads to if not.

use super::*;
use std::cell::RefCell;
use std::rc::Rc;

/// Items of objects of a size of which the old generation has no page.
const ITEMS: usize = 40;

fn full_heap() -> Test {
    let checks = Checks { verify: true, barriers: true, poison: true, ..Checks::default() };
    Test::new(Settings { maximum: Some(1 << 20), checks, ..Settings::default() })
}

/// Takes all that the old generation may have, as long as the scope lasts.
fn fill(scope: &mut Scope<'_, World>, types: Types3) {
    while scope.allocate_old(types.text, 20_000).is_ok() {}
    while scope.allocate_old(types.text, 9_000).is_ok() {}
}

/// A list until nothing fits any more, of which the first object refers to the last.
fn leave_dead_cycle(scope: &mut Scope<'_, World>, types: Types3) {
    scope.scope(|scope| {
        let first = pair(scope, types, 0);
        let head = scope.same_as(first).expect("memory");
        let grown = |scope: &mut Scope<'_, World>| {
            scope.scope(|scope| -> Result<(), Exhausted> {
                let next = scope.allocate(types.pair, 0)?;
                scope.set(next, LEFT, Some(head));
                scope.set(first, RIGHT, Some(next));
                scope.assign(head, next);
                Ok(())
            })
        };
        while grown(scope).is_ok() {}
        assert!(scope.heap().nursery.staying() > 0, "the last ones had no room");
    });
}

#[test]
fn a_heap_full_of_a_dead_cycle_through_what_stays_is_emptied() {
    let mut test = full_heap();
    test.run(|scope, types| {
        leave_dead_cycle(scope, types);
        scope.collect();
        assert_eq!(scope.heap().nursery.staying(), 0);
        assert_eq!((scope.heap().old_bytes(), scope.heap().held_bytes()), (0, 0));
    });
    test.end();
}

#[test]
fn an_allocation_in_a_heap_full_of_a_dead_cycle_through_what_stays_is_not_refused() {
    for old in [false, true] {
        let mut test = full_heap();
        test.run(|scope, types| {
            leave_dead_cycle(scope, types);
            for _ in 0..3000 {
                scope.scope(|scope| {
                    let allocated = if old {
                        scope.allocate_old(types.text, 300_000)
                    } else {
                        scope.allocate(types.text, 600)
                    };
                    allocated.map(|_| ()).expect("nothing is alive");
                });
                if old {
                    break;
                }
            }
        });
        test.end();
    }
}

/// Without memory to remember what was written, what old objects refer to stays, too.
#[test]
fn what_stays_because_nobody_knew_what_refers_to_it_is_freed_if_it_is_dead() {
    let mut test = Test::checked();
    test.heap.remembered.most = 0;
    test.run(|scope, types| {
        scope.scope(|scope| {
            let old = pair(scope, types, 1);
            scope.collect();
            let young = pair(scope, types, 2);
            scope.set(old, LEFT, Some(young));
            scope.set(young, LEFT, Some(old));
        });
        scope.collect();
        assert_eq!((scope.heap().old_bytes(), scope.heap().nursery.staying()), (0, 0));
    });
    test.end();
}

fn set(scope: &mut Scope<'_, World>, table: Local<'_>, index: usize, value: Local<'_>) {
    let offset = scope.item(table, index);
    scope.set(table, offset, Some(value));
}

/// Sets an ephemeron of a table.
fn set_pair(scope: &mut Scope<'_, World>, table: Local<'_>, index: usize, key: Local<'_>, value: Local<'_>) {
    let offset = scope.item(table, index);
    scope.set(table, offset, Some(key));
    scope.set(table, offset + 8, Some(value));
}

/// A young array that has no room when it is to move, with an old number.
fn stays<'s>(scope: &mut Scope<'s, World>, types: Types3, numbers: Local<'_>, number: usize) -> Local<'s> {
    let local = scope.allocate(types.array, ITEMS).expect("memory");
    scope.scope(|scope| {
        let offset = scope.item(numbers, number);
        let old = scope.get(numbers, offset).expect("memory").expect("set");
        set(scope, local, 0, old);
        scope.set(numbers, offset, None);
    });
    local
}

/// Old pairs with their numbers, in an old array.
fn numbers<'s>(scope: &mut Scope<'s, World>, types: Types3) -> Local<'s> {
    let numbers = scope.allocate_old(types.array, 20).expect("memory");
    for number in 0..20 {
        scope.scope(|scope| {
            let old = scope.allocate_old(types.pair, 0).expect("memory");
            scope.write(old, NUMBER, number as u64);
            set(scope, numbers, number, old);
        });
    }
    numbers
}

/// The number of the object that a slot refers to, as [`stays`] made it.
fn number_at(scope: &mut Scope<'_, World>, object: Local<'_>, offset: usize) -> Option<u64> {
    scope.scope(|scope| {
        let found = scope.get(object, offset).expect("memory")?;
        let offset = scope.item(found, 0);
        let old = scope.get(found, offset).expect("memory").expect("set");
        Some(scope.read(old, NUMBER))
    })
}

fn number_in(scope: &mut Scope<'_, World>, table: Local<'_>, index: usize) -> Option<u64> {
    let offset = scope.item(table, index);
    number_at(scope, table, offset)
}

/// A root refers to a young object, that one to an old one, that to a young one, and only that to an old one;
/// and an array with cards does. Beside them a young and an old object refer to each other, and so do a young
/// one and an array with cards. With a stack of one entry, too.
#[test]
fn what_stays_is_alive_if_something_reachable_refers_to_it() {
    for most in [usize::MAX, 1] {
        let mut test = full_heap();
        test.heap.marker.most = test.heap.marker.most.min(most);
        test.run(|scope, types| {
            scope.scope(|scope| {
                let numbers = numbers(scope, types);
                let between = scope.allocate_old(types.array, 4).expect("memory");
                let cards = scope.allocate_old(types.array, 2000).expect("memory");
                let dead = scope.allocate_old(types.array, 4).expect("memory");
                let dead_cards = scope.allocate_old(types.array, 2000).expect("memory");
                fill(scope, types);
                let before = scope.heap().old_bytes();
                let young: Vec<_> = (0..6).map(|number| stays(scope, types, numbers, number)).collect();
                let hash = scope.identity_hash(young[0]);
                set(scope, young[0], 1, between);
                set(scope, between, 2, young[1]);
                set(scope, cards, 1500, young[2]);
                set(scope, young[2], 1, young[3]);
                for (old, young, index) in [(dead, young[4], 3), (dead_cards, young[5], 1999)] {
                    set(scope, old, index, young);
                    set(scope, young, 1, old);
                    scope.assign(old, numbers);
                }
                young[1..].iter().for_each(|&local| scope.assign(local, numbers));
                scope.assign(between, numbers);
                scope.collect();
                assert!(scope.heap().statistics().not_moved > 0, "they had to stay");
                // What the array with cards left is room for the others.
                assert!(scope.heap().old_bytes() < before - 12_000);
                assert_eq!(scope.heap().nursery.staying(), 0);
                assert_eq!(scope.identity_hash(young[0]), hash);
                let (item, at) = (scope.item(young[0], 1), scope.item(between, 2));
                let found = scope.get(young[0], item).expect("memory").expect("set");
                assert_eq!(number_at(scope, found, at), Some(1));
                assert_eq!(number_in(scope, cards, 1500), Some(2));
                let item = scope.item(cards, 1500);
                let found = scope.get(cards, item).expect("memory").expect("set");
                assert_eq!(number_in(scope, found, 1), Some(3));
            });
            scope.collect();
            assert_eq!((scope.heap().old_bytes(), scope.heap().held_bytes()), (0, 0));
        });
        test.end();
    }
}

/// The same where nothing that dies leaves room: they go on staying.
#[test]
fn weak_slots_and_ephemerons_of_what_stays_forget_what_is_dead_only() {
    let mut test = full_heap();
    let many = test.heap.register(Layout::variable(16, 8).weak_item_slots(&[0])).expect("a layout");
    let table = test.heap.register(Layout::variable(16, 16).item_ephemerons(&[(0, 8)])).expect("a layout");
    test.run(|scope, types| {
        scope.scope(|scope| {
            let numbers = numbers(scope, types);
            let old_weak = scope.allocate_old(many, 4).expect("memory");
            let old_table = scope.allocate_old(table, 4).expect("memory");
            let dead = scope.allocate_old(types.array, 4).expect("memory");
            fill(scope, types);
            let young: Vec<_> = (0..10).map(|number| stays(scope, types, numbers, number)).collect();
            let young_weak = scope.allocate(many, ITEMS).expect("memory");
            let young_table = scope.allocate(table, ITEMS / 2).expect("memory");
            // 0 is alive, and 1 by it; 2 is dead, with an old one. Of the others each ephemeron has one as its
            // value, of which 6 is dead.
            set(scope, young[0], 1, young[1]);
            set(scope, dead, 0, young[2]);
            set(scope, young[2], 1, dead);
            for weak in [old_weak, young_weak] {
                set(scope, weak, 0, young[1]);
                set(scope, weak, 1, young[2]);
                set(scope, weak, 2, dead);
                set(scope, weak, 3, young[3]);
            }
            set_pair(scope, old_table, 0, young[1], young[3]);
            set_pair(scope, old_table, 1, young[2], young[6]);
            set_pair(scope, old_table, 2, young[4], young[5]);
            set_pair(scope, young_table, 0, young[3], young[4]);
            set_pair(scope, young_table, 1, dead, young[6]);
            set_pair(scope, young_table, 2, young[5], young[7]);
            set_pair(scope, young_table, 3, young[8], young[8]);
            young[1..].iter().for_each(|&local| scope.assign(local, numbers));
            scope.assign(dead, numbers);
            for _ in 0..3 {
                scope.collect();
                // 0, 1, 3, 4, 5, 7 and the two of weak slots.
                assert_eq!(scope.heap().nursery.staying(), 8);
                for weak in [old_weak, young_weak] {
                    let found: Vec<_> = (0..4).map(|index| number_in(scope, weak, index)).collect();
                    assert_eq!(found, [Some(1), None, None, Some(3)]);
                }
                let mut entries = |local| -> Vec<_> {
                    let entry = |index| {
                        let at = scope.item(local, index);
                        (number_at(scope, local, at), number_at(scope, local, at + 8))
                    };
                    (0..4).map(entry).collect()
                };
                assert_eq!(
                    entries(old_table),
                    [(Some(1), Some(3)), (None, None), (Some(4), Some(5)), (None, None)]
                );
                assert_eq!(
                    entries(young_table),
                    [(Some(3), Some(4)), (None, None), (Some(5), Some(7)), (None, None)]
                );
            }
        });
        scope.collect();
        assert_eq!((scope.heap().old_bytes(), scope.heap().held_bytes()), (0, 0));
    });
    test.end();
}

/// Of young ones that an old one keeps, and that keep it.
#[test]
fn what_stays_dead_is_handed_out_in_order_before_it_is_freed() {
    let mut test = full_heap();
    let many = test.heap.register(Layout::variable(16, 8).weak_item_slots(&[0])).expect("a layout");
    test.run(|scope, types| {
        scope.scope(|scope| {
            let numbers = numbers(scope, types);
            let weak = scope.allocate_old(many, 4).expect("memory");
            let dead = scope.allocate_old(types.array, 4).expect("memory");
            fill(scope, types);
            let young: Vec<_> = (0..4).map(|number| stays(scope, types, numbers, number)).collect();
            // 0 leads to 1, and that one to 2, which is not to be finalized. The old one refers to 3, and 3 to
            // it and to 0.
            set(scope, young[0], 1, young[1]);
            set(scope, young[1], 1, young[2]);
            set(scope, dead, 0, young[3]);
            set(scope, young[3], 1, dead);
            set(scope, young[3], 2, young[0]);
            (0..4).for_each(|index| set(scope, weak, index, young[index]));
            scope.finalize(young[1]).expect("memory");
            scope.finalize(young[0]).expect("memory");
            young.iter().for_each(|&local| scope.assign(local, numbers));
            scope.assign(dead, numbers);
            for left in [3, 2, 0] {
                scope.collect();
                assert_eq!(scope.heap().nursery.staying(), left);
                assert_eq!(scope.heap().finalizable(), usize::from(left > 0));
                assert!((0..4).all(|index| number_in(scope, weak, index).is_none()), "told before");
                scope.scope(|scope| {
                    if let Some(local) = scope.next_finalizable().expect("memory") {
                        let offset = scope.item(local, 0);
                        let old = scope.get(local, offset).expect("memory").expect("set");
                        assert_eq!(scope.read(old, NUMBER), 3 - left as u64);
                        assert_eq!(number_in(scope, local, 1), Some(4 - left as u64));
                    }
                });
            }
        });
        scope.collect();
        assert_eq!((scope.heap().old_bytes(), scope.heap().held_bytes()), (0, 0));
    });
    test.end();
}

#[test]
fn what_is_pinned_or_in_scanned_words_keeps_what_it_leads_to_in_a_full_heap() {
    let mut test = full_heap();
    let words = Rc::new(RefCell::new(vec![0usize; 4]));
    let theirs = Rc::clone(&words);
    let range = move || {
        let words = theirs.borrow();
        (words.as_ptr() as usize, words.as_ptr() as usize + words.len() * 8)
    };
    // SAFETY: the words live as long as the callback, and nobody borrows them in a collection.
    let scan = unsafe { test.heap.add_scan(Box::new(range)) }.expect("memory");
    test.run(|scope, types| {
        scope.scope(|scope| {
            let numbers = numbers(scope, types);
            let dead = scope.allocate_old(types.array, 4).expect("memory");
            // In the same page, which so is nobody else's afterwards.
            scope.allocate_old(types.array, 4).expect("memory");
            fill(scope, types);
            let young: Vec<_> = (0..6).map(|number| stays(scope, types, numbers, number)).collect();
            // The first two keep one each; the last two are dead with an old one.
            set(scope, young[0], 1, young[2]);
            set(scope, young[1], 1, young[3]);
            set(scope, young[4], 1, young[5]);
            set(scope, young[5], 1, dead);
            set(scope, dead, 0, young[4]);
            let pin = scope.pin(young[0]).expect("memory");
            let (pinned, scanned) = (scope.object(young[0]), scope.object(young[1]));
            words.borrow_mut()[2] = scanned + 100;
            young.iter().for_each(|&local| scope.assign(local, numbers));
            scope.assign(dead, numbers);
            for _ in 0..2 {
                scope.collect();
                assert_eq!(scope.heap().nursery.staying(), 4);
                let at = scope.item(numbers, 19);
                for (object, number) in [(pinned, 0), (scanned, 1)] {
                    scope.scope(|scope| {
                        // SAFETY: it is alive and did not move; the slot is one of an object that lives.
                        unsafe {
                            let table = scope.object(numbers);
                            scope.heap.write(table, (table + at) as *mut usize, object);
                        }
                        assert_eq!(number_in(scope, numbers, 19), Some(number));
                        let found = scope.get(numbers, at).expect("memory").expect("set");
                        assert_eq!(number_in(scope, found, 1), Some(number + 2));
                        scope.set(numbers, at, None);
                    });
                }
            }
            scope.release(pin);
            words.borrow_mut()[2] = 0;
            scope.collect();
            assert_eq!(scope.heap().nursery.staying(), 0);
        });
        scope.collect();
        assert_eq!((scope.heap().old_bytes(), scope.heap().held_bytes()), (0, 0));
    });
    test.heap.remove_scan(scan);
    test.end();
}

thread_local! {
    /// How often an object of a type with a trace function was looked into.
    static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Names no slot that the layout does not.
unsafe extern "C" fn counted(_: *mut u8, _: &mut Visitor<'_>) {
    LOOKS.set(LOOKS.get() + 1);
}

/// A joint marking is one pause. It looks once into what lives, as any whole collection does, and into nothing
/// that is dead: with 10,000 that live and 57,581 that are dead, a pause looks into 22,051, and with 1000 into 3050.
/// What lives is looked into once more where it is sparse and packed.
#[test]
fn emptying_a_full_heap_looks_into_what_lives_and_not_into_what_is_dead() {
    for live in [0, 1000, 10_000] {
        let mut test = Test::new(Settings { maximum: Some(2 << 20), ..Settings::default() });
        let layout = Layout::fixed(32).slots(&[LEFT, RIGHT]);
        // SAFETY: it names nothing.
        let ty = test.heap.register(unsafe { layout.traced_by(counted) }).expect("a layout");
        test.run(|scope, types| {
            let list = |scope: &mut Scope<'_, World>, head: Local<'_>, first: Local<'_>, most: u64| {
                for count in 0..most {
                    let grown = scope.scope(|scope| -> Result<(), Exhausted> {
                        let next = scope.allocate(ty, 0)?;
                        scope.set(next, LEFT, Some(head));
                        scope.set(first, RIGHT, Some(next));
                        scope.assign(head, next);
                        Ok(())
                    });
                    if grown.is_err() {
                        return count;
                    }
                }
                most
            };
            let lives = scope.allocate(types.array, 2).expect("memory");
            scope.scope(|scope| {
                let first = scope.allocate(ty, 0).expect("memory");
                let head = scope.same_as(first).expect("memory");
                assert_eq!(list(scope, head, first, live), live);
                set(scope, lives, 0, head);
            });
            let dead = scope.scope(|scope| {
                let first = scope.allocate(ty, 0).expect("memory");
                let head = scope.same_as(first).expect("memory");
                list(scope, head, first, u64::MAX)
            });
            let staying = scope.heap().nursery.staying();
            assert_eq!(scope.heap().marker.phase, crate::gc::mark::Phase::Idle, "no marking is ended before");
            let packed = scope.heap().statistics().evacuations;
            LOOKS.set(0);
            scope.collect();
            let looks = LOOKS.replace(0);
            assert_eq!(scope.heap().nursery.staying(), 0);
            // Those that stay once more, by the minor collection before, which cannot know better.
            let packed = scope.heap().statistics().evacuations - packed;
            let most = (1 + packed) * (live + 1) + staying as u64 + 8;
            assert!(looks <= most, "{looks} of {live} that live, {dead} dead, {staying} stayed");
            assert!(dead > 10 * staying as u64, "most were old");
        });
        test.end();
    }
}
