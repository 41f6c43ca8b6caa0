//! Tails: the last arena of a large block, where the block uses a part of it and more is resident.
//!
//! ```text
//!   made of what was kept ──┐                    memory is or becomes scarce ───────────▶ shed at once
//!   the block became shorter┼─▶ resident tail ──┤
//!   expected to be filled ──┘                    too much is kept, and unchanged for ──▶ shed in a pass
//!                                                the decay time
//! ```
//!
//! What is resident of a tail and not used counts as kept like other free memory, but nobody else can have it.
//! It stayed as long as the block lived: a program that had used 80 MiB for small objects, and then made blocks
//! of 1.1 MiB of that, had nearly twice of what lived resident, for good; and in a control group of 100 MiB one
//! with 75 of them live was killed. So it is *shed*, as maintenance breaks other arenas, but sooner: what is
//! free of those is there for others, and this for nobody.
//!
//! That is done with the heap locked, one tail in a pass, a quarter of a millisecond: without the lock the
//! block could grow into what is being dropped.

use super::Arenas;
use super::layout::HEAP_PAGE_BYTES;
use super::list::ArenaId;
use super::maintenance::{break_of, is_whole, least_to_break};
use super::plan::{Action, Plan, Vacate};
use super::record::{Made, State};
use super::sweep::DENSE;
use hugeheap_os::Os;

/// Parts of a memory limit from which on memory is scarce, as divisors: what the heap has mapped, and what
/// lives of it. Both are known at any moment. The charge is not: of what was offered to the kernel it says
/// nothing before that is used again. And both, because a program that keeps much and uses little of it would
/// have its tails dropped and brought back for nothing.
const SCARCE: (u64, u64) = (2, 4);

/// The least that is shed, in bytes.
const HEAP_PAGE: u64 = HEAP_PAGE_BYTES as u64;

/// Arenas of a block from which on its tail may be a huge page however little of it is used: the waste is at
/// most an eighth.
pub(crate) const LONG: usize = 8;

/// Whether a pass sheds tails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shedding {
    /// No more is kept than has to be.
    None,
    /// Those that were not changed for the decay time.
    Unchanged,
    /// All: memory is scarce.
    All,
}

impl<O: Os> Arenas<O> {
    /// Whether tails are shed now, of which so many bytes more are kept than have to be. Those that were noted
    /// are looked for then.
    pub(super) fn begin_shedding(&mut self, excess: u64) -> Shedding {
        let shedding = match excess {
            _ if self.is_scarce() => Shedding::All,
            0..HEAP_PAGE => Shedding::None,
            _ => Shedding::Unchanged,
        };
        self.sweep.news |= shedding != Shedding::None && core::mem::take(&mut self.tails);
        shedding
    }

    /// An arena has become the last one of a block, which uses a part of it.
    pub(crate) fn placed_tail(&mut self, id: ArenaId, now: u64) {
        let Some(action) = self.to_shed(id, true) else { return };
        if self.is_scarce() {
            // Where the system refuses, maintenance comes to it.
            self.shed(id, action, now);
            self.note_tail(id);
        } else {
            self.tails = true;
        }
    }

    /// Sees to it that an arena is looked at if it is a tail of which much is resident that is not used.
    pub(crate) fn note_tail(&mut self, id: ArenaId) {
        self.tails |= self.to_shed(id, true).is_some();
    }

    /// Whether a pass is due for tails, because memory has become scarce since they were made.
    pub(super) fn tails_due(&self) -> bool {
        self.tails && self.is_scarce()
    }

    /// Whether memory is so scarce that no tail is more than it has to be.
    pub(crate) fn is_scarce(&self) -> bool {
        let limit = self.host.limit();
        let (mapped, live) = SCARCE;
        let is_much = |limit| self.mapped_bytes() > limit / mapped && self.counters.live > limit / live;
        limit.is_some_and(is_much) || self.is_tight()
    }

    /// What is to be done with a tail, if so much of it is free that it is worth it.
    pub(super) fn to_shed(&self, id: ArenaId, scarce: bool) -> Option<Action> {
        let arena = self.table.arena(id);
        let is_tail = matches!(arena.state, State::Large | State::LargeRest);
        // One that is dense would be collapsed again.
        if !is_tail || arena.busy || arena.made == Made::Hugetlb || arena.live_pages() >= DENSE {
            return None;
        }
        let whole = is_whole(arena, self.host.thp);
        // Of other arenas half has to be free: that is there for others, and this for nobody.
        let least = least_to_break(whole, scarce || !self.ends_long_block(id));
        (arena.retained_pages() >= least).then(|| break_of(arena, whole, Vacate::No))
    }

    /// Whether a tail is that of a block so long that also a new one is a huge page.
    fn ends_long_block(&self, id: ArenaId) -> bool {
        let before = core::iter::successors(Some(id), |&id| self.table.before(id));
        before.take(LONG).all(|id| self.table.arena(id).state == State::LargeRest)
    }

    /// Makes one huge page of an arena in which little is touched, at once and with the heap locked: that takes
    /// as long as a first touch. Says whether it is one.
    #[inline(never)]
    pub(crate) fn collapse_now(&mut self, id: ArenaId) -> bool {
        let mut plan = Plan::new(self.now());
        plan.push(
            id,
            self.table.range(id),
            Action::Collapse { advise: true, ask: false, untold: false, merging: false },
        );
        plan.perform(&self.os);
        plan.steps(0).next().is_some_and(|step| self.collapsed(step))
    }

    /// Drops what is resident of a tail and not used. Says when that may be tried again, if the system refused.
    /// Apart: a plan is two kibibytes of the stack of who allocates.
    #[inline(never)]
    pub(super) fn shed(&mut self, id: ArenaId, action: Action, now: u64) -> Option<u64> {
        // It did not come true.
        self.end_guess(id);
        let mut plan = Plan::new(now);
        plan.push(id, self.table.range(id), action);
        plan.perform(&self.os);
        let step = plan.steps(0).next()?;
        self.broke(step, now);
        step.result.err().map(|error| self.failed(step, now, error))
    }
}
