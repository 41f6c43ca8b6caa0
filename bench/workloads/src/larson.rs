//! larson: a server whose threads end and leave their blocks to their successors.
//!
//! Each chain of threads has an array of blocks. A thread replaces blocks at random, then starts its successor,
//! hands the array over and ends. So most blocks are freed by another thread than the one that took them, whose
//! heap is an ended thread's by then.

use crate::catalogue::Values;
use crate::memory::{Block, Memory};
use crate::random::Random;
use crate::stage::Stage;

pub(crate) fn run<M: Memory>(stage: &Stage, values: &Values) {
    let (blocks, generations) = (values.size("blocks"), values.size("generations"));
    let (least, most) = (values.size("least"), values.size("most"));
    let replacements = values.size("replacements") / (generations * stage.threads());
    stage.each_thread(|chain| {
        let mut random = Random::new(stage.seed(), chain as u64);
        let mut memory = M::default();
        let mut live: Vec<Block> = (0..blocks).map(|_| memory.take(random.within(least, most))).collect();
        for generation in 0..generations {
            if generation == generations / 2 {
                stage.steady();
            }
            let successor = std::thread::spawn(move || {
                let mut memory = M::default();
                for _ in 0..replacements {
                    let place = random.below(live.len());
                    let block = memory.take(random.within(least, most));
                    memory.give(std::mem::replace(&mut live[place], block));
                }
                (live, random)
            });
            (live, random) = successor.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        live.into_iter().for_each(|block| memory.give(block));
    });
    stage.idle();
}
