//! What can be typed after `hugeheap top`.

use crate::ps::arguments::Sort;
use clap::{Args, ValueEnum};

/// Watch processes live: the columns of ps, and of each process a map of its memory and its history.
///
/// What is cheap is read of all at every refresh, what is not in turn, with a hundredth of one core; a dash stands for
/// what was not read yet or cannot be. ? shows the keys.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap top
  hugeheap top --sort stranded
  hugeheap top --filter python --interval 2
  hugeheap top 1234 5678
  hugeheap top --batch 3 -n 10 > log          three refreshes as text, ten lines of each
  hugeheap top --json --batch 60              a JSON object on a line for each refresh

Processes of other users need CAP_SYS_PTRACE. What is stranded needs CAP_SYS_ADMIN.")]
pub(crate) struct TopArguments {
    /// Only these processes.
    #[arg(value_name = "PID", value_parser = crate::process::id)]
    pub(crate) processes: Vec<u32>,
    /// What the list is sorted by, largest first (numbers and names: smallest first).
    #[arg(long, value_enum, default_value = "rss", value_name = "COLUMN")]
    pub(crate) sort: Sort,
    /// Only processes with TEXT in their name, or whose number begins with it.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) filter: String,
    /// Seconds from one refresh to the next.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: f64,
    /// How memory is written.
    #[arg(long, value_enum, default_value = "auto", value_name = "UNIT")]
    pub(crate) units: Units,
    /// Seconds that reading the mappings of one process may take; one that takes longer keeps its dashes.
    #[arg(long, value_name = "SECONDS", default_value = "0.25", value_parser = crate::cli::seconds)]
    pub(crate) budget: f64,
    /// Print N refreshes as text, or with --json as data, and end. Needs no terminal.
    #[arg(long, value_name = "N", value_parser = crate::typed::whole::<u64>(1..=u64::MAX))]
    pub(crate) batch: Option<u64>,
    /// Most processes of a refresh with --batch or --json.
    #[arg(short = 'n', long, value_name = "N", value_parser = crate::typed::whole::<usize>(0..=u64::MAX))]
    pub(crate) lines: Option<usize>,
    /// Draw with ASCII characters only. Default: as the locale says (LC_ALL, LC_CTYPE, LANG).
    #[arg(long)]
    pub(crate) ascii: bool,
    /// Print JSON, a line for each refresh, until ended or --batch N is reached.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How memory is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Units {
    /// Three digits that matter, and the unit that fits.
    Auto,
    /// KiB.
    K,
    /// MiB.
    M,
    /// GiB.
    G,
}

impl Units {
    /// The one after it, in a circle.
    pub(crate) const fn next(self) -> Self {
        match self {
            Self::Auto => Self::K,
            Self::K => Self::M,
            Self::M => Self::G,
            Self::G => Self::Auto,
        }
    }

    /// A number of bytes.
    pub(crate) fn write(self, count: u64) -> String {
        match self {
            Self::Auto => crate::output::bytes(count),
            Self::K => format!("{} K", count >> 10),
            Self::M => format!("{:.1} M", count as f64 / f64::from(1 << 20)),
            Self::G => format!("{:.2} G", count as f64 / f64::from(1 << 30)),
        }
    }
}

/// Shortest and longest interval in seconds. A tenth is as quick as eyes follow numbers.
pub(crate) const SHORTEST: f64 = 0.1;
pub(crate) const LONGEST: f64 = 3600.0;

fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (SHORTEST..=LONGEST).contains(&value) => Ok(value),
        _ => Err(format!("not a number of seconds between {SHORTEST} and {LONGEST}, such as 2")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_go_in_a_circle() {
        let all = [Units::Auto, Units::K, Units::M, Units::G];
        assert_eq!(all.map(Units::next), [Units::K, Units::M, Units::G, Units::Auto]);
        let mib = 1536 << 10;
        assert_eq!(all.map(|unit| unit.write(mib)), ["1.5 MiB", "1536 K", "1.5 M", "0.00 G"]);
    }

    #[test]
    fn an_interval_is_neither_none_nor_for_ever() {
        assert_eq!(interval("0.5"), Ok(0.5));
        for text in ["0", "0.01", "-1", "inf", "NaN", "soon", "1e9"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }
}
