//! `hugeheap bench list`: which experiments there are, what each reproduces, and what they can be compared with here.

use super::gc::workload::Workload as Collected;
use super::give_back::workload::Workload;
use super::obmalloc::workload::WORKLOADS;
use super::peers::PEERS;
use super::python::Python;
use crate::cli::ListArguments;
use crate::output::seconds;
use crate::{Context, exit};
use serde_json::json;

const SCHEMA: &str = "hugeheap.bench.list/1";

/// An experiment as it is listed.
pub(crate) struct Listed {
    pub(crate) name: &'static str,
    pub(crate) summary: &'static str,
    /// What it reproduces: the title of the publication, and its claim.
    reference: &'static str,
    /// Beyond Linux with huge pages.
    needs: Option<&'static str>,
    /// Seconds that it took on two CPUs of an AMD EPYC, a virtual machine, with all peers: with `--quick`, and
    /// without. What `all` says of the time left begins with them, and so does its promise: together less than
    /// ten minutes, and less than an hour.
    pub(crate) takes: [f64; 2],
}

/// All experiments, in the order `all` runs them.
pub(crate) const EXPERIMENTS: &[Listed] = &[
    Listed {
        name: "obmalloc",
        summary: "CPython's small objects: time, page faults, memory and huge-page coverage",
        reference: "proposal of 2 MiB arenas for pymalloc: −8 to −30 % time, up to −99 % dTLB misses",
        needs: Some("CPython 3.8 or newer"),
        takes: [170.0, 780.0],
    },
    Listed {
        name: "alloc-rate",
        summary: "objects that nobody keeps: GB/s, ns and instructions per object, sizes of the nursery",
        reference: "how fast RPython's collector can allocate: 34 GB/s, 11 instructions per object of 16 bytes",
        needs: None,
        takes: [26.0, 120.0],
    },
    Listed {
        name: "gc",
        summary: "the garbage-collected heap at work: throughput, pauses, memory, evacuation",
        reference: "GCBench and binary trees, against Boehm's collector and OCaml's",
        needs: None,
        takes: [30.0, 720.0],
    },
    Listed {
        name: "cow",
        summary: "what a forked child stops sharing when it frees, collects, compacts",
        reference: "heap pages of 16 KiB: metadata outside of pages keeps them shared",
        needs: None,
        takes: [2.0, 40.0],
    },
    Listed {
        name: "give-back",
        summary: "memory freed and needed again: what giving back costs, and what keeping holds",
        reference: "patch that gives pymalloc's arenas back to the OS: +75 % system time for a million instances, and no more in all",
        needs: Some("CPython 3.8 or newer"),
        takes: [65.0, 405.0],
    },
    Listed {
        name: "stride",
        summary: "one access per OS page over 1 GiB, on OS pages and on huge pages",
        reference: "huge pages for allocators: 6.9 times faster, first touch and interpreter included",
        needs: None,
        takes: [1.0, 30.0],
    },
    Listed {
        name: "stranded",
        summary: "one live byte per huge page: RSS, the cgroup's charge, and what giving back makes of it",
        reference: "huge pages for allocators: RSS stays at 1.4 GB when 99 % of it is freed",
        needs: None,
        takes: [10.0, 60.0],
    },
    Listed {
        name: "startup",
        summary: "a heap of several GB made huge before a deadline, by collapse, against waiting for khugepaged",
        reference: "huge pages for allocators: khugepaged takes hours for 11 GB, MADV_COLLAPSE is deterministic",
        needs: None,
        takes: [10.0, 220.0],
    },
    Listed {
        name: "cgroup",
        summary: "a memory limit squeezed step by step: who is killed first",
        reference: "huge pages for allocators: memory limits count what is stranded, and kill",
        needs: Some("a memory cgroup in which groups can be made (root)"),
        takes: [47.0, 210.0],
    },
    Listed {
        name: "heap-pages",
        summary: "a real Ruby program on several allocators, heap pages of 16 to 128 KiB, bytes lost by rounding",
        reference: "extend heap pages to exactly 16 KiB (CRuby): less memory on jemalloc, the same on glibc",
        needs: Some("Ruby with RDoc"),
        takes: [43.0, 450.0],
    },
];

/// Workloads of an experiment that has several: names and what they do.
fn workloads(experiment: &str) -> Vec<(&'static str, &'static str)> {
    match experiment {
        "obmalloc" => WORKLOADS.iter().map(|workload| (workload.name, workload.description)).collect(),
        "give-back" => {
            Workload::ALL.iter().map(|workload| (workload.name(), workload.description())).collect()
        }
        "gc" => Collected::ALL.iter().map(|workload| (workload.name(), workload.description())).collect(),
        _ => Vec::new(),
    }
}

pub(crate) fn list(context: &Context, arguments: &ListArguments) -> u8 {
    let python = Python::find(arguments.python.as_deref());
    let peers: Vec<_> = PEERS.iter().map(|peer| (peer.name, peer.find())).collect();
    let text = if arguments.json {
        let experiments = EXPERIMENTS.iter().map(|listed| {
            json!({
                "name": listed.name,
                "summary": listed.summary,
                "reference": listed.reference,
                "needs": listed.needs,
                "seconds": {"quick": listed.takes[0], "full": listed.takes[1]},
                "workloads": workloads(listed.name).iter().map(|(name, description)| json!({
                    "name": name, "description": description,
                })).collect::<Vec<_>>(),
                "python": python.as_ref().map(Python::json).ok(),
                "peers": peers.iter().map(|(name, path)| json!({"name": name, "path": path})).collect::<Vec<_>>(),
            })
        });
        let value = json!({"schema": SCHEMA, "experiments": experiments.collect::<Vec<_>>()});
        format!("{value:#}\n")
    } else {
        let mut text = String::new();
        for listed in EXPERIMENTS {
            text += &format!("{}  {}\n", listed.name, listed.summary);
            text += &format!("    reference: {}\n", listed.reference);
            if let Some(needs) = listed.needs {
                text += &format!("    needs: {needs}\n");
            }
            let [quick, full] = listed.takes.map(seconds);
            text += &format!("    takes: about {full}, with --quick {quick}\n");
            for (name, description) in workloads(listed.name) {
                text += &format!("    {name:<19} {description}\n");
            }
        }
        text += "  Here:\n";
        match &python {
            Ok(python) => {
                text += &format!("    {:<19} {} ({})\n", "python", python.path.display(), python.text)
            }
            Err(why) => text += &format!("    {:<19} {why}\n", "python"),
        }
        for (name, path) in &peers {
            let found =
                path.as_ref().map_or_else(|| "not found".to_owned(), |path| path.display().to_string());
            text += &format!("    {name:<19} {found}\n");
        }
        text
    };
    context.out.data(&text);
    exit::OK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_experiments_together_keep_the_promise() {
        let together = |place: usize| EXPERIMENTS.iter().map(|listed| listed.takes[place]).sum::<f64>();
        // With room for a machine that is a little slower.
        assert!(
            together(0) <= 0.85 * 600.0 && together(1) <= 0.85 * 3600.0,
            "{} {}",
            together(0),
            together(1)
        );
    }
}
