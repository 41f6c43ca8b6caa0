//! Freeing what is stranded in a running process: which huge pages, in which order, and when to stop.
//!
//! ```text
//!   a huge page, of which the process maps a part (█):      ┃█░░░░░░░░░░░░░░░░░┃   all of it is charged
//!     one call on one OS page that is still mapped   ──▶     █                     that page is charged; the rest is free
//! ```
//!
//! Every huge page of which something is stranded has its turn, those with most stranded first, so that what a
//! budget cuts off is the smaller gain. Left alone are those another process maps a part of (after `fork`): the
//! kernel does not split them on request.
//!
//! The advice marks the page it is given on as not recently used; under memory pressure it would be reclaimed
//! sooner. One page per huge page is all that is advised.
//!
//! Several huge pages go into one call. How many follows from how long the calls take: twice as many while they
//! are quick, half when one was slow.

use super::budget::Budget;
use super::collapse::is_heap;
use super::ended::{gone, must_have_memory};
use super::pace::{LATENCY_LIMIT, Outcome, Pace, Stop, Tally};
use super::picture::Picture;
use super::taken::Taken;
use super::{Change, Derivation, PartialPage, Process, ProcessMapping};
use crate::{Error, MemoryLimits, Result};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// Time for everything, unless set. A split takes about 0.3 ms.
const BUDGET: Duration = Duration::from_secs(60);
/// Huge pages in the first call, and in the largest: 64 take about 20 ms.
const FIRST_BATCH: usize = 4;
const LARGEST_BATCH: usize = 64;
/// Time for the look at what came of it, after the budget.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// How to release.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseOptions {
    /// Time for everything.
    pub budget: Duration,
    /// A call longer than this makes the pace back off.
    pub latency: Duration,
    /// Only plan.
    pub dry_run: bool,
}

impl Default for ReleaseOptions {
    fn default() -> Self {
        Self { budget: BUDGET, latency: LATENCY_LIMIT, dry_run: false }
    }
}

/// A huge page of which the process maps a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partial {
    /// The OS page to give advice on.
    pub page: usize,
    /// OS pages of it that are mapped by nobody, as far as is known.
    pub stranded: u32,
}

/// What is to be released.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReleasePlan {
    /// The huge pages in their order.
    pub steps: Vec<Partial>,
    /// Bytes stranded in them.
    pub stranded: u64,
    /// Huge pages left alone because another process maps a part of them.
    pub shared: u64,
    /// Bytes stranded in those.
    pub shared_stranded: u64,
}

impl ReleasePlan {
    /// Decides. `pages` are OS pages of a huge page.
    pub fn new(found: impl IntoIterator<Item = PartialPage>, pages: u32, os_page: usize) -> Self {
        let mut whole: BTreeMap<u64, PartialPage> = BTreeMap::new();
        for part in found {
            let seen = whole.entry(part.identity).or_insert(PartialPage { mapped_here: 0, ..part });
            seen.mapped_here += part.mapped_here;
        }
        let mut plan = Self::default();
        for partial in whole.into_values() {
            // Pages of a huge page can be mapped at several places of one process; never more than there are.
            let mapped = partial.mapped.unwrap_or(partial.mapped_here).min(pages);
            let stranded = pages - mapped;
            let bytes = u64::from(stranded) * os_page as u64;
            if stranded == 0 {
                continue;
            }
            // The kernel does not split on request what another process maps, too.
            if partial.entries.is_some_and(|entries| entries > partial.mapped_here) {
                plan.shared += 1;
                plan.shared_stranded += bytes;
            } else {
                plan.stranded += bytes;
                plan.steps.push(Partial { page: partial.page, stranded });
            }
        }
        plan.steps.sort_by_key(|step| (core::cmp::Reverse(step.stranded), step.page));
        plan
    }
}

/// What was found at one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stranded {
    /// Partial huge pages.
    pub huge_pages: u64,
    /// Bytes of them mapped by nobody.
    pub bytes: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct ReleaseReport {
    /// What was to be done.
    pub plan: ReleasePlan,
    /// How the partial huge pages were found.
    pub derivation: Derivation,
    /// Whether all of the process was looked at.
    pub complete: bool,
    /// Huge pages the kernel was asked to split, successfully.
    pub split: u64,
    /// Huge pages not reached, or given up.
    pub left: u64,
    /// Calls made again.
    pub retries: u64,
    /// Results of the calls.
    pub calls: Tally,
    /// Longest call.
    pub longest_call: Duration,
    /// Calls longer than the latency limit.
    pub slow_calls: u32,
    /// Time all of it took.
    pub elapsed: Duration,
    /// Why it ended early; `None` when all steps had their turn.
    pub stop: Option<Stop>,
    /// What is stranded after it; `None` for a dry run, where it cannot be known, and when the process has ended.
    pub after: Option<Stranded>,
    /// The cgroup's limits and charge before.
    pub limits: Option<MemoryLimits>,
    /// The cgroup's charge after; `None` for a dry run, and when the process has ended.
    pub charge_after: Option<u64>,
    /// Resident memory before and after.
    pub resident: (Option<u64>, Option<u64>),
}

/// Makes the kernel split the partial huge pages of a process and free what is stranded. `progress` is called
/// after each call with the share of steps done.
///
/// # Errors
/// When the process cannot be looked at, or the advice is not possible or not allowed: nothing has been changed
/// then. What happens after the first change is in the report.
pub fn release(
    process: &impl Process,
    options: &ReleaseOptions,
    progress: &mut dyn FnMut(f64),
) -> Result<ReleaseReport> {
    let begin = process.now();
    let mut budget = Budget::new(begin, options.budget);
    let mut taken = None;
    if !options.dry_run {
        process.allows(Change::Split)?;
        taken = Some(Taken::new(process)?);
    }
    let limits = process.memory_limits().ok();
    let resident = process.status().ok().map(|status| status.resident);
    let derivation = process.derivation();
    let (plan, complete) = look(process, budget.deadline(begin))?;
    must_have_memory(process)?;
    let mut run =
        Run { pace: Pace::new(options.latency), split: 0, left: 0, retries: 0, calls: Tally::default() };
    let stop = if options.dry_run { None } else { run.all(process, &plan, &mut budget, progress) };
    drop(taken);
    let stop = stop.or_else(|| (!complete).then_some(Stop::Budget));
    let mut report = ReleaseReport {
        derivation,
        complete,
        split: run.split,
        left: run.left,
        retries: run.retries,
        calls: run.calls,
        longest_call: run.pace.longest(),
        slow_calls: run.pace.slow(),
        elapsed: budget.passed(process.now()),
        stop,
        after: None,
        limits,
        charge_after: None,
        resident: (resident, None),
        plan,
    };
    if !options.dry_run {
        report.charge_after = process.memory_limits().ok().map(|limits| limits.charge);
        report.resident.1 = process.status().ok().filter(|s| s.has_memory).map(|status| status.resident);
        if derivation == Derivation::Folios {
            let until = process.now().saturating_add(LAST_LOOK.max(report.elapsed));
            report.after = look(process, until).ok().filter(|(_, complete)| *complete).map(|(plan, _)| {
                let huge_pages = plan.steps.len() as u64 + plan.shared;
                Stranded { huge_pages, bytes: plan.stranded + plan.shared_stranded }
            });
        }
        // Looked at when it ended, it has no memory, and the kernel shows it in the root group: neither is an answer.
        if !process.status().is_ok_and(|status| status.has_memory) {
            (report.after, report.charge_after, report.resident.1) = (None, None, None);
        }
    }
    Ok(report)
}

/// Finds the partial huge pages of a process until `deadline`. Answers whether all of it was looked at.
///
/// # Errors
/// When the process cannot be looked at.
pub fn look(process: &impl Process, deadline: Duration) -> Result<(ReleasePlan, bool)> {
    // Memory that was made read-only keeps its huge pages.
    let wanted = |mapping: &ProcessMapping| is_heap(mapping) || mapping.kind == super::MappingKind::Anonymous;
    let picture = Picture::gather(process, wanted, deadline)?;
    let mut found = Vec::new();
    let mut complete = picture.complete;
    for unit in picture.mappings.iter().flat_map(|mapping| &mapping.units) {
        if unit.is_huge() || unit.small == 0 {
            continue;
        }
        if process.now() >= deadline {
            complete = false;
            break;
        }
        process.partial_pages(unit.range, &mut |partial| found.push(partial))?;
    }
    let pages = (picture.unit / picture.os_page) as u32;
    Ok((ReleasePlan::new(found, pages, picture.os_page), complete))
}

struct Run {
    pace: Pace,
    split: u64,
    left: u64,
    retries: u64,
    calls: Tally,
}

impl Run {
    fn all(
        &mut self,
        process: &impl Process,
        plan: &ReleasePlan,
        budget: &mut Budget,
        progress: &mut dyn FnMut(f64),
    ) -> Option<Stop> {
        let mut queue: VecDeque<(usize, u32)> = plan.steps.iter().map(|step| (step.page, 1)).collect();
        let mut batch = FIRST_BATCH;
        while let Some(&(first, tries)) = queue.front() {
            if process.is_interrupted() {
                self.left += queue.len() as u64;
                return Some(Stop::Interrupted);
            }
            if budget.is_over(process.now()) {
                self.left += queue.len() as u64;
                return Some(Stop::Budget);
            }
            let pages: Vec<usize> = queue.iter().take(batch).map(|(page, _)| *page).collect();
            let start = process.now();
            let result = process.split(&pages);
            let took = process.now().saturating_sub(start);
            let done = match result {
                // An implementation that answers more than it was asked for must not take others' turns away.
                Ok(done) => done.clamp(1, pages.len()),
                Err(_) => 1,
            };
            queue.drain(..done);
            let result: core::result::Result<(), Error> = result.map(|_| ());
            self.calls.add(result);
            if result.is_ok() {
                self.split += done as u64;
            }
            match self.pace.after(took, result, tries) {
                Outcome::Next { wait, again } => {
                    if again {
                        self.retries += 1;
                        queue.push_back((first, tries + 1));
                    } else if result.is_err() {
                        self.left += 1;
                    }
                    batch = if self.pace.is_quick(took) {
                        (batch * 2).min(LARGEST_BATCH)
                    } else {
                        (batch / 2).max(1)
                    };
                    progress(1.0 - queue.len() as f64 / plan.steps.len() as f64);
                    if !queue.is_empty() {
                        process.wait(wait.min(budget.left(process.now())));
                    }
                }
                Outcome::Stop(stop) => {
                    self.left += 1 + queue.len() as u64;
                    return Some(if stop == Stop::Gone { gone(process) } else { stop });
                }
            }
        }
        None
    }
}
