//! batches: what a server does for a request, or an interpreter for a call: it builds objects of all sizes, and
//! drops all of them before the next.

use crate::catalogue::Values;
use crate::memory::{Block, Memory};
use crate::random::Random;
use crate::stage::Stage;

pub(crate) fn run<M: Memory>(stage: &Stage, values: &Values) {
    let (least, most) = (values.size("least"), values.size("most"));
    let (batch, order) = (values.size("batch"), values.size("order"));
    let rounds = (values.size("blocks") / (stage.threads() * batch)).max(1);
    stage.each_thread(|thread| {
        let mut memory = M::default();
        let mut random = Random::new(stage.seed(), thread as u64);
        let mut live: Vec<Block> = Vec::with_capacity(batch);
        for round in 0..rounds {
            if round == rounds / 2 {
                stage.steady();
            }
            live.extend((0..batch).map(|_| memory.take(random.within(least, most))));
            match order {
                0 => live.drain(..).for_each(|block| memory.give(block)),
                1 => live.drain(..).rev().for_each(|block| memory.give(block)),
                _ => {
                    while !live.is_empty() {
                        memory.give(live.swap_remove(random.below(live.len())));
                    }
                }
            }
        }
    });
    stage.idle();
}
