//! Giving memory back, breaking sparse arenas, collapsing dense ones. Away from the caller's path.
//!
//! A pass has three steps, so that the heap's lock is never held over a system call that takes time:
//!
//! ```text
//!   plan (locked)            perform (not locked)        complete (locked)
//!   choose, mark busy  ───▶  madvise …             ───▶  update the metadata, file the arenas
//! ```
//!
//! While an arena is busy nothing is allocated from it; what is freed in it is recorded and seen by `complete`.
//!
//! What is chosen, in this order:
//! 1. *Give back* whole empty arenas, the longest empty first, while more is resident than the retention rule keeps.
//! 2. *Break* sparse arenas if that was not enough: those with at least half of their pages free, unchanged for the decay time, emptiest
//!    first. The free pages are dropped, the arena is advised against huge pages (khugepaged would refill it), and
//!    the live pages are advised cold, which makes the kernel split the huge page and release the dropped part: without
//!    the last step RSS falls but the cgroup's charge does not. Near the memory limit an eighth of free pages is enough.
//! 3. *Collapse* arenas without a huge page that became dense: seven eighths live (so memory grows by an eighth at most) and
//!    unchanged for the decay time.

use super::backing::Host;
use super::bitmap;
use super::layout::{ARENA_BYTES, HEAP_PAGE_BYTES, HEAP_PAGES};
use super::list::ArenaId;
use super::record::{Made, State};
use super::{Arenas, Policy};
use crate::telemetry::Fallback;
use hugeheap_os::{AddressRange, Advice, Error, ErrorKind, Os, Pages, Result as OsResult};

/// Actions of one pass. Giving back or breaking a huge page takes 0.05 to 0.3 ms, a collapse 0.3 to 1 ms: a pass stays below 20 ms.
const ACTIONS: usize = 16;

/// Arenas looked at per pass to find sparse or dense ones; bounds the time under the lock to about 20 µs.
const LOOK: usize = 4096;

/// Free heap pages that make an arena worth breaking: half of it. Breaking costs the rest of the arena its huge page; below half,
/// more is lost than won.
const SPARSE: u32 = HEAP_PAGES / 2;

/// The same near the memory limit.
const SPARSE_WHEN_TIGHT: u32 = HEAP_PAGES / 8;

/// Live heap pages that make an arena dense.
const DENSE: u32 = HEAP_PAGES / 8 * 7;

/// Retained bytes for which no thread is started: two arenas.
const SLACK: u64 = 2 * ARENA_BYTES as u64;

/// Tries of a collapse that answers "again".
const COLLAPSE_TRIES: u32 = 3;

#[derive(Clone, Copy, Debug)]
enum Action {
    GiveBack { unmap: bool },
    Break { drop: u128, live: u128, split: bool },
    Collapse { advise: bool },
}

#[derive(Clone, Copy, Debug)]
struct Step {
    id: ArenaId,
    range: AddressRange,
    action: Action,
    result: OsResult<()>,
}

/// What a pass does: made by [`Arenas::plan`], carried out by [`perform`](Self::perform), reported to [`Arenas::complete`].
#[derive(Debug)]
#[must_use = "arenas of a plan stay busy until it is completed"]
pub struct Plan {
    steps: [Option<Step>; ACTIONS],
    count: usize,
    started: u64,
    /// Something will be due soon that is not yet.
    soon: bool,
}

/// When the next pass is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// After this many nanoseconds, even if nothing happens.
    For(u64),
    /// Only after something happened.
    Idle,
}

fn pages_range(range: AddressRange, pages: core::ops::Range<u32>) -> AddressRange {
    AddressRange::new(
        range.start + pages.start as usize * HEAP_PAGE_BYTES,
        (pages.end - pages.start) as usize * HEAP_PAGE_BYTES,
    )
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Carries the plan out. Without the heap's lock.
    pub fn perform<P: Pages>(&mut self, os: &P) {
        for step in self.steps[..self.count].iter_mut().flatten() {
            step.result = match step.action {
                // SAFETY: the arena is busy and has no live run: nobody uses its memory until the plan is completed.
                Action::GiveBack { unmap: false } => unsafe { os.decommit(step.range) },
                // SAFETY: as above.
                Action::GiveBack { unmap: true } => unsafe { os.unmap(step.range) },
                Action::Break { drop, live, split } => break_arena(os, step.range, drop, live, split),
                Action::Collapse { advise } => collapse_arena(os, step.range, advise),
            };
        }
    }

    fn push(&mut self, id: ArenaId, range: AddressRange, action: Action) {
        self.steps[self.count] = Some(Step { id, range, action, result: Ok(()) });
        self.count += 1;
    }

    fn is_full(&self) -> bool {
        self.count == ACTIONS
    }
}

fn break_arena<P: Pages>(os: &P, range: AddressRange, drop: u128, live: u128, split: bool) -> OsResult<()> {
    if split {
        // Before the pages are dropped: khugepaged must not refill them in between.
        // SAFETY: the arena is mapped; advice changes no contents.
        unsafe { os.advise(range, Advice::NoHuge) }?;
    }
    for pages in bitmap::set_ranges(drop) {
        // SAFETY: the pages are free and the arena is busy: nobody uses them.
        unsafe { os.decommit(pages_range(range, pages)) }?;
    }
    if split {
        for pages in bitmap::set_ranges(live) {
            // SAFETY: splitting changes no contents.
            unsafe { os.split(pages_range(range, pages)) }?;
        }
    }
    Ok(())
}

fn collapse_arena<P: Pages>(os: &P, range: AddressRange, advise: bool) -> OsResult<()> {
    if advise {
        // SAFETY: the arena is mapped; advice changes no contents.
        unsafe { os.advise(range, Advice::Huge) }?;
    }
    let mut tries = 1;
    loop {
        // SAFETY: collapsing changes no contents.
        match unsafe { os.collapse(range) } {
            Err(error) if error.kind() == ErrorKind::Again && tries < COLLAPSE_TRIES => tries += 1,
            result => return result,
        }
    }
}

impl<O: Os> Arenas<O> {
    /// Whether something happened that maintenance should look at. Cheap; asked after a free.
    pub fn maintenance_due(&self) -> bool {
        (self.collapse_pending && self.settings.policy != Policy::Base)
            || self.counters.retained > self.settled + SLACK
    }

    /// Chooses what to do. `host` is fresh if the caller just asked for it with [`refresh_host`](Self::refresh_host).
    pub fn plan(&mut self) -> Plan {
        let now = self.now();
        let mut plan = Plan { steps: [None; ACTIONS], count: 0, started: now, soon: false };
        let tight = self.is_tight();
        let live = self.counters.live;
        let target = if tight { live } else { self.demand.target(now).max(live) };
        let resident = live + self.counters.retained;
        let mut excess = resident.saturating_sub(target);
        self.plan_give_back(&mut plan, now, &mut excess);
        self.plan_breaks(&mut plan, now, &mut excess, tight);
        if self.collapse_pending && !tight {
            self.plan_collapses(&mut plan, now);
        }
        for step in plan.steps[..plan.count].iter().flatten() {
            let id = step.id;
            self.unfile(id);
            self.table.arena_mut(id).busy = true;
        }
        plan
    }

    fn plan_give_back(&self, plan: &mut Plan, now: u64, excess: &mut u64) {
        let mut id = self.empty.tail;
        while id.is_some() && !plan.is_full() {
            let arena = self.arena(id);
            let bytes = u64::from(arena.touched.count_ones()) * HEAP_PAGE_BYTES as u64;
            if *excess < bytes {
                break;
            }
            if arena.retry_at <= now {
                // A hugetlb page goes back to its pool only when unmapped: its reservation would not survive a decommit.
                plan.push(id, self.table.range(id), Action::GiveBack { unmap: arena.made == Made::Hugetlb });
                *excess -= bytes;
            } else {
                plan.soon = true;
            }
            id = arena.previous;
        }
    }

    fn plan_breaks(&self, plan: &mut Plan, now: u64, excess: &mut u64, tight: bool) {
        let sparse = if tight { SPARSE_WHEN_TIGHT } else { SPARSE };
        let small = self.small.is_some().then_some(self.small);
        let partial = self.partial.emptiest(&self.table);
        let broken = self.broken.emptiest(&self.table);
        for id in small.into_iter().chain(partial).chain(broken).take(LOOK) {
            if plan.is_full() || *excess < (HEAP_PAGE_BYTES as u64) {
                break;
            }
            let arena = self.arena(id);
            let pages = arena.retained_pages();
            let whole = arena.made == Made::Thp;
            let enough = if whole { sparse } else { HEAP_PAGES / 16 };
            if arena.made == Made::Hugetlb || pages < enough {
                continue;
            }
            if now < arena.changed_at.saturating_add(self.demand.decay()) && !tight || now < arena.retry_at {
                plan.soon = true;
                continue;
            }
            let drop = arena.touched & !arena.in_use;
            plan.push(id, self.table.range(id), Action::Break { drop, live: arena.in_use, split: whole });
            *excess = excess.saturating_sub(u64::from(pages) * HEAP_PAGE_BYTES as u64);
        }
    }

    /// Whether arenas may be collapsed at all now.
    fn may_collapse(&self, host: &Host) -> bool {
        host.can_collapse() && self.settings.policy != Policy::Base
    }

    fn plan_collapses(&mut self, plan: &mut Plan, now: u64) {
        if !self.may_collapse(&self.host) {
            self.collapse_pending = false;
            return;
        }
        let start = self.sweep;
        let mut looked = 0;
        let mut waiting = false;
        let mut full = false;
        for id in self.table.used().skip(start).take(LOOK) {
            if plan.is_full() {
                full = true;
                break;
            }
            looked += 1;
            let arena = self.table.arena(id);
            let without = arena.wants_huge || matches!(arena.made, Made::Base | Made::Plain | Made::Broken);
            let used = matches!(arena.state, State::Full | State::Partial | State::Large | State::LargeRest);
            if !without || !used || arena.busy || id == self.small || arena.live_pages() < DENSE {
                continue;
            }
            if now < arena.changed_at.saturating_add(self.demand.decay()) || now < arena.retry_at {
                waiting = true;
                continue;
            }
            let advise = matches!(arena.made, Made::Base | Made::Broken);
            plan.push(id, self.table.range(id), Action::Collapse { advise });
        }
        if full || looked == LOOK {
            self.sweep = start + looked;
            plan.soon = true;
        } else {
            self.sweep = 0;
            // Arenas before `start` were looked at in earlier passes; what is waiting keeps the search going.
            self.collapse_pending = waiting || start > 0;
            plan.soon |= self.collapse_pending;
        }
    }

    /// Takes the results of a plan over and says when the next pass is due.
    pub fn complete(&mut self, plan: Plan) -> Wait {
        let now = self.now();
        let mut done = false;
        for step in plan.steps[..plan.count].iter().flatten() {
            self.table.arena_mut(step.id).busy = false;
            match step.action {
                Action::GiveBack { unmap } => self.gave_back(step, now, unmap),
                Action::Break { drop, split, .. } => self.broke(step, now, drop, split),
                Action::Collapse { advise } => self.collapsed(step, now, advise),
            }
            done |= step.result.is_ok();
            let state = self.table.arena(step.id).state;
            if !matches!(state, State::Large | State::LargeRest) {
                self.file(step.id);
            }
        }
        self.counters.passes += 1;
        self.counters.longest_pass = self.counters.longest_pass.max(now.saturating_sub(plan.started));
        let part = (self.demand.decay() / 8).max(1_000_000);
        if done {
            return Wait::For(0);
        }
        if plan.soon {
            return Wait::For(part);
        }
        match self.demand.next_change(now) {
            Some(at) if self.counters.retained > SLACK => Wait::For((at - now).max(part)),
            _ => {
                self.settled = self.counters.retained;
                Wait::Idle
            }
        }
    }

    fn gave_back(&mut self, step: &Step, now: u64, unmap: bool) {
        let arena = self.table.arena_mut(step.id);
        if step.result.is_err() {
            // Locked memory (mlockall) answers so. Kept, and not asked again soon.
            arena.retry_at = now + 10 * self.demand.decay();
            return;
        }
        let bytes = u64::from(arena.touched.count_ones()) * HEAP_PAGE_BYTES as u64;
        arena.touched = 0;
        arena.wants_huge = false;
        if unmap {
            arena.made = Made::Nothing;
        }
        self.counters.retained -= bytes;
        self.counters.arenas -= 1;
        self.counters.given_back += bytes;
        self.counters.arenas_given_back += 1;
        self.demand.gave_back(now, bytes);
    }

    fn broke(&mut self, step: &Step, now: u64, drop: u128, split: bool) {
        let decay = self.demand.decay();
        let arena = self.table.arena_mut(step.id);
        arena.retry_at = now + 10 * decay;
        match step.result {
            Ok(()) => {
                let bytes = u64::from((drop & arena.touched).count_ones()) * HEAP_PAGE_BYTES as u64;
                arena.touched &= !drop;
                if split {
                    arena.made = Made::Broken;
                    arena.wants_huge = false;
                    self.counters.breaks += 1;
                }
                if arena.touched == 0 && step.id != self.small {
                    // Its last runs were freed meanwhile.
                    self.counters.arenas -= 1;
                }
                self.counters.retained -= bytes;
                self.counters.given_back += bytes;
                self.demand.gave_back(now, bytes);
            }
            Err(error) if error.kind() == ErrorKind::OutOfMemory => self.count(Fallback::MappingLimit),
            Err(_) => {}
        }
    }

    fn collapsed(&mut self, step: &Step, now: u64, advise: bool) {
        let decay = self.demand.decay();
        let arena = self.table.arena_mut(step.id);
        match step.result {
            Ok(()) => {
                let holes = (!arena.touched).count_ones();
                arena.made = Made::Thp;
                arena.wants_huge = false;
                arena.touched = u128::MAX;
                self.counters.retained += u64::from(holes) * HEAP_PAGE_BYTES as u64;
                self.counters.collapses += 1;
            }
            Err(error) => {
                if advise {
                    arena.made = Made::Thp;
                    arena.wants_huge = true;
                }
                arena.retry_at = now + 10 * decay;
                self.count(collapse_reason(error));
            }
        }
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
