//! The tables, and what the reference published.

use super::measure::{Part, kind_name};
use super::worker::{Kind, RING, Told};
use super::{Plan, Results, each, rate};
use crate::bench::goal::{self, Goal};
use crate::bench::grid::{self, Grid};
use crate::bench::subject::Absent;
use crate::bench::table::or_none;
use crate::figure::{Figure, Group, Unit};
use crate::output::{bytes, grouped};

/// What the reference published, of another machine (AMD Ryzen 7 PRO 7840U): GB/s, and instructions per object.
pub(crate) struct Published {
    pub(crate) name: &'static str,
    pub(crate) plain: Option<f64>,
    pub(crate) field: Option<f64>,
    pub(crate) instructions: Option<[f64; 2]>,
    pub(crate) cycles: Option<[f64; 2]>,
}

pub(crate) const PUBLISHED: [Published; 4] = [
    Published {
        name: "RPython",
        plain: Some(34.3),
        field: Some(29.7),
        instructions: Some([11.0, 13.0]),
        cycles: Some([2.1, 2.5]),
    },
    Published {
        name: "RPython, Boehm",
        plain: Some(1.53),
        field: Some(1.54),
        instructions: None,
        cycles: None,
    },
    Published { name: "PyPy", plain: None, field: Some(17.9), instructions: None, cycles: None },
    Published { name: "PyPy, no JIT", plain: None, field: Some(0.83), instructions: None, cycles: None },
];

/// Widest bar of the sweep.
const BAR: f64 = 20.0;

pub(crate) fn text(plan: &Plan, results: &Results, goals: &[Goal]) -> String {
    let mut text = programs(plan, results).text();
    if !plan.absent.is_empty() {
        text += "Not here:\n";
        text.extend(plan.absent.iter().map(Absent::line));
    }
    text.push('\n');
    text += &sizes(plan, results).text();
    text.push('\n');
    text += &nurseries(plan, results).text();
    text + &goal::listed(goals, "Goals")
}

/// The tables, the rates as bars, and the nursery's size against time as bars.
pub(crate) fn figures(plan: &Plan, results: &Results) -> Vec<Figure> {
    let group = |kind: Kind, published: fn(&Published) -> Option<f64>| {
        let measured = plan.subjects.iter().filter_map(|subject| {
            let place = plan.program(subject.name, kind)?;
            Some(grid::bar(subject.name, results.median(place, rate)? * f64::from(1 << 30)))
        });
        let reference = PUBLISHED.iter().filter_map(|row| {
            Some(grid::bar(&format!("* {}", row.name), published(row)? * f64::from(1 << 30)))
        });
        Group { name: kind_name(kind).to_owned(), bars: measured.chain(reference).collect() }
    };
    let rates = grid::bars(
        "Allocation rate, objects of 16 bytes",
        "medians; *: published, of another machine (AMD Ryzen 7 PRO 7840U)",
        Unit::BytesPerSecond,
        vec![group(Kind::Plain, |row| row.plain), group(Kind::Field, |row| row.field)],
    );
    let kept = |nursery: u64, ring: bool| {
        let place =
            plan.find(Part::Nurseries, |job| job.nursery == nursery && (job.kind == Kind::Ring) == ring)?;
        let name = format!("{} kept", grouped(if ring { RING as u64 } else { 2 }));
        Some(grid::bar(&name, results.median(place, each)? * 1e-9))
    };
    let rings = plan.of(Part::Nurseries).filter(|(_, job)| job.kind == Kind::Ring);
    let sweep = rings.map(|(_, job)| Group {
        name: bytes(job.nursery),
        bars: [false, true].into_iter().filter_map(|ring| kept(job.nursery, ring)).collect(),
    });
    let sweep = grid::bars(
        "Time per object, by the size of the nursery",
        "medians, on hugeheap",
        Unit::Seconds,
        sweep.collect(),
    );
    // Bars of characters are for terminals.
    let mut table = nurseries(plan, results);
    table.head.pop();
    table.rows.iter_mut().for_each(|row| drop(row.pop()));
    vec![rates, programs(plan, results).figure(), sizes(plan, results).figure(), sweep, table.figure()]
}

/// A time or rate with three digits that matter.
fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

fn programs(plan: &Plan, results: &Results) -> Grid {
    let has_cycles = results.counted.iter().flatten().any(|counted| counted.cycles.is_some());
    let head =
        ["program", "bytes", "ns", "GB/s", "instr.", "cycles", "ns, field", "GB/s", "instr.", "cycles"];
    let head = head.into_iter().filter(|&word| has_cycles || word != "cycles");
    let counting = match &plan.counting {
        Ok(counting) => format!("instructions by {}", counting.name()),
        Err(why) => format!("instructions are not counted: {why}"),
    };
    let explanation = format!(
        "without and with a write of the field; per object, medians of {} runs; GB are 2^30 bytes;\n{counting};\n\
         *: published, of another machine (AMD Ryzen 7 PRO 7840U)",
        plan.runs
    );
    let title = "Objects of 16 bytes, of which the last two are kept";
    let mut grid = Grid::new(title, explanation, head.map(str::to_owned).collect());
    for subject in &plan.subjects {
        let mut row = Vec::new();
        let places = [Kind::Plain, Kind::Field].map(|kind| plan.program(subject.name, kind));
        let size = places.iter().flatten().find_map(|&place| results.trials[place].runs.first());
        row.push(or_none(size.map(|told| told.bytes.to_string())));
        for place in places {
            let median = |of: fn(&Told) -> f64| place.and_then(|place| results.median(place, of)).map(figure);
            let failed = place.is_some_and(|place| results.trials[place].failure.is_some());
            row.push(if failed { "failed".to_owned() } else { or_none(median(each)) });
            row.push(or_none(median(rate)));
            let counted = place.and_then(|place| results.counted[place]);
            row.push(or_none(counted.map(|counted| format!("{:.1}", counted.instructions))));
            if has_cycles {
                row.push(or_none(counted.and_then(|counted| counted.cycles).map(figure)));
            }
        }
        grid.row(format!("{} {}", subject.name, subject.version).trim(), row);
    }
    for published in &PUBLISHED {
        let mut row = vec!["16".to_owned()];
        for (index, value) in [published.plain, published.field].into_iter().enumerate() {
            row.push(or_none(value.map(|rate| figure(16.0 / rate / f64::from(1 << 30) * 1e9))));
            row.push(or_none(value.map(figure)));
            row.push(or_none(published.instructions.map(|counts| format!("{:.0}", counts[index]))));
            if has_cycles {
                row.push(or_none(published.cycles.map(|counts| figure(counts[index]))));
            }
        }
        grid.row(&format!("* {}", published.name), row);
    }
    grid
}

fn sizes(plan: &Plan, results: &Results) -> Grid {
    let head = ["bytes", "ns", "GB/s", "ns, field", "GB/s", "minor collections", "µs each", "of the time"];
    let note = "collections are those of the loop that writes no field";
    let mut grid = Grid::new("Other sizes, on hugeheap", note, head.map(str::to_owned).to_vec());
    for (plain, job) in plan.of(Part::Sizes).filter(|(_, job)| job.kind == Kind::Plain) {
        let field = plan.find(Part::Sizes, |other| other.bytes == job.bytes && other.kind == Kind::Field);
        let mut row = Vec::new();
        for place in [Some(plain), field] {
            for of in [each, rate] {
                row.push(or_none(place.and_then(|place| results.median(place, of)).map(figure)));
            }
        }
        row.extend(collections(results, plain));
        grid.row(&job.bytes.to_string(), row);
    }
    grid
}

/// Minor collections of a run, microseconds of each, their share of the time.
fn collections(results: &Results, place: usize) -> [String; 3] {
    let heap = |of: fn(&super::worker::HeapTold, &Told) -> f64| {
        results.median(place, |told| told.heap.as_ref().map_or(0.0, |heap| of(heap, told)))
    };
    let count = heap(|heap, _| heap.minor_collections as f64);
    let time = heap(|heap, _| heap.collecting * 1e6 / (heap.minor_collections as f64).max(1.0));
    let share = heap(|heap, told| heap.collecting / told.seconds * 100.0);
    [
        or_none(count.map(|count| grouped(count as u64))),
        or_none(time.map(figure)),
        or_none(share.map(|share| format!("{share:.1} %"))),
    ]
}

fn nurseries(plan: &Plan, results: &Results) -> Grid {
    let kept = format!("ns, {} kept", grouped(RING as u64));
    let head = ["nursery", "ns, 2 kept", &kept, "minor collections", "µs each"];
    let mut head: Vec<_> = head.iter().map(|&word| word.to_owned()).collect();
    head.push(String::new());
    let explanation = format!(
        "objects of 16 bytes, {} written; collections and bars are those of the loop that keeps {}",
        kind_name(Kind::Field),
        grouped(RING as u64)
    );
    let mut grid = Grid::new("Sizes of the nursery, on hugeheap", explanation, head);
    let rings: Vec<_> = plan.of(Part::Nurseries).filter(|(_, job)| job.kind == Kind::Ring).collect();
    let times: Vec<_> = rings.iter().filter_map(|&(place, _)| results.median(place, each)).collect();
    let slowest = times.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    for (ring, job) in rings {
        let two =
            plan.find(Part::Nurseries, |other| other.nursery == job.nursery && other.kind != Kind::Ring);
        let mark = if job.nursery == plan.chosen { ", chosen" } else { "" };
        let mut row = Vec::new();
        let time = results.median(ring, each);
        row.push(or_none(two.and_then(|place| results.median(place, each)).map(figure)));
        row.push(or_none(time.map(figure)));
        let [count, length, _] = collections(results, ring);
        row.extend([count, length]);
        // To the left, although figures are to the right: a bar begins where the others do.
        let len = time.map_or(0, |time| (time / slowest * BAR).round().max(1.0) as usize);
        row.push(format!("{:<1$}", "▇".repeat(len), BAR as usize));
        grid.row(&format!("{}{mark}", bytes(job.nursery)), row);
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::super::{goals, tests::sample};
    use super::*;

    #[test]
    fn the_tables_show_what_was_measured_and_fit_a_hundred_columns() {
        let (plan, results) = sample();
        let text = text(&plan, &results, &goals(&plan, &results));
        for expected in [
            "hugeheap 0.1.0",
            "* RPython",
            "34.3",
            "0.30",
            "11.0",
            "ocaml       not found: install ocaml",
            "1.0 MiB, chosen",
            "100   ",
            "instructions by callgrind",
            "Goals: 6 of 6 met",
        ] {
            assert!(text.contains(expected), "{expected:?} not in\n{text}");
        }
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{widest:?}\n{text}");
    }

    #[test]
    fn what_failed_is_said() {
        let (plan, mut results) = sample();
        results.trials[2].failure = Some("broken".to_owned());
        assert!(text(&plan, &results, &[]).contains("failed"));
    }
}
