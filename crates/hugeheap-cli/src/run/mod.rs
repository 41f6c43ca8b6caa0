//! `hugeheap run`: start a command on hugeheap.
//!
//! ```text
//!   library      where libhugeheap_preload.so is, or libhugeheap_malloc.so
//!   level        which level, where nobody says
//!   target (elf) which program the command really is, and whether a library can be loaded into it
//!   readiness    whether this host can give huge pages now
//!   environment  the variables that say it all
//!        │
//!        ├── without a summary: exec, no process is left in between
//!        └── with one: supervise (signals in, status out), then records → summary
//! ```
//!
//! Whatever cannot be done is told in one line, and the command runs as it is, unless `--require` asks otherwise:
//! a program that does not start is worse than one without huge pages.

pub(crate) mod elf;
mod environment;
mod level;
pub(crate) mod library;
mod readiness;
pub(crate) mod records;
mod summary;
pub(crate) mod supervise;
pub(crate) mod target;

use crate::cli::RunArguments;
use crate::descriptors::told;
use crate::file::{can_replace, replace};
use crate::{Context, exit};
use environment::Environment;
use hugeheap::telemetry::Level;
use level::Chosen;
use records::{Found, Records};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use summary::{Hindered, Summary};
use target::{Hindrance, Target};

pub(crate) use environment::{HARDENED, LEVEL, MERGE, POLICY, PRELOAD, TELEMETRY};
pub(crate) use summary::snapshot_json;

/// Runs the command. Returns only when it could not be started, or when a summary was asked for.
pub(crate) fn run(context: &Context, arguments: &RunArguments) -> u8 {
    let out = &context.out;
    let name = &arguments.command[0];
    let target = Target::resolve(name);
    let asked = arguments.level.map(|level| level.0);
    let chosen = level::choose(asked, target.as_ref().ok(), &arguments.command);
    for (option, is_given) in [("--hardened", arguments.hardened), ("--merge", arguments.merge)] {
        if is_given && chosen.level == Level::Arenas {
            out.error(&format!(
                "{option} is for heaps of hugeheap's object allocator: add --level objects or --level malloc"
            ));
            return exit::USAGE;
        }
    }
    let target = match target {
        Ok(target) => target,
        Err(error) => {
            out.error(&error.to_string());
            return error.exit_code();
        }
    };
    let library = match library::find_for(chosen.level, context.library.as_deref()) {
        Ok(library) => library,
        Err(missing) => {
            out.error(&missing.to_string());
            return exit::UNSUPPORTED;
        }
    };
    let machine = match elf::read(&library) {
        Ok(Some(elf)) => elf.machine,
        Ok(None) => {
            // Where it was named, installing would not help.
            let remedy = match std::env::var_os(library::VARIABLE) {
                Some(named) if !named.is_empty() => {
                    format!("{} names it; correct it or unset it", library::VARIABLE)
                }
                _ => "install hugeheap again".to_owned(),
            };
            out.error(&format!("{} is not a shared library; {remedy}", library.display()));
            return exit::UNSUPPORTED;
        }
        Err(error) => {
            out.error(&format!("{} cannot be read: {error}", library.display(), error = told(&error)));
            return exit::UNSUPPORTED;
        }
    };
    let hindrance = target.hindrance(machine);
    if let Some(hindrance) = &hindrance {
        let told = format!("{} {hindrance}", target.program.display());
        if arguments.require {
            out.error(&format!("{told}; not started, because of --require"));
            return exit::UNSUPPORTED;
        }
        let then = if hindrance.spares_children() && !arguments.no_children {
            "it runs as it is, and only programs it starts are hooked"
        } else {
            "it runs unchanged"
        };
        out.warning(&format!("{told}; {then}"));
    }
    let hooks_something =
        hindrance.as_ref().is_none_or(|hindrance| hindrance.spares_children() && !arguments.no_children);
    if hooks_something {
        for warning in readiness::warnings(&context.facts, arguments.policy.0) {
            out.warning(&warning);
        }
        let merge = arguments.merge || std::env::var_os(MERGE).is_some_and(|value| value == "1");
        if let Some(warning) = merge.then(|| readiness::merging(&context.facts)).flatten() {
            out.warning(&warning);
        }
        if let (true, Some(wrapper)) = (arguments.no_children, target.wrapper()) {
            out.warning(&format!(
                "{} is run by {wrapper}, and --no-children hooks only that process, not the programs it starts; \
                 name the program itself, or leave --no-children out",
                target.path.display()
            ));
        }
    }
    if chosen.is_idle && hindrance.is_none() {
        out.warning(&format!(
            "{} is a Ruby, of which nothing comes from hugeheap at level {}: leave --level (HUGEHEAP_LEVEL) out, or say \
             --level malloc",
            target.path.display(),
            chosen.level.name()
        ));
    }
    // As an option each is refused; the variable may be meant for programs in Rust and C.
    for (variable, lack) in [(HARDENED, "which is not hardened"), (MERGE, "whose pages cannot be made alike")]
    {
        let is_set = std::env::var_os(variable).is_some_and(|value| value == "1");
        if hooks_something && chosen.level == Level::Arenas && is_set {
            out.warning(&format!(
                "{variable} is set, but at level arenas Python's objects come from pymalloc, {lack}; the command runs all \
                 the same (add --level objects)"
            ));
        }
    }
    let is_summarised = arguments.summary || arguments.summary_file.is_some();
    // A summary has a directory of its own.
    if hooks_something && !is_summarised {
        if let Some((directory, why)) = unusable_records() {
            out.warning(&format!(
                "no record can be kept in {}, which {TELEMETRY} names: {why}; the command runs all the same (name a \
                 directory that exists and can be written)",
                directory.to_string_lossy()
            ));
        }
    }
    if let Some(file) = &arguments.summary_file {
        // Told now, and not after hours: the command is worth more than its summary.
        if let Err(error) = can_replace(file) {
            out.warning(&format!(
                "the summary cannot be written to {} as it is now: {error}; the command runs all the same",
                file.display(),
                error = told(&error)
            ));
        }
    }
    let plan = Plan {
        context,
        arguments,
        chosen,
        target: &target,
        library: hooks_something.then_some(library),
        hindrance,
    };
    if is_summarised { plan.summarised() } else { plan.exec() }
}

/// The directory that the environment names for records, and why none can be kept there.
fn unusable_records() -> Option<(std::ffi::OsString, String)> {
    let directory = std::env::var_os(TELEMETRY).filter(|name| !name.is_empty())?;
    let why = records::unusable(Path::new(&directory))?;
    Some((directory, why))
}

/// Everything that was decided.
struct Plan<'a> {
    context: &'a Context,
    arguments: &'a RunArguments,
    chosen: Chosen,
    target: &'a Target,
    /// The library to preload; `None` when that would only do harm.
    library: Option<PathBuf>,
    hindrance: Option<Hindrance>,
}

impl Plan<'_> {
    fn command(&self, telemetry: Option<&Path>) -> Command {
        let [name, rest @ ..] = &self.arguments.command[..] else {
            unreachable!("the parser requires a command")
        };
        let mut command = Command::new(name);
        command.args(rest);
        let out = &self.context.out;
        for script in &self.target.scripts {
            out.detail(&format!("{} is a script", script.display()));
        }
        out.detail(&format!("program {}", self.target.program.display()));
        if self.chosen.is_for_ruby {
            out.detail("a Ruby: level malloc, at the others only CPython's memory comes from hugeheap");
        }
        match &self.library {
            Some(library) => {
                let environment = Environment::new(self.arguments, self.chosen.level, library, telemetry);
                out.detail(&format!("environment {}", environment.describe()));
                environment.apply(&mut command);
                if telemetry.is_none() && unusable_records().is_some() {
                    // It was told, once: each interpreter would tell it again.
                    command.env_remove(TELEMETRY);
                }
            }
            None => out.detail("environment unchanged"),
        }
        command
    }

    /// Becomes the command.
    fn exec(&self) -> u8 {
        let error = self.command(None).exec();
        self.not_started(&error)
    }

    /// Runs the command as a child and says what came of it.
    fn summarised(&self) -> u8 {
        let out = &self.context.out;
        let records = Records::new();
        if let Err(error) = &records {
            out.warning(&format!(
                "no temporary directory for the summary: {error}; it will lack what the processes tell (set TMPDIR)",
                error = told(error)
            ));
        }
        if records.is_ok() && std::env::var_os(TELEMETRY).is_some() {
            out.warning(&format!(
                "{TELEMETRY} is set, but the summary needs the records itself: the directory it names stays empty in this run"
            ));
        }
        let mut command = self.command(records.as_ref().ok().map(Records::path));
        let start = Instant::now();
        let ended = match supervise::supervise(&mut command) {
            Ok(ended) => ended,
            Err(error) => return self.not_started(&error),
        };
        let elapsed = start.elapsed().as_secs_f64();
        let found = records.as_ref().map_or_else(|_| Found::default(), Records::read);
        let words: Vec<_> =
            self.arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let summary = Summary {
            command: &words,
            pid: ended.pid,
            status: ended.status,
            elapsed,
            found: &found,
            asked: self.chosen.level,
            is_for_ruby: self.chosen.is_for_ruby,
            hindrance: self
                .hindrance
                .as_ref()
                .map(|hindrance| Hindered { name: hindrance.name(), text: hindrance.to_string() }),
        };
        self.tell(&summary);
        // Before the end by a signal, which runs no destructor.
        drop(records);
        supervise::end_like(ended.status)
    }

    fn tell(&self, summary: &Summary<'_>) {
        let out = &self.context.out;
        if let Some(file) = &self.arguments.summary_file {
            if let Err(error) = replace(file, &crate::output::json(&summary.json())) {
                out.error(&format!(
                    "the summary could not be written to {}: {error}",
                    file.display(),
                    error = told(&error)
                ));
            }
        }
        if self.arguments.summary {
            if self.arguments.json {
                out.plain(&format!("{}\n", summary.json()));
            } else {
                out.plain(&summary.text());
            }
        }
    }

    fn not_started(&self, error: &io::Error) -> u8 {
        let path = self.target.path.display();
        self.context.out.error(&format!("{path} could not be executed: {error}", error = told(error)));
        if error.kind() == io::ErrorKind::NotFound { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE }
    }
}
