//! The JSON of a measurement: every run, so that others can judge with other statistics.

use super::measure::{Measurement, Run};
use super::results::{STOCK, View, faults, time};
use super::text::figures;
use crate::bench::counters::NAMES;
use crate::bench::goal::Goal;
use crate::bench::report::{Circumstances, estimate};
use crate::run::snapshot_json;
use crate::statistics::half_spread;
use serde_json::{Map, Value, json};

/// Name of the schema.
pub(crate) const SCHEMA: &str = "hugeheap.bench.obmalloc/1";

/// The whole report.
pub(crate) fn report(view: View<'_>, circumstances: &Circumstances, goals: &[Goal]) -> Value {
    let particular = json!({
        "runs_planned": view.plan.runs,
        "idle_seconds": view.plan.idle,
        "counters_unavailable": view.plan.no_counters,
        "charge_unavailable": view.results.no_charge,
        "geometric_mean": geometric_means(view),
        "workloads": view.workloads().map(|(place, workload)| json!({
            "name": workload.name,
            "description": workload.description,
            "reference": {
                "time_change": workload.time,
                "faults_change": workload.faults,
                "dtlb_load_misses_change": workload.dtlb.map(|change| change.0),
                "dtlb_store_misses_change": workload.dtlb.map(|change| change.1),
            },
            "variants": view.plan.variants.iter().enumerate().map(|(variant, named)| {
                (named.name.clone(), measurement(view, place, variant))
            }).collect::<Map<_, _>>(),
        })).collect::<Vec<_>>(),
    });
    circumstances.report(SCHEMA, &view.plan.variants, particular, &figures(view), goals)
}

fn geometric_means(view: View<'_>) -> Value {
    let means = view.plan.variants.iter().enumerate().skip(1).filter_map(|(place, variant)| {
        let (mean, workloads) = view.geometric_mean(place, STOCK)?;
        let mut value = estimate(mean);
        value["workloads"] = workloads.into();
        Some((variant.name.clone(), value))
    });
    Value::Object(means.collect())
}

fn measurement(view: View<'_>, workload: usize, variant: usize) -> Value {
    let measured = view.measurement(workload, variant);
    let figure = time(view.plan.workloads[workload]);
    json!({
        "failure": measured.failure,
        "median_seconds": view.median(workload, variant, figure),
        "half_spread_seconds": half_spread(&view.values(workload, variant, figure)),
        "time": view.ratio(workload, variant, figure).map(estimate),
        "wall": view.ratio(workload, variant, |run| run.wall).map(estimate),
        "faults": view.ratio(workload, variant, faults).map(estimate),
        "peak_resident": view.peak_resident(workload, variant),
        "coverage": view.coverage(workload, variant),
        "memory": memory(measured),
        "runs": measured.runs.iter().map(run).collect::<Vec<_>>(),
    })
}

fn memory(measured: &Measurement) -> Value {
    let Some(memory) = &measured.look else { return Value::Null };
    let mut value = json!(memory.looks);
    value["telemetry"] = memory.telemetry.as_ref().map(snapshot_json).into();
    value
}

fn run(run: &Run) -> Value {
    let counters = run.counters.map(|counts| {
        NAMES
            .iter()
            .zip(counts)
            .map(|(name, count)| ((*name).to_owned(), json!(count)))
            .collect::<Map<_, _>>()
    });
    json!({
        "seconds": run.seconds,
        "wall": run.wall,
        "user": run.user,
        "system": run.system,
        "minor_faults": run.minor_faults,
        "workload_minor_faults": run.workload_minor_faults,
        "peak_rss": run.peak_rss,
        "counters": counters,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::obmalloc::{goals, tests::sample};
    use crate::figure::{self, Content, Figure};

    #[test]
    fn the_report_holds_every_run_and_all_circumstances() {
        let (plan, results) = sample();
        let view = View { plan: &plan, results: &results };
        let circumstances = Circumstances::for_tests();
        let value = report(view, &circumstances, &goals::goals(view));
        assert_eq!(value["schema"], SCHEMA);
        assert_eq!(value["host"]["kernel"], "x");
        assert_eq!(value["variants"][1]["name"], "auto");
        let first = &value["workloads"][0];
        assert_eq!(first["name"], "list_of_tuples");
        assert_eq!(first["variants"]["stock"]["runs"].as_array().unwrap().len(), 3);
        assert_eq!(first["variants"]["auto"]["time"]["ratio"], 0.5);
        assert_eq!(first["variants"]["auto"]["coverage"], 0.99);
        assert_eq!(first["variants"]["auto"]["memory"]["telemetry"]["peak_huge"], 99);
        assert_eq!(first["variants"]["stock"]["memory"]["idle"]["charge"], 20);
        assert!(first["variants"]["auto"]["runs"][0]["counters"].is_null());
        assert_eq!(value["counters_unavailable"], "not supported");
        assert!(value["goals"].as_array().unwrap().len() > 4);
        let figures: Vec<Figure> = serde_json::from_value(value[figure::KEY].clone()).unwrap();
        let kinds = figures.iter().map(|figure| matches!(figure.content, Content::Bars(_)));
        assert_eq!(kinds.collect::<Vec<_>>()[..3], [true, true, false]);
        let Content::Bars(bars) = &figures[0].content else { panic!("no bars") };
        assert_eq!((bars.groups[0].name.as_str(), bars.groups[0].bars[0].value), ("list_of_tuples", 0.5));
    }
}
