//! Staying the parent of a command without being noticed: signals in, status out.
//!
//! The command stays in our process group, so that job control of the shell works on both. Hence a signal
//! typed at the terminal reaches the command without us, and one sent to our process id does not:
//!
//! | signal comes from | told by | done |
//! |---|---|---|
//! | the terminal, to the whole group | `si_code` says the kernel | nothing: the command has it |
//! | a process (`kill`, a supervisor) | `si_code` says a process | sent on to the command |
//! | the command or a descendant | its process id | nothing: it means us, or the group |
//!
//! A `kill` of the whole group from outside (`kill -TERM -PGID`) cannot be told from one of us alone and
//! arrives twice, as it does when `timeout` is the sender and no hugeheap is involved. When the command stops
//! we stop too, so that the shell takes over.
//!
//! Signals are blocked and taken one by one with `sigtimedwait`: no handler runs, nothing is interrupted.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

/// Signals that are sent on. Not among them: those that stop (the command's stopping is seen by waiting), those
/// of our own faults, and those that cannot be caught.
const FORWARDED: [libc::c_int; 13] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGCONT,
    libc::SIGURG,
    libc::SIGWINCH,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGVTALRM,
];
/// Signals of job control: not sent on when the terminal sent them; the command's answer decides.
const STOPPING: [libc::c_int; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Waiting looks at the command this often without a signal: in a process with other threads (called from Python)
/// SIGCHLD may be delivered to one of those and be lost.
const LOOK_AGAIN: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) pid: u32,
    pub(crate) status: ExitStatus,
}

/// Starts `command` and waits for its end.
pub(crate) fn supervise(command: &mut Command) -> io::Result<Ended> {
    supervised(command, |_| ())
}

/// The same; `started` gets the number of the process, which is no other's until the end.
pub(crate) fn supervised(command: &mut Command, started: impl FnOnce(u32)) -> io::Result<Ended> {
    let set = watched();
    // Blocked before the start: no signal is lost between start and first wait.
    let before = change_mask(libc::SIG_BLOCK, &set)?;
    // An ignored SIGCHLD would make the kernel discard the status we wait for.
    let child_action = default_action(libc::SIGCHLD);
    let parent = std::process::id() as libc::pid_t;
    // SAFETY: the closure runs between fork and exec and only makes system calls on values it owns.
    unsafe {
        command.pre_exec(move || {
            if child_action == libc::SIG_IGN {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            // Killing us with SIGKILL must not leave the command behind: before, there was only one process.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            if libc::getppid() != parent {
                libc::raise(libc::SIGKILL);
            }
            change_mask(libc::SIG_SETMASK, &before).map(drop)
        });
    }
    let result = command.spawn().and_then(|child| {
        let pid = child.id();
        started(pid);
        wait(pid as libc::pid_t, &set).map(|status| Ended { pid, status })
    });
    change_mask(libc::SIG_SETMASK, &before)?;
    result
}

/// Ends this process as the command ended: with its status, or by its signal.
pub(crate) fn end_like(status: ExitStatus) -> u8 {
    if let Some(signal) = status.signal() {
        let only = {
            let mut set = empty_set();
            // SAFETY: the set is ours.
            unsafe { libc::sigaddset(&mut set, signal) };
            set
        };
        // SAFETY: plain system calls; a core file of this process would only hide that of the command.
        unsafe {
            libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
            libc::signal(signal, libc::SIG_DFL);
            let _ = change_mask(libc::SIG_UNBLOCK, &only);
            libc::raise(signal);
        }
        // A signal that does not end a process cannot have ended the command; say it as shells do.
        return (128 + signal) as u8;
    }
    status.code().unwrap_or(1) as u8
}

/// Waits for the end of `child`, sending signals on.
fn wait(child: libc::pid_t, set: &libc::sigset_t) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = reap(child)? {
            return Ok(status);
        }
        // SAFETY: all zero is a valid value of this plain struct.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: all three point to values of ours.
        let signal = unsafe { libc::sigtimedwait(set, &mut info, &LOOK_AGAIN) };
        if signal < 0 {
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => continue,
                code => return Err(io::Error::from_raw_os_error(code.unwrap_or(libc::EINVAL))),
            }
        }
        // SAFETY: for a signal a process sent, the field is filled; it is read only then.
        if signal != libc::SIGCHLD && info.si_code <= 0 && !descends(unsafe { info.si_pid() }, child) {
            // SAFETY: the child has not been reaped, so the number is still its own.
            unsafe { libc::kill(child, signal) };
        }
    }
}

/// The status of `child` if it has ended. When it has stopped, stops this process too.
fn reap(child: libc::pid_t) -> io::Result<Option<ExitStatus>> {
    loop {
        let mut status = 0;
        // SAFETY: the status is ours to be filled.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG | libc::WUNTRACED) } {
            0 => return Ok(None),
            -1 => return Err(io::Error::last_os_error()),
            _ if libc::WIFSTOPPED(status) => {
                // SAFETY: stops until someone continues us; the group is continued as a whole by the shell.
                unsafe { libc::raise(libc::SIGSTOP) };
            }
            _ => return Ok(Some(ExitStatus::from_raw(status))),
        }
    }
}

/// Whether process `pid` is `ancestor` or was started by it, by way of any number of processes.
fn descends(pid: libc::pid_t, ancestor: libc::pid_t) -> bool {
    let mut pid = pid;
    // Deeper than any real chain: the walk must end also when ids are reused while it goes on.
    for _ in 0..64 {
        if pid == ancestor {
            return true;
        }
        if pid <= 1 {
            return false;
        }
        let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else { return false };
        // The name in parentheses may contain anything: the fields start after the last one.
        let Some(end) = stat.iter().rposition(|&byte| byte == b')') else { return false };
        let parent = std::str::from_utf8(&stat[end + 1..])
            .ok()
            .and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        match parent {
            Some(parent) => pid = parent,
            None => return false,
        }
    }
    false
}

fn empty_set() -> libc::sigset_t {
    // SAFETY: all zero is a valid value; sigemptyset initialises what it must.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        set
    }
}

fn watched() -> libc::sigset_t {
    let mut set = empty_set();
    let realtime = libc::SIGRTMIN()..=libc::SIGRTMAX();
    for signal in FORWARDED.into_iter().chain(STOPPING).chain([libc::SIGCHLD]).chain(realtime) {
        // SAFETY: the set is ours, the signal numbers are valid.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}

/// Changes this thread's signal mask and returns the one before.
fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = empty_set();
    // SAFETY: both sets are ours.
    match unsafe { libc::pthread_sigmask(how, set, &mut before) } {
        0 => Ok(before),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Gives `signal` its default action and returns the handler before.
fn default_action(signal: libc::c_int) -> libc::sighandler_t {
    // SAFETY: the default action runs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_DFL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_the_commands() {
        let ended = supervise(Command::new("sh").args(["-c", "exit 7"])).unwrap();
        assert_eq!(ended.status.code(), Some(7));
        let ended = supervise(Command::new("sh").args(["-c", "kill -USR1 $$"])).unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGUSR1));
    }

    #[test]
    fn the_command_gets_the_mask_that_was_before() {
        let output = tempfile::NamedTempFile::new().unwrap();
        let mut command = Command::new("grep");
        command.args(["SigBlk", "/proc/self/status"]).stdout(output.reopen().unwrap());
        supervise(&mut command).unwrap();
        let line = std::fs::read_to_string(output.path()).unwrap();
        assert_eq!(line.split_whitespace().nth(1), Some("0000000000000000"), "{line}");
    }

    #[test]
    fn descent_is_seen_through_processes() {
        let own = std::process::id() as libc::pid_t;
        // SAFETY: only answers a number.
        let parent = unsafe { libc::getppid() };
        assert!(descends(own, own));
        assert!(descends(own, parent));
        assert!(!descends(1, own));
        assert!(!descends(0, own));
    }
}
