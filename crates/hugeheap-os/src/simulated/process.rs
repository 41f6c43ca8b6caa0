//! A simulated process, seen from another: [`Process`] over a [`Kernel`].
//!
//! It answers as Linux does, with what a test chooses to keep from it: physical pages, permissions, huge pages
//! in the page tables. Time passes only in [`wait`](Process::wait) and by the price of calls; the target runs
//! on while it is waited, when a test gives it something to do ([`RemoteProcess::running`]).

use super::call::Call;
use super::table::Pte;
use super::{Kernel, PageState};
use crate::process::{
    Change, Derivation, MappingDetail, MappingKind, PageKind, PageRun, PartialPage, Process, ProcessMapping,
    ProcessStatus,
};
use crate::{AddressRange, Error, Facts, MemoryLimits, PageSizes, Pages, Protection, Result};
use core::time::Duration;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A process of a simulated host, looked at and changed from outside.
pub struct RemoteProcess<'a> {
    kernel: Kernel,
    derivation: Derivation,
    tells_huge: bool,
    refusal: Option<i32>,
    gone_after: Cell<u64>,
    stays: bool,
    lives_on: bool,
    turns_back: Duration,
    looks_for: Duration,
    running: Box<dyn Fn(&Kernel) + 'a>,
    /// Whether somebody has it for changes: of this process alone, or of those that were made alike.
    taken: Rc<Cell<bool>>,
}

impl<'a> RemoteProcess<'a> {
    /// The process of `kernel`, with everything allowed and known.
    pub fn new(kernel: &Kernel) -> Self {
        Self {
            kernel: kernel.clone(),
            derivation: Derivation::Folios,
            tells_huge: true,
            refusal: None,
            gone_after: Cell::new(u64::MAX),
            stays: false,
            lives_on: false,
            turns_back: Duration::ZERO,
            looks_for: Duration::ZERO,
            running: Box::new(|_| {}),
            taken: Rc::default(),
        }
    }

    /// Seen a second time: by another observer.
    #[must_use]
    pub fn seen_again(&self) -> Self {
        Self { taken: Rc::clone(&self.taken), ..Self::new(&self.kernel) }
    }

    /// Keeps physical pages from the observer.
    #[must_use]
    pub fn without_folios(self) -> Self {
        Self { derivation: Derivation::Tables, ..self }
    }

    /// A kernel whose page tables do not tell huge pages.
    #[must_use]
    pub fn without_scan(self) -> Self {
        Self { tells_huge: false, ..self }
    }

    /// Every change is refused with this error number, also when tried without changing anything.
    #[must_use]
    pub fn refusing(self, code: i32) -> Self {
        Self { refusal: Some(code), ..self }
    }

    /// The process ends after `calls` changes.
    #[must_use]
    pub fn ending_after(self, calls: u64) -> Self {
        self.gone_after.set(calls);
        self
    }

    /// When it has ended, nobody has waited for it: there is a process without memory, in the root group.
    #[must_use]
    pub fn staying(self) -> Self {
        Self { stays: true, ..self }
    }

    /// Instead of ending, it loses its main thread: page tables that were opened before go on being told, what
    /// is opened then is empty, and nothing can be changed.
    #[must_use]
    pub fn living_on(self) -> Self {
        Self { lives_on: true, ..self }
    }

    /// What the process does each time the observer waits.
    #[must_use]
    pub fn running(self, run: impl Fn(&Kernel) + 'a) -> Self {
        Self { running: Box::new(run), ..self }
    }

    /// The clock is turned back by as much in each call that changes something: see [`Kernel::turn_back`].
    #[must_use]
    pub fn turning_back(self, time: Duration) -> Self {
        Self { turns_back: time, ..self }
    }

    /// To look at the physical pages of a huge page's address space takes as long.
    #[must_use]
    pub fn looked_at_for(self, time: Duration) -> Self {
        Self { looks_for: time, ..self }
    }

    fn alive(&self, call: &'static str) -> Result<()> {
        if self.has_ended() { Err(Error::new(call, libc::ESRCH)) } else { Ok(()) }
    }

    fn has_ended(&self) -> bool {
        self.gone_after.get() == 0
    }

    /// Whether it has ended, or its main thread has, and can still be looked at.
    fn is_left(&self) -> bool {
        (self.stays || self.lives_on) && self.has_ended()
    }

    /// What its page tables tell, which were opened before.
    fn has_tables(&self, call: &'static str) -> Result<()> {
        if self.lives_on { Ok(()) } else { self.alive(call) }
    }

    /// One change takes one of the calls the process lives for.
    fn change(&self, call: &'static str) -> Result<()> {
        self.kernel.turn_back(self.turns_back);
        self.alive(call)?;
        self.gone_after.set(self.gone_after.get().saturating_sub(1));
        self.refusal.map_or(Ok(()), |code| Err(Error::new(call, code)))
    }

    /// Calls `visit` with each OS page of `range` that is mapped in part of a folio or alone.
    fn entries(&self, range: AddressRange, mut visit: impl FnMut(usize, u32, u32, bool)) {
        let state = self.kernel.lock();
        let os = state.physical.geometry.os;
        for space in &state.processes[self.kernel.pid].spaces {
            for (chunk, part) in space.used_chunks(range, state.physical.geometry) {
                debug_assert!(chunk <= part.start);
                let (start, end) = (part.start.max(space.range.start), part.end().min(space.range.end()));
                for address in (start..end.max(start)).step_by(os) {
                    if let (Pte::Page { folio, page, .. }, huge) = space.entry(address, &state.physical) {
                        visit(address, folio, page, huge);
                    }
                }
            }
        }
    }
}

impl Process for RemoteProcess<'_> {
    fn id(&self) -> u32 {
        self.kernel.pid as u32
    }

    fn page_sizes(&self) -> PageSizes {
        self.kernel.page_sizes()
    }

    fn status(&self) -> Result<ProcessStatus> {
        if !self.is_left() {
            self.alive("read(/proc/PID/status)")?;
        }
        Ok(ProcessStatus {
            name: "simulated".to_owned(),
            resident: self.kernel.rss(),
            anonymous: self.kernel.rss(),
            hugetlb: 0,
            swapped: 0,
            page_tables: 0,
            thp_disabled: self.kernel.thp_disabled().ok(),
            has_memory: !self.is_left(),
            ended: self.is_left() && !self.lives_on,
            main_thread_ended: self.is_left() && self.lives_on,
            user: 0,
            parent: 0,
        })
    }

    fn mappings(&self) -> Result<Vec<ProcessMapping>> {
        if self.is_left() {
            return Ok(Vec::new());
        }
        self.alive("read(/proc/PID/maps)")?;
        let mut list: Vec<_> = self
            .kernel
            .mapping_list()
            .into_iter()
            .map(|mapping| ProcessMapping {
                range: mapping.range,
                kind: if mapping.hugetlb.is_some() { MappingKind::Hugetlb } else { MappingKind::Anonymous },
                readable: !mapping.reserved && mapping.protection != Protection::None,
                writable: !mapping.reserved && mapping.protection == Protection::ReadWrite,
                name: mapping.name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            })
            .collect();
        list.sort_by_key(|mapping| mapping.range.start);
        Ok(list)
    }

    fn details(&self, deadline: Duration) -> Result<(Vec<MappingDetail>, bool)> {
        if self.is_left() {
            return Ok((Vec::new(), true));
        }
        self.alive("read(/proc/PID/smaps)")?;
        if Process::now(self) >= deadline {
            return Ok((Vec::new(), false));
        }
        let os = self.kernel.page_sizes().os;
        let detail = |mapping: super::Mapping| {
            let range = mapping.range;
            // Nothing is resident in what is only reserved.
            let residency = Pages::residency(&self.kernel, range).unwrap_or_default();
            MappingDetail {
                start: range.start,
                resident: residency.resident,
                anonymous: residency.resident - residency.hugetlb,
                huge: residency.huge(),
                advice: mapping.advice,
                eligible: None,
                page_size: mapping.hugetlb.unwrap_or(os) as u64,
                locked: false,
            }
        };
        let mut details: Vec<_> = self.kernel.mapping_list().into_iter().map(detail).collect();
        details.sort_by_key(|detail| detail.start);
        Ok((details, true))
    }

    fn pages(&self, range: AddressRange, visit: &mut dyn FnMut(PageRun)) -> Result<()> {
        // The file was opened before: of a process that has ended the kernel knows no page.
        if self.has_ended() && !self.lives_on {
            return Ok(());
        }
        let os = self.kernel.page_sizes().os;
        let mut run: Option<PageRun> = None;
        for address in (range.start..range.end()).step_by(os) {
            let kind = match self.kernel.page_state(address) {
                PageState::Huge | PageState::Hugetlb if self.tells_huge => PageKind::Huge,
                PageState::Small | PageState::Part | PageState::Huge | PageState::Hugetlb => PageKind::Small,
                PageState::Zero => PageKind::Zero,
                PageState::Foreign | PageState::Reserved | PageState::Empty => continue,
            };
            match &mut run {
                Some(run) if run.kind == kind && run.range.end() == address => run.range.len += os,
                run => {
                    if let Some(done) = run.replace(PageRun { range: AddressRange::new(address, os), kind }) {
                        visit(done);
                    }
                }
            }
        }
        if let Some(done) = run {
            visit(done);
        }
        Ok(())
    }

    fn tells_huge(&self) -> bool {
        self.tells_huge
    }

    fn shared_pages(&self, unit: AddressRange) -> Result<u32> {
        self.has_tables("read(/proc/PID/pagemap)")?;
        let mut mapped = Vec::new();
        self.entries(unit, |_, folio, page, _| mapped.push((folio, page)));
        let state = self.kernel.lock();
        Ok(mapped.into_iter().filter(|(folio, page)| state.physical.is_shared(*folio, *page)).count() as u32)
    }

    fn derivation(&self) -> Derivation {
        self.derivation
    }

    fn partial_pages(&self, unit: AddressRange, visit: &mut dyn FnMut(PartialPage)) -> Result<()> {
        self.has_tables("read(/proc/PID/pagemap)")?;
        self.kernel.advance(self.looks_for);
        let mut parts: BTreeMap<u64, (usize, u32)> = BTreeMap::new();
        let folios = self.derivation == Derivation::Folios;
        self.entries(unit, |address, folio, _, huge| {
            if !huge {
                let identity = if folios { u64::from(folio) } else { unit.start as u64 };
                parts.entry(identity).or_insert((address, 0)).1 += 1;
            }
        });
        let state = self.kernel.lock();
        let pages = state.physical.geometry.pages() as u32;
        for (identity, (page, mapped_here)) in parts {
            let known = folios.then_some(identity as u32);
            let partial = known.is_none_or(|folio| state.physical.is_whole_huge(folio));
            if partial && mapped_here < pages {
                let told = known.map(|folio| state.physical.mapped(folio));
                let (mapped, entries) = (told.map(|told| told.0), told.map(|told| told.1));
                visit(PartialPage { identity, page, mapped_here, mapped, entries });
            }
        }
        Ok(())
    }

    fn memory_limits(&self) -> Result<MemoryLimits> {
        Facts::memory_limits(&self.kernel)
    }

    fn allows(&self, _: Change) -> Result<()> {
        self.alive("process_madvise")?;
        self.refusal.map_or(Ok(()), |code| Err(Error::new("process_madvise", code)))
    }

    fn take(&self) -> Result<()> {
        if self.taken.replace(true) { Err(Error::new("flock", libc::EALREADY)) } else { Ok(()) }
    }

    fn let_go(&self) {
        self.taken.set(false);
    }

    fn collapse(&self, range: AddressRange) -> Result<()> {
        self.change(Call::Collapse.name())?;
        // SAFETY: the call does not change contents.
        unsafe { Pages::collapse(&self.kernel, range) }
    }

    fn split(&self, pages: &[usize]) -> Result<usize> {
        self.change(Call::Split.name())?;
        let os = self.kernel.page_sizes().os;
        for (done, page) in pages.iter().enumerate() {
            // SAFETY: the call does not change contents.
            match unsafe { Pages::split(&self.kernel, AddressRange::new(*page, os)) } {
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
                Ok(()) => {}
            }
        }
        Ok(pages.len())
    }

    fn now(&self) -> Duration {
        Facts::now(&self.kernel)
    }

    fn wait(&self, time: Duration) {
        self.kernel.advance(time);
        (self.running)(&self.kernel);
    }
}

impl core::fmt::Debug for RemoteProcess<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RemoteProcess").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}
