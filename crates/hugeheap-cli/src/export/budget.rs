//! The time of one look, and what was left out of it.
//!
//! One process must not take the time of all others: whatever is not cheap gets at most half of what is left.

use super::metric::{Found, SCRAPE_BUDGET, SCRAPE_SKIPPED, SCRAPE_TIME};
use core::time::Duration;
use hugeheap_os::linux::Linux;
use hugeheap_os::{Error, ErrorKind, Facts};
use std::collections::BTreeMap;

/// What may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// Looking whether a process has a heap of hugeheap, and reading its numbers.
    Heap,
    /// What is resident of a heap.
    Residency,
    /// Memory of a chosen process.
    Process,
    /// What is stranded in a chosen process.
    Stranded,
    /// A cgroup.
    Cgroup,
}

impl What {
    const ALL: [Self; 5] = [Self::Heap, Self::Residency, Self::Process, Self::Stranded, Self::Cgroup];

    const fn name(self) -> &'static str {
        match self {
            Self::Heap => "heap",
            Self::Residency => "residency",
            Self::Process => "process",
            Self::Stranded => "stranded",
            Self::Cgroup => "cgroup",
        }
    }
}

/// Why it was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Why {
    /// There was no time.
    Budget,
    /// It is not allowed.
    Permission,
    /// The system answered something else, or something that could not be understood.
    Failed,
}

impl Why {
    const ALL: [Self; 3] = [Self::Budget, Self::Permission, Self::Failed];

    const fn name(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Permission => "permission",
            Self::Failed => "failed",
        }
    }

    /// `None` for a process that has ended: nothing was left out.
    pub(super) fn of(error: Error) -> Option<Self> {
        match error.kind() {
            ErrorKind::Missing => None,
            ErrorKind::Permission => Some(Self::Permission),
            _ if error.code == libc::ETIME => Some(Self::Budget),
            _ => Some(Self::Failed),
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Budget {
    linux: Linux,
    begin: Duration,
    deadline: Duration,
    skipped: BTreeMap<(What, Why), u64>,
}

impl Budget {
    pub(super) fn new(linux: Linux, time: Duration) -> Self {
        let begin = linux.now();
        Self { linux, begin, deadline: begin + time, skipped: BTreeMap::new() }
    }

    /// Until when a single piece of work may go on; `None`: there is no time for any.
    pub(super) fn share(&self) -> Option<Duration> {
        let now = self.linux.now();
        (now < self.deadline).then(|| now + (self.deadline - now) / 2)
    }

    pub(super) fn skip(&mut self, what: What, why: Why) {
        *self.skipped.entry((what, why)).or_default() += 1;
    }

    /// Notes an error, unless it says that a process has ended.
    pub(super) fn failed(&mut self, what: What, error: Error) {
        if let Some(why) = Why::of(error) {
            self.skip(what, why);
        }
    }

    /// What was left out, as metrics: all of them, so that a rule finds a zero and not nothing.
    pub(super) fn report(&self, found: &mut Found) {
        for what in What::ALL {
            for why in Why::ALL {
                let count = self.skipped.get(&(what, why)).copied().unwrap_or(0);
                found.add(&SCRAPE_SKIPPED, &[("what", what.name()), ("why", why.name())], count);
            }
        }
        found.add(&SCRAPE_BUDGET, &[], (self.deadline - self.begin).as_secs_f64());
        found.add(&SCRAPE_TIME, &[], self.linux.now().saturating_sub(self.begin).as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_gets_half_of_what_is_left() {
        let budget = Budget::new(Linux::new(), Duration::from_secs(1000));
        let share = budget.share().unwrap();
        assert!(
            share > budget.begin + Duration::from_secs(400)
                && share < budget.begin + Duration::from_secs(800)
        );
        assert_eq!(Budget::new(Linux::new(), Duration::ZERO).share(), None);
    }

    #[test]
    fn what_is_left_out_is_counted_and_what_is_not_is_zero() {
        let mut budget = Budget::new(Linux::new(), Duration::from_secs(1));
        budget.failed(What::Heap, Error::new("x", libc::EACCES));
        budget.failed(What::Heap, Error::new("x", libc::EPERM));
        budget.failed(What::Process, Error::new("x", libc::ETIME));
        budget.failed(What::Process, Error::new("x", libc::ESRCH));
        let mut found = Found::new();
        budget.report(&mut found);
        let text = super::super::text::write(found.into(), super::super::arguments::Format::Prometheus);
        for line in [
            "{what=\"heap\",why=\"permission\"} 2",
            "{what=\"process\",why=\"budget\"} 1",
            "{what=\"process\",why=\"failed\"} 0",
        ] {
            assert!(text.contains(&format!("hugeheap_scrape_skipped{line}\n")), "{line}: {text}");
        }
    }
}
