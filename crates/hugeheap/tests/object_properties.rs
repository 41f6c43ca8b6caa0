//! Heaps of blocks against a plain model, with operations at random. What is compared is said in `object_model`.
#![cfg(target_os = "linux")]

#[allow(unreachable_pub, reason = "the fuzz target is made of it too")]
mod object_model;
mod programs;

use object_model::Machine;
use programs::{Program, cases, programs};
use proptest::prelude::*;

fn run(program: &Program) {
    program.run(Machine::new, Machine::step, Machine::finish);
}

proptest! {
    #![proptest_config(cases(50))]

    #[test]
    fn blocks_agree_with_a_plain_model(program in programs(300, &[], Just(false))) {
        run(&program);
    }

    #[test]
    fn failing_calls_lose_nothing(program in programs(300, &[], Just(true))) {
        run(&program);
    }

    #[test]
    fn heaps_free_the_blocks_of_each_other_and_of_none(
        program in programs(400, &[0, 4, 8, 9, 11, 17, 18, 19, 24, 26, 27], Just(false))
    ) {
        run(&program);
    }

    #[test]
    fn blocks_grow_piece_by_piece_and_their_sizes_are_known(
        program in programs(
            400,
            &[4, 5, 7, 11, 17, 18, 26, 27, 28, 30, 32, 33, 34, 35, 36, 38, 38, 39, 40, 40, 41, 41, 42, 42, 43],
            any::<bool>(),
        )
    ) {
        run(&program);
    }

    #[test]
    fn contents_stay_wherever_blocks_move(
        program in programs(200, &[0, 4, 5, 6, 7, 11, 18, 21, 22, 23, 28, 29, 30], Just(true))
    ) {
        run(&program);
    }
}
