//! The telemetry records of the processes a command consisted of.
//!
//! Each process that loaded the library maps a file `DIR/PID.hugeheap`, and one more, `DIR/PID-2.hugeheap` and
//! so on, for each further runtime that it contains. They are read when the command has ended; records of
//! killed processes too, and those of daemons that go on.

use crate::descriptors::told;
use hugeheap::telemetry::Snapshot;
use hugeheap::telemetry::publish::{DIRECTORY_NAME_MAX, ReadError, Record};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use tempfile::TempDir;

/// A private directory for the records of one command. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Records(TempDir);

/// What was found in a directory of records.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// One snapshot per process, of all its runtimes, in the order of their ids.
    pub(crate) snapshots: Vec<Snapshot>,
    /// Files that were no readable record, with the reason.
    pub(crate) unreadable: Vec<String>,
}

impl Records {
    /// Makes the directory.
    pub(crate) fn new() -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("hugeheap-run-").tempdir()?;
        // SAFETY: only answers a number.
        if unsafe { libc::geteuid() } == 0 {
            // A command of root may drop to another user (gunicorn's --user), whose processes make files here too;
            // they cannot list it or touch those of others.
            fs::set_permissions(directory.path(), Permissions::from_mode(0o1733))?;
        }
        Ok(Self(directory))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Reads all records.
    pub(crate) fn read(&self) -> Found {
        let mut found = Found::default();
        let Ok(entries) = fs::read_dir(self.path()) else { return found };
        let mut records = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|extension| extension != "hugeheap") {
                continue;
            }
            match read(&path) {
                Ok(snapshot) => records.push((snapshot.pid, path, snapshot)),
                Err(why) => found.unreadable.push(format!("{}: {why}", path.display())),
            }
        }
        // By number, the first runtime first: it has the shortest name.
        records.sort_by(|(one, path, _), (other, longer, _)| {
            (one, path.as_os_str().len(), path).cmp(&(other, longer.as_os_str().len(), longer))
        });
        for (pid, _, snapshot) in records {
            match found.snapshots.last_mut() {
                Some(first) if first.pid == pid => first.merge(&snapshot),
                _ => found.snapshots.push(snapshot),
            }
        }
        found
    }
}

/// Why no process could keep its record in `directory` now, if so. The library does not say it: a program that
/// runs is not disturbed.
pub(crate) fn unusable(directory: &Path) -> Option<String> {
    if directory.as_os_str().len() > DIRECTORY_NAME_MAX {
        return Some(format!("the name has more than {DIRECTORY_NAME_MAX} bytes"));
    }
    let made = tempfile::NamedTempFile::new_in(directory);
    // Its own text names the temporary file, too.
    made.err().map(|error| error.kind().to_string())
}

/// Reads the record in the file `path`.
pub(crate) fn read(path: &Path) -> Result<Snapshot, String> {
    // The directory may be writable for others: no links, no pipes that block, no files that are too short.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| told(&error).to_string())?;
    let kind = file.metadata().map_err(|error| told(&error).to_string())?;
    if !kind.is_file() || kind.len() < size_of::<Record>() as u64 {
        return Err("not a record".to_owned());
    }
    let mapped = Mapped::new(&file).map_err(|error| told(&error).to_string())?;
    mapped.record().read().map_err(|error| match error {
        ReadError::Foreign => "made by another version of hugeheap, or never filled".to_owned(),
        ReadError::Torn => "its process was killed while it wrote the record".to_owned(),
    })
}

/// A file of records, mapped: its writer may still be running, and its words change under us.
struct Mapped(*const Record);

impl Mapped {
    fn new(file: &File) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Record>(),
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(address.cast_const().cast()))
    }

    fn record(&self) -> &Record {
        // SAFETY: mapped with a Record's size, aligned to a page, and consisting of atomic numbers, for which
        // every content is valid and may change at any time. Lives as long as self.
        unsafe { &*self.0 }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by new, and no reference to it outlives self.
        unsafe { libc::munmap(self.0.cast_mut().cast(), size_of::<Record>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, snapshot: &Snapshot) {
        let record = Record::new();
        record.write(snapshot);
        // SAFETY: a Record is plain numbers of this size.
        let bytes: [u8; size_of::<Record>()] = unsafe { std::mem::transmute(record) };
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn records_are_read_and_rubbish_is_named() {
        let records = Records::new().unwrap();
        for pid in [30, 4, 12] {
            let path = records.path().join(format!("{pid}.hugeheap"));
            write(&path, &Snapshot { pid, live: 5, ..Snapshot::EMPTY });
        }
        fs::write(records.path().join("7.hugeheap"), "short").unwrap();
        fs::write(records.path().join("8.hugeheap"), [0; 4096]).unwrap();
        fs::write(records.path().join("note.txt"), "not ours").unwrap();
        std::os::unix::fs::symlink("/dev/zero", records.path().join("9.hugeheap")).unwrap();
        let found = records.read();
        let pids: Vec<_> = found.snapshots.iter().map(|snapshot| snapshot.pid).collect();
        assert_eq!(pids, [4, 12, 30]);
        assert_eq!(found.unreadable.len(), 3, "{:?}", found.unreadable);
    }

    #[test]
    fn the_runtimes_of_a_process_are_told_together() {
        let records = Records::new().unwrap();
        for (name, pid, live, policy) in
            [("4", 4, 5, 1), ("4-2", 4, 6, 2), ("4-10", 4, 7, 3), ("42", 42, 8, 4)]
        {
            let path = records.path().join(format!("{name}.hugeheap"));
            write(&path, &Snapshot { pid, live, policy, ..Snapshot::EMPTY });
        }
        let found = records.read();
        let told: Vec<_> =
            found.snapshots.iter().map(|process| (process.pid, process.live, process.policy)).collect();
        assert_eq!(told, [(4, 18, 1), (42, 8, 4)]);
    }

    #[test]
    fn the_directory_is_removed() {
        let records = Records::new().unwrap();
        let path = records.path().to_path_buf();
        assert!(path.is_dir());
        drop(records);
        assert!(!path.exists());
    }
}
