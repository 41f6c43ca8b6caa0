//! The keys, over everything else.

use crate::top::look::Look;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

const KEYS: [(&str, &str); 14] = [
    ("↑ ↓ PgUp PgDn", "select a process; Home: always the first line"),
    ("Enter", "one process: history, why not huge, map"),
    ("← →  or 1 … 9", "the column to sort by"),
    ("r", "the other way round"),
    ("/", "only names with, or numbers beginning with, …"),
    ("Esc", "back: from a process, from a filter; else quit"),
    ("u", "units: fitting, KiB, MiB, GiB"),
    ("+ -", "refresh half or twice as often"),
    ("space", "stand still, go on"),
    ("Ctrl-L Ctrl-Z", "draw again; to the shell (fg comes back)"),
    ("q", "quit; from a process: back"),
    ("", ""),
    ("ELIGIBLE", "may be huge, and is not: hugeheap collapse PID"),
    ("STRANDED", "held but not mapped: hugeheap release PID"),
];

pub(super) fn draw(frame: &mut Frame, area: Rect, look: Look) {
    let width = KEYS.iter().map(|(_, does)| does.chars().count() + 18).max().unwrap_or(0) as u16 + 2;
    let (width, height) = (width.min(area.width), (KEYS.len() as u16 + 2).min(area.height));
    let place =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    let lines: Vec<Line> = KEYS
        .iter()
        .map(|(key, does)| {
            Line::from(vec![Span::styled(format!(" {key:<15} "), look.strong()), Span::raw(*does)])
        })
        .collect();
    frame.render_widget(Clear, place);
    frame
        .render_widget(Paragraph::new(lines).block(Block::bordered().title(" Keys (any key: back) ")), place);
}
