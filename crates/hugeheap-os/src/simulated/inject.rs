//! Failures on demand, and the price of calls.
//!
//! Three ways to make a call fail, asked in this order:
//!
//! * *next*: the next `n` calls of a kind fail with one error, then no more; several of these queue up;
//! * *every*: each `n`-th call of a kind fails (the n-th, the 2n-th, …);
//! * *random*: each call fails with a probability, with one of the errors a real kernel gives it. The sequence
//!   depends on the seed only, so a failing run can be had again.
//!
//! A call made to fail changes nothing. A call that broke the contract is answered for that and uses up no failure.

use super::call::{CALLS, Call, Outcome};
use core::time::Duration;
use std::collections::VecDeque;

#[derive(Default)]
struct Plan {
    /// Error and how often, oldest first.
    next: VecDeque<(i32, u64)>,
    /// 0: off.
    every: u64,
    every_code: i32,
    asked: u64,
}

pub(super) struct Injector {
    plans: [Plan; CALLS],
    random: Option<Random>,
    pub(super) injected: u64,
}

struct Random {
    state: u64,
    per_mille: u32,
}

impl Random {
    /// SplitMix64: every seed is a good one.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Injector {
    pub(super) fn new() -> Self {
        Self { plans: core::array::from_fn(|_| Plan::default()), random: None, injected: 0 }
    }

    pub(super) fn next(&mut self, call: Call, code: i32, times: u64) {
        if times > 0 {
            self.plans[call as usize].next.push_back((code, times));
        }
    }

    pub(super) fn every(&mut self, call: Call, n: u64, code: i32) {
        let plan = &mut self.plans[call as usize];
        plan.every = n;
        plan.every_code = code;
        plan.asked = 0;
    }

    pub(super) fn randomly(&mut self, seed: u64, per_mille: u32) {
        self.random = (per_mille > 0).then_some(Random { state: seed, per_mille });
    }

    pub(super) fn clear(&mut self) {
        self.plans = core::array::from_fn(|_| Plan::default());
        self.random = None;
    }

    /// Whether this call fails now.
    pub(super) fn ask(&mut self, call: Call) -> Outcome<()> {
        match self.decide(call) {
            0 => Ok(()),
            code => {
                self.injected += 1;
                Err(code)
            }
        }
    }

    fn decide(&mut self, call: Call) -> i32 {
        let errors = call.plausible_errors();
        if errors.is_empty() {
            return 0;
        }
        let plan = &mut self.plans[call as usize];
        plan.asked += 1;
        if let Some((code, times)) = plan.next.front_mut() {
            let code = *code;
            *times -= 1;
            if *times == 0 {
                plan.next.pop_front();
            }
            return code;
        }
        if plan.every > 0 && plan.asked % plan.every == 0 {
            return plan.every_code;
        }
        let Some(random) = &mut self.random else { return 0 };
        let draw = random.next();
        if draw % 1000 < u64::from(random.per_mille) {
            errors[(draw >> 32) as usize % errors.len()]
        } else {
            0
        }
    }
}

/// Time between two interrupts of the timer, with the usual 250 in a second.
const TICK: Duration = Duration::from_millis(4);

/// Simulated time and what calls cost.
pub(super) struct Clock {
    pub(super) now: Duration,
    /// Of that, what calls cost: there is one thread.
    pub(super) worked: Duration,
    costs: [Duration; CALLS],
    preemptions: [Duration; CALLS],
}

impl Clock {
    pub(super) fn new() -> Self {
        let (now, costs) = (Duration::ZERO, [Duration::ZERO; CALLS]);
        Self { now, worked: now, costs, preemptions: costs }
    }

    pub(super) fn set_cost(&mut self, call: Call, cost: Duration) {
        self.costs[call as usize] = cost;
    }

    pub(super) fn set_preemption(&mut self, call: Call, time: Duration) {
        self.preemptions[call as usize] = time;
    }

    /// The time at the last interrupt of the timer.
    pub(super) fn noted(&self) -> Duration {
        self.now - Duration::from_nanos((self.now.as_nanos() % TICK.as_nanos()) as u64)
    }

    pub(super) fn spend(&mut self, call: Call, times: u64) {
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        let cost = self.costs[call as usize] * times;
        self.worked += cost;
        self.now += cost + self.preemptions[call as usize] * times;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_fails_so_many_times() {
        let mut injector = Injector::new();
        injector.next(Call::Map, libc::EAGAIN, 2);
        injector.next(Call::Map, libc::ENOMEM, 1);
        let answers: Vec<_> = (0..4).map(|_| injector.ask(Call::Map)).collect();
        assert_eq!(answers, [Err(libc::EAGAIN), Err(libc::EAGAIN), Err(libc::ENOMEM), Ok(())]);
        assert_eq!(injector.ask(Call::Unmap), Ok(()));
        assert_eq!(injector.injected, 3);
    }

    #[test]
    fn every_counts_from_when_it_was_set() {
        let mut injector = Injector::new();
        injector.every(Call::Split, 3, libc::EAGAIN);
        let failed: Vec<_> = (1..=9).filter(|_| injector.ask(Call::Split).is_err()).collect();
        assert_eq!(failed, [3, 6, 9]);
    }

    #[test]
    fn random_failures_depend_on_the_seed_only() {
        let run = |seed| {
            let mut injector = Injector::new();
            injector.randomly(seed, 200);
            (0..1000).map(|_| injector.ask(Call::Collapse)).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        let failed = run(1).iter().filter(|answer| answer.is_err()).count();
        assert!((150..250).contains(&failed), "{failed}");
    }

    #[test]
    fn the_timer_notes_every_fourth_millisecond() {
        let mut clock = Clock::new();
        let noted = [0, 3, 4, 11, 12].map(|now| {
            clock.now = Duration::from_millis(now) + Duration::from_nanos(1);
            clock.noted().as_millis()
        });
        assert_eq!(noted, [0, 0, 4, 8, 12]);
    }

    #[test]
    fn calls_that_cannot_fail_do_not() {
        let mut injector = Injector::new();
        injector.next(Call::Now, libc::EINVAL, 1);
        injector.randomly(7, 1000);
        assert_eq!(injector.ask(Call::Now), Ok(()));
    }
}
