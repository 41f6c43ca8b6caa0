//! Calls that change what mapped ranges consist of: populate, decommit, offer, split, relocate.

use super::call::{Call, Fault, Misuse, Outcome};
use super::fault::Access;
use super::table::{Pte, Space, Table, chunks};
use super::vma::Kind;
use super::{Pid, State};
use crate::{AddressRange, Protection};

impl State {
    pub(super) fn populate(&mut self, pid: Pid, range: AddressRange) -> Outcome<()> {
        if range.len == 0 {
            return self.injector.ask(Call::Populate);
        }
        let os = self.physical.geometry.os;
        let index = self.locate(pid, Call::Populate, range, os)?;
        let pieces = self.processes[pid].spaces[index].vmas.pieces(range);
        if pieces.iter().any(|piece| piece.attributes.kind == Kind::Reserved) {
            return Err(self.record.violation(Call::Populate, range, Misuse::NotMapped));
        }
        self.injector.ask(Call::Populate)?;
        let writable = pieces.iter().all(|piece| piece.attributes.protection == Protection::ReadWrite);
        if !self.config.capabilities.populate || !writable {
            return Err(libc::EINVAL);
        }
        self.access(pid, range, Access::Populate).map_err(|fault| match fault {
            Fault::Oom => libc::ENOMEM,
            Fault::Bus | Fault::Segv => libc::EFAULT,
        })
    }

    /// Refuses hugetlb ranges, for the calls whose contract excludes them.
    fn refuse_hugetlb(&mut self, call: Call, range: AddressRange, kinds: &[Kind]) -> Outcome<()> {
        if kinds.iter().any(|kind| matches!(kind, Kind::Hugetlb { .. })) {
            return Err(self.record.violation(call, range, Misuse::Hugetlb));
        }
        Ok(())
    }

    pub(super) fn decommit(&mut self, pid: Pid, range: AddressRange) -> Outcome<()> {
        if range.len == 0 {
            return self.injector.ask(Call::Decommit);
        }
        let (index, pieces) = self.locate_mapped(pid, Call::Decommit, range, self.physical.geometry.os)?;
        let kinds: Vec<_> = pieces.iter().map(|piece| piece.attributes.kind).collect();
        self.refuse_hugetlb(Call::Decommit, range, &kinds)?;
        self.injector.ask(Call::Decommit)?;
        let frees_tables = self.config.frees_page_tables;
        let space = &mut self.processes[pid].spaces[index];
        // The kernel drops mapping by mapping: a page table that two mappings share stays.
        for piece in &pieces {
            space.zap(piece.part, frees_tables, &mut self.physical);
        }
        if let Some(host) = &space.host {
            host.discard(range);
            for piece in &pieces {
                host.protect(piece.part, piece.attributes.protection);
            }
        }
        Ok(())
    }

    /// The contents are zero from now on, which a kernel may have done by then: so what the real system holds
    /// memory for was written since, also where the model was not told of it. Pages shared with another process
    /// are not offered, as in the kernel.
    pub(super) fn offer(&mut self, pid: Pid, range: AddressRange) -> Outcome<()> {
        if range.len == 0 {
            return self.injector.ask(Call::Offer);
        }
        let geometry = self.physical.geometry;
        let (index, pieces) = self.locate_mapped(pid, Call::Offer, range, geometry.os)?;
        let kinds: Vec<_> = pieces.iter().map(|piece| piece.attributes.kind).collect();
        self.refuse_hugetlb(Call::Offer, range, &kinds)?;
        self.injector.ask(Call::Offer)?;
        let (space, physical) = (&mut self.processes[pid].spaces[index], &mut self.physical);
        for (chunk, part) in space.used_chunks(range, geometry) {
            if part.len < geometry.chunk {
                space.demote(chunk, geometry);
            }
            for address in (part.start..part.end()).step_by(geometry.os) {
                let (pte, _) = space.entry(address, physical);
                let Pte::Page { folio, .. } = pte else { continue };
                if physical.is_only_of(folio, pid) {
                    space.offered.insert(address);
                }
            }
        }
        if let Some(host) = &space.host {
            for &page in space.offered.range(range.start..range.end()) {
                host.discard(AddressRange::new(page, geometry.os));
            }
        }
        Ok(())
    }

    /// Takes all that was offered and not written since, as reclaim in the cgroup does. Returns the bytes freed.
    pub(super) fn take_offered(&mut self) -> u64 {
        let before = self.physical.charge();
        let geometry = self.physical.geometry;
        for process in &mut self.processes {
            for space in &mut process.spaces {
                let mut taken = core::mem::take(&mut space.offered);
                if let Some(host) = &space.host {
                    let pages: Vec<_> = taken.iter().copied().collect();
                    for page in pages {
                        host.accessed(AddressRange::new(page, geometry.os), geometry.os, |written| {
                            let chunk = geometry.chunk_of(written);
                            if let Some(Table::Huge { .. }) = space.tables.get(&chunk) {
                                taken.retain(|&page| geometry.chunk_of(page) != chunk);
                            }
                            taken.remove(&written);
                        });
                    }
                }
                while let Some(&page) = taken.first() {
                    let chunk = geometry.chunk_of(page);
                    let rest = taken.split_off(&(chunk + geometry.chunk));
                    if taken.len() == geometry.pages() {
                        space.zap(AddressRange::new(chunk, geometry.chunk), true, &mut self.physical);
                    } else {
                        taken.iter().for_each(|&page| space.put(page, Pte::None, &mut self.physical));
                    }
                    taken = rest;
                }
            }
        }
        let freed = before - self.physical.charge();
        self.physical.events.taken += freed;
        freed
    }

    pub(super) fn split(&mut self, pid: Pid, range: AddressRange) -> Outcome<()> {
        if range.len == 0 {
            return self.injector.ask(Call::Split);
        }
        let (index, pieces) = self.locate_mapped(pid, Call::Split, range, self.physical.geometry.os)?;
        self.injector.ask(Call::Split)?;
        let hugetlb = pieces.iter().any(|piece| matches!(piece.attributes.kind, Kind::Hugetlb { .. }));
        if !self.config.capabilities.cold || hugetlb {
            return Err(libc::EINVAL);
        }
        for piece in &pieces {
            self.processes[pid].spaces[index].cold(piece.part, &mut self.physical);
        }
        Ok(())
    }

    pub(super) fn relocate(&mut self, pid: Pid, from: AddressRange, to: AddressRange) -> Outcome<()> {
        let geometry = self.physical.geometry;
        let (source, pieces) = self.locate_mapped(pid, Call::Relocate, from, geometry.os)?;
        let target = self.locate(pid, Call::Relocate, to, geometry.os)?;
        let overlap = from.start < to.end() && to.start < from.end();
        if from.len != to.len || overlap {
            return Err(self.record.violation(Call::Relocate, from, Misuse::BadPair));
        }
        let kinds: Vec<_> = pieces.iter().map(|piece| piece.attributes.kind).collect();
        self.refuse_hugetlb(Call::Relocate, from, &kinds)?;
        let there = self.processes[pid].spaces[target].vmas.pieces(to);
        if there.iter().any(|piece| piece.attributes.kind != Kind::Reserved) {
            return Err(self.record.violation(Call::Relocate, to, Misuse::AlreadyMapped));
        }
        self.injector.ask(Call::Relocate)?;
        if !self.config.capabilities.relocate {
            return Err(libc::EOPNOTSUPP);
        }
        // mremap moves one mapping, not several.
        let [piece] = &pieces[..] else { return Err(libc::EFAULT) };
        let attributes = piece.attributes.clone();
        // The source stays mapped, so both count.
        if attributes.is_data() {
            self.may_write(pid, target, to)?;
        }
        let protection = attributes.protection;
        let room = self.room(pid);
        self.processes[pid].spaces[target].vmas.set(to, attributes, room)?;
        self.move_pages(pid, source, from, target, to);
        let spaces = &self.processes[pid].spaces;
        if let (Some(here), Some(there)) = (&spaces[source].host, &spaces[target].host) {
            // The mapping may forbid access; the model's own copy must not care.
            here.protect(from, Protection::ReadWrite);
            there.protect(to, Protection::ReadWrite);
            here.copy_to(there, from, to.start, geometry.os);
            here.discard(from);
            here.protect(from, protection);
            there.protect(to, protection);
        }
        for boundary in [to.start, to.end()] {
            self.processes[pid].spaces[target].cut(boundary, geometry);
        }
        Ok(())
    }

    /// Moves page-table entries: whole chunks where both ends fall on the same place in a chunk, else one by one.
    fn move_pages(&mut self, pid: Pid, source: usize, from: AddressRange, target: usize, to: AddressRange) {
        let geometry = self.physical.geometry;
        let aligned = geometry.index(from.start) == geometry.index(to.start);
        // Moved pages count as written: the model takes less than a kernel, and nothing twice.
        self.processes[pid].spaces[source].offered.retain(|page| !(from.start..from.end()).contains(page));
        for (chunk, part) in chunks(from, geometry).collect::<Vec<_>>() {
            let new = to.start + (part.start - from.start);
            let spaces = &mut self.processes[pid].spaces;
            if aligned && part.len == geometry.chunk {
                let old = spaces[target].tables.remove(&new);
                debug_assert!(old.is_none_or(|table| table.is_empty()), "a reservation had memory");
                if let Some(table) = spaces[source].tables.remove(&chunk) {
                    spaces[target].tables.insert(new, table);
                }
                continue;
            }
            if !spaces[source].tables.contains_key(&chunk) {
                continue;
            }
            for offset in (0..part.len).step_by(geometry.os) {
                let pte =
                    self.processes[pid].spaces[source].exchange(part.start + offset, Pte::None, geometry);
                if pte != Pte::None {
                    self.processes[pid].spaces[target].exchange(new + offset, pte, geometry);
                }
            }
        }
    }
}

impl Table {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Ptes(ptes) if ptes.iter().all(|&pte| pte == Pte::None))
    }
}

impl Space {
    /// Replaces an entry without counting: the page it pointed to moves elsewhere.
    fn exchange(&mut self, address: usize, pte: Pte, geometry: super::Geometry) -> Pte {
        let entry = &mut self.ptes(geometry.chunk_of(address), geometry)[geometry.index(address)];
        core::mem::replace(entry, pte)
    }
}
