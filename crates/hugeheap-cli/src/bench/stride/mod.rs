//! `hugeheap bench stride`: what small pages cost where every access needs another one.
//!
//! ```text
//!   measure (a process per run)     text  (tables, what the first touch would claim)
//!            └──────────┬────────────┘
//!                      mod          arguments, variants, JSON, goals
//! ```

pub(crate) mod arguments;
mod measure;
mod text;

use super::goal::Goal;
use super::report::{self, Circumstances, conclude, ended, writable};
use super::trials::{self, Trial};
use super::variant::Refusal;
use super::{forked, grid, requirements, touch};
use crate::Context;
use crate::figure::{Figure, Group};
use crate::output::{bytes, change};
use crate::statistics::{Estimate, median, ratio_of_medians};
use arguments::StrideArguments;
use hugeheap_os::{Backing, Facts};
use measure::{Order, Pages, Run};
use serde_json::{Map, Value, json};

const SCHEMA: &str = "hugeheap.bench.stride/1";
const RUNS: u32 = 10;
const QUICK_RUNS: u32 = 3;
/// As the reference: more than any second-level TLB reaches with OS pages.
const SIZE: u64 = 1 << 30;
const QUICK_SIZE: u64 = 256 << 20;
const PASSES: u32 = 8;
const QUICK_PASSES: u32 = 4;

/// Runs the experiment.
pub(crate) fn stride(context: &Context, arguments: &StrideArguments) -> u8 {
    ended(&context.out, run(context, arguments))
}

/// What is measured.
struct Plan {
    size: u64,
    passes: u32,
    runs: u32,
    os_page: usize,
    huge_page: usize,
    variants: Vec<Pages>,
    /// Why there is no variant on pages of a pool.
    no_pool: Option<String>,
}

fn run(context: &Context, arguments: &StrideArguments) -> Result<u8, Refusal> {
    let options = &arguments.report;
    let plan = plan(context, arguments)?;
    writable(options.files())?;
    let circumstances = Circumstances::without_python(context, options);
    let names: Vec<_> = plan.variants.iter().map(|pages| pages.name.clone()).collect();
    let trials = trials::run(&context.out, &names, plan.runs, |place| {
        let backing = plan.variants[place].backing;
        // Refused when memory is short: the run shows it then. A pool's pages are taken already.
        if !matches!(backing, Backing::Hugetlb(_)) {
            let _ = touch::touch_and_free(touch::need(plan.size));
        }
        forked::run(None, |_| measure::measure(plan.size, backing, plan.passes))
    })?;
    let goals = goals(&trials);
    let text = text::text(&plan, &trials, &goals);
    let particular = json!({
        "runs_planned": plan.runs,
        "size": plan.size,
        "passes": plan.passes,
        "hugetlb_unavailable": plan.no_pool,
        "variants": trials.iter().map(|trial| (trial.name.clone(), variant(&trials, trial)))
            .collect::<Map<_, _>>(),
        "reference": {
            "small_pages_seconds": text::REFERENCE.0 / 1e3, "huge_pages_seconds": text::REFERENCE.1 / 1e3,
        },
    });
    let figures = figures(&plan, &trials);
    let report = circumstances.report(SCHEMA, &[], particular, &figures, &goals);
    conclude(&context.out, options, &report, &text, None, &goals)
}

fn plan(context: &Context, arguments: &StrideArguments) -> Result<Plan, Refusal> {
    let options = &arguments.report;
    let pages = context.facts.page_sizes();
    let huge_page = requirements::huge_page(&context.facts)?;
    let size = arguments.size.unwrap_or(if options.quick { QUICK_SIZE } else { SIZE });
    if size < huge_page as u64 {
        return Err(Refusal::Usage(format!(
            "--size {}: less than one huge page, {}",
            bytes(size),
            bytes(huge_page as u64)
        )));
    }
    let size = size.checked_next_multiple_of(huge_page as u64).unwrap_or(u64::MAX);
    requirements::memory(context.facts.available_memory().ok(), "stride", touch::need(size), "--size")?;
    let no_pool = pool_lacks(&context.facts, huge_page, size / huge_page as u64);
    let mut variants = vec![
        Pages { name: "OS pages".to_owned(), backing: Backing::Base },
        Pages { name: "THP".to_owned(), backing: Backing::Thp },
    ];
    if no_pool.is_none() {
        variants.push(Pages { name: "hugetlb".to_owned(), backing: Backing::Hugetlb(huge_page) });
    }
    Ok(Plan {
        size,
        passes: arguments.passes.unwrap_or(if options.quick { QUICK_PASSES } else { PASSES }),
        runs: options.runs.unwrap_or(if options.quick { QUICK_RUNS } else { RUNS }),
        os_page: pages.os,
        huge_page,
        variants,
        no_pool,
    })
}

/// Why the pool does not have `needed` pages.
fn pool_lacks(facts: &impl Facts, huge_page: usize, needed: u64) -> Option<String> {
    let pools = match facts.hugetlb_pools() {
        Ok(pools) => pools,
        Err(error) => return Some(error.to_string()),
    };
    let free = pools
        .iter()
        .find(|pool| pool.page_size == huge_page)
        .map_or(0, |pool| pool.free.saturating_sub(pool.reserved));
    (free < needed).then(|| {
        format!("the pool has {free} free pages and {needed} are needed: sudo hugeheap pool ensure {needed}")
    })
}

/// A variant's time for the passes after the first, of that on OS pages.
fn ratio(trials: &[Trial<Run>], trial: &Trial<Run>, order: Order) -> Option<Estimate> {
    ratio_of_medians(&trial.values(|run| run.later(order)), &trials[0].values(|run| run.later(order)))
}

fn goals(trials: &[Trial<Run>]) -> Vec<Goal> {
    let mut goals = Vec::new();
    let Some(huge) = trials.get(1) else { return goals };
    for (order, name) in [(Order::InOrder, "in order"), (Order::Scattered, "scattered")] {
        if let Some(ratio) = ratio(trials, huge, order) {
            goals.push(Goal::at_most(
                ratio,
                1.0,
                format!("time per access {name} on transparent huge pages"),
                format!("{} (at most that on OS pages)", change(ratio.value)),
            ));
        }
    }
    if let Some(coverage) = median(&huge.values(Run::coverage)) {
        goals.push(Goal::new(
            coverage >= 0.99,
            "huge pages where they were asked for",
            format!("{:.1} % of the memory (at least 99 %)", coverage * 100.0),
        ));
    }
    goals
}

fn variant(trials: &[Trial<Run>], trial: &Trial<Run>) -> Value {
    let time = |order| ratio(trials, trial, order).map(report::estimate);
    json!({
        "failure": trial.failure,
        "in_order": time(Order::InOrder),
        "scattered": time(Order::Scattered),
        "runs": trial.runs,
    })
}

fn figures(plan: &Plan, trials: &[Trial<Run>]) -> Vec<Figure> {
    let group = |order, name: &str| Group {
        name: name.to_owned(),
        bars: trials
            .iter()
            .skip(1)
            .filter_map(|trial| Some(grid::ratio(&trial.name, ratio(trials, trial, order)?)))
            .collect(),
    };
    vec![
        text::times(plan, trials).figure(),
        text::memory(plan, trials).figure(),
        grid::ratios(
            "Time per access, of that on OS pages",
            "passes after the first; 95 % confidence intervals",
            vec![group(Order::InOrder, "in order"), group(Order::Scattered, "scattered")],
        ),
    ]
}
