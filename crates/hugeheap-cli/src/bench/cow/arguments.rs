//! What can be typed after `hugeheap bench cow`.

use crate::cli::{ReportArguments, bytes};
use clap::Args;
use std::path::PathBuf;

/// What a forked child stops sharing with its parent when it frees, collects, compacts.
///
/// A process builds a heap and forks; the child does one thing, and the kernel says how much memory it has for
/// itself afterwards: the garbage-collected heap, CPython with and without gc.freeze, CPython on hugeheap's
/// objects, and Ruby.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap bench cow
  hugeheap bench cow --quick --against cpython
  hugeheap bench cow --size 1G --json cow.json --check

--runs is 5 here unless given, with --quick 1.")]
pub(crate) struct CowArguments {
    /// Programs to measure beside: cpython, cpython-objects, ruby, all or none. Default: all that are found.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) against: Vec<String>,
    /// The CPython to measure. Default: the first in PATH.
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// About how large the parent's heap is: bytes, or with a suffix K, M, G, T. At least 4M. Default: 256M,
    /// with --quick 64M.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) size: Option<u64>,
    #[command(flatten)]
    pub(crate) report: ReportArguments,
}
