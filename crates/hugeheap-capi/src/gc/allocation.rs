//! Allocation beside the fast path, which is in the header.

use super::types::{checked, must_be_finalized};
use super::{Handle, must_be_closed, must_be_outside, own_window, roots, with_window};
use crate::block_or_null;
use core::ffi::c_void;
use core::ptr::null_mut;
use hugeheap::complain;
use hugeheap::gc::Window;

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_refill(
    handle: *mut Handle,
    window: *mut Window,
    ty: u32,
    length: usize,
    bytes: usize,
) -> *mut c_void {
    // SAFETY: by the header's contract, here and below.
    unsafe {
        must_be_outside(handle, "an object is allocated");
        let (own, open) = (window == own_window(handle), (*handle).open != 0);
        if own && open {
            complain::abort(format_args!(
                "an object is allocated while the window is open: hh_gc_alloc_in takes it, or hh_gc_close comes first"
            ));
        }
        if !own && !open {
            complain::abort(format_args!(
                "an object is allocated in a window that is not open: hh_gc_open comes first"
            ));
        }
        let ty = checked(handle, ty, length, bytes);
        let made =
            with_window(handle, window, |heap, window| heap.allocate_slow(window, ty, length, &mut []));
        block_or_null(made.ok())
    }
}

/// Not the refill that an object with items comes to as well: a type without a finalizer was taken there, and
/// its objects were never handed out.
#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_alloc_finalized(handle: *mut Handle, ty: u32, length: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe {
        must_be_closed(handle, "hh_gc_alloc_finalized");
        must_be_finalized(handle, ty);
        hh_gc_refill(handle, own_window(handle), ty, length, 0)
    }
}

/// The first of two windows was lost: what was left of it was handed out to nobody, and after a collection
/// through the second one it cut objects into memory that others had since.
#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_not_closed(_: *const Handle) {
    complain::abort(format_args!(
        "hh_gc_open while the window is open: hand its address to what allocates, or hh_gc_close comes first"
    ));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_not_open(_: *const Handle) {
    complain::abort(format_args!(
        "hh_gc_close with a window that is not open: it was closed before, and others have its memory since"
    ));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_alloc_old(handle: *mut Handle, ty: u32, length: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe {
        must_be_closed(handle, "hh_gc_alloc_old");
        let ty = checked(handle, ty, length, 0);
        let made = with_window(handle, own_window(handle), |heap, window| {
            heap.allocate_old(window, ty, length, &mut [])
        });
        block_or_null(made.ok())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_alloc_pinned(
    handle: *mut Handle,
    ty: u32,
    length: usize,
    global: *mut u64,
) -> *mut c_void {
    // SAFETY: as above; the object lives until the next collection, so it can be pinned.
    unsafe {
        must_be_closed(handle, "hh_gc_alloc_pinned");
        // Whoever releases what it has, object or not, must not release what lay there before.
        global.write(0);
        let object = hh_gc_alloc_old(handle, ty, length);
        if object.is_null() {
            return object;
        }
        let number = roots::hh_gc_pin(handle, object);
        if number == 0 {
            return null_mut();
        }
        global.write(number);
        object
    }
}
