//! What each kind of program pays, and how long it is charged, on a clock of its own.

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
    let given: Vec<u64> = (0..4).flat_map(|_| [program.cycle(1.0, 9.0), program.cycle(1.0, 4.0)]).collect();
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
