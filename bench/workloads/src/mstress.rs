//! mstress: threads that come and go, blocks of all sizes with all lifetimes, some of them handed to whoever comes by.
//!
//! In each round new threads do the same amount of work. A thread takes blocks in groups; frees some at once,
//! keeps some for its lifetime, and swaps some with slots that all threads and rounds share.

use crate::catalogue::Values;
use crate::memory::{Block, Memory};
use crate::random::{Random, Sizes};
use crate::stage::Stage;
use std::sync::{Mutex, PoisonError};

/// Slots all threads share.
const SHARED: usize = 1000;
/// Of a hundred blocks: swapped with a shared slot, and kept until the thread ends. The others live for a few
/// operations.
const SWAPPED: usize = 10;
const KEPT: usize = 20;
/// Places of short-lived blocks.
const PASSING: usize = 64;
/// How fast large blocks become rare.
const EXPONENT: f64 = -1.6;

type Shared = Vec<Mutex<Option<Block>>>;

pub(crate) fn run<M: Memory>(stage: &Stage, values: &Values) {
    let rounds = values.size("rounds");
    let blocks = values.size("blocks") / (rounds * stage.threads());
    let sizes = Sizes::power_law(16, values.size("most"), EXPONENT);
    let shared: Shared = std::iter::repeat_with(|| Mutex::new(None)).take(SHARED).collect();
    for round in 0..rounds {
        stage.each_thread(|thread| {
            let mut random = Random::new(stage.seed(), (round * stage.threads() + thread) as u64);
            one_thread::<M>(&mut random, &sizes, &shared, blocks, || {
                if round == rounds / 2 {
                    stage.steady();
                }
            });
        });
    }
    let mut memory = M::default();
    for slot in shared {
        if let Some(block) = slot.into_inner().unwrap_or_else(PoisonError::into_inner) {
            memory.give(block);
        }
    }
    stage.idle();
}

fn one_thread<M: Memory>(
    random: &mut Random,
    sizes: &Sizes,
    shared: &Shared,
    blocks: usize,
    middle: impl Fn(),
) {
    let mut memory = M::default();
    let mut kept = Vec::new();
    let mut passing: [Option<Block>; PASSING] = [const { None }; PASSING];
    for number in 0..blocks {
        if number == blocks / 2 {
            middle();
        }
        let block = memory.take(sizes.draw(random));
        let old = match random.below(100) {
            luck if luck < SWAPPED => {
                let slot = &shared[random.below(SHARED)];
                slot.lock().unwrap_or_else(PoisonError::into_inner).replace(block)
            }
            luck if luck < SWAPPED + KEPT => {
                kept.push(block);
                None
            }
            _ => passing[random.below(PASSING)].replace(block),
        };
        if let Some(old) = old {
            memory.give(old);
        }
    }
    passing.into_iter().flatten().for_each(|block| memory.give(block));
    while !kept.is_empty() {
        memory.give(kept.swap_remove(random.below(kept.len())));
    }
}
