//! Weak slots, ephemerons and identity hashes: in the nursery, in the old generation, and while marking is under way.

use super::*;

const KEY: usize = 16;
const VALUE: usize = 24;

/// Types with weak slots.
#[derive(Clone, Copy)]
struct Weak {
    /// A number, and a weak slot.
    one: TypeId,
    /// Any number of weak slots.
    many: TypeId,
    /// A number, and an ephemeron.
    pair: TypeId,
    /// A table of ephemerons.
    table: TypeId,
}

fn weak_types(test: &mut Test) -> Weak {
    let mut register = |layout| test.heap.register(layout).expect("a right layout");
    Weak {
        one: register(Layout::fixed(24).weak_slots(&[KEY])),
        many: register(Layout::variable(16, 8).weak_item_slots(&[0])),
        pair: register(Layout::fixed(32).ephemerons(&[(KEY, VALUE)])),
        table: register(Layout::variable(16, 16).item_ephemerons(&[(0, 8)])),
    }
}

/// How a collection is made: minor ones find what died young, whole ones everything.
fn collect(scope: &mut Scope<'_, World>, whole: bool) {
    if whole { scope.collect() } else { scope.collect_minor() }
}

fn number(scope: &mut Scope<'_, World>, local: Local<'_>, offset: usize) -> Option<u64> {
    scope.scope(|scope| {
        let found = scope.get(local, offset).expect("memory")?;
        Some(scope.read(found, NUMBER))
    })
}

#[test]
fn a_weak_slot_follows_what_lives_and_forgets_what_died() {
    for (old, whole) in [(false, false), (false, true), (true, true)] {
        let mut test = Test::checked();
        let weak = weak_types(&mut test);
        test.run(|scope, types| {
            let keep = pair(scope, types, 7);
            let (living, dying) =
                (scope.allocate(weak.one, 0).expect("memory"), scope.allocate(weak.one, 0).expect("memory"));
            scope.set(living, KEY, Some(keep));
            scope.scope(|scope| {
                let dead = pair(scope, types, 8);
                scope.set(dying, KEY, Some(dead));
                if old {
                    scope.collect();
                    assert_eq!(number(scope, dying, KEY), Some(8));
                }
            });
            collect(scope, whole);
            assert_eq!((number(scope, living, KEY), number(scope, dying, KEY)), (Some(7), None));
            assert_eq!(scope.heap().statistics().cleared, 1);
        });
        test.end();
    }
}

#[test]
fn a_large_table_of_weak_slots_has_cards_and_is_cleared_in_parts() {
    let mut test = Test::checked();
    let weak = weak_types(&mut test);
    test.run(|scope, types| {
        const COUNT: usize = 20_000;
        let table = scope.allocate(weak.many, COUNT).expect("memory");
        let strong = scope.allocate(types.array, COUNT).expect("memory");
        for index in 0..COUNT {
            scope.scope(|scope| {
                let local = pair(scope, types, index as u64);
                let offset = scope.item(table, index);
                scope.set(table, offset, Some(local));
                if index % 3 == 0 {
                    scope.set(strong, offset, Some(local));
                }
                // Some die young, some old.
                if index % 4000 == 0 {
                    scope.collect();
                }
            });
        }
        scope.collect();
        for index in 0..COUNT {
            let offset = scope.item(table, index);
            assert_eq!(number(scope, table, offset), (index % 3 == 0).then_some(index as u64));
        }
    });
    test.end();
}

#[test]
fn the_value_of_an_ephemeron_lives_as_long_as_its_key() {
    for (old, whole) in [(false, false), (false, true), (true, true)] {
        let mut test = Test::checked();
        let weak = weak_types(&mut test);
        test.run(|scope, types| {
            let key = pair(scope, types, 1);
            let [living, dying] = [0; 2].map(|_| scope.allocate(weak.pair, 0).expect("memory"));
            scope.scope(|scope| {
                let (value, other, lost) =
                    (pair(scope, types, 2), pair(scope, types, 3), pair(scope, types, 4));
                // The value refers to its own key, which keeps nothing alive.
                scope.set(value, LEFT, Some(key));
                scope.set(lost, LEFT, Some(other));
                scope.set(living, KEY, Some(key));
                scope.set(living, VALUE, Some(value));
                scope.set(dying, KEY, Some(other));
                scope.set(dying, VALUE, Some(lost));
                if old {
                    scope.collect();
                }
            });
            collect(scope, whole);
            assert_eq!((number(scope, living, KEY), number(scope, living, VALUE)), (Some(1), Some(2)));
            assert_eq!((number(scope, dying, KEY), number(scope, dying, VALUE)), (None, None));
            scope.collect();
            assert_eq!(scope.heap().old_bytes(), 2 * PAIR + 2 * 32, "key, value and two ephemerons are left");
        });
        test.end();
    }
}

#[test]
fn a_chain_of_ephemerons_is_followed_whatever_its_order() {
    const COUNT: usize = 3000;
    for (old, limited) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut test = Test::checked();
        let weak = weak_types(&mut test);
        if limited {
            // As if there were no memory to note what waits: values are kept then, and nothing else is different.
            test.heap.marker.most = 2;
        }
        test.run(|scope, types| {
            let table = scope.allocate(weak.table, COUNT).expect("memory");
            let first = pair(scope, types, 0);
            scope.scope(|scope| {
                let key = scope.same_as(first).expect("memory");
                for index in 0..COUNT {
                    scope.scope(|scope| {
                        let value = pair(scope, types, index as u64 + 1);
                        // From the end, so that each pass over the table would get one step further.
                        let offset = scope.item(table, COUNT - 1 - index);
                        scope.set(table, offset, Some(key));
                        scope.set(table, offset + 8, Some(value));
                        scope.assign(key, value);
                    });
                }
            });
            collect(scope, old);
            collect(scope, old);
            for index in 0..COUNT {
                let offset = scope.item(table, COUNT - 1 - index);
                assert_eq!(number(scope, table, offset + 8), Some(index as u64 + 1));
            }
            let other = pair(scope, types, 9);
            scope.assign(first, other);
            scope.collect();
            if !limited {
                assert_eq!(number(scope, table, 16), None, "the whole chain is gone");
                let live = 2 * PAIR - PAIR + (COUNT * 16 + 16).next_multiple_of(16 << 10);
                assert_eq!(scope.heap().old_bytes(), live);
            }
        });
        test.end();
    }
}

/// Those whose key was reached in the end had an entry still, and only a collection that ended with one that
/// waited forgot them. So a program whose keys always lived had more and more, up to 128 MiB; then there was no
/// room for another one, and the keys of all young ephemerons lived.
#[test]
fn ephemerons_whose_keys_were_reached_were_noted_for_ever_and_then_no_key_died_young() {
    const MOST: usize = 100;
    let mut test = Test::checked();
    let weak = weak_types(&mut test);
    test.heap.marker.most = MOST;
    test.run(|scope, types| {
        for round in 0..4 * MOST {
            scope.scope(|scope| {
                // One of the two is looked into before the way to its key, whichever root comes first.
                let first = scope.allocate(weak.pair, 0).expect("memory");
                let way = pair(scope, types, 0);
                let last = scope.allocate(weak.pair, 0).expect("memory");
                scope.scope(|scope| {
                    let key = pair(scope, types, round as u64);
                    scope.set(way, LEFT, Some(key));
                    [first, last].into_iter().for_each(|ephemeron| scope.set(ephemeron, KEY, Some(key)));
                });
                scope.collect_minor();
                assert_eq!(number(scope, first, KEY), Some(round as u64));
                assert!(scope.heap().noted.waiting.is_unused(), "round {round}");
            });
        }
        let ephemeron = scope.allocate(weak.pair, 0).expect("memory");
        scope.scope(|scope| {
            let key = pair(scope, types, 1);
            scope.set(ephemeron, KEY, Some(key));
        });
        scope.collect_minor();
        assert_eq!(number(scope, ephemeron, KEY), None, "its key died young");
    });
    test.end();
}

#[test]
fn weak_slots_answer_nothing_for_what_marking_did_not_reach() {
    let mut test = Test::checked();
    let weak = weak_types(&mut test);
    test.run(|scope, types| {
        let slot = scope.allocate(weak.one, 0).expect("memory");
        scope.scope(|scope| {
            let dead = pair(scope, types, 5);
            scope.set(slot, KEY, Some(dead));
            scope.collect();
        });
        scope.heap.begin_marking(&mut []);
        // Read while marking is under way it is alive again.
        assert_eq!(number(scope, slot, KEY), Some(5));
        while scope.heap().phase() == Phase::Marking {
            scope.collect_minor();
        }
        assert_eq!(scope.heap().phase(), Phase::Clearing, "the slot has to be cleared first");
        let object = scope.object(slot);
        // SAFETY: the slot of a live object; the address that it still holds is only compared.
        assert_ne!(unsafe { ((object + KEY) as *const usize).read() }, 0, "it is not yet");
        assert_eq!(number(scope, slot, KEY), None);
        scope.collect();
        assert_eq!(scope.heap().old_bytes(), 32);
    });
    test.end();
}

#[test]
fn a_key_that_is_written_before_the_old_one_is_cleared_brings_nothing_back() {
    let mut test = Test::checked();
    let weak = weak_types(&mut test);
    test.run(|scope, types| {
        let key = pair(scope, types, 1);
        let slot = scope.allocate(weak.pair, 0).expect("memory");
        scope.scope(|scope| {
            let (dead, value) = (pair(scope, types, 5), list(scope, types, 3));
            scope.set(slot, KEY, Some(dead));
            scope.set(slot, VALUE, Some(value));
            scope.collect();
        });
        scope.heap.begin_marking(&mut []);
        while scope.heap().phase() == Phase::Marking {
            scope.collect_minor();
        }
        scope.set(slot, KEY, Some(key));
        for _ in 0..2 {
            scope.collect_minor();
            assert_eq!((number(scope, slot, KEY), number(scope, slot, VALUE)), (Some(1), None));
        }
        scope.collect();
        assert_eq!(scope.heap().old_bytes(), PAIR + 32);
    });
    test.end();
}

#[test]
fn what_is_read_from_a_weak_slot_during_marking_lives() {
    let mut test = Test::checked();
    let weak = weak_types(&mut test);
    test.run(|scope, types| {
        let slot = scope.allocate(weak.one, 0).expect("memory");
        let long = list(scope, types, 60_000);
        scope.scope(|scope| {
            let target = list(scope, types, 10);
            scope.set(slot, KEY, Some(target));
            scope.collect();
        });
        scope.heap.begin_marking(&mut []);
        scope.collect_minor();
        assert_eq!(scope.heap().phase(), Phase::Marking);
        let again = scope.get(slot, KEY).expect("memory").expect("not cleared yet");
        scope.set(long, RIGHT, Some(again));
        scope.assign(again, long);
        while scope.heap().phase() != Phase::Idle {
            scope.collect_minor();
        }
        let found = scope.get(slot, KEY).expect("memory").expect("it is referred to");
        check_list(scope, found, 10);
    });
    test.end();
}

#[test]
fn weak_slots_of_and_to_objects_that_stay_are_right() {
    let mut test = Test::checked();
    let weak = weak_types(&mut test);
    test.run(|scope, types| {
        let slot = scope.allocate(weak.one, 0).expect("memory");
        scope.collect();
        let pin = scope.scope(|scope| {
            let target = pair(scope, types, 3);
            scope.set(slot, KEY, Some(target));
            scope.pin(target).expect("memory")
        });
        let pinned_slot = scope.allocate(weak.one, 0).expect("memory");
        let other = scope.pin(pinned_slot).expect("memory");
        scope.scope(|scope| {
            let dead = scope.allocate_old(types.pair, 0).expect("memory");
            scope.set(pinned_slot, KEY, Some(dead));
        });
        scope.collect_minor();
        assert_eq!(number(scope, slot, KEY), Some(3), "a pin keeps alive");
        scope.release(pin);
        scope.collect();
        scope.collect();
        assert_eq!((number(scope, slot, KEY), number(scope, pinned_slot, KEY)), (None, None));
        scope.release(other);
    });
    test.end();
}

#[test]
fn an_identity_hash_stays_when_the_object_moves() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let local = pair(scope, types, 1);
        let hash = scope.identity_hash(local);
        let before = scope.object(local);
        assert!(hash != 0 && hash >> HASH_BITS == 0);
        scope.collect();
        assert_ne!(scope.object(local), before);
        assert_eq!(scope.identity_hash(local), hash);
        let mut hashes = std::collections::HashSet::new();
        for number in 0..10_000 {
            scope.scope(|scope| {
                let local = pair(scope, types, number);
                assert!(
                    hashes.insert(scope.identity_hash(local)),
                    "few are the same; the first ten thousand differ"
                );
            });
        }
        assert_eq!(scope.read(local, NUMBER), 1);
    });
    test.end();
}

#[test]
fn slots_that_are_named_twice_are_refused() {
    let mut test = Test::checked();
    let mut refused = |layout: Layout| test.heap.register(layout).expect_err("wrong");
    assert_eq!(refused(Layout::fixed(32).slots(&[16]).weak_slots(&[16])), BadLayout::Twice { offset: 16 });
    assert_eq!(refused(Layout::fixed(32).ephemerons(&[(16, 16)])), BadLayout::Twice { offset: 16 });
    assert_eq!(refused(Layout::fixed(32).weak_slots(&[32])), BadLayout::Slot { offset: 32 });
    assert_eq!(refused(Layout::variable(16, 8).item_ephemerons(&[(0, 8)])), BadLayout::Slot { offset: 8 });
    test.end();
}

/// An ephemeron with a dead key that was written while others were cleared waited for it, into the next
/// marking. By then the object may have ended.
#[test]
fn nobody_waits_for_a_key_when_marking_is_over() {
    let mut test = Test::checked();
    let weak = weak_types(&mut test);
    test.run(|scope, types| {
        let value = pair(scope, types, 1);
        let slot = scope.allocate(weak.pair, 0).expect("memory");
        scope.scope(|scope| {
            let dead = pair(scope, types, 5);
            scope.set(slot, KEY, Some(dead));
            scope.set(slot, VALUE, Some(value));
            scope.collect();
        });
        scope.heap.begin_marking(&mut []);
        while scope.heap().phase() == Phase::Marking {
            scope.collect_minor();
        }
        assert_eq!(scope.heap().phase(), Phase::Clearing);
        scope.set(slot, VALUE, Some(value));
        scope.collect_minor();
        assert!(scope.heap().marker.waiting.is_empty());
        assert_eq!((number(scope, slot, KEY), number(scope, slot, VALUE)), (None, None));
    });
    test.end();
}

/// What is not marked before finalizers are asked is not dead yet. A table that only an object to be finalized
/// led to, and that minor collections looked into because it referred to a pinned object as well, lost its
/// values.
#[test]
fn what_is_to_be_finalized_leads_to_the_values_of_ephemerons_too() {
    let mut test = Test::checked();
    let weak = weak_types(&mut test);
    test.run(|scope, types| {
        let hold = scope.allocate(weak.one, 0).expect("memory");
        let pin = scope.scope(|scope| {
            let (last, dead) = (pair(scope, types, 1), pair(scope, types, 2));
            let table = scope.allocate(weak.table, 2).expect("memory");
            let value = pair(scope, types, 3);
            scope.set(last, LEFT, Some(table));
            // Its key is nothing, which does not die.
            scope.set(table, 16 + 8, Some(value));
            scope.finalize(last).expect("memory");
            scope.set(hold, KEY, Some(dead));
            scope.collect();
            let pinned = pair(scope, types, 5);
            scope.set(table, 32 + 8, Some(pinned));
            scope.pin(pinned).expect("memory")
        });
        scope.collect_minor();
        scope.heap.begin_marking(&mut []);
        while scope.heap().phase() == Phase::Marking {
            scope.collect_minor();
        }
        assert_eq!(scope.heap().phase(), Phase::Clearing);
        scope.collect();
        let last = scope.next_finalizable().expect("memory").expect("it was unreachable");
        let table = scope.get(last, LEFT).expect("memory").expect("it leads to it");
        assert_eq!((number(scope, table, 16 + 8), number(scope, table, 32 + 8)), (Some(3), Some(5)));
        scope.release(pin);
    });
    test.end();
}
