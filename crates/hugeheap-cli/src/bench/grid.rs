//! Rows of text that are a table on a terminal and a figure in a report, and the figures that experiments of
//! this program draw.
//!
//! A report's `figures` carry what `hugeheap report` needs to draw them without knowing the experiment.

use super::table;
use crate::figure::{Bar, Bars, Content, Figure, Group, Table, Unit};
use crate::statistics::Estimate;

/// A table. Cells may have several lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grid {
    pub(crate) title: String,
    /// A sentence below the title. May be empty.
    pub(crate) note: String,
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Grid {
    /// A table without rows.
    pub(crate) fn new(title: impl Into<String>, note: impl Into<String>, head: Vec<String>) -> Self {
        Self { title: title.into(), note: note.into(), head, rows: Vec::new() }
    }

    /// Adds a row: its name and its cells.
    pub(crate) fn row(&mut self, name: &str, cells: impl IntoIterator<Item = String>) {
        self.rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
    }

    /// For a terminal.
    pub(crate) fn text(&self) -> String {
        let mut table = table::new(&self.head);
        for row in &self.rows {
            table::row(&mut table, row);
        }
        table::titled(&self.title, &self.note, &table)
    }

    /// For a report.
    pub(crate) fn figure(&self) -> Figure {
        let table = Table { head: self.head.clone(), rows: self.rows.clone() };
        Figure::new(&self.title, &self.note, Content::Table(table))
    }
}

/// Bars of plain values.
pub(crate) fn bars(title: &str, note: &str, unit: Unit, groups: Vec<Group>) -> Figure {
    Figure::new(title, note, Content::Bars(Bars { unit, reference: None, groups }))
}

/// Bars of ratios to a reference.
pub(crate) fn ratios(title: &str, note: &str, groups: Vec<Group>) -> Figure {
    Figure::new(title, note, Content::Bars(Bars { unit: Unit::Ratio, reference: Some(1.0), groups }))
}

/// A value without an interval.
pub(crate) fn bar(name: &str, value: f64) -> Bar {
    Bar { name: name.to_owned(), value, low: None, high: None, significant: None }
}

/// A ratio and its interval.
pub(crate) fn ratio(name: &str, ratio: Estimate) -> Bar {
    let significant = Some(ratio.high < 1.0 || ratio.low > 1.0);
    Bar { low: Some(ratio.low), high: Some(ratio.high), significant, ..bar(name, ratio.value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_is_text_and_figure() {
        let mut grid = Grid::new("Memory", "", vec![String::new(), "THP\nRSS".to_owned()]);
        grid.row("filled", ["1.4 GiB".to_owned()]);
        assert!(grid.text().starts_with("Memory\n") && grid.text().contains("1.4 GiB"));
        let Content::Table(table) = grid.figure().content else { panic!("no table") };
        assert_eq!((table.head[1].as_str(), table.rows), ("THP\nRSS", grid.rows.clone()));
    }

    #[test]
    fn a_ratio_whose_interval_holds_one_is_not_significant() {
        assert_eq!(ratio("a", Estimate { value: 0.9, low: 0.8, high: 1.1 }).significant, Some(false));
        assert_eq!(ratio("a", Estimate { value: 0.9, low: 0.8, high: 0.95 }).significant, Some(true));
    }
}
