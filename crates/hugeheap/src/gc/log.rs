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
//! A line is one write to a file that is appended to, so lines of several threads and processes do not mix. `-`
//! is stderr.
//!
//! No line needs memory, and a log that there is no memory for is refused: a collection, or the process's first
//! heap, must not end the process.

use super::events::Event;
use super::heap::Heap;
use crate::complain::Line;
use crate::object::Source;
use crate::runtime::variable;
use core::ffi::{CStr, c_char};
use core::fmt::{self, Write as _};
use core::time::Duration;
use std::borrow::Cow;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::FromRawFd;
use std::sync::OnceLock;

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
    /// There is no memory for it, or to say what is wrong with it.
    NoMemory,
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
            Self::NoMemory => f.write_str("there is no memory to open it: free some, and set it again"),
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

/// The log of a heap.
#[derive(Debug)]
pub(crate) enum LogOf {
    /// That of the process.
    Process(&'static Log),
    Heap(Log),
}

impl core::ops::Deref for LogOf {
    type Target = Log;

    fn deref(&self) -> &Log {
        match self {
            Self::Process(log) => log,
            Self::Heap(log) => log,
        }
    }
}

/// A copy, if there is memory for it.
fn copied(text: &str) -> Result<String, BadLog> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len()).map_err(|_| BadLog::NoMemory)?;
    copy.push_str(text);
    Ok(copy)
}

/// A value as text: as `to_string_lossy`, which ends the process where there is no memory.
fn text_of(value: &CStr) -> Result<Cow<'_, str>, BadLog> {
    if let Ok(text) = value.to_str() {
        return Ok(Cow::Borrowed(text));
    }
    let mut text = String::new();
    // The sign for what is no text has three bytes.
    text.try_reserve_exact(3 * value.count_bytes()).map_err(|_| BadLog::NoMemory)?;
    for chunk in value.to_bytes().utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    Ok(Cow::Owned(text))
}

/// Sections and file of a value. Pure.
fn parse(value: &str) -> Result<(u8, &str), BadLog> {
    let (names, file) = value.split_once(':').filter(|(_, file)| !file.is_empty()).ok_or(BadLog::NoFile)?;
    let mut sections = 0;
    for name in names.split(',') {
        match SECTIONS.iter().find(|(known, _)| *known == name) {
            Some((_, section)) => sections |= section,
            None => return Err(BadLog::Section(copied(name)?)),
        }
    }
    Ok((sections, file))
}

fn open(value: &str) -> Result<Log, BadLog> {
    let (sections, name) = parse(value)?;
    let file = if name == "-" { None } else { Some(open_file(name)?) };
    Ok(Log { sections, file })
}

/// A file that is appended to. Not by the standard library, which ends the process where there is no memory for
/// a long name.
fn open_file(name: &str) -> Result<File, BadLog> {
    let mut path = Vec::new();
    path.try_reserve_exact(name.len() + 1).map_err(|_| BadLog::NoMemory)?;
    path.extend_from_slice(name.as_bytes());
    path.push(0);
    let Ok(path) = CStr::from_bytes_with_nul(&path) else { return Err(cannot_open(name, libc::EINVAL)) };
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    loop {
        // SAFETY: a string; the file is nobody's until it is handed on.
        let opened = unsafe { libc::open(path.as_ptr(), flags, 0o666) };
        if opened >= 0 {
            // SAFETY: just opened.
            return Ok(unsafe { File::from_raw_fd(opened) });
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            error => return Err(cannot_open(name, error.unwrap_or(libc::EIO))),
        }
    }
}

/// Why a file cannot be written. Not as the standard library tells an error, which ends the process where there
/// is no memory.
fn cannot_open(name: &str, error: i32) -> BadLog {
    let mut why: [c_char; 128] = [0; 128];
    // SAFETY: the buffer has as many bytes. Zero stays at its end, whatever is written.
    unsafe { libc::strerror_r(error, why.as_mut_ptr(), why.len() - 1) };
    // SAFETY: as above.
    let why = unsafe { CStr::from_ptr(why.as_ptr()) }.to_str().unwrap_or("error");
    let mut told = Line::default();
    let _ = write!(told, "{why} (os error {error})");
    match (copied(name), copied(told.text())) {
        (Ok(name), Ok(why)) => BadLog::Open(name, why),
        _ => BadLog::NoMemory,
    }
}

/// The log of this process, if one is asked for. Read once; a value that is wrong is told once.
pub(crate) fn log() -> Option<LogOf> {
    static LOG: OnceLock<Option<Log>> = OnceLock::new();
    let log = LOG.get_or_init(|| {
        let value = variable(c"HUGEHEAP_LOG").filter(|value| !value.is_empty())?;
        text_of(value).and_then(|text| open(&text)).inspect_err(tell).ok()
    });
    log.as_ref().map(LogOf::Process)
}

fn tell(bad: &BadLog) {
    crate::complain::line(format_args!("{LOG_VARIABLE}: {bad}; nothing is logged"));
}

/// Tells what is wrong with a value in a process that may have no heap to log. The file is not opened: without
/// a heap none is made.
pub(crate) fn tell_wrong(value: &CStr) {
    if !value.is_empty() {
        let parsed = text_of(value).and_then(|text| parse(&text).map(|_| ()));
        let _ = parsed.inspect_err(tell);
    }
}

impl<S: Source> Heap<S> {
    /// Gives this heap a log of its own, in the form of the [variable](LOG_VARIABLE):
    /// `gc-minor,gc-major,arena:FILE`, with `-` for stderr. `None`: nothing is logged of this heap.
    ///
    /// # Errors
    /// When the text is none, or the file cannot be written; the log is the one before then.
    pub fn set_log(&mut self, log: Option<&str>) -> Result<(), BadLog> {
        self.listeners.log = log.map(open).transpose()?.map(LogOf::Heap);
        self.watch();
        Ok(())
    }

    /// The same for a text of C's. What of it is no UTF-8 is taken for U+FFFD.
    ///
    /// # Errors
    /// As for [`set_log`](Self::set_log).
    pub fn set_log_of_c(&mut self, log: Option<&CStr>) -> Result<(), BadLog> {
        self.set_log(log.map(text_of).transpose()?.as_deref())
    }
}

impl Log {
    pub(crate) fn write(&self, now: Duration, section: u8, heap: u32, event: &Event) {
        let line = line_of(now, section, heap, event);
        // What cannot be written is lost: a collection does not fail because a disk is full.
        match self.file.as_ref() {
            Some(mut file) => _ = file.write_all(line.ended()),
            None => hugeheap_os::linux::write_to_stderr(line.ended()),
        }
    }
}

fn line_of(now: Duration, section: u8, heap: u32, event: &Event) -> Line {
    let name = SECTIONS.iter().find(|(_, known)| *known == section).map_or("", |(name, _)| name);
    let (seconds, rest) = (now.as_secs(), now.subsec_nanos());
    let mut line = Line::default();
    let _ = write!(line, "{seconds}.{rest:09} {name} heap={heap} {event}");
    line
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
        let longest = Event::Minor {
            took: Duration::MAX,
            nursery: usize::MAX,
            survivors: u64::MAX,
            survived: usize::MAX,
            staying: usize::MAX,
            not_moved: u64::MAX,
            old: usize::MAX,
            held: usize::MAX,
        };
        let line = line_of(Duration::MAX, MINOR, u32::MAX, &longest);
        assert!(line.text().ends_with(&format!(" held={}", usize::MAX)), "cut: {}", line.text());
        let missing = open("arena:/nowhere/at/all").expect_err("no such directory").to_string();
        assert_eq!(missing, "/nowhere/at/all cannot be written: No such file or directory (os error 2)");
        assert_eq!(text_of(c"arena:/tmp/\xFFx\xF0\x9F").as_deref(), Ok("arena:/tmp/\u{FFFD}x\u{FFFD}"));
        assert_eq!(text_of(c"arena:/tmp/\u{e4}").as_deref(), Ok("arena:/tmp/\u{e4}"));
    }
}
