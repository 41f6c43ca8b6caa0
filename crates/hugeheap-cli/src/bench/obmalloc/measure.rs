//! The measurement itself: which process runs when.
//!
//! Per workload: one look at the memory of each variant (it warms files and caches up, and tells how much memory must
//! be at hand), then the timed runs in turn, A B C A B C, each round beginning with another variant, so
//! that no variant always follows the same one. Before each timed run the memory it needs is touched (see [`touch`]).

use super::workload::{PROGRAM, Workload};
use crate::bench::charge::Group;
use crate::bench::counters::{Counters, Counts};
use crate::bench::variant::{Kind, Variant, turns};
use crate::bench::{interrupt, process, touch};
use crate::output::{Output, seconds};
use crate::run::{TELEMETRY, records};
use hugeheap::telemetry::Snapshot;
use serde::Deserialize;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;
use tempfile::TempDir;

/// What is to be measured.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) workloads: Vec<&'static Workload>,
    pub(crate) variants: Vec<Variant>,
    pub(crate) runs: u32,
    /// Seconds to wait before memory is looked at the last time; 0: no such look.
    pub(crate) idle: f64,
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
    /// The peak of the first run's resident memory.
    pub(crate) need: u64,
}

/// All that was measured of one workload on one variant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measurement {
    pub(crate) runs: Vec<Run>,
    pub(crate) memory: Option<Memory>,
    /// Why there is nothing, or less than planned.
    pub(crate) failure: Option<String>,
}

/// The results, by workload and variant in the order of the plan.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) measurements: Vec<Vec<Measurement>>,
    /// Why hardware counters are missing, if they are.
    pub(crate) no_counters: Option<String>,
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
        measurements: vec![vec![Measurement::default(); plan.variants.len()]; plan.workloads.len()],
        no_counters: Counters::open().err(),
        no_charge: Group::create().err(),
        interrupted: None,
    };
    let counted = results.no_counters.is_none();
    let start = Instant::now();
    for (index, &workload) in plan.workloads.iter().enumerate() {
        let row = &mut results.measurements[index];
        bench.workload(workload, row, counted);
        results.interrupted = interrupt::noted();
        if results.interrupted.is_some() {
            break;
        }
        let done = index + 1;
        let left = start.elapsed().as_secs_f64() / done as f64 * (plan.workloads.len() - done) as f64;
        let left = if left < 1.0 { String::new() } else { format!(", about {} left", seconds(left)) };
        out.progress(
            &format!("{done} of {} workloads: {} done{left}", plan.workloads.len(), workload.name),
            true,
        );
    }
    Ok(results)
}

struct Bench<'a> {
    plan: &'a Plan,
    out: &'a Output,
    directory: TempDir,
    program: PathBuf,
}

impl<'a> Bench<'a> {
    fn new(plan: &'a Plan, out: &'a Output) -> std::io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("hugeheap-bench-").tempdir()?;
        let program = directory.path().join("workloads.py");
        fs::write(&program, PROGRAM)?;
        Ok(Self { plan, out, directory, program })
    }

    fn workload(&self, workload: &Workload, row: &mut [Measurement], counted: bool) {
        for (variant, measurement) in self.plan.variants.iter().zip(&mut *row) {
            self.out.progress(&format!("{} on {}: memory", workload.name, variant.name), false);
            match self.memory(workload, variant) {
                Ok(memory) => measurement.memory = Some(memory),
                Err(why) => self.fail(workload, variant, measurement, why),
            }
            if interrupt::noted().is_some() {
                return;
            }
        }
        for (round, index) in turns(self.plan.variants.len(), self.plan.runs) {
            let (variant, measurement) = (&self.plan.variants[index], &mut row[index]);
            let Some(need) = measurement.memory.as_ref().map(|memory| memory.need) else { continue };
            if measurement.failure.is_some() {
                continue;
            }
            self.out.progress(
                &format!("{} on {}: run {} of {}", workload.name, variant.name, round + 1, self.plan.runs),
                false,
            );
            match self.timed(workload, variant, need, counted) {
                Ok(run) => measurement.runs.push(run),
                Err(why) => self.fail(workload, variant, measurement, why),
            }
            if interrupt::noted().is_some() {
                return;
            }
        }
    }

    fn fail(&self, workload: &Workload, variant: &Variant, measurement: &mut Measurement, why: String) {
        if interrupt::noted().is_none() {
            self.out.warning(&format!("{} on {} failed: {why}", workload.name, variant.name));
        }
        measurement.failure = Some(why);
    }

    fn timed(&self, workload: &Workload, variant: &Variant, need: u64, counted: bool) -> Result<Run, String> {
        let mut command = variant.command();
        command.arg(&self.program).args([workload.name, "time"]);
        // Refused when memory is short: the run shows it then.
        let _ = touch::touch_and_free(need);
        let counters = if counted { Counters::open().ok() } else { None };
        let measured = process::measure(&mut command, counters)?;
        let told: Timed = understood(&measured.stdout)?;
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

    fn memory(&self, workload: &Workload, variant: &Variant) -> Result<Memory, String> {
        let group = Group::create().ok();
        let telemetry = self.directory.path().join("telemetry");
        let mut command = variant.command();
        command.arg(&self.program).args([workload.name, "memory", &self.plan.idle.to_string()]);
        if let Some(group) = &group {
            command.arg(group.usage_file());
            group.adopt(&mut command).map_err(|error| format!("could not enter its cgroup: {error}"))?;
        }
        if variant.kind == Kind::Hugeheap {
            let _ = fs::remove_dir_all(&telemetry);
            fs::create_dir(&telemetry).map_err(|error| error.to_string())?;
            command.env(TELEMETRY, &telemetry);
        }
        let measured = process::measure(&mut command, None)?;
        let looks: Looks = understood(&measured.stdout)?;
        let told = fs::read_dir(&telemetry)
            .ok()
            .filter(|_| variant.kind == Kind::Hugeheap)
            .and_then(|entries| entries.flatten().find_map(|entry| records::read(&entry.path()).ok()));
        Ok(Memory { looks, telemetry: told, need: touch::need(looks.peak.resident()) })
    }
}

fn understood<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("printed something else than its figures: {error}"))
}
