//! Fuzz target: sequences of operations on a garbage-collected heap over the simulated kernel, faults included,
//! against a plain model.
//!
//! The input is the machine's start (9 bytes: which checks and settings, and whether calls fail) and then 4
//! bytes per operation. The machine checks itself now and then, and once more at the end; see
//! `crates/hugeheap/tests/gc_model`.

#![no_main]

#[path = "../../crates/hugeheap/tests/gc_model/mod.rs"]
mod gc_model;

use gc_model::Machine;
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
