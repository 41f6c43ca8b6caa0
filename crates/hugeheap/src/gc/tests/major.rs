//! Major collections: in steps, with what the program writes between them; what becomes free.

use super::*;
use crate::gc::marks::Marks;
use crate::gc::pacing::STEP;
use hugeheap_os::simulated::Call;

#[test]
fn what_is_unreachable_becomes_free() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let keep = list(scope, types, 50);
        scope.scope(|scope| {
            let dead = list(scope, types, 20_000);
            check_list(scope, dead, 20_000);
            let large = scope.allocate(types.text, 3 << 20).expect("memory");
            scope.bytes(large).fill(1);
            scope.collect();
            check_list(scope, dead, 20_000);
        });
        assert!(scope.heap().old_bytes() > 3 << 20);
        scope.collect();
        assert_eq!(scope.heap().old_bytes(), 50 * PAIR);
        assert!(scope.heap().held_bytes() <= 32 << 10, "empty pages are given back");
        check_list(scope, keep, 50);
        assert!(scope.heap().statistics().major >= 2);
    });
    test.end();
}

#[test]
fn freed_blocks_are_used_again() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let keep = list(scope, types, 1000);
        scope.collect();
        let held = scope.heap().held_bytes();
        for _ in 0..40 {
            scope.scope(|scope| {
                let dead = list(scope, types, 5000);
                check_list(scope, dead, 5000);
            });
        }
        assert!(scope.heap().statistics().major > 2, "{:?}", scope.heap().statistics());
        scope.collect();
        assert_eq!(scope.heap().held_bytes(), held);
        check_list(scope, keep, 1000);
    });
    test.end();
}

#[test]
fn a_small_heap_is_collected_later_where_free_memory_is_resident() {
    const NURSERY: usize = 1 << 20;
    let grown_to = |peak: u64| {
        let mut test = Test::new(Settings { nursery: Some(NURSERY), ..Settings::default() });
        let grown = test.run(|scope, types| {
            scope.scope(|scope| {
                let dead = list(scope, types, peak);
                check_list(scope, dead, peak);
            });
            scope.collect();
            let head = list(scope, types, 1);
            while scope.heap().phase() == Phase::Idle {
                extend(scope, types, head, 1000);
            }
            scope.heap().old_bytes() / NURSERY
        });
        test.end();
        grown
    };
    assert_eq!(grown_to(1), 4, "no memory but what it has");
    assert_eq!(grown_to((16 * NURSERY / PAIR) as u64), 8, "after 16 MiB");
}

/// Goes on with minor collections until the phase is over.
fn pass(scope: &mut Scope<'_, World>, phase: Phase) {
    while scope.heap().phase() == phase {
        scope.collect_minor();
    }
}

/// More than a step can mark, so that marking is in the middle for a while.
const LONG: u64 = 60_000;

/// A list of so many numbers whose last element refers to another list, of ten. Marking gets there last, and no
/// handle refers to it.
fn list_with_hidden<'s>(scope: &mut Scope<'s, World>, types: Types3) -> Local<'s> {
    let head = pair(scope, types, 0);
    scope.scope(|scope| {
        let hidden = list(scope, types, 10);
        scope.set(head, RIGHT, Some(hidden));
    });
    extend(scope, types, head, LONG);
    head
}

/// In the middle of a marking that has looked into `target` and not into the last element: moves the only way
/// to the hidden list into slots of it.
fn hide(scope: &mut Scope<'_, World>, long: Local<'_>, target: Local<'_>, offsets: &[usize]) {
    scope.heap.begin_marking(&mut []);
    scope.collect_minor();
    assert_eq!(scope.heap().phase(), Phase::Marking, "the list is longer than a step");
    let (mut last, target) = (scope.object(long), scope.object(target));
    // SAFETY: live objects of the old generation, which do not move; slots of theirs.
    unsafe {
        for _ in 1..LONG {
            last = ((last + LEFT) as *const usize).read();
        }
        let from = (last + RIGHT) as *mut usize;
        let hidden = from.read();
        assert!(!scope.heap.old.is_marked(hidden), "marking was there already");
        for offset in offsets {
            scope.heap.write(target, (target + offset) as *mut usize, hidden);
        }
        scope.heap.write(last, from, 0);
    }
    pass(scope, Phase::Marking);
    pass(scope, Phase::Sweeping);
}

/// With 64 KiB between two looks a step took 12 to 15 ms where each first access to an OS page is slow.
#[test]
fn marking_looks_at_the_clock_before_slow_memory_makes_a_step_long() {
    let mut test = Test::new(Settings::default());
    test.run(|scope, types| {
        // A list, and an array of as many as have place in one that is marked in parts.
        let long = list(scope, types, 16_000);
        let array = scope.allocate_old(types.array, 16_000).expect("memory");
        for index in 0..16_000 {
            scope.scope(|scope| {
                let local = scope.allocate_old(types.pair, 0).expect("memory");
                let offset = scope.item(array, index);
                scope.set(array, offset, Some(local));
            });
        }
        scope.collect();
        // As if what is marked between two looks took half of a step.
        scope.heap.old.space().source().kernel.set_cost(Call::Now, STEP / 2);
        scope.heap.begin_marking(&mut []);
        let marked = |scope: &Scope<'_, World>| {
            let mut count = 0;
            scope.heap.old.each_live(|object| count += usize::from(scope.heap.old.is_marked(object)));
            count
        };
        let (mut before, mut steps, mut most) = (marked(scope), 0, 0);
        while scope.heap().phase() == Phase::Marking {
            scope.collect_minor();
            let now = if scope.heap().phase() == Phase::Marking { marked(scope) } else { before };
            (before, steps, most) = (now, steps + 1, most.max(now - before));
        }
        // Three looks, each after 8 KiB: of pairs, or of slots that refer to one each.
        assert!(most <= 3 * (8 << 10) / 8, "{most} in a step");
        assert!(steps >= 32_000 * PAIR / (3 * (8 << 10)) / 2, "{steps} steps");
        check_list(scope, long, 16_000);
    });
    test.end();
}

#[test]
fn marking_sees_what_is_written_between_its_steps() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let long = list_with_hidden(scope, types);
        scope.collect();
        let before = scope.heap().statistics().major;
        hide(scope, long, long, &[RIGHT]);
        assert_eq!(scope.heap().statistics().major, before + 1);
        check_list(scope, long, LONG);
        let found = scope.get(long, RIGHT).expect("memory").expect("set");
        check_list(scope, found, 10);
    });
    test.end();
}

/// The same with an array that has cards: what was written there is noted for a step, not marked by the minor
/// collection.
#[test]
fn marking_sees_what_is_written_into_a_large_array_between_its_steps() {
    // Alone in its card, beside another one, in the first card of the array, in one that shares its bit with another.
    for index in [1000, 1001, 0, 2] {
        let mut test = Test::checked();
        test.run(|scope, types| {
            let long = list_with_hidden(scope, types);
            let array = scope.allocate(types.array, 1200).expect("memory");
            let offset = scope.item(array, index);
            scope.collect();
            hide(scope, long, array, &[offset]);
            check_list(scope, long, LONG);
            let found = scope.get(array, offset).expect("memory").expect("set");
            check_list(scope, found, 10);
        });
        test.end();
    }
}

#[test]
fn a_stack_that_is_too_small_only_costs_time() {
    let mut test = Test::checked();
    test.heap.marker.most = 2;
    test.run(|scope, types| {
        let array = scope.allocate(types.array, 20_000).expect("memory");
        for index in 0..5_000 {
            scope.scope(|scope| {
                let local = list(scope, types, 3);
                let offset = scope.item(array, index * 4);
                scope.set(array, offset, Some(local));
            });
        }
        scope.collect();
        scope.collect();
        for index in 0..5_000 {
            scope.scope(|scope| {
                let offset = scope.item(array, index * 4);
                let local = scope.get(array, offset).expect("memory").expect("set");
                check_list(scope, local, 3);
            });
        }
        assert_eq!(scope.heap().old_bytes(), 15_000 * PAIR + (160_016_usize).next_multiple_of(16 << 10));
    });
    test.end();
}

#[test]
fn growth_is_bounded() {
    let mut test = Test::new(Settings { growth: Some(200), ..Settings::default() });
    test.run(|scope, types| {
        let table = scope.allocate(types.array, 20_000).expect("memory");
        let mut highest = 0;
        // The live set stays; everything in it is replaced again and again.
        for round in 0..600_000u64 {
            scope.scope(|scope| {
                let local = pair(scope, types, round);
                let offset = scope.item(table, (round * 7919 % 20_000) as usize);
                scope.set(table, offset, Some(local));
            });
            highest = highest.max(scope.heap().old_bytes());
        }
        let live = 20_000 * PAIR + 160_016;
        assert!(scope.heap().statistics().major > 5);
        // Twice what lives, a quarter of that, and the nurseries before and after each phase.
        assert!(highest < live * 2 / 4 * 5 + 4 * (64 << 10), "{highest} of {live}");
    });
    test.end();
}

#[test]
fn types_with_a_trace_function_are_traced() {
    unsafe extern "C" fn trace(object: *mut u8, visitor: &mut Visitor<'_>) {
        // SAFETY: an object of three words, of which the last is a slot where the one before is 1.
        unsafe {
            let words = object.cast::<usize>();
            if words.add(1).read() == 1 {
                visitor.slot(words.add(2));
            }
        }
    }
    let mut test = Test::checked();
    // SAFETY: the function names the same slot of an object each time.
    let traced = test.heap.register(unsafe { Layout::fixed(24).traced_by(trace) }).expect("right");
    let ty = test.pair;
    let mut window = test.heap.take_window();
    // SAFETY: the window is the heap's, every slot is written before the next call, and all is in the frame.
    unsafe {
        let mut allocate = |heap: &mut Heap<World>, ty, frame: &mut [usize]| {
            heap.allocate_slow(&mut window, ty, 0, frame).expect("memory").as_ptr() as usize
        };
        let mut frame = [0; 2];
        for kind in 0..2 {
            let child = allocate(&mut test.heap, ty, &mut frame);
            for (offset, value) in [(NUMBER, 40 + kind), (LEFT, 0), (RIGHT, 0)] {
                ((child + offset) as *mut usize).write(value);
            }
            frame[kind] = child;
            let object = allocate(&mut test.heap, traced, &mut frame);
            ((object + 8) as *mut usize).write(kind);
            ((object + 16) as *mut usize).write(frame[kind]);
            frame[kind] = object;
        }
        for _ in 0..2 {
            test.heap.collect(&mut window, &mut frame);
        }
        assert_eq!(((frame[0] + 8) as *const usize).read(), 0);
        let child = ((frame[1] + 16) as *const usize).read();
        assert_eq!(((child + NUMBER) as *const usize).read(), 41);
        assert_eq!(test.heap.old_bytes(), 2 * 32 + PAIR, "what the trace function did not name is gone");
    }
    test.heap.return_window(window);
    test.end();
}

/// An array of `slots` arrays of so many, and so on: each makes the stack longer by more than it has room for.
fn arrays<'s>(scope: &mut Scope<'s, World>, types: Types3, slots: usize, levels: u32) -> Local<'s> {
    scope
        .scope_for(|scope| -> Result<_, Exhausted> {
            let array = scope.allocate(types.array, if levels == 0 { 0 } else { slots })?;
            for index in 0..scope.length(array) {
                let item = scope.item(array, index);
                scope.scope(|scope| {
                    let child = arrays(scope, types, slots, levels - 1);
                    scope.set(array, item, Some(child));
                });
            }
            Ok(array)
        })
        .expect("memory")
}

#[test]
fn objects_with_many_slots_are_marked_with_all_that_they_refer_to() {
    // As many as a mapped object can have, and more.
    for slots in [62, 63] {
        let mut test = Test::checked();
        test.run(|scope, types| {
            let root = arrays(scope, types, slots, 2);
            scope.collect();
            let bytes = |length: usize| (16 + 8 * length).next_multiple_of(16);
            let live = (1 + slots) * bytes(slots) + slots * slots * bytes(0);
            assert!(scope.heap().old_bytes() >= live, "{} of {live}", scope.heap().old_bytes());
            for _ in 0..2 {
                scope.collect();
                assert_eq!(scope.verify(), Ok(()));
            }
            assert_eq!(scope.length(root), slots);
        });
        test.end();
    }
}

/// In the first region and in others: nothing but objects of the heap's own old generation.
#[test]
fn marks_are_found_from_the_address_alone() {
    let space = space_with(8 << 20);
    let mut tests = [(); 2].map(|()| Test::over(space, Settings::default()));
    let texts = tests.each_mut().map(|test| {
        let text = test.text;
        test.run(|scope, types| {
            let mut found = Vec::new();
            for _ in 0..2000 {
                let local = scope.allocate_old(types.pair, 0).expect("memory");
                found.push(scope.object(local));
                // Some with heap pages of their own, and so many that there is more than one region.
                let bytes = if found.len() % 8 == 0 { 40_000 } else { 5000 };
                let local = scope.allocate_old(text, bytes).expect("memory");
                found.push(scope.object(local));
            }
            found
        })
    });
    let [own, other] = texts;
    assert!(space.regions().len() > 1);
    let nursery = tests[0].heap.nursery.start();
    let old = &tests[0].heap.old;
    let marks = Marks::of(old);
    for word in [0, 1, 8, usize::MAX, usize::MAX & !15, nursery, nursery + 16, nursery + 4096] {
        assert!(!marks.mark(old, word), "{word:#x}");
    }
    for &word in &other {
        assert!(!marks.mark(old, word) && !tests[1].heap.old.is_marked(word));
    }
    for &word in &own {
        assert!((1..16).all(|offset| !marks.mark(old, word + offset)) && !old.is_marked(word));
        assert!(marks.mark(old, word) && old.is_marked(word) && !marks.mark(old, word));
    }
    for &word in &own {
        // Not of its neighbours.
        assert!(!marks.mark(old, word));
    }
}
