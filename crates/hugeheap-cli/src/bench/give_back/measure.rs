//! The measurement itself: what a first look at a variant is, and what a timed run (see
//! [`series`](crate::bench::series)).
//!
//! The first look is a run watched from outside (see [`sample`]), in a cgroup of its own. It waits before its
//! first object, so that the interpreter's own memory is seen, and after its last free, so that decay is. The
//! timed runs do not wait: the reference's program did not either, and three equal seconds of sleep on both
//! sides would hide a difference.

use super::workload::{PROGRAM, Workload};
use crate::bench::observed::Observed;
use crate::bench::process;
use crate::bench::python::Script;
use crate::bench::sample::{self, Sample};
use crate::bench::series::{self, Experiment, Series};
use crate::bench::variant::Variant;
use hugeheap::telemetry::Snapshot;
use serde::{Deserialize, Serialize};
use std::process::Command;

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

impl Plan {
    pub(crate) fn series(&self) -> Series<'_, Task> {
        Series { tasks: &self.tasks, variants: &self.variants, runs: self.runs }
    }
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
pub(crate) type Measurement = series::Measurement<Watched, Run>;

/// The results of a plan.
pub(crate) type Results = series::Results<Watched, Run>;

/// The workloads in a file, and how they are run.
pub(crate) struct Bench<'a> {
    plan: &'a Plan,
    script: Script,
}

impl<'a> Bench<'a> {
    /// # Errors
    /// One line when nothing can be measured at all.
    pub(crate) fn new(plan: &'a Plan) -> Result<Self, String> {
        Ok(Self { plan, script: Script::new(PROGRAM)? })
    }

    fn command(&self, task: &Task, variant: &Variant, idle: f64) -> Command {
        let mut command = variant.command();
        command.arg(&self.script.path).arg(task.workload.name());
        command.args([task.size.to_string(), self.plan.cycles.to_string(), idle.to_string()]);
        command
    }
}

impl Experiment for Bench<'_> {
    type Task = Task;
    type Look = Watched;
    type Run = Run;
    const LOOK: &'static str = "memory over time";

    fn name(task: &Task) -> &'static str {
        task.workload.name()
    }

    fn peak(watched: &Watched) -> u64 {
        watched.samples.iter().map(Sample::resident).max().unwrap_or(0)
    }

    fn look(&self, task: &Task, variant: &Variant) -> Result<Watched, String> {
        let mut command = self.command(task, variant, self.plan.idle);
        let observed = Observed::prepare(variant, &mut command)?;
        let (measured, samples) = process::watched(&mut command, None, |pid, ended| {
            sample::watch(pid, observed.group.as_ref(), ended)
        })?;
        Ok(Watched { samples, phases: measured.told()?, telemetry: observed.telemetry() })
    }

    fn timed(&self, task: &Task, variant: &Variant) -> Result<Run, String> {
        let measured = process::measure(&mut self.command(task, variant, 0.0), None)?;
        Ok(Run {
            wall: measured.wall,
            user: measured.user,
            system: measured.system,
            minor_faults: measured.minor_faults,
            phases: measured.told()?,
        })
    }
}
