//! `hugeheap bench heap-pages`: heap pages of 16 KiB.
//!
//! ```text
//!   ruby   a real program on allocators, and their rounding ─┐
//!   own    the rounding of hugeheap's heap ──────────────────┤
//!   pages  a heap of heap pages of other sizes ──────────────┴─▶ mod ──▶ text (tables, plot), JSON, goals
//! ```

pub(crate) mod arguments;
mod own;
mod pages;
mod ruby;
mod text;

use super::goal::{self, Goal};
use super::plot::{self, Abilities};
use super::report::{Circumstances, conclude, ended, writable};
use super::trials::{self, Trial};
use super::variant::Refusal;
use super::{forked, requirements, touch};
use crate::Context;
use crate::output::bytes;
use crate::statistics::median;
use arguments::HeapPagesArguments;
use hugeheap_os::Facts;
use ruby::{Allocator, Probe, Ruby};
use serde_json::{Map, json};

const SCHEMA: &str = "hugeheap.bench.heap-pages/1";
/// A run takes some 20 seconds, and there are four allocators: with ten, all experiments together would take
/// more than an hour.
const RUNS: u32 = 6;
const QUICK_RUNS: u32 = 3;
const PART: &str = "all";
/// A few seconds.
const QUICK_PART: &str = "rdoc,optparse";
const OBJECTS: u64 = 4_000_000;
const QUICK_OBJECTS: u64 = 1_000_000;
/// Bytes of an object with its share of a heap page, and room.
const OBJECT: u64 = 48;

/// All that was measured.
struct Results {
    part: String,
    allocators: Vec<Allocator>,
    missing: Vec<String>,
    /// Why there is nothing of Ruby.
    no_ruby: Option<String>,
    runs: Vec<Trial<ruby::Run>>,
    probes: Vec<Result<Vec<Probe>, String>>,
    /// Of hugeheap's own heap.
    own: Result<Vec<Probe>, String>,
    pages: Vec<Trial<pages::Run>>,
}

/// Runs the experiment.
pub(crate) fn heap_pages(context: &Context, arguments: &HeapPagesArguments) -> u8 {
    ended(&context.out, run(context, arguments))
}

fn run(context: &Context, arguments: &HeapPagesArguments) -> Result<u8, Refusal> {
    let (out, options) = (&context.out, &arguments.report);
    let objects = arguments.objects.unwrap_or(if options.quick { QUICK_OBJECTS } else { OBJECTS });
    let need = touch::need(objects.saturating_mul(OBJECT));
    requirements::memory(context.facts.available_memory().ok(), "heap-pages", need, "--objects")?;
    let found = Ruby::find(arguments.ruby.as_deref());
    // One that is named must be there.
    if let (Some(_), Err(why)) = (&arguments.ruby, &found) {
        return Err(Refusal::Usage(format!("--ruby: {why}")));
    }
    let runs = options.runs.unwrap_or(if options.quick { QUICK_RUNS } else { RUNS });
    writable(options.files())?;
    let circumstances = Circumstances::without_python(context, options);
    let (allocators, missing) = ruby::allocators();
    let names: Vec<_> = allocators.iter().map(|allocator| allocator.name.clone()).collect();
    let part = arguments.part.clone();
    let part = part.unwrap_or_else(|| if options.quick { QUICK_PART } else { PART }.to_owned());
    let mut results = Results {
        part,
        no_ruby: found.as_ref().err().cloned(),
        runs: Vec::new(),
        probes: Vec::new(),
        own: forked::run(None, |_| own::probe()),
        pages: Vec::new(),
        allocators,
        missing,
    };
    match &found {
        Ok(ruby) => {
            results.probes = results.allocators.iter().map(|allocator| ruby.probe(allocator)).collect();
            results.runs =
                trials::run(out, &names, runs, |place| ruby.run(&results.allocators[place], &results.part))?;
        }
        Err(why) => out.warning(&format!("nothing of Ruby is measured: {why}")),
    }
    let sizes = pages::SIZES.map(|size| bytes(size as u64).replace(".0", ""));
    let pages = trials::run(out, &sizes, runs, |place| {
        let _ = touch::touch_and_free(need);
        forked::run(None, |_| pages::measure(pages::SIZES[place], objects))
    });
    results.pages = trials::part(pages, results.runs.is_empty())?.unwrap_or_default();

    let goals = goals(&results);
    let abilities = Abilities::here(out.colour_on_stdout());
    let text = |abilities| {
        let mut text = text::tables(&results);
        if let Some(chart) = text::chart(&results) {
            text += &plot::draw(&chart, abilities);
        }
        text + &goal::listed(&goals, "Goals")
    };
    let particular = json!({
        "runs_planned": runs,
        "part": results.part,
        "ruby_unavailable": results.no_ruby,
        "allocators_not_found": results.missing,
        "allocators": results.runs.iter().zip(&results.probes).map(|(trial, probe)| {
            (trial.name.clone(), json!({
                "failure": trial.failure,
                "maximum": median(&trial.values(|run| run.maximum as f64)),
                "runs": trial.runs,
                "requests": probe.as_ref().ok(),
            }))
        }).collect::<Map<_, _>>(),
        "requests_of_hugeheap": results.own.as_ref().ok(),
        "heap_pages": results.pages.iter().map(|trial| json!({
            "failure": trial.failure, "runs": trial.runs,
        })).collect::<Vec<_>>(),
    });
    let figures = text::figures(&results);
    let report = circumstances.report(SCHEMA, &[], particular, &figures, &goals);
    let plain = text(Abilities { colour: false, ..abilities });
    conclude(out, options, &report, &plain, Some(&text(abilities)), &goals)
}

fn goals(results: &Results) -> Vec<Goal> {
    let mut goals = Vec::new();
    let given = |trial: &Trial<pages::Run>| median(&trial.values(|run| run.given_back as f64));
    if let (Some(first), Some(most)) = (
        results.pages.first().and_then(given),
        results.pages.iter().skip(1).filter_map(given).max_by(f64::total_cmp),
    ) {
        goals.push(Goal::new(
            first >= most,
            "heap pages of 16 KiB give most back",
            format!("{}, and {} at most of larger ones", bytes(first as u64), bytes(most as u64)),
        ));
    }
    let mut runs = results.pages.iter().flat_map(|trial| &trial.runs).peekable();
    if runs.peek().is_some() {
        goals.push(Goal::new(
            runs.all(|run| run.intact),
            "what stays is intact after heap pages were given back",
            "every object that stays was read",
        ));
    }
    goals
}
