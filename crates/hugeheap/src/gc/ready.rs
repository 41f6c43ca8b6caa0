//! Memory that is ready before survivors need it.
//!
//! Terms: free memory is *ready* when it is resident, so that taking it is no call: heap pages of arenas in use, and empty arenas.
//!
//! ```text
//!   the old generation grows ─▶ is twice what survived ready? ──yes───────────────────────────────▶ go on
//!                                   │ no                                                           ▲
//!                                   ├─ an arena is being made: wait, for the rest of the pause ────┤
//!                                   └─ still not: use a part of the nursery for which half of what is ready would do
//! ```
//!
//! A minor collection cannot be interrupted. Where it took an arena that nobody had touched, the kernel cleared a huge page in the pause: 0.2 ms, and 5 to
//! 20 where a hypervisor had to find the memory first. The maintenance thread makes arenas ahead, but a program that fills a gigabyte is faster than
//! such a host. It has to wait for memory in any case: so it waits a little at the end of many pauses, and not long within one.
//!
//! Where nobody makes arenas (one processor, no thread, no huge pages) there is nothing to wait for, and collections take what they need.

use super::heap::Heap;
use super::pacing::{LEAST_PART, MANY};
use crate::object::Source;
use core::time::Duration;

/// How long a wait takes: half of what clearing a huge page does.
const SLICE: Duration = Duration::from_micros(100);

impl<S: Source> Heap<S> {
    /// At the end of a pause whose minor collection moved `survived` bytes: sees to it that the next one finds as much, and returns how much of the nursery
    /// may be used until then, at most `part`.
    pub(super) fn part_for_ready(&mut self, survived: usize, part: usize) -> usize {
        let wanted = (2 * survived.max(LEAST_PART)).min(part) as u64;
        self.old.expected = wanted;
        if !self.old.grows || survived < MANY {
            return part;
        }
        let space = self.old.space();
        let source = space.source();
        loop {
            let ready = source.with(|arenas| {
                arenas.expect_growth(wanted, space);
                arenas.ready()
            });
            if ready.bytes >= wanted || !ready.comes {
                return part;
            }
            if self.pacing.is_due(self.elapsed() + SLICE) || !source.wait_for_arenas(SLICE) {
                return part.min((ready.bytes / 2) as usize).max(LEAST_PART);
            }
        }
    }
}
