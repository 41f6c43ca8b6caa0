//! `hugeheap bench obmalloc`: CPython's small objects on stock and on huge pages.
//!
//! ```text
//!   bench::variant                            workload (workloads.py)   what runs, and the published figures
//!        └──────────────┬───────────────────────────┘
//!                    measure    looks and raw runs (bench::series: which process when)
//!                       │
//!                    results    medians, ratios, coverage
//!          ┌────────────┼───────────┐
//!        text         report      goals
//!       (tables)      (JSON)    (claims checked)
//! ```

mod goals;
mod measure;
mod report;
mod results;
mod text;
pub(crate) mod workload;

use super::counters::Counters;
use super::python::Python;
use super::report::{conclude, conduct, ended, writable};
use super::variant::{self, Refusal};
use crate::Context;
use crate::cli::ObmallocArguments;
use measure::{Bench, Plan};
use results::View;
use workload::{WORKLOADS, Workload};

const RUNS: u32 = 10;
const QUICK_RUNS: u32 = 3;
/// Longer than the time after which allocators give memory back by themselves, and the host after which it reclaims.
const IDLE: f64 = 3.0;

/// Runs the experiment.
pub(crate) fn obmalloc(context: &Context, arguments: &ObmallocArguments) -> u8 {
    ended(&context.out, run(context, arguments))
}

fn run(context: &Context, arguments: &ObmallocArguments) -> Result<u8, Refusal> {
    let out = &context.out;
    let workloads = chosen(&arguments.workloads)?;
    let python = Python::find(arguments.variants.python.as_deref()).map_err(Refusal::Unsupported)?;
    let variants = variant::choose(context, &arguments.variants, &python)?;
    let report = &arguments.report;
    let mut plan = Plan {
        workloads,
        variants,
        runs: report.runs.unwrap_or(if report.quick { QUICK_RUNS } else { RUNS }),
        idle: if report.quick { 0.0 } else { IDLE },
        no_counters: Counters::open().err(),
    };
    writable(report.files())?;
    let bench = Bench::new(&plan).map_err(Refusal::Unsupported)?;
    let (results, circumstances) = conduct(context, report, &python, &plan.series(), &bench)?;
    plan.workloads.truncate(results.measurements.len());

    let view = View { plan: &plan, results: &results };
    let goals = goals::goals(view);
    let value = report::report(view, &circumstances, &goals);
    conclude(out, report, &value, &text::text(view, &goals), None, &goals)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Workload>, Refusal> {
    if names.is_empty() || names.iter().any(|name| name == "all") {
        return Ok(WORKLOADS.iter().collect());
    }
    let mut workloads = Vec::new();
    for name in names {
        let known = workload::find(name).ok_or_else(|| {
            let all: Vec<_> = WORKLOADS.iter().map(|workload| workload.name).collect();
            Refusal::Usage(format!(
                "--workloads: there is no workload '{name}'; the workloads are {}",
                all.join(", ")
            ))
        })?;
        if !workloads.contains(&known) {
            workloads.push(known);
        }
    }
    Ok(workloads)
}

#[cfg(test)]
mod tests {
    use super::measure::{Look, Looks, Measurement, Memory, Results, Run};
    use super::*;
    use crate::bench::variant::{Kind, Variant};
    use hugeheap::telemetry::Snapshot;

    /// Three runs of two workloads on stock, hugeheap and a peer, with round figures.
    pub(super) fn sample() -> (Plan, Results) {
        let measurement = |seconds: f64, minor_faults: u64, held: u64, telemetry| Measurement {
            runs: vec![
                Run {
                    seconds,
                    wall: seconds + 0.01,
                    user: seconds,
                    system: 0.0,
                    minor_faults,
                    workload_minor_faults: minor_faults,
                    peak_rss: 1000,
                    counters: None,
                };
                3
            ],
            look: Some(Memory {
                looks: Looks {
                    start: Look::default(),
                    peak: Look { rss: 1000, anonymous: 1000, ..Look::default() },
                    freed: Look { rss: 2 * held, charge: Some(2 * held), ..Look::default() },
                    idle: Some(Look { rss: held, charge: Some(held), ..Look::default() }),
                },
                telemetry,
            }),
            failure: None,
        };
        let told = Some(Snapshot { peak_resident: 100, peak_huge: 99, ..Snapshot::EMPTY });
        let row = |ours: f64| {
            vec![
                measurement(0.2, 20_000, 20, None),
                measurement(ours, 1_000, 15, told),
                measurement(0.15, 1_000, 60, None),
            ]
        };
        let plan = Plan {
            workloads: vec![workload::find("list_of_tuples").unwrap(), workload::find("dict_churn").unwrap()],
            variants: vec![
                Variant::for_tests("stock", Kind::Stock),
                Variant::for_tests("auto", Kind::Hugeheap),
                Variant::for_tests("mimalloc", Kind::Peer),
            ],
            runs: 3,
            idle: 3.0,
            no_counters: Some("not supported".to_owned()),
        };
        let results = Results { measurements: vec![row(0.1), row(0.3)], no_charge: None };
        (plan, results)
    }

    #[test]
    fn unknown_workloads_are_refused_with_the_list() {
        let Err(Refusal::Usage(why)) = chosen(&["dict_churn".into(), "nothing".into()]) else {
            panic!("chosen")
        };
        assert!(why.contains("nothing") && why.contains("list_of_tuples"), "{why}");
        assert_eq!(chosen(&[]).ok().unwrap().len(), 10);
        assert_eq!(chosen(&["dict_churn".into(), "dict_churn".into()]).ok().unwrap().len(), 1);
    }
}
