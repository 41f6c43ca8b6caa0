//! `hugeheap bench gc`: the garbage-collected heap at work, beside other collectors.
//!
//! ```text
//!   workload       what there is, and random numbers that all languages draw alike
//!   machine, run   our mutator and the workloads on it        programs/   the same in C (Boehm) and in OCaml
//!        ├──── worker: one workload in a process of its own ──────┘
//!      waits          what a pause was, and what the host took meanwhile
//!                 │
//!                mod: plan, runs in turn, JSON     goals     text
//! ```
//!
//! Two things have to be equal before times are compared: the check at the end of the work, and that every
//! object was allocated. The second is seen from the bytes that each collector counted.
//!
//! MMTk is not among the programs. It is a Rust library that wants a binding for each runtime (how its threads
//! stop, where its roots are, how its objects look), and what such a binding for a benchmark would measure is
//! the binding.

pub(crate) mod arguments;
mod goals;
pub(crate) mod machine;
mod run;
mod text;
mod waits;
pub(crate) mod worker;
pub(crate) mod workload;

use super::charge::Group;
use super::page_reporting::PageReporting;
use super::process;
use super::report::{self, Circumstances, conclude, ended, writable};
use super::subject::{self, Absent, Found, Subject, Workshop};
use super::trials::{self, Trial};
use super::variant::Refusal;
use super::{requirements, touch};
use crate::Context;
use crate::descriptors::told;
use crate::output::bytes;
use crate::statistics::{half_spread, median, ratio_of_medians};
use arguments::GcArguments;
use hugeheap::gc::MOST_NURSERY;
use hugeheap_os::Facts;
use serde_json::{Map, Value, json};
use std::cell::Cell;
use std::time::Duration;
use waits::{Pauses, look};
use worker::{Memory, Told};
use workload::Workload;

const SCHEMA: &str = "hugeheap.bench.gc/1";
/// Half of the usual: one run of all workloads on all programs takes two minutes.
const RUNS: u32 = 5;
const QUICK_RUNS: u32 = 3;
/// The depth of the figures others publish.
const DEPTH: u32 = 18;
const QUICK_DEPTH: u32 = 14;
/// The trees of `gcbench` are less deep by this, so that its published size, 16, goes with 18.
const LESS_DEEP: u32 = 2;
/// The cache of `lru` is this part of the others' live set: each look-up is several cache misses, and with all
/// of it a run on three programs took 106 s.
const LRU_PART: u64 = 4;
const SIZE: u64 = 1 << 30;
const QUICK_SIZE: u64 = 128 << 20;
const LEAST_SIZE: u64 = 1 << 20;
/// Memory of a program at its peak, of what lives: collectors that wait until the heap has doubled, and copies.
const PEAK: u64 = 3;
/// Most bytes of a node of a tree, in any language.
const NODE: u64 = 32;
const TUNED: &str = "hugeheap-tuned";
/// Milliseconds of a step of [`TUNED`]: its pauses may take twice that, as Boehm's of trees do.
const TUNED_STEP: &str = "5";
const PEERS: [&str; 4] = [TUNED, "boehm", "boehm-tuned", "ocaml"];
/// Milliseconds before and after a workload in which only the clock is read: what happens to an idle program
/// once a second is seen in most of five runs.
const IDLE: u32 = 1000;
const QUICK_IDLE: u32 = 50;
/// Bytes that a collector may not have counted yet: Boehm's counts a list of objects when it is used up, of
/// each size up to 4 KiB.
const UNCOUNTED: u64 = 64 << 10;
const BOEHM: &str = include_str!("programs/boehm.c");
const OCAML: &str = include_str!("programs/program.ml");
/// Place of hugeheap among the programs.
const OURS: usize = 0;

/// A workload and its size.
#[derive(Clone, Copy, Debug)]
struct Task {
    workload: Workload,
    size: u64,
}

/// What is measured.
struct Plan {
    tasks: Vec<Task>,
    subjects: Vec<Subject>,
    absent: Vec<Absent>,
    runs: u32,
    /// Milliseconds in which only the clock is read.
    idle: u32,
    /// Where the host takes back what is freed, and there is time to wait for that.
    reporting: Option<PageReporting>,
}

/// What was measured.
struct Results {
    /// By task and program.
    trials: Vec<Vec<Trial<Told>>>,
    no_charge: Option<String>,
    /// How long the host was waited for, in all.
    waited: Duration,
}

/// Runs the experiment.
pub(crate) fn gc(context: &Context, arguments: &GcArguments) -> u8 {
    ended(&context.out, measured(context, arguments))
}

fn measured(context: &Context, arguments: &GcArguments) -> Result<u8, Refusal> {
    let (out, options) = (&context.out, &arguments.report);
    let workshop = Workshop::new().map_err(Refusal::Unsupported)?;
    let mut plan = plan(context, arguments, &workshop)?;
    writable(options.files())?;
    let circumstances = Circumstances::without_python(context, options);
    let no_charge = Group::create().err();
    let mut results = Results { trials: Vec::new(), no_charge, waited: Duration::ZERO };
    let waited = Cell::new(Duration::ZERO);
    // Bytes that were freed last, by the first touch or by the run before.
    let freed = Cell::new(circumstances.touched);
    for task in &plan.tasks {
        let able = |subject: &Subject| task.workload != Workload::Pinned || subject.name != "ocaml";
        let places: Vec<_> = (0..plan.subjects.len()).filter(|&place| able(&plan.subjects[place])).collect();
        let name = |place: &usize| format!("{} on {}", task.workload.name(), plan.subjects[*place].name);
        let names: Vec<_> = places.iter().map(name).collect();
        let check = Cell::new(None);
        let trials = trials::run(out, &names, plan.runs, |place| {
            let place = places[place];
            let idle = (place == OURS).then_some(plan.idle);
            // Before memory is touched, so that the workload begins right afterwards.
            let before = idle.map(|idle| look(Duration::from_millis(idle.into())));
            let reporting = plan.reporting.filter(|_| task.workload.is_about_pauses());
            // What lives it has within two seconds, or it has ended by then.
            let touched = if reporting.is_some() { task.size } else { touch::need(task.peak()) };
            // Refused when memory is short: the run shows it then.
            let _ = match reporting {
                Some(reporting) => {
                    waited.set(waited.get() + reporting.settle(freed.take(), out));
                    reporting.have_at_hand(touched)
                }
                None => touch::touch_and_free(touched),
            };
            let mut told = run_once(&plan.subjects[place], *task, idle)?;
            freed.set(told.memory.peak_rss.max(touched));
            if let (Some(before), Some(host)) = (before, &mut told.host) {
                host.idle = before.and(&host.idle);
            }
            allocated_all(*task, &told)?;
            match check.replace(Some(told.check)) {
                Some(other) if other != told.check => {
                    check.set(Some(other));
                    Err(format!("its work had the check {} and not {other}", told.check))
                }
                _ => Ok(told),
            }
        });
        let Some(trials) = trials::part(trials, results.trials.is_empty())? else { break };
        let mut row: Vec<_> = plan.subjects.iter().map(|subject| none(subject.name)).collect();
        for (place, trial) in places.into_iter().zip(trials) {
            row[place] = Trial { name: plan.subjects[place].name.to_owned(), ..trial };
        }
        results.trials.push(row);
    }
    plan.tasks.truncate(results.trials.len());
    results.waited = waited.get();
    let goals = goals::goals(&plan, &results);
    let text = text::text(&plan, &results, &goals);
    let figures = text::figures(&plan, &results);
    let report = circumstances.report(SCHEMA, &[], particular(&plan, &results), &figures, &goals);
    conclude(out, options, &report, &text, None, &goals)
}

/// A program that cannot do a task.
fn none(name: &str) -> Trial<Told> {
    Trial { name: name.to_owned(), runs: Vec::new(), failure: None }
}

/// Refuses a program that allocated less than it says.
fn allocated_all(task: Task, told: &Told) -> Result<(), String> {
    let least = told.objects * task.workload.least_bytes();
    if told.allocated + UNCOUNTED >= least {
        return Ok(());
    }
    Err(format!(
        "it did not allocate all of its objects: {:.1} bytes each, and an object has at least {}; its compiler made constants of some",
        told.bytes_per_object(),
        task.workload.least_bytes()
    ))
}

/// Runs a program once, in a cgroup of its own where one can be made. `idle`: for hugeheap's own, milliseconds
/// in which it only reads the clock afterwards.
fn run_once(subject: &Subject, task: Task, idle: Option<u32>) -> Result<Told, String> {
    let group = Group::create().ok();
    let charge = group.as_ref().map_or_else(|| "-".into(), Group::usage_file);
    let mut words =
        vec![task.workload.name().into(), task.size.to_string().into(), charge.clone().into_os_string()];
    if let Some(idle) = idle {
        words.extend(["--idle".into(), idle.to_string().into()]);
    }
    let mut command = subject.command(words);
    if let Some(group) = &group {
        group
            .adopt(&mut command)
            .map_err(|error| format!("could not enter its cgroup: {error}", error = told(&error)))?;
    }
    let mut told: Told = process::measure(&mut command, None)?.told()?;
    told.peak_charge = group.as_ref().and_then(Group::peak);
    Ok(told)
}

fn plan(context: &Context, arguments: &GcArguments, workshop: &Workshop) -> Result<Plan, Refusal> {
    let options = &arguments.report;
    let mut workloads = Vec::new();
    for name in &arguments.workloads {
        match (name.as_str(), Workload::parse(name)) {
            ("all", _) => workloads.extend(Workload::ALL),
            (_, Some(workload)) => workloads.push(workload),
            (_, None) => {
                let known: Vec<_> = Workload::ALL.iter().map(|workload| workload.name()).collect();
                return Err(Refusal::Usage(format!(
                    "--workloads: there is no workload '{name}'; the workloads are {}",
                    known.join(", ")
                )));
            }
        }
    }
    let depth = u64::from(arguments.depth.unwrap_or(if options.quick { QUICK_DEPTH } else { DEPTH }));
    let size = arguments.size.unwrap_or(if options.quick { QUICK_SIZE } else { SIZE });
    if size < LEAST_SIZE {
        return Err(Refusal::Usage(format!(
            "--size {}: less than {} cannot be told from the program itself",
            bytes(size),
            bytes(LEAST_SIZE)
        )));
    }
    let mut tasks = Vec::new();
    for workload in Workload::ALL {
        if !workloads.is_empty() && !workloads.contains(&workload) {
            continue;
        }
        let size = match workload {
            Workload::BinaryTrees => depth,
            Workload::GcBench => depth - u64::from(LESS_DEEP),
            Workload::Lru => size / LRU_PART,
            _ => size,
        };
        let task = Task { workload, size };
        let setting = if workload.is_trees() { "--depth" } else { "--size" };
        let available = context.facts.available_memory().ok();
        requirements::memory(available, workload.name(), task.peak(), setting)?;
        tasks.push(task);
    }
    let mut subjects = vec![Subject::own("gc").map_err(Refusal::Unsupported)?];
    let peers = subject::choose(&arguments.against, &PEERS, |name| match name {
        TUNED => tuned(),
        "boehm" => workshop.boehm(BOEHM),
        "boehm-tuned" => workshop.boehm_with("boehm-tuned", BOEHM, &["-DTUNED"]),
        _ => workshop.ocaml(OCAML),
    })?;
    subjects.extend(peers.subjects);
    let runs = options.runs.unwrap_or(if options.quick { QUICK_RUNS } else { RUNS });
    let idle = if options.quick { QUICK_IDLE } else { IDLE };
    let reporting = PageReporting::of(&context.facts).filter(|_| !options.quick);
    Ok(Plan { tasks, subjects, absent: peers.absent, runs, idle, reporting })
}

/// Our collector with longer steps.
fn tuned() -> Found {
    let own = Subject::own("gc").map_err(|why| Absent::new(TUNED, why))?;
    let mut command = own.command;
    command.extend(["--step".into(), TUNED_STEP.into()]);
    Ok(Subject { name: TUNED, command, ..own })
}

impl Task {
    /// Bytes of memory at the peak.
    fn peak(&self) -> u64 {
        if self.workload.is_trees() {
            // As many nodes as the largest tree has, or the one that stays and another. Beside such small heaps
            // the nursery counts.
            (NODE << (self.size + 2)) * PEAK + MOST_NURSERY as u64
        } else {
            self.size.saturating_mul(PEAK)
        }
    }

    /// `churn, 1.0 GiB` or `gcbench, depth 16`.
    fn title(&self) -> String {
        let size = if self.workload.is_trees() { format!("depth {}", self.size) } else { bytes(self.size) };
        format!("{}, {size}: {}", self.workload.name(), self.workload.description())
    }
}

impl Memory {
    /// Share of the anonymous memory on huge pages.
    fn coverage(self) -> f64 {
        if self.anonymous == 0 { 0.0 } else { self.huge as f64 / self.anonymous as f64 }
    }

    /// What the workload added to the charge, in the end.
    fn charged(self) -> Option<f64> {
        self.charge.map(|[start, end]| end.saturating_sub(start) as f64)
    }
}

/// The median of a figure that some runs may lack.
fn known(trial: &Trial<Told>, figure: impl Fn(&Told) -> Option<f64>) -> Option<f64> {
    median(&trial.runs.iter().filter_map(figure).collect::<Vec<_>>())
}

/// The median of a figure of the pauses; `None` where nobody waited, or nobody tells.
fn pause(trial: &Trial<Told>, figure: impl Fn(&Pauses) -> f64) -> Option<f64> {
    known(trial, |told| told.pauses.as_ref().filter(|pauses| pauses.count > 0).map(&figure))
}

/// Most seconds that a processor worked for a pause.
fn on_processor(trial: &Trial<Told>) -> Option<f64> {
    let waited = |told: &&Told| told.pauses.as_ref().is_some_and(|pauses| pauses.count > 0);
    known(trial, |told| Some(told).filter(waited)?.waits.as_ref().map(|waits| waits.on_processor.longest))
}

/// The longest gap between two looks at the clock of a program that did nothing else.
fn idle_gap(trial: &Trial<Told>) -> Option<f64> {
    known(trial, |told| told.host.as_ref().map(|host| host.idle.longest))
}

fn particular(plan: &Plan, results: &Results) -> Value {
    let program = |row: &[Trial<Told>], trial: &Trial<Told>| {
        let seconds = trial.values(|told| told.seconds);
        let time = ratio_of_medians(&seconds, &row[OURS].values(|told| told.seconds));
        json!({
            "failure": trial.failure,
            "median_seconds": median(&seconds),
            "half_spread_seconds": half_spread(&seconds),
            "time_of_hugeheap": time.map(report::estimate),
            "pause_median_seconds": pause(trial, |pauses| pauses.quantile(0.5)),
            "pause_99_seconds": pause(trial, |pauses| pauses.quantile(0.99)),
            "pause_longest_seconds": pause(trial, |pauses| pauses.longest),
            "pause_most_on_processor_seconds": on_processor(trial),
            "host_longest_gap_seconds": idle_gap(trial),
            "host_stolen_seconds": known(trial, |told| told.host.as_ref()?.stolen),
            "bytes_per_object": known(trial, |told| Some(told.bytes_per_object())),
            "coverage": known(trial, |told| Some(told.memory.coverage())),
            "runs": trial.runs,
        })
    };
    let workloads = plan.tasks.iter().zip(&results.trials).map(|(task, row)| {
        json!({
            "name": task.workload.name(),
            "description": task.workload.description(),
            "size": task.size,
            "least_bytes_per_object": task.workload.least_bytes(),
            "programs": row.iter().map(|trial| (trial.name.clone(), program(row, trial))).collect::<Map<_, _>>(),
        })
    });
    json!({
        "runs_planned": plan.runs,
        "charge_unavailable": results.no_charge,
        "waited_for_host_seconds": results.waited.as_secs_f64(),
        "programs": plan.subjects.iter().map(Subject::json).collect::<Vec<_>>(),
        "absent": plan.absent.iter().map(Absent::json).collect::<Vec<_>>(),
        "workloads": workloads.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use waits::{Host, Waits};

    /// Two workloads of trees, the churn and the evacuation, on four programs: hugeheap is five times as fast
    /// as the peers.
    pub(super) fn sample() -> (Plan, Results) {
        let mut histogram = vec![0; 36];
        histogram[18] = 100;
        let pauses = Pauses { count: 100, total: 0.03, longest: 0.002, histogram };
        let told = |seconds: f64| Told {
            seconds,
            objects: 1_000_000,
            allocated: 32_000_000,
            check: 5,
            live: 100 << 20,
            pauses: Some(pauses.clone()),
            waits: Some(Waits {
                on_processor: Pauses { longest: 0.0015, ..pauses.clone() },
                longest: Vec::new(),
            }),
            host: Some(Host { idle: Pauses { longest: 0.0007, ..pauses.clone() }, stolen: Some(0.25) }),
            memory: Memory {
                peak_rss: 200 << 20,
                anonymous: 100 << 20,
                huge: 95 << 20,
                charge: Some([1 << 20, 121 << 20]),
            },
            peak_charge: Some(210 << 20),
        };
        let subject = |name| Subject::new(name, "1.0", &["x".as_ref()], true);
        let tasks = [Workload::BinaryTrees, Workload::GcBench, Workload::Churn, Workload::Evacuation];
        let trial = |name: &str, seconds| Trial {
            name: name.to_owned(),
            runs: vec![told(seconds); 3],
            failure: None,
        };
        let row =
            || vec![trial("hugeheap", 0.1), trial("boehm", 0.5), trial("ocaml", 0.5), trial(TUNED, 0.08)];
        let plan = Plan {
            tasks: tasks.map(|workload| Task { workload, size: 18 }).to_vec(),
            subjects: vec![subject("hugeheap"), subject("boehm"), subject("ocaml"), subject(TUNED)],
            absent: Vec::new(),
            runs: 3,
            idle: 1000,
            reporting: None,
        };
        let trials = tasks.iter().map(|_| row()).collect();
        (plan, Results { trials, no_charge: None, waited: Duration::ZERO })
    }

    #[test]
    fn a_report_has_every_workload_and_program() {
        let (plan, results) = sample();
        let report = particular(&plan, &results);
        assert_eq!(report["workloads"].as_array().unwrap().len(), 4);
        let boehm = &report["workloads"][0]["programs"]["boehm"];
        assert!((boehm["time_of_hugeheap"]["ratio"].as_f64().unwrap() - 5.0).abs() < 1e-9);
        assert_eq!(boehm["coverage"].as_f64(), Some(0.95));
        assert_eq!(boehm["bytes_per_object"].as_f64(), Some(32.0));
        assert_eq!(boehm["pause_most_on_processor_seconds"].as_f64(), Some(0.0015));
        assert_eq!(boehm["host_longest_gap_seconds"].as_f64(), Some(0.0007));
        assert_eq!(boehm["runs"].as_array().unwrap().len(), 3);
    }
    #[test]
    fn fewer_bytes_than_objects_need_are_refused() {
        let (plan, results) = sample();
        let task = plan.tasks[0];
        let mut told = results.trials[0][0].runs[0].clone();
        let least = told.objects * task.workload.least_bytes();
        told.allocated = least - UNCOUNTED;
        assert_eq!(allocated_all(task, &told), Ok(()));
        told.allocated -= 1;
        assert!(allocated_all(task, &told).unwrap_err().contains("did not allocate all"));
    }

    /// Builds a program of OCaml and says whether its objects are believed.
    fn believed(source: &str, workload: Workload) -> Option<Result<(), String>> {
        let workshop = Workshop::new().unwrap();
        let subject = workshop.ocaml(source).map_err(|absent| eprintln!("ocaml {}", absent.why)).ok()?;
        let task = Task { workload, size: 8 };
        Some(allocated_all(task, &run_once(&subject, task, None).unwrap()))
    }

    #[test]
    fn a_compiler_that_makes_constants_of_objects_is_found_out() {
        let constant = OCAML.replace("Node (Sys.opaque_identity Empty, Empty)", "Node (Empty, Empty)");
        assert_ne!(constant, OCAML, "the program says it in other words");
        let Some(result) = believed(&constant, Workload::BinaryTrees) else { return };
        let why = result.unwrap_err();
        assert!(why.contains("did not allocate all") && why.contains("at least 16"), "{why}");
        assert_eq!(believed(OCAML, Workload::BinaryTrees), Some(Ok(())));
    }
}
