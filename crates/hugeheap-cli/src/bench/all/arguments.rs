//! What can be typed after `hugeheap bench all`.

use clap::Args;
use std::path::PathBuf;

/// Every experiment, one after the other, and one page of all of them.
///
/// Each writes its tables and its JSON to DIR as soon as it has ended; one that cannot be measured here is
/// named, and the others go on.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap bench all --quick -o results        under ten minutes on two CPUs
  hugeheap bench all -o results                under an hour
  hugeheap bench all -o results --only stride,stranded
  sudo hugeheap bench all -o results           with what needs root: experiment cgroup, charges

DIR/report.html is the page, DIR/NAME.txt and DIR/NAME.json are an experiment's own.")]
pub(crate) struct AllArguments {
    /// Where the results go; made if it is not there.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// A first look at each: smaller, with fewer runs. Not for conclusions.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Runs of each experiment, instead of its own number.
    #[arg(long, value_name = "N", value_parser = crate::typed::whole::<u32>(1..=10_000))]
    pub(crate) runs: Option<u32>,
    /// Only these experiments, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) only: Vec<String>,
    /// How much free memory to touch once before the first: bytes with suffix, all, or none.
    #[arg(long, value_name = "BYTES", value_parser = touch)]
    pub(crate) touch: Option<String>,
    /// Exit with status 1 when a goal of an experiment is missed.
    #[arg(long)]
    pub(crate) check: bool,
    /// Print what became of each as JSON, to FILE or to standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, value_parser = crate::cli::file_to_write())]
    pub(crate) json: Option<Option<PathBuf>>,
}

/// Refused here, it is refused before the first experiment is found to refuse it.
fn touch(text: &str) -> Result<String, String> {
    crate::cli::Touch::parse(text).map(|_| text.to_owned())
}
