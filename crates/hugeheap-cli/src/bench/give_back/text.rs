//! The tables and plots of a measurement.

use super::measure::Doing;
use super::results::{Clock, Held, Part, STOCK, View};
use super::workload::{REFERENCE, Workload};
use crate::bench::goal::{self, Goal};
use crate::bench::grid::{self, Grid};
use crate::bench::plot::{self, Abilities};
use crate::bench::sample::Sample;
use crate::bench::table::{NONE, interval, or_none};
use crate::bench::variant;
use crate::figure::{Content, Figure, Group, Line, Lines, Mark, Panel, Unit};
use crate::output::{bytes, change, grouped};
use crate::statistics::{half_spread, median};

/// Phases shorter than this share of the whole get no mark: the letters would cover each other.
const MARKED: f64 = 0.01;

/// All tables and plots, and the goals.
pub(crate) fn text(view: View<'_>, goals: &[Goal], abilities: Abilities) -> String {
    let mut text = variant::described(&view.plan.variants);
    for place in 0..view.plan.tasks.len() {
        text.push('\n');
        text += &times(view, place).text();
        text.push('\n');
        text += &memory(view, place).text();
        if let Some(why) = &view.results.no_charge {
            text += &format!("The charge of the process's cgroup cannot be read: {why}\n");
        }
    }
    for chart in charts(view) {
        text.push('\n');
        text += &plot::draw(&chart, abilities);
    }
    let ours = view.headline().map_or("", |place| &view.plan.variants[place].name);
    text + &goal::text(goals, ours)
}

/// Memory over time, time as bars, and the tables.
pub(crate) fn figures(view: View<'_>) -> Vec<Figure> {
    let mut figures = charts(view);
    let group = |place: usize| {
        let ratio = |variant: usize| view.ratio(place, variant, Part::Whole, Clock::Real);
        let bars = view.plan.variants.iter().enumerate().skip(1);
        let bars = bars.filter_map(|(variant, named)| Some(grid::ratio(&named.name, ratio(variant)?)));
        Group { name: view.plan.tasks[place].workload.name().to_owned(), bars: bars.collect() }
    };
    let places = 0..view.plan.tasks.len();
    if view.plan.variants.len() > 1 {
        let note = "ratio of medians with its 95 % interval; pale: the interval holds 1";
        figures.push(grid::ratios(
            "Time of the whole process, to stock",
            note,
            places.clone().map(group).collect(),
        ));
    }
    figures.extend(places.flat_map(|place| [times(view, place).figure(), memory(view, place).figure()]));
    figures
}

/// `instances: 1,000,000 objects` or `cycle: 1.0 GiB`.
fn heading(view: View<'_>, place: usize) -> String {
    let task = &view.plan.tasks[place];
    let amount = match task.workload {
        Workload::Instances => format!("{} instances with one attribute", grouped(task.size)),
        Workload::Cycle => format!("{} of objects of 16 sizes", bytes(task.size)),
    };
    format!("{}: {amount}, {} times", task.workload.name(), view.plan.cycles)
}

fn times(view: View<'_>, place: usize) -> Grid {
    let task = &view.plan.tasks[place];
    let mut head = vec!["seconds".to_owned(), String::new()];
    head.extend(view.plan.variants.iter().map(|variant| variant.name.clone()));
    let published = task.workload == Workload::Instances;
    head.extend(published.then(|| "reference".to_owned()));
    let note = if published {
        "medians of the runs; free, and cycles after the first, on average; reference: giving arenas back against keeping them, CPython 2.5"
    } else {
        "medians of the runs; free, and cycles after the first, on average"
    };
    let mut grid = Grid::new(heading(view, place), note, head);
    for part in Part::ALL {
        for (index, clock) in Clock::ALL.into_iter().enumerate() {
            let mut row = vec![clock.name().to_owned()];
            row.extend((0..view.plan.variants.len()).map(|variant| cell(view, place, variant, part, clock)));
            if published {
                let [before, after] = REFERENCE.map(|figures| figures[index]);
                row.push(if part == Part::Whole { change(after / before) } else { String::new() });
            }
            grid.row(if index == 0 { part.title() } else { "" }, row);
        }
    }
    grid
}

/// The median and its change; with the interval (or the spread) for the whole process.
fn cell(view: View<'_>, place: usize, variant: usize, part: Part, clock: Clock) -> String {
    let values = view.values(place, variant, part, clock);
    let Some(middle) = median(&values) else {
        let failed = view.measurement(place, variant).failure.is_some();
        return if failed { "failed".to_owned() } else { NONE.to_owned() };
    };
    let whole = part == Part::Whole && clock == Clock::Real;
    if variant == STOCK {
        return match half_spread(&values) {
            Some(spread) if whole => format!("{middle:.3}\n±{:.1} %", spread / middle * 100.0),
            _ => format!("{middle:.3}"),
        };
    }
    match view.ratio(place, variant, part, clock) {
        Some(ratio) if whole => format!("{middle:.3} {}\n{}", change(ratio.value), interval(ratio)),
        Some(ratio) => format!("{middle:.3} {}", change(ratio.value)),
        None => format!("{middle:.3}"),
    }
}

fn memory(view: View<'_>, place: usize) -> Grid {
    let mut head = vec!["memory".to_owned()];
    head.extend(view.plan.variants.iter().map(|variant| variant.name.clone()));
    let name = view.plan.tasks[place].workload.name();
    let mut grid = Grid::new(format!("{name}: memory, pages of a hugetlb pool included"), "", head);
    let mut add = |title: String, figure: &dyn Fn(usize) -> Option<String>| {
        grid.row(&title, (0..view.plan.variants.len()).map(|variant| or_none(figure(variant))));
    };
    let idle = view.plan.idle;
    type Moment = (String, fn(Held) -> u64);
    let moments: [Moment; 4] = [
        ("before the first object".to_owned(), |held| held.start),
        ("peak".to_owned(), |held| held.peak),
        ("after the last free".to_owned(), |held| held.freed),
        (format!("{idle} s later"), |held| held.idle),
    ];
    for (title, figure) in &moments {
        add(format!("RSS {title}"), &|variant| Some(bytes(figure(view.resident(place, variant)?))));
    }
    if view.results.no_charge.is_none() {
        for (title, figure) in &moments {
            add(format!("charge {title}"), &|variant| Some(bytes(figure(view.charged(place, variant)?))));
        }
        add("held, of what was added".to_owned(), &|variant| {
            Some(format!("{:.1} %", view.charged(place, variant)?.share()? * 100.0))
        });
    }
    grid
}

/// Memory over time: a chart per workload, a panel per variant.
pub(crate) fn charts(view: View<'_>) -> Vec<Figure> {
    (0..view.plan.tasks.len()).map(|place| chart(view, place)).collect()
}

fn chart(view: View<'_>, place: usize) -> Figure {
    let has_charge = view.results.no_charge.is_none();
    let mut panels = Vec::new();
    for (index, variant) in view.plan.variants.iter().enumerate() {
        let Some(watched) = &view.measurement(place, index).look else { continue };
        let Some(zero) = watched.samples.first().map(|sample| sample.at) else { continue };
        let end = watched.samples.last().map_or(zero, |sample| sample.at);
        let line = |name: &str, dotted, measure: fn(&Sample) -> Option<u64>| {
            let points = watched.samples.iter();
            let points = points.filter_map(|sample| Some((sample.at - zero, measure(sample)? as f64)));
            Line { name: name.to_owned(), runs: vec![points.collect()], dotted }
        };
        let charge = has_charge.then(|| line("charge", false, |sample| sample.charge));
        let resident = line("RSS", has_charge, |sample| Some(sample.resident()));
        let marks = watched
            .phases
            .iter()
            .filter(|phase| phase.end - phase.begin >= MARKED * (end - zero))
            .filter_map(|phase| {
                let letter = match phase.doing {
                    Doing::Start => return None,
                    Doing::Allocate => 'a',
                    Doing::Free => 'f',
                    Doing::Idle => 'i',
                };
                Some(Mark { at: phase.begin - zero, text: letter.to_string() })
            })
            .collect();
        let lines = charge.into_iter().chain([resident]).collect();
        panels.push(Panel { title: variant.name.clone(), lines, marks });
    }
    let lines = Lines::over_time(Unit::Bytes, "", panels);
    Figure::new(
        format!("{}: memory over time", heading(view, place)),
        "a allocates, f frees, i idles",
        Content::Lines(lines),
    )
}

#[cfg(test)]
mod tests {
    use super::super::{goals, tests::sample};
    use super::*;

    fn lines(figure: &Figure) -> &Lines {
        let Content::Lines(lines) = &figure.content else { panic!("no lines") };
        lines
    }

    #[test]
    fn the_tables_and_plots_show_what_was_measured() {
        let (plan, results) = sample();
        let view = View { plan: &plan, results: &results };
        let abilities = Abilities { colour: false, utf8: true, width: 80 };
        let text = text(view, &goals::goals(view), abilities);
        for expected in [
            "instances: 1,000,000 instances with one attribute, 3 times",
            "cycle: 256 MiB of objects of 16 sizes, 3 times",
            "0.900 −10.0 %",
            "[−10.0, −10.0]",
            "+75.1 %",
            "charge 3 s later",
            "4.0 %",
            "memory over time",
            "a allocates, f frees, i idles",
            "Goals of hugeheap's policy auto: 5 of 5 met",
        ] {
            assert!(text.contains(expected), "{expected:?} not in\n{text}");
        }
        let charts = charts(view);
        assert_eq!(charts.len(), 2);
        assert_eq!(lines(&charts[0]).panels.len(), 2);
        let letters: String =
            lines(&charts[0]).panels[0].marks.iter().map(|mark| mark.text.as_str()).collect();
        assert_eq!(letters, "afafafi");
    }

    #[test]
    fn without_a_charge_the_reason_is_told_and_rss_is_drawn() {
        let (plan, mut results) = sample();
        results.no_charge = Some("no memory cgroup is mounted here".to_owned());
        let view = View { plan: &plan, results: &results };
        let abilities = Abilities { colour: false, utf8: true, width: 80 };
        assert!(text(view, &[], abilities).contains("no memory cgroup"));
        let charts = charts(view);
        let line = &lines(&charts[0]).panels[0].lines[0];
        assert_eq!((line.name.as_str(), line.dotted), ("RSS", false));
    }
}
