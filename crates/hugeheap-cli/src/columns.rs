//! Text in columns, two spaces apart: the plain tables of commands that people also feed to awk.

/// Where the cells of a column stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// The rows, one a line. What stands in a row beyond `columns` follows it as it is. No spaces at the end of a line.
pub(crate) fn columns(aligns: &[Align], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..aligns.len()).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            if column > 0 {
                line.push_str("  ");
            }
            let room = widths.get(column).map_or(0, |width| width - cell.chars().count());
            let is_right = aligns.get(column) == Some(&Align::Right);
            let (before, after) = if is_right { (room, 0) } else { (0, room) };
            line.extend(std::iter::repeat_n(' ', before));
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', after));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text = columns(&[Align::Left, Align::Right], &[row(["µ", "10", "end"]), row(["name", "5", ""])]);
        assert_eq!(text, "µ     10  end\nname   5\n");
        assert_eq!(columns(&[Align::Left], &[]), "");
    }
}
