//! cache-scratch and cache-thrash: whether two threads get blocks in one cache line.
//!
//! In both a thread takes a small block, writes it many times and frees it, again and again. *Thrash* is just
//! that: an allocator that serves two threads from one line slows both down. In *scratch* every thread first
//! frees a block it was given, taken by the main thread beside those of the others: an allocator that gives it
//! out again to the thread that freed it lets the line be shared from then on.

use crate::catalogue::Values;
use crate::memory::{Block, Memory};
use crate::stage::Stage;
use std::sync::{Mutex, PoisonError};

pub(crate) fn scratch<M: Memory>(stage: &Stage, values: &Values) {
    let mut memory = M::default();
    let given: Vec<_> =
        (0..stage.threads()).map(|_| Mutex::new(Some(memory.take(values.size("size"))))).collect();
    run::<M>(stage, values, |thread| given[thread].lock().unwrap_or_else(PoisonError::into_inner).take());
}

pub(crate) fn thrash<M: Memory>(stage: &Stage, values: &Values) {
    run::<M>(stage, values, |_| None);
}

fn run<M: Memory>(stage: &Stage, values: &Values, given: impl Fn(usize) -> Option<Block> + Sync) {
    let (size, writes) = (values.size("size"), values.size("writes"));
    let blocks = values.size("blocks") / stage.threads();
    stage.each_thread(|thread| {
        let mut memory = M::default();
        if let Some(block) = given(thread) {
            memory.give(block);
        }
        for number in 0..blocks {
            if number == blocks / 2 {
                stage.steady();
            }
            let mut block = memory.take(size);
            if M::WRITABLE {
                block.work(writes);
            }
            memory.give(block);
        }
    });
    stage.idle();
}
