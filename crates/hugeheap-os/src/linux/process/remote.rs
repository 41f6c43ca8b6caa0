//! Advice for a process: `process_madvise` on its descriptor, `madvise` for this process itself.
//!
//! What the kernel wants for another process: the right to read its memory (the same user and dumpable, or
//! `CAP_SYS_PTRACE`), and `CAP_SYS_NICE`. It checks both, and whether it knows the advice, before it looks at
//! the ranges: so a call without ranges tells whether it would work.

use super::super::vm;
use super::os_page;
use crate::process::Change;
use crate::{AddressRange, Error, Result};
use core::ffi::{c_int, c_long};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const COLLAPSE: &str = "process_madvise(MADV_COLLAPSE)";
const COLD: &str = "process_madvise(MADV_COLD)";
const PIDFD: &str = "pidfd_open";
/// Ranges one call takes (`IOV_MAX`).
const RANGES: usize = 1024;

/// Whom advice goes to.
pub(super) enum Target {
    /// This process.
    Own,
    /// Another, by its descriptor.
    Other(OwnedFd),
    /// Nobody: a process that can only be looked at.
    Looked,
}

impl Target {
    pub(super) fn open(id: u32) -> Result<Self> {
        // SAFETY: the call takes two numbers and makes a descriptor.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, c_long::from(id), 0 as c_long) };
        match c_int::try_from(descriptor) {
            // SAFETY: the descriptor was just made and nobody else has it.
            Ok(number) if number >= 0 => Ok(Self::Other(unsafe { OwnedFd::from_raw_fd(number) })),
            _ => Err(Error::last(PIDFD)),
        }
    }

    /// Whether the process still lives.
    ///
    /// # Errors
    /// `ESRCH` when not.
    pub(super) fn check(&self) -> Result<()> {
        let Self::Other(process) = self else { return Ok(()) };
        const NO_SIGNAL: c_long = 0;
        // SAFETY: signal 0 is not delivered; the call takes no memory.
        let status = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                c_long::from(process.as_raw_fd()),
                NO_SIGNAL,
                0 as c_long,
                0 as c_long,
            )
        };
        let error = Error::last("pidfd_send_signal");
        // Whatever else it answers, such as EPERM for another user's, there is a process to answer for.
        if status != 0 && error.code == libc::ESRCH { Err(error) } else { Ok(()) }
    }

    pub(super) fn allows(&self, change: Change) -> Result<()> {
        let (advice, call) = match change {
            Change::Collapse => (vm::MADV_COLLAPSE, COLLAPSE),
            Change::Split => (vm::MADV_COLD, COLD),
        };
        match self {
            Self::Own if vm::knows_advice(os_page(), advice) => Ok(()),
            Self::Own => Err(Error::new(call, libc::ENOSYS)),
            Self::Looked => Err(Error::new(call, libc::EROFS)),
            Self::Other(process) => match advise(process, &[], advice, call) {
                Ok(_) => Ok(()),
                // The advice is not known for other processes.
                Err(error) if error.code == libc::EINVAL => Err(Error::new(call, libc::ENOSYS)),
                Err(error) => Err(error),
            },
        }
    }

    pub(super) fn collapse(&self, range: AddressRange) -> Result<()> {
        match self {
            // SAFETY: the advice changes what backs the range and not its contents, whoever owns it.
            Self::Own => unsafe { vm::advise(range, vm::MADV_COLLAPSE, COLLAPSE) },
            Self::Looked => Err(Error::new(COLLAPSE, libc::EROFS)),
            Self::Other(process) => advise(process, &[range], vm::MADV_COLLAPSE, COLLAPSE).map(|_| ()),
        }
    }

    pub(super) fn split(&self, pages: &[usize], os_page: usize) -> Result<usize> {
        let ranges: Vec<AddressRange> =
            pages.iter().take(RANGES).map(|page| AddressRange::new(*page, os_page)).collect();
        match self {
            Self::Own => {
                for (done, range) in ranges.iter().enumerate() {
                    // SAFETY: the advice marks a page as not recently used and splits what backs it; contents
                    // do not change.
                    match unsafe { vm::advise(*range, vm::MADV_COLD, COLD) } {
                        Err(error) if done == 0 => return Err(error),
                        Err(_) => return Ok(done),
                        Ok(()) => {}
                    }
                }
                Ok(ranges.len())
            }
            Self::Looked => Err(Error::new(COLD, libc::EROFS)),
            Self::Other(process) => Ok(advise(process, &ranges, vm::MADV_COLD, COLD)? / os_page),
        }
    }
}

/// `process_madvise`. Answers how many bytes were advised.
fn advise(process: &OwnedFd, ranges: &[AddressRange], advice: c_int, call: &'static str) -> Result<usize> {
    let parts: Vec<libc::iovec> = ranges
        .iter()
        .map(|range| libc::iovec { iov_base: range.start as *mut _, iov_len: range.len })
        .collect();
    // SAFETY: the call reads `parts`, which is borrowed for it. Both advices it is made with leave the contents of the
    // target's memory as they are.
    let advised = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            c_long::from(process.as_raw_fd()),
            parts.as_ptr(),
            parts.len() as c_long,
            c_long::from(advice),
            0 as c_long,
        )
    };
    usize::try_from(advised).map_err(|_| Error::last(call))
}
