//! The goals: what hugeheap claims about giving memory back, checked against what was just measured.
//!
//! They are about hugeheap's first policy of the list, at the highest level measured.

use super::results::{Clock, Part, View};
use super::workload::Workload;
use crate::bench::goal::Goal;
use crate::output::{bytes, change};

/// Total time, against stock.
const TIME: f64 = 1.0;
/// Of what the workload added, still charged after the wait.
const HELD: f64 = 0.05;
/// System time of a cycle after the first, against stock, which gives everything back and takes it again:
/// "almost nothing".
const STEADY: f64 = 0.10;

/// All goals the measured workloads and variants can tell about.
pub(crate) fn goals(view: View<'_>) -> Vec<Goal> {
    let mut goals = Vec::new();
    let Some(ours) = view.headline() else { return goals };
    for (place, task) in view.plan.tasks.iter().enumerate() {
        let name = task.workload.name();
        if let Some(ratio) = view.ratio(place, ours, Part::Whole, Clock::Real) {
            goals.push(Goal::at_most(
                ratio,
                TIME,
                format!("total time of {name}"),
                format!("{} (at most that of stock)", change(ratio.value)),
            ));
        }
        if let (Workload::Cycle, Some(ratio)) =
            (task.workload, view.ratio(place, ours, Part::Steady, Clock::System))
        {
            goals.push(Goal::at_most(
                ratio,
                STEADY,
                format!("system time per later cycle of {name}"),
                format!("{:.2} of stock (at most {STEADY:.2})", ratio.value),
            ));
        }
        if let Some((held, share)) = view.charged(place, ours).and_then(|held| Some((held, held.share()?))) {
            goals.push(Goal::new(
                share <= HELD,
                format!("charge after the last free of {name}"),
                format!(
                    "after {} s {} of {} at the peak, {} of both before the first object: {:.1} % held (at most {:.0} %)",
                    view.plan.idle,
                    bytes(held.idle),
                    bytes(held.peak),
                    bytes(held.start),
                    share * 100.0,
                    HELD * 100.0
                ),
            ));
        }
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn the_goals_follow_the_measurements() {
        let (plan, mut results) = sample();
        let named = |results: &super::super::measure::Results, name: &str| {
            let goals = goals(View { plan: &plan, results });
            goals.into_iter().find(|goal| goal.name.starts_with(name)).unwrap_or_else(|| panic!("no {name}"))
        };
        assert!(named(&results, "total time of instances").met);
        assert!(named(&results, "charge after the last free of instances").met);
        assert!(named(&results, "system time per later cycle of cycle").met);
        let ours = &mut results.measurements[1][1];
        ours.runs.iter_mut().for_each(|run| run.phases[2].system += 1.0);
        if let Some(watched) = &mut ours.look {
            watched.samples.last_mut().unwrap().charge = Some(90 << 20);
        }
        assert!(!named(&results, "system time per later cycle of cycle").met);
        assert!(!named(&results, "charge after the last free of cycle").met);
    }

    #[test]
    fn without_a_charge_nothing_is_claimed_about_it() {
        let (plan, mut results) = sample();
        for measurement in results.measurements.iter_mut().flatten() {
            for sample in &mut measurement.look.as_mut().unwrap().samples {
                sample.charge = None;
            }
        }
        let goals = goals(View { plan: &plan, results: &results });
        assert_eq!(goals.len(), 3);
        assert!(goals.iter().all(|goal| !goal.name.starts_with("charge")));
    }
}
