//! What can be typed after `hugeheap stat`.

use super::condition::Condition;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Compare whole commands: time, page faults, memory, huge pages, TLB.
///
/// The commands stand after `--`, with `:::` between them; the first is what the others are compared with. They
/// run in turn, so that a disturbance meets all of them. A change is marked `~` when it may as well be chance,
/// judged for all figures together.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap stat -- python3 app.py ::: hugeheap run -- python3 app.py
  hugeheap stat --runs 20 --names old,new -- ./old ::: ./new
  hugeheap stat --prepare 'rm -rf cache' --json result.json -- ./build ::: ./build --fast
  hugeheap stat --fail-if 'rss > 1.05' --fail-if 'wall > 1.1 and user > 1.1' -- ./old ::: ./new
  hugeheap stat --pyperf results -- ./old ::: ./new; pyperf compare_to results/A.json results/B.json

--fail-if compares with the first command: 'rss > 1.05' is met when a command needs more than 1.05 times as much, and the difference
is not chance. METRIC.value is the median itself, METRIC.low and METRIC.high the ends of the ratio's interval. Operators: > >= < <= and or ( ).")]
pub(crate) struct StatArguments {
    /// Measured runs of each command.
    #[arg(long, value_name = "N", default_value = "10", value_parser = crate::typed::whole::<u32>(2..=10_000))]
    pub(crate) runs: u32,
    /// Runs of each command before the measured ones.
    #[arg(long, value_name = "N", default_value = "1", value_parser = crate::typed::whole::<u32>(0..=1_000))]
    pub(crate) warmup: u32,
    /// Run before each run, by the shell, not measured: once for all commands, or once for each of them.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) prepare: Vec<String>,
    /// What the commands are called, instead of A, B, C.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) names: Vec<String>,
    /// Measure a command that fails, too, instead of leaving it out.
    #[arg(long)]
    pub(crate) ignore_failure: bool,
    /// Exit with status 1 when this is met (see below). May be given several times.
    #[arg(long, value_name = "CONDITION", value_parser = Condition::parse)]
    pub(crate) fail_if: Vec<Condition>,
    /// Write all runs, host facts and results as JSON to FILE; without FILE, to standard output instead of the table.
    #[arg(long, value_name = "FILE", num_args = 0..=1, value_parser = crate::cli::file_to_write())]
    pub(crate) json: Option<Option<PathBuf>>,
    /// Write a file for each command to DIR that pyperf's compare_to reads.
    #[arg(long, value_name = "DIR")]
    pub(crate) pyperf: Option<PathBuf>,
    /// The commands.
    #[arg(required = true, last = true, allow_hyphen_values = true, value_name = "COMMAND ::: COMMAND")]
    pub(crate) commands: Vec<OsString>,
}
