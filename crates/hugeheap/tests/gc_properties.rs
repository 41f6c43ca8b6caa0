//! The garbage-collected heap against a plain model, with operations at random: on memory that is there, and
//! with calls of the system that fail. What is compared is said in `gc_model`.
#![cfg(target_os = "linux")]

#[allow(unreachable_pub, reason = "the fuzz target is made of it too")]
mod gc_model;
mod programs;

use gc_model::Machine;
use programs::{Program, cases, programs};
use proptest::prelude::*;

fn run(program: &Program) {
    program.run(Machine::new, Machine::step, Machine::finish);
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn objects_agree_with_a_plain_model(program in programs(400, &[], Just(false))) {
        run(&program);
    }

    #[test]
    fn failing_calls_lose_nothing(program in programs(400, &[], Just(true))) {
        run(&program);
    }

    #[test]
    fn every_mode_at_once_changes_nothing(program in programs(200, &[], any::<bool>())) {
        // Poison, moving, rotated nurseries, a collection every third allocation, steps without time, a small maximum.
        run(&Program { start: [0, 3, 0, 0, 0, 0, 0, 0], ..program });
    }

    #[test]
    fn objects_agree_with_a_plain_model_on_the_real_kernel(program in programs(300, &[], Just(false))) {
        program.run(|start, _| Machine::real(start), Machine::step, Machine::finish);
    }
}

/// A sequence as the fuzz target reads it.
fn run_bytes(bytes: &[u8]) {
    let (start, rest) = bytes.split_first_chunk::<8>().expect("the machine's start");
    let mut machine = Machine::new(*start, rest[0] & 1 == 1);
    for code in rest[1..].chunks_exact(4).take(400) {
        machine.step([code[0], code[1], code[2], code[3]]);
    }
    machine.finish();
}

/// Young objects without room, and an old one that refers to them and that they refer to, were found dead by
/// the third of two collections.
#[test]
fn a_full_heap_is_emptied_by_a_collection_however_young_and_old_objects_refer_to_each_other() {
    run_bytes(include_bytes!("gc_model/sequences/full_in_three_rounds"));
}

/// A list most of whose objects stayed became shorter from one whole collection to the next while the old
/// generation stayed as full as it was, and there was no further one.
#[test]
fn a_full_heap_is_emptied_of_a_list_most_of_which_stayed() {
    run_bytes(include_bytes!("gc_model/sequences/full_in_rounds_that_free_nothing"));
}
