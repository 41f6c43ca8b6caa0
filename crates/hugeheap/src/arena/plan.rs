//! What a pass of maintenance does, and the system calls that do it.
//!
//! ```text
//!   give back   decommit the arena, or unmap it when it is from a pool
//!   offer       leave it to the kernel to take it
//!   break       advise against huge pages ─▶ decommit the free pages ─▶ split what is left
//!   collapse    ask what is resident, where that is not known ─▶ advise for huge pages where it was advised against ─▶ collapse
//! ```
//!
//! A plan is carried out without the heap's lock, so it holds all it needs. Of a step that fails in the middle
//! it remembers how far it came: what was dropped is gone, whatever happened after it.

use super::bitmap;
use super::layout::{HEAP_PAGE_BYTES, HEAP_PAGES};
use super::list::ArenaId;
use super::sweep::DENSE;
use super::tenant::{GivenUp, NoTenant, Tenant};
use hugeheap_os::{AddressRange, Advice, Error, ErrorKind, Pages, Result as OsResult};

/// Steps of one pass. Giving back or breaking a huge page takes 0.05 to 0.3 ms, a collapse 0.3 to 1 ms: a pass
/// stays below 20 ms.
pub(super) const STEPS: usize = 16;

/// Tries of a collapse that answers "again".
const COLLAPSE_TRIES: u32 = 3;

/// What the tenant of an arena that is broken does with heap pages in which something lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vacate {
    No,
    /// It gives up what is vacant.
    Yes,
    /// And makes OS pages alike, for the kernel to merge.
    AndMerge,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    GiveBack {
        unmap: bool,
        /// The kernel may merge equal pages of it.
        merging: bool,
    },
    /// The kernel may take the arena when it is short of memory, and until then it is kept.
    Offer,
    Break {
        /// The free pages.
        drop: u128,
        live: u128,
        /// The arena may be or become a huge page: it is advised against that first.
        advise: bool,
        /// Some of it may be parts of a huge page: they are split off.
        split: bool,
        /// What the tenant does with its live pages.
        vacate: Vacate,
    },
    /// What an earlier break left over.
    Split {
        /// All that may be resident. Not only what is live: that may be newer than the break, and the huge page
        /// be in free pages.
        pages: u128,
    },
    Collapse {
        /// The arena was advised against huge pages.
        advise: bool,
        /// What is live of it need not be resident: the kernel is asked first.
        ask: bool,
        /// The kernel was never asked.
        untold: bool,
        /// The kernel may merge equal pages of it.
        merging: bool,
    },
}

/// What the kernel said of an arena that was to be collapsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is a huge page already.
    Huge,
    /// Too little is resident: so many 4 KiB.
    Sparse(u16),
    /// It is dense, and no huge page.
    Dense,
}

/// One action, and what came of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) id: ArenaId,
    range: AddressRange,
    pub(super) action: Action,
    /// The first error.
    pub(super) result: OsResult<()>,
    /// The advice was given.
    pub(super) advised: bool,
    /// The pages of a break that were dropped.
    pub(super) dropped: u128,
    /// Bytes of live pages that the tenant gave up.
    pub(super) vacated: usize,
    /// Bytes of live pages that it made alike, and that the kernel may merge.
    pub(super) alike: usize,
    /// Whether all was split that was to be; `None`: it did not come to that.
    pub(super) split: Option<bool>,
    /// What a collapse found, where it asked.
    pub(super) found: Option<Found>,
}

/// What a pass does: made by [`Arenas::plan`](super::Arenas::plan), carried out by [`perform`](Self::perform),
/// reported to [`Arenas::complete`](super::Arenas::complete).
#[derive(Debug)]
#[must_use = "arenas of a plan stay busy until it is completed"]
pub struct Plan {
    steps: [Option<Step>; STEPS],
    count: usize,
    pub(super) started: u64,
    /// When something is due that is not yet; `u64::MAX`: nothing is known.
    pub(super) due: u64,
    /// There may be more to do than was looked at or had room.
    pub(super) more: bool,
    /// Memory was kept for what the program needed lately.
    pub(super) kept: bool,
    /// Memory was tight when it was made.
    pub(super) tight: bool,
    /// A tail was shed when it was made.
    pub(super) shed: bool,
}

impl Plan {
    pub(super) const fn new(started: u64) -> Self {
        Self {
            steps: [None; STEPS],
            count: 0,
            started,
            due: u64::MAX,
            more: false,
            kept: false,
            tight: false,
            shed: false,
        }
    }

    /// Whether there is nothing to do, and nothing was done when it was made.
    pub fn is_empty(&self) -> bool {
        self.count == 0 && !self.shed
    }

    /// Carries the plan out. Without the heap's lock.
    pub fn perform<P: Pages>(&mut self, os: &P) {
        self.perform_with(os, &NoTenant);
    }

    /// The same with a tenant that has told what is vacant.
    pub(crate) fn perform_with<P: Pages>(&mut self, os: &P, tenant: &dyn Tenant) {
        for step in self.steps[..self.count].iter_mut().flatten() {
            step.perform(os, tenant);
        }
    }

    pub(super) fn push(&mut self, id: ArenaId, range: AddressRange, action: Action) {
        self.steps[self.count] = Some(Step {
            id,
            range,
            action,
            result: Ok(()),
            advised: false,
            dropped: 0,
            vacated: 0,
            alike: 0,
            split: None,
            found: None,
        });
        self.count += 1;
    }

    pub(super) fn is_full(&self) -> bool {
        self.count == STEPS
    }

    /// The steps, from number `first` on.
    pub(super) fn steps(&self, first: usize) -> impl Iterator<Item = &Step> {
        self.steps[first..self.count].iter().flatten()
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }
}

impl Step {
    fn perform<P: Pages>(&mut self, os: &P, tenant: &dyn Tenant) {
        match self.action {
            Action::GiveBack { unmap, merging } => {
                self.give_back(os, tenant, unmap);
                if merging && !unmap && self.result.is_ok() {
                    self.leave_merging(os);
                }
            }
            // SAFETY: the arena is busy and has no live run, so nobody uses its memory until the plan is
            // completed, or relies on what it contains.
            Action::Offer => self.result = unsafe { os.offer(self.range) },
            Action::Break { .. } => self.break_arena(os, tenant),
            Action::Split { pages } => self.split(os, pages),
            Action::Collapse { advise, ask, untold, merging } => {
                self.collapse(os, advise, ask, untold);
                if merging && self.is_collapsed() {
                    self.leave_merging(os);
                }
            }
        }
    }

    fn give_back<P: Pages>(&mut self, os: &P, tenant: &dyn Tenant, unmap: bool) {
        // SAFETY: the arena is busy and has no live run: nobody uses its memory until the plan is completed.
        self.result = unsafe { if unmap { os.unmap(self.range) } else { os.decommit(self.range) } };
        if self.result.is_ok() {
            tenant.given_back(self.range);
        }
    }

    fn note(&mut self, result: OsResult<()>) -> bool {
        self.result = self.result.and(result);
        result.is_ok()
    }

    fn advise<P: Pages>(&mut self, os: &P, advice: Advice) -> bool {
        // SAFETY: the arena is mapped; advice changes no contents.
        self.advised = self.note(unsafe { os.advise(self.range, advice) });
        self.advised
    }

    fn break_arena<P: Pages>(&mut self, os: &P, tenant: &dyn Tenant) {
        let Action::Break { drop, live, advise, split, vacate } = self.action else { return };
        // Before the pages are dropped: khugepaged must not refill them in between.
        if advise && !self.advise(os, Advice::NoHuge) {
            return;
        }
        for pages in bitmap::set_ranges(drop) {
            // SAFETY: the pages are free and the arena is busy: nobody uses them.
            if self.note(unsafe { os.decommit(pages_range(self.range, &pages)) }) {
                self.dropped |= bitmap::mask(pages.start, pages.end - pages.start);
            }
        }
        // The one for small runs, idle.
        if self.dropped == u128::MAX {
            tenant.given_back(self.range);
        }
        // SAFETY: nothing lives in what the tenant gives up, and nobody uses it before the call returns.
        let give_up = &mut |range| unsafe { os.decommit(range) };
        let (given_up, result) = match vacate {
            Vacate::No => (GivenUp::default(), Ok(())),
            Vacate::Yes | Vacate::AndMerge => tenant.vacate(self.range, vacate == Vacate::AndMerge, give_up),
        };
        self.vacated = given_up.vacant;
        self.note(result);
        // The arena as a whole: each range of its own is a mapping.
        // SAFETY: merging changes no contents.
        if given_up.alike > 0 && self.note(unsafe { os.merge(self.range, true) }) {
            self.alike = given_up.alike;
        }
        if split {
            // What could not be dropped may be all that is left of a huge page.
            self.split(os, live | drop & !self.dropped);
        }
    }

    fn split<P: Pages>(&mut self, os: &P, pages: u128) {
        // All of these pages and not only the first: the arena may consist of several folios. And never all of
        // the arena at once: of a huge page that is advised as a whole the kernel splits nothing, and a later
        // break would believe it had.
        let half = if pages == u128::MAX { u128::MAX >> (HEAP_PAGES / 2) } else { u128::MAX };
        let mut done = true;
        for part in [pages & half, pages & !half] {
            for pages in bitmap::set_ranges(part) {
                // SAFETY: splitting changes no contents.
                done &= self.note(unsafe { os.split(pages_range(self.range, &pages)) });
            }
        }
        self.split = Some(done);
    }

    /// Nothing is to be merged of an arena that is a huge page, or whose memory is gone: ksmd would go on
    /// looking at it. Where that fails, it does.
    fn leave_merging<P: Pages>(&self, os: &P) {
        // SAFETY: contents stay.
        let _ = unsafe { os.merge(self.range, false) };
    }

    /// Whether a collapse left a huge page.
    pub(super) fn is_collapsed(&self) -> bool {
        self.result.is_ok() && !matches!(self.found, Some(Found::Sparse(_)))
    }

    /// What there is to collapse.
    fn ask<P: Pages>(&self, os: &P, untold: bool) -> Found {
        match os.residency(self.range) {
            Ok(residency) if residency.huge() == self.range.len as u64 => Found::Huge,
            Ok(residency) if residency.resident < (DENSE as usize * HEAP_PAGE_BYTES) as u64 => {
                Found::Sparse((residency.resident / 4096) as u16)
            }
            Ok(_) => Found::Dense,
            // A kernel that does not answer: what the policy expects is assumed, as at the first touch.
            Err(_) if untold => Found::Huge,
            Err(_) => Found::Dense,
        }
    }

    fn collapse<P: Pages>(&mut self, os: &P, advise: bool, ask: bool, untold: bool) {
        if ask {
            let found = self.ask(os, untold);
            self.found = Some(found);
            // One that is advised against huge pages, and is one all the same, is advised for them.
            if matches!(found, Found::Sparse(_)) || found == Found::Huge && !advise {
                return;
            }
        }
        if advise && !self.advise(os, Advice::Huge) {
            return;
        }
        let mut result = Err(Error::new("madvise(MADV_COLLAPSE)", 0));
        for _ in 0..COLLAPSE_TRIES {
            // SAFETY: collapsing changes no contents.
            result = unsafe { os.collapse(self.range) };
            if !result.is_err_and(|error| error.kind() == ErrorKind::Again) {
                break;
            }
        }
        self.note(result);
    }
}

fn pages_range(range: AddressRange, pages: &core::ops::Range<u32>) -> AddressRange {
    AddressRange::new(
        range.start + pages.start as usize * HEAP_PAGE_BYTES,
        (pages.end - pages.start) as usize * HEAP_PAGE_BYTES,
    )
}
