//! Where a figure is drawn: sizes, fonts, the title and the legend, and plots with their axes.
//!
//! ```text
//!   ┌───────────────────────────┐
//!   │ title                     │  HEAD
//!   │ ■ name  ■ name            │  legend, as many lines as it needs
//!   │ ┌ title ───┐ ┌ title ───┐ │
//!   │ │ plot     │ │ plot     │ │  panels
//!   └───────────────────────────┘
//! ```
//!
//! The library that draws has whole pixels only: everything is drawn [`FINE`] times as large as it is shown, so
//! that lines are smooth and a print is sharp.

use super::palette;
use super::scale::Scale;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Drawn pixels to one that is shown.
pub(super) const FINE: u32 = 3;
/// Width of every figure, as shown: fits a page of A4 at its usual resolution.
pub(super) const WIDTH: u32 = 860;
/// Room of the title.
pub(super) const HEAD: u32 = 30;
/// Room of one line of the legend.
const LEGEND: u32 = 22;
/// Sizes of text, as shown.
const TITLE: u32 = 16;
const LABEL: u32 = 12;
/// Width of a letter of a label: 0.56 of its size on average in Helvetica, DejaVu Sans has 0.6.
pub(super) const LETTER: u32 = 7;
/// The library makes letters smaller than it is told by this factor.
const SHRINKS: f64 = 1.24;

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Scale, Scale>>;
pub(super) type Drawn<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Drawn pixels of shown ones.
pub(super) const fn fine(pixels: u32) -> i32 {
    (pixels * FINE) as i32
}

/// Text in the size of labels.
pub(super) fn label(colour: RGBColor, horizontal: HPos) -> TextStyle<'static> {
    sized(LABEL, colour).pos(Pos::new(horizontal, VPos::Center))
}

/// Text in the size of labels that stands on its point.
pub(super) fn above(colour: RGBColor, horizontal: HPos) -> TextStyle<'static> {
    sized(LABEL - 1, colour).pos(Pos::new(horizontal, VPos::Bottom))
}

fn sized(size: u32, colour: RGBColor) -> TextStyle<'static> {
    let font = ("sans-serif", f64::from(size * FINE) * SHRINKS).into_font();
    TextStyle { color: colour.to_backend_color(), ..TextStyle::from(font) }
}

/// Lines of names in the legend, so that each line fits.
fn wrapped<'n>(names: &[&'n str]) -> Vec<Vec<(usize, &'n str)>> {
    let mut lines: Vec<Vec<(usize, &str)>> = Vec::new();
    let mut used = WIDTH;
    for (place, name) in names.iter().enumerate() {
        let width = room(name);
        if used + width > WIDTH {
            lines.push(Vec::new());
            used = 12;
        }
        used += width;
        lines.last_mut().expect("one was pushed for the first name").push((place, name));
    }
    lines
}

/// Of a name in the legend with its mark.
fn room(name: &str) -> u32 {
    34 + LETTER * name.chars().count() as u32
}

/// Height of title and legend.
pub(super) fn head(names: &[&str]) -> u32 {
    HEAD + wrapped(names).len() as u32 * LEGEND
}

/// Draws title and legend and answers the area below. `colours` by place of the name.
pub(super) fn titled<'a>(
    area: &Area<'a>,
    title: &str,
    names: &[&str],
    colours: &dyn Fn(usize) -> RGBColor,
) -> Drawn<Area<'a>> {
    area.fill(&palette::background())?;
    area.draw(&Text::new(
        title.to_owned(),
        (fine(12), fine(HEAD / 2 + 2)),
        sized(TITLE, palette::text()).pos(Pos::new(HPos::Left, VPos::Center)),
    ))?;
    let mut y = HEAD + LEGEND / 2;
    for line in wrapped(names) {
        let mut x = 12;
        for (place, name) in line {
            let swatch = [(fine(x), fine(y - 5)), (fine(x + 14), fine(y + 5))];
            area.draw(&Rectangle::new(swatch, colours(place).filled()))?;
            area.draw(&Text::new(
                name.to_owned(),
                (fine(x + 20), fine(y)),
                label(palette::text(), HPos::Left),
            ))?;
            x += room(name);
        }
        y += LEGEND;
    }
    Ok(area.split_vertically(fine(head(names))).1)
}

/// What is around a plot.
pub(super) struct Frame<'a> {
    pub(super) title: &'a str,
    pub(super) x: Scale,
    pub(super) y: Scale,
    pub(super) x_label: &'a str,
    pub(super) y_label: &'a str,
    /// Whether there are lines for values of y, too: not when y are rows.
    pub(super) is_grid_both: bool,
}

/// Axes with their ticks in `area`.
pub(super) fn plot<'a, 'b>(area: &'a Area<'b>, frame: Frame<'_>) -> Drawn<Plot<'a, 'b>> {
    let left = 18 + LETTER * frame.y.longest() as u32 + if frame.y_label.is_empty() { 0 } else { 18 };
    let mut builder = ChartBuilder::on(area);
    builder
        .margin_right(fine(26))
        .margin_left(fine(6))
        .margin_top(fine(8))
        .margin_bottom(fine(4))
        .set_label_area_size(LabelAreaPosition::Left, fine(left.min(WIDTH / 3)))
        .set_label_area_size(LabelAreaPosition::Bottom, fine(if frame.x_label.is_empty() { 22 } else { 40 }));
    if !frame.title.is_empty() {
        builder.caption(frame.title, sized(LABEL + 1, palette::text()));
    }
    let (count_x, count_y) = (64, 1024);
    let mut plot = builder.build_cartesian_2d(frame.x, frame.y)?;
    let mut mesh = plot.configure_mesh();
    mesh.x_labels(count_x)
        .y_labels(count_y)
        .x_desc(frame.x_label)
        .y_desc(frame.y_label)
        .axis_desc_style(sized(LABEL, palette::faint()))
        .label_style(sized(LABEL, palette::faint()))
        .bold_line_style(palette::grid().stroke_width(FINE))
        .light_line_style(TRANSPARENT)
        .axis_style(palette::faint().stroke_width(FINE));
    if !frame.is_grid_both {
        mesh.disable_y_mesh();
    }
    mesh.draw()?;
    Ok(plot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legend_takes_as_many_lines_as_it_needs() {
        assert_eq!(head(&[]), HEAD);
        assert_eq!(head(&["glibc", "jemalloc"]), HEAD + LEGEND);
        let names = ["a name that is rather long for a legend"; 8];
        let lines = wrapped(&names);
        assert!(lines.len() > 1 && lines.iter().all(|line| !line.is_empty()));
        assert_eq!(lines.iter().flatten().count(), 8);
    }
}
