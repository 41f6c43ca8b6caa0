//! Allocates and frees in a loop, for counting instructions: `pairs KIND COUNT`.
//!
//! The difference between two counts, divided by the difference of the loops, is the cost of one pair without start-up.
//! Kinds: `run` takes a page run of 1 MiB, as pymalloc does; `large` a block of 8 MiB; `owns` asks whose address it is.

use hugeheap::arena::{Arenas, Settings};
use hugeheap_os::linux::Linux;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (Some(kind), Some(count)) =
        (arguments.get(1), arguments.get(2).and_then(|text| text.parse::<u32>().ok()))
    else {
        eprintln!("usage: pairs run|large|owns COUNT");
        std::process::exit(2);
    };
    let mut arenas = Arenas::new(Linux::new(), Settings::DEFAULT);
    // Neighbours keep the arena from becoming empty, as in a program that runs.
    let keep: Vec<_> = (0..9).filter_map(|_| arenas.allocate(64)).collect();
    let mut sum = 0usize;
    for _ in 0..count {
        match kind.as_str() {
            "run" => {
                let address = arenas.allocate(64).expect("memory").get();
                arenas.free(address, 64).expect("just allocated");
                sum ^= address;
            }
            "large" => {
                let block = arenas.allocate_large(8 << 20, false).expect("memory");
                arenas.free_large(block.address.get()).expect("just allocated");
                sum ^= block.address.get();
            }
            _ => sum += usize::from(arenas.owns(std::hint::black_box(keep[0].get()))),
        }
    }
    std::hint::black_box(sum);
}
