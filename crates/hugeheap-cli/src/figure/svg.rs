//! One figure as an SVG document without scripts, fonts or links, so that any browser and any editor shows it alike.

use super::area::{Area, Drawn, FINE, LETTER, WIDTH};
use super::{Content, Figure, bars, boxes, lines, palette, squares};
use plotters::prelude::*;
use std::fmt::Write;

/// Room of a line of a note in a file, as shown.
const NOTE: u32 = 18;

/// The picture of `figure`; `None` for a table, which is none.
pub(crate) fn picture(figure: &Figure) -> Option<String> {
    let title = figure.title.as_str();
    let drawn = match &figure.content {
        Content::Table(_) => return None,
        Content::Lines(it) => drawing(lines::height(it), |area| lines::draw(area, title, it)),
        Content::Bars(it) => drawing(bars::height(it), |area| bars::draw(area, title, it)),
        Content::Boxes(it) => drawing(boxes::height(it), |area| boxes::draw(area, title, it)),
        Content::Squares(it) => squares::document(title, it),
    };
    Some(described(&drawn, figure))
}

/// Figures as a file of their own, one below the other, each with its note; tables are left out.
pub(crate) fn document(figures: &[Figure]) -> String {
    let (mut body, mut top) = (String::new(), 0);
    for figure in figures {
        let Some(picture) = picture(figure) else { continue };
        // Within a document a picture has a place; it knows its height.
        let inner = picture.replacen("<svg ", &format!("<svg x=\"0\" y=\"{top}\" "), 1);
        body += inner.trim_end();
        body.push('\n');
        top += attribute(&picture, "height").unwrap_or(0);
        for line in wrapped(&figure.note) {
            let _ = writeln!(
                body,
                "<text x=\"12\" y=\"{}\" fill=\"{}\">{}</text>",
                top + NOTE - 6,
                palette::hex(palette::faint()),
                escaped(&line)
            );
            top += NOTE;
        }
        top += 8;
    }
    format!(
        "<svg width=\"{WIDTH}\" height=\"{top}\" viewBox=\"0 0 {WIDTH} {top}\" xmlns=\"http://www.w3.org/2000/svg\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"{}\"/>\n{body}</svg>\n",
        palette::hex(palette::background())
    )
}

/// A note in lines as wide as a figure.
fn wrapped(note: &str) -> Vec<String> {
    let most = (WIDTH / LETTER - 4) as usize;
    let mut lines: Vec<String> = Vec::new();
    for word in note.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A number of the first element of `document`.
fn attribute(document: &str, name: &str) -> Option<u32> {
    let head = document.split('>').next()?;
    let (_, rest) = head.split_once(&format!(" {name}=\""))?;
    rest.split('"').next()?.parse().ok()
}

fn drawing(height: u32, draw: impl FnOnce(&Area<'_>) -> Drawn) -> String {
    let mut text = String::new();
    let backend = SVGBackend::with_string(&mut text, (WIDTH * FINE, height * FINE));
    let area = backend.into_drawing_area();
    // Drawing into memory cannot fail; if it did, the picture would be an incomplete one.
    let drawn = draw(&area).and_then(|()| Ok(area.present()?));
    debug_assert!(drawn.is_ok(), "{drawn:?}");
    drop(area);
    text
}

/// Puts the size at which it is shown and, for readers who do not see it, title and note into a document.
fn described(document: &str, figure: &Figure) -> String {
    let end = document.find('>').map_or(0, |at| at + 1);
    let (head, body) = document.split_at(end);
    let (width, height) =
        (attribute(document, "width").unwrap_or(0), attribute(document, "height").unwrap_or(0));
    let view = head.split_once("viewBox=\"").and_then(|(_, rest)| rest.split('"').next()).unwrap_or("");
    let mut text = format!(
        "<svg class=\"figure\" width=\"{}\" height=\"{}\" viewBox=\"{view}\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<title>{}</title>\n",
        width / FINE,
        height / FINE,
        escaped(&figure.title)
    );
    if !figure.note.is_empty() {
        let _ = writeln!(text, "<desc>{}</desc>", escaped(&figure.note));
    }
    text + body.trim_start_matches('\n')
}

/// Text of anybody's choice in XML or HTML, attributes too; XML has no control characters.
pub(crate) fn escaped(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => result.push_str("&amp;"),
            '<' => result.push_str("&lt;"),
            '>' => result.push_str("&gt;"),
            '"' => result.push_str("&quot;"),
            '\'' => result.push_str("&#39;"),
            character if character.is_control() && character != '\n' => result.push('\u{fffd}'),
            character => result.push(character),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::super::tests::samples;
    use super::*;

    #[test]
    fn every_kind_but_a_table_has_a_picture() {
        for figure in samples() {
            let picture = picture(&figure);
            assert_eq!(picture.is_none(), matches!(figure.content, Content::Table(_)), "{}", figure.title);
            let Some(picture) = picture else { continue };
            assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"));
            assert_eq!(picture.matches("<svg").count(), 1);
            assert!(picture.contains(&format!("<title>{}</title>", escaped(&figure.title))));
            assert!(picture.contains(&format!("width=\"{WIDTH}\"")), "{}", &picture[..300]);
        }
    }

    #[test]
    fn a_file_has_all_pictures_and_their_notes() {
        let text = document(&samples());
        assert_eq!(text.matches("<svg ").count(), 1 + samples().len() - 1, "a table is no picture");
        assert!(text.contains(">five runs each</text>"));
        let heights: u32 =
            samples().iter().filter_map(picture).filter_map(|it| attribute(&it, "height")).sum();
        assert!(attribute(&text, "height").unwrap() > heights);
        assert_eq!(wrapped(&"word ".repeat(50)).len(), 3);
        assert!(document(&[]).trim_end().ends_with("</svg>"));
    }

    #[test]
    fn figures_without_values_are_drawn_all_the_same() {
        let empty = [
            r#"{"title":"t","kind":"lines","x":{"unit":"seconds"},"y":{"unit":"bytes"},"panels":[]}"#,
            r#"{"title":"t","kind":"lines","x":{"unit":"seconds"},"y":{"unit":"bytes"},"panels":[{"lines":[{"name":"","runs":[[]]}]}]}"#,
            r#"{"title":"t","kind":"bars","unit":"ratio","groups":[]}"#,
            r#"{"title":"t","kind":"boxes","unit":"bytes","boxes":[{"name":"a","values":[]}]}"#,
            r#"{"title":"t","kind":"squares","legend":[],"rows":[{"title":"","squares":[{"kind":3,"text":""}]}]}"#,
        ];
        for text in empty {
            assert!(picture(&serde_json::from_str(text).unwrap()).is_some(), "{text}");
        }
    }

    #[test]
    fn text_cannot_break_a_picture() {
        assert_eq!(escaped("<b>&\"\u{1}"), "&lt;b&gt;&amp;&quot;\u{fffd}");
    }
}
