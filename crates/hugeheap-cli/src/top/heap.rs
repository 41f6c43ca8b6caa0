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
    /// `None`: no garbage-collected heap was made.
    collector: Option<Collector>,
}

/// What is told of garbage-collected heaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Collector {
    /// In bytes.
    old: u64,
    minor: u64,
    major: u64,
    /// 99 % of the pauses are shorter.
    most: Duration,
    longest: Duration,
}

impl Heap {
    /// Of a process; `None` where it shows none, or there was no time.
    pub(crate) fn of(linux: Linux, id: u32, deadline: Duration) -> Option<Self> {
        let numbers = numbers::of_process(linux, id, deadline).ok().flatten()?;
        Some(Self::from(&numbers.snapshot))
    }

    pub(crate) fn words(&self, bytes: impl Fn(u64) -> String) -> String {
        let policy = self.policy.map_or("unknown", Policy::name);
        let collector = self.collector.map_or_else(String::new, |collector| {
            format!(
                ", garbage-collected: {} old, {}, {}, 99 % of pauses below {:.1} ms, longest {:.1} ms",
                bytes(collector.old),
                counted(collector.minor, "minor collection", "minor collections"),
                counted(collector.major, "major", "major"),
                collector.most.as_secs_f64() * 1e3,
                collector.longest.as_secs_f64() * 1e3,
            )
        });
        format!(
            "on hugeheap, policy {policy}: {} allocated, {} ({} full, {} partial, {} empty; {} huge), {} kept for reuse, {}{collector}",
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
            collector: (snapshot.gc_heaps > 0).then(|| Collector {
                old: snapshot.gc_old,
                minor: snapshot.gc_minor,
                major: snapshot.gc_major,
                most: Duration::from_nanos(snapshot.pause_quantile(0.99).unwrap_or(0)),
                longest: Duration::from_nanos(snapshot.gc_longest_pause),
            }),
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
        collector: None,
    };

    #[test]
    fn a_heap_is_one_line() {
        assert_eq!(
            HEAP.words(crate::output::bytes),
            "on hugeheap, policy thp: 3.0 MiB allocated, 3 arenas (1 full, 1 partial, 1 empty; 2 huge), 2.0 MiB kept for reuse, \
             1 fallback"
        );
    }

    #[test]
    fn garbage_collected_heaps_are_told_where_there_are_some() {
        let mut snapshot = Snapshot {
            gc_heaps: 1,
            gc_old: 5 << 20,
            gc_minor: 1,
            gc_major: 2,
            gc_longest_pause: 1_260_000,
            ..Snapshot::EMPTY
        };
        (snapshot.gc_pause_lengths[0], snapshot.gc_pause_lengths[9], snapshot.gc_pause_lengths[10]) =
            (900, 95, 5);
        let words = Heap::from(&snapshot).words(crate::output::bytes);
        let end = ", 0 fallbacks, garbage-collected: 5.0 MiB old, 1 minor collection, 2 major, \
                   99 % of pauses below 1.0 ms, longest 1.3 ms";
        assert!(words.ends_with(end), "{words}");
        assert!(!Heap::from(&Snapshot::EMPTY).words(crate::output::bytes).contains("collect"));
    }
}
