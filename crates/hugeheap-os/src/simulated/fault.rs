//! Touches: what a page fault does.
//!
//! ```text
//!   touch ─▶ mapped and allowed? ─ no ─▶ Segv
//!              │ yes
//!              ├─ hugetlb ──▶ promised page, spare page, or Bus
//!              └─ anonymous
//!                   ├─ no page table yet, huge pages apply, the mapping holds the whole range
//!                   │     write ─▶ huge page, if memory has a block and the cgroup room; else as below
//!                   │     read  ─▶ huge zero page
//!                   └─ otherwise
//!                         write ─▶ OS page, or Oom       read ─▶ zero page
//! ```
//!
//! A write to a page shared by `fork` copies one OS page; a huge entry of such a page is first replaced with single
//! ones, in the process that writes. The other process keeps its huge entry.

use super::call::{Call, Fault, Misuse};
use super::table::{Pte, Table};
use super::vma::Kind;
use super::{Pid, State};
use crate::{AddressRange, Advice, Protection, ThpDefrag, ThpDisabled, ThpMode};

/// How memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    /// The mutator writes: the page is not all zero any more.
    Write,
    /// The kernel makes it writable (`populate`); it stays zero.
    Populate,
}

impl Access {
    const fn writes(self) -> bool {
        !matches!(self, Self::Read)
    }
}

impl State {
    /// Touches every OS page of `range`, and charges the clock for the faults.
    pub(super) fn access(&mut self, pid: Pid, range: AddressRange, access: Access) -> Result<(), Fault> {
        let before = self.physical.events;
        let result = loop {
            match self.touch_all(pid, range, access) {
                // What is offered is taken before anybody is killed. The pages before the fault stay touched.
                Err(Fault::Oom) if self.take_offered() > 0 => {}
                result => break result,
            }
        };
        let after = &mut self.physical.events;
        if result == Err(Fault::Oom) {
            after.ooms += 1;
        }
        if result == Err(Fault::Bus) {
            after.buses += 1;
        }
        self.clock.spend(Call::Fault, after.faults - before.faults);
        self.clock.spend(Call::HugeFault, after.huge_faults - before.huge_faults);
        self.clock.spend(Call::Compaction, after.compactions - before.compactions);
        result
    }

    fn touch_all(&mut self, pid: Pid, range: AddressRange, access: Access) -> Result<(), Fault> {
        let geometry = self.physical.geometry;
        if range.len == 0 {
            return Ok(());
        }
        let stray = |state: &mut Self, misuse| {
            state.record.violation(Call::Fault, range, misuse);
            Err(Fault::Segv)
        };
        let Some(end) = range.start.checked_add(range.len) else { return stray(self, Misuse::Empty) };
        let mut at = range.start & !(geometry.os - 1);
        while at < end {
            let Some(index) = self.space_at(pid, at) else { return stray(self, Misuse::NotReserved) };
            let space = &self.processes[pid].spaces[index];
            // A part that was released.
            let Some((whole, attributes)) = space.vmas.at(at) else {
                return stray(self, Misuse::NotReserved);
            };
            let (kind, advice, protection) = (attributes.kind, attributes.advice, attributes.protection);
            if kind == Kind::Reserved {
                return stray(self, Misuse::NotMapped);
            }
            if protection == Protection::None || protection == Protection::Read && access.writes() {
                return Err(Fault::Segv);
            }
            if let Kind::Hugetlb { page_size, owner, stolen } = kind {
                at &= !(page_size - 1);
                self.touch_hugetlb(pid, index, at, (page_size, owner, stolen), access)?;
                at += page_size;
                continue;
            }
            let stop = end.min(whole.end()).min(geometry.chunk_of(at) + geometry.chunk);
            // Up to the end of the last OS page touched.
            let stop = at + ((stop - at + geometry.os - 1) & !(geometry.os - 1));
            let part = AddressRange::new(at, stop - at);
            self.touch_anonymous(pid, index, (whole, advice), part, access)?;
            at = stop;
        }
        Ok(())
    }

    /// Whether a fault or khugepaged may use huge pages for a mapping with this advice.
    pub(super) fn huge_pages_apply(&self, pid: Pid, advice: Option<Advice>) -> bool {
        let advised = advice == Some(Advice::Huge);
        let process = match self.processes[pid].thp_disabled {
            ThpDisabled::No => true,
            ThpDisabled::ExceptAdvised => advised,
            ThpDisabled::Completely => false,
        };
        let mode = match self.config.thp.mode {
            ThpMode::Always => true,
            ThpMode::Madvise => advised,
            ThpMode::Never => false,
        };
        self.physical.geometry.has_huge && advice != Some(Advice::NoHuge) && process && mode
    }

    fn fault_may_compact(&self, advice: Option<Advice>) -> bool {
        match self.config.thp.defrag {
            ThpDefrag::Always => true,
            ThpDefrag::Madvise | ThpDefrag::DeferMadvise => advice == Some(Advice::Huge),
            ThpDefrag::Defer | ThpDefrag::Never => false,
        }
    }

    fn touch_anonymous(
        &mut self,
        pid: Pid,
        index: usize,
        (whole, advice): (AddressRange, Option<Advice>),
        part: AddressRange,
        access: Access,
    ) -> Result<(), Fault> {
        let geometry = self.physical.geometry;
        let chunk = geometry.chunk_of(part.start);
        let applies =
            self.huge_pages_apply(pid, advice) && whole.encloses(AddressRange::new(chunk, geometry.chunk));
        let direct = self.fault_may_compact(advice);
        let (space, physical) = (&mut self.processes[pid].spaces[index], &mut self.physical);
        if access.writes() {
            space.withdraw(part, geometry);
        }
        match space.tables.get(&chunk) {
            None if applies && !access.writes() => {
                space.tables.insert(chunk, Table::HugeZero);
            }
            None | Some(Table::HugeZero) if applies && access.writes() => match physical.huge(direct) {
                Ok(folio) => {
                    space.put_huge(chunk, folio, physical);
                    physical.events.huge_faults += 1;
                }
                Err(super::folio::NoHugePage::Fragmented) => physical.events.huge_fallbacks += 1,
                Err(super::folio::NoHugePage::NoRoom) => physical.events.huge_fallbacks_charge += 1,
            },
            _ => {}
        }
        match space.tables.get_mut(&chunk) {
            Some(Table::HugeZero) if !access.writes() => return Ok(()),
            Some(Table::Huge { folio, cow }) => {
                let folio = *folio;
                if *cow && access.writes() && physical.is_only_of(folio, pid) {
                    *cow = false;
                }
                if !*cow || !access.writes() {
                    if access == Access::Write {
                        let first = geometry.index(part.start);
                        for page in first..first + part.len / geometry.os {
                            physical.write(folio, page as u32);
                        }
                    }
                    return Ok(());
                }
                space.demote(chunk, geometry);
            }
            _ => {}
        }
        for address in (part.start..part.end()).step_by(geometry.os) {
            let (pte, _) = space.entry(address, physical);
            match pte {
                Pte::None if !access.writes() => space.put(address, Pte::Zero, physical),
                Pte::Zero if !access.writes() => {}
                Pte::None | Pte::Zero => {
                    let folio = physical.small().map_err(|_| Fault::Oom)?;
                    space.put(address, Pte::Page { folio, page: 0, cow: false }, physical);
                    physical.events.faults += 1;
                }
                Pte::Page { folio, page, cow: true } if access.writes() => {
                    let alone = physical.is_only_of(folio, pid)
                        && !physical.is_shared(folio, page)
                        && !physical.is_merged(folio, page);
                    let (folio, page) = if alone {
                        (folio, page)
                    } else {
                        let copy = physical.small().map_err(|_| Fault::Oom)?;
                        if physical.is_written(folio, page) {
                            physical.write(copy, 0);
                        }
                        physical.events.faults += 1;
                        physical.events.copies += 1;
                        (copy, 0)
                    };
                    space.put(address, Pte::Page { folio, page, cow: false }, physical);
                }
                Pte::Page { .. } => {}
            }
            if access == Access::Write {
                if let (Pte::Page { folio, page, .. }, _) = space.entry(address, physical) {
                    physical.write(folio, page);
                }
            }
        }
        Ok(())
    }

    fn touch_hugetlb(
        &mut self,
        pid: Pid,
        index: usize,
        address: usize,
        (page_size, owner, stolen): (usize, bool, bool),
        access: Access,
    ) -> Result<(), Fault> {
        use super::hugetlb::HugetlbEntry;
        let State { processes, physical, pools, .. } = self;
        let entry = processes[pid].spaces[index].hugetlb.get(&address).copied();
        let fresh = match entry {
            Some(entry) if !entry.cow || !access.writes() => return Ok(()),
            Some(entry) if !pools.is_shared(entry.id) => entry.id,
            Some(entry) => match pools.take(page_size, false, physical) {
                Some(copy) => {
                    pools.give_back(entry.id, physical);
                    physical.events.copies += 1;
                    physical.events.hugetlb_faults += 1;
                    copy
                }
                // The owner of the reservation must not fail: it takes the page away from the others, who will
                // get SIGBUS.
                None if owner => {
                    for process in processes.iter_mut().enumerate().filter(|(who, _)| *who != pid) {
                        for space in &mut process.1.spaces {
                            if space.hugetlb.get(&address).is_some_and(|other| other.id == entry.id) {
                                space.hugetlb.remove(&address);
                                space.vmas.mark_stolen(address);
                                pools.give_back(entry.id, physical);
                            }
                        }
                    }
                    physical.events.steals += 1;
                    entry.id
                }
                None => return Err(Fault::Bus),
            },
            None if stolen => return Err(Fault::Bus),
            None => {
                let page = pools.take(page_size, owner, physical).ok_or(Fault::Bus)?;
                physical.events.hugetlb_faults += 1;
                page
            }
        };
        let entry = HugetlbEntry { id: fresh, page_size, cow: false };
        processes[pid].spaces[index].hugetlb.insert(address, entry);
        Ok(())
    }
}
