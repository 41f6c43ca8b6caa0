//! When a major collection begins in a heap that does not grow. Pure: sizes and times in, a decision out.
//!
//! ```text
//!   a major collection ended ─▶ all that is added is young and dies ─▶ so much was allocated, or so much time went by: the next one is overdue
//! ```
//!
//! The pace ([`pacing`](super::pacing)) asks what was added to the old generation. Of a program that has been
//! large and makes only young garbage from then on nothing is added: what had died of its old objects stayed
//! for as long as it ran, weak slots to it were not cleared, and what was to be finalized was not.
//!
//! What an overdue collection costs is bounded by what the program does meanwhile: by what it allocates, and
//! for those that allocate little by the time.
//!
//! Others: PyPy's incminimark asks for the size of the old generation only, and leaves the rest to
//! `gc.collect`. Go collects when two minutes have gone by. G1 can (`G1PeriodicGCInterval`), and does not
//! unless asked.

use core::time::Duration;

/// Bytes allocated in the nursery for each byte of the old generation until a collection is overdue. An object
/// of two slots, 32 bytes, is marked and swept with 112 instructions, and 128 times its bytes are allocated
/// with 2,304 in a loop that does nothing else (`tests/instructions/test_gc.py` keeps both numbers): a
/// twentieth there, less in any program that uses what it allocates.
const ALLOCATED: u64 = 128;

/// The old generation counts as this many nurseries at least: the pace leaves a small one as much garbage, too.
const LEAST: u64 = 4;

/// Time until a collection is overdue, however little was allocated: Go's. A program that allocates a megabyte
/// a second would wait for hours.
const PERIOD: Duration = Duration::from_secs(120);

/// Nanoseconds until then at least for each byte of the old generation: from 1.1 GiB on this is more than the
/// time above. Marking takes up to a nanosecond for a byte, where objects refer to any others (example
/// `gc_mark`, `graph`): at most a hundredth of the time.
const EACH: u64 = 100;

/// What is known of the time since the last major collection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overdue {
    /// Bytes that were allocated in the nursery when it ended.
    allocated: u64,
    /// When it ended.
    ended: Duration,
    /// Bytes allocated in the nursery at which it is asked again.
    pub(super) next: u64,
    /// The collection that is under way began for this reason.
    pub(super) under_way: bool,
}

impl Overdue {
    /// Of a heap that is made `now`.
    pub(crate) fn new(now: Duration, nursery: usize) -> Self {
        Self { allocated: 0, ended: now, next: nursery as u64, under_way: false }
    }

    /// A major collection ended.
    pub(crate) fn ended(&mut self, allocated: u64, now: Duration, nursery: usize) {
        *self =
            Self { allocated, ended: now, next: allocated.saturating_add(nursery as u64), under_way: false };
    }

    /// Whether a major collection is overdue, where the old generation has `used` bytes and so many were
    /// allocated in nurseries like this one. It is asked again after another nursery: to ask in each minor
    /// collection would be a part of each.
    pub(crate) fn is_overdue(&mut self, used: usize, allocated: u64, now: Duration, nursery: usize) -> bool {
        let (used, nursery) = (used as u64, nursery as u64);
        self.next = allocated.saturating_add(nursery);
        let work = used.max(LEAST * nursery).saturating_mul(ALLOCATED);
        let time = PERIOD.max(Duration::from_nanos(used.saturating_mul(EACH)));
        let waited = allocated - self.allocated >= work || now.saturating_sub(self.ended) >= time;
        // Nothing old is nothing to find.
        self.under_way = used > 0 && waited;
        self.under_way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const NURSERY: usize = 1 << 20;

    /// Whether it is overdue after so many MiB and seconds.
    fn is_overdue(used: u64, allocated: u64, seconds: u64) -> bool {
        let begin = Duration::from_secs(1_000_000);
        let mut overdue = Overdue::new(Duration::ZERO, NURSERY);
        overdue.ended(77, begin, NURSERY);
        let now = begin + Duration::from_secs(seconds);
        overdue.is_overdue((used * MIB) as usize, 77 + allocated * MIB, now, NURSERY)
    }

    #[test]
    fn it_is_overdue_after_128_times_what_is_old() {
        assert!(!is_overdue(100, 12_799, 1) && is_overdue(100, 12_800, 1));
        assert!(!is_overdue(1, 511, 1) && is_overdue(1, 512, 1), "four nurseries at least");
        assert!(!is_overdue(0, 1 << 30, 1 << 30), "nothing is old");
    }

    #[test]
    fn it_is_overdue_after_two_minutes_or_a_hundred_times_what_marking_takes() {
        assert!(!is_overdue(100, 1, 119) && is_overdue(100, 1, 120));
        let large = 100 << 10;
        assert!(!is_overdue(large, 1, 10_737) && is_overdue(large, 1, 10_738));
    }

    #[test]
    fn it_is_asked_again_after_another_nursery() {
        let mut overdue = Overdue::new(Duration::ZERO, NURSERY);
        assert_eq!(overdue.next, MIB);
        assert!(!overdue.is_overdue(1, 3 * MIB, Duration::ZERO, NURSERY));
        assert_eq!((overdue.next, overdue.under_way), (4 * MIB, false));
        assert!(overdue.is_overdue(1, u64::MAX, Duration::ZERO, NURSERY) && overdue.under_way);
        overdue.ended(5 * MIB, Duration::ZERO, NURSERY);
        assert_eq!((overdue.next, overdue.under_way), (6 * MIB, false));
    }

    #[test]
    fn a_clock_that_goes_back_makes_nothing_overdue() {
        let mut overdue = Overdue::new(PERIOD, NURSERY);
        assert!(!overdue.is_overdue(1, 0, Duration::ZERO, NURSERY));
    }
}
