//! random-drop: a heap that shrinks to a tenth, at random, and grows again.
//!
//! Blocks of mixed sizes are taken until the limit is reached; nine of ten are freed, whichever they are; the heap is
//! filled up again. After the last drop it stays small.

use crate::catalogue::Values;
use crate::memory::{Block, Memory};
use crate::random::Random;
use crate::stage::Stage;

pub(crate) fn run<M: Memory>(stage: &Stage, values: &Values) {
    let (bytes, rounds) = (values.size("bytes"), values.size("rounds"));
    let (least, most) = (values.size("least"), values.size("most"));
    let drop = values.size("drop");
    let mut memory = M::default();
    let mut random = Random::new(stage.seed(), 0);
    let mut live: Vec<Block> = Vec::new();
    let mut sum = 0;
    for round in 0..rounds {
        while sum < bytes {
            let block = memory.take(random.within(least, most));
            sum += block.size();
            live.push(block);
        }
        if round == rounds - 1 {
            stage.steady();
        }
        let mut left = Vec::new();
        for block in live {
            if random.below(100) < drop {
                sum -= block.size();
                memory.give(block);
            } else {
                left.push(block);
            }
        }
        live = left;
    }
    stage.idle();
    live.into_iter().for_each(|block| memory.give(block));
}
