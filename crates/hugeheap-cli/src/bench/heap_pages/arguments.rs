//! What can be typed after `hugeheap bench heap-pages`.

use crate::cli::ReportArguments;
use clap::Args;
use std::path::PathBuf;

/// Heap pages of 16 KiB: a real Ruby program on several allocators, other sizes of heap pages, bytes lost by rounding.
///
/// RDoc reads Ruby's own library, run by run on each allocator that is found: memory over time, and its
/// maximum. A heap of heap pages of 16 to 128 KiB: what can be given back. And what each allocator makes of a
/// request for a heap page.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap bench heap-pages
  hugeheap bench heap-pages --quick --part rdoc
  hugeheap bench heap-pages --runs 50 --json heap-pages.json     as many runs as the reference

Needs Ruby with RDoc (Debian: apt install ruby). Without it only the heap pages of other sizes are measured.
--runs is 6 here unless given, with --quick 3: RDoc reads all of the library each time.")]
pub(crate) struct HeapPagesArguments {
    /// The Ruby to run. Default: the first in PATH.
    #[arg(long, value_name = "PATH")]
    pub(crate) ruby: Option<PathBuf>,
    /// What of Ruby's library RDoc reads: all, or names in it, separated by commas. Default: all, with --quick
    /// rdoc,optparse.
    #[arg(long, value_name = "LIST")]
    pub(crate) part: Option<String>,
    /// Objects of 40 bytes in the heap of other page sizes. Default: 4 million, with --quick 1 million.
    #[arg(long, value_name = "N", value_parser = crate::typed::whole::<u64>(10_000..=1_000_000_000))]
    pub(crate) objects: Option<u64>,
    #[command(flatten)]
    pub(crate) report: ReportArguments,
}
