//! Colours of figures, and the same figure in the dark.
//!
//! A picture is drawn in the colours for light backgrounds, as attributes: an exported file looks alike in
//! every program. In a page, a style sheet repaints each of those colours where the reader prefers dark;
//! attributes give way to it.

use plotters::style::RGBColor;
use std::fmt::Write;

/// Lines, bars and boxes, in turn: told apart by those who see colours differently (Okabe and Ito's, reordered
/// so that the first two differ most in lightness, too).
const SERIES: [Shade; 8] = [
    Shade { light: RGBColor(0x00, 0x72, 0xB2), dark: "#4DA9E0" },
    Shade { light: RGBColor(0xD5, 0x5E, 0x00), dark: "#FF8A3D" },
    Shade { light: RGBColor(0x00, 0x9E, 0x73), dark: "#35C79D" },
    Shade { light: RGBColor(0xCC, 0x79, 0xA7), dark: "#E39BC5" },
    Shade { light: RGBColor(0xB8, 0x86, 0x0B), dark: "#F0C75E" },
    Shade { light: RGBColor(0x4B, 0xA6, 0xD9), dark: "#8CCBF0" },
    Shade { light: RGBColor(0x7A, 0x4F, 0x2B), dark: "#C79A75" },
    Shade { light: RGBColor(0x5E, 0x5E, 0x6E), dark: "#B4B4C4" },
];

const BACKGROUND: Shade = Shade { light: RGBColor(0xFF, 0xFF, 0xFF), dark: "#16181C" };
const TEXT: Shade = Shade { light: RGBColor(0x1F, 0x23, 0x28), dark: "#E6E8EB" };
const FAINT: Shade = Shade { light: RGBColor(0x57, 0x60, 0x6A), dark: "#A3ABB5" };
const GRID: Shade = Shade { light: RGBColor(0xDF, 0xE3, 0xE8), dark: "#343A42" };

#[derive(Clone, Copy)]
struct Shade {
    light: RGBColor,
    dark: &'static str,
}

/// Of the picture.
pub(super) const fn background() -> RGBColor {
    BACKGROUND.light
}

/// Of titles and names.
pub(super) const fn text() -> RGBColor {
    TEXT.light
}

/// Of labels of axes.
pub(super) const fn faint() -> RGBColor {
    FAINT.light
}

/// Of lines to read values from.
pub(super) const fn grid() -> RGBColor {
    GRID.light
}

/// Of the line, bar or box at `place`.
pub(super) const fn series(place: usize) -> RGBColor {
    SERIES[place % SERIES.len()].light
}

/// A colour as an attribute of the picture.
pub(super) fn hex(colour: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
}

/// The style sheet that repaints pictures for a dark page. Squares keep their colours: they mean something, and
/// are told apart on both.
pub(crate) fn restyled() -> String {
    let mut sheet = String::new();
    for shade in SERIES.iter().chain(&[BACKGROUND, TEXT, FAINT, GRID]) {
        let (light, dark) = (hex(shade.light), shade.dark);
        let _ = writeln!(
            sheet,
            "svg.figure [fill=\"{light}\"]{{fill:{dark}}}svg.figure [stroke=\"{light}\"]{{stroke:{dark}}}"
        );
    }
    sheet
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_colour_is_another_one() {
        let all: Vec<_> = SERIES.iter().chain(&[BACKGROUND, TEXT, FAINT, GRID]).collect();
        let light: HashSet<_> = all.iter().map(|shade| hex(shade.light)).collect();
        let dark: HashSet<_> = all.iter().map(|shade| shade.dark).collect();
        assert_eq!((light.len(), dark.len()), (all.len(), all.len()), "one sheet repaints all of them");
    }
}
