//! The list of processes: the columns of `hugeheap ps`, as many as fit.

use super::{cut, split};
use crate::ps::arguments::Sort;
use crate::ps::row::{Row, Thp};
use crate::ps::{HEADS, NUMBERS, cells};
use crate::top::look::Look;
use crate::top::state::{COLUMNS, State};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

/// Columns that go first where there is no room; those not named always stay.
const GO: [Sort; 6] = [Sort::User, Sort::Thp, Sort::Eligible, Sort::Stranded, Sort::Coverage, Sort::Huge];
/// Room for a name before a column goes.
const NAME: usize = 14;
/// The mark of the column that is sorted by takes a place, too.
const MARK: usize = 1;

pub(super) fn draw(frame: &mut Frame, area: Rect, state: &mut State, look: Look) {
    let (head, body) = split(area, 1);
    state.page = usize::from(body.height);
    let line = state.line();
    // The selected row is on the screen, and no room is left at the end while there are rows before.
    state.first = state.first.min(line).max((line + 1).saturating_sub(state.page));
    state.first = state.first.min(state.rows.len().saturating_sub(state.page));
    let units = state.units;
    let rows: Vec<&Row> = state.rows.iter().skip(state.first).take(state.page).collect();
    let texts: Vec<Vec<String>> = rows.iter().map(|row| cells(row, |count| units.write(count))).collect();
    let layout = layout(&texts, usize::from(area.width), state.sort);
    frame.render_widget(heads(&layout, state, look, usize::from(area.width)), head);
    for (index, (row, texts)) in rows.iter().zip(&texts).enumerate() {
        let place = Rect { y: body.y + index as u16, height: 1, ..body };
        let is_selected = state.first + index == line;
        let spans = layout.iter().map(|&(column, width)| {
            let style = if is_selected { Style::new() } else { style(column, row, look) };
            Span::styled(aligned(&texts[column], column, width), style)
        });
        let line = Line::from(spans.collect::<Vec<_>>());
        frame.render_widget(if is_selected { line.style(look.selected()) } else { line }, place);
        if is_selected {
            frame.buffer_mut().set_style(place, look.selected());
        }
    }
    if rows.is_empty() {
        let text = match &state.sample {
            None => "reading …",
            Some(sample) if sample.rows.is_empty() => "no such process (any more)",
            Some(_) => "no process passes the filter (Esc takes it away)",
        };
        frame.render_widget(Line::styled(text, look.faint()), body);
    }
}

/// The columns that fit, with their widths; the name has what is left.
fn layout(texts: &[Vec<String>], width: usize, sort: Sort) -> Vec<(usize, usize)> {
    let wide = |column: usize| {
        let cells = texts.iter().map(|cells| cells[column].width());
        cells.chain([HEADS[column].width() + MARK]).max().unwrap_or(0)
    };
    let mut columns: Vec<(usize, usize)> = (0..HEADS.len()).map(|column| (column, wide(column))).collect();
    let name = HEADS.len() - 1;
    for go in GO {
        let used: usize =
            columns.iter().filter(|(column, _)| *column != name).map(|(_, wide)| wide + 2).sum();
        if used + NAME <= width {
            break;
        }
        columns.retain(|(column, _)| COLUMNS[*column] != go || go == sort);
    }
    let used: usize = columns.iter().filter(|(column, _)| *column != name).map(|(_, wide)| wide + 2).sum();
    if let Some(last) = columns.last_mut() {
        last.1 = width.saturating_sub(used);
    }
    columns
}

/// A cell and the space after it.
fn aligned(text: &str, column: usize, width: usize) -> String {
    let text = cut(text, width);
    let room = " ".repeat(width - text.width().min(width));
    match column {
        0..NUMBERS => format!("{room}{text}  "),
        _ if column + 1 < HEADS.len() => format!("{text}{room}  "),
        _ => text,
    }
}

fn heads<'a>(layout: &[(usize, usize)], state: &State, look: Look, width: usize) -> Line<'a> {
    let mut line = String::new();
    for &(column, wide) in layout {
        let head = if COLUMNS[column] != state.sort {
            HEADS[column].to_owned()
        } else {
            // Numbers of processes and users, and names, begin with the smallest.
            let rising = matches!(state.sort, Sort::Pid | Sort::User | Sort::Name);
            format!("{}{}", HEADS[column], if rising == state.reversed { "▼" } else { "▲" })
        };
        line.push_str(&aligned(&head, column, wide));
    }
    let room = width.saturating_sub(line.width());
    line.push_str(&" ".repeat(room));
    Line::styled(line, look.head())
}

/// What a cell says besides its number.
fn style(column: usize, row: &Row, look: Look) -> Style {
    match COLUMNS[column] {
        Sort::Huge | Sort::Coverage if row.sums.is_err() => look.faint(),
        Sort::Coverage => match row.coverage() {
            Some(share) if share >= 0.5 => look.good(),
            Some(share) if share > 0.0 => look.notable(),
            _ => look.faint(),
        },
        Sort::Eligible if row.sums.is_ok_and(|sums| sums.eligible > 0) => look.notable(),
        Sort::Stranded if row.stranded.is_some_and(|(bytes, _)| bytes > 0) => look.bad(),
        Sort::Thp if row.thp != Thp::On => look.notable(),
        Sort::Eligible | Sort::Stranded | Sort::Thp | Sort::User => look.faint(),
        Sort::Name => look.strong(),
        _ => Style::new(),
    }
}
