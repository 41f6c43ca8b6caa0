//! The measurement itself: which process runs when.
//!
//! Per workload, each variant runs once in a cgroup of its own and is watched from outside (see [`sample`]): that run waits before
//! its first object, so that the interpreter's own memory is seen, and after its last free, so that decay is. Then
//! come the timed runs, in turn and without waits: the reference's program did not wait either, and
//! three equal seconds of sleep on both sides would hide a difference.

use super::workload::{PROGRAM, Workload};
use crate::bench::charge::Group;
use crate::bench::sample::{self, Sample};
use crate::bench::variant::{Kind, Variant, turns};
use crate::bench::{interrupt, process, touch};
use crate::output::{Output, seconds};
use crate::run::{TELEMETRY, records};
use hugeheap::telemetry::Snapshot;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::PathBuf;
use std::time::Instant;
use tempfile::TempDir;

/// A workload and how much of it: instances, or bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) workload: Workload,
    pub(crate) size: u64,
}

/// What is to be measured.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) tasks: Vec<Task>,
    pub(crate) variants: Vec<Variant>,
    pub(crate) cycles: u32,
    pub(crate) runs: u32,
    /// Seconds a watched process waits after its last free.
    pub(crate) idle: f64,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Doing {
    /// Waiting before the first object.
    Start,
    Allocate,
    Free,
    /// Waiting after the last free.
    Idle,
}

/// A phase and its cost, as the process tells.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Phase {
    #[serde(rename = "phase")]
    pub(crate) doing: Doing,
    /// Seconds of the monotonic clock.
    pub(crate) begin: f64,
    pub(crate) end: f64,
    pub(crate) user: f64,
    pub(crate) system: f64,
    pub(crate) minor_faults: u64,
}

/// One timed run, of the whole process.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) wall: f64,
    pub(crate) user: f64,
    pub(crate) system: f64,
    pub(crate) minor_faults: u64,
    pub(crate) phases: Vec<Phase>,
}

/// What the watched run of a variant showed. Times are of the monotonic clock.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) samples: Vec<Sample>,
    pub(crate) phases: Vec<Phase>,
    /// What hugeheap told, for its variants.
    pub(crate) telemetry: Option<Snapshot>,
}

/// All that was measured of one workload on one variant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measurement {
    pub(crate) runs: Vec<Run>,
    pub(crate) watched: Option<Watched>,
    /// Why there is nothing, or less than planned.
    pub(crate) failure: Option<String>,
}

/// The results, by task and variant in the order of the plan.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) measurements: Vec<Vec<Measurement>>,
    /// Why charges are missing, if they are.
    pub(crate) no_charge: Option<String>,
    /// The signal that ended the measurement early.
    pub(crate) interrupted: Option<i32>,
}

/// Runs the plan.
///
/// # Errors
/// One line when nothing can be measured at all.
pub(crate) fn measure(plan: &Plan, out: &Output) -> Result<Results, String> {
    let bench =
        Bench::new(plan, out).map_err(|error| format!("no temporary directory: {error} (set TMPDIR)"))?;
    let mut results = Results {
        measurements: vec![vec![Measurement::default(); plan.variants.len()]; plan.tasks.len()],
        no_charge: Group::create().err(),
        interrupted: None,
    };
    for (index, task) in plan.tasks.iter().enumerate() {
        let start = Instant::now();
        bench.task(task, &mut results.measurements[index]);
        results.interrupted = interrupt::noted();
        if results.interrupted.is_some() {
            break;
        }
        let (done, all) = (index + 1, plan.tasks.len());
        let took = seconds(start.elapsed().as_secs_f64());
        out.progress(&format!("{done} of {all} workloads: {} done in {took}", task.workload.name()), true);
    }
    Ok(results)
}

struct Bench<'a> {
    plan: &'a Plan,
    out: &'a Output,
    /// Removed when dropped.
    _directory: TempDir,
    program: PathBuf,
}

impl<'a> Bench<'a> {
    fn new(plan: &'a Plan, out: &'a Output) -> std::io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("hugeheap-bench-").tempdir()?;
        let program = directory.path().join("workloads.py");
        fs::write(&program, PROGRAM)?;
        Ok(Self { plan, out, _directory: directory, program })
    }

    fn task(&self, task: &Task, row: &mut [Measurement]) {
        let name = task.workload.name();
        for (variant, measurement) in self.plan.variants.iter().zip(&mut *row) {
            self.out.progress(&format!("{name} on {}: memory over time", variant.name), false);
            match self.watched(task, variant) {
                Ok(watched) => measurement.watched = Some(watched),
                Err(why) => self.fail(task, variant, measurement, why),
            }
            if interrupt::noted().is_some() {
                return;
            }
        }
        for (round, index) in turns(self.plan.variants.len(), self.plan.runs) {
            let (variant, measurement) = (&self.plan.variants[index], &mut row[index]);
            let Some(watched) = measurement.watched.as_ref().filter(|_| measurement.failure.is_none()) else {
                continue;
            };
            let peak = watched.samples.iter().map(Sample::resident).max().unwrap_or(0);
            let run = round + 1;
            self.out.progress(&format!("{name} on {}: run {run} of {}", variant.name, self.plan.runs), false);
            match self.timed(task, variant, touch::need(peak)) {
                Ok(run) => measurement.runs.push(run),
                Err(why) => self.fail(task, variant, measurement, why),
            }
            if interrupt::noted().is_some() {
                return;
            }
        }
    }

    fn fail(&self, task: &Task, variant: &Variant, measurement: &mut Measurement, why: String) {
        if interrupt::noted().is_none() {
            self.out.warning(&format!("{} on {} failed: {why}", task.workload.name(), variant.name));
        }
        measurement.failure = Some(why);
    }

    fn command(&self, task: &Task, variant: &Variant, idle: f64) -> std::process::Command {
        let mut command = variant.command();
        command.arg(&self.program).arg(task.workload.name());
        command.args([task.size.to_string(), self.plan.cycles.to_string(), idle.to_string()]);
        command
    }

    fn timed(&self, task: &Task, variant: &Variant, need: u64) -> Result<Run, String> {
        // Refused when memory is short: the run shows it then.
        let _ = touch::touch_and_free(need);
        let measured = process::measure(&mut self.command(task, variant, 0.0), None)?;
        Ok(Run {
            wall: measured.wall,
            user: measured.user,
            system: measured.system,
            minor_faults: measured.minor_faults,
            phases: understood(&measured.stdout)?,
        })
    }

    fn watched(&self, task: &Task, variant: &Variant) -> Result<Watched, String> {
        let group = Group::create().ok();
        let mut command = self.command(task, variant, self.plan.idle);
        if let Some(group) = &group {
            group.adopt(&mut command).map_err(|error| format!("could not enter its cgroup: {error}"))?;
        }
        let records = records::Records::new().map_err(|error| error.to_string())?;
        if variant.kind == Kind::Hugeheap {
            command.env(TELEMETRY, records.path());
        }
        let (measured, samples) =
            process::watched(&mut command, None, |pid, ended| sample::watch(pid, group.as_ref(), ended))?;
        Ok(Watched {
            samples,
            phases: understood(&measured.stdout)?,
            telemetry: records.read().snapshots.into_iter().next(),
        })
    }
}

fn understood(text: &str) -> Result<Vec<Phase>, String> {
    serde_json::from_str(text).map_err(|error| format!("printed something else than its figures: {error}"))
}
