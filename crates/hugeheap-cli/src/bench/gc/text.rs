//! The tables: one per workload, a row per program.

use super::worker::Told;
use super::workload::Workload;
use super::{OURS, Plan, Results, known, pause};
use crate::bench::goal::{self, Goal};
use crate::bench::subject::Absent;
use crate::bench::table::{self, or_none, titled};
use crate::bench::trials::Trial;
use crate::output::{bytes, grouped};
use crate::statistics::{half_spread, median, ratio_of_medians};

pub(super) fn text(plan: &Plan, results: &Results, goals: &[Goal]) -> String {
    let mut text = format!(
        "Medians of {} runs. times: the seconds of hugeheap's. 50 %, 99 %, longest: pauses;\n\
         the first two are upper ends of powers of two. Memory in the end, while everything that lives\n\
         still does; charge: of the process's own cgroup.\n",
        plan.runs
    );
    let programs = plan.subjects.iter().map(|subject| format!("{} {}", subject.name, subject.version));
    text += &format!("Programs: {}\n", programs.collect::<Vec<_>>().join(", "));
    if let Some(why) = &results.no_charge {
        text += &format!("Charges are missing: {why}\n");
    }
    for (task, row) in plan.tasks.iter().zip(&results.trials) {
        text.push('\n');
        text += &workload(task, plan, row);
    }
    if !plan.absent.is_empty() {
        text += "\nNot here:\n";
        text.extend(plan.absent.iter().map(Absent::line));
    }
    text + &goal::listed(goals, "Goals")
}

fn workload(task: &super::Task, plan: &Plan, row: &[Trial<Told>]) -> String {
    let evacuated = task.workload == Workload::Evacuation;
    let charge = if evacuated { "charge/live" } else { "peak charge" };
    let head = ["program", "s", "times", "50 %", "99 %", "longest", "peak RSS", charge, "huge"];
    let mut table = table::new(&head.map(str::to_owned));
    for (place, trial) in row.iter().enumerate() {
        let subject = &plan.subjects[place];
        let mut cells = vec![subject.name.to_owned()];
        cells.extend(figures(trial, &row[OURS], place != OURS, evacuated));
        table::row(&mut table, &cells);
    }
    let objects = row.iter().flat_map(|trial| trial.runs.first()).map(|told| told.objects).next();
    let explanation = objects.map_or(String::new(), |count| format!("{} objects allocated", grouped(count)));
    titled(&task.title(), &explanation, &table)
}

fn figures(trial: &Trial<Told>, ours: &Trial<Told>, compared: bool, evacuated: bool) -> Vec<String> {
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

/// A pause: `3.1 µs`, `12.0 ms`.
fn length(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 1e-3 => format!("{:.1} µs", seconds * 1e6),
        seconds if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{seconds:.2} s"),
    }
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
            "1,000,000 objects allocated",
            "hugeheap 1.0",
            "0.100 ±0 %",
            "524.3 µs",
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
