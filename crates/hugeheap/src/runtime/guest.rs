//! Calls into the C library from the middle of a change of the thread's heap.
//!
//! ```text
//!   refill, free ──busy──▶ arenas ──event──▶ the maintenance thread is started
//!                                               │ pthread_create ─▶ calloc: which may be us, in this thread
//!                                               ▼
//!                                            guest heap, and not the one whose lists are half changed
//! ```
//!
//! Terms: a heap is *busy* while its owner changes its lists; a *guest* is a heap that a thread has in its slot
//! for the time of one call.
//!
//! Where a program's `malloc` is hugeheap, the C library allocates the thread's tables (the vector of its
//! thread-local storage) with it. An event of the arenas comes from inside a heap as often as not: half of its
//! spare pages are just being given back, or new ones were taken and are not counted yet. A nested request
//! would take pages that the outer one hands out, too. Nobody can be told to come back later: the event may
//! have been the program's last.
//!
//! Invariant: the slot is as before when the call returns. What was allocated meanwhile is the guest's; the
//! guest is left, and waits for whoever needs a heap.

use crate::object::{set_thread_heap, space, thread_heap_at_hand};
use core::sync::atomic::Ordering;

/// Makes a call that may allocate from this process's heap, wherever the thread is. `None`, and no call, when
/// there is no memory for a guest.
pub(super) fn call<R>(call: impl FnOnce() -> R) -> Option<R> {
    // SAFETY: looked at here, and not used while the guest is in its place.
    let Some(own) =
        unsafe { thread_heap_at_hand() }.filter(|heap| heap.shared().turn.busy.load(Ordering::Relaxed) != 0)
    else {
        return Some(call());
    };
    let guest = space().acquire()?;
    // SAFETY: this thread has the handle of the guest, and does not use it meanwhile.
    unsafe { set_thread_heap(&guest) };
    let result = call();
    // SAFETY: what was there before.
    unsafe { set_thread_heap(&own) };
    drop(guest);
    Some(result)
}
