//! The metadata of one arena.
//!
//! ```text
//!            map                allocate               allocate
//!   Unmapped ───▶ Empty ───────────────────▶ Partial ◀──────────▶ Full
//!                  ▲ │ ▲  all runs freed ───────┘       free      │
//!           supply │ │ └────────────────────────────────────────────┘
//!                  │ ▼ maintenance
//!               GivenBack
//! ```
//!
//! A large block owns whole arenas: the first is `Large` and knows the length, the others are `LargeRest`.
//!
//! Invariants:
//! * `starts ⊆ in_use ⊆ touched`; a run begins at a start bit and ends before the next start or the next free page.
//! * `touched` covers every page that may be resident: what is not touched reads as zero and costs no memory.
//!   (But for pages that khugepaged fills in an arena that is advised and not huge yet; giving back and
//!   breaking drop those too.)
//! * A `huge` arena is touched throughout.
//! * An arena that maintenance works on is `busy`: it is in no list, nothing is allocated from it, frees are recorded.

use super::list::ArenaId;
use super::offer::Offer;

/// What an arena is used for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Address space only, never used. The state of zeroed metadata.
    #[allow(dead_code, reason = "made by zeroed memory")]
    Unmapped = 0,
    /// Mapped, no live run, memory kept for reuse.
    Empty,
    /// Mapped, no live run, memory given back.
    GivenBack,
    /// Live runs and room.
    Partial,
    /// Live runs, no room.
    Full,
    /// First arena of a large block.
    Large,
    /// Further arena of a large block.
    LargeRest,
}

/// What the arena's memory consists of, as far as calls and the kernel's answers tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Made {
    /// Nothing is mapped.
    Nothing = 0,
    /// OS pages, advised against huge pages.
    Base,
    /// OS pages without advice (huge if the host's mode is `always`).
    Plain,
    /// Advised for transparent huge pages.
    Thp,
    /// Taken from the hugetlb pool.
    Hugetlb,
    /// May have been huge, then advised against huge pages to give a part back.
    Broken,
}

/// The metadata of one arena: two cache lines.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Arena {
    /// Heap pages in live runs.
    pub(crate) in_use: u128,
    /// First heap page of each live run.
    pub(crate) starts: u128,
    /// Heap pages that may be resident.
    pub(crate) touched: u128,
    /// When a run was last allocated or freed, in nanoseconds of the system's clock.
    pub(crate) changed_at: u64,
    /// Length in bytes of the large block that begins here.
    pub(crate) large_bytes: u64,
    /// When OS pages of it were made alike last; 0: never.
    pub(crate) alike_at: u64,
    /// When maintenance may try again what failed for this arena, in nanoseconds. `u64::MAX`: when it was changed.
    pub(crate) retry_at: u64,
    pub(crate) next: ArenaId,
    pub(crate) previous: ArenaId,
    /// Order of first use: less is older.
    pub(crate) serial: u32,
    /// Arenas of the large block that begins here.
    pub(crate) large_arenas: u32,
    pub(crate) state: State,
    pub(crate) made: Made,
    /// Maintenance works on the arena outside the lock.
    pub(crate) busy: bool,
    /// The arena for small runs, in no list whatever its state.
    pub(crate) apart: bool,
    /// One huge page, as far as the kernel's answers tell: at the first touch, or to a collapse.
    pub(crate) huge: bool,
    /// Only the program touches it, and the kernel was not asked yet what it found: see
    /// [`First`](super::supply::First).
    pub(crate) untold: bool,
    /// It was advised against huge pages, but its huge page could not be split: what was dropped of it is still
    /// charged.
    pub(crate) unsplit: bool,
    /// The tail of a large block, a huge page because the block grows, and not full yet.
    pub(crate) guess: bool,
    /// A run that grew has it for itself, on OS pages.
    pub(crate) alone: bool,
    /// OS pages of its live heap pages were given back, and it has not been refilled since.
    pub(crate) vacated: bool,
    /// The kernel may merge equal OS pages of it.
    pub(crate) merging: bool,
    /// Whether the kernel may take it.
    pub(super) offer: Offer,
    /// Calls of maintenance that failed for this arena since one succeeded.
    pub(crate) failures: u8,
    /// What the kernel said of it when too little was resident for a collapse: how much, in 4 KiB, and how
    /// often in a row. 0: it was not asked.
    pub(super) sparse: u16,
    pub(super) alike_answers: u8,
    /// Its longest free range, for who orders it next; 0: nobody knows. To look for it was a fifth of all
    /// instructions where runs of 20 kB were freed at random, which leaves many ranges.
    pub(super) longest: u8,
    /// Key of the list the arena is in (see `order`, `empties`), so that it can be taken out.
    pub(crate) listed: u16,
}

const _: () = assert!(size_of::<Arena>() == 128);

impl Arena {
    /// Notes that a run was allocated or freed.
    pub(crate) fn changed(&mut self, now: u64) {
        self.changed_at = now;
        if self.retry_at == u64::MAX {
            (self.retry_at, self.failures) = (0, 0);
        }
    }

    /// Forgets what the kernel said of it: it is used for something else.
    pub(crate) fn forget_answers(&mut self) {
        (self.sparse, self.alike_answers) = (0, 0);
    }

    /// Number of live runs.
    pub(crate) const fn runs(&self) -> u32 {
        self.starts.count_ones()
    }

    /// Heap pages in live runs.
    pub(crate) const fn live_pages(&self) -> u32 {
        self.in_use.count_ones()
    }

    /// Heap pages that may be resident without being live.
    pub(crate) const fn retained_pages(&self) -> u32 {
        (self.touched & !self.in_use).count_ones()
    }

    /// Whether it is no huge page, and some free pages are resident all the same.
    pub(crate) const fn has_pages_at_hand(&self) -> bool {
        !self.huge && self.touched & !self.in_use != 0
    }

    /// Length of the run that begins at `page`; `None` when none does.
    pub(crate) const fn run_length(&self, page: u32) -> Option<u32> {
        if self.starts >> page & 1 == 0 {
            return None;
        }
        let used = self.in_use >> page;
        let until_free = used.trailing_ones();
        let later_starts = (self.starts >> page) & !1;
        let until_next = later_starts.trailing_zeros();
        Some(if until_free < until_next { until_free } else { until_next })
    }

    /// Whether a run of more than one heap page lives in it.
    pub(crate) const fn has_long_runs(&self) -> bool {
        self.starts != self.in_use
    }

    /// First heap pages of the live runs of one page.
    pub(crate) const fn singles(&self) -> u128 {
        let continued = (self.in_use & !self.starts) >> 1;
        self.starts & !continued
    }
}
