//! Fuzz target: sequences of operations on arenas over the simulated kernel, faults included, against a plain model.
//!
//! The input is the machine's start (9 bytes: its seed and whether calls fail) and then 4 bytes per operation.
//! The machine checks itself after every step and once more at the end; see
//! `crates/hugeheap/tests/arena_model`.

#![no_main]

#[path = "../../crates/hugeheap/tests/arena_model/mod.rs"]
mod arena_model;

use arena_model::Machine;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((start, rest)) = input.split_first_chunk::<8>() else { return };
    let Some((faulty, codes)) = rest.split_first() else { return };
    let mut machine = Machine::new(*start, faulty & 1 == 1);
    for code in codes.chunks_exact(4).take(400) {
        machine.step([code[0], code[1], code[2], code[3]]);
    }
    machine.finish();
});
