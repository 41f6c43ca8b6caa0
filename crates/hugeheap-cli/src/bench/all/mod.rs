//! `hugeheap bench all`: every experiment, and one page of all of them.
//!
//! ```text
//!   for each:  bench NAME --json DIR/NAME.json -o DIR/NAME.txt     kept, whatever becomes of the next
//!   then:      report DIR/*.json -o DIR/report.html
//! ```
//!
//! Each is started with the words that could be typed, by this program itself: what `all` measures is what each measures alone. Free
//! memory is touched by the first only.

pub(crate) mod arguments;

use super::interrupt;
use super::list::EXPERIMENTS;
use super::report::write;
use super::table::{self, titled};
use super::variant::Refusal;
use crate::cli::{Cli, Command};
use crate::output::seconds;
use crate::{Context, exit, report, reproduce};
use arguments::AllArguments;
use clap::Parser;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

const SCHEMA: &str = "hugeheap.bench.all/1";

/// What became of an experiment.
struct Ended {
    name: &'static str,
    code: u8,
    seconds: f64,
    /// Goals that were met, and how many there are; `None` without results.
    goals: Option<(usize, usize)>,
}

/// Runs all.
pub(crate) fn all(context: &Context, arguments: &AllArguments) -> u8 {
    super::report::ended(&context.out, run(context, arguments))
}

fn run(context: &Context, arguments: &AllArguments) -> Result<u8, Refusal> {
    let out = &context.out;
    let known: Vec<_> = EXPERIMENTS.iter().map(|listed| listed.name).collect();
    if let Some(unknown) = arguments.only.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(Refusal::Usage(format!(
            "--only: there is no experiment '{unknown}'; the experiments are {}",
            known.join(", ")
        )));
    }
    let chosen: Vec<_> = known
        .into_iter()
        .filter(|name| arguments.only.is_empty() || arguments.only.iter().any(|one| one == name))
        .collect();
    let directory = &arguments.output;
    std::fs::create_dir_all(directory)
        .map_err(|error| Refusal::Usage(format!("{} cannot be made: {error}", directory.display())))?;
    let start = Instant::now();
    let mut ended = Vec::new();
    for (place, &name) in chosen.iter().enumerate() {
        out.progress(&format!("{} of {}: {name}", place + 1, chosen.len()), true);
        ended.push(one(context, arguments, name, place == 0)?);
        if let Some(signal) = interrupt::noted() {
            out.warning(&format!("what was measured is in {}", directory.display()));
            return Err(Refusal::Interrupted(signal));
        }
    }
    let page = page(context, directory, &ended);
    let text = text(&ended, start.elapsed().as_secs_f64(), page.as_deref());
    let value = json!({
        "schema": SCHEMA,
        "quick": arguments.quick,
        "seconds": start.elapsed().as_secs_f64(),
        "report": page,
        "experiments": ended.iter().map(Ended::json).collect::<Vec<_>>(),
    });
    match &arguments.json {
        Some(None) => {
            out.data(&format!("{value:#}\n"));
        }
        Some(Some(file)) => {
            write(file, &format!("{value:#}\n"))?;
            out.data(&text);
        }
        None => {
            out.data(&text);
        }
    }
    let missed = ended.iter().any(|one| one.goals.is_some_and(|(met, all)| met < all));
    Ok(if page.is_none() {
        exit::UNSUPPORTED
    } else if arguments.check && missed {
        exit::FINDINGS
    } else {
        exit::OK
    })
}

fn file(directory: &Path, name: &str, ending: &str) -> PathBuf {
    directory.join(format!("{name}.{ending}"))
}

/// Runs an experiment as if its words had been typed. Its tables go to its file alone.
fn one(
    context: &Context,
    arguments: &AllArguments,
    name: &'static str,
    first: bool,
) -> Result<Ended, Refusal> {
    let (tables, data) = (file(&arguments.output, name, "txt"), file(&arguments.output, name, "json"));
    // Of an earlier measurement: it would be taken for this one's.
    for old in [&tables, &data] {
        let _ = std::fs::remove_file(old);
    }
    let mut words: Vec<OsString> = ["hugeheap", "bench", name].map(OsString::from).to_vec();
    if arguments.quick {
        words.push("--quick".into());
    }
    if let Some(runs) = arguments.runs {
        words.extend(["--runs".into(), runs.to_string().into()]);
    }
    let typed = reproduce::line(&words);
    words.extend(["--json".into(), data.clone().into(), "-o".into(), tables.into()]);
    match &arguments.touch {
        Some(touch) if first => words.extend(["--touch".into(), touch.into()]),
        None if first => {}
        _ => words.extend(["--touch".into(), "none".into()]),
    }
    let cli = Cli::try_parse_from(words).map_err(|error| Refusal::Usage(error.to_string()))?;
    let Command::Bench(bench) = cli.command else {
        return Err(Refusal::Usage(format!("{name} is no experiment")));
    };
    let start = Instant::now();
    let quietly = Context {
        out: context.out.without_data(),
        facts: context.facts,
        root: context.root,
        library: context.library.clone(),
    };
    let code = super::bench(&quietly, bench, false);
    let mut report: Option<Value> =
        std::fs::read_to_string(&data).ok().and_then(|text| serde_json::from_str(&text).ok());
    match &mut report {
        // The command line of this process repeats all of them.
        Some(report) => {
            report["reproduce"] = typed.into();
            write(&data, &format!("{report:#}\n"))?;
        }
        // Made beforehand to see whether it can be written; empty, it is no measurement.
        None => drop(std::fs::remove_file(&data)),
    }
    let goals = report.as_ref().map(|report| {
        let goals = report["goals"].as_array().map_or(&[][..], Vec::as_slice);
        (goals.iter().filter(|goal| goal["met"] == true).count(), goals.len())
    });
    Ok(Ended { name, code, seconds: start.elapsed().as_secs_f64(), goals })
}

/// Makes the page of what was measured; its path.
fn page(context: &Context, directory: &Path, ended: &[Ended]) -> Option<PathBuf> {
    let measured: Vec<_> = ended.iter().filter(|one| one.goals.is_some()).collect();
    if measured.is_empty() {
        return None;
    }
    let page = directory.join("report.html");
    let arguments = report::arguments::ReportArguments {
        files: measured.iter().map(|one| file(directory, one.name, "json")).collect(),
        output: page.clone(),
        title: "hugeheap: all experiments".to_owned(),
        plots: None,
    };
    (report::report(context, &arguments) == exit::OK).then_some(page)
}

impl Ended {
    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "status": self.code,
            "seconds": self.seconds,
            "goals_met": self.goals.map(|(met, _)| met),
            "goals": self.goals.map(|(_, all)| all),
        })
    }
}

fn text(ended: &[Ended], took: f64, page: Option<&Path>) -> String {
    let head = ["experiment", "", "goals met", "took"].map(str::to_owned);
    let mut table = table::new(&head);
    for one in ended {
        let (became, goals) = match one.goals {
            Some((met, all)) => ("measured".to_owned(), format!("{met} of {all}")),
            None => (format!("not measured: status {}", one.code), table::NONE.to_owned()),
        };
        table::row(&mut table, &[one.name.to_owned(), became, goals, seconds(one.seconds)]);
    }
    let mut text = titled("All experiments", &format!("in {}", seconds(took)), &table);
    match page {
        Some(page) => text += &format!("The page of all: {}\n", page.display()),
        None => text += "There is no page: nothing could be measured, or it could not be written.\n",
    }
    text
}
