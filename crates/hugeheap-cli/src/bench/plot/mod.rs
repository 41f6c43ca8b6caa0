//! Line plots of memory over time: small multiples, one panel per variant, all on the same axes.
//!
//! One panel each, because lines of eight allocators in one panel cannot be told apart without colours, and hardly with them.
//!
//! ```text
//!        title
//!   120 ┤ ⡴⠋⠉⡆        a solid line: what is looked at first
//!    60 ┤⡜   ⡇ ⠐ ⠂    a dotted one: what it is compared with
//!     0 ┼⠁   ⠣⠤⠤⠤     below: marks of phases, then the time axis
//! ```
//!
//! [`terminal`] draws with braille patterns, or with ASCII where the terminal does not take UTF-8; [`svg`] draws a file.

pub(crate) mod svg;
pub(crate) mod terminal;

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stroke {
    Solid,
    Dotted,
}

/// One line: seconds and bytes, by time.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) stroke: Stroke,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A moment with a letter and its meaning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) at: f64,
    pub(crate) letter: char,
}

/// One variant.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
    pub(crate) marks: Vec<Mark>,
}

/// Panels on the same axes.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// What the marks' letters mean.
    pub(crate) key: String,
    pub(crate) panels: Vec<Panel>,
}

/// Ends of the axes, and the distance of ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Axes {
    pub(crate) seconds: f64,
    pub(crate) seconds_step: f64,
    pub(crate) bytes: f64,
    pub(crate) bytes_step: f64,
}

impl Chart {
    /// Axes that hold all panels.
    pub(crate) fn axes(&self) -> Axes {
        let points = || {
            self.panels
                .iter()
                .flat_map(|panel| panel.lines.iter().flat_map(|line| line.points.iter().copied()))
        };
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
        Axes { seconds, seconds_step, bytes: (most / bytes_step).ceil() * bytes_step, bytes_step }
    }
}

impl Axes {
    /// Where the time ticks are.
    pub(crate) fn times(&self) -> impl Iterator<Item = f64> {
        let (step, count) = (self.seconds_step, (self.seconds / self.seconds_step + 1e-9).floor() as u32);
        (0..=count).map(move |index| f64::from(index) * step)
    }
}

/// `3` or `0.5`: seconds of a tick.
pub(crate) fn tick(seconds: f64) -> String {
    let text = format!("{seconds:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// Charts for tests: a triangle and a flat line.
#[cfg(test)]
pub(crate) fn sample() -> Chart {
    let line = |name, stroke, points: &[(f64, f64)]| Line { name, stroke, points: points.to_vec() };
    let mib = f64::from(1 << 20);
    Chart {
        title: "memory <over> time".to_owned(),
        key: "a allocate".to_owned(),
        panels: vec![Panel {
            title: "auto & more".to_owned(),
            lines: vec![
                line("charge", Stroke::Solid, &[(0.0, 0.0), (1.0, 100.0 * mib), (2.0, 0.0)]),
                line("RSS", Stroke::Dotted, &[(0.0, 50.0 * mib), (2.0, 50.0 * mib)]),
            ],
            marks: vec![Mark { at: 0.0, letter: 'a' }],
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_hold_everything_and_have_round_ticks() {
        let axes = sample().axes();
        let mib = f64::from(1 << 20);
        assert_eq!((axes.bytes, axes.bytes_step), (128.0 * mib, 32.0 * mib));
        assert_eq!((axes.seconds, axes.seconds_step), (2.0, 0.5));
        let ticks: Vec<_> = axes.times().map(tick).collect();
        assert_eq!(ticks, ["0", "0.5", "1", "1.5", "2"]);
    }

    #[test]
    fn a_chart_without_points_has_axes() {
        let chart = Chart { panels: Vec::new(), ..sample() };
        assert!(chart.axes().seconds > 0.0 && chart.axes().bytes > 0.0);
    }
}
