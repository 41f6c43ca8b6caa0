//! `hugeheap bench give-back`: memory given back, and needed again.
//!
//! The worst case for an allocator that gives memory back is a program that needs it again at once; the worst
//! for one that keeps it is a program that never does. Both are measured here, and nothing in between: cycles
//! of allocating and freeing, then a wait.
//!
//! ```text
//!   bench::variant                            workload (workloads.py)   what runs, and the published figures
//!        └──────────────┬───────────────────────────┘
//!                    measure    timed runs; one watched from outside (bench::sample)
//!                       │
//!                    results    times by phase, memory at moments
//!          ┌────────────┼───────────┐
//!        text         report      goals
//!  (tables, plots)  (JSON, TSV)  (claims checked)
//! ```

mod goals;
mod measure;
mod report;
mod results;
mod text;
pub(crate) mod workload;

use super::plot::Abilities;
use super::python::Python;
use super::report::{conclude, conduct, ended, writable, write};
use super::variant::{self, Refusal};
use super::{requirements, touch};
use crate::Context;
use crate::cli::GiveBackArguments;
use crate::figure::svg;
use crate::output::bytes;
use hugeheap_os::Facts;
use measure::{Bench, Plan, Task};
use results::View;

use workload::Workload;

const RUNS: u32 = 10;
const QUICK_RUNS: u32 = 3;
/// One shows the first allocation, the others what keeping saves: medians of the later ones need a few.
const CYCLES: u32 = 5;
const QUICK_CYCLES: u32 = 3;
/// Longer than the time after which allocators give memory back by themselves.
const IDLE: f64 = 3.0;
/// As the reference.
const INSTANCES: u64 = 1_000_000;
const SIZE: u64 = 1 << 30;
const QUICK_SIZE: u64 = 256 << 20;
/// The least that is more than the interpreter itself.
const LEAST_SIZE: u64 = 16 << 20;
const LEAST_INSTANCES: u64 = 100_000;
/// Bytes an instance takes with its attribute and its place in the list: 204 in CPython 3.6, 170 in 3.8, 105 in 3.11,
/// 89 in 3.13.
const INSTANCE: u64 = 204;

/// Runs the experiment.
pub(crate) fn give_back(context: &Context, arguments: &GiveBackArguments) -> u8 {
    ended(&context.out, run(context, arguments))
}

fn run(context: &Context, arguments: &GiveBackArguments) -> Result<u8, Refusal> {
    let (out, options) = (&context.out, &arguments.report);
    let tasks = tasks(arguments, context.facts.available_memory().ok())?;
    let plot = arguments.plot.as_deref();
    if let Some(file) = plot.filter(|file| file.extension().is_none_or(|extension| extension != "svg")) {
        return Err(Refusal::Usage(format!(
            "--plot: {} is no .svg file, and SVG is what can be drawn; for other programs there is --tsv",
            file.display()
        )));
    }
    let python = Python::find(arguments.variants.python.as_deref()).map_err(Refusal::Unsupported)?;
    let mut plan = Plan {
        tasks,
        variants: variant::choose(context, &arguments.variants, &python)?,
        cycles: arguments.cycles.unwrap_or(if options.quick { QUICK_CYCLES } else { CYCLES }),
        runs: options.runs.unwrap_or(if options.quick { QUICK_RUNS } else { RUNS }),
        idle: arguments.idle.unwrap_or(IDLE),
    };
    writable(options.files().chain(plot).chain(arguments.tsv.as_deref()))?;
    let bench = Bench::new(&plan).map_err(Refusal::Unsupported)?;
    let (results, circumstances) = conduct(context, options, &python, &plan.series(), &bench)?;
    plan.tasks.truncate(results.measurements.len());

    let view = View { plan: &plan, results: &results };
    let goals = goals::goals(view);
    let abilities = Abilities::here(out.colour_on_stdout());
    let shown = text::text(view, &goals, abilities);
    let plain = text::text(view, &goals, Abilities { colour: false, ..abilities });
    let report = report::report(view, &circumstances, &goals);
    let code = conclude(out, options, &report, &plain, Some(&shown), &goals)?;
    if let Some(file) = plot {
        write(file, &svg::document(&text::charts(view)))?;
    }
    if let Some(file) = &arguments.tsv {
        write(file, &report::tsv(view))?;
    }
    Ok(code)
}

/// The workloads with their sizes, if `available` bytes of memory are enough.
fn tasks(arguments: &GiveBackArguments, available: Option<u64>) -> Result<Vec<Task>, Refusal> {
    let mut workloads = Vec::new();
    for name in &arguments.workloads {
        match (name.as_str(), Workload::parse(name)) {
            ("all", _) => workloads.extend(Workload::ALL),
            (_, Some(workload)) => workloads.push(workload),
            (_, None) => {
                let all: Vec<_> = Workload::ALL.iter().map(|workload| workload.name()).collect();
                return Err(Refusal::Usage(format!(
                    "--workloads: there is no workload '{name}'; the workloads are {}",
                    all.join(", ")
                )));
            }
        }
    }
    let quick = arguments.report.quick;
    let size = arguments.size.unwrap_or(if quick { QUICK_SIZE } else { SIZE });
    let instances = arguments.instances.unwrap_or(INSTANCES);
    if size < LEAST_SIZE {
        return Err(Refusal::Usage(format!(
            "--size {}: less than {} cannot be told from the interpreter itself",
            bytes(size),
            bytes(LEAST_SIZE)
        )));
    }
    if instances < LEAST_INSTANCES {
        return Err(Refusal::Usage(format!(
            "--instances {instances}: fewer than {LEAST_INSTANCES} cannot be told from the interpreter itself"
        )));
    }
    let mut tasks: Vec<Task> = Vec::new();
    for workload in Workload::ALL {
        if !workloads.is_empty() && !workloads.contains(&workload) {
            continue;
        }
        let (size, needed, option) = match workload {
            Workload::Instances => (instances, instances.saturating_mul(INSTANCE), "--instances"),
            Workload::Cycle => (size, size, "--size"),
        };
        requirements::memory(available, workload.name(), touch::need(needed), option)?;
        tasks.push(Task { workload, size });
    }
    Ok(tasks)
}

#[cfg(test)]
mod tests {
    use super::measure::{Doing, Measurement, Phase, Results, Run, Watched};
    use super::*;
    use crate::bench::sample::Sample;
    use crate::bench::variant::{Kind, Variant};
    use crate::cli::{BenchArguments, Cli, Command, Experiment};
    use clap::Parser;

    pub(super) const MIB: u64 = 1 << 20;

    /// Three runs of both workloads on stock and hugeheap, with round figures.
    pub(super) fn sample() -> (Plan, Results) {
        let plan = Plan {
            tasks: vec![
                Task { workload: Workload::Instances, size: 1_000_000 },
                Task { workload: Workload::Cycle, size: 256 * MIB },
            ],
            variants: vec![
                Variant::for_tests("stock", Kind::Stock),
                Variant::for_tests("auto", Kind::Hugeheap),
            ],
            cycles: 3,
            runs: 3,
            idle: 3.0,
        };
        let row = || vec![measurement(1.0, 0.1), measurement(0.9, 0.005)];
        let results = Results { measurements: vec![row(), row()], no_charge: None };
        (plan, results)
    }

    /// Cycles of 0.3 and 0.1 seconds, then of 0.2 and 0.1.
    fn phases(system: f64) -> Vec<Phase> {
        let mut at = 50.0;
        let mut phases = Vec::new();
        for (doing, len) in [
            (Doing::Allocate, 0.3),
            (Doing::Free, 0.1),
            (Doing::Allocate, 0.2),
            (Doing::Free, 0.1),
            (Doing::Allocate, 0.2),
            (Doing::Free, 0.1),
        ] {
            phases.push(Phase { doing, begin: at, end: at + len, user: len, system, minor_faults: 7 });
            at += len;
        }
        phases
    }

    fn measurement(wall: f64, system: f64) -> Measurement {
        let run = Run { wall, user: wall, system: system * 4.0, minor_faults: 9, phases: phases(system) };
        let mut watched = phases(system);
        let begin = Phase { doing: Doing::Start, begin: 49.9, end: 50.0, ..watched[0].clone() };
        watched.insert(0, begin);
        watched.push(Phase { doing: Doing::Idle, begin: 51.0, end: 54.0, ..watched[0].clone() });
        let look = |at, charge: u64| Sample {
            at,
            rss: charge,
            hugetlb: 0,
            highest: charge,
            charge: Some(charge * MIB),
        };
        let samples = vec![
            look(49.9, 9),
            look(49.99, 10),
            look(50.3, 110),
            look(50.4, 20),
            look(51.01, 60),
            look(53.9, 14),
        ];
        Measurement {
            runs: vec![run; 3],
            look: Some(Watched { samples, phases: watched, telemetry: None }),
            failure: None,
        }
    }

    fn parsed(arguments: &[&str]) -> GiveBackArguments {
        let words = ["hugeheap", "bench", "give-back"].iter().chain(arguments);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Bench(BenchArguments { experiment: Experiment::GiveBack(arguments) }) => *arguments,
            other => panic!("{other:?}"),
        }
    }

    fn refusal(arguments: &[&str], available: u64) -> String {
        match tasks(&parsed(arguments), Some(available)) {
            Err(Refusal::Usage(why) | Refusal::Unsupported(why)) => why,
            Ok(_) | Err(Refusal::Interrupted(_)) => panic!("not refused"),
        }
    }

    #[test]
    fn sizes_follow_the_options() {
        let sizes = |arguments: &[&str]| -> Vec<u64> {
            tasks(&parsed(arguments), None).ok().unwrap().iter().map(|task| task.size).collect()
        };
        assert_eq!(sizes(&[]), [INSTANCES, SIZE]);
        assert_eq!(sizes(&["--quick"]), [INSTANCES, QUICK_SIZE]);
        assert_eq!(sizes(&["--workloads", "cycle", "--size", "64M"]), [64 * MIB]);
        assert_eq!(sizes(&["--workloads", "instances", "--instances", "200000"]), [200_000]);
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_what_can() {
        assert!(refusal(&["--workloads", "nothing"], u64::MAX).contains("instances, cycle"));
        assert!(refusal(&["--size", "1M"], u64::MAX).contains("16.0 MiB"));
        assert!(refusal(&["--instances", "10"], u64::MAX).contains("100000"));
        assert!(refusal(&["--size", "64G"], 8 << 30).contains("8.0 GiB are available"));
    }
}
