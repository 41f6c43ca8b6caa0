//! Reading the small text files of /proc and /sys without the heap.
//!
//! Terms: a *root* is the directory that /proc and /sys are looked up in: empty for the real ones, another
//! for tests and for containers that see the host's under a different path. A *path* is built in a
//! fixed buffer on the stack. A file is read either whole into the caller's buffer ([`whole`]) or
//! [line by line](super::lines) through a fixed window.
//!
//! Invariants (but for [`list`], which needs the heap): no heap, no locks, no formatting; every descriptor is
//! closed on all ways out and never survives an `exec`; an interrupted call is made again. A file that does not
//! fit is an error, never a silent prefix; only [`Lines`](super::lines::Lines) shortens, and says so. Files are
//! read by position only. When the program closes the number meanwhile and gets it for a socket, that fails,
//! where `read` would wait for a message and take it from the program ([`descriptors`](super::descriptors)).
//!
//! What is said of this process's memory is read below /proc/thread-self: /proc/self is the leader, and of one
//! that has [ended](super::leader) before other threads it says that it has none.
//!
//! Errors carry one static name for the whole file ("read(/proc/meminfo)"; that of a process's is named below
//! /proc/self): the code tells whether opening (`ENOENT`, `EACCES`), reading, or understanding it failed
//! (`EBADMSG`).

use crate::{Error, Result};
use core::ffi::{CStr, c_int};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest path this module opens. Control groups of container platforms nest to about 300 bytes; the limit
/// keeps all buffers of one fact under 8 KiB of stack.
const PATH_MAX: usize = 1024;
/// Longest root. Leaves room for what follows it in a path.
const ROOT_MAX: usize = 256;

/// The directory that holds `proc` and `sys`; empty for the real ones.
#[derive(Clone, Copy)]
pub(super) struct Root {
    bytes: [u8; ROOT_MAX],
    len: usize,
}

impl Root {
    /// The real /proc and /sys.
    pub(super) const REAL: Self = Self { bytes: [0; ROOT_MAX], len: 0 };

    /// The ones in `dir`.
    pub(super) fn new(dir: &Path) -> Result<Self> {
        let bytes = dir.as_os_str().as_bytes();
        let trimmed = bytes.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        if trimmed > ROOT_MAX || bytes.contains(&0) {
            return Err(Error::new("root", libc::ENAMETOOLONG));
        }
        let mut root = Self::REAL;
        root.bytes[..trimmed].copy_from_slice(&bytes[..trimmed]);
        root.len = trimmed;
        Ok(root)
    }

    /// The root's path without a slash at the end.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Does something with the path of what `parts` (the first of which begins with a slash) are together under
    /// this root. Apart, so that who asks has none of its kibibyte on the stack, and no two at a time: for what
    /// the first request of a thread asks, which may have 16 KiB.
    #[inline(never)]
    pub(super) fn at<R>(
        &self,
        parts: &[&[u8]],
        work: impl FnOnce(&mut PathBuffer) -> Result<R>,
    ) -> Result<R> {
        let mut path = PathBuffer::new();
        path.push(self.as_bytes())?;
        parts.iter().try_for_each(|part| path.push(part))?;
        work(&mut path)
    }

    /// The path of `absolute` (which begins with a slash) under this root.
    pub(super) fn path(&self, absolute: &[u8]) -> Result<PathBuffer> {
        let mut path = PathBuffer::new();
        path.push(self.as_bytes())?;
        path.push(absolute)?;
        Ok(path)
    }
}

/// A path in a fixed buffer.
#[derive(Clone, Copy)]
pub(super) struct PathBuffer {
    /// Always ends in at least one zero byte.
    bytes: [u8; PATH_MAX],
    len: usize,
}

impl PathBuffer {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; PATH_MAX], len: 0 }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Appends text. A zero byte in it would end the path early and is refused.
    pub(super) fn push(&mut self, text: &[u8]) -> Result<()> {
        let end = self.len + text.len();
        if end >= PATH_MAX || text.contains(&0) {
            return Err(Error::new("path", libc::ENAMETOOLONG));
        }
        self.bytes[self.len..end].copy_from_slice(text);
        self.len = end;
        Ok(())
    }

    /// Appends a number in decimal.
    pub(super) fn push_decimal(&mut self, mut number: usize) -> Result<()> {
        // 20 digits hold every 64-bit number.
        let mut digits = [0; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.push(&digits[first..])
    }

    /// Shortens the path to `len` bytes; longer stays as it is.
    pub(super) fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.bytes[len..self.len].fill(0);
            self.len = len;
        }
    }

    fn as_c_str(&self) -> &CStr {
        // The zero byte is there by the invariant of `bytes`.
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

/// An open file. Closed when dropped.
pub(super) struct File {
    descriptor: c_int,
    name: &'static str,
    /// Where the next [`Source::read`] begins.
    position: u64,
}

impl File {
    /// Opens for reading; `name` is what errors of this file are called.
    pub(super) fn open(path: &PathBuffer, name: &'static str) -> Result<Self> {
        Self::open_c(path.as_c_str(), name)
    }

    /// As [`open`](Self::open), for a path that is known already.
    pub(super) fn open_c(path: &CStr, name: &'static str) -> Result<Self> {
        loop {
            // SAFETY: `path` ends in a zero byte and lives through the call.
            let descriptor = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
            if descriptor >= 0 {
                return Ok(Self { descriptor, name, position: 0 });
            }
            let error = Error::last(name);
            if error.code != libc::EINTR {
                return Err(error);
            }
        }
    }

    /// The descriptor, for calls other than reading.
    pub(super) fn descriptor(&self) -> c_int {
        self.descriptor
    }

    /// Reads at `offset`; 0 at the end of the file.
    pub(super) fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        loop {
            // SAFETY: the pointer and the length describe `buffer`, which is borrowed for the call.
            let count = unsafe {
                libc::pread(self.descriptor, buffer.as_mut_ptr().cast(), buffer.len(), offset as libc::off_t)
            };
            if let Ok(count) = usize::try_from(count) {
                return Ok(count);
            }
            let error = Error::last(self.name);
            if error.code != libc::EINTR {
                return Err(error);
            }
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own and is not used after this.
        unsafe { libc::close(self.descriptor) };
    }
}

/// Something that bytes come from: a file, or in tests a slice.
pub(super) trait Source {
    /// Fills the front of `buffer` and says how much; 0 at the end.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize>;
}

impl Source for File {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let count = self.read_at(buffer, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Source for &[u8] {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let count = self.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self[..count]);
        *self = &self[count..];
        Ok(count)
    }
}

/// Reads a whole file into `buffer`.
///
/// # Errors
/// `EFBIG` when it does not fit; what opening and reading answer.
pub(super) fn whole<'a>(path: &PathBuffer, buffer: &'a mut [u8], name: &'static str) -> Result<&'a [u8]> {
    let filled = fill(&mut File::open(path, name)?, buffer, name, |_| false)?;
    Ok(&buffer[..filled])
}

/// As [`whole`], for a file of one line: its newline ends it, and the end of the file is not asked for, which
/// is a system call of four.
pub(super) fn line<'a>(path: &PathBuffer, buffer: &'a mut [u8], name: &'static str) -> Result<&'a [u8]> {
    let filled = fill(&mut File::open(path, name)?, buffer, name, ends_line)?;
    Ok(&buffer[..filled])
}

fn ends_line(text: &[u8]) -> bool {
    text.ends_with(b"\n")
}

/// Fills the front of `buffer` until the source ends, or `ends` says so of what was read, and says how much that is.
fn fill(
    source: &mut impl Source,
    buffer: &mut [u8],
    name: &'static str,
    ends: impl Fn(&[u8]) -> bool,
) -> Result<usize> {
    let mut filled = 0;
    loop {
        if filled == buffer.len() {
            return Err(Error::new(name, libc::EFBIG));
        }
        match source.read(&mut buffer[filled..])? {
            0 => return Ok(filled),
            count => filled += count,
        }
        if filled < buffer.len() && ends(&buffer[..filled]) {
            return Ok(filled);
        }
    }
}

/// Reads a file that holds one decimal number.
pub(super) fn number(path: &PathBuffer, name: &'static str) -> Result<u64> {
    // The longest number has 20 digits and a newline; the file must fit with a byte to spare.
    let mut buffer = [0; 64];
    decimal(line(path, &mut buffer, name)?).ok_or(malformed(name))
}

/// The error for a file that was read and not understood.
pub(super) const fn malformed(name: &'static str) -> Error {
    Error::new(name, libc::EBADMSG)
}

/// A decimal number with spaces around it and nothing else. `None` for anything else, also for one above 2⁶⁴ − 1.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    digits(text.trim_ascii(), 10)
}

/// A number in `radix`: at least one digit and only digits, no sign.
pub(super) fn digits(text: &[u8], radix: u32) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, &byte| {
        let digit = char::from(byte).to_digit(radix)?;
        number.checked_mul(u64::from(radix))?.checked_add(u64::from(digit))
    })
}

/// The rest of a line that begins with `key` and a colon, space or tab.
fn after_key<'a>(line: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let (separator, rest) = line.strip_prefix(key)?.split_first()?;
    matches!(separator, b':' | b' ' | b'\t').then_some(rest.trim_ascii())
}

/// The value of `key` in a line like `anon 4096`.
pub(super) fn number_of(line: &[u8], key: &[u8]) -> Option<u64> {
    decimal(after_key(line, key)?)
}

/// The value of `key` in a line like `MemTotal:  24683560 kB`, in bytes. Without its unit the number may be cut short,
/// and counts as absent.
pub(super) fn bytes_of(line: &[u8], key: &[u8]) -> Option<u64> {
    decimal(after_key(line, key)?.strip_suffix(b"kB")?)?.checked_mul(1024)
}

/// The names in a directory. Allocates.
pub(super) fn list(root: &Root, dir: &[u8], name: &'static str) -> Result<Vec<OsString>> {
    let path = root.path(dir)?;
    let failed = |error: std::io::Error| Error::new(name, error.raw_os_error().unwrap_or(libc::EIO));
    let entries = std::fs::read_dir(OsStr::from_bytes(path.as_bytes())).map_err(failed)?;
    entries.map(|entry| Ok(entry.map_err(failed)?.file_name())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    proptest! {
        #[test]
        fn decimals_are_those_of_the_standard_library(number: u64) {
            prop_assert_eq!(decimal(format!(" {number}\n").as_bytes()), Some(number));
            let mut path = PathBuffer::new();
            path.push_decimal(number as usize).unwrap();
            let expected = number.to_string();
            prop_assert_eq!(path.as_bytes(), expected.as_bytes());
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text: Vec<u8>) {
            let _ = (decimal(&text), digits(&text, 16), bytes_of(&text, b"Key"), number_of(&text, b"Key"));
        }
    }

    #[test]
    fn numbers_that_are_none() {
        for text in [&b""[..], b" ", b"-1", b"+1", b"1 2", b"0x10", b"18446744073709551616", b"1\0"] {
            assert_eq!(decimal(text), None, "{text:?}");
        }
        assert_eq!(decimal(b"18446744073709551615\n"), Some(u64::MAX));
    }

    #[test]
    fn values_need_their_whole_key() {
        assert_eq!(bytes_of(b"MemTotal:       24683560 kB", b"MemTotal"), Some(24_683_560 << 10));
        assert_eq!(number_of(b"anon 4096", b"anon"), Some(4096));
        assert_eq!(number_of(b"anon_thp 4096", b"anon"), None);
        assert_eq!(bytes_of(b"MemTotal: 4096", b"MemTotal"), None);
        assert_eq!(bytes_of(b"MemTotal:", b"MemTotal"), None);
        assert_eq!(bytes_of(b"MemTotal: 18446744073709551615 kB", b"MemTotal"), None);
    }

    #[test]
    fn whole_files_fit_or_fail() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "12345678").unwrap();
        let root = Root::new(dir.path()).unwrap();
        let path = root.path(b"/file").unwrap();
        assert_eq!(whole(&path, &mut [0; 9], "read").unwrap(), b"12345678");
        assert_eq!(whole(&path, &mut [0; 8], "read").unwrap_err().code, libc::EFBIG);
        assert_eq!(number(&path, "read"), Ok(12_345_678));
        let missing = root.path(b"/missing").unwrap();
        assert_eq!(number(&missing, "read"), Err(Error::new("read", libc::ENOENT)));
        std::fs::write(dir.path().join("file"), "many").unwrap();
        assert_eq!(number(&path, "read"), Err(Error::new("read", libc::EBADMSG)));
        assert_eq!(number(&root.path(b"").unwrap(), "read"), Err(Error::new("read", libc::EISDIR)));
    }

    /// Gives its text in pieces, and says how often it was asked.
    struct Pieces {
        left: Vec<&'static [u8]>,
        asked: usize,
    }

    impl Source for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
            self.asked += 1;
            let piece = if self.left.is_empty() { &[][..] } else { self.left.remove(0) };
            buffer[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    /// Of four system calls for a knob one asked for what comes after its line.
    #[test]
    fn the_end_of_a_file_of_one_line_was_asked_for() {
        for (pieces, text, asked) in [
            (vec![&b"madvise\n"[..]], &b"madvise\n"[..], 1),
            (vec![b"mad", b"vise\n"], b"madvise\n", 2),
            (vec![b"mad", b"vise"], b"madvise", 3),
            (vec![], b"", 1),
        ] {
            let mut source = Pieces { left: pieces, asked: 0 };
            let mut buffer = [0; 16];
            let filled = fill(&mut source, &mut buffer, "read", ends_line).unwrap();
            assert_eq!((&buffer[..filled], source.asked), (text, asked));
        }
        let mut long = Pieces { left: vec![b"madvise\n"], asked: 0 };
        assert_eq!(fill(&mut long, &mut [0; 8], "read", ends_line).unwrap_err().code, libc::EFBIG);
    }

    /// Reading waited on a socket that had got the number of a file, and took what came there.
    #[test]
    fn a_socket_that_got_the_number_of_a_file_loses_nothing() {
        use std::io::{Read, Write};
        let (mut sender, mut receiver) = std::os::unix::net::UnixStream::pair().unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "1").unwrap();
        let path = Root::new(dir.path()).unwrap().path(b"/file").unwrap();
        let mut file = File::open(&path, "read").unwrap();
        // Who reads there fails instead of waiting for good.
        receiver.set_nonblocking(true).unwrap();
        // SAFETY: both numbers are open; `file` owns the one that becomes a socket.
        unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&receiver), file.descriptor()) };
        assert_eq!(file.read(&mut [0; 8]), Err(Error::new("read", libc::ESPIPE)));
        sender.write_all(b"message").unwrap();
        assert_eq!(file.read(&mut [0; 8]), Err(Error::new("read", libc::ESPIPE)));
        let mut message = [0; 7];
        receiver.read_exact(&mut message).unwrap();
        assert_eq!(&message, b"message");
    }

    #[test]
    fn unreadable_files_say_so() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "1").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).unwrap();
        let path = Root::new(dir.path()).unwrap().path(b"/file").unwrap();
        let denied = || super::super::testing::unprivileged(|| number(&path, "read"));
        assert_eq!(denied(), Err(Error::new("read", libc::EACCES)));
    }

    #[test]
    fn roots_and_paths_have_an_end() {
        assert_eq!(Root::new(Path::new("/")).unwrap().as_bytes(), b"");
        assert_eq!(Root::new(Path::new("/a//")).unwrap().path(b"/proc").unwrap().as_bytes(), b"/a/proc");
        let long = "x".repeat(ROOT_MAX + 1);
        assert_eq!(Root::new(Path::new(&long)).map(|_| ()), Err(Error::new("root", libc::ENAMETOOLONG)));
        let mut path = PathBuffer::new();
        path.push(&[b'x'; PATH_MAX - 1]).unwrap();
        assert!(path.push(b"x").is_err());
        path.truncate(3);
        assert_eq!(path.as_c_str(), c"xxx");
        assert!(path.push(b"a\0b").is_err());
    }
}
