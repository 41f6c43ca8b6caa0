//! When a costly source may be asked again, so that all that is spent on it stays within a share of the time. Pure.
//!
//! ```text
//!   time      ├────────────────────────────▶
//!   credit        ╱│     ╱╱╱│     ╱╱         share × time − what was spent
//!   expected   ───╱┼───╱────┼──╱──           asked as soon as the credit covers what it is expected to cost
//! ```

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

    /// Whether it may be asked after `elapsed`; `estimate` is what it may cost as long as that is not known from last time,
    /// and later where it is more.
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
