//! The heap of the calling thread: the functions of the C library, under other names.

use crate::{block_or_null, refuse};
use core::ffi::c_void;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use hugeheap::complain;
use hugeheap::object::{ProcessHeap, space, thread_heap, thread_heap_to_free};

#[inline(always)]
fn heap() -> Option<ManuallyDrop<ProcessHeap>> {
    // SAFETY: each function here has it for one call into the library, and lets it go.
    unsafe { thread_heap() }
}

#[inline(always)]
fn heap_to_free() -> Option<ManuallyDrop<ProcessHeap>> {
    // SAFETY: as above.
    unsafe { thread_heap_to_free() }
}

#[unsafe(no_mangle)]
extern "C" fn hh_malloc(size: usize) -> *mut c_void {
    match heap() {
        Some(mut heap) => block_or_null(heap.allocate_by_table(size)),
        None => refuse(libc::ENOMEM),
    }
}

#[unsafe(no_mangle)]
extern "C" fn hh_calloc(count: usize, size: usize) -> *mut c_void {
    match heap() {
        Some(mut heap) => block_or_null(heap.allocate_array(count, size)),
        None => refuse(libc::ENOMEM),
    }
}

#[unsafe(no_mangle)]
extern "C" fn hh_aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    if !alignment.is_power_of_two() || alignment > hugeheap::arena::ARENA_BYTES {
        return refuse(libc::EINVAL);
    }
    match heap() {
        Some(mut heap) => block_or_null(heap.allocate_aligned(size, alignment)),
        None => refuse(libc::ENOMEM),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_realloc(address: *mut c_void, size: usize) -> *mut c_void {
    match (heap(), NonNull::new(address.cast())) {
        (None, _) => refuse(libc::ENOMEM),
        (Some(mut heap), None) => block_or_null(heap.allocate_by_table(size)),
        // SAFETY: the caller gives the block up, by the contract of realloc. That it is one is checked.
        (Some(mut heap), Some(address)) => block_or_null(unsafe { heap.reallocate(address, size) }),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_free(address: *mut c_void) {
    let Some(address) = NonNull::new(address.cast()) else { return };
    // SAFETY: the caller gives the block up, by the contract of free. That it is one is checked.
    unsafe {
        match heap_to_free() {
            Some(mut heap) => heap.free(address),
            // Without a heap of its own a thread can still free in those of others.
            None => space().free(address),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_free_sized(address: *mut c_void, size: usize) {
    let Some(address) = NonNull::new(address.cast()) else { return };
    // SAFETY: as in `hh_free`.
    unsafe {
        match heap_to_free() {
            Some(mut heap) => heap.free_sized(address, size),
            None => space().free_sized(address, size),
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn hh_usable_size(address: *const c_void) -> usize {
    let Some(address) = NonNull::new(address.cast_mut().cast()) else { return 0 };
    // The owner of a window knows more than its page's bitmap does.
    let found = match heap_to_free() {
        Some(mut heap) => heap.usable_size(address),
        None => space().usable_size(address.as_ptr() as usize),
    };
    found.unwrap_or_else(|mistake| complain::abort(format_args!("usable size of {address:p}: {mistake}")))
}
