//! What can be typed after `hugeheap bench gc`.

use crate::cli::{ReportArguments, bytes};
use clap::Args;

/// The garbage-collected heap at work: throughput, pauses, memory, beside other collectors.
///
/// Trees, a large live set with churn, a cache, pinned objects, wide arrays, and an old generation of which
/// nine tenths die: on hugeheap, on Boehm's collector in C, and in OCaml, the same work with the same check at
/// its end.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap bench gc
  hugeheap bench gc --quick --workloads binary-trees,gcbench
  hugeheap bench gc --workloads churn,evacuation --size 4G --against none
  hugeheap bench gc --json gc.json -o gc.txt --check

--runs is 5 here unless given, with --quick 3.")]
pub(crate) struct GcArguments {
    /// Workloads to run: binary-trees, gcbench, churn, lru, pinned, wide-arrays, evacuation. Default: all.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) workloads: Vec<String>,
    /// Programs to measure beside: hugeheap-tuned, boehm, boehm-tuned, ocaml, all or none. Default: all that are found.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) against: Vec<String>,
    /// Depth of the trees of binary-trees; those of gcbench are two less deep. 8 to 24. Default: 18, with --quick 14.
    #[arg(long, value_name = "N", value_parser = crate::typed::whole::<u32>(8..=24))]
    pub(crate) depth: Option<u32>,
    /// Size of the live set of the other workloads, in lru a quarter of it: bytes, or with a suffix K, M, G, T.
    /// At least 1M. Default: 1G, with --quick 128M.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) size: Option<u64>,
    #[command(flatten)]
    pub(crate) report: ReportArguments,
}
