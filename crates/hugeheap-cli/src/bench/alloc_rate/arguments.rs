//! What can be typed after `hugeheap bench alloc-rate`.

use crate::cli::{ReportArguments, bytes};
use clap::Args;
use std::path::PathBuf;

/// How fast objects are allocated that nobody keeps: GB/s, nanoseconds and instructions per object, and which
/// nursery is best.
///
/// A loop allocates objects and keeps the last two, with and without writing a field: on the garbage-collected
/// heap, and the same loop in the languages found on this machine. Then the loop of the heap alone: other sizes
/// of objects, and other sizes of the nursery.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap bench alloc-rate
  hugeheap bench alloc-rate --quick --against none
  hugeheap bench alloc-rate --against boehm,ocaml --sizes 16,64
  hugeheap bench alloc-rate --rpython ./targetallocatealot-c --check")]
pub(crate) struct AllocRateArguments {
    /// Programs to measure beside: boehm, ocaml, java, pypy, pypy-no-jit, cpython, all or none. Default: all
    /// that are found.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) against: Vec<String>,
    /// The reference's program as RPython built it: called with the number of objects and 0 or 1 (field written).
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) rpython: Option<PathBuf>,
    /// The CPython to measure. Default: the first in PATH.
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// Sizes of objects in bytes, of 16, 32, 64, 128, 256, 512, 1024. Default: 16,32,64,128.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) sizes: Vec<usize>,
    /// Bytes to allocate in each run, 16M to 1T; interpreters allocate fewer objects. Default: 8G, with --quick 1G.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) volume: Option<u64>,
    /// Nursery sizes of the sweep, each 64K to 1G. Default: 64K to 64M, doubling, and the one hugeheap chooses here.
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = bytes)]
    pub(crate) nurseries: Vec<u64>,
    /// Do not count instructions: callgrind takes some seconds for each program.
    #[arg(long)]
    pub(crate) no_instructions: bool,
    #[command(flatten)]
    pub(crate) report: ReportArguments,
}
