//! The log: `HUGEHEAP_LOG=gc-minor,gc-major,arena:FILE`.
//!
//! ```text
//!   12.345678901 gc-minor heap=0 seconds=0.000029000 nursery=4194304 survivors=1 …
//!   │            │        └ number of the heap
//!   │            └ section
//!   └ seconds of the system's clock
//! ```
//!
//! The variable is for all heaps of a process; [`Heap::set_log`] gives one a log of its own, or none.
//!
//! A line is one write to a file that is appended to, so lines of several threads and processes do not mix. `-` is stderr.

use super::events::Event;
use super::heap::Heap;
use crate::object::Source;
use core::fmt::{self, Write as _};
use core::time::Duration;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::{Arc, OnceLock};

/// Section of minor collections.
pub(crate) const MINOR: u8 = 1;
/// Section of steps and ends of major collections, and of evacuations.
pub(crate) const MAJOR: u8 = 2;
/// Section of arenas.
pub(crate) const ARENA: u8 = 4;

const SECTIONS: [(&str, u8); 3] = [("gc-minor", MINOR), ("gc-major", MAJOR), ("arena", ARENA)];

/// The variable.
pub const LOG_VARIABLE: &str = "HUGEHEAP_LOG";

/// Why a text says no log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadLog {
    /// It names no file.
    NoFile,
    /// There is no such section.
    Section(String),
    /// The file cannot be written, and why.
    Open(String, String),
}

impl fmt::Display for BadLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile => {
                f.write_str("no file is named: write gc-minor,gc-major,arena:FILE, with - for stderr")
            }
            Self::Section(name) => {
                write!(f, "there is no section {name:?}: there are gc-minor, gc-major and arena")
            }
            Self::Open(file, why) => write!(f, "{file} cannot be written: {why}"),
        }
    }
}

impl std::error::Error for BadLog {}

/// Where lines go, and which.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) sections: u8,
    /// `None`: stderr.
    file: Option<File>,
}

/// Sections and file of a value. Pure.
fn parse(value: &str) -> Result<(u8, &str), BadLog> {
    let (names, file) = value.split_once(':').filter(|(_, file)| !file.is_empty()).ok_or(BadLog::NoFile)?;
    let mut sections = 0;
    for name in names.split(',') {
        let known = SECTIONS.iter().find(|(known, _)| *known == name);
        sections |= known.ok_or_else(|| BadLog::Section(name.to_owned()))?.1;
    }
    Ok((sections, file))
}

fn open(value: &str) -> Result<Log, BadLog> {
    let (sections, name) = parse(value)?;
    if name == "-" {
        return Ok(Log { sections, file: None });
    }
    let file = OpenOptions::new().append(true).create(true).open(name);
    let file = file.map_err(|error| BadLog::Open(name.to_owned(), error.to_string()))?;
    Ok(Log { sections, file: Some(file) })
}

/// The log of this process, if one is asked for. Read once; a value that is wrong is told once.
pub(crate) fn log() -> Option<Arc<Log>> {
    static LOG: OnceLock<Option<Arc<Log>>> = OnceLock::new();
    let log = LOG.get_or_init(|| {
        let value = std::env::var_os(LOG_VARIABLE).filter(|value| !value.is_empty())?;
        match open(&value.to_string_lossy()) {
            Ok(log) => Some(Arc::new(log)),
            Err(bad) => {
                tell(&bad);
                None
            }
        }
    });
    log.clone()
}

fn tell(bad: &BadLog) {
    crate::complain::line(format_args!("{LOG_VARIABLE}: {bad}; nothing is logged"));
}

/// Tells what is wrong with a value in a process that may have no heap to log. The file is not opened: without a heap none is made.
pub(crate) fn tell_wrong(value: &str) {
    if !value.is_empty() {
        if let Err(bad) = parse(value) {
            tell(&bad);
        }
    }
}

impl<S: Source> Heap<S> {
    /// Gives this heap a log of its own, in the form of the [variable](LOG_VARIABLE): `gc-minor,gc-major,arena:FILE`, with `-` for stderr. `None`:
    /// nothing is logged of this heap.
    ///
    /// # Errors
    /// When the text is none, or the file cannot be written; the log is the one before then.
    pub fn set_log(&mut self, log: Option<&str>) -> Result<(), BadLog> {
        self.listeners.log = log.map(open).transpose()?.map(Arc::new);
        self.watch();
        Ok(())
    }
}

impl Log {
    pub(crate) fn write(&self, now: Duration, section: u8, heap: u32, event: &Event) {
        let name = SECTIONS.iter().find(|(_, known)| *known == section).map_or("", |(name, _)| name);
        let mut line = String::new();
        let (seconds, rest) = (now.as_secs(), now.subsec_nanos());
        let _ = writeln!(line, "{seconds}.{rest:09} {name} heap={heap} {event}");
        // What cannot be written is lost: a collection does not fail because a disk is full.
        let _ = match self.file.as_ref() {
            Some(mut file) => file.write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_apart_and_wrong_ones_are_told() {
        assert_eq!(parse("gc-minor:x"), Ok((MINOR, "x")));
        assert_eq!(parse("gc-minor,arena,gc-major:/a:b"), Ok((MINOR | MAJOR | ARENA, "/a:b")));
        assert_eq!(parse("gc-minor"), Err(BadLog::NoFile));
        assert_eq!(parse("gc-minor:"), Err(BadLog::NoFile));
        assert_eq!(parse("gc-minr:x"), Err(BadLog::Section("gc-minr".to_owned())));
        assert_eq!(parse(":x"), Err(BadLog::Section(String::new())));
        let missing = open("arena:/nowhere/at/all").expect_err("no such directory").to_string();
        assert!(missing.starts_with("/nowhere/at/all cannot be written: "), "{missing}");
    }
}
