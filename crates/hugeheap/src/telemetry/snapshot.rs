//! The schema of what a heap tells about itself.
//!
//! Layout: C, little is computed, everything is a number, so that the same bytes serve as a Rust struct, a C
//! struct, the content of the shared file and the source of JSON. Bytes are bytes, arenas are counts, times are
//! nanoseconds. Fields are only ever added at the end; [`SCHEMA`] rises when a meaning changes.

use super::Fallback;
use crate::arena::Policy;

/// Version of the meaning of [`Snapshot`]'s fields.
pub const SCHEMA: u32 = 1;

/// How much of a program's memory comes from hugeheap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Level {
    /// CPython's pymalloc keeps its job; its arenas, and blocks of 1 MiB and more, come from hugeheap.
    Arenas = 0,
    /// CPython's objects come from hugeheap's object allocator instead of pymalloc. An interpreter that
    /// lacks the hooks for it stays at [`Level::Arenas`].
    Objects = 1,
    /// All that the program allocates comes from hugeheap: its `malloc`, and in CPython the objects.
    Malloc = 2,
}

impl Level {
    /// All levels, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Arenas, Self::Objects, Self::Malloc];

    /// The name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arenas => "arenas",
            Self::Objects => "objects",
            Self::Malloc => "malloc",
        }
    }

    /// The level of a name, or `None`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "arenas" => Some(Self::Arenas),
            "objects" => Some(Self::Objects),
            "malloc" => Some(Self::Malloc),
            _ => None,
        }
    }

    /// The level of its number in a snapshot.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Arenas),
            1 => Some(Self::Objects),
            2 => Some(Self::Malloc),
            _ => None,
        }
    }
}

/// Whether the process's memory comes from hugeheap, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum HookState {
    /// Nothing was tried yet.
    Idle = 0,
    /// Installed.
    Hooked = 1,
    /// The process is not CPython, or Python is loaded later: it had no symbol `PyObject_SetArenaAllocator`
    /// when it started.
    NotPython = 2,
    /// A free-threaded CPython: its objects come from its own mimalloc, not from arenas.
    FreeThreaded = 3,
    /// `PYTHONMALLOC` selects an allocator without arenas.
    OtherAllocator = 4,
    /// CPython's own huge-page option is switched on (`PYTHON_PYMALLOC_HUGEPAGES=1`, 3.15): left alone.
    OwnHugePages = 5,
    /// Switched off by `HUGEHEAP_DISABLE`.
    Disabled = 6,
    /// The system refused memory for the first arena.
    NoMemory = 7,
    /// A setting in the environment was not understood.
    BadSetting = 8,
    /// At level `malloc`: the program has a `malloc` of its own, or another library's comes first.
    OwnMalloc = 9,
}

impl HookState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Idle,
        Self::Hooked,
        Self::NotPython,
        Self::FreeThreaded,
        Self::OtherAllocator,
        Self::OwnHugePages,
        Self::Disabled,
        Self::NoMemory,
        Self::BadSetting,
        Self::OwnMalloc,
    ];

    /// The state of its number in a snapshot.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Hooked => "hooked",
            Self::NotPython => "not_python",
            Self::FreeThreaded => "free_threaded",
            Self::OtherAllocator => "other_allocator",
            Self::OwnHugePages => "own_huge_pages",
            Self::Disabled => "disabled",
            Self::NoMemory => "no_memory",
            Self::BadSetting => "bad_setting",
            Self::OwnMalloc => "own_malloc",
        }
    }

    /// One line for an operator, of a process at `level`.
    pub const fn explain_at(self, level: Option<Level>) -> &'static str {
        match (self, level) {
            (Self::Hooked, Some(Level::Objects)) => "CPython's objects come from hugeheap",
            (Self::Hooked | Self::OtherAllocator, Some(Level::Malloc)) => {
                "all that the program allocates comes from hugeheap"
            }
            _ => self.explain(),
        }
    }

    /// One line for an operator.
    pub const fn explain(self) -> &'static str {
        match self {
            Self::Idle => "not enabled",
            Self::Hooked => "CPython's arenas come from hugeheap",
            Self::NotPython => {
                "nothing was hooked: the process is not CPython, or Python is loaded later (no symbol PyObject_SetArenaAllocator)"
            }
            Self::FreeThreaded => {
                "nothing was hooked: free-threaded CPython keeps its objects in its own mimalloc, not in arenas"
            }
            Self::OtherAllocator => {
                "hooked, but PYTHONMALLOC selects an allocator without arenas: only data stacks can arrive"
            }
            Self::OwnHugePages => {
                "nothing was hooked: CPython's own PYTHON_PYMALLOC_HUGEPAGES is on; unset it to use hugeheap"
            }
            Self::Disabled => "nothing was hooked: HUGEHEAP_DISABLE is set",
            Self::NoMemory => "nothing was hooked: the system refused address space for the first arena",
            Self::BadSetting => {
                "nothing was hooked: a HUGEHEAP_ setting in the environment was not understood"
            }
            Self::OwnMalloc => {
                "nothing was hooked: the program has a malloc of its own, or that of another preloaded library"
            }
        }
    }
}

/// What a process's arenas are and did. See the module's text for units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Snapshot {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// Size of this struct in the writer, in bytes.
    pub size: u32,
    /// The process.
    pub pid: u32,
    /// Its parent when the record was made.
    pub parent_pid: u32,
    /// [`HookState`] as a number.
    pub state: u32,
    /// [`Level`] as a number.
    pub level: u32,
    /// [`Policy`] asked for, as a number.
    pub policy: u32,
    /// Policy in force now: what `auto` chose, or what an exhausted pool fell back to.
    pub effective_policy: u32,
    /// The interpreter's version, as it says itself, cut, zero padded.
    pub version: [u8; 32],

    /// Arenas with memory now: full, partial, empty, of large blocks.
    pub arenas: u64,
    /// The most arenas there were at once.
    pub arenas_peak: u64,
    /// Arenas without room.
    pub arenas_full: u64,
    /// Arenas with live runs and room.
    pub arenas_partial: u64,
    /// Arenas without live runs, kept for reuse.
    pub arenas_empty: u64,
    /// Arenas mapped as transparent huge pages.
    pub arenas_thp: u64,
    /// Arenas from a hugetlb pool.
    pub arenas_hugetlb: u64,
    /// Arenas of OS pages.
    pub arenas_base: u64,
    /// Arenas whose huge page was broken to give a part back.
    pub arenas_broken: u64,

    /// Bytes in page runs handed out now (large blocks included).
    pub live: u64,
    /// The most bytes that were live at once.
    pub live_peak: u64,
    /// Bytes mapped but not live, not given back: kept for reuse.
    pub retained: u64,
    /// Bytes the retention rule would keep now.
    pub retention_target: u64,
    /// Bytes of metadata: mapped for the arenas, and in use for heap pages of blocks and for heaps.
    pub metadata: u64,
    /// Bytes in large blocks, of [`Snapshot::live`].
    pub large: u64,

    /// Page runs handed out since the start.
    pub allocations: u64,
    /// Page runs taken back since the start.
    pub frees: u64,
    /// Frees of addresses that were not ours and went to the previous allocator.
    pub foreign_frees: u64,
    /// Bytes given back to the system since the start.
    pub given_back: u64,
    /// Whole arenas given back since the start.
    pub arenas_given_back: u64,
    /// Sparse arenas broken since the start.
    pub breaks: u64,
    /// Bytes needed again soon after they were given back: what the retention rule learns from.
    pub regretted: u64,
    /// Arenas collapsed since the start.
    pub collapses: u64,
    /// Passes of maintenance since the start.
    pub passes: u64,
    /// The longest pass, in nanoseconds.
    pub longest_pass: u64,
    /// Forks seen.
    pub forks: u64,

    /// Resident bytes of all arenas when live memory peaked last, from the kernel. 0: not measured.
    pub peak_resident: u64,
    /// Of those, mapped by huge pages, from the kernel.
    pub peak_huge: u64,
    /// Resident bytes of all arenas at the last measurement, from the kernel.
    pub resident: u64,
    /// Of those, mapped by huge pages, from the kernel.
    pub huge: u64,
    /// The memory cgroup's charge when live memory peaked last. 0: not measured.
    pub peak_charge: u64,
    /// The memory cgroup's charge at the last measurement.
    pub charge: u64,

    /// Fallbacks by reason; the index is [`Fallback`]'s number.
    pub fallbacks: [u64; Fallback::ROOM],

    /// Arenas made ahead by the maintenance thread since the start, while the heap grew quickly.
    pub arenas_ahead: u64,

    /// Garbage-collected heaps made since the start.
    pub gc_heaps: u64,
    /// Bytes of the nurseries of those that live.
    pub gc_nursery: u64,
    /// Bytes of objects in their old generations that are not known to be dead.
    pub gc_old: u64,
    /// Bytes of heap pages and large blocks that the old generations have.
    pub gc_held: u64,
    /// Minor collections of all of them since the start.
    pub gc_minor: u64,
    /// Major collections that ended.
    pub gc_major: u64,
    /// Times that a program waited for a collection.
    pub gc_pauses: u64,
    /// Of these, those of 2²⁰ ns or more, about a millisecond.
    pub gc_long_pauses: u64,
    /// Their sum in nanoseconds.
    pub gc_pause_total: u64,
    /// The longest in nanoseconds.
    pub gc_longest_pause: u64,
    /// Pauses by length: the first below 2¹¹ ns, each other from 2ⁿ⁺¹⁰ to 2ⁿ⁺¹¹ ns with its index for n, the
    /// last without an end. See [`pause_lengths`](Self::pause_lengths).
    pub gc_pause_lengths: [u64; PAUSE_LENGTHS],

    /// Bytes of OS pages without a live block that were given back of heap pages in use since the start, of
    /// [`Snapshot::given_back`].
    pub vacated: u64,
    /// Bytes of OS pages that were made alike since the start, for the kernel to merge them.
    pub alike: u64,
    /// Bytes of this process in OS pages that the kernel had merged with equal ones, at the last measurement.
    /// 0: merging was not asked for, nothing was measured, or the kernel does not tell.
    pub merged: u64,
}

/// Buckets of the lengths of pauses: from 2 µs, about a minor collection with a few survivors, to 8.6 s.
pub(crate) const PAUSE_LENGTHS: usize = 24;

/// The first bucket of the lengths of pauses ends at two to this power and one, in nanoseconds.
pub(crate) const FIRST_PAUSE: usize = 10;

const _: () = assert!(size_of::<Snapshot>() % 8 == 0);

impl Snapshot {
    /// A snapshot without any memory.
    pub const EMPTY: Self = Self {
        schema: SCHEMA,
        size: size_of::<Self>() as u32,
        pid: 0,
        parent_pid: 0,
        state: HookState::Idle as u32,
        level: Level::Arenas as u32,
        policy: Policy::Auto as u32,
        effective_policy: Policy::Auto as u32,
        version: [0; 32],
        arenas: 0,
        arenas_peak: 0,
        arenas_full: 0,
        arenas_partial: 0,
        arenas_empty: 0,
        arenas_thp: 0,
        arenas_hugetlb: 0,
        arenas_base: 0,
        arenas_broken: 0,
        live: 0,
        live_peak: 0,
        retained: 0,
        retention_target: 0,
        metadata: 0,
        large: 0,
        allocations: 0,
        frees: 0,
        foreign_frees: 0,
        given_back: 0,
        arenas_given_back: 0,
        breaks: 0,
        regretted: 0,
        collapses: 0,
        passes: 0,
        longest_pass: 0,
        forks: 0,
        peak_resident: 0,
        peak_huge: 0,
        resident: 0,
        huge: 0,
        peak_charge: 0,
        charge: 0,
        fallbacks: [0; Fallback::ROOM],
        arenas_ahead: 0,
        gc_heaps: 0,
        gc_nursery: 0,
        gc_old: 0,
        gc_held: 0,
        gc_minor: 0,
        gc_major: 0,
        gc_pauses: 0,
        gc_long_pauses: 0,
        gc_pause_total: 0,
        gc_longest_pause: 0,
        gc_pause_lengths: [0; PAUSE_LENGTHS],
        vacated: 0,
        alike: 0,
        merged: 0,
    };

    /// Whether memory comes from hugeheap, `None` for a number from a newer version.
    pub fn hook_state(&self) -> Option<HookState> {
        HookState::from_number(self.state)
    }

    /// How often memory did not get the backing its policy wanted, for `reason`.
    pub const fn fallback(&self, reason: Fallback) -> u64 {
        self.fallbacks[reason as usize]
    }

    /// The lengths of pauses: how many there were below each number of nanoseconds, and not below the one
    /// before it. The last has no end: `None`.
    pub fn pause_lengths(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        self.gc_pause_lengths.iter().enumerate().map(|(index, &count)| {
            ((index + 1 < PAUSE_LENGTHS).then(|| 1 << (index + FIRST_PAUSE + 1)), count)
        })
    }

    /// Nanoseconds that `share` of the pauses do not reach: the upper end of a power of two, and not more than
    /// the longest. `None` where there were none.
    pub fn pause_quantile(&self, share: f64) -> Option<u64> {
        let all: u64 = self.gc_pause_lengths.iter().sum();
        let wanted = ((all as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let (end, _) = self.pause_lengths().find(|(_, count)| {
            seen += count;
            seen >= wanted
        })?;
        Some(end.map_or(self.gc_longest_pause, |end| end.min(self.gc_longest_pause)))
    }

    /// The interpreter's version as text.
    pub fn version_text(&self) -> &str {
        let end = self.version.iter().position(|&byte| byte == 0).unwrap_or(self.version.len());
        core::str::from_utf8(&self.version[..end]).unwrap_or("")
    }

    /// Coverage when live memory peaked last, 0 to 1; `None` when it was not measured.
    pub fn peak_coverage(&self) -> Option<f64> {
        (self.peak_resident > 0).then(|| self.peak_huge as f64 / self.peak_resident as f64)
    }

    /// Name and value of every plain counter, in the order of the schema: the source of JSON and metrics.
    pub fn counters(&self) -> [(&'static str, u64); 46] {
        [
            ("arenas", self.arenas),
            ("arenas_peak", self.arenas_peak),
            ("arenas_full", self.arenas_full),
            ("arenas_partial", self.arenas_partial),
            ("arenas_empty", self.arenas_empty),
            ("arenas_thp", self.arenas_thp),
            ("arenas_hugetlb", self.arenas_hugetlb),
            ("arenas_base", self.arenas_base),
            ("arenas_broken", self.arenas_broken),
            ("live", self.live),
            ("live_peak", self.live_peak),
            ("retained", self.retained),
            ("retention_target", self.retention_target),
            ("metadata", self.metadata),
            ("large", self.large),
            ("allocations", self.allocations),
            ("frees", self.frees),
            ("foreign_frees", self.foreign_frees),
            ("given_back", self.given_back),
            ("arenas_given_back", self.arenas_given_back),
            ("breaks", self.breaks),
            ("regretted", self.regretted),
            ("collapses", self.collapses),
            ("passes", self.passes),
            ("longest_pass", self.longest_pass),
            ("forks", self.forks),
            ("peak_resident", self.peak_resident),
            ("peak_huge", self.peak_huge),
            ("resident", self.resident),
            ("huge", self.huge),
            ("peak_charge", self.peak_charge),
            ("charge", self.charge),
            ("arenas_ahead", self.arenas_ahead),
            ("gc_heaps", self.gc_heaps),
            ("gc_nursery", self.gc_nursery),
            ("gc_old", self.gc_old),
            ("gc_held", self.gc_held),
            ("gc_minor", self.gc_minor),
            ("gc_major", self.gc_major),
            ("gc_pauses", self.gc_pauses),
            ("gc_long_pauses", self.gc_long_pauses),
            ("gc_pause_total", self.gc_pause_total),
            ("gc_longest_pause", self.gc_longest_pause),
            ("vacated", self.vacated),
            ("alike", self.alike),
            ("merged", self.merged),
        ]
    }
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::EMPTY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_have_ends_and_quantiles() {
        let mut snapshot = Snapshot { gc_longest_pause: 5_000_000, ..Snapshot::EMPTY };
        assert_eq!(snapshot.pause_quantile(0.99), None);
        (snapshot.gc_pause_lengths[0], snapshot.gc_pause_lengths[10]) = (98, 1);
        assert_eq!(snapshot.pause_quantile(0.5), Some(2048));
        assert_eq!(snapshot.pause_quantile(1.0), Some(2 << 20));
        snapshot.gc_pause_lengths[12] = 1;
        assert_eq!(snapshot.pause_quantile(1.0), Some(5_000_000), "not more than the longest");
        let ends: Vec<_> = snapshot.pause_lengths().map(|(end, _)| end).collect();
        assert_eq!(
            (ends[0], ends[PAUSE_LENGTHS - 2], ends[PAUSE_LENGTHS - 1]),
            (Some(2 << 10), Some(1 << 33), None)
        );
        snapshot.gc_pause_lengths = [0; PAUSE_LENGTHS];
        snapshot.gc_pause_lengths[PAUSE_LENGTHS - 1] = 1;
        assert_eq!(snapshot.pause_quantile(0.5), Some(5_000_000));
    }
}
