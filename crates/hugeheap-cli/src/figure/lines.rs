//! Lines over time. Runs are overlaid thin; above them their median, and as a band the middle half of them.
//!
//! A run with thousands of points has many to a pixel: of each column of pixels the first, lowest, highest and last
//! are drawn, so that no peak is lost and a page with fifty runs stays small.

use super::area::{self, Area, Drawn, Frame, Plot, fine};
use super::scale::Scale;
use super::{Line, Lines, Panel, palette};
use crate::statistics::quantile;
use plotters::prelude::*;
use plotters::series::{DashedLineSeries, LineSeries};
use plotters::style::text_anchor::HPos;

/// Height of a panel that is alone, and of one of several, as shown.
const ALONE: u32 = 330;
const SMALL: u32 = 190;
const ACROSS: u32 = 2;
/// Radius of a point that is alone, in shown pixels.
const DOT: u32 = 3;
/// Columns in which a run's points are summed up, and moments at which the runs' median is taken.
const COLUMNS: usize = 400;
const MOMENTS: usize = 240;

/// Names in the order of first use: the same name has the same colour in all panels.
fn names(lines: &Lines) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for line in lines.panels.iter().flat_map(|panel| &panel.lines) {
        if !names.contains(&line.name.as_str()) {
            names.push(&line.name);
        }
    }
    names
}

pub(super) fn height(lines: &Lines) -> u32 {
    let rows = (lines.panels.len() as u32).div_ceil(ACROSS);
    area::head(&names(lines)) + if lines.panels.len() <= 1 { ALONE } else { rows * SMALL }
}

pub(super) fn draw(area: &Area<'_>, title: &str, lines: &Lines) -> Drawn {
    let names = names(lines);
    let below = area::titled(area, title, &names, &palette::series)?;
    let points = || lines.panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.runs).flatten();
    let x = Scale::within(lines.x.unit, points().map(|point| point.0));
    let y = Scale::holding(lines.y.unit, points().map(|point| point.1), false);
    let areas = match lines.panels.len() {
        0 => return Ok(()),
        1 => vec![below],
        count => below.split_evenly((count.div_ceil(ACROSS as usize), ACROSS as usize)),
    };
    for (panel, area) in lines.panels.iter().zip(&areas) {
        let frame = Frame {
            title: &panel.title,
            x: x.clone(),
            y: y.clone(),
            x_label: &lines.x.label,
            y_label: &lines.y.label,
            is_grid_both: true,
        };
        panel_lines(&mut area::plot(area, frame)?, panel, &names, &y)?;
    }
    Ok(())
}

fn panel_lines(plot: &mut Plot<'_, '_>, panel: &Panel, names: &[&str], y: &Scale) -> Drawn {
    for mark in &panel.marks {
        let line = [(mark.at, y.low()), (mark.at, y.high())];
        plot.draw_series(DashedLineSeries::new(line, 6, 6, palette::faint().mix(0.6).stroke_width(2)))?;
        let style = area::above(palette::faint(), HPos::Left);
        plot.draw_series([
            EmptyElement::at((mark.at, y.high())) + Text::new(mark.text.clone(), (fine(3), fine(14)), style)
        ])?;
    }
    for line in &panel.lines {
        let colour = palette::series(names.iter().position(|name| *name == line.name).unwrap_or(0));
        let runs: Vec<_> = line.runs.iter().filter(|run| !run.is_empty()).collect();
        // A line needs two points; what was looked at once only is a dot.
        let single = runs.iter().filter(|run| run.len() == 1);
        plot.draw_series(single.map(|run| Circle::new(run[0], fine(DOT), colour.filled())))?;
        match runs[..] {
            [] => {}
            [run] => {
                let points = thinned(run);
                if line.dotted {
                    plot.draw_series(DashedLineSeries::new(points, 7, 7, colour.stroke_width(5)))?;
                } else {
                    plot.draw_series(LineSeries::new(points, colour.stroke_width(5)))?;
                }
            }
            _ => {
                for run in &runs {
                    plot.draw_series(LineSeries::new(thinned(run), colour.mix(0.3).stroke_width(2)))?;
                }
                let middle = median_band(line);
                let upper = middle.iter().map(|moment| (moment.at, moment.high));
                let lower = middle.iter().rev().map(|moment| (moment.at, moment.low));
                let band: Vec<_> = upper.chain(lower).collect();
                if !band.is_empty() {
                    plot.draw_series([Polygon::new(band, colour.mix(0.22))])?;
                }
                let median = middle.iter().map(|moment| (moment.at, moment.median));
                plot.draw_series(LineSeries::new(median, colour.stroke_width(6)))?;
            }
        }
    }
    Ok(())
}

/// The runs of a line at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Moment {
    at: f64,
    low: f64,
    median: f64,
    high: f64,
}

/// Median and quartiles of the runs, for as long as at least half of them go on: after that the rest are not typical.
fn median_band(line: &Line) -> Vec<Moment> {
    let end = line.runs.iter().filter_map(|run| Some(run.last()?.0)).fold(0.0, f64::max);
    let needed = line.runs.len().div_ceil(2);
    let at = |moment: usize| end * moment as f64 / MOMENTS as f64;
    (0..=MOMENTS)
        .filter_map(|moment| {
            let at = at(moment);
            let values: Vec<f64> = line.runs.iter().filter_map(|run| interpolated(run, at)).collect();
            if values.len() < needed {
                return None;
            }
            let (low, high) = (quantile(&values, 0.25)?, quantile(&values, 0.75)?);
            Some(Moment { at, low, median: quantile(&values, 0.5)?, high })
        })
        .collect()
}

/// A run's value at a moment within it.
fn interpolated(run: &[(f64, f64)], at: f64) -> Option<f64> {
    let after = run.partition_point(|point| point.0 < at);
    let next = run.get(after)?;
    let Some(before) = after.checked_sub(1).map(|place| run[place]) else {
        return (next.0 == at).then_some(next.1);
    };
    Some(before.1 + (next.1 - before.1) * (at - before.0) / (next.0 - before.0))
}

/// A run with at most four points to a column.
fn thinned(run: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return Vec::new() };
    if run.len() <= COLUMNS || last.0 <= first.0 {
        return run.to_vec();
    }
    let column = |point: &(f64, f64)| ((point.0 - first.0) / (last.0 - first.0) * COLUMNS as f64) as usize;
    let mut kept: Vec<(f64, f64)> = Vec::new();
    for points in run.chunk_by(|one, other| column(one) == column(other)) {
        let by_value = |one: &&(f64, f64), other: &&(f64, f64)| one.1.total_cmp(&other.1);
        let ends = [points.first(), points.last()];
        let extremes = [points.iter().min_by(by_value), points.iter().max_by(by_value)];
        let mut some: Vec<_> = ends.into_iter().chain(extremes).flatten().copied().collect();
        some.sort_by(|one, other| one.0.total_cmp(&other.0));
        some.dedup();
        kept.extend(some);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_band_ends_when_most_runs_have_ended() {
        let run = |end: f64, value: f64| vec![(0.0, value), (end, value)];
        let line = Line {
            runs: vec![run(1.0, 10.0), run(1.0, 20.0), run(1.0, 30.0), run(4.0, 40.0)],
            ..Line::default()
        };
        let band = median_band(&line);
        let first = band.first().unwrap();
        assert_eq!((first.median, first.low, first.high), (25.0, 17.5, 32.5));
        assert!(band.last().unwrap().at <= 1.0 + 1e-9, "{:?}", band.last());
        assert_eq!(median_band(&Line::default()), []);
    }

    #[test]
    fn values_between_points_are_interpolated_and_none_beyond() {
        let run = [(1.0, 10.0), (2.0, 20.0)];
        assert_eq!(interpolated(&run, 1.5), Some(15.0));
        assert_eq!((interpolated(&run, 1.0), interpolated(&run, 2.0)), (Some(10.0), Some(20.0)));
        assert_eq!((interpolated(&run, 0.5), interpolated(&run, 2.5)), (None, None));
    }

    #[test]
    fn a_peak_of_one_point_is_kept() {
        let run: Vec<_> =
            (0..100_000).map(|at| (f64::from(at), if at == 77_777 { 9.0 } else { 1.0 })).collect();
        let kept = thinned(&run);
        assert!(kept.len() <= 4 * (COLUMNS + 1), "{}", kept.len());
        assert!(kept.contains(&(77_777.0, 9.0)));
        assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
