//! Closures that the heap calls, in blocks of malloc's. `Box::new` ends the process where there is no memory for one.

use std::alloc::{Layout, alloc};

/// A box with a value; `None`: there is no memory for it.
pub(super) fn boxed<T>(value: T) -> Option<Box<T>> {
    const { assert!(size_of::<T>() > 0, "what has no bytes needs no block") };
    // SAFETY: the value has bytes.
    let block: *mut T = unsafe { alloc(Layout::new::<T>()) }.cast();
    if block.is_null() {
        return None;
    }
    // SAFETY: a new block of the value's size and alignment, of the allocator that frees the box.
    unsafe {
        block.write(value);
        Some(Box::from_raw(block))
    }
}
