//! The measurement itself: which process runs when.
//!
//! Per workload: one look at the memory of each allocator (it warms files and caches up, and tells how much
//! memory must be at hand); the timed runs in turn, A B C B C A, so that no allocator always follows the same
//! one; last, where it is worth it, the latency of single allocations, in runs of their own, because reading
//! the clock takes as long as an allocation. Before each run the memory it needs is touched (see [`touch`]),
//! and each is another [copy](crate::copies) of its program.

use crate::allocators::Allocator;
use crate::child::{self, Latency, Look, Told};
use crate::copies::Copy;
use hugeheap_cli::measuring::{Group, Output, interrupt, seconds, touch};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use workloads::catalogue::Workload;

/// Runs that measure latencies: of their quantiles the median is shown.
const LATENCY_RUNS: u32 = 3;

/// A workload on a number of threads.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) workload: &'static Workload,
    pub(crate) threads: usize,
    /// Parameters with other values than their defaults: `NAME=VALUE`.
    pub(crate) settings: Vec<String>,
}

impl Entry {
    pub(crate) fn name(&self) -> String {
        match self.threads {
            1 => self.workload.name.to_owned(),
            threads => format!("{} ×{threads}", self.workload.name),
        }
    }

    pub(crate) fn is(&self, name: &str, threads: usize) -> bool {
        self.workload.name == name && self.threads == threads
    }
}

/// What is to be measured.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) entries: Vec<Entry>,
    pub(crate) allocators: Vec<&'static Allocator>,
    /// Their programs, in the same order.
    pub(crate) programs: Vec<PathBuf>,
    pub(crate) runs: u32,
    /// Seconds to wait before the charge is read.
    pub(crate) idle: f64,
    pub(crate) seed: u64,
    pub(crate) verify: bool,
    /// Seconds after which a process is ended.
    pub(crate) limit: u32,
}

/// One timed run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) seconds: f64,
    pub(crate) user: f64,
    pub(crate) system: f64,
    pub(crate) minor_faults: u64,
    pub(crate) peak_rss: u64,
}

/// A workload's memory at its moments.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Looks {
    pub(crate) start: Look,
    pub(crate) steady: Look,
    /// When it holds as little as it will for a long time.
    pub(crate) low: Look,
    /// The same, after a pause.
    pub(crate) idle: Look,
}

/// All that was measured of one workload on one allocator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measurement {
    pub(crate) runs: Vec<Run>,
    pub(crate) looks: Option<Looks>,
    pub(crate) latencies: Vec<Latency>,
    /// Why there is nothing, or less than planned.
    pub(crate) failure: Option<String>,
}

/// The results, by entry and allocator in the order of the plan; of the first entries only, if it was interrupted.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) measurements: Vec<Vec<Measurement>>,
    /// Why charges are missing, if they are.
    pub(crate) no_charge: Option<String>,
    /// The signal that ended the measurement early.
    pub(crate) interrupted: Option<i32>,
}

impl Results {
    /// Keeps the workloads that are complete: of the one that was under way, allocators were not measured alike.
    pub(crate) fn leave_off(&mut self, complete: usize, signal: i32) {
        self.measurements.truncate(complete);
        self.interrupted = Some(signal);
    }
}

/// Runs the plan.
pub(crate) fn measure(plan: &Plan, out: &Output) -> Results {
    let mut results = Results {
        measurements: vec![vec![Measurement::default(); plan.allocators.len()]; plan.entries.len()],
        no_charge: Group::create().err(),
        interrupted: None,
    };
    if let Some(why) = &results.no_charge {
        out.warning(&format!("the charge after idling is left out: {why}"));
    }
    let bench = Bench { plan, out, warned: Cell::new(false) };
    let start = Instant::now();
    for (index, entry) in plan.entries.iter().enumerate() {
        bench.entry(entry, &mut results.measurements[index]);
        if let Some(signal) = interrupt::noted() {
            results.leave_off(index, signal);
            break;
        }
        let (done, all) = (index + 1, plan.entries.len());
        let left = start.elapsed().as_secs_f64() / done as f64 * (all - done) as f64;
        let left = if left < 1.0 { String::new() } else { format!(", about {} left", seconds(left)) };
        out.progress(&format!("{done} of {all} workloads: {} done{left}", entry.name()), true);
    }
    results
}

struct Bench<'a> {
    plan: &'a Plan,
    out: &'a Output,
    /// That a program could not be copied was said.
    warned: Cell<bool>,
}

impl Bench<'_> {
    fn entry(&self, entry: &Entry, row: &mut [Measurement]) {
        let mut needs = vec![0; row.len()];
        self.round(entry, 0, row, "memory", |place, measurement| {
            let told = self.memory(entry, place)?;
            needs[place] = touch::need(told.peak_rss);
            measurement.looks = looks(&told);
            if measurement.looks.is_none() {
                return Err("its program does not tell of its memory: build it again".to_owned());
            }
            Ok(())
        });
        if self.plan.verify {
            self.round(entry, 0, row, "every byte checked", |place, _| {
                self.told(entry, place, "check", needs[place]).map(drop)
            });
        }
        for round in 0..self.plan.runs {
            let what = format!("run {} of {}", round + 1, self.plan.runs);
            self.round(entry, round as usize, row, &what, |place, measurement| {
                let told = self.told(entry, place, "time", needs[place])?;
                measurement.runs.push(Run {
                    seconds: told.seconds,
                    user: told.user,
                    system: told.system,
                    minor_faults: told.minor_faults,
                    peak_rss: told.peak_rss,
                });
                Ok(())
            });
        }
        let rounds = if entry.workload.latency { LATENCY_RUNS.min(self.plan.runs) } else { 0 };
        for round in 0..rounds {
            self.round(entry, round as usize, row, "latency", |place, measurement| {
                let told = self.told(entry, place, "latency", needs[place])?;
                measurement.latencies.extend(told.latency);
                Ok(())
            });
        }
    }

    /// `step` for each allocator that has not failed, beginning with another one in each round.
    fn round(
        &self,
        entry: &Entry,
        round: usize,
        row: &mut [Measurement],
        what: &str,
        mut step: impl FnMut(usize, &mut Measurement) -> Result<(), String>,
    ) {
        let count = row.len();
        for place in (0..count).map(|place| (place + round) % count) {
            if row[place].failure.is_some() || interrupt::noted().is_some() {
                continue;
            }
            let name = self.plan.allocators[place].name;
            self.out.progress(&format!("{} on {name}: {what}", entry.name()), false);
            if let Err(why) = step(place, &mut row[place]) {
                if interrupt::noted().is_none() {
                    self.out.warning(&format!("{} on {name} failed ({what}): {why}", entry.name()));
                }
                row[place].failure = Some(why);
            }
        }
    }

    /// What is run once for an allocator.
    fn copy(&self, place: usize) -> Copy {
        let (copy, why) = Copy::of(&self.plan.programs[place]);
        if let Some(why) = why.filter(|_| !self.warned.replace(true)) {
            self.out.warning(&why);
        }
        copy
    }

    fn command(&self, program: &Path, entry: &Entry, place: usize, mode: &str) -> Command {
        let mut command = Command::new(program);
        // Variables of one allocator must not reach another: they are only set, here, for its own program.
        command.envs(self.plan.allocators[place].environment.iter().copied());
        command.args([entry.workload.name, "--mode", mode, "--threads", &entry.threads.to_string()]);
        command.args(["--seed", &self.plan.seed.to_string()]).args(&entry.settings);
        command
    }

    fn told(&self, entry: &Entry, place: usize, mode: &str, need: u64) -> Result<Told, String> {
        // Refused when memory is short: the run shows it then.
        let _ = touch::touch_and_free(need);
        let copy = self.copy(place);
        child::run(&mut self.command(&copy, entry, place, mode), self.plan.limit)
    }

    fn memory(&self, entry: &Entry, place: usize) -> Result<Told, String> {
        let group = Group::create().ok();
        let copy = self.copy(place);
        let mut command = self.command(&copy, entry, place, "memory");
        command.args(["--idle", &self.plan.idle.to_string()]);
        if let Some(group) = &group {
            command.arg("--charge").arg(group.usage_file());
            group.adopt(&mut command).map_err(|error| format!("could not enter its cgroup: {error}"))?;
        }
        child::run(&mut command, self.plan.limit.saturating_add(self.plan.idle.ceil() as u32))
    }
}

fn looks(told: &Told) -> Option<Looks> {
    Some(Looks { start: told.start?, steady: told.steady?, low: told.low?, idle: told.idle? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::ALLOCATORS;
    use std::os::unix::fs::PermissionsExt;

    /// A plan with a script in place of each allocator's program.
    fn plan(directory: &std::path::Path, scripts: &[&str]) -> Plan {
        let program = |(number, script): (usize, &&str)| {
            let path = directory.join(format!("program-{number}"));
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let workload = workloads::catalogue::find("rptest").unwrap();
        Plan {
            entries: vec![Entry { workload, threads: 2, settings: vec!["blocks=7".to_owned()] }],
            allocators: ALLOCATORS.iter().take(scripts.len()).collect(),
            programs: scripts.iter().enumerate().map(program).collect(),
            runs: 2,
            idle: 0.5,
            seed: 5,
            verify: true,
            limit: 20,
        }
    }

    const LOOK: &str = r#"{"rss":1,"anonymous":1,"thp":1,"hugetlb":0,"charge":null}"#;

    #[test]
    fn every_pass_is_run_and_a_failure_ends_only_its_own_allocator() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let good = format!(
            "echo \"$MIMALLOC_ALLOW_LARGE_OS_PAGES$@ $0\" >> {}\necho '{{\"seconds\":1,\"user\":1,\"system\":0,\
             \"minor_faults\":0,\"peak_rss\":4096,\"start\":{LOOK},\"steady\":{LOOK},\"low\":{LOOK},\"idle\":{LOOK},\
             \"latency\":{{\"count\":1,\"p50\":1,\"p99\":1,\"p999\":1,\"max\":1,\"clock\":1}}}}'",
            log.display()
        );
        let plan = plan(directory.path(), &["echo broken >&2; exit 1", &good]);
        let results = measure(&plan, &Output::new(true, false, true));
        let [broken, good] = &results.measurements[0][..] else { panic!("two allocators") };
        assert!(broken.failure.as_ref().unwrap().contains("broken") && broken.runs.is_empty());
        assert!(good.failure.is_none() && good.looks.is_some());
        assert_eq!((good.runs.len(), good.latencies.len()), (2, 2));
        let log = std::fs::read_to_string(log).unwrap();
        let modes: Vec<_> =
            log.lines().map(|line| line.split_whitespace().nth(2).unwrap().to_owned()).collect();
        assert_eq!(modes, ["memory", "check", "time", "time", "latency", "latency"]);
        assert!(log.lines().all(|line| line.starts_with("1rptest ") && line.contains("blocks=7")), "{log}");
        let mut files: Vec<_> = log.lines().filter_map(|line| line.split_whitespace().last()).collect();
        files.sort_unstable();
        files.dedup();
        assert_eq!(files.len(), modes.len(), "each run is of another file: {log}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 3, "and none is left");
    }
}
