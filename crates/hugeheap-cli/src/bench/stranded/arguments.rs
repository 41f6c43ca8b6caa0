//! What can be typed after `hugeheap bench stranded`.

use crate::cli::ReportArguments;
use clap::Args;

/// One live byte per huge page: what RSS and the cgroup's charge say, and what giving back makes of it.
///
/// Huge pages are filled, all but one OS page of each is dropped, and the kernel is made to release the rest:
/// on OS pages, on transparent huge pages, and in hugeheap's object heap, which does so by itself. What stays
/// is verified after each step.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap bench stranded
  hugeheap bench stranded --quick --huge-pages 300
  hugeheap bench stranded --json stranded.json

The charge is read where a memory cgroup can be made: as root, or in a delegated group.")]
pub(crate) struct StrandedArguments {
    /// How many huge pages. Default: 700, with --quick 100.
    #[arg(long, value_name = "N", value_parser = crate::typed::whole::<u64>(1..=1_000_000))]
    pub(crate) huge_pages: Option<u64>,
    #[command(flatten)]
    pub(crate) report: ReportArguments,
}
