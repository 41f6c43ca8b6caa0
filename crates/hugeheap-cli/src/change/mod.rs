//! Changes of knobs: all of them or none, with the way back.
//!
//! Terms: a *change* is one knob that gets another value. A *plan* is the changes of one command, checked
//! before the first is made. *Undo* is the command line that puts back what was there.
//!
//! ```text
//!   plan ──▶ write 1 ──▶ write 2 ──▶ … ──▶ persist ──▶ done, undo printed
//!                          ✗ ──▶ put back 1 ──▶ failure: nothing was changed (or what could not be put back)
//! ```
//!
//! Whoever sets two knobs wants both: half a plan is a host in a state that nobody chose.

pub(crate) mod persist;

use crate::descriptors::told;
use crate::exit;
use hugeheap_os::linux::{Knob, Knobs};
use hugeheap_os::{Error, ErrorKind, Result};
use serde_json::{Value, json};
use std::fmt::Write;

/// One knob that gets another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The name people use: `mode`.
    pub(crate) name: String,
    /// The file, from `/`.
    pub(crate) file: String,
    pub(crate) before: String,
    pub(crate) after: String,
}

impl Change {
    /// Whether it changes anything.
    pub(crate) fn is_needed(&self) -> bool {
        self.before != self.after
    }

    pub(crate) fn json(&self) -> Value {
        json!({"name": self.name, "file": self.file, "before": self.before, "after": self.after})
    }
}

/// What knobs are written to: the kernel, or in tests something that fails on demand.
pub(crate) trait Writes {
    /// Sets a knob and answers what it says then.
    fn write(&self, file: &str, value: &str) -> Result<Knob>;
}

impl Writes for Knobs {
    fn write(&self, file: &str, value: &str) -> Result<Knob> {
        Self::write(self, file, value)
    }
}

/// Why a plan was not carried out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// `mode=never`.
    what: String,
    file: String,
    why: Why,
    /// What was set before and is back at its old value.
    back: Vec<String>,
    /// What was set before and could not be put back: `mode=never`.
    stuck: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Why {
    Refused(Error),
    /// The kernel took another value.
    Took(String),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self.why {
            Why::Refused(error) => exit_code(error),
            Why::Took(_) => exit::UNSUPPORTED,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.why {
            Why::Refused(error) => write!(f, "{} {}", self.what, refusal(&self.file, *error))?,
            Why::Took(value) => {
                write!(f, "{} did not hold: {} says {value} after it", self.what, self.file)?;
            }
        }
        match (self.back.is_empty(), self.stuck.is_empty()) {
            (true, true) => f.write_str("; nothing was changed"),
            (false, true) => write!(f, "; nothing is changed: {} put back", listed(&self.back)),
            (_, false) => {
                write!(f, "; {} could not be put back: set by hand", self.stuck.join(" and "))
            }
        }
    }
}

fn listed(names: &[String]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(" and "))
}

/// Makes the changes in order; when one fails, those before it are put back, last first.
pub(crate) fn apply(host: &impl Writes, changes: &[Change]) -> std::result::Result<(), Box<Failure>> {
    for (index, change) in changes.iter().enumerate() {
        let why = match host.write(&change.file, &change.after) {
            Ok(now) if now.value == change.after => continue,
            Ok(now) => Why::Took(now.value),
            Err(error) => Why::Refused(error),
        };
        // What took another value is changed as well.
        let made = if matches!(why, Why::Took(_)) { index + 1 } else { index };
        let (back, stuck) = put_back(host, &changes[..made]);
        let what = format!("{}={}", change.name, change.after);
        return Err(Box::new(Failure { what, file: change.file.clone(), why, back, stuck }));
    }
    Ok(())
}

/// Puts the old values back, last first. What is back and what is not, as `name=value`.
pub(crate) fn put_back(host: &impl Writes, changes: &[Change]) -> (Vec<String>, Vec<String>) {
    let (mut back, mut stuck) = (Vec::new(), Vec::new());
    for change in changes.iter().rev() {
        let is_back = host.write(&change.file, &change.before).is_ok_and(|now| now.value == change.before);
        let list = if is_back { &mut back } else { &mut stuck };
        list.push(format!("{}={}", change.name, change.before));
    }
    (back, stuck)
}

/// The exit code for a file that cannot be read or written.
pub(crate) fn exit_code(error: Error) -> u8 {
    match error.kind() {
        ErrorKind::Permission => exit::PERMISSION,
        ErrorKind::Invalid => exit::USAGE,
        _ if error.code == libc::EROFS => exit::PERMISSION,
        _ if error.code == libc::EXDEV => exit::USAGE,
        _ => exit::UNSUPPORTED,
    }
}

/// Why a write was refused and what to do: the rest of a sentence that begins with what was to be set.
pub(crate) fn refusal(file: &str, error: Error) -> String {
    let why = match error.code {
        libc::EROFS => {
            "is not possible: the file is on a read-only file system, as /sys is in most containers; run this on the \
             host, or give the container a writable /sys (privileged: true)"
        }
        libc::EACCES | libc::EPERM => "is not permitted: it needs root (sudo)",
        libc::EINVAL | libc::ERANGE => "is refused by the kernel: not a value it takes",
        libc::ENOENT => "is not possible: this kernel does not have it",
        libc::EXDEV => "is refused: the file's path leads out of --root",
        libc::EBADMSG => "is not possible: the file does not say what a kernel says there",
        _ => return format!("failed: {} ({file})", told(&std::io::Error::from_raw_os_error(error.code))),
    };
    format!("{why} ({file})")
}

/// `hugeheap`, with the root of this command line: how an undo line begins.
pub(crate) fn program(knobs: &Knobs) -> String {
    match knobs.root() {
        None => "hugeheap".to_owned(),
        Some(root) => format!("hugeheap --root {}", quoted(&root.display().to_string())),
    }
}

/// A word for a shell.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// What a command did, for its two ways of output.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) dry_run: bool,
    pub(crate) changes: Vec<Change>,
    /// The file that keeps the setting over a boot, and its line.
    pub(crate) persisted: Option<persist::Edit>,
    /// Command lines that put back what was there; empty when nothing changed.
    pub(crate) undo: Vec<String>,
}

impl Report {
    /// One line for each change, then the file, then the way back.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let width = self.changes.iter().map(|change| change.name.chars().count()).max().unwrap_or(0);
        for change in &self.changes {
            let name = &change.name;
            let _ = if change.is_needed() {
                writeln!(text, "{name:width$}  {} → {}", change.before, change.after)
            } else {
                writeln!(text, "{name:width$}  {} already", change.after)
            };
        }
        if let Some(edit) = &self.persisted {
            let verb = match (edit.is_needed(), self.dry_run) {
                (false, _) => "kept over a boot already by",
                (true, true) => "would be kept over a boot by",
                (true, false) => "kept over a boot by",
            };
            let _ = writeln!(text, "{verb} {}", edit.path.display());
        }
        if self.dry_run {
            text.push_str("dry run: nothing was written\n");
        } else if !self.undo.is_empty() {
            let _ = writeln!(text, "undo: {}", self.undo.join(" && "));
        }
        text
    }

    /// The members of the JSON document that all such commands share.
    pub(crate) fn json(&self, schema: &str) -> Value {
        json!({
            "schema": schema,
            "dry_run": self.dry_run,
            "changes": self.changes.iter().map(Change::json).collect::<Vec<_>>(),
            "persisted": self.persisted.as_ref().map(persist::Edit::json),
            "undo": self.undo,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// Knobs in memory; files named `deaf` keep their value, `closed` refuse, `brittle` refuse from the second
    /// write on.
    #[derive(Default)]
    struct Fake {
        values: RefCell<BTreeMap<String, String>>,
        writes: RefCell<Vec<String>>,
    }

    impl Writes for Fake {
        fn write(&self, file: &str, value: &str) -> Result<Knob> {
            let seen = self.writes.borrow().iter().filter(|write| write.starts_with(file)).count();
            self.writes.borrow_mut().push(format!("{file}={value}"));
            if file == "closed" || file == "brittle" && seen > 0 {
                return Err(Error::new("write(knob)", libc::EROFS));
            }
            if file != "deaf" {
                self.values.borrow_mut().insert(file.to_owned(), value.to_owned());
            }
            let value = self.values.borrow().get(file).cloned().unwrap_or_else(|| "0".to_owned());
            Ok(Knob { value, choices: Vec::new() })
        }
    }

    fn change(file: &str) -> Change {
        Change { name: file.into(), file: file.into(), before: "0".into(), after: "1".into() }
    }

    #[test]
    fn when_the_second_write_fails_the_first_is_put_back() {
        let host = Fake::default();
        let failure = apply(&host, &[change("a"), change("b"), change("closed"), change("c")]).unwrap_err();
        assert_eq!(*host.writes.borrow(), ["a=1", "b=1", "closed=1", "b=0", "a=0"]);
        assert_eq!(failure.exit_code(), exit::PERMISSION);
        let text = failure.to_string();
        assert!(text.contains("read-only") && text.contains("nothing is changed"), "{text}");
    }

    #[test]
    fn a_value_that_does_not_hold_is_a_failure() {
        let host = Fake::default();
        let failure = apply(&host, &[change("a"), change("deaf")]).unwrap_err();
        assert_eq!(host.values.borrow()["a"], "0");
        assert_eq!(failure.exit_code(), exit::UNSUPPORTED);
        assert!(failure.to_string().contains("deaf=1 did not hold"), "{failure}");
    }

    #[test]
    fn what_cannot_be_put_back_is_named() {
        let host = Fake::default();
        let failure = apply(&host, &[change("brittle"), change("closed")]).unwrap_err();
        assert!(failure.to_string().contains("brittle=0 could not be put back"), "{failure}");
        assert_eq!(failure.stuck, ["brittle=0"]);
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("/tmp/a-b_c.d"), "/tmp/a-b_c.d");
        assert_eq!(quoted("/tmp/a b"), "'/tmp/a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn codes_follow_the_reason() {
        for (code, status) in [
            (libc::EACCES, exit::PERMISSION),
            (libc::EROFS, exit::PERMISSION),
            (libc::EINVAL, exit::USAGE),
            (libc::ENOENT, exit::UNSUPPORTED),
            (libc::EXDEV, exit::USAGE),
            (libc::EIO, exit::UNSUPPORTED),
        ] {
            let error = Error::new("write(knob)", code);
            assert_eq!(exit_code(error), status);
            assert!(refusal("/sys/x", error).contains("/sys/x"));
        }
    }
}
