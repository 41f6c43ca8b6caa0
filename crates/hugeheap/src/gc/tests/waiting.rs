//! What a heap does where the kernel needs long for a huge page.

use super::pacing::AHEAD;
use super::*;
use crate::arena::ARENA_BYTES;
use core::time::Duration;
use hugeheap_os::simulated::Call;

/// How long the first touch of an arena takes: longer than a pause may.
const TOUCH: Duration = Duration::from_millis(20);

#[test]
fn slow_arenas_do_not_make_the_part_of_the_nursery_small() {
    let space = space();
    space.source().kernel.set_cost(Call::Populate, TOUCH);
    let nursery = Some(2 * ARENA_BYTES);
    let mut test = Test::over(space, Settings { nursery, ..Settings::default() });
    let (mut waited, mut parts) = (0, Vec::new());
    test.run(|scope, types| {
        let head = list(scope, types, 1);
        let mut minor = scope.heap().statistics().minor;
        for number in 0..(24 * ARENA_BYTES / PAIR) as u64 {
            scope.scope(|scope| {
                let next = pair(scope, types, number);
                scope.set(next, LEFT, Some(head));
                scope.assign(head, next);
            });
            if scope.heap().statistics().minor != minor {
                minor = scope.heap().statistics().minor;
                parts.push(scope.heap().nursery.part);
            }
        }
        waited = scope.heap().statistics().pauses.longest;
    });
    assert!(u128::from(waited) >= TOUCH.as_nanos(), "arenas are touched in pauses: {waited} ns");
    // The first part is half an arena.
    let (first, later) = parts.split_at(2);
    assert!(first.iter().all(|&part| part >= ARENA_BYTES / 2), "{first:?}");
    assert!(later.iter().all(|&part| part >= ARENA_BYTES - AHEAD), "{later:?}");
    assert!(u128::from(waited) < 2 * TOUCH.as_nanos(), "one pause waits for one arena: {waited} ns");
    test.end();
}
