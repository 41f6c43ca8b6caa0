//! Calls that change mappings: reserve, release, map, unmap, advise, protect, name.
//!
//! Each first checks the contract (a breach is a violation), then asks for an injected failure, then acts. What
//! can fail is done before anything is changed: after an error the address space is as it was.

use super::call::{Call, Misuse, Outcome};
use super::fault::Access;
use super::host::Host;
use super::table::Space;
use super::vma::{Attributes, Kind, Piece, Vmas};
use super::{Pid, State};
use crate::{AddressRange, Advice, Backing, Protection};
use core::ffi::CStr;
use std::collections::BTreeMap;
use std::sync::Arc;

impl State {
    /// The reservation of `pid` that holds `address`.
    pub(super) fn space_at(&self, pid: Pid, address: usize) -> Option<usize> {
        self.processes[pid].spaces.iter().position(|space| space.range.contains(address))
    }

    /// Mappings of a process.
    pub(super) fn mappings(&self, pid: Pid) -> usize {
        self.processes[pid].spaces.iter().map(|space| space.vmas.count()).sum()
    }

    /// By how many mappings a process may still grow.
    pub(super) fn room(&self, pid: Pid) -> usize {
        self.config.map_limit.saturating_sub(self.mappings(pid))
    }

    /// The reservation that holds all of `range`, a multiple of `unit` and not empty.
    pub(super) fn locate(
        &mut self,
        pid: Pid,
        call: Call,
        range: AddressRange,
        unit: usize,
    ) -> Outcome<usize> {
        let misuse = if self.processes[pid].exited {
            Misuse::Exited
        } else if range.len == 0 || range.start.checked_add(range.len).is_none() {
            Misuse::Empty
        } else if !range.is_aligned_to(unit) {
            Misuse::Misaligned
        } else {
            match self.space_at(pid, range.start) {
                Some(index) if self.processes[pid].spaces[index].holds(range) => return Ok(index),
                _ => Misuse::NotReserved,
            }
        };
        Err(self.record.violation(call, range, misuse))
    }

    /// The reservation and the mappings of a range that must be mapped throughout. Hugetlb mappings must be
    /// cut at their page size.
    pub(super) fn locate_mapped(
        &mut self,
        pid: Pid,
        call: Call,
        range: AddressRange,
        unit: usize,
    ) -> Outcome<(usize, Vec<Piece>)> {
        let index = self.locate(pid, call, range, unit)?;
        let pieces = self.processes[pid].spaces[index].vmas.pieces(range);
        for piece in &pieces {
            let misuse = match piece.attributes.kind {
                Kind::Reserved => Misuse::NotMapped,
                Kind::Hugetlb { page_size, .. } if !piece.part.is_aligned_to(page_size) => Misuse::Misaligned,
                _ => continue,
            };
            return Err(self.record.violation(call, range, misuse));
        }
        Ok((index, pieces))
    }

    pub(super) fn reserve(&mut self, pid: Pid, len: usize, align: usize) -> Outcome<AddressRange> {
        let os = self.physical.geometry.os;
        let asked = AddressRange::new(0, len);
        let misuse = if self.processes[pid].exited {
            Some(Misuse::Exited)
        } else if len == 0 {
            Some(Misuse::Empty)
        } else if !align.is_power_of_two() || align < os {
            Some(Misuse::Misaligned)
        } else {
            None
        };
        if let Some(misuse) = misuse {
            return Err(self.record.violation(Call::Reserve, asked, misuse));
        }
        self.injector.ask(Call::Reserve)?;
        let len = len.checked_next_multiple_of(os).ok_or(libc::ENOMEM)?;
        let used = self.address_space(pid);
        let full =
            self.config.address_space_limit.is_some_and(|limit| len as u64 > limit.saturating_sub(used));
        if full || self.room(pid) == 0 {
            return Err(libc::ENOMEM);
        }
        let host = Host::new(len, align, self.enforced).ok_or(libc::ENOMEM)?;
        let range = host.range();
        let id = self.next_space;
        self.next_space += 1;
        self.processes[pid].spaces.push(Space {
            pid,
            id,
            range,
            host: Some(host),
            vmas: Vmas::new(range),
            tables: BTreeMap::new(),
            offered: std::collections::BTreeSet::new(),
            hugetlb: BTreeMap::new(),
        });
        Ok(range)
    }

    /// Address space of a process in bytes.
    pub(super) fn address_space(&self, pid: Pid) -> u64 {
        let mappings = self.processes[pid].spaces.iter().flat_map(|space| space.vmas.iter());
        mappings.map(|(range, _)| range.len as u64).sum()
    }

    /// Private memory of a process that can be written, in bytes: what `RLIMIT_DATA` limits. Private hugetlb
    /// mappings count like others.
    pub(super) fn data(&self, pid: Pid) -> u64 {
        let mappings = self.processes[pid].spaces.iter().flat_map(|space| space.vmas.iter());
        mappings.filter(|(_, attributes)| attributes.is_data()).map(|(range, _)| range.len as u64).sum()
    }

    /// Whether a range may be made writable, as far as the limit on data goes.
    pub(super) fn may_write(&self, pid: Pid, index: usize, range: AddressRange) -> Outcome<()> {
        let Some(limit) = self.config.data_limit else { return Ok(()) };
        let pieces = self.processes[pid].spaces[index].vmas.pieces(range);
        let new = pieces.iter().filter(|piece| !piece.attributes.is_data());
        let new: u64 = new.map(|piece| piece.part.len as u64).sum();
        if new > 0 && self.data(pid) + new > limit { Err(libc::ENOMEM) } else { Ok(()) }
    }

    pub(super) fn release(&mut self, pid: Pid, range: AddressRange) -> Outcome<()> {
        let index = self.locate(pid, Call::Release, range, self.physical.geometry.os)?;
        if self.processes[pid].spaces[index].range != range {
            return Err(self.record.violation(Call::Release, range, Misuse::NotWhole));
        }
        self.injector.ask(Call::Release)?;
        self.empty(pid, index, range);
        self.processes[pid].spaces.remove(index);
        Ok(())
    }

    pub(super) fn release_part(&mut self, pid: Pid, range: AddressRange) -> Outcome<()> {
        let index = self.locate(pid, Call::ReleasePart, range, self.physical.geometry.os)?;
        self.injector.ask(Call::ReleasePart)?;
        let room = self.room(pid);
        let pieces = self.processes[pid].spaces[index].vmas.pieces(range);
        self.processes[pid].spaces[index].vmas.remove(range, room)?;
        self.empty_pieces(pid, index, &pieces);
        self.processes[pid].spaces[index].protect_host(range, Protection::None);
        self.cut_ends(pid, index, range);
        Ok(())
    }

    pub(super) fn map(&mut self, pid: Pid, range: AddressRange, backing: Backing) -> Outcome<()> {
        let os = self.physical.geometry.os;
        let unit = match backing {
            Backing::Hugetlb(size) if size.is_power_of_two() && size >= os => size,
            Backing::Hugetlb(_) => {
                return Err(self.record.violation(Call::Map, range, Misuse::Misaligned));
            }
            _ => os,
        };
        let index = self.locate(pid, Call::Map, range, unit)?;
        let pieces = self.processes[pid].spaces[index].vmas.pieces(range);
        if pieces.iter().any(|piece| piece.attributes.kind != Kind::Reserved) {
            return Err(self.record.violation(Call::Map, range, Misuse::AlreadyMapped));
        }
        self.injector.ask(Call::Map)?;
        let can_advise = self.config.capabilities.advise_huge;
        let attributes = match backing {
            // Without transparent huge pages there is nothing to advise against.
            Backing::Base => Attributes::mapped(Kind::Anonymous, can_advise.then_some(Advice::NoHuge)),
            Backing::Plain => Attributes::mapped(Kind::Anonymous, None),
            Backing::Zeros => {
                Attributes { protection: Protection::Read, ..Attributes::mapped(Kind::Anonymous, None) }
            }
            Backing::Thp if !can_advise => return Err(libc::EINVAL),
            Backing::Thp => Attributes::mapped(Kind::Anonymous, Some(Advice::Huge)),
            Backing::Hugetlb(page_size) => {
                Attributes::mapped(Kind::Hugetlb { page_size, owner: true, stolen: false }, None)
            }
        };
        if attributes.is_data() {
            self.may_write(pid, index, range)?;
        }
        let (room, protection) = (self.room(pid), attributes.protection);
        if let Backing::Hugetlb(page_size) = backing {
            let pages = (range.len / page_size) as u64;
            self.pools.reserve(page_size, pages, &mut self.physical)?;
            if let Err(code) = self.processes[pid].spaces[index].vmas.set(range, attributes, room) {
                self.pools.unreserve(page_size, pages, pages, &mut self.physical);
                return Err(code);
            }
        } else {
            self.processes[pid].spaces[index].vmas.set(range, attributes, room)?;
        }
        let populates = matches!(backing, Backing::Hugetlb(_)) && self.config.populate_hugetlb;
        if populates && self.access(pid, range, Access::Populate).is_err() {
            self.empty(pid, index, range);
            // One mapping replaces one: there is always room for that.
            self.processes[pid].spaces[index].vmas.set(range, Attributes::reserved(), 0)?;
            return Err(libc::ENOMEM);
        }
        self.processes[pid].spaces[index].protect_host(range, protection);
        Ok(())
    }

    pub(super) fn unmap(&mut self, pid: Pid, range: AddressRange) -> Outcome<()> {
        let (index, pieces) = self.locate_mapped(pid, Call::Unmap, range, self.physical.geometry.os)?;
        self.injector.ask(Call::Unmap)?;
        let room = self.room(pid);
        self.processes[pid].spaces[index].vmas.set(range, Attributes::reserved(), room)?;
        self.empty_pieces(pid, index, &pieces);
        self.processes[pid].spaces[index].protect_host(range, Protection::None);
        self.cut_ends(pid, index, range);
        Ok(())
    }

    /// Drops everything in a range: memory, hugetlb pages, promises of the pool, contents.
    pub(super) fn empty(&mut self, pid: Pid, index: usize, range: AddressRange) {
        let pieces = self.processes[pid].spaces[index].vmas.pieces(range);
        self.empty_pieces(pid, index, &pieces);
    }

    fn empty_pieces(&mut self, pid: Pid, index: usize, pieces: &[Piece]) {
        let State { processes, physical, pools, .. } = self;
        let space = &mut processes[pid].spaces[index];
        for piece in pieces {
            match piece.attributes.kind {
                Kind::Reserved => continue,
                Kind::Anonymous => {}
                Kind::Hugetlb { page_size, owner, .. } => {
                    let range = piece.part.start..piece.part.end();
                    let taken: Vec<_> = space.hugetlb.range(range).map(|(&at, &entry)| (at, entry)).collect();
                    for (at, entry) in &taken {
                        space.hugetlb.remove(at);
                        pools.give_back(entry.id, physical);
                    }
                    if owner {
                        let pages = (piece.part.len / page_size) as u64;
                        pools.unreserve(page_size, pages, pages - taken.len() as u64, physical);
                    }
                }
            }
            if let Some(host) = &space.host {
                host.discard(piece.part);
            }
        }
        // One pass over the hull of the pieces, so that page tables of chunks they fill together go too.
        if let (Some(first), Some(last)) = (pieces.first(), pieces.last()) {
            let hull = AddressRange::new(first.part.start, last.part.end() - first.part.start);
            space.zap(hull, true, physical);
        }
    }

    /// Huge entries may not reach over the ends of a range whose mappings changed.
    pub(super) fn cut_ends(&mut self, pid: Pid, index: usize, range: AddressRange) {
        let geometry = self.physical.geometry;
        let space = &mut self.processes[pid].spaces[index];
        space.cut(range.start, geometry);
        space.cut(range.end(), geometry);
    }

    pub(super) fn advise(&mut self, pid: Pid, range: AddressRange, advice: Advice) -> Outcome<()> {
        if range.len == 0 {
            return self.injector.ask(Call::Advise);
        }
        let (index, pieces) = self.locate_mapped(pid, Call::Advise, range, self.physical.geometry.os)?;
        self.injector.ask(Call::Advise)?;
        let hugetlb = pieces.iter().any(|piece| matches!(piece.attributes.kind, Kind::Hugetlb { .. }));
        if !self.config.capabilities.advise_huge || hugetlb && advice == Advice::Huge {
            return Err(libc::EINVAL);
        }
        let room = self.room(pid);
        let space = &mut self.processes[pid].spaces[index];
        space.vmas.edit(range, room, |attributes| attributes.advice = Some(advice))?;
        self.cut_ends(pid, index, range);
        Ok(())
    }

    pub(super) fn protect(&mut self, pid: Pid, range: AddressRange, protection: Protection) -> Outcome<()> {
        if range.len == 0 {
            return self.injector.ask(Call::Protect);
        }
        let (index, _) = self.locate_mapped(pid, Call::Protect, range, self.physical.geometry.os)?;
        self.injector.ask(Call::Protect)?;
        if protection == Protection::ReadWrite {
            self.may_write(pid, index, range)?;
        }
        let room = self.room(pid);
        let space = &mut self.processes[pid].spaces[index];
        space.vmas.edit(range, room, |attributes| attributes.protection = protection)?;
        space.protect_host(range, protection);
        self.cut_ends(pid, index, range);
        Ok(())
    }

    pub(super) fn name(&mut self, pid: Pid, range: AddressRange, name: &CStr) -> Outcome<()> {
        if range.len == 0 {
            return self.injector.ask(Call::Name);
        }
        let index = self.locate(pid, Call::Name, range, self.physical.geometry.os)?;
        self.injector.ask(Call::Name)?;
        if !self.config.capabilities.name {
            return Err(libc::EINVAL);
        }
        // What the kernel allows in a name: printable, without brackets, quotes and the like; at most 80 bytes.
        let legal = |byte: &u8| (0x20..0x7f).contains(byte) && !b"\\`$[]".contains(byte);
        if name.count_bytes() >= 80 || !name.to_bytes().iter().all(legal) {
            return Err(libc::EINVAL);
        }
        let room = self.room(pid);
        let name: Option<Arc<CStr>> = (!name.is_empty()).then(|| Arc::from(name));
        let space = &mut self.processes[pid].spaces[index];
        space.vmas.edit(range, room, |attributes| attributes.name.clone_from(&name))?;
        self.cut_ends(pid, index, range);
        Ok(())
    }
}

impl Space {
    /// Whether all of a range is reserved or mapped.
    fn holds(&self, range: AddressRange) -> bool {
        let there: usize = self.vmas.pieces(range).iter().map(|piece| piece.part.len).sum();
        self.range.encloses(range) && there == range.len
    }

    /// Makes real access follow the model, where that is switched on.
    pub(super) fn protect_host(&self, range: AddressRange, protection: Protection) {
        if let Some(host) = &self.host {
            host.protect(range, protection);
        }
    }
}
