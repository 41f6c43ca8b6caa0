//! What can be typed after `hugeheap tlb`.

use super::geometry::{self, Cpu};
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// What-if TLB misses of a command, on OS pages and on huge pages, without hardware counters.
///
/// The command runs twice under valgrind's cache model, with a line of 4 KiB and of 2 MiB: a cache of pages is
/// a TLB. It is slow (20 to 100 times) and gives the same figures each time for a command that does the same
/// each time.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap tlb -- python3 -c 'list(range(1000000))'
  hugeheap tlb --cpu zen4 -- ./server --once
  hugeheap tlb --cpu 64:4,2048:16/32:4,1024:8 -- ./server --once
  hugeheap tlb --cpu list

A geometry is ENTRIES:WAYS of the first and the second level for 4 KiB pages,
and after a slash for 2 MiB pages where they have others.
Modelled: data accesses of user code, least-recently-used sets, all memory on pages of one size.
Not modelled: the kernel, other programs, prefetching, entries that hold several neighbours,
the time of a page walk.")]
pub(crate) struct TlbArguments {
    /// The CPU: a name, a geometry, or list. Default: this machine's.
    #[arg(long, value_name = "NAME|GEOMETRY", value_parser = geometry::parse)]
    pub(crate) cpu: Option<Cpu>,
    /// Count the processes that the command starts, too. What it executes in its own place is counted in any case.
    #[arg(long)]
    pub(crate) children: bool,
    /// Print data as JSON, to FILE or to standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, value_parser = crate::cli::file_to_write())]
    pub(crate) json: Option<Option<PathBuf>>,
    /// The command and its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
