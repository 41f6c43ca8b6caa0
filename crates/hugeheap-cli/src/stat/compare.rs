//! From runs to what is said of them. Pure.

use super::metric::Metric;
use super::run::Run;
use crate::significance::{holm, rank_sum};
use crate::statistics::{Estimate, half_spread, median, ratio_of_medians};

/// How improbable a difference must be to count as one.
const LEVEL: f64 = 0.05;

/// A metric of one command beside that of the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Comparison {
    pub(crate) median: f64,
    pub(crate) half_spread: f64,
    /// The ratio to the first command; `None` for that itself, and where its median is zero.
    pub(crate) ratio: Option<Estimate>,
    /// Of so large a difference by chance, for all figures of the report together; `None` for the first command.
    pub(crate) probability: Option<f64>,
}

impl Comparison {
    /// Whether it differs from the first command. The interval has to say so, too.
    pub(crate) fn is_significant(&self) -> bool {
        let excludes = |ratio: Estimate| ratio.low > 1.0 || ratio.high < 1.0;
        self.probability.is_some_and(|probability| probability < LEVEL) && self.ratio.is_none_or(excludes)
    }
}

/// A metric of all commands.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) metric: Metric,
    /// By command; `None`: not measured.
    pub(crate) cells: Vec<Option<Comparison>>,
}

/// Compares `commands`, by their runs, with the first of them. Metrics that nobody has are left out.
pub(crate) fn rows(commands: &[Vec<Run>]) -> Vec<Row> {
    let values = |metric: Metric| -> Vec<Vec<f64>> {
        commands.iter().map(|runs| runs.iter().filter_map(|run| metric.of(run)).collect()).collect()
    };
    let metrics: Vec<(Metric, Vec<Vec<f64>>)> = Metric::all()
        .map(|metric| (metric, values(metric)))
        .filter(|(_, values)| values.iter().any(|values| !values.is_empty()))
        .filter(|(metric, values)| !metric.is_rare() || values.iter().flatten().any(|value| *value > 0.0))
        .collect();
    let probabilities: Vec<Option<f64>> = metrics
        .iter()
        .flat_map(|(_, values)| values[1..].iter().map(|other| rank_sum(other, &values[0])))
        .collect();
    let mut probabilities = holm(&probabilities).into_iter();
    metrics
        .into_iter()
        .map(|(metric, values)| {
            let cells = values.iter().enumerate().map(|(place, own)| {
                let probability = if place > 0 { probabilities.next().flatten() } else { None };
                Some(Comparison {
                    median: median(own)?,
                    half_spread: half_spread(own)?,
                    ratio: (place > 0).then(|| ratio_of_medians(own, &values[0])).flatten(),
                    probability,
                })
            });
            Row { metric, cells: cells.collect() }
        })
        .collect()
}

/// Whether any difference could be told with so many runs of each command and so many figures.
pub(crate) fn can_tell(runs: usize, tests: usize) -> bool {
    let low = vec![0.0; runs];
    let high = vec![1.0; runs];
    rank_sum(&low, &high).is_some_and(|probability| probability * tests as f64 <= LEVEL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Random;

    /// A run as a disturbed machine makes it: times with a tail to the right that go together, counts with many ties.
    fn drawn(random: &mut Random, factor: f64) -> Run {
        let mut share = || (random.below(1 << 20) as f64 + 0.5) / f64::from(1 << 20);
        let disturbed = 0.02 * -share().ln();
        let wall = factor * (1.0 + disturbed + 0.01 * share());
        Run {
            wall,
            user: wall * (0.7 + 0.02 * share()),
            system: wall * 0.2 * (1.0 + 0.1 * share()),
            minor_faults: 5000 + (share() * 4.0) as u64,
            major_faults: u64::from(share() < 0.1),
            peak_rss: (1 << 24) + 4096 * (share() * 6.0) as u64,
            peak_charge: Some((1 << 24) + 4096 * (share() * 200.0) as u64),
            page_tables: Some(40960),
            coverage: Some(share()),
            hugetlb: Some(0),
            stranded: Some(0),
            counters: None,
        }
    }

    fn series(random: &mut Random, runs: usize, factor: f64) -> Vec<Run> {
        (0..runs).map(|_| drawn(random, factor)).collect()
    }

    /// By the probabilities alone, which is more often than with the intervals: those take a thousand times as long.
    fn differs(commands: &[Vec<Run>]) -> bool {
        let of =
            |runs: &[Run], metric: Metric| runs.iter().filter_map(|run| metric.of(run)).collect::<Vec<_>>();
        let tests =
            Metric::all().map(|metric| rank_sum(&of(&commands[1], metric), &of(&commands[0], metric)));
        holm(&tests.collect::<Vec<_>>()).into_iter().flatten().any(|probability| probability < LEVEL)
    }

    #[test]
    fn a_command_does_not_differ_from_itself_in_93_of_100_trials() {
        let mut random = Random::new(11);
        for runs in [10, 45] {
            let trials = 100;
            let same = (0..trials)
                .filter(|_| !differs(&[series(&mut random, runs, 1.0), series(&mut random, runs, 1.0)]))
                .count();
            assert!(same >= 93, "{same} of {trials} with {runs} runs");
        }
    }

    #[test]
    fn a_difference_is_found() {
        let mut random = Random::new(12);
        let found = (0..20)
            .filter(|_| differs(&[series(&mut random, 10, 1.0), series(&mut random, 10, 1.1)]))
            .count();
        assert!(found >= 19, "{found}");
    }

    #[test]
    fn what_nobody_has_is_left_out_and_what_one_lacks_is_not_compared() {
        let mut random = Random::new(13);
        let mut commands = [series(&mut random, 5, 1.0), series(&mut random, 5, 1.0)];
        for run in &mut commands[1] {
            run.coverage = None;
        }
        let rows = rows(&commands);
        let has = |metric| rows.iter().find(|row| row.metric == metric);
        assert!(has(Metric::Counter(0)).is_none() && has(Metric::Stranded).is_none());
        let coverage = has(Metric::Coverage).unwrap();
        assert!(coverage.cells[0].is_some() && coverage.cells[1].is_none());
    }

    #[test]
    fn few_runs_cannot_tell() {
        assert!(!can_tell(3, 1) && !can_tell(5, 9) && can_tell(10, 9));
    }
}
