//! What can be typed after `hugeheap report`.

use clap::Args;
use std::path::PathBuf;

/// Make one page of measurements: tables, plots, host facts, the commands to repeat them.
///
/// It reads the JSON of `stat`, `record`, `map`, `tlb` and of every `bench`, and tables of `record` (or of
/// mstat). Recordings of the same name are runs of the same: they are laid over each other. The page needs no
/// network and no other file.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap report result.json -o report.html
  hugeheap report glibc_*.json jemalloc_*.json -o memory.html        memory over time, box plots of the maximum
  hugeheap report *.json --plots plots -o report.html                each plot as plots/NAME.svg, too")]
pub(crate) struct ReportArguments {
    /// The measurements.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The page.
    #[arg(short, long, value_name = "FILE", default_value = "report.html", value_parser = crate::cli::named_file())]
    pub(crate) output: PathBuf,
    /// Its title.
    #[arg(long, value_name = "TEXT", default_value = "Measurements")]
    pub(crate) title: String,
    /// Write each plot to DIR as SVG, too.
    #[arg(long, value_name = "DIR")]
    pub(crate) plots: Option<PathBuf>,
}
