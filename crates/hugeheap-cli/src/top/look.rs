//! How the screen looks: colours, or none; and characters that every terminal has.

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

/// Styles, with colours or without.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) colours: bool,
    /// Only ASCII characters.
    pub(crate) ascii: bool,
}

impl Look {
    fn coloured(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    /// What is as it should be.
    pub(crate) fn good(self) -> Style {
        self.coloured(Color::Green)
    }

    /// What is not as it could be.
    pub(crate) fn notable(self) -> Style {
        self.coloured(Color::Yellow)
    }

    /// What costs memory, or went wrong.
    pub(crate) fn bad(self) -> Style {
        self.coloured(Color::Red)
    }

    pub(crate) fn cold(self) -> Style {
        self.coloured(Color::Blue)
    }

    pub(crate) fn accent(self) -> Style {
        self.coloured(Color::Cyan)
    }

    /// Less important than the rest.
    pub(crate) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(crate) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn head(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(crate) fn selected(self) -> Style {
        if self.colours {
            Style::new().bg(Color::Blue).fg(Color::White).add_modifier(Modifier::BOLD)
        } else {
            Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD)
        }
    }

    /// Replaces what a terminal without Unicode cannot show, where that is wanted.
    pub(crate) fn adapt(self, buffer: &mut Buffer) {
        if !self.ascii {
            return;
        }
        for cell in &mut buffer.content {
            if !cell.symbol().is_ascii() {
                let character = cell.symbol().chars().next().map_or(' ', plain);
                cell.set_char(character);
            }
        }
    }

    /// The same of a text.
    pub(crate) fn text(self, text: String) -> String {
        if self.ascii { text.chars().map(plain).collect() } else { text }
    }
}

/// An ASCII character for one of those that are used here; a question mark for any other.
const fn plain(character: char) -> char {
    match character {
        character if character.is_ascii() => character,
        '█' => '#',
        '▇' => '%',
        '▆' => '*',
        '▅' => '+',
        '▄' => '=',
        '▃' => '-',
        '▂' => ':',
        '▁' => '.',
        '▒' => 'o',
        '░' => '.',
        '·' => '_',
        '–' | '─' | '−' => '-',
        '│' => '|',
        '┌' | '┐' | '└' | '┘' => '+',
        '▼' | '↓' => 'v',
        '▲' | '↑' => '^',
        '←' => '<',
        '→' => '>',
        '≤' => '<',
        '×' => 'x',
        '…' => '~',
        'µ' => 'u',
        _ => '?',
    }
}

/// Whether the locale's characters are Unicode: the first of these that is set decides, as in setlocale(3).
/// None means ASCII.
pub(crate) fn is_unicode(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable).find(|value| !value.is_empty());
    let name = set.unwrap_or_default().to_lowercase();
    name.contains("utf-8") || name.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::text::character;
    use crate::map::view::State;

    #[test]
    fn the_first_variable_that_is_set_decides() {
        let locale = |all: &'static str, lang: &'static str| {
            is_unicode(move |name| match name {
                "LC_ALL" => Some(all.to_owned()),
                "LANG" => Some(lang.to_owned()),
                _ => None,
            })
        };
        assert!(locale("", "en_US.UTF-8") && locale("C.utf8", "C"));
        assert!(!locale("C", "en_US.UTF-8") && !locale("", "") && !is_unicode(|_| None));
    }

    #[test]
    fn the_states_of_a_map_can_be_told_apart_in_ascii() {
        let mut all: Vec<char> = State::ALL.into_iter().map(|state| plain(character(state))).collect();
        assert!(all.iter().all(char::is_ascii));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), State::ALL.len());
        let bars: Vec<char> = "▁▂▃▄▅▆▇█".chars().map(plain).collect();
        assert!(bars.iter().all(|bar| bar.is_ascii() && *bar != '?'), "{bars:?}");
    }

    #[test]
    fn without_colours_there_are_none() {
        let look = Look { colours: false, ascii: false };
        for style in [
            look.good(),
            look.bad(),
            look.notable(),
            look.cold(),
            look.accent(),
            look.selected(),
            look.head(),
        ] {
            assert_eq!((style.fg, style.bg), (None, None));
        }
    }
}
