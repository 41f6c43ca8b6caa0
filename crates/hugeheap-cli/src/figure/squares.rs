//! Maps of memory: a square for each huge page, its text under the pointer. Written by hand: the library that draws the
//! other figures knows no such texts.

use super::Square::{Gap, Mark};
use super::area::{FINE, HEAD, WIDTH};
use super::svg::escaped;
use super::{Squares, palette};
use std::fmt::Write;

impl Squares {
    /// Squares to a line, as in the text of `hugeheap map`: lines of both are the same memory.
    pub(crate) const ACROSS: usize = 64;
}

/// Pixels of a square and the space between two.
const SQUARE: usize = 11;
const STEP: usize = SQUARE + 1;
const LEFT: usize = 12;
/// Room for a stretch's title, and from a line of the legend to the next.
const TITLE: usize = 30;
const LINE: usize = 18;

/// The document.
pub(super) fn document(title: &str, squares: &Squares) -> String {
    let mut body = String::new();
    let (text, faint) = (palette::hex(palette::text()), palette::hex(palette::faint()));
    let _ = writeln!(
        body,
        "<text x=\"{LEFT}\" y=\"21\" font-size=\"16\" fill=\"{text}\">{}</text>",
        escaped(title)
    );
    let (mut x, mut y) = (LEFT, HEAD as usize + 14);
    for kind in &squares.legend {
        // About 7 pixels to a letter at this size.
        let length = STEP + 24 + 7 * kind.text.chars().count();
        if x > LEFT && x + length > WIDTH as usize {
            (x, y) = (LEFT, y + LINE);
        }
        let _ = writeln!(
            body,
            "<rect x=\"{x}\" y=\"{}\" width=\"{SQUARE}\" height=\"{SQUARE}\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"{y}\" fill=\"{text}\">{}</text>",
            y - 10,
            escaped(&kind.colour),
            x + STEP + 3,
            escaped(&kind.text)
        );
        x += length;
    }
    for line in &squares.said {
        y += LINE;
        let _ = writeln!(body, "<text x=\"{LEFT}\" y=\"{y}\" fill=\"{text}\">{}</text>", escaped(line));
    }
    for stretch in &squares.rows {
        y += TITLE;
        let title = escaped(&stretch.title);
        let _ = writeln!(body, "<text x=\"{LEFT}\" y=\"{}\" fill=\"{text}\">{title}</text>", y - 4);
        let mut across = 0;
        for square in &stretch.squares {
            if across == Squares::ACROSS {
                (across, y) = (0, y + STEP);
            }
            match square {
                Mark { kind, text } => {
                    let colour = squares.legend.get(*kind).map_or("none", |kind| kind.colour.as_str());
                    let _ = writeln!(
                        body,
                        "<rect x=\"{}\" y=\"{y}\" width=\"{SQUARE}\" height=\"{SQUARE}\" fill=\"{}\"><title>{}</title></rect>",
                        LEFT + across * STEP,
                        escaped(colour),
                        escaped(text)
                    );
                    across += 1;
                }
                Gap { gap } => {
                    if across > 0 {
                        y += STEP;
                    }
                    let _ = writeln!(
                        body,
                        "<text x=\"{LEFT}\" y=\"{}\" fill=\"{faint}\">… {} …</text>",
                        y + SQUARE - 1,
                        escaped(gap)
                    );
                    (across, y) = (0, y + STEP);
                }
            }
        }
        if across > 0 {
            y += STEP;
        }
    }
    let (height, fine) = (y + 12, FINE as usize);
    let (wide, high) = (WIDTH as usize * fine, height * fine);
    format!(
        "<svg width=\"{wide}\" height=\"{high}\" viewBox=\"0 0 {WIDTH} {height}\" xmlns=\"http://www.w3.org/2000/svg\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"{}\"/>\n{body}</svg>\n",
        palette::hex(palette::background())
    )
}
