//! Rows of text that are a table on a terminal and a figure in a report, and the figures that experiments of this program draw.
//!
//! A report's `figures` carry what `hugeheap report` needs to draw them without knowing the experiment.

use super::table;
use serde_json::{Value, json};

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
    pub(crate) fn figure(&self) -> Value {
        let line = |cells: &[String]| cells.iter().map(|cell| cell.replace('\n', " ")).collect::<Vec<_>>();
        let rows: Vec<_> = self.rows.iter().map(|row| line(row)).collect();
        json!({"title": self.title, "note": self.note, "kind": "table", "head": line(&self.head), "rows": rows})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_is_text_and_figure() {
        let mut grid = Grid::new("Memory", "", vec![String::new(), "THP\nRSS".to_owned()]);
        grid.row("filled", ["1.4 GiB".to_owned()]);
        assert!(grid.text().starts_with("Memory\n") && grid.text().contains("1.4 GiB"));
        let figure = grid.figure();
        assert_eq!((&figure["kind"], &figure["head"][1]), (&json!("table"), &json!("THP RSS")));
        assert_eq!(figure["rows"], json!([["filled", "1.4 GiB"]]));
    }
}
