//! A series: workloads measured on variants, in processes of their own.
//!
//! ```text
//!   workload 1   first look: A  B  C      timed runs: A B C   B C A   C A B …
//!   workload 2   …
//! ```
//!
//! The *first look* at each variant warms files and caches up, shows its memory, and tells how much memory the
//! timed runs need. Those come in turn, each round beginning with another variant, so that no variant always
//! follows the same one. Before each the memory it needs is touched (see [`touch`]). A variant that failed once
//! is left out from then on.

use super::charge::Group;
use super::trials::time_left;
use super::variant::{Refusal, Variant, turns};
use super::{interrupt, touch};
use crate::output::Output;
use std::time::Instant;

/// What is to be measured.
pub(crate) struct Series<'a, T> {
    pub(crate) tasks: &'a [T],
    pub(crate) variants: &'a [Variant],
    /// Timed runs of each task on each variant.
    pub(crate) runs: u32,
}

/// How it is measured.
pub(crate) trait Experiment {
    /// A workload and how much of it.
    type Task;
    /// What the first look at a variant shows.
    type Look: Clone;
    /// What a timed run tells.
    type Run: Clone;
    /// What the first look is at, for a line about the progress.
    const LOOK: &'static str;

    fn name(task: &Self::Task) -> &'static str;

    /// Memory in bytes that was resident at the peak of a first look.
    fn peak(look: &Self::Look) -> u64;

    /// Looks at a variant's memory.
    fn look(&self, task: &Self::Task, variant: &Variant) -> Result<Self::Look, String>;

    /// Runs a variant once, for time.
    fn timed(&self, task: &Self::Task, variant: &Variant) -> Result<Self::Run, String>;
}

/// All that was measured of one task on one variant.
#[derive(Clone, Debug)]
pub(crate) struct Measurement<L, R> {
    pub(crate) look: Option<L>,
    pub(crate) runs: Vec<R>,
    /// Why there is nothing, or less than planned.
    pub(crate) failure: Option<String>,
}

/// The results.
#[derive(Debug)]
pub(crate) struct Results<L, R> {
    /// By task and variant, in the order of the series.
    pub(crate) measurements: Vec<Vec<Measurement<L, R>>>,
    /// Why charges are missing, if they are.
    pub(crate) no_charge: Option<String>,
}

/// The results of an experiment.
pub(crate) type Of<E> = Results<<E as Experiment>::Look, <E as Experiment>::Run>;

/// Measures the series. A signal ends it early; then there are results for the first of the tasks: those that
/// were measured, and the one that was interrupted with its complete rounds, if there were any.
///
/// # Errors
/// When a signal ended it before a round of the first task was complete.
pub(crate) fn measure<E: Experiment>(
    series: &Series<'_, E::Task>,
    experiment: &E,
    out: &Output,
) -> Result<Of<E>, Refusal> {
    let no_charge = Group::create().err();
    let mut measurements = Vec::new();
    let (start, all) = (Instant::now(), series.tasks.len());
    for task in series.tasks {
        measurements.extend(series.task(task, experiment, out));
        if let Some(signal) = interrupt::left_off() {
            if measurements.is_empty() {
                return Err(Refusal::Interrupted(signal));
            }
            break;
        }
        let done = measurements.len();
        let left = time_left(start.elapsed().as_secs_f64(), done as u32, all as u32);
        out.progress(&format!("{done} of {all} workloads: {} done{left}", E::name(task)), true);
    }
    Ok(Results { measurements, no_charge })
}

impl<T> Series<'_, T> {
    /// A row of measurements, by variant; after a signal of complete rounds, `None` when there were none.
    fn task<E: Experiment<Task = T>>(
        &self,
        task: &T,
        experiment: &E,
        out: &Output,
    ) -> Option<Vec<Measurement<E::Look, E::Run>>> {
        let name = E::name(task);
        let failed = |variant: &Variant, why: String| {
            out.warning(&format!("{name} on {} failed: {why}", variant.name));
            Some(why)
        };
        let mut row = vec![Measurement { look: None, runs: Vec::new(), failure: None }; self.variants.len()];
        for (variant, measurement) in self.variants.iter().zip(&mut row) {
            out.progress(&format!("{name} on {}: {}", variant.name, E::LOOK), false);
            let look = experiment.look(task, variant);
            if interrupt::leave_off() {
                return None;
            }
            match look {
                Ok(look) => measurement.look = Some(look),
                Err(why) => measurement.failure = failed(variant, why),
            }
        }
        for (round, place) in turns(self.variants.len(), self.runs) {
            let (variant, measurement) = (&self.variants[place], &mut row[place]);
            let Some(look) = measurement.look.as_ref().filter(|_| measurement.failure.is_none()) else {
                continue;
            };
            out.progress(&format!("{name} on {}: run {} of {}", variant.name, round + 1, self.runs), false);
            // Refused when memory is short: the run shows it then.
            let _ = touch::touch_and_free(touch::need(E::peak(look)));
            let run = experiment.timed(task, variant);
            if interrupt::leave_off() {
                row.iter_mut().for_each(|measurement| measurement.runs.truncate(round as usize));
                return (round > 0).then_some(row);
            }
            match run {
                Ok(run) => measurement.runs.push(run),
                Err(why) => measurement.failure = failed(variant, why),
            }
        }
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::variant::Kind;
    use std::cell::RefCell;

    /// Notes who ran; one variant fails.
    struct Noted {
        ran: RefCell<Vec<String>>,
        fails: &'static str,
    }

    impl Noted {
        fn note(&self, what: &str, variant: &Variant) -> Result<(), String> {
            self.ran.borrow_mut().push(format!("{what} {}", variant.name));
            if self.fails == format!("{what} {}", variant.name) { Err("broken".to_owned()) } else { Ok(()) }
        }
    }

    impl Experiment for Noted {
        type Task = ();
        type Look = ();
        type Run = ();
        const LOOK: &'static str = "memory";

        fn name((): &()) -> &'static str {
            "nothing"
        }

        fn peak((): &()) -> u64 {
            0
        }

        fn look(&self, (): &(), variant: &Variant) -> Result<(), String> {
            self.note("look", variant)
        }

        fn timed(&self, (): &(), variant: &Variant) -> Result<(), String> {
            self.note("run", variant)
        }
    }

    fn measured(fails: &'static str) -> (Vec<String>, Vec<Measurement<(), ()>>) {
        let variants = [Variant::for_tests("a", Kind::Stock), Variant::for_tests("b", Kind::Peer)];
        let experiment = Noted { ran: RefCell::default(), fails };
        let series = Series { tasks: &[()], variants: &variants, runs: 2 };
        let results = measure(&series, &experiment, &Output::new(true, false, true)).ok().unwrap();
        (experiment.ran.into_inner(), results.measurements.concat())
    }

    #[test]
    fn every_variant_is_looked_at_before_the_runs_in_turn() {
        let (ran, row) = measured("");
        assert_eq!(ran, ["look a", "look b", "run a", "run b", "run b", "run a"]);
        assert!(row.iter().all(|one| one.look.is_some() && one.runs.len() == 2 && one.failure.is_none()));
    }

    #[test]
    fn a_variant_that_failed_is_left_out_from_then_on() {
        let (ran, row) = measured("look b");
        assert_eq!(ran, ["look a", "look b", "run a", "run a"]);
        assert_eq!((row[1].runs.len(), row[1].failure.as_deref()), (0, Some("broken")));
        let (ran, row) = measured("run a");
        assert_eq!(ran, ["look a", "look b", "run a", "run b", "run b"]);
        assert_eq!((row[0].runs.len(), row[0].failure.as_deref()), (0, Some("broken")));
    }
}
