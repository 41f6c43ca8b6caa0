//! Descriptors for a command: enough of them, or nothing is begun.
//!
//! What cannot be opened is left out of a look, as what is not there is. With five descriptors left `map`
//! showed memory without what is stranded in it, `release` freed less, `doctor` knew no interpreter, and each
//! had status 0; with fewer, half a line said `Too many open files`. So it is asked before a command begins
//! whether as many can be had as it has open at a time.
//!
//! ```text
//!   command ──▶ needed ──▶ check ──▶ the command
//!                            └─────▶ one line: how many, the limit, who may raise it; status 3
//!   an error of a call that had none after that (a limit lowered meanwhile) ──▶ told: the same line of the limit
//! ```

use crate::cli::Command;
use crate::output::counted;
use std::error::Error;
use std::fmt::{self, Display};
use std::fs::File;
use std::io;

/// Most that a look has open at a time: four of a process whose physical pages are looked at (`pagemap`, and of
/// all pages their flags, counts and groups), its list of mappings, a file of the host, and two to spare. Seen:
/// `map` shows all from five on, `record` from four.
pub(crate) const LOOK: usize = 8;

/// What asking a program which interpreter it is takes: its output, its errors, and two of the standard
/// library's that tell whether it could be started.
const START: usize = 4;

/// Measuring programs: pipes, counters that are a descriptor each, and what the measured programs need, which
/// have the same limit. Valgrind, by which `tlb` computes, is content from 17 on.
const MEASURE: usize = 32;

/// What is printed is written through a descriptor of its own, and a page to a file.
const PRINT: usize = 1;

/// A limit that suits all commands.
const ENOUGH: u64 = 256;

/// How many descriptors a command has at a time, besides those that it was started with.
fn needed(command: &Command) -> usize {
    match command {
        Command::Bench(_) | Command::Stat(_) | Command::Tlb(_) => MEASURE,
        Command::Run(_) => START,
        Command::Completions(_) | Command::Explain(_) | Command::Man(_) => PRINT,
        Command::Collapse(_)
        | Command::Doctor(_)
        | Command::Export(_)
        | Command::Map(_)
        | Command::Pool(_)
        | Command::Ps(_)
        | Command::Record(_)
        | Command::Release(_)
        | Command::Report(_)
        | Command::Status(_)
        | Command::Thp(_)
        | Command::Top(_) => LOOK,
    }
}

/// Whether there are enough for `command`; if not, what to say.
pub(crate) fn check(command: &Command) -> Result<(), String> {
    enough(needed(command)).map_err(|error| format!("nothing was done: {}", short(needed(command), &error)))
}

/// How many of `most` descriptors can be had now.
pub(crate) fn free(most: usize) -> usize {
    taken(most).0
}

/// Whether `number` descriptors can be had now.
pub(crate) fn enough(number: usize) -> io::Result<()> {
    match taken(number) {
        (_, Some(error)) => Err(error),
        (_, None) => Ok(()),
    }
}

/// How many of `most` can be had, and what the next one met.
fn taken(most: usize) -> (usize, Option<io::Error>) {
    let mut held = Vec::with_capacity(most);
    for _ in 0..most {
        // A directory that is always there.
        match File::open("/") {
            Ok(file) => held.push(file),
            Err(error) => return (held.len(), Some(error)),
        }
    }
    (held.len(), None)
}

/// What to say where `number` descriptors cannot be had, because of `error`.
pub(crate) fn short(number: usize, error: &io::Error) -> String {
    let files = counted(number as u64, "file", "files");
    format!("this opens {files} at a time, and fewer can be opened: {}", why(error.raw_os_error()))
}

/// An error as people are told of it: one that there were too few descriptors says no more than that, and is
/// told with the limit and the way out.
///
/// Where an error becomes text it is told so. Recognised later, by what the text says, it was taken for one
/// wherever a name said the same, and was none where the C library speaks another language.
pub(crate) fn told<'a>(error: &'a (dyn Error + 'static)) -> Told<'a> {
    Told { error, lack: number(error).filter(|code| [libc::EMFILE, libc::ENFILE].contains(code)) }
}

/// What [`told`] answers, to be shown.
pub(crate) struct Told<'a> {
    error: &'a (dyn Error + 'static),
    lack: Option<i32>,
}

impl Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lack {
            Some(code) => write!(f, "{}: {}", self.error, why(Some(code))),
            None => Display::fmt(self.error, f),
        }
    }
}

/// The system's number of an error, or of the one that it came of.
fn number(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        let files = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        let calls = || error.downcast_ref::<hugeheap_os::Error>().map(|error| error.code);
        if let Some(code) = files.or_else(calls) {
            return Some(code);
        }
        next = match error.downcast_ref::<io::Error>() {
            // The source of one that wraps another is that one's source.
            Some(wrapping) => wrapping.get_ref().map(|inner| inner as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    None
}

/// Why there are too few, and what to do.
fn why(code: Option<i32>) -> String {
    match code {
        Some(libc::EMFILE) => of_limits(limits()),
        Some(libc::ENFILE) => {
            "all that this host has are taken (cat /proc/sys/fs/file-nr); raise fs.file-max, or end what holds them".to_owned()
        }
        code => code.map_or_else(|| "it is refused".to_owned(), |code| io::Error::from_raw_os_error(code).to_string()),
    }
}

/// The limit on open files, and up to which this process may raise it itself.
fn limits() -> (u64, u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is ours to be filled. It fails for a resource that is not known, and then says 0.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    (limit.rlim_cur, limit.rlim_max)
}

fn of_limits((soft, hard): (u64, u64)) -> String {
    let raise = if hard >= ENOUGH {
        format!("raise it (ulimit -n {ENOUGH}")
    } else {
        format!("and only root may raise it (prlimit --nofile={ENOUGH} --pid $$")
    };
    let of = if hard >= ENOUGH { "; " } else { ", " };
    format!("the limit on open files is {soft} (ulimit -n){of}{raise}; LimitNOFILE= of a service)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_told_with_who_may_raise_it() {
        let own = of_limits((4, 1 << 20));
        assert_eq!(
            own,
            "the limit on open files is 4 (ulimit -n); raise it (ulimit -n 256; LimitNOFILE= of a service)"
        );
        let roots = of_limits((4, 4));
        assert!(roots.contains("only root may raise it (prlimit --nofile=256 --pid $$"), "{roots}");
    }

    #[test]
    fn an_error_that_says_no_more_than_too_many_open_files_is_explained() {
        let bare = hugeheap_os::Error::new("read(/proc/PID/maps)", libc::EMFILE);
        let said = told(&bare).to_string();
        assert!(said.starts_with(&bare.to_string()) && said.contains("(ulimit -n)"), "{said}");
        let hosts = told(&io::Error::from_raw_os_error(libc::ENFILE)).to_string();
        assert!(hosts.contains("fs.file-max") && !hosts.contains("ulimit"), "{hosts}");
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(told(&full).to_string(), full.to_string());
    }

    #[test]
    fn a_lack_is_recognised_by_its_number_through_what_wraps_it_and_not_by_what_a_text_says() {
        let bare = io::Error::from_raw_os_error(libc::EMFILE);
        let says_so = io::Error::other(format!("no file called '{bare}'"));
        assert_eq!(told(&says_so).to_string(), says_so.to_string());
        let wrapped = io::Error::other(io::Error::other(hugeheap_os::Error::new("open(2)", libc::EMFILE)));
        assert!(told(&wrapped).to_string().contains("(ulimit -n)"));
    }

    #[test]
    fn what_can_be_had_is_counted_and_given_back() {
        for _ in 0..3 {
            assert_eq!(free(3), 3);
        }
        assert!(enough(3).is_ok());
    }
}
