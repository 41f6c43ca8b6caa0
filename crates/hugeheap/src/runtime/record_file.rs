//! The file of this runtime's record: which name it gets, and making it.
//!
//! A process can contain several runtimes: the preload library, the C library, a Rust program on the crate. The
//! first that asks gets `PID.hugeheap`, the others `PID-2.hugeheap` and so on.
//!
//! ```text
//!   name ──open(O_EXCL)──▶ made ──▶ stale files of the names behind it are removed ──▶ sized, mapped
//!     ▲          │ exists
//!     │          ├─ this process maps it: another runtime's ──▶ next name
//!     └──────────┴─ it does not: stale ──▶ unlinked
//! ```
//!
//! Stale is the file of a former process of that number, or of the program that this process was before an
//! `exec`. Nothing is ever truncated: whoever still maps a file keeps it, and writes where nobody reads.
//! (Truncating it took the memory from under the other runtime: a write in that moment was a `SIGBUS`.) Where
//! /proc is missing every file counts as stale. So does the file that another thread's runtime has made and not
//! mapped yet; the window is a few system calls, and what is lost is that record, not the program.
//!
//! System calls only: a forked child makes its record between `fork` and the first line of its program.

use super::publisher::{may_make_files, take_space};
use crate::telemetry::publish::{DIRECTORY_NAME_MAX, Record};
use core::ffi::CStr;
use hugeheap_os::linux::Linux;

/// Bytes of the file: a page, so that readers can map it.
pub(super) const FILE_BYTES: usize = 4096;

/// Room for the longest name of a directory, with the zero byte behind it.
pub(super) const DIRECTORY: usize = DIRECTORY_NAME_MAX + 1;

/// Runtimes of a process that get a file: each beyond the first is a library with a copy of hugeheap in it.
/// More go unobserved.
const RUNTIMES: u32 = 16;

/// Room for `/4294967295-16.hugeheap` behind the directory.
const NAME: usize = 32;

/// Makes and maps the record of this runtime in `directory`; null, and no file, when that fails.
pub(super) fn map(directory: &[u8; DIRECTORY]) -> *mut Record {
    let Ok(directory) = CStr::from_bytes_until_nul(directory) else { return core::ptr::null_mut() };
    if !may_make_files() {
        return core::ptr::null_mut();
    }
    for number in 1..=RUNTIMES {
        let path = Path::new(directory.to_bytes(), number);
        match path.make() {
            Made::File(file) => {
                (number + 1..=RUNTIMES)
                    .map(|number| Path::new(directory.to_bytes(), number))
                    .take_while(Path::exists)
                    .for_each(|path| _ = path.remove_if_stale());
                let record = map_file(file);
                if record.is_null() {
                    path.unlink();
                }
                return record;
            }
            Made::Taken => {}
            Made::Refused => break,
        }
    }
    core::ptr::null_mut()
}

/// What came of making a file.
enum Made {
    File(libc::c_int),
    /// It is the record of another runtime of this process.
    Taken,
    Refused,
}

/// The path of a record.
struct Path {
    /// Ends in a zero byte.
    bytes: [u8; DIRECTORY + NAME],
    length: usize,
    /// Where the slash before the name is.
    name: usize,
}

impl Path {
    /// That of this process's runtime `number`, from 1 on.
    fn new(directory: &[u8], number: u32) -> Self {
        let mut path = Self { bytes: [0; DIRECTORY + NAME], length: 0, name: directory.len() };
        path.push(directory);
        path.push(b"/");
        // SAFETY: getpid has no preconditions.
        path.push_number(unsafe { libc::getpid() } as u32);
        if number > 1 {
            path.push(b"-");
            path.push_number(number);
        }
        path.push(b".hugeheap");
        path
    }

    fn push(&mut self, text: &[u8]) {
        self.bytes[self.length..self.length + text.len()].copy_from_slice(text);
        self.length += text.len();
    }

    fn push_number(&mut self, mut number: u32) {
        let mut digits = [0; 10];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.push(&digits[first..]);
    }

    fn make(&self) -> Made {
        match self.create() {
            Ok(file) => Made::File(file),
            Err(libc::EEXIST) if !self.remove_if_stale() => Made::Taken,
            Err(libc::EEXIST) => self.create().map_or(Made::Refused, Made::File),
            Err(_) => Made::Refused,
        }
    }

    fn create(&self) -> Result<libc::c_int, libc::c_int> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        // SAFETY: the path ends in a zero byte: it has room for the longest name and one more. errno is the
        // thread's own.
        unsafe {
            let file = libc::open(self.bytes.as_ptr().cast(), flags, 0o600);
            if file >= 0 { Ok(file) } else { Err(*libc::__errno_location()) }
        }
    }

    fn exists(&self) -> bool {
        // SAFETY: the path ends in a zero byte.
        unsafe {
            libc::faccessat(libc::AT_FDCWD, self.bytes.as_ptr().cast(), libc::F_OK, libc::AT_SYMLINK_NOFOLLOW)
                == 0
        }
    }

    /// Removes the file, or tries to, unless it is the record of another runtime of this process. Whether it was stale.
    fn remove_if_stale(&self) -> bool {
        // With the slash: 17.hugeheap is not 7.hugeheap.
        let name = &self.bytes[self.name..self.length];
        let stale = !Linux::shares_file(name).unwrap_or(false);
        if stale {
            self.unlink();
        }
        stale
    }

    fn unlink(&self) {
        // SAFETY: the path ends in a zero byte.
        unsafe { libc::unlink(self.bytes.as_ptr().cast()) };
    }
}

/// Sizes, maps and closes a new file; null when that fails.
fn map_file(file: libc::c_int) -> *mut Record {
    // SAFETY: the file is this function's own, and filled before it is mapped; the mapping is new.
    unsafe {
        let mut record = core::ptr::null_mut();
        if take_space(file) {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let memory = libc::mmap(core::ptr::null_mut(), FILE_BYTES, access, libc::MAP_SHARED, file, 0);
            if memory != libc::MAP_FAILED {
                record = memory.cast();
            }
        }
        libc::close(file);
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;

    /// A directory of the test's own, removed at its end.
    struct Directory(PathBuf);

    impl Directory {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("hugeheap-record-file-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn map(&self) -> *mut Record {
            let mut bytes = [0; DIRECTORY];
            let path = self.0.as_os_str().as_bytes();
            bytes[..path.len()].copy_from_slice(path);
            map(&bytes)
        }

        fn file(&self, end: &str) -> PathBuf {
            self.0.join(format!("{}{end}.hugeheap", std::process::id()))
        }

        fn count(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn unmap(record: *mut Record) {
        // SAFETY: made by `map`; the test does not use it afterwards.
        unsafe { libc::munmap(record.cast(), FILE_BYTES) };
    }

    // One test: what a process maps is told by the name of the file, in whatever directory.
    #[test]
    fn each_runtime_gets_a_file_and_stale_ones_are_replaced() {
        let directory = Directory::new();
        // Of a former process of this number: three runtimes, and a file that a reader has open.
        for end in ["", "-2", "-3"] {
            fs::write(directory.file(end), "stale").unwrap();
        }
        let mut held = fs::File::open(directory.file("")).unwrap();
        let first = directory.map();
        assert!(!first.is_null());
        assert_eq!(directory.count(), 1, "the others were stale, too");
        assert_eq!(fs::metadata(directory.file("")).unwrap().len(), FILE_BYTES as u64);
        assert_eq!(std::io::read_to_string(&mut held).unwrap(), "stale", "not truncated");
        let second = directory.map();
        assert!(!second.is_null() && directory.file("-2").exists() && directory.count() == 2);
        let third = directory.map();
        assert!(!third.is_null() && directory.file("-3").exists());

        // One that is gone is made anew, and those behind it are left alone.
        unmap(second);
        let again = directory.map();
        assert!(!again.is_null() && directory.count() == 3);

        // Links are not followed.
        unmap(third);
        fs::remove_file(directory.file("-3")).unwrap();
        fs::write(directory.0.join("precious"), "precious").unwrap();
        std::os::unix::fs::symlink(directory.0.join("precious"), directory.file("-3")).unwrap();
        let third = directory.map();
        assert!(!third.is_null());
        assert!(fs::symlink_metadata(directory.file("-3")).unwrap().is_file());
        assert_eq!(fs::read_to_string(directory.0.join("precious")).unwrap(), "precious");

        // What cannot be replaced is an end, not a loop.
        unmap(again);
        fs::remove_file(directory.file("-2")).unwrap();
        fs::create_dir(directory.file("-2")).unwrap();
        assert!(directory.map().is_null());
        unmap(first);
        unmap(third);
    }
}
