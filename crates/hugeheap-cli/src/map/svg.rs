//! The map as a picture: a square for each 2 MiB, coloured by what it is made of, its reason under the pointer.
//!
//! SVG without scripts, fonts or links, so that any browser and any editor shows it alike.

use super::text::mode;
use super::view::{Piece, Row, State, View, pieces};
use crate::figure::svg::escaped;
use crate::output::bytes;
use crate::process::{named, words};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Squares to a line, as in the text: lines of both are the same memory.
const ACROSS: usize = 64;
/// Lines of one mapping: 32 GiB at 2 MiB to a square is scaled to this, so that a file stays below a megabyte.
const LINES: usize = 64;
/// Pixels of a square and the space between two.
const SQUARE: usize = 11;
const SPACE: usize = 1;
const STEP: usize = SQUARE + SPACE;
const LEFT: usize = 24;
/// Room for a mapping's title; where the legend's first line stands; from a line of text to the next.
const TITLE: usize = 34;
const HEAD: usize = 52;
const LINE: usize = 17;

/// Told apart by lightness, too, for those who see no colours: huge is darkest.
pub(crate) const fn colour(state: State) -> &'static str {
    match state {
        State::Huge => "#0b6e4f",
        State::Hugetlb => "#0b4f6e",
        State::Dense => "#f0a830",
        State::Sparse => "#f7d99b",
        State::Broken => "#d1495b",
        State::Swapped => "#8d99ae",
        State::Empty => "#eeeeee",
    }
}

/// Mappings with at least a unit in memory. Others would be a title without a picture.
fn shown(view: &View, all: bool) -> Vec<&Row> {
    let resident = |row: &Row| row.pages(|cell| cell.unit.resident()) * view.os_page as u64;
    view.rows
        .iter()
        .filter(|row| if all { !row.cells.is_empty() } else { resident(row) >= view.unit as u64 })
        .collect()
}

pub(crate) fn document(view: &View, all: bool) -> String {
    let (resident, huge) = (view.resident(), view.huge());
    let reasons = view.reasons();
    let width = 2 * LEFT + ACROSS * STEP;
    let mut body = String::new();
    let coverage = words::coverage((resident > 0).then(|| huge as f64 / resident as f64));
    let title = format!(
        "{}: {} in memory, {coverage} of it on huge pages",
        named(view.id, &view.name),
        bytes(resident)
    );
    let _ = writeln!(body, "<text x=\"{LEFT}\" y=\"28\" font-size=\"16\">{}</text>", escaped(&title));
    let present: BTreeSet<State> =
        view.rows.iter().flat_map(|row| &row.cells).map(|cell| cell.state).collect();
    let (mut x, mut y) = (LEFT, HEAD);
    for state in State::ALL.into_iter().filter(|state| present.contains(state) || *state == State::Empty) {
        // About 7 pixels to a letter at this size.
        let length = STEP + 24 + 7 * state.text().len();
        if x + length > width {
            (x, y) = (LEFT, y + LINE);
        }
        let _ = writeln!(
            body,
            "<rect x=\"{x}\" y=\"{}\" width=\"{SQUARE}\" height=\"{SQUARE}\" fill=\"{}\"/><text x=\"{}\" y=\"{y}\">{}</text>",
            y - 10,
            colour(state),
            x + STEP + 3,
            state.text()
        );
        x += length;
    }
    y += LINE + 3;
    let _ = writeln!(
        body,
        "<text x=\"{LEFT}\" y=\"{y}\" fill=\"#555\">a square is {} unless said otherwise; the host's mode is {}</text>",
        bytes(view.unit as u64),
        mode(view.mode)
    );
    y += 8;
    for (why, sum) in &reasons {
        y += LINE;
        let line = format!("{} not huge: {}", bytes(*sum), why.text());
        let _ = writeln!(body, "<text x=\"{LEFT}\" y=\"{y}\">{}</text>", escaped(&line));
    }
    for missing in view.missing() {
        y += LINE;
        let _ = writeln!(body, "<text x=\"{LEFT}\" y=\"{y}\" fill=\"#d1495b\">{}</text>", escaped(&missing));
    }
    for row in shown(view, all) {
        y = mapping(&mut body, view, row, y);
    }
    let height = y + 24;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

/// Draws a mapping below `y` and answers where it ends.
fn mapping(body: &mut String, view: &View, row: &Row, y: usize) -> usize {
    let it = &row.mapping;
    let resident = row.pages(|cell| cell.unit.resident()) * view.os_page as u64;
    let huge = row.pages(|cell| cell.unit.huge) * view.os_page as u64;
    let name = if it.name.is_empty() { it.kind.name() } else { it.name.as_str() };
    let lines = pieces(row, view.unit, view.os_page, ACROSS, LINES);
    let scale = lines.iter().flatten().find_map(|piece| match piece {
        Piece::Mark { len, .. } => Some(*len),
        Piece::Gap(_) => None,
    });
    let scaled = match scale {
        Some(scale) if scale > view.unit => format!("; a square is {}", bytes(scale as u64)),
        _ => String::new(),
    };
    let title = format!(
        "{:x}  {name}: {} in memory, {} huge{scaled}",
        it.range.start,
        bytes(resident),
        words::coverage((resident > 0).then(|| huge as f64 / resident as f64)),
    );
    let mut y = y + TITLE;
    let _ = writeln!(body, "<text x=\"{LEFT}\" y=\"{}\">{}</text>", y - 7, escaped(&title));
    for line in lines {
        let mut x = LEFT;
        for piece in line {
            match piece {
                Piece::Mark { state, density, why, start, len } => {
                    let why = why.map(|why| format!("; {}", why.text())).unwrap_or_default();
                    let _ = writeln!(
                        body,
                        "<rect x=\"{x}\" y=\"{y}\" width=\"{SQUARE}\" height=\"{SQUARE}\" fill=\"{}\"><title>{start:x} ({}): \
                         {}, {:.0} % in memory{}</title></rect>",
                        colour(state),
                        bytes(len as u64),
                        state.text(),
                        density * 100.0,
                        escaped(&why),
                    );
                    x += STEP;
                }
                Piece::Gap(gap) => {
                    let _ = writeln!(
                        body,
                        "<text x=\"{x}\" y=\"{}\" fill=\"#999\">… {} without anything …</text>",
                        y + SQUARE - 1,
                        bytes(gap)
                    );
                }
            }
        }
        y += STEP;
    }
    y
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::view;
    use super::*;

    #[test]
    fn every_unit_has_its_square_and_reason() {
        let picture = document(&view(), true);
        // A line of 64, a line with the last (299 − 2 − 4 × 64 = 41, so 42), two for the first mapping.
        assert_eq!(picture.matches("<title>").count(), 64 + 42 + 2);
        assert_eq!(picture.matches(colour(State::Huge)).count(), 2, "in the legend and in the map");
        assert!(picture.contains("was huge; a part was given back"), "{picture}");
        assert!(picture.contains("… 384 MiB without anything …"));
        assert!(picture.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn names_cannot_break_the_picture() {
        assert_eq!(escaped("[anon:<b>&\u{1}]"), "[anon:&lt;b&gt;&amp;\u{fffd}]");
    }
}
