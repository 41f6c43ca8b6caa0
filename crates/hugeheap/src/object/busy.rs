//! A heap is *busy* while its owner changes its lists.
//!
//! ```text
//!   owner   busy = 1 ─▶ lists, queues, spare pages change ─▶ busy = 0
//!   fork by another thread: the child looks ─▶ 0: the heap waits for an owner       registry
//!                                          └─▶ 1: it is lost
//! ```
//!
//! Two plain stores: who looks at them is a child of the process, which sees the memory as it was at one moment, or the owner's own thread (`runtime::guest`). What changes with one store, such as
//! a bit of a window or what is kept of page runs, needs no mark.

use super::heap::{Core, Heap};
use super::space::Source;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

impl<S: Source> Heap<S> {
    /// Marks the heap busy until the guard is dropped.
    pub(crate) fn busy(&self) -> Busy {
        Busy::new(self.core)
    }
}

/// See [`Heap::busy`].
pub(crate) struct Busy(*const AtomicU32);

impl Busy {
    fn new<S: Source>(core: NonNull<Core<S>>) -> Self {
        // SAFETY: cores are never unmapped.
        let busy: &AtomicU32 = unsafe { &(*core.as_ptr()).shared.busy };
        busy.store(1, Ordering::Relaxed);
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
        Self(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
        // SAFETY: cores are never unmapped.
        unsafe { (*self.0).store(0, Ordering::Relaxed) };
    }
}
