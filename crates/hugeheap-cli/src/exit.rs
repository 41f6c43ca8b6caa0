//! Exit codes. A command that was started passes its own status through; these are for hugeheap's own failures.

/// Everything went well.
pub const OK: u8 = 0;
/// The command worked and found something to be concerned about.
pub const FINDINGS: u8 = 1;
/// The command line was not understood.
pub const USAGE: u8 = 2;
/// What was asked for is not possible on this host or with this target.
pub const UNSUPPORTED: u8 = 3;
/// Permission is missing.
pub const PERMISSION: u8 = 4;
/// The process that was looked at is gone.
pub const GONE: u8 = 5;
/// The command to start was found but cannot be executed; the number shells use.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command to start was not found; the number shells use.
pub const NOT_FOUND: u8 = 127;
