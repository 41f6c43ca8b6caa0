//! What can be typed after `hugeheap release`.

use clap::Args;

/// Free the memory that is stranded in a running process, from outside.
///
/// A huge page of which only a part is still mapped stays charged whole, though RSS does not show it. The
/// kernel is made to take such pages apart and free what nobody maps. The process runs on; contents do not
/// change.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap release 1234 --dry-run              how much is stranded, and in how many huge pages
  sudo hugeheap release 1234
  hugeheap release 1234 --budget 5 --json

Another process needs CAP_SYS_NICE, and the right to read its memory (the same user, or CAP_SYS_PTRACE).
With CAP_SYS_ADMIN stranded pages are known exactly; without, each 2 MiB that is resident in part is tried.")]
pub(crate) struct ReleaseArguments {
    /// The process.
    #[arg(value_name = "PID", value_parser = crate::process::id)]
    pub(crate) process: u32,
    /// Seconds for all of it. What was done until then stays.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = crate::cli::seconds)]
    pub(crate) budget: f64,
    /// Go slower when one call takes longer than this many milliseconds.
    #[arg(long, value_name = "MS", default_value = "20", value_parser = crate::typed::whole::<u32>(1..=10_000))]
    pub(crate) max_latency: u32,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
