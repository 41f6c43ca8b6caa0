//! `hugeheap bench all`: every experiment, and one page of all of them.
//!
//! ```text
//!   for each:  bench NAME --json DIR/NAME.json -o DIR/NAME.txt     kept, whatever becomes of the next
//!   then:      report DIR/*.json -o DIR/report.html
//! ```
//!
//! Each is started with the words that could be typed, by this program itself: what `all` measures is what each
//! measures alone. Free memory is touched by the first only. A signal ends the one that is measured, which
//! keeps its complete rounds; the page is made all the same.

pub(crate) mod arguments;

use super::interrupt;
use super::list::{EXPERIMENTS, Listed};
use super::report::write;
use super::table::{self, titled};
use super::variant::Refusal;
use crate::cli::{Cli, Command};
use crate::descriptors::told;
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
    let chosen = chosen(&arguments.only)?;
    let directory = &arguments.output;
    std::fs::create_dir_all(directory).map_err(|error| {
        Refusal::Usage(format!("{} cannot be made: {error}", directory.display(), error = told(&error)))
    })?;
    let start = Instant::now();
    let mut ended: Vec<Ended> = Vec::new();
    for (place, listed) in chosen.iter().enumerate() {
        // How many runs there are is not known before the first has ended, when it is not the experiment's own number.
        let is_known = arguments.runs.is_none() || place > 0;
        let left = Some(left(&chosen, &ended, arguments.quick)).filter(|_| is_known);
        let left = left.map_or_else(String::new, |left| format!(", about {} left", seconds(left)));
        out.progress(&format!("{} of {}: {}{left}", place + 1, chosen.len(), listed.name), true);
        ended.push(one(context, arguments, listed.name, place == 0)?);
        if interrupt::noted().is_some() {
            break;
        }
    }
    let page = page(context, directory, &ended);
    let text = text(&ended, start.elapsed().as_secs_f64(), page.as_deref());
    let value = json!({
        "schema": SCHEMA,
        "quick": arguments.quick,
        "seconds": start.elapsed().as_secs_f64(),
        "interrupted_by_signal": interrupt::noted(),
        "report": page,
        "experiments": ended.iter().map(Ended::json).collect::<Vec<_>>(),
    });
    match &arguments.json {
        Some(None) => {
            out.data(&crate::output::json(&value));
        }
        Some(Some(file)) => {
            write(file, &crate::output::json(&value))?;
            out.data(&text);
        }
        None => {
            out.data(&text);
        }
    }
    let missed = ended.iter().any(|one| one.goals.is_some_and(|(met, all)| met < all));
    Ok(if let Some(signal) = interrupt::noted() {
        out.warning(&format!("interrupted: what was measured is in {}", directory.display()));
        (128 + signal) as u8
    } else if page.is_none() {
        exit::UNSUPPORTED
    } else if arguments.check && missed {
        exit::FINDINGS
    } else {
        exit::OK
    })
}

/// The experiments of `only`, or all.
fn chosen(only: &[String]) -> Result<Vec<&'static Listed>, Refusal> {
    let known = |name: &String| EXPERIMENTS.iter().any(|listed| listed.name == name);
    if let Some(unknown) = only.iter().find(|name| !known(name)) {
        let names: Vec<_> = EXPERIMENTS.iter().map(|listed| listed.name).collect();
        return Err(Refusal::Usage(format!(
            "--only: there is no experiment '{unknown}'; the experiments are {}",
            names.join(", ")
        )));
    }
    let is_chosen = |listed: &&Listed| only.is_empty() || only.iter().any(|name| name == listed.name);
    Ok(EXPERIMENTS.iter().filter(is_chosen).collect())
}

/// Seconds that those take that have not ended: what they took elsewhere, times how much longer the others took
/// here. One that could not be measured says nothing about that.
fn left(chosen: &[&Listed], ended: &[Ended], quick: bool) -> f64 {
    let takes = |listed: &&Listed| listed.takes[usize::from(!quick)];
    let measured = || chosen.iter().zip(ended).filter(|(_, ended)| ended.goals.is_some());
    let (here, there) = measured()
        .map(|(listed, ended)| (ended.seconds, takes(listed)))
        .fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let longer = if there > 0.0 { here / there } else { 1.0 };
    longer * chosen[ended.len()..].iter().map(takes).sum::<f64>()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_scaled_by_what_was_measured() {
        let listed = chosen(&["stride".to_owned(), "stranded".to_owned(), "cow".to_owned()]).ok().unwrap();
        let takes: Vec<_> = listed.iter().map(|listed| listed.takes[1]).collect();
        let ended = |factor: f64, goals| Ended { name: "x", code: 0, seconds: factor * takes[0], goals };
        let all: f64 = takes.iter().sum();
        assert!((left(&listed, &[], false) - all).abs() < 1e-9);
        let rest = all - takes[0];
        assert!((left(&listed, &[ended(2.0, Some((1, 1)))], false) - 2.0 * rest).abs() < 1e-9);
        // Nothing was measured: that was quick.
        assert!((left(&listed, &[ended(0.01, None)], false) - rest).abs() < 1e-9);
    }
}
