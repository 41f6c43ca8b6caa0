//! What is said, and how: messages on standard error, units, colour.
//!
//! Nothing here panics when the reader is gone: a closed pipe silences a message, and `run` must still pass its
//! command's status on.

use crate::descriptors::told;
use crate::exit;
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

/// Where messages go and how many of them.
#[derive(Clone, Debug)]
pub struct Output {
    quiet: bool,
    verbose: bool,
    colour: bool,
    /// The same of standard output.
    colour_on_stdout: bool,
    /// Whether standard error is a terminal: progress rewrites its line only there.
    terminal: bool,
    /// Data goes nowhere: it is written to files.
    mute: bool,
    /// Why data could not be written, the first time. Of all copies.
    lost: Arc<OnceLock<io::Error>>,
}

impl Output {
    /// What is said, as the options and the terminals are.
    pub fn new(quiet: bool, verbose: bool, no_color: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        // https://no-color.org: set and not empty.
        let refused = no_color
            || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colour_on_stdout = std::io::stdout().is_terminal() && !refused;
        Self {
            quiet,
            verbose,
            colour: terminal && !refused,
            colour_on_stdout,
            terminal,
            mute: false,
            lost: Arc::default(),
        }
    }

    /// The same, but data goes nowhere: for a command that another runs for the files it writes.
    pub(crate) fn without_data(&self) -> Self {
        Self { mute: true, ..self.clone() }
    }

    /// Whether data on standard output may have colours.
    pub fn colour_on_stdout(&self) -> bool {
        self.colour_on_stdout
    }

    /// Something that ended the command.
    pub fn error(&self, text: &str) {
        self.line("31;1", "error", text);
    }

    /// Something the user should know; the command goes on.
    pub fn warning(&self, text: &str) {
        if !self.quiet {
            self.line("33;1", "warning", text);
        }
    }

    /// What is being done, for those who asked.
    pub fn detail(&self, text: &str) {
        if self.verbose {
            self.line("2", "note", text);
        }
    }

    /// Where a long command is. Rewrites its line on a terminal, else prints only what `lasting` marks.
    pub fn progress(&self, text: &str, lasting: bool) {
        if self.quiet {
            return;
        }
        let mut stderr = std::io::stderr().lock();
        let _ = match (self.terminal, lasting) {
            (true, true) => writeln!(stderr, "\r\x1b[2K{text}"),
            (true, false) => write!(stderr, "\r\x1b[2K{text}"),
            (false, true) => writeln!(stderr, "{text}"),
            (false, false) => Ok(()),
        };
        let _ = stderr.flush();
    }

    /// Takes the line of progress away.
    pub fn progress_end(&self) {
        if self.terminal && !self.quiet {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[2K");
        }
    }

    /// Text on standard error as it is: a summary.
    pub fn plain(&self, text: &str) {
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }

    /// Data on standard output. `false` when the reader is gone, or there is no room: stop producing. What was
    /// lost is told by [`finish`](Self::finish), so that no command has to ask.
    pub fn data(&self, text: &str) -> bool {
        self.mute || self.written(write(text))
    }

    fn written(&self, written: io::Result<()>) -> bool {
        match written {
            Ok(()) => true,
            // A reader that has enough (head) is no failure.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => false,
            Err(error) => {
                let _ = self.lost.set(error);
                false
            }
        }
    }

    /// The exit code of a command that ended with `code`: data that could not be written is told, and no success.
    pub fn finish(&self, code: u8) -> u8 {
        let Some(error) = self.lost.get() else { return code };
        self.error(&format!(
            "standard output could not be written: {error}; what there is of it is not all",
            error = told(error)
        ));
        if code == exit::OK { exit::UNSUPPORTED } else { code }
    }

    fn line(&self, colour: &str, kind: &str, text: &str) {
        let text = &printable(text);
        let mut stderr = std::io::stderr().lock();
        let _ = if self.colour {
            writeln!(stderr, "\x1b[{colour}mhugeheap: {kind}:\x1b[0m {text}")
        } else {
            writeln!(stderr, "hugeheap: {kind}: {text}")
        };
    }
}

/// Writes to standard output, past the standard library's: that takes one that is open only for reading for a success.
fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.flush()?;
    File::from(stdout.as_fd().try_clone_to_owned()?).write_all(text.as_bytes())
}

/// Text that others chose (the name of a process, a path, a control group), as it may be shown to people: a
/// control character is a `?`.
///
/// A process names itself (`PR_SET_NAME`) and files are called what their owners like, so a terminal would do
/// what the name says: clear the screen, change its title, hide a line. [`json`] escapes them.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    visible(text, |_| false)
}

/// A document, in lines. JSON asks for those control characters to be escaped that ASCII begins with; a
/// terminal knows those behind it as well, U+009B for `ESC [`.
pub(crate) fn json(document: &impl core::fmt::Display) -> String {
    escape(format!("{document:#}\n"))
}

/// A document as a line of its own.
pub(crate) fn json_line(document: &impl core::fmt::Display) -> String {
    escape(format!("{document}\n"))
}

fn escape(text: String) -> String {
    let escaped = |character: char| matches!(character, '\u{7f}'..='\u{9f}');
    if !text.contains(escaped) {
        return text;
    }
    // They stand in strings only.
    let each = |character: char| {
        if escaped(character) { format!("\\u{:04x}", u32::from(character)) } else { character.to_string() }
    };
    text.chars().map(each).collect()
}

/// The same of text in lines.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    visible(text, |character| matches!(character, '\n' | '\t'))
}

fn visible(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let replaced = |character: char| character.is_control() && !stays(character);
    if text.contains(replaced) { text.replace(replaced, "?").into() } else { text.into() }
}

/// Bytes for people: three digits that matter and a binary unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A time span for people.
pub fn seconds(value: f64) -> String {
    if value < 0.001 {
        format!("{:.0} µs", value * 1e6)
    } else if value < 1.0 {
        format!("{:.0} ms", value * 1e3)
    } else if value < 100.0 {
        format!("{value:.1} s")
    } else {
        format!("{:.0} min {:02.0} s", (value / 60.0).floor(), value % 60.0)
    }
}

/// A count with its noun: `1 arena`, `2 arenas`, `1,024 arenas`.
pub fn counted(count: u64, singular: &str, plural: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { singular } else { plural })
}

/// A count with separators between thousands.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A change as a signed percentage with a real minus sign: `−52.1 %`.
pub(crate) fn change(ratio: f64) -> String {
    percent(ratio - 1.0)
}

/// A signed share in percent.
pub(crate) fn percent(share: f64) -> String {
    let text = format!("{:.1}", share * 100.0);
    match text.strip_prefix('-') {
        Some("0.0") => "±0.0 %".to_owned(),
        Some(positive) => format!("−{positive} %"),
        None if text == "0.0" => "±0.0 %".to_owned(),
        None => format!("+{text} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits_that_matter() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(124 << 20), "124 MiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
    }

    #[test]
    fn data_that_could_not_be_written_is_no_success_unless_the_reader_has_enough() {
        let lost = |code: i32| {
            let out = Output::new(true, false, true);
            assert!(!out.written(Err(io::Error::from_raw_os_error(code))));
            assert!(out.written(Ok(())));
            (out.without_data().finish(exit::OK), out.finish(exit::USAGE))
        };
        assert_eq!(lost(libc::EPIPE), (exit::OK, exit::USAGE));
        for code in [libc::ENOSPC, libc::EIO, libc::EBADF] {
            assert_eq!(lost(code), (exit::UNSUPPORTED, exit::USAGE));
        }
    }

    #[test]
    fn names_do_nothing_to_the_terminal() {
        assert_eq!(shown("a\x1b[2Jb\x7f\u{9b}31m\n\t\0"), "a?[2Jb??31m???");
        assert_eq!(shown("größe \u{fffd}"), "größe \u{fffd}");
        let document = serde_json::json!({"name": "a\u{9b}31m\x7f\x1b[2J"});
        assert_eq!(json(&document), "{\n  \"name\": \"a\\u009b31m\\u007f\\u001b[2J\"\n}\n");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json(&document)).unwrap(), document);
        assert_eq!(printable("first\n  second\x1b]0;x\x07"), "first\n  second?]0;x?");
    }

    #[test]
    fn counts_are_grouped_and_have_a_noun() {
        assert_eq!(counted(1, "arena", "arenas"), "1 arena");
        assert_eq!(counted(1_234_567, "arena", "arenas"), "1,234,567 arenas");
        assert_eq!(grouped(100), "100");
        assert_eq!(grouped(1000), "1,000");
    }

    #[test]
    fn changes_have_a_sign() {
        assert_eq!(change(0.479), "−52.1 %");
        assert_eq!(change(1.0), "±0.0 %");
        assert_eq!(change(0.9999), "±0.0 %");
        assert_eq!(change(1.03), "+3.0 %");
    }

    #[test]
    fn time_spans_have_a_fitting_unit() {
        assert_eq!(seconds(0.0005), "500 µs");
        assert_eq!(seconds(0.25), "250 ms");
        assert_eq!(seconds(12.34), "12.3 s");
        assert_eq!(seconds(185.0), "3 min 05 s");
    }
}
