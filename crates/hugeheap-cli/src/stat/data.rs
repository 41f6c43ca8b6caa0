//! The results as JSON, and in the form of pyperf.

use super::compare::{Comparison, Row};
use super::metric::Metric;
use super::{Results, Subject};
use crate::bench::report::estimate;
use crate::figure::{self, Bar, Bars, Boxes, Content, Distribution, Figure, Group, Unit};
use crate::reproduce;
use serde_json::{Map, Value, json};

pub(crate) const SCHEMA: &str = "hugeheap.stat/1";

pub(super) fn data(results: &Results) -> Value {
    json!({
        "schema": SCHEMA,
        "hugeheap": env!("CARGO_PKG_VERSION"),
        "started": results.started,
        "reproduce": reproduce::command(),
        "host": results.host,
        "runs_planned": results.runs,
        "warmup": results.warmup,
        "interrupted_by_signal": results.signal,
        "counters_unavailable": results.no_counters,
        "charge_unavailable": results.no_charge,
        "commands": results.subjects.iter().enumerate().map(|(place, subject)| {
            command(results, place, subject)
        }).collect::<Vec<_>>(),
        figure::KEY: figures(results),
    })
}

fn command(results: &Results, place: usize, subject: &Subject) -> Value {
    let metrics = results
        .rows
        .iter()
        .filter_map(|row| Some((row.metric.name().to_owned(), comparison(&row.cells[place]?))));
    json!({
        "name": subject.name,
        "command": subject.words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>(),
        "prepare": subject.prepare,
        "failure": subject.failure,
        "metrics": metrics.collect::<Map<_, _>>(),
        "runs": subject.runs.iter().map(|run| {
            Metric::all().filter(|metric| !matches!(metric, Metric::Counter(_)) || run.counters.is_some())
                .map(|metric| (metric.name().to_owned(), json!(metric.of(run))))
                .collect::<Map<_, _>>()
        }).collect::<Vec<_>>(),
    })
}

fn comparison(cell: &Comparison) -> Value {
    json!({
        "median": cell.median,
        "half_spread": cell.half_spread,
        "change": cell.ratio.map(estimate),
        "probability": cell.probability,
        "significant": cell.probability.map(|_| cell.is_significant()),
    })
}

/// What a report shows: changes as bars, the two that matter most as boxes.
fn figures(results: &Results) -> Vec<Figure> {
    let names: Vec<&str> = results.subjects.iter().map(|subject| subject.name.as_str()).collect();
    let bars = |row: &Row| {
        let bars = row.cells.iter().zip(&names).filter_map(|(cell, name)| {
            let cell = (*cell)?;
            let ratio = cell.ratio?;
            Some(Bar {
                name: (*name).to_owned(),
                value: ratio.value,
                low: Some(ratio.low),
                high: Some(ratio.high),
                significant: Some(cell.is_significant()),
            })
        });
        Group { name: row.metric.title(), bars: bars.collect() }
    };
    let groups: Vec<Group> = results.rows.iter().map(bars).filter(|group| !group.bars.is_empty()).collect();
    let note = format!("ratio to {}, with its 95 % interval; pale: may as well be chance", names[0]);
    let changes = Content::Bars(Bars { unit: Unit::Ratio, reference: Some(1.0), groups });
    let mut figures = vec![Figure::new("Changes", note, changes)];
    for metric in [Metric::Wall, Metric::PeakRss] {
        let boxes = results.subjects.iter().map(|subject| Distribution {
            name: subject.name.clone(),
            values: subject.runs.iter().filter_map(|run| metric.of(run)).collect(),
        });
        let boxes = Content::Boxes(Boxes { unit: metric.unit(), boxes: boxes.collect() });
        let mut title = metric.title();
        title[..1].make_ascii_uppercase();
        figures.push(Figure::new(title, "every run; median in the box", boxes));
    }
    figures
}

/// A file of pyperf's for one command: a benchmark for each metric. `None` without runs.
pub(super) fn pyperf(results: &Results, subject: &Subject) -> Option<Value> {
    let benchmark = |metric: Metric| {
        // pyperf has no values that are not above zero.
        let values: Vec<f64> = subject.runs.iter().filter_map(|run| metric.of(run)).collect();
        if values.is_empty() || values.iter().any(|value| *value <= 0.0) {
            return None;
        }
        let unit = match metric.unit() {
            Unit::Seconds => "second",
            Unit::Bytes => "byte",
            _ => "integer",
        };
        let runs = values.iter().map(|value| json!({"values": [value], "metadata": {"loops": 1}}));
        Some(json!({
            "metadata": {"name": metric.name(), "unit": unit},
            "runs": runs.collect::<Vec<_>>(),
        }))
    };
    // A share is none of pyperf's units.
    let benchmarks: Vec<Value> =
        Metric::all().filter(|it| *it != Metric::Coverage).filter_map(benchmark).collect();
    let host = |name: &str| results.host[name].as_str().unwrap_or("unknown").to_owned();
    (!benchmarks.is_empty()).then(|| {
        json!({
            "version": "1.0",
            "metadata": {
                "command": reproduce::line(&subject.words),
                "cpu_model_name": host("cpu"),
                "platform": format!("Linux-{}", host("kernel")),
                "description": format!("hugeheap stat: {}", subject.name),
            },
            "benchmarks": benchmarks,
        })
    })
}
