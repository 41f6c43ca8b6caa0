//! The screen, drawn from the state. Pure but for what it says back: how many rows fit, and where the first is.
//!
//! ```text
//!   host       what the host has, as many lines as it needs (at most three)
//!   list       heads, rows            or   detail     facts, history, reasons, map
//!   foot       keys, or the filter that is typed
//! ```

mod detail;
mod help;
mod list;

use super::look::Look;
use super::state::State;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use unicode_width::UnicodeWidthStr;

/// Smaller than this, nothing can be read.
const LEAST: (u16, u16) = (24, 5);
/// Lines for the host: more would take them from the list.
const HOST_LINES: usize = 3;
/// From this height on, a process leaves room for all of the host.
const ROOMY: u16 = 30;

pub(crate) fn draw(frame: &mut Frame, state: &mut State, look: Look) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let text = format!("needs {} × {}", LEAST.0, LEAST.1);
        frame.render_widget(Paragraph::new(text), area);
    } else {
        let (top, rest) = split(area, host(frame, state, look, area));
        debug_assert_eq!(top.y, area.y);
        let (body, foot) = split(rest, rest.height - 1);
        if state.detail.is_some() {
            detail::draw(frame, body, state, look);
        } else {
            list::draw(frame, body, state, look);
        }
        draw_foot(frame, foot, state, look);
        if state.help {
            help::draw(frame, area, look);
        }
    }
    look.adapt(frame.buffer_mut());
}

/// An area in two: the first has `height` lines.
fn split(area: Rect, height: u16) -> (Rect, Rect) {
    let height = height.min(area.height);
    let rest = Rect { y: area.y + height, height: area.height - height, ..area };
    (Rect { height, ..area }, rest)
}

/// Pieces side by side, in lines of `width`, at most `lines`; what does not fit is left out.
fn flow(pieces: Vec<String>, width: usize, lines: usize) -> Vec<String> {
    const BETWEEN: &str = "   ";
    let mut result: Vec<String> = Vec::new();
    for piece in pieces {
        let lines_now = result.len();
        match result.last_mut() {
            Some(line) if line.width() + BETWEEN.len() + piece.width() <= width => {
                line.push_str(BETWEEN);
                line.push_str(&piece);
            }
            _ if lines_now < lines => result.push(cut(&piece, width)),
            // A shorter one may fit still.
            _ => {}
        }
    }
    result
}

/// As much of a text as fits, with a mark where it was cut.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut result = String::new();
    for character in text.chars() {
        if result.width() + character.to_string().width() + 1 > width {
            break;
        }
        result.push(character);
    }
    if width > 0 {
        result.push('…');
    }
    result
}

/// Draws the host, and answers how many lines that took.
fn host(frame: &mut Frame, state: &State, look: Look, area: Rect) -> u16 {
    let width = usize::from(area.width);
    let mut pieces = vec![if state.paused {
        "hugeheap top: stands still (space goes on)".to_owned()
    } else {
        format!("hugeheap top, every {} s", state.interval.as_secs_f64())
    }];
    match &state.sample {
        None => pieces.push("reading …".to_owned()),
        Some(sample) => {
            let (all, shown) = (sample.rows.len(), state.rows.len());
            pieces.push(if all == shown {
                crate::output::counted(all as u64, "process", "processes")
            } else {
                format!("{shown} of {all} processes")
            });
            pieces.extend(sample.host.words(|count| state.units.write(count)));
            pieces.extend(notes(state));
        }
    }
    // At least as much is left for the list; a process that is looked at alone needs the room more than the host.
    let most = match state.detail {
        Some(_) if area.height < ROOMY => 1,
        _ => HOST_LINES.min(usize::from(area.height.saturating_sub(3) / 2)).max(1),
    };
    let lines = flow(pieces, width, most);
    for (index, line) in lines.iter().enumerate() {
        let style = if index == 0 { look.strong() } else { ratatui::style::Style::new() };
        let place = Rect { y: area.y + index as u16, height: 1, ..area };
        frame.render_widget(Line::styled(line.as_str(), style), place);
    }
    lines.len() as u16
}

/// What cannot be seen, and the way to it.
pub(crate) fn notes(state: &State) -> Vec<String> {
    let Some(sample) = &state.sample else { return Vec::new() };
    let mut notes = Vec::new();
    let closed =
        sample.rows.iter().filter(|row| row.sums == Err(crate::ps::row::Unread::Permission)).count() as u64;
    if closed > 0 {
        let why = if sample.may_look { "not for lack of a capability" } else { "needs CAP_SYS_PTRACE" };
        notes.push(format!("{closed} not readable ({why})"));
    }
    if sample.sees_folios == Some(false) {
        let why = if sample.root { "does not show with --root" } else { "needs CAP_SYS_ADMIN" };
        notes.push(format!("stranded per process {why}"));
    }
    notes
}

fn draw_foot(frame: &mut Frame, area: Rect, state: &State, look: Look) {
    let width = usize::from(area.width);
    if state.typing.is_some() {
        let text = format!("name or number: {}", state.filter);
        let text = cut(&text, width.saturating_sub(1));
        let place = (area.x + text.width() as u16, area.y);
        frame.render_widget(Line::styled(text, look.accent()), area);
        frame.set_cursor_position(place);
        return;
    }
    let keys: &[(&str, &str)] = if state.detail.is_some() {
        &[("Esc", "back"), ("↑↓", "scroll"), ("?", "help"), ("u", "units"), ("space", "stop")]
    } else {
        &[
            ("↑↓", "select"),
            ("Enter", "details"),
            ("?", "help"),
            ("q", "quit"),
            ("←→", "sort"),
            ("r", "reverse"),
            ("/", "filter"),
            ("u", "units"),
            ("+-", "pace"),
        ]
    };
    let mut spans = Vec::new();
    let mut used = 0;
    if !state.filter.is_empty() && state.detail.is_none() {
        let text = cut(&format!("only '{}' (Esc: all)  ", state.filter), width);
        used += text.width();
        spans.push(Span::styled(text, look.notable()));
    }
    for (key, does) in keys {
        let length = key.width() + does.width() + 3;
        if used + length > width + 2 {
            break;
        }
        used += length;
        spans.push(Span::styled(*key, look.strong()));
        spans.push(Span::styled(format!(" {does}  "), look.faint()));
    }
    frame.render_widget(Line::from(spans), area);
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
