//! The JSON of a measurement: every run, so that others can judge with other statistics.

use crate::measure::Run;
use crate::results::View;
use hugeheap_cli::measuring::{Goal, estimate, half_spread};
use serde_json::{Map, Value, json};

/// Name of the schema.
pub(crate) const SCHEMA: &str = "hugeheap.bench.peers/1";

/// What was not measured but belongs into the report.
pub(crate) struct Circumstances {
    pub(crate) host: Value,
    pub(crate) touched: u64,
    pub(crate) quick: bool,
    /// Seconds since 1970.
    pub(crate) started: u64,
}

/// The whole report.
pub(crate) fn report(view: View<'_>, circumstances: &Circumstances, goals: &[Goal]) -> Value {
    let plan = view.plan;
    json!({
        "schema": SCHEMA,
        "started": circumstances.started,
        "host": circumstances.host,
        "runs_planned": plan.runs,
        "idle_seconds": plan.idle,
        "seed": plan.seed,
        "verified": plan.verify,
        "quick": circumstances.quick,
        "memory_touched_before": circumstances.touched,
        "interrupted_by_signal": view.results.interrupted,
        "charge_unavailable": view.results.no_charge,
        "allocators": plan.allocators.iter().map(|allocator| json!({
            "name": allocator.name,
            "package": allocator.package,
            "version": allocator.version(),
            "environment": allocator.environment.iter().copied().collect::<std::collections::BTreeMap<_, _>>(),
            "huge_pages": allocator.note,
        })).collect::<Vec<_>>(),
        "geometric_mean_to_reference": means(view),
        "workloads": view.entries().map(|(place, entry)| json!({
            "name": entry.workload.name,
            "threads": entry.threads,
            "settings": entry.settings,
            "about": entry.workload.about,
            "allocators": plan.allocators.iter().enumerate().map(|(allocator, named)| {
                (named.name.to_owned(), measurement(view, place, allocator))
            }).collect::<Map<_, _>>(),
        })).collect::<Vec<_>>(),
        "goals": goals.iter().map(Goal::json).collect::<Vec<_>>(),
    })
}

fn means(view: View<'_>) -> Value {
    let Some(reference) = view.reference() else { return Value::Null };
    let means = view.plan.allocators.iter().enumerate().filter_map(|(place, allocator)| {
        let (mean, count) = view.geometric_mean(place, |_| Some(reference), |_| true)?;
        let mut value = estimate(mean);
        value["workloads"] = count.into();
        Some((allocator.name.to_owned(), value))
    });
    Value::Object(means.collect())
}

fn measurement(view: View<'_>, place: usize, allocator: usize) -> Value {
    let measured = view.measurement(place, allocator);
    let against = |base: Option<usize>| view.ratio(place, allocator, base?).map(estimate);
    json!({
        "failure": measured.failure,
        "median_seconds": view.median(place, allocator),
        "half_spread_seconds": half_spread(&view.seconds(place, allocator)),
        "to_reference": against(view.reference()),
        "to_best": against(view.best(place)),
        "peak_rss": view.peak(place, allocator),
        "coverage": view.coverage(place, allocator),
        "charge_after_idling": view.charge(place, allocator),
        "memory": measured.looks,
        "latency_ns": measured.latencies,
        "runs": measured.runs.iter().map(run).collect::<Vec<_>>(),
    })
}

fn run(run: &Run) -> Value {
    json!({
        "seconds": run.seconds,
        "user": run.user,
        "system": run.system,
        "minor_faults": run.minor_faults,
        "peak_rss": run.peak_rss,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{goals, results::sample::sample};

    #[test]
    fn the_report_holds_every_run_and_all_circumstances() {
        let (plan, results) = sample();
        let view = View { plan: &plan, results: &results };
        let circumstances =
            Circumstances { host: json!({"kernel": "x"}), touched: 5, quick: true, started: 1 };
        let value = report(view, &circumstances, &goals::goals(view));
        assert_eq!(value["schema"], SCHEMA);
        assert_eq!(value["host"]["kernel"], "x");
        assert_eq!(value["allocators"][1]["environment"]["MIMALLOC_ALLOW_LARGE_OS_PAGES"], "1");
        assert_eq!(value["geometric_mean_to_reference"]["mimalloc"]["ratio"], 1.0);
        let larson = &value["workloads"][0];
        assert_eq!((&larson["name"], &larson["threads"]), (&json!("larson"), &json!(1)));
        assert_eq!(larson["allocators"]["hugeheap"]["runs"].as_array().unwrap().len(), 3);
        assert_eq!(larson["allocators"]["hugeheap"]["to_reference"]["ratio"], 0.5);
        assert_eq!(larson["allocators"]["system"]["to_best"]["ratio"], 4.0);
        assert_eq!(larson["allocators"]["hugeheap"]["memory"]["idle"]["charge"], 3 << 20);
        assert_eq!(value["workloads"][2]["allocators"]["system"]["failure"], "signal: 11");
        assert!(value["goals"].as_array().unwrap().len() > 5);
    }
}
