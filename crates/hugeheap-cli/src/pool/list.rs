//! `hugeheap pool list`.

use super::facts;
use super::plan::Pool;
use crate::columns::{Align, columns};
use crate::output::{bytes, grouped};
use crate::thp::catalogue::short_size;
use hugeheap_os::Result;
use hugeheap_os::linux::Knobs;
use serde_json::{Value, json};

const SCHEMA: &str = "hugeheap.pools/1";

/// The pools of all sizes: together, and per node where there are several.
pub(crate) struct Pools {
    /// The kernel's default page size.
    default: Option<u64>,
    pub(crate) all: Vec<Pool>,
    pub(crate) nodes: Vec<Pool>,
}

impl Pools {
    /// # Errors
    /// `ENOENT` on a kernel without pools.
    pub(crate) fn read(knobs: &Knobs) -> Result<Self> {
        let sizes = facts::sizes(knobs)?;
        let all = sizes.iter().map(|&size| facts::read(knobs, size, None)).collect::<Result<_>>()?;
        let mut nodes = Vec::new();
        for &size in &sizes {
            for node in facts::nodes(knobs) {
                nodes.extend(facts::read(knobs, size, Some(node)).ok());
            }
        }
        Ok(Self { default: facts::default_size(knobs).ok(), all, nodes })
    }

    pub(crate) fn json(&self) -> Value {
        let pools = self.all.iter().map(|pool| {
            let mut value = json!({
                "page_size": pool.page,
                "default": Some(pool.page) == self.default,
                "total": pool.total,
                "unused": pool.unused,
                "reserved": pool.reserved,
                "free": pool.free(),
                "surplus": pool.surplus,
                "overcommit": pool.overcommit,
            });
            let nodes = self.nodes.iter().filter(|node| node.page == pool.page);
            value["nodes"] = nodes
                .map(|node| {
                    json!({"node": node.node, "total": node.total, "unused": node.unused, "surplus": node.surplus})
                })
                .collect();
            value
        });
        json!({"schema": SCHEMA, "pools": pools.collect::<Vec<_>>()})
    }

    /// A row for each size; below it one for each node, where there are several.
    pub(crate) fn text(&self) -> String {
        const RIGHT: Align = Align::Right;
        let aligns = [Align::Left, Align::Left, RIGHT, RIGHT, RIGHT, RIGHT, RIGHT, RIGHT, RIGHT];
        let heads = ["size", "node", "pages", "memory", "used", "reserved", "free", "surplus", "overcommit"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        let mut defaults = vec![""];
        for pool in &self.all {
            rows.push(row(pool));
            defaults.push(if Some(pool.page) == self.default { "default size" } else { "" });
            let of_nodes: Vec<_> = self.nodes.iter().filter(|node| node.page == pool.page).collect();
            if of_nodes.len() > 1 {
                rows.extend(of_nodes.into_iter().map(row));
                defaults.resize(rows.len(), "");
            }
        }
        for (row, default) in rows.iter_mut().zip(defaults) {
            row.push(default.to_owned());
        }
        columns(&aligns, &rows)
    }
}

fn row(pool: &Pool) -> Vec<String> {
    let or_dash = |count: Option<u64>| count.map_or("–".to_owned(), grouped);
    vec![
        short_size(pool.page),
        pool.node.map_or("all".to_owned(), |node| node.to_string()),
        grouped(pool.total),
        bytes(pool.total.saturating_mul(pool.page)),
        grouped(pool.total.saturating_sub(pool.unused)),
        or_dash(pool.reserved),
        or_dash(pool.reserved.map(|_| pool.free())),
        grouped(pool.surplus),
        or_dash(pool.overcommit),
    ]
}
