//! The commands of hugeheap.
//!
//! ```text
//!   main ── cli      what can be typed
//!     ├──── typed    how a line becomes that
//!     ├──── run      start a command on hugeheap, and say what came of it
//!     ├──── bench    experiments, side by side with stock and with peers
//!     ├──── collapse, release    a running process: its heap on huge pages; what is stranded in it freed
//!     ├──── stat     whole commands compared
//!     ├──── record   memory of a command or process over time
//!     ├──── report   one page of measurements
//!     ├──── map      what a process's memory is made of, and why it is not huge
//!     ├──── ps, top  one line for each process: once; live
//!     ├──── thp, pool    knobs of the host ──▶ change: all or none, with the way back
//!     ├──── status   the host at a glance
//!     ├──── export   metrics for Prometheus
//!     ├──── completions, man     for shells and man(1), from the same definition as the help
//!     └──── doctor, explain    findings with a fix, by pure rules over facts
//!            uses process (one that is named), host (facts for reports), statistics,
//!                 output (messages, units, colour), descriptors (whether a command can open what it needs)
//! ```
//!
//! A library, so that a Python wheel can offer the same commands from its own entry point: it calls
//! [`main`] with the path of the preload library it carries. Nothing here keeps state between calls.
//!
//! Rules every command follows: standard output is data, everything said about it goes to standard error; exit codes
//! are those of [`exit`]; each message says what happened, why, and what to do.

mod bench;
mod cgroup;
mod change;
mod cli;
mod collapse;
mod columns;
mod completions;
mod descriptors;
mod doctor;
pub mod exit;
mod export;
mod figure;
mod file;
mod host;
mod man;
mod map;
mod output;
mod pool;
mod process;
mod ps;
mod record;
mod release;
mod report;
mod reproduce;
mod run;
mod significance;
mod stat;
mod statistics;
mod status;
mod thp;
mod tlb;
mod top;
mod typed;
mod watch;

use crate::descriptors::told;
use hugeheap_os::linux::Linux;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

#[doc(hidden)]
pub use bench::measuring;
use cli::{Cli, Command};
use output::Output;

/// What every command gets besides its own arguments.
struct Context {
    out: Output,
    /// What this host says, or the root the user named.
    facts: Linux,
    /// Whether the user named a root.
    root: bool,
    /// The preload library of the caller, when it brings one.
    library: Option<PathBuf>,
}

/// Why `--root` names no directory, and the exit code, if it does not. Where nothing is there, every file is
/// missing: a mistyped name was told as a kernel without huge pages.
fn no_root(directory: &Path) -> Option<(String, u8)> {
    let named = |why: String, code| Some((format!("--root {}: {why}", directory.display()), code));
    match std::fs::metadata(directory) {
        Ok(about) if about.is_dir() => None,
        Ok(_) => named("not a directory".to_owned(), exit::USAGE),
        Err(error) => named(told(&error).to_string(), file::refused(&error)),
    }
}

/// Runs the command line `args` (with the program's name first) and returns the exit code.
/// `library` is the preload library a Python wheel carries, `None` for the program itself.
///
/// May not return: `run` replaces the process, and dies by the signal its command died of.
pub fn main(args: impl IntoIterator<Item = OsString>, library: Option<&Path>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match typed::parse(&args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output and are no failure.
            if !error.use_stderr() {
                let out = Output::new(false, false, false);
                let text = error.render();
                out.data(&if out.colour_on_stdout() { text.ansi().to_string() } else { text.to_string() });
                return out.finish(exit::OK);
            }
            let _ = error.print();
            if let Some(cause) = cli::cause_in_environment(&error, &args) {
                Output::new(false, false, true).error(&cause);
            }
            return exit::USAGE;
        }
    };
    let out = Output::new(cli.global.quiet, cli.global.verbose, cli.global.no_color);
    if let Some((why, code)) = cli.global.root.as_deref().and_then(no_root) {
        out.error(&why);
        return code;
    }
    let facts = match cli.global.root.as_deref().map(Linux::with_root) {
        None => Linux::new(),
        Some(Ok(facts)) => facts,
        Some(Err(error)) => {
            out.error(&format!("--root: {error}", error = told(&error)));
            return exit::USAGE;
        }
    };
    let root = cli.global.root.is_some();
    let context = Context { out, facts, root, library: library.map(Path::to_path_buf) };
    let out = context.out.clone();
    if let Err(text) = descriptors::check(&cli.command) {
        out.error(&text);
        return exit::UNSUPPORTED;
    }
    out.finish(carried_out(context, cli))
}

/// Refuses to print data where a command has none to print.
fn not_data(context: &Context, why: &str) -> u8 {
    context.out.error(&format!("{why}: leave --json out"));
    exit::USAGE
}

fn carried_out(context: Context, cli: Cli) -> u8 {
    match cli.command {
        Command::Run(mut arguments) => {
            arguments.json |= cli.json;
            // Without a summary to print as JSON nothing was printed.
            arguments.summary |= arguments.json;
            run::run(&context, &arguments)
        }
        Command::Bench(arguments) => bench::bench(&context, arguments, cli.json),
        Command::Collapse(arguments) => collapse::collapse(&context, &arguments, cli.json || arguments.json),
        Command::Map(arguments) => map::map(&context, &arguments, cli.json || arguments.json),
        Command::Ps(arguments) => ps::ps(&context, &arguments, cli.json || arguments.json),
        Command::Release(arguments) => release::release(&context, &arguments, cli.json || arguments.json),
        Command::Stat(arguments) => stat::stat(&context, &arguments, cli.json),
        Command::Report(_) if cli.json => not_data(&context, "a report is a page for people, made of JSON"),
        Command::Report(arguments) => report::report(&context, &arguments),
        Command::Record(_) if cli.json => {
            not_data(&context, "what is recorded goes to the file of -o, as JSON or as a table by its name")
        }
        Command::Record(arguments) => record::record(&context, &arguments),
        Command::Pool(arguments) => pool::pool(&context, &arguments, cli.json),
        Command::Doctor(arguments) => doctor::doctor(&context, &arguments, cli.json),
        Command::Explain(arguments) => doctor::explain(&context, &arguments, cli.json),
        Command::Export(arguments) => export::export(&context, &arguments, cli.json),
        Command::Status(arguments) => status::status(&context, &arguments, cli.json),
        Command::Completions(arguments) => completions::completions(&context, &arguments, cli.json),
        Command::Man(arguments) => man::man(&context, &arguments, cli.json),
        Command::Top(arguments) => top::top(&context, &arguments, cli.json || arguments.json),
        Command::Thp(arguments) => thp::thp(&context, &arguments, cli.json),
        Command::Tlb(arguments) => tlb::tlb(&context, &arguments, cli.json),
    }
}
