//! What can be typed: the command line as types. No behaviour.
//!
//! `--json` is a switch of its own at each command and before the command: for `run` it is a switch, for `bench` it
//! may name a file, and one switch for both would swallow the command's name.

use crate::output::shown;
use clap::builder::{OsStringValueParser, PossibleValue, TypedValueParser, styling};
use clap::error::{ContextKind, ContextValue};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use hugeheap::arena::Policy;
use hugeheap::telemetry::Level;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const STYLES: styling::Styles = styling::Styles::styled()
    .header(styling::AnsiColor::Green.on_default().bold())
    .usage(styling::AnsiColor::Green.on_default().bold())
    .literal(styling::AnsiColor::Cyan.on_default())
    .placeholder(styling::AnsiColor::Cyan.on_default());

/// The object heap on huge pages: run programs on it, and measure what it brings.
#[derive(Debug, Parser)]
#[command(name = "hugeheap", version, styles = STYLES, max_term_width = 100)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  hugeheap run -- python3 app.py              a program on huge pages
  hugeheap doctor                             can this host have huge pages; if not, the fix
  hugeheap collapse 1234                      the heap of a running process on huge pages
  hugeheap help pool set                      the help of a command

Exit status: 0 ok, 1 findings, 2 usage, 3 not supported here, 4 permission, 5 target gone.
A command that was started passes its own status through."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    /// Print data as JSON.
    #[arg(long, id = "json_first")]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Print no colours (also: NO_COLOR=1).
    #[arg(long, global = true, display_order = 900)]
    pub(crate) no_color: bool,
    /// Print no warnings and no progress.
    #[arg(short, long, global = true, conflicts_with = "verbose", display_order = 901)]
    pub(crate) quiet: bool,
    /// Say what is done.
    #[arg(short, long, global = true, display_order = 902)]
    pub(crate) verbose: bool,
    /// Read /proc and /sys, and set knobs, below this directory (tests, containers).
    #[arg(long, global = true, value_name = "DIR", display_order = 903)]
    pub(crate) root: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    // Their own text is their help: one here would hide all but its first line.
    Run(RunArguments),
    Bench(BenchArguments),
    Stat(crate::stat::arguments::StatArguments),
    Record(crate::record::arguments::RecordArguments),
    Report(crate::report::arguments::ReportArguments),
    Collapse(crate::collapse::arguments::CollapseArguments),
    Release(crate::release::arguments::ReleaseArguments),
    Map(crate::map::arguments::MapArguments),
    Ps(crate::ps::arguments::PsArguments),
    Top(Box<crate::top::arguments::TopArguments>),
    Thp(crate::thp::arguments::ThpArguments),
    Tlb(crate::tlb::arguments::TlbArguments),
    Pool(crate::pool::arguments::PoolArguments),
    Export(crate::export::arguments::ExportArguments),
    Status(crate::status::arguments::StatusArguments),
    Doctor(crate::doctor::arguments::DoctorArguments),
    Explain(crate::doctor::arguments::ExplainArguments),
    Completions(crate::completions::CompletionsArguments),
    Man(crate::man::ManArguments),
}

/// Start any command with its Python objects, or all that it allocates, on huge pages.
///
/// The command replaces hugeheap (no process in between) unless a summary is asked for. Its children are on hugeheap
/// too. A program that cannot be hooked runs as it is, and one line says why.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap run -- python3 app.py
  hugeheap run --summary -- python3 app.py            what happened, on standard error at exit
  hugeheap run --summary-file heap.json -- gunicorn app:wsgi
  hugeheap run --policy hugetlb --require -- python3 app.py")]
pub(crate) struct RunArguments {
    /// What the arenas are made of.
    #[arg(
        long,
        value_enum,
        default_value = "auto",
        value_name = "POLICY",
        env = "HUGEHEAP_POLICY",
        hide_env_values = true
    )]
    pub(crate) policy: PolicyName,
    /// How much of the program's memory comes from hugeheap. Unless it is said: malloc of a Ruby, else arenas.
    #[arg(long, value_enum, value_name = "LEVEL", env = "HUGEHEAP_LEVEL", hide_env_values = true)]
    pub(crate) level: Option<LevelName>,
    /// Seconds after which memory no longer needed goes back to the system.
    #[arg(long, value_parser = seconds, value_name = "SECONDS", env = "HUGEHEAP_DECAY", hide_env_values = true)]
    pub(crate) decay: Option<f64>,
    /// Above this much memory in arenas nothing is kept for reuse and nothing rounded up to huge pages (no hard limit;
    /// 0: none): bytes, or with a suffix K, M, G, T.
    #[arg(long, value_parser = bytes, value_name = "BYTES", env = "HUGEHEAP_LIMIT", hide_env_values = true)]
    pub(crate) limit: Option<u64>,
    /// Make OS pages alike of which little is used, for a host that merges equal pages (KSM): an idle heap that
    /// has shrunk takes less memory. Only with level objects or malloc, and not with hardened heaps.
    #[arg(long)]
    pub(crate) merge: bool,
    /// Heaps that make mistakes harder to use: freed blocks are cleared and wait, blocks are handed out at
    /// random, large ones have guards. Costs time. Only with level objects or malloc.
    #[arg(long)]
    pub(crate) hardened: bool,
    /// When the command has ended, print what happened on standard error.
    #[arg(long)]
    pub(crate) summary: bool,
    /// When the command has ended, write what happened to FILE as JSON.
    #[arg(long, value_name = "FILE", value_parser = named_file())]
    pub(crate) summary_file: Option<PathBuf>,
    /// Print the summary, as JSON (on standard error: standard output is the command's).
    #[arg(long)]
    pub(crate) json: bool,
    /// Only the process of the command itself, not its children.
    #[arg(long)]
    pub(crate) no_children: bool,
    /// No maintenance thread: memory goes back when the program allocates or frees, not while it idles.
    #[arg(long)]
    pub(crate) no_thread: bool,
    /// Refuse (status 3) when the command cannot be hooked, instead of running it as it is.
    #[arg(long)]
    pub(crate) require: bool,
    /// The command and its arguments.
    // No hyphen in front: a mistyped option is no command that is looked for in PATH.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Measure, side by side with stock and with peers.
///
/// Each experiment runs its variants in turn and prints a table with the spread of its runs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap bench list
  hugeheap bench obmalloc --quick")]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    pub(crate) experiment: Experiment,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Experiment {
    List(ListArguments),
    All(Box<crate::bench::all::arguments::AllArguments>),
    Obmalloc(Box<ObmallocArguments>),
    GiveBack(Box<GiveBackArguments>),
    AllocRate(Box<crate::bench::alloc_rate::arguments::AllocRateArguments>),
    Gc(Box<crate::bench::gc::arguments::GcArguments>),
    Cow(Box<crate::bench::cow::arguments::CowArguments>),
    Stride(Box<crate::bench::stride::arguments::StrideArguments>),
    #[command(hide = true)]
    Worker(crate::bench::worker::WorkerArguments),
    Stranded(Box<crate::bench::stranded::arguments::StrandedArguments>),
    Startup(Box<crate::bench::startup::arguments::StartupArguments>),
    Cgroup(Box<crate::bench::cgroup::arguments::CgroupArguments>),
    HeapPages(Box<crate::bench::heap_pages::arguments::HeapPagesArguments>),
}

/// List the experiments, their workloads, and what they can be compared with here.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap bench list
  hugeheap bench list --python /usr/bin/python3.13 --json")]
pub(crate) struct ListArguments {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The interpreter to look at.
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
}

/// CPython's small objects: time, page faults, memory and huge-page coverage.
///
/// Nine workloads, each in a process of its own without the cyclic collector, on stock CPython, on hugeheap's policies
/// and on the allocators found on this machine, in turn, so that a disturbance meets all of them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap bench obmalloc
  hugeheap bench obmalloc --quick --workloads list_of_tuples,fragmentation
  hugeheap bench obmalloc --policies auto,thp,base --against none --runs 20
  hugeheap bench obmalloc --level objects --policies auto
  hugeheap bench obmalloc --python /usr/bin/python3.13 --json result.json")]
pub(crate) struct ObmallocArguments {
    #[command(flatten)]
    pub(crate) variants: VariantArguments,
    /// Workloads to run. Default: all nine, and start-up.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) workloads: Vec<String>,
    #[command(flatten)]
    pub(crate) report: ReportArguments,
}

/// Memory freed and needed again: what giving back costs, and what keeping holds.
///
/// A million instances with one attribute, and a gigabyte of small objects, each made and freed several times,
/// then a wait: real, user and system time by phase, and memory over time, watched from outside, on stock
/// CPython, hugeheap and peers.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap bench give-back
  hugeheap bench give-back --quick --workloads cycle --size 512M
  hugeheap bench give-back --level objects --policies auto --against mimalloc,jemalloc
  hugeheap bench give-back --plot memory.svg --tsv memory.tsv --json result.json")]
pub(crate) struct GiveBackArguments {
    #[command(flatten)]
    pub(crate) variants: VariantArguments,
    /// Workloads to run: instances, cycle. Default: both.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) workloads: Vec<String>,
    /// How often the objects are made and freed. Default: 5, with --quick 3.
    #[arg(long, value_name = "N", value_parser = crate::typed::whole::<u32>(2..=1_000))]
    pub(crate) cycles: Option<u32>,
    /// How many instances. Default: a million.
    #[arg(long, value_name = "N", value_parser = crate::typed::whole::<u64>(0..=u64::MAX))]
    pub(crate) instances: Option<u64>,
    /// How much memory workload cycle makes and frees: bytes, or with a suffix K, M, G, T. Default: 1G, with --quick
    /// 256M.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) size: Option<u64>,
    /// Seconds to wait after the last free before memory is looked at. Default: 3.
    #[arg(long, value_name = "SECONDS", value_parser = wait)]
    pub(crate) idle: Option<f64>,
    /// Draw memory over time to FILE.svg.
    #[arg(long, value_name = "FILE.svg", value_parser = named_file())]
    pub(crate) plot: Option<PathBuf>,
    /// Write memory over time to FILE as tab-separated values.
    #[arg(long, value_name = "FILE", value_parser = named_file())]
    pub(crate) tsv: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) report: ReportArguments,
}

/// What an experiment runs on.
#[derive(Debug, Args)]
pub(crate) struct VariantArguments {
    /// hugeheap's policies to measure (all: every one). Default: auto, thp, and hugetlb when there is a pool.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) policies: Vec<String>,
    /// Levels to measure each policy at: arenas (default), objects, or all. Level objects is measured beside arenas.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) level: Vec<String>,
    /// Peers to measure: mimalloc, jemalloc, tcmalloc, python-mimalloc, python-hugepages, all or none. Default: all
    /// that are found.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) against: Vec<String>,
    /// The interpreter. Default: the first CPython in PATH, looked up through wrappers such as pyenv's.
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// A CPython built with --with-pymalloc-hugepages, to measure against.
    #[arg(long, value_name = "PATH")]
    pub(crate) hugepage_python: Option<PathBuf>,
}

/// How an experiment measures and reports.
#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// Timed runs of each workload on each variant. Default: 10, with --quick 3, unless said below.
    #[arg(long, value_name = "N", value_parser = crate::typed::whole::<u32>(1..=10_000))]
    pub(crate) runs: Option<u32>,
    /// A first look, smaller and with fewer runs, and less memory touched beforehand. Not for conclusions.
    #[arg(long)]
    pub(crate) quick: bool,
    /// How much free memory to touch once before measuring: bytes with suffix, all, or none. Default: all, and
    /// none where the host takes free memory back at once.
    #[arg(long, value_name = "BYTES", value_parser = Touch::parse)]
    pub(crate) touch: Option<Touch>,
    /// Write all runs, host facts and results as JSON to FILE; without FILE, to standard output instead of the tables.
    #[arg(long, value_name = "FILE", num_args = 0..=1, value_parser = file_to_write())]
    pub(crate) json: Option<Option<PathBuf>>,
    /// Write the tables to FILE too.
    #[arg(short, long, value_name = "FILE", value_parser = named_file())]
    pub(crate) output: Option<PathBuf>,
    /// Exit with status 1 when a goal in the list at the end is missed.
    #[arg(long)]
    pub(crate) check: bool,
}

impl ReportArguments {
    /// `--json` before the command counts as one without a file.
    pub(crate) fn json_too(&mut self, asked: bool) {
        if asked && self.json.is_none() {
            self.json = Some(None);
        }
    }

    /// Files that are to be written.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.output.iter().chain(self.json.iter().flatten()).map(PathBuf::as_path)
    }
}

/// How much memory to touch before measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    All,
    Bytes(u64),
}

impl Touch {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "none" => Ok(Self::Bytes(0)),
            _ => bytes(text).map(Self::Bytes),
        }
    }
}

/// A policy as a value of the command line: clap's trait cannot be implemented for another crate's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyName(pub(crate) Policy);

impl ValueEnum for PolicyName {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [PolicyName; Policy::ALL.len()] = {
            let mut all = [PolicyName(Policy::Auto); Policy::ALL.len()];
            let mut index = 0;
            while index < all.len() {
                all[index] = PolicyName(Policy::ALL[index]);
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()).help(match self.0 {
            Policy::Auto => "the cheapest way to huge pages that works here",
            Policy::Thp => "transparent huge pages for every arena",
            Policy::Dense => "OS pages first; an arena becomes huge once it is dense",
            Policy::Hugetlb => "pages of the hugetlb pool (vm.nr_hugepages), then as thp",
            Policy::Base => "no huge pages",
        }))
    }
}

/// A level as a value of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LevelName(pub(crate) Level);

impl ValueEnum for LevelName {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [LevelName; Level::ALL.len()] = {
            let mut all = [LevelName(Level::Arenas); Level::ALL.len()];
            let mut index = 0;
            while index < all.len() {
                all[index] = LevelName(Level::ALL[index]);
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()).help(match self.0 {
            Level::Arenas => "CPython's pymalloc keeps its job; its arenas, and blocks of 1 MiB and more, come from hugeheap",
            Level::Objects => "CPython's objects come from hugeheap's own allocator instead of pymalloc, too",
            Level::Malloc => "all that the program allocates comes from hugeheap: any program's malloc, and CPython's objects",
        }))
    }
}

/// A number of bytes: `1048576`, `512M`, `1.5GiB`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    Ok(hugeheap::runtime::parse_bytes(text)?)
}

/// A file that is written to, or standard output without it. Not `-`, by which others mean standard output: a
/// file of that name helps nobody.
pub(crate) fn file_to_write() -> impl TypedValueParser<Value = PathBuf> {
    no_dash("leave FILE out to have it on standard output")
}

/// A file that is written to and has to be named.
pub(crate) fn named_file() -> impl TypedValueParser<Value = PathBuf> {
    no_dash("standard output is /dev/stdout, and a file of this name ./-")
}

fn no_dash(instead: &'static str) -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new()
        .try_map(move |name| if name == "-" { Err(instead) } else { Ok(PathBuf::from(name)) })
}

/// What of the environment a refused command line comes from, if so: clap names the option, which nobody typed.
pub(crate) fn cause_in_environment(error: &clap::Error, line: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
    let option = argument.split(' ').next()?;
    let typed = |word: &OsString| {
        word.to_str()
            .and_then(|word| word.strip_prefix(option))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    // Behind `--` are the command's own words.
    if line.iter().take_while(|word| *word != "--").any(typed) {
        return None;
    }
    let definition = Cli::command();
    let command = line.iter().skip(1).find_map(|word| definition.find_subcommand(word))?;
    let name = option.strip_prefix("--")?;
    let variable = command.get_arguments().find(|argument| argument.get_long() == Some(name))?.get_env()?;
    let value = std::env::var_os(variable)?;
    let (variable, value) = (variable.to_string_lossy(), value.to_string_lossy());
    Some(format!("{variable} is set to '{}' in the environment: correct it, or unset it", shown(&value)))
}

/// A wait in seconds. Not none: what is held after it would be told of a moment that nobody looked at.
fn wait(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.1..=3600.0).contains(&value) => Ok(value),
        _ => Err("not a number of seconds between 0.1 and 3600, such as 3".to_owned()),
    }
}

/// A decay time in seconds, in the range that the library takes: refused here, it is refused before anything runs.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.001..=86_400.0).contains(&value) => Ok(value),
        _ => Err("not a number of seconds between 0.001 and 86400, such as 0.5".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_called_like_standard_output() {
        let line = ["hugeheap", "stat", "--json", "-", "--", "true", ":::", "true"];
        let said = Cli::try_parse_from(line).unwrap_err().to_string();
        assert!(said.contains("leave FILE out to have it on standard output"), "{said}");
        for line in [
            ["run", "--summary-file", "-", "true"],
            ["record", "-o", "-", "true"],
            ["report", "a.json", "-o", "-"],
            ["map", "1", "--svg", "-"],
            ["bench", "stride", "-o", "-"],
        ] {
            let said = Cli::try_parse_from([&["hugeheap"], &line[..]].concat()).unwrap_err().to_string();
            assert!(said.contains("standard output is /dev/stdout"), "{line:?}: {said}");
        }
    }

    /// It was looked for in PATH.
    #[test]
    fn a_mistyped_option_is_no_command() {
        for line in
            [&["run", "--polcy", "thp", "--", "true"][..], &["record", "-o", "a", "--rat", "1", "true"]]
        {
            let said = Cli::try_parse_from([&["hugeheap"], line].concat()).unwrap_err().to_string();
            assert!(said.contains("a similar argument exists"), "{line:?}: {said}");
        }
        for words in [&["-x", "true"][..], &["sh", "--polcy", "-h", "--", "-x", "--", "--summary"]] {
            let line = [&["hugeheap", "run", "--summary", "--"], words].concat();
            let Command::Run(run) = Cli::try_parse_from(line).unwrap().command else { panic!() };
            assert_eq!(run.command, words, "what is behind -- is the command's");
        }
        let Command::Run(run) =
            Cli::try_parse_from(["hugeheap", "run", "sh", "-c", "x", "--summary", "--", "-h"])
                .unwrap()
                .command
        else {
            panic!()
        };
        assert_eq!(
            run.command,
            ["sh", "-c", "x", "--summary", "--", "-h"],
            "as is what is behind its first word"
        );
        assert!(!run.summary);
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_of_every_command_is_its_whole_text_with_examples() {
        fn look(command: &clap::Command, path: &str) {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.starts_with("Examples:\n"), "{path} has no examples");
            let starts = ["  hugeheap ", "  sudo hugeheap ", "(hugeheap "];
            assert!(starts.iter().any(|start| after.contains(start)), "{path}");
            // What is hidden is for hugeheap itself.
            for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
                look(inner, &format!("{path} {}", inner.get_name()));
            }
        }
        look(&Cli::command(), "hugeheap");
        for (words, said) in [
            (&["run"][..], "The command replaces hugeheap"),
            (&["bench", "obmalloc"], "so that a disturbance meets all of them"),
            (&["pool", "set"], "The line that undoes it is printed"),
            (&["thp", "set"], "or none"),
            (&["doctor"], "Changes nothing"),
        ] {
            let line = ["hugeheap"].iter().chain(words).chain(&["--help"]).copied();
            let text = Cli::try_parse_from(line).unwrap_err().to_string();
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(said), "{words:?}: {text}");
        }
    }

    #[test]
    fn everything_after_the_dashes_belongs_to_the_command() {
        let cli = Cli::try_parse_from(["hugeheap", "run", "-q", "--", "python3", "--policy", "-v"]).unwrap();
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert_eq!(run.command, ["python3", "--policy", "-v"]);
        assert!(cli.global.quiet);
    }

    #[test]
    fn json_before_the_command_does_not_swallow_it() {
        let cli = Cli::try_parse_from(["hugeheap", "--json", "run", "--", "true"]).unwrap();
        assert!(cli.json);
        let cli = Cli::try_parse_from(["hugeheap", "bench", "obmalloc", "--json", "x.json"]).unwrap();
        let Command::Bench(BenchArguments { experiment: Experiment::Obmalloc(bench) }) = cli.command else {
            panic!("not bench")
        };
        assert_eq!(bench.report.json, Some(Some("x.json".into())));
    }

    #[test]
    fn an_unknown_policy_is_refused_with_the_list() {
        let error =
            Cli::try_parse_from(["hugeheap", "run", "--policy", "gigantic", "--", "true"]).unwrap_err();
        let text = error.to_string();
        for policy in Policy::ALL {
            assert!(text.contains(policy.name()), "{text}");
        }
    }

    #[test]
    fn bytes_have_suffixes() {
        assert_eq!(bytes("1048576"), Ok(1 << 20));
        assert_eq!(bytes("512M"), Ok(512 << 20));
        assert_eq!(bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(bytes("2kb"), Ok(2048));
        assert!(bytes("5 apples").is_err());
        assert!(bytes("").is_err());
        assert!(bytes("-1").is_err());
        assert!(bytes("99999999999T").is_err());
    }

    #[test]
    fn seconds_are_not_negative() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert!(seconds("-1").is_err());
        assert!(seconds("inf").is_err());
    }
}
