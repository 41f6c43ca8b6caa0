//! Roots: handles, globals, callbacks, several heaps.

use super::*;
use std::cell::Cell;
use std::rc::Rc;

#[test]
fn handles_end_with_their_scope_by_a_panic_too() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let outer = pair(scope, types, 1);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            scope.scope(|scope| {
                list(scope, types, 100);
                panic!("planted");
            })
        }));
        assert!(result.is_err());
        assert_eq!(scope.heap.roots.stack.len(), 1);
        scope.collect();
        assert_eq!(scope.heap().old_bytes(), PAIR);
        assert_eq!(scope.read(outer, NUMBER), 1);
        let escaped = scope.scope_for(|inner| -> Result<_, Exhausted> { Ok(pair(inner, types, 9)) });
        let escaped = escaped.expect("memory");
        scope.collect();
        assert_eq!(scope.read(escaped, NUMBER), 9);
        assert_eq!(scope.heap.roots.stack.len(), 2);
    });
    test.end();
}

#[test]
fn globals_keep_objects_until_they_are_released() {
    let mut test = Test::checked();
    let global = test.run(|scope, types| {
        let local = list(scope, types, 10);
        scope.global(local).expect("memory")
    });
    test.run(|scope, types| {
        scope.collect();
        scope.scope(|scope| {
            let local = scope.local(&global).expect("memory");
            check_list(scope, local, 10);
        });
        scope.release(global);
        let local = pair(scope, types, 1);
        let again = scope.global(local).expect("memory");
        assert_eq!(again.place.index, 0, "the place is used again");
        scope.release(again);
        scope.collect();
        assert_eq!(scope.heap().old_bytes(), PAIR);
    });
    test.end();
}

#[test]
fn callbacks_name_what_the_program_holds_elsewhere() {
    let mut test = Test::checked();
    let held = Rc::new(Cell::new(0usize));
    let theirs = Rc::clone(&held);
    // SAFETY: the cell lives as long as the callback, and holds 0 or an object of this heap.
    unsafe { test.heap.add_roots(Box::new(move |visitor| visitor.slot(theirs.as_ptr()))) }.expect("memory");
    test.run(|scope, types| {
        scope.scope(|scope| {
            let local = pair(scope, types, 77);
            held.set(scope.object(local));
        });
        let before = held.get();
        scope.collect();
        assert_ne!(held.get(), before);
        // SAFETY: the callback keeps the object alive.
        assert_eq!(unsafe { ((held.get() + NUMBER) as *const u64).read() }, 77);
        held.set(0);
        scope.collect();
        assert_eq!(scope.heap().old_bytes(), 0);
    });
    test.end();
}

#[test]
fn heaps_do_not_touch_each_other() {
    let space = space();
    let mut one = Test::over(space, Settings::default());
    let mut two = Test::over(space, Settings::default());
    let types = Types3 { pair: two.pair, array: two.array, text: two.text };
    let kept = one.run(|scope, types| {
        let local = list(scope, types, 500);
        scope.collect();
        scope.global(local).expect("memory")
    });
    two.heap.scope(|scope| {
        let local = list(scope, types, 700);
        scope.collect();
        check_list(scope, local, 700);
        let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scope.heap().address(&kept)));
        assert!(wrong.is_err(), "a handle of another heap is refused");
    });
    drop(two.heap);
    one.run(|scope, _| {
        scope.collect();
        let local = scope.local(&kept).expect("memory");
        check_list(scope, local, 500);
    });
    one.end();
}

#[test]
fn offsets_are_checked_against_the_type() {
    let mut test = Test::checked();
    test.run(|scope, types| {
        let local = pair(scope, types, 1);
        let array = scope.allocate(types.array, 3).expect("memory");
        let mut refused = |work: &mut dyn FnMut(&mut Scope<'_, World>)| {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(scope)));
            assert!(result.is_err());
        };
        refused(&mut |scope| scope.write(local, 0, 1));
        refused(&mut |scope| scope.write(local, LEFT, 1));
        refused(&mut |scope| scope.write(local, PAIR, 1));
        refused(&mut |scope| scope.set(local, NUMBER, None));
        refused(&mut |scope| scope.set(local, PAIR + LEFT, None));
        refused(&mut |scope| scope.write(array, 8, 4));
        refused(&mut |scope| scope.set(array, 40, None));
        refused(&mut |scope| _ = scope.item(array, 3));
        refused(&mut |scope| scope.bytes(array).fill(1));
    });
    test.end();
}

/// A minor collection looks at handles of young objects only: one that stayed is such an object until it has moved.
#[test]
fn a_handle_follows_an_object_that_stayed_for_a_while() {
    let mut test = Test::checked();
    let (global, pin) = test.run(|scope, types| {
        let local = list(scope, types, 10);
        (scope.global(local).expect("memory"), scope.pin(local).expect("memory"))
    });
    let at = test.heap.address(&global);
    for _ in 0..3 {
        test.run(|scope, _| scope.collect_minor());
        assert_eq!(test.heap.address(&global), at);
    }
    test.heap.release(pin);
    test.run(|scope, _| scope.collect_minor());
    assert_ne!(test.heap.address(&global), at, "it has moved");
    assert!(!test.heap.is_young(test.heap.address(&global)));
    test.run(|scope, _| {
        scope.scope(|scope| {
            let local = scope.local(&global).expect("memory");
            check_list(scope, local, 10);
        });
        scope.collect();
    });
    test.heap.release(global);
    test.run(|scope, _| {
        scope.collect();
        assert_eq!(scope.heap().old_bytes(), 0);
    });
    test.end();
}

#[test]
fn a_handle_as_a_number_is_known_until_it_is_released_and_to_its_heap_only() {
    let mut test = Test::checked();
    let mut other = Test::checked();
    let object = test.run(|scope, types| {
        let local = pair(scope, types, 1);
        scope.pin(local).expect("memory").into_number()
    });
    assert!(object != 0 && test.heap.address_of(object).is_some());
    assert_eq!((other.heap.address_of(object), test.heap.address_of(0)), (None, None));
    assert!(!other.heap.release_number(object) && test.heap.release_number(object));
    assert_eq!((test.heap.address_of(object), test.heap.release_number(object)), (None, false));
    assert!(test.heap.roots.pins.is_empty());
    test.end();
    other.end();
}
