//! What can be typed after `hugeheap doctor` and `hugeheap explain`.

use clap::Args;
use std::ffi::OsString;

/// Can this host, a process, a command get huge pages; if not, the fix.
///
/// Changes nothing. A command is not run, but a Python or Ruby interpreter is asked for its version. Exit
/// status 1 when there are warnings or errors.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap doctor
  hugeheap doctor --pid 4711
  hugeheap doctor -- gunicorn app:wsgi
  hugeheap doctor --json
  hugeheap explain HH-THP-NEVER             what a finding means, how to verify and to undo it")]
pub(crate) struct DoctorArguments {
    /// Look at this running process, too.
    #[arg(long, value_name = "PID", value_parser = crate::process::id, conflicts_with = "command")]
    pub(crate) pid: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// A command that is to run on hugeheap, and its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// What a finding of doctor means, how to verify it, how to undo its fix.
///
/// Without a code, the list of all.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hugeheap explain
  hugeheap explain HH-THP-NEVER
  hugeheap explain thp-never --json")]
pub(crate) struct ExplainArguments {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// A code such as HH-THP-NEVER; HH- may be left out, and the case does not matter.
    #[arg(value_name = "CODE")]
    pub(crate) code: Option<String>,
}
