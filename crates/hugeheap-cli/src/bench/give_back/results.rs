//! Questions to the results: times by phase, memory at moments. The tables, the JSON, the plots and the goals
//! ask the same ones here.

use super::measure::{Doing, Measurement, Phase, Plan, Results, Run, Watched};
use crate::bench::sample::Sample;
use crate::bench::variant;
use crate::statistics::{Estimate, median, ratio_of_medians};
use serde::Serialize;

/// Place of the stock variant: always the first.
pub(crate) const STOCK: usize = 0;

/// The plan with its results.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) results: &'a Results,
}

/// What of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The process from start to end.
    Whole,
    /// The first allocation: memory that no allocator has yet.
    First,
    /// An allocation after it, on average.
    Again,
    /// A free, on average.
    Free,
    /// A cycle after the first, on average: allocation and free.
    Steady,
}

/// Which of its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    Real,
    User,
    System,
}

impl Part {
    pub(crate) const ALL: [Self; 5] = [Self::Whole, Self::First, Self::Again, Self::Free, Self::Steady];

    /// The name in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::First => "first_allocation",
            Self::Again => "later_allocation",
            Self::Free => "free",
            Self::Steady => "later_cycle",
        }
    }

    /// The name in tables.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Whole => "whole process",
            Self::First => "first allocation",
            Self::Again => "allocation after it",
            Self::Free => "free",
            Self::Steady => "cycle after the first",
        }
    }
}

impl Clock {
    pub(crate) const ALL: [Self; 3] = [Self::Real, Self::User, Self::System];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::User => "user",
            Self::System => "system",
        }
    }

    fn of(self, phase: &Phase) -> f64 {
        match self {
            Self::Real => phase.end - phase.begin,
            Self::User => phase.user,
            Self::System => phase.system,
        }
    }
}

/// Seconds of a part of a run; `None` when it has no such part.
pub(crate) fn cost(run: &Run, part: Part, clock: Clock) -> Option<f64> {
    let of = |doing: Doing, skip: usize| -> Vec<f64> {
        let phases = run.phases.iter().filter(|phase| phase.doing == doing);
        phases.skip(skip).map(|phase| clock.of(phase)).collect()
    };
    let mean =
        |values: Vec<f64>| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    match part {
        Part::Whole => Some(match clock {
            Clock::Real => run.wall,
            Clock::User => run.user,
            Clock::System => run.system,
        }),
        Part::First => of(Doing::Allocate, 0).first().copied(),
        Part::Again => mean(of(Doing::Allocate, 1)),
        Part::Free => mean(of(Doing::Free, 0)),
        Part::Steady => Some(mean(of(Doing::Allocate, 1))? + mean(of(Doing::Free, 1))?),
    }
}

/// Memory at the moments that count, by one measure. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Held {
    /// The interpreter before the first object.
    pub(crate) start: u64,
    pub(crate) peak: u64,
    /// Right after the last free.
    pub(crate) freed: u64,
    /// After the wait.
    pub(crate) idle: u64,
}

impl Held {
    /// The moments of `watched`, by `measure`; `None` where it has no such figure.
    pub(crate) fn of(watched: &Watched, measure: impl Fn(&Sample) -> Option<u64>) -> Option<Self> {
        let last = |doing: Doing| watched.phases.iter().rev().find(|phase| phase.doing == doing);
        let before = |moment: f64| watched.samples.iter().rev().find(|sample| sample.at <= moment);
        let freed = last(Doing::Free)?.end;
        let peak = watched.samples.iter().map(&measure).try_fold(0, |most, value| Some(most.max(value?)))?;
        Some(Self {
            start: measure(before(last(Doing::Start)?.end)?)?,
            peak,
            freed: measure(watched.samples.iter().find(|sample| sample.at >= freed)?)?,
            idle: measure(before(last(Doing::Idle)?.end)?)?,
        })
    }

    /// The share of what the workload added that is still held after the wait. The interpreter's own memory is
    /// no part of it: of a small peak it alone is more than a twentieth, on stock too.
    pub(crate) fn share(self) -> Option<f64> {
        let added = self.peak.checked_sub(self.start).filter(|&added| added > 0)?;
        Some(self.idle.saturating_sub(self.start) as f64 / added as f64)
    }
}

impl<'a> View<'a> {
    pub(crate) fn measurement(self, task: usize, variant: usize) -> &'a Measurement {
        &self.results.measurements[task][variant]
    }

    /// The variant the goals are about.
    pub(crate) fn headline(self) -> Option<usize> {
        variant::headline(&self.plan.variants)
    }

    /// Seconds of a part, of all runs.
    pub(crate) fn values(self, task: usize, variant: usize, part: Part, clock: Clock) -> Vec<f64> {
        self.measurement(task, variant).runs.iter().filter_map(|run| cost(run, part, clock)).collect()
    }

    pub(crate) fn median(self, task: usize, variant: usize, part: Part, clock: Clock) -> Option<f64> {
        median(&self.values(task, variant, part, clock))
    }

    /// The ratio to stock.
    pub(crate) fn ratio(self, task: usize, variant: usize, part: Part, clock: Clock) -> Option<Estimate> {
        ratio_of_medians(&self.values(task, variant, part, clock), &self.values(task, STOCK, part, clock))
    }

    /// Resident memory at the moments that count.
    pub(crate) fn resident(self, task: usize, variant: usize) -> Option<Held> {
        let watched = self.measurement(task, variant).look.as_ref()?;
        let held = Held::of(watched, |sample| Some(sample.resident()))?;
        // A short workload's peak came and went between two looks.
        let highest = watched.samples.last().map_or(0, |sample| sample.highest);
        Some(Held { peak: held.peak.max(highest), ..held })
    }

    /// The charge at the moments that count.
    pub(crate) fn charged(self, task: usize, variant: usize) -> Option<Held> {
        Held::of(self.measurement(task, variant).look.as_ref()?, |sample| sample.charge)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MIB, sample};
    use super::*;

    #[test]
    fn parts_are_means_over_their_phases() {
        let (_, results) = sample();
        let run = &results.measurements[0][STOCK].runs[0];
        let near = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() < 1e-9;
        // Three cycles: 0.3, then 0.2 twice; each free 0.1.
        assert!(near(cost(run, Part::First, Clock::Real), 0.3));
        assert!(near(cost(run, Part::Again, Clock::Real), 0.2));
        assert!(near(cost(run, Part::Free, Clock::Real), 0.1));
        assert!(near(cost(run, Part::Steady, Clock::Real), 0.3));
        assert!(near(cost(run, Part::Whole, Clock::Real), 1.0));
        assert!(near(cost(run, Part::Whole, Clock::System), 0.4));
    }

    #[test]
    fn memory_is_that_of_the_moments() {
        let (plan, results) = sample();
        let view = View { plan: &plan, results: &results };
        let held = view.charged(0, STOCK).unwrap();
        assert_eq!(held, Held { start: 10 * MIB, peak: 110 * MIB, freed: 60 * MIB, idle: 14 * MIB });
        assert!((held.share().unwrap() - 0.04).abs() < 1e-9);
        assert_eq!(Held { peak: 10 * MIB, ..held }.share(), None);
    }

    #[test]
    fn a_peak_between_two_looks_counts() {
        let (plan, mut results) = sample();
        let last = results.measurements[0][STOCK].look.as_mut().unwrap().samples.last_mut().unwrap();
        last.highest = 200 * MIB;
        assert_eq!(View { plan: &plan, results: &results }.resident(0, STOCK).unwrap().peak, 200 * MIB);
    }
}
