//! What the runs say: medians, ratios, the best.

use crate::allocators::{OURS, REFERENCE};
use crate::child::Latency;
use crate::measure::{Entry, Measurement, Plan, Results};
use hugeheap_cli::measuring::{Estimate, geometric_mean_of_ratios, median, ratio_of_medians};

/// Coverage is told of heaps of at least this many bytes: in a smaller one, stacks and the program's own data
/// weigh as much.
pub(crate) const HEAP: u64 = 32 << 20;

/// A plan and its results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) results: &'a Results,
}

impl<'a> View<'a> {
    /// What was measured, of what was planned.
    pub(crate) fn entries(self) -> impl Iterator<Item = (usize, &'a Entry)> {
        self.plan.entries.iter().take(self.results.measurements.len()).enumerate()
    }

    /// The place of an allocator.
    pub(crate) fn place(self, name: &str) -> Option<usize> {
        self.plan.allocators.iter().position(|allocator| allocator.name == name)
    }

    pub(crate) fn ours(self) -> Option<usize> {
        self.place(OURS)
    }

    pub(crate) fn reference(self) -> Option<usize> {
        self.place(REFERENCE)
    }

    pub(crate) fn measurement(self, entry: usize, allocator: usize) -> &'a Measurement {
        &self.results.measurements[entry][allocator]
    }

    /// All runs' seconds; none when the allocator failed.
    pub(crate) fn seconds(self, entry: usize, allocator: usize) -> Vec<f64> {
        let measured = self.measurement(entry, allocator);
        if measured.failure.is_some() {
            return Vec::new();
        }
        measured.runs.iter().map(|run| run.seconds).collect()
    }

    pub(crate) fn median(self, entry: usize, allocator: usize) -> Option<f64> {
        median(&self.seconds(entry, allocator))
    }

    pub(crate) fn ratio(self, entry: usize, allocator: usize, base: usize) -> Option<Estimate> {
        let (values, base) = self.pair(entry, allocator, base);
        ratio_of_medians(&values, &base)
    }

    /// The seconds of both. Of an allocator and itself the ratio is one, without the doubt two samples would leave.
    fn pair(self, entry: usize, allocator: usize, base: usize) -> (Vec<f64>, Vec<f64>) {
        let (values, others) = (self.seconds(entry, allocator), self.seconds(entry, base));
        if allocator == base && !values.is_empty() { (vec![1.0], vec![1.0]) } else { (values, others) }
    }

    /// The one with the lowest `value` of those `among` the allocators.
    fn lowest<T: PartialOrd>(
        self,
        among: impl Fn(usize) -> bool,
        value: impl Fn(usize) -> Option<T>,
    ) -> Option<(usize, T)> {
        let mut lowest: Option<(usize, T)> = None;
        for place in (0..self.plan.allocators.len()).filter(|&place| among(place)) {
            let Some(value) = value(place) else { continue };
            if lowest.as_ref().is_none_or(|(_, least)| value < *least) {
                lowest = Some((place, value));
            }
        }
        lowest
    }

    /// The fastest of all.
    pub(crate) fn best(self, entry: usize) -> Option<usize> {
        Some(self.lowest(|_| true, |place| self.median(entry, place))?.0)
    }

    /// The fastest of all but ours.
    pub(crate) fn best_peer(self, entry: usize) -> Option<usize> {
        Some(self.lowest(|place| Some(place) != self.ours(), |place| self.median(entry, place))?.0)
    }

    /// The peer with the lowest charge after idling, and that.
    pub(crate) fn lowest_charge(self, entry: usize) -> Option<(usize, u64)> {
        self.lowest(|place| Some(place) != self.ours(), |place| self.charge(entry, place))
    }

    /// The geometric mean of the ratios to `base` of the entries that `fit` and that both ran, and how many they are.
    pub(crate) fn geometric_mean(
        self,
        allocator: usize,
        base: impl Fn(usize) -> Option<usize>,
        fit: impl Fn(&Entry) -> bool,
    ) -> Option<(Estimate, usize)> {
        let pairs: Vec<_> = self
            .entries()
            .filter(|(_, entry)| fit(entry))
            .filter_map(|(entry, _)| Some(self.pair(entry, allocator, base(entry)?)))
            .filter(|(values, base)| !values.is_empty() && !base.is_empty())
            .collect();
        let borrowed: Vec<_> = pairs.iter().map(|(values, base)| (&values[..], &base[..])).collect();
        Some((geometric_mean_of_ratios(&borrowed)?, pairs.len()))
    }

    /// The median of the runs' peaks. In bytes.
    pub(crate) fn peak(self, entry: usize, allocator: usize) -> Option<u64> {
        let peaks: Vec<f64> =
            self.measurement(entry, allocator).runs.iter().map(|run| run.peak_rss as f64).collect();
        median(&peaks).map(|peak| peak as u64)
    }

    /// Share of the anonymous memory that is mapped by huge pages in the steady state, where there is a heap to
    /// speak of.
    pub(crate) fn coverage(self, entry: usize, allocator: usize) -> Option<f64> {
        let steady = self.measurement(entry, allocator).looks?.steady;
        let all = steady.anonymous + steady.hugetlb;
        (all >= HEAP).then(|| (steady.thp + steady.hugetlb) as f64 / all as f64)
    }

    /// The charge after idling. In bytes.
    pub(crate) fn charge(self, entry: usize, allocator: usize) -> Option<u64> {
        self.measurement(entry, allocator).looks?.idle.charge
    }

    /// The medians of the runs' latencies.
    pub(crate) fn latency(self, entry: usize, allocator: usize) -> Option<Latency> {
        let seen = &self.measurement(entry, allocator).latencies;
        let middle = |figure: fn(&Latency) -> f64| median(&seen.iter().map(figure).collect::<Vec<_>>());
        Some(Latency {
            count: seen.first()?.count,
            p50: middle(|seen| seen.p50)?,
            p99: middle(|seen| seen.p99)?,
            p999: middle(|seen| seen.p999)?,
            max: middle(|seen| seen.max)?,
            clock: middle(|seen| seen.clock)?,
        })
    }
}

/// Round figures for the tests of tables, goals and reports.
#[cfg(test)]
pub(crate) mod sample {
    use super::*;
    use crate::allocators::Allocator;
    use crate::child::Look;
    use crate::measure::{Looks, Run};

    const MIB: u64 = 1 << 20;

    /// hugeheap, mimalloc and system on larson (one and two threads) and rptest: system fails the last.
    pub(crate) fn sample() -> (Plan, Results) {
        let entry = |name: &str, threads| Entry {
            workload: workloads::catalogue::find(name).unwrap(),
            threads,
            settings: Vec::new(),
        };
        let allocators: Vec<&'static Allocator> =
            ["hugeheap", "mimalloc", "system"].iter().map(|name| Allocator::find(name).unwrap()).collect();
        let plan = Plan {
            entries: vec![entry("larson", 1), entry("larson", 2), entry("rptest", 1)],
            programs: vec!["/nowhere".into(); allocators.len()],
            allocators,
            runs: 3,
            idle: 3.0,
            seed: 1,
            verify: false,
            limit: 60,
        };
        let measured = |seconds: f64, charge: u64, coverage: f64| {
            let run = Run { seconds, user: seconds, system: 0.0, minor_faults: 5, peak_rss: 100 * MIB };
            let steady = Look {
                rss: 100 * MIB,
                anonymous: 100 * MIB,
                thp: (100.0 * coverage) as u64 * MIB,
                hugetlb: 0,
                charge: Some(100 * MIB),
            };
            let idle = Look { charge: Some(charge * MIB), ..steady };
            let latency = Latency { count: 9, p50: 20.0, p99: 200.0, p999: 2000.0, max: 1e6, clock: 10.0 };
            Measurement {
                runs: vec![run; 3],
                looks: Some(Looks { start: steady, steady, low: steady, idle }),
                latencies: vec![latency],
                failure: None,
            }
        };
        let failed = Measurement { failure: Some("signal: 11".to_owned()), ..Measurement::default() };
        let results = Results {
            measurements: vec![
                vec![measured(1.0, 3, 0.99), measured(2.0, 9, 0.97), measured(4.0, 5, 0.0)],
                vec![measured(1.3, 7, 0.97), measured(1.0, 6, 0.97), measured(1.5, 5, 0.0)],
                vec![measured(1.0, 2, 0.98), measured(1.0, 6, 0.97), failed],
            ],
            no_charge: None,
            interrupted: None,
        };
        (plan, results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_fastest_that_did_not_fail() {
        let (plan, results) = sample::sample();
        let view = View { plan: &plan, results: &results };
        assert_eq!((view.best(0), view.best_peer(0)), (Some(0), Some(1)));
        assert_eq!((view.best(1), view.best_peer(1)), (Some(1), Some(1)));
        assert_eq!(view.median(2, 2), None);
        assert_eq!(view.lowest_charge(0), Some((2, 5 << 20)));
    }

    #[test]
    fn the_geometric_mean_is_of_the_workloads_both_ran() {
        let (plan, results) = sample::sample();
        let view = View { plan: &plan, results: &results };
        let (mean, count) = view.geometric_mean(0, |_| Some(1), |_| true).unwrap();
        assert_eq!(count, 3);
        assert!((mean.value - (0.5f64 * 1.3).cbrt()).abs() < 1e-9);
        let (mean, count) = view.geometric_mean(2, |_| Some(1), |_| true).unwrap();
        assert_eq!(count, 2);
        assert!((mean.value - 3f64.sqrt()).abs() < 1e-9);
        let (mean, _) = view.geometric_mean(1, |_| Some(1), |_| true).unwrap();
        assert_eq!((mean.value, mean.low, mean.high), (1.0, 1.0, 1.0), "no doubt about itself");
        let (mean, count) = view.geometric_mean(0, |_| Some(1), |entry| entry.threads > 1).unwrap();
        assert_eq!((mean.value, count), (1.3, 1));
    }

    #[test]
    fn a_measurement_that_was_interrupted_is_of_the_workloads_until_then() {
        let (plan, mut results) = sample::sample();
        results.leave_off(2, libc::SIGINT);
        let view = View { plan: &plan, results: &results };
        assert_eq!(view.entries().map(|(place, _)| place).collect::<Vec<_>>(), [0, 1]);
        let (_, count) = view.geometric_mean(0, |_| Some(1), |_| true).unwrap();
        assert_eq!(count, 2);
        let text = crate::text::text(view, &crate::goals::goals(view));
        assert!(text.starts_with("INTERRUPTED by signal 2") && text.contains("2 of 3 workloads"), "{text}");
        results.leave_off(0, libc::SIGINT);
        assert!(results.measurements.is_empty());
    }

    #[test]
    fn coverage_is_of_heaps_that_are_large_enough() {
        let (plan, mut results) = sample::sample();
        results.measurements[0][0].looks.as_mut().unwrap().steady.anonymous = HEAP - 1;
        let view = View { plan: &plan, results: &results };
        assert_eq!(view.coverage(0, 0), None);
        assert_eq!(view.coverage(0, 1), Some(0.97));
    }
}
