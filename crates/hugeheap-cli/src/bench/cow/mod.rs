//! `hugeheap bench cow`: what a forked child stops sharing.
//!
//! ```text
//!   parent builds a heap ──fork──▶ child: memory of its own before, one thing, memory of its own after ──▶ the difference
//! ```
//!
//! Whether a page is shared the kernel says: `Private_Dirty` of `/proc/PID/smaps_rollup`, looked up by the
//! child. Each thing is done by a child of its own. A parent that prepared for forking has collected before
//! (CPython: and called `gc.freeze`).

pub(crate) mod arguments;
pub(crate) mod worker;

use super::goal::{self, Goal};
use super::grid::{self, Grid};
use super::report::{Circumstances, conclude, ended, writable};
use super::subject::{self, Absent, Found, Subject, Workshop};
use super::table::or_none;
use super::trials::{self, Trial};
use super::variant::Refusal;
use super::{process, requirements};
use crate::Context;
use crate::figure::{Figure, Group, Unit};
use crate::output::bytes;
use crate::run::{LEVEL, PRELOAD, library};
use crate::statistics::median;
use arguments::CowArguments;
use hugeheap_os::Facts;
use serde_json::{Map, Value, json};
use worker::{Action, Told};

const SCHEMA: &str = "hugeheap.bench.cow/1";
/// The figures are counts of pages: few runs say it.
const RUNS: u32 = 5;
const QUICK_RUNS: u32 = 1;
const SIZE: u64 = 256 << 20;
const QUICK_SIZE: u64 = 64 << 20;
const LEAST_SIZE: u64 = 4 << 20;
/// Memory of parent and child together at most, of the size.
const PEAK: u64 = 3;
const PEERS: [&str; 3] = ["cpython", "cpython-objects", "ruby"];
/// Of the parent's heap, what a whole collection without changes may un-share.
const UNSHARED: f64 = 0.02;

/// Runs the experiment.
pub(crate) fn cow(context: &Context, arguments: &CowArguments) -> u8 {
    ended(&context.out, run(context, arguments))
}

fn run(context: &Context, arguments: &CowArguments) -> Result<u8, Refusal> {
    let (out, options) = (&context.out, &arguments.report);
    let size = arguments.size.unwrap_or(if options.quick { QUICK_SIZE } else { SIZE });
    if size < LEAST_SIZE {
        return Err(Refusal::Usage(format!(
            "--size {}: less than {} cannot be told from the program itself",
            bytes(size),
            bytes(LEAST_SIZE)
        )));
    }
    let needed = size.saturating_mul(PEAK);
    requirements::memory(context.facts.available_memory().ok(), "cow", needed, "--size")?;
    let workshop = Workshop::new().map_err(Refusal::Unsupported)?;
    let mut subjects = vec![Subject::own("cow").map_err(Refusal::Unsupported)?];
    let peers =
        subject::choose(&arguments.against, &PEERS, |name| find(name, context, arguments, &workshop))?;
    subjects.extend(peers.subjects);
    writable(options.files())?;
    let circumstances = Circumstances::without_python(context, options);
    let runs = options.runs.unwrap_or(if options.quick { QUICK_RUNS } else { RUNS });
    let names: Vec<_> = subjects.iter().map(|subject| subject.name.to_owned()).collect();
    let trials = trials::run(out, &names, runs, |place| {
        process::measure(&mut subjects[place].command([size.to_string()]), None)?.told::<Told>()
    })?;
    let goals = goals(&trials);
    let text = text(&subjects, &peers.absent, &trials, size, &goals);
    let particular = particular(&subjects, &peers.absent, &trials, size, runs);
    let report = circumstances.report(SCHEMA, &[], particular, &figures(&subjects, &trials, size), &goals);
    conclude(out, options, &report, &text, None, &goals)
}

fn find(name: &'static str, context: &Context, arguments: &CowArguments, workshop: &Workshop) -> Found {
    const PYTHON: &str = include_str!("programs/program.py");
    if name == "ruby" {
        return workshop.ruby(include_str!("programs/program.rb"));
    }
    let mut subject = workshop.cpython(PYTHON, arguments.python.as_deref())?;
    if name == "cpython-objects" {
        let library = library::find(context.library.as_deref());
        let library = library.map_err(|missing| Absent::new(name, missing.to_string()))?;
        let mut preload = std::ffi::OsString::from(format!("{PRELOAD}="));
        preload.push(library);
        let words = ["env".into(), preload, format!("{LEVEL}=objects").into()];
        subject.command.splice(0..0, words);
        subject.name = name;
    }
    Ok(subject)
}

/// The share of the parent's heap that a child un-shared, over the runs.
fn share(trial: &Trial<Told>, action: Action) -> Option<f64> {
    let shares = trial.runs.iter().filter_map(|told| {
        let child = told.children.iter().find(|child| child.action == action)?;
        Some(child.unshared as f64 / told.heap.max(1) as f64)
    });
    median(&shares.collect::<Vec<_>>())
}

fn figure(trial: &Trial<Told>, action: Action, of: impl Fn(&worker::Child) -> f64) -> Option<f64> {
    let children =
        trial.runs.iter().filter_map(|told| told.children.iter().find(|child| child.action == action));
    median(&children.map(of).collect::<Vec<_>>())
}

fn goals(trials: &[Trial<Told>]) -> Vec<Goal> {
    // A parent that did not collect has a nursery with objects: its child moves them, and what is moved is its own.
    let prepared = Action::CollectsPrepared;
    let Some(share) = trials.first().and_then(|ours| share(ours, prepared)) else { return Vec::new() };
    vec![Goal::new(
        share <= UNSHARED,
        format!("un-shared by a child that {}", prepared.title()),
        format!("{:.2} % of the parent's heap (at most {:.0} %)", share * 100.0, UNSHARED * 100.0),
    )]
}

fn text(
    subjects: &[Subject],
    absent: &[Absent],
    trials: &[Trial<Told>],
    size: u64,
    goals: &[Goal],
) -> String {
    let mut text = table(subjects, trials, size).text();
    if !absent.is_empty() {
        text += "Not here:\n";
        text.extend(absent.iter().map(Absent::line));
    }
    text + &goal::listed(goals, "Goals")
}

fn table(subjects: &[Subject], trials: &[Trial<Told>], size: u64) -> Grid {
    let mut head = vec!["program".to_owned(), "parent".to_owned()];
    head.extend(Action::ALL.map(|action| action.title().to_owned()));
    let note = "share of the parent's memory that the child has for itself afterwards;\n\
                prepared: the parent collected before it forked, CPython froze its objects too;\n\
                –: there is no such thing";
    let mut grid =
        Grid::new(format!("What a forked child un-shares, heaps of about {}", bytes(size)), note, head);
    for (subject, trial) in subjects.iter().zip(trials) {
        let heap = median(&trial.values(|told| told.heap as f64));
        let mut row = vec![match &trial.failure {
            Some(_) => "failed".to_owned(),
            None => or_none(heap.map(|heap| bytes(heap as u64))),
        }];
        row.extend(Action::ALL.map(|action| {
            let part = share(trial, action).zip(figure(trial, action, |child| child.unshared as f64));
            or_none(
                part.map(|(share, unshared)| format!("{:.2} %\n{}", share * 100.0, bytes(unshared as u64))),
            )
        }));
        grid.row(&format!("{}\n{}", subject.name, subject.version), row);
    }
    grid
}

/// The shares as bars, and the table.
fn figures(subjects: &[Subject], trials: &[Trial<Told>], size: u64) -> Vec<Figure> {
    let groups = Action::ALL.map(|action| {
        let bars = subjects.iter().zip(trials);
        let bars = bars.filter_map(|(subject, trial)| Some(grid::bar(subject.name, share(trial, action)?)));
        Group { name: action.title().to_owned(), bars: bars.collect() }
    });
    let note = "share of the parent's memory that the child has for itself afterwards";
    vec![
        grid::bars("What a forked child un-shares", note, Unit::Share, groups.to_vec()),
        table(subjects, trials, size).figure(),
    ]
}

fn particular(
    subjects: &[Subject],
    absent: &[Absent],
    trials: &[Trial<Told>],
    size: u64,
    runs: u32,
) -> Value {
    let program = |trial: &Trial<Told>| {
        json!({
            "failure": trial.failure,
            "unshared_share": Action::ALL.iter().filter_map(|&action| {
                let name = serde_json::to_value(action).ok()?;
                Some((name.as_str()?.to_owned(), share(trial, action)?.into()))
            }).collect::<Map<_, Value>>(),
            "runs": trial.runs,
        })
    };
    json!({
        "runs_planned": runs,
        "size": size,
        "programs": subjects.iter().zip(trials).map(|(subject, trial)| {
            let mut value = subject.json();
            value["results"] = program(trial);
            value
        }).collect::<Vec<_>>(),
        "absent": absent.iter().map(Absent::json).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::worker::Child;
    use super::*;
    use crate::figure::Content;

    fn sample() -> (Vec<Subject>, Vec<Trial<Told>>) {
        let told = |percent: u64| Told {
            heap: 100 << 20,
            children: [Action::Nothing, Action::Collects, Action::CollectsPrepared]
                .map(|action| Child { action, unshared: percent << 20, seconds: 0.01 })
                .to_vec(),
        };
        let trial = |percent| Trial { name: String::new(), runs: vec![told(percent); 3], failure: None };
        let subject = |name| Subject::new(name, "3.11.7", &["x".as_ref()], true);
        (vec![subject("hugeheap"), subject("cpython-objects")], vec![trial(2), trial(88)])
    }

    #[test]
    fn the_goal_is_about_hugeheaps_collection() {
        let (_, mut trials) = sample();
        let met = |trials: &[Trial<Told>]| goals(trials).iter().map(|goal| goal.met).collect::<Vec<_>>();
        assert_eq!(met(&trials), [true]);
        trials[0].runs.iter_mut().for_each(|told| told.children[2].unshared = 3 << 20);
        assert_eq!(met(&trials), [false]);
    }

    #[test]
    fn the_table_shows_what_was_measured_and_fits_a_hundred_columns() {
        let (subjects, trials) = sample();
        let absent = [Absent::new("ruby", "not found: install ruby")];
        let text = text(&subjects, &absent, &trials, 100 << 20, &goals(&trials));
        for expected in ["88.00 %", "2.0 MiB", "ruby        not found", "Goals: 1 of 1 met", "–"] {
            assert!(text.contains(expected), "{expected:?} not in\n{text}");
        }
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{widest:?}\n{text}");
        let figures = figures(&subjects, &trials, 100 << 20);
        let Content::Bars(bars) = &figures[0].content else { panic!("no bars") };
        assert_eq!((bars.groups.len(), bars.groups[2].bars[1].value), (Action::ALL.len(), 0.88));
        let report = particular(&subjects, &absent, &trials, 1, 3);
        assert_eq!(report["programs"][1]["results"]["unshared_share"]["collects"].as_f64(), Some(0.88));
    }
}
