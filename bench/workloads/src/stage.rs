//! The moments of a workload at which its memory is looked at.
//!
//! ```text
//!   start ─────── steady ────────── low ── pause ── idle ────── end
//!          work            work       what a program holds
//!                                     when it has nothing to do
//! ```
//!
//! A timed run passes them without stopping.

use crate::look::Look;
use std::path::PathBuf;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Duration;

/// How memory is to be looked at.
#[derive(Clone, Debug)]
pub(crate) struct Observe {
    /// The pause before the last look.
    pub(crate) idle: Duration,
    /// The file with the charge.
    pub(crate) charge: Option<PathBuf>,
}

/// What was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looks {
    pub(crate) start: Look,
    pub(crate) steady: Look,
    pub(crate) low: Look,
    pub(crate) idle: Look,
}

/// Where a workload runs.
#[derive(Debug)]
pub(crate) struct Stage {
    threads: usize,
    seed: u64,
    observe: Option<Observe>,
    meeting: Barrier,
    looks: Mutex<Looks>,
}

impl Stage {
    pub(crate) fn new(threads: usize, seed: u64, observe: Option<Observe>) -> Self {
        let start = observe.as_ref().map(|observe| Look::now(observe.charge.as_deref())).unwrap_or_default();
        let looks = Mutex::new(Looks { start, ..Looks::default() });
        Self { threads, seed, observe, meeting: Barrier::new(threads), looks }
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Each of the workload's threads comes here once, when its memory is what it is most of the time.
    pub(crate) fn steady(&self) {
        let Some(observe) = &self.observe else { return };
        if self.meeting.wait().is_leader() {
            self.with(|looks| looks.steady = Look::now(observe.charge.as_deref()));
        }
        // Nobody goes on while the leader looks.
        self.meeting.wait();
    }

    /// The workload comes here once, its threads ended, when it holds as little as it will for a long time.
    pub(crate) fn idle(&self) {
        let Some(observe) = &self.observe else { return };
        self.with(|looks| looks.low = Look::now(observe.charge.as_deref()));
        std::thread::sleep(observe.idle);
        self.with(|looks| looks.idle = Look::now(observe.charge.as_deref()));
    }

    pub(crate) fn looks(&self) -> Option<Looks> {
        let mut looks = None;
        self.with(|seen| looks = Some(*seen));
        looks.filter(|_| self.observe.is_some())
    }

    fn with(&self, change: impl FnOnce(&mut Looks)) {
        change(&mut self.looks.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Runs `work` on each of the workload's threads, with its number.
    pub(crate) fn each_thread(&self, work: impl Fn(usize) + Sync) {
        if self.threads == 1 {
            // As a program without threads: some allocators are faster until there is a second one.
            return work(0);
        }
        std::thread::scope(|scope| {
            for thread in 0..self.threads {
                let work = &work;
                scope.spawn(move || work(thread));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_meet_and_memory_is_looked_at() {
        let observe = Observe { idle: Duration::from_millis(1), charge: None };
        let stage = Stage::new(3, 1, Some(observe));
        stage.each_thread(|_| stage.steady());
        stage.idle();
        let looks = stage.looks().unwrap();
        assert!(looks.start.rss > 0 && looks.steady.rss > 0 && looks.low.rss > 0 && looks.idle.rss > 0);
    }

    #[test]
    fn a_timed_run_does_not_stop() {
        let stage = Stage::new(2, 1, None);
        stage.steady();
        stage.idle();
        assert!(stage.looks().is_none());
    }
}
