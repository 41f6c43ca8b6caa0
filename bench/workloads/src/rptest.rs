//! rptest: blocks of 16 bytes to 16 KiB, many of them live, a part handed to another thread now and then.
//!
//! Each thread frees blocks at random and takes as many again. After some loops it leaves a part of its blocks
//! in a box and takes the part that lies there, which was left by whichever thread came before: as many blocks
//! are live whatever the order of the threads.

use crate::catalogue::Values;
use crate::memory::{Block, Memory};
use crate::random::{Random, Sizes};
use crate::stage::Stage;
use std::sync::{Mutex, PoisonError};

/// Loops between two visits to a box.
const HAND_OVER: usize = 16;
/// Blocks replaced in a loop, and handed over: one of so many.
const PART: usize = 4;
/// How fast large blocks become rare: half of all are below 100 bytes, and most bytes in larger ones.
const EXPONENT: f64 = -1.4;

pub(crate) fn run<M: Memory>(stage: &Stage, values: &Values) {
    let (blocks, threads) = (values.size("blocks"), stage.threads());
    let part = (blocks / PART).max(1);
    let loops = values.size("operations") / (part * threads);
    let sizes = Sizes::power_law(16, values.size("most"), EXPONENT);
    let take = |memory: &mut M, random: &mut Random, count: usize| -> Vec<Block> {
        (0..count).map(|_| memory.take(sizes.draw(random))).collect()
    };
    let mut memory = M::default();
    let mut random = Random::new(stage.seed(), threads as u64);
    let boxes: Vec<_> = (0..threads).map(|_| Mutex::new(take(&mut memory, &mut random, part))).collect();
    stage.each_thread(|thread| {
        let mut memory = M::default();
        let mut random = Random::new(stage.seed(), thread as u64);
        let mut live = take(&mut memory, &mut random, blocks);
        for number in 0..loops {
            if number == loops / 2 {
                stage.steady();
            }
            for _ in 0..part {
                let place = random.below(live.len());
                memory.give(live.swap_remove(place));
                live.push(memory.take(sizes.draw(&mut random)));
            }
            if number % HAND_OVER == HAND_OVER - 1 {
                let leave = live.split_off(live.len() - part);
                let chosen = &boxes[(thread + number / HAND_OVER) % threads];
                let found =
                    std::mem::replace(&mut *chosen.lock().unwrap_or_else(PoisonError::into_inner), leave);
                live.extend(found);
            }
        }
        live.into_iter().for_each(|block| memory.give(block));
    });
    for rest in boxes {
        let rest = rest.into_inner().unwrap_or_else(PoisonError::into_inner);
        rest.into_iter().for_each(|block| memory.give(block));
    }
    stage.idle();
}
