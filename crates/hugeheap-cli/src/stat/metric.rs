//! What is measured of a run, and how it is shown.

use super::run::Run;
use crate::bench::counters;
use crate::figure::Unit;
use crate::output::{bytes, grouped, seconds};

/// A figure of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    Wall,
    User,
    System,
    MinorFaults,
    MajorFaults,
    PeakRss,
    PeakCharge,
    PageTables,
    Hugetlb,
    Coverage,
    Stranded,
    /// By place in [`counters::NAMES`].
    Counter(usize),
}

/// Names that are understood besides.
const SHORT: [(&str, &str); 6] = [
    ("time", "wall"),
    ("rss", "peak_rss"),
    ("charge", "peak_charge"),
    ("faults", "minor_faults"),
    ("sys", "system"),
    ("dtlb", "dtlb_load_misses"),
];

impl Metric {
    /// All of them, in the order of reports.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let fixed = [
            Self::Wall,
            Self::User,
            Self::System,
            Self::MinorFaults,
            Self::MajorFaults,
            Self::PeakRss,
            Self::PeakCharge,
            Self::PageTables,
            Self::Hugetlb,
            Self::Coverage,
            Self::Stranded,
        ];
        fixed.into_iter().chain((0..counters::NAMES.len()).map(Self::Counter))
    }

    /// Its name in JSON and conditions.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Wall => "wall",
            Self::User => "user",
            Self::System => "system",
            Self::MinorFaults => "minor_faults",
            Self::MajorFaults => "major_faults",
            Self::PeakRss => "peak_rss",
            Self::PeakCharge => "peak_charge",
            Self::PageTables => "page_tables",
            Self::Hugetlb => "hugetlb",
            Self::Coverage => "coverage",
            Self::Stranded => "stranded",
            Self::Counter(place) => counters::NAMES[place],
        }
    }

    /// By its name, or a short one.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let name = SHORT.iter().find(|short| short.0 == name).map_or(name, |short| short.1);
        Self::all().find(|metric| metric.name() == name)
    }

    /// Its name in the table.
    pub(crate) fn title(self) -> String {
        match self {
            Self::Wall => "wall time".to_owned(),
            Self::User => "user time".to_owned(),
            Self::System => "system time".to_owned(),
            Self::PeakRss => "peak RSS".to_owned(),
            Self::Coverage => "coverage at the peak".to_owned(),
            Self::Hugetlb => "hugetlb pages".to_owned(),
            Self::Stranded => "stranded, at most".to_owned(),
            _ => self.name().replace('_', " ").replace("dtlb", "dTLB").replace("itlb", "iTLB"),
        }
    }

    pub(crate) const fn unit(self) -> Unit {
        match self {
            Self::Wall | Self::User | Self::System => Unit::Seconds,
            Self::PeakRss | Self::PeakCharge | Self::PageTables | Self::Hugetlb | Self::Stranded => {
                Unit::Bytes
            }
            Self::Coverage => Unit::Share,
            Self::MinorFaults | Self::MajorFaults | Self::Counter(_) => Unit::Number,
        }
    }

    /// Whether nothing is lost when it is not shown with every value at zero.
    pub(crate) const fn is_rare(self) -> bool {
        matches!(self, Self::MajorFaults | Self::Hugetlb | Self::Stranded)
    }

    /// Its value in a run.
    pub(crate) fn of(self, run: &Run) -> Option<f64> {
        let count = |value: u64| value as f64;
        match self {
            Self::Wall => Some(run.wall),
            Self::User => Some(run.user),
            Self::System => Some(run.system),
            Self::MinorFaults => Some(count(run.minor_faults)),
            Self::MajorFaults => Some(count(run.major_faults)),
            Self::PeakRss => Some(count(run.peak_rss)),
            Self::PeakCharge => run.peak_charge.map(count),
            Self::PageTables => run.page_tables.map(count),
            Self::Hugetlb => run.hugetlb.map(count),
            Self::Coverage => run.coverage,
            Self::Stranded => run.stranded.map(count),
            Self::Counter(place) => run.counters.and_then(|counts| counts[place]).map(count),
        }
    }

    /// A value for people.
    pub(crate) fn shown(self, value: f64) -> String {
        match self.unit() {
            Unit::Seconds if (0.1..100.0).contains(&value) => format!("{value:.3} s"),
            Unit::Seconds if (0.001..0.1).contains(&value) => format!("{:.1} ms", value * 1e3),
            Unit::Seconds => seconds(value),
            Unit::Bytes => bytes(value as u64),
            Unit::Share => format!("{:.1} %", value * 100.0),
            _ => grouped(value.round() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_found_by_its_name() {
        for metric in Metric::all() {
            assert_eq!(Metric::named(metric.name()), Some(metric));
        }
        for (short, name) in SHORT {
            assert_eq!(Metric::named(short).map(Metric::name), Some(name));
        }
        assert_eq!(Metric::named("apples"), None);
    }
}
