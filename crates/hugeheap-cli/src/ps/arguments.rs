//! What can be typed after `hugeheap ps`.

use clap::{Args, ValueEnum};

/// List processes: memory, how much of it is on huge pages, what could be, and what is stranded.
///
/// What is cheap is read of all of them, what is not only while there is time; a dash stands for what was not read.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap ps
  hugeheap ps --sort eligible -n 10            where huge pages would bring most
  hugeheap ps --sort stranded --budget 5
  hugeheap ps 1234 5678
  hugeheap ps --cgroups --sort stranded        what containers are charged for and nobody maps
  hugeheap ps --json

Processes of other users need CAP_SYS_PTRACE. What is stranded needs CAP_SYS_ADMIN.")]
pub(crate) struct PsArguments {
    /// Only these processes.
    #[arg(value_name = "PID", value_parser = crate::process::id)]
    pub(crate) processes: Vec<u32>,
    /// List the memory cgroups of the processes instead: charge, what it is for, and what is stranded.
    #[arg(long)]
    pub(crate) cgroups: bool,
    /// What the list is sorted by, largest first (numbers and names: smallest first).
    #[arg(long, value_enum, default_value = "rss", value_name = "COLUMN")]
    pub(crate) sort: Sort,
    /// Most lines.
    #[arg(short = 'n', long, value_name = "N", value_parser = crate::typed::whole::<usize>(0..=u64::MAX))]
    pub(crate) lines: Option<usize>,
    /// Seconds for what is not cheap.
    #[arg(long, value_name = "SECONDS", default_value = "0.8", value_parser = crate::cli::seconds)]
    pub(crate) budget: f64,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A column to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// Resident memory.
    Rss,
    /// Memory on huge pages.
    Huge,
    /// Share of memory on huge pages.
    Coverage,
    /// Memory that may be huge and is not.
    Eligible,
    /// Memory that is stranded.
    Stranded,
    /// Number, smallest first.
    Pid,
    /// Number of the user it runs as, smallest first.
    User,
    /// Whether it may have huge pages: those that may not come first.
    Thp,
    /// Name, in the order of letters.
    Name,
}
