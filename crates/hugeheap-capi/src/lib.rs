//! `libhugeheap.so` and `libhugeheap.a`: the C interface, declared in `include/hugeheap.h`.
//!
//! ```text
//!   hh_malloc …      thread   ─▶ heap of the calling thread ─┐
//!   hh_heap_alloc …  heap     ─▶ heap behind a handle ───────┴▶ hugeheap::object ─▶ the process's runtime
//!   hh_configure …   process  ─────────────────────────────────────────────────────▶ the process's runtime
//!   hh_gc_alloc …    gc       ─▶ hugeheap::gc, include/hugeheap_gc.h
//!   hh_stats_json    json         numbers as text, in the caller's buffer
//!   hh_strerror …    status       codes of the functions that answer one
//! ```
//!
//! Rules that every function keeps:
//! * The header says what it does; here stands how.
//! * Nothing is allocated but what the caller asked for, and nothing runs before the first call: the library
//!   may sit below the malloc of its program.
//! * No memory is NULL and `errno`, never an end of the process; a wrong free is one line and an end.
//! * No panic crosses into C: the compiler ends the process where one would leave an `extern "C"` function.
//!   None is known; it would be a mistake of this library.

mod gc;
mod heap;
mod json;
mod process;
mod status;
mod thread;

use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};

/// A block for C; NULL with `errno` for none.
#[inline(always)]
fn block_or_null(block: Option<NonNull<u8>>) -> *mut c_void {
    match block {
        Some(block) => block.as_ptr().cast(),
        None => refuse(libc::ENOMEM),
    }
}

/// NULL, and `errno` says why.
#[cold]
#[inline(never)]
fn refuse(errno: c_int) -> *mut c_void {
    // SAFETY: the location of errno is valid for the life of the calling thread.
    unsafe { *libc::__errno_location() = errno };
    null_mut()
}
