//! How fast a running process may be worked on, and when to give up: pure, no clock and no system calls.
//!
//! Every call holds a lock of the target's address space while it works, so the time of a call is the time the
//! target may stand still. The pace follows from that time alone:
//!
//! ```text
//!   call took ≤ limit   rest as long as the call took: the target keeps half of the time at least
//!   call took > limit   the host is compacting or busy: back off, twice as long each time, up to a second
//!   EAGAIN              the unit was in use for a moment: back off, and the unit comes again, three times at most
//!   ENOMEM              no huge page: back off; after five in a row stop, more calls would only compact again
//!   EBUSY               the cgroup is full: stop after three in a row
//!   EINVAL              not possible for this range: go on
//!   ESRCH, EPERM, …     stop at once
//! ```

use crate::{Error, ErrorKind};
use core::time::Duration;
use std::collections::BTreeMap;

/// A call longer than this makes the pace back off. A page fault that waits for it is noticed by nobody at 20 ms, and
/// one call takes 1 to 8 ms on a busy machine of two cores.
pub(super) const LATENCY_LIMIT: Duration = Duration::from_millis(20);
/// First and longest wait of backing off. Compaction in the background finds pages within about a second or not at all.
const FIRST_BACK_OFF: Duration = Duration::from_millis(10);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(1);
/// Huge pages not found in a row before giving up: with the waits between them about 0.3 s of trying.
const NO_PAGE_LIMIT: u32 = 5;
/// Refusals of the cgroup in a row before giving up. Its charge does not fall by waiting.
const FULL_LIMIT: u32 = 3;
/// How often one unit is tried again after `EAGAIN`.
pub(super) const TRIES: u32 = 4;

/// Why an operation ended before its plan did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The time budget is used up.
    Budget,
    /// The kernel finds no more huge pages.
    NoHugePages,
    /// The memory cgroup has no room for another huge page.
    CgroupFull,
    /// The process has ended.
    Gone,
    /// Its main thread has ended while others run: the kernel changes nothing of its memory any more on request
    /// of another process.
    MainThreadEnded,
    /// Whoever asked for it wants it to end: [`Process::is_interrupted`](super::Process::is_interrupted).
    Interrupted,
    /// The call is not allowed, or this kernel does not have it.
    Refused(Error),
}

impl Stop {
    /// Its name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::NoHugePages => "no_huge_pages",
            Self::CgroupFull => "cgroup_full",
            Self::Gone => "gone",
            Self::MainThreadEnded => "main_thread_ended",
            Self::Interrupted => "interrupted",
            Self::Refused(_) => "refused",
        }
    }
}

/// What to do after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Go on after this time; with `again`, the same range comes again later.
    Next {
        /// How long to wait first.
        wait: Duration,
        /// Whether the range is to be tried again.
        again: bool,
    },
    /// Give up.
    Stop(Stop),
}

/// The pace of one operation.
#[derive(Clone, Debug)]
pub struct Pace {
    limit: Duration,
    back_off: Duration,
    no_page: u32,
    full: u32,
    longest: Duration,
    slow: u32,
}

impl Pace {
    /// A pace that backs off from calls longer than `limit`.
    pub const fn new(limit: Duration) -> Self {
        Self { limit, back_off: FIRST_BACK_OFF, no_page: 0, full: 0, longest: Duration::ZERO, slow: 0 }
    }

    /// Longest call so far.
    pub const fn longest(&self) -> Duration {
        self.longest
    }

    /// Calls that took longer than the limit.
    pub const fn slow(&self) -> u32 {
        self.slow
    }

    /// Whether calls are as quick as half the limit, so that a larger one may be tried.
    pub fn is_quick(&self, took: Duration) -> bool {
        took * 2 <= self.limit
    }

    /// Notes a call that took `took`, the `tries`th for its range, and says how to go on.
    pub fn after(&mut self, took: Duration, result: Result<(), Error>, tries: u32) -> Outcome {
        self.longest = self.longest.max(took);
        let slow = took > self.limit;
        self.slow += u32::from(slow);
        let kind = result.err().map(Error::kind);
        self.no_page = if kind == Some(ErrorKind::OutOfMemory) { self.no_page + 1 } else { 0 };
        self.full = if kind == Some(ErrorKind::Busy) { self.full + 1 } else { 0 };
        let again = match (kind, result) {
            (None | Some(ErrorKind::Invalid), _) => false,
            (Some(ErrorKind::Again), _) => tries < TRIES,
            (Some(ErrorKind::OutOfMemory), _) if self.no_page >= NO_PAGE_LIMIT => {
                return Outcome::Stop(Stop::NoHugePages);
            }
            (Some(ErrorKind::Busy), _) if self.full >= FULL_LIMIT => return Outcome::Stop(Stop::CgroupFull),
            (Some(ErrorKind::OutOfMemory | ErrorKind::Busy), _) => tries < TRIES,
            (Some(ErrorKind::Missing), Err(error)) if error.code == libc::ESRCH => {
                return Outcome::Stop(Stop::Gone);
            }
            (Some(ErrorKind::Permission | ErrorKind::Unsupported), Err(error)) => {
                return Outcome::Stop(Stop::Refused(error));
            }
            // The mapping went away since the picture was made (`ENOENT`, `EFAULT`), or something nobody foresaw.
            _ => false,
        };
        let disturbed =
            slow || matches!(kind, Some(ErrorKind::Again | ErrorKind::OutOfMemory | ErrorKind::Busy));
        let wait = if disturbed {
            let wait = self.back_off.max(took);
            self.back_off = (self.back_off * 2).min(LONGEST_BACK_OFF);
            wait
        } else {
            self.back_off = (self.back_off / 2).max(FIRST_BACK_OFF);
            took
        };
        Outcome::Next { wait, again }
    }
}

/// Results counted by error number; 0 is success.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<i32, u64>);

impl Tally {
    /// Counts a result.
    pub fn add(&mut self, result: Result<(), Error>) {
        *self.0.entry(result.err().map_or(0, |error| error.code)).or_default() += 1;
    }

    /// How often a number was answered.
    pub fn count(&self, code: i32) -> u64 {
        self.0.get(&code).copied().unwrap_or(0)
    }

    /// The error numbers and how often each, without successes.
    pub fn errors(&self) -> impl Iterator<Item = (i32, u64)> {
        self.0.iter().filter(|(code, _)| **code != 0).map(|(code, count)| (*code, *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn failed(code: i32) -> Result<(), Error> {
        Err(Error::new("process_madvise", code))
    }

    fn wait(outcome: Outcome) -> Duration {
        match outcome {
            Outcome::Next { wait, .. } => wait,
            Outcome::Stop(stop) => panic!("{stop:?}"),
        }
    }

    #[test]
    fn the_target_keeps_half_of_the_time() {
        let mut pace = Pace::new(LATENCY_LIMIT);
        assert_eq!(pace.after(3 * MS, Ok(()), 1), Outcome::Next { wait: 3 * MS, again: false });
        assert_eq!(pace.longest(), 3 * MS);
        assert_eq!(pace.slow(), 0);
    }

    #[test]
    fn latency_backs_off_twice_as_long_each_time_and_recovers() {
        let mut pace = Pace::new(LATENCY_LIMIT);
        let waits: Vec<_> = (0..9).map(|_| wait(pace.after(21 * MS, Ok(()), 1)).as_millis()).collect();
        assert_eq!(waits, [21, 21, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(pace.slow(), 9);
        for _ in 0..7 {
            assert_eq!(wait(pace.after(MS, Ok(()), 1)), MS);
        }
        assert_eq!(wait(pace.after(21 * MS, Ok(()), 1)), 21 * MS);
    }

    #[test]
    fn a_busy_unit_comes_again_but_not_for_ever() {
        let mut pace = Pace::new(LATENCY_LIMIT);
        for tries in 1..TRIES {
            let Outcome::Next { again, wait } = pace.after(MS, failed(libc::EAGAIN), tries) else { panic!() };
            assert!(again && wait >= FIRST_BACK_OFF);
        }
        let last = pace.after(MS, failed(libc::EAGAIN), TRIES);
        assert!(matches!(last, Outcome::Next { again: false, .. }), "{last:?}");
    }

    #[test]
    fn without_huge_pages_it_stops_and_one_that_was_found_starts_the_count_again() {
        let mut pace = Pace::new(LATENCY_LIMIT);
        for _ in 1..NO_PAGE_LIMIT {
            assert!(matches!(pace.after(MS, failed(libc::ENOMEM), 1), Outcome::Next { again: true, .. }));
        }
        pace.after(MS, Ok(()), 1);
        for _ in 1..NO_PAGE_LIMIT {
            assert!(matches!(pace.after(MS, failed(libc::ENOMEM), 1), Outcome::Next { .. }));
        }
        assert_eq!(pace.after(MS, failed(libc::ENOMEM), 1), Outcome::Stop(Stop::NoHugePages));
    }

    #[test]
    fn a_full_cgroup_stops_sooner() {
        let mut pace = Pace::new(LATENCY_LIMIT);
        let outcomes: Vec<_> = (0..FULL_LIMIT).map(|_| pace.after(MS, failed(libc::EBUSY), 1)).collect();
        assert_eq!(outcomes.last(), Some(&Outcome::Stop(Stop::CgroupFull)));
    }

    #[test]
    fn what_cannot_get_better_stops_at_once() {
        let after = |code| Pace::new(LATENCY_LIMIT).after(MS, failed(code), 1);
        assert_eq!(after(libc::ESRCH), Outcome::Stop(Stop::Gone));
        for code in [libc::EPERM, libc::EACCES, libc::ENOSYS] {
            assert!(matches!(after(code), Outcome::Stop(Stop::Refused(error)) if error.code == code));
        }
        // This range only.
        for code in [libc::EINVAL, libc::ENOENT, libc::EFAULT, libc::EIO] {
            assert!(matches!(after(code), Outcome::Next { again: false, .. }), "{code}");
        }
    }

    #[test]
    fn results_are_counted_by_number() {
        let mut tally = Tally::default();
        tally.add(Ok(()));
        tally.add(failed(libc::EAGAIN));
        tally.add(failed(libc::EAGAIN));
        assert_eq!((tally.count(0), tally.count(libc::EAGAIN), tally.count(libc::EPERM)), (1, 2, 0));
        assert_eq!(tally.errors().collect::<Vec<_>>(), [(libc::EAGAIN, 2)]);
    }
}
