//! The tables of a measurement.

use super::measure::Look;
use super::results::{Figure, STOCK, View, faults, time};
use crate::bench::counters::NAMES;
use crate::bench::goal::{self, Goal};
use crate::bench::table::{self, NONE, interval, or_none, titled};
use crate::bench::variant;
use crate::output::{bytes, change, grouped, percent};
use crate::statistics::{half_spread, median};

/// All tables, and the goals.
pub(crate) fn text(view: View<'_>, goals: &[Goal]) -> String {
    let mut text = variant::described(&view.plan.variants);
    text.push('\n');
    text += &times(view);
    text.push('\n');
    text += &walls(view);
    text.push('\n');
    text += &pages(view);
    text.push('\n');
    text += &counters(view);
    text.push('\n');
    text += &after(view);
    let ours = view.headline().map_or("", |place| &view.plan.variants[place].name);
    text += &goal::text(goals, ours);
    text
}

/// A table of one row per workload, with a cell per variant and perhaps one more column.
fn matrix(
    view: View<'_>,
    last: Option<&str>,
    mut cells: impl FnMut(usize) -> Vec<String>,
) -> comfy_table::Table {
    let mut head = vec!["workload".to_owned()];
    head.extend(view.plan.variants.iter().map(|variant| variant.name.clone()));
    head.extend(last.map(str::to_owned));
    let mut table = table::new(&head);
    for (place, workload) in view.workloads() {
        let mut row = vec![workload.name.to_owned()];
        row.extend(cells(place));
        table::row(&mut table, &row);
    }
    table
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

fn times(view: View<'_>) -> String {
    let mut table = matrix(view, Some("reference"), |place| {
        let workload = view.plan.workloads[place];
        let mut cells: Vec<_> =
            places(view).map(|variant| timed(view, place, variant, time(workload))).collect();
        cells.push(or_none(workload.time.map(percent)));
        cells
    });
    let mut row = vec!["geometric mean".to_owned(), "1".to_owned()];
    let mut count = 0;
    for variant in places(view).skip(1) {
        row.push(or_none(view.geometric_mean(variant, STOCK).map(|(mean, workloads)| {
            count = workloads;
            format!("{:.3}\n[{:.3}, {:.3}]", mean.value, mean.low, mean.high)
        })));
    }
    if count > 0 {
        row[0] = format!("geometric mean of {count}");
        row.push(NONE.to_owned());
        table::row(&mut table, &row);
    }
    titled(
        "Wall time of the workload in seconds",
        &format!(
            "median of {} runs in turn, change against stock, its 95 % confidence interval; stock: spread",
            view.plan.runs
        ),
        &table,
    )
}

fn walls(view: View<'_>) -> String {
    let table = matrix(view, None, |place| {
        places(view).map(|variant| timed(view, place, variant, |run| run.wall)).collect()
    });
    titled(
        "Wall time of the whole process in seconds",
        "from start to end, the interpreter's own included",
        &table,
    )
}

fn pages(view: View<'_>) -> String {
    let minor = matrix(view, Some("reference"), |place| {
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
    let peaks = matrix(view, None, |place| {
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
    let coverage = matrix(view, None, |place| {
        places(view)
            .map(|variant| {
                or_none(view.coverage(place, variant).map(|share| format!("{:.1} %", share * 100.0)))
            })
            .collect()
    });
    let faults = titled("Minor page faults of the process", "", &minor);
    let peaks = titled("Peak RSS, pages of a hugetlb pool included", "", &peaks);
    let coverage = titled(
        "Coverage by huge pages while all objects live, from the kernel",
        "hugeheap: of its arenas; others: of all anonymous memory",
        &coverage,
    );
    format!("{faults}\n{peaks}\n{coverage}")
}

fn counters(view: View<'_>) -> String {
    if let Some(why) = &view.plan.no_counters {
        return format!(
            "Hardware counters (dTLB loads and stores, iTLB, cache, instructions, cycles)\n  {why}\n"
        );
    }
    let mut text = String::new();
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
            text += &format!("{name}: not supported by this machine\n\n");
            continue;
        }
        let table = matrix(view, Some("reference"), |place| {
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
        });
        text += &titled(name, "", &table);
        text.push('\n');
    }
    text
}

fn after(view: View<'_>) -> String {
    let looks = |figure: fn(&Look) -> Option<u64>| {
        matrix(view, None, |place| {
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
        })
    };
    let moments = match view.plan.idle {
        0.0 => "right after".to_owned(),
        idle => format!("right after → after {idle} s without work"),
    };
    let rss = titled("RSS after all objects were freed", &moments, &looks(|look| Some(look.resident())));
    let charge = match &view.results.no_charge {
        Some(why) => format!("Charge of the process's cgroup after all objects were freed\n  {why}\n"),
        None => titled(
            "Charge of the process's cgroup after all objects were freed",
            &moments,
            &looks(|look| look.charge),
        ),
    };
    format!("{rss}\n{charge}")
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
