//! Words for what came of calls, the same in all commands that look at processes.

use crate::descriptors::told;
use crate::output::{bytes, counted};
use hugeheap_os::process::{Stop, Tally};
use serde_json::{Map, Value};

/// What can be done about the switch of Ruby: it sets it itself.
pub(crate) const RUBY_SWITCH: &str = "start it with hugeheap run -- COMMAND: what it allocates has huge pages then, its object pages do not; a running process cannot be changed from outside";

/// What can be done about the switch of a process that has it off. CRuby sets it at its start, so that none
/// before that helps.
pub(crate) fn switch_remedy(name: &str, remedy: &'static str) -> &'static str {
    if name.starts_with("ruby") { RUBY_SWITCH } else { remedy }
}

/// The name of an error number; numbers without one here are answered by no call these commands make.
pub(crate) fn errno(code: i32) -> String {
    let name = match code {
        libc::EAGAIN => "EAGAIN",
        libc::EBUSY => "EBUSY",
        libc::EFAULT => "EFAULT",
        libc::EINTR => "EINTR",
        libc::EINVAL => "EINVAL",
        libc::EIO => "EIO",
        libc::ENOENT => "ENOENT",
        libc::ENOMEM => "ENOMEM",
        libc::ENOSYS => "ENOSYS",
        libc::EPERM => "EPERM",
        libc::EACCES => "EACCES",
        libc::ESRCH => "ESRCH",
        other => return format!("errno {other}"),
    };
    name.to_owned()
}

/// What an error number means for a call of these commands.
fn meaning(code: i32) -> &'static str {
    match code {
        libc::EAGAIN => "in use at that moment",
        libc::ENOMEM => "no huge page, or the mapping is gone",
        libc::EBUSY => "the memory cgroup is full",
        libc::EINVAL => "not possible for this memory",
        libc::ESRCH => "the process has ended",
        libc::EFAULT | libc::ENOENT => "the mapping is gone",
        _ => "",
    }
}

/// `3 × EAGAIN (in use at that moment), 1 × ENOMEM (…)`; empty without errors.
pub(crate) fn errors(calls: &Tally) -> String {
    let each = calls.errors().map(|(code, count)| match meaning(code) {
        "" => format!("{count} × {}", errno(code)),
        text => format!("{count} × {} ({text})", errno(code)),
    });
    each.collect::<Vec<_>>().join(", ")
}

/// The same as JSON.
pub(crate) fn errors_json(calls: &Tally) -> Value {
    let each = calls.errors().map(|(code, count)| (errno(code), Value::from(count)));
    Value::Object(each.collect::<Map<_, _>>())
}

/// Coverage in percent, rounded down so that 100 % is all of it; a dash when nothing is resident.
pub(crate) fn coverage(share: Option<f64>) -> String {
    match share {
        Some(share) => format!("{:.1} %", (share * 1000.0).floor() / 10.0),
        None => "–".to_owned(),
    }
}

/// Why work ended early, and what to do about it.
pub(crate) fn stopped(stop: Stop) -> String {
    match stop {
        Stop::Budget => "the time budget is used up; run it again to go on, or raise --budget".to_owned(),
        Stop::NoHugePages => {
            "the kernel finds no more huge pages: free memory, or echo 1 > /proc/sys/vm/compact_memory, and run it again"
                .to_owned()
        }
        Stop::CgroupFull => "the memory cgroup has no room for another huge page: raise its limit".to_owned(),
        Stop::Interrupted => "interrupted; run it again to go on".to_owned(),
        Stop::Gone => "the process has ended".to_owned(),
        Stop::MainThreadEnded => {
            "its main thread has ended, others run: the kernel changes no memory of such a process for another".to_owned()
        }
        Stop::Refused(error) => told(&error).to_string(),
    }
}

/// `608 MiB → 9.4 MiB`, as far as it is known.
pub(crate) fn change(before: Option<u64>, after: Option<u64>) -> Option<String> {
    match (before?, after) {
        (before, Some(after)) => Some(format!("{} → {}", bytes(before), bytes(after))),
        (before, None) => Some(bytes(before)),
    }
}

/// A change of the charge.
pub(crate) fn charge(before: Option<u64>, after: Option<u64>) -> String {
    match change(before, after) {
        Some(change) => format!("{change} (all of its memory cgroup)"),
        None => "not known: its memory cgroup cannot be seen from here".to_owned(),
    }
}

/// `248 huge pages`.
pub(crate) fn huge_pages(count: u64) -> String {
    counted(count, "huge page", "huge pages")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeheap_os::Error;

    #[test]
    fn errors_are_named_and_explained() {
        let mut calls = Tally::default();
        assert_eq!(errors(&calls), "");
        calls.add(Ok(()));
        for code in [libc::EAGAIN, libc::EAGAIN, libc::EIO] {
            calls.add(Err(Error::new("x", code)));
        }
        assert_eq!(errors(&calls), "1 × EIO, 2 × EAGAIN (in use at that moment)");
        assert_eq!(errors_json(&calls)["EAGAIN"], 2);
        assert_eq!(errno(9999), "errno 9999");
    }

    #[test]
    fn coverage_is_not_rounded_up() {
        assert_eq!(coverage(Some(0.9999)), "99.9 %");
        assert_eq!(coverage(Some(1.0)), "100.0 %");
        assert_eq!(coverage(None), "–");
    }
}
