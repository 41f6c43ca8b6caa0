//! The goals: what hugeheap claims, checked against what was just measured.

use crate::results::View;
use hugeheap_cli::measuring::{Goal, bytes};

/// Geometric mean of time, against mimalloc.
const GEOMETRIC_MEAN: f64 = 1.0;
/// No workload may take more than this, against the best peer.
const WORST: f64 = 1.15;
const COVERAGE: f64 = 0.95;
/// The kernel charges a cgroup in batches of 64 pages per CPU: charges that differ by less are not told apart.
const CHARGE_BATCH: u64 = 64 * 4096;

/// All goals the measured workloads and allocators can tell about.
pub(crate) fn goals(view: View<'_>) -> Vec<Goal> {
    let Some(ours) = view.ours() else { return Vec::new() };
    let mut goals = Vec::new();
    goals.extend(means(view, ours));
    goals.extend(worst(view, ours));
    goals.extend(charges(view, ours));
    goals.extend(coverage(view, ours));
    let failures: Vec<_> = view
        .entries()
        .filter(|&(place, _)| view.measurement(place, ours).failure.is_some())
        .map(|(_, entry)| entry.name())
        .collect();
    if !failures.is_empty() {
        goals.push(Goal::new(false, "every workload runs", format!("failed: {}", failures.join(", "))));
    }
    goals
}

/// One thread and several are told apart: a gain in one must not hide a loss in the other.
fn means(view: View<'_>, ours: usize) -> Vec<Goal> {
    let Some(reference) = view.reference() else { return Vec::new() };
    let name = view.plan.allocators[reference].name;
    let mut goals = Vec::new();
    for (several, threads) in [(false, "one thread"), (true, "several threads")] {
        let mean = view.geometric_mean(ours, |_| Some(reference), |entry| (entry.threads > 1) == several);
        let Some((mean, count)) = mean else { continue };
        goals.push(Goal::at_most(
            mean,
            GEOMETRIC_MEAN,
            format!("geometric mean of time, {threads}"),
            format!("{:.3} of {name}, {count} workloads (at most {GEOMETRIC_MEAN:.2})", mean.value),
        ));
    }
    goals
}

fn worst(view: View<'_>, ours: usize) -> Vec<Goal> {
    view.entries()
        .filter_map(|(place, entry)| {
            let peer = view.best_peer(place)?;
            let ratio = view.ratio(place, ours, peer)?;
            let name = view.plan.allocators[peer].name;
            Some(Goal::at_most(
                ratio,
                WORST,
                format!("time of {}", entry.name()),
                format!("{:.2} of {name}, the best peer (at most {WORST:.2})", ratio.value),
            ))
        })
        .collect()
}

fn charges(view: View<'_>, ours: usize) -> Vec<Goal> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    view.entries()
        .filter_map(|(place, entry)| {
            let charge = view.charge(place, ours)?;
            let (peer, lowest) = view.lowest_charge(place)?;
            let name = view.plan.allocators[peer].name;
            let detail = format!("{} against {} of {name}, the lowest peer", bytes(charge), bytes(lowest));
            let mut goal = Goal::new(charge <= lowest, format!("charge of idle {}", entry.name()), detail);
            goal.unsure = !goal.met && charge <= lowest + CHARGE_BATCH * cpus;
            Some(goal)
        })
        .collect()
}

fn coverage(view: View<'_>, ours: usize) -> Option<Goal> {
    let (least, name) = view
        .entries()
        .filter_map(|(place, entry)| Some((view.coverage(place, ours)?, entry.name())))
        .min_by(|left, right| left.0.total_cmp(&right.0))?;
    Some(Goal::new(
        least >= COVERAGE,
        "coverage in steady state",
        format!("at least {:.1} %, in {name} (at least {:.0} %)", least * 100.0, COVERAGE * 100.0),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample::sample;

    #[test]
    fn the_goals_follow_the_measurements() {
        let (plan, mut results) = sample();
        let find = |goals: &[Goal], name: &str| {
            let goal = goals.iter().find(|goal| goal.name == name);
            goal.map(|goal| goal.met).unwrap_or_else(|| panic!("no {name}"))
        };
        let all = goals(View { plan: &plan, results: &results });
        assert!(find(&all, "geometric mean of time, one thread"));
        assert!(!find(&all, "geometric mean of time, several threads"));
        assert!(find(&all, "time of larson") && find(&all, "time of rptest"));
        assert!(!find(&all, "time of larson ×2"));
        assert!(find(&all, "charge of idle larson") && !find(&all, "charge of idle larson ×2"));
        assert!(find(&all, "coverage in steady state"));
        assert!(all.iter().all(|goal| goal.name != "every workload runs"));

        results.measurements[2][0].failure = Some("signal: 6".to_owned());
        let all = goals(View { plan: &plan, results: &results });
        assert!(!find(&all, "every workload runs"));
        assert!(all.iter().all(|goal| goal.name != "time of rptest"));
    }

    #[test]
    fn charges_the_kernel_does_not_tell_apart_are_unsure() {
        let (plan, mut results) = sample();
        results.measurements[0][0].looks.as_mut().unwrap().idle.charge = Some((5 << 20) + 4096);
        let all = goals(View { plan: &plan, results: &results });
        let goal = all.iter().find(|goal| goal.name == "charge of idle larson").unwrap();
        assert!(!goal.met && goal.unsure);
    }

    #[test]
    fn without_hugeheap_there_are_no_goals() {
        let (mut plan, results) = sample();
        plan.allocators[0] = plan.allocators[2];
        assert!(goals(View { plan: &plan, results: &results }).is_empty());
    }
}
