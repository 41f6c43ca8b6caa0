//! One workload in a process of its own: what it took, how long it paused, what memory it held.

use super::machine::Machine;
use super::run;
use super::waits::{Host, Pauses, Waits, Watch, look, stolen};
use super::workload::Workload;
use clap::Args;
use hugeheap::gc::Settings;
use hugeheap::runtime::runtime;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The words after `bench worker gc`; other languages' programs get the first three, too.
#[derive(Debug, Args)]
pub(crate) struct Words {
    workload: String,
    /// Depth of trees, or bytes.
    size: u64,
    /// The file with the charge of the process's cgroup, or `-`.
    charge: PathBuf,
    /// Milliseconds after the workload in which only the clock is read.
    #[arg(long, default_value_t = 0)]
    idle: u32,
    /// Milliseconds of a step of a major collection.
    #[arg(long)]
    step: Option<u32>,
    /// Bytes of the nursery.
    #[arg(long)]
    nursery: Option<usize>,
}

/// What every program tells.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Told {
    pub(crate) seconds: f64,
    pub(crate) objects: u64,
    /// Bytes of all that it allocated, as its collector counts: with headers, what sizes are rounded to, and arrays.
    pub(crate) allocated: u64,
    pub(crate) check: u64,
    /// Bytes of objects that live in the end; 0 where the workload is not about that.
    pub(crate) live: u64,
    #[serde(default)]
    pub(crate) pauses: Option<Pauses>,
    /// What its long pauses were; hugeheap's own only.
    #[serde(default)]
    pub(crate) waits: Option<Waits>,
    /// What the host took meanwhile; the same.
    #[serde(default)]
    pub(crate) host: Option<Host>,
    pub(crate) memory: Memory,
    /// Charge after it, where it was looked up.
    #[serde(default)]
    pub(crate) peak_charge: Option<u64>,
}

/// Memory in the end, while everything that lives still does. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Memory {
    pub(crate) peak_rss: u64,
    pub(crate) anonymous: u64,
    pub(crate) huge: u64,
    /// Charge before the first object and in the end.
    #[serde(default)]
    pub(crate) charge: Option<[u64; 2]>,
}

impl Told {
    /// With headers, what sizes are rounded to, and what there is of arrays.
    pub(crate) fn bytes_per_object(&self) -> f64 {
        self.allocated as f64 / self.objects.max(1) as f64
    }
}

impl Memory {
    /// Of this process.
    fn own() -> Self {
        let field = |file: &str, name: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
            line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
        };
        Self {
            peak_rss: field("/proc/self/status", "VmHWM:"),
            anonymous: field("/proc/self/smaps_rollup", "Anonymous:"),
            huge: field("/proc/self/smaps_rollup", "AnonHugePages:"),
            charge: None,
        }
    }
}

fn charge(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Runs a workload.
///
/// # Errors
/// One line when there is no such workload, or no memory for the heap.
pub(crate) fn work(words: &Words) -> Result<Told, String> {
    let workload = Workload::parse(&words.workload).ok_or("there is no such workload")?;
    let start = charge(&words.charge);
    let step = words.step.map(|step| Duration::from_millis(step.into()));
    let mut machine = Machine::new(Settings { step, nursery: words.nursery, ..Settings::default() })?;
    // Between pinned objects every 64th allocation is a slow one, and hardly any collects: looking at each
    // would be most of the work.
    machine.watch = (workload != Workload::Pinned).then(|| Box::new(Watch::new()));
    let stolen_before = stolen();
    let begin = Instant::now();
    let done = run::run(&mut machine, workload, words.size)?;
    let seconds = begin.elapsed().as_secs_f64();
    let stolen = stolen_before.zip(stolen()).map(|(before, after)| after - before);
    let waits = machine.watch.take().map(|watch| watch.waits());
    let pauses = machine.heap.statistics().pauses;
    if workload == Workload::Evacuation {
        machine.collect();
        // What the retention rule would give back later by itself.
        runtime().give_back();
    }
    let memory =
        Memory { charge: start.zip(charge(&words.charge)).map(|(start, end)| [start, end]), ..Memory::own() };
    let idle = look(Duration::from_millis(words.idle.into()));
    Ok(Told {
        seconds,
        objects: done.objects,
        allocated: machine.allocated(),
        check: done.check,
        live: done.live,
        pauses: Some(Pauses {
            count: pauses.count,
            total: pauses.total as f64 / 1e9,
            longest: pauses.longest as f64 / 1e9,
            histogram: pauses.histogram.to_vec(),
        }),
        waits,
        host: (words.idle > 0).then_some(Host { idle, stolen }),
        memory,
        peak_charge: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(workload: &str, size: u64) -> Told {
        told_with_idle(workload, size, 0)
    }

    fn told_with_idle(workload: &str, size: u64, idle: u32) -> Told {
        let words = Words {
            workload: workload.to_owned(),
            size,
            charge: "-".into(),
            idle,
            step: None,
            nursery: None,
        };
        work(&words).unwrap()
    }

    #[test]
    fn trees_are_complete() {
        // Trees of depth 7 and 6, sixteen times four of depth 4 and sixteen of depth 6.
        let trees = told("binary-trees", 6);
        assert_eq!(trees.check, 255 + 127 + 64 * 31 + 16 * 127);
        let rounds = |depth: u32| 2 * 511 / ((1_u64 << (depth + 1)) - 1);
        let check = 511 + 2 * (rounds(4) + rounds(6)) + 1 + 127;
        assert_eq!(told("gcbench", 6).check, check);
    }

    #[test]
    fn memory_that_was_touched_for_a_workload_is_not_left_idle_before_it() {
        let idle = told_with_idle("binary-trees", 6, 400).host.expect("it was asked for").idle;
        // Once, afterwards: before it the clock was read for as long again.
        assert!((0.4..0.8).contains(&idle.total), "{}", idle.total);
    }

    #[test]
    fn what_is_replaced_is_found_again() {
        let size = 4 << 20;
        let churn = told("churn", size);
        // How many depends on the nursery, and that on the processor's caches.
        assert!(churn.pauses.unwrap().count > 0);
        // Every place has a number below three times the places.
        assert!(churn.check > 0 && churn.check < (size / 72).pow(2) * 3);
        assert!(told("lru", size).check > 10_000);
        assert!(told("wide-arrays", size).check > 0);
        assert!(told("pinned", size).check > 0);
    }

    #[test]
    fn a_tenth_is_left() {
        let told = told("evacuation", 4 << 20);
        let share = told.live as f64 / f64::from(4 << 20);
        assert!((0.08..0.12).contains(&share), "{share}");
        assert!(told.memory.peak_rss > 4 << 20 && told.memory.anonymous > told.live);
    }
}
