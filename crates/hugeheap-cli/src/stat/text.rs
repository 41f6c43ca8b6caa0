//! The table, and what is said of what is missing in it.

use super::Results;
use super::compare::Comparison;
use super::metric::Metric;
use crate::bench::table::{self, NONE, interval};
use crate::output::{change, counted};
use crate::reproduce;
use std::fmt::Write;

pub(super) fn text(results: &Results) -> String {
    let mut text = String::new();
    for subject in &results.subjects {
        let _ = writeln!(text, "{}  {}", subject.name, reproduce::line(&subject.words));
    }
    let most = results.subjects.iter().map(|subject| subject.runs.len()).max().unwrap_or(0);
    let runs = counted(most as u64, "run", "runs");
    let _ = writeln!(
        text,
        "\n{runs} of each, in turn; median ± half the middle half; change with its 95 % interval"
    );
    let mut head = vec![String::new()];
    for (place, subject) in results.subjects.iter().enumerate() {
        head.push(subject.name.clone());
        if place > 0 {
            head.push("change".to_owned());
            head.push("%".to_owned());
        }
    }
    let mut table = table::new(&head);
    for row in &results.rows {
        let mut cells = vec![row.metric.title()];
        for (place, cell) in row.cells.iter().enumerate() {
            cells.push(cell.map_or_else(|| NONE.to_owned(), |cell| value(row.metric, &cell)));
            if place > 0 {
                cells.push(cell.map_or_else(|| NONE.to_owned(), |cell| changed(&cell)));
                cells.push(cell.and_then(|cell| cell.ratio).map_or_else(|| NONE.to_owned(), interval));
            }
        }
        table::row(&mut table, &cells);
    }
    let _ = writeln!(text, "{table}");
    text.push_str("~ may as well be chance, all figures together judged at 5 %\n");
    if let Some(why) = &results.no_counters {
        let _ = writeln!(text, "TLB, caches, instructions: {why}");
    }
    if let Some(why) = &results.no_charge {
        let _ = writeln!(text, "charge: {why}");
    }
    for subject in &results.subjects {
        if let Some(why) = &subject.failure {
            let _ = writeln!(text, "{} failed and was left out from then on: {why}", subject.name);
        }
    }
    text
}

fn value(metric: Metric, cell: &Comparison) -> String {
    let spread = match metric.shown(cell.half_spread) {
        _ if cell.half_spread == 0.0 => "0".to_owned(),
        spread => spread,
    };
    format!("{} ± {spread}", metric.shown(cell.median))
}

fn changed(cell: &Comparison) -> String {
    // Nothing to compare with: the first command failed, or was not seen.
    if cell.probability.is_none() {
        return NONE.to_owned();
    }
    let mark = if cell.is_significant() { "" } else { "~ " };
    match cell.ratio {
        Some(ratio) => format!("{mark}{}", change(ratio.value)),
        None => format!("{mark}{NONE}"),
    }
}

/// The comparison of a metric that was zero in all runs of all commands, if it was measured.
pub(super) fn zero(results: &Results, metric: Metric, place: usize) -> Option<Comparison> {
    let is_there = results.subjects[place].runs.iter().any(|run| metric.of(run).is_some());
    let has_row = results.rows.iter().any(|row| row.metric == metric);
    (is_there && !has_row).then_some(Comparison {
        median: 0.0,
        half_spread: 0.0,
        ratio: None,
        probability: Some(1.0),
    })
}

/// Why a metric was not measured.
pub(super) fn missing(results: &Results, metric: Metric, place: usize) -> String {
    let subject = &results.subjects[place];
    let why = match metric {
        _ if subject.runs.is_empty() => format!("{} has no run", subject.name),
        Metric::Counter(_) => {
            results.no_counters.clone().unwrap_or_else(|| "this machine has no such counter".to_owned())
        }
        Metric::PeakCharge => {
            results.no_charge.clone().unwrap_or_else(|| "the kernel does not tell it".to_owned())
        }
        _ => "the command ended before it could be looked at".to_owned(),
    };
    format!("{} was not measured: {why}", metric.name())
}
