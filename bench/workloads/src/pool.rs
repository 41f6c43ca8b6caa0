//! thread-pool: the workers of a pool build lists, one after the other; another thread drops them; the workers
//! wait for what comes next.
//!
//! A service with a queue. What a worker allocated is freed while it sleeps, and it may sleep for hours: an
//! allocator that leaves it to the worker to take such blocks back holds them for as long. A few blocks of each
//! list are kept to the end, as a cache keeps some.

use crate::catalogue::Values;
use crate::memory::{Block, Memory, drop_most, fill};
use crate::random::Random;
use crate::stage::Stage;
use std::sync::mpsc::{SyncSender, sync_channel};

/// What a worker is to do: build a list and send it back.
type Task = SyncSender<Vec<Block>>;

pub(crate) fn run<M: Memory>(stage: &Stage, values: &Values) {
    let (workers, rounds) = (values.size("workers"), values.size("rounds"));
    let sizes = (values.size("least"), values.size("most"));
    let (bytes, keep) = (values.size("bytes") / workers, values.size("keep"));
    std::thread::scope(|scope| {
        let tasks: Vec<_> = (0..workers)
            .map(|worker| {
                let (sender, tasks) = sync_channel::<Task>(1);
                scope.spawn(move || {
                    let mut memory = M::default();
                    let mut random = Random::new(stage.seed(), worker as u64);
                    for answer in tasks {
                        let list = fill(&mut memory, &mut random, sizes, bytes);
                        answer.send(list).expect("who asked waits for it");
                    }
                });
                sender
            })
            .collect();
        let mut memory = M::default();
        let mut random = Random::new(stage.seed(), workers as u64);
        let mut kept = Vec::new();
        for round in 0..rounds {
            let lists: Vec<_> = tasks
                .iter()
                .map(|worker| {
                    let (answer, list) = sync_channel(1);
                    worker.send(answer).expect("workers wait for tasks");
                    list.recv().expect("workers answer")
                })
                .collect();
            if round == rounds - 1 {
                stage.steady();
            }
            drop_most(&mut memory, &mut random, lists.into_iter().flatten(), keep, &mut kept);
        }
        stage.idle();
        kept.into_iter().for_each(|block| memory.give(block));
        drop(tasks);
    });
}
