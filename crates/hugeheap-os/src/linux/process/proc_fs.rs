//! Whose processes /proc shows: it may be that of another PID namespace, where a number means another process,
//! or not be mounted.

use std::path::Path;

/// What is mounted at /proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcFs {
    /// The processes of this process's PID namespace.
    Own,
    /// Those of another one: who looks for a process by its number finds another, or none.
    Foreign,
    /// Nothing.
    Missing,
}

impl ProcFs {
    /// What is mounted there now.
    #[must_use]
    pub fn mounted() -> Self {
        // A file of every /proc, also of one in which this process is not.
        let is_there = || Path::new("/proc/meminfo").exists();
        Self::by_self(std::fs::read_link("/proc/self").ok().as_deref(), std::process::id(), is_there)
    }

    /// The same by `/proc/self`: it leads to this process's number there, or nowhere.
    fn by_self(own: Option<&Path>, id: u32, is_there: impl Fn() -> bool) -> Self {
        match own {
            Some(own) if own == Path::new(&id.to_string()) => Self::Own,
            None if !is_there() => Self::Missing,
            _ => Self::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_proc_shows_another_number_or_none() {
        let by_self = |own: Option<&str>, is_there| ProcFs::by_self(own.map(Path::new), 7, || is_there);
        assert_eq!(by_self(Some("7"), true), ProcFs::Own);
        assert_eq!(by_self(Some("70"), true), ProcFs::Foreign);
        assert_eq!(by_self(None, true), ProcFs::Foreign);
        assert_eq!(by_self(None, false), ProcFs::Missing);
        assert_eq!(ProcFs::mounted(), ProcFs::Own);
    }
}
