//! What can be typed after `hugeheap map`.

use clap::Args;
use std::path::PathBuf;

/// Show what the memory of a process is made of: per mapping and per 2 MiB, and why it is not huge.
///
/// One character is 2 MiB (or more, where a mapping is large). Mappings with less than that in memory are summed up.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap map 1234
  hugeheap map 1234 --all --rows 4             every mapping, at most four lines of each
  hugeheap map 1234 --svg map.svg              a picture; the reason of each square under the pointer
  hugeheap map 1234 --json > map.json

Another user's process needs CAP_SYS_PTRACE. What is stranded shows with CAP_SYS_ADMIN.")]
pub(crate) struct MapArguments {
    /// The process.
    #[arg(value_name = "PID", value_parser = crate::process::id)]
    pub(crate) process: u32,
    /// Show small mappings, too.
    #[arg(long)]
    pub(crate) all: bool,
    /// Most lines for one mapping.
    #[arg(long, value_name = "N", default_value = "8", value_parser = crate::typed::whole::<u32>(1..=10_000))]
    pub(crate) rows: u32,
    /// Seconds for looking. What was not seen until then is said.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = crate::cli::seconds)]
    pub(crate) budget: f64,
    /// Draw it to FILE.svg.
    #[arg(long, value_name = "FILE.svg", value_parser = crate::cli::named_file())]
    pub(crate) svg: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
