//! one-per-huge-page: of many small blocks one is left in every huge page.
//!
//! The worst that can happen to an allocator on huge pages: nothing of it can be given back whole. The kept blocks are
//! the first found in each huge page, wherever the allocator put them.

use crate::catalogue::Values;
use crate::memory::{Block, Memory};
use crate::stage::Stage;
use std::collections::HashSet;

/// The huge page of x86-64 and of most arm64 kernels. Elsewhere the workload is a little milder.
const HUGE_PAGE: usize = 2 << 20;

pub(crate) fn run<M: Memory>(stage: &Stage, values: &Values) {
    let size = values.size("size");
    let count = values.size("bytes") / size;
    let rounds = values.size("rounds");
    let mut memory = M::default();
    let mut kept: Vec<Block> = Vec::new();
    for round in 0..rounds {
        let live: Vec<Block> = (0..count).map(|_| memory.take(size)).collect();
        if round == rounds - 1 {
            stage.steady();
        }
        let mut seen: HashSet<usize> = kept.iter().map(|block| block.address() / HUGE_PAGE).collect();
        let mut recent = 0;
        for block in live {
            let page = block.address() / HUGE_PAGE;
            // Neighbours mostly follow each other: the set is asked once per huge page.
            if page != recent && seen.insert(page) {
                kept.push(block);
            } else {
                memory.give(block);
            }
            recent = page;
        }
    }
    stage.idle();
    kept.into_iter().for_each(|block| memory.give(block));
}
