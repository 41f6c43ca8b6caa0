//! Trials: the same piece of work on several variants, in turn, each in a process of its own.
//!
//! The plain form of [`series`](super::series), for work that this program does itself: no interpreter, no first look.

use super::interrupt;
use super::variant::{Refusal, turns};
use crate::output::Output;

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

/// Runs each of `names` `runs` times, in turn. One that failed once is left out from then on.
///
/// # Errors
/// When a signal ended it early: variants were not measured alike.
pub(crate) fn run<R>(
    out: &Output,
    names: &[String],
    runs: u32,
    mut one: impl FnMut(usize) -> Result<R, String>,
) -> Result<Vec<Trial<R>>, Refusal> {
    let new = |name: &String| Trial { name: name.clone(), runs: Vec::new(), failure: None };
    let mut trials: Vec<Trial<R>> = names.iter().map(new).collect();
    for (round, place) in turns(names.len(), runs) {
        let trial = &mut trials[place];
        if trial.failure.is_some() {
            continue;
        }
        out.progress(&format!("{}: run {} of {runs}", trial.name, round + 1), false);
        match one(place) {
            Ok(run) => trial.runs.push(run),
            Err(why) => {
                if interrupt::noted().is_none() {
                    out.warning(&format!("{} failed: {why}", trial.name));
                }
                trial.failure = Some(why);
            }
        }
        if let Some(signal) = interrupt::noted() {
            return Err(Refusal::Interrupted(signal));
        }
    }
    out.progress_end();
    Ok(trials)
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
}
