//! `hugeheap bench stranded`: one live byte per huge page.
//!
//! ```text
//!   measure (a process and a cgroup per run)  ──▶  mod (table, JSON, goals)
//! ```

pub(crate) mod arguments;
mod measure;

use super::charge::Group;
use super::goal::{self, Goal};
use super::grid::{self, Grid};
use super::report::{Circumstances, conclude, ended, writable};
use super::table::or_none;
use super::trials::{self, Trial};
use super::variant::Refusal;
use super::{forked, requirements, touch};
use crate::Context;
use crate::figure::{Figure, Group as Bars, Unit};
use crate::output::bytes;
use crate::statistics::median;
use arguments::StrandedArguments;
use hugeheap_os::Facts;
use measure::{Doing, Look, Memory, Run};
use serde_json::{Map, json};

const SCHEMA: &str = "hugeheap.bench.stranded/1";
const RUNS: u32 = 10;
const QUICK_RUNS: u32 = 3;
/// As the reference.
const HUGE_PAGES: u64 = 700;
const QUICK_HUGE_PAGES: u64 = 100;
/// The reference's RSS in kB, by step; it has no step that gives back.
const REFERENCE: [Option<u64>; 5] = [Some(28_432), Some(1_463_808), Some(1_462_112), None, Some(29_104)];
/// Of what was filled, still charged after giving back. One OS page and a page table for each huge page are two in 512.
const HELD: f64 = 0.02;
/// The same of the heap, which keeps its metadata. As the experiment give-back.
const HEAP_HELD: f64 = 0.05;

/// Runs the experiment.
pub(crate) fn stranded(context: &Context, arguments: &StrandedArguments) -> u8 {
    ended(&context.out, run(context, arguments))
}

fn run(context: &Context, arguments: &StrandedArguments) -> Result<u8, Refusal> {
    let options = &arguments.report;
    let huge_page = requirements::huge_page(&context.facts)?;
    let huge_pages =
        arguments.huge_pages.unwrap_or(if options.quick { QUICK_HUGE_PAGES } else { HUGE_PAGES });
    let need = touch::need(huge_pages * huge_page as u64);
    requirements::memory(context.facts.available_memory().ok(), "stranded", need, "--huge-pages")?;
    let runs = options.runs.unwrap_or(if options.quick { QUICK_RUNS } else { RUNS });
    writable(options.files())?;
    let no_charge = Group::create().err();
    let circumstances = Circumstances::without_python(context, options);
    let names = Memory::ALL.map(|memory| memory.name().to_owned());
    let trials = trials::run(&context.out, &names, runs, |place| {
        // Refused when memory is short: the run shows it then.
        let _ = touch::touch_and_free(need);
        let group = Group::create().ok();
        forked::run(group.as_ref(), |_| measure::measure(Memory::ALL[place], huge_pages, group.as_ref()))
    })?;
    let goals = goals(&trials);
    let table = table(&trials, huge_pages, no_charge.is_none());
    let mut text = table.text();
    if let Some(why) = &no_charge {
        text += &format!("The charge of a cgroup cannot be read: {why}\n");
    }
    text += &said(&trials, huge_pages);
    text += &goal::listed(&goals, "Goals");
    let particular = json!({
        "runs_planned": runs,
        "huge_pages": huge_pages,
        "charge_unavailable": no_charge,
        "variants": trials.iter().map(|trial| (trial.name.clone(), json!({
            "failure": trial.failure, "runs": trial.runs,
        }))).collect::<Map<_, _>>(),
        "reference": Doing::ALL.iter().zip(REFERENCE).map(|(doing, rss)| json!({
            "doing": doing, "rss": rss.map(|rss| rss * 1024),
        })).collect::<Vec<_>>(),
    });
    let figures = figures(&trials, &table);
    let report = circumstances.report(SCHEMA, &[], particular, &figures, &goals);
    conclude(&context.out, options, &report, &text, None, &goals)
}

/// The median over the runs of a figure at a step.
fn at(trial: &Trial<Run>, doing: Doing, figure: impl Fn(&Look) -> Option<u64>) -> Option<u64> {
    let looks = trial.runs.iter().filter_map(|run| run.iter().find(|look| look.doing == doing));
    median(&looks.filter_map(|look| Some(figure(look)? as f64)).collect::<Vec<_>>()).map(|value| value as u64)
}

fn table(trials: &[Trial<Run>], huge_pages: u64, with_charge: bool) -> Grid {
    let mut head = vec![String::new()];
    for trial in trials {
        head.push(format!("{}\nRSS", trial.name));
        if with_charge {
            head.push("\ncharge".to_owned());
        }
    }
    head.push("reference\nRSS".to_owned());
    let mut grid = Grid::new(
        format!("One live piece in each of {huge_pages} huge pages"),
        "medians of the runs; reference: 700 regions, mode always, Linux 6.5",
        head,
    );
    for (doing, reference) in Doing::ALL.into_iter().zip(REFERENCE) {
        let mut cells = Vec::new();
        for trial in trials {
            cells.push(or_none(at(trial, doing, |look| Some(look.rss)).map(bytes)));
            if with_charge {
                cells.push(or_none(at(trial, doing, |look| look.charge).map(bytes)));
            }
        }
        cells.push(or_none(reference.map(|kilobytes| bytes(kilobytes * 1024))));
        grid.row(doing.title(), cells);
    }
    grid
}

/// What the table does not show: time, contents, and where the reference does not hold.
fn said(trials: &[Trial<Run>], huge_pages: u64) -> String {
    let mut text = String::new();
    let seconds = |trial: &Trial<Run>| {
        let looks =
            trial.runs.iter().filter_map(|run| run.iter().find(|look| look.doing == Doing::GivenBack));
        median(&looks.map(|look| look.seconds).collect::<Vec<_>>())
    };
    let thp = &trials[1];
    if let Some(seconds) = seconds(thp) {
        text += &format!(
            "Splitting took {:.2} ms per huge page on THP. hugeheap's heap first waits for its decay time.\n",
            seconds * 1e3 / huge_pages as f64
        );
    }
    let fell =
        at(thp, Doing::Freed, |look| Some(look.rss)).zip(at(thp, Doing::Filled, |look| Some(look.rss)));
    if fell.is_some_and(|(after, before)| after < before / 2) {
        text += "RSS does fall here when a part of a huge page is dropped, unlike in the reference.\n";
        if held(thp, Doing::Freed).is_some_and(|held| held > 0.5) {
            text += "The charge does not: the kernel holds the rest of each huge page until it is split.\n";
        }
    }
    text
}

/// Of what was charged for the fill, the share still charged at `doing`.
fn held(trial: &Trial<Run>, doing: Doing) -> Option<f64> {
    let charge = |doing| at(trial, doing, |look| look.charge);
    let before = charge(Doing::Before)?;
    let filled = charge(Doing::Filled)?.checked_sub(before).filter(|&filled| filled > 0)?;
    Some(charge(doing)?.saturating_sub(before) as f64 / filled as f64)
}

fn goals(trials: &[Trial<Run>]) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (place, name, limit) in [(1, "THP, split", HELD), (2, "hugeheap's heap", HEAP_HELD)] {
        if let Some((left, freed)) =
            held(&trials[place], Doing::GivenBack).zip(held(&trials[place], Doing::Freed))
        {
            goals.push(Goal::new(
                left <= limit,
                format!("charge after giving back, {name}"),
                format!(
                    "{:.1} % of what was filled, {:.1} % before (at most {:.0} %)",
                    left * 100.0,
                    freed * 100.0,
                    limit * 100.0
                ),
            ));
        }
    }
    let runs = || trials.iter().flat_map(|trial| &trial.runs);
    if runs().next().is_some() {
        let broken = runs().filter(|run| run.iter().any(|look| !look.intact)).count();
        goals.push(Goal::new(
            broken == 0,
            "contents intact after each step",
            format!("in {} of {} runs", runs().count() - broken, runs().count()),
        ));
    }
    goals
}

fn figures(trials: &[Trial<Run>], table: &Grid) -> Vec<Figure> {
    let group = |doing: Doing| Bars {
        name: doing.title().to_owned(),
        bars: trials
            .iter()
            .filter_map(|trial| {
                let value = at(trial, doing, |look| look.charge.or(Some(look.rss)))?;
                Some(grid::bar(&trial.name, value as f64))
            })
            .collect(),
    };
    let note = "RSS where no charge can be read";
    vec![table.figure(), grid::bars("Charge at each step", note, Unit::Bytes, Doing::ALL.map(group).to_vec())]
}
