//! Heaps of blocks against a plain model, with operations at random. What is compared is said in `object_model`.
#![cfg(target_os = "linux")]

#[allow(unreachable_pub, reason = "the fuzz target is made of it too")]
mod object_model;

use object_model::{Code, Machine, Start};
use proptest::prelude::*;

/// Printed in one line, so that a failure can be pasted into a test.
#[derive(Clone)]
struct Program {
    start: Start,
    codes: Vec<Code>,
    faulty: bool,
}

impl Program {
    fn run(&self) {
        let mut machine = Machine::new(self.start, self.faulty);
        for &code in &self.codes {
            machine.step(code);
        }
        machine.finish();
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({:?}, &{:?}, {})", self.start, self.codes, self.faulty)
    }
}

/// Programs of up to `most` operations of the given kinds, of all kinds when none is given.
fn programs(most: usize, kinds: &'static [u8], faulty: bool) -> impl Strategy<Value = Program> {
    let code = any::<Code>().prop_map(move |[kind, a, b, c]| {
        [if kinds.is_empty() { kind } else { kinds[kind as usize % kinds.len()] }, a, b, c]
    });
    (any::<Start>(), proptest::collection::vec(code, 1..most)).prop_map(move |(start, codes)| Program {
        start,
        codes,
        faulty,
    })
}

/// A fixed number of cases, so that the time is known, and no files of old failures: those become tests of their own.
fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { cases: count, failure_persistence: None, max_shrink_iters: 2000, ..Default::default() }
}

proptest! {
    #![proptest_config(cases(50))]

    #[test]
    fn blocks_agree_with_a_plain_model(program in programs(300, &[], false)) {
        program.run();
    }

    #[test]
    fn failing_calls_lose_nothing(program in programs(300, &[], true)) {
        program.run();
    }

    #[test]
    fn heaps_free_the_blocks_of_each_other_and_of_none(
        program in programs(400, &[0, 4, 8, 9, 11, 17, 18, 19, 24, 26, 27], false)
    ) {
        program.run();
    }

    #[test]
    fn contents_stay_wherever_blocks_move(
        program in programs(200, &[0, 4, 5, 6, 7, 11, 18, 21, 22, 23, 28, 29, 30], true)
    ) {
        program.run();
    }
}
