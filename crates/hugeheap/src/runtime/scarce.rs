//! Limited address space of the process: who serves what, and how others have what is reserved here and not used.
//!
//! ```text
//!   request ─▶ scarce_for? ─ no ──▶ hugeheap
//!                └─ yes ─▶ allocator before ─ refused ─▶ what is reserved and not used goes ─▶ asked again ─ refused ─▶ hugeheap
//! ```
//!
//! For allocators that have another below them: the C library's `malloc`, CPython's raw domain. Which requests
//! these are: `arena::exact`.
//!
//! In a process of hardened heaps all stays here: what another allocator serves has no guard, and is not
//! cleared when it is freed.
//!
//! Whether there is a limit is remembered, because each longer request asks: once there is none, one comes only
//! through [`Runtime::limit_address_space`]. Not seen: a limit that another process sets, or a system call
//! without the C library. Then all is as it is without one. And how much of it is taken is remembered for a
//! while: to read that is three system calls, more than such a request needs otherwise, and who runs other
//! people's programs limits all of them, at much more than they need.

use super::{Runtime, errno, hardened_by_environment};
use crate::arena::exact;
use crate::object;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use hugeheap_os::linux::Linux;
use hugeheap_os::{AddressSpaceLimit, Facts};

/// Whether there may be a limit: not once it was seen that there is none, until one is set.
static MAY_BE_LIMITED: AtomicBool = AtomicBool::new(true);

/// What was seen last. Whoever reads a part of this and a part of what is seen now errs for one request.
static LIMIT: AtomicU64 = AtomicU64::new(0);
static USED: AtomicU64 = AtomicU64::new(0);

/// Bytes of longer requests after which it is looked again. Two threads that take from it at once count for one.
static UNTIL_LOOK: AtomicU64 = AtomicU64::new(0);

/// Part of the limit, as a divisor, that may be asked for between two looks: an eighth of what has to be taken
/// before anything is scarce.
const LOOKS: u64 = 64;

impl Runtime {
    /// Whether a request of so many bytes is better served by an allocator that takes no more address space
    /// than that, because of a limit on it (`RLIMIT_AS`). For who has such an allocator.
    #[inline]
    pub fn is_scarce_for(&self, bytes: usize) -> bool {
        bytes >= exact::LEAST && MAY_BE_LIMITED.load(Ordering::Relaxed) && is_limited_for(bytes)
    }

    /// Whether the address space of this process is limited, as far as that was seen by a longer request.
    pub fn is_limited(&self) -> bool {
        MAY_BE_LIMITED.load(Ordering::Relaxed)
    }

    /// From now on another allocator serves what is refused here: at a limit on address space not each small
    /// request has to find out anew that there is nothing.
    pub fn pass_refusals_on(&'static self) {
        self.heap.lock().refusals.pass_on();
    }

    /// Gives back what is kept, and the address space in which nothing lives, for somebody who was refused
    /// `bytes` bytes. Says whether there is more now than before; that it is enough is known when it is asked
    /// for: again and again, until nothing is left to give. Not under the heap's lock.
    ///
    /// What the heap needs later comes from further regions, as long as it may have some; after that the
    /// allocator below serves.
    pub fn make_address_space(&'static self, bytes: usize) -> bool {
        let _kept = errno::Kept::new();
        let used = || Linux::new().address_space_limit().filter(|space| bytes as u64 <= space.limit);
        let Some(before) = used().filter(|_| MAY_BE_LIMITED.load(Ordering::Relaxed)) else { return false };
        self.give_back();
        self.heap.lock().squeeze_address_space(bytes as u64, |cut| object::space().shorten(cut));
        used().is_some_and(|after| after.used < before.used)
    }
}

/// A limit is set, or may be.
pub(super) fn note_limit() {
    UNTIL_LOOK.store(0, Ordering::Relaxed);
    MAY_BE_LIMITED.store(true, Ordering::Relaxed);
}

#[cold]
#[inline(never)]
fn is_limited_for(bytes: usize) -> bool {
    let left = UNTIL_LOOK.load(Ordering::Relaxed).saturating_sub(bytes as u64);
    if left == 0 && !look() {
        return false;
    }
    if left > 0 {
        UNTIL_LOOK.store(left, Ordering::Relaxed);
    }
    let space =
        AddressSpaceLimit { limit: LIMIT.load(Ordering::Relaxed), used: USED.load(Ordering::Relaxed) };
    !hardened_by_environment() && exact::is_better_exact(bytes, space)
}

/// Sees how much is taken. Says whether there is a limit.
fn look() -> bool {
    let _kept = errno::Kept::new();
    let Some(space) = Linux::new().address_space_limit() else {
        MAY_BE_LIMITED.store(false, Ordering::Relaxed);
        return false;
    };
    LIMIT.store(space.limit, Ordering::Relaxed);
    USED.store(space.used, Ordering::Relaxed);
    UNTIL_LOOK.store(space.limit / LOOKS, Ordering::Relaxed);
    true
}
