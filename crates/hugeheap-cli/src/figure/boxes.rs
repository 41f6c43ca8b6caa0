//! Box plots: the middle half of the runs as a box with the median in it, whiskers to the furthest runs that
//! are within one and a half times its width, and every run as a point, so that few runs cannot look like many.

use super::area::{self, Area, Drawn, Frame, fine};
use super::scale::{Scale, shown};
use super::{Boxes, palette};
use crate::statistics::quantile;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// Height of a box's row, as shown, and of what is below.
const ROW: u32 = 54;
const AXIS: u32 = 40;
/// Tukey's: a run further away than this many widths of the box is an outlier.
const REACH: f64 = 1.5;

/// What is drawn of a distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Summary {
    low: f64,
    quarter: f64,
    median: f64,
    three_quarters: f64,
    high: f64,
}

fn summary(values: &[f64]) -> Option<Summary> {
    let [quarter, median, three_quarters] = [0.25, 0.5, 0.75].map(|share| quantile(values, share));
    let (quarter, median, three_quarters) = (quarter?, median?, three_quarters?);
    let reach = REACH * (three_quarters - quarter);
    let inside = |value: &&f64| (quarter - reach..=three_quarters + reach).contains(*value);
    let low = values.iter().filter(inside).copied().fold(quarter, f64::min);
    let high = values.iter().filter(inside).copied().fold(three_quarters, f64::max);
    Some(Summary { low, quarter, median, three_quarters, high })
}

pub(super) fn height(boxes: &Boxes) -> u32 {
    area::head(&[]) + boxes.boxes.len() as u32 * ROW + AXIS
}

pub(super) fn draw(area: &Area<'_>, title: &str, boxes: &Boxes) -> Drawn {
    let below = area::titled(area, title, &[], &palette::series)?;
    // Not from zero: what counts is how boxes lie to each other. The ends are room for whiskers that would lie
    // on the frame.
    let values = boxes.boxes.iter().flat_map(|one| one.values.iter().copied());
    let x = Scale::holding(boxes.unit, values, true);
    let rows = boxes.boxes.iter().map(|one| format!("{} ({})", one.name, one.values.len()));
    let y = Scale::rows(rows);
    let mut plot =
        area::plot(&below, Frame { title: "", x, y, x_label: "", y_label: "", is_grid_both: false })?;
    for (place, one) in boxes.boxes.iter().enumerate() {
        let Some(it) = summary(&one.values) else { continue };
        let colour = palette::series(place);
        let middle = place as f64 + 0.55;
        let (top, bottom) = (middle - 0.22, middle + 0.22);
        let across = |from: f64, to: f64| [(from, middle), (to, middle)];
        let upright = |at: f64, half: f64| [(at, middle - half), (at, middle + half)];
        let thin = colour.stroke_width(4);
        let corners = [(it.quarter, top), (it.three_quarters, bottom)];
        plot.draw_series([Rectangle::new(corners, colour.mix(0.3).filled())])?;
        let outline = [
            (it.quarter, top),
            (it.three_quarters, top),
            (it.three_quarters, bottom),
            (it.quarter, bottom),
            (it.quarter, top),
        ];
        plot.draw_series([PathElement::new(outline, thin)])?;
        plot.draw_series([
            PathElement::new(across(it.low, it.quarter), thin),
            PathElement::new(across(it.three_quarters, it.high), thin),
            PathElement::new(upright(it.low, 0.12), thin),
            PathElement::new(upright(it.high, 0.12), thin),
        ])?;
        plot.draw_series([PathElement::new(upright(it.median, 0.22), palette::text().stroke_width(7))])?;
        // Spread up and down by place, not at random: the same data give the same picture.
        let points = one.values.iter().enumerate().map(|(run, &value)| {
            let off = ((run * 5) % 9) as f64 / 8.0 - 0.5;
            Circle::new((value, middle + off * 0.3), 6, colour.mix(0.7).filled())
        });
        plot.draw_series(points)?;
        plot.draw_series([EmptyElement::at((it.median, top))
            + Text::new(
                shown(boxes.unit, it.median),
                (0, -fine(4)),
                area::above(palette::text(), HPos::Center),
            )])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whiskers_end_at_runs_and_leave_outliers_out() {
        let values: Vec<f64> = (1..=9).map(f64::from).chain([40.0]).collect();
        let it = summary(&values).unwrap();
        assert_eq!((it.low, it.high), (1.0, 9.0));
        assert_eq!((it.quarter, it.median, it.three_quarters), (3.25, 5.5, 7.75));
        assert_eq!(summary(&[]), None);
        let one = summary(&[7.0]).unwrap();
        assert_eq!((one.low, one.median, one.high), (7.0, 7.0, 7.0));
    }
}
