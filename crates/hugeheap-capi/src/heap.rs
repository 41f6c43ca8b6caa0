//! Heaps behind handles.
//!
//! A handle is the heap itself: one pointer, handed to C and taken back, so that a call costs no further load.
//!
//! A heap belongs to the thread that uses it, and the caller says which that is. So for the library it is owned
//! by a lock: a forked child keeps it, and no other thread adopts it before it is dropped.

use crate::{block_or_null, refuse};
use core::ffi::c_void;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use hugeheap::complain;
use hugeheap::object::{MAX_SMALL, Mistake, ProcessHeap, space, thread_heap};

/// `hh_heap`: never looked into.
pub(crate) type Handle = *mut c_void;

/// `hh_heap_options`.
#[repr(C)]
pub(crate) struct HeapOptions {
    size: usize,
    flags: u64,
}

const _: () = assert!(size_of::<ProcessHeap>() == size_of::<Handle>());
const _: () = assert!(align_of::<ProcessHeap>() == align_of::<Handle>());

/// The heap of a handle, for one call.
///
/// # Safety
/// The handle came from [`hh_heap_new`] and was not dropped, and nobody else uses it during the call.
#[inline(always)]
unsafe fn heap_of(handle: Handle) -> ManuallyDrop<ProcessHeap> {
    // SAFETY: a heap is one pointer, as asserted above, and by the contract this one was a heap.
    unsafe { core::mem::transmute::<Handle, ManuallyDrop<ProcessHeap>>(handle) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_heap_new(options: *const HeapOptions) -> Handle {
    // SAFETY: null, or a struct of the size that it names itself.
    if let Some(options) = unsafe { options.as_ref() } {
        if options.size != size_of::<HeapOptions>() || options.flags != 0 {
            return refuse(libc::EINVAL);
        }
    }
    // The heap of the thread comes with the runtime's start: settings from the environment, fork handlers.
    // SAFETY: not used.
    if unsafe { thread_heap() }.is_none() {
        return refuse(libc::ENOMEM);
    }
    match space().acquire() {
        Some(heap) => {
            // SAFETY: as asserted above; `hh_heap_drop` takes it back.
            unsafe { core::mem::transmute::<ProcessHeap, Handle>(heap) }
        }
        None => refuse(libc::ENOMEM),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_heap_drop(handle: Handle) {
    if !handle.is_null() {
        // SAFETY: by the header's contract the handle is used for the last time.
        drop(ManuallyDrop::into_inner(unsafe { heap_of(handle) }));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_heap_alloc(handle: Handle, size: usize) -> *mut c_void {
    // The inline functions of the header come here when the window has nothing for them.
    // SAFETY: by the header's contract, here and below.
    block_or_null(unsafe { heap_of(handle) }.allocate_after_window(size))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_heap_zalloc(handle: Handle, size: usize) -> *mut c_void {
    // SAFETY: as above.
    block_or_null(unsafe { heap_of(handle) }.allocate_zeroed(size))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_heap_free(handle: Handle, address: *mut c_void) {
    if let Some(address) = NonNull::new(address.cast()) {
        // SAFETY: as above; the caller gives the block up. That it is one is checked.
        unsafe { heap_of(handle).free(address) }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_heap_free_sized(handle: Handle, address: *mut c_void, size: usize) {
    if let Some(address) = NonNull::new(address.cast()) {
        // SAFETY: as in `hh_heap_free`.
        unsafe { heap_of(handle).free_sized(address, size) }
    }
}

// What `include/hugeheap_inline.h` falls back to. The name has the number of the layout it was written for: how
// bins lie in a heap, and the first four words of one. When that changes, the number does, here and there;
// tests/c notices when it was forgotten.

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_layout_5_alloc(handle: Handle, size: usize) -> *mut c_void {
    // SAFETY: the same contract.
    unsafe { hh_heap_alloc(handle, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_layout_5_free_sized(handle: Handle, address: *mut c_void, size: usize) {
    // SAFETY: the same contract.
    unsafe { hh_heap_free_sized(handle, address, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_heap_realloc(
    handle: Handle,
    address: *mut c_void,
    old_size: usize,
    new_size: usize,
) -> *mut c_void {
    // SAFETY: as in `hh_heap_alloc`.
    let mut heap = unsafe { heap_of(handle) };
    let Some(address) = NonNull::new(address.cast()) else { return block_or_null(heap.allocate(new_size)) };
    match heap.usable_size(address).and_then(|bytes| check_old_size(address, bytes, old_size)) {
        // SAFETY: the caller gives the old block up, which was just found to be one.
        Ok(()) => block_or_null(unsafe { heap.reallocate(address, new_size) }),
        Err(mistake) => {
            complain::abort(format_args!("sized reallocate of {address:p}: {}", mistake.of_resize()))
        }
    }
}

/// Whether a request of `given` bytes can have got the `bytes` that begin at `address`. Small blocks, most of
/// what a runtime resizes, are known by `bytes` alone, but for those of a class that stands for others. For all
/// else the library is asked: bounds of their kind let 577 pass for a block of 3000 bytes, and 8193 for 50 MB.
fn check_old_size(address: NonNull<u8>, bytes: usize, given: usize) -> Result<(), Mistake> {
    if bytes <= MAX_SMALL && (bytes - 15..=bytes).contains(&given.max(1)) {
        return Ok(());
    }
    space().check_size(address.as_ptr() as usize, given)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_heap_trim(handle: Handle) -> usize {
    // SAFETY: as in `hh_heap_alloc`.
    unsafe { heap_of(handle) }.trim()
}
