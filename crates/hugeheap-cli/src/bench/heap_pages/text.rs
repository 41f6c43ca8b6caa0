//! Tables, plot and figures of a measurement.

use super::Results;
use super::pages;
use super::ruby::{REQUESTS, Run};
use crate::bench::grid::Grid;
use crate::bench::table::{NONE, or_none};
use crate::bench::trials::Trial;
use crate::figure::{Boxes, Content, Distribution, Figure, Line, Lines, Panel, Unit};
use crate::output::{bytes, change, grouped, seconds};
use crate::statistics::{half_spread, median, quantile};

/// All tables, and what has to be said.
pub(super) fn tables(results: &Results) -> String {
    let mut text = String::new();
    for grid in grids(results) {
        text += &grid.text();
        text.push('\n');
    }
    if let Some(why) = &results.no_ruby {
        text += &format!("Nothing of Ruby: {why}\n");
    }
    for line in &results.missing {
        text += &format!("{line}\n");
    }
    let said = results.runs.iter().flat_map(|trial| &trial.runs).map(|run| &run.said).next();
    if let Some(said) = said {
        if said.thp_enabled == Some(false) {
            text += "This Ruby switches transparent huge pages off for itself (PR_SET_THP_DISABLE).\n";
        }
        text += "Not on hugeheap: the object pages measured here are mapped by Ruby itself; hugeheap run -- ruby takes what else it allocates.\n";
    }
    text.push('\n');
    text
}

fn grids(results: &Results) -> Vec<Grid> {
    let mut grids = Vec::new();
    if !results.runs.is_empty() {
        grids.push(maximum(results));
    }
    grids.push(rounding(results));
    if !results.pages.is_empty() {
        grids.push(heap_pages(results));
    }
    grids
}

fn maximum(results: &Results) -> Grid {
    let mut head = vec![String::new()];
    head.extend(results.runs.iter().map(|trial| trial.name.clone()));
    let said = results.runs.iter().flat_map(|trial| &trial.runs).map(|run| &run.said).next();
    let versions = said.map_or_else(String::new, |said| format!("Ruby {}, RDoc {}", said.version, said.rdoc));
    let mut grid = Grid::new(
        format!("RDoc over Ruby's own library, {}", results.part),
        format!("{versions}; maximum RSS over the runs, change of the median against glibc"),
        head,
    );
    let first = results.runs.first().and_then(|trial| median(&peaks(trial)));
    let mut add = |title: &str, cell: &dyn Fn(&Trial<Run>) -> Option<String>| {
        grid.row(title, results.runs.iter().map(|trial| or_none(cell(trial))));
    };
    add("least", &|trial| Some(bytes(quantile(&peaks(trial), 0.0)? as u64)));
    add("median", &|trial| {
        let middle = median(&peaks(trial))?;
        Some(match first.filter(|&first| first != middle) {
            Some(first) => format!("{} {}", bytes(middle as u64), change(middle / first)),
            None => bytes(middle as u64),
        })
    });
    add("most", &|trial| Some(bytes(quantile(&peaks(trial), 1.0)? as u64)));
    add("half the middle half", &|trial| Some(bytes(half_spread(&peaks(trial))? as u64)));
    add("time", &|trial| Some(seconds(median(&trial.values(|run| run.wall))?)));
    add("heap pages at the end", &|trial| Some(grouped(trial.runs.first()?.said.pages?)));
    grid
}

fn peaks(trial: &Trial<Run>) -> Vec<f64> {
    trial.values(|run| run.maximum as f64)
}

fn rounding(results: &Results) -> Grid {
    let mut head = vec!["request, aligned to 16 KiB".to_owned()];
    let measured = results.allocators.iter().zip(&results.probes);
    head.extend(measured.map(|(allocator, _)| allocator.name.clone()));
    head.push("hugeheap".to_owned());
    let mut grid = Grid::new(
        "Bytes lost per heap page by rounding",
        "usable beyond the request, and between one request's end and the next block, where other requests may still fit",
        head,
    );
    for (index, size) in REQUESTS.into_iter().enumerate() {
        grid.row(
            &format!("{} bytes", grouped(size.into())),
            results.probes.iter().chain([&results.own]).map(|probe| {
                match probe.as_ref().map(|probe| probe[index]) {
                    Ok(probe) => {
                        let over = |value: u64| grouped(value.saturating_sub(probe.size));
                        format!("{}, {}", over(probe.usable), over(probe.distance))
                    }
                    Err(_) => "failed".to_owned(),
                }
            }),
        );
    }
    grid
}

fn heap_pages(results: &Results) -> Grid {
    let mut head = vec!["heap pages of".to_owned()];
    head.extend(results.pages.iter().map(|trial| trial.name.clone()));
    let objects = results.pages.iter().flat_map(|trial| &trial.runs).map(|run| run.objects).next();
    let mut grid = Grid::new(
        format!("Other sizes: {} objects of 40 bytes, of which a few stay", grouped(objects.unwrap_or(0))),
        "groups of 10,000 die together, one object in 2,000 stays; medians of the runs",
        head,
    );
    type Figure = (&'static str, fn(&pages::Run) -> f64, fn(f64) -> String);
    let whole: fn(f64) -> String = |value| bytes(value as u64);
    let rows: [Figure; 9] = [
        ("heap pages", |run| run.pages as f64, |value| grouped(value as u64)),
        ("lost at their ends", |run| run.rounding as f64, whole),
        ("peak", |run| run.peak as f64, whole),
        ("objects that stay", |run| run.live as f64, whole),
        ("given back", |run| run.given_back as f64, whole),
        ("held after it", |run| run.rss_after as f64, whole),
        ("time to give back", |run| run.give_back, seconds),
        ("calls", |run| run.calls as f64, |value| grouped(value as u64)),
        ("time to fill it again", |run| run.refill, seconds),
    ];
    for (title, figure, show) in rows {
        grid.row(
            title,
            results
                .pages
                .iter()
                .map(|trial| median(&trial.values(figure)).map_or_else(|| NONE.to_owned(), show)),
        );
    }
    grid
}

/// RSS over time, all runs: a panel for each allocator.
pub(super) fn chart(results: &Results) -> Option<Figure> {
    let panel = |trial: &Trial<Run>| {
        let run = |run: &Run| run.samples.iter().map(|&(at, rss)| (at, rss as f64)).collect();
        let runs = trial.runs.iter().map(run).collect();
        let line = Line { name: "RSS".to_owned(), runs, dotted: false };
        Panel { title: trial.name.clone(), lines: vec![line], marks: Vec::new() }
    };
    let measured = results.runs.iter().filter(|trial| !trial.runs.is_empty());
    let panels: Vec<_> = measured.map(panel).collect();
    let lines = Content::Lines(Lines::over_time(Unit::Bytes, "RSS", panels.clone()));
    (!panels.is_empty()).then(|| Figure::new("RDoc: memory over time", "all runs", lines))
}

/// Memory over time; box plot of the maximum; the tables.
pub(super) fn figures(results: &Results) -> Vec<Figure> {
    let tables = grids(results);
    let tables = tables.iter().map(Grid::figure);
    let Some(chart) = chart(results) else { return tables.collect() };
    let boxes =
        results.runs.iter().map(|trial| Distribution { name: trial.name.clone(), values: peaks(trial) });
    let boxes = Figure::new(
        "RDoc: maximum RSS",
        "one value for each run",
        Content::Boxes(Boxes { unit: Unit::Bytes, boxes: boxes.collect() }),
    );
    [chart, boxes].into_iter().chain(tables).collect()
}
