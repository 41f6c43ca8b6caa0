//! What the program needed lately, and so how much memory to keep: the retention rule.
//!
//! Terms: *demand* is the bytes live at a moment. The *short window* is the decay time (1 s unless set). A *regret* is memory
//! that was given back and needed again within the *long window* (30 decay times).
//!
//! The rule: keep resident what the highest demand of the short window would need. When memory was regretted, keep as many bytes as were
//! regretted, up to the demand that needed them, for the long window after the last regret or after the demand fell and rose
//! that far again. Everything above is given back.
//!
//! ```text
//!   demand   ▁▂▅█▇█▁▁▁▁▁▁        one burst: kept 1 s, then given back
//!   demand   ▁█▁█▁█▁█▁▁▁▁▁▁▁▁▁▁  cycles longer than the short window: the second one is a regret, from then on the peak
//!                                is kept, until the long window passes without one
//! ```
//!
//! Why not one long window for all, as tcmalloc's 60 s and 300 s: a service that starts, builds its tables and drops the
//! scaffolding would be charged for minutes for a demand that never returns. A regret is evidence that it does; it costs
//! one refault, once. The question goes back to Evan Jones' "self-tuned to the application" (python-dev, 2005).
//!
//! Pure: time comes in as nanoseconds.

/// Parts of the short window. 8 make the forgetting error one eighth of the decay time.
const PARTS: usize = 8;

/// The long window in decay times. A cycle with a period below it is recognised; 30 s cover a request burst or a
/// batch step, and after them an idle process holds nothing.
const LONG_WINDOW: u64 = 30;

/// Highest demand of the recent past, in parts of the window.
#[derive(Clone, Copy, Debug)]
struct Peaks {
    peaks: [u64; PARTS],
    /// Number of the current part since the start of time.
    part: u64,
}

/// What to keep. See the module's text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    decay: u64,
    now_live: u64,
    window: Peaks,
    /// Bytes regretted in this spell of recurrence: what is kept above the demand.
    allowance: u64,
    /// The demand up to which they are kept: the one that needed them.
    level: u64,
    /// Least demand since the last evidence of recurrence.
    low: u64,
    /// When there was evidence last; `None`: no recurrence known.
    recurred_at: Option<u64>,
    /// Bytes given back that would be a regret if they were needed now, and when the last of them went.
    outstanding: u64,
    given_back_at: u64,
    regretted: u64,
}

impl Demand {
    /// No demand yet; `decay` in nanoseconds.
    pub(crate) const fn new(decay: u64) -> Self {
        Self {
            decay,
            now_live: 0,
            window: Peaks { peaks: [0; PARTS], part: 0 },
            allowance: 0,
            level: 0,
            low: 0,
            recurred_at: None,
            outstanding: 0,
            given_back_at: 0,
            regretted: 0,
        }
    }

    /// Without past demand, and with another decay time. What was regretted was regretted.
    pub(crate) const fn restarted(&self, decay: u64) -> Self {
        Self { regretted: self.regretted, ..Self::new(decay) }
    }

    /// The decay time in nanoseconds.
    pub(crate) const fn decay(&self) -> u64 {
        self.decay
    }

    /// Total of bytes regretted.
    pub(crate) const fn regretted(&self) -> u64 {
        self.regretted
    }

    fn roll(&mut self, now: u64) {
        let length = (self.decay / PARTS as u64).max(1);
        let part = now / length;
        let gone = part.saturating_sub(self.window.part);
        if gone == 0 {
            return;
        }
        // Parts in which nothing was recorded had the demand of the last record throughout.
        for step in 1..=gone.min(PARTS as u64) {
            self.window.peaks[((self.window.part + step) % PARTS as u64) as usize] = self.now_live;
        }
        self.window.part = part;
    }

    /// The demand is `live` bytes from now on.
    pub(crate) fn record(&mut self, now: u64, live: u64) {
        self.roll(now);
        self.now_live = live;
        let peak = &mut self.window.peaks[(self.window.part % PARTS as u64) as usize];
        *peak = (*peak).max(live);
        self.low = self.low.min(live);
        // The kept memory was used again: the cycle goes on, though it costs nothing any more.
        let fell = self.low.saturating_add(self.allowance / 2) <= self.level;
        if self.recurred_at.is_some() && fell && live >= self.level - self.level / 8 {
            self.recurred_at = Some(now);
            self.low = live;
        }
    }

    /// `bytes` were given back.
    pub(crate) fn gave_back(&mut self, now: u64, bytes: u64) {
        self.outstanding += bytes;
        self.given_back_at = now;
    }

    /// `bytes` had to be had from the system on top of a demand of `live`.
    pub(crate) fn grew(&mut self, now: u64, bytes: u64, live: u64) {
        if now.saturating_sub(self.given_back_at) > self.decay.saturating_mul(LONG_WINDOW) {
            self.outstanding = 0;
        }
        if self.outstanding > 0 {
            let regretted = bytes.min(self.outstanding);
            self.outstanding -= regretted;
            self.regretted += regretted;
            self.allowance += regretted;
            self.level = self.level.max(live.saturating_add(bytes));
            self.low = live;
            self.recurred_at = Some(now);
        }
    }

    /// Bytes to keep resident in all, live ones included.
    pub(crate) fn target(&mut self, now: u64) -> u64 {
        self.roll(now);
        let short = self.window.peaks.iter().copied().max().unwrap_or(0);
        let long = match self.recurred_at {
            Some(at) if now.saturating_sub(at) <= self.decay.saturating_mul(LONG_WINDOW) => {
                self.now_live.saturating_add(self.allowance).min(self.level)
            }
            _ => {
                self.allowance = 0;
                self.level = 0;
                self.recurred_at = None;
                0
            }
        };
        short.max(long)
    }

    /// When the target may fall next if nothing happens: the end of the current part, or nothing left to forget.
    pub(crate) fn next_change(&self, now: u64) -> Option<u64> {
        let length = (self.decay / PARTS as u64).max(1);
        if self.window.peaks.iter().any(|&peak| peak > self.now_live) {
            return Some((now / length + 1) * length);
        }
        self.recurred_at.filter(|_| self.level > self.now_live).map(|at| {
            at.saturating_add(self.decay.saturating_mul(LONG_WINDOW)).saturating_add(1).max(now + 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;
    const GIB: u64 = 1 << 30;

    #[test]
    fn one_burst_is_kept_for_the_decay_time_only() {
        let mut demand = Demand::new(SECOND);
        demand.record(10 * SECOND, GIB);
        demand.record(10 * SECOND + 1000, 0);
        assert_eq!(demand.target(10 * SECOND + SECOND / 2), GIB);
        assert_eq!(demand.target(11 * SECOND + SECOND / 4), 0);
    }

    #[test]
    fn a_steady_demand_is_never_forgotten() {
        let mut demand = Demand::new(SECOND);
        demand.record(SECOND, GIB);
        assert_eq!(demand.target(1000 * SECOND), GIB);
    }

    #[test]
    fn a_cycle_longer_than_the_decay_time_is_learnt_from_one_regret() {
        let mut demand = Demand::new(SECOND);
        let mut refaults = 0;
        let mut resident = 0;
        for cycle in 0..20 {
            let start = cycle * 5 * SECOND;
            if resident < GIB {
                refaults += 1;
                demand.grew(start, GIB - resident, resident);
                resident = GIB;
            }
            demand.record(start, GIB);
            demand.record(start + SECOND, 0);
            let target = demand.target(start + 4 * SECOND);
            if target < resident {
                demand.gave_back(start + 4 * SECOND, resident - target);
                resident = target;
            }
        }
        assert_eq!(refaults, 2, "the first growth and one regret");
        assert_eq!(demand.target(100 * SECOND + 31 * SECOND), 0, "idle: all of it goes");
    }

    #[test]
    fn a_small_regret_does_not_keep_a_whole_peak() {
        let mut demand = Demand::new(SECOND);
        demand.record(SECOND, GIB);
        demand.gave_back(3 * SECOND, GIB / 2);
        demand.grew(3 * SECOND, 2 << 20, GIB);
        demand.record(3 * SECOND, GIB + (2 << 20));
        demand.record(4 * SECOND, 0);
        assert_eq!(demand.target(6 * SECOND), 2 << 20);
    }

    proptest! {
        #[test]
        fn the_target_covers_the_recent_peak_and_no_more_than_ever_was(
            steps in proptest::collection::vec((0u64..SECOND, 0u64..GIB), 1..60)
        ) {
            let mut demand = Demand::new(SECOND);
            let mut now = 0;
            let mut history = vec![(0, 0)];
            for (wait, live) in steps {
                now += wait;
                demand.record(now, live);
                history.push((now, live));
                let target = demand.target(now);
                let ever = history.iter().map(|&(_, live)| live).max().unwrap_or(0);
                let recorded = history.iter().filter(|r| r.0 + SECOND * 7 / 8 >= now).map(|r| r.1);
                prop_assert!(target >= recorded.max().unwrap_or(0));
                prop_assert!(target <= ever);
            }
        }

        #[test]
        fn forgetting_ends(live in 0u64..GIB, peak in 0u64..GIB, start in 0u64..(100 * SECOND)) {
            let mut demand = Demand::new(SECOND);
            demand.record(start, peak);
            demand.record(start + 1, live);
            let mut now = start + 1;
            let mut wakes = 0;
            while let Some(next) = demand.next_change(now) {
                prop_assert!(next > now);
                now = next;
                demand.target(now);
                wakes += 1;
                prop_assert!(wakes < 20);
            }
            prop_assert_eq!(demand.target(now), live);
        }
    }
}
