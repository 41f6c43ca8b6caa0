//! Trials: the same piece of work on several variants, in turn, each in a process of its own.
//!
//! The plain form of [`series`](super::series), for work that this program does itself: no interpreter, no first look.

use super::interrupt;
use super::variant::{Refusal, turns};
use crate::output::{Output, seconds};
use std::time::Instant;

/// What a variant's runs told.
#[derive(Clone, Debug)]
pub(crate) struct Trial<R> {
    pub(crate) name: String,
    pub(crate) runs: Vec<R>,
    /// Why there is nothing, or less than planned.
    pub(crate) failure: Option<String>,
}

impl<R> Trial<R> {
    /// A figure of each run.
    pub(crate) fn values(&self, figure: impl Fn(&R) -> f64) -> Vec<f64> {
        self.runs.iter().map(figure).collect()
    }
}

/// Runs each of `names` `runs` times, in turn. One that failed once is left out from then on. A signal ends it
/// early; then all have the runs of the rounds that were complete, so that variants were measured alike.
///
/// # Errors
/// When a signal ended it before the first round was complete.
pub(crate) fn run<R>(
    out: &Output,
    names: &[String],
    runs: u32,
    mut one: impl FnMut(usize) -> Result<R, String>,
) -> Result<Vec<Trial<R>>, Refusal> {
    let new = |name: &String| Trial { name: name.clone(), runs: Vec::new(), failure: None };
    let mut trials: Vec<Trial<R>> = names.iter().map(new).collect();
    let start = Instant::now();
    let (mut complete, mut left) = (0, String::new());
    for (round, place) in turns(names.len(), runs) {
        if round > complete {
            complete = round;
            left = time_left(start.elapsed().as_secs_f64(), complete, runs);
            // The first one tells how long it will take, where no line can be written anew.
            out.progress(&format!("{complete} of {runs} rounds done{left}"), complete == 1);
        }
        if interrupt::leave_off() {
            return whole(trials, complete);
        }
        if trials[place].failure.is_some() {
            continue;
        }
        out.progress(&format!("{}: run {} of {runs}{left}", trials[place].name, round + 1), false);
        let told = one(place);
        if interrupt::leave_off() {
            return whole(trials, complete);
        }
        let trial = &mut trials[place];
        match told {
            Ok(run) => trial.runs.push(run),
            Err(why) => {
                out.warning(&format!("{} failed: {why}", trial.name));
                trial.failure = Some(why);
            }
        }
    }
    out.progress_end();
    Ok(trials)
}

/// What is measured in parts: a part that was interrupted before its first round was complete is none, where
/// others were measured before.
///
/// # Errors
/// As [`run`], where it is the first part.
pub(crate) fn part<R>(
    trials: Result<Vec<Trial<R>>, Refusal>,
    is_first: bool,
) -> Result<Option<Vec<Trial<R>>>, Refusal> {
    match trials {
        Err(Refusal::Interrupted(_)) if !is_first => Ok(None),
        trials => trials.map(Some),
    }
}

/// `, about 20 s left` when `done` of `all` took `elapsed` seconds; nothing where that is less than a second.
pub(crate) fn time_left(elapsed: f64, done: u32, all: u32) -> String {
    let left = elapsed / f64::from(done.max(1)) * f64::from(all.saturating_sub(done));
    if left < 1.0 { String::new() } else { format!(", about {} left", seconds(left)) }
}

/// The runs of complete rounds.
fn whole<R>(mut trials: Vec<Trial<R>>, complete: u32) -> Result<Vec<Trial<R>>, Refusal> {
    trials.iter_mut().for_each(|trial| trial.runs.truncate(complete as usize));
    if complete > 0 { Ok(trials) } else { Err(Refusal::Interrupted(interrupt::noted().unwrap_or(0))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_run_in_turn_and_a_failed_one_is_left_out() {
        let mut ran = Vec::new();
        let names = ["a", "b"].map(str::to_owned);
        let trials = run(&Output::new(true, false, true), &names, 2, |place| {
            ran.push(place);
            if place == 1 { Err("broken".to_owned()) } else { Ok(1.5) }
        })
        .ok()
        .unwrap();
        assert_eq!(ran, [0, 1, 0]);
        assert_eq!(trials[0].values(|&value| value), [1.5, 1.5]);
        assert_eq!((trials[1].runs.len(), trials[1].failure.as_deref()), (0, Some("broken")));
    }

    #[test]
    fn of_an_interrupted_measurement_the_complete_rounds_are_kept() {
        let trial = |runs: &[i32]| Trial { name: String::new(), runs: runs.to_vec(), failure: None };
        let kept = whole(vec![trial(&[1, 2, 3]), trial(&[4, 5]), trial(&[6])], 2).ok().unwrap();
        assert_eq!(kept.iter().map(|trial| trial.runs.len()).collect::<Vec<_>>(), [2, 2, 1]);
        let nothing = || whole(vec![trial(&[1]), trial(&[])], 0);
        assert!(matches!(nothing(), Err(Refusal::Interrupted(_))));
        assert!(part(nothing(), true).is_err());
        assert!(matches!(part(nothing(), false), Ok(None)));
        assert!(matches!(
            part(Err::<Vec<Trial<()>>, _>(Refusal::Usage(String::new())), false),
            Err(Refusal::Usage(_))
        ));
    }

    #[test]
    fn the_time_left_is_that_of_the_rounds_left() {
        assert_eq!(time_left(3.0, 1, 10), ", about 27.0 s left");
        assert_eq!(time_left(3.0, 10, 10), "");
    }
}
