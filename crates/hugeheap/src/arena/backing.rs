//! What the next arena is made of: the policies, as a pure function of what the host says and what the heap is.
//!
//! | policy | choice |
//! |---|---|
//! | `base` | OS pages, advised against huge pages |
//! | `thp` | advised; OS pages near the memory limit |
//! | `dense` | OS pages; maintenance collapses the arena once it is dense |
//! | `hugetlb` | the pool; `thp` once it is empty, refused, or the process forks |
//! | `auto` | `thp` where it works, `dense` where the host's mode is `never` (an explicit collapse works there) or finding huge pages took long lately; small runs get one base arena of their own first |
//!
//! Why `auto` keeps small runs apart and does not simply begin with a base arena: CPython's first requests are
//! one data-stack chunk of 16 KiB and one or two arenas of 1 MiB. In one arena the chunk cuts the second half,
//! so the second MiB opens a second huge page: 4 MiB resident where 2 are enough. With the chunk on OS pages of
//! its own, a whole `python -c pass` fits one huge page: 200 faults fewer than with a base arena first, and
//! less memory than with `thp` (`tests/kernel` holds the start-up to 3 MiB above stock). Once the heap has
//! [grown](super::arenas::GROWN) it is collapsed like any other that is dense.
//!
//! A policy that cannot have what it wants says why: the [`Fallback`] is counted by the caller, once per arena.

use super::Policy;
use super::record::Made;
use crate::telemetry::Fallback;
use hugeheap_os::{ErrorKind, Facts, MemoryLimits, ThpDisabled, ThpMode};

/// Processor time that finding a huge page may take on average before `auto` stops asking at fault time, in
/// nanoseconds. Clearing 2 MiB takes 0.05 to 0.2 ms, a virtual machine's first touch of host memory 5 ms;
/// direct compaction takes tens of milliseconds.
const SLOW: u64 = 20_000_000;

/// How long `auto` stays away from huge pages at fault time after they were slow, in nanoseconds.
const SLOW_PAUSE: u64 = 10_000_000_000;

/// What the host says, read by the caller now and then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    /// `None`: a kernel without transparent huge pages, or a huge page of another size than the arena.
    pub(crate) thp: Option<ThpMode>,
    pub(crate) disabled: ThpDisabled,
    pub(crate) collapse: bool,
    pub(crate) limits: Option<MemoryLimits>,
    /// Processors that the process may run on.
    pub(crate) processors: usize,
    /// Bytes that the process can have writable (`ulimit -d`), if that is limited: memory that is given back
    /// has to lose its write access, too.
    pub(crate) data_limit: Option<u64>,
}

impl Host {
    /// Before anything was read: as a host without huge pages.
    pub(crate) const UNKNOWN: Self = Self {
        thp: None,
        disabled: ThpDisabled::No,
        collapse: false,
        limits: None,
        processors: 1,
        data_limit: None,
    };

    /// Asks the operating system. Does not allocate.
    pub(crate) fn read<F: Facts>(os: &F) -> Self {
        let right_size = os.page_sizes().huge == Some(super::ARENA_BYTES);
        let mode = || match os.thp_mode() {
            Ok(mode) => Some(mode),
            Err(error) if error.kind() == ErrorKind::Missing => None,
            // /sys is closed: advice may work, and the first touch shows whether it does.
            Err(_) => Some(ThpMode::Madvise),
        };
        Self {
            thp: if right_size { mode() } else { None },
            disabled: os.thp_disabled().unwrap_or(ThpDisabled::No),
            collapse: right_size && os.knows_collapse(),
            limits: os.memory_limits().ok(),
            processors: os.processors(),
            data_limit: os.data_limit(),
        }
    }

    /// Reads again what changes while a process runs.
    pub(crate) fn refresh<F: Facts>(&mut self, os: &F) {
        self.processors = os.processors();
        self.data_limit = os.data_limit();
        if self.thp.is_some() {
            if let Ok(mode) = os.thp_mode() {
                self.thp = Some(mode);
            }
        }
        if let Ok(disabled) = os.thp_disabled() {
            self.disabled = disabled;
        }
        if self.limits.is_some() {
            self.limits = os.memory_limits().ok();
        }
    }

    /// Why advised memory does not become huge on this host, if so.
    pub(crate) fn advice_fails(&self) -> Option<Fallback> {
        match (self.thp, self.disabled) {
            (None, _) => Some(Fallback::ThpUnsupported),
            (_, ThpDisabled::Completely) => Some(Fallback::ThpDisabled),
            (Some(ThpMode::Never), _) => Some(Fallback::ThpNever),
            _ => None,
        }
    }

    /// Whether an explicit collapse can work.
    pub(crate) fn can_collapse(&self) -> bool {
        self.collapse && self.disabled != ThpDisabled::Completely
    }

    /// The cgroup's limit, if there is one.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.limits.and_then(|limits| [limits.max, limits.high].into_iter().flatten().min())
    }

    /// Bytes that it leaves, if there is one.
    pub(crate) fn room(&self) -> Option<u64> {
        let (limits, limit) = (self.limits?, self.limit()?);
        Some(limit.saturating_sub(limits.anonymous.unwrap_or(limits.charge).min(limits.charge)))
    }

    /// Whether the cgroup's charge is near its limit: less than a sixteenth of it, or than 8 arenas, left.
    /// `mapped` is what the heap holds, `own` the limit that the user set on that. File cache can be dropped
    /// and is not counted where the kernel tells it apart.
    pub(crate) fn is_tight(&self, mapped: u64, own: Option<u64>) -> bool {
        if own.is_some_and(|own| mapped >= own) {
            return true;
        }
        let (Some(limit), Some(room)) = (self.limit(), self.room()) else { return false };
        let margin = (limit / 16).max(8 * super::ARENA_BYTES as u64).min(limit / 2);
        room <= margin
    }
}

/// What to make the next arena of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) made: Made,
    /// The policy that the choice amounts to.
    pub(crate) effective: Policy,
    /// Why it is not what the policy wanted.
    pub(crate) fallback: Option<Fallback>,
}

impl Choice {
    const fn new(made: Made, effective: Policy, fallback: Option<Fallback>) -> Self {
        Self { made, effective, fallback }
    }
}

/// What the heap is like when the choice is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation {
    pub(crate) forks: u64,
    pub(crate) tight: bool,
    pub(crate) slow: bool,
}

/// The choice. Pure.
pub(crate) fn choose(policy: Policy, host: &Host, heap: Situation) -> Choice {
    let unadvised = if host.thp == Some(ThpMode::Always) { Made::Base } else { Made::Plain };
    match policy {
        Policy::Base => Choice::new(Made::Base, Policy::Base, None),
        // Nothing is advised, but nothing will be collapsed either where that cannot work.
        Policy::Dense if !host.can_collapse() => {
            let reason = match host.disabled {
                ThpDisabled::Completely => Fallback::ThpDisabled,
                _ => Fallback::ThpUnsupported,
            };
            Choice::new(Made::Base, Policy::Base, Some(reason))
        }
        Policy::Dense => Choice::new(unadvised, Policy::Dense, None),
        Policy::Thp => advised(host, heap),
        Policy::Hugetlb if heap.forks > 0 => {
            Choice { fallback: Some(Fallback::PoolForks), ..advised(host, heap) }
        }
        Policy::Hugetlb => Choice::new(Made::Hugetlb, Policy::Hugetlb, None),
        Policy::Auto => match host.advice_fails() {
            _ if heap.tight => Choice::new(Made::Base, Policy::Base, Some(Fallback::MemoryLimit)),
            Some(Fallback::ThpNever) if host.can_collapse() => Choice::new(unadvised, Policy::Dense, None),
            Some(reason) => Choice::new(Made::Base, Policy::Base, Some(reason)),
            None if heap.slow && host.can_collapse() => {
                Choice::new(unadvised, Policy::Dense, Some(Fallback::Latency))
            }
            None => Choice::new(Made::Thp, Policy::Thp, None),
        },
    }
}

/// `thp`, also as the fallback of `hugetlb`. Advised also where the advice does nothing now: the mode may change.
pub(crate) fn advised(host: &Host, heap: Situation) -> Choice {
    if heap.tight {
        return Choice::new(Made::Base, Policy::Base, Some(Fallback::MemoryLimit));
    }
    match host.advice_fails() {
        Some(Fallback::ThpUnsupported) => {
            Choice::new(Made::Plain, Policy::Base, Some(Fallback::ThpUnsupported))
        }
        Some(reason) => Choice::new(Made::Thp, Policy::Base, Some(reason)),
        None => Choice::new(Made::Thp, Policy::Thp, None),
    }
}

/// How long finding huge pages took lately.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    /// Moving average over about eight arenas, in nanoseconds.
    average: u64,
    /// The last one, which the average follows slowly: of the first that take long it tells nothing.
    last: u64,
    slow_until: u64,
}

impl Latency {
    pub(crate) const NEW: Self = Self { average: 0, last: 0, slow_until: 0 };

    /// The first touch of an advised arena took `took` of a processor's time and ended at `now`.
    pub(crate) fn record(&mut self, now: u64, took: u64) {
        self.average = self.average - self.average / 8 + took / 8;
        self.last = took;
        if self.average > SLOW {
            self.slow_until = now + SLOW_PAUSE;
            self.average = 0;
        }
    }

    /// How long finding one takes on average, in nanoseconds.
    pub(crate) const fn average(&self) -> u64 {
        self.average
    }

    /// How long it may take the next time, in nanoseconds: as on average, or as the last one.
    pub(crate) fn most(&self) -> u64 {
        self.average.max(self.last)
    }

    pub(crate) const fn is_slow(&self, now: u64) -> bool {
        now < self.slow_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeheap_os::CgroupVersion;

    const HOST: Host = Host {
        thp: Some(ThpMode::Madvise),
        disabled: ThpDisabled::No,
        collapse: true,
        limits: None,
        processors: 1,
        data_limit: None,
    };
    const HEAP: Situation = Situation { forks: 0, tight: false, slow: false };

    fn made(policy: Policy, host: Host, heap: Situation) -> (Made, Option<Fallback>) {
        let choice = choose(policy, &host, heap);
        (choice.made, choice.fallback)
    }

    #[test]
    fn auto_takes_transparent_huge_pages_where_they_work() {
        assert_eq!(made(Policy::Auto, HOST, HEAP), (Made::Thp, None));
        let always = Host { thp: Some(ThpMode::Always), ..HOST };
        assert_eq!(made(Policy::Auto, always, HEAP), (Made::Thp, None));
    }

    #[test]
    fn auto_collapses_where_the_mode_is_never() {
        let host = Host { thp: Some(ThpMode::Never), ..HOST };
        let choice = choose(Policy::Auto, &host, HEAP);
        assert_eq!((choice.made, choice.effective, choice.fallback), (Made::Plain, Policy::Dense, None));
        let old = Host { collapse: false, ..host };
        assert_eq!(made(Policy::Auto, old, HEAP), (Made::Base, Some(Fallback::ThpNever)));
    }

    #[test]
    fn auto_takes_no_huge_pages_near_the_limit_or_after_slow_ones() {
        assert_eq!(
            made(Policy::Auto, HOST, Situation { tight: true, ..HEAP }),
            (Made::Base, Some(Fallback::MemoryLimit))
        );
        assert_eq!(
            made(Policy::Auto, HOST, Situation { slow: true, ..HEAP }),
            (Made::Plain, Some(Fallback::Latency))
        );
    }

    #[test]
    fn a_process_with_thp_switched_off_gets_a_reason() {
        let host = Host { disabled: ThpDisabled::Completely, ..HOST };
        assert_eq!(made(Policy::Thp, host, HEAP), (Made::Thp, Some(Fallback::ThpDisabled)));
        assert_eq!(made(Policy::Auto, host, HEAP), (Made::Base, Some(Fallback::ThpDisabled)));
        let but_advised = Host { disabled: ThpDisabled::ExceptAdvised, ..HOST };
        assert_eq!(made(Policy::Auto, but_advised, HEAP), (Made::Thp, None));
    }

    #[test]
    fn dense_says_when_nothing_can_be_collapsed() {
        let off = Host { disabled: ThpDisabled::Completely, ..HOST };
        assert_eq!(made(Policy::Dense, off, HEAP), (Made::Base, Some(Fallback::ThpDisabled)));
        let old = Host { collapse: false, ..HOST };
        assert_eq!(made(Policy::Dense, old, HEAP), (Made::Base, Some(Fallback::ThpUnsupported)));
    }

    #[test]
    fn hugetlb_stops_when_the_process_forks() {
        assert_eq!(made(Policy::Hugetlb, HOST, HEAP), (Made::Hugetlb, None));
        assert_eq!(
            made(Policy::Hugetlb, HOST, Situation { forks: 1, ..HEAP }),
            (Made::Thp, Some(Fallback::PoolForks))
        );
    }

    #[test]
    fn unadvised_means_unadvised_also_where_the_mode_is_always() {
        let host = Host { thp: Some(ThpMode::Always), ..HOST };
        assert_eq!(made(Policy::Dense, host, HEAP), (Made::Base, None));
        assert_eq!(made(Policy::Dense, HOST, HEAP), (Made::Plain, None));
    }

    #[test]
    fn tight_counts_what_cannot_be_dropped() {
        let limits = MemoryLimits {
            version: CgroupVersion::V2,
            max: Some(1 << 30),
            high: None,
            charge: 1 << 30,
            anonymous: Some(100 << 20),
        };
        let host = Host { limits: Some(limits), ..HOST };
        assert!(!host.is_tight(0, None), "the charge is file cache");
        let full = Host { limits: Some(MemoryLimits { anonymous: Some(1000 << 20), ..limits }), ..HOST };
        assert!(full.is_tight(0, None));
        let unlimited = Host { limits: Some(MemoryLimits { max: None, ..limits }), ..HOST };
        assert!(!unlimited.is_tight(u64::MAX, None));
        assert!(HOST.is_tight(100, Some(100)));
    }

    #[test]
    fn one_slow_page_is_forgiven_a_slow_while_is_not() {
        let mut latency = Latency::NEW;
        latency.record(0, 50_000_000);
        assert!(!latency.is_slow(0));
        assert_eq!((latency.average(), latency.most()), (6_250_000, 50_000_000));
        latency.record(0, 0);
        assert_eq!(latency.most(), latency.average());
        for step in 0..20 {
            latency.record(step, 50_000_000);
        }
        assert!(latency.is_slow(20));
        assert!(!latency.is_slow(SLOW_PAUSE + 100));
    }
}
