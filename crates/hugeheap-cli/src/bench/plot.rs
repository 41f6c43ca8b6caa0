//! Line plots of memory over time, made of characters: small multiples, one panel per variant, all on the same axes.
//!
//! One panel each, because lines of eight allocators in one panel cannot be told apart without colours, and
//! hardly with them.
//!
//! ```text
//!        title
//!   120 ┤ ⡴⠋⠉⡆        a solid line: what is looked at first
//!    60 ┤⡜   ⡇ ⠐ ⠂    a dotted one: what it is compared with
//!     0 ┼⠁   ⠣⠤⠤⠤     below: marks of phases, then the time axis
//! ```
//!
//! What is drawn is a [`Figure`], the same that the report draws; all runs of a line are drawn over each other.
//!
//! A braille pattern has 2 × 4 dots, so a panel of 6 lines has 24 steps. Where the locale is not UTF-8 a
//! character is one dot: `*` for solid lines, `.` for dotted ones. A dotted line is dotted with colours too:
//! what it shows then does not depend on them.

use crate::figure::{Content, Figure, Line, Lines, Panel};
use crate::output::bytes;
use std::fmt::Write;

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stroke {
    Solid,
    Dotted,
}

const fn stroke(line: &Line) -> Stroke {
    if line.dotted { Stroke::Dotted } else { Stroke::Solid }
}

/// Lines of a panel.
const ROWS: usize = 6;
/// Columns for the labels of the left axis: `1024 MiB ┤`.
const LABEL: usize = 10;
/// Of the plot itself, where no width is known and where more would only stretch it.
const COLUMNS: std::ops::RangeInclusive<usize> = 30..=100;
/// Without a terminal: fits 80 columns.
const DEFAULT_WIDTH: usize = 80;
/// Every which dot of a dotted line is drawn.
const DOTTED: usize = 3;

/// What the reader can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    pub(crate) colour: bool,
    pub(crate) utf8: bool,
    /// Columns of the whole.
    pub(crate) width: usize,
}

impl Abilities {
    /// Of what standard output goes to; `colour`: whether it takes colours.
    pub(crate) fn here(colour: bool) -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable);
        let width = terminal_width().or_else(|| variable("COLUMNS")?.parse().ok());
        Self {
            colour,
            utf8: locale.is_some_and(|name| is_utf8(&name)),
            width: width.unwrap_or(DEFAULT_WIDTH),
        }
    }
}

fn is_utf8(locale: &str) -> bool {
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

fn terminal_width() -> Option<usize> {
    // SAFETY: all zero is a valid value of this plain struct, which is then filled.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the request takes a pointer to such a struct.
    let known = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) } == 0;
    (known && size.ws_col > 0).then_some(size.ws_col.into())
}

/// Ends of the axes, and the distance of ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axes {
    seconds: f64,
    seconds_step: f64,
    bytes: f64,
    bytes_step: f64,
}

impl Axes {
    /// Axes that hold all panels.
    fn of(lines: &Lines) -> Self {
        let points =
            || lines.panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| line.runs.iter().flatten());
        let seconds = points().map(|point| point.0).fold(0.0, f64::max).max(0.1);
        let most = points().map(|point| point.1).fold(0.0, f64::max).max(1024.0);
        // Ticks at powers of two: at most four above zero.
        let mut bytes_step = 1024.0;
        while most / bytes_step > 4.0 {
            bytes_step *= 2.0;
        }
        let mut seconds_step = 0.1;
        for factor in [2.0, 2.5, 2.0].into_iter().cycle() {
            if seconds / seconds_step <= 8.0 {
                break;
            }
            seconds_step *= factor;
        }
        Self { seconds, seconds_step, bytes: (most / bytes_step).ceil() * bytes_step, bytes_step }
    }

    /// Where the time ticks are.
    fn times(&self) -> impl Iterator<Item = f64> {
        let (step, count) = (self.seconds_step, (self.seconds / self.seconds_step + 1e-9).floor() as u32);
        (0..=count).map(move |index| f64::from(index) * step)
    }
}

/// `3` or `0.5`: seconds of a tick.
fn tick(seconds: f64) -> String {
    let text = format!("{seconds:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// A figure of bytes over time, ended by a line break; nothing for one that is no lines.
pub(crate) fn draw(figure: &Figure, abilities: Abilities) -> String {
    let Content::Lines(lines) = &figure.content else { return String::new() };
    let axes = Axes::of(lines);
    let columns = abilities.width.saturating_sub(LABEL).clamp(*COLUMNS.start(), *COLUMNS.end());
    let mut text = format!("{}\n", figure.title);
    if let Some(panel) = lines.panels.first() {
        let keys: Vec<_> = panel
            .lines
            .iter()
            .map(|line| {
                let mark = match (stroke(line), abilities.utf8) {
                    (Stroke::Solid, true) => "⠤⠤⠤",
                    (Stroke::Dotted, true) => "⠄⠠⠀⠄",
                    (Stroke::Solid, false) => "***",
                    (Stroke::Dotted, false) => ". .",
                };
                format!("{} {}", painted(mark, colour(stroke(line)), abilities), line.name)
            })
            .collect();
        let _ = writeln!(text, "{}   {}", keys.join("   "), figure.note);
    }
    for panel in &lines.panels {
        text.push('\n');
        draw_panel(&mut text, panel, &axes, columns, abilities);
    }
    text
}

fn draw_panel(text: &mut String, panel: &Panel, axes: &Axes, columns: usize, abilities: Abilities) {
    let (dots_across, dots_down) = if abilities.utf8 { (2, 4) } else { (1, 1) };
    let mut grid = Grid::new(columns * dots_across, ROWS * dots_down);
    // Dotted lines first: where they coincide the solid one is seen.
    for first in [Stroke::Dotted, Stroke::Solid] {
        for line in panel.lines.iter().filter(|line| stroke(line) == first) {
            grid.draw(line, axes);
        }
    }
    let _ = writeln!(text, "{:LABEL$}{}", "", panel.title);
    for row in 0..ROWS {
        let label = match row {
            0 => bytes(axes.bytes as u64),
            row if row == ROWS / 2 => bytes((axes.bytes / 2.0) as u64),
            row if row + 1 == ROWS => "0".to_owned(),
            _ => String::new(),
        };
        let _ = write!(text, "{label:>width$} {}", if abilities.utf8 { '┤' } else { '|' }, width = LABEL - 2);
        let cells: Vec<(char, Option<Stroke>)> = (0..columns)
            .map(|column| if abilities.utf8 { grid.braille(column, row) } else { grid.ascii(column, row) })
            .collect();
        let mut cells = &cells[..];
        while let Some(&(character, stroke)) = cells.last() {
            if stroke.is_some() || character != ' ' {
                break;
            }
            cells = &cells[..cells.len() - 1];
        }
        // Runs of one stroke, so that a line of a hundred cells has few changes of colour.
        for run in cells.chunk_by(|left, right| left.1 == right.1) {
            let characters: String = run.iter().map(|cell| cell.0).collect();
            match run[0].1 {
                Some(stroke) => text.push_str(&painted(&characters, colour(stroke), abilities)),
                None => text.push_str(&characters),
            }
        }
        text.push('\n');
    }
    let place = |seconds: f64| ((seconds / axes.seconds) * (columns - 1) as f64).round() as usize;
    let mut marks = vec![' '; columns];
    for mark in &panel.marks {
        marks[place(mark.at).min(columns - 1)] = mark.text.chars().next().unwrap_or(' ');
    }
    let _ = writeln!(text, "{:LABEL$}{}", "", marks.iter().collect::<String>().trim_end());
    let mut times = String::new();
    for time in axes.times() {
        let label = format!("{} s", tick(time));
        let at = place(time);
        if at + label.len() <= columns && (times.is_empty() || at > times.len()) {
            times += &" ".repeat(at - times.len());
            times += &label;
        }
    }
    let _ = writeln!(text, "{:LABEL$}{times}", "");
}

const fn colour(stroke: Stroke) -> &'static str {
    match stroke {
        Stroke::Solid => "36",
        Stroke::Dotted => "33",
    }
}

fn painted(text: &str, colour: &str, abilities: Abilities) -> String {
    if abilities.colour { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Dots, row 0 at the top.
struct Grid {
    width: usize,
    height: usize,
    dots: Vec<Option<Stroke>>,
}

impl Grid {
    fn new(width: usize, height: usize) -> Self {
        Self { width, height, dots: vec![None; width * height] }
    }

    fn draw(&mut self, line: &Line, axes: &Axes) {
        let (width, height) = (self.width, self.height);
        let place = |(seconds, bytes): (f64, f64)| {
            let across = (seconds / axes.seconds).clamp(0.0, 1.0) * (width - 1) as f64;
            let up = (bytes / axes.bytes).clamp(0.0, 1.0) * (height - 1) as f64;
            (across.round() as i64, height as i64 - 1 - up.round() as i64)
        };
        let stroke = stroke(line);
        for run in &line.runs {
            let places: Vec<_> = run.iter().map(|&point| place(point)).collect();
            self.connect(&places, stroke);
        }
    }

    fn connect(&mut self, places: &[(i64, i64)], stroke: Stroke) {
        let mut drawn = 0;
        for pair in places.windows(2) {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            let steps = (x1 - x0).abs().max((y1 - y0).abs()).max(1);
            // Not the end, where the next segment begins: a dotted line would get dots in pairs.
            for step in 0..steps.max(1) {
                let part = step as f64 / steps as f64;
                let x = x0 + ((x1 - x0) as f64 * part).round() as i64;
                let y = y0 + ((y1 - y0) as f64 * part).round() as i64;
                if (x0, y0) != (x1, y1) {
                    drawn += 1;
                    self.set(x, y, stroke, drawn);
                }
            }
        }
        if let Some(&(x, y)) = places.last() {
            self.set(x, y, stroke, DOTTED);
        }
    }

    fn set(&mut self, x: i64, y: i64, stroke: Stroke, number: usize) {
        if stroke == Stroke::Solid || number % DOTTED == 0 {
            self.dots[y as usize * self.width + x as usize] = Some(stroke);
        }
    }

    /// The cell's pattern, and the stroke of its colour.
    fn braille(&self, column: usize, row: usize) -> (char, Option<Stroke>) {
        // Bits of the dots by row, left and right: U+2800 counts down the left column, then the right one, the
        // last row later added.
        const BITS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
        let (mut pattern, mut seen) = (0, None);
        for (y, bits) in BITS.iter().enumerate() {
            for (x, bit) in bits.iter().enumerate() {
                if let Some(stroke) = self.dots[(row * 4 + y) * self.width + column * 2 + x] {
                    pattern |= bit;
                    if seen != Some(Stroke::Solid) {
                        seen = Some(stroke);
                    }
                }
            }
        }
        match seen {
            None => (' ', None),
            Some(_) => (char::from_u32(0x2800 + pattern).unwrap_or(' '), seen),
        }
    }

    fn ascii(&self, column: usize, row: usize) -> (char, Option<Stroke>) {
        let dot = self.dots[row * self.width + column];
        let character = match dot {
            None => ' ',
            Some(Stroke::Solid) => '*',
            Some(Stroke::Dotted) => '.',
        };
        (character, dot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Mark, Unit};

    /// A triangle and a flat line.
    fn sample() -> Figure {
        let line = |name: &str, dotted, points: &[(f64, f64)]| Line {
            name: name.to_owned(),
            runs: vec![points.to_vec()],
            dotted,
        };
        let mib = f64::from(1 << 20);
        let panel = Panel {
            title: "auto & more".to_owned(),
            lines: vec![
                line("charge", false, &[(0.0, 0.0), (1.0, 100.0 * mib), (2.0, 0.0)]),
                line("RSS", true, &[(0.0, 50.0 * mib), (2.0, 50.0 * mib)]),
            ],
            marks: vec![Mark { at: 0.0, text: "a".to_owned() }],
        };
        let lines = Lines::over_time(Unit::Bytes, "", vec![panel]);
        Figure::new("memory <over> time", "a allocate", Content::Lines(lines))
    }

    fn lines(figure: &mut Figure) -> &mut Lines {
        let Content::Lines(lines) = &mut figure.content else { panic!("no lines") };
        lines
    }

    #[test]
    fn axes_hold_everything_and_have_round_ticks() {
        let axes = Axes::of(lines(&mut sample()));
        let mib = f64::from(1 << 20);
        assert_eq!((axes.bytes, axes.bytes_step), (128.0 * mib, 32.0 * mib));
        assert_eq!((axes.seconds, axes.seconds_step), (2.0, 0.5));
        let ticks: Vec<_> = axes.times().map(tick).collect();
        assert_eq!(ticks, ["0", "0.5", "1", "1.5", "2"]);
    }

    #[test]
    fn a_chart_without_points_has_axes() {
        let axes = Axes::of(&Lines::over_time(Unit::Bytes, "", Vec::new()));
        assert!(axes.seconds > 0.0 && axes.bytes > 0.0);
    }

    const PLAIN: Abilities = Abilities { colour: false, utf8: true, width: 60 };

    #[test]
    fn a_triangle_rises_and_falls() {
        let text = draw(&sample(), Abilities { utf8: false, ..PLAIN });
        assert!(text.is_ascii(), "{text}");
        let rows: Vec<&str> = text.lines().filter_map(|line| line.split_once('|')).map(|row| row.1).collect();
        assert_eq!(rows.len(), ROWS);
        // The peak (100 of 128 MiB) is in the second row, the ends are in the last one.
        assert!(!rows[0].contains('*') && rows[1].contains('*'), "{text}");
        let last = rows[ROWS - 1];
        assert!(last.starts_with('*') && last.ends_with('*') && last.contains("   "), "{text}");
        assert!(rows[ROWS / 2].contains('.'), "{text}");
        assert!(
            text.contains("128 MiB") && text.contains("0.5 s") && text.contains("\n          a\n"),
            "{text}"
        );
    }

    #[test]
    fn braille_has_the_same_shape_and_no_escapes_without_colour() {
        let text = draw(&sample(), PLAIN);
        assert!(!text.contains('\x1b'));
        let rows: Vec<&str> = text.lines().filter_map(|line| line.split_once('┤')).map(|row| row.1).collect();
        assert_eq!(rows.len(), ROWS);
        assert_eq!(rows[0], "");
        assert!(rows[1].trim().chars().all(|cell| ('\u{2801}'..='\u{28ff}').contains(&cell)), "{text}");
        assert!(rows.iter().all(|row| row.chars().count() <= 50), "{text}");
    }

    #[test]
    fn colours_are_switched_off_again() {
        let text = draw(&sample(), Abilities { colour: true, ..PLAIN });
        assert!(text.contains("\x1b[36m") && text.contains("\x1b[33m"));
        assert_eq!(text.matches("\x1b[3").count(), text.matches("\x1b[0m").count());
    }

    #[test]
    fn locales_are_told_apart() {
        assert!(is_utf8("C.UTF-8") && is_utf8("de_DE.utf8"));
        assert!(!is_utf8("C") && !is_utf8("de_DE.ISO-8859-1"));
    }

    #[test]
    fn a_chart_of_one_point_is_drawn() {
        let mut chart = sample();
        let panel = &mut lines(&mut chart).panels[0];
        panel.lines[0].runs[0].truncate(1);
        panel.lines[1].runs[0].clear();
        assert!(draw(&chart, PLAIN).lines().count() > ROWS);
    }
}
