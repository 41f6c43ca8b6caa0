//! The environment a command gets: the contract with the preload library.
//!
//! Everything is said by variables, because they survive `exec` and reach children. What is already set and not
//! touched by an option stays: `HUGEHEAP_DISABLE=1 hugeheap run …` must do what it says.

use crate::cli::RunArguments;
use hugeheap::telemetry::Level;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

/// The variable the dynamic loader reads.
pub(crate) const PRELOAD: &str = "LD_PRELOAD";
/// The variable that names the directory of telemetry records.
pub(crate) const TELEMETRY: &str = "HUGEHEAP_TELEMETRY";
/// The variable that asks for OS pages that are alike.
pub(crate) const MERGE: &str = "HUGEHEAP_MERGE";
/// The variable that asks for hardened heaps.
pub(crate) const HARDENED: &str = "HUGEHEAP_HARDENED";
/// The variable that names the level.
pub(crate) const LEVEL: &str = "HUGEHEAP_LEVEL";
/// The variable that names the policy.
pub(crate) const POLICY: &str = "HUGEHEAP_POLICY";

/// Variables to set.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment(Vec<(&'static str, OsString)>);

impl Environment {
    /// What `arguments` ask for at `level`, with `library` preloaded and records in `telemetry`.
    pub(crate) fn new(
        arguments: &RunArguments,
        level: Level,
        library: &Path,
        telemetry: Option<&Path>,
    ) -> Self {
        let mut environment = Self::default();
        environment.set(PRELOAD, preload(library, std::env::var_os(PRELOAD)));
        environment.set(POLICY, arguments.policy.0.name());
        environment.set(LEVEL, level.name());
        if let Some(decay) = arguments.decay {
            environment.set("HUGEHEAP_DECAY", decay.to_string());
        }
        if let Some(limit) = arguments.limit {
            environment.set("HUGEHEAP_LIMIT", limit.to_string());
        }
        if arguments.merge {
            environment.set(MERGE, "1");
        }
        if arguments.hardened {
            environment.set(HARDENED, "1");
        }
        if arguments.no_children {
            environment.set("HUGEHEAP_CHILDREN", "0");
        }
        if arguments.no_thread {
            environment.set("HUGEHEAP_THREAD", "0");
        }
        if let Some(directory) = telemetry {
            environment.set(TELEMETRY, directory);
        }
        environment
    }

    fn set(&mut self, name: &'static str, value: impl AsRef<OsStr>) {
        self.0.push((name, value.as_ref().to_owned()));
    }

    /// Puts it on `command`.
    pub(crate) fn apply(&self, command: &mut Command) {
        for (name, value) in &self.0 {
            command.env(name, value);
        }
    }

    /// One line with all of it.
    pub(crate) fn describe(&self) -> String {
        let pairs: Vec<_> =
            self.0.iter().map(|(name, value)| format!("{name}={}", Path::new(value).display())).collect();
        pairs.join(" ")
    }
}

/// `LD_PRELOAD` with `library` before what was there: the first library's symbols win.
fn preload(library: &Path, before: Option<OsString>) -> OsString {
    let library = library.as_os_str().as_bytes();
    let mut all = library.to_vec();
    if let Some(before) = before {
        for entry in before.as_bytes().split(|&byte| byte == b':' || byte == b' ') {
            // A nested run: once is enough, and of the two libraries one.
            if !entry.is_empty() && !is_ours(entry) {
                all.push(b':');
                all.extend_from_slice(entry);
            }
        }
    }
    OsString::from_vec(all)
}

/// Whether an entry of `LD_PRELOAD` is a library of hugeheap's.
fn is_ours(entry: &[u8]) -> bool {
    let name = Path::new(OsStr::from_bytes(entry)).file_name();
    name.is_some_and(|name| super::library::NAMES.iter().any(|ours| name == *ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_once() {
        let library = Path::new("/l/libhugeheap_preload.so");
        let all = |before: &str| preload(library, Some(before.into())).into_string().unwrap();
        assert_eq!(preload(library, None), "/l/libhugeheap_preload.so");
        assert_eq!(all(""), "/l/libhugeheap_preload.so");
        assert_eq!(all("a.so b.so"), "/l/libhugeheap_preload.so:a.so:b.so");
        assert_eq!(all("a.so:/l/libhugeheap_preload.so"), "/l/libhugeheap_preload.so:a.so");
        // Two would be two runtimes.
        assert_eq!(all("/other/libhugeheap_malloc.so:a.so"), "/l/libhugeheap_preload.so:a.so");
    }
}
