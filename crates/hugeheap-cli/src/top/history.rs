//! What processes were like at the last refreshes.

use super::sampler::Sample;
use std::collections::{BTreeMap, VecDeque};

/// Refreshes that are kept: four minutes at one per second, 4 MB for 300 processes.
const KEPT: usize = 240;

/// One process at one refresh. In bytes; `None`: not known then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) resident: u64,
    pub(crate) huge: Option<u64>,
    /// Of a thousand.
    pub(crate) coverage: Option<u64>,
    pub(crate) stranded: Option<u64>,
    /// Of its memory cgroup; only while it is watched.
    pub(crate) charge: Option<u64>,
}

/// Points of all processes.
#[derive(Debug, Default)]
pub(crate) struct History(BTreeMap<u32, VecDeque<Point>>);

impl History {
    /// Adds a refresh. What is known of processes that have ended goes.
    pub(crate) fn add(&mut self, sample: &Sample) {
        let mut before = std::mem::take(&mut self.0);
        for row in &sample.rows {
            let watched = sample.watched.as_ref().filter(|watched| watched.id == row.id);
            // The map is newer than what was read in turn.
            let view = watched.and_then(|watched| watched.view.as_ref().ok()).filter(|view| view.unseen == 0);
            let sums = row.sums.ok();
            let huge = view.filter(|view| view.tells_huge).map(|view| view.huge());
            let huge = huge.or(sums.map(|sums| sums.huge));
            let resident = view.map_or(sums.map_or(0, |sums| sums.resident), |view| view.resident());
            let point = Point {
                resident: row.resident(),
                huge,
                coverage: huge.filter(|_| resident > 0).map(|huge| huge.min(resident) * 1000 / resident),
                stranded: row.stranded.map(|(bytes, _)| bytes),
                charge: watched.and_then(|watched| watched.limits).map(|limits| limits.charge),
            };
            let mut points = before.remove(&row.id).unwrap_or_default();
            if points.len() == KEPT {
                points.pop_front();
            }
            points.push_back(point);
            self.0.insert(row.id, points);
        }
    }

    /// Points of a process, the oldest first.
    pub(crate) fn of(&self, id: u32) -> impl DoubleEndedIterator<Item = &Point> + ExactSizeIterator {
        static NONE: VecDeque<Point> = VecDeque::new();
        self.0.get(&id).unwrap_or(&NONE).iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ps::row::tests::row;

    #[test]
    fn points_come_and_go_with_their_process() {
        let mut history = History::default();
        let sample = |rows| Sample { rows, ..Sample::default() };
        for megabytes in 1..=KEPT as u64 + 5 {
            history.add(&sample(vec![row(7, megabytes << 20, Some(1 << 20), None)]));
        }
        let points: Vec<_> = history.of(7).collect();
        assert_eq!((points.len(), points[0].resident), (KEPT, 6 << 20));
        assert_eq!(points[KEPT - 1].coverage, Some(1000 / (KEPT as u64 + 5)));
        assert_eq!(points[0].charge, None);
        history.add(&sample(vec![row(8, 0, Some(0), None)]));
        assert_eq!((history.of(7).len(), history.of(8).len()), (0, 1));
        assert_eq!(history.of(8).next().unwrap().coverage, None);
    }
}
