//! A measured process that is a copy of this one: the experiments that need no other program.
//!
//! ```text
//!   this process ──fork──▶ child: enters its cgroup, works, tells what it measured, ends
//!         ▲                  │
//!         └──── JSON ────────┘  through a pipe, whose end is also how a child that was killed shows
//! ```
//!
//! Each piece of work gets a process of its own, so that none inherits faults, huge pages or page tables of the
//! one before. The child never returns into the caller: it leaves with `_exit`, without destructors that belong
//! to the parent (files, cgroups, knobs).

use super::charge::Group;
use super::interrupt::Measured;
use crate::descriptors::told;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;

/// A child at work. Killed when dropped before its end.
pub(crate) struct Forked {
    pid: libc::pid_t,
    reader: File,
    measured: Option<Measured>,
    waited: bool,
}

impl Forked {
    /// Starts `work` in a child, in `group` where there is one. It gets the end of the pipe for what it has to
    /// tell on the way.
    ///
    /// # Errors
    /// One line when there is no child.
    pub(crate) fn start<T: Serialize>(
        group: Option<&Group>,
        work: impl FnOnce(&mut File) -> Result<T, String>,
    ) -> Result<Self, String> {
        let (reader, mut writer) =
            pipe().map_err(|error| format!("no pipe: {error}", error = told(&error)))?;
        // SAFETY: the child runs code of this process on its only thread and ends without returning.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(format!("could not be started: {}", io::Error::last_os_error()));
        }
        if pid > 0 {
            return Ok(Self { pid, reader, measured: Some(Measured::copy(pid)), waited: false });
        }
        drop(reader);
        // SAFETY: dies with its parent, so that a killed bench leaves no gigabytes behind; signals end it as
        // they end others.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
        let result = catch_unwind(AssertUnwindSafe(|| {
            group
                .map_or(Ok(()), Group::enter)
                .map_err(|error| format!("could not enter its cgroup: {error}", error = told(&error)))?;
            work(&mut writer)
        }))
        .unwrap_or_else(|_| Err("ended by a mistake of its own".to_owned()));
        let text = serde_json::to_string(&result).unwrap_or_default();
        let told = writer.write_all(format!("{text}\n").as_bytes()).is_ok();
        // SAFETY: ends the child at once, without the parent's destructors.
        unsafe { libc::_exit(i32::from(!told)) }
    }

    /// The next line that it tells on the way; `None` at its end.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        let mut byte = [0];
        loop {
            match self.reader.read(&mut byte) {
                Ok(1) if byte[0] == b'\n' => return Some(String::from_utf8_lossy(&line).into_owned()),
                Ok(1) => line.push(byte[0]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    if super::interrupt::noted().is_some() {
                        return None;
                    }
                }
                _ => return None,
            }
        }
    }

    /// What it told last, when it has ended.
    ///
    /// # Errors
    /// What it said instead, or how it ended.
    pub(crate) fn end<T: DeserializeOwned>(mut self) -> Result<T, String> {
        let mut last = None;
        while let Some(line) = self.line() {
            last = Some(line);
        }
        if super::interrupt::noted().is_some() {
            return Err("interrupted".to_owned());
        }
        let status = self.wait();
        match last.map(|line| serde_json::from_str::<Result<T, String>>(&line)) {
            Some(Ok(result)) => result,
            _ if status.signal() == Some(libc::SIGKILL) => Err("was killed".to_owned()),
            _ => Err(format!("ended with {status}")),
        }
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = 0;
        self.measured = None;
        // SAFETY: our child, not yet waited for.
        while unsafe { libc::waitpid(self.pid, &mut status, 0) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
        self.waited = true;
        ExitStatus::from_raw(status)
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        if !self.waited {
            // SAFETY: our child, not yet waited for: the number is no other's.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            self.wait();
        }
    }
}

/// Runs `work` in a child to its end.
///
/// # Errors
/// What it said instead, or how it ended.
pub(crate) fn run<T: Serialize + DeserializeOwned>(
    group: Option<&Group>,
    work: impl FnOnce(&mut File) -> Result<T, String>,
) -> Result<T, String> {
    Forked::start(group, work)?.end()
}

/// A pipe: what is read from the first was written to the second. Closed on exec.
pub(crate) fn pipe() -> io::Result<(File, File)> {
    let mut ends = [0; 2];
    // SAFETY: two numbers to be filled.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both are open, and owned by nobody else.
    let [reader, writer] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    Ok((reader.into(), writer.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_measured_comes_back() {
        assert_eq!(run(None, |_| Ok(vec![1_u64, 2])), Ok(vec![1, 2]));
        assert_eq!(run::<u64>(None, |_| Err("no memory".to_owned())), Err("no memory".to_owned()));
    }

    #[test]
    fn its_death_is_told() {
        let killed = run::<u64>(None, |_| {
            // SAFETY: ends this child.
            unsafe { libc::raise(libc::SIGKILL) };
            Ok(1)
        });
        assert_eq!(killed, Err("was killed".to_owned()));
        let ended = run::<u64>(None, |_| {
            // SAFETY: ends this child.
            unsafe { libc::_exit(3) }
        });
        assert!(ended.unwrap_err().contains('3'));
    }

    #[test]
    fn it_tells_on_the_way() {
        let mut child = Forked::start(None, |out| {
            out.write_all(b"half\n").map_err(|error| error.to_string())?;
            Ok(7_u64)
        })
        .unwrap();
        assert_eq!(child.line().as_deref(), Some("half"));
        assert_eq!(child.end::<u64>(), Ok(7));
    }

    #[test]
    fn one_that_is_not_waited_for_is_killed() {
        let child = Forked::start(None, |_| {
            std::thread::sleep(std::time::Duration::from_secs(600));
            Ok(0_u64)
        })
        .unwrap();
        drop(child);
    }
}
