//! What can be typed, and the plan that follows from it.

use crate::allocators::{ALLOCATORS, Allocator, OURS};
use crate::measure::{Entry, Plan};
use clap::Parser;
use hugeheap_cli::measuring::Output;
use std::path::{Path, PathBuf};
use workloads::catalogue::{self, WORKLOADS, Workload};

const RUNS: u32 = 10;
const QUICK_RUNS: u32 = 3;
/// Enough for the largest workload.
const QUICK_TOUCH: u64 = 2 << 30;
/// More threads than this are a slip of the finger.
const MOST_THREADS: usize = 1024;

/// Allocators side by side: time, memory, huge-page coverage, latency.
///
/// The same workloads on hugeheap and on its peers, each in processes of its own, in turn, so that a disturbance meets
/// all of them. The programs are those of this workspace, in the directory of this one.
#[derive(Debug, Parser)]
#[command(
    name = "peers",
    version,
    after_help = "\
Examples:
  peers
  peers --quick --workloads larson,rptest --against mimalloc,jemalloc
  peers --threads 1,2,4 --runs 20 --json result.json
  peers --set larson.blocks=20000 --workloads larson"
)]
pub(crate) struct Arguments {
    /// Workloads to run. Default: all (--list shows them).
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) workloads: Vec<String>,
    /// Peers to measure beside hugeheap: mimalloc, jemalloc, snmalloc, tcmalloc, rpmalloc, system, all or none.
    /// Default: all that are built.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) against: Vec<String>,
    /// Numbers of threads. Workloads that have one thread only run once.
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "1,2")]
    pub(crate) threads: Vec<usize>,
    /// Timed runs of each workload on each allocator. Default: 10, with --quick 3.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) runs: Option<u32>,
    /// A first look: fewer runs, less memory touched beforehand. Not for conclusions.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Seconds without work before the charge is read.
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = wait)]
    pub(crate) idle: f64,
    /// The workloads' random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Another value for a workload's parameter (--list shows them).
    #[arg(long = "set", value_name = "WORKLOAD.PARAMETER=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Before measuring, run each workload once with every byte of its memory checked.
    #[arg(long)]
    pub(crate) verify: bool,
    /// How much free memory to touch once before measuring: MiB, all, or none.
    #[arg(long, value_name = "MIB", value_parser = Touch::parse)]
    pub(crate) touch: Option<Touch>,
    /// A process that takes longer than this is ended, and counts as failed.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) limit: u32,
    /// Where the workloads' programs are. Default: beside this one.
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) programs: Option<PathBuf>,
    /// Write all runs, host facts and results as JSON to FILE; without FILE, to standard output instead of the tables.
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub(crate) json: Option<Option<PathBuf>>,
    /// Write the tables to FILE too.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Exit with status 1 when a goal in the list at the end is missed.
    #[arg(long)]
    pub(crate) check: bool,
    /// Show the workloads with their parameters, and the allocators.
    #[arg(long)]
    pub(crate) list: bool,
    /// No progress and no warnings.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// No colour.
    #[arg(long)]
    pub(crate) no_color: bool,
}

/// Why nothing is measured.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Usage(String),
    Unsupported(String),
}

/// How much memory to touch before measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    All,
    Bytes(u64),
}

impl Touch {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "none" => Ok(Self::Bytes(0)),
            _ => match text.parse::<u32>() {
                Ok(count) => Ok(Self::Bytes(u64::from(count) << 20)),
                Err(_) => Err("not a number of MiB, all or none".to_owned()),
            },
        }
    }
}

/// Not none: what is held after it would be told of a moment that nobody looked at.
fn wait(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.1..=3600.0).contains(&value) => Ok(value),
        _ => Err("not a number of seconds between 0.1 and 3600, such as 3".to_owned()),
    }
}

impl Arguments {
    /// What is to be measured.
    pub(crate) fn plan(&self, out: &Output) -> Result<Plan, Refusal> {
        let entries = self.entries()?;
        let directory = match &self.programs {
            Some(directory) => directory.clone(),
            None => own_directory().map_err(|error| {
                Refusal::Unsupported(format!("this program cannot be found: {error}; use --programs"))
            })?,
        };
        let allocators = self.allocators(&directory, out)?;
        let programs = allocators.iter().map(|allocator| allocator.program(&directory)).collect();
        Ok(Plan {
            entries,
            allocators,
            programs,
            runs: self.runs.unwrap_or(if self.quick { QUICK_RUNS } else { RUNS }),
            idle: self.idle,
            seed: self.seed,
            verify: self.verify,
            limit: self.limit,
        })
    }

    /// How much of the memory that may be touched is.
    pub(crate) fn touched(&self, touchable: u64) -> u64 {
        match self.touch {
            Some(Touch::Bytes(len)) => len.min(touchable),
            Some(Touch::All) => touchable,
            None if self.quick => QUICK_TOUCH.min(touchable),
            None => touchable,
        }
    }

    /// Each workload with each number of threads that fits.
    fn entries(&self) -> Result<Vec<Entry>, Refusal> {
        for &threads in &self.threads {
            if !(1..=MOST_THREADS).contains(&threads) {
                return Err(Refusal::Usage(format!(
                    "--threads: {threads} is not a number from 1 to {MOST_THREADS}"
                )));
            }
        }
        let chosen = chosen(&self.workloads)?;
        let settings = settings(&self.settings, &chosen)?;
        let mut entries: Vec<Entry> = Vec::new();
        for workload in chosen {
            let threads = if workload.threaded { &self.threads[..] } else { &[1] };
            let settings: Vec<String> = settings
                .iter()
                .filter(|(name, _)| *name == workload.name)
                .map(|(_, setting)| setting.clone())
                .collect();
            for &threads in threads {
                if !entries.iter().any(|entry| entry.is(workload.name, threads)) {
                    entries.push(Entry { workload, threads, settings: settings.clone() });
                }
            }
        }
        Ok(entries)
    }

    fn allocators(&self, directory: &Path, out: &Output) -> Result<Vec<&'static Allocator>, Refusal> {
        let by_name = |name: &String| {
            Allocator::find(name).ok_or_else(|| {
                let names: Vec<_> = ALLOCATORS[1..].iter().map(|allocator| allocator.name).collect();
                Refusal::Usage(format!(
                    "--against: there is no peer '{name}'; the peers are {}, all and none",
                    names.join(", ")
                ))
            })
        };
        let named = match self.against.as_slice() {
            [none] if none == "none" => Some(Vec::new()),
            [] => None,
            list if list.iter().any(|name| name == "all") => Some(ALLOCATORS[1..].iter().collect()),
            list => Some(list.iter().map(by_name).collect::<Result<Vec<_>, _>>()?),
        };
        let mut allocators = Vec::new();
        for allocator in &ALLOCATORS {
            let asked = named.as_ref().is_some_and(|named| named.contains(&allocator));
            if named.is_some() && !asked && allocator.name != OURS {
                continue;
            }
            if allocator.program(directory).is_file() {
                allocators.push(allocator);
                continue;
            }
            let how = format!(
                "there is no {}: build it with `cargo build --release -p workloads-{}`",
                allocator.program(directory).display(),
                allocator.name
            );
            if asked {
                return Err(Refusal::Unsupported(how));
            }
            out.warning(&format!("measured without {}: {how}", allocator.name));
        }
        if allocators.is_empty() {
            return Err(Refusal::Unsupported(
                "there is nothing to measure: no allocator's program is built".to_owned(),
            ));
        }
        Ok(allocators)
    }
}

fn own_directory() -> std::io::Result<PathBuf> {
    Ok(std::env::current_exe()?.parent().map(Path::to_path_buf).unwrap_or_default())
}

fn chosen(names: &[String]) -> Result<Vec<&'static Workload>, Refusal> {
    if names.is_empty() || names.iter().any(|name| name == "all") {
        return Ok(WORKLOADS.iter().collect());
    }
    names
        .iter()
        .map(|name| {
            catalogue::find(name).ok_or_else(|| {
                let all: Vec<_> = WORKLOADS.iter().map(|workload| workload.name).collect();
                Refusal::Usage(format!(
                    "--workloads: there is no workload '{name}'; the workloads are {}",
                    all.join(", ")
                ))
            })
        })
        .collect()
}

/// Each setting with its workload, understood by it.
fn settings(texts: &[String], chosen: &[&'static Workload]) -> Result<Vec<(&'static str, String)>, Refusal> {
    let understood = |text: &String| {
        let (name, setting) = text.split_once('.').ok_or("not of the form WORKLOAD.PARAMETER=VALUE")?;
        let workload = chosen
            .iter()
            .find(|workload| workload.name == name)
            .ok_or_else(|| format!("'{name}' is none of the workloads to run"))?;
        workload.values().set(setting)?;
        Ok((workload.name, setting.to_owned()))
    };
    texts
        .iter()
        .map(|text| understood(text).map_err(|why: String| Refusal::Usage(format!("--set {text}: {why}"))))
        .collect()
}

/// Fails before minutes are spent on a report that cannot be written.
pub(crate) fn writable(file: &Path) -> Result<(), Refusal> {
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .map(drop)
        .map_err(|error| Refusal::Usage(format!("{} cannot be written: {error}", file.display())))
}

pub(crate) fn write(file: &Path, text: &str) -> Result<(), Refusal> {
    std::fs::write(file, text)
        .map_err(|error| Refusal::Unsupported(format!("{} could not be written: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(text: &str) -> Arguments {
        Arguments::try_parse_from(std::iter::once("peers").chain(text.split_whitespace())).unwrap()
    }

    fn quiet() -> Output {
        Output::new(true, false, true)
    }

    /// A directory with the programs of `names`.
    fn directory(names: &[&str]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::write(directory.path().join(format!("workloads-{name}")), "").unwrap();
        }
        directory
    }

    fn planned(text: &str, programs: &[&str]) -> Result<Plan, Refusal> {
        let directory = directory(programs);
        let mut arguments = arguments(text);
        arguments.programs = Some(directory.path().to_path_buf());
        arguments.plan(&quiet())
    }

    #[test]
    fn a_workload_of_one_thread_runs_once() {
        let plan = planned("--workloads larson,random-drop --threads 1,2,2", &["system"]).unwrap();
        let names: Vec<_> = plan.entries.iter().map(Entry::name).collect();
        assert_eq!(names, ["larson", "larson ×2", "random-drop"]);
        assert_eq!(plan.runs, 10);
        assert_eq!(planned("--quick", &["system"]).unwrap().runs, 3);
        assert_eq!(planned("--quick --runs 7", &["system"]).unwrap().runs, 7);
    }

    #[test]
    fn peers_are_those_that_are_built_or_named() {
        let names = |plan: Plan| plan.allocators.iter().map(|peer| peer.name).collect::<Vec<_>>();
        assert_eq!(names(planned("", &["system", "mimalloc"]).unwrap()), ["mimalloc", "system"]);
        let built = ["hugeheap", "system", "jemalloc"];
        assert_eq!(names(planned("--against tikv-jemallocator", &built).unwrap()), ["hugeheap", "jemalloc"]);
        assert_eq!(names(planned("--against none", &built).unwrap()), ["hugeheap"]);
        assert!(matches!(planned("--against all", &built), Err(Refusal::Unsupported(why))
            if why.contains("cargo build --release -p workloads-mimalloc")));
        assert!(matches!(planned("--against none", &["system"]), Err(Refusal::Unsupported(_))));
    }

    #[test]
    fn mistakes_are_told_with_what_would_be_understood() {
        for (text, expected) in [
            ("--workloads sort", "the workloads are alloc-test, larson"),
            ("--against dlmalloc", "the peers are mimalloc, jemalloc"),
            ("--threads 0", "0 is not a number from 1 to"),
            ("--set blocks=1", "not of the form WORKLOAD.PARAMETER=VALUE"),
            ("--set sort.blocks=1", "'sort' is none of the workloads to run"),
            ("--set larson.blocks=none", "'none' is not a whole number"),
            ("--set larson.speed=1", "the parameters are blocks"),
            ("--workloads rptest --set larson.blocks=1", "none of the workloads to run"),
        ] {
            match planned(text, &["system"]) {
                Err(Refusal::Usage(why)) => assert!(why.contains(expected), "{text}: {why}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        for text in ["--idle -1", "--idle soon", "--runs 0", "--touch lots", "--threads two", "--speed 1"] {
            let words = std::iter::once("peers").chain(text.split_whitespace());
            assert!(Arguments::try_parse_from(words).is_err(), "{text}");
        }
    }

    #[test]
    fn settings_belong_to_their_workload() {
        let plan =
            planned("--workloads larson,rptest --set larson.blocks=9 --threads 2", &["system"]).unwrap();
        assert_eq!(plan.entries[0].settings, ["blocks=9"]);
        assert!(plan.entries[1].settings.is_empty());
    }

    #[test]
    fn memory_is_touched_as_far_as_it_may() {
        assert_eq!(arguments("").touched(5 << 30), 5 << 30);
        assert_eq!(arguments("--quick").touched(5 << 30), 2 << 30);
        assert_eq!(arguments("--touch none").touched(5 << 30), 0);
        assert_eq!(arguments("--touch 64").touched(5 << 30), 64 << 20);
        assert_eq!(arguments("--touch 64").touched(1 << 20), 1 << 20);
    }

    #[test]
    fn a_report_that_cannot_be_written_is_refused_beforehand() {
        assert!(matches!(writable(Path::new("/no/such/directory/file")), Err(Refusal::Usage(why))
            if why.contains("cannot be written")));
    }
}
