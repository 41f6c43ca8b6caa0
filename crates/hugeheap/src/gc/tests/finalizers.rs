//! Finalizers: what is handed out, when, in which order, and how often.

use super::*;

/// Takes the numbers of all that is ready.
fn ready(scope: &mut Scope<'_, World>) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Some(number) = scope.scope(|scope| {
        let local = scope.next_finalizable().expect("memory")?;
        Some(scope.read(local, NUMBER))
    }) {
        numbers.push(number);
    }
    numbers
}

/// Pairs with a finalizer, with the numbers from 0, `edges` between them, and no root.
fn graph(scope: &mut Scope<'_, World>, types: Types3, count: usize, edges: &[(usize, usize)], old: bool) {
    scope.scope(|scope| {
        let locals: Vec<_> = (0..count).map(|number| pair(scope, types, number as u64)).collect();
        for &(from, to) in edges {
            let free = scope.get(locals[from], LEFT).expect("memory").is_none();
            scope.set(locals[from], if free { LEFT } else { RIGHT }, Some(locals[to]));
        }
        for &local in &locals {
            scope.finalize(local).expect("memory");
        }
        if old {
            scope.collect();
        }
    });
}

fn collect(scope: &mut Scope<'_, World>, old: bool) -> Vec<u64> {
    if old {
        scope.collect()
    } else {
        scope.collect_minor()
    }
    ready(scope)
}

#[test]
fn what_is_unreachable_is_handed_out_once_and_can_be_brought_back() {
    for old in [false, true] {
        let mut test = Test::checked();
        test.run(|scope, types| {
            let back = scope.scope_for(|scope| -> Result<_, Exhausted> { Ok(pair(scope, types, 0)) });
            let back = back.expect("memory");
            scope.scope(|scope| {
                let local = list(scope, types, 5);
                scope.finalize(local).expect("memory");
                if old {
                    scope.collect();
                }
                assert_eq!(scope.heap().finalizable(), 0, "it is alive");
            });
            if old {
                scope.collect()
            } else {
                scope.collect_minor()
            }
            assert_eq!(scope.heap().finalizable(), 1);
            // It waits as long as it has to.
            scope.collect();
            scope.scope(|scope| {
                let found = scope.next_finalizable().expect("memory").expect("one");
                check_list(scope, found, 5);
                scope.assign(back, found);
            });
            scope.collect();
            check_list(scope, back, 5);
            let other = pair(scope, types, 9);
            scope.assign(back, other);
            scope.collect();
            assert_eq!(scope.heap().finalizable(), 0, "once only");
            assert_eq!(scope.heap().old_bytes(), PAIR);
        });
        test.end();
    }
}

#[test]
fn an_object_comes_before_those_it_leads_to() {
    for old in [false, true] {
        let mut test = Test::checked();
        test.run(|scope, types| {
            // 3 → 1 → 0, 3 → 2, 4 alone; the numbers are given so that the order of registration says nothing.
            graph(scope, types, 5, &[(3, 1), (1, 0), (3, 2)], old);
            let mut first = collect(scope, old);
            first.sort_unstable();
            assert_eq!(first, [3, 4]);
            // In the next collection, which has to be a whole one: they are old by now.
            let mut second = collect(scope, true);
            second.sort_unstable();
            assert_eq!(second, [1, 2]);
            assert_eq!(collect(scope, true), [0]);
            assert_eq!(collect(scope, true), [0_u64; 0]);
            scope.collect();
            assert_eq!(scope.heap().old_bytes(), 0);
        });
        test.end();
    }
}

#[test]
fn a_cycle_begins_somewhere_and_ends() {
    for old in [false, true] {
        let mut test = Test::checked();
        test.run(|scope, types| {
            // 0 ⇄ 1 leads to 2 ⇄ 3, which leads to 4.
            graph(scope, types, 5, &[(0, 1), (1, 0), (1, 2), (2, 3), (3, 2), (3, 4)], old);
            let mut order = collect(scope, old);
            assert_eq!(order.len(), 1);
            for _ in 0..4 {
                let next = collect(scope, true);
                assert_eq!(next.len(), 1);
                order.extend(next);
            }
            let mut pairs = order.clone();
            pairs[..2].sort_unstable();
            pairs[2..4].sort_unstable();
            assert_eq!(pairs, [0, 1, 2, 3, 4], "{order:?}");
            scope.collect();
            assert_eq!(scope.heap().old_bytes(), 0);
        });
        test.end();
    }
}

#[test]
fn a_type_can_ask_for_it() {
    let mut test = Test::checked();
    let ty = test.heap.register(Layout::fixed(16).finalized()).expect("right");
    test.run(|scope, _| {
        scope.scope(|scope| {
            for number in 0..3 {
                let local = if number == 2 { scope.allocate_old(ty, 0) } else { scope.allocate(ty, 0) };
                scope.write(local.expect("memory"), NUMBER, number);
            }
        });
        scope.collect();
        let mut numbers = ready(scope);
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2]);
        scope.collect();
        assert_eq!(scope.heap().old_bytes(), 0);
    });
    test.end();
}

#[test]
fn weak_slots_are_cleared_before_what_they_refer_to_is_handed_out() {
    for old in [false, true] {
        let mut test = Test::checked();
        let weak = test.heap.register(Layout::fixed(24).weak_slots(&[16])).expect("right");
        test.run(|scope, types| {
            let (to_it, to_its) =
                (scope.allocate(weak, 0).expect("memory"), scope.allocate(weak, 0).expect("memory"));
            scope.scope(|scope| {
                let (local, led_to) = (pair(scope, types, 1), pair(scope, types, 2));
                let inner = scope.allocate(weak, 0).expect("memory");
                // A weak slot that nobody but the finalized object leads to is not in the way of anybody.
                scope.set(inner, 16, Some(led_to));
                scope.set(local, LEFT, Some(led_to));
                scope.set(local, RIGHT, Some(inner));
                scope.set(to_it, 16, Some(local));
                scope.set(to_its, 16, Some(led_to));
                scope.finalize(local).expect("memory");
                if old {
                    scope.collect();
                }
            });
            if old {
                scope.collect()
            } else {
                scope.collect_minor()
            }
            assert!(scope.get(to_it, 16).expect("memory").is_none());
            assert!(scope.get(to_its, 16).expect("memory").is_none());
            let found = scope.next_finalizable().expect("memory").expect("one");
            let led_to = scope.get(found, LEFT).expect("memory").expect("alive with it");
            assert_eq!(scope.read(led_to, NUMBER), 2);
            let inner = scope.get(found, RIGHT).expect("memory").expect("alive with it");
            let same = scope.get(inner, 16).expect("memory").expect("it lives, so it is not cleared");
            assert!(scope.same(same, led_to));
        });
        test.end();
    }
}

#[test]
fn marking_in_steps_finds_the_same() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let long = list(scope, types, 60_000);
        graph(scope, types, 200, &(0..199).map(|number| (number, number + 1)).collect::<Vec<_>>(), false);
        scope.scope(|scope| {
            for number in 1000..1100 {
                let local = pair(scope, types, number);
                scope.set(local, LEFT, Some(long));
                scope.finalize(local).expect("memory");
            }
            // All are alive and become old.
            scope.collect_minor();
        });
        while scope.heap().phase() != Phase::Idle {
            scope.collect_minor();
        }
        let mut found = ready(scope);
        scope.heap.begin_marking(&mut []);
        let mut steps = 0;
        while scope.heap().phase() != Phase::Idle {
            pair(scope, types, 1);
            scope.collect_minor();
            steps += 1;
        }
        assert!(steps > 5, "{steps}");
        found.extend(ready(scope));
        // Of the chain one per collection, in its order; of the others all at once, in the order of registration.
        let (chain, others): (Vec<u64>, Vec<u64>) = found.iter().partition(|&&number| number < 1000);
        assert!(chain.len() >= 2 && chain.iter().copied().eq(0..chain.len() as u64), "{chain:?}");
        assert_eq!(others, (1000..1100).collect::<Vec<u64>>());
        check_list(scope, long, 60_000);
    });
    test.end();
}

/// Candidates that wait were put behind the places that they had left, and the list had to grow inside of a collection.
#[test]
fn no_collection_needs_memory_for_what_waits_to_be_finalized() {
    const COUNT: usize = 64;
    let mut test = Test::checked();
    test.run(|scope, types| {
        // Each is led to by one that was registered later, so all of them are candidates, and all but the last wait.
        let list: Vec<_> = (1..COUNT).map(|from| (from, from - 1)).collect();
        graph(scope, types, COUNT, &list, true);
        let reserved = scope.heap().finalizers.old.capacity();
        assert_eq!(reserved, COUNT, "the list is full");
        for left in (0..COUNT).rev() {
            scope.collect();
            assert_eq!(scope.heap().finalizers.old.capacity(), reserved);
            assert_eq!((ready(scope).len(), scope.heap().finalizers.old.len()), (1, left));
        }
    });
    test.end();
}
