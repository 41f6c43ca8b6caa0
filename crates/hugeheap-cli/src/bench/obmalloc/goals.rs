//! The goals: what hugeheap claims, checked against what was just measured.
//!
//! They are about hugeheap's first policy of the list, at the highest level measured. At level `objects` they
//! are narrower, and the same policy at level `arenas` is the second measure.

use super::results::{STOCK, View, faults, time};
use super::workload::STARTUP;
use crate::bench::goal::Goal;
use crate::bench::variant::{self, Kind};
use crate::output::{bytes, change, percent, seconds};
use hugeheap::telemetry::Level;

/// Geometric mean of the seven, against stock.
const fn geometric_mean(level: Level) -> f64 {
    match level {
        Level::Arenas => 0.60,
        Level::Objects | Level::Malloc => 0.57,
    }
}

/// Workloads without memory growth must not suffer more than this: pymalloc still does their work at level `arenas`,
/// and a hook on the way to it may cost something; at level `objects` it is hugeheap's own path.
const fn unchanged(level: Level) -> f64 {
    match level {
        Level::Arenas => 0.03,
        Level::Objects | Level::Malloc => 0.0,
    }
}

/// No workload may lose more than this at level `objects` against level `arenas`.
const BESIDE: f64 = 1.03;
const COVERAGE: f64 = 0.95;
const PEAK_RSS: f64 = 1.05;
const STARTUP_SECONDS: f64 = 0.002;
const STARTUP_BYTES: f64 = 3.0 * 1024.0 * 1024.0;

/// All goals the measured workloads and variants can tell about.
pub(crate) fn goals(view: View<'_>) -> Vec<Goal> {
    let mut goals = Vec::new();
    let Some(ours) = view.headline() else { return goals };
    let level = view.plan.variants[ours].setting.map_or(Level::Arenas, |(_, level)| level);
    for (place, workload) in view.workloads() {
        let Some(ratio) = view.ratio(place, ours, time(workload)) else { continue };
        let name = workload.name;
        if let Some(published) = workload.time {
            goals.push(Goal::at_most(
                ratio,
                1.0 + published,
                format!("time of {name}"),
                format!("{} (reference {})", change(ratio.value), percent(published)),
            ));
        } else if name == STARTUP {
            goals.extend(startup(view, place, ours));
        } else {
            goals.push(Goal::at_most(
                ratio,
                1.0 + unchanged(level),
                format!("time of {name}"),
                format!("{} (at most {})", change(ratio.value), percent(unchanged(level))),
            ));
        }
    }
    if let Some((mean, count)) = view.geometric_mean(ours, STOCK).filter(|&(_, count)| count == 7) {
        goals.push(Goal::at_most(
            mean,
            geometric_mean(level),
            format!("geometric mean of the {count}"),
            format!("{:.3} of stock (at most {:.2})", mean.value, geometric_mean(level)),
        ));
    }
    if let Some(arenas) = variant::beside(&view.plan.variants, ours, Level::Arenas) {
        goals.extend(beside(view, ours, arenas));
    }
    goals.extend(pages(view, ours));
    for peer in view.variants(Kind::Peer) {
        goals.extend(against(view, ours, peer));
    }
    goals
}

/// Level `objects` against level `arenas`.
fn beside(view: View<'_>, ours: usize, arenas: usize) -> Vec<Goal> {
    let mut goals = Vec::new();
    if let Some((mean, count)) = view.geometric_mean(ours, arenas).filter(|&(_, count)| count == 7) {
        goals.push(Goal::at_most(
            mean,
            1.0,
            format!("geometric mean of the {count} beside level arenas"),
            format!("{:.3} of it (at most 1.00)", mean.value),
        ));
    }
    let worst = view
        .workloads()
        .filter_map(|(place, workload)| {
            Some((view.ratio_to(place, ours, arenas, time(workload))?, workload.name))
        })
        .max_by(|left, right| left.0.value.total_cmp(&right.0.value));
    if let Some((ratio, name)) = worst {
        goals.push(Goal::at_most(
            ratio,
            BESIDE,
            "no workload slower than at level arenas",
            format!("at most {:.3} of it, in {name} (at most {BESIDE:.2})", ratio.value),
        ));
    }
    goals
}

fn startup(view: View<'_>, place: usize, ours: usize) -> Option<Goal> {
    let difference = |figure: fn(&super::measure::Run) -> f64| {
        Some(view.median(place, ours, figure)? - view.median(place, STOCK, figure)?)
    };
    let (time, memory) = (difference(|run| run.wall)?, difference(|run| run.peak_rss as f64)?);
    let signed =
        |value: f64, text: String| if value < 0.0 { format!("−{text}") } else { format!("+{text}") };
    Some(Goal::new(
        time <= STARTUP_SECONDS && memory <= STARTUP_BYTES,
        "start-up",
        format!(
            "{} and {} (at most +2 ms and +3 MiB)",
            signed(time, seconds(time.abs())),
            signed(memory, bytes(memory.abs() as u64)),
        ),
    ))
}

/// Faults, coverage, peak.
fn pages(view: View<'_>, ours: usize) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (place, workload) in view.workloads() {
        let (Some(published), Some(ratio)) = (workload.faults, view.ratio(place, ours, faults)) else {
            continue;
        };
        goals.push(Goal::at_most(
            ratio,
            1.0 + published,
            format!("faults of {}", workload.name),
            format!("{} (reference {})", change(ratio.value), percent(published)),
        ));
    }
    // Only where the heap grows: a heap of one arena says nothing about huge pages.
    let growing = || view.workloads().filter(|(_, workload)| workload.time.is_some());
    let least = growing()
        .filter_map(|(place, workload)| Some((view.coverage(place, ours)?, workload.name)))
        .min_by(|left, right| left.0.total_cmp(&right.0));
    if let Some((coverage, name)) = least {
        goals.push(Goal::new(
            coverage >= COVERAGE,
            "coverage of the arenas",
            format!("at least {:.1} %, in {name} (at least 95 %)", coverage * 100.0),
        ));
    }
    let most = growing()
        .filter_map(|(place, workload)| {
            Some((view.peak_resident(place, ours)? / view.peak_resident(place, STOCK)?, workload.name))
        })
        .max_by(|left, right| left.0.total_cmp(&right.0));
    if let Some((ratio, name)) = most {
        goals.push(Goal::new(
            ratio <= PEAK_RSS,
            "peak RSS",
            format!("at most {ratio:.3} of stock, in {name} (at most {PEAK_RSS:.2})"),
        ));
    }
    goals
}

/// Faster than a peer, and less memory held after the objects are freed.
fn against(view: View<'_>, ours: usize, peer: usize) -> Vec<Goal> {
    let name = &view.plan.variants[peer].name;
    let mut goals = Vec::new();
    if let Some((mean, _)) = view.geometric_mean(ours, peer) {
        goals.push(Goal::at_most(
            mean,
            1.0,
            format!("faster than {name}"),
            format!("{:.3} of its time in the geometric mean", mean.value),
        ));
    }
    let held: Vec<_> = view
        .workloads()
        .filter(|(_, workload)| workload.name != STARTUP)
        .filter_map(|(place, _)| Some((view.held(place, ours)?, view.held(place, peer)?)))
        .collect();
    if held.is_empty() {
        return goals;
    }
    let (ours_rss, peer_rss) = held.iter().fold((0, 0), |sum, (ours, peer)| (sum.0 + ours.0, sum.1 + peer.0));
    goals.push(Goal::new(
        ours_rss < peer_rss,
        format!("less RSS after freeing than {name}"),
        format!("{} against {}, all workloads added up", bytes(ours_rss), bytes(peer_rss)),
    ));
    let charges: Option<Vec<_>> = held.iter().map(|(ours, peer)| Some((ours.1?, peer.1?))).collect();
    if let Some(charges) = charges {
        let (ours, peer) = charges.iter().fold((0, 0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        goals.push(Goal::new(
            ours < peer,
            format!("less charge after freeing than {name}"),
            format!("{} against {}, all workloads added up", bytes(ours), bytes(peer)),
        ));
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::obmalloc::tests::sample;

    #[test]
    fn the_goals_follow_the_measurements() {
        let (plan, results) = sample();
        let goals = goals(View { plan: &plan, results: &results });
        let named =
            |name: &str| goals.iter().find(|goal| goal.name == name).unwrap_or_else(|| panic!("no {name}"));
        assert!(named("time of list_of_tuples").met);
        assert!(named("faults of list_of_tuples").met);
        assert!(!named("time of dict_churn").met);
        assert!(named("coverage of the arenas").met);
        assert!(named("faster than mimalloc").met);
        assert!(named("less RSS after freeing than mimalloc").met);
        assert!(named("less charge after freeing than mimalloc").met);
        assert!(goals.iter().all(|goal| !goal.name.starts_with("geometric")), "only of all seven");
    }

    #[test]
    fn level_objects_is_measured_by_level_arenas() {
        let (mut plan, mut results) = sample();
        let mut objects = plan.variants[1].clone();
        objects.setting = Some((hugeheap::arena::Policy::Auto, Level::Objects));
        plan.variants.insert(2, objects);
        for row in &mut results.measurements {
            let mut measured = row[1].clone();
            measured.runs.iter_mut().for_each(|run| run.seconds *= 1.02);
            row.insert(2, measured);
        }
        let goals = goals(View { plan: &plan, results: &results });
        let goal = goals.iter().find(|goal| goal.name == "no workload slower than at level arenas").unwrap();
        assert!(goal.met && goal.detail.contains("1.020"), "{}", goal.detail);
        let churn = goals.iter().find(|goal| goal.name == "time of dict_churn").unwrap();
        assert!(churn.detail.contains("at most ±0.0 %"), "{}", churn.detail);
    }
}
