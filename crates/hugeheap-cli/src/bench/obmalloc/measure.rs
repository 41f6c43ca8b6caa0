//! The measurement itself: what a first look at a variant is, and what a timed run (see
//! [`series`](crate::bench::series)).

use super::workload::{PROGRAM, Workload};
use crate::bench::counters::{Counters, Counts};
use crate::bench::observed::Observed;
use crate::bench::process;
use crate::bench::python::Script;
use crate::bench::series::{self, Experiment, Series};
use crate::bench::variant::Variant;
use hugeheap::telemetry::Snapshot;
use serde::Deserialize;

/// What is to be measured.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) workloads: Vec<&'static Workload>,
    pub(crate) variants: Vec<Variant>,
    pub(crate) runs: u32,
    /// Seconds to wait before memory is looked at the last time; 0: no such look.
    pub(crate) idle: f64,
    /// Why hardware counters are missing, if they are.
    pub(crate) no_counters: Option<String>,
}

impl Plan {
    pub(crate) fn series(&self) -> Series<'_, &'static Workload> {
        Series { tasks: &self.workloads, variants: &self.variants, runs: self.runs }
    }
}

/// One timed run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Seconds the workload took, its objects freed, told by itself.
    pub(crate) seconds: f64,
    /// Seconds of the whole process.
    pub(crate) wall: f64,
    pub(crate) user: f64,
    pub(crate) system: f64,
    /// Minor faults of the whole process.
    pub(crate) minor_faults: u64,
    /// Minor faults of the workload alone.
    pub(crate) workload_minor_faults: u64,
    /// The most that was resident, hugetlb pages not included.
    pub(crate) peak_rss: u64,
    pub(crate) counters: Option<Counts>,
}

/// What a timed workload prints.
#[derive(Deserialize)]
struct Timed {
    seconds: f64,
    minor_faults: u64,
    peak_rss: u64,
}

/// One look at a process's memory, from the kernel. In bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize, serde::Serialize)]
pub(crate) struct Look {
    pub(crate) rss: u64,
    pub(crate) anonymous: u64,
    pub(crate) thp: u64,
    pub(crate) hugetlb: u64,
    pub(crate) page_tables: u64,
    /// Charge of the process's own cgroup, where one could be made.
    pub(crate) charge: Option<u64>,
}

impl Look {
    /// Resident memory, pages of a hugetlb pool included, which RSS leaves out.
    pub(crate) fn resident(&self) -> u64 {
        self.rss + self.hugetlb
    }

    /// Share of the anonymous memory that is mapped by huge pages.
    pub(crate) fn coverage(&self) -> Option<f64> {
        let all = self.anonymous + self.hugetlb;
        (all > 0).then(|| (self.thp + self.hugetlb) as f64 / all as f64)
    }
}

/// A workload's memory at four moments.
#[derive(Clone, Copy, Debug, Deserialize, serde::Serialize)]
pub(crate) struct Looks {
    pub(crate) start: Look,
    /// All objects live.
    pub(crate) peak: Look,
    /// Right after they were freed.
    pub(crate) freed: Look,
    /// After a pause.
    pub(crate) idle: Option<Look>,
}

/// What the memory run of a variant showed.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) looks: Looks,
    /// What hugeheap told, for its variants.
    pub(crate) telemetry: Option<Snapshot>,
}

/// All that was measured of one workload on one variant.
pub(crate) type Measurement = series::Measurement<Memory, Run>;

/// The results of a plan.
pub(crate) type Results = series::Results<Memory, Run>;

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
}

impl Experiment for Bench<'_> {
    type Task = &'static Workload;
    type Look = Memory;
    type Run = Run;
    const LOOK: &'static str = "memory";

    fn name(workload: &Self::Task) -> &'static str {
        workload.name
    }

    fn peak(memory: &Memory) -> u64 {
        memory.looks.peak.resident()
    }

    fn look(&self, workload: &Self::Task, variant: &Variant) -> Result<Memory, String> {
        let mut command = variant.command();
        command.arg(&self.script.path).args([workload.name, "memory", &self.plan.idle.to_string()]);
        let observed = Observed::prepare(variant, &mut command)?;
        if let Some(group) = &observed.group {
            command.arg(group.usage_file());
        }
        let measured = process::measure(&mut command, None)?;
        Ok(Memory { looks: measured.told()?, telemetry: observed.telemetry() })
    }

    fn timed(&self, workload: &Self::Task, variant: &Variant) -> Result<Run, String> {
        let mut command = variant.command();
        command.arg(&self.script.path).args([workload.name, "time"]);
        let counters = if self.plan.no_counters.is_none() { Counters::open().ok() } else { None };
        let measured = process::measure(&mut command, counters)?;
        let told: Timed = measured.told()?;
        Ok(Run {
            seconds: told.seconds,
            wall: measured.wall,
            user: measured.user,
            system: measured.system,
            minor_faults: measured.minor_faults,
            workload_minor_faults: told.minor_faults,
            peak_rss: told.peak_rss,
            counters: measured.counters,
        })
    }
}
