//! alloc-test: slots replaced at random, small blocks far more frequent than large ones.
//!
//! Each thread has slots of its own. One operation takes a slot at random: a block there is freed, an empty slot
//! gets a new one. In the middle, half of the slots are full.

use crate::catalogue::Values;
use crate::memory::{Block, Memory};
use crate::random::Random;
use crate::stage::Stage;

pub(crate) fn run<M: Memory>(stage: &Stage, values: &Values) {
    let (slots, operations) = (values.size("slots"), values.size("operations") / stage.threads());
    let powers = values.size("powers") as u32;
    stage.each_thread(|thread| {
        let mut memory = M::default();
        let mut random = Random::new(stage.seed(), thread as u64);
        let mut live: Vec<Option<Block>> = std::iter::repeat_with(|| None).take(slots).collect();
        for operation in 0..operations {
            if operation == operations / 2 {
                stage.steady();
            }
            let slot = random.below(slots);
            live[slot] = match live[slot].take() {
                Some(block) => {
                    memory.give(block);
                    None
                }
                None => Some(memory.take(skewed(&mut random, powers))),
            };
        }
        live.into_iter().flatten().for_each(|block| memory.give(block));
    });
    stage.idle();
}

/// From 8 bytes; each of the `powers` doublings is half as likely as the one before.
fn skewed(random: &mut Random, powers: u32) -> usize {
    let bits = random.next();
    let power = 3 + bits.trailing_zeros().min(powers - 1);
    let size = 1usize << power;
    size + (bits >> 32) as usize % size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_blocks_are_frequent_and_large_ones_occur() {
        let mut random = Random::new(1, 0);
        let sizes: Vec<usize> = (0..10_000).map(|_| skewed(&mut random, 8)).collect();
        assert!(sizes.iter().all(|size| (8..2048).contains(size)));
        let small = sizes.iter().filter(|&&size| size < 16).count();
        assert!((4_700..5_300).contains(&small), "{small}");
        assert!(sizes.iter().any(|&size| size >= 1024));
    }
}
