//! Blocks with an alignment.

use crate::blocks::{refuse, with_heap};
use crate::c_library;
use core::ffi::{c_int, c_void};
use hugeheap::arena::ARENA_BYTES;

/// Bytes of an OS page.
fn os_page() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// A block of that alignment, a power of two. Above that of an arena it is the C library's: nobody asks for
/// that to have memory on huge pages, which it has with less.
fn allocate(alignment: usize, size: usize) -> *mut c_void {
    if alignment > ARENA_BYTES {
        return c_library::memalign(alignment, size);
    }
    with_heap(
        size,
        |heap| heap.allocate_aligned(size, alignment),
        move || c_library::memalign(alignment, size),
    )
}

#[unsafe(no_mangle)]
extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    // What is no power of two is rounded up to one, as the C library does.
    match alignment.checked_next_power_of_two() {
        Some(alignment) => allocate(alignment, size),
        None => refuse(libc::EINVAL),
    }
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    memalign(alignment, size)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    if !alignment.is_power_of_two() || alignment % size_of::<*mut c_void>() != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the location of errno is valid for the life of the calling thread. It stays as it was: the answer
    // says why.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let block = allocate(alignment, size);
        *errno = before;
        if block.is_null() {
            return libc::ENOMEM;
        }
        *to = block;
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn valloc(size: usize) -> *mut c_void {
    allocate(os_page(), size)
}

#[unsafe(no_mangle)]
extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(os_page()) {
        Some(size) => allocate(os_page(), size.max(os_page())),
        None => refuse(libc::ENOMEM),
    }
}
