//! The numbers that a process on hugeheap shows of its heap, in a line.

use crate::output::{counted, grouped};
use core::time::Duration;
use hugeheap::arena::Policy;
use hugeheap::telemetry::{Snapshot, numbers};
use hugeheap_os::linux::Linux;

/// What is told of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heap {
    policy: Option<Policy>,
    arenas: u64,
    full: u64,
    partial: u64,
    empty: u64,
    huge: u64,
    /// In bytes.
    allocated: u64,
    kept: u64,
    fallbacks: u64,
}

impl Heap {
    /// Of a process; `None` where it shows none, or there was no time.
    pub(crate) fn of(linux: Linux, id: u32, deadline: Duration) -> Option<Self> {
        let numbers = numbers::of_process(linux, id, deadline).ok().flatten()?;
        Some(Self::from(&numbers.snapshot))
    }

    pub(crate) fn words(&self, bytes: impl Fn(u64) -> String) -> String {
        let policy = self.policy.map_or("unknown", Policy::name);
        format!(
            "on hugeheap, policy {policy}: {} allocated, {} ({} full, {} partial, {} empty; {} huge), {} kept for reuse, {}",
            bytes(self.allocated),
            counted(self.arenas, "arena", "arenas"),
            grouped(self.full),
            grouped(self.partial),
            grouped(self.empty),
            grouped(self.huge),
            bytes(self.kept),
            counted(self.fallbacks, "fallback", "fallbacks"),
        )
    }
}

impl From<&Snapshot> for Heap {
    fn from(snapshot: &Snapshot) -> Self {
        Self {
            policy: Policy::from_number(snapshot.policy),
            arenas: snapshot.arenas,
            full: snapshot.arenas_full,
            partial: snapshot.arenas_partial,
            empty: snapshot.arenas_empty,
            huge: snapshot.arenas_thp + snapshot.arenas_hugetlb,
            allocated: snapshot.live,
            kept: snapshot.retained,
            fallbacks: snapshot.fallbacks.iter().sum(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const HEAP: Heap = Heap {
        policy: Some(Policy::Thp),
        arenas: 3,
        full: 1,
        partial: 1,
        empty: 1,
        huge: 2,
        allocated: 3 << 20,
        kept: 2 << 20,
        fallbacks: 1,
    };

    #[test]
    fn a_heap_is_one_line() {
        assert_eq!(
            HEAP.words(crate::output::bytes),
            "on hugeheap, policy thp: 3.0 MiB allocated, 3 arenas (1 full, 1 partial, 1 empty; 2 huge), 2.0 MiB kept for reuse, \
             1 fallback"
        );
    }
}
