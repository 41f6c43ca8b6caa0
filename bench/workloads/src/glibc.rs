//! glibc-simple and glibc-thread: what the C library's own measurements do.
//!
//! *Simple*: some blocks of one size are taken and freed in the order they were taken; then another number,
//! then another size. *Thread*: each thread replaces blocks at random, with sizes of which small ones are much
//! more frequent.

use crate::catalogue::Values;
use crate::memory::{Block, Memory};
use crate::random::{Random, Sizes};
use crate::stage::Stage;

/// Bytes of a block, and blocks live at once.
const SIZES: [usize; 5] = [8, 32, 128, 512, 2048];
const COUNTS: [usize; 4] = [25, 100, 400, 1600];
/// How fast large blocks become rare.
const EXPONENT: f64 = -1.5;

pub(crate) fn simple<M: Memory>(stage: &Stage, values: &Values) {
    let mut memory = M::default();
    let part = values.size("blocks") / (SIZES.len() * COUNTS.len());
    let mut live: Vec<Block> = Vec::with_capacity(COUNTS[COUNTS.len() - 1]);
    for (place, size) in SIZES.into_iter().enumerate() {
        for count in COUNTS {
            for _ in 0..part / count {
                live.extend((0..count).map(|_| memory.take(size)));
                live.drain(..).for_each(|block| memory.give(block));
            }
        }
        if place == SIZES.len() / 2 {
            stage.steady();
        }
    }
    stage.idle();
}

pub(crate) fn thread<M: Memory>(stage: &Stage, values: &Values) {
    let (slots, operations) = (values.size("slots"), values.size("operations") / stage.threads());
    let sizes = Sizes::power_law(8, values.size("most"), EXPONENT);
    stage.each_thread(|thread| {
        let mut memory = M::default();
        let mut random = Random::new(stage.seed(), thread as u64);
        let mut live: Vec<Option<Block>> = std::iter::repeat_with(|| None).take(slots).collect();
        for operation in 0..operations {
            if operation == operations / 2 {
                stage.steady();
            }
            let slot = random.below(slots);
            if let Some(block) = live[slot].take() {
                memory.give(block);
            }
            live[slot] = Some(memory.take(sizes.draw(&mut random)));
        }
        live.into_iter().flatten().for_each(|block| memory.give(block));
    });
    stage.idle();
}
