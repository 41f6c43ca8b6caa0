//! The files of a measurement: JSON with every run and sample, and the samples as TSV.

use super::measure::{Measurement, Phase, Watched};
use super::results::{Clock, Part, View};
use super::text::figures;
use crate::bench::goal::Goal;
use crate::bench::report::{Circumstances, estimate};
use crate::bench::sample::{PERIOD, Sample};
use crate::run::snapshot_json;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Name of the schema.
pub(crate) const SCHEMA: &str = "hugeheap.bench.give-back/1";

/// The whole report.
pub(crate) fn report(view: View<'_>, circumstances: &Circumstances, goals: &[Goal]) -> Value {
    let particular = json!({
        "runs_planned": view.plan.runs,
        "cycles": view.plan.cycles,
        "idle_seconds": view.plan.idle,
        "sample_seconds": PERIOD.as_secs_f64(),
        "charge_unavailable": view.results.no_charge,
        "workloads": view.plan.tasks.iter().enumerate().map(|(place, task)| json!({
            "name": task.workload.name(),
            "description": task.workload.description(),
            "size": task.size,
            "variants": view.plan.variants.iter().enumerate().map(|(variant, named)| {
                (named.name.clone(), measurement(view, place, variant))
            }).collect::<Map<_, _>>(),
        })).collect::<Vec<_>>(),
    });
    circumstances.report(SCHEMA, &view.plan.variants, particular, &figures(view), goals)
}

fn measurement(view: View<'_>, place: usize, variant: usize) -> Value {
    let measured = view.measurement(place, variant);
    let held = view.charged(place, variant);
    json!({
        "failure": measured.failure,
        "times": Part::ALL.iter().map(|&part| (part.name().to_owned(), times(view, place, variant, part)))
            .collect::<Map<_, _>>(),
        "resident": view.resident(place, variant),
        "charge": held,
        "charge_held_share": held.and_then(super::results::Held::share),
        "runs": measured.runs.iter().map(|run| json!({
            "wall": run.wall,
            "user": run.user,
            "system": run.system,
            "minor_faults": run.minor_faults,
            "phases": phases(&run.phases, run.phases.first().map_or(0.0, |phase| phase.begin)),
        })).collect::<Vec<_>>(),
        "watched": measured.look.as_ref().map(watched),
    })
}

fn times(view: View<'_>, place: usize, variant: usize, part: Part) -> Value {
    let clocks = Clock::ALL.iter().map(|&clock| {
        let value = json!({
            "median_seconds": view.median(place, variant, part, clock),
            "change": view.ratio(place, variant, part, clock).map(estimate),
        });
        (clock.name().to_owned(), value)
    });
    Value::Object(clocks.collect())
}

/// Phases with their times counted from `zero`.
fn phases(phases: &[Phase], zero: f64) -> Value {
    let shifted = phases.iter().map(|phase| Phase {
        begin: phase.begin - zero,
        end: phase.end - zero,
        ..phase.clone()
    });
    json!(shifted.collect::<Vec<_>>())
}

fn zero(watched: &Watched) -> f64 {
    watched.samples.first().map_or(0.0, |sample| sample.at)
}

fn watched(watched: &Watched) -> Value {
    let column = |figure: &dyn Fn(&Sample) -> Value| watched.samples.iter().map(figure).collect::<Vec<_>>();
    let zero = zero(watched);
    json!({
        "phases": phases(&watched.phases, zero),
        "samples": {
            "seconds": column(&|sample| json!(sample.at - zero)),
            "rss": column(&|sample| json!(sample.rss)),
            "hugetlb": column(&|sample| json!(sample.hugetlb)),
            "charge": column(&|sample| json!(sample.charge)),
        },
        "telemetry": watched.telemetry.as_ref().map(snapshot_json),
    })
}

/// All samples as a table of tab-separated values, for programs that draw.
pub(crate) fn tsv(view: View<'_>) -> String {
    let mut text = "workload\tvariant\tseconds\tphase\trss\thugetlb\tcharge\n".to_owned();
    for (place, task) in view.plan.tasks.iter().enumerate() {
        for (index, variant) in view.plan.variants.iter().enumerate() {
            let measured: &Measurement = view.measurement(place, index);
            let Some(watched) = &measured.look else { continue };
            let zero = zero(watched);
            for sample in &watched.samples {
                let phase =
                    watched.phases.iter().find(|phase| phase.begin <= sample.at && sample.at < phase.end);
                // Every phase is a string in JSON.
                let phase = phase.map_or(Value::Null, |phase| json!(phase.doing));
                let _ = writeln!(
                    text,
                    "{}\t{}\t{:.6}\t{}\t{}\t{}\t{}",
                    task.workload.name(),
                    variant.name,
                    sample.at - zero,
                    phase.as_str().unwrap_or(""),
                    sample.rss,
                    sample.hugetlb,
                    sample.charge.map_or_else(String::new, |charge| charge.to_string()),
                );
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::{goals, tests::sample};
    use super::*;
    use crate::figure::{self, Content, Figure};

    #[test]
    fn the_report_holds_every_run_and_sample() {
        let (plan, results) = sample();
        let view = View { plan: &plan, results: &results };
        let circumstances = Circumstances::for_tests();
        let value = report(view, &circumstances, &goals::goals(view));
        assert_eq!(value["schema"], SCHEMA);
        let auto = &value["workloads"][0]["variants"]["auto"];
        assert_eq!(auto["times"]["whole"]["real"]["change"]["ratio"], 0.9);
        assert_eq!(auto["runs"].as_array().unwrap().len(), 3);
        assert_eq!(auto["runs"][0]["phases"][0]["phase"], "allocate");
        assert_eq!(auto["runs"][0]["phases"][0]["begin"], 0.0);
        assert_eq!(auto["charge"]["peak"], 110 << 20);
        let samples = &auto["watched"]["samples"];
        assert_eq!(samples["seconds"][0], 0.0);
        assert_eq!(samples["charge"].as_array().unwrap().len(), samples["rss"].as_array().unwrap().len());
        assert_eq!(value["goals"].as_array().unwrap().len(), 5);
        let figures: Vec<Figure> = serde_json::from_value(value[figure::KEY].clone()).unwrap();
        let Content::Lines(lines) = &figures[0].content else { panic!("no lines") };
        assert_eq!(lines.panels[0].lines[0].name, "charge");
        assert!(figures.iter().any(|figure| matches!(figure.content, Content::Bars(_))));
    }

    #[test]
    fn the_table_has_a_line_per_sample() {
        let (plan, results) = sample();
        let view = View { plan: &plan, results: &results };
        let text = tsv(view);
        let samples: usize =
            results.measurements.iter().flatten().map(|one| one.look.as_ref().unwrap().samples.len()).sum();
        assert_eq!(text.lines().count(), 1 + samples);
        assert!(text.lines().all(|line| line.split('\t').count() == 7));
        assert!(text.contains("instances\tauto\t") && text.contains("\tidle\t"), "{text}");
    }
}
