//! What can be typed after `hugeheap status`.

use clap::Args;

/// This host at a glance: what is on huge pages, what is stranded, what could be had.
///
/// Reads counters of the kernel and no process. `hugeheap doctor` says what should be changed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap status
  hugeheap status --json
  hugeheap --root /host status              from a container that sees the host's /proc and /sys there")]
pub(crate) struct StatusArguments {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
