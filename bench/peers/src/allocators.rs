//! The allocators: their programs, their own huge-page options, their versions.
//!
//! Every peer is measured at its best: those that have an option for huge pages get it, by environment, because
//! that is how their users would.

use std::path::{Path, PathBuf};

/// An allocator that a program is built with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Allocator {
    /// Its name here, on the command line and in its program's name.
    pub(crate) name: &'static str,
    /// The crate it comes from; `None`: from the system.
    pub(crate) package: Option<&'static str>,
    /// What makes it use huge pages, where it can be told.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// What that does, or why there is nothing to be told.
    pub(crate) note: &'static str,
}

/// The allocator the goals are about.
pub(crate) const OURS: &str = "hugeheap";
/// The peer the geometric mean is compared with.
pub(crate) const REFERENCE: &str = "mimalloc";

/// All of them, ours first.
pub(crate) static ALLOCATORS: [Allocator; 7] = [
    Allocator { name: OURS, package: Some("hugeheap"), environment: &[], note: "huge pages by default" },
    Allocator {
        name: REFERENCE,
        package: Some("mimalloc"),
        environment: &[("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")],
        note: "version 3; large pages allowed",
    },
    Allocator {
        name: "jemalloc",
        package: Some("tikv-jemallocator"),
        environment: &[("_RJEM_MALLOC_CONF", "thp:always")],
        note: "advises huge pages everywhere",
    },
    Allocator {
        name: "snmalloc",
        package: Some("snmalloc-rs"),
        environment: &[],
        note: "no option for huge pages",
    },
    Allocator {
        name: "tcmalloc",
        package: Some("tcmalloc-better"),
        // A thread has one registration for restartable sequences. The C library takes it at the start, and tcmalloc's
        // caches per CPU need it for themselves.
        environment: &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")],
        note: "huge pages by default; restartable sequences left to it, background thread started",
    },
    Allocator {
        name: "rpmalloc",
        package: Some("rpmalloc"),
        environment: &[],
        note: "its crate has no option for huge pages",
    },
    Allocator {
        name: "system",
        package: None,
        environment: &[("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")],
        note: "glibc since 2.35: advises huge pages",
    },
];

/// The versions the programs of this workspace are built with.
const LOCK: &str = include_str!("../../Cargo.lock");

impl Allocator {
    /// By its name or that of its crate.
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        ALLOCATORS.iter().find(|allocator| allocator.name == name || allocator.package == Some(name))
    }

    /// Where its program is, in the directory of this one.
    pub(crate) fn program(&self, directory: &Path) -> PathBuf {
        directory.join(format!("workloads-{}", self.name))
    }

    /// The version of its crate, or of the system's library.
    pub(crate) fn version(&self) -> String {
        match self.package {
            Some(package) => locked(LOCK, package).unwrap_or("unknown").to_owned(),
            None => system_version(),
        }
    }

    /// Its variables as they would be typed.
    pub(crate) fn settings(&self) -> String {
        let settings: Vec<_> =
            self.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        settings.join(" ")
    }
}

/// The version of `package` in a lock file.
fn locked<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let entry = lock.split("[[package]]").find(|entry| {
        entry
            .lines()
            .any(|line| line.strip_prefix("name = ").is_some_and(|name| name.trim_matches('"') == package))
    })?;
    let version = entry.lines().find_map(|line| line.strip_prefix("version = "))?;
    Some(version.trim_matches('"'))
}

#[cfg(target_env = "gnu")]
fn system_version() -> String {
    // SAFETY: returns a constant string.
    let text = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    format!("glibc {}", text.to_string_lossy())
}

#[cfg(not(target_env = "gnu"))]
fn system_version() -> String {
    "unknown".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_is_found_by_both_names_and_has_a_version() {
        for allocator in &ALLOCATORS {
            assert_eq!(Allocator::find(allocator.name), Some(allocator));
            if let Some(package) = allocator.package {
                assert_eq!(Allocator::find(package), Some(allocator));
            }
            assert_ne!(allocator.version(), "unknown", "{}", allocator.name);
        }
        assert_eq!(Allocator::find("malloc"), None);
    }

    #[test]
    fn versions_are_read_from_the_lock_file() {
        let lock =
            "[[package]]\nname = \"ab\"\nversion = \"1.2\"\n\n[[package]]\nname = \"a\"\nversion = \"3\"\n";
        assert_eq!(locked(lock, "a"), Some("3"));
        assert_eq!(locked(lock, "b"), None);
    }
}
