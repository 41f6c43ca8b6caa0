//! The fuzz targets' machines, driven by random operations for a fixed time: where libFuzzer cannot be built.
//!
//! `at-random TARGET SECONDS [SEED]`. Prints the seed of each sequence before it runs, so that a failure can be
//! repeated.

#[path = "../../crates/hugeheap/tests/arena_model/mod.rs"]
mod arena_model;
#[path = "../../crates/hugeheap/tests/gc_model/mod.rs"]
mod gc_model;
#[path = "../../crates/hugeheap/tests/object_model/mod.rs"]
mod object_model;

use std::process::ExitCode;
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

/// A function that runs one sequence with a machine.
macro_rules! runs {
    ($name:ident, $machine:ty) => {
        fn $name(mut seed: u64) {
            let mut machine = <$machine>::new(random(&mut seed).to_le_bytes(), random(&mut seed) & 1 == 1);
            for _ in 0..STEPS {
                machine.step((random(&mut seed) as u32).to_le_bytes());
            }
            machine.finish();
        }
    };
}

runs!(arenas, arena_model::Machine);
runs!(gc_operations, gc_model::Machine<hugeheap_os::simulated::Kernel>);
runs!(object_operations, object_model::Machine);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next().unwrap_or_default();
    let run = match target.as_str() {
        "arenas" => arenas,
        "gc_operations" => gc_operations,
        "object_operations" => object_operations,
        _ => {
            eprintln!("usage: at-random arenas|gc_operations|object_operations SECONDS [SEED]");
            return ExitCode::FAILURE;
        }
    };
    let numbers: Vec<u64> = arguments.filter_map(|text| text.parse().ok()).collect();
    let (seconds, seed) = (numbers.first().copied().unwrap_or(20), numbers.get(1).copied());
    if let Some(seed) = seed {
        run(seed);
        return ExitCode::SUCCESS;
    }
    let first = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut sequences = 0;
    while Instant::now() < end {
        let seed = first.wrapping_add(sequences);
        // Read by whoever repeats a failure: the last line before it.
        println!("at-random {target} 0 {seed}");
        run(seed);
        sequences += 1;
    }
    println!("{target}: {sequences} sequences of {STEPS} operations, none failed");
    ExitCode::SUCCESS
}
