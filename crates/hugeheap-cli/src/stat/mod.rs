//! `hugeheap stat`: whole commands compared.
//!
//! ```text
//!   commands ──▶ warm-up ──▶ run, in turn: A B C  B C A  C A B … ──▶ compare ──▶ text, data (JSON, pyperf)
//!                                                                        └─────▶ condition (--fail-if)
//! ```
//!
//! Before each run the memory it needs is touched once (see [`touch`]), so that no command meets memory that a
//! virtual machine's host took away. A command that failed once is left out from then on; what was measured of
//! the others is reported.

pub(crate) mod arguments;
mod compare;
mod condition;
mod data;
mod metric;
mod run;
mod text;

use crate::bench::charge::Group;
use crate::bench::counters::Counters;
use crate::bench::{interrupt, touch};
use crate::descriptors::told;
use crate::output::Output;
use crate::watch::adopt_orphans;
use crate::{Context, exit, file, host, reproduce};
use arguments::StatArguments;
use compare::Row;
use run::{Failure, How, Run};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// A command shorter than this is mostly the start of a process, in seconds.
const SHORT: f64 = 0.005;

/// A command and what was measured of it.
struct Subject {
    name: String,
    words: Vec<OsString>,
    prepare: Option<String>,
    runs: Vec<Run>,
    failure: Option<String>,
}

/// Everything a report is made of.
struct Results {
    subjects: Vec<Subject>,
    rows: Vec<Row>,
    host: Value,
    started: u64,
    runs: u32,
    warmup: u32,
    no_counters: Option<String>,
    no_charge: Option<String>,
    signal: Option<i32>,
}

pub(crate) fn stat(context: &Context, arguments: &StatArguments, json: bool) -> u8 {
    let out = &context.out;
    let subjects = match subjects(arguments) {
        Ok(subjects) => subjects,
        Err(why) => {
            out.error(&why);
            return exit::USAGE;
        }
    };
    let json = arguments.json.clone().or(json.then_some(None));
    if let Err((why, code)) = writable(json.as_ref().and_then(Option::as_deref), arguments.pyperf.as_deref())
    {
        out.error(&why);
        return code;
    }
    let mut results = Results {
        subjects,
        rows: Vec::new(),
        host: host::facts(&context.facts),
        started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        runs: arguments.runs,
        warmup: arguments.warmup,
        no_counters: Counters::open().err(),
        no_charge: Group::create().err(),
        signal: None,
    };
    interrupt::watch();
    adopt_orphans();
    let how = How {
        linux: context.facts,
        ignore_failure: arguments.ignore_failure,
        has_counters: results.no_counters.is_none(),
    };
    let measured = measure(out, &mut results, how);
    out.progress_end();
    if let Err(code) = measured {
        return code;
    }
    let runs: Vec<Vec<Run>> = results.subjects.iter().map(|subject| subject.runs.clone()).collect();
    results.rows = compare::rows(&runs);
    advise(out, &results);
    if let Err((why, code)) = deliver(out, &results, json.as_ref(), arguments.pyperf.as_deref()) {
        out.error(&why);
        return code;
    }
    if let Some(signal) = results.signal {
        out.warning("interrupted: these are the runs until then");
        return (128 + signal) as u8;
    }
    let verdict = judged(out, arguments, &results);
    if verdict == exit::OK && results.subjects.iter().any(|subject| subject.failure.is_some()) {
        return exit::FINDINGS;
    }
    verdict
}

/// The commands as they were typed: words between `:::`.
fn subjects(arguments: &StatArguments) -> Result<Vec<Subject>, String> {
    let commands: Vec<&[OsString]> = arguments.commands.split(|word| word == OsStr::new(":::")).collect();
    if commands.len() < 2 {
        return Err("one command alone: name another to compare it with, after ':::'".to_owned());
    }
    if commands.iter().any(|words| words.is_empty()) {
        return Err("a command is missing before or after a ':::'".to_owned());
    }
    let (count, names, prepare) = (commands.len(), &arguments.names, &arguments.prepare);
    if !names.is_empty() && names.len() != count {
        return Err(format!("--names has {} for {count} commands", names.len()));
    }
    if names.iter().enumerate().any(|(place, name)| names[..place].contains(name) || name.is_empty()) {
        return Err("--names needs another name for each command".to_owned());
    }
    if prepare.len() > 1 && prepare.len() != count {
        return Err(format!(
            "--prepare is there {} times for {count} commands: once, or for each",
            prepare.len()
        ));
    }
    let letter = |place: usize| match u8::try_from(place) {
        Ok(small @ 0..26) => char::from(b'A' + small).to_string(),
        _ => format!("#{}", place + 1),
    };
    let subject = |(place, words): (usize, &[OsString])| Subject {
        name: names.get(place).cloned().unwrap_or_else(|| letter(place)),
        words: words.to_vec(),
        prepare: prepare.get(place).or(prepare.first()).cloned(),
        runs: Vec::new(),
        failure: None,
    };
    Ok(commands.into_iter().enumerate().map(subject).collect())
}

/// Fails before minutes are spent on what cannot be written.
fn writable(json: Option<&Path>, pyperf: Option<&Path>) -> Result<(), (String, u8)> {
    let refused = |path: &Path, error: io::Error| {
        (
            format!("{} cannot be written: {error}", path.display(), error = told(&error)),
            file::refused(&error),
        )
    };
    if let Some(path) = json {
        let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
        opened.map_err(|error| refused(path, error))?;
    }
    if let Some(path) = pyperf {
        std::fs::create_dir_all(path).map_err(|error| refused(path, error))?;
    }
    Ok(())
}

/// Runs everything. An error is an exit code whose reason was told.
fn measure(out: &Output, results: &mut Results, how: How) -> Result<(), u8> {
    let (warmup, runs) = (results.warmup, results.runs);
    for round in 0..warmup + runs {
        let count = results.subjects.len();
        for step in 0..count {
            let subject = &mut results.subjects[(round as usize + step) % count];
            if subject.failure.is_some() {
                continue;
            }
            let what = if round < warmup { "warm-up" } else { "run" };
            let number = if round < warmup { round } else { round - warmup } + 1;
            out.progress(&format!("{what} {number} of {}", subject.name), false);
            let measured = prepared(subject).and_then(|()| {
                let peak = subject.runs.last().map_or(0, |run| run.peak_rss);
                // Refused when memory is short: the run shows it then.
                let _ = touch::touch_and_free(touch::need(peak));
                run::run(&subject.words, how)
            });
            if let Some(signal) = interrupt::noted() {
                results.signal = Some(signal);
                return Ok(());
            }
            match measured {
                Ok((run, left)) => {
                    if left > 0 && subject.runs.is_empty() {
                        out.warning(&format!(
                            "{}: processes that it started still run ({left}); they are not measured, and disturb what is",
                            subject.name
                        ));
                    }
                    if round == warmup {
                        subject.runs.clear();
                    }
                    subject.runs.push(run);
                }
                Err(Failure::NotStarted { why, is_missing }) => {
                    out.error(&format!("{}: {} {why}", subject.name, reproduce::quoted(&subject.words[0])));
                    return Err(if is_missing { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE });
                }
                Err(Failure::Failed(why)) => {
                    out.error(&format!(
                        "{} failed: {why} (--ignore-failure measures it all the same)",
                        subject.name
                    ));
                    subject.failure = Some(why);
                    if round < warmup {
                        subject.runs.clear();
                    }
                }
            }
        }
    }
    Ok(())
}

/// Runs what is to be run before.
fn prepared(subject: &Subject) -> Result<(), Failure> {
    let Some(prepare) = &subject.prepare else { return Ok(()) };
    let mut command = std::process::Command::new("sh");
    command.args(["-c", prepare]).stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::Failed(format!("--prepare '{prepare}': {status}"))),
        Err(error) => Err(Failure::Failed(format!("--prepare '{prepare}': {error}", error = told(&error)))),
    }
}

/// What the reader should know before believing the figures.
fn advise(out: &Output, results: &Results) {
    let tests: usize = results.rows.iter().map(|row| row.cells.len() - 1).sum();
    let fewest = results.subjects.iter().map(|subject| subject.runs.len()).min().unwrap_or(0);
    if !compare::can_tell(fewest, tests) && results.signal.is_none() && fewest > 0 {
        out.warning(&format!(
            "{fewest} runs are too few to tell any difference from chance: --runs 10 or more"
        ));
    }
    for subject in &results.subjects {
        let walls: Vec<f64> = subject.runs.iter().map(|run| run.wall).collect();
        if crate::statistics::median(&walls).is_some_and(|wall| wall < SHORT) {
            out.warning(&format!(
                "{} takes less than 5 ms: most of that is the start of a process, and there was no time to look at its memory",
                subject.name
            ));
        }
    }
}

/// Hands out the results.
fn deliver(
    out: &Output,
    results: &Results,
    json: Option<&Option<std::path::PathBuf>>,
    pyperf: Option<&Path>,
) -> Result<(), (String, u8)> {
    let write = |path: &Path, value: &Value| {
        file::replace(path, &format!("{value:#}\n")).map_err(|error| {
            (
                format!("{} could not be written: {error}", path.display(), error = told(&error)),
                file::refused(&error),
            )
        })
    };
    match json {
        Some(None) => {
            out.data(&crate::output::json(&data::data(results)));
        }
        other => {
            // The table first: it is there also when the file cannot be written.
            out.data(&text::text(results));
            if let Some(Some(path)) = other {
                write(path, &data::data(results))?;
            }
        }
    }
    if let Some(directory) = pyperf {
        let names: Vec<&str> = results.subjects.iter().map(|subject| subject.name.as_str()).collect();
        for (subject, name) in results.subjects.iter().zip(file_names(&names)) {
            if let Some(value) = data::pyperf(results, subject) {
                write(&directory.join(format!("{name}.json")), &value)?;
            }
        }
    }
    Ok(())
}

/// Names of files for commands with these names, which differ: `a/b` and `a_b` became one file, and only the
/// last was there.
fn file_names(names: &[&str]) -> Vec<String> {
    let mut taken: Vec<String> = Vec::new();
    for name in names {
        let whole = name.replace('/', "_");
        let mut free = whole.clone();
        // Another's own name is not taken from it either.
        let is_used = |it: &String, taken: &[String]| {
            taken.contains(it) || (it != name && names.contains(&it.as_str()))
        };
        for number in 2.. {
            if !is_used(&free, &taken) {
                break;
            }
            free = format!("{whole}_{number}");
        }
        taken.push(free);
    }
    taken
}

/// The exit code by the conditions; what was met is told.
fn judged(out: &Output, arguments: &StatArguments, results: &Results) -> u8 {
    let mut code = exit::OK;
    for condition in &arguments.fail_if {
        for (place, subject) in results.subjects.iter().enumerate().skip(1) {
            let find = |metric| {
                let row = results.rows.iter().find(|row| row.metric == metric);
                // What is zero in all runs of all has no row.
                row.and_then(|row| row.cells[place]).or_else(|| text::zero(results, metric, place))
            };
            match condition.met(&find) {
                Ok(true) => {
                    out.error(&format!("--fail-if '{}' is met by {}", condition.text, subject.name));
                    code = exit::FINDINGS;
                }
                Ok(false) => {}
                Err(metric) => {
                    let why = text::missing(results, metric, place);
                    out.error(&format!("--fail-if '{}' cannot be judged: {why}", condition.text));
                    code = if code == exit::OK { exit::UNSUPPORTED } else { code };
                }
            }
        }
    }
    code
}
