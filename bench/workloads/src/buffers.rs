//! buffers: blocks of 8 to 128 KiB that come and go like what programs read into, write from and sort in.
//!
//! Each thread has a stack of buffers that grows and shrinks at random, as calls do; one of so many that leave
//! it is not freed there: it is left in the box of the next thread, which frees what it finds in its own.

use crate::catalogue::Values;
use crate::memory::{Block, Memory};
use crate::random::{Random, Sizes};
use crate::stage::Stage;
use std::sync::{Mutex, PoisonError};

/// Buffers that leave a stack, for one that another thread frees.
const HAND_OVER: usize = 4;
/// As many buffers of each doubling of the size.
const EXPONENT: f64 = -1.0;

pub(crate) fn run<M: Memory>(stage: &Stage, values: &Values) {
    let (depth, threads) = (values.size("depth"), stage.threads());
    let operations = values.size("operations") / threads;
    let sizes = Sizes::power_law(values.size("least"), values.size("most"), EXPONENT);
    let boxes: Vec<Mutex<Vec<Block>>> = (0..threads).map(|_| Mutex::default()).collect();
    let open = |number: usize| boxes[number % threads].lock().unwrap_or_else(PoisonError::into_inner);
    stage.each_thread(|thread| {
        let mut memory = M::default();
        let mut random = Random::new(stage.seed(), thread as u64);
        let (mut live, mut done, mut steady) = (Vec::new(), 0, false);
        while done < operations {
            if !steady && done >= operations / 2 {
                steady = true;
                stage.steady();
            }
            let wanted = random.below(depth + 1);
            done += live.len().abs_diff(wanted).max(1);
            while live.len() < wanted {
                live.push(memory.take(sizes.draw(&mut random)));
            }
            for (number, block) in live.drain(wanted..).rev().enumerate() {
                let mut next = (number % HAND_OVER == HAND_OVER - 1).then(|| open(thread + 1));
                match &mut next {
                    // A thread that is behind, or has ended, is not waited for.
                    Some(next) if next.len() < depth => next.push(block),
                    _ => memory.give(block),
                }
            }
            let found = std::mem::take(&mut *open(thread));
            found.into_iter().for_each(|block| memory.give(block));
        }
        live.into_iter().for_each(|block| memory.give(block));
    });
    let mut memory = M::default();
    for rest in boxes {
        let rest = rest.into_inner().unwrap_or_else(PoisonError::into_inner);
        rest.into_iter().for_each(|block| memory.give(block));
    }
    stage.idle();
}
