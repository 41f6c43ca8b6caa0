//! A process that a function was given, and why it cannot be looked at or changed: the truth that the command
//! tells, as exceptions.
//!
//! /proc shows an ended process, one whose main thread has ended, and a kernel thread with no memory at all.
//! Answered as numbers that was zeros, or a plan with nothing to do, as if the process were small. And where
//! /proc is that of another PID namespace, a number means another process there.

use hugeheap_os::linux::{Linux, LinuxProcess, ProcFs};
use hugeheap_os::process::ProcessStatus;
use hugeheap_os::{Error, ErrorKind};
use pyo3::prelude::*;

/// Why a process cannot be looked at or changed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The kernel's answer.
    Error(Error),
    /// It has ended, and its parent did not ask how.
    Ended(String),
    /// It lives, and what /proc shows of its memory is empty.
    MainThreadEnded(String),
    KernelThread(String),
    /// There is no /proc here.
    NoProc,
    /// /proc is that of another PID namespace.
    ForeignProc,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Whether no process can be seen, or not by the numbers that mean processes here.
fn hidden() -> Option<Refusal> {
    match ProcFs::mounted() {
        ProcFs::Own => None,
        ProcFs::Foreign => Some(Refusal::ForeignProc),
        ProcFs::Missing => Some(Refusal::NoProc),
    }
}

/// Whether there is a /proc, whosever.
pub(crate) fn proc_is_there() -> Result<(), Refusal> {
    match hidden() {
        Some(Refusal::NoProc) => Err(Refusal::NoProc),
        _ => Ok(()),
    }
}

/// What a process with memory says about itself.
pub(crate) fn status(linux: Linux, id: u32) -> Result<ProcessStatus, Refusal> {
    if let Some(refusal) = hidden() {
        return Err(refusal);
    }
    let status = LinuxProcess::status_of(linux, id)?;
    if LinuxProcess::process_of_thread(linux, id).is_some_and(|process| process != id) {
        return Err(Error::new("looking at a process", libc::EINVAL).into());
    }
    match status {
        ProcessStatus { ended: true, name, .. } => Err(Refusal::Ended(name)),
        ProcessStatus { main_thread_ended: true, name, .. } => Err(Refusal::MainThreadEnded(name)),
        ProcessStatus { has_memory: false, name, .. } => Err(Refusal::KernelThread(name)),
        status => Ok(status),
    }
}

/// An exception of the package: message, code, hint.
pub(crate) fn exception(python: Python<'_>, message: &str, code: &str, hint: &str) -> PyErr {
    let make = || python.import("hugeheap._errors")?.getattr("HugeheapError")?.call1((message, code, hint));
    make().map_or_else(|error| error, PyErr::from_value)
}

impl Refusal {
    /// It as an exception, for process `id`. `changes`: it was to be changed.
    pub(crate) fn raise(self, python: Python<'_>, id: u32, changes: bool) -> PyErr {
        let (message, code, hint) = match self {
            Self::Error(error) => return of_kernel(python, id, error, changes),
            Self::Ended(name) => (
                format!("process {id} ({name}) has ended and waits for its parent to notice"),
                "no-such-process",
                "only its parent can end that, by wait()",
            ),
            Self::MainThreadEnded(name) => (
                format!("process {id} ({name}): its main thread has ended, others run"),
                "main-thread-ended",
                "the kernel shows no memory of such a process, so it cannot be looked at",
            ),
            Self::KernelThread(name) => (
                format!("process {id} ({name}) is a kernel thread"),
                "no-memory",
                "it has no memory of its own",
            ),
            Self::NoProc => (
                "/proc is not mounted here, so that no process can be seen".to_owned(),
                "no-proc",
                "mount it: mount -t proc proc /proc",
            ),
            Self::ForeignProc => (
                "/proc is here that of another PID namespace, where numbers mean other processes".to_owned(),
                "foreign-proc",
                "run this where /proc is from, or mount one of this namespace (unshare --mount-proc)",
            ),
        };
        exception(python, &message, code, hint)
    }
}

/// Why the kernel does not let one look at a process, or change it.
fn of_kernel(python: Python<'_>, id: u32, error: Error, changes: bool) -> PyErr {
    let (code, hint) = match (error.kind(), error.code) {
        (_, libc::ESRCH) => {
            return exception(
                python,
                &format!("there is no process {id}"),
                "no-such-process",
                "it may have ended",
            );
        }
        (_, libc::EALREADY) => {
            return exception(
                python,
                &format!("process {id}: another collapse or release of it is at work"),
                "busy",
                "wait for its end, and try again; nothing was done",
            );
        }
        (ErrorKind::Permission, _) => (
            "permission",
            match changes {
                true => {
                    "another user's process needs CAP_SYS_PTRACE, and changing any other process CAP_SYS_NICE"
                }
                false => "another user's process needs CAP_SYS_PTRACE",
            },
        ),
        (ErrorKind::Unsupported, _) => (
            "unsupported",
            "collapse needs Linux 6.1, release 5.10, other processes 5.3; or a filter forbids the call",
        ),
        (_, libc::ENODEV) => ("unsupported", "this kernel has no transparent huge pages"),
        (_, libc::EINVAL) => ("not-a-process", "it is a thread, or this kernel does not take the advice"),
        _ => ("failed", ""),
    };
    exception(python, &format!("process {id}: {error}"), code, hint)
}
