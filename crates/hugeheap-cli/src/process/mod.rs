//! A process named on the command line: opening it, and saying why that or a change is not possible.
//!
//! ```text
//!   open      number ──▶ LinuxProcess, or a line and an exit code
//!   refusal   why the kernel says no: which capability is missing, and how to get it
//!   words     errno names, coverage, and what came of calls, the same in all commands
//! ```

mod refusal;
pub(crate) mod words;

pub(crate) use refusal::{
    Doing, FOREIGN, HIDDEN, NO_PROC, REFUSED, may_look_at_others, proc_hides, proc_is_foreign,
    proc_is_mounted, refuse_opened,
};

use crate::bench::interrupt;
use crate::output::{Output, shown};
use crate::{Context, exit};
use hugeheap_os::linux::LinuxProcess;
use hugeheap_os::process::{ProcessStatus, Stop};
use hugeheap_os::{ErrorKind, Facts};
use refusal::refuse;

/// Why there is nothing to be seen of a process that lives.
pub(crate) const HEADLESS: &str = "its main thread has ended, others run; it cannot be looked at";

/// A process that is there and has memory.
pub(crate) struct Opened {
    pub(crate) process: LinuxProcess,
    pub(crate) status: ProcessStatus,
}

/// `python3 (1234)`, as it may be shown.
pub(crate) fn named(id: u32, name: &str) -> String {
    if name.is_empty() { format!("process {id}") } else { format!("{} ({id})", shown(name)) }
}

/// What a process with memory says about itself, or says why it is none and answers the exit code.
pub(crate) fn status(context: &Context, id: u32, doing: Doing) -> Result<ProcessStatus, u8> {
    let out = &context.out;
    let status = LinuxProcess::status_of(context.facts, id)
        .map_err(|error| refuse(context, id, None, doing, error))?;
    if let Some(process) = LinuxProcess::process_of_thread(context.facts, id).filter(|process| *process != id)
    {
        out.error(&format!("{id} is a thread of process {process}; name the process"));
        return Err(exit::USAGE);
    }
    if status.ended {
        out.error(&format!("{} has ended and waits for its parent to notice", named(id, &status.name)));
        return Err(exit::GONE);
    }
    if status.main_thread_ended {
        out.error(&format!("{}: {HEADLESS}", named(id, &status.name)));
        return Err(exit::UNSUPPORTED);
    }
    if !status.has_memory {
        out.error(&format!("{} is a kernel thread: it has no memory of its own", named(id, &status.name)));
        return Err(exit::UNSUPPORTED);
    }
    Ok(status)
}

/// Whether the mappings of a process may be read, or says why not and answers the exit code. For who reads what
/// it can of a process.
pub(crate) fn readable(context: &Context, id: u32, status: &ProcessStatus) -> Result<(), u8> {
    // Opening tells it: there is no time for more.
    match LinuxProcess::details_of(context.facts, id, context.facts.now()) {
        Err(error) if error.kind() == ErrorKind::Permission => {
            Err(refuse(context, id, Some(status), Doing::Look, error))
        }
        _ => Ok(()),
    }
}

/// Opens a process, or says why not and answers the exit code.
pub(crate) fn open(context: &Context, id: u32, doing: Doing) -> Result<Opened, u8> {
    // Before anything is said of the process that has the number there: it is another one.
    if !context.root && proc_is_foreign() {
        context.out.error(&format!("process {id}: {FOREIGN}"));
        return Err(exit::UNSUPPORTED);
    }
    let status = status(context, id, doing)?;
    let process = LinuxProcess::open(context.facts, id)
        .map_err(|error| refuse(context, id, Some(&status), doing, error))?;
    Ok(Opened { process, status })
}

/// The process, work on which ends at a signal, so that what was done until then can be told.
pub(crate) fn until_a_signal(process: LinuxProcess) -> LinuxProcess {
    interrupt::watch();
    process.ending_when(|| interrupt::noted().is_some())
}

/// The exit code of work on a process that ended for the reason `stop`, with `left` pieces not done.
pub(crate) fn ended(
    out: &Output,
    id: u32,
    opened: &Opened,
    doing: Doing,
    stop: Option<Stop>,
    left: u64,
) -> u8 {
    match stop {
        Some(Stop::Gone) => exit::GONE,
        Some(Stop::MainThreadEnded) => exit::UNSUPPORTED,
        // As a shell says it of a command that died of the signal.
        Some(Stop::Interrupted) => interrupt::noted().map_or(exit::FINDINGS, |signal| 128 + signal as u8),
        Some(Stop::Refused(error)) => refuse_opened(out, id, opened, doing, error),
        Some(Stop::Budget | Stop::NoHugePages | Stop::CgroupFull) => exit::FINDINGS,
        None if left > 0 => exit::FINDINGS,
        None => exit::OK,
    }
}

/// Whether processes are looked at under another root, where they cannot be changed: their numbers may be
/// another namespace's.
pub(crate) fn root_is_only_for_looking(out: &Output, root: bool, dry_run: bool) -> bool {
    if root && !dry_run {
        out.error("--root shows processes of another /proc, whose numbers mean others here: add --dry-run");
    }
    root && !dry_run
}

/// What can be typed as a process.
pub(crate) fn id(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        // Linux gives numbers up to 2²².
        Ok(id) if (1..=1 << 22).contains(&id) => Ok(id),
        _ => Err("not the number of a process, such as 1234 (pgrep finds it by name)".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeheap_os::process::Process;

    #[test]
    fn work_that_is_not_done_is_no_success() {
        let process = LinuxProcess::own().unwrap();
        let opened = Opened { status: process.status().unwrap(), process };
        let out = Output::new(true, false, true);
        let code = |stop, left| ended(&out, 7, &opened, Doing::Release, stop, left);
        assert_eq!((code(None, 0), code(None, 1)), (exit::OK, exit::FINDINGS));
        for stop in [Stop::Budget, Stop::NoHugePages, Stop::CgroupFull] {
            assert_eq!(code(Some(stop), 0), exit::FINDINGS);
        }
        assert_eq!(code(Some(Stop::Gone), 1), exit::GONE);
        assert_eq!(code(Some(Stop::MainThreadEnded), 1), exit::UNSUPPORTED);
        let refused = hugeheap_os::Error::new("process_madvise(MADV_COLD)", libc::EPERM);
        assert_eq!(code(Some(Stop::Refused(refused)), 1), exit::PERMISSION);
    }
}
