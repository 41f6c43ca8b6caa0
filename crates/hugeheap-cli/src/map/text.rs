//! The map as text: what is in memory and why it is not huge, then a line of characters per mapping, one for
//! each 2 MiB.

use super::view::{Piece, Row, State, View, pieces};
use crate::output::{bytes, counted, seconds, shown};
use crate::process::{named, words};
use hugeheap_os::ThpMode;
use std::fmt::Write;

/// Characters to a line: 128 MiB. Fits a terminal of 80 columns.
const WIDTH: usize = 64;

pub(crate) fn mode(mode: Option<ThpMode>) -> &'static str {
    match mode {
        Some(ThpMode::Always) => "always",
        Some(ThpMode::Madvise) => "madvise",
        Some(ThpMode::Never) => "never",
        None => "unknown",
    }
}

/// What stands for a cell in text.
pub(crate) const fn character(state: State) -> char {
    match state {
        State::Huge => '█',
        State::Hugetlb => 'H',
        State::Dense => '▒',
        State::Sparse => '░',
        State::Broken => 'x',
        State::Swapped => 's',
        State::Empty => '·',
    }
}

const fn colour(state: State) -> &'static str {
    match state {
        State::Huge | State::Hugetlb => "32",
        State::Dense => "33",
        State::Sparse => "2;33",
        State::Broken => "31",
        State::Swapped => "34",
        State::Empty => "2",
    }
}

fn coverage(huge: u64, resident: u64) -> String {
    words::coverage((resident > 0).then(|| huge as f64 / resident as f64))
}

pub(crate) fn text(view: &View, all: bool, lines: usize, colours: bool) -> String {
    let (resident, huge) = (view.resident(), view.huge());
    let mut text = format!(
        "{}: {} in memory, {} on huge pages ({}); {}, the host's mode is {}, looked at in {}\n",
        named(view.id, &view.name),
        bytes(resident),
        bytes(huge),
        coverage(huge, resident),
        counted(view.rows.len() as u64, "mapping", "mappings"),
        mode(view.mode),
        seconds(view.elapsed.as_secs_f64()),
    );
    reasons(&mut text, view);
    let shown =
        |row: &&Row| all || row.pages(|cell| cell.unit.resident()) * view.os_page as u64 >= view.unit as u64;
    for row in view.rows.iter().filter(shown) {
        mapping(&mut text, view, row, lines, colours);
    }
    let rest: Vec<&Row> = view.rows.iter().filter(|row| !shown(row)).collect();
    if !rest.is_empty() {
        let pages: u64 = rest.iter().map(|row| row.pages(|cell| cell.unit.resident())).sum();
        let _ = writeln!(
            text,
            "\n{} more with less than {} in memory each: {} together (--all shows them)",
            rest.len(),
            bytes(view.unit as u64),
            bytes(pages * view.os_page as u64)
        );
    }
    legend(&mut text, view, colours);
    for missing in view.missing() {
        let _ = writeln!(text, "note: {missing}");
    }
    text
}

fn reasons(text: &mut String, view: &View) {
    let reasons = view.reasons();
    if reasons.is_empty() {
        return;
    }
    text.push_str("\n  not huge  because\n");
    let widest = reasons.iter().map(|(why, _)| why.text().chars().count()).max().unwrap_or(0);
    for (why, sum) in reasons {
        let remedy = why.remedy(view.id, &view.name);
        let arrow = if remedy.is_empty() { "" } else { "→ " };
        let line = format!("{:>10}  {:<widest$}  {arrow}{remedy}", bytes(sum), why.text());
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

fn mapping(text: &mut String, view: &View, row: &Row, lines: usize, colours: bool) {
    let mapping = &row.mapping;
    let resident = row.pages(|cell| cell.unit.resident()) * view.os_page as u64;
    let huge = row.pages(|cell| cell.unit.huge) * view.os_page as u64;
    let access = if mapping.writable { "rw" } else { "r-" };
    let name = if mapping.name.is_empty() { mapping.kind.name().into() } else { shown(&mapping.name) };
    let _ = writeln!(
        text,
        "\n{:012x}  {} {access} {name}: {} in memory, {} huge",
        mapping.range.start,
        bytes(mapping.range.len as u64),
        bytes(resident),
        coverage(huge, resident),
    );
    let mut scale = view.unit;
    for line in pieces(row, view.unit, view.os_page, WIDTH, lines) {
        text.push_str("  ");
        let mut last = None;
        for piece in line {
            match piece {
                Piece::Mark { state, len, .. } => {
                    scale = len;
                    if colours && last != Some(state) {
                        let _ = write!(text, "\x1b[0;{}m", colour(state));
                        last = Some(state);
                    }
                    text.push(character(state));
                }
                Piece::Gap(gap) => {
                    let _ = write!(text, "… {} without anything …", bytes(gap));
                }
            }
        }
        text.push_str(if last.is_some() { "\x1b[0m\n" } else { "\n" });
    }
    if scale > view.unit {
        let _ = writeln!(text, "  (a character is {})", bytes(scale as u64));
    }
}

fn legend(text: &mut String, view: &View, colours: bool) {
    let states: std::collections::BTreeSet<State> =
        view.rows.iter().flat_map(|row| &row.cells).map(|cell| cell.state).chain([State::Empty]).collect();
    let _ = write!(text, "\n{} each: ", bytes(view.unit as u64));
    let marks = State::ALL.iter().filter(|state| states.contains(state)).map(|state| {
        if colours {
            format!("\x1b[{}m{}\x1b[0m {}", colour(*state), character(*state), state.text())
        } else {
            format!("{} {}", character(*state), state.text())
        }
    });
    text.push_str(&marks.collect::<Vec<_>>().join("  "));
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::{HUGE, mapped, view};
    use super::*;

    /// A heap of one huge page is what a small program has.
    #[test]
    fn a_mapping_with_one_huge_page_in_memory_has_its_line_and_a_smaller_one_is_counted() {
        let one = text(&mapped(HUGE, &[(0, 512)]), false, 8, false);
        assert!(one.contains("\n  ▒\n") && !one.contains("more with less"), "{one}");
        let less = text(&mapped(HUGE, &[(0, 511)]), false, 8, false);
        assert!(less.contains("1 more with less than 2.0 MiB in memory each: 2.0 MiB together"), "{less}");
        let little = text(&mapped(HUGE, &[(0, 3)]), false, 8, false);
        assert!(little.contains("in memory each: 12.0 KiB together"), "{little}");
    }

    #[test]
    fn a_character_that_is_more_than_a_huge_page_is_said_to_be() {
        let ends = [(0, 512), (99 * 512, 512)];
        assert!(text(&mapped(100 * HUGE, &ends), false, 1, false).contains("(a character is 4.0 MiB)"));
        assert!(!text(&mapped(60 * HUGE, &ends[..1]), false, 1, false).contains("a character is"));
    }

    #[test]
    fn it_reads_from_the_sum_to_the_details() {
        let text = text(&view(), false, 8, false);
        assert!(
            text.starts_with("simulated (0): 6.0 MiB in memory, 2.0 MiB on huge pages (33.1 %); 2 mappings"),
            "{text}"
        );
        assert!(
            text.contains(
                "4.0 MiB  not advised, and the host's mode is madvise  → hugeheap collapse 0, where dense\n"
            ),
            "{text}"
        );
        assert!(text.contains("4.0 MiB rw ") && !text.contains(" r- "), "{text}");
        assert!(text.contains("  █x\n"), "{text}");
        assert!(text.contains("  ▒░··"), "{text}");
        assert!(text.contains("  … 384 MiB without anything …\n"), "{text}");
        assert!(text.contains("2.0 MiB each: █ huge page  ▒ OS pages, dense"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }

    #[test]
    fn colours_end_where_they_began() {
        let text = text(&view(), true, 1, true);
        for line in text.lines().filter(|line| line.contains('\x1b')) {
            assert!(line.ends_with("\x1b[0m") || line.ends_with("nothing in memory"), "{line:?}");
        }
        assert!(text.contains("(a character is 16.0 MiB)"), "{text}");
    }
}
