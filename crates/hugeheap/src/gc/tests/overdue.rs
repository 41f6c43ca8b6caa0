//! Garbage among what is old, in a heap that does not grow any more.

use super::*;
use core::time::Duration;

/// Bytes of a text.
const TEXT: usize = 8 << 10;

/// Numbers in a list, a megabyte of pairs.
const COUNT: u64 = 1 << 15;

/// Allocates so many bytes, of which nothing lives.
fn waste(scope: &mut Scope<'_, World>, types: Types3, bytes: usize) {
    for _ in 0..bytes.div_ceil(TEXT) {
        scope.scope(|scope| _ = scope.allocate(types.text, TEXT - 16).expect("memory"));
    }
}

/// A heap all of whose old objects have died since its last major collection.
fn with_garbage(work: impl FnOnce(&mut Scope<'_, World>, Types3)) {
    let mut test = Test::new(Settings::default());
    test.run(|scope, types| {
        scope.scope(|scope| {
            let head = list(scope, types, COUNT);
            let ready = pair(scope, types, 7);
            scope.finalize(ready).expect("memory");
            scope.set(head, RIGHT, Some(ready));
            scope.collect();
        });
        assert!(scope.heap().old_bytes() >= COUNT as usize * PAIR);
        work(scope, types);
    });
    test.end();
}

/// None was found for as long as the program ran.
#[test]
fn garbage_among_what_is_old_was_not_found_while_everything_else_died_young() {
    with_garbage(|scope, types| {
        let (old, major) = (scope.heap().old_bytes(), scope.heap().statistics().major);
        waste(scope, types, 127 * old);
        assert_eq!((scope.heap().statistics().major, scope.heap().old_bytes()), (major, old), "not yet");
        // What marking and sweeping need is a nursery for each nursery of what is old.
        waste(scope, types, 5 * old);
        assert_eq!(scope.heap().statistics().major, major + 1);
        let ready = scope.next_finalizable().expect("memory").expect("it was unreachable");
        assert_eq!(scope.read(ready, NUMBER), 7);
        assert_eq!(scope.heap().old_bytes(), PAIR, "only what is finalized is left");
    });
}

/// A program that allocates little would wait for hours.
#[test]
fn garbage_among_what_is_old_is_found_after_a_while_however_little_is_allocated() {
    with_garbage(|scope, types| {
        let major = scope.heap().statistics().major;
        let (kernel, nursery) =
            (scope.heap().old.space().source().kernel.clone(), scope.heap().nursery_bytes());
        kernel.advance(Duration::from_secs(119));
        waste(scope, types, 3 * nursery);
        assert_eq!((scope.heap().statistics().major, scope.heap().phase()), (major, Phase::Idle));
        kernel.advance(Duration::from_secs(1));
        waste(scope, types, 3 * nursery);
        assert_ne!(scope.heap().phase(), Phase::Idle);
        // An idle program that collects what is young goes on with it.
        for _ in 0..64 {
            scope.collect_minor();
        }
        assert_eq!((scope.heap().statistics().major, scope.heap().old_bytes()), (major + 1, PAIR));
    });
}
