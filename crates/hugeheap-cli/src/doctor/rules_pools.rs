//! The findings about pools of hugetlb pages, of each page size by itself. Pure.
//!
//! Terms: a *pool* has `total` pages, of which some are free; it may grow by `overcommit` beyond them, and has
//! grown by `surplus`. The limits of a control group count pages in use, or those that are reserved.

use super::codes::{Code, Finding};
use super::rules::{LITTLE, add};
use super::situation::Situation;
use crate::output::{bytes, counted};
use crate::pool::plan::Pool;
use crate::thp::catalogue::short_size;

pub(super) fn pools(situation: &Situation, found: &mut Vec<Finding>) {
    for pool in &situation.pools {
        let size = short_size(pool.page);
        let option =
            if Some(pool.page) == situation.huge_page { String::new() } else { format!(" --size {size}") };
        let overcommit = pool.overcommit.unwrap_or(0);
        let memory = pool.total * pool.page;
        if pool.total > 0 && pool.free() == 0 && overcommit <= pool.surplus {
            add(
                found,
                Code::PoolUsedUp,
                format!(
                    "the pool of {size} pages is used up ({} in all): policy hugetlb goes on as thp",
                    pool.total
                ),
                format!("hugeheap pool ensure{option} 64"),
            );
        }
        let idle = pool.free() * pool.page;
        if situation.total.is_some_and(|total| idle >= total / LITTLE) {
            add(
                found,
                Code::PoolIdle,
                format!(
                    "{} of {size} pages lie unused in their pool: nobody else can have that memory",
                    bytes(idle)
                ),
                format!("hugeheap pool release{option}"),
            );
        }
        for limit in situation.pool_limits.iter().filter(|limit| limit.page == pool.page) {
            if memory > limit.bytes {
                let (kind, then) = match limit.of_reservations {
                    true => ("reserve", "mmap fails above it"),
                    false => ("use", "a touch above it kills the program (SIGBUS)"),
                };
                add(
                    found,
                    Code::PoolLimit,
                    format!(
                        "this control group may {kind} {} of the pool's {}: {then}",
                        bytes(limit.bytes),
                        bytes(memory)
                    ),
                    format!(
                        "raise hugetlb.*.{}max of the group (pod: limits: hugepages-{size}i)",
                        if limit.of_reservations { "rsvd." } else { "" }
                    ),
                );
            }
        }
        let nodes: Vec<&Pool> = situation.node_pools.iter().filter(|node| node.page == pool.page).collect();
        let most = nodes.iter().map(|node| node.total).max().unwrap_or(0);
        if let Some(least) = nodes.iter().filter(|node| node.total < most / 2).min_by_key(|node| node.total) {
            let node = least.node.unwrap_or(0);
            add(
                found,
                Code::PoolUneven,
                format!(
                    "NUMA node {node} has {} of {size}, another {most}",
                    counted(least.total, "page", "pages")
                ),
                format!("hugeheap pool set{option} --node {node} {most}"),
            );
        }
        if pool.total > 0 || overcommit > 0 {
            add(
                found,
                Code::PoolFork,
                format!(
                    "a forked child that writes to {size} pages of the pool dies (SIGBUS) when the pool is empty"
                ),
                "policy thp or auto for servers that fork; hugeheap's own arenas are guarded",
            );
        }
    }
}
