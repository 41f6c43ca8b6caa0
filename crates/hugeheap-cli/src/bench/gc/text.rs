//! The tables: one per workload, a row per program.

use super::worker::Told;
use super::workload::Workload;
use super::{OURS, Plan, Results, idle_gap, known, on_processor, pause};
use crate::bench::goal::{self, Goal};
use crate::bench::grid::{self, Grid};
use crate::bench::subject::Absent;
use crate::bench::table::or_none;
use crate::bench::trials::Trial;
use crate::figure::{Bar, Figure, Group, Unit};
use crate::output::{bytes, grouped};
use crate::statistics::{half_spread, median, ratio_of_medians};

pub(super) fn text(plan: &Plan, results: &Results, goals: &[Goal]) -> String {
    let mut text = format!(
        "Medians of {} runs. times: the seconds of hugeheap's. B: allocated bytes for each object, with\n\
         headers and arrays. 50 %, 99 %, longest: pauses; the first two are upper ends of powers of two.\n\
         Memory in the end, while everything that lives still does; charge: of the process's own cgroup.\n",
        plan.runs
    );
    let programs = plan.subjects.iter().map(|subject| format!("{} {}", subject.name, subject.version));
    text += &format!("Programs: {}\n", programs.collect::<Vec<_>>().join(", "));
    if let Some(why) = &results.no_charge {
        text += &format!("Charges are missing: {why}\n");
    }
    for (task, row) in plan.tasks.iter().zip(&results.trials) {
        text.push('\n');
        text += &workload(task, plan, row).text();
    }
    if !plan.absent.is_empty() {
        text += "\nNot here:\n";
        text.extend(plan.absent.iter().map(Absent::line));
    }
    text + &goal::listed(goals, "Goals")
}

/// The bar of a program, given its place in a workload's row.
type OneBar<'a> = dyn Fn(usize, &[Trial<Told>]) -> Option<Bar> + 'a;

/// Times of others and pauses as bars, and the tables.
pub(super) fn figures(plan: &Plan, results: &Results) -> Vec<Figure> {
    let groups = |of: &OneBar<'_>| -> Vec<Group> {
        let all = plan.tasks.iter().zip(&results.trials).map(|(task, row)| Group {
            name: task.workload.name().to_owned(),
            bars: (0..row.len()).filter_map(|place| of(place, row)).collect(),
        });
        all.filter(|group| !group.bars.is_empty()).collect()
    };
    let name = |place: usize| plan.subjects[place].name;
    let seconds = |trial: &Trial<Told>| trial.values(|told| told.seconds);
    let times = groups(&|place, row| {
        let times = ratio_of_medians(&seconds(&row[place]), &seconds(&row[OURS])).filter(|_| place != OURS);
        Some(grid::ratio(name(place), times?))
    });
    // A program that never paused has a bar without length, so that each keeps its colour.
    let longest =
        |told: &Told| told.pauses.as_ref().map(|pauses| if pauses.count > 0 { pauses.longest } else { 0.0 });
    let pauses = groups(&|place, row| Some(grid::bar(name(place), known(&row[place], longest)?)));
    let mut figures = Vec::new();
    if !times.is_empty() {
        figures.push(grid::ratios(
            "Time, of hugeheap's",
            "ratio of medians with its 95 % interval; above 1: slower than hugeheap",
            times,
        ));
    }
    figures.push(grid::bars(
        "Longest pause",
        "medians of the runs; OCaml does not tell its own",
        Unit::Seconds,
        pauses,
    ));
    let tables = plan.tasks.iter().zip(&results.trials);
    figures.extend(tables.map(|(task, row)| workload(task, plan, row).figure()));
    figures
}

fn workload(task: &super::Task, plan: &Plan, row: &[Trial<Told>]) -> Grid {
    let evacuated = task.workload == Workload::Evacuation;
    let charge = if evacuated { "charge\nof live" } else { "peak\ncharge" };
    let head = ["program", "s", "times", "B", "50 %", "99 %", "longest", "peak\nRSS", charge, "huge"];
    let objects = row.iter().flat_map(|trial| trial.runs.first()).map(|told| told.objects).next();
    let mut note = objects.map_or(String::new(), |count| format!("{} objects allocated", grouped(count)));
    let ours = &row[OURS];
    let host = [
        on_processor(ours).map(|time| format!("hugeheap's pauses on a processor: up to {}", length(time))),
        idle_gap(ours).map(|gap| format!("idle host: gaps up to {}", length(gap))),
        known(ours, |told| told.host.as_ref()?.stolen).map(|time| format!("stolen: {time:.2} s")),
    ];
    let host: Vec<_> = host.into_iter().flatten().collect();
    if !host.is_empty() {
        note += &format!("\n{}", host.join("; "));
    }
    let mut grid = Grid::new(task.title(), note, head.map(str::to_owned).to_vec());
    for (place, trial) in row.iter().enumerate() {
        grid.row(plan.subjects[place].name, cells(trial, &row[OURS], place != OURS, evacuated));
    }
    grid
}

fn cells(trial: &Trial<Told>, ours: &Trial<Told>, compared: bool, evacuated: bool) -> Vec<String> {
    let seconds = trial.values(|told| told.seconds);
    let time = match (median(&seconds), &trial.failure) {
        (_, Some(_)) => "failed".to_owned(),
        (Some(time), None) => {
            let spread = half_spread(&seconds).unwrap_or(0.0) / time * 100.0;
            format!("{time:.3} ±{spread:.0} %")
        }
        (None, None) => "–".to_owned(),
    };
    let times = ratio_of_medians(&seconds, &ours.values(|told| told.seconds)).filter(|_| compared);
    let charge = if evacuated {
        known(trial, |told| Some(told.memory.charged()? / told.live as f64))
            .map(|ratio| format!("{ratio:.2}"))
    } else {
        known(trial, |told| told.peak_charge.map(|charge| charge as f64)).map(|charge| bytes(charge as u64))
    };
    vec![
        time,
        or_none(times.map(|times| format!("{:.1}", times.value))),
        or_none(known(trial, |told| Some(told.bytes_per_object())).map(|bytes| format!("{bytes:.0}"))),
        or_none(pause(trial, |pauses| pauses.quantile(0.5)).map(length)),
        or_none(pause(trial, |pauses| pauses.quantile(0.99)).map(length)),
        or_none(pause(trial, |pauses| pauses.longest).map(length)),
        or_none(known(trial, |told| Some(told.memory.peak_rss as f64)).map(|rss| bytes(rss as u64))),
        or_none(charge),
        or_none(
            known(trial, |told| Some(told.memory.coverage())).map(|share| format!("{:.0} %", share * 100.0)),
        ),
    ]
}

/// A pause, with three digits or so: `3.1 µs`, `381 µs`, `12.0 ms`.
fn length(seconds: f64) -> String {
    let (value, unit) = match seconds {
        seconds if seconds < 1e-3 => (seconds * 1e6, "µs"),
        seconds if seconds < 1.0 => (seconds * 1e3, "ms"),
        seconds => return format!("{seconds:.2} s"),
    };
    if value < 99.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::super::{goals, tests::sample};
    use super::*;

    #[test]
    fn the_tables_show_what_was_measured_and_fit_a_hundred_columns() {
        let (plan, mut results) = sample();
        results.trials[0][2] = super::super::none("ocaml");
        results.trials[1][1].failure = Some("broken".to_owned());
        let text = text(&plan, &results, &goals::goals(&plan, &results));
        for expected in [
            "binary-trees, depth 18",
            "1,000,000 objects allocated\n",
            "hugeheap's pauses on a processor: up to 1.5 ms; idle host: gaps up to 700 µs; stolen: 0.25 s",
            "  32  ",
            "hugeheap 1.0",
            "0.100 ±0 %",
            "524 µs",
            "2.0 ms",
            "1.20",
            "95 %",
            "210 MiB",
            "failed",
            "–",
            "Goals: ",
        ] {
            assert!(text.contains(expected), "{expected:?} not in\n{text}");
        }
        let widest =
            text.lines().filter(|line| !line.starts_with("  ")).map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{widest:?}\n{text}");
    }
}
