//! Making the heap of a running process huge: which units, in which order, and when to stop.
//!
//! A collapse fills the holes of a unit with zeros and un-shares what `fork` shared: memory grows by both. So a
//! unit is worth it only when it is dense, and the growth of all of them together has a limit:
//!
//! ```text
//!   every unit with anything resident, of private writable anonymous mappings
//!     ├─ mapped by a huge page already           huge
//!     ├─ cut by the end of its mapping           edge: no huge page fits
//!     ├─ resident / all < min_density            sparse
//!     └─ candidate: growth = absent + shared with another process
//!          sorted by growth, then address; taken while the sum stays within the limit, else over_limit
//! ```
//!
//! Invariants: memory the plan adds never exceeds its limit; a unit is looked at again just before its call,
//! because the process went on running, and left alone when it is no longer what was planned. A mapping that
//! refuses ([`EINVAL`]) from the first on is not asked more than [`REFUSALS`] times.
//!
//! [`EINVAL`]: crate::ErrorKind::Invalid

use super::budget::Budget;
use super::ended::{gone, must_have_memory};
use super::pace::{LATENCY_LIMIT, Outcome, Pace, Stop, Tally};
use super::picture::{Picture, Unit};
use super::taken::Taken;
use super::{Change, MappingKind, Process, ProcessMapping};
use crate::{AddressRange, Advice, MemoryLevel, Result};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Asks of one mapping that may answer `EINVAL` before the rest of it is left out: advised against, or watched by
/// userfaultfd, it answers so for every unit.
const REFUSALS: u32 = 3;
/// Share of a unit's pages that must be resident. At 90 % a huge page wastes at most a tenth of itself; below
/// that holes are usually free blocks an allocator may give back.
const MIN_DENSITY: f64 = 0.9;
/// Growth without a limit set, as a share of resident memory.
const MAX_GROWTH: f64 = 0.05;
/// Time for everything, unless set. A gigabyte takes about 5 s at half pace.
const BUDGET: Duration = Duration::from_secs(60);
/// Units of room left below the cgroup's limit: each collapse needs a new huge page before it frees the old pages.
const ROOM: u64 = 4;
/// Time for the look at what came of it, after the budget.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// How to collapse.
#[derive(Clone, Copy, Debug)]
pub struct CollapseOptions {
    /// Least share of a unit that must be resident, 0 to 1.
    pub min_density: f64,
    /// Most bytes memory may grow by. `None`: 5 % of resident memory.
    pub max_growth: Option<u64>,
    /// Time for everything.
    pub budget: Duration,
    /// A call longer than this makes the pace back off.
    pub latency: Duration,
    /// Only plan.
    pub dry_run: bool,
}

impl Default for CollapseOptions {
    fn default() -> Self {
        Self {
            min_density: MIN_DENSITY,
            max_growth: None,
            budget: BUDGET,
            latency: LATENCY_LIMIT,
            dry_run: false,
        }
    }
}

/// One unit to collapse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The unit.
    pub range: AddressRange,
    /// Resident OS pages.
    pub resident: u32,
    /// Bytes memory grows by.
    pub growth: u64,
    /// Which mapping it lies in, by its start.
    pub mapping: usize,
}

/// Units that are not collapsed, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Mapped by a huge page already.
    pub huge: u64,
    /// Cut by the end of their mapping.
    pub edge: u64,
    /// Less dense than asked for.
    pub sparse: u64,
    /// Dense, but memory would grow beyond the limit.
    pub over_limit: u64,
}

/// What is to be collapsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollapsePlan {
    /// The units in their order.
    pub steps: Vec<Step>,
    /// Bytes memory grows by when all succeed, at most.
    pub growth: u64,
    /// The limit that `growth` stays within.
    pub max_growth: u64,
    /// What is left alone.
    pub skipped: Skipped,
}

impl CollapsePlan {
    /// Decides. `shared` answers how many pages of a unit are shared with another process.
    ///
    /// # Errors
    /// What `shared` answers.
    pub fn new(
        picture: &Picture,
        options: &CollapseOptions,
        max_growth: u64,
        mut shared: impl FnMut(AddressRange) -> Result<u32>,
    ) -> Result<Self> {
        let mut plan = Self { max_growth, ..Self::default() };
        let mut candidates = Vec::new();
        for mapping in &picture.mappings {
            for unit in &mapping.units {
                match refusal(unit, picture, options.min_density) {
                    Some(count) => *count(&mut plan.skipped) += 1,
                    None => {
                        let growth = growth(unit, shared(unit.range)?, picture);
                        let start = mapping.mapping.range.start;
                        let step =
                            Step { range: unit.range, resident: unit.resident(), growth, mapping: start };
                        candidates.push(step);
                    }
                }
            }
        }
        candidates.sort_by_key(|step| (step.growth, step.range.start));
        for step in candidates {
            if plan.growth + step.growth <= max_growth {
                plan.growth += step.growth;
                plan.steps.push(step);
            } else {
                plan.skipped.over_limit += 1;
            }
        }
        Ok(plan)
    }

    /// Bytes that become huge when all succeed.
    pub fn bytes(&self) -> u64 {
        self.steps.iter().map(|step| step.range.len as u64).sum()
    }
}

/// Why a unit is left alone, as the counter for it; `None`: a candidate.
fn refusal(unit: &Unit, picture: &Picture, min_density: f64) -> Option<fn(&mut Skipped) -> &mut u64> {
    let pages = (picture.unit / picture.os_page) as f64;
    if unit.is_huge() {
        Some(|skipped| &mut skipped.huge)
    } else if unit.range.len < picture.unit {
        // One of which nothing is resident is nobody's loss.
        Some(|skipped| &mut skipped.edge)
    } else if f64::from(unit.resident()) < min_density * pages || unit.resident() == 0 {
        Some(|skipped| &mut skipped.sparse)
    } else {
        None
    }
}

/// Bytes a unit grows by: its holes, and what un-sharing copies.
fn growth(unit: &Unit, shared: u32, picture: &Picture) -> u64 {
    let pages = (picture.unit / picture.os_page) as u32;
    u64::from(pages.saturating_sub(unit.resident()) + shared.saturating_sub(unit.zero).min(unit.resident()))
        * picture.os_page as u64
}

/// The limit on growth: what is asked for, and what the cgroup has room for.
///
/// Room is what the tightest level has, and not what the group has: one whose parent is nearly full got a group
/// beside it killed.
fn growth_limit(options: &CollapseOptions, resident: u64, levels: &[MemoryLevel], unit: usize) -> u64 {
    let asked = options.max_growth.unwrap_or((resident as f64 * MAX_GROWTH) as u64);
    let room = levels.iter().map(MemoryLevel::room).min();
    asked.min(room.map_or(u64::MAX, |room| room.saturating_sub(ROOM * unit as u64)))
}

/// The picture without mappings that are advised against huge pages, and how many units of those would have
/// been chosen. The kernel refuses them; left in, they would use up what memory may grow by, and be promised by
/// a dry run. What cannot be told stays in, and is refused in its turn.
fn without_closed(
    picture: &Picture,
    process: &impl Process,
    options: &CollapseOptions,
    deadline: Duration,
) -> (Picture, u64) {
    let (details, _) = process.details(deadline).unwrap_or_default();
    let closed: BTreeSet<usize> = details
        .iter()
        .filter(|detail| detail.advice == Some(Advice::NoHuge))
        .map(|detail| detail.start)
        .collect();
    let mut open = picture.clone();
    let mut refused = 0;
    open.mappings.retain(|it| {
        let is_closed = closed.contains(&it.mapping.range.start);
        if is_closed {
            let chosen = |unit: &&Unit| refusal(unit, picture, options.min_density).is_none();
            refused += it.units.iter().filter(chosen).count() as u64;
        }
        !is_closed
    });
    (open, refused)
}

/// Which mappings are collapsed: a process's own private memory.
pub(super) fn is_heap(mapping: &ProcessMapping) -> bool {
    mapping.kind == MappingKind::Anonymous && mapping.writable
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct CollapseReport {
    /// What was to be done.
    pub plan: CollapsePlan,
    /// The heap before: private writable anonymous mappings.
    pub before: Picture,
    /// The same after; `None` for a dry run, and when the process or its main thread has ended.
    pub after: Option<Picture>,
    /// Huge pages made.
    pub collapsed: u64,
    /// Units that were no longer as planned when their turn came.
    pub changed: u64,
    /// Units left out because their mapping refuses.
    pub refused: u64,
    /// Units not reached, or given up.
    pub left: u64,
    /// Calls made again.
    pub retries: u64,
    /// Results of the calls.
    pub calls: Tally,
    /// Longest call: how long the process may have stood still at most.
    pub longest_call: Duration,
    /// Calls longer than the latency limit.
    pub slow_calls: u32,
    /// Time all of it took.
    pub elapsed: Duration,
    /// Why it ended early; `None` when all steps had their turn.
    pub stop: Option<Stop>,
    /// The cgroup's charge before and after, where it can be read; none after when the process has ended.
    pub charge: (Option<u64>, Option<u64>),
}

/// Puts the dense units of a process on huge pages. `progress` is called after each call with the share of steps done.
///
/// # Errors
/// When the process cannot be looked at, or collapsing is not possible or not allowed: nothing has been changed
/// then. What happens after the first change is in the report.
pub fn collapse(
    process: &impl Process,
    options: &CollapseOptions,
    progress: &mut dyn FnMut(f64),
) -> Result<CollapseReport> {
    let begin = process.now();
    let mut budget = Budget::new(begin, options.budget);
    let deadline = budget.deadline(begin);
    let mut taken = None;
    if !options.dry_run {
        process.allows(Change::Collapse)?;
        taken = Some(Taken::new(process)?);
    }
    let before = Picture::gather(process, is_heap, deadline)?;
    must_have_memory(process)?;
    let (open, closed) = without_closed(&before, process, options, budget.deadline(process.now()));
    let limits = process.memory_limits().ok();
    let levels = process.memory_levels().unwrap_or_default();
    let max_growth = growth_limit(options, before.resident(), &levels, before.unit);
    let mut in_time = true;
    let plan = CollapsePlan::new(&open, options, max_growth, |unit| {
        in_time = in_time && !budget.is_over(process.now());
        // Past the deadline nothing more is looked at; taken for shared whole, a unit is not taken for cheap.
        if in_time { process.shared_pages(unit) } else { Ok(u32::MAX) }
    })?;
    let mut work = Work {
        process,
        options,
        before: &before,
        budget,
        pace: Pace::new(options.latency),
        refusals: BTreeMap::new(),
        report: Counts::default(),
    };
    let stop = if options.dry_run { None } else { work.run(&plan, progress) };
    drop(taken);
    let Work { mut budget, pace, report: counts, .. } = work;
    let stop = stop.or_else(|| (!before.complete || !in_time).then_some(Stop::Budget));
    let now = process.now();
    let look = now.saturating_add(LAST_LOOK.max(budget.left(now)));
    let (mut after, mut charge_after) = (None, None);
    if !options.dry_run {
        after = Picture::gather(process, is_heap, look).ok();
        charge_after = process.memory_limits().ok().map(|limits| limits.charge);
        // Looked at when it ended, it has no memory, and the kernel shows it in the root group: neither is an answer.
        if !process.status().is_ok_and(|status| status.has_memory) {
            (after, charge_after) = (None, None);
        }
    }
    let charge = limits.map(|limits| limits.charge);
    Ok(CollapseReport {
        collapsed: counts.calls.count(0),
        changed: counts.changed,
        refused: counts.refused + closed,
        left: counts.left,
        retries: counts.retries,
        calls: counts.calls,
        longest_call: pace.longest(),
        slow_calls: pace.slow(),
        elapsed: budget.passed(process.now()),
        stop,
        charge: (charge, charge_after),
        plan,
        before,
        after,
    })
}

#[derive(Default)]
struct Counts {
    changed: u64,
    refused: u64,
    left: u64,
    retries: u64,
    calls: Tally,
}

struct Work<'a, P> {
    process: &'a P,
    options: &'a CollapseOptions,
    before: &'a Picture,
    budget: Budget,
    pace: Pace,
    /// Per mapping: refusals so far, `u32::MAX` from the first success on.
    refusals: BTreeMap<usize, u32>,
    report: Counts,
}

impl<P: Process> Work<'_, P> {
    /// Works through the plan. Answers why it ended early.
    fn run(&mut self, plan: &CollapsePlan, progress: &mut dyn FnMut(f64)) -> Option<Stop> {
        let mut queue: VecDeque<(Step, u32)> = plan.steps.iter().map(|step| (*step, 1)).collect();
        while let Some((step, tries)) = queue.pop_front() {
            if self.process.is_interrupted() {
                self.report.left += 1 + queue.len() as u64;
                return Some(Stop::Interrupted);
            }
            if self.budget.is_over(self.process.now()) {
                self.report.left += 1 + queue.len() as u64;
                return Some(Stop::Budget);
            }
            let refusals = self.refusals.get(&step.mapping).copied().unwrap_or(0);
            if (REFUSALS..u32::MAX).contains(&refusals) {
                self.report.refused += 1;
                continue;
            }
            match self.is_as_planned(&step) {
                Ok(true) => {}
                // The page tables of a process that has ended are open still, and empty.
                Ok(false) if !self.process.status().is_ok_and(|status| status.has_memory) => {
                    self.report.left += 1 + queue.len() as u64;
                    return Some(gone(self.process));
                }
                Ok(false) => {
                    self.report.changed += 1;
                    continue;
                }
                Err(error) => {
                    self.report.left += 1 + queue.len() as u64;
                    let ended = error.code == libc::ESRCH;
                    return Some(if ended { gone(self.process) } else { Stop::Refused(error) });
                }
            }
            let start = self.process.now();
            let result = self.process.collapse(step.range);
            let took = self.process.now().saturating_sub(start);
            self.report.calls.add(result);
            match result {
                Ok(()) => {
                    self.refusals.insert(step.mapping, u32::MAX);
                }
                Err(error) if error.code == libc::EINVAL => {
                    self.refusals.insert(step.mapping, refusals.saturating_add(1));
                    self.report.refused += 1;
                }
                Err(_) => {}
            }
            match self.pace.after(took, result, tries) {
                Outcome::Next { wait, again } => {
                    if again {
                        self.report.retries += 1;
                        queue.push_back((step, tries + 1));
                    } else if result.is_err_and(|error| error.code != libc::EINVAL) {
                        self.report.left += 1;
                    }
                    progress(1.0 - queue.len() as f64 / plan.steps.len() as f64);
                    if !queue.is_empty() {
                        self.process.wait(wait.min(self.budget.left(self.process.now())));
                    }
                }
                Outcome::Stop(stop) => {
                    self.report.left += 1 + queue.len() as u64;
                    return Some(if stop == Stop::Gone { gone(self.process) } else { stop });
                }
            }
        }
        None
    }

    /// Whether a unit would still be chosen and grow by no more than planned.
    fn is_as_planned(&self, step: &Step) -> Result<bool> {
        let mut now = Unit { range: step.range, small: 0, huge: 0, zero: 0, swapped: 0 };
        let os = self.before.os_page;
        self.process.pages(step.range, &mut |run| {
            let pages = (run.range.len / os) as u32;
            match run.kind {
                super::PageKind::Small => now.small += pages,
                super::PageKind::Huge => now.huge += pages,
                super::PageKind::Zero | super::PageKind::Swapped => {}
            }
        })?;
        Ok(refusal(&now, self.before, self.options.min_density).is_none() && now.resident() >= step.resident)
    }
}
