//! Questions to the results: medians, ratios, coverage. The tables, the JSON and the goals ask the same ones here.

use super::measure::{Measurement, Plan, Results, Run};
use super::workload::{STARTUP, Workload};
use crate::bench::variant::{self, Kind};
use crate::statistics::{Estimate, geometric_mean_of_ratios, median, ratio_of_medians};

/// Place of the stock variant: always the first.
pub(crate) const STOCK: usize = 0;

/// The plan with its results.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) results: &'a Results,
}

/// A figure of a run.
pub(crate) type Figure = fn(&Run) -> f64;

/// The figure the time table is made of: the workload's own time, and for start-up that of the process.
pub(crate) fn time(workload: &Workload) -> Figure {
    if workload.name == STARTUP { |run| run.wall } else { |run| run.seconds }
}

/// Minor faults of the process, as the reference counted them.
pub(crate) fn faults(run: &Run) -> f64 {
    run.minor_faults as f64
}

impl<'a> View<'a> {
    /// All workloads with their place.
    pub(crate) fn workloads(self) -> impl Iterator<Item = (usize, &'static Workload)> + 'a {
        self.plan.workloads.iter().copied().enumerate()
    }

    /// Places of the variants of a kind.
    pub(crate) fn variants(self, kind: Kind) -> impl Iterator<Item = usize> + 'a {
        self.plan
            .variants
            .iter()
            .enumerate()
            .filter(move |(_, variant)| variant.kind == kind)
            .map(|(place, _)| place)
    }

    /// The variant the goals are about.
    pub(crate) fn headline(self) -> Option<usize> {
        variant::headline(&self.plan.variants)
    }

    pub(crate) fn measurement(self, workload: usize, variant: usize) -> &'a Measurement {
        &self.results.measurements[workload][variant]
    }

    /// A figure of all runs.
    pub(crate) fn values(self, workload: usize, variant: usize, figure: Figure) -> Vec<f64> {
        self.measurement(workload, variant).runs.iter().map(figure).collect()
    }

    pub(crate) fn median(self, workload: usize, variant: usize, figure: Figure) -> Option<f64> {
        median(&self.values(workload, variant, figure))
    }

    /// A figure's ratio to stock.
    pub(crate) fn ratio(self, workload: usize, variant: usize, figure: Figure) -> Option<Estimate> {
        self.ratio_to(workload, variant, STOCK, figure)
    }

    /// A figure's ratio to that of the variant `base`.
    pub(crate) fn ratio_to(
        self,
        workload: usize,
        variant: usize,
        base: usize,
        figure: Figure,
    ) -> Option<Estimate> {
        ratio_of_medians(&self.values(workload, variant, figure), &self.values(workload, base, figure))
    }

    /// Geometric mean of the time of `variant` to that of `base`, over those of the reference's seven workloads
    /// that were measured on both, and how many they are.
    pub(crate) fn geometric_mean(self, variant: usize, base: usize) -> Option<(Estimate, usize)> {
        let pairs: Vec<_> = self
            .workloads()
            .filter(|(_, workload)| workload.time.is_some())
            .map(|(place, workload)| {
                (self.values(place, variant, time(workload)), self.values(place, base, time(workload)))
            })
            .filter(|(values, base)| !values.is_empty() && !base.is_empty())
            .collect();
        let borrowed: Vec<_> = pairs.iter().map(|(values, base)| (&values[..], &base[..])).collect();
        Some((geometric_mean_of_ratios(&borrowed)?, pairs.len()))
    }

    /// The most that was resident: of the timed runs, and hugetlb pages, which only the memory run shows.
    pub(crate) fn peak_resident(self, workload: usize, variant: usize) -> Option<f64> {
        let hugetlb = self
            .measurement(workload, variant)
            .look
            .as_ref()
            .map_or(0.0, |memory| memory.looks.peak.hugetlb as f64);
        Some(self.median(workload, variant, |run| run.peak_rss as f64)? + hugetlb)
    }

    /// Coverage at the peak: of the arenas for hugeheap's variants, of all anonymous memory else.
    pub(crate) fn coverage(self, workload: usize, variant: usize) -> Option<f64> {
        let memory = self.measurement(workload, variant).look.as_ref()?;
        match &memory.telemetry {
            Some(snapshot) => snapshot.peak_coverage(),
            None => memory.looks.peak.coverage(),
        }
    }

    /// Resident memory and charge some time after the objects were freed. `None` where nobody waited
    /// (`--quick`): what is kept right after the last free is kept on purpose, for a decay time.
    pub(crate) fn held(self, workload: usize, variant: usize) -> Option<(u64, Option<u64>)> {
        let looks = self.measurement(workload, variant).look.as_ref()?.looks;
        let look = looks.idle?;
        Some((look.resident(), look.charge))
    }
}
