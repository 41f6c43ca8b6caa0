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

/// The mode was `always` and could not be read, and the advice against huge pages was refused: the arena for small runs was huge at its
/// first touch, and only the page that was used was given back.
#[test]
fn an_idle_arena_for_small_runs_is_given_back_whole_where_nothing_is_known_of_it() {
    let codes = vec![[0xb9, 0xb9, 0xb9, 0xbb], [0x61, 0, 0x61, 0]];
    run(&Program { start: [0x78, 0x82, 0xb9, 0xff, 0xff, 0, 0xf8, 0xb9], codes, faulty: true });
}
