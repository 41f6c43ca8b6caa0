//! What the program needed lately, and so how much memory to keep: the retention rule.
//!
//! Terms: *demand* is the bytes live at a moment. The *short window* is the decay time (1 s unless set). A *regret* is memory
//! that was given back and needed again within the *long window* (30 decay times). A *pause* is the time between the moment when memory
//! was in use last and the moment when it is needed again.
//!
//! The rule: keep resident what the highest demand of the short window would need. When memory was regretted, keep as many bytes as were
//! regretted, up to the highest demand since then, for twice the longest pause of late since they were in use last. Never longer than the
//! long window after the last regret, or after the demand fell and rose that far again. Everything above is given back.
//!
//! ```text
//!   demand   ▁▂▅█▇█▁▁▁▁▁▁        one burst: kept 1 s, then given back
//!   demand   ▁█▁▁█▁▁█▁▁▁▁▁▁▁▁▁▁  pauses longer than the short window: the second cycle is a regret, from then on the peak
//!                   └keep┘       is kept, until twice the pause passes without one
//! ```
//!
//! Why not one long window for all, as tcmalloc's 60 s and 300 s: a service that starts, builds its tables and drops the
//! scaffolding would be charged for minutes for a demand that never returns. A regret is evidence that it does; it costs
//! one refault, once. The question goes back to Evan Jones' "self-tuned to the application" (python-dev, 2005).
//!
//! Why the pause decides: with the long window for everything that was regretted, a program with cycles of a second held its whole
//! peak for half a minute after the last one. Twice the pause forgives a cycle that is late by one pause. A longer one costs one regret, and
//! that teaches its length.
//!
//! Pure: time comes in as nanoseconds.

/// Parts of the short window. 8 make the forgetting error one eighth of the decay time.
const PARTS: usize = 8;

/// The long window in decay times. A cycle with a pause below it is recognised; 30 s cover a request burst or a
/// batch step, and after them an idle process holds nothing.
const LONG_WINDOW: u64 = 30;

/// Pauses that recurring memory is kept for. With one, a pause a little longer than all before would be a regret every time.
const KEPT_PAUSES: u64 = 2;

/// Highest demand of the recent past, in parts of the window.
#[derive(Clone, Copy, Debug)]
struct Peaks {
    peaks: [u64; PARTS],
    /// Number of the current part since the start of time.
    part: u64,
}

/// The longest pause of late: of this spell of one long window, and of the one before it, so that a single long pause is forgotten
/// again. Turns over when a pause is noted, never by itself.
#[derive(Clone, Copy, Debug)]
struct Pauses {
    longest: u64,
    before: u64,
    /// When this spell began.
    since: u64,
}

impl Pauses {
    const NONE: Self = Self { longest: 0, before: 0, since: 0 };

    fn note(&mut self, now: u64, pause: u64, spell: u64) {
        let age = now.saturating_sub(self.since);
        if age > spell {
            self.before = if age > spell.saturating_mul(2) { 0 } else { self.longest };
            self.longest = 0;
            self.since = now;
        }
        self.longest = self.longest.max(pause);
    }

    fn longest(&self) -> u64 {
        self.longest.max(self.before)
    }
}

/// What to keep. See the module's text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    decay: u64,
    now_live: u64,
    recorded_at: u64,
    window: Peaks,
    /// Bytes regretted in this spell of recurrence: what is kept above the demand. At most `level`.
    allowance: u64,
    /// The demand up to which they are kept: the highest since they were regretted.
    level: u64,
    /// Least demand since the last evidence of recurrence.
    low: u64,
    /// When there was evidence last; `None`: no recurrence known.
    recurred_at: Option<u64>,
    /// When nearly all of the allowance was in use last, unless it is now.
    used_at: u64,
    pauses: Pauses,
    /// Bytes given back that would be a regret if they were needed now, and when the last of them went.
    outstanding: u64,
    given_back_at: u64,
    /// When the bytes outstanding were in use last, as far as is known.
    unused_since: u64,
    /// When recurring memory was kept no longer, and when it was in use last.
    let_go: Option<(u64, u64)>,
    regretted: u64,
}

impl Demand {
    /// No demand yet; `decay` in nanoseconds.
    pub(crate) const fn new(decay: u64) -> Self {
        Self {
            decay,
            now_live: 0,
            recorded_at: 0,
            window: Peaks { peaks: [0; PARTS], part: 0 },
            allowance: 0,
            level: 0,
            low: 0,
            recurred_at: None,
            used_at: 0,
            pauses: Pauses::NONE,
            outstanding: 0,
            given_back_at: 0,
            unused_since: 0,
            let_go: None,
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

    fn long_window(&self) -> u64 {
        self.decay.saturating_mul(LONG_WINDOW)
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

    /// Whether nearly all of the allowance is in use at a demand of `live`.
    fn is_used(&self, live: u64) -> bool {
        live >= self.level - self.allowance / 8
    }

    /// The last moment at which the allowance is kept, if nothing happens; `None`: no recurrence known.
    fn kept_until(&self) -> Option<u64> {
        let at = self.recurred_at?;
        let last = at.saturating_add(self.long_window());
        if self.is_used(self.now_live) {
            return Some(last);
        }
        let time = self.pauses.longest().saturating_mul(KEPT_PAUSES).max(self.decay);
        Some(self.used_at.saturating_add(time).min(last))
    }

    /// Forgets a recurrence that did not go on.
    fn expire(&mut self, now: u64) {
        if self.kept_until().is_some_and(|last| now > last) {
            let used_at = if self.is_used(self.now_live) { now } else { self.used_at };
            self.let_go = Some((now, used_at));
            self.allowance = 0;
            self.level = 0;
            self.recurred_at = None;
            self.pauses = Pauses::NONE;
        }
    }

    /// The demand is `live` bytes from now on.
    pub(crate) fn record(&mut self, now: u64, live: u64) {
        self.roll(now);
        self.expire(now);
        if self.is_used(self.now_live) {
            self.used_at = now;
        }
        self.now_live = live;
        self.recorded_at = now;
        let peak = &mut self.window.peaks[(self.window.part % PARTS as u64) as usize];
        *peak = (*peak).max(live);
        self.low = self.low.min(live);
        // The kept memory was used again: the cycle goes on, though it costs nothing any more.
        let fell = self.low.saturating_add(self.allowance / 2) <= self.level;
        if self.recurred_at.is_some() && fell && self.is_used(live) {
            self.recurs(now, now.saturating_sub(self.used_at), live);
        }
        if self.recurred_at.is_some() {
            // A growing program's dips are below a peak that is higher each time.
            self.level = self.level.max(live);
        }
    }

    /// There is evidence that the demand recurs, after a pause.
    fn recurs(&mut self, now: u64, pause: u64, live: u64) {
        self.pauses.note(now, pause, self.long_window());
        self.recurred_at = Some(now);
        self.used_at = now;
        self.low = live;
    }

    /// `bytes` were given back.
    pub(crate) fn gave_back(&mut self, now: u64, bytes: u64) {
        self.outstanding += bytes;
        self.given_back_at = now;
        // What the short window alone kept was in use a decay time ago.
        self.unused_since = match self.let_go {
            Some((at, used_at)) if now.saturating_sub(at) <= self.decay => used_at,
            _ => now.saturating_sub(self.decay),
        };
    }

    /// `bytes` had to be had from the system on top of a demand of `live`.
    pub(crate) fn grew(&mut self, now: u64, bytes: u64, live: u64) {
        self.expire(now);
        if now.saturating_sub(self.given_back_at) > self.long_window() {
            self.outstanding = 0;
        }
        if self.outstanding > 0 {
            let regretted = bytes.min(self.outstanding);
            self.outstanding -= regretted;
            self.regretted += regretted;
            self.level = self.level.max(live.saturating_add(bytes));
            self.allowance = (self.allowance + regretted).min(self.level);
            self.recurs(now, now.saturating_sub(self.unused_since), live);
        }
    }

    /// Bytes to keep resident in all, live ones included.
    pub(crate) fn target(&mut self, now: u64) -> u64 {
        self.roll(now);
        self.expire(now);
        let short = self.window.peaks.iter().copied().max().unwrap_or(0);
        let long = match self.recurred_at {
            Some(_) => self.now_live.saturating_add(self.allowance).min(self.level),
            None => 0,
        };
        short.max(long)
    }

    /// Whether the target may fall long before the moment `look` for what was recorded last.
    pub(crate) fn may_fall_before(&self, look: u64) -> bool {
        // The short window forgets within a decay time; another for the time that a look takes and is late.
        let soon = self.recorded_at.saturating_add(self.decay.saturating_mul(2));
        look > soon && self.next_change(self.recorded_at).is_some_and(|next| next < soon)
    }

    /// When the target may fall next if nothing happens: the end of the current part, or nothing left to forget.
    pub(crate) fn next_change(&self, now: u64) -> Option<u64> {
        let length = (self.decay / PARTS as u64).max(1);
        if self.window.peaks.iter().any(|&peak| peak > self.now_live) {
            return Some((now / length + 1) * length);
        }
        let until = self.kept_until().filter(|_| self.level > self.now_live)?;
        Some(until.saturating_add(1).max(now + 1))
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

    /// A program and the maintenance that follows the rule, on a clock of its own.
    struct Program {
        demand: Demand,
        now: u64,
        live: u64,
        resident: u64,
        /// Bytes given back.
        given: u64,
    }

    impl Program {
        fn new() -> Self {
            let (now, live, resident, given) = (100 * SECOND, 0, 0, 0);
            Self { demand: Demand::new(SECOND), now, live, resident, given }
        }

        /// The program needs `live` bytes from now on.
        fn need(&mut self, live: u64) {
            if live > self.resident {
                self.demand.grew(self.now, live - self.resident, self.live);
                self.resident = live;
            }
            self.live = live;
            self.demand.record(self.now, live);
        }

        /// Seconds pass; maintenance looks eight times in each.
        fn wait(&mut self, seconds: f64) {
            let end = self.now + (seconds * SECOND as f64) as u64;
            while self.now < end {
                self.now = (self.now + SECOND / 8).min(end);
                let target = self.demand.target(self.now);
                if target < self.resident {
                    self.demand.gave_back(self.now, self.resident - target);
                    self.given += self.resident - target;
                    self.resident = target;
                }
            }
        }

        /// A gibibyte is needed for `busy` seconds, then nothing for `pause` seconds. Returns what was given back.
        fn cycle(&mut self, busy: f64, pause: f64) -> u64 {
            let before = self.given;
            self.need(GIB);
            self.wait(busy);
            self.need(0);
            self.wait(pause);
            self.given - before
        }

        /// Seconds from now on until nothing is resident any more.
        fn kept_for(&mut self) -> f64 {
            let begin = self.now;
            while self.resident > 0 {
                self.wait(0.125);
                assert!(self.now - begin <= 31 * SECOND, "kept beyond the long window");
            }
            (self.now - begin) as f64 / SECOND as f64
        }
    }

    #[test]
    fn a_cycle_longer_than_the_decay_time_is_learnt_from_one_regret() {
        let mut program = Program::new();
        let given: Vec<u64> = (0..20).map(|_| program.cycle(1.0, 4.0)).collect();
        assert_eq!(given[0], GIB);
        assert_eq!(given[1..], [0; 19], "one regret and no more");
        assert_eq!(program.demand.regretted(), GIB);
    }

    #[test]
    fn memory_is_kept_for_twice_the_pause_after_the_last_cycle() {
        for (pause, kept) in [(1.5, 3.0), (4.0, 8.0), (10.0, 20.0)] {
            let mut program = Program::new();
            for _ in 0..5 {
                program.cycle(1.0, pause);
            }
            program.need(GIB);
            program.wait(1.0);
            program.need(0);
            let found = program.kept_for();
            assert!((kept - 0.25..=kept + 0.25).contains(&found), "pause {pause} s: kept {found} s");
        }
    }

    #[test]
    fn a_pause_up_to_the_long_window_is_recognised_and_a_longer_one_is_none() {
        let mut program = Program::new();
        let given: Vec<u64> = (0..6).map(|_| program.cycle(1.0, 27.0)).collect();
        assert_eq!(given, [GIB, 0, 0, 0, 0, 0]);
        let mut program = Program::new();
        let given: Vec<u64> = (0..6).map(|_| program.cycle(1.0, 33.0)).collect();
        assert_eq!(given, [GIB; 6]);
        assert_eq!(program.demand.regretted(), 0);
    }

    #[test]
    fn a_cycle_left_out_costs_one_regret_at_most_and_the_next_one_nothing() {
        let mut program = Program::new();
        for _ in 0..5 {
            program.cycle(1.0, 4.0);
        }
        let given: Vec<u64> =
            (0..4).flat_map(|_| [program.cycle(1.0, 9.0), program.cycle(1.0, 4.0)]).collect();
        assert_eq!(given, [GIB, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn irregular_pauses_cost_little_and_the_longest_of_late_counts() {
        let mut program = Program::new();
        let mut seed = 7_u64;
        let mut given = 0;
        for number in 0..100 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // 2 to 10 s.
            let pause = 2.0 + (seed >> 61) as f64 * 8.0 / 7.0;
            let cost = program.cycle(0.5, pause);
            given += if number < 2 { 0 } else { cost };
        }
        assert!(given <= 2 * GIB, "{} regrets of 98", given / GIB);
    }

    #[test]
    fn one_long_pause_is_forgotten_after_two_long_windows() {
        let mut program = Program::new();
        program.cycle(1.0, 12.0);
        // 12 s are noted at the first regret, and again and again 2 s.
        for _ in 0..30 {
            program.cycle(1.0, 2.0);
        }
        program.need(GIB);
        program.need(0);
        assert!(program.kept_for() <= 4.5);
    }

    #[test]
    fn a_saw_of_two_seconds_is_learnt_and_gone_soon_after() {
        let mut program = Program::new();
        let mut given = Vec::new();
        for _ in 0..10 {
            let before = program.given;
            for step in 1..=16 {
                program.need(GIB / 16 * step);
                program.wait(0.1);
            }
            for step in (0..16).rev() {
                program.need(GIB / 16 * step);
                program.wait(0.025);
            }
            given.push(program.given - before);
        }
        assert!(given[1..].iter().sum::<u64>() <= GIB, "{given:?}");
        assert_eq!(given[5..], [0; 5]);
        assert!(program.kept_for() <= 5.0);
    }

    #[test]
    fn a_growing_program_with_dips_keeps_the_dip_for_as_long_as_dips_last() {
        let mut program = Program::new();
        for step in 1..40 {
            program.need(step * GIB / 4);
            program.wait(1.0);
            program.need(step * GIB / 4 - GIB / 8);
            program.wait(1.5);
        }
        assert!(program.given <= GIB / 4, "{} bytes were given back", program.given);
        program.need(0);
        assert!(program.kept_for() <= 3.5);
    }

    #[test]
    fn what_recurs_no_more_is_forgotten_though_less_still_does() {
        let mut program = Program::new();
        for _ in 0..5 {
            program.cycle(1.0, 3.0);
        }
        for _ in 0..10 {
            program.need(GIB / 8);
            program.wait(0.5);
            program.need(0);
            program.wait(0.4);
        }
        assert!(program.resident <= GIB / 8);
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
        fn nothing_is_kept_longer_than_the_long_window_nor_above_what_was_regretted(
            steps in proptest::collection::vec((0.0f64..8.0, 0u64..GIB), 1..60)
        ) {
            let mut program = Program::new();
            for (wait, live) in steps {
                program.need(live);
                program.wait(wait);
                let kept = program.demand.target(program.now) - program.live;
                let recent = program.demand.window.peaks.iter().max().map_or(0, |&peak| peak - program.live);
                prop_assert!(kept <= recent.max(program.demand.regretted()));
            }
            program.need(0);
            program.kept_for();
        }

        #[test]
        fn the_target_does_not_depend_on_who_asked_before(
            steps in proptest::collection::vec((0.0f64..8.0, 0u64..GIB), 1..60)
        ) {
            let mut asked = Program::new();
            for (wait, live) in steps {
                asked.need(live);
                asked.wait(wait);
                let mut other = asked.demand;
                let later = asked.now + SECOND / 3;
                asked.demand.target(asked.now + SECOND / 9);
                prop_assert_eq!(asked.demand.target(later), other.target(later));
                asked.now = later;
            }
        }

        #[test]
        fn forgetting_ends(live in 0u64..GIB, peak in 0u64..GIB, start in 0u64..(100 * SECOND)) {
            let mut demand = Demand::new(SECOND);
            demand.record(start, peak);
            demand.record(start + 1, live);
            let mut now = start + 1;
            prop_assert_eq!(demand.may_fall_before(now + 60 * SECOND), peak > live);
            prop_assert!(!demand.may_fall_before(now + SECOND));
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
