//! What the unit tests on the running kernel share: a directory that plays /proc and /sys, and who runs alone.

use super::read::Root;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by a test that forks, and by one that says which memory is on huge pages: a fork that comes between the
/// first touch of a huge page and the next write to it leaves this process with 512 OS pages instead.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // Another test's failure is its own.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A temporary root, removed when dropped.
pub(super) struct FakeRoot(tempfile::TempDir);

impl FakeRoot {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Writes a file and makes the directories it needs.
    pub(super) fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn root(&self) -> Root {
        Root::new(self.path()).unwrap()
    }
}

/// Runs `body` without the privilege to read everything, where this process has it: as another user, in this
/// thread only.
pub(super) fn unprivileged<T>(body: impl FnOnce() -> T) -> T {
    const KEEP: libc::c_long = -1;
    const NOBODY: libc::c_long = 65534;
    let set_effective_user = |user: libc::c_long| {
        // SAFETY: the raw call changes the credentials of this thread alone; the library's wrapper would change all.
        unsafe { libc::syscall(libc::SYS_setresuid, KEEP, user, KEEP) }
    };
    // SAFETY: no preconditions.
    let user = unsafe { libc::geteuid() };
    if user != 0 {
        return body();
    }
    assert_eq!(set_effective_user(NOBODY), 0);
    let result = body();
    assert_eq!(set_effective_user(0), 0);
    result
}
