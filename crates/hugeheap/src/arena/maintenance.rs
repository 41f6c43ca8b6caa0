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
//! A large block may be freed, resized or moved away while its arenas are busy; its arenas are only ever
//! collapsed, which keeps contents.
//!
//! What is chosen, in this order:
//! 1. *Give back* whole empty arenas, the longest empty first, while more is resident than the retention rule keeps.
//!    Of what is kept whole arenas are *offered* to the kernel where there is a memory limit: [`offer`](super::offer).
//! 2. *Break* sparse arenas if that was not enough: those with at least half of their pages free, unchanged for
//!    the decay time, those with the longest free range first. The free pages are dropped, the arena is advised
//!    against huge pages (khugepaged would refill it), and the live pages are advised cold, which makes the
//!    kernel split the huge page and release the dropped part: without the last step RSS falls but the cgroup's
//!    charge does not. Near the memory limit an eighth of free pages is enough, at once.
//! 3. *Break* arenas of which little lives, and give back OS pages without a live block in heap pages that have
//!    some: what the [`tenant`](super::tenant) told.
//! 4. What [`sweep`](super::sweep) finds: *split* what could not be split when it was broken, *collapse* dense arenas.
//!
//! What fails is tried again after ten decay times, and after twice as long each further time. What is refused
//! again and again though nothing is short (memory locked by `mlockall` is) is then left alone until the arena
//! is used again, so that an idle process is left in peace. So is an arena of which too little is resident for
//! a collapse, as soon as that stays as it is. A pass that achieved nothing is never followed by another at
//! once.

use super::arenas::pages_bytes;
use super::layout::{HEAP_PAGE_BYTES, HEAP_PAGES};
use super::list::ArenaId;
use super::plan::{Action, Found, Plan, Step, Vacate};
use super::record::{Arena, Made, State};
use super::{ARENA_BYTES, Arenas};
use crate::telemetry::Fallback;
use hugeheap_os::{Error, ErrorKind, Os, ThpMode};

/// Arenas looked at per pass to find sparse or dense ones; bounds the time under the lock to about 20 µs.
pub(super) const LOOK: usize = 4096;

/// Free heap pages that make an arena worth breaking: half of it. Breaking costs the rest of the arena its huge
/// page; below half, more is lost than won.
const SPARSE: u32 = HEAP_PAGES / 2;

/// The same near the memory limit.
const SPARSE_WHEN_TIGHT: u32 = HEAP_PAGES / 8;

/// The same where no huge page is lost: a sixteenth, so that a system call brings 128 KiB at least.
const SPARSE_WITHOUT_HUGE: u32 = HEAP_PAGES / 16;

/// Retained bytes for which no thread is started: three quarters of an arena. With two arenas a small process
/// that was done kept 4 to 5 MiB for good, more than the system's `malloc` does; with this it keeps 0.9 to 1.4.
const SLACK: u64 = ARENA_BYTES as u64 / 4 * 3;

/// Bytes by which demand has to have fallen for that: half an arena. The first huge page of a program that
/// starts is nearly all retained, and will be used: with a quarter, or without this, some versions of Python
/// started the thread before the first line of their program, half a millisecond of 21.
const FALLEN: u64 = ARENA_BYTES as u64 / 2;

/// Decay times after which something that failed is tried again.
const PATIENCE: u64 = 10;

/// How often that time doubles at most: five minutes at a decay time of one second.
const DOUBLINGS: u32 = 5;

/// Refusals in a row after which an arena is left alone.
const REFUSALS: u8 = 8;

/// Answers in a row that say the same of an arena of which too little is resident, after which it is left
/// alone. With runs in it they come 10, 20 and 40 decay times one after the other: a program that goes on to
/// use what it has asked for has touched some of it in that time, or takes and frees others there. Of a large
/// block nothing else is ever told, so its arenas get as many as refusals do.
const ALIKE_ANSWERS: u8 = 4;

/// When the next pass is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// After this many nanoseconds, even if nothing happens.
    For(u64),
    /// Only after something happened.
    Idle,
}

impl<O: Os> Arenas<O> {
    /// Whether something happened that maintenance should look at. Cheap; asked after a free.
    pub fn maintenance_due(&self) -> bool {
        let retains = self.counters.retained > self.settled + SLACK
            && self.counters.live_peak > self.counters.live + FALLEN;
        self.sweep.is_pending()
            || retains
            || self.kept_too_much()
            || self.tails_due()
            || self.ahead_due()
            || self.has_look_ahead()
            || self.offers_due()
    }

    /// Whether memory is tight, and was not or less was kept at the last pass.
    ///
    /// Nothing needs to have been freed for that: of each arena of a program that takes runs of 43 heap pages
    /// 42 are kept. It grew to the limit, and was killed with 80 of 260 MiB kept, because passes were due after
    /// frees only.
    fn kept_too_much(&self) -> bool {
        let (was_tight, kept) = self.at_pass;
        let least = if was_tight { kept + SLACK } else { SLACK };
        self.counters.retained > least && self.is_tight()
    }

    /// Whether a look at the moment `look` comes too late for what happened since [`complete`](Self::complete)
    /// named it.
    pub(crate) fn oversleeps(&mut self, look: u64) -> bool {
        self.counters.retained > SLACK && self.demand.may_fall_before(look)
            || self.kept_too_much()
            || self.tails_due()
            || self.looks_before(look)
            || self.offers_before(look)
    }

    /// Chooses what to do. What the host says is as fresh as the caller made it with
    /// [`refresh_host`](Self::refresh_host).
    pub fn plan(&mut self) -> Plan {
        let now = self.now();
        let mut plan = Plan::new(now);
        let tight = self.is_tight();
        plan.tight = tight;
        let live = self.counters.live;
        let ahead = self.kept_ahead(now).map_or(0, |(_, bytes)| bytes);
        let demanded = self.demand.target(now);
        plan.kept = !tight && demanded > live;
        let mut target = if tight { live } else { demanded.max(live + ahead) };
        if let Some(most) = self.most_kept(now) {
            target = target.min(live + most);
        }
        let mut excess = (live + self.counters.retained).saturating_sub(target);
        let kept = if tight { 0 } else { ahead / ARENA_BYTES as u64 };
        self.plan_give_back(&mut plan, now, &mut excess, kept);
        self.claim(&plan, 0);
        let claimed = plan.len();
        self.plan_offers(&mut plan, now, kept);
        self.claim(&plan, claimed);
        let claimed = plan.len();
        self.plan_breaks(&mut plan, now, &mut excess, tight);
        self.claim(&plan, claimed);
        let claimed = plan.len();
        self.plan_vacating(&mut plan, now, tight);
        self.claim(&plan, claimed);
        let claimed = plan.len();
        let shedding = self.begin_shedding(excess);
        self.plan_sweep(&mut plan, now, tight, shedding);
        self.claim(&plan, claimed);
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

    /// `kept`: empty arenas that were made ahead. They are not given back for what others retain: where arenas
    /// in use had 3 MiB free, each pass gave back the one that had just been made, and the next one was made.
    fn plan_give_back(&self, plan: &mut Plan, now: u64, excess: &mut u64, kept: u64) {
        for id in self.empty.oldest(&self.table, kept).take(LOOK) {
            if plan.is_full() {
                return;
            }
            let arena = self.arena(id);
            let bytes = pages_bytes(arena.touched);
            if *excess < bytes {
                return;
            }
            if arena.retry_at <= now {
                // A hugetlb page goes back to its pool only when unmapped: its reservation would not survive a
                // decommit. And what can be written counts against `ulimit -d`, resident or not: a heap that
                // had given everything back was refused an arena for 48 bytes, and the C library was refused,
                // too.
                let unmap = arena.made == Made::Hugetlb || self.host.data_limit.is_some();
                let merging = arena.merging;
                plan.push(id, self.table.range(id), Action::GiveBack { unmap, merging });
                *excess -= bytes;
            } else {
                plan.due = plan.due.min(arena.retry_at);
            }
        }
    }

    fn plan_breaks(&self, plan: &mut Plan, now: u64, excess: &mut u64, tight: bool) {
        let small = self.small.is_some().then_some(self.small);
        let partial = self.partial.emptiest(&self.table);
        let broken = self.broken.emptiest(&self.table);
        for id in small.into_iter().chain(partial).chain(broken).take(LOOK) {
            if plan.is_full() || *excess < HEAP_PAGE_BYTES as u64 {
                return;
            }
            let arena = self.arena(id);
            let whole = is_whole(arena, self.host.thp);
            let pages = arena.retained_pages();
            // The arena for small runs may be idle.
            let enough = if arena.in_use == 0 { 1 } else { least_to_break(whole, tight) };
            if arena.busy || arena.made == Made::Hugetlb || pages < enough {
                continue;
            }
            let unchanged = if tight { 0 } else { arena.changed_at.saturating_add(self.demand.decay()) };
            let due = unchanged.max(arena.retry_at);
            if now < due {
                plan.due = plan.due.min(due);
                continue;
            }
            let action = break_of(arena, whole, Vacate::No);
            plan.push(id, self.table.range(id), action);
            *excess = excess.saturating_sub(u64::from(pages) * HEAP_PAGE_BYTES as u64);
        }
    }

    /// Takes the results of a plan over and says when the next pass is due.
    pub fn complete(&mut self, plan: Plan) -> Wait {
        self.complete_in_place(&plan)
    }

    /// The same without moving the plan, two kibibytes. That a plan is completed only once is up to the caller.
    pub(crate) fn complete_in_place(&mut self, plan: &Plan) -> Wait {
        let now = self.now();
        let mut achieved = plan.shed;
        let (mut due, mut offered, mut refused) = (plan.due, false, false);
        for step in plan.steps(0) {
            self.table.arena_mut(step.id).busy = false;
            achieved |= match step.action {
                Action::GiveBack { unmap, .. } => self.gave_back(step, now, unmap),
                Action::Offer => {
                    let taken = self.offered(step, now);
                    offered |= taken;
                    refused |= !taken;
                    taken
                }
                Action::Break { .. } => self.broke(step, now),
                Action::Split { .. } => self.split_off(step),
                Action::Collapse { untold, .. } => {
                    self.told(step, untold);
                    self.collapsed(step)
                }
            };
            if let Some(Found::Sparse(resident)) = step.found {
                let (first, retry_at) = self.found_sparse(step.id, resident, now);
                // The first answers come one after the other, whatever they are: a block of 64 GiB kept the
                // thread awake for minutes, 16 arenas at a time.
                achieved |= first;
                due = due.min(retry_at);
            } else if let (Action::Offer, _) | (_, Ok(())) = (step.action, step.result) {
                // That an offer was refused is no reason to leave the arena alone: it can be given back.
                self.table.arena_mut(step.id).failures = 0;
            } else if let Err(error) = step.result {
                due = due.min(self.failed(step, now, error));
            }
            if !matches!(self.arena(step.id).state, State::Large | State::LargeRest) {
                self.file(step.id);
            }
        }
        self.at_pass = (plan.tight, self.counters.retained);
        self.counters.passes += 1;
        self.counters.longest_pass = self.counters.longest_pass.max(now.saturating_sub(plan.started));
        let offers = self.next_offers(now, offered, refused);
        if achieved {
            return Wait::For(0);
        }
        let decay = self.demand.decay();
        let part = (decay / 8).max(1_000_000);
        if self.counters.retained > SLACK {
            // What was kept may have been forgotten while the lock was free: nothing changes any more then, and
            // this plan did not see it.
            let forgotten = if plan.kept { now } else { u64::MAX };
            due = due.min(self.demand.next_change(now).unwrap_or(forgotten));
        }
        if let Some((until, _)) = self.kept_ahead(now).filter(|_| self.counters.retained > 0) {
            due = due.min(until + 1);
        }
        // Another plan may have been made and completed meanwhile, and its search has come further.
        due = due.min(self.sweep.due).min(self.schedule_look(now));
        // Memory may have become scarce since the plan was made, which saw no reason to look at tails, or at
        // what is kept.
        if plan.more || self.tails_due() || self.kept_too_much() {
            due = now;
        } else if self.sweep.has_news() {
            due = due.min(now.saturating_add(decay));
        }
        let wait = (due != u64::MAX).then(|| due.saturating_sub(now).max(part));
        if wait.is_none() {
            self.settled = self.counters.retained;
        }
        wait.into_iter().chain(offers).min().map_or(Wait::Idle, Wait::For)
    }

    fn gave_back(&mut self, step: &Step, now: u64, unmap: bool) -> bool {
        if step.result.is_err() {
            return false;
        }
        let arena = self.table.arena_mut(step.id);
        let bytes = pages_bytes(arena.touched);
        arena.touched = 0;
        arena.huge = false;
        arena.unsplit = false;
        arena.merging = false;
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

    pub(super) fn broke(&mut self, step: &Step, now: u64) -> bool {
        let arena = self.table.arena_mut(step.id);
        let bytes = pages_bytes(step.dropped & arena.touched);
        arena.touched &= !step.dropped;
        if let Some(done) = step.split {
            arena.unsplit = !done;
        }
        if step.advised {
            arena.made = Made::Broken;
            arena.huge = false;
            arena.untold = false;
            self.counters.breaks += 1;
            // From now on only what is noted as touched is dropped: so is what khugepaged may have filled and
            // is still there.
            if let Action::Break { drop, .. } = step.action {
                let left = drop & !step.dropped & !arena.touched;
                arena.touched |= left;
                self.counters.retained += pages_bytes(left);
            }
        }
        if arena.touched == 0 {
            // Only the arena for small runs can have had no live run when the plan was made.
            arena.unsplit = false;
            self.counters.arenas -= 1;
        }
        self.sweep.news |= arena.unsplit;
        self.vacated(step.id, step.vacated as u64, step.alike as u64, now);
        if bytes > 0 {
            self.dropped(now, bytes);
        }
        bytes > 0 || step.vacated + step.alike > 0
    }

    fn split_off(&mut self, step: &Step) -> bool {
        let arena = self.table.arena_mut(step.id);
        arena.unsplit &= step.result.is_err();
        step.result.is_ok()
    }

    /// Notes what the kernel said of an arena that only the program had touched.
    fn told(&mut self, step: &Step, untold: bool) {
        let dense = step.found == Some(Found::Dense);
        if dense && untold {
            self.count(Fallback::NoHugePage);
        }
        let arena = self.table.arena_mut(step.id);
        // Of a sparse one nothing is known yet.
        arena.untold &= matches!(step.found, Some(Found::Sparse(_)));
    }

    /// Puts off the collapse of an arena of which little is resident. Returns whether that is news, and when it
    /// is looked at again. That its program touches it nobody tells, so it is looked at ever more seldom, as
    /// long as each look finds that something was touched; then no more until a run of it is taken or freed: an
    /// idle process is left in peace.
    fn found_sparse(&mut self, id: ArenaId, resident: u16, now: u64) -> (bool, u64) {
        if self.arena(id).in_use == 0 {
            // Freed meanwhile: it may be given back at once.
            return (false, u64::MAX);
        }
        let first = self.arena(id).failures == 0;
        let retry_at = self.put_off(id, now, true);
        let arena = self.table.arena_mut(id);
        let alike = arena.alike_answers > 0 && arena.sparse == resident;
        arena.alike_answers = if alike { arena.alike_answers.saturating_add(1) } else { 1 };
        arena.sparse = resident;
        let large = matches!(arena.state, State::Large | State::LargeRest);
        if arena.alike_answers >= if large { REFUSALS } else { ALIKE_ANSWERS } {
            arena.retry_at = u64::MAX;
            return (false, u64::MAX);
        }
        self.sweep.due = self.sweep.due.min(retry_at);
        (first, retry_at)
    }

    pub(super) fn collapsed(&mut self, step: &Step) -> bool {
        let arena = self.table.arena_mut(step.id);
        if step.advised {
            arena.made = Made::Thp;
        }
        if !step.is_collapsed() {
            return false;
        }
        let holes = pages_bytes(!arena.touched);
        arena.huge = true;
        arena.merging = false;
        arena.touched = u128::MAX;
        self.counters.retained += holes;
        arena.unsplit = false;
        // Nothing was to be done for one that is huge.
        self.counters.collapses += u64::from(step.found != Some(Found::Huge));
        true
    }

    /// Notes that a step failed, or a part of it. Returns when it may be tried again.
    pub(super) fn failed(&mut self, step: &Step, now: u64, error: Error) -> u64 {
        match step.action {
            Action::GiveBack { .. } | Action::Offer | Action::Split { .. } => {}
            Action::Break { advise, .. } | Action::Collapse { advise, .. } if advise && !step.advised => {
                if matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::Again) {
                    self.count(Fallback::MappingLimit);
                }
            }
            Action::Break { .. } => {}
            Action::Collapse { .. } => self.count(collapse_reason(error)),
        }
        let short = matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::Busy | ErrorKind::Again);
        let retry_at = self.put_off(step.id, now, short);
        if matches!(step.action, Action::Split { .. } | Action::Collapse { .. }) {
            self.sweep.due = self.sweep.due.min(retry_at);
        }
        if matches!(step.action, Action::Break { vacate: Vacate::Yes | Vacate::AndMerge, .. }) {
            self.look_again_at(retry_at);
        }
        retry_at
    }

    /// Sets when maintenance looks at an arena again, later each time. `short`: something was short, so it
    /// never gives up.
    fn put_off(&mut self, id: ArenaId, now: u64, short: bool) -> u64 {
        let patience = self.demand.decay().saturating_mul(PATIENCE);
        let arena = self.table.arena_mut(id);
        let pause = patience.saturating_mul(1 << u32::from(arena.failures).min(DOUBLINGS));
        arena.failures = arena.failures.saturating_add(1);
        let gives_up = arena.failures >= REFUSALS && !short;
        arena.retry_at = if gives_up { u64::MAX } else { now.saturating_add(pause) };
        arena.retry_at
    }

    /// Asks the operating system again what may have changed: THP mode, limits, charge. Reads a few files; not
    /// for the caller's path.
    pub fn refresh_host(&mut self) {
        self.host.refresh(&self.os);
    }

    /// Asks whether there is a limit on what the process can write: one call, for who gives back at once.
    pub(crate) fn refresh_data_limit(&mut self) {
        self.host.data_limit = self.os.data_limit();
    }

    /// Passes until nothing is due now, on the caller's thread: for programs without other threads and for tests.
    pub fn maintain(&mut self) -> Wait {
        // On this thread it would only take as long sooner.
        self.leave_ahead();
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

/// Whether an arena is a huge page or may become one. Advised memory may by khugepaged at any time, whatever it
/// was at the first touch.
pub(super) fn is_whole(arena: &Arena, thp: Option<ThpMode>) -> bool {
    arena.huge || arena.made == Made::Thp || arena.made == Made::Plain && thp == Some(ThpMode::Always)
}

/// Free heap pages that are worth breaking an arena in use which is a huge page or not.
pub(super) fn least_to_break(whole: bool, tight: bool) -> u32 {
    match whole {
        true if tight => SPARSE_WHEN_TIGHT,
        true => SPARSE,
        false => SPARSE_WITHOUT_HUGE,
    }
}

/// Breaking an arena that is a huge page or not. `vacate`: what is done with its live pages.
pub(super) fn break_of(arena: &Arena, whole: bool, vacate: Vacate) -> Action {
    // Also pages never touched, where they may be resident as parts of a huge page. And all of an arena that
    // nothing is live in: where neither the mode nor the advice is known, it may be huge without our knowledge.
    let drop = if whole || arena.in_use == 0 { !arena.in_use } else { arena.touched & !arena.in_use };
    // Unadvised memory may be huge, too, from a time when the host's mode was `always`.
    let split = whole || arena.unsplit || arena.made == Made::Plain;
    Action::Break { drop, live: arena.in_use, advise: whole, split, vacate }
}

fn collapse_reason(error: Error) -> Fallback {
    match error.kind() {
        ErrorKind::OutOfMemory => Fallback::CollapseNoPage,
        ErrorKind::Busy | ErrorKind::Again => Fallback::CollapseBusy,
        _ => Fallback::CollapseRefused,
    }
}
