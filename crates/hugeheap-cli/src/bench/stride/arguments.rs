//! What can be typed after `hugeheap bench stride`.

use crate::cli::{ReportArguments, bytes};
use clap::Args;

/// One access per OS page: what small pages cost where every access needs another one.
///
/// Memory is touched for the first time, then read once per OS page, in order and scattered, in several passes:
/// on OS pages, on transparent huge pages, and on pages of a hugetlb pool where there is one. First touch and
/// passes are told apart.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap bench stride
  hugeheap bench stride --quick --size 512M
  hugeheap bench stride --runs 20 --json stride.json")]
pub(crate) struct StrideArguments {
    /// How much memory: bytes, or with a suffix K, M, G, T. Default: 1G, with --quick 256M.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) size: Option<u64>,
    /// Passes in each order. Default: 8, with --quick 4.
    #[arg(long, value_name = "N", value_parser = crate::typed::whole::<u32>(2..=1_000))]
    pub(crate) passes: Option<u32>,
    #[command(flatten)]
    pub(crate) report: ReportArguments,
}
