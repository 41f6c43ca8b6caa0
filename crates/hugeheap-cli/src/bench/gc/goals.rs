//! The goals: what hugeheap claims about its collector, checked against what was just measured.

use super::worker::Told;
use super::workload::Workload;
use super::{OURS, Plan, Results, TUNED, idle_gap, known, on_processor, pause};
use crate::bench::goal::Goal;
use crate::bench::trials::Trial;
use crate::output::{bytes, seconds};
use crate::statistics::ratio_of_medians;

/// Times Boehm's throughput, and OCaml's.
const BOEHM: f64 = 4.0;
const OCAML: f64 = 1.0;
/// Seconds of the longest pause with a large live set.
const PAUSE: f64 = 0.005;
/// What an evacuated old generation is charged, of what lives; its share on huge pages.
const CHARGE: f64 = 1.25;
const COVERAGE: f64 = 0.90;

/// All goals the measured workloads and programs can tell about.
pub(super) fn goals(plan: &Plan, results: &Results) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (task, row) in plan.tasks.iter().zip(&results.trials) {
        let name = task.workload.name();
        let against: &[(&str, &str, f64)] = match task.workload {
            Workload::BinaryTrees => {
                &[("hugeheap", "boehm", BOEHM), (TUNED, "boehm", BOEHM), ("hugeheap", "ocaml", OCAML)]
            }
            Workload::GcBench => &[("hugeheap", "boehm", BOEHM), (TUNED, "boehm", BOEHM)],
            _ => &[],
        };
        for &(ours, peer, times) in against {
            let find = |name: &str| row.iter().find(|trial| trial.name == name);
            let Some((ours, theirs)) = find(ours).zip(find(peer)) else { continue };
            let values = |trial: &Trial<Told>| trial.values(|told| told.seconds);
            let Some(ratio) = ratio_of_medians(&values(theirs), &values(ours)) else { continue };
            let met = ratio.value >= times;
            let tuned = if ours.name == TUNED { ", tuned" } else { "" };
            goals.push(Goal {
                met,
                unsure: !met && ratio.high >= times,
                name: format!("throughput of {name} against {peer}{tuned}"),
                detail: format!("{:.2} times (at least {times})", ratio.value),
            });
        }
        let ours = &row[OURS];
        if task.workload == Workload::Churn {
            if let Some(longest) = pause(ours, |pauses| pauses.longest) {
                let ms = |time: f64| format!("{:.2} ms", time * 1e3);
                let mut detail = format!("{} (at most {})", ms(longest), seconds(PAUSE));
                if let Some(worked) = on_processor(ours) {
                    detail += &format!("; most on a processor {}", ms(worked));
                }
                if let Some(gap) = idle_gap(ours) {
                    detail += &format!("; idle, the host took up to {}", ms(gap));
                }
                let name = format!("longest pause of {name}, {}", bytes(task.size));
                goals.push(Goal::new(longest <= PAUSE, name, detail));
            }
        }
        if task.workload == Workload::Evacuation {
            let live = known(ours, |told| Some(told.live as f64)).filter(|live| *live > 0.0);
            let charged = known(ours, |told| told.memory.charged());
            if let Some((live, charged)) = live.zip(charged) {
                goals.push(Goal::new(
                    charged / live <= CHARGE,
                    "charge after an evacuation",
                    format!(
                        "{:.2} of what lives: {} for {} (at most {CHARGE})",
                        charged / live,
                        bytes(charged as u64),
                        bytes(live as u64)
                    ),
                ));
            }
            if let Some(coverage) = known(ours, |told| Some(told.memory.coverage())) {
                goals.push(Goal::new(
                    coverage >= COVERAGE,
                    "on huge pages after an evacuation",
                    format!("{:.1} % (at least {:.0} %)", coverage * 100.0, COVERAGE * 100.0),
                ));
            }
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
        let met = |results: &Results| goals(&plan, results).iter().map(|goal| goal.met).collect::<Vec<_>>();
        assert_eq!(met(&results), [true; 8]);
        results.trials[0][1].runs.iter_mut().for_each(|told| told.seconds = 0.39);
        results.trials[0][2].runs.iter_mut().for_each(|told| told.seconds = 0.09);
        results.trials[2][0].runs.iter_mut().for_each(|told| told.pauses.as_mut().unwrap().longest = 0.006);
        for told in &mut results.trials[3][0].runs {
            told.memory.charge = Some([0, 130 << 20]);
            told.memory.huge = 50 << 20;
        }
        assert_eq!(met(&results), [false, true, false, true, true, false, false, false]);
    }

    #[test]
    fn without_a_charge_nothing_is_claimed_about_it() {
        let (plan, mut results) = sample();
        results.trials[3][0].runs.iter_mut().for_each(|told| told.memory.charge = None);
        assert!(goals(&plan, &results).iter().all(|goal| !goal.name.starts_with("charge")));
    }
}
