//! Limits that the program sets on itself.
//!
//! ```text
//!   resource.setrlimit(RLIMIT_AS, …) ─▶ setrlimit ─▶ what is reserved and not used goes ─▶ the kernel
//!   resource.prlimit(0, …)           ─▶ prlimit   ┘
//! ```
//!
//! The heap's address space is reserved at the start and counts against a limit on it. So the C library's four
//! functions that set one are found here first; each gives up what the heap does not need, and makes the same
//! system call. Another process's limit (`prlimit PID`) and other limits pass through.
//!
//! Not seen: a limit that another process sets on this one, and one set by a system call without the C library.
//! A child of `vfork` that limits itself before it becomes another program has its parent's memory, and gives
//! up the parent's reservation: that makes another one when it needs it.

use core::ffi::{c_int, c_uint, c_void};
use hugeheap::runtime::runtime;
use libc::{pid_t, rlimit64};

/// Sets and asks for a limit; `errno` says why not.
///
/// # Safety
/// As for the C library's functions. What they answer `EFAULT` to is no breach: nothing is read that the kernel
/// could not read.
unsafe fn limit(pid: pid_t, resource: c_uint, new: *const rlimit64, old: *mut rlimit64) -> c_int {
    if resource == libc::RLIMIT_AS as c_uint && is_self(pid) && !new.is_null() {
        // SAFETY: the C library's error number is this thread's.
        let errno = unsafe { *libc::__errno_location() };
        if is_readable(new) {
            // SAFETY: the kernel just read it; aligned or not.
            let soft = unsafe { new.read_unaligned() }.rlim_cur;
            if soft != libc::RLIM64_INFINITY {
                // Into a program no panic may unwind; without this the limit holds as it would without hugeheap.
                let _ = std::panic::catch_unwind(|| runtime().limit_address_space(soft));
            }
        }
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
    set(pid, resource, new, old)
}

/// The system call; the kernel checks what it is given.
fn set(pid: pid_t, resource: c_uint, new: *const rlimit64, old: *mut rlimit64) -> c_int {
    // SAFETY: as for the C library's function, for which nothing else is asked of the caller.
    unsafe {
        libc::syscall(libc::SYS_prlimit64, pid, resource, new.cast::<c_void>(), old.cast::<c_void>()) as c_int
    }
}

/// Whether the kernel can read a limit there. It reads it before it looks for the process, so it is asked to
/// limit one that does not exist. `process_vm_readv` would do as well, but this is the call that is made
/// anyway: the filter that systemd sets for services (`@system-service`) ends a process that makes the other.
fn is_readable(new: *const rlimit64) -> bool {
    const NOBODY: pid_t = -1;
    let answer = set(NOBODY, libc::RLIMIT_AS as c_uint, new, core::ptr::null_mut());
    // SAFETY: the C library's error number is this thread's.
    answer != 0 && unsafe { *libc::__errno_location() } != libc::EFAULT
}

fn is_self(pid: pid_t) -> bool {
    // SAFETY: no preconditions.
    pid == 0 || pid == unsafe { libc::getpid() }
}

/// The C library's function of that name.
///
/// # Safety
/// As for that.
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit(resource: c_uint, new: *const rlimit64) -> c_int {
    // SAFETY: by the contract above.
    unsafe { limit(0, resource, new, core::ptr::null_mut()) }
}

/// The C library's function of that name.
///
/// # Safety
/// As for that.
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit64(resource: c_uint, new: *const rlimit64) -> c_int {
    // SAFETY: by the contract above.
    unsafe { limit(0, resource, new, core::ptr::null_mut()) }
}

/// The C library's function of that name.
///
/// # Safety
/// As for that.
#[unsafe(no_mangle)]
unsafe extern "C" fn prlimit(
    pid: pid_t,
    resource: c_uint,
    new: *const rlimit64,
    old: *mut rlimit64,
) -> c_int {
    // SAFETY: by the contract above.
    unsafe { limit(pid, resource, new, old) }
}

/// The C library's function of that name.
///
/// # Safety
/// As for that.
#[unsafe(no_mangle)]
unsafe extern "C" fn prlimit64(
    pid: pid_t,
    resource: c_uint,
    new: *const rlimit64,
    old: *mut rlimit64,
) -> c_int {
    // SAFETY: by the contract above.
    unsafe { limit(pid, resource, new, old) }
}
