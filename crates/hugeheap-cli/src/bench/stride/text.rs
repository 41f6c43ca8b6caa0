//! The tables of a measurement.

use super::Plan;
use super::measure::{Order, Run};
use crate::bench::goal::{self, Goal};
use crate::bench::grid::Grid;
use crate::bench::table::{interval, or_none};
use crate::bench::trials::Trial;
use crate::output::{bytes, change, grouped};
use crate::statistics::{Estimate, half_spread, median, ratio_of_medians};

/// The reference's milliseconds for eight passes over 1 GiB, on OS pages and on transparent huge pages.
pub(crate) const REFERENCE: (f64, f64) = (4218.3, 612.7);
const REFERENCE_ACCESSES: f64 = 8.0 * 262_144.0;

pub(crate) fn text(plan: &Plan, trials: &[Trial<Run>], goals: &[Goal]) -> String {
    let mut text = times(plan, trials).text();
    text.push('\n');
    text += &memory(plan, trials).text();
    if let Some(why) = &plan.no_pool {
        text += &format!("No variant on pages of a hugetlb pool: {why}\n");
    }
    text.push('\n');
    text += &first_touch(trials);
    text += "TLB misses are not counted here; hugeheap tlb computes them for a CPU that is named.\n";
    text + &goal::listed(goals, "Goals")
}

fn head(title: &str, plan: &Plan, trials: &[Trial<Run>]) -> Vec<String> {
    let mut head = vec![title.to_owned()];
    head.extend(trials.iter().enumerate().map(|(place, trial)| {
        let size = if place == 0 { plan.os_page } else { plan.huge_page };
        format!("{}, {}", trial.name, bytes(size as u64).replace(".0", ""))
    }));
    head
}

type Figure = (&'static str, fn(&Run) -> f64);

pub(super) fn times(plan: &Plan, trials: &[Trial<Run>]) -> Grid {
    let mut head = head("nanoseconds per access", plan, trials);
    head.push("reference".to_owned());
    let mut grid = Grid::new(
        format!(
            "One access per OS page over {}: {} pages, {} passes in each order",
            bytes(plan.size),
            grouped(plan.size / plan.os_page as u64),
            plan.passes
        ),
        format!(
            "medians of {} runs, each in a process of its own; reference: Python's accesses, one run",
            plan.runs
        ),
        head,
    );
    let rows: [Figure; 4] = [
        ("first touch, a write", |run| run.first_touch),
        ("first pass, in order", |run| run.in_order[0]),
        ("later passes, in order", |run| run.later(Order::InOrder)),
        ("later passes, scattered", |run| run.later(Order::Scattered)),
    ];
    for (title, figure) in rows {
        let later = title.starts_with("later");
        let mut cells: Vec<_> = (0..trials.len()).map(|place| cell(trials, place, figure, later)).collect();
        cells.push(if title == "later passes, in order" {
            let [small, huge] =
                [REFERENCE.0, REFERENCE.1].map(|milliseconds| milliseconds * 1e6 / REFERENCE_ACCESSES);
            format!("{small:.0} → {huge:.0} {}", change(huge / small))
        } else {
            String::new()
        });
        grid.row(title, cells);
    }
    grid
}

/// The median and its change; with spread or interval where it matters.
fn cell(trials: &[Trial<Run>], place: usize, figure: fn(&Run) -> f64, detailed: bool) -> String {
    let values = trials[place].values(figure);
    let Some(middle) = median(&values) else { return "failed".to_owned() };
    if place == 0 {
        return match half_spread(&values) {
            Some(spread) if detailed => format!("{middle:.2}\n±{:.1} %", spread / middle * 100.0),
            _ => format!("{middle:.2}"),
        };
    }
    match ratio_of_medians(&values, &trials[0].values(figure)) {
        Some(ratio) if detailed => format!("{middle:.2} {}\n{}", change(ratio.value), interval(ratio)),
        Some(Estimate { value, .. }) => format!("{middle:.2} {}", change(value)),
        None => format!("{middle:.2}"),
    }
}

pub(super) fn memory(plan: &Plan, trials: &[Trial<Run>]) -> Grid {
    let mut grid = Grid::new("Faults and page tables", "", head("", plan, trials));
    let mut add = |title: &str, figure: &dyn Fn(&Trial<Run>) -> Option<String>| {
        grid.row(title, trials.iter().map(|trial| or_none(figure(trial))));
    };
    let whole = |trial: &Trial<Run>, figure: fn(&Run) -> u64| {
        median(&trial.values(|run| figure(run) as f64)).map(|value| value as u64)
    };
    add("minor faults of the first touch", &|trial| {
        Some(grouped(whole(trial, |run| run.first_touch_faults)?))
    });
    add("minor faults of all passes", &|trial| Some(grouped(whole(trial, |run| run.pass_faults)?)));
    add("page tables", &|trial| Some(bytes(whole(trial, |run| run.page_tables)?)));
    add("on huge pages", &|trial| Some(format!("{:.0} %", median(&trial.values(Run::coverage))? * 100.0)));
    grid
}

/// The trap: whoever times memory from its first touch on measures faults, and whoever does so for one side
/// only, nothing.
fn first_touch(trials: &[Trial<Run>]) -> String {
    let figures = || {
        let small = |figure: fn(&Run) -> f64| median(&trials.first()?.values(figure));
        let huge = |figure: fn(&Run) -> f64| median(&trials.get(1)?.values(figure));
        let passes: fn(&Run) -> f64 = |run| run.later(Order::InOrder);
        Some((
            small(passes)? / huge(passes)?,
            small(Run::with_first_touch)? / huge(Run::with_first_touch)?,
            small(Run::with_first_touch)? / huge(passes)?,
        ))
    };
    let Some((warm, both, mixed)) = figures() else { return String::new() };
    format!(
        "The trap of the first touch: what one access on OS pages costs, of one on transparent huge pages\n\
         \x20 {warm:>6.1} times  both after a pass that is not counted\n\
         \x20 {both:>6.1} times  both from the first touch on\n\
         \x20 {mixed:>6.1} times  OS pages from the first touch on, huge pages after it\n\
         The reference times each once, OS pages first. Its {reference:.0} ns between the two are more than a walk of\n\
         page tables takes, and about what a page fault does.\n",
        reference = (REFERENCE.0 - REFERENCE.1) * 1e6 / REFERENCE_ACCESSES,
    )
}
