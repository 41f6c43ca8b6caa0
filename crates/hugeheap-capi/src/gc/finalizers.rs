//! Objects that were found unreachable: handed to the finalizers of their types, or one by one.

use super::{Handle, must_be_closed, must_be_outside};
use crate::status::Status;
use core::ffi::{c_int, c_void};
use hugeheap::gc::TYPE_SHIFT;

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_run_finalizers(handle: *mut Handle) -> usize {
    let mut count = 0;
    // SAFETY: by the header's contract. The heap is not borrowed during the call of the finalizer, which may use it.
    unsafe {
        must_be_closed(handle, "hh_gc_run_finalizers");
        while let Some(object) = (*handle).heap.next_finalizable() {
            let number = ((object as *const u64).read() >> TYPE_SHIFT) as usize;
            let types = &(*handle).types;
            let finalizer = types.get(number.wrapping_sub(1)).and_then(|known| known.finalizer);
            if let Some(finalizer) = finalizer {
                finalizer(handle, object as *mut c_void);
            }
            count += 1;
        }
    }
    count
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_finalize(handle: *mut Handle, object: *mut c_void) -> c_int {
    // SAFETY: by the header's contract a live object, here and below; nothing collects.
    unsafe { must_be_outside(handle, "hh_gc_finalize") };
    // SAFETY: as above.
    match unsafe { (*handle).heap.finalize(object as usize) } {
        Ok(()) => Status::Ok as c_int,
        Err(_) => Status::NoMemory as c_int,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_next_finalizable(handle: *mut Handle) -> *mut c_void {
    // SAFETY: as above.
    unsafe { must_be_outside(handle, "hh_gc_next_finalizable") };
    // SAFETY: as above.
    unsafe { (*handle).heap.next_finalizable() }.unwrap_or_default() as *mut c_void
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_finalizable(handle: *const Handle) -> usize {
    // SAFETY: as above.
    unsafe { (*handle).heap.finalizable() }
}
