//! Pages of a hugetlb pool, put into a reservation without ever leaving a hole in it.
//!
//! `mmap(MAP_FIXED | MAP_HUGETLB)` over the reservation is the obvious way and the wrong one: the kernel removes
//! what is there before it asks the pool, so an exhausted pool leaves a hole that another thread's `mmap` can
//! fall into. Instead:
//!
//! ```text
//!   1  map the pages anywhere            ENOMEM: the pool has no page to promise
//!   2  populate them there               EFAULT: the pool, the cgroup or the node has none after all
//!   3  mremap them over the reservation  one atomic step
//! ```
//!
//! 1 and 2 fail without having touched the reservation. Step 3 is the only one that could hurt it: kernels
//! before 5.16 cannot move hugetlb mappings, and say so (`EINVAL`) only *after* they removed the target. So the
//! first move of a process goes to address space reserved for the purpose, and its outcome is remembered
//! ([`MOVES`]). On a kernel that cannot move, a hugetlb backing is refused with `EOPNOTSUPP` and the
//! reservation stays whole.
//!
//! Populating needs Linux 5.14, less than moving does, so there is no path without it.

use super::vm;
use crate::{AddressRange, Error, Result};
use core::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// Whether this kernel moves hugetlb mappings. A property of the kernel, so one for the process, and the
/// threads that find out at the same time find the same.
static MOVES: AtomicU8 = AtomicU8::new(UNKNOWN);

const CALL: &str = "mremap(hugetlb)";

/// Puts populated pages of `page_size` bytes from their pool into the reserved `range`.
///
/// # Errors
/// `EINVAL` for a size that does not fit the range or that the kernel has no pool of, `ENOMEM` for an exhausted pool,
/// `EOPNOTSUPP` on kernels before 5.16.
///
/// # Safety
/// The caller owns `range`, which is reserved.
pub(super) unsafe fn map(range: AddressRange, page_size: usize) -> Result<()> {
    if !page_size.is_power_of_two() || range.len == 0 || !range.is_aligned_to(page_size) {
        return Err(Error::new("mmap(MAP_HUGETLB)", libc::EINVAL));
    }
    if MOVES.load(Ordering::Relaxed) == NO {
        return Err(Error::new(CALL, libc::EOPNOTSUPP));
    }
    let staged = vm::map_hugetlb_anywhere(range.len, page_size)?;
    // SAFETY: `staged` was mapped by this call and is known to nobody else; `range` is the caller's.
    unsafe {
        let moved = populate(staged).and_then(|()| place(staged, range, page_size));
        // The mapping is gone from `staged` only after the last move.
        moved.map_err(|(error, remains)| {
            // Nothing better can be done if even this fails, and the first error says more.
            let _ = vm::unmap(remains);
            error
        })
    }
}

/// # Safety
/// The caller owns `staged`.
unsafe fn populate(staged: AddressRange) -> core::result::Result<(), (Error, AddressRange)> {
    // SAFETY: passed on from the caller.
    unsafe { vm::populate(staged) }.map_err(|error| {
        // The fault behind it was a SIGBUS: no page to be had, whatever the reservation promised.
        let code = if error.code == libc::EFAULT { libc::ENOMEM } else { error.code };
        (Error::new(error.call, code), staged)
    })
}

/// Moves `staged` over `range`. A failure comes with where the staged pages are now.
///
/// # Safety
/// The caller owns both ranges; `range` is reserved.
unsafe fn place(
    staged: AddressRange,
    range: AddressRange,
    page_size: usize,
) -> core::result::Result<(), (Error, AddressRange)> {
    let mut at = staged;
    // SAFETY: the ranges are the caller's, `scratch` is made and used only here.
    unsafe {
        if MOVES.load(Ordering::Relaxed) == UNKNOWN {
            let scratch = super::pages::reserve(range.len, page_size).map_err(|error| (error, at))?;
            if let Err(error) = vm::move_over(at, scratch.start, false, CALL) {
                return Err((give_up_scratch(scratch, error), at));
            }
            MOVES.store(YES, Ordering::Relaxed);
            at = scratch;
        }
        vm::move_over(at, range.start, false, CALL).map_err(|error| {
            super::pages::restore_reservation(range, super::pages::RESERVED);
            (error, at)
        })
    }
}

/// After a first move to `scratch` failed: frees what is left of it and says what the failure means.
///
/// # Safety
/// `scratch` was reserved by the caller and nothing was moved there.
unsafe fn give_up_scratch(scratch: AddressRange, error: Error) -> Error {
    if error.code == libc::EINVAL {
        // An old kernel has removed `scratch` before it refused. Unmapping it could hit a mapping another thread
        // has made there since, so if the kernel was not an old one, this much address space is lost, once.
        MOVES.store(NO, Ordering::Relaxed);
        return Error::new(CALL, libc::EOPNOTSUPP);
    }
    // Other errors come before the target is touched.
    // SAFETY: `scratch` is the caller's and empty.
    let _ = unsafe { vm::unmap(scratch) };
    error
}
