//! xmalloc: producers that only take blocks, and consumers that only free them.
//!
//! Every second thread produces batches for the thread after it, through a bounded channel. A single thread does both
//! by turns, with some batches between: the same work without a second thread.

use crate::catalogue::Values;
use crate::memory::{Block, Memory};
use crate::random::Random;
use crate::stage::Stage;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Blocks handed over at once, and batches that may be under way.
const BATCH: usize = 128;
const UNDER_WAY: usize = 64;

type Batch = Vec<Block>;

enum Role {
    Producer(SyncSender<Batch>),
    Consumer(Receiver<Batch>),
    /// Of an odd number of threads, the last.
    Both,
}

pub(crate) fn run<M: Memory>(stage: &Stage, values: &Values) {
    let (least, most) = (values.size("least"), values.size("most"));
    let producers = stage.threads().div_ceil(2);
    let batches = values.size("blocks") / (BATCH * producers);
    let mut roles = Vec::new();
    for _ in 0..stage.threads() / 2 {
        let (sender, receiver) = sync_channel(UNDER_WAY);
        roles.push(Mutex::new(Some(Role::Producer(sender))));
        roles.push(Mutex::new(Some(Role::Consumer(receiver))));
    }
    roles.resize_with(stage.threads(), || Mutex::new(Some(Role::Both)));
    stage.each_thread(|thread| {
        let role = roles[thread].lock().expect("no thread holds a role's lock when it fails").take();
        let mut memory = M::default();
        let mut random = Random::new(stage.seed(), thread as u64);
        let mut produce = |memory: &mut M| -> Batch {
            (0..BATCH).map(|_| memory.take(random.within(least, most))).collect()
        };
        let consume = |memory: &mut M, batch: Batch| batch.into_iter().for_each(|block| memory.give(block));
        match role.expect("every thread has a role of its own") {
            Role::Producer(sender) => {
                for number in 0..batches {
                    if number == batches / 2 {
                        stage.steady();
                    }
                    let batch = produce(&mut memory);
                    sender.send(batch).expect("the consumer takes as many batches as are sent");
                }
            }
            Role::Consumer(receiver) => {
                for number in 0..batches {
                    if number == batches / 2 {
                        stage.steady();
                    }
                    let batch = receiver.recv().expect("the producer sends as many batches as are taken");
                    consume(&mut memory, batch);
                }
            }
            Role::Both => {
                let mut under_way = VecDeque::new();
                for number in 0..batches {
                    if number == batches / 2 {
                        stage.steady();
                    }
                    under_way.push_back(produce(&mut memory));
                    if under_way.len() > UNDER_WAY
                        && let Some(batch) = under_way.pop_front()
                    {
                        consume(&mut memory, batch);
                    }
                }
                under_way.into_iter().for_each(|batch| consume(&mut memory, batch));
            }
        }
    });
    stage.idle();
}
