//! A run under valgrind's cache model (cachegrind), with the lines of a cache as large as a page.

use super::geometry::{Level, Levels};
use crate::bench::interrupt;
use crate::descriptors::told;
use crate::watch::children;
use std::ffi::OsString;
use std::io;
use std::ops::AddAssign;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What was computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Reads and writes of data.
    pub(crate) accesses: u64,
    /// Of those, in no entry of the first level.
    pub(crate) first: u64,
    /// In none of the second level either: a page walk.
    pub(crate) second: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.accesses += other.accesses;
        self.first += other.first;
        self.second += other.second;
    }
}

/// A run: its counts, and how the command ended.
pub(crate) struct Computed {
    pub(crate) counts: Counts,
    pub(crate) status: ExitStatus,
}

/// How long what a command left may take to end by the signal that ended the command, and between two looks at
/// it or at the command.
const GRACE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);

/// Statuses with which valgrind says that it could not start the command.
const NOT_STARTED: [Option<i32>; 2] = [Some(126), Some(127)];

/// Which processes run under valgrind, and which of them are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follow {
    /// The command, as long as it is the program that was named. What it forks runs there, too, and is not counted.
    Alone,
    /// The command, whatever program it executes in its place. What it starts is slow, too, and is not counted.
    Execution,
    /// All.
    Children,
}

/// Runs `command`. Its standard output goes to standard error (`shown`) or nowhere. `None`: it was not counted,
/// because it executed another program in its place, and that was not followed.
///
/// # Errors
/// What the kernel says when valgrind cannot be started; one line when it computed nothing.
pub(crate) fn compute(
    levels: Levels,
    page: u64,
    follow: Follow,
    command: &[OsString],
    shown: bool,
) -> Result<Option<Computed>, io::Error> {
    // Not the kernel's "not found", which is what is said of valgrind.
    let directory = tempfile::tempdir().map_err(|error| {
        io::Error::other(format!("no temporary directory: {error} (set TMPDIR)", error = told(&error)))
    })?;
    let mut valgrind = Command::new("valgrind");
    let size = |Level { entries, ways }: Level| format!("{},{ways},{page}", u64::from(entries) * page);
    valgrind
        .args(["-q", "--tool=cachegrind", "--cache-sim=yes"])
        .arg(format!("--trace-children={}", if follow == Follow::Alone { "no" } else { "yes" }))
        // Code shares the second level with data; its first level has the geometry of data's, and its misses
        // are not told.
        .args([format!("--I1={}", size(levels[0])), format!("--D1={}", size(levels[0]))])
        .arg(format!("--LL={}", size(levels[1])))
        .arg(format!("--cachegrind-out-file={}/%p", directory.path().display()))
        .arg(format!("--log-file={}/log.%p", directory.path().display()))
        .args(command)
        .stdin(Stdio::null());
    if shown {
        valgrind.stdout(Stdio::from(io::stderr()));
    } else {
        valgrind.stdout(Stdio::null()).stderr(Stdio::null());
    }
    interrupt::end_with_this(&mut valgrind);
    let before = children(std::process::id());
    let mut process = valgrind.spawn()?;
    // The launcher executes the tool, and that loads the command: it stays the same process.
    let own = process.id().to_string();
    let status = wait(&mut process)?;
    if let Some(signal) = interrupt::noted() {
        end_what_is_left(signal, &before);
        return Err(io::ErrorKind::Interrupted.into());
    }
    let mut counts = None;
    for entry in std::fs::read_dir(directory.path())?.flatten() {
        if follow != Follow::Children && entry.file_name() != own.as_str() {
            continue;
        }
        let text = read(&entry.path());
        if let Some(found) = text.as_deref().and_then(summary) {
            *counts.get_or_insert_with(Counts::default) += found;
        }
    }
    match (counts, status.signal()) {
        (Some(counts), _) => Ok(Some(Computed { counts, status })),
        (None, Some(signal)) => Err(io::Error::other(format!(
            "the command was killed by signal {signal} before anything was computed"
        ))),
        (None, None) if follow == Follow::Alone && !NOT_STARTED.contains(&status.code()) => Ok(None),
        (None, None) => {
            Err(io::Error::other(format!("nothing was computed, {status}: {}", said(directory.path()))))
        }
    }
}

/// Waits for the end of valgrind, which a signal ends, too: alone it would go on for minutes, and its directory
/// would stay. Valgrind keeps a signal until its next look, and forgets those it keeps when the command
/// executes another program: the signal is given again to what came in its place.
fn wait(process: &mut Child) -> io::Result<ExitStatus> {
    let own = process.id();
    let passed = interrupt::Measured::program(own as libc::pid_t);
    let mut before = image(own);
    while !has_ended(own)? {
        std::thread::sleep(LOOK);
        let now = image(own);
        if let Some(signal) = interrupt::noted().filter(|_| now != before) {
            // SAFETY: our child, not waited for.
            unsafe { libc::kill(own as libc::pid_t, signal) };
        }
        before = now;
    }
    drop(passed);
    process.wait()
}

/// Whether a child has ended; it is not waited for by this.
fn has_ended(child: u32) -> io::Result<bool> {
    // SAFETY: all zero is a valid value of this plain struct, which the call fills; `si_pid` stays 0 as long as
    // the child runs.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        match libc::waitid(libc::P_PID, child, &mut info, libc::WEXITED | libc::WNOWAIT | libc::WNOHANG) {
            0 => Ok(info.si_pid() != 0),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// What tells one program in a process from the next: the vector the kernel gave it at its start has addresses
/// of its stack and its code.
fn image(process: u32) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{process}/auxv")).ok()
}

/// Ends what the command started and left to this process ([`adopt_orphans`](crate::watch::adopt_orphans)):
/// with the signal that came, and with `SIGKILL` what is there a while later. Children of this process alone,
/// whose numbers cannot have become another's; theirs become its own when they end. `before`: who is none of
/// them.
fn end_what_is_left(signal: i32, before: &[u32]) {
    let begin = Instant::now();
    let mut told = Vec::new();
    loop {
        let is_left = |id: &u32| {
            // SAFETY: a child of ours; nobody wants to know how it ended.
            !before.contains(id)
                && unsafe { libc::waitpid(*id as libc::pid_t, std::ptr::null_mut(), libc::WNOHANG) == 0 }
        };
        let left: Vec<u32> = children(std::process::id()).into_iter().filter(is_left).collect();
        let passed = begin.elapsed();
        if left.is_empty() || passed > 2 * GRACE {
            return;
        }
        for id in left {
            let by = if passed > GRACE { libc::SIGKILL } else { signal };
            if by == libc::SIGKILL || !told.contains(&id) {
                told.push(id);
                // SAFETY: a child that was not waited for.
                unsafe { libc::kill(id as libc::pid_t, by) };
            }
        }
        std::thread::sleep(LOOK);
    }
}

/// The text of a file in which the command's own words are, that may be any bytes.
fn read(path: &Path) -> Option<String> {
    std::fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The last thing valgrind wrote to its log.
fn said(directory: &Path) -> String {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let logs = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("log."));
    let text: Vec<_> = logs.filter_map(|entry| read(&entry.path())).collect();
    let mut lines = text.iter().flat_map(|text| text.lines()).rev();
    // That the model is of an unusual size is meant.
    let last = lines.find(|line| !line.trim().is_empty() && !line.contains("warning: simulated"));
    last.unwrap_or("valgrind says nothing about it").trim().to_owned()
}

/// The sums of an output file: `events: Ir …` and `summary: 12 …` have the same order.
fn summary(text: &str) -> Option<Counts> {
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let (events, sums) = (line("events:")?, line("summary:")?);
    let value = |event: &str| {
        let place = events.split_whitespace().position(|one| one == event)?;
        sums.split_whitespace().nth(place)?.parse::<u64>().ok()
    };
    let both = |read: &str, write: &str| Some(value(read)? + value(write)?);
    Some(Counts { accesses: both("Dr", "Dw")?, first: both("D1mr", "D1mw")?, second: both("DLmr", "DLmw")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_found_by_name() {
        let text = "desc: x\nevents: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw\nfn=a\n1 2\nsummary: 9 1 1 100 20 3 50 10 2\n";
        assert_eq!(summary(text), Some(Counts { accesses: 150, first: 30, second: 5 }));
        assert_eq!(summary("events: Ir\nsummary: 9\n"), None);
        assert_eq!(summary(""), None);
    }
}
