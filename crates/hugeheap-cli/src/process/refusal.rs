//! Why the kernel does not let one look at a process or change it, with the way out.
//!
//! To look at another user's memory, `CAP_SYS_PTRACE`; to change what backs another process's memory,
//! `CAP_SYS_NICE` beside the right to look at it. Which of them is missing is read from this process's own
//! status. A process that could be opened may be looked at, by its user or by capability: what is refused after
//! that is the change.

use super::{HEADLESS, Opened, named};
use crate::descriptors::told;
use crate::output::Output;
use crate::{Context, exit};
use hugeheap_os::linux::{LinuxProcess, ProcFs};
use hugeheap_os::process::{ProcessStatus, Stop, gone};
use hugeheap_os::{Error, ErrorKind};
use std::path::Path;

/// What the process was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    Look,
    Collapse,
    Release,
}

const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_NICE: u32 = 23;

/// The capabilities this process has in effect, as bits. All, where that cannot be read.
fn effective() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(u64::MAX)
}

/// What else refuses, where the capability is there.
pub(crate) const REFUSED: &str =
    "a security module, or a user namespace that is not this one's; try from the host";

/// Why nothing can be seen without /proc.
pub(crate) const NO_PROC: &str = "/proc is not mounted here, so that no process can be seen";

/// Whether this process is in the /proc that is mounted here, if one is.
pub(crate) fn proc_is_mounted() -> bool {
    Path::new("/proc/self").exists()
}

/// What is said where /proc shows a process to its own user only. A list was all there is, and a process that
/// runs was none.
pub(crate) const HIDDEN: &str =
    "/proc hides other users' processes here (it is mounted with hidepid): sudo shows them";

/// Whether it does: the first process of a namespace is always there, and it is some other user's.
pub(crate) fn proc_hides() -> bool {
    proc_is_mounted() && !Path::new("/proc/1").exists()
}

/// Why a process that /proc shows cannot be opened where that is another namespace's. Said to have ended, it
/// would be looked for in vain; and where there is one of that number here, it would be the wrong one.
pub(crate) const FOREIGN: &str = "/proc is here that of another PID namespace, where numbers mean other processes; run this where \
     /proc is from, or mount one of this namespace (unshare --mount-proc)";

/// Whether /proc is that of another PID namespace.
pub(crate) fn proc_is_foreign() -> bool {
    ProcFs::mounted() == ProcFs::Foreign
}

/// Whether this process has the capability to look at other users' processes.
pub(crate) fn may_look_at_others() -> bool {
    effective() & 1 << CAP_SYS_PTRACE != 0
}

/// The capabilities of those that are needed which `have` lacks. `opened`: the process could be.
fn missing(doing: Doing, opened: bool, have: u64) -> Vec<&'static str> {
    let changes = doing != Doing::Look;
    let needed = [(CAP_SYS_NICE, "SYS_NICE", changes), (CAP_SYS_PTRACE, "SYS_PTRACE", !(changes && opened))];
    let lacks = |number: u32| have & 1 << number == 0;
    needed
        .into_iter()
        .filter(|(number, _, wanted)| *wanted && lacks(*number))
        .map(|(_, name, _)| name)
        .collect()
}

/// What to say when permission is missing.
fn denied(who: &str, user: Option<u32>, doing: Doing, opened: bool, have: u64) -> String {
    let what = match doing {
        Doing::Look => "looking at its memory",
        Doing::Collapse | Doing::Release => "changing what backs its memory",
    };
    let owner = user.map(|user| format!(" (user {user})")).unwrap_or_default();
    let missing = missing(doing, opened, have);
    if missing.is_empty() {
        return format!("{who}{owner}: {what} is refused although no capability is missing: {REFUSED}");
    }
    let capabilities: Vec<String> = missing.iter().map(|name| format!("CAP_{name}")).collect();
    format!(
        "{who}{owner}: {what} needs {}, which this command does not have\n  \
         on a host: run it with sudo\n  \
         in a pod:  securityContext: {{capabilities: {{add: [{}]}}}}, and shareProcessNamespace: true to see its processes",
        capabilities.join(" and "),
        missing.join(", "),
    )
}

/// What to say for an error, and the exit code.
fn explained(
    id: u32,
    status: Option<&ProcessStatus>,
    doing: Doing,
    opened: bool,
    error: Error,
    have: u64,
) -> (String, u8) {
    let who = named(id, status.map_or("", |status| &status.name));
    match (error.kind(), error.code) {
        (_, libc::ESRCH) => match status {
            Some(_) => (format!("{who} has ended"), exit::GONE),
            None if !proc_is_mounted() => (NO_PROC.to_owned(), exit::UNSUPPORTED),
            None if proc_hides() => {
                (format!("there is no process {id}, or it is another user's: {HIDDEN}"), exit::GONE)
            }
            None => (format!("there is no process {id}"), exit::GONE),
        },
        (_, libc::EALREADY) => (
            format!(
                "{who}: another collapse or release of it is at work (pgrep -af hugeheap); wait for its end and run this again: nothing was done"
            ),
            exit::FINDINGS,
        ),
        (ErrorKind::Permission, _) => {
            (denied(&who, status.map(|status| status.user), doing, opened, have), exit::PERMISSION)
        }
        (ErrorKind::Unsupported, _) => {
            let since = match doing {
                Doing::Look => "Linux 5.3",
                Doing::Collapse => "Linux 6.1",
                Doing::Release => "Linux 5.10",
            };
            let text = format!(
                "this kernel does not serve {} ({since} and newer do), or a filter forbids it",
                error.call
            );
            (text, exit::UNSUPPORTED)
        }
        (_, libc::ENODEV) => (
            "this kernel has no transparent huge pages, so there is nothing to collapse or split".to_owned(),
            exit::UNSUPPORTED,
        ),
        _ => (format!("{who}: {error}", error = told(&error)), exit::UNSUPPORTED),
    }
}

/// Says why a process cannot be opened, and answers the exit code.
pub(super) fn refuse(
    context: &Context,
    id: u32,
    status: Option<&ProcessStatus>,
    doing: Doing,
    error: Error,
) -> u8 {
    let lacks = if context.root && error.code == libc::ESRCH { lacking(context, id, status) } else { None };
    let (text, code) = match lacks {
        Some(text) => (text, exit::UNSUPPORTED),
        None => explained(id, status, doing, false, error, effective()),
    };
    context.out.error(&text);
    code
}

/// What is missing below the root that was named, where that is not the process: a copy of a part of /proc is
/// no place to say that one has ended.
fn lacking(context: &Context, id: u32, status: Option<&ProcessStatus>) -> Option<String> {
    match status {
        Some(status) => LinuxProcess::status_of(context.facts, id).is_ok().then(|| {
            let who = named(id, &status.name);
            format!("{who}: not all of its files in /proc are below the directory that --root names")
        }),
        None => LinuxProcess::all(context.facts)
            .is_err()
            .then(|| "there is no /proc below the directory that --root names".to_owned()),
    }
}

/// Says why something is not possible with a process that was opened, and answers the exit code.
pub(crate) fn refuse_opened(out: &Output, id: u32, opened: &Opened, doing: Doing, error: Error) -> u8 {
    // Between opening it and the first look.
    if error.code == libc::ESRCH && gone(&opened.process) == Stop::MainThreadEnded {
        out.error(&format!("{}: {HEADLESS}", named(id, &opened.status.name)));
        return exit::UNSUPPORTED;
    }
    let (text, code) = explained(id, Some(&opened.status), doing, true, error, effective());
    out.error(&text);
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(doing: Doing, code: i32, have: u64) -> (String, u8) {
        explained(7, None, doing, false, Error::new("process_madvise(MADV_COLLAPSE)", code), have)
    }

    #[test]
    fn what_is_missing_is_named_with_the_way_to_get_it() {
        let (text, code) = of(Doing::Collapse, libc::EPERM, 0);
        assert_eq!(code, exit::PERMISSION);
        assert!(text.contains("CAP_SYS_NICE and CAP_SYS_PTRACE"), "{text}");
        assert!(text.contains("add: [SYS_NICE, SYS_PTRACE]"), "{text}");
        let (text, _) = of(Doing::Release, libc::EPERM, 1 << CAP_SYS_PTRACE);
        assert!(text.contains("needs CAP_SYS_NICE, which"), "{text}");
        let (text, _) = of(Doing::Look, libc::EACCES, 1 << CAP_SYS_NICE);
        assert!(text.contains("needs CAP_SYS_PTRACE, which"), "{text}");
        let (text, _) = of(Doing::Look, libc::EACCES, u64::MAX);
        assert!(text.contains("security module"), "{text}");
    }

    /// `CAP_SYS_PTRACE` was asked for as well, which changes nothing then.
    #[test]
    fn of_a_process_that_could_be_opened_a_change_needs_one_capability() {
        let of = |doing, have| {
            explained(7, None, doing, true, Error::new("process_madvise(MADV_COLD)", libc::EPERM), have).0
        };
        for doing in [Doing::Collapse, Doing::Release] {
            assert!(of(doing, 0).contains("needs CAP_SYS_NICE, which"), "{}", of(doing, 0));
            assert!(of(doing, 1 << CAP_SYS_NICE).contains("security module"));
        }
        assert!(of(Doing::Look, 0).contains("needs CAP_SYS_PTRACE, which"));
    }

    #[test]
    fn exit_codes_follow_the_reason() {
        assert_eq!(of(Doing::Look, libc::ESRCH, 0).1, exit::GONE);
        assert_eq!(of(Doing::Collapse, libc::ENOSYS, 0).1, exit::UNSUPPORTED);
        assert!(of(Doing::Collapse, libc::ENOSYS, 0).0.contains("Linux 6.1"));
        assert!(of(Doing::Release, libc::ENOSYS, 0).0.contains("Linux 5.10"));
        assert_eq!(of(Doing::Look, libc::ENODEV, 0).1, exit::UNSUPPORTED);
    }
}
