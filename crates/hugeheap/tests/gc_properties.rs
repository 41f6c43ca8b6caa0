//! The garbage-collected heap against a plain model, with operations at random: on memory that is there, and with calls of the system that fail.
#![cfg(target_os = "linux")]

mod gc_model;

use gc_model::{Code, Machine, Start};
use proptest::prelude::*;

fn programs(most: usize) -> impl Strategy<Value = (Start, Vec<Code>)> {
    (any::<Start>(), proptest::collection::vec(any::<Code>(), 1..most))
}

fn run(start: Start, codes: &[Code], faulty: bool) {
    let mut machine = Machine::simulated(start, faulty);
    codes.iter().for_each(|&code| machine.step(code));
    machine.finish();
}

/// A fixed number of cases, so that the time is known, and no files of old failures: those become tests of their own.
fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { cases: count, failure_persistence: None, max_shrink_iters: 2000, ..Default::default() }
}

proptest! {
    #![proptest_config(cases(20))]

    #[test]
    fn objects_agree_with_a_plain_model((start, codes) in programs(400)) {
        run(start, &codes, false);
    }

    #[test]
    fn failing_calls_lose_nothing((start, codes) in programs(400)) {
        run(start, &codes, true);
    }

    #[test]
    fn every_mode_at_once_changes_nothing(codes in proptest::collection::vec(any::<Code>(), 1..200), faulty: bool) {
        // Poison, moving, rotated nurseries, a collection every third allocation, steps without time, a small maximum.
        run([0, 3, 0], &codes, faulty);
    }

    #[test]
    fn objects_agree_with_a_plain_model_on_the_real_kernel((start, codes) in programs(300)) {
        let mut machine = Machine::real(start);
        codes.iter().for_each(|&code| machine.step(code));
        machine.finish();
    }
}
