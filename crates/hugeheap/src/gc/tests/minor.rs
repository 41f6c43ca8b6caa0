//! Minor collections: what survives, what it costs, what is remembered, what stays.

use super::*;
use crate::arena::HEAP_PAGE_BYTES;
use crate::gc::barrier::Remembered;
use std::collections::BTreeSet;

#[test]
fn what_is_reachable_survives_and_moves_once() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let head = list(scope, types, 100);
        assert!(scope.heap().is_young(scope.object(head)));
        let first = scope.object(head);
        scope.collect_minor();
        assert!(!scope.heap().is_young(scope.object(head)));
        assert_ne!(scope.object(head), first);
        check_list(scope, head, 100);
        let then = scope.object(head);
        scope.collect_minor();
        assert_eq!(scope.object(head), then, "an old object does not move");
        assert_eq!(scope.heap().statistics().survivors, 100);
    });
    test.end();
}

#[test]
fn a_minor_collection_costs_what_survives() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let keep = pair(scope, types, 7);
        for _ in 0..100_000 {
            scope.scope(|scope| _ = pair(scope, types, 1));
        }
        let statistics = scope.heap().statistics();
        assert_eq!((statistics.survivors, statistics.survived_bytes), (1, PAIR as u64));
        assert_eq!(
            statistics.minor,
            100_001 * PAIR as u64 / (64 << 10),
            "a collection whenever the nursery is full"
        );
        assert_eq!(scope.read(keep, NUMBER), 7);
    });
    test.end();
}

#[test]
fn who_asks_is_told_of_every_collection_before_it_comes() {
    let mut test = Test::new(Settings { nursery: Some(1 << 20), ..Settings::default() });
    test.run(|scope, types| {
        let (mut told, mut asked) = (0, 0);
        let mut pinned = None;
        for round in 0..200_000_u64 {
            let before = scope.heap().statistics().pauses.count;
            let may = scope.heap().may_collect(types.pair, 0);
            scope.scope(|scope| {
                let object = pair(scope, types, round);
                if round == 150_000 {
                    // It stays: the next piece may be shorter than it seems.
                    pinned = Some(scope.pin(object).expect("memory"));
                }
            });
            asked += 1;
            told += u64::from(may);
            assert!(may || scope.heap().statistics().pauses.count == before, "round {round}");
            assert!(round < 190_000 || may, "an object stays");
        }
        assert!(scope.heap().statistics().minor > 4);
        assert!(told < asked / 2, "{told} of {asked}");
        assert!(scope.heap().may_collect(types.text, crate::gc::MAX_YOUNG) && pinned.is_some());
    });
    test.end();
}

#[test]
fn an_object_shared_by_many_is_copied_once() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let shared = pair(scope, types, 5);
        let (one, two) = (pair(scope, types, 1), pair(scope, types, 2));
        scope.set(one, LEFT, Some(shared));
        scope.set(two, RIGHT, Some(shared));
        scope.set(shared, LEFT, Some(one));
        scope.collect_minor();
        let (left, right) = (scope.get(one, LEFT).expect("memory"), scope.get(two, RIGHT).expect("memory"));
        assert!(scope.same(left.expect("set"), shared) && scope.same(right.expect("set"), shared));
        assert_eq!(scope.heap().statistics().survivors, 3);
    });
    test.end();
}

/// A binary tree of pairs, numbered as a heap is.
fn tree<'s>(scope: &mut Scope<'s, World>, types: Types3, number: u64, levels: u32) -> Local<'s> {
    let root = pair(scope, types, number);
    if levels > 1 {
        scope.scope(|scope| {
            for (slot, child) in [(LEFT, 2 * number), (RIGHT, 2 * number + 1)] {
                let child = tree(scope, types, child, levels - 1);
                scope.set(root, slot, Some(child));
            }
        });
    }
    root
}

fn check_tree(scope: &mut Scope<'_, World>, root: Local<'_>, number: u64, levels: u32) {
    assert_eq!(scope.read(root, NUMBER), number);
    assert!(!scope.heap().is_young(scope.object(root)));
    scope.scope(|scope| {
        for (slot, child) in [(LEFT, 2 * number), (RIGHT, 2 * number + 1)] {
            let found = scope.get(root, slot).expect("memory");
            assert_eq!(found.is_some(), levels > 1);
            if let Some(found) = found {
                check_tree(scope, found, child, levels - 1);
            }
        }
    });
}

#[test]
fn a_tree_survives_with_both_children_of_every_object() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        // All young at once: the nursery of these tests holds 2,048 pairs.
        let root = tree(scope, types, 1, 10);
        scope.collect_minor();
        assert_eq!(scope.heap().statistics().survivors, (1 << 10) - 1);
        check_tree(scope, root, 1, 10);
    });
    test.end();
}

#[test]
fn references_from_old_objects_are_remembered_until_they_are_collected() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let old = pair(scope, types, 1);
        scope.collect_minor();
        for round in 0..10 {
            scope.scope(|scope| {
                let young = pair(scope, types, round);
                scope.set(old, LEFT, Some(young));
            });
            assert_eq!(
                scope.heap.remembered.objects,
                [scope.object(old)],
                "once, however often it is written"
            );
            scope.collect_minor();
            assert_eq!(scope.heap.remembered.objects, []);
            scope.scope(|scope| {
                let left = scope.get(old, LEFT).expect("memory").expect("set");
                assert_eq!(scope.read(left, NUMBER), round);
            });
        }
    });
    test.end();
}

#[test]
fn pretenured_objects_need_no_barrier_before_the_first_collection() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let old = scope.allocate_old(types.pair, 0).expect("memory");
        assert!(!scope.heap().is_young(scope.object(old)));
        assert_eq!((scope.read(old, NUMBER), scope.get(old, LEFT).expect("memory").is_none()), (0, true));
        let young = pair(scope, types, 3);
        scope.set(old, LEFT, Some(young));
        scope.collect_minor();
        let left = scope.get(old, LEFT).expect("memory").expect("set");
        assert_eq!(scope.read(left, NUMBER), 3);
    });
    test.end();
}

/// Puts a young pair with its index at each of these indices of an array.
fn set_pairs(scope: &mut Scope<'_, World>, types: Types3, array: Local<'_>, indices: &[usize]) {
    for &index in indices {
        scope.scope(|scope| {
            let young = pair(scope, types, index as u64);
            let offset = scope.item(array, index);
            scope.set(array, offset, Some(young));
        });
    }
}

/// They are there, and were moved.
fn check_pairs(scope: &mut Scope<'_, World>, array: Local<'_>, indices: &[usize]) {
    for &index in indices {
        scope.scope(|scope| {
            let offset = scope.item(array, index);
            let item = scope.get(array, offset).expect("memory").expect("it was set");
            assert!(!scope.heap().is_young(scope.object(item)), "lost");
            assert_eq!(scope.read(item, NUMBER), index as u64);
        });
    }
}

#[test]
fn large_arrays_are_looked_into_card_by_card() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let length = 1 << 20;
        let array = scope.allocate(types.array, length).expect("memory");
        assert!(!scope.heap().is_young(scope.object(array)));
        set_pairs(scope, types, array, &[0, 31, 32, 5000, length - 1]);
        let remembered = &mut scope.heap.remembered;
        assert_eq!(remembered.pages, [], "while there is room for the slots");
        remembered.make_all_dirty(&scope.heap.old);
        assert_eq!(
            scope.heap.remembered.pages.len(),
            3,
            "the pages of the first three, the fourth, the last"
        );
        assert_eq!(scope.heap.remembered.objects, []);
        scope.collect_minor();
        assert_eq!(scope.heap.remembered.pages, []);
        for index in 0..length {
            scope.scope(|scope| {
                let offset = scope.item(array, index);
                let expected = [0, 31, 32, 5000, length - 1].contains(&index).then_some(index as u64);
                let item = scope.get(array, offset).expect("memory");
                assert_eq!(item.map(|item| scope.read(item, NUMBER)), expected);
            });
        }
    });
    test.end();
}

#[test]
fn cards_are_there_for_all_of_an_object_that_is_longer_than_what_gets_its_metadata_at_once() {
    let mut test = Test::over(space_with(512 << 20), Settings::default());
    let types = test.types();
    test.heap.scope(|scope| {
        // Its end has metadata already, with that of the nursery; its middle does not.
        let length = (300 << 20) / 8;
        let array = scope.allocate(types.array, length).expect("memory");
        let indices = [0, length / 2, length - 1];
        set_pairs(scope, types, array, &indices);
        scope.collect_minor();
        check_pairs(scope, array, &indices);
    });
    test.end();
}

/// The first write into a marked array between two minor collections was two page faults in the pause for every
/// 32 heap pages.
#[test]
#[cfg(target_os = "linux")]
fn noting_cards_of_a_marked_array_touched_their_memory_first() {
    let mut test = Test::new(Settings::default());
    let types = test.types();
    test.heap.scope(|scope| {
        let pages = 2048;
        let array = scope.allocate(types.array, pages * HEAP_PAGE_BYTES / 8 - 2).expect("memory");
        let object = scope.object(array);
        let old = &scope.heap.old;
        let mut count = 0;
        for page in (object..object + pages * HEAP_PAGE_BYTES).step_by(HEAP_PAGE_BYTES) {
            old.dirty(page + 1024);
            old.take_dirty(object, page, |cards| {
                let before = page_faults();
                assert!(old.note(&cards), "none of this page was noted");
                count += page_faults() - before;
            });
            old.take_noted(page, |_| {});
        }
        assert!(count < 8, "{count} page faults, for {} OS pages of noted cards", pages * 128 / 4096);
    });
    test.end();
}

/// Those of this thread that needed no disk.
#[cfg(target_os = "linux")]
fn page_faults() -> i64 {
    // SAFETY: all zero is a valid value.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: it is ours to write.
    let done = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    assert_eq!(done, 0);
    usage.ru_minflt
}

#[test]
fn cards_become_dirty_at_once_where_there_is_no_memory_for_a_list_of_slots() {
    let mut test = Test::checked();
    test.heap.remembered.most = 3;
    test.run(|scope, types| {
        let array = scope.allocate(types.array, 4000).expect("memory");
        set_pairs(scope, types, array, &[0, 3000]);
        let remembered = &scope.heap.remembered;
        assert_eq!((remembered.pages.len(), remembered.lost), (2, false));
        scope.collect_minor();
        check_pairs(scope, array, &[0, 3000]);
    });
    test.end();
}

/// A page that has to be looked into again, because of what stays in the nursery, may belong to somebody else
/// by then: its object died.
#[test]
fn the_cards_of_a_page_whose_object_died_are_left_to_the_heap_that_has_it_now() {
    let mut test = Test::over(space(), Settings::default());
    let mut other = Test::over(test.space, Settings::default());
    let types = test.types();
    let pages = |remembered: &Remembered| remembered.pages.iter().copied().collect::<BTreeSet<_>>();
    test.heap.scope(|scope| {
        let pinned = pair(scope, types, 0);
        let pin = scope.pin(pinned).expect("memory");
        scope.scope(|scope| {
            let array = scope.allocate(types.array, 100_000).expect("memory");
            for index in (0..100_000).step_by(1000) {
                let offset = scope.item(array, index);
                scope.set(array, offset, Some(pinned));
            }
            scope.collect_minor();
        });
        scope.collect();
        let left = pages(&scope.heap.remembered);
        assert!(left.len() > 40, "pages of an array that is gone, because what is pinned stays");
        let types = other.types();
        other.heap.scope(|others| {
            let array = others.allocate(types.array, 100_000).expect("memory");
            let indices: Vec<_> = (0..100_000).step_by(500).collect();
            set_pairs(others, types, array, &indices);
            others.heap.remembered.make_all_dirty(&others.heap.old);
            assert!(!pages(&others.heap.remembered).is_disjoint(&left), "the same pages");
            scope.collect_minor();
            others.collect_minor();
            check_pairs(others, array, &indices);
        });
        scope.release(pin);
    });
    drop(test);
    other.end();
}

#[test]
fn pinned_objects_stay_and_the_window_goes_around_them() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let mut pins = Vec::new();
        for number in 0..2000 {
            scope.scope(|scope| {
                let local = pair(scope, types, number);
                if number % 100 == 50 {
                    let child = pair(scope, types, number + 1);
                    scope.set(local, LEFT, Some(child));
                    pins.push((scope.object(local), scope.pin(local).expect("memory")));
                }
            });
        }
        for _ in 0..20_000 {
            scope.scope(|scope| _ = pair(scope, types, u64::MAX));
        }
        assert!(scope.heap().statistics().minor > 5);
        assert_eq!(scope.heap.nursery.staying(), 20);
        for (index, (address, pin)) in pins.iter().enumerate() {
            scope.scope(|scope| {
                let local = scope.local(pin).expect("memory");
                assert_eq!(scope.object(local), *address);
                assert_eq!(scope.read(local, NUMBER), index as u64 * 100 + 50);
                let child = scope.get(local, LEFT).expect("memory").expect("set");
                assert_eq!(scope.read(child, NUMBER), index as u64 * 100 + 51);
                assert!(!scope.heap().is_young(scope.object(child)));
            });
        }
        // An old object that refers to one that stays is looked into until it does not stay any more.
        let old = scope.allocate_old(types.pair, 0).expect("memory");
        let (address, pin) = pins.pop().expect("some");
        let again = scope.local(&pin).expect("memory");
        scope.set(old, RIGHT, Some(again));
        scope.collect_minor();
        scope.collect();
        let right = scope.get(old, RIGHT).expect("memory").expect("set");
        assert_eq!(scope.object(right), address);
        let twice = scope.pin(again).expect("memory");
        scope.release(pin);
        scope.collect_minor();
        assert_eq!(scope.object(right), address, "two pins are two pins");
        scope.release(twice);
        scope.collect_minor();
        assert!(!scope.heap().is_young(scope.object(right)) && scope.same(right, again));
        pins.into_iter().for_each(|(_, pin)| scope.release(pin));
        scope.collect();
        assert_eq!(scope.heap.nursery.staying(), 0);
    });
    test.end();
}

#[test]
fn an_object_that_was_pinned_is_not_overwritten_before_it_is_moved() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        // Above the place where the window begins after the collection.
        list(scope, types, 10);
        let old = scope.allocate_old(types.pair, 0).expect("memory");
        let pin = scope.scope(|scope| {
            let local = pair(scope, types, 5);
            scope.set(old, LEFT, Some(local));
            scope.pin(local).expect("memory")
        });
        scope.collect_minor();
        scope.release(pin);
        for number in 100..1000 {
            scope.scope(|scope| _ = pair(scope, types, number));
        }
        assert_eq!(scope.heap().statistics().minor, 1);
        let local = scope.get(old, LEFT).expect("memory").expect("set");
        assert!(scope.heap().is_young(scope.object(local)));
        assert_eq!(scope.read(local, NUMBER), 5);
    });
    test.end();
}

#[test]
fn what_cannot_be_remembered_is_found_anyway() {
    let mut test = Test::checked();
    test.heap.remembered.most = 3;
    test.run(|scope, types| {
        let array = scope.allocate(types.array, 50_000).expect("memory");
        let olds: Vec<_> = (0..20).map(|number| pair(scope, types, number)).collect();
        scope.collect_minor();
        for (index, &old) in olds.iter().enumerate() {
            scope.scope(|scope| {
                let young = pair(scope, types, 100 + index as u64);
                scope.set(old, LEFT, Some(young));
                let offset = scope.item(array, index * 2_500);
                scope.set(array, offset, Some(young));
            });
        }
        for _ in 0..3 {
            assert!(scope.heap.remembered.lost);
            scope.collect_minor();
            assert_eq!(scope.heap.nursery.staying(), 20);
        }
        scope.heap.remembered.most = usize::MAX;
        scope.collect_minor();
        assert!(!scope.heap.remembered.lost);
        scope.collect_minor();
        assert_eq!(scope.heap.nursery.staying(), 0);
        for (index, &old) in olds.iter().enumerate() {
            scope.scope(|scope| {
                let young = scope.get(old, LEFT).expect("memory").expect("set");
                assert_eq!(scope.read(young, NUMBER), 100 + index as u64);
                let offset = scope.item(array, index * 2_500);
                let item = scope.get(array, offset).expect("memory").expect("set");
                assert!(scope.same(item, young));
            });
        }
    });
    test.end();
}

#[test]
fn words_with_low_bits_are_left_alone() {
    let mut test = Test::checked();
    let ty = test.pair;
    let mut window = test.heap.take_window();
    // SAFETY: the window is the heap's, and every slot is written.
    unsafe {
        let object = test.heap.allocate_slow(&mut window, ty, 0, &mut []).expect("memory").as_ptr() as usize;
        let start = test.heap.nursery.start();
        for (offset, value) in [(NUMBER, 1), (LEFT, start + 16 + 1), (RIGHT, start + 8)] {
            ((object + offset) as *mut usize).write(value);
        }
        let mut frame = [object, start + 3];
        test.heap.collect_minor(&mut window, &mut frame);
        assert_eq!(frame[1], start + 3);
        assert!(!test.heap.is_young(frame[0]));
        assert_eq!(((frame[0] + LEFT) as *const usize).read(), start + 17);
        assert_eq!(((frame[0] + RIGHT) as *const usize).read(), start + 8);
    }
    test.heap.return_window(window);
    test.end();
}

/// A heap with a nursery of several pieces, all of which is used, and short pauses.
fn with_pieces() -> Test {
    let mut test = Test::new(Settings {
        nursery: Some(1 << 20),
        step: Some(Duration::from_micros(100)),
        ..Settings::default()
    });
    // The first part is measured.
    test.run(|scope, _| scope.collect_minor());
    assert_eq!(test.heap.nursery.part, 1 << 20);
    test
}

#[test]
fn writes_to_many_places_make_a_collection_due_and_writes_to_few_do_not() {
    const COUNT: usize = 12_000;
    for (between, collections) in [(1, 0), (128, 2)] {
        let mut test = with_pieces();
        test.run(|scope, types| {
            let table = scope.allocate(types.array, COUNT * between).expect("memory");
            let before = scope.heap().statistics().minor;
            for number in 0..COUNT {
                scope.scope(|scope| {
                    let young = pair(scope, types, number as u64);
                    let offset = scope.item(table, number * between);
                    scope.set(table, offset, Some(young));
                });
            }
            assert_eq!(scope.heap().statistics().minor - before, collections, "{between}");
            for number in 0..COUNT {
                scope.scope(|scope| {
                    let offset = scope.item(table, number * between);
                    let young = scope.get(table, offset).expect("memory").expect("set");
                    assert_eq!(scope.read(young, NUMBER), number as u64);
                });
            }
        });
        test.end();
    }
}

#[test]
fn writes_into_many_old_objects_make_a_collection_due() {
    const COUNT: u64 = 6_000;
    let mut test = with_pieces();
    test.run(|scope, types| {
        let head = list(scope, types, COUNT);
        scope.collect_minor();
        let before = scope.heap().statistics().minor;
        let at = scope.scope_for(|inner| -> Result<_, Exhausted> { inner.same_as(head) }).expect("memory");
        let young = pair(scope, types, 1);
        for _ in 0..COUNT {
            scope.scope(|scope| {
                scope.set(at, RIGHT, Some(young));
                if let Some(next) = scope.get(at, LEFT).expect("memory") {
                    scope.assign(at, next);
                }
            });
        }
        assert_eq!(scope.heap().statistics().minor, before);
        // The next piece is not handed out.
        for _ in 0..(128 << 10) / PAIR {
            scope.scope(|scope| _ = pair(scope, types, 0));
        }
        assert_eq!(scope.heap().statistics().minor, before + 1);
        check_list(scope, head, COUNT);
    });
    test.end();
}

#[test]
fn pieces_of_a_gap_are_one_window() {
    for length in [32_usize, 5000, 8000] {
        let mut test = with_pieces();
        test.run(|scope, types| {
            let before = scope.heap().statistics().minor;
            let bytes = (16 + length).next_multiple_of(16);
            for _ in 0..(1 << 20) / bytes {
                scope.scope(|scope| _ = scope.allocate(types.text, length).expect("memory"));
            }
            assert_eq!(
                scope.heap().statistics().minor,
                before,
                "all of the nursery holds objects of {bytes} bytes"
            );
            scope.scope(|scope| _ = scope.allocate(types.text, length).expect("memory"));
            assert_eq!(scope.heap().statistics().minor, before + 1);
        });
        test.end();
    }
}
