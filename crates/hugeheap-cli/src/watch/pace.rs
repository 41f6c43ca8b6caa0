//! When may be looked again, so that all that is spent on it stays within a share of the time. Pure.
//!
//! ```text
//!   Pace: a costly source, asked now and then          Rhythm: looks, which are to be regular
//!
//!   time      ├────────────────────────────▶           ├──┬──────┬──────┬────▶
//!   credit        ╱│     ╱╱╱│     ╱╱                     cost    cost
//!   expected   ───╱┼───╱────┼──╱──                       ◀─────▶ at least cost ÷ share
//! ```
//!
//! A source is asked as soon as its credit, share × time − what was spent, covers what it is expected to cost.
//! Credit that was saved would let looks come too often for a while when they become costly (a command that
//! starts a thousand processes), so a rhythm has none.

use std::time::Duration;

/// What is spent on a source, and how much it may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    share: f64,
    spent: Duration,
    /// What the last time cost; twice that, when it was not enough.
    last: Option<Duration>,
}

impl Pace {
    pub(super) const fn new(share: f64) -> Self {
        Self { share, spent: Duration::ZERO, last: None }
    }

    /// Whether it may be asked after `elapsed`; `estimate` is what it may cost as long as that is not known
    /// from last time, and later where it is more.
    pub(super) fn may(&self, elapsed: Duration, estimate: Duration) -> bool {
        self.allowance(elapsed) >= self.last.unwrap_or(estimate).max(estimate)
    }

    /// What may be spent after `elapsed`.
    pub(super) fn allowance(&self, elapsed: Duration) -> Duration {
        elapsed.mul_f64(self.share).saturating_sub(self.spent)
    }

    /// It was asked, at this cost. `is_complete`: it had the time it needed.
    pub(super) fn done(&mut self, cost: Duration, is_complete: bool) {
        self.spent += cost;
        self.last = Some(if is_complete { cost } else { cost * 2 });
    }
}

/// How often may be looked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rhythm {
    share: f64,
    /// What the last two looks cost.
    last: [Duration; 2],
}

impl Rhythm {
    pub(super) const fn new(share: f64) -> Self {
        Self { share, last: [Duration::ZERO; 2] }
    }

    /// A look cost this.
    pub(super) fn done(&mut self, cost: Duration) {
        self.last = [self.last[1], cost];
    }

    /// From the beginning of one look to that of the next, at least. The cheaper of the last two counts: the
    /// first one, whose files are in no cache yet, and one that met with an accident say nothing of the next.
    pub(super) fn at_least(&self) -> Duration {
        self.last[0].min(self.last[1]).div_f64(self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_source_waits_until_its_share_pays_for_it() {
        let mut pace = Pace::new(0.01);
        assert!(!pace.may(99 * MS, MS) && pace.may(100 * MS, MS));
        // It cost four times what was thought: the next time comes when both are paid for.
        pace.done(4 * MS, true);
        assert!(!pace.may(799 * MS, MS) && pace.may(800 * MS, MS));
        // One that had too little time gets twice as much.
        pace.done(4 * MS, false);
        assert!(!pace.may(1599 * MS, MS) && pace.may(1600 * MS, MS));
    }

    #[test]
    fn looks_that_become_costly_become_rare_and_one_accident_is_none() {
        let mut rhythm = Rhythm::new(0.002);
        let mut at_least = |cost| {
            rhythm.done(cost);
            rhythm.at_least()
        };
        assert_eq!((at_least(9 * MS), at_least(MS), at_least(40 * MS)), (Duration::ZERO, 500 * MS, 500 * MS));
        assert_eq!((at_least(4 * MS), at_least(4 * MS), at_least(MS)), (2000 * MS, 2000 * MS, 500 * MS));
    }

    proptest! {
        #[test]
        fn the_share_is_kept_but_for_one_surprise(costs in prop::collection::vec(1u32..50, 1..50)) {
            let mut pace = Pace::new(0.005);
            let (mut elapsed, mut most) = (Duration::ZERO, Duration::ZERO);
            for cost in costs.into_iter().map(|cost| MS * cost) {
                while !pace.may(elapsed, MS) {
                    elapsed += 50 * MS;
                }
                pace.done(cost, true);
                most = most.max(cost);
                prop_assert!(pace.spent <= elapsed.mul_f64(0.005) + most);
            }
        }
    }
}
