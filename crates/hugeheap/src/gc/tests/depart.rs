//! Evacuation in steps: the program runs meanwhile, and may write, pin, and run out of memory for records.

use super::super::depart::MOST_HOLDERS;
use super::*;
use core::time::Duration;

/// Bytes of an object of the tests: header, length and text.
const TEXT: usize = 512;

/// Objects in the beginning: 4 MiB.
const COUNT: usize = (4 << 20) / TEXT;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// A table of texts, and what each place of it must have: the first byte of the text, if there is one.
struct Texts<'s> {
    table: Local<'s>,
    model: Vec<Option<u8>>,
    random: Random,
}

impl<'s> Texts<'s> {
    /// A tenth of what was allocated is left, in all arenas.
    fn sparse(scope: &mut Scope<'s, World>, types: Types3) -> Self {
        let table = scope.allocate_old(types.array, COUNT).expect("memory");
        let mut texts = Self { table, model: vec![None; COUNT], random: Random(1) };
        for index in 0..COUNT {
            texts.put(scope, types, index, index as u8);
        }
        scope.collect();
        for index in 0..COUNT {
            if texts.random.below(10) > 0 {
                let offset = scope.item(table, index);
                scope.set(table, offset, None);
                texts.model[index] = None;
            }
        }
        texts
    }

    fn put(&mut self, scope: &mut Scope<'s, World>, types: Types3, index: usize, byte: u8) {
        scope.scope(|scope| {
            let local = scope.allocate_old(types.text, TEXT - 16).expect("memory");
            scope.bytes(local).fill(byte);
            let offset = scope.item(self.table, index);
            scope.set(self.table, offset, Some(local));
        });
        self.model[index] = Some(byte);
    }

    /// Two places exchange what they have, through a young object that lives on in a third if `kept` says so.
    fn exchange(&mut self, scope: &mut Scope<'s, World>, types: Types3, kept: Local<'_>) {
        let (one, two) = (self.random.below(COUNT), self.random.below(COUNT));
        scope.scope(|scope| {
            let (left, right) = (scope.item(self.table, one), scope.item(self.table, two));
            let first = scope.get(self.table, left).expect("memory");
            let second = scope.get(self.table, right).expect("memory");
            scope.set(self.table, left, second);
            scope.set(self.table, right, first);
            let holder = pair(scope, types, 0);
            scope.set(holder, LEFT, first);
            scope.set(holder, RIGHT, second);
            let offset = scope.item(kept, one % 64);
            scope.set(kept, offset, Some(holder));
        });
        self.model.swap(one, two);
    }

    fn check(&self, scope: &mut Scope<'s, World>) {
        for (index, wanted) in self.model.iter().enumerate() {
            scope.scope(|scope| {
                let offset = scope.item(self.table, index);
                let found = scope.get(self.table, offset).expect("memory");
                assert_eq!(found.is_some(), wanted.is_some());
                if let (Some(local), Some(wanted)) = (found, wanted) {
                    assert!(scope.bytes(local).iter().all(|byte| byte == wanted));
                }
            });
        }
    }
}

/// A heap that evacuates in the smallest steps that there are.
fn stepping(verify: bool) -> Test {
    let checks = Checks { verify, barriers: verify, poison: true, ..Checks::default() };
    Test::new(Settings { evacuate: Some(150), step: Some(Duration::ZERO), checks, ..Settings::default() })
}

/// Minor collections until the major one that is under way is over. Returns how many.
fn finish(scope: &mut Scope<'_, World>) -> usize {
    let mut count = 0;
    while scope.heap().phase() != Phase::Idle {
        scope.collect_minor();
        count += 1;
    }
    count
}

/// Begins a major collection in steps that finds memory sparse, and the one that evacuates.
fn begin(scope: &mut Scope<'_, World>) {
    // What is under way already took for alive what has died since.
    finish(scope);
    scope.heap.begin_marking(&mut []);
    finish(scope);
    assert!(scope.heap().marker.departure.is_under_way());
    scope.collect_minor();
    assert_eq!(scope.heap().phase(), Phase::Marking, "at once, whatever the pace");
}

#[test]
fn sparse_arenas_become_free_in_steps_while_references_move_about() {
    let mut test = stepping(true);
    test.run(|scope, types| {
        let mut texts = Texts::sparse(scope, types);
        let kept = scope.allocate_old(types.array, 64).expect("memory");
        begin(scope);
        let before = scope.heap().statistics().moved;
        let mut batches = 0;
        while scope.heap().phase() != Phase::Idle {
            for _ in 0..50 {
                texts.exchange(scope, types, kept);
            }
            let moved = scope.heap().statistics().moved;
            scope.collect_minor();
            batches += usize::from(scope.heap().statistics().moved > moved);
        }
        let statistics = *scope.heap().statistics();
        assert_eq!(statistics.evacuations, 1);
        assert!(batches > 10 && statistics.moved > before + 500, "{batches} batches, {statistics:?}");
        assert!(!scope.heap().marker.departure.is_under_way());
        texts.check(scope);
        assert!(scope.heap().held_bytes() * 100 < scope.heap().old_bytes() * 150);
        // The next major collection is one without.
        scope.heap.begin_marking(&mut []);
        finish(scope);
        assert!(!scope.heap().marker.departure.is_under_way());
        texts.check(scope);
    });
    test.end();
}

#[test]
fn what_left_refers_to_what_leaves_later() {
    let mut test = stepping(false);
    test.run(|scope, types| {
        // Pairs in a table, one in ten of which stays in a list: each refers to the one before, which is in
        // another arena more often than not.
        let count = (4 << 20) / PAIR;
        let table = scope.allocate_old(types.array, count).expect("memory");
        let head = scope.allocate_old(types.pair, 0).expect("memory");
        let mut random = Random(2);
        for index in 0..count {
            scope.scope(|scope| {
                let local = scope.allocate_old(types.pair, 0).expect("memory");
                let offset = scope.item(table, index);
                scope.set(table, offset, Some(local));
            });
        }
        let listed = count / 10;
        for number in 0..listed as u64 {
            scope.scope(|scope| {
                let offset = scope.item(table, random.below(count));
                if let Some(local) = scope.get(table, offset).expect("memory") {
                    scope.write(local, NUMBER, number + 1);
                    let next = scope.get(head, LEFT).expect("memory");
                    scope.set(local, LEFT, next);
                    scope.set(head, LEFT, Some(local));
                    scope.set(table, offset, None);
                }
            });
        }
        for index in 0..count {
            let offset = scope.item(table, index);
            scope.set(table, offset, None);
        }
        begin(scope);
        finish(scope);
        let moved = scope.heap().statistics().moved;
        assert!(moved > listed as u64 / 2, "{moved}");
        let (mut at, mut last, mut found) = (scope.object(head), u64::MAX, 0);
        loop {
            // SAFETY: nothing is collected, and the list is of live pairs.
            at = unsafe { ((at + LEFT) as *const usize).read() };
            if at == 0 {
                break;
            }
            assert!(scope.heap().old.is_live(at));
            // SAFETY: as above.
            let number = unsafe { ((at + NUMBER) as *const u64).read() };
            assert!(number < last, "{number} after {last}");
            (last, found) = (number, found + 1);
        }
        assert!(found > listed / 10 * 9, "{found} of {listed}");
    });
    test.end();
}

#[test]
fn a_pin_keeps_its_arena() {
    let mut test = stepping(false);
    test.run(|scope, types| {
        let texts = Texts::sparse(scope, types);
        begin(scope);
        let index = texts.model.iter().position(Option::is_some).expect("one in ten");
        let offset = scope.item(texts.table, index);
        let local = scope.get(texts.table, offset).expect("memory").expect("it lives");
        let pin = scope.pin(local).expect("memory");
        let at = scope.object(local);
        finish(scope);
        assert_eq!((scope.object(local), scope.heap().address(&pin)), (at, at));
        assert!(scope.heap().statistics().moved > 0, "other arenas left");
        scope.heap.release(pin);
        texts.check(scope);
    });
    test.end();
}

#[test]
fn what_is_not_recorded_stays() {
    let mut test = stepping(false);
    test.run(|scope, types| {
        let mut texts = Texts::sparse(scope, types);
        let kept = scope.allocate_old(types.array, 64).expect("memory");
        begin(scope);
        scope.heap.remembered.most = 0;
        texts.exchange(scope, types, kept);
        scope.collect_minor();
        scope.heap.remembered.most = usize::MAX;
        finish(scope);
        let statistics = scope.heap().statistics();
        assert_eq!((statistics.evacuations, statistics.moved), (1, 0));
        texts.check(scope);
    });
    test.end();
}

#[test]
fn a_whole_collection_and_the_end_of_the_heap_take_over() {
    for whole in [false, true] {
        for steps in [0, 5, 40, 80] {
            let mut test = stepping(false);
            test.run(|scope, types| {
                let mut texts = Texts::sparse(scope, types);
                begin(scope);
                for _ in 0..steps {
                    scope.collect_minor();
                }
                texts.put(scope, types, 0, 7);
                if whole {
                    scope.collect();
                    texts.check(scope);
                }
            });
            test.end();
        }
    }
}

#[test]
fn without_memory_the_rest_stays() {
    let mut test = stepping(false);
    test.run(|scope, types| {
        let texts = Texts::sparse(scope, types);
        begin(scope);
        while scope.heap().statistics().moved == 0 {
            scope.collect_minor();
        }
        let kernel = &scope.heap().old.space().source().kernel;
        kernel.fail_every(hugeheap_os::simulated::Call::Map, 1, libc::ENOMEM);
        scope.heap.old.maximum = scope.heap().held_bytes();
        finish(scope);
        scope.heap().old.space().source().kernel.fail_no_more();
        scope.heap.old.maximum = usize::MAX;
        texts.check(scope);
    });
    test.end();
}

#[test]
fn holders_that_are_one_too_many_in_the_middle_of_an_evacuation_are_followed_all_the_same() {
    for more in [0, 1, 2, 3, 100] {
        let checks = Checks { verify: true, moving: true, ..Checks::default() };
        let mut test = Test::new(Settings { step: Some(Duration::ZERO), checks, ..Settings::default() });
        test.run(|scope, types| {
            // All in one arena, and each but the first has a holder.
            let count = (MOST_HOLDERS + more) as u64;
            let head = list(scope, types, count);
            scope.collect_minor();
            // Two: what is alive is counted in the first, and leaves in the second.
            for _ in 0..2 {
                finish(scope);
                scope.heap.begin_marking(&mut []);
            }
            finish(scope);
            assert!(scope.heap().statistics().evacuations > 0);
            check_list(scope, head, count);
        });
        test.end();
    }
}
