//! Arenas against a plain model, with operations at random. What is compared is said in `arena_model`.

#[allow(unreachable_pub, reason = "the fuzz target is made of it too")]
mod arena_model;

use arena_model::{Code, Machine, Start};
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
fn programs(
    most: usize,
    kinds: &'static [u8],
    faulty: impl Strategy<Value = bool>,
) -> impl Strategy<Value = Program> {
    let code = any::<Code>().prop_map(move |[kind, a, b, c]| {
        [if kinds.is_empty() { kind } else { kinds[kind as usize % kinds.len()] }, a, b, c]
    });
    (any::<Start>(), proptest::collection::vec(code, 1..most), faulty)
        .prop_map(|(start, codes, faulty)| Program { start, codes, faulty })
}

/// A fixed number of cases, so that the time is known, and no files of old failures: those become tests of their own.
fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { cases: count, failure_persistence: None, max_shrink_iters: 2000, ..Default::default() }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn arenas_agree_with_a_plain_model(program in programs(300, &[], Just(false))) {
        program.run();
    }

    #[test]
    fn failing_calls_lose_nothing(program in programs(300, &[], Just(true))) {
        program.run();
    }

    #[test]
    fn anything_may_happen_between_the_parts_of_a_pass(
        program in programs(300, &[1, 2, 8, 9, 14, 16, 17, 18, 19, 20, 21, 23, 25], any::<bool>())
    ) {
        program.run();
    }

    #[test]
    fn large_blocks_keep_their_contents_wherever_they_move(
        program in programs(200, &[3, 10, 14, 15, 16, 17, 18, 19, 22, 25, 28], any::<bool>())
    ) {
        program.run();
    }
}

/// The mode was `always` and could not be read, and the advice against huge pages was refused: the arena for small runs was huge at its
/// first touch, and only the page that was used was given back.
#[test]
fn an_idle_arena_for_small_runs_is_given_back_whole_where_nothing_is_known_of_it() {
    let codes = vec![[0xb9, 0xb9, 0xb9, 0xbb], [0x61, 0, 0x61, 0]];
    Program { start: [0x78, 0x82, 0xb9, 0xff, 0xff, 0, 0xf8, 0xb9], codes, faulty: true }.run();
}
