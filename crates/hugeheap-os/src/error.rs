//! What went wrong in a call to the operating system, in a form policies can act on.
//!
//! Terms: the *call* is the operation of [`Pages`](crate::Pages) or [`Facts`](crate::Facts) that failed,
//! the *code* is the system's own error number, the *kind* is what a policy may do about it. An error is
//! `Copy` and holds no heap memory, because it is made inside allocators.

use core::fmt;

/// The result of an operating system call.
pub type Result<T> = core::result::Result<T, Error>;

/// What a caller can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No memory, no huge page, or no address space of the kind asked for (`ENOMEM`, `ENOSPC`). Fall back.
    OutOfMemory,
    /// A resource was busy for a moment (`EAGAIN`, `EINTR`). Trying again may work.
    Again,
    /// The memory cgroup could not be charged (`EBUSY` of a collapse). Fall back until memory is free.
    Busy,
    /// The request makes no sense to the kernel (`EINVAL`): usually a backing that is switched off.
    Invalid,
    /// Not allowed (`EPERM`, `EACCES`).
    Permission,
    /// This kernel does not have the call or the option (`ENOSYS`, `EOPNOTSUPP`).
    Unsupported,
    /// The process, file or mapping is not there (`ENOENT`, `ESRCH`, `EFAULT`).
    Missing,
    /// Anything else; look at [`Error::code`].
    Other,
}

/// A failed operating system call: which, why, and on what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// The operation that failed, as the system names it: `madvise(MADV_COLLAPSE)`, `open(/proc/meminfo)`.
    pub call: &'static str,
    /// The system's error number (`errno` on Unix).
    pub code: i32,
}

impl Error {
    /// An error of `call` with the system's number `code`.
    pub const fn new(call: &'static str, code: i32) -> Self {
        Self { call, code }
    }

    /// The error that the last failed C library call of this thread left in `errno`.
    pub fn last(call: &'static str) -> Self {
        // `raw_os_error` is `Some` for every error made by `last_os_error`.
        let code = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self::new(call, code)
    }

    /// What can be done about it.
    pub const fn kind(self) -> ErrorKind {
        match self.code {
            libc::ENOMEM | libc::ENOSPC => ErrorKind::OutOfMemory,
            libc::EAGAIN | libc::EINTR => ErrorKind::Again,
            libc::EBUSY => ErrorKind::Busy,
            libc::EINVAL => ErrorKind::Invalid,
            libc::EPERM | libc::EACCES => ErrorKind::Permission,
            libc::ENOSYS | libc::EOPNOTSUPP => ErrorKind::Unsupported,
            libc::ENOENT | libc::ESRCH | libc::EFAULT | libc::ENODEV => ErrorKind::Missing,
            _ => ErrorKind::Other,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = std::io::Error::from_raw_os_error(self.code);
        write!(f, "{} failed: {why}", self.call)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_tell_what_to_do() {
        assert_eq!(Error::new("mmap", libc::ENOMEM).kind(), ErrorKind::OutOfMemory);
        assert_eq!(Error::new("madvise", libc::EAGAIN).kind(), ErrorKind::Again);
        assert_eq!(Error::new("madvise", libc::EBUSY).kind(), ErrorKind::Busy);
        assert_eq!(Error::new("madvise", libc::EINVAL).kind(), ErrorKind::Invalid);
        assert_eq!(Error::new("open", libc::EACCES).kind(), ErrorKind::Permission);
        assert_eq!(Error::new("open", libc::ENOENT).kind(), ErrorKind::Missing);
        assert_eq!(Error::new("read", libc::EIO).kind(), ErrorKind::Other);
    }

    #[test]
    fn message_names_the_call_and_the_reason() {
        let text = Error::new("madvise(MADV_COLLAPSE)", libc::ENOMEM).to_string();
        assert!(text.starts_with("madvise(MADV_COLLAPSE) failed: "), "{text}");
        assert!(text.contains("memory"), "{text}");
    }
}
