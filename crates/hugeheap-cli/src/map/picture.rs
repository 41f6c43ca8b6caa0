//! The map as a figure: a square for each 2 MiB, coloured by what it is made of, its reason under the pointer.

use super::text::mode;
use super::view::{Piece, Row, State, View, pieces};
use crate::figure::{Content, Figure, Kind, Square, Squares, Stretch};
use crate::output::{self, bytes};
use crate::process::{named, words};
use std::collections::BTreeSet;

/// Lines of one mapping: 32 GiB at 2 MiB to a square is scaled to this, so that a file stays below a megabyte.
const LINES: usize = 64;

/// Told apart by lightness, too, for those who see no colours: huge is darkest.
const fn colour(state: State) -> &'static str {
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

/// The figure; `all`: small mappings, too.
pub(super) fn figure(view: &View, all: bool) -> Figure {
    let (resident, huge) = (view.resident(), view.huge());
    let title = format!(
        "{}: {} in memory, {} of it on huge pages",
        named(view.id, &view.name),
        bytes(resident),
        words::coverage((resident > 0).then(|| huge as f64 / resident as f64))
    );
    let note = format!(
        "a square is {} unless said otherwise; the host's mode is {}",
        bytes(view.unit as u64),
        mode(view.mode)
    );
    let present: BTreeSet<State> =
        view.rows.iter().flat_map(|row| &row.cells).map(|cell| cell.state).collect();
    let states: Vec<State> =
        State::ALL.into_iter().filter(|state| present.contains(state) || *state == State::Empty).collect();
    let reasons = view.reasons();
    let reasons = reasons.iter().map(|(why, sum)| format!("{} not huge: {}", bytes(*sum), why.text()));
    let squares = Squares {
        legend: states
            .iter()
            .map(|state| Kind { text: state.text().to_owned(), colour: colour(*state).to_owned() })
            .collect(),
        said: reasons.chain(view.missing()).collect(),
        rows: shown(view, all).into_iter().map(|row| stretch(view, row, &states)).collect(),
    };
    Figure::new(title, note, Content::Squares(squares))
}

/// A mapping.
fn stretch(view: &View, row: &Row, states: &[State]) -> Stretch {
    let it = &row.mapping;
    let resident = row.pages(|cell| cell.unit.resident()) * view.os_page as u64;
    let huge = row.pages(|cell| cell.unit.huge) * view.os_page as u64;
    let name = if it.name.is_empty() { it.kind.name().into() } else { output::shown(&it.name) };
    let pieces: Vec<Piece> =
        pieces(row, view.unit, view.os_page, Squares::ACROSS, LINES).into_iter().flatten().collect();
    let scale = pieces.iter().find_map(|piece| match piece {
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
    let squares = pieces.into_iter().map(|piece| match piece {
        Piece::Mark { state, density, why, start, len } => {
            let why = why.map(|why| format!("; {}", why.text())).unwrap_or_default();
            Square::Mark {
                kind: states.iter().position(|one| *one == state).unwrap_or(states.len() - 1),
                text: format!(
                    "{start:x} ({}): {}, {:.0} % in memory{why}",
                    bytes(len as u64),
                    state.text(),
                    density * 100.0
                ),
            }
        }
        Piece::Gap(gap) => Square::Gap { gap: format!("{} without anything", bytes(gap)) },
    });
    Stretch { title, squares: squares.collect() }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::view;
    use super::*;
    use crate::figure::svg;

    #[test]
    fn every_unit_has_its_square_and_reason() {
        let view = view();
        let figure = figure(&view, true);
        let Content::Squares(squares) = &figure.content else { panic!("no squares") };
        let marks = squares.rows.iter().flat_map(|row| &row.squares);
        let marks = marks.filter(|square| matches!(square, Square::Mark { .. })).count();
        // A line of 64, a line with the last (299 − 2 − 4 × 64 = 41, so 42), two for the first mapping.
        assert_eq!(marks, 64 + 42 + 2);
        assert!(squares.said.iter().any(|line| line.contains("was huge; a part was given back")));
        let picture = svg::document(&[figure]);
        assert_eq!(picture.matches("<title>").count(), marks + 1, "and its own");
        assert_eq!(picture.matches(colour(State::Huge)).count(), 2, "in the legend and in the map");
        assert!(picture.contains("… 384 MiB without anything …"), "{picture}");
        assert!(picture.contains("not huge: was huge; a part was given back"));
    }
}
