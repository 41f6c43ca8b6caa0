//! One process: facts, history, why it is not huge, and the map.
//!
//! What there is no room for goes from the bottom: the map first loses lines (it scrolls), then reasons, then history.

use super::{cut, flow, split};
use crate::map::text::{character, mode};
use crate::map::view::{Piece, State as CellState, View, pieces};
use crate::output::{bytes, counted, shown};
use crate::process::{named, words};
use crate::top::history::Point;
use crate::top::look::Look;
use crate::top::sampler::Watched;
use crate::top::state::State;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Sparkline, SparklineBar};
use std::collections::BTreeSet;
use unicode_width::UnicodeWidthStr;

/// Lines of one mapping in the map.
const LINES: usize = 16;
/// Most marks to a line: 128 MiB, as in `hugeheap map`; half of it where the terminal is narrow.
const MARKS: usize = 64;
/// Width of the words beside the history.
const LABEL: usize = 10;
const VALUE: usize = 34;
/// From this height on, a line of the history has two lines.
const TALL: u16 = 40;

pub(super) fn draw(frame: &mut Frame, area: Rect, state: &mut State, look: Look) {
    let Some(id) = state.detail else { return };
    let watched = state.sample.as_ref().and_then(|sample| sample.watched.clone());
    let watched = watched.filter(|watched| watched.id == id);
    let (facts, rest) = split(area, facts(frame, area, state, id, watched.as_deref(), look));
    debug_assert!(facts.height <= area.height);
    let (_, rest) = split(rest, history(frame, rest, state, id, look));
    let Some(watched) = watched else {
        frame.render_widget(Line::styled("reading its map …", look.faint()), rest);
        return;
    };
    match &watched.view {
        Err(why) => frame.render_widget(Line::styled(cut(why, usize::from(rest.width)), look.bad()), rest),
        Ok(view) => {
            let (_, rest) = split(rest, reasons(frame, rest, view, state, look));
            map(frame, rest, view, state, look);
        }
    }
}

/// Draws what the process is, and answers how many lines that took.
fn facts(
    frame: &mut Frame,
    area: Rect,
    state: &State,
    id: u32,
    watched: Option<&Watched>,
    look: Look,
) -> u16 {
    let write = |count| state.units.write(count);
    let Some(row) = state.row(id) else {
        // Why it is not in the list though it lives is said below.
        if watched.is_some_and(|watched| watched.view.is_err()) {
            return 0;
        }
        let text = format!("process {id} has ended (Esc: back to the list)");
        frame.render_widget(Line::styled(text, look.bad()), area);
        return 1;
    };
    let mut pieces = vec![named(id, &row.status.name), format!("user {}", row.status.user)];
    pieces.push(format!("THP {}", row.thp.text()));
    if row.status.swapped > 0 {
        pieces.push(format!("swapped {}", write(row.status.swapped)));
    }
    pieces.push(format!("page tables {}", write(row.status.page_tables)));
    if let Ok(sums) = row.sums {
        pieces.push(format!("eligible {}", write(sums.eligible)));
    }
    if let Some(limits) = watched.and_then(|watched| watched.limits) {
        pieces.push(match limits.max {
            Some(max) => format!("cgroup limit {}", write(max)),
            None => "cgroup without a limit".to_owned(),
        });
    }
    let mut lines = flow(pieces, usize::from(area.width), 2);
    lines.extend(watched.and_then(|watched| watched.heap).map(|heap| heap.words(write)));
    for (index, line) in lines.iter().enumerate().take(usize::from(area.height)) {
        let place = Rect { y: area.y + index as u16, height: 1, ..area };
        let style = if index == 0 { look.strong() } else { Style::new() };
        frame.render_widget(Line::styled(cut(line, usize::from(area.width)), style), place);
    }
    lines.len() as u16
}

/// A line of the history: its name, its values, how they are written.
type Series<'a> = (&'a str, fn(&Point) -> Option<u64>, Style);

/// Draws the last minutes, and answers how many lines that took.
fn history(frame: &mut Frame, area: Rect, state: &State, id: u32, look: Look) -> u16 {
    let series: [Series; 5] = [
        ("RSS", |point| Some(point.resident), look.accent()),
        ("huge", |point| point.huge, look.good()),
        ("coverage", |point| point.coverage, look.good()),
        ("stranded", |point| point.stranded, look.bad()),
        ("charge", |point| point.charge, look.notable()),
    ];
    let each = if area.height >= TALL { 2 } else { 1 };
    let width = usize::from(area.width);
    // Below half of the room is the map's.
    let count = series.len().min(usize::from(area.height) / 2 / each).max(1);
    for (index, (name, pick, style)) in series.into_iter().take(count).enumerate() {
        let values: Vec<Option<u64>> = state.history.of(id).map(pick).collect();
        let write = |value: u64| {
            if name == "coverage" {
                format!("{}.{} %", value / 10, value % 10)
            } else {
                state.units.write(value)
            }
        };
        let known: Vec<u64> = values.iter().flatten().copied().collect();
        let now = values.last().copied().flatten().map_or("–".to_owned(), write);
        let range = match (known.iter().min(), known.iter().max()) {
            (Some(least), Some(most)) if least != most => format!(" ({} to {})", write(*least), write(*most)),
            _ => String::new(),
        };
        let place = Rect { y: area.y + (index * each) as u16, height: each as u16, ..area };
        let text = format!("{name:<LABEL$}{now}{range}");
        frame.render_widget(Line::raw(cut(&text, width)), Rect { height: 1, ..place });
        let left = (LABEL + VALUE).min(width);
        let chart = Rect { x: place.x + left as u16, width: (width - left) as u16, ..place };
        let shown = &values[values.len().saturating_sub(usize::from(chart.width))..];
        let most = if name == "coverage" { 1000 } else { known.iter().max().copied().unwrap_or(0).max(1) };
        if chart.width > 4 {
            let bars = shown.iter().map(|value| SparklineBar::from(*value));
            frame.render_widget(Sparkline::default().data(bars).max(most).style(style), chart);
        }
    }
    (count * each) as u16
}

/// Draws why memory is not huge, and answers how many lines that took.
fn reasons(frame: &mut Frame, area: Rect, view: &View, state: &State, look: Look) -> u16 {
    let most = usize::from(area.height) / 3;
    let width = usize::from(area.width);
    let mut lines = Vec::new();
    for (why, sum) in view.reasons() {
        let remedy = why.remedy(view.id, &view.name);
        let text = format!("{:>10} not huge: {}", state.units.write(sum), why.text());
        let whole = format!("{text}  → {remedy}");
        match remedy.is_empty() {
            true => lines.push(text),
            false if whole.width() <= width => lines.push(whole),
            // What helps must not be what is cut off.
            false => lines.extend([text, format!("{:>10} → {remedy}", "")]),
        }
    }
    lines.truncate(most);
    for (index, line) in lines.iter().enumerate() {
        let place = Rect { y: area.y + index as u16, height: 1, ..area };
        frame.render_widget(Line::styled(cut(line, width), look.notable()), place);
    }
    lines.len() as u16
}

fn style(state: CellState, look: Look) -> Style {
    match state {
        CellState::Huge | CellState::Hugetlb => look.good(),
        CellState::Dense => look.notable(),
        CellState::Sparse => look.notable().patch(look.faint()),
        CellState::Broken => look.bad(),
        CellState::Swapped => look.cold(),
        CellState::Empty => look.faint(),
    }
}

fn map(frame: &mut Frame, area: Rect, view: &View, state: &mut State, look: Look) {
    if area.height == 0 {
        return;
    }
    let legend_lines = legend(view, usize::from(area.width), look);
    let (body, foot) = split(area, area.height.saturating_sub(legend_lines.len() as u16));
    let lines = map_lines(view, usize::from(area.width), look);
    state.page = usize::from(body.height);
    state.scroll = state.scroll.min(lines.len().saturating_sub(state.page));
    for (index, line) in lines.into_iter().skip(state.scroll).take(state.page).enumerate() {
        frame.render_widget(line, Rect { y: body.y + index as u16, height: 1, ..body });
    }
    for (index, line) in legend_lines.into_iter().enumerate().take(usize::from(foot.height)) {
        frame.render_widget(line, Rect { y: foot.y + index as u16, height: 1, ..foot });
    }
}

/// The map: a title and lines of marks for each mapping with a huge page's worth in memory, then what is missing.
fn map_lines<'a>(view: &View, width: usize, look: Look) -> Vec<Line<'a>> {
    let mut lines = Vec::new();
    let marks = if width >= MARKS + 2 { MARKS } else { MARKS / 2 };
    let (mut rest, mut rest_bytes) = (0, 0);
    for row in &view.rows {
        let resident = row.pages(|cell| cell.unit.resident()) * view.os_page as u64;
        if resident < view.unit as u64 {
            (rest, rest_bytes) = (rest + 1, rest_bytes + resident);
            continue;
        }
        let huge = row.pages(|cell| cell.unit.huge) * view.os_page as u64;
        let name = if row.mapping.name.is_empty() {
            row.mapping.kind.name().into()
        } else {
            shown(&row.mapping.name)
        };
        let cut_into = pieces(row, view.unit, view.os_page, marks, LINES);
        let scale = cut_into.iter().flatten().find_map(|piece| match piece {
            Piece::Mark { len, .. } if *len > view.unit => {
                Some(format!("; a mark is {}", bytes(*len as u64)))
            }
            _ => None,
        });
        let title = format!(
            "{:012x} {name}: {} in memory, {} huge{}",
            row.mapping.range.start,
            bytes(resident),
            words::coverage((resident > 0).then(|| huge as f64 / resident as f64)),
            scale.unwrap_or_default(),
        );
        lines.push(Line::raw(cut(&title, width)));
        lines.extend(cut_into.into_iter().map(|pieces| {
            let spans = pieces.into_iter().map(|piece| match piece {
                Piece::Mark { state, .. } => Span::styled(character(state).to_string(), style(state, look)),
                Piece::Gap(gap) => Span::styled(format!("… {} without anything …", bytes(gap)), look.faint()),
            });
            Line::from(std::iter::once(Span::raw("  ")).chain(spans).collect::<Vec<_>>())
        }));
    }
    if rest > 0 {
        let text = format!(
            "{} more with less than {} each: {} together",
            counted(rest, "mapping", "mappings"),
            bytes(view.unit as u64),
            bytes(rest_bytes)
        );
        lines.push(Line::styled(cut(&text, width), look.faint()));
    }
    lines.extend(view.missing().into_iter().map(|text| Line::styled(cut(&text, width), look.faint())));
    lines
}

/// What the marks mean: those that there are.
fn legend<'a>(view: &View, width: usize, look: Look) -> Vec<Line<'a>> {
    let states: BTreeSet<CellState> = view
        .rows
        .iter()
        .flat_map(|row| &row.cells)
        .map(|cell| cell.state)
        .chain([CellState::Empty])
        .collect();
    let mut lines = vec![Vec::new()];
    let begin = format!("{} each, mode {}:", bytes(view.unit as u64), mode(view.mode));
    let mut used = begin.width();
    lines[0].push(Span::styled(begin, look.faint()));
    for state in CellState::ALL.into_iter().filter(|state| states.contains(state)) {
        let length = state.text().width() + 4;
        if used + length > width {
            lines.push(Vec::new());
            used = 0;
        }
        used += length;
        if let Some(line) = lines.last_mut() {
            line.push(Span::raw("  "));
            line.push(Span::styled(character(state).to_string(), style(state, look)));
            line.push(Span::styled(format!(" {}", state.text()), look.faint()));
        }
    }
    lines.into_iter().map(Line::from).collect()
}
