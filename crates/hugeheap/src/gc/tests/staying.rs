//! Objects that stay in the nursery, and what is left of it for others.

use super::super::pacing::LEAST_PART;
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

/// Allocations were refused with nearly all of a nursery free: only its beginning was looked at, as far as the part went that slow collections had left of it.
#[test]
fn what_stays_at_the_beginning_leaves_the_rest_to_others() {
    let mut test = Test::new(Settings { nursery: Some(1 << 20), ..Settings::default() });
    test.heap.nursery.part = LEAST_PART;
    let pins = test.run(|scope, types| {
        let pins = pin_pairs(scope, types, 2 * LEAST_PART / PAIR);
        garbage(scope, types, 100_000);
        pins
    });
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
        let before = scope.heap.statistics().old_bytes;
        garbage(scope, types, 10_000);
        assert_eq!(scope.heap.statistics().old_bytes, before, "there is room in the nursery again");
    });
    test.run(|scope, _| scope.release(kept));
    test.end();
}
