//! The truth, for assertions: what the model knows and a real kernel would not tell, or not so exactly.

use super::Kernel;
use super::call::{Call, Entry, Fault, Violation};
use super::fault::Access;
use super::table::{Pte, Table};
use super::vma::Kind;
use crate::{AddressRange, Advice, Protection, Residency};
use core::ffi::CStr;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is behind one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageState {
    /// In no reservation.
    Foreign,
    /// Reserved, not mapped.
    Reserved,
    /// Mapped, never touched or decommitted.
    Empty,
    /// Mapped to the shared page of zeros: it was only read, or was all zero when its huge page was split.
    Zero,
    /// An OS page of its own (also one left of a huge page that was split).
    Small,
    /// A part of a whole huge page, mapped by an entry of its own: not huge for the MMU, and when other parts are
    /// not mapped, those are stranded.
    Part,
    /// Mapped by a huge page's own entry.
    Huge,
    /// A page of a hugetlb pool.
    Hugetlb,
}

/// A mapping, as `/proc/PID/smaps` would list it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where it is.
    pub range: AddressRange,
    /// Whether it is only reserved.
    pub reserved: bool,
    /// Page size of the hugetlb pool it is from.
    pub hugetlb: Option<usize>,
    /// The last advice on huge pages.
    pub advice: Option<Advice>,
    /// Whether equal pages may become one.
    pub merges: bool,
    /// The access allowed.
    pub protection: Protection,
    /// Its name.
    pub name: Option<Arc<CStr>>,
}

/// What has happened so far, on the whole host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Faults that made an OS page resident.
    pub faults: u64,
    /// Faults that made a transparent huge page resident.
    pub huge_faults: u64,
    /// Faults that took a page of a hugetlb pool.
    pub hugetlb_faults: u64,
    /// Faults that found no free block for a huge page and went on with an OS page.
    pub huge_fallbacks: u64,
    /// Faults that could not charge a huge page and went on with an OS page.
    pub huge_fallbacks_charge: u64,
    /// Copies of pages that were shared, by `fork` or since they were merged.
    pub copies: u64,
    /// Huge pages made by `collapse`.
    pub collapses: u64,
    /// Huge pages made by khugepaged.
    pub khugepaged_collapses: u64,
    /// OS pages that became one with an equal one.
    pub merges: u64,
    /// Huge pages split, on request or by reclaim.
    pub splits: u64,
    /// Of these, those split by reclaim.
    pub reclaims: u64,
    /// Bytes that were offered and that reclaim took.
    pub taken: u64,
    /// Charges above `memory.high`.
    pub throttles: u64,
    /// Direct compactions.
    pub compactions: u64,
    /// Touches refused with [`Fault::Oom`], and calls that met it.
    pub ooms: u64,
    /// Touches refused with [`Fault::Bus`], and calls that met it.
    pub buses: u64,
    /// Hugetlb pages an owner took away from a forked process.
    pub steals: u64,
}

/// The mutator: what the code above an allocator does to memory.
impl Kernel {
    /// Writes to every OS page of `range`, as far as the model goes; contents do not change.
    ///
    /// # Errors
    /// The fault that would stop the process. Pages before it have been touched.
    pub fn touch(&self, range: AddressRange) -> Result<(), Fault> {
        self.lock().access(self.pid, range, Access::Write)
    }

    /// Reads from every OS page of `range`, as far as the model goes.
    ///
    /// # Errors
    /// The fault that would stop the process.
    pub fn touch_read(&self, range: AddressRange) -> Result<(), Fault> {
        self.lock().access(self.pid, range, Access::Read)
    }

    /// Lets the model catch up with code that uses the memory without calling [`touch`](Kernel::touch): every
    /// page of `range` that the *real* system holds memory for, and that is mapped, counts as written. Where
    /// real memory was only read this sees a write.
    ///
    /// # Errors
    /// The fault the accesses would have met.
    pub fn observe(&self, range: AddressRange) -> Result<(), Fault> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let os = state.physical.geometry.os;
        let mut found = Vec::new();
        for space in &state.processes[self.pid].spaces {
            let (start, end) = (range.start.max(space.range.start), range.end().min(space.range.end()));
            let (Some(host), true) = (&space.host, start < end) else { continue };
            for piece in space.vmas.pieces(AddressRange::new(start & !(os - 1), end - (start & !(os - 1)))) {
                let accessible = piece.attributes.protection == Protection::ReadWrite;
                if piece.attributes.kind != Kind::Reserved && accessible {
                    host.accessed(piece.part, os, |address| found.push(AddressRange::new(address, os)));
                }
            }
        }
        found.into_iter().try_for_each(|page| state.access(self.pid, page, Access::Write))
    }
}

/// What a test asserts on.
impl Kernel {
    /// Resident anonymous memory of this process in bytes; hugetlb pages do not count, as in `VmRSS`.
    pub fn rss(&self) -> u64 {
        let state = self.lock();
        let spaces = &state.processes[self.pid].spaces;
        let of = |space: &super::table::Space| {
            let sum: Residency = space.residency(space.range, &state.physical);
            sum.resident - sum.hugetlb
        };
        spaces.iter().map(of).sum()
    }

    /// What the cgroup is charged, in bytes, with what others are charged.
    pub fn charge(&self) -> u64 {
        self.lock().physical.charge()
    }

    /// Bytes of private memory that this process can write: what a limit on data counts.
    pub fn data(&self) -> u64 {
        self.lock().data(self.pid)
    }

    /// Bytes charged that no process maps: stranded.
    pub fn stranded(&self) -> u64 {
        let state = self.lock();
        state.physical.charged - state.physical.mapped
    }

    /// Huge pages of which only a part is mapped: those on the deferred-split queue (`nr_anon_partially_mapped`).
    pub fn partially_mapped(&self) -> usize {
        self.lock().physical.queued()
    }

    /// Reclaim, as memory pressure in the cgroup or on the host causes it: splits every partially mapped huge
    /// page, and takes what was [offered](crate::Pages::offer). Returns the bytes freed.
    pub fn reclaim(&self) -> u64 {
        let mut state = self.lock();
        state.take_offered() + state.physical.reclaim()
    }

    /// Lets khugepaged scan `pages` OS pages now, whole huge-page ranges only, going on where it stopped.
    /// Returns how many huge pages it made.
    pub fn run_khugepaged(&self, pages: u64) -> u64 {
        self.lock().khugepaged(pages)
    }

    /// Mappings of this process, reserved ranges included.
    pub fn mappings(&self) -> usize {
        self.lock().mappings(self.pid)
    }

    /// The mappings of this process: reservations in the order they were made, each by address.
    pub fn mapping_list(&self) -> Vec<Mapping> {
        let state = self.lock();
        let spaces = state.processes[self.pid].spaces.iter();
        spaces
            .flat_map(|space| space.vmas.iter())
            .map(|(range, attributes)| Mapping {
                range,
                reserved: attributes.kind == Kind::Reserved,
                hugetlb: match attributes.kind {
                    Kind::Hugetlb { page_size, .. } => Some(page_size),
                    _ => None,
                },
                advice: attributes.advice,
                merges: attributes.merges,
                protection: attributes.protection,
                name: attributes.name.clone(),
            })
            .collect()
    }

    /// The mapping at an address.
    pub fn mapping_at(&self, address: usize) -> Option<Mapping> {
        self.mapping_list().into_iter().find(|mapping| mapping.range.contains(address))
    }

    /// What is behind an address of this process.
    pub fn page_state(&self, address: usize) -> PageState {
        let state = self.lock();
        let Some(index) = state.space_at(self.pid, address) else { return PageState::Foreign };
        let space = &state.processes[self.pid].spaces[index];
        let Some((_, attributes)) = space.vmas.at(address) else { return PageState::Foreign };
        match attributes.kind {
            Kind::Reserved => return PageState::Reserved,
            Kind::Hugetlb { page_size, .. } => {
                let page = address & !(page_size - 1);
                return if space.hugetlb.contains_key(&page) { PageState::Hugetlb } else { PageState::Empty };
            }
            Kind::Anonymous => {}
        }
        match space.entry(address, &state.physical) {
            (Pte::None, _) => PageState::Empty,
            (Pte::Zero, _) => PageState::Zero,
            (Pte::Page { .. }, true) => PageState::Huge,
            (Pte::Page { folio, .. }, false) if state.physical.is_whole_huge(folio) => PageState::Part,
            (Pte::Page { .. }, false) => PageState::Small,
        }
    }

    /// Whether an address is mapped by a huge page of either kind.
    pub fn is_huge(&self, address: usize) -> bool {
        matches!(self.page_state(address), PageState::Huge | PageState::Hugetlb)
    }

    /// What has happened on the host so far.
    pub fn events(&self) -> Events {
        self.lock().physical.events
    }

    /// How often a call was made, by all processes.
    pub fn calls(&self, call: Call) -> u64 {
        let state = self.lock();
        let events = &state.physical.events;
        match call {
            Call::Fault => events.faults,
            Call::HugeFault => events.huge_faults,
            Call::Compaction => events.compactions,
            _ => state.record.counts[call as usize],
        }
    }

    /// How often a call failed, for whatever reason.
    pub fn failures(&self, call: Call) -> u64 {
        self.lock().record.failures[call as usize]
    }

    /// How many calls failed because the test asked for it.
    pub fn injected(&self) -> u64 {
        self.lock().injector.injected
    }

    /// The last calls, oldest first, at most [`Config::log_capacity`](super::Config::log_capacity).
    pub fn log(&self) -> Vec<Entry> {
        self.lock().record.log.iter().copied().collect()
    }

    /// Empties the log. Counters stay.
    pub fn clear_log(&self) {
        self.lock().record.log.clear();
    }

    /// The calls that broke the contract of the traits, and touches of memory that is not mapped.
    /// A test of correct code asserts that there are none.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().record.violations.clone()
    }

    /// Forgets the violations, after a test has provoked one.
    pub fn clear_violations(&self) {
        self.lock().record.violations.clear();
    }

    /// Walks all page tables and compares every counter of the model with what it finds.
    ///
    /// # Errors
    /// What does not agree: a defect of the model, never of the code under test.
    pub fn check(&self) -> Result<(), String> {
        let state = self.lock();
        let (mut maps, mut refs, mut promised) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for space in state.processes.iter().flat_map(|process| &process.spaces) {
            space.vmas.check(space.range)?;
            for (&chunk, table) in &space.tables {
                match table {
                    Table::HugeZero => {}
                    Table::Huge { folio, .. } if !state.physical.is_whole_huge(*folio) => {
                        return Err(format!("the huge entry at {chunk:#x} points to a split folio"));
                    }
                    Table::Huge { folio, .. } => {
                        for page in 0..state.physical.len(*folio) {
                            *maps.entry((*folio, page)).or_insert(0) += 1;
                        }
                    }
                    Table::Ptes(ptes) => {
                        for pte in ptes {
                            if let Pte::Page { folio, page, .. } = *pte {
                                *maps.entry((folio, page)).or_insert(0) += 1;
                            }
                        }
                    }
                }
                self.check_chunk(space, chunk, table, state.physical.geometry)?;
            }
            for entry in space.hugetlb.values() {
                *refs.entry(entry.id).or_insert(0) += 1;
            }
            for (range, attributes) in space.vmas.iter() {
                if let Kind::Hugetlb { page_size, owner: true, .. } = attributes.kind {
                    let taken = space.hugetlb.range(range.start..range.end()).count();
                    *promised.entry(page_size).or_insert(0) += (range.len / page_size - taken) as u64;
                }
            }
        }
        state.physical.check(&maps)?;
        state.pools.check(&refs, &promised)
    }

    /// Nothing is resident outside anonymous mappings; a huge entry lies in one mapping.
    fn check_chunk(
        &self,
        space: &super::table::Space,
        chunk: usize,
        table: &Table,
        geometry: super::Geometry,
    ) -> Result<(), String> {
        let anonymous = |address: usize| {
            space.vmas.at(address).filter(|(_, attributes)| attributes.kind == Kind::Anonymous)
        };
        match table {
            Table::Ptes(ptes) => {
                let stray = ptes.iter().enumerate().find(|(index, pte)| {
                    **pte != Pte::None && anonymous(chunk + index * geometry.os).is_none()
                });
                stray.map_or(Ok(()), |(index, _)| Err(format!("chunk {chunk:#x}: page {index} is stray")))
            }
            _ => match anonymous(chunk) {
                Some((whole, _)) if whole.encloses(AddressRange::new(chunk, geometry.chunk)) => Ok(()),
                _ => Err(format!("the huge entry at {chunk:#x} reaches over a mapping")),
            },
        }
    }
}
