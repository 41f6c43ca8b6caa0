//! How much time an operation may still take: pure, no clock and no system calls.
//!
//! What has passed is added up from one reading of the clock to the next, and nothing is added where it was
//! turned back (what a hypervisor may do that moves or restores a machine). With the moment of the end alone an
//! operation would go on for as much longer as the clock was turned back by.

use core::time::Duration;

/// See the module's text. The readings come from one clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    limit: Duration,
    passed: Duration,
    read_last: Duration,
}

impl Budget {
    /// Begins at `now`.
    pub(super) const fn new(now: Duration, limit: Duration) -> Self {
        Self { limit, passed: Duration::ZERO, read_last: now }
    }

    /// Time since the beginning.
    pub(super) fn passed(&mut self, now: Duration) -> Duration {
        self.passed = self.passed.saturating_add(now.saturating_sub(self.read_last));
        self.read_last = now;
        self.passed
    }

    /// Time that is left.
    pub(super) fn left(&mut self, now: Duration) -> Duration {
        self.limit.saturating_sub(self.passed(now))
    }

    /// Whether none is.
    pub(super) fn is_over(&mut self, now: Duration) -> bool {
        self.left(now).is_zero()
    }

    /// When it is over on the clock as it goes now.
    pub(super) fn deadline(&mut self, now: Duration) -> Duration {
        now.saturating_add(self.left(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_turned_back_takes_no_time_and_gives_none() {
        let at = Duration::from_secs;
        let mut budget = Budget::new(at(100), at(10));
        assert_eq!((budget.passed(at(104)), budget.deadline(at(104))), (at(4), at(110)));
        assert_eq!((budget.passed(at(3)), budget.left(at(3)), budget.deadline(at(3))), (at(4), at(6), at(9)));
        assert!(!budget.is_over(at(8)));
        assert!(budget.is_over(at(9)));
        assert!(budget.is_over(at(2)), "what is over stays over");
    }

    #[test]
    fn a_budget_without_bounds_is_never_over() {
        let mut budget = Budget::new(Duration::from_secs(1), Duration::MAX);
        assert_eq!(budget.deadline(Duration::from_secs(5)), Duration::MAX);
        assert!(!budget.is_over(Duration::from_secs(1 << 40)));
    }
}
