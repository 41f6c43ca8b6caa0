//! `hugeheap bench alloc-rate`: how fast objects are allocated that nobody keeps.
//!
//! ```text
//!   worker (our loop)      programs/ (the same loop in other languages)
//!        └──────────┬───────────┘
//!                measure    one job: a program, a loop, a size, a nursery; a process per run
//!                   │       bench::instructions: the loop counted
//!          ┌────────┴────────┐
//!        text               mod: plan, JSON, goals
//! ```

pub(crate) mod arguments;
mod measure;
mod text;
pub(crate) mod worker;

use super::goal::Goal;
use super::instructions::{Counted, Counting};
use super::report::{self, Circumstances, conclude, ended, writable};
use super::subject::{self, Absent, Found, Subject, Workshop};
use super::trials::{self, Trial};
use super::variant::Refusal;
use crate::Context;
use crate::output::bytes;
use crate::statistics::{Estimate, half_spread, median, ratio_of_medians};
use arguments::AllocRateArguments;
use hugeheap::gc::{LEAST_NURSERY, nursery_bytes};
use hugeheap_os::Facts;
use measure::{Job, Part, RPYTHON, can, fewer, kind_name};
use serde_json::{Map, Value, json};
use worker::{Kind, SIZES, Told};

const SCHEMA: &str = "hugeheap.bench.alloc-rate/1";
const RUNS: u32 = 10;
const QUICK_RUNS: u32 = 3;
/// A fifth of a second on a fast machine: thousands of minor collections.
const VOLUME: u64 = 8 << 30;
const QUICK_VOLUME: u64 = 1 << 30;
/// Less is over before a clock can tell.
const LEAST_VOLUME: u64 = 16 << 20;
const MOST_VOLUME: u64 = 1 << 40;
const DEFAULT_SIZES: [usize; 4] = [16, 32, 64, 128];
const MOST_NURSERY: u64 = 1 << 30;
/// Objects of the two runs whose difference is counted. Their own collections are in it: a nursery of 1 MiB
/// takes 65,536 of them.
const COUNTS: [u64; 2] = [1_000_000, 3_000_000];
/// As the reference's program.
const BYTES: usize = 16;

const PEERS: [&str; 6] = ["boehm", "ocaml", "java", "pypy", "pypy-no-jit", "cpython"];

/// Of RPython's program on the same machine in the same hour.
const FASTER: f64 = 1.35;
/// Instructions per object: without, and with a write of the field.
const INSTRUCTIONS: [(Kind, f64); 2] = [(Kind::Plain, 9.0), (Kind::Field, 11.0)];
/// Seconds of a minor collection with one survivor.
const COLLECTION: f64 = 2e-6;
/// The nursery that is chosen, against the best of the sweep. Less than a tenth cannot be told from another hour.
const NURSERY: f64 = 1.10;

/// What is measured.
struct Plan {
    subjects: Vec<Subject>,
    absent: Vec<Absent>,
    jobs: Vec<Job>,
    runs: u32,
    /// The nursery that hugeheap chooses here.
    chosen: u64,
    counting: Result<Counting, String>,
}

/// What was measured, by job.
struct Results {
    trials: Vec<Trial<Told>>,
    counted: Vec<Option<Counted>>,
}

/// Runs the experiment.
pub(crate) fn alloc_rate(context: &Context, arguments: &AllocRateArguments) -> u8 {
    ended(&context.out, run(context, arguments))
}

fn run(context: &Context, arguments: &AllocRateArguments) -> Result<u8, Refusal> {
    let (out, options) = (&context.out, &arguments.report);
    let workshop = Workshop::new().map_err(Refusal::Unsupported)?;
    let plan = plan(context, arguments, &workshop)?;
    writable(options.files())?;
    let circumstances = Circumstances::without_python(context, options);
    let mut counted = vec![None; plan.jobs.len()];
    if let Ok(counting) = plan.counting {
        for (job, counted) in plan.jobs.iter().zip(&mut counted) {
            let subject = &plan.subjects[job.subject];
            if job.part != Part::Programs || !subject.native {
                continue;
            }
            out.progress(&format!("{}: instructions by {}", job.name(subject), counting.name()), false);
            match counting.count(subject, COUNTS, |count| job.words(subject, count)) {
                Ok(count) => *counted = Some(count),
                Err(why) => out.warning(&format!("{}: not counted: {why}", job.name(subject))),
            }
        }
    }
    let names: Vec<_> = plan.jobs.iter().map(|job| job.name(&plan.subjects[job.subject])).collect();
    let trials = trials::run(out, &names, plan.runs, |place| {
        let job = &plan.jobs[place];
        measure::run(job, &plan.subjects[job.subject])
    })?;
    let results = Results { trials, counted };
    let goals = goals(&plan, &results);
    let text = text::text(&plan, &results, &goals);
    let figures = text::figures(&plan, &results);
    let report = circumstances.report(SCHEMA, &[], particular(&plan, &results), &figures, &goals);
    conclude(out, options, &report, &text, None, &goals)
}

fn plan(context: &Context, arguments: &AllocRateArguments, workshop: &Workshop) -> Result<Plan, Refusal> {
    let options = &arguments.report;
    let sizes = if arguments.sizes.is_empty() { DEFAULT_SIZES.to_vec() } else { arguments.sizes.clone() };
    if let Some(size) = sizes.iter().find(|size| !SIZES.contains(size)) {
        let known: Vec<_> = SIZES.iter().map(ToString::to_string).collect();
        return Err(Refusal::Usage(format!(
            "--sizes: there is no loop for {size} bytes; the sizes are {}",
            known.join(", ")
        )));
    }
    let volume = arguments.volume.unwrap_or(if options.quick { QUICK_VOLUME } else { VOLUME });
    if !(LEAST_VOLUME..=MOST_VOLUME).contains(&volume) {
        return Err(Refusal::Usage(format!(
            "--volume {}: choose {} to {}",
            bytes(volume),
            bytes(LEAST_VOLUME),
            bytes(MOST_VOLUME)
        )));
    }
    let chosen = chosen_nursery(&context.facts);
    let mut nurseries = arguments.nurseries.clone();
    if nurseries.is_empty() {
        nurseries = (16..=26).map(|power| 1 << power).chain([chosen]).collect();
    }
    if let Some(&wrong) =
        nurseries.iter().find(|&&size| !(LEAST_NURSERY as u64..=MOST_NURSERY).contains(&size))
    {
        return Err(Refusal::Usage(format!(
            "--nurseries {}: choose {} to {}",
            bytes(wrong),
            bytes(LEAST_NURSERY as u64),
            bytes(MOST_NURSERY)
        )));
    }
    nurseries.sort_unstable();
    nurseries.dedup();
    let mut subjects = vec![Subject::own("alloc-rate").map_err(Refusal::Unsupported)?];
    if let Some(program) = &arguments.rpython {
        if !program.is_file() {
            return Err(Refusal::Usage(format!("--rpython {}: there is no such file", program.display())));
        }
        subjects.push(Subject::new(RPYTHON, "", &[program.as_os_str()], true));
    }
    let peers = subject::choose(&arguments.against, &PEERS, |name| find(name, arguments, workshop))?;
    subjects.extend(peers.subjects);

    let mut jobs = Vec::new();
    let mut add = |part, subject: usize, kind, bytes: usize, nursery, fewer: u64| {
        let count = (volume / bytes as u64 / fewer).max(1);
        jobs.push(Job { part, subject, kind, bytes, nursery, count });
    };
    for (place, subject) in subjects.iter().enumerate() {
        for kind in [Kind::Plain, Kind::Field] {
            if can(subject, kind) {
                add(Part::Programs, place, kind, BYTES, 0, fewer(subject));
            }
        }
    }
    for size in sizes {
        add(Part::Sizes, 0, Kind::Plain, size, 0, 1);
        add(Part::Sizes, 0, Kind::Field, size, 0, 1);
    }
    for &nursery in &nurseries {
        // A smaller volume would do for the small ones; the same one keeps the rows comparable.
        add(Part::Nurseries, 0, Kind::Field, BYTES, nursery, 2);
        add(Part::Nurseries, 0, Kind::Ring, BYTES, nursery, 2);
    }
    Ok(Plan {
        subjects,
        absent: peers.absent,
        jobs,
        runs: options.runs.unwrap_or(if options.quick { QUICK_RUNS } else { RUNS }),
        chosen,
        counting: match arguments.no_instructions {
            true => Err("--no-instructions".to_owned()),
            false => Counting::here(),
        },
    })
}

/// What a heap without a setting takes here.
fn chosen_nursery(facts: &impl Facts) -> u64 {
    let limits = facts.memory_limits().ok();
    let limit = limits.and_then(|limits| [limits.max, limits.high].into_iter().flatten().min());
    nursery_bytes(&facts.caches().unwrap_or_default(), limit) as u64
}

fn find(name: &'static str, arguments: &AllocRateArguments, workshop: &Workshop) -> Found {
    const PYTHON: &str = include_str!("programs/program.py");
    match name {
        "boehm" => workshop.boehm(include_str!("programs/boehm.c")),
        "ocaml" => workshop.ocaml(include_str!("programs/program.ml")),
        "java" => workshop.java(include_str!("programs/Program.java")),
        "pypy" => workshop.pypy("pypy", PYTHON, true),
        "pypy-no-jit" => workshop.pypy("pypy-no-jit", PYTHON, false),
        _ => workshop.cpython(PYTHON, arguments.python.as_deref()),
    }
}

/// GB/s of a run; the reference's are of 2^30 bytes, so these are too.
fn rate(told: &Told) -> f64 {
    (told.objects * told.bytes) as f64 / told.seconds / f64::from(1 << 30)
}

/// Nanoseconds per object.
fn each(told: &Told) -> f64 {
    told.seconds * 1e9 / told.objects as f64
}

impl Plan {
    /// Places of the jobs of a table.
    fn of(&self, part: Part) -> impl Iterator<Item = (usize, &Job)> {
        self.jobs.iter().enumerate().filter(move |(_, job)| job.part == part)
    }

    fn find(&self, part: Part, wanted: impl Fn(&Job) -> bool) -> Option<usize> {
        self.of(part).find(|(_, job)| wanted(job)).map(|(place, _)| place)
    }

    /// The job of a program in the first table.
    fn program(&self, name: &str, kind: Kind) -> Option<usize> {
        self.find(Part::Programs, |job| self.subjects[job.subject].name == name && job.kind == kind)
    }
}

impl Results {
    fn median(&self, place: usize, figure: impl Fn(&Told) -> f64) -> Option<f64> {
        median(&self.trials[place].values(figure))
    }

    /// How many times as fast one job is as another.
    fn faster(&self, one: usize, other: usize) -> Option<Estimate> {
        ratio_of_medians(&self.trials[one].values(rate), &self.trials[other].values(rate))
    }
}

fn goals(plan: &Plan, results: &Results) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (kind, limit) in INSTRUCTIONS {
        let counted = plan.program("hugeheap", kind).and_then(|place| results.counted[place]);
        if let Some(counted) = counted {
            // A collection in some ten thousand objects is not an instruction of the loop.
            let met = (counted.instructions * 10.0).round() / 10.0 <= limit;
            goals.push(Goal::new(
                met,
                format!("instructions per object of 16 bytes, {}", kind_name(kind)),
                format!("{:.2} (at most {limit})", counted.instructions),
            ));
        }
    }
    for kind in [Kind::Plain, Kind::Field] {
        let pair = plan.program("hugeheap", kind).zip(plan.program(RPYTHON, kind));
        if let Some(ratio) = pair.and_then(|(ours, theirs)| results.faster(ours, theirs)) {
            let met = ratio.value >= FASTER;
            goals.push(Goal {
                met,
                unsure: !met && ratio.high >= FASTER,
                name: format!("allocation rate against the reference's program, {}", kind_name(kind)),
                detail: format!("{:.2} times (at least {FASTER})", ratio.value),
            });
        }
    }
    let minor = |told: &Told| {
        told.heap.as_ref().map_or(0.0, |heap| heap.collecting / (heap.minor_collections as f64).max(1.0))
    };
    if let Some(time) = plan
        .program("hugeheap", Kind::Plain)
        .and_then(|place| results.median(place, minor))
        .filter(|time| *time > 0.0)
    {
        goals.push(Goal::new(
            time <= COLLECTION,
            "a minor collection with one survivor",
            format!("{:.2} µs (at most {:.0} µs)", time * 1e6, COLLECTION * 1e6),
        ));
    }
    let sweep = |kind| plan.of(Part::Nurseries).filter(move |(_, job)| job.kind == kind);
    let best = sweep(Kind::Ring)
        .filter_map(|(place, job)| Some((results.median(place, each)?, place, job.nursery)))
        .min_by(|one, other| one.0.total_cmp(&other.0));
    let ours = sweep(Kind::Ring).find(|(_, job)| job.nursery == plan.chosen);
    if let (Some((_, best, size)), Some((ours, _))) = (best, ours) {
        let times = |place: usize| results.trials[place].values(each);
        if let Some(ratio) = ratio_of_medians(&times(ours), &times(best)) {
            goals.push(Goal::at_most(
                ratio,
                NURSERY,
                format!("time with the nursery that is chosen, {}", bytes(plan.chosen)),
                format!("{:.2} of the best, {} (at most {NURSERY:.2})", ratio.value, bytes(size)),
            ));
        }
    }
    goals
}

/// What is in the report beside circumstances and goals.
fn particular(plan: &Plan, results: &Results) -> Value {
    let jobs: Vec<_> = plan
        .jobs
        .iter()
        .zip(results.trials.iter().zip(&results.counted))
        .map(|(job, (trial, counted))| {
            json!({
                "part": job.part.name(),
                "program": plan.subjects[job.subject].name,
                "loop": kind_name(job.kind),
                "bytes": job.bytes,
                "nursery": (job.nursery > 0).then_some(job.nursery),
                "nanoseconds": median(&trial.values(each)),
                "half_spread_nanoseconds": half_spread(&trial.values(each)),
                "gib_per_second": median(&trial.values(rate)),
                "per_object": counted.map(Counted::json),
                "failure": trial.failure,
                "runs": trial.runs,
            })
        })
        .collect();
    let against = |kind| {
        let pair = plan.program("hugeheap", kind).zip(plan.program(RPYTHON, kind));
        pair.and_then(|(ours, theirs)| results.faster(ours, theirs)).map(report::estimate)
    };
    json!({
        "runs_planned": plan.runs,
        "nursery_chosen": plan.chosen,
        "kept_by_ring": worker::RING,
        "counting": plan.counting.as_ref().ok().map(|counting| counting.name()),
        "counting_unavailable": plan.counting.as_ref().err(),
        "programs": plan.subjects.iter().map(Subject::json).collect::<Vec<_>>(),
        "absent": plan.absent.iter().map(Absent::json).collect::<Vec<_>>(),
        "against_reference_program": {"plain": against(Kind::Plain), "field": against(Kind::Field)},
        "jobs": jobs,
        "reference": text::PUBLISHED.iter().map(|row| (row.name.to_owned(), json!({
            "plain_gib_per_second": row.plain, "field_gib_per_second": row.field,
            "instructions": row.instructions, "cycles": row.cycles,
        }))).collect::<Map<_, _>>(),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::worker::HeapTold;
    use super::*;

    fn told(seconds: f64) -> Told {
        let heap = HeapTold {
            nursery: 1 << 20,
            minor_collections: 100,
            collecting: 1e-4,
            longest: 2e-6,
            survivors: 100,
        };
        Told { seconds, objects: 1 << 26, bytes: 16, heap: Some(heap) }
    }

    /// A plan with two programs and two nurseries, and results: the first program is twice as fast as the second.
    pub(super) fn sample() -> (Plan, Results) {
        let subjects = vec![
            Subject::new("hugeheap", "0.1.0", &["x".as_ref()], true),
            Subject::new(RPYTHON, "", &["y".as_ref()], true),
        ];
        let mut jobs = Vec::new();
        let mut trials = Vec::new();
        let mut counted = Vec::new();
        let mut add = |part, subject, kind, nursery, seconds: f64, instructions: Option<f64>| {
            jobs.push(Job { part, subject, kind, bytes: 16, nursery, count: 1 << 26 });
            trials.push(Trial { name: String::new(), runs: vec![told(seconds); 3], failure: None });
            counted.push(instructions.map(|instructions| Counted { instructions, cycles: None }));
        };
        add(Part::Programs, 0, Kind::Plain, 0, 0.02, Some(9.01));
        add(Part::Programs, 0, Kind::Field, 0, 0.03, Some(11.01));
        add(Part::Programs, 1, Kind::Plain, 0, 0.04, Some(12.0));
        add(Part::Programs, 1, Kind::Field, 0, 0.06, None);
        add(Part::Sizes, 0, Kind::Plain, 0, 0.02, None);
        add(Part::Sizes, 0, Kind::Field, 0, 0.03, None);
        for (nursery, seconds) in [(64 << 10, 0.06), (1 << 20, 0.03)] {
            add(Part::Nurseries, 0, Kind::Field, nursery, seconds / 2.0, None);
            add(Part::Nurseries, 0, Kind::Ring, nursery, seconds, None);
        }
        let absent = vec![Absent::new("ocaml", "not found: install ocaml")];
        let plan =
            Plan { subjects, absent, jobs, runs: 3, chosen: 1 << 20, counting: Ok(Counting::Callgrind) };
        (plan, Results { trials, counted })
    }

    #[test]
    fn the_goals_follow_the_measurements() {
        let (plan, mut results) = sample();
        let met = |results: &Results| goals(&plan, results).iter().map(|goal| goal.met).collect::<Vec<_>>();
        assert_eq!(met(&results), [true; 6]);
        // More instructions, a faster reference, slower collections, another nursery that is best.
        results.counted[1] = Some(Counted { instructions: 11.2, cycles: None });
        results.trials[2].runs.iter_mut().for_each(|run| run.seconds = 0.025);
        for run in &mut results.trials[0].runs {
            run.heap.as_mut().unwrap().collecting = 1e-3;
        }
        results.trials[7].runs.iter_mut().for_each(|run| run.seconds = 0.02);
        assert_eq!(met(&results), [true, false, false, true, false, false]);
    }

    #[test]
    fn a_report_has_every_job() {
        let (plan, results) = sample();
        let report = particular(&plan, &results);
        assert_eq!(report["jobs"].as_array().unwrap().len(), plan.jobs.len());
        assert_eq!(report["jobs"][0]["nanoseconds"].as_f64(), median(&[0.02e9 / f64::from(1 << 26)]));
        assert_eq!(report["against_reference_program"]["plain"]["ratio"].as_f64().map(f64::round), Some(2.0));
    }
}
