//! A recording as JSON, and what of it is kept in memory.

use super::Subject;
use crate::watch::Sample;
use serde_json::{Value, json};

pub(crate) const SCHEMA: &str = "hugeheap.record/1";

/// Looks that are kept: an hour and a half at 20 a second, about 15 MB.
const MOST: usize = 100_000;

/// The looks. When there are too many, of two neighbours the one with more memory stays, so that no peak is lost.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) samples: Vec<Sample>,
    /// Looks for which one that is kept stands.
    pub(super) stride: u64,
    /// The largest of the looks since the last that is kept, and their number.
    pending: Option<Sample>,
    looks: u64,
}

impl Kept {
    pub(super) const fn new() -> Self {
        Self { samples: Vec::new(), stride: 1, pending: None, looks: 0 }
    }

    pub(super) fn push(&mut self, sample: Sample) {
        let largest = self.pending.take().map_or(sample, |other| larger(other, sample));
        self.looks += 1;
        if self.looks % self.stride > 0 {
            self.pending = Some(largest);
            return;
        }
        self.samples.push(largest);
        if self.samples.len() >= MOST {
            let halved = self.samples.chunks(2).map(|pair| larger(pair[0], pair[pair.len() - 1])).collect();
            self.samples = halved;
            self.stride *= 2;
        }
    }

    /// All, with those for which none is kept yet.
    fn all(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().chain(&self.pending)
    }
}

fn larger(one: Sample, other: Sample) -> Sample {
    if other.rss + other.hugetlb > one.rss + one.hugetlb { other } else { one }
}

/// What is recorded at a moment.
pub(super) struct Recording<'a> {
    pub(super) subject: &'a Subject,
    pub(super) kept: &'a Kept,
    pub(super) host: &'a Value,
    /// Seconds since 1970.
    pub(super) started: u64,
    pub(super) looks: u64,
    /// Processor time spent on looks, in seconds.
    pub(super) spent: f64,
    /// How it ended; `None` while it goes on.
    pub(super) ended: Option<Value>,
}

impl Recording<'_> {
    /// Nanoseconds until the last look.
    pub(super) fn time(&self) -> u64 {
        self.kept.all().map(|sample| sample.time).max().unwrap_or(0)
    }

    pub(super) fn json(&self) -> Value {
        let column = |figure: &dyn Fn(&Sample) -> Value| self.kept.all().map(figure).collect::<Vec<_>>();
        let most = |figure: &dyn Fn(&Sample) -> Option<u64>| self.kept.all().filter_map(figure).max();
        let subject = self.subject;
        json!({
            "schema": SCHEMA,
            "hugeheap": env!("CARGO_PKG_VERSION"),
            "started": self.started,
            "name": subject.name,
            "command": subject.command,
            "process": subject.process,
            "children": subject.children,
            "rate": subject.rate,
            "reproduce": crate::reproduce::command(),
            "host": self.host,
            "charge_of": subject.charge_of,
            "charge_unavailable": subject.no_charge,
            "ended": self.ended,
            "cost_allowed": subject.cost,
            "looks": self.looks,
            "seconds_spent_looking": self.spent,
            "looks_per_sample": self.kept.stride,
            "maximum": {
                "rss": most(&|it| Some(it.rss)),
                "peak_of_a_process": most(&|it| Some(it.peak)),
                "pss": most(&|it| it.pss),
                "huge": most(&|it| it.huge),
                "hugetlb": most(&|it| Some(it.hugetlb)),
                "stranded": most(&|it| it.stranded),
                "charge": most(&|it| it.charge),
                "page_tables": most(&|it| Some(it.page_tables)),
            },
            "samples": {
                "seconds": column(&|it| json!(it.time as f64 / 1e9)),
                "rss": column(&|it| json!(it.rss)),
                "pss": column(&|it| json!(it.pss)),
                "huge": column(&|it| json!(it.huge)),
                "hugetlb": column(&|it| json!(it.hugetlb)),
                "stranded": column(&|it| json!(it.stranded)),
                "charge": column(&|it| json!(it.charge)),
                "page_tables": column(&|it| json!(it.page_tables)),
                "minor_faults": column(&|it| json!(it.minor_faults)),
                "major_faults": column(&|it| json!(it.major_faults)),
                "processes": column(&|it| json!(it.processes)),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_and_each_maximum_is_what_it_is_called() {
        let sample = Sample {
            time: 1_500_000_000,
            rss: 1,
            peak: 2,
            hugetlb: 3,
            page_tables: 4,
            pss: Some(5),
            huge: Some(6),
            stranded: Some(7),
            charge: Some(8),
            minor_faults: 9,
            major_faults: 10,
            processes: 11,
            ..Sample::default()
        };
        let mut kept = Kept::new();
        kept.push(sample);
        let subject = Subject {
            name: "app".into(),
            command: None,
            process: None,
            children: false,
            rate: 20.0,
            cost: 0.1,
            charge_of: None,
            no_charge: None,
        };
        let host = Value::Null;
        let told = Recording {
            subject: &subject,
            kept: &kept,
            host: &host,
            started: 1,
            looks: 1,
            spent: 0.25,
            ended: None,
        };
        let told = told.json();
        assert_eq!(
            told["samples"],
            json!({
                "seconds": [1.5], "rss": [1], "pss": [5], "huge": [6], "hugetlb": [3], "stranded": [7], "charge": [8],
                "page_tables": [4], "minor_faults": [9], "major_faults": [10], "processes": [11],
            })
        );
        assert_eq!(
            told["maximum"],
            json!({
                "rss": 1, "peak_of_a_process": 2, "pss": 5, "huge": 6, "hugetlb": 3, "stranded": 7, "charge": 8,
                "page_tables": 4,
            })
        );
        assert_eq!((&told["seconds_spent_looking"], &told["ended"]), (&json!(0.25), &Value::Null));
    }

    #[test]
    fn many_looks_are_thinned_and_no_peak_is_lost() {
        let mut kept = Kept::new();
        let looks = MOST as u64 * 5 / 2;
        for time in 0..looks {
            kept.push(Sample { time, rss: if time == 77_777 { 9 } else { 1 }, ..Sample::default() });
        }
        assert!(kept.samples.len() < MOST && kept.stride == 4, "{} {}", kept.samples.len(), kept.stride);
        assert_eq!(kept.all().filter(|sample| sample.rss == 9 && sample.time == 77_777).count(), 1);
        assert!(kept.all().zip(kept.all().skip(1)).all(|(one, next)| one.time < next.time));
    }
}
