//! Figures from the results of the experiments with workloads and variants, whose JSON tells figures of each pair: `obmalloc`, `give-back`.

use crate::figure::{Axis, Bar, Bars, Content, Figure, Group, Line, Lines, Mark, Panel, Table, Unit};
use crate::output::{bytes, change};
use serde_json::{Map, Value};

/// Shorter phases, as a share of the whole, get no mark: the texts would cover each other.
const MARKED: f64 = 0.06;

type Variants = Map<String, Value>;

fn workloads(value: &Value) -> impl Iterator<Item = (&str, &Variants)> {
    let all = value["workloads"].as_array().into_iter().flatten();
    all.filter_map(|one| Some((one["name"].as_str()?, one["variants"].as_object()?)))
}

/// A change that was measured: of the time of a workload, or of the whole process.
fn time(measured: &Value) -> &Value {
    if measured["time"].is_object() {
        &measured["time"]
    } else {
        &measured["times"]["whole"]["real"]["change"]
    }
}

fn median(measured: &Value) -> Option<f64> {
    measured["median_seconds"].as_f64().or(measured["times"]["whole"]["real"]["median_seconds"].as_f64())
}

pub(super) fn figures(value: &Value) -> Result<Vec<Figure>, String> {
    if workloads(value).next().is_none() {
        return Err("it has no workloads".to_owned());
    }
    let mut figures = vec![table("Time", value, &|measured| {
        let seconds = crate::output::seconds(median(measured)?);
        let ratio = time(measured)["ratio"].as_f64().filter(|_| !is_reference(measured));
        Some(ratio.map_or_else(|| seconds.clone(), |ratio| format!("{seconds}  {}", change(ratio))))
    })];
    figures.extend(bars("Time, to stock", value, &|measured| time(measured).clone()));
    figures.extend(bars("Page faults, to stock", value, &|measured| measured["faults"].clone()));
    figures.push(table("Peak of resident memory", value, &|measured| {
        let peak = measured["peak_resident"].as_f64().or(measured["resident"]["peak"].as_f64())?;
        Some(bytes(peak as u64))
    }));
    if workloads(value).any(|(_, variants)| variants.values().any(|it| it["coverage"].is_number())) {
        figures.push(table("Coverage", value, &|measured| {
            Some(format!("{:.1} %", measured["coverage"].as_f64()? * 100.0))
        }));
    }
    figures.extend(workloads(value).filter_map(|(name, variants)| over_time(name, variants)));
    Ok(figures)
}

/// The ratio of what the others are compared with is exactly one, without doubt.
fn is_reference(measured: &Value) -> bool {
    let change = time(measured);
    change["low"] == 1.0 && change["high"] == 1.0
}

fn bars(title: &str, value: &Value, of: &dyn Fn(&Value) -> Value) -> Option<Figure> {
    let group = |(name, variants): (&str, &Variants)| {
        let bars = variants.iter().skip(1).filter_map(|(variant, measured)| {
            let change = of(measured);
            let (low, high) = (change["low"].as_f64(), change["high"].as_f64());
            let excluded = |low: f64, high: f64| low > 1.0 || high < 1.0;
            Some(Bar {
                name: variant.clone(),
                value: change["ratio"].as_f64()?,
                low,
                high,
                significant: low.zip(high).map(|(low, high)| excluded(low, high)),
            })
        });
        Group { name: name.to_owned(), bars: bars.collect() }
    };
    let groups: Vec<Group> = workloads(value).map(group).filter(|group| !group.bars.is_empty()).collect();
    let note = "ratio of medians with its 95 % interval; pale: the interval holds 1";
    let bars = Content::Bars(Bars { unit: Unit::Ratio, reference: Some(1.0), groups: groups.clone() });
    (!groups.is_empty()).then(|| Figure::new(title, note, bars))
}

fn table(title: &str, value: &Value, cell: &dyn Fn(&Value) -> Option<String>) -> Figure {
    let mut names: Vec<&String> = Vec::new();
    for name in workloads(value).flat_map(|(_, variants)| variants.keys()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let head =
        std::iter::once("workload".to_owned()).chain(names.iter().map(|name| (*name).clone())).collect();
    let rows = workloads(value).map(|(workload, variants)| {
        let cells = names.iter().map(|name| match variants.get(*name) {
            Some(measured) if measured["failure"].is_string() => "failed".to_owned(),
            Some(measured) => cell(measured).unwrap_or_else(|| "–".to_owned()),
            None => "–".to_owned(),
        });
        std::iter::once(workload.to_owned()).chain(cells).collect()
    });
    Figure::new(title, "", Content::Table(Table { head, rows: rows.collect() }))
}

/// Memory of the watched runs: a panel for each variant.
fn over_time(workload: &str, variants: &Variants) -> Option<Figure> {
    let panel = |(name, measured): (&String, &Value)| {
        let samples = &measured["watched"]["samples"];
        let times = samples["seconds"].as_array()?;
        let column = |column: &str, dotted: bool| {
            let extra = if column == "rss" { samples["hugetlb"].as_array() } else { None };
            let values = samples[column].as_array()?;
            let points: Vec<(f64, f64)> = (times.iter().zip(values).enumerate())
                .filter_map(|(place, (time, value))| {
                    let more = extra.and_then(|extra| extra.get(place)?.as_f64()).unwrap_or(0.0);
                    Some((time.as_f64()?, value.as_f64()? + more))
                })
                .collect();
            let name = if column == "rss" { "RSS" } else { column }.to_owned();
            (!points.is_empty()).then_some(Line { name, runs: vec![points], dotted })
        };
        let charge = column("charge", false);
        let rss = column("rss", charge.is_some());
        let end = times.last().and_then(Value::as_f64).unwrap_or(0.0);
        let phases = measured["watched"]["phases"].as_array().into_iter().flatten();
        let marks = phases.filter_map(|phase| {
            let (begin, until) = (phase["begin"].as_f64()?, phase["end"].as_f64()?);
            let name = phase["phase"].as_str().filter(|name| *name != "start")?;
            let mark = Mark { at: begin, text: name.chars().take(1).collect() };
            (until - begin > MARKED * end).then_some(mark)
        });
        let marks = marks.collect();
        Some(Panel { title: name.clone(), lines: charge.into_iter().chain(rss).collect(), marks })
    };
    let panels: Vec<Panel> = variants.iter().filter_map(panel).collect();
    let lines = Content::Lines(Lines {
        x: Axis { label: String::new(), unit: Unit::Seconds },
        y: Axis { label: String::new(), unit: Unit::Bytes },
        panels: panels.clone(),
    });
    let note = "one watched run of each; a allocates, f frees, i idles";
    (!panels.is_empty()).then(|| Figure::new(format!("{workload}: memory over time"), note, lines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_experiment_has_tables_bars_and_lines() {
        let change = |ratio: f64| json!({"ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.01});
        let watched = json!({
            "samples": {"seconds": [0.0, 1.0], "rss": [1, 2], "hugetlb": [0, 5], "charge": [null, null]},
            "phases": [{"phase": "allocate", "begin": 0.0, "end": 1.0}],
        });
        let value = json!({"workloads": [{"name": "cycle", "variants": {
            "stock": {"failure": null, "times": {"whole": {"real": {"median_seconds": 2.0, "change": change(1.0)}}}},
            "auto": {"failure": null, "watched": watched,
                     "times": {"whole": {"real": {"median_seconds": 1.0, "change": change(0.5)}}}},
        }}]});
        let figures = figures(&value).unwrap();
        let titles: Vec<_> = figures.iter().map(|figure| figure.title.as_str()).collect();
        assert_eq!(titles, ["Time", "Time, to stock", "Peak of resident memory", "cycle: memory over time"]);
        let Content::Bars(bars) = &figures[1].content else { panic!("no bars") };
        assert_eq!((bars.groups[0].bars[0].value, bars.groups[0].bars[0].significant), (0.5, Some(true)));
        let Content::Lines(lines) = &figures[3].content else { panic!("no lines") };
        assert_eq!(lines.panels[0].lines[0].runs[0][1], (1.0, 7.0), "hugetlb pages are resident");
        assert_eq!(lines.panels[0].marks[0].text, "a");
    }
}
