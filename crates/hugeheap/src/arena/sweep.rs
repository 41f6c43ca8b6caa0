//! The search for arenas to collapse: those that became dense without a huge page.
//!
//! ```text
//!   news ──▶ pass: LOOK arenas ──▶ pass: the next LOOK ──▶ … ──▶ all seen ──▶ nothing
//!    ▲                                                             │  ▲
//!    └── another became dense meanwhile ◀──────────────────────────┘  └─ some are dense, but changed too lately: again when due
//! ```
//!
//! Dense is seven eighths live, so that memory grows by an eighth at most, and unchanged for the decay time; of
//! the arena for small runs the first is enough, in a heap that has grown. Arenas are in no list for this: most
//! of the time none of them is without a huge page. What a break could not split is found here too, whether the
//! arena is still used or not.
//!
//! That a large block is live says nothing of what its program has touched, nor that a run of more than one
//! heap page is. So of the arenas of a block, of those that it left, and of those with such runs the kernel is
//! asked first. Where seven eighths are not resident nothing is collapsed: that would fill the holes of a
//! sparse table with zeros, the more the larger it is. Such an arena is asked about again after ten decay
//! times, after twice as long each further time, and no more when nothing was touched between four answers, of
//! a large block eight. (Each was asked about eight times whatever the answer, for 950 decay times, in which
//! the maintenance thread lived.)

use super::list::ArenaId;
use super::maintenance::LOOK;
use super::plan::{Action, Plan};
use super::record::{Made, State};
use super::tails::Shedding;
use super::{Arenas, HEAP_PAGES, Policy};
use hugeheap_os::Os;

/// Live heap pages that make an arena dense.
pub(super) const DENSE: u32 = HEAP_PAGES / 8 * 7;

/// How far the search has come.
#[derive(Clone, Copy)]
pub(super) struct Sweep {
    /// Something happened since it began last.
    pub(super) news: bool,
    /// Where the next pass goes on; `ArenaId(0)`: no search is under way.
    next: ArenaId,
    /// When the first of the arenas that were found and were not due will be, or may be tried again;
    /// `u64::MAX`: there was none.
    pub(super) due: u64,
}

impl Sweep {
    pub(super) const NEW: Self = Self { news: false, next: ArenaId(0), due: u64::MAX };

    /// Whether there is something to search for now.
    pub(super) fn has_news(&self) -> bool {
        self.news || self.next != ArenaId(0)
    }

    /// The same, or later.
    pub(super) fn is_pending(&self) -> bool {
        self.has_news() || self.due != u64::MAX
    }
}

impl<O: Os> Arenas<O> {
    /// Whether arenas may be collapsed at all now.
    pub(crate) fn may_collapse(&self) -> bool {
        self.host.can_collapse() && self.settings.policy != Policy::Base
    }

    /// What is to be done with an arena, and when at the earliest.
    fn wanted(&self, id: ArenaId, now: u64, tight: bool, shedding: Shedding) -> Option<(Action, u64)> {
        let arena = self.table.arena(id);
        if arena.busy {
            return None;
        }
        // An empty arena, too: it is kept as the few pages that were not dropped, and charged as all of the huge page.
        if arena.unsplit {
            return Some((Action::Split { pages: arena.touched }, arena.retry_at));
        }
        let scarce = shedding == Shedding::All;
        if let Some(action) = self.to_shed(id, scarce) {
            let unchanged = if scarce { 0 } else { arena.changed_at.saturating_add(self.demand.decay()) };
            return Some((action, unchanged.max(arena.retry_at)));
        }
        let used = matches!(arena.state, State::Full | State::Partial | State::Large | State::LargeRest);
        // Of a vacated one the heap pages are in use, but not what was given back of them.
        let dense = arena.live_pages() >= DENSE && !arena.vacated && !self.stays_apart(id);
        if !used || arena.huge || !dense || !self.may_collapse() {
            return None;
        }
        // Small runs are taken from the arena for them first: it changes all the time, and stays dense.
        let unchanged = if arena.apart { now } else { arena.changed_at.saturating_add(self.demand.decay()) };
        // Near the limit not at all; looked at again a decay time later.
        let earliest = if tight { now.saturating_add(self.demand.decay()) } else { unchanged };
        let due = earliest.max(arena.retry_at);
        let advise = matches!(arena.made, Made::Base | Made::Broken);
        // What is longer than a heap page may be a buffer that is used in part: 100 MiB of them, of which 9
        // were touched, became huge pages as a whole.
        let in_part = matches!(arena.state, State::Large | State::LargeRest) || arena.has_long_runs();
        let ask = arena.untold || in_part;
        Some((Action::Collapse { advise, ask, untold: arena.untold, merging: arena.merging }, due))
    }

    /// Goes on with the search, if there is one.
    pub(super) fn plan_sweep(&mut self, plan: &mut Plan, now: u64, tight: bool, shedding: Shedding) {
        if plan.is_full() {
            return;
        }
        if !self.sweep.has_news() && now < self.sweep.due {
            return;
        }
        if self.sweep.next == ArenaId(0) {
            (self.sweep.news, self.sweep.due) = (false, u64::MAX);
        }
        let (mut more, mut tail, mut tails) = (None, None, false);
        for (looked, id) in self.table.used_from(self.sweep.next).enumerate() {
            if plan.is_full() || looked == LOOK {
                more = Some(id);
                break;
            }
            match self.wanted(id, now, tight, shedding) {
                // When more is kept than has to be it is looked for again.
                Some((Action::Break { .. }, _)) if shedding == Shedding::None => tails = true,
                // Looked at again, for others of it.
                Some((action @ Action::Break { .. }, due)) if due <= now => {
                    (tail, more) = (Some((id, action)), Some(id));
                    break;
                }
                Some((action, due)) if due <= now => plan.push(id, self.table.range(id), action),
                Some((_, due)) => self.sweep.due = self.sweep.due.min(due),
                None => {}
            }
        }
        self.tails |= tails;
        if let Some((id, action)) = tail {
            match self.shed(id, action, now) {
                Some(retry_at) => self.sweep.due = self.sweep.due.min(retry_at),
                None => plan.shed = true,
            }
        }
        if let Some(id) = more {
            self.sweep.next = id;
            plan.more = true;
        } else {
            self.sweep.next = ArenaId(0);
        }
    }
}
