//! What can be typed after `hugeheap collapse`.

use clap::Args;

/// Put the heap of a running process on huge pages, from outside.
///
/// Only memory that is dense: a huge page fills the holes of its 2 MiB with zeros, so memory grows by them, and
/// never by more than --max-growth. The process runs on; it waits at most while one huge page is made. Contents
/// do not change.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap collapse 1234 --dry-run             what would be done, and how much memory would grow
  sudo hugeheap collapse 1234
  hugeheap collapse 1234 --min-density 0.5 --max-growth 200M
  hugeheap collapse 1234 --budget 5 --json

Another process needs CAP_SYS_NICE, and the right to read its memory (the same user, or CAP_SYS_PTRACE).")]
pub(crate) struct CollapseArguments {
    /// The process.
    #[arg(value_name = "PID", value_parser = crate::process::id)]
    pub(crate) process: u32,
    /// Least share of a huge page's memory that must be resident already, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value = "0.9", value_parser = share)]
    pub(crate) min_density: f64,
    /// Most memory to add: bytes, or with a suffix K, M, G, T. Default: 5 % of the process's heap.
    #[arg(long, value_name = "BYTES", value_parser = crate::cli::bytes)]
    pub(crate) max_growth: Option<u64>,
    /// Seconds for all of it. What was done until then stays.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = crate::cli::seconds)]
    pub(crate) budget: f64,
    /// Go slower when one huge page takes longer than this many milliseconds.
    #[arg(long, value_name = "MS", default_value = "20", value_parser = crate::typed::whole::<u32>(1..=10_000))]
    pub(crate) max_latency: u32,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A share between 0 and 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        Ok(percent) if (1.0..=100.0).contains(&percent) => {
            Err(format!("a share between 0 and 1; for {percent} percent write {}", percent / 100.0))
        }
        _ => Err("not a share between 0 and 1, such as 0.9".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn shares_are_between_none_and_all() {
        assert_eq!(super::share("0.9"), Ok(0.9));
        assert!(super::share("90").unwrap_err().contains("0.9"));
        for text in ["-1", "nan", "101", "", "dense"] {
            assert!(super::share(text).is_err(), "{text}");
        }
    }
}
