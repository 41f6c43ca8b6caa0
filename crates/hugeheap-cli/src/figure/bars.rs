//! Bars with confidence intervals: a row for each, with its value at the end; groups below each other.
//!
//! A difference that is not significant is pale: the eye shall not compare what the figures cannot.

use super::area::{self, Area, Drawn, Frame, LETTER, WIDTH, fine};
use super::scale::{Scale, shown};
use super::{Bar, Bars, palette};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// Height of a row, as shown, and of what is below.
const ROW: u32 = 24;
const AXIS: u32 = 40;

/// A row of the picture.
enum Row<'a> {
    Group(&'a str),
    Bar(&'a Bar),
}

fn rows(bars: &Bars) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for group in &bars.groups {
        if !group.name.is_empty() {
            rows.push(Row::Group(&group.name));
        }
        rows.extend(group.bars.iter().map(Row::Bar));
    }
    rows
}

pub(super) fn height(bars: &Bars) -> u32 {
    area::head(&[]) + rows(bars).len() as u32 * ROW + AXIS
}

pub(super) fn draw(area: &Area<'_>, title: &str, bars: &Bars) -> Drawn {
    let below = area::titled(area, title, &[], &palette::series)?;
    let rows = rows(bars);
    let mut names: Vec<&str> = Vec::new();
    for bar in bars.groups.iter().flat_map(|group| &group.bars) {
        if !names.contains(&bar.name.as_str()) {
            names.push(&bar.name);
        }
    }
    let values = bars.groups.iter().flat_map(|group| &group.bars);
    let values = values.flat_map(|bar| [Some(bar.value), bar.low, bar.high]).flatten();
    let x = Scale::holding(bars.unit, values.chain(bars.reference), bars.reference.is_some());
    let low = x.low();
    let origin = bars.reference.unwrap_or(0.0).clamp(x.low(), x.high());
    let y = Scale::rows(rows.iter().map(|row| match row {
        // Written into the plot, above its bars: beside it, it would look like one of them.
        Row::Group(_) => String::new(),
        // No space at the end of a text is drawn, but for one that does not break.
        Row::Bar(bar) => format!("{}\u{a0}", bar.name),
    }));
    // The values stand right of everything: no bar may end there.
    let longest = values_longest(bars);
    let (right, count) = ((WIDTH - 20).saturating_sub(LETTER * longest).max(WIDTH / 3), rows.len() as f64);
    let (left, values) = below.split_horizontally(fine(right));
    let frame = Frame { title: "", x, y: y.clone(), x_label: "", y_label: "", is_grid_both: false };
    let mut plot = area::plot(&left, frame)?;
    for (place, row) in rows.iter().enumerate() {
        let bar = match row {
            Row::Bar(bar) => bar,
            Row::Group(name) => {
                let text =
                    Text::new((*name).to_owned(), (fine(4), 0), area::label(palette::text(), HPos::Left));
                plot.draw_series([EmptyElement::at((low, place as f64 + 0.55)) + text])?;
                continue;
            }
        };
        let number = names.iter().position(|name| *name == bar.name).unwrap_or(0);
        let strength = if bar.significant == Some(false) { 0.35 } else { 0.9 };
        let colour = palette::series(number);
        let (top, bottom) = (place as f64 + 0.2, place as f64 + 0.8);
        let (from, to) = (origin.min(bar.value), origin.max(bar.value));
        plot.draw_series([Rectangle::new([(from, top), (to, bottom)], colour.mix(strength).filled())])?;
        if let (Some(low), Some(high)) = (bar.low, bar.high) {
            let middle = place as f64 + 0.5;
            let stroke = palette::text().stroke_width(4);
            let lines = [
                [(low, middle), (high, middle)],
                [(low, middle - 0.15), (low, middle + 0.15)],
                [(high, middle - 0.15), (high, middle + 0.15)],
            ];
            plot.draw_series(lines.map(|line| PathElement::new(line, stroke)))?;
        }
        // In line with the row: the plot's own pixels, shifted by those of its area.
        let (_, y) = plot.backend_coord(&(from, place as f64 + 0.5));
        let (_, top) = values.get_base_pixel();
        values.draw(&Text::new(
            shown(bars.unit, bar.value),
            (fine(LETTER * longest), y - top),
            area::label(palette::text(), HPos::Right),
        ))?;
    }
    if bars.reference.is_some() {
        let line = [(origin, 0.0), (origin, count)];
        plot.draw_series([PathElement::new(line, palette::faint().stroke_width(4))])?;
    }
    Ok(())
}

/// Letters of the longest value.
fn values_longest(bars: &Bars) -> u32 {
    let all = bars.groups.iter().flat_map(|group| &group.bars);
    all.map(|bar| shown(bars.unit, bar.value).chars().count() as u32).max().unwrap_or(0)
}
