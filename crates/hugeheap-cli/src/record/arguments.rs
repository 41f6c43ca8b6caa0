//! What can be typed after `hugeheap record`.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Record the memory of a command or of a running process over time.
///
/// RSS, page tables, page faults and the control group's charge at each look; PSS, huge pages and what is
/// stranded as often as the looks' share of the time allows: one percent, unless --cost says otherwise. A
/// command gets a control group of its own where one can be made, and its own exit status passes through.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap record -o memory.tsv -- python3 app.py
  hugeheap record --children -o memory.json -o memory.tsv -- make -j4
  hugeheap record --pid 1234 --duration 60 -o memory.tsv
  for run in 1 2 3; do hugeheap record -o run_$run.json -- python3 app.py; done; hugeheap report run_*.json

The recording of a process ends with it, with --duration, or with Ctrl-C; what was recorded is kept.")]
pub(crate) struct RecordArguments {
    /// Where to: JSON when the name ends in .json, else tab-separated values. May be given for both.
    #[arg(short, long, value_name = "FILE", required = true, value_parser = crate::cli::named_file())]
    pub(crate) output: Vec<PathBuf>,
    /// The processes that it starts, too; of the figures of all, the sum.
    #[arg(long)]
    pub(crate) children: bool,
    /// Looks in a second; fewer where they would cost too much.
    #[arg(long, value_name = "HZ", default_value = "20", value_parser = rate)]
    pub(crate) rate: f64,
    /// Share of the time that looks may take, in percent.
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = share)]
    pub(crate) cost: f64,
    /// What the recording is called in reports: those of the same name are runs of the same. Default: the command.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// A process that is running.
    #[arg(long, value_name = "PID", value_parser = crate::process::id, required_unless_present = "command")]
    pub(crate) pid: Option<u32>,
    /// End after this time. Only with --pid: a command is recorded to its end.
    // Against the command, too: of two arguments that exclude each other, as these, clap does not ask one for
    // the other.
    #[arg(long, value_name = "SECONDS", value_parser = crate::cli::seconds, requires = "pid", conflicts_with = "command")]
    pub(crate) duration: Option<f64>,
    /// The command and its arguments.
    // No hyphen in front: a mistyped option is no command that is looked for in PATH.
    #[arg(trailing_var_arg = true, value_name = "COMMAND", conflicts_with = "pid")]
    pub(crate) command: Vec<OsString>,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.01..=1000.0).contains(&value) => Ok(value),
        _ => Err("not a number of looks per second between 0.01 and 1000, such as 20".to_owned()),
    }
}

/// A share of one from a percentage.
fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.01..=100.0).contains(&value) => Ok(value / 100.0),
        _ => Err("not a percentage between 0.01 and 100, such as 1".to_owned()),
    }
}
