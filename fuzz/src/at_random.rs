//! The fuzz target's machine, driven by random operations for a fixed time: where libFuzzer cannot be built.
//!
//! `arenas-at-random SECONDS [SEED]`. Prints the seed of each sequence before it runs, so that a failure can be repeated.

#[path = "../../crates/hugeheap/tests/arena_model/mod.rs"]
mod arena_model;

use arena_model::Machine;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Operations of one sequence.
const STEPS: u32 = 300;

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a seed of any quality is enough.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn run(mut seed: u64) {
    let mut machine = Machine::new(random(&mut seed).to_le_bytes(), random(&mut seed) & 1 == 1);
    for _ in 0..STEPS {
        machine.step((random(&mut seed) as u32).to_le_bytes());
    }
    machine.finish();
}

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let (seconds, seed) = (arguments.first().copied().unwrap_or(20), arguments.get(1).copied());
    if let Some(seed) = seed {
        return run(seed);
    }
    let first = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut sequences = 0;
    while Instant::now() < end {
        let seed = first.wrapping_add(sequences);
        // Read by whoever repeats a failure: the last line before it.
        println!("arenas-at-random 0 {seed}");
        run(seed);
        sequences += 1;
    }
    println!("{sequences} sequences of {STEPS} operations, none failed");
}
