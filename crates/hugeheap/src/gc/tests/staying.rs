//! Objects that stay in the nursery, and what is left of it for others.

use super::super::pacing::{LEAST_PART, STEP};
use super::*;

/// Pins that many new pairs, one beside the other.
fn pin_pairs(scope: &mut Scope<'_, World>, types: Types3, count: usize) -> Vec<Global> {
    let mut pins = Vec::new();
    for number in 0..count {
        scope.scope(|scope| {
            let local = pair(scope, types, number as u64);
            pins.push(scope.pin(local).expect("memory"));
        });
    }
    pins
}

fn garbage(scope: &mut Scope<'_, World>, types: Types3, count: u64) {
    for number in 0..count {
        scope.scope(|scope| _ = pair(scope, types, number));
    }
}

/// Allocations were refused with nearly all of a nursery free: only its beginning was looked at, as far as the
/// part went that slow collections had left of it.
#[test]
fn what_stays_at_the_beginning_leaves_the_rest_to_others() {
    let mut test = Test::new(Settings { nursery: Some(1 << 20), ..Settings::default() });
    test.heap.nursery.part = LEAST_PART;
    // Survivors are so slow that it does not grow: a larger part reached behind them, whatever it was a part of.
    test.heap.pacing.minor(1 << 20, 1000 * STEP);
    let pins = test.run(|scope, types| {
        let pins = pin_pairs(scope, types, 2 * LEAST_PART / PAIR);
        garbage(scope, types, 100_000);
        pins
    });
    assert_eq!(test.heap.nursery.part, LEAST_PART);
    assert!(!test.heap.crowded, "there is room behind them");
    assert_eq!(test.heap.statistics().old_bytes, 0);
    test.run(|scope, _| pins.into_iter().for_each(|pin| scope.release(pin)));
    test.end();
}

/// A program that pins all of a nursery goes on in the old generation, and comes back when it has let go.
#[test]
fn a_nursery_full_of_pins_is_no_lack_of_memory() {
    let mut test = Test::checked();
    let count = 2 * test.heap.nursery_bytes() / PAIR;
    let (pins, kept) = test.run(|scope, types| {
        let pins = pin_pairs(scope, types, count);
        let head = list(scope, types, 5000);
        check_list(scope, head, 5000);
        (pins, scope.global(head).expect("memory"))
    });
    let collections = test.heap.statistics().minor;
    assert!(test.heap.statistics().old_bytes > 0, "objects began in the old generation");
    assert!(collections < 100, "{collections} collections for some nurseries of objects");
    test.run(|scope, types| garbage(scope, types, 50_000));
    let more = test.heap.statistics().minor - collections;
    let nurseries = 50_000 * PAIR as u64 / test.heap.nursery_bytes() as u64;
    // There were two for each: one because the old generation had got a nursery of objects, and one to find
    // that no room had come of it.
    assert!(more.abs_diff(nurseries) <= 2, "{more} collections for {nurseries} nurseries of garbage");
    test.run(|scope, types| {
        for (number, pin) in pins.into_iter().enumerate() {
            scope.scope(|scope| {
                let local = scope.local(&pin).expect("memory");
                assert_eq!(scope.read(local, NUMBER), number as u64);
            });
            scope.release(pin);
        }
        scope.collect();
        let head = scope.local(&kept).expect("memory");
        check_list(scope, head, 5000);
        // Its header was written where objects are remembered from the start.
        let young = pair(scope, types, 77);
        scope.set(head, RIGHT, Some(young));
        let before = scope.heap.statistics().old_bytes;
        garbage(scope, types, 10_000);
        assert_eq!(scope.heap.statistics().old_bytes, before, "there is room in the nursery again");
        let reached = scope.get(head, RIGHT).expect("memory").expect("it was set");
        assert_eq!(scope.read(reached, NUMBER), 77);
    });
    test.run(|scope, _| scope.release(kept));
    test.end();
}
