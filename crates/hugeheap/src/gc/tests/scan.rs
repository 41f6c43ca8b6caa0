//! The conservative scan: what words refer to stays where it is, and what nothing refers to does not live on.

use super::*;
use std::cell::RefCell;
use std::rc::Rc;

/// A heap that scans words which the test writes.
fn scanned() -> (Test, Rc<RefCell<Vec<usize>>>) {
    let mut test = Test::checked();
    let (words, _) = scan_more(&mut test);
    (test, words)
}

/// Words that are scanned, too.
fn scan_more(test: &mut Test) -> (Rc<RefCell<Vec<usize>>>, Scan) {
    let words = Rc::new(RefCell::new(vec![0usize; 8]));
    let theirs = Rc::clone(&words);
    let range = move || {
        let words = theirs.borrow();
        (words.as_ptr() as usize, words.as_ptr() as usize + words.len() * 8)
    };
    // SAFETY: the words live as long as the callback, and nobody borrows them in a collection.
    let scan = unsafe { test.heap.add_scan(Box::new(range)) }.expect("memory");
    (words, scan)
}

#[test]
fn what_a_word_refers_to_stays_young_and_old() {
    let (mut test, words) = scanned();
    test.run(|scope, types| {
        let (whole, inside) = scope.scope(|scope| {
            pair(scope, types, 1);
            let whole = list(scope, types, 3);
            let inside = pair(scope, types, 5);
            (scope.object(whole), scope.object(inside))
        });
        words.borrow_mut()[2] = whole;
        words.borrow_mut()[5] = inside + LEFT + 3;
        // No object, and none of ours.
        words.borrow_mut()[6] = whole + (60 << 10);
        words.borrow_mut()[7] = words.as_ptr() as usize;
        for _ in 0..3 {
            scope.collect();
            // SAFETY: they are kept alive where they are.
            unsafe {
                assert_eq!(((whole + NUMBER) as *const u64).read(), 2);
                assert_eq!(((inside + NUMBER) as *const u64).read(), 5);
            }
            assert_eq!(
                scope.heap().old_bytes(),
                2 * PAIR,
                "the rest of the list moved; the number 1 is gone"
            );
        }
        words.borrow_mut().fill(0);
        scope.collect();
        assert_eq!(scope.heap().old_bytes(), 0);
    });
    test.end();
}

#[test]
fn old_objects_that_words_refer_to_do_not_move() {
    let (mut test, words) = scanned();
    test.heap.checks.moving = true;
    test.run(|scope, types| {
        let object = scope.scope(|scope| {
            let local = pair(scope, types, 4);
            scope.collect();
            scope.object(local)
        });
        words.borrow_mut()[0] = object + 8;
        let large = scope.scope(|scope| {
            let local = scope.allocate(types.text, 100_000).expect("memory");
            scope.object(local)
        });
        words.borrow_mut()[1] = large + 16;
        for _ in 0..3 {
            scope.collect();
            // SAFETY: it is kept alive where it is.
            assert_eq!(unsafe { ((object + NUMBER) as *const u64).read() }, 4);
        }
        assert_eq!(scope.heap().old_bytes(), PAIR + (100_016_usize).next_multiple_of(16 << 10));
        words.borrow_mut().fill(0);
        // Marking in steps is over: a word that turns up now brings nothing back.
        let dead = object;
        scope.heap.begin_marking(&mut []);
        while scope.heap().phase() == Phase::Marking {
            scope.collect_minor();
        }
        words.borrow_mut()[0] = dead;
        scope.collect();
        words.borrow_mut().fill(0);
        scope.collect();
        assert_eq!(scope.heap().old_bytes(), 0);
    });
    test.end();
}

#[test]
fn a_range_that_was_removed_keeps_nothing() {
    let mut test = Test::checked();
    let (words, scan) = scan_more(&mut test);
    let (others, other) = scan_more(&mut test);
    test.run(|scope, types| {
        let object = |scope: &mut Scope<'_, _>, number| {
            scope.scope(|scope| {
                let local = pair(scope, types, number);
                scope.object(local)
            })
        };
        let (young, old) = (object(scope, 1), object(scope, 2));
        words.borrow_mut()[0] = young;
        others.borrow_mut()[0] = old;
        scope.collect();
        assert_eq!(scope.heap().old_bytes(), 0, "what words refer to does not leave the nursery");
        scope.heap.remove_scan(scan);
        // The other range is scanned as before.
        scope.collect();
        // SAFETY: it is kept alive where it is.
        assert_eq!(unsafe { ((old + NUMBER) as *const u64).read() }, 2);
        assert_eq!(scope.heap.nursery.staying(), 1);
        scope.heap.remove_scan(other);
        scope.collect();
        assert_eq!((scope.heap.nursery.staying(), scope.heap().old_bytes()), (0, 0));
    });
    test.end();
}

#[test]
fn an_old_object_that_a_range_kept_dies_after_its_removal() {
    let mut test = Test::checked();
    let (words, scan) = scan_more(&mut test);
    test.run(|scope, types| {
        let object = scope.scope(|scope| {
            let local = pair(scope, types, 4);
            scope.collect();
            scope.object(local)
        });
        words.borrow_mut()[0] = object;
        scope.collect();
        assert_eq!(scope.heap().old_bytes(), PAIR);
        // In the middle of a marking, too.
        scope.heap.begin_marking(&mut []);
        scope.collect_minor();
        scope.heap.remove_scan(scan);
        scope.collect();
        scope.collect();
        assert_eq!(scope.heap().old_bytes(), 0);
    });
    test.end();
}

#[test]
#[should_panic(expected = "another heap")]
fn a_range_of_another_heap_is_refused() {
    let (mut test, mut other) = (Test::checked(), Test::checked());
    let (_words, scan) = scan_more(&mut test);
    other.heap.remove_scan(scan);
}
