//! The tables of a measurement.

use crate::allocators::ALLOCATORS;
use crate::measure::Entry;
use crate::results::{HEAP, View};
use hugeheap_cli::measuring::table::{self, NONE, or_none, titled};
use hugeheap_cli::measuring::{Goal, bytes, counted, grouped};
use std::fmt::Write as _;
use workloads::catalogue::WORKLOADS;

/// Workloads with their parameters, and allocators.
pub(crate) fn list() -> String {
    let mut text = "Workloads\n".to_owned();
    for workload in &WORKLOADS {
        let threads = if workload.threaded { ", any number of threads" } else { "" };
        let _ = writeln!(text, "  {}: {}{threads}", workload.name, workload.about);
        for parameter in workload.parameters {
            let setting = format!("{}={}", parameter.name, parameter.default);
            let _ = writeln!(text, "    {setting:<24}{}", parameter.about);
        }
    }
    text.push_str("\nAllocators\n");
    for allocator in &ALLOCATORS {
        let version = match allocator.package {
            Some(package) => format!("{package} {}", allocator.version()),
            None => allocator.version(),
        };
        let _ = writeln!(text, "  {:<10}{version:<26}{}", allocator.name, allocator.note);
    }
    text
}

/// All tables, and the goals.
pub(crate) fn text(view: View<'_>, goals: &[Goal]) -> String {
    let mut parts = Vec::new();
    if let Some(signal) = view.results.interrupted {
        let (done, planned) = (view.results.measurements.len(), view.plan.entries.len());
        parts.push(format!(
            "INTERRUPTED by signal {signal}: what follows is of the {done} of {planned} workloads that were complete until then.\n"
        ));
    }
    parts.extend([allocators(view), times(view)]);
    if let Some(reference) = view.reference() {
        let name = view.plan.allocators[reference].name;
        parts.push(ratios(view, &format!("Time relative to {name}"), "", |_| Some(reference)));
    }
    parts.push(ratios(view, "Time relative to the best of each workload", "", |place| view.best(place)));
    parts.push(matrix(view, "Peak RSS", "Median of the timed runs.", |place, allocator| {
        view.peak(place, allocator).map(bytes)
    }));
    parts.push(matrix(
        view,
        "Coverage",
        &format!(
            "Share of the anonymous memory mapped by huge pages while the workload is steady; {NONE}: heap below {}.",
            bytes(HEAP)
        ),
        |place, allocator| Some(format!("{:.1} %", view.coverage(place, allocator)? * 100.0)),
    ));
    parts.push(match &view.results.no_charge {
        Some(why) => format!("Charge after idling: not measured, {why}\n"),
        None => matrix(
            view,
            "Charge after idling",
            &format!(
                "What the kernel charges the process's own cgroup when it has done nothing for {} s after its last free.",
                view.plan.idle
            ),
            |place, allocator| view.charge(place, allocator).map(bytes),
        ),
    });
    parts.extend(view.entries().filter_map(|(place, entry)| latency(view, place, entry)));
    parts.extend(failures(view));
    parts.extend(claims(goals));
    parts.join("\n")
}

/// What the columns are.
fn allocators(view: View<'_>) -> String {
    let mut text = "Allocators\n".to_owned();
    for allocator in &view.plan.allocators {
        let version = match allocator.package {
            Some(package) => format!("{package} {}", allocator.version()),
            None => allocator.version(),
        };
        let settings = allocator.settings();
        let options = if settings.is_empty() { NONE.to_owned() } else { settings };
        let _ = writeln!(text, "  {:<10}{version:<26}{options:<38}{}", allocator.name, allocator.note);
    }
    text
}

fn head(view: View<'_>, first: &str) -> Vec<String> {
    let names = view.plan.allocators.iter().map(|allocator| allocator.name.to_owned());
    std::iter::once(first.to_owned()).chain(names).collect()
}

/// One row per workload, one column per allocator.
fn matrix(
    view: View<'_>,
    title: &str,
    explanation: &str,
    cell: impl Fn(usize, usize) -> Option<String>,
) -> String {
    let mut table = table::new(&head(view, "workload"));
    for (place, entry) in view.entries() {
        let cells = (0..view.plan.allocators.len()).map(|allocator| or_none(cell(place, allocator)));
        table::row(&mut table, &std::iter::once(entry.name()).chain(cells).collect::<Vec<_>>());
    }
    titled(title, explanation, &table)
}

fn times(view: View<'_>) -> String {
    let explanation = format!("Seconds, median of {}.", counted(u64::from(view.plan.runs), "run", "runs"));
    matrix(view, "Time", &explanation, |place, allocator| {
        Some(format!("{:.3}", view.median(place, allocator)?))
    })
}

/// Ratios to `base`, and their geometric mean with its interval.
fn ratios(view: View<'_>, title: &str, explanation: &str, base: impl Fn(usize) -> Option<usize>) -> String {
    let allocators = || 0..view.plan.allocators.len();
    let mut table = table::new(&head(view, "workload"));
    for (place, entry) in view.entries() {
        let cell = |allocator| {
            let ratio = base(place).and_then(|base| view.ratio(place, allocator, base));
            or_none(ratio.map(|ratio| format!("{:.2}", ratio.value)))
        };
        table::row(
            &mut table,
            &std::iter::once(entry.name()).chain(allocators().map(cell)).collect::<Vec<_>>(),
        );
    }
    let means: Vec<_> = allocators().map(|place| view.geometric_mean(place, &base, |_| true)).collect();
    let mean = means.iter().map(|mean| or_none(mean.map(|(mean, _)| format!("{:.3}", mean.value))));
    table::row(&mut table, &std::iter::once("geometric mean".to_owned()).chain(mean).collect::<Vec<_>>());
    let interval = means
        .iter()
        .map(|mean| or_none(mean.map(|(mean, _)| format!("[{:.2}, {:.2}]", mean.low, mean.high))));
    table::row(&mut table, &std::iter::once("95 % interval".to_owned()).chain(interval).collect::<Vec<_>>());
    titled(title, explanation, &table)
}

fn latency(view: View<'_>, place: usize, entry: &Entry) -> Option<String> {
    let head = ["allocator", "p50", "p99", "p99.9", "max"].map(str::to_owned);
    let mut table = table::new(&head);
    let mut clock = None;
    for (allocator, named) in view.plan.allocators.iter().enumerate() {
        let Some(seen) = view.latency(place, allocator) else { continue };
        clock.get_or_insert(seen.clock);
        let figure = |value: f64| grouped(value.round() as u64);
        table::row(
            &mut table,
            &[named.name.to_owned(), figure(seen.p50), figure(seen.p99), figure(seen.p999), figure(seen.max)],
        );
    }
    let explanation = format!(
        "Nanoseconds, the first write to the block and reading the clock ({:.0} ns) included.",
        clock?
    );
    Some(titled(&format!("Latency of a single allocation in {}", entry.name()), &explanation, &table))
}

fn failures(view: View<'_>) -> Option<String> {
    let mut text = String::new();
    for (place, entry) in view.entries() {
        for (allocator, named) in view.plan.allocators.iter().enumerate() {
            if let Some(why) = &view.measurement(place, allocator).failure {
                let _ = writeln!(text, "  {} on {}: {why}", entry.name(), named.name);
            }
        }
    }
    (!text.is_empty()).then(|| format!("Failures\n{text}"))
}

fn claims(goals: &[Goal]) -> Option<String> {
    let met = goals.iter().filter(|goal| goal.met).count();
    let mut text = format!("Goals of hugeheap: {met} of {} met\n", goals.len());
    for goal in goals {
        text += &goal.line();
        text.push('\n');
    }
    (!goals.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goals;
    use crate::results::sample::sample;

    #[test]
    fn every_table_is_there() {
        let (plan, results) = sample();
        let view = View { plan: &plan, results: &results };
        let text = text(view, &goals::goals(view));
        for expected in [
            "MIMALLOC_ALLOW_LARGE_OS_PAGES=1",
            "Seconds, median of 3 runs",
            "Time relative to mimalloc",
            "Time relative to the best",
            "geometric mean",
            "95 % interval",
            "Peak RSS",
            "Coverage",
            "Charge after idling",
            "Latency of a single allocation in larson ×2",
            "rptest on system: signal: 11",
            "missed  time of larson ×2: 1.30 of mimalloc, the best peer (at most 1.15)",
        ] {
            assert!(text.contains(expected), "{expected} is missing:\n{text}");
        }
        let row = text.lines().find(|line| line.trim_start().starts_with("larson ×2")).unwrap();
        assert!(row.contains("1.300") && row.contains("1.500"), "{row}");
    }

    #[test]
    fn a_charge_that_cannot_be_read_has_its_reason() {
        let (plan, mut results) = sample();
        results.no_charge = Some("not permitted".to_owned());
        let text = text(View { plan: &plan, results: &results }, &[]);
        assert!(text.contains("Charge after idling: not measured, not permitted"));
        assert!(!text.contains("Goals"));
    }

    #[test]
    fn the_list_names_parameters_and_allocators() {
        let text = list();
        assert!(text.contains("generations=100") && text.contains("tikv-jemallocator"));
    }
}
