//! `hugeheap thp set`: several knobs, all or none.

use super::arguments::SetArguments;
use super::catalogue::{self, Named};
use crate::change::persist::{Edit, Form};
use crate::change::{self, Change, Report};
use crate::{Context, exit};
use hugeheap_os::linux::Knobs;

const SCHEMA: &str = "hugeheap.thp-set/1";
const FILE: &str = "/etc/tmpfiles.d/hugeheap-thp.conf";

/// What is wrong with a command line or a host, and the exit code for it.
type Refused = (String, u8);

pub(super) fn set(context: &Context, arguments: &SetArguments, json: bool) -> u8 {
    let knobs = context.facts.knobs();
    match carried_out(context, arguments, &knobs) {
        Ok(report) => {
            let text = if json { crate::output::json(&report.json(SCHEMA)) } else { report.text() };
            context.out.data(&text);
            exit::OK
        }
        Err((message, code)) => {
            context.out.error(&message);
            code
        }
    }
}

fn carried_out(context: &Context, arguments: &SetArguments, knobs: &Knobs) -> Result<Report, Refused> {
    let all = catalogue::all(knobs).map_err(super::no_knobs)?;
    let changes = plan(&all, &arguments.settings)?;
    let edit = match arguments.persist {
        true => {
            let settings: Vec<_> =
                changes.iter().map(|change| (change.file.clone(), change.after.clone())).collect();
            let failed =
                |error| (format!("--persist {}", change::refusal(FILE, error)), change::exit_code(error));
            if let Some(warning) = Form::Tmpfiles.reader_missing(knobs) {
                context.out.warning(warning);
            }
            Some(Edit::plan(knobs, FILE, Form::Tmpfiles, &settings).map_err(failed)?)
        }
        false => None,
    };
    let needed: Vec<_> = changes.iter().filter(|change| change.is_needed()).cloned().collect();
    let mut undo = Vec::new();
    if !needed.is_empty() {
        let words = needed.iter().map(|change| change::quoted(&format!("{}={}", change.name, change.before)));
        undo.push(format!("{} thp set {}", change::program(knobs), words.collect::<Vec<_>>().join(" ")));
    }
    undo.extend(edit.as_ref().and_then(Edit::undo));
    if !arguments.dry_run {
        change::apply(knobs, &needed).map_err(|failure| (failure.to_string(), failure.exit_code()))?;
        if let Some(Err(error)) = edit.as_ref().map(Edit::write) {
            let (_, stuck) = change::put_back(knobs, &needed);
            let then = if stuck.is_empty() {
                "nothing is changed".into()
            } else {
                format!("set by hand: {}", stuck.join(" "))
            };
            return Err((
                format!("--persist {}; {then}", change::refusal(FILE, error)),
                change::exit_code(error),
            ));
        }
    }
    Ok(Report { dry_run: arguments.dry_run, changes, persisted: edit, undo })
}

/// The changes that `settings` ask for, each checked.
fn plan(all: &[Named], settings: &[String]) -> Result<Vec<Change>, Refused> {
    let mut changes: Vec<Change> = Vec::new();
    for setting in settings {
        let usage = |message: String| (message, exit::USAGE);
        let Some((name, value)) = setting.split_once('=') else {
            return Err(usage(format!(
                "'{setting}' has no value: write {setting}=VALUE (hugeheap thp get shows what there is)"
            )));
        };
        let named = catalogue::find(all, name).map_err(|message| {
            let code = if message.starts_with("this kernel") { exit::UNSUPPORTED } else { exit::USAGE };
            (message, code)
        })?;
        if named.is_read_only() {
            return Err(usage(format!("{} only tells, it cannot be set", named.name)));
        }
        let knob = named.knob.as_ref().map_err(|&error| {
            (format!("{} {}", named.name, change::refusal(&named.file, error)), change::exit_code(error))
        })?;
        let after = named.parse(value).map_err(|why| usage(format!("{setting}: {} {why}", named.name)))?;
        if let Some(other) = changes.iter().find(|change| change.name == named.name) {
            return Err(usage(format!("{} is set twice: {} and {after}", named.name, other.after)));
        }
        changes.push(Change {
            name: named.name.clone(),
            file: named.file.clone(),
            before: knob.value.clone(),
            after,
        });
    }
    Ok(changes)
}
