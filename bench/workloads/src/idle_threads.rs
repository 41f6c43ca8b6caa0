//! idle-threads: a server with a thread for each connection, most of which wait.
//!
//! Each thread has a few blocks of many sizes. Threads replace blocks at random, then wait with what they have.
//! An allocator that keeps something for each thread and each size keeps it so often, and nothing was freed
//! that would tell it to look.

use crate::catalogue::Values;
use crate::memory::{Block, Memory};
use crate::random::Random;
use crate::stage::Stage;
use std::sync::Barrier;

pub(crate) fn run<M: Memory>(stage: &Stage, values: &Values) {
    let (threads, blocks) = (values.size("connections"), values.size("blocks"));
    let (least, most) = (values.size("least"), values.size("most"));
    let operations = values.size("operations") / threads;
    let meeting = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let meeting = &meeting;
            scope.spawn(move || {
                let mut memory = M::default();
                let mut random = Random::new(stage.seed(), thread as u64);
                let mut live: Vec<Block> =
                    (0..blocks).map(|_| memory.take(random.within(least, most))).collect();
                meeting.wait();
                meeting.wait();
                for _ in 0..operations {
                    let place = random.below(live.len());
                    let block = memory.take(random.within(least, most));
                    memory.give(std::mem::replace(&mut live[place], block));
                }
                meeting.wait();
                meeting.wait();
                live.into_iter().for_each(|block| memory.give(block));
            });
        }
        meeting.wait();
        stage.steady();
        meeting.wait();
        meeting.wait();
        stage.idle();
        meeting.wait();
    });
}
