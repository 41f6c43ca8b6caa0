//! One run of a command: started, watched, waited for.
//!
//! ```text
//!   spawn ──────────────── wait4 ──▶ wall, user, system, faults, peak RSS: the kernel's own, exact
//!     └── looks, 50 a second ──────▶ page tables, coverage, stranded: what was seen at them
//! ```
//!
//! What the command prints is not kept: a pipe that nobody reads would stop it, a file could fill the disk. Of
//! what it says on standard error the end is kept, for the case that it fails. A process that it leaves behind
//! may hold that pipe open: its end is not waited for.

use crate::bench::charge::Group;
use crate::bench::counters::{Counters, Counts};
use crate::bench::interrupt;
use crate::descriptors::told;
use crate::watch::{Charge, Sample, Tree, Watch, children};
use hugeheap_os::linux::Linux;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(20);
/// Share of the time that looks may take: both sides have them, and of short commands, too, the coverage is to
/// be seen: this allows a first look at it after 60 ms.
const SHARE: f64 = 0.02;
/// Bytes kept of what a command says on standard error.
const KEPT: usize = 4096;

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) wall: f64,
    pub(crate) user: f64,
    pub(crate) system: f64,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
    /// Of the largest process.
    pub(crate) peak_rss: u64,
    pub(crate) peak_charge: Option<u64>,
    /// At most, of those that were seen.
    pub(crate) page_tables: Option<u64>,
    pub(crate) hugetlb: Option<u64>,
    pub(crate) stranded: Option<u64>,
    /// When most was resident, of the looks that saw it.
    pub(crate) coverage: Option<f64>,
    pub(crate) counters: Option<Counts>,
}

/// Why there is no run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It could not be started.
    NotStarted { why: String, is_missing: bool },
    /// It ended otherwise than with status 0.
    Failed(String),
}

/// How it is run.
#[derive(Clone, Copy)]
pub(crate) struct How {
    pub(crate) linux: Linux,
    pub(crate) ignore_failure: bool,
    pub(crate) has_counters: bool,
}

/// A run and how many processes it left behind.
pub(crate) fn run(words: &[std::ffi::OsString], how: How) -> Result<(Run, usize), Failure> {
    let not_started = |error: &io::Error| Failure::NotStarted {
        why: format!("could not be started: {error}", error = told(error)),
        is_missing: error.kind() == io::ErrorKind::NotFound,
    };
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let group = Group::create().ok();
    if let Some(group) = &group {
        group.adopt(&mut command).map_err(|error| not_started(&error))?;
    }
    // With this it is forked in any case: a process that shared this one's memory until its exec would begin
    // with our peak.
    interrupt::end_with_this(&mut command);
    let before: Vec<u32> = children(std::process::id());
    let counters = if how.has_counters { Counters::open().ok() } else { None };
    let start = Instant::now();
    let mut child = command.spawn().map_err(|error| not_started(&error))?;
    let pid = child.id();
    let over = AtomicBool::new(false);
    let mut said = child.stderr.take();
    let (waited, wall, samples, tail) = std::thread::scope(|scope| {
        let charge =
            group.as_ref().map(|it| Charge { file: it.usage_file(), counts_hugetlb: it.counts_hugetlb() });
        let tree = Tree::new(pid, true);
        let looks = scope.spawn(|| looked(Watch::new(tree, how.linux, charge).within(SHARE), &over));
        let tail = scope.spawn(|| said.as_mut().map_or_else(Vec::new, |pipe| tail(pipe, &over)));
        let waited = wait(pid as libc::pid_t);
        let wall = start.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        (waited, wall, looks.join().unwrap_or_default(), tail.join().unwrap_or_default())
    });
    let (status, usage) =
        waited.map_err(|error| Failure::Failed(format!("was lost: {error}", error = told(&error))))?;
    if !status.success() && (!how.ignore_failure || interrupt::noted().is_some()) {
        return Err(Failure::Failed(described(status, &tail)));
    }
    let left =
        children(std::process::id()).into_iter().filter(|id| !before.contains(id) && !reaped(*id)).count();
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let most = |figure: fn(&Sample) -> Option<u64>| samples.iter().filter_map(figure).max();
    let largest = samples.iter().filter(|sample| sample.coverage().is_some()).max_by_key(|it| it.resident);
    let run = Run {
        wall,
        user: seconds(usage.ru_utime),
        system: seconds(usage.ru_stime),
        minor_faults: usage.ru_minflt as u64,
        major_faults: usage.ru_majflt as u64,
        peak_rss: usage.ru_maxrss as u64 * 1024,
        peak_charge: group.as_ref().and_then(Group::peak).max(most(|it| it.charge)),
        page_tables: most(|it| Some(it.page_tables)),
        hugetlb: most(|it| Some(it.hugetlb)),
        stranded: most(|it| it.stranded),
        coverage: largest.and_then(Sample::coverage),
        counters: counters.map(Counters::read),
    };
    Ok((run, left))
}

/// Looks until it is over.
fn looked(mut watch: Watch, over: &AtomicBool) -> Vec<Sample> {
    let mut samples = Vec::new();
    while let Some(sample) = watch.look().filter(|_| !over.load(Ordering::Relaxed)) {
        samples.push(sample);
        std::thread::sleep(PERIOD);
    }
    samples
}

/// The end of what comes from a pipe, read until the other side is closed or it is over.
fn tail(pipe: &mut (impl Read + AsRawFd), over: &AtomicBool) -> Vec<u8> {
    let mut kept = VecDeque::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let mut ready = libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let was_over = over.load(Ordering::Relaxed);
        // SAFETY: one descriptor of ours.
        let count = unsafe { libc::poll(&mut ready, 1, if was_over { 0 } else { 20 }) };
        if count <= 0 {
            // What was said before the end has been read by now.
            if was_over {
                break;
            }
            continue;
        }
        match pipe.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                kept.extend(&buffer[..count]);
                kept.drain(..kept.len().saturating_sub(KEPT));
            }
        }
    }
    kept.into()
}

/// Waits for the end, whatever signal comes meanwhile: the command gets it, too.
fn wait(pid: libc::pid_t) -> io::Result<(ExitStatus, libc::rusage)> {
    let passed = interrupt::Measured::program(pid);
    // SAFETY: all zero is a valid value of this plain struct, which the call fills.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // The number stays its own until it is waited for below, when nothing is sent to it any more.
    // SAFETY: our child, not waited for by this call.
    while unsafe { libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, libc::WEXITED | libc::WNOWAIT) }
        < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
    drop(passed);
    let mut status = 0;
    // SAFETY: all zero is a valid value of this plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both are ours to be filled.
        if unsafe { libc::wait4(pid, &mut status, 0, &mut usage) } >= 0 {
            return Ok((ExitStatus::from_raw(status), usage));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Whether a process that was left to this one has ended; it is then waited for.
fn reaped(pid: u32) -> bool {
    let mut status = 0;
    // SAFETY: the status is ours to be filled.
    unsafe { libc::waitpid(pid as libc::pid_t, &mut status, libc::WNOHANG) != 0 }
}

fn described(status: ExitStatus, said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    match said.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(last) => format!("{status}: {}", last.trim()),
        None => status.to_string(),
    }
}
