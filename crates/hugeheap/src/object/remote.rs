//! The lock-free steps between a thread that frees a block of another's heap and the heap's owner.
//!
//! ```text
//!   free ─▶ announce ─▶ push          owner: take_all ─▶ acknowledge ─▶ take
//! ```
//!
//! What must hold, and is model-checked in `model`: every bit that was set is taken exactly once; a page is in an inbox at most once; a bit
//! set after the owner took a page's bits brings the page into the inbox again.
//!
//! The atomics come from the module around this one: the model has its own copy of this file, on loom's.

use super::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use super::tag::PENDING;

/// Sets a block's bit; says no if it was set: freed twice.
pub(super) fn free(word: &AtomicU64, bit: u64) -> bool {
    // Release: what this thread wrote into the block comes before its next use. Acquire: for the check only.
    word.fetch_or(bit, Ordering::AcqRel) & bit == 0
}

/// Marks a page as pending if its tag is still `tag`. Whoever is told yes puts the page into the inbox.
pub(super) fn announce(tag: &AtomicU32, mut seen: u32) -> bool {
    loop {
        if seen & PENDING != 0 {
            // Somebody else announced it after the bit was set, or before: then the owner acknowledges before it takes the bits.
            // Read again, because `seen` may be from before the bit.
            let now = tag.fetch_or(0, Ordering::AcqRel);
            if now & PENDING != 0 || now & !PENDING != seen & !PENDING {
                return false;
            }
            seen = now;
            continue;
        }
        match tag.compare_exchange(seen, seen | PENDING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            // Another heap's page by now, or of another class: the bit was taken.
            Err(now) if now & !PENDING != seen => return false,
            Err(now) => seen = now,
        }
    }
}

/// Owner: the page is not pending any more. Returns its tag. Before the bits are taken, so that later ones announce the page again.
pub(super) fn acknowledge(tag: &AtomicU32) -> u32 {
    tag.fetch_and(!PENDING, Ordering::AcqRel)
}

/// Owner: takes the bits of a window.
pub(super) fn take(word: &AtomicU64) -> u64 {
    // A plain look first: most windows of a page have none, and a swap would make their lines this core's.
    if word.load(Ordering::Acquire) == 0 { 0 } else { word.swap(0, Ordering::AcqRel) }
}

/// Puts a page into an inbox, a list through the pages' links.
pub(super) fn push(inbox: &AtomicUsize, page: usize, link: &AtomicUsize) {
    let mut head = inbox.load(Ordering::Relaxed);
    loop {
        link.store(head, Ordering::Relaxed);
        // SeqCst, with the look at the heap's state after it: see `registry`.
        match inbox.compare_exchange_weak(head, page, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Owner: empties an inbox. Returns its first page.
pub(super) fn take_all(inbox: &AtomicUsize) -> usize {
    if inbox.load(Ordering::SeqCst) == 0 { 0 } else { inbox.swap(0, Ordering::SeqCst) }
}
