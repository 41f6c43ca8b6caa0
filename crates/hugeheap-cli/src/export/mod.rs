//! `hugeheap export`: metrics for Prometheus.
//!
//! ```text
//!   arguments ──▶ look: host ─ processes ─ heaps ─ cgroups ──▶ metric::Found ──▶ text ──▶ --once
//!                        └────── budget ──────┘                                     ├──▶ textfile
//!                                                                                   └──▶ serve
//! ```
//!
//! One look has a budget of time. What did not fit is a metric, as is what was not allowed: an alert can ask for it.

pub(crate) mod arguments;
mod budget;
mod cgroup;
mod client;
mod heaps;
mod host;
mod http;
mod metric;
mod processes;
mod serve;
mod text;
mod textfile;

use crate::descriptors;
use crate::descriptors::told;
use crate::output::printable;
use crate::process::{HIDDEN, proc_hides};
use crate::{Context, exit};
use arguments::{ExportArguments, Format};
use budget::Budget;
use core::time::Duration;
use hugeheap_os::{Error, Result};
use metric::Found;
use std::io::IsTerminal;
use std::sync::Arc;

pub(crate) fn export(context: &Context, arguments: &ExportArguments, json: bool) -> u8 {
    let out = &context.out;
    if json {
        out.error(
            "metrics are text for Prometheus, and not JSON: leave --json out (status and ps have JSON)",
        );
        return exit::USAGE;
    }
    if !context.root && proc_hides() {
        out.warning(HIDDEN);
    }
    tell_missing(context, arguments);
    if let Some(directory) = &arguments.textfile {
        return textfile::export(context, arguments, directory);
    }
    if let Some(address) = &arguments.listen {
        return serve::export(context, arguments, address);
    }
    match look(context, arguments) {
        Ok(found) => {
            let written = text::write(Arc::new(found), arguments.format);
            // Names of processes are labels as they are: Prometheus has no escape for what a terminal would do.
            let looked_at = std::io::stdout().is_terminal();
            out.data(&if looked_at { printable(&written) } else { written.into() });
            exit::OK
        }
        Err(error) => not_looked(context, error),
    }
}

/// A name that is written wrongly has no metric, and nobody would miss one that never was there.
fn tell_missing(context: &Context, arguments: &ExportArguments) {
    if arguments.processes.is_empty() {
        return;
    }
    let mut budget = Budget::new(context.facts, Duration::from_secs_f64(arguments.budget));
    // Where there is no list of processes, the look says so.
    let Ok(rows) = processes::all(context.facts, &mut budget) else { return };
    if budget.share().is_none() {
        // It may be one that there was no time for.
        return;
    }
    for choice in processes::without_process(&rows, &arguments.processes) {
        context.out.warning(&format!(
            "no process is meant by --process {} now (hugeheap ps lists them)",
            choice.text()
        ));
    }
}

/// Looks at everything once.
///
/// # Errors
/// When there is no list of processes, or no look can be made.
fn look(context: &Context, arguments: &ExportArguments) -> Result<Found> {
    enough()?;
    let linux = context.facts;
    let mut found = Found::new();
    let mut budget = Budget::new(linux, Duration::from_secs_f64(arguments.budget));
    host::gather(context, &mut found);
    let rows = processes::all(linux, &mut budget)?;
    // From what is cheap for each to what is not.
    cgroup::gather(linux, &rows, &arguments.cgroups, &mut budget, &mut found);
    heaps::gather(linux, &rows, &mut budget, &mut found);
    processes::gather(linux, &rows, &arguments.processes, !context.root, &mut budget, &mut found);
    budget.report(&mut found);
    // Clients may have taken what there was meanwhile.
    enough()?;
    Ok(found)
}

/// Looks at everything once and writes it.
fn metrics(context: &Context, arguments: &ExportArguments, format: Format) -> Result<String> {
    look(context, arguments).map(|found| text::write(Arc::new(found), format))
}

/// Whether there are descriptors enough for a look. Asked before and after it: what cannot be opened is left
/// out, as what is not there is.
fn enough() -> Result<()> {
    descriptors::enough(descriptors::LOOK)
        .map_err(|error| Error::new("open(2)", error.raw_os_error().unwrap_or(libc::EMFILE)))
}

fn not_looked(context: &Context, error: Error) -> u8 {
    context.out.error(&why(error));
    exit::UNSUPPORTED
}

/// Why no look could be made.
fn why(error: Error) -> String {
    if matches!(error.code, libc::EMFILE | libc::ENFILE) {
        let error = std::io::Error::from_raw_os_error(error.code);
        return format!("nothing was read: {}", descriptors::short(descriptors::LOOK, &error));
    }
    format!("there is no list of processes: {error}", error = told(&error))
}
