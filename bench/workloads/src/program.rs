//! The little programs: one workload, once, on the allocator the program was built with.
//!
//! What they print is one line of JSON, for the program that runs them.

use crate::catalogue::{self, Mode, Values, WORKLOADS, Workload};
use crate::look::{self, Look, Usage};
use crate::memory;
use crate::stage::{Observe, Stage};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str = "\
WORKLOAD [--mode time|memory|latency|check] [--threads N] [--seed N] [--idle SECONDS] [--charge FILE] [NAME=VALUE …]
       --list";

/// More threads say nothing, and a slip of the finger shall not fill the machine.
const MOST_THREADS: usize = 1024;

/// How the workload is run, and what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Seconds, faults, peak.
    Time,
    /// Memory at the workload's moments.
    Memory,
    /// How long single allocations take.
    Latency,
    /// Whether memory stays as it was written.
    Check,
}

#[derive(Debug)]
struct Request {
    workload: &'static Workload,
    pass: Pass,
    threads: usize,
    seed: u64,
    idle: Duration,
    charge: Option<PathBuf>,
    values: Values,
}

/// Runs what the command line asks for. `allocator`: what the program was built with.
pub fn main(allocator: &str) -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|text| text.to_string_lossy().into_owned()).collect();
    if arguments.iter().any(|text| text == "--help" || text == "-h") {
        println!("The workloads on the allocator {allocator}.\n\nUsage: workloads-{allocator} {USAGE}");
        return ExitCode::SUCCESS;
    }
    if arguments == ["--list"] {
        print!("{}", list());
        return ExitCode::SUCCESS;
    }
    match request(&arguments) {
        Ok(request) => {
            println!("{}", perform(&request));
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("workloads-{allocator}: error: {why}\nUsage: workloads-{allocator} {USAGE}");
            ExitCode::from(2)
        }
    }
}

fn list() -> String {
    let mut text = String::new();
    for workload in &WORKLOADS {
        let threads = if workload.threaded { ", any number of threads" } else { "" };
        let _ = writeln!(text, "{}: {}{threads}", workload.name, workload.about);
        for parameter in workload.parameters {
            let _ = writeln!(text, "    {}={}  {}", parameter.name, parameter.default, parameter.about);
        }
    }
    text
}

fn request(arguments: &[String]) -> Result<Request, String> {
    let mut words = arguments.iter();
    let name = words.next().ok_or("which workload?")?;
    let workload = catalogue::find(name).ok_or_else(|| {
        let names: Vec<_> = WORKLOADS.iter().map(|workload| workload.name).collect();
        format!("there is no workload '{name}'; the workloads are {}", names.join(", "))
    })?;
    let mut request = Request {
        workload,
        pass: Pass::Time,
        threads: 1,
        seed: 1,
        idle: Duration::ZERO,
        charge: None,
        values: workload.values(),
    };
    while let Some(word) = words.next() {
        if !word.starts_with('-') {
            request.values.set(word)?;
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = || format!("{word}: '{value}' is not a number this can be");
        match word.as_str() {
            "--mode" => {
                request.pass = match value.as_str() {
                    "time" => Pass::Time,
                    "memory" => Pass::Memory,
                    "latency" => Pass::Latency,
                    "check" => Pass::Check,
                    _ => return Err(format!("--mode: '{value}' is not time, memory, latency or check")),
                }
            }
            "--threads" => {
                let threads = value.parse().ok().filter(|threads| (1..=MOST_THREADS).contains(threads));
                request.threads = threads.ok_or_else(number)?;
            }
            "--seed" => request.seed = value.parse().map_err(|_| number())?,
            "--idle" => {
                let idle = value.parse().ok().and_then(|idle| Duration::try_from_secs_f64(idle).ok());
                request.idle = idle.ok_or_else(number)?;
            }
            "--charge" => request.charge = Some(value.into()),
            _ => return Err(format!("there is no option '{word}'")),
        }
    }
    if request.threads > 1 && !workload.threaded {
        return Err(format!("{name} runs on one thread only"));
    }
    Ok(request)
}

fn perform(request: &Request) -> String {
    let observe = (request.pass == Pass::Memory)
        .then(|| Observe { idle: request.idle, charge: request.charge.clone() });
    let mode = match request.pass {
        Pass::Time | Pass::Memory => Mode::Plain,
        Pass::Check => Mode::Checked,
        Pass::Latency => Mode::Timed,
    };
    let stage = Stage::new(request.threads, request.seed, observe);
    let before = Usage::now();
    let start = Instant::now();
    request.workload.run(mode, &stage, &request.values);
    let seconds = start.elapsed().as_secs_f64();
    let after = Usage::now();
    let mut text = format!(
        r#"{{"seconds":{seconds:.6},"user":{:.6},"system":{:.6},"minor_faults":{},"peak_rss":{}"#,
        after.user - before.user,
        after.system - before.system,
        after.minor_faults - before.minor_faults,
        look::peak_rss()
    );
    if let Some(looks) = stage.looks() {
        let moments: [(&str, Look); 4] =
            [("start", looks.start), ("steady", looks.steady), ("low", looks.low), ("idle", looks.idle)];
        for (name, look) in moments {
            let _ = write!(text, r#","{name}":{}"#, look.json());
        }
    }
    if request.pass == Pass::Latency
        && let Some(seen) = memory::latencies()
    {
        let _ = write!(
            text,
            r#","latency":{{"count":{},"p50":{:.1},"p99":{:.1},"p999":{:.1},"max":{:.1},"clock":{:.1}}}"#,
            seen.count, seen.half, seen.p99, seen.p999, seen.most, seen.clock
        );
    }
    text.push('}');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<Request, String> {
        request(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_request_is_understood() {
        let request = asked("larson --threads 2 --mode memory --idle 0.5 --seed 9 blocks=10").unwrap();
        assert_eq!((request.workload.name, request.threads, request.seed), ("larson", 2, 9));
        assert_eq!((request.pass, request.idle), (Pass::Memory, Duration::from_millis(500)));
        assert_eq!(request.values.size("blocks"), 10);
    }

    #[test]
    fn mistakes_are_told() {
        for (text, expected) in [
            ("", "which workload"),
            ("sort", "the workloads are alloc-test, larson"),
            ("larson --threads", "needs a value"),
            ("larson --threads 0", "'0' is not a number"),
            ("larson --threads two", "'two' is not a number"),
            ("larson --idle -1", "'-1' is not a number"),
            ("larson --mode fast", "not time, memory"),
            ("larson --speed 1", "no option '--speed'"),
            ("larson size=1", "no parameter 'size'"),
            ("random-drop --threads 2", "one thread only"),
        ] {
            let why = asked(text).unwrap_err();
            assert!(why.contains(expected), "{text}: {why}");
        }
    }

    #[test]
    fn each_pass_prints_its_figures() {
        let text = |mode: &str| {
            perform(&asked(&format!("larson --mode {mode} replacements=1000 generations=2")).unwrap())
        };
        assert!(text("time").starts_with(r#"{"seconds":0."#));
        assert!(text("memory").contains(r#""idle":{"rss":"#));
        assert!(text("latency").contains(r#""latency":{"count":"#));
        assert!(!text("check").contains("latency"));
    }

    #[test]
    fn the_list_names_every_parameter() {
        let text = list();
        assert!(text.contains("larson") && text.contains("generations=100"));
    }
}
