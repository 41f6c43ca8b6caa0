//! Allocators side by side: the same workloads on each, in processes of its own, by turns.
//!
//! ```text
//!   arguments   what can be typed          allocators   programs, their huge-page options, their versions
//!        └──────────────┬───────────────────────┘
//!                    measure    which process when; raw runs      child   one process      copies   of its program
//!                       │
//!                    results    medians, ratios, the best
//!          ┌────────────┼───────────┐
//!        text         report      goals
//!       (tables)      (JSON)    (claims checked)
//! ```
//!
//! It builds nothing and allocates nothing that is measured. What it shares with `hugeheap bench` (statistics,
//! cgroups, touching of memory, tables, host facts) is `hugeheap_cli::measuring`.

mod allocators;
mod arguments;
mod child;
mod copies;
mod goals;
mod measure;
mod report;
mod results;
mod text;

use arguments::{Arguments, Refusal};
use clap::Parser;
use hugeheap_cli::measuring::{Output, host, interrupt, seconds, touch};
use hugeheap_os::linux::Linux;
use report::Circumstances;
use results::View;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let out = Output::new(arguments.quiet, false, arguments.no_color);
    let code = match run(&arguments, &out) {
        Ok(code) => code,
        Err(Refusal::Usage(why)) => {
            out.error(&why);
            2
        }
        Err(Refusal::Unsupported(why)) => {
            out.error(&why);
            3
        }
    };
    ExitCode::from(code)
}

fn run(arguments: &Arguments, out: &Output) -> Result<u8, Refusal> {
    if arguments.list {
        out.data(&text::list());
        return Ok(0);
    }
    let plan = arguments.plan(out)?;
    for file in arguments.output.iter().chain(arguments.json.iter().flatten()) {
        arguments::writable(file)?;
    }
    let facts = Linux::new();
    let host = host::facts(&facts);
    let names: Vec<_> = plan.allocators.iter().map(|allocator| allocator.name).collect();
    out.progress(&host::line(&host), true);
    out.progress(
        &format!("{} workloads × {} runs, in turn on {}", plan.entries.len(), plan.runs, names.join(", ")),
        true,
    );
    interrupt::watch();
    let touched = arguments.touched(touch::touchable(&facts));
    if let Err(error) = touch::touch_once(touched, out) {
        out.warning(&format!("free memory could not be touched beforehand: {error}; first runs may be slow"));
    }
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let start = Instant::now();
    let results = measure::measure(&plan, out);
    out.progress(&format!("measured in {}", seconds(start.elapsed().as_secs_f64())), true);
    let interrupted = results.interrupted.map(|signal| (128 + signal) as u8);
    if let (Some(code), true) = (interrupted, results.measurements.is_empty()) {
        out.warning("interrupted before the first workload was complete: there is nothing to report");
        return Ok(code);
    }

    let view = View { plan: &plan, results: &results };
    let goals = goals::goals(view);
    let circumstances = Circumstances { host, touched, quick: arguments.quick, started };
    let report = format!("{:#}\n", report::report(view, &circumstances, &goals));
    let text = text::text(view, &goals);
    if let Some(file) = &arguments.output {
        arguments::write(file, &text)?;
    }
    match &arguments.json {
        Some(None) => {
            out.data(&report);
        }
        Some(Some(file)) => {
            arguments::write(file, &report)?;
            out.data(&text);
        }
        None => {
            out.data(&text);
        }
    }
    if let Some(code) = interrupted {
        out.warning("interrupted: this is what was measured until then");
        return Ok(code);
    }
    if arguments.quick {
        out.warning("--quick is a first look: too few runs for conclusions");
    }
    let failed = results.measurements.iter().flatten().any(|measured| measured.failure.is_some());
    let missed = goals.iter().any(|goal| !goal.met);
    Ok(u8::from(failed || arguments.check && missed))
}
