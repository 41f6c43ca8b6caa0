//! What a user can set on a heap.

use super::Policy;

/// Time that memory is kept after it was needed last, in nanoseconds, unless set. One second: a request or a
/// batch step later the memory is still there, and an idle process is small before an operator looks. Measured
/// on the burst test and on the cyclic one: with 0.1 s a program that frees and allocates 1 GiB every half
/// second refaults all of it each time, with 1 s none; a longer time only keeps more.
pub(super) const DEFAULT_DECAY: u64 = 1_000_000_000;

/// The settings of a heap. Changeable while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What arenas are made of.
    pub policy: Policy,
    /// The decay time in nanoseconds: the short window of the retention rule.
    pub decay: u64,
    /// Bytes of arenas above which nothing is kept for reuse and no memory is rounded up to huge pages. `None`:
    /// only the cgroup limits.
    pub limit: Option<u64>,
    /// Make OS pages alike in which little lives, for a host that merges equal pages.
    pub merge: bool,
    /// Bytes of address space per region. `None`: four times the host's memory, less under `ulimit -v`.
    pub region: Option<usize>,
}

impl Settings {
    /// What is in force when nothing is set.
    pub const DEFAULT: Self =
        Self { policy: Policy::Auto, decay: DEFAULT_DECAY, limit: None, merge: false, region: None };
}

impl Default for Settings {
    fn default() -> Self {
        Self::DEFAULT
    }
}
