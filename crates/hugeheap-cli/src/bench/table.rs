//! Tables for a terminal: one row per workload, one column per variant.

use crate::output::change;
use crate::statistics::Estimate;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, TableComponent, presets};

/// A table with `head` as its first line of cells.
pub fn new(head: &[String]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for line in [TableComponent::HeaderLines, TableComponent::MiddleHeaderIntersections] {
        table.set_style(line, '─');
    }
    // As wide as it needs to be: wrapped figures cannot be read, and a pager or a wider window can.
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head.iter().enumerate().map(|(column, text)| cell(column, text)));
    table
}

/// Adds a row; the first cell is its name.
pub fn row(table: &mut Table, cells: &[String]) {
    table.add_row(cells.iter().enumerate().map(|(column, text)| cell(column, text)));
}

fn cell(column: usize, text: &str) -> Cell {
    let alignment = if column == 0 { CellAlignment::Left } else { CellAlignment::Right };
    Cell::new(text).set_alignment(alignment)
}

/// A title above a table.
pub fn titled(title: &str, explanation: &str, table: &Table) -> String {
    let mut text = format!("{title}\n");
    if !explanation.is_empty() {
        text.push_str(explanation);
        text.push('\n');
    }
    format!("{text}{table}\n")
}

/// What stands for a figure that there is not.
pub const NONE: &str = "–";

/// A figure, or what stands for none.
pub fn or_none(text: Option<String>) -> String {
    text.unwrap_or_else(|| NONE.to_owned())
}

/// The interval of a change: `[−53.0, −51.2]`, in percent.
pub(crate) fn interval(estimate: Estimate) -> String {
    format!("[{}, {}]", change(estimate.low).replace(" %", ""), change(estimate.high).replace(" %", ""))
}
