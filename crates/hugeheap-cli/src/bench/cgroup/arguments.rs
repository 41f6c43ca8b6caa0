//! What can be typed after `hugeheap bench cgroup`.

use crate::cli::ReportArguments;
use clap::Args;

/// A memory limit squeezed step by step: who is killed first.
///
/// The same program on OS pages, on transparent huge pages as under mode always, and on hugeheap, each in a
/// cgroup of its own whose limit falls by steps. Before each step it proves that its data is intact and makes
/// and frees a burst of new memory.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo hugeheap bench cgroup
  sudo hugeheap bench cgroup --quick --huge-pages 64
  sudo hugeheap bench cgroup --json cgroup.json

Needs a memory cgroup in which groups can be made: root, or a delegated group (systemd-run --user --scope -p Delegate=yes).
The groups are removed afterwards; nothing else on the host is changed. --runs is 3 here unless given, with --quick 1.")]
pub(crate) struct CgroupArguments {
    /// How many huge pages the program fills, or begins. Default: 512, with --quick 64.
    #[arg(long, value_name = "N", value_parser = crate::typed::whole::<u64>(8..=1_000_000))]
    pub(crate) huge_pages: Option<u64>,
    /// Seconds without work before the first step.
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = crate::cli::seconds)]
    pub(crate) idle: f64,
    /// Seconds from one step to the next: a decay time, so that a burst may be given back before the next.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = crate::cli::seconds)]
    pub(crate) step: f64,
    #[command(flatten)]
    pub(crate) report: ReportArguments,
}
