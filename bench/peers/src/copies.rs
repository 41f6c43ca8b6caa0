//! Copies of programs: each run is another file, so that no allocator has the luck or the bad luck of one file
//! in all of its runs.
//!
//! ```text
//!   program ── copied ─▶ a file of its own ── run ─▶ removed
//!               other pages of the page cache each time
//! ```
//!
//! Where the kernel has a program's file in physical memory decides which of its lines are in each other's way
//! in a processor's caches, and that stays as it is for as long as the file is cached: one program ran
//! `xmalloc` in 1.6 times the time of a byte-identical copy of its file, in each run, for as long as it was
//! cached (`docs/measurements/placement.py` shows it for any program). Runs by turns cannot tell that from a
//! difference of the allocators.

use std::io;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempPath;

/// A program to run once: removed when it is dropped.
#[derive(Debug)]
pub(crate) enum Copy {
    Made(TempPath),
    /// The program itself, because it could not be copied.
    Original(PathBuf),
}

impl Deref for Copy {
    type Target = Path;

    fn deref(&self) -> &Path {
        match self {
            Self::Made(path) => path,
            Self::Original(path) => path,
        }
    }
}

impl Copy {
    /// A copy of `program`, beside it: there is room for programs there, and they may be run. If that cannot
    /// be, the program itself and why.
    pub(crate) fn of(program: &Path) -> (Self, Option<String>) {
        match make(program) {
            Ok(path) => (Self::Made(path), None),
            Err(error) => (
                Self::Original(program.to_owned()),
                Some(format!(
                    "{} could not be copied, so all its runs are of one file: {error}",
                    program.display()
                )),
            ),
        }
    }
}

fn make(program: &Path) -> io::Result<TempPath> {
    let directory = program.parent().unwrap_or(Path::new("."));
    let mut from = std::fs::File::open(program)?;
    let mut to = tempfile::Builder::new().prefix(".peers-").tempfile_in(directory)?;
    // Read and written, not cloned by the file system, which would share what is cached.
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut from, &mut bytes)?;
    io::Write::write_all(&mut to, &bytes)?;
    to.as_file().set_permissions(std::fs::Permissions::from_mode(0o755))?;
    // Closed: a file that is open for writing cannot be run.
    Ok(to.into_temp_path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_copy_runs_as_its_program_does_and_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        std::fs::write(&program, "#!/bin/sh\necho said\n").unwrap();
        let (copy, why) = Copy::of(&program);
        assert!(why.is_none(), "{why:?}");
        let path = copy.to_path_buf();
        assert!(path != program && path.parent() == program.parent());
        let output = Command::new(&path).output().unwrap();
        assert_eq!(output.stdout, b"said\n");
        drop(copy);
        assert!(!path.exists() && program.exists());
    }

    #[test]
    fn what_cannot_be_copied_is_run_itself_and_why_is_said() {
        let (copy, why) = Copy::of(Path::new("/no/such/program"));
        assert_eq!(&*copy, Path::new("/no/such/program"));
        let why = why.unwrap();
        assert!(why.contains("/no/such/program") && why.contains("could not be copied"), "{why}");
    }
}
