//! Which process has its turn when its mappings are to be read, and how much of that there is. Pure.
//!
//! Terms: *credit* is time that may be spent on what is not cheap. It grows with [`SHARE`] of the time that
//! passes, and reading is possible while there is some; what one process takes beyond it is paid back before
//! the next. So the share holds on average whatever the processes are, and one that takes long does so at most
//! once in a while.
//!
//! A *turn* is one of two things done to a process: its mappings are summed up (smaps), or its physical pages
//! are looked at. Turns go by how long ago that was, in proportion to the square root of what reading it costs:
//! equal ages would spend nearly all credit on the largest, equal shares of time would show it minutes late.
//! Processes that are on the screen and those whose memory changed come sooner.

use core::time::Duration;

/// Share of one core for reading what is not cheap. With the cheap part and the drawing of 300 processes it
/// stays below 3 %.
const SHARE: f64 = 0.01;
/// Credit at the start, and the most that is saved up, in seconds: the first screen is nearly complete with it
/// (300 processes take about 0.1 s).
const SAVED: f64 = 0.2;
/// How much sooner: what is on the screen, and what has changed.
const SHOWN: f64 = 4.0;
const CHANGED: f64 = 4.0;
/// Below this, costs make no difference, in seconds.
const CHEAP: f64 = 0.000_3;

/// Time that may be spent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit {
    seconds: f64,
    at: Duration,
}

impl Credit {
    pub(crate) const fn new(now: Duration) -> Self {
        Self { seconds: SAVED, at: now }
    }

    /// Time has passed.
    pub(crate) fn earn(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.seconds = (self.seconds + SHARE * passed).min(SAVED);
        self.at = now;
    }

    pub(crate) fn is_left(&self) -> bool {
        self.seconds > 0.0
    }

    pub(crate) fn spend(&mut self, time: Duration) {
        self.seconds -= time.as_secs_f64();
    }
}

/// What is done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Turn {
    Sums,
    Stranded,
}

/// A process that waits for its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) id: u32,
    pub(crate) turn: Turn,
    /// When it had it last.
    pub(crate) read: Option<Duration>,
    /// What it takes.
    pub(crate) cost: Duration,
    pub(crate) shown: bool,
    pub(crate) changed: bool,
    pub(crate) resident: u64,
}

impl Due {
    fn urgency(&self, now: Duration) -> f64 {
        let Some(read) = self.read else { return f64::INFINITY };
        let age = now.saturating_sub(read).as_secs_f64();
        let sooner = if self.shown { SHOWN } else { 1.0 } * if self.changed { CHANGED } else { 1.0 };
        age * sooner / (self.cost.as_secs_f64() + CHEAP).sqrt()
    }
}

/// Sorts them: who has the first turn comes first. Those that never had one begin, largest first, but for those
/// that would use the credit of all others up; and sums come before what is stranded.
pub(crate) fn order(due: &mut [Due], now: Duration) {
    due.sort_by(|one, other| {
        let urgency = other.urgency(now).total_cmp(&one.urgency(now));
        let first = |due: &Due| (due.turn, due.cost.as_secs_f64() > SAVED / 8.0);
        let first = if one.read.is_none() && other.read.is_none() {
            first(one).cmp(&first(other))
        } else {
            core::cmp::Ordering::Equal
        };
        urgency.then(first).then(other.resident.cmp(&one.resident)).then(one.id.cmp(&other.id))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn due(id: u32, read: Option<u64>, cost: u32) -> Due {
        let read = read.map(Duration::from_secs);
        Due {
            id,
            turn: Turn::Sums,
            read,
            cost: MS * cost,
            shown: false,
            changed: false,
            resident: u64::from(id),
        }
    }

    fn ordered(mut all: Vec<Due>) -> Vec<u32> {
        order(&mut all, 100 * SECOND);
        all.iter().map(|due| due.id).collect()
    }

    #[test]
    fn what_was_never_read_comes_first_and_then_what_is_oldest() {
        assert_eq!(
            ordered(vec![due(1, Some(90), 1), due(2, None, 1), due(3, Some(50), 1), due(4, None, 20)]),
            [4, 2, 3, 1]
        );
        assert_eq!(ordered(vec![due(2, None, 1), due(4, None, 200)]), [2, 4], "it would hold up all others");
        let mut stranded = due(9, None, 1);
        stranded.turn = Turn::Stranded;
        assert_eq!(ordered(vec![stranded, due(2, None, 200)]), [2, 9]);
        let mut shown = due(5, Some(80), 1);
        shown.shown = true;
        assert_eq!(ordered(vec![due(1, Some(50), 1), shown]), [5, 1]);
        let mut changed = due(5, Some(80), 1);
        changed.changed = true;
        assert_eq!(ordered(vec![due(1, Some(50), 1), changed]), [5, 1]);
        assert_eq!(ordered(vec![due(1, Some(90), 100), due(2, Some(90), 1)]), [2, 1]);
    }

    #[test]
    fn the_share_holds_whatever_a_process_costs() {
        // 299 processes of 0.3 ms and one of 200 ms, an hour at one refresh per second.
        let mut all: Vec<Due> = (0..300).map(|id| due(id, None, 0)).collect();
        for (index, due) in all.iter_mut().enumerate() {
            due.cost = if index == 7 { 200 * MS } else { MS * 3 / 10 };
        }
        let (mut credit, mut spent, mut longest) =
            (Credit::new(Duration::ZERO), Duration::ZERO, Duration::ZERO);
        for second in 0..3600 {
            let now = SECOND * second;
            credit.earn(now);
            order(&mut all, now);
            for due in &mut all {
                if !credit.is_left() {
                    break;
                }
                credit.spend(due.cost);
                spent += due.cost;
                longest = longest.max(due.read.map_or(Duration::ZERO, |read| now - read));
                due.read = Some(now);
            }
        }
        let share = spent.as_secs_f64() / 3600.0;
        assert!((0.9 * SHARE..1.05 * SHARE).contains(&share), "{share}");
        // The largest after some minutes, nobody later.
        assert!(longest < 600 * SECOND, "{longest:?}");
    }

    #[test]
    fn credit_is_not_saved_for_ever() {
        let mut credit = Credit::new(Duration::ZERO);
        credit.earn(SECOND * 1_000_000);
        credit.spend(Duration::from_secs_f64(SAVED));
        assert!(!credit.is_left());
        credit.earn(SECOND * 1_000_001);
        assert!(credit.is_left());
    }
}
