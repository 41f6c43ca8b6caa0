//! What the garbage-collected heaps of the process are and did: sums that they bring up to date, and snapshots
//! are filled from.
//!
//! Here and not beside the heaps, because who publishes the numbers knows no heaps, and they use what it is a part of.

use super::Snapshot;
use super::snapshot::{FIRST_PAUSE, PAUSE_LENGTHS};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A pause of so many nanoseconds is a long one: about a millisecond, the beginning of a bucket of the heaps'
/// histograms.
pub(crate) const LONG_PAUSE: u64 = 1 << 20;

/// What one heap is and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collector {
    /// Bytes of its nursery; 0 once it ended, as the next two.
    pub(crate) nursery: u64,
    /// Bytes of objects in its old generation.
    pub(crate) old: u64,
    /// Bytes of heap pages and large blocks that the old generation has.
    pub(crate) held: u64,
    /// Minor collections.
    pub(crate) minor: u64,
    /// Major collections that ended.
    pub(crate) major: u64,
    /// Pauses.
    pub(crate) pauses: u64,
    /// Of these, those of [`LONG_PAUSE`] or more.
    pub(crate) long_pauses: u64,
    /// Their sum in nanoseconds.
    pub(crate) pause_total: u64,
    /// How many of which length, as in [`Snapshot::gc_pause_lengths`].
    pub(crate) lengths: [u64; PAUSE_LENGTHS],
}

/// Pauses by length, of a histogram whose bucket `n` begins at 2ⁿ nanoseconds.
pub(crate) fn lengths(histogram: &[u64]) -> [u64; PAUSE_LENGTHS] {
    let mut lengths = [0; PAUSE_LENGTHS];
    for (power, count) in histogram.iter().enumerate() {
        lengths[power.saturating_sub(FIRST_PAUSE).min(PAUSE_LENGTHS - 1)] += count;
    }
    lengths
}

/// Sums over all heaps of the process, ended ones too.
#[derive(Debug)]
pub(crate) struct Collectors {
    heaps: AtomicU64,
    nursery: AtomicU64,
    old: AtomicU64,
    held: AtomicU64,
    minor: AtomicU64,
    major: AtomicU64,
    pauses: AtomicU64,
    long_pauses: AtomicU64,
    pause_total: AtomicU64,
    longest_pause: AtomicU64,
    lengths: [AtomicU64; PAUSE_LENGTHS],
}

/// Those of this process.
pub(crate) static COLLECTORS: Collectors = Collectors::new();

impl Collectors {
    pub(crate) const fn new() -> Self {
        Self {
            heaps: AtomicU64::new(0),
            nursery: AtomicU64::new(0),
            old: AtomicU64::new(0),
            held: AtomicU64::new(0),
            minor: AtomicU64::new(0),
            major: AtomicU64::new(0),
            pauses: AtomicU64::new(0),
            long_pauses: AtomicU64::new(0),
            pause_total: AtomicU64::new(0),
            longest_pause: AtomicU64::new(0),
            lengths: [const { AtomicU64::new(0) }; PAUSE_LENGTHS],
        }
    }

    /// A heap was made.
    pub(crate) fn made(&self) {
        self.heaps.fetch_add(1, Relaxed);
    }

    /// A heap was `before` when it was counted last, and is `now`.
    pub(crate) fn changed(&self, before: &Collector, now: &Collector, longest_pause: u64) {
        for (sum, before, now) in [
            (&self.nursery, before.nursery, now.nursery),
            (&self.old, before.old, now.old),
            (&self.held, before.held, now.held),
            (&self.minor, before.minor, now.minor),
            (&self.major, before.major, now.major),
            (&self.pauses, before.pauses, now.pauses),
            (&self.long_pauses, before.long_pauses, now.long_pauses),
            (&self.pause_total, before.pause_total, now.pause_total),
        ] {
            if now != before {
                // Modulo 2⁶⁴, so that it may become less, too.
                sum.fetch_add(now.wrapping_sub(before), Relaxed);
            }
        }
        for ((sum, before), now) in self.lengths.iter().zip(&before.lengths).zip(&now.lengths) {
            if now != before {
                sum.fetch_add(now - before, Relaxed);
            }
        }
        self.longest_pause.fetch_max(longest_pause, Relaxed);
    }

    /// Writes the sums into a snapshot.
    pub(crate) fn fill(&self, snapshot: &mut Snapshot) {
        snapshot.gc_heaps = self.heaps.load(Relaxed);
        snapshot.gc_nursery = self.nursery.load(Relaxed);
        snapshot.gc_old = self.old.load(Relaxed);
        snapshot.gc_held = self.held.load(Relaxed);
        snapshot.gc_minor = self.minor.load(Relaxed);
        snapshot.gc_major = self.major.load(Relaxed);
        snapshot.gc_pauses = self.pauses.load(Relaxed);
        snapshot.gc_long_pauses = self.long_pauses.load(Relaxed);
        snapshot.gc_pause_total = self.pause_total.load(Relaxed);
        snapshot.gc_longest_pause = self.longest_pause.load(Relaxed);
        for (length, sum) in snapshot.gc_pause_lengths.iter_mut().zip(&self.lengths) {
            *length = sum.load(Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_heap_has_goes_with_it_and_what_it_did_stays() {
        let sums = Collectors::new();
        let one = Collector {
            nursery: 100,
            old: 50,
            held: 60,
            minor: 3,
            pauses: 4,
            pause_total: 9,
            ..Collector::default()
        };
        let mut histogram = [0; 36];
        (histogram[0], histogram[10], histogram[20], histogram[35]) = (1, 2, 3, 4);
        let two = Collector { old: 20, major: 1, lengths: lengths(&histogram), ..one };
        let mut expected = [0; PAUSE_LENGTHS];
        (expected[0], expected[10], expected[PAUSE_LENGTHS - 1]) = (3, 3, 4);
        let other = Collector { nursery: 7, minor: 1, long_pauses: 1, ..Collector::default() };
        for _ in 0..2 {
            sums.made();
        }
        sums.changed(&Collector::default(), &one, 5);
        sums.changed(&Collector::default(), &other, 8);
        sums.changed(&one, &two, 6);
        let told = || {
            let mut snapshot = Snapshot::EMPTY;
            sums.fill(&mut snapshot);
            snapshot
        };
        let all = Snapshot {
            gc_heaps: 2,
            gc_nursery: 107,
            gc_old: 20,
            gc_held: 60,
            gc_minor: 4,
            gc_major: 1,
            gc_pauses: 4,
            gc_long_pauses: 1,
            gc_pause_total: 9,
            gc_longest_pause: 8,
            gc_pause_lengths: expected,
            ..Snapshot::EMPTY
        };
        assert_eq!(told(), all);
        sums.changed(&two, &Collector { nursery: 0, old: 0, held: 0, ..two }, 0);
        assert_eq!(told(), Snapshot { gc_nursery: 7, gc_old: 0, gc_held: 0, ..all });
    }
}
