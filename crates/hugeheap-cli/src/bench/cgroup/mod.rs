//! `hugeheap bench cgroup`: a memory limit squeezed step by step.
//!
//! ```text
//!   program  what is squeezed  ──▶  measure  one run, its cgroup, its limits  ──▶  mod  tables, JSON, goals
//! ```

pub(crate) mod arguments;
mod measure;
mod program;

use super::charge::Group;
use super::goal::{self, Goal};
use super::grid::{self, Grid};
use super::report::{Circumstances, conclude, ended, writable};
use super::table::NONE;
use super::trials::{self, Trial};
use super::variant::Refusal;
use super::{requirements, touch};
use crate::figure::{self, Group as Bars, Unit};
use crate::output::bytes;
use crate::statistics::median;
use crate::{Context, exit};
use arguments::CgroupArguments;
use hugeheap_os::Facts;
use measure::{Run, Times};
use program::{BURST, Memory, Shape};
use serde_json::{Map, json};

const SCHEMA: &str = "hugeheap.bench.cgroup/1";
const RUNS: u32 = 3;
const QUICK_RUNS: u32 = 1;
const HUGE_PAGES: u64 = 512;
const QUICK_HUGE_PAGES: u64 = 64;

/// Runs the experiment.
pub(crate) fn cgroup(context: &Context, arguments: &CgroupArguments) -> u8 {
    if let Err(why) = Group::create() {
        context.out.error(&format!(
            "a memory cgroup is needed for each program: {why}; run it as root, or in a delegated group \
             (systemd-run --user --scope -p Delegate=yes)"
        ));
        return if why.starts_with("not permitted") { exit::PERMISSION } else { exit::UNSUPPORTED };
    }
    ended(&context.out, run(context, arguments))
}

fn run(context: &Context, arguments: &CgroupArguments) -> Result<u8, Refusal> {
    let (out, options) = (&context.out, &arguments.report);
    let huge_page = requirements::huge_page(&context.facts)?;
    let huge_pages =
        arguments.huge_pages.unwrap_or(if options.quick { QUICK_HUGE_PAGES } else { HUGE_PAGES });
    let full = huge_pages * huge_page as u64;
    requirements::memory(context.facts.available_memory().ok(), "cgroup", touch::need(full), "--huge-pages")?;
    let runs = options.runs.unwrap_or(if options.quick { QUICK_RUNS } else { RUNS });
    writable(options.files())?;
    let circumstances = Circumstances::without_python(context, options);
    let limits = measure::limits(full);
    let times = Times { idle: arguments.idle, step: arguments.step };
    let mut shapes = Vec::new();
    for shape in Shape::ALL {
        let names = Memory::ALL.map(|memory| memory.name().to_owned());
        let trials = trials::run(out, &names, runs, |place| {
            measure::measure(shape, Memory::ALL[place], huge_pages, &limits, times)
        });
        let Some(trials) = trials::part(trials, shapes.is_empty())? else { break };
        shapes.push(trials);
    }
    let goals = goals(&shapes);
    let tables: Vec<_> = Shape::ALL
        .into_iter()
        .zip(&shapes)
        .map(|(shape, trials)| table(shape, trials, &limits, huge_pages, full))
        .collect();
    let mut text = String::new();
    for (table, trials) in tables.iter().zip(&shapes) {
        text += &table.text();
        text += &first(trials);
        text.push('\n');
    }
    if shapes.iter().flatten().flat_map(|trial| &trial.runs).any(|run| run.refused) {
        text += "Killed, with a cgroup of version 1: the kernel cannot reclaim enough to set the limit, where version 2 kills.\n";
    }
    text += "THP always: memory advised for huge pages, which is what mode always does to all memory.\n";
    text += &goal::listed(&goals, "Goals");
    let mut figures: Vec<_> = tables.iter().map(Grid::figure).collect();
    figures.push(bars(&shapes));
    let particular = json!({
        "runs_planned": runs,
        "huge_pages": huge_pages,
        "idle_seconds": times.idle,
        "step_seconds": times.step,
        "limits": limits,
        "shapes": Shape::ALL.into_iter().zip(&shapes).map(|(shape, trials)| json!({
            "name": shape.name(),
            "description": shape.description(),
            "variants": trials.iter().map(|trial| (trial.name.clone(), json!({
                "failure": trial.failure, "killed_at": killed(trial), "runs": trial.runs,
            }))).collect::<Map<_, _>>(),
        })).collect::<Vec<_>>(),
    });
    let report = circumstances.report(SCHEMA, &[], particular, &figures, &goals);
    conclude(out, options, &report, text.trim_start(), None, &goals)
}

/// The highest limit at which a run was killed; `None`: none was, or nothing was measured.
fn killed(trial: &Trial<Run>) -> Option<u64> {
    trial.runs.iter().filter_map(|run| run.killed_at).max()
}

/// A variant by limit: its charge after the round, or its end.
fn table(shape: Shape, trials: &[Trial<Run>], limits: &[u64], huge_pages: u64, full: u64) -> Grid {
    let mut head = vec!["limit".to_owned()];
    head.extend(trials.iter().map(|trial| trial.name.clone()));
    let mut grid = Grid::new(
        format!("{}: {huge_pages} huge pages, {}", shape.name(), shape.description()),
        format!(
            "the charge after a round with a burst of {}; medians of the runs that survived",
            bytes(full / BURST)
        ),
        head,
    );
    type Figure = fn(&Run) -> u64;
    let moments: [(&str, Figure); 2] = [("none", |run| run.built), ("none, later", |run| run.idle)];
    for (title, figure) in moments {
        grid.row(
            title,
            trials.iter().map(|trial| {
                let charge = median(&trial.values(|run| figure(run) as f64));
                charge.map_or_else(|| "failed".to_owned(), |charge| bytes(charge as u64))
            }),
        );
    }
    for &limit in limits {
        grid.row(&bytes(limit), trials.iter().map(|trial| cell(trial, limit)));
    }
    grid
}

fn cell(trial: &Trial<Run>, limit: u64) -> String {
    let steps = trial.runs.iter().filter_map(|run| run.survived.iter().find(|step| step.limit == limit));
    let charges: Vec<_> = steps.map(|step| step.charge as f64).collect();
    let killed = trial.runs.iter().filter(|run| run.killed_at == Some(limit)).count();
    match (median(&charges), killed, trial.runs.len()) {
        (Some(charge), 0, _) => bytes(charge as u64),
        (Some(charge), killed, all) => format!("{}, {killed} of {all} killed", bytes(charge as u64)),
        (None, 0, _) => NONE.to_owned(),
        (None, ..) => "killed".to_owned(),
    }
}

/// Who was killed first.
fn first(trials: &[Trial<Run>]) -> String {
    let worst = trials.iter().filter_map(killed).max();
    let Some(worst) = worst else { return "Nobody was killed.\n".to_owned() };
    let names: Vec<_> =
        trials.iter().filter(|trial| killed(trial) == Some(worst)).map(|trial| trial.name.as_str()).collect();
    format!("Killed first: {}, at {}\n", names.join(" and "), bytes(worst))
}

fn goals(shapes: &[Vec<Trial<Run>>]) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (shape, trials) in Shape::ALL.into_iter().zip(shapes) {
        let (thp, ours) = (&trials[1], &trials[2]);
        if thp.runs.is_empty() || ours.runs.is_empty() {
            continue;
        }
        let said =
            |trial| killed(trial).map_or_else(|| "never".to_owned(), |limit| format!("at {}", bytes(limit)));
        goals.push(Goal::new(
            killed(ours).unwrap_or(0) <= killed(thp).unwrap_or(0),
            format!("hugeheap is not killed before THP always, {}", shape.name()),
            format!("{}, against {}", said(ours), said(thp)),
        ));
    }
    goals
}

fn bars(shapes: &[Vec<Trial<Run>>]) -> figure::Figure {
    let groups = Shape::ALL.into_iter().zip(shapes).map(|(shape, trials)| Bars {
        name: shape.name().to_owned(),
        bars: trials.iter().map(|trial| grid::bar(&trial.name, killed(trial).unwrap_or(0) as f64)).collect(),
    });
    let note = "shorter is better; no bar: it survived every limit";
    grid::bars("The limit at which it was killed", note, Unit::Bytes, groups.collect())
}
