//! The switch by which a program takes transparent huge pages from itself: `prctl(PR_SET_THP_DISABLE)`.
//!
//! CRuby makes this call before anything else since version 2.6, so that what it shares with forked children is
//! not copied in pieces of 2 MiB. It takes huge pages from hugeheap's arenas as well, for which they were
//! asked: level `malloc` in a Ruby was no huge page at all. (Since Linux 5.8 the kernel copies a shared huge
//! page in OS pages too.)
//!
//! So here, at the level that somebody asked for and with a policy that wants huge pages, the call is *narrowed*:
//!
//! ```text
//!   Linux      made instead                         huge pages
//!   6.18 …     PR_THP_DISABLE_EXCEPT_ADVISED        of hugeheap's arenas, and of whatever else is advised
//!   before     nothing; the program is told it was  the same in modes madvise and never; in mode always what the program maps itself may get some, too
//! ```
//!
//! Everything else that `prctl` does passes through, with the same system call as the C library's function.
//! Policy `base`, a hugeheap that is switched off, and a program with a `malloc` of its own leave the call as
//! it is.
//!
//! Not seen: the call made without the C library, and a switch that a process had before it became this
//! program, which `hugeheap run` warns of.

use crate::c_library;
use core::ffi::{c_int, c_ulong};
use hugeheap_constructor::has_malloc;

/// Off but for advised ranges: a flag of `PR_SET_THP_DISABLE` since Linux 6.18, where older ones answer
/// `EINVAL` to any.
const EXCEPT_ADVISED: c_ulong = 1 << 1;

/// The system call, as the C library makes it.
fn call(option: c_int, arguments: [c_ulong; 4]) -> c_int {
    let [second, third, fourth, fifth] = arguments;
    // SAFETY: as for the C library's function, whose caller answers for what the option does.
    unsafe { libc::syscall(libc::SYS_prctl, option, second, third, fourth, fifth) as c_int }
}

/// Whether a call is one that switches off huge pages altogether. With a flag it is narrow already, or a
/// mistake; with more arguments the kernel refuses it.
fn is_wide(option: c_int, arguments: [c_ulong; 4]) -> bool {
    option == libc::PR_SET_THP_DISABLE && arguments[0] != 0 && arguments[1..] == [0; 3]
}

/// Whether hugeheap has been asked for huge pages here.
fn is_wanted() -> bool {
    c_library::wants_huge_pages() && has_malloc()
}

/// The C library's function of that name. It takes any number of arguments and hands four on to the kernel,
/// whatever is in their registers: so does this one.
///
/// # Safety
/// As for that.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    let arguments = [second, third, fourth, fifth];
    if !is_wide(option, arguments) || !is_wanted() {
        return call(option, arguments);
    }
    // SAFETY: the C library's error number is this thread's.
    let errno = unsafe { *libc::__errno_location() };
    if call(option, [second, EXCEPT_ADVISED, 0, 0]) != 0 {
        // Left on, and `errno` as it was: to the program the call has succeeded.
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
    0
}
