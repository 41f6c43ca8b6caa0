//! Giving memory back, breaking sparse arenas, collapsing dense ones. Away from the caller's path.
//!
//! A pass has three steps, so that the heap's lock is never held over a system call that takes time:
//!
//! ```text
//!   plan (locked)            perform (not locked)        complete (locked)
//!   choose, mark busy  ───▶  madvise …             ───▶  update the metadata, file the arenas
//! ```
//!
//! While an arena is busy nothing is allocated from it; what is freed in it is recorded and seen by `complete`. A large block
//! may be freed, resized or moved away while its arenas are busy; its arenas are only ever collapsed, which keeps contents.
//!
//! What is chosen, in this order:
//! 1. *Give back* whole empty arenas, the longest empty first, while more is resident than the retention rule keeps.
//! 2. *Break* sparse arenas if that was not enough: those with at least half of their pages free, unchanged for the decay time, those
//!    with the longest free range first. The free pages are dropped, the arena is advised against huge pages (khugepaged would refill
//!    it), and the live pages are advised cold, which makes the kernel split the huge page and release the dropped part: without
//!    the last step RSS falls but the cgroup's charge does not. Near the memory limit an eighth of free pages is enough, at once.
//! 3. *Collapse* arenas without a huge page that became dense: seven eighths live (so memory grows by an eighth at most) and
//!    unchanged for the decay time.
//!
//! What fails is tried again after ten decay times, and after twice as long each further time: locked memory (`mlockall`) refuses
//! forever. A pass that achieved nothing is never followed by another at once.

use super::arenas::pages_bytes;
use super::backing::Host;
use super::layout::{HEAP_PAGE_BYTES, HEAP_PAGES};
use super::list::ArenaId;
use super::plan::{Action, Plan, Step};
use super::record::{Made, State};
use super::{ARENA_BYTES, Arenas, Policy};
use crate::telemetry::Fallback;
use hugeheap_os::{Error, ErrorKind, Os, ThpMode};

/// Arenas looked at per pass to find sparse or dense ones; bounds the time under the lock to about 20 µs.
const LOOK: usize = 4096;

/// Free heap pages that make an arena worth breaking: half of it. Breaking costs the rest of the arena its huge page; below half,
/// more is lost than won.
const SPARSE: u32 = HEAP_PAGES / 2;

/// The same near the memory limit.
const SPARSE_WHEN_TIGHT: u32 = HEAP_PAGES / 8;

/// The same where no huge page is lost: a sixteenth, so that a system call brings 128 KiB at least.
const SPARSE_WITHOUT_HUGE: u32 = HEAP_PAGES / 16;

/// Live heap pages that make an arena dense.
pub(super) const DENSE: u32 = HEAP_PAGES / 8 * 7;

/// Retained bytes for which no thread is started: two arenas.
const SLACK: u64 = 2 * ARENA_BYTES as u64;

/// Decay times after which something that failed is tried again.
const PATIENCE: u64 = 10;

/// How often that time doubles at most: five minutes at a decay time of one second.
const DOUBLINGS: u32 = 5;

/// When the next pass is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// After this many nanoseconds, even if nothing happens.
    For(u64),
    /// Only after something happened.
    Idle,
}

/// How far the search for arenas to collapse has come: it goes over all arenas, [`LOOK`] in a pass.
#[derive(Clone, Copy)]
pub(super) struct Sweep {
    /// Where the next pass goes on; `ArenaId(0)`: no search is under way.
    next: ArenaId,
    /// When the first of the arenas that are dense but not due yet will be.
    due: u64,
}

impl Sweep {
    pub(super) const NEW: Self = Self { next: ArenaId(0), due: u64::MAX };
}

impl<O: Os> Arenas<O> {
    /// Whether something happened that maintenance should look at. Cheap; asked after a free.
    pub fn maintenance_due(&self) -> bool {
        self.is_collapse_pending() || self.counters.retained > self.settled + SLACK
    }

    fn is_collapse_pending(&self) -> bool {
        (self.collapse_pending || self.sweep.next != ArenaId(0)) && self.may_collapse(&self.host)
    }

    /// Chooses what to do. What the host says is as fresh as the caller made it with [`refresh_host`](Self::refresh_host).
    pub fn plan(&mut self) -> Plan {
        let now = self.now();
        let mut plan = Plan::new(now);
        let tight = self.is_tight();
        let live = self.counters.live;
        let target = if tight { live } else { self.demand.target(now).max(live) };
        let mut excess = (live + self.counters.retained).saturating_sub(target);
        self.plan_give_back(&mut plan, now, &mut excess);
        self.claim(&plan, 0);
        let claimed = plan.len();
        self.plan_breaks(&mut plan, now, excess, tight);
        self.claim(&plan, claimed);
        if self.is_collapse_pending() && !tight {
            let claimed = plan.len();
            self.plan_collapses(&mut plan, now);
            self.claim(&plan, claimed);
        }
        plan.more |= plan.is_full();
        plan
    }

    /// Marks the arenas of the steps from number `first` on busy.
    fn claim(&mut self, plan: &Plan, first: usize) {
        for step in plan.steps(first) {
            self.unfile(step.id);
            self.table.arena_mut(step.id).busy = true;
        }
    }

    fn plan_give_back(&self, plan: &mut Plan, now: u64, excess: &mut u64) {
        let mut id = self.empty.tail;
        for _ in 0..LOOK {
            if !id.is_some() || plan.is_full() {
                return;
            }
            let arena = self.arena(id);
            let bytes = pages_bytes(arena.touched);
            if *excess < bytes {
                return;
            }
            if arena.retry_at <= now {
                // A hugetlb page goes back to its pool only when unmapped: its reservation would not survive a decommit.
                plan.push(id, self.table.range(id), Action::GiveBack { unmap: arena.made == Made::Hugetlb });
                *excess -= bytes;
            } else {
                plan.due = plan.due.min(arena.retry_at);
            }
            id = arena.previous;
        }
    }

    fn plan_breaks(&self, plan: &mut Plan, now: u64, mut excess: u64, tight: bool) {
        let sparse = if tight { SPARSE_WHEN_TIGHT } else { SPARSE };
        let small = self.small.is_some().then_some(self.small);
        let partial = self.partial.emptiest(&self.table);
        let broken = self.broken.emptiest(&self.table);
        for id in small.into_iter().chain(partial).chain(broken).take(LOOK) {
            let enough_done = excess < HEAP_PAGE_BYTES as u64;
            if plan.is_full() || enough_done && self.stranded == 0 {
                return;
            }
            let arena = self.arena(id);
            // Advised memory may become huge by khugepaged at any time, whatever it was at the first touch.
            let whole = arena.huge
                || arena.made == Made::Thp
                || arena.made == Made::Plain && self.host.thp == Some(ThpMode::Always);
            let pages = arena.retained_pages();
            let enough = if whole { sparse } else { SPARSE_WITHOUT_HUGE };
            let wanted = !enough_done && pages >= enough || arena.stranded;
            if arena.busy || arena.made == Made::Hugetlb || !wanted {
                continue;
            }
            let unchanged = if tight { 0 } else { arena.changed_at.saturating_add(self.demand.decay()) };
            let due = unchanged.max(arena.retry_at);
            if now < due {
                plan.due = plan.due.min(due);
                continue;
            }
            // Also pages never touched, where they may be resident as parts of a huge page.
            let drop = if whole { !arena.in_use } else { arena.touched & !arena.in_use };
            let split = whole || arena.stranded;
            let action = Action::Break { drop, live: arena.in_use, advise: whole, split };
            plan.push(id, self.table.range(id), action);
            excess = excess.saturating_sub(u64::from(pages) * HEAP_PAGE_BYTES as u64);
        }
    }

    /// Whether arenas may be collapsed at all now.
    fn may_collapse(&self, host: &Host) -> bool {
        host.can_collapse() && self.settings.policy != Policy::Base
    }

    fn plan_collapses(&mut self, plan: &mut Plan, now: u64) {
        if plan.is_full() {
            return;
        }
        if self.sweep.next == ArenaId(0) {
            // What becomes dense from now on starts another search.
            self.collapse_pending = false;
            self.sweep.due = u64::MAX;
        }
        let mut more = None;
        for (looked, id) in self.table.used_from(self.sweep.next).enumerate() {
            if plan.is_full() || looked == LOOK {
                more = Some(id);
                break;
            }
            let arena = self.table.arena(id);
            let used = matches!(arena.state, State::Full | State::Partial | State::Large | State::LargeRest);
            if arena.huge || !used || arena.busy || id == self.small || arena.live_pages() < DENSE {
                continue;
            }
            let due = arena.changed_at.saturating_add(self.demand.decay()).max(arena.retry_at);
            if now < due {
                self.sweep.due = self.sweep.due.min(due);
                continue;
            }
            let advise = matches!(arena.made, Made::Base | Made::Broken);
            plan.push(id, self.table.range(id), Action::Collapse { advise });
        }
        match more {
            Some(id) => {
                self.sweep.next = id;
                plan.more = true;
            }
            None => {
                self.sweep.next = ArenaId(0);
                self.collapse_pending |= self.sweep.due != u64::MAX;
                plan.due = plan.due.min(self.sweep.due);
            }
        }
    }

    /// Takes the results of a plan over and says when the next pass is due.
    pub fn complete(&mut self, plan: Plan) -> Wait {
        let now = self.now();
        let mut achieved = false;
        let mut due = plan.due;
        for step in plan.steps(0) {
            self.table.arena_mut(step.id).busy = false;
            achieved |= match step.action {
                Action::GiveBack { unmap } => self.gave_back(step, now, unmap),
                Action::Break { .. } => self.broke(step, now),
                Action::Collapse { .. } => self.collapsed(step),
            };
            if let Err(error) = step.result {
                due = due.min(self.failed(step, now, error));
            } else {
                self.table.arena_mut(step.id).failures = 0;
            }
            if !matches!(self.arena(step.id).state, State::Large | State::LargeRest) {
                self.file(step.id);
            }
        }
        self.counters.passes += 1;
        self.counters.longest_pass = self.counters.longest_pass.max(now.saturating_sub(plan.started));
        if achieved {
            return Wait::For(0);
        }
        let decay = self.demand.decay();
        let part = (decay / 8).max(1_000_000);
        if self.counters.retained > SLACK {
            due = due.min(self.demand.next_change(now).unwrap_or(u64::MAX));
        }
        if plan.more {
            due = now;
        } else if self.is_collapse_pending() {
            // Also when it has to wait until the memory limit is not near any more.
            due = due.min(now.saturating_add(decay));
        }
        if due == u64::MAX {
            self.settled = self.counters.retained;
            return Wait::Idle;
        }
        Wait::For(due.saturating_sub(now).max(part))
    }

    fn gave_back(&mut self, step: &Step, now: u64, unmap: bool) -> bool {
        if step.result.is_err() {
            return false;
        }
        self.strand(step.id, false);
        let arena = self.table.arena_mut(step.id);
        let bytes = pages_bytes(arena.touched);
        arena.touched = 0;
        arena.huge = false;
        if unmap {
            arena.made = Made::Nothing;
        }
        self.counters.arenas -= 1;
        self.counters.arenas_given_back += 1;
        self.dropped(now, bytes);
        true
    }

    /// Retained bytes went back to the system.
    fn dropped(&mut self, now: u64, bytes: u64) {
        self.retain_less(bytes);
        self.counters.given_back += bytes;
        self.demand.gave_back(now, bytes);
    }

    fn broke(&mut self, step: &Step, now: u64) -> bool {
        let arena = self.table.arena_mut(step.id);
        let bytes = pages_bytes(step.dropped & arena.touched);
        arena.touched &= !step.dropped;
        let stranded = arena.touched != 0
            && match step.split {
                None => arena.stranded,
                Some(true) => false,
                Some(false) => arena.stranded || step.dropped != 0,
            };
        let released = arena.stranded && !stranded;
        if step.advised {
            arena.made = Made::Broken;
            arena.huge = false;
            self.counters.breaks += 1;
        }
        if self.arena(step.id).touched == 0 {
            // Only the arena for small runs can have had no live run when the plan was made.
            self.counters.arenas -= 1;
        }
        self.strand(step.id, stranded);
        if bytes > 0 {
            self.dropped(now, bytes);
        }
        bytes > 0 || released
    }

    fn collapsed(&mut self, step: &Step) -> bool {
        let arena = self.table.arena_mut(step.id);
        if step.advised {
            arena.made = Made::Thp;
        }
        if step.result.is_err() {
            return false;
        }
        let holes = pages_bytes(!arena.touched);
        arena.huge = true;
        arena.touched = u128::MAX;
        self.counters.retained += holes;
        self.counters.collapses += 1;
        self.strand(step.id, false);
        true
    }

    /// Notes that a step failed, or a part of it. Returns when it may be tried again.
    fn failed(&mut self, step: &Step, now: u64, error: Error) -> u64 {
        match step.action {
            Action::GiveBack { .. } => {}
            Action::Break { advise, .. } | Action::Collapse { advise } if advise && !step.advised => {
                if matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::Again) {
                    self.count(Fallback::MappingLimit);
                }
            }
            Action::Break { .. } => {}
            Action::Collapse { .. } => self.count(collapse_reason(error)),
        }
        let patience = self.demand.decay().saturating_mul(PATIENCE);
        let arena = self.table.arena_mut(step.id);
        arena.retry_at =
            now.saturating_add(patience.saturating_mul(1 << u32::from(arena.failures).min(DOUBLINGS)));
        arena.failures = arena.failures.saturating_add(1);
        arena.retry_at
    }

    /// Notes whether parts of an arena's huge page are charged though dropped.
    pub(crate) fn strand(&mut self, id: ArenaId, stranded: bool) {
        let was = core::mem::replace(&mut self.table.arena_mut(id).stranded, stranded);
        self.stranded = self.stranded + usize::from(stranded) - usize::from(was);
    }

    /// Asks the operating system again what may have changed: THP mode, limits, charge. Reads a few files; not for the caller's path.
    pub fn refresh_host(&mut self) {
        self.host.refresh(&self.os);
    }

    /// Passes until nothing is due now, on the caller's thread: for programs without other threads and for tests.
    pub fn maintain(&mut self) -> Wait {
        loop {
            let mut plan = self.plan();
            plan.perform(&self.os);
            match self.complete(plan) {
                Wait::For(0) => {}
                wait => return wait,
            }
        }
    }
}

fn collapse_reason(error: Error) -> Fallback {
    match error.kind() {
        ErrorKind::OutOfMemory => Fallback::CollapseNoPage,
        ErrorKind::Busy | ErrorKind::Again => Fallback::CollapseBusy,
        _ => Fallback::CollapseRefused,
    }
}
