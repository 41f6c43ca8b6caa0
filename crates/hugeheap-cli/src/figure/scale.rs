//! Axes: ends, ticks at round values, and their labels.
//!
//! Bytes have ticks at powers of two, because memory does; everything else at 1, 2 or 5 times a power of ten.
//! An axis of names has its ticks in the middle of each row.

use super::Unit;
use crate::output::{self, grouped};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// Most ticks of an axis besides its lower end.
const MOST: f64 = 6.0;

/// What is further from zero is no measurement and has no place on an axis; what is as near to another is the
/// same. Files are made by others, too: an axis to the largest number there is, or of one of the smallest, has
/// ends that are no numbers.
const FAR: f64 = 1e100;
const NEAR: f64 = 1e-100;

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    ticks: Vec<(f64, String)>,
    /// Whether larger values are further down: rows are read from the top.
    downwards: bool,
}

impl Scale {
    /// An axis that holds `values` and begins at a round one; at zero unless `free`.
    pub(super) fn holding(unit: Unit, values: impl Iterator<Item = f64>, free: bool) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.abs() <= FAR) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if !free {
            low = low.min(0.0);
            high = high.max(0.0);
        }
        if high - low <= NEAR {
            // One value, or none but zero: it needs an axis all the same.
            let room = if high.abs() <= NEAR { 1.0 } else { high.abs() * 0.1 };
            (low, high) = (if free { low - room } else { low }, high + room);
        }
        let step = step(unit, high - low);
        let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
        let count = (last - first).round().max(1.0) as u32;
        let ticks = (0..=count)
            .map(|index| {
                let value = (first + f64::from(index)) * step;
                (value, label(unit, value, step))
            })
            .collect();
        Self { low: first * step, high: last.max(first + 1.0) * step, ticks, downwards: false }
    }

    /// An axis that ends where the values do, so that lines fill the picture; ticks where they are round.
    pub(super) fn within(unit: Unit, values: impl Iterator<Item = f64>) -> Self {
        let most = values.filter(|value| value.abs() <= FAR).fold(0.0, f64::max);
        let mut scale = Self::holding(unit, std::iter::once(most), false);
        if most > NEAR {
            scale.high = most;
            scale.ticks.retain(|tick| tick.0 <= most * 1.0001);
        }
        scale
    }

    /// Rows with names, from the top.
    pub(super) fn rows(names: impl Iterator<Item = String>) -> Self {
        let ticks: Vec<_> = names.enumerate().map(|(row, name)| (row as f64 + 0.5, name)).collect();
        Self { low: 0.0, high: ticks.len().max(1) as f64, ticks, downwards: true }
    }

    pub(super) const fn low(&self) -> f64 {
        self.low
    }

    pub(super) const fn high(&self) -> f64 {
        self.high
    }

    /// Letters of the longest label.
    pub(super) fn longest(&self) -> usize {
        self.ticks.iter().map(|tick| tick.1.chars().count()).max().unwrap_or(0)
    }
}

/// The distance of ticks.
fn step(unit: Unit, span: f64) -> f64 {
    if matches!(unit, Unit::Bytes | Unit::BytesPerSecond) {
        return 2f64.powf((span / MOST).log2().ceil()).max(1.0);
    }
    let power = 10f64.powf((span / MOST).log10().floor());
    let factor =
        [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power * MOST >= span * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

/// What stands at a tick.
fn label(unit: Unit, value: f64, step: f64) -> String {
    // A step computed from a power of ten is a bit off it.
    let digits = |step: f64| (-(step.log10() + 1e-9).floor()).clamp(0.0, 9.0) as usize;
    match unit {
        Unit::Bytes => signed(value, |value| output::bytes(value as u64)),
        Unit::BytesPerSecond => signed(value, |value| format!("{}/s", output::bytes(value as u64))),
        Unit::Seconds if step < 1e-6 => format!("{:.*} ns", digits(step * 1e9), value * 1e9),
        Unit::Seconds if step < 1e-3 => format!("{:.*} µs", digits(step * 1e6), value * 1e6),
        Unit::Seconds if step < 1.0 && value < 10.0 && step < 0.1 => {
            format!("{:.*} ms", digits(step * 1e3), value * 1e3)
        }
        Unit::Seconds => format!("{value:.*} s", digits(step)),
        Unit::Share => format!("{:.*} %", digits(step * 100.0), value * 100.0),
        Unit::Ratio => format!("{value:.*}", digits(step)),
        Unit::Number if step >= 1.0 => signed(value, |value| grouped(value.round() as u64)),
        Unit::Number => format!("{value:.*}", digits(step)),
    }
}

fn signed(value: f64, text: impl Fn(f64) -> String) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else if value < 0.0 {
        format!("−{}", text(-value))
    } else {
        text(value)
    }
}

/// A value for people, with three digits that matter.
pub(super) fn shown(unit: Unit, value: f64) -> String {
    match unit {
        _ if value == 0.0 => "0".to_owned(),
        Unit::Bytes | Unit::BytesPerSecond => label(unit, value, 1.0),
        Unit::Seconds => {
            let (scale, unit) = match value.abs() {
                small if small < 1e-6 => (1e9, "ns"),
                small if small < 1e-3 => (1e6, "µs"),
                small if small < 1.0 => (1e3, "ms"),
                _ => (1.0, "s"),
            };
            format!("{} {unit}", shown(Unit::Number, value * scale))
        }
        // So that three digits are left of whatever comes first.
        Unit::Share => format!("{} %", shown(Unit::Number, value * 100.0)),
        _ => label(unit, value, 10f64.powf((value.abs().max(1e-9).log10() + 1e-9).floor() - 2.0)),
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        let share = if self.downwards { 1.0 - share } else { share };
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks.iter().map(|tick| tick.0).collect()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, value: &f64) -> String {
        self.ticks.iter().find(|tick| tick.0 == *value).map(|tick| tick.1.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale) -> Vec<&str> {
        scale.ticks.iter().map(|tick| tick.1.as_str()).collect()
    }

    /// The ends were no numbers, at which drawing ended with a panic.
    #[test]
    fn an_axis_has_ends_whatever_numbers_a_file_has() {
        let numbers = [0.0, 5e-324, 1e-300, 1.0, 1e18, 1e99, 1e300, f64::MAX, f64::NAN, f64::INFINITY];
        for (low, high) in numbers.iter().flat_map(|low| numbers.map(|high| (-low, high))) {
            for unit in [Unit::Bytes, Unit::Seconds, Unit::Ratio, Unit::Number] {
                for free in [false, true] {
                    let scale = Scale::holding(unit, [low, high].into_iter(), free);
                    assert!(
                        scale.low() < scale.high() && scale.high().is_finite(),
                        "{low} {high}: {scale:?}"
                    );
                    assert!(scale.ticks.len() < 20, "{low} {high}: {scale:?}");
                }
                let scale = Scale::within(unit, [low, high].into_iter());
                assert!(scale.low() < scale.high() && scale.high().is_finite(), "{low} {high}: {scale:?}");
            }
        }
    }

    #[test]
    fn bytes_have_ticks_at_powers_of_two() {
        let scale = Scale::holding(Unit::Bytes, [0.0, 100.0 * 1048576.0].into_iter(), false);
        assert_eq!(labels(&scale), ["0", "32.0 MiB", "64.0 MiB", "96.0 MiB", "128 MiB"]);
        assert_eq!(scale.high(), f64::from(128 << 20));
    }

    #[test]
    fn other_units_have_round_decimal_ticks() {
        let of = |unit, low, high, free| Scale::holding(unit, [low, high].into_iter(), free);
        assert_eq!(labels(&of(Unit::Ratio, 0.81, 1.12, true)), ["0.8", "0.9", "1.0", "1.1", "1.2"]);
        assert_eq!(
            labels(&of(Unit::Share, 0.0, 0.93, false)),
            ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]
        );
        assert_eq!(labels(&of(Unit::Number, 0.0, 5200.0, false)).last(), Some(&"6,000"));
        assert_eq!(labels(&of(Unit::Seconds, 0.0, 2e-8, false))[1], "5 ns");
    }

    #[test]
    fn nothing_and_one_value_have_an_axis() {
        for scale in [
            Scale::holding(Unit::Bytes, std::iter::empty(), false),
            Scale::holding(Unit::Number, [0.0].into_iter(), true),
            Scale::holding(Unit::Ratio, [3.0, f64::NAN].into_iter(), true),
            Scale::within(Unit::Seconds, std::iter::empty()),
        ] {
            assert!(scale.high() > scale.low() && !scale.ticks.is_empty(), "{scale:?}");
        }
    }

    #[test]
    fn an_axis_of_time_ends_with_the_time() {
        let scale = Scale::within(Unit::Seconds, [0.4, 3.7].into_iter());
        assert_eq!((scale.low(), scale.high()), (0.0, 3.7));
        assert_eq!(labels(&scale), ["0 s", "1 s", "2 s", "3 s"]);
    }

    #[test]
    fn rows_are_read_from_the_top() {
        let scale = Scale::rows(["a".to_owned(), "b".to_owned()].into_iter());
        assert_eq!((scale.map(&0.5, (100, 0)), scale.map(&1.5, (100, 0))), (25, 75));
        assert_eq!(scale.format_ext(&1.5), "b");
    }

    #[test]
    fn values_have_three_digits() {
        assert_eq!(shown(Unit::Ratio, 0.8137), "0.814");
        assert_eq!(shown(Unit::Seconds, 0.0123), "12.3 ms");
        assert_eq!(shown(Unit::Share, 0.935), "93.5 %");
        assert_eq!(shown(Unit::Number, 1_234_567.0), "1,234,567");
        assert_eq!(shown(Unit::Bytes, 1536.0), "1.5 KiB");
    }
}
