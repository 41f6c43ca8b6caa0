//! phase-shift: a program that goes from one kind of object to another, and keeps a few of each.
//!
//! In each phase blocks of other sizes are taken until the limit is reached, then all but a small share, chosen
//! at random, are freed. What is kept stays to the end. An allocator that cannot use the memory of one phase in
//! the next grows with each.

use crate::catalogue::Values;
use crate::memory::{Block, Memory, drop_most, fill};
use crate::random::Random;
use crate::stage::Stage;

/// The sizes of the phases: each from the first to the second.
const PHASES: [(usize, usize); 6] = [(16, 48), (200, 500), (40, 120), (1000, 3000), (24, 80), (500, 1100)];

pub(crate) fn run<M: Memory>(stage: &Stage, values: &Values) {
    let (bytes, keep) = (values.size("bytes"), values.size("keep"));
    let rounds = values.size("rounds");
    let mut memory = M::default();
    let mut random = Random::new(stage.seed(), 0);
    let mut kept: Vec<Block> = Vec::new();
    let last = rounds * PHASES.len() - 1;
    for number in 0..=last {
        let live = fill(&mut memory, &mut random, PHASES[number % PHASES.len()], bytes);
        if number == last {
            stage.steady();
        }
        drop_most(&mut memory, &mut random, live, keep, &mut kept);
    }
    stage.idle();
    kept.into_iter().for_each(|block| memory.give(block));
}
