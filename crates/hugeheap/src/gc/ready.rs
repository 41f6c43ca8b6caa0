//! Memory that is ready before survivors need it.
//!
//! Terms: free memory is *ready* when it is resident, so that taking it is no call: heap pages of arenas in
//! use, and empty arenas.
//!
//! ```text
//!   the old generation grows ─▶ is twice what survived ready? ──yes───────────────────────────────▶ go on
//!                                   │ no                                                           ▲
//!                                   ├─ an arena is being made: wait, for the rest of the pause ────┤
//!                                   └─ still not: use a part of the nursery for which half of what is ready would do
//! ```
//!
//! A minor collection cannot be interrupted. Where it took an arena that nobody had touched, the kernel cleared
//! a huge page in the pause: 0.2 ms, and 5 to 20 where a hypervisor had to find the memory first. The
//! maintenance thread makes arenas ahead, but a program that fills a gigabyte is faster than such a host. It
//! has to wait for memory in any case: so it waits a little at the end of many pauses, and not long within one.
//!
//! Where a collection finds nothing all the same, and an arena is being made, it waits for that one. To make
//! another meanwhile took as long, and as much again off the processor: mapping it seems to wait for the other
//! thread's fault. Such pauses were 9 to 20 ms.
//!
//! Where nobody makes arenas (one processor, no thread, no huge pages) there is nothing to wait for, and
//! collections take what they need.

use super::heap::{Heap, MAX_YOUNG};
use super::old::Old;
use super::pacing::{LEAST_PART, MANY};
use crate::arena::{ARENA_BYTES, HEAP_PAGE_BYTES};
use crate::object::Source;
use core::time::Duration;
use hugeheap_os::Facts;

/// How long a wait takes: half of what clearing a huge page does.
const SLICE: Duration = Duration::from_micros(100);

/// Bytes of the nursery that are used at least, however little is ready: two of the largest objects in it. With
/// half of what is ready each time, and no less, the next collection finds what it needs until the arena comes.
/// With [`LEAST_PART`] it did not where that took 15 to 40 ms, and waited for it in one pause.
pub(super) const SCARCE_PART: usize = 16 << 10;

const _: () = assert!(SCARCE_PART >= 2 * MAX_YOUNG && SCARCE_PART < LEAST_PART);

/// How long a collection waits at least for an arena that is being made: what most took for which a hypervisor
/// had to find the memory.
const PATIENCE: Duration = Duration::from_millis(6);

impl<S: Source> Heap<S> {
    /// At the end of a pause whose minor collection moved `survived` bytes: sees to it that the next one finds
    /// as much, and returns how much of the nursery may be used until then. `limited`: until now less could be
    /// used than the pace allows, so that it says nothing if little survived.
    pub(super) fn part_for_ready(&mut self, survived: usize, limited: bool) -> usize {
        let part = self.nursery.paced;
        // All of the part may survive, and each size class begins a heap page of its own.
        let most = part.max(LEAST_PART) + LEAST_PART;
        let wanted = (2 * survived.max(LEAST_PART)).min(most) as u64;
        self.old.expected = wanted;
        // Nor does anything come where it was refused just now: with little of the nursery used each time, a
        // full heap made a whole collection for each 16 KiB of it.
        if !self.old.grows || self.old.refused || survived < MANY && !limited {
            return part;
        }
        let space = self.old.space();
        let source = space.source();
        loop {
            let ready = source.with(|arenas| {
                arenas.expect_growth(wanted, space);
                arenas.ready(wanted)
            });
            // One that is being made is not worth a wait yet. But it may be the first that takes long. So may
            // one that the thread has not begun yet: as much of the nursery as there is memory for is used
            // until then. With all of it a collection of 4 MiB had 2, and waited 4 ms for the other two.
            if ready.bytes >= wanted || !(ready.comes || ready.is_made || ready.is_due) {
                return part;
            }
            if !(ready.comes || ready.is_made) {
                return part.min((ready.bytes as usize).saturating_sub(LEAST_PART).max(SCARCE_PART));
            }
            let waits = ready.comes && !self.pacing.has_waited(self.elapsed() + SLICE);
            if !waits || !source.wait_for_arenas(SLICE) {
                let enough = ((ready.bytes / 2) as usize).max(SCARCE_PART);
                if ready.comes {
                    // It lasts: afterwards more is used by and by.
                    self.nursery.paced = part.min(enough.max(LEAST_PART));
                }
                return part.min(enough);
            }
        }
    }

    /// Whether a nursery in another place can be had in the time of a pause. The kernel finds memory for a
    /// block at once, so each of its arenas takes as long as one does, but where as much is resident. On a host
    /// that was slow to find memory 8 MiB made a pause of 12 to 25 ms of one of 2; what a larger nursery saves
    /// can wait.
    pub(super) fn has_time_for(&self, nursery: usize) -> bool {
        let ready = self.old.space().source().with(|arenas| arenas.ready(nursery as u64));
        ready.bytes >= nursery as u64 || self.has_time_to_find(nursery)
    }

    /// Whether the kernel finds so many bytes in what is left of the time of a pause, each arena in the time
    /// that the last one took: of the first that takes long the average says little, and 8 MiB were found in 22
    /// ms.
    pub(super) fn has_time_to_find(&self, bytes: usize) -> bool {
        let ready = self.old.space().source().with(|arenas| arenas.ready(bytes as u64));
        let arenas = bytes.div_ceil(ARENA_BYTES) as u32;
        !ready.comes && self.pacing.may_take(self.elapsed() + ready.may_take * arenas)
    }
}

impl<S: Source> Old<S> {
    /// Before heap pages are taken: if none is at hand and an arena is being made, waits for it, for twice as
    /// long as one takes or [`PATIENCE`]. Then the thread that makes it is held up, and it is better to make
    /// another. That thread has little time to begin.
    pub(super) fn wait_for_arena(&self) {
        let source = self.space().source();
        let mut begin = None;
        loop {
            let ready = source.with(|arenas| arenas.ready(HEAP_PAGE_BYTES as u64));
            if ready.bytes > 0 || !ready.comes && !ready.is_made {
                return;
            }
            let now = source.os().now();
            let waited = now.saturating_sub(*begin.get_or_insert(now));
            let most = if ready.is_made { (2 * ready.takes).max(PATIENCE) } else { 2 * SLICE };
            if waited >= most || !source.wait_for_arenas(SLICE) {
                return;
            }
        }
    }
}
