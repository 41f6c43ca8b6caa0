//! What the arenas tell about themselves: counters, and the kernel's view.

use super::Arenas;
use super::record::{Made, State};
use crate::telemetry::Snapshot;
use hugeheap_os::{AddressRange, Os, Residency, Result as OsResult};

impl<O: Os> Arenas<O> {
    /// What backs all arenas now, from the kernel.
    ///
    /// # Errors
    /// Where the kernel cannot be asked (/proc closed).
    pub fn residency(&self) -> OsResult<Residency> {
        let mut sum = Residency::default();
        for range in self.table.mapped_ranges() {
            if range.len > 0 {
                sum += self.os.residency(range)?;
            }
        }
        Ok(sum)
    }

    /// The range number `index` in which this heap may have memory. With [`residency`](Self::residency) for
    /// callers that hold a lock.
    pub(crate) fn mapped_range(&self, index: usize) -> Option<AddressRange> {
        self.used_ranges().nth(index)
    }

    /// All of them.
    pub(crate) fn used_ranges(&self) -> impl Iterator<Item = AddressRange> {
        self.table.mapped_ranges().filter(|range| range.len > 0)
    }

    /// Heap pages in use in the arena that begins at an address. `None`: it is none, or consists of a large block.
    pub(crate) fn pages_in_use(&self, start: usize) -> Option<u32> {
        let arena = self.table.arena(self.table.find(start)?);
        matches!(arena.state, State::Partial | State::Full).then(|| arena.live_pages())
    }

    /// Whether the arena that begins at an address was used once and has nothing live now. `None`: it never
    /// was, or there is none.
    pub(crate) fn is_unused(&self, start: usize) -> Option<bool> {
        let state = self.table.arena(self.table.find(start)?).state;
        (state != State::Unmapped).then_some(matches!(state, State::Empty | State::GivenBack))
    }

    /// Whether the memory of the arena that begins at an address, which was in use, is the system's.
    pub(crate) fn is_given_back(&self, start: usize) -> bool {
        self.table.find(start).is_some_and(|id| self.table.arena(id).state == State::GivenBack)
    }

    /// The numbers of this heap now. Walks the metadata of all arenas; no system call.
    pub fn snapshot(&self) -> Snapshot {
        let mut out = self.counters;
        out.policy = self.settings.policy as u32;
        out.regretted = self.demand.regretted();
        if !self.is_tight() {
            let mut demand = self.demand;
            out.retention_target = demand.target(self.now()).saturating_sub(out.live);
        }
        out.forks = self.forks;
        // Not `for`: to ask a chain of ranges for each next arena took twice as long as to have it go through them.
        self.table.used().for_each(|id| {
            let arena = self.table.arena(id);
            match arena.state {
                State::Full | State::Large | State::LargeRest => out.arenas_full += 1,
                State::Partial => out.arenas_partial += 1,
                State::Empty => out.arenas_empty += 1,
                // Mapped or not, nothing is resident.
                State::Unmapped | State::GivenBack => return,
            }
            match arena.made {
                Made::Hugetlb => out.arenas_hugetlb += 1,
                Made::Broken => out.arenas_broken += 1,
                _ if arena.huge => out.arenas_thp += 1,
                _ => out.arenas_base += 1,
            }
        });
        out
    }
}
