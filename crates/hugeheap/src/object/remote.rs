//! The lock-free steps between a thread that frees a block of another's heap and the heap's owner.
//!
//! ```text
//!   free ─▶ announce ─▶ push          owner: take_all ─▶ acknowledge ─▶ take
//! ```
//!
//! What must hold, and is model-checked in `model`: every bit that was set is taken exactly once; a page is in
//! an inbox at most once; a bit set after the owner took a page's bits brings the page into the inbox again.
//!
//! Between announce and push a page is pending and in no inbox. Its owner does not wait for that: the thread
//! may be stopped there for long, or may not exist, in a forked child. There what it was about to push is
//! pushed by the fork handler ([`Own::announcing`](super::heap::Own)).
//!
//! The atomics come from the module around this one: the model has its own copy of this file, on loom's.

use super::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, written_before_look};
use super::tag::PENDING;

/// Sets a block's bit; says no if it was set: freed twice.
pub(super) fn free(word: &AtomicU64, bit: u64) -> bool {
    // Release: what this thread wrote into the block comes before its next use. Acquire: for the check. SeqCst:
    // before the look at the tag.
    word.fetch_or(bit, Ordering::SeqCst) & bit == 0
}

/// Marks a page as pending if its tag is still `seen`, from before the bit was set. Whoever is told yes puts
/// the page into the inbox.
///
/// A look is enough where the page is pending already, which is nearly always: this side sets the bit and then
/// looks at the tag, the owner clears the pending bit and then looks at the bits, so one of them sees the
/// other. A read-modify-write in place of the look was a second one for every block, on a line that the owner
/// writes. `note` is called before each attempt to set the pending bit.
#[inline(always)]
pub(super) fn announce(tag: &AtomicU32, seen: u32, note: impl Fn()) -> bool {
    written_before_look();
    let mut now = tag.load(Ordering::SeqCst);
    loop {
        // Another heap's page by now, or of another class: the bit was taken.
        if now & !PENDING != seen & !PENDING || now & PENDING != 0 {
            return false;
        }
        note();
        match tag.compare_exchange(now, now | PENDING, Ordering::AcqRel, Ordering::SeqCst) {
            Ok(_) => return true,
            Err(changed) => now = changed,
        }
    }
}

/// Whether a page that was pending, with the tag `seen` from before the bit was set, is so still: then there is
/// nothing to [announce].
#[inline(always)]
pub(super) fn is_still_pending(tag: &AtomicU32, seen: u32) -> bool {
    written_before_look();
    tag.load(Ordering::SeqCst) == seen
}

/// Owner: the page is not pending any more. Returns its tag. Before the bits are taken, so that later ones
/// announce the page again.
pub(super) fn acknowledge(tag: &AtomicU32) -> u32 {
    let was = tag.fetch_and(!PENDING, Ordering::SeqCst);
    written_before_look();
    was
}

/// Owner: takes the bits of a window.
pub(super) fn take(word: &AtomicU64) -> u64 {
    // A plain look first: most windows of a page have none, and a swap would make their lines this core's.
    if word.load(Ordering::SeqCst) == 0 { 0 } else { word.swap(0, Ordering::AcqRel) }
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

/// Owner: takes the first page of an inbox; 0: it is empty. `next` finds the link of a page. Nobody else takes
/// any, so that the first one stays where it is until it is taken.
pub(super) fn take_first<'a>(inbox: &AtomicUsize, next: impl Fn(usize) -> Option<&'a AtomicUsize>) -> usize {
    let mut first = inbox.load(Ordering::SeqCst);
    while let Some(link) = next(first) {
        match inbox.compare_exchange_weak(
            first,
            link.load(Ordering::Relaxed),
            Ordering::SeqCst,
            Ordering::SeqCst,
        ) {
            Ok(_) => return first,
            Err(now) => first = now,
        }
    }
    0
}

/// Owner: empties an inbox. Returns its first page.
pub(super) fn take_all(inbox: &AtomicUsize) -> usize {
    if inbox.load(Ordering::SeqCst) == 0 { 0 } else { inbox.swap(0, Ordering::SeqCst) }
}
