//! What can be typed after `hugeheap pool`.

use clap::{Args, Subcommand};

/// Pools of explicit huge pages (hugetlb): show, set, make sure of, give back.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap pool list
  hugeheap pool ensure 1G --dry-run")]
pub(crate) struct PoolArguments {
    #[command(subcommand)]
    pub(crate) action: Action,
}

// The arguments' own text is the help: one here would hide all but its first line.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    List(ListArguments),
    Set(SetArguments),
    Ensure(EnsureArguments),
    Release(ReleaseArguments),
}

/// Show the pools, per page size and per NUMA node.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap pool list
  hugeheap pool list --json")]
pub(crate) struct ListArguments {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Make a pool this large.
///
/// Reserves what is possible and says what was got: status 1 when it is less than was asked for. The pages are
/// taken from everything else on the host until they are given back. The line that undoes it is printed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap pool set 256                     256 pages of the default size
  hugeheap pool set 4G --persist            as many as make 4 GiB, at the next boot too
  hugeheap pool set --size 1G 2 --node 0    two pages of 1 GiB on one node
  hugeheap pool set --overcommit 512        no pool, but up to 512 pages on demand
  hugeheap pool set 0                       give the pool up")]
pub(crate) struct SetArguments {
    /// Pages, or bytes with a suffix K, M, G, T (rounded up to whole pages).
    #[arg(value_name = "COUNT", value_parser = Amount::parse, required_unless_present = "overcommit")]
    pub(crate) amount: Option<Amount>,
    /// Pages that the kernel may add to the pool on demand, and takes away when they are freed.
    #[arg(long, value_name = "PAGES", value_parser = crate::typed::whole::<u64>(0..=u64::MAX), conflicts_with = "node")]
    pub(crate) overcommit: Option<u64>,
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) growth: Growth,
    #[command(flatten)]
    pub(crate) how: How,
}

/// Make sure that this many pages are free, without taking any away.
///
/// Free means that a program can have them now: neither used nor reserved. Does nothing when there are enough.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap pool ensure 128                  before a service starts that needs 128
  hugeheap pool ensure 1G --dry-run")]
pub(crate) struct EnsureArguments {
    /// Pages, or bytes with a suffix K, M, G, T (rounded up to whole pages).
    #[arg(value_name = "COUNT", value_parser = Amount::parse)]
    pub(crate) amount: Amount,
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) growth: Growth,
    #[command(flatten)]
    pub(crate) how: How,
}

/// Give back the pages that nobody uses or has reserved.
///
/// Programs keep what they have. `hugeheap pool set 0` also lets go of pages in use, when their program ends.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap pool release
  hugeheap pool release --size 1G --persist     and do not reserve them at the next boot")]
pub(crate) struct ReleaseArguments {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) how: How,
}

/// Which pool.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Page size, such as 2M or 1G. Default: the kernel's default size.
    #[arg(long, value_name = "BYTES", value_parser = page_size)]
    pub(crate) size: Option<u64>,
    /// Only this NUMA node. Default: spread over all of them.
    #[arg(long, value_name = "NODE", value_parser = crate::typed::whole::<u32>(0..=u64::MAX))]
    pub(crate) node: Option<u32>,
}

/// How far a pool may grow.
#[derive(Debug, Args)]
pub(crate) struct Growth {
    /// Memory that stays available to everything else: bytes with a suffix. Default: a twentieth of the host's.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) keep_free: Option<u64>,
    /// Compact memory first: takes seconds of CPU time, and finds more pages on a fragmented host.
    #[arg(long)]
    pub(crate) compact: bool,
}

/// How it is done and said.
#[derive(Debug, Args)]
pub(crate) struct How {
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Set it at each boot, too (/etc/sysctl.d; a page size or node of its own: /etc/tmpfiles.d).
    #[arg(long)]
    pub(crate) persist: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A number of pages, or of bytes to be made of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Pages(u64),
    Bytes(u64),
}

impl Amount {
    fn parse(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(pages) => Ok(Self::Pages(pages)),
            Err(_) => bytes(text)
                .map(Self::Bytes)
                .map_err(|_| "not a number of pages, nor bytes such as 4G".to_owned()),
        }
    }

    /// In pages of `size`, rounded up.
    pub(crate) const fn pages(self, size: u64) -> u64 {
        match self {
            Self::Pages(pages) => pages,
            Self::Bytes(bytes) => bytes.div_ceil(size),
        }
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    crate::cli::bytes(text)
}

fn page_size(text: &str) -> Result<u64, String> {
    match bytes(text) {
        Ok(size) if size.is_power_of_two() => Ok(size),
        _ => Err("not a page size, such as 2M or 1G".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_pages_or_bytes() {
        assert_eq!(Amount::parse("256"), Ok(Amount::Pages(256)));
        assert_eq!(Amount::parse("1G").unwrap().pages(2 << 20), 512);
        assert_eq!(Amount::parse("3M").unwrap().pages(2 << 20), 2);
        assert!(Amount::parse("-1").is_err());
        assert!(Amount::parse("many").is_err());
        assert_eq!(page_size("2M"), Ok(2 << 20));
        assert!(page_size("3M").is_err());
        assert!(page_size("0").is_err());
    }
}
