//! One measured process, from start to end.

use super::counters::{Counters, Counts};
use super::interrupt;
use crate::descriptors::told;
use crate::file;
use serde::Deserialize;
use std::io::{self, Read, Seek};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tempfile::NamedTempFile;

/// What was measured from outside.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Seconds from just before the start to the end.
    pub(crate) wall: f64,
    pub(crate) user: f64,
    pub(crate) system: f64,
    pub(crate) minor_faults: u64,
    pub(crate) counters: Option<Counts>,
    pub(crate) stdout: String,
}

impl Measured {
    /// What it printed, in JSON.
    ///
    /// # Errors
    /// One line when it is something else.
    pub(crate) fn told<'a, T: Deserialize<'a>>(&'a self) -> Result<T, String> {
        serde_json::from_str(&self.stdout)
            .map_err(|error| format!("printed something else than its figures: {error}"))
    }
}

/// Runs `command` and measures it.
///
/// # Errors
/// One line that says how it failed, with the end of what it said.
pub(crate) fn measure(command: &mut Command, counters: Option<Counters>) -> Result<Measured, String> {
    watched(command, counters, |_, _| ()).map(|(measured, ())| measured)
}

/// Runs and measures `command` while `watcher` looks at it, on a thread of its own: called with the process's
/// id and a flag that is set when the process has ended. Until the watcher returns, the id is of no other
/// process.
///
/// # Errors
/// As [`measure`].
pub(crate) fn watched<T: Send>(
    command: &mut Command,
    counters: Option<Counters>,
    watcher: impl FnOnce(u32, &AtomicBool) -> T + Send,
) -> Result<(Measured, T), String> {
    // To a file: a pipe would have to be read at the same time as the other.
    let mut complaints = file::new_in(&std::env::temp_dir())
        .map(NamedTempFile::into_file)
        .map_err(|error| format!("no temporary file: {error}", error = told(&error)))?;
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(complaints.try_clone().map_err(|error| told(&error).to_string())?);
    let start = Instant::now();
    let mut child =
        command.spawn().map_err(|error| format!("could not be started: {error}", error = told(&error)))?;
    let mut stdout = String::new();
    let ended = AtomicBool::new(false);
    let pid = child.id();
    let passed = interrupt::Measured::program(pid as libc::pid_t);
    let (read, seen) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watcher(pid, &ended));
        let read = child.stdout.take().map_or(Ok(0), |mut pipe| pipe.read_to_string(&mut stdout));
        ended.store(true, Ordering::Relaxed);
        (read, watcher.join())
    });
    drop(passed);
    let (status, usage) =
        wait(pid as libc::pid_t).map_err(|error| format!("was lost: {error}", error = told(&error)))?;
    let wall = start.elapsed().as_secs_f64();
    read.map_err(|error| format!("its output could not be read: {error}", error = told(&error)))?;
    if !status.success() {
        return Err(failure(status, &mut complaints));
    }
    let seen = seen.map_err(|_| "could not be watched".to_owned())?;
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let measured = Measured {
        wall,
        user: seconds(usage.ru_utime),
        system: seconds(usage.ru_stime),
        minor_faults: usage.ru_minflt as u64,
        counters: counters.map(Counters::read),
        stdout,
    };
    Ok((measured, seen))
}

fn wait(pid: libc::pid_t) -> io::Result<(ExitStatus, libc::rusage)> {
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

fn failure(status: ExitStatus, complaints: &mut std::fs::File) -> String {
    let mut said = Vec::new();
    let _ = complaints.rewind().and_then(|()| complaints.read_to_end(&mut said));
    let said = String::from_utf8_lossy(&said);
    match said.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(last) => format!("{status}: {}", last.trim()),
        None => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_measured() {
        let measured = measure(Command::new("sh").args(["-c", "echo said; sleep 0.05"]), None).unwrap();
        assert_eq!(measured.stdout, "said\n");
        assert!(measured.wall >= 0.05 && measured.wall < 5.0, "{}", measured.wall);
        assert!(measured.minor_faults > 10);
    }

    #[test]
    fn a_process_is_watched_to_its_end() {
        let (measured, looks) = watched(Command::new("sleep").arg("0.1"), None, |pid, ended| {
            let mut looks = 0;
            while !ended.load(Ordering::Relaxed) {
                assert!(std::path::Path::new("/proc").join(pid.to_string()).exists());
                looks += 1;
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            looks
        })
        .unwrap();
        assert!(looks > 5 && measured.wall >= 0.1, "{looks} {}", measured.wall);
    }

    #[test]
    fn a_failure_says_how_and_what_was_said_last() {
        let error = measure(Command::new("sh").args(["-c", "echo first >&2; echo last >&2; exit 3"]), None);
        let error = error.unwrap_err();
        assert!(error.contains('3') && error.ends_with(": last"), "{error}");
        let error = measure(Command::new("sh").args(["-c", "kill -SEGV $$"]), None).unwrap_err();
        assert!(error.contains("signal: 11"), "{error}");
    }
}
