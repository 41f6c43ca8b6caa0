//! What can be typed after `hugeheap thp`.

use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;

/// Transparent huge pages: show the knobs, set them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap thp get
  hugeheap thp set mode=madvise --dry-run")]
pub(crate) struct ThpArguments {
    #[command(subcommand)]
    pub(crate) action: Action,
}

// The arguments' own text is the help: one here would hide all but its first line.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    Get(GetArguments),
    Set(SetArguments),
}

/// Show the knobs and what they mean.
///
/// With names, only their values, one a line.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap thp get
  hugeheap thp get mode
  hugeheap thp get khugepaged.max_ptes_none size.2M
  hugeheap thp get --json")]
pub(crate) struct GetArguments {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Knobs to show. Default: all.
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// Set knobs, or start a command with its own switch.
///
/// All the knobs named are set, or none. They hold for the whole host until the next boot, or beyond it with --persist.
/// The line that undoes it is printed.
#[derive(Debug, Args)]
#[command(
    override_usage = "hugeheap thp set [OPTIONS] NAME=VALUE...\n       hugeheap thp set --for [SWITCH] -- COMMAND...",
    after_help = "\
Examples:
  hugeheap thp set mode=madvise defrag=defer+madvise
  hugeheap thp set mode=madvise --persist              at the next boot, too
  hugeheap thp set khugepaged.max_ptes_none=64 --dry-run
  hugeheap thp set size.64K=madvise
  hugeheap thp set --for on -- python3 app.py          huge pages in spite of an inherited switch
  hugeheap thp set --for off -- redis-server           none for this process and what it starts"
)]
pub(crate) struct SetArguments {
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Set it at each boot, too (a line in /etc/tmpfiles.d/hugeheap-thp.conf).
    #[arg(long, conflicts_with = "for_command")]
    pub(crate) persist: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "for_command")]
    pub(crate) json: bool,
    /// Start COMMAND with this switch of its own (prctl) and leave the host as it is.
    #[arg(
        long = "for",
        id = "for_command",
        value_enum,
        value_name = "SWITCH",
        num_args = 0..=1,
        default_missing_value = "on",
        requires = "command",
        conflicts_with = "settings"
    )]
    pub(crate) switch: Option<Switch>,
    /// Knobs and their values, as `hugeheap thp get` names them.
    // Against the command, too: of two arguments that exclude each other clap asks neither for the other, so
    // that `requires` below does not see a command without --for beside settings.
    #[arg(value_name = "NAME=VALUE", required_unless_present = "for_command", conflicts_with = "command")]
    pub(crate) settings: Vec<String>,
    /// The command and its arguments.
    #[arg(last = true, requires = "for_command", value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// A process's own switch: `PR_SET_THP_DISABLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Huge pages as the host allows them (default).
    On,
    /// Huge pages only where the program asks for them (Linux 6.18 and newer).
    Advised,
    /// No transparent huge pages.
    Off,
}
