//! One process with one workload.

use serde::Deserialize;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};

/// What a workload's program prints.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Told {
    /// Seconds the workload took, its blocks freed.
    pub(crate) seconds: f64,
    /// Processor time of all threads meanwhile.
    pub(crate) user: f64,
    pub(crate) system: f64,
    pub(crate) minor_faults: u64,
    /// The most that was resident, hugetlb pages not included. In bytes.
    pub(crate) peak_rss: u64,
    pub(crate) start: Option<Look>,
    pub(crate) steady: Option<Look>,
    pub(crate) low: Option<Look>,
    pub(crate) idle: Option<Look>,
    pub(crate) latency: Option<Latency>,
}

/// One look at a process's memory, from the kernel. In bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize, serde::Serialize)]
pub(crate) struct Look {
    pub(crate) rss: u64,
    pub(crate) anonymous: u64,
    pub(crate) thp: u64,
    pub(crate) hugetlb: u64,
    /// Charge of the process's own cgroup, where one could be made.
    pub(crate) charge: Option<u64>,
}

/// The latency of single allocations. In nanoseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize, serde::Serialize)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    /// What reading the clock adds to each.
    pub(crate) clock: f64,
}

/// Runs `command` to its end, at most for `limit` seconds.
///
/// # Errors
/// One line that says how it failed, with the end of what it said.
pub(crate) fn run(command: &mut Command, limit: u32) -> Result<Told, String> {
    command.stdin(Stdio::null());
    // SAFETY: the closure runs between fork and exec and makes one system call. The alarm outlasts exec.
    unsafe {
        command.pre_exec(move || {
            libc::alarm(limit);
            Ok(())
        })
    };
    let output = loop {
        match command.output() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other.map_err(|error| format!("could not be started: {error}"))?,
        }
    };
    if !output.status.success() {
        return Err(failure(output.status, &String::from_utf8_lossy(&output.stderr), limit));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("printed something else than its figures: {error}"))
}

fn failure(status: ExitStatus, said: &str, limit: u32) -> String {
    if status.signal() == Some(libc::SIGALRM) {
        return format!("took longer than {limit} s (--limit)");
    }
    // The note on backtraces that follows a panic's message says nothing.
    let last = said.lines().rev().find(|line| !line.trim().is_empty() && !line.starts_with("note:"));
    match last {
        Some(last) => format!("{status}: {}", last.trim()),
        None => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: u32) -> Result<Told, String> {
        run(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn figures_are_read() {
        let told = shell(
            r#"echo '{"seconds":1.5,"user":1,"system":0,"minor_faults":2,"peak_rss":3,"idle":{"rss":1,"anonymous":2,"thp":3,"hugetlb":4,"charge":null}}'"#,
            10,
        )
        .unwrap();
        assert_eq!((told.seconds, told.peak_rss), (1.5, 3));
        assert!(told.idle.unwrap().charge.is_none() && told.steady.is_none() && told.latency.is_none());
    }

    #[test]
    fn failures_say_how_and_what_was_said_last() {
        let why = shell("echo first >&2; echo last >&2; exit 3", 10).unwrap_err();
        assert!(why.contains('3') && why.ends_with(": last"), "{why}");
        assert!(shell("kill -SEGV $$", 10).unwrap_err().contains("signal: 11"));
        assert!(shell("echo nothing", 10).unwrap_err().contains("something else than its figures"));
        assert!(run(&mut Command::new("/no/such/program"), 1).unwrap_err().contains("could not be started"));
    }

    #[test]
    fn what_does_not_end_is_ended() {
        assert_eq!(shell("exec sleep 10", 1).unwrap_err(), "took longer than 1 s (--limit)");
    }
}
