//! What can be typed after `hugeheap bench startup`.

use crate::cli::{ReportArguments, bytes};
use clap::Args;

/// A heap made huge before a deadline: by collapse, against waiting for khugepaged.
///
/// A program fills its heap on OS pages and goes on reading it. Then its heap is advised for huge pages and
/// left to khugepaged, or collapsed as hugeheap collapse does. Coverage over time, and the longest time that
/// the program stood still. Beside: huge from the start.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap bench startup
  hugeheap bench startup --quick --size 1G --deadline 10
  hugeheap bench startup --size 8G --deadline 120 --json startup.json

--runs is 3 here unless given, with --quick 1: khugepaged takes the whole deadline each time.")]
pub(crate) struct StartupArguments {
    /// How much memory: bytes, or with a suffix K, M, G, T. Default: 4G, with --quick 512M.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) size: Option<u64>,
    /// Seconds until all of it shall be huge. Default: 60, with --quick 5.
    #[arg(long, value_name = "SECONDS", value_parser = crate::cli::seconds)]
    pub(crate) deadline: Option<f64>,
    #[command(flatten)]
    pub(crate) report: ReportArguments,
}
