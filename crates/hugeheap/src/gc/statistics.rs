//! What a heap tells about its collections.

/// Buckets of a histogram: bucket `n` counts pauses of at least 2ⁿ and less than 2ⁿ⁺¹ nanoseconds; the last one
/// all longer ones, from 34 s.
pub const BUCKETS: usize = 36;

/// Pauses: how many, how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    /// Their number.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub total: u64,
    /// The longest in nanoseconds.
    pub longest: u64,
    /// How many of which length: see [`BUCKETS`].
    pub histogram: [u64; BUCKETS],
}

impl Default for Pauses {
    fn default() -> Self {
        Self { count: 0, total: 0, longest: 0, histogram: [0; BUCKETS] }
    }
}

impl Pauses {
    pub(crate) fn record(&mut self, nanoseconds: u64) {
        self.count += 1;
        self.total += nanoseconds;
        self.longest = self.longest.max(nanoseconds);
        self.histogram[(nanoseconds.max(1).ilog2() as usize).min(BUCKETS - 1)] += 1;
    }
}

/// The numbers of a heap since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Minor collections.
    pub minor: u64,
    /// Steps of marking and sweeping.
    pub steps: u64,
    /// Major collections that ended.
    pub major: u64,
    /// Objects that minor collections moved to the old generation.
    pub survivors: u64,
    /// Bytes of their blocks.
    pub survived_bytes: u64,
    /// Bytes that were used of the nursery.
    pub nursery_bytes: u64,
    /// Bytes allocated in the old generation at once.
    pub old_bytes: u64,
    /// Objects that had to stay in the nursery because the old generation had no room.
    pub not_moved: u64,
    /// Weak slots that became 0, and ephemerons.
    pub cleared: u64,
    /// Objects that became ready to be finalized.
    pub finalized: u64,
    /// Evacuations.
    pub evacuations: u64,
    /// Objects that evacuations moved.
    pub moved: u64,
    /// Bytes of these.
    pub moved_bytes: u64,
    /// Heap pages that became free thereby.
    pub freed_pages: u64,
    /// Times that another nursery was used than before, where that is asked for.
    pub rotated: u64,
    /// Times that the mutator waited for a collection, whatever it consisted of.
    pub pauses: Pauses,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_counted_where_they_belong() {
        let mut pauses = Pauses::default();
        for nanoseconds in [0, 1, 2, 1023, 1024, u64::MAX >> 1] {
            pauses.record(nanoseconds);
        }
        assert_eq!((pauses.count, pauses.longest), (6, u64::MAX >> 1));
        assert_eq!((pauses.histogram[0], pauses.histogram[1]), (2, 1));
        assert_eq!((pauses.histogram[9], pauses.histogram[10], pauses.histogram[BUCKETS - 1]), (1, 1, 1));
    }
}
