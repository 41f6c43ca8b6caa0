//! Arenas that are made ahead for the old generation.

use super::*;
use crate::arena::ARENA_BYTES;

/// What the maintenance thread does when it is woken.
fn maintain(space: &'static Space<World>) {
    let World { arenas, kernel, .. } = space.source();
    loop {
        let Some(mut ahead) = arenas.lock().begin_ahead() else { break };
        ahead.touch(kernel);
        arenas.lock().complete_ahead(ahead);
    }
    let mut arenas = arenas.lock();
    let mut plan = arenas.plan();
    plan.perform(kernel);
    arenas.complete(plan);
}

#[test]
fn arenas_made_ahead_are_kept_while_the_old_generation_grows_slowly() {
    let space = space();
    let mut test = Test::over(space, Settings { nursery: Some(ARENA_BYTES), ..Settings::default() });
    test.run(|scope, types| {
        // So many live that arenas are made ahead.
        scope.allocate(types.text, 80 << 20).expect("memory");
        let head = list(scope, types, 1);
        let mut minor = scope.heap().statistics().minor;
        for number in 0..(16 * ARENA_BYTES / PAIR) as u64 {
            scope.scope(|scope| {
                let next = pair(scope, types, number);
                scope.set(next, LEFT, Some(head));
                scope.assign(head, next);
            });
            if scope.heap().statistics().minor != minor {
                minor = scope.heap().statistics().minor;
                // It is woken at once, and again some time later.
                maintain(space);
                space.source().kernel.advance(Duration::from_millis(20));
                maintain(space);
            }
        }
    });
    let snapshot = space.source().arenas.lock().snapshot();
    assert!(snapshot.arenas_ahead >= 7, "{} were made ahead", snapshot.arenas_ahead);
    assert_eq!(snapshot.arenas_given_back, 0);
    test.end();
}
