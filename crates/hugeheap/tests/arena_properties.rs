//! Arenas against a plain model, with operations at random. What is compared is said in `arena_model`.

#[allow(unreachable_pub, reason = "the fuzz target is made of it too")]
mod arena_model;
mod programs;

use arena_model::Machine;
use programs::{Program, cases, programs};
use proptest::prelude::*;

fn run(program: &Program) {
    program.run(Machine::new, Machine::step, Machine::finish);
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn arenas_agree_with_a_plain_model(program in programs(300, &[], Just(false))) {
        run(&program);
    }

    #[test]
    fn failing_calls_lose_nothing(program in programs(300, &[], Just(true))) {
        run(&program);
    }

    #[test]
    fn anything_may_happen_between_the_parts_of_a_pass(
        program in programs(300, &[1, 2, 8, 9, 14, 16, 17, 18, 19, 20, 21, 23, 25], any::<bool>())
    ) {
        run(&program);
    }

    #[test]
    fn large_blocks_keep_their_contents_wherever_they_move(
        program in programs(200, &[3, 10, 14, 15, 16, 17, 18, 19, 22, 25, 28], any::<bool>())
    ) {
        run(&program);
    }
}

/// The mode was `always` and could not be read, and the advice against huge pages was refused: the arena for
/// small runs was huge at its first touch, and only the page that was used was given back.
#[test]
fn an_idle_arena_for_small_runs_is_given_back_whole_where_nothing_is_known_of_it() {
    let codes = vec![[0xb9, 0xb9, 0xb9, 0xbb], [0x61, 0, 0x61, 0]];
    run(&Program { start: [0x78, 0x82, 0xb9, 0xff, 0xff, 0, 0xf8, 0xb9], codes, faulty: true });
}

/// Memory became scarce between a plan and its completion, which said that there was nothing to wait for: a
/// tail stayed until something happened.
#[test]
fn what_became_due_during_a_pass_was_left_until_something_happened() {
    let codes = vec![
        [60, 94, 72, 0],
        [0, 72, 0, 0],
        [22, 0, 0, 0],
        [26, 0, 0, 0],
        [238, 169, 0, 90],
        [0, 23, 0, 0],
        [22, 0, 0, 0],
        [54, 0, 0, 0],
        [22, 0, 0, 0],
        [32, 0, 0, 0],
        [211, 0, 0, 0],
        [128, 0, 0, 0],
        [0, 0, 0, 0],
        [32, 0, 0, 0],
        [110, 12, 24, 0],
        [54, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 35, 0, 0],
        [83, 0, 0, 0],
        [147, 0, 0, 0],
        [78, 0, 0, 0],
        [16, 0, 0, 0],
        [22, 0, 0, 0],
        [22, 0, 0, 0],
        [179, 0, 0, 0],
        [0, 0, 0, 0],
        [26, 0, 0, 0],
        [150, 0, 0, 0],
        [83, 0, 0, 0],
        [0, 24, 0, 0],
        [86, 0, 0, 0],
        [0, 0, 0, 0],
        [83, 0, 0, 0],
        [86, 0, 0, 0],
        [200, 0, 0, 0],
        [86, 0, 0, 0],
        [211, 0, 0, 0],
        [0, 0, 0, 0],
        [26, 4, 24, 0],
        [144, 0, 7, 0],
        [22, 0, 0, 0],
        [22, 0, 0, 0],
        [22, 0, 0, 0],
        [27, 0, 0, 0],
        [91, 0, 0, 0],
        [51, 0, 0, 0],
        [87, 24, 84, 0],
        [51, 0, 0, 0],
        [182, 0, 0, 0],
        [211, 0, 0, 0],
        [144, 0, 0, 0],
        [238, 0, 1, 0],
        [26, 83, 61, 0],
        [211, 0, 0, 0],
        [0, 0, 0, 0],
        [19, 0, 0, 0],
    ];
    run(&Program { start: [1, 123, 0, 13, 0, 0, 0, 0], codes, faulty: true });
}
