//! The tables of a measurement.

use super::measure::Look;
use super::results::{Figure, STOCK, View, faults, time};
use super::workload::Workload;
use crate::bench::counters::NAMES;
use crate::bench::goal::{self, Goal};
use crate::bench::grid::{self, Grid};
use crate::bench::table::{NONE, interval, or_none};
use crate::bench::variant;
use crate::figure::{Figure as Drawn, Group};
use crate::output::{bytes, change, grouped, percent};
use crate::statistics::{Estimate, half_spread, median};

/// All tables, and the goals.
pub(crate) fn text(view: View<'_>, goals: &[Goal]) -> String {
    let mut text = variant::described(&view.plan.variants);
    for part in parts(view) {
        text.push('\n');
        match part {
            Part::Table(grid) => text += &grid.text(),
            Part::Missing(why) => text += &why,
        }
    }
    let ours = view.headline().map_or("", |place| &view.plan.variants[place].name);
    text += &goal::text(goals, ours);
    text
}

/// The tables, and bars of what they say about time and faults.
pub(crate) fn figures(view: View<'_>) -> Vec<Drawn> {
    let bars = |title: &str, of: &dyn Fn(usize, usize) -> Option<Estimate>| {
        let group = |(place, workload): (usize, &'static Workload)| {
            let bars = places(view).skip(1).filter_map(|variant| {
                Some(grid::ratio(&view.plan.variants[variant].name, of(place, variant)?))
            });
            Group { name: workload.name.to_owned(), bars: bars.collect() }
        };
        grid::ratios(
            title,
            "ratio of medians with its 95 % interval; pale: the interval holds 1",
            view.workloads().map(group).collect(),
        )
    };
    let mut figures = Vec::new();
    if view.plan.variants.len() > 1 {
        figures.push(bars("Time of the workload, to stock", &|place, variant| {
            view.ratio(place, variant, time(view.plan.workloads[place]))
        }));
        figures
            .push(bars("Minor page faults, to stock", &|place, variant| view.ratio(place, variant, faults)));
    }
    figures.extend(parts(view).iter().filter_map(|part| match part {
        Part::Table(grid) => Some(grid.figure()),
        Part::Missing(_) => None,
    }));
    figures
}

/// A table, or why there is none.
enum Part {
    Table(Grid),
    Missing(String),
}

fn parts(view: View<'_>) -> Vec<Part> {
    let mut parts: Vec<Part> =
        [times(view), walls(view)].into_iter().chain(pages(view)).map(Part::Table).collect();
    parts.extend(counters(view));
    parts.extend(after(view));
    parts
}

/// A table of one row per workload, with a cell per variant and perhaps one more column.
fn matrix(
    view: View<'_>,
    title: &str,
    note: &str,
    last: Option<&str>,
    mut cells: impl FnMut(usize) -> Vec<String>,
) -> Grid {
    let mut head = vec!["workload".to_owned()];
    head.extend(view.plan.variants.iter().map(|variant| variant.name.clone()));
    head.extend(last.map(str::to_owned));
    let mut grid = Grid::new(title, note, head);
    for (place, workload) in view.workloads() {
        grid.row(workload.name, cells(place));
    }
    grid
}

fn places(view: View<'_>) -> std::ops::Range<usize> {
    0..view.plan.variants.len()
}

/// `0.060 −52.1 %` above `[−53.0 %, −51.2 %]`; for stock the median above the spread.
fn timed(view: View<'_>, workload: usize, variant: usize, figure: Figure) -> String {
    let values = view.values(workload, variant, figure);
    let Some(middle) = median(&values) else {
        return if view.measurement(workload, variant).failure.is_some() {
            "failed".to_owned()
        } else {
            NONE.to_owned()
        };
    };
    if variant == STOCK {
        let spread = half_spread(&values).unwrap_or(0.0) / middle;
        return format!("{middle:.4}\n±{:.1} %", spread * 100.0);
    }
    match view.ratio(workload, variant, figure) {
        Some(ratio) => format!("{middle:.4} {}\n{}", change(ratio.value), interval(ratio)),
        None => format!("{middle:.4}"),
    }
}

fn times(view: View<'_>) -> Grid {
    let note = format!(
        "median of {} runs in turn, change against stock, its 95 % confidence interval; stock: spread",
        view.plan.runs
    );
    let title = "Wall time of the workload in seconds";
    let mut grid = matrix(view, title, &note, Some("reference"), |place| {
        let workload = view.plan.workloads[place];
        let mut cells: Vec<_> =
            places(view).map(|variant| timed(view, place, variant, time(workload))).collect();
        cells.push(or_none(workload.time.map(percent)));
        cells
    });
    let mut row = vec!["1".to_owned()];
    let mut count = 0;
    for variant in places(view).skip(1) {
        row.push(or_none(view.geometric_mean(variant, STOCK).map(|(mean, workloads)| {
            count = workloads;
            format!("{:.3}\n[{:.3}, {:.3}]", mean.value, mean.low, mean.high)
        })));
    }
    if count > 0 {
        row.push(NONE.to_owned());
        grid.row(&format!("geometric mean of {count}"), row);
    }
    grid
}

fn walls(view: View<'_>) -> Grid {
    let (title, note) =
        ("Wall time of the whole process in seconds", "from start to end, the interpreter's own included");
    matrix(view, title, note, None, |place| {
        places(view).map(|variant| timed(view, place, variant, |run| run.wall)).collect()
    })
}

fn pages(view: View<'_>) -> [Grid; 3] {
    let minor = matrix(view, "Minor page faults of the process", "", Some("reference"), |place| {
        let mut cells: Vec<_> = places(view)
            .map(|variant| {
                let Some(count) = view.median(place, variant, faults) else { return NONE.to_owned() };
                let count = grouped(count as u64);
                match view.ratio(place, variant, faults).filter(|_| variant != STOCK) {
                    Some(ratio) => format!("{count} {}", change(ratio.value)),
                    None => count,
                }
            })
            .collect();
        cells.push(or_none(view.plan.workloads[place].faults.map(percent)));
        cells
    });
    let peaks = matrix(view, "Peak RSS, pages of a hugetlb pool included", "", None, |place| {
        places(view)
            .map(|variant| {
                let Some(peak) = view.peak_resident(place, variant) else { return NONE.to_owned() };
                match view.peak_resident(place, STOCK).filter(|_| variant != STOCK) {
                    Some(stock) => format!("{} {}", bytes(peak as u64), change(peak / stock)),
                    None => bytes(peak as u64),
                }
            })
            .collect()
    });
    let (title, note) = (
        "Coverage by huge pages while all objects live, from the kernel",
        "hugeheap: of its arenas; others: of all anonymous memory",
    );
    let coverage = matrix(view, title, note, None, |place| {
        places(view)
            .map(|variant| {
                or_none(view.coverage(place, variant).map(|share| format!("{:.1} %", share * 100.0)))
            })
            .collect()
    });
    [minor, peaks, coverage]
}

fn counters(view: View<'_>) -> Vec<Part> {
    if let Some(why) = &view.plan.no_counters {
        return vec![Part::Missing(format!(
            "Hardware counters (dTLB loads and stores, iTLB, cache, instructions, cycles)\n  {why}\n"
        ))];
    }
    let mut parts = Vec::new();
    for (index, name) in NAMES.iter().enumerate() {
        let middle = |place: usize, variant: usize| {
            let counts = view.measurement(place, variant).runs.iter().filter_map(|run| run.counters?[index]);
            median(&counts.map(|count| count as f64).collect::<Vec<_>>())
        };
        let reference = |place: usize| {
            let (loads, stores) = view.plan.workloads[place].dtlb?;
            match *name {
                "dtlb_load_misses" => Some(percent(loads)),
                "dtlb_store_misses" => Some(percent(stores)),
                _ => None,
            }
        };
        if view.workloads().all(|(place, _)| places(view).all(|variant| middle(place, variant).is_none())) {
            parts.push(Part::Missing(format!("{name}: not supported by this machine\n")));
            continue;
        }
        parts.push(Part::Table(matrix(view, name, "", Some("reference"), |place| {
            let mut cells: Vec<_> = places(view)
                .map(|variant| match (middle(place, variant), middle(place, STOCK)) {
                    (Some(count), Some(stock)) if variant != STOCK && stock > 0.0 => {
                        format!("{} {}", grouped(count as u64), change(count / stock))
                    }
                    (Some(count), _) => grouped(count as u64),
                    (None, _) => NONE.to_owned(),
                })
                .collect();
            cells.push(or_none(reference(place)));
            cells
        })));
    }
    parts
}

fn after(view: View<'_>) -> [Part; 2] {
    let moments = match view.plan.idle {
        0.0 => "right after".to_owned(),
        idle => format!("right after → after {idle} s without work"),
    };
    let looks = |title: &str, figure: fn(&Look) -> Option<u64>| {
        Part::Table(matrix(view, title, &moments, None, |place| {
            places(view)
                .map(|variant| {
                    let memory = view.measurement(place, variant).look.as_ref();
                    or_none(memory.and_then(|memory| {
                        let freed = bytes(figure(&memory.looks.freed)?);
                        match memory.looks.idle.as_ref().and_then(figure) {
                            Some(idle) => Some(format!("{freed} → {}", bytes(idle))),
                            None => Some(freed),
                        }
                    }))
                })
                .collect()
        }))
    };
    let title = "Charge of the process's cgroup after all objects were freed";
    let charge = match &view.results.no_charge {
        Some(why) => Part::Missing(format!("{title}\n  {why}\n")),
        None => looks(title, |look| look.charge),
    };
    [looks("RSS after all objects were freed", |look| Some(look.resident())), charge]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::obmalloc::{goals, tests::sample};

    #[test]
    fn the_tables_show_what_was_measured() {
        let (plan, results) = sample();
        let view = View { plan: &plan, results: &results };
        let text = text(view, &goals::goals(view));
        for expected in [
            "0.1000 −50.0 %",
            "[−50.0, −50.0]",
            "−29.5 %",
            "geometric mean of 1",
            "1,000 −95.0 %",
            "99.0 %",
            "not supported",
            "40 B → 20 B",
            "met     time of list_of_tuples: −50.0 % (reference −29.5 %)",
            "missed  time of dict_churn",
        ] {
            assert!(text.contains(expected), "{expected:?} not in\n{text}");
        }
    }
}
