//! `hugeheap tlb`: what-if TLB misses without hardware counters.
//!
//! ```text
//!   geometry  a CPU's data TLB  ──┬──▶  model  two runs under valgrind  ──▶  here: table, JSON
//!   machine   what this one says ─┘
//! ```

pub(crate) mod arguments;
mod geometry;
mod machine;
mod model;

use crate::bench::interrupt;
use crate::columns::{Align, columns};
use crate::descriptors::told;
use crate::figure::{self, Content, Figure, Table};
use crate::output::{Output, change, grouped};
use crate::run::target::Target;
use crate::watch::adopt_orphans;
use crate::{Context, exit, file as files, reproduce};
use arguments::TlbArguments;
use geometry::{Cpu, Level, Levels};
use model::{Computed, Counts, Follow};
use serde_json::{Value, json};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

const SCHEMA: &str = "hugeheap.tlb/1";
/// The two page sizes that geometries are given for.
const SMALL: u64 = 4 << 10;
const HUGE: u64 = 2 << 20;
/// Taken where this machine's own CPU is not known.
const FALLBACK: &str = "skylake";

/// Computes and prints.
pub(crate) fn tlb(context: &Context, arguments: &TlbArguments, json: bool) -> u8 {
    let out = &context.out;
    if arguments.cpu.as_ref().is_some_and(|cpu| cpu.name == "list") {
        out.data(&list());
        return exit::OK;
    }
    if arguments.command.is_empty() {
        out.error(
            "a command is needed: hugeheap tlb -- COMMAND (and --cpu list for the CPUs that are known)",
        );
        return exit::USAGE;
    }
    // Before valgrind, which answers 126 and 127, too, and for other reasons than these.
    if let Err(error) = Target::resolve(&arguments.command[0]) {
        out.error(&error.to_string());
        return error.exit_code();
    }
    let mut cpu = arguments.cpu.clone().unwrap_or_else(|| own(context));
    let whole = cpu.huge;
    cpu.huge = whole.map(|level| level.fitted(HUGE));
    if cpu.huge != whole {
        out.progress(
            &format!(
                "{} has {} entries for 2 MiB; valgrind's model holds {} of them: misses there are an upper bound",
                cpu.name, whole[1].entries, cpu.huge[1].entries
            ),
            true,
        );
    }
    interrupt::watch();
    adopt_orphans();
    let computed = compute(out, &cpu, arguments);
    out.progress_end();
    if let Some(signal) = interrupt::noted() {
        out.warning("interrupted before both runs had ended: there is nothing to report");
        return (128 + signal) as u8;
    }
    let computed = match computed {
        Ok(computed) => computed,
        Err(error) => return refused(context, &error),
    };
    let counts = [computed[0].counts, computed[1].counts];
    let status = computed[0].status;
    if !status.success() {
        out.warning(&format!("the command failed ({status}); the figures are of what it did until then"));
    }
    let value = value(&cpu, arguments, counts, status);
    match (&arguments.json, json) {
        (Some(Some(file)), _) => {
            // The table first: it is there also when the file cannot be written, after minutes of work.
            out.data(&text(&cpu, counts));
            if let Err(error) = files::replace(file, &crate::output::json(&value)) {
                out.error(&format!("{} could not be written: {error}", file.display(), error = told(&error)));
                return files::refused(&error);
            }
        }
        (Some(None), _) | (None, true) => {
            out.data(&crate::output::json(&value));
        }
        (None, false) => {
            out.data(&text(&cpu, counts));
        }
    }
    passed_through(status)
}

/// Runs the command on both page sizes.
fn compute(out: &Output, cpu: &Cpu, arguments: &TlbArguments) -> io::Result<[Computed; 2]> {
    let mut follow = if arguments.children { Follow::Children } else { Follow::Alone };
    let mut one = |levels, page, name, shown| {
        out.progress(&format!("running on pages of {name} under valgrind: slow"), false);
        let command = &arguments.command;
        if let Some(computed) = model::compute(levels, page, follow, command, shown)? {
            return Ok(computed);
        }
        // A wrapper, such as that of pyenv. It ran at its own speed until now, and what it started would not
        // have had to be slow.
        follow = Follow::Execution;
        out.progress(
            &format!(
                "{} executes another program in its place: once more, following it (naming that program is quicker)",
                command[0].to_string_lossy()
            ),
            true,
        );
        let computed = model::compute(levels, page, follow, command, false)?;
        computed.ok_or_else(|| io::Error::other("nothing was computed"))
    };
    Ok([one(cpu.small, SMALL, "4 KiB", true)?, one(cpu.huge, HUGE, "2 MiB", false)?])
}

/// The command's own status; of one that was killed, the number shells use.
fn passed_through(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn refused(context: &Context, error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound {
        context.out.error("valgrind was not found, whose cache model this needs: apt install valgrind");
    } else {
        context.out.error(&told(error).to_string());
    }
    exit::UNSUPPORTED
}

/// This machine's CPU, or the one that is taken for it.
fn own(context: &Context) -> Cpu {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    geometry::of(&cpuinfo).or_else(machine::own).unwrap_or_else(|| {
        context.out.warning(&format!(
            "this machine's CPU is not known here and does not tell its TLB: computed for {FALLBACK}; --cpu names another, or gives its geometry"
        ));
        geometry::parse(FALLBACK).expect("it is in the list")
    })
}

fn entries(levels: Levels) -> String {
    let one = |Level { entries, ways }: Level| {
        if ways == entries { format!("{entries} full") } else { format!("{entries} {ways}-way") }
    };
    format!("{} + {}", one(levels[0]), one(levels[1]))
}

fn list() -> String {
    let head = ["name", "4 KiB", "2 MiB", "from"].map(str::to_owned).to_vec();
    let rows = geometry::known().map(|cpu| vec![cpu.name, entries(cpu.small), entries(cpu.huge), cpu.source]);
    columns(&[Align::Left; 4], &std::iter::once(head).chain(rows).collect::<Vec<_>>())
}

/// The table, its head first.
fn rows(cpu: &Cpu, [small, huge]: [Counts; 2]) -> Vec<Vec<String>> {
    let per_thousand = |misses: u64, counts: Counts| misses as f64 * 1e3 / counts.accesses.max(1) as f64;
    let row = |title: &str, a: u64, b: u64| {
        let changed = match b as f64 / a as f64 {
            _ if a == 0 => String::new(),
            // Not all of them, and nearly.
            ratio if b > 0 && ratio < 0.0005 => "below −99.9 %".to_owned(),
            ratio => change(ratio),
        };
        vec![title.to_owned(), grouped(a), grouped(b), changed]
    };
    vec![
        ["", "4 KiB pages", "2 MiB pages", "change"].map(str::to_owned).to_vec(),
        vec!["data TLB, entries".to_owned(), entries(cpu.small), entries(cpu.huge)],
        row("data accesses", small.accesses, huge.accesses),
        row("misses of the first level", small.first, huge.first),
        row("misses of the second level", small.second, huge.second),
        vec![
            "the same per 1,000 accesses".to_owned(),
            format!("{:.3}", per_thousand(small.second, small)),
            format!("{:.3}", per_thousand(huge.second, huge)),
        ],
    ]
}

fn text(cpu: &Cpu, counts: [Counts; 2]) -> String {
    format!(
        "Computed, not counted, for {} ({})\n{}\
         Every access of user code, all of its memory on pages of one size. Not in it: the kernel, other\n\
         programs, prefetching, entries for several neighbours, the time of a page walk.\n",
        cpu.name,
        cpu.source,
        columns(&[Align::Left, Align::Right, Align::Right, Align::Right], &rows(cpu, counts))
    )
}

fn value(cpu: &Cpu, arguments: &TlbArguments, counts: [Counts; 2], status: ExitStatus) -> Value {
    let level = |Level { entries, ways }: Level| json!({"entries": entries, "ways": ways});
    let page = |page: u64, levels: Levels, counts: Counts| {
        json!({
            "page": page,
            "levels": levels.map(level),
            "accesses": counts.accesses,
            "first_level_misses": counts.first,
            "second_level_misses": counts.second,
        })
    };
    let mut table = rows(cpu, counts);
    let table = Table { head: table.remove(0), rows: table };
    let title = format!("Misses of the data TLB, computed for {}", cpu.name);
    let note = "every data access of user code, all memory on pages of one size; not counted by hardware";
    let words = arguments.command.iter().map(|word| word.to_string_lossy());
    json!({
        "schema": SCHEMA,
        "hugeheap": env!("CARGO_PKG_VERSION"),
        "command": words.collect::<Vec<_>>(),
        "children": arguments.children,
        "status": passed_through(status),
        "cpu": {"name": cpu.name, "source": cpu.source},
        "pages": [page(SMALL, cpu.small, counts[0]), page(HUGE, cpu.huge, counts[1])],
        "reproduce": reproduce::command(),
        figure::KEY: [Figure::new(title, note, Content::Table(table))],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_told_of_a_thousand_accesses_and_with_their_change() {
        let cpu = geometry::parse("64:4,2048:16").unwrap();
        let counts = |first, second| Counts { accesses: 2000, first, second };
        let rows = rows(&cpu, [counts(50, 25), counts(10, 0)]);
        assert_eq!(rows[3], ["misses of the first level", "50", "10", "−80.0 %"]);
        assert_eq!(rows[4], ["misses of the second level", "25", "0", "−100.0 %"]);
        assert_eq!(rows[5][1..], ["12.500", "0.000"]);
    }

    #[test]
    fn a_command_that_was_killed_has_the_status_that_shells_give_it() {
        assert_eq!(passed_through(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(passed_through(ExitStatus::from_raw(libc::SIGKILL)), 128 + 9);
    }
}
