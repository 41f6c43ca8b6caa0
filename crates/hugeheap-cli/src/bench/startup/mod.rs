//! `hugeheap bench startup`: a heap made huge before a deadline.
//!
//! ```text
//!   measure (a process per run)  ──▶  mod (table, plot, JSON, goals)
//! ```

pub(crate) mod arguments;
mod measure;

use super::goal::{self, Goal};
use super::grid::Grid;
use super::plot::{self, Abilities};
use super::report::{Circumstances, conclude, ended, writable};
use super::table::{NONE, or_none};
use super::trials::{self, Trial};
use super::variant::Refusal;
use super::{forked, requirements, touch};
use crate::Context;
use crate::figure::{Content, Figure, Line, Lines, Panel, Unit};
use crate::output::{bytes, seconds};
use crate::statistics::median;
use arguments::StartupArguments;
use hugeheap_os::Facts;
use measure::{ALL, By, Run};
use serde_json::{Map, json};
use std::time::Duration;

const SCHEMA: &str = "hugeheap.bench.startup/1";
/// khugepaged takes the whole deadline each time, and takes the same way each time.
const RUNS: u32 = 3;
const QUICK_RUNS: u32 = 1;
const SIZE: u64 = 4 << 30;
const QUICK_SIZE: u64 = 512 << 20;
/// Collapse takes about 5 s per GiB at the pace that leaves the program half of the time.
const DEADLINE: f64 = 60.0;
const QUICK_DEADLINE: f64 = 5.0;

/// Runs the experiment.
pub(crate) fn startup(context: &Context, arguments: &StartupArguments) -> u8 {
    ended(&context.out, run(context, arguments))
}

fn run(context: &Context, arguments: &StartupArguments) -> Result<u8, Refusal> {
    let (out, options) = (&context.out, &arguments.report);
    let huge_page = requirements::huge_page(&context.facts)?;
    let size = arguments.size.unwrap_or(if options.quick { QUICK_SIZE } else { SIZE });
    if size < huge_page as u64 {
        return Err(Refusal::Usage(format!(
            "--size {}: less than one huge page, {}",
            bytes(size),
            bytes(huge_page as u64)
        )));
    }
    requirements::memory(context.facts.available_memory().ok(), "startup", touch::need(size), "--size")?;
    let deadline = arguments.deadline.unwrap_or(if options.quick { QUICK_DEADLINE } else { DEADLINE });
    let runs = options.runs.unwrap_or(if options.quick { QUICK_RUNS } else { RUNS });
    writable(options.files())?;
    let circumstances = Circumstances::without_python(context, options);
    let names = By::ALL.map(|by| by.name().to_owned());
    let trials = trials::run(out, &names, runs, |place| {
        // Refused when memory is short: the run shows it then.
        let _ = touch::touch_and_free(touch::need(size));
        forked::run(None, |_| measure::measure(By::ALL[place], size, Duration::from_secs_f64(deadline)))
    })?;
    let goals = goals(&trials, deadline);
    let table = table(&trials, size, deadline);
    let abilities = Abilities::here(out.colour_on_stdout());
    let text = |abilities| {
        let mut text = table.text();
        for trial in &trials {
            if let Some(why) = trial.runs.iter().find_map(|run| run.refusal.as_ref()) {
                text += &format!("{} ended early: {why}\n", trial.name);
            }
        }
        text += &projection(&trials);
        text.push('\n');
        text += &plot::draw(&chart(&trials), abilities);
        text + &goal::listed(&goals, "Goals")
    };
    let particular = json!({
        "runs_planned": runs,
        "size": size,
        "deadline_seconds": deadline,
        "variants": trials.iter().map(|trial| (trial.name.clone(), json!({
            "failure": trial.failure,
            "reached_seconds": middle(trial, Run::reached),
            "coverage_at_deadline": at_deadline(trial),
            "runs": trial.runs,
        }))).collect::<Map<_, _>>(),
    });
    let figures = [table.figure(), coverage(&trials)];
    let report = circumstances.report(SCHEMA, &[], particular, &figures, &goals);
    let plain = text(Abilities { colour: false, ..abilities });
    conclude(out, options, &report, &plain, Some(&text(abilities)), &goals)
}

/// The median of what there is in every run.
fn middle(trial: &Trial<Run>, figure: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    let values: Option<Vec<f64>> = trial.runs.iter().map(figure).collect();
    median(&values?)
}

fn at_deadline(trial: &Trial<Run>) -> Option<f64> {
    middle(trial, |run| Some(run.coverage(run.samples.last())))
}

fn table(trials: &[Trial<Run>], size: u64, deadline: f64) -> Grid {
    let mut head = vec![String::new()];
    head.extend(trials.iter().map(|trial| trial.name.clone()));
    let mut grid = Grid::new(
        format!("A heap of {} made huge within {}", bytes(size), seconds(deadline)),
        "medians of the runs; the program reads its heap meanwhile",
        head,
    );
    let mut add = |title: &str, cell: &dyn Fn(&Trial<Run>) -> Option<String>| {
        grid.row(title, trials.iter().map(|trial| or_none(cell(trial))));
    };
    add("filled in", &|trial| Some(seconds(middle(trial, |run| Some(run.fill))?)));
    add("on huge pages when filled", &|trial| {
        Some(percent(middle(trial, |run| Some(run.coverage(run.samples.first())))?))
    });
    add("at the end", &|trial| Some(percent(at_deadline(trial)?)));
    add("all of it after", &|trial| {
        let reached = middle(trial, Run::reached).map(|after| {
            let at_once = middle(trial, |run| Some(run.samples.first()?.0)) == Some(after);
            if at_once { "at once".to_owned() } else { seconds(after) }
        });
        (!trial.runs.is_empty()).then(|| reached.unwrap_or_else(|| "not in time".to_owned()))
    });
    add("longest stall of the program", &|trial| {
        Some(seconds(middle(trial, |run| Some(run.longest_stall))?))
    });
    add("longest call", &|trial| Some(seconds(middle(trial, |run| Some(run.collapse?.1))?)));
    grid
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// When khugepaged would have been done, from how far it came.
fn projection(trials: &[Trial<Run>]) -> String {
    let speed = middle(&trials[0], |run| {
        let (first, last) = run.samples.first().zip(run.samples.last())?;
        Some(last.1.saturating_sub(first.1) as f64 / (last.0 - first.0))
    });
    let size = trials[0].runs.first().map_or(0, |run| run.size);
    match speed {
        _ if middle(&trials[0], Run::reached).is_some() => String::new(),
        Some(speed) if speed > 0.0 => format!(
            "At its pace of {} per second khugepaged needs {} for all of it.\n",
            bytes(speed as u64),
            seconds(size as f64 / speed)
        ),
        Some(_) => "khugepaged did not come by in that time.\n".to_owned(),
        None => String::new(),
    }
}

fn goals(trials: &[Trial<Run>], deadline: f64) -> Vec<Goal> {
    let mut goals = Vec::new();
    if let Some(coverage) = at_deadline(&trials[1]) {
        let after = middle(&trials[1], Run::reached).map_or_else(|| NONE.to_owned(), seconds);
        goals.push(Goal::new(
            coverage >= ALL,
            "huge before the deadline, by collapse",
            format!(
                "{} after {after} (at least {:.0} % within {})",
                percent(coverage),
                ALL * 100.0,
                seconds(deadline)
            ),
        ));
    }
    let runs = || trials.iter().flat_map(|trial| &trial.runs);
    if runs().next().is_some() {
        let intact = runs().filter(|run| run.intact).count();
        goals.push(Goal::new(
            intact == runs().count(),
            "contents intact all the time",
            format!("in {intact} of {} runs", runs().count()),
        ));
    }
    goals
}

/// Bytes on huge pages over time, for a terminal: a panel for each variant.
fn chart(trials: &[Trial<Run>]) -> Figure {
    let panel = |trial: &Trial<Run>| Panel {
        title: trial.name.clone(),
        lines: vec![line(trial, "on huge pages", |huge, _| huge)],
        marks: Vec::new(),
    };
    let measured = trials.iter().filter(|trial| !trial.runs.is_empty());
    let lines = Lines::over_time(Unit::Bytes, "", measured.map(panel).collect());
    Figure::new("On huge pages, over time since the heap was filled", "", Content::Lines(lines))
}

/// The same as shares, in one panel.
fn coverage(trials: &[Trial<Run>]) -> Figure {
    let lines = trials.iter().map(|trial| line(trial, &trial.name, |huge, size| huge / size)).collect();
    let panel = Panel { lines, ..Panel::default() };
    Figure::new(
        "Coverage over time since the heap was filled",
        "each line ends when all of it is huge, or at the deadline",
        Content::Lines(Lines::over_time(Unit::Share, "coverage", vec![panel])),
    )
}

/// All runs of a variant; `of`: the value of bytes on huge pages and the heap's size.
fn line(trial: &Trial<Run>, name: &str, of: fn(f64, f64) -> f64) -> Line {
    let run = |run: &Run| {
        let points = run.samples.iter().map(|&(at, huge)| (at, of(huge as f64, run.size as f64)));
        points.collect()
    };
    Line { name: name.to_owned(), runs: trial.runs.iter().map(run).collect(), dotted: false }
}
