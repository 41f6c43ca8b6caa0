//! `hugeheap doctor` and `hugeheap explain`.
//!
//! ```text
//!   situation ─┐                       facts of the host (status::facts, pool::facts, limits)
//!   target   ──┼──▶ rules ──▶ findings ──▶ text, JSON, exit status
//!   a process ─┘    (pure)       │
//!                              codes ──▶ explanations
//! ```
//!
//! The doctor changes nothing. Each finding has a code that stays, a level, what was found, and a fix of one line.

pub(crate) mod arguments;
mod codes;
mod explanations;
mod limits;
mod rules;
mod rules_merging;
mod rules_pools;
mod rules_target;
mod rules_thp;
mod situation;
mod target;
#[cfg(test)]
mod thresholds;

use crate::output::{bytes, counted};
use crate::process::{self, Doing, named};
use crate::{Context, exit};
use arguments::{DoctorArguments, ExplainArguments};
use codes::{Code, Finding, Level};
use hugeheap_os::ThpDisabled;
use serde_json::{Value, json};
use situation::Situation;
use std::fmt::Write;
use target::{Runtime, TargetFacts};

const SCHEMA: &str = "hugeheap.doctor/1";
const EXPLAIN_SCHEMA: &str = "hugeheap.explain/1";
/// Lines of explanations are as wide as most terminals.
const WIDTH: usize = 100;

pub(crate) fn doctor(context: &Context, arguments: &DoctorArguments, json: bool) -> u8 {
    let out = &context.out;
    let mut situation = Situation::gather(context);
    if situation.total.is_none() {
        // Nothing else would be certain either.
        out.error("/proc/meminfo cannot be read: there is no /proc here, or --root names another directory");
        return exit::UNSUPPORTED;
    }
    if let Some(id) = arguments.pid {
        let status = process::status(context, id, Doing::Look);
        // Without its mappings no rule would fire, and "nothing worse" be said of what nobody saw.
        let status = status.and_then(|status| process::readable(context, id, &status).map(|()| status));
        match status {
            Ok(status) => situation.add_process(context.facts, id, status),
            Err(code) => return code,
        }
    }
    if let Some(name) = arguments.command.first() {
        match TargetFacts::gather(name) {
            Ok(target) => situation.target = Some(target),
            Err(error) => {
                out.error(&error.to_string());
                return error.exit_code();
            }
        }
    }
    let findings = rules::findings(&situation);
    let text = if json || arguments.json {
        crate::output::json(&document(&situation, &findings))
    } else {
        text(&situation, &findings, out.colour_on_stdout())
    };
    out.data(&text);
    let is_bad = findings.iter().any(|finding| finding.code.level() >= Level::Warning);
    if is_bad { exit::FINDINGS } else { exit::OK }
}

fn document(situation: &Situation, findings: &[Finding]) -> Value {
    let count = |level| findings.iter().filter(|finding| finding.code.level() == level).count();
    json!({
        "schema": SCHEMA,
        "errors": count(Level::Error),
        "warnings": count(Level::Warning),
        "notices": count(Level::Notice),
        "findings": findings.iter().map(|finding| json!({
            "code": finding.code.name(),
            "level": finding.code.level().name(),
            "what": finding.what,
            "fix": finding.fix,
        })).collect::<Vec<_>>(),
        "process": situation.process.as_ref().map(|process| json!({
            "pid": process.id,
            "name": process.name,
            "anonymous": process.anonymous,
            "huge": process.huge,
            "hugetlb": process.hugetlb,
            "thp_off": process.switch.map(|switch| switch == ThpDisabled::Completely),
            "hooked": process.hooked,
            "python": process.python,
            "advised_against": process.advised_against,
        })),
        "command": situation.target.as_ref().map(|target| json!({
            "name": target.name,
            "program": target.program,
            "runtime": target.runtime.text(),
            "hindrance": target.hindrance.as_ref().map(|(name, _)| name),
            "levels": levels(target),
        })),
    })
}

/// The levels of `hugeheap run` that the command can be on.
fn levels(target: &TargetFacts) -> Vec<&'static str> {
    match &target.runtime {
        Runtime::Python { implementation, free_threaded: false, .. }
            if implementation == "cpython" && target.hindrance.is_none() =>
        {
            vec!["arenas", "objects"]
        }
        _ => Vec::new(),
    }
}

fn text(situation: &Situation, findings: &[Finding], colour: bool) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", verdict(situation, findings));
    let width = findings.iter().map(|finding| finding.code.level().name().len()).max().unwrap_or(0);
    for finding in findings {
        let level = finding.code.level();
        let name = format!("{:width$}", level.name());
        let name = match (colour, level) {
            (false, _) => name,
            (true, Level::Notice) => format!("\x1b[2m{name}\x1b[0m"),
            (true, Level::Warning) => format!("\x1b[33;1m{name}\x1b[0m"),
            (true, Level::Error) => format!("\x1b[31;1m{name}\x1b[0m"),
        };
        let _ = writeln!(text, "\n{name}  {}\n{:width$}  {}", finding.code.name(), "", finding.what);
        let _ = writeln!(text, "{:width$}  fix: {}", "", finding.fix);
    }
    if !findings.is_empty() {
        let _ =
            writeln!(text, "\nwhat it means, how to verify it, how to undo the fix: hugeheap explain CODE");
    }
    text
}

/// The answer in one line.
fn verdict(situation: &Situation, findings: &[Finding]) -> String {
    let mut subject = "this host".to_owned();
    let mut comma = "";
    if let Some(process) = &situation.process {
        let huge = process.on_huge_pages().map_or("unknown".to_owned(), bytes);
        subject = format!(
            "{}, {huge} on huge pages of {}",
            named(process.id, &process.name),
            bytes(process.heap())
        );
        // What follows it is a clause of its own.
        comma = ",";
    }
    if let Some(target) = &situation.target {
        let levels = levels(target);
        let levels =
            if levels.is_empty() { String::new() } else { format!(", levels {}", levels.join(" and ")) };
        subject = format!("{} ({}{levels})", target.name, target.runtime.text());
    }
    let count = |level: Level, one, many| {
        let found = findings.iter().filter(|finding| finding.code.level() == level).count() as u64;
        (found > 0).then(|| counted(found, one, many))
    };
    let bad: Vec<_> = [count(Level::Error, "error", "errors"), count(Level::Warning, "warning", "warnings")]
        .into_iter()
        .flatten()
        .collect();
    let notices = count(Level::Notice, "notice", "notices");
    match (bad.is_empty(), notices) {
        (true, None) => format!("{subject}{comma} can get huge pages: nothing found"),
        (true, Some(notices)) => format!("{subject}{comma} can get huge pages: {notices}, nothing worse"),
        (false, notices) => {
            let all: Vec<_> = bad.into_iter().chain(notices).collect();
            format!("{subject}: {}", all.join(", "))
        }
    }
}

pub(crate) fn explain(context: &Context, arguments: &ExplainArguments, json: bool) -> u8 {
    let out = &context.out;
    let json = json || arguments.json;
    let chosen: Vec<Code> = match &arguments.code {
        None => Code::ALL.to_vec(),
        Some(text) => match Code::find(text) {
            Some(code) => vec![code],
            None => {
                out.error(&format!("there is no finding '{text}'; hugeheap explain lists all of them"));
                return exit::USAGE;
            }
        },
    };
    let explained: Vec<_> = chosen.iter().filter_map(|&code| explanations::of(code)).collect();
    let text = if json {
        let list: Vec<_> = explained
            .iter()
            .map(|explanation| {
                json!({
                    "code": explanation.code.name(),
                    "level": explanation.code.level().name(),
                    "mechanism": explanation.mechanism,
                    "verify": explanation.verify,
                    "undo": explanation.undo,
                })
            })
            .collect();
        crate::output::json(&json!({"schema": EXPLAIN_SCHEMA, "codes": list}))
    } else if arguments.code.is_none() {
        let rows: Vec<_> = explained
            .iter()
            .map(|explanation| {
                // The first sentence.
                let about = explanation.mechanism.split_inclusive(". ").next().unwrap_or_default().trim();
                vec![
                    explanation.code.name().to_owned(),
                    explanation.code.level().name().to_owned(),
                    about.to_owned(),
                ]
            })
            .collect();
        crate::columns::columns(&[crate::columns::Align::Left, crate::columns::Align::Left], &rows)
    } else {
        explained
            .iter()
            .map(|explanation| {
                format!(
                    "{} ({})\n\n{}\n\nverify: {}\n\nundo the fix: {}\n",
                    explanation.code.name(),
                    explanation.code.level().name(),
                    wrapped(explanation.mechanism),
                    explanation.verify,
                    wrapped(explanation.undo)
                )
            })
            .collect()
    };
    out.data(&text);
    exit::OK
}

/// Text in lines of at most [`WIDTH`] characters.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > WIDTH {
            lines.push('\n');
            used = 0;
        } else if used > 0 {
            lines.push(' ');
            used += 1;
        }
        lines.push_str(word);
        used += length;
    }
    lines
}
