//! Files of results: there is the whole of one, or none, or the one that was there before.

use crate::exit;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tempfile::NamedTempFile;

/// Writes a file beside `path` and puts it in its place. What is no file (a pipe, a device) is written to.
///
/// Written over in place, a result of yesterday would be gone when the disk is full, and a half one would be
/// taken for one. On an error an empty file is taken away: it was made to see whether there can be one.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        return std::fs::write(path, text);
    }
    let replaced = beside(path, text);
    if replaced.is_err() && std::fs::metadata(path).is_ok_and(|about| about.len() == 0) {
        let _ = std::fs::remove_file(path);
    }
    replaced
}

/// Whether [`replace`] could write a file now, as far as its directory tells: for a result that is there much later.
pub(crate) fn can_replace(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path).is_ok() {
        return OpenOptions::new().append(true).open(path).map(drop);
    }
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    new_in(directory.unwrap_or(Path::new("."))).map(drop)
}

/// The exit code where a file named on the command line cannot be written: a wrong name, a missing permission,
/// or a place that cannot take it. With one code for all, that of findings or of a mistyped option, who reads
/// codes took a full disk for either.
pub(crate) fn refused(error: &io::Error) -> u8 {
    use io::ErrorKind::{
        AlreadyExists, IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem,
    };
    match error.kind() {
        // A directory that is to be made where a file is.
        AlreadyExists | NotFound | NotADirectory | IsADirectory => exit::USAGE,
        PermissionDenied | ReadOnlyFilesystem => exit::PERMISSION,
        _ => exit::UNSUPPORTED,
    }
}

/// A file of its owner's alone, taken away when it is dropped. Opened here, an error is the system's:
/// tempfile's own tells of the name, which says nothing to the reader, and has no number, so that too many open
/// files, or a disk that fails, was an "uncategorized error".
pub(crate) fn new_in(directory: &Path) -> io::Result<NamedTempFile> {
    named_in(directory, ".tmp")
}

/// The same, with the first letters of its name.
pub(crate) fn named_in(directory: &Path, prefix: &str) -> io::Result<NamedTempFile> {
    tempfile::Builder::new().prefix(prefix).make_in(directory, |path| {
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
    })
}

fn beside(path: &Path, text: &str) -> io::Result<()> {
    // Of a link, what it leads to is to be replaced. A file that is new has its name alone.
    let made = OpenOptions::new().append(true).create(true).open(path)?;
    let path = &path.canonicalize()?;
    let directory = path.parent().unwrap_or(Path::new("."));
    let beside = new_in(directory)?;
    beside.as_file().write_all(text.as_bytes())?;
    // A temporary file is its owner's alone; this one is as the file that was opened for it.
    beside.as_file().set_permissions(made.metadata()?.permissions())?;
    beside.persist(path).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_file_is_replaced_as_a_whole_and_keeps_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("a.json"), directory.path().join("link"));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&path, &link).unwrap();
        replace(&link, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        replace(&directory.path().join("b.json"), "first").unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3, "nothing else is left");
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        assert!(replace(Path::new("/dev/full"), "x").is_err());
        assert!(Path::new("/dev/full").exists());
        assert!(replace(Path::new("/no/such/directory/a.json"), "x").is_err());
        assert!(can_replace(Path::new("/no/such/directory/a.json")).is_err());
        let code = |path| refused(&replace(Path::new(path), "x").unwrap_err());
        assert_eq!(code("/dev/full"), exit::UNSUPPORTED);
        assert_eq!(code("/no/such/directory/a.json"), exit::USAGE);
        assert_eq!(code("/dev/null/a.json"), exit::USAGE);
        assert_eq!(refused(&std::fs::create_dir_all("/dev/null").unwrap_err()), exit::USAGE);
        assert_eq!(refused(&io::ErrorKind::ReadOnlyFilesystem.into()), exit::PERMISSION);
    }

    #[test]
    fn to_ask_whether_a_file_could_be_written_leaves_nothing_and_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        can_replace(&path).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        fs::write(&path, "old").unwrap();
        can_replace(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert!(can_replace(directory.path()).is_err(), "a directory");
    }
}
