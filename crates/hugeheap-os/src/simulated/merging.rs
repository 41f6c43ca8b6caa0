//! OS pages of equal contents that become one: what ksmd does, when a test [lets it](Kernel::run_ksmd).
//!
//! ```text
//!   allowed, written, contents equal               write
//!   page A ──┐                                 ┌──▶ a copy, not merged
//!   page B ──┴─▶ one page, merged, cow ────────┤
//!                                              └──▶ the others keep it
//! ```
//!
//! A merged page is copied when it is written, also by the last that maps it. Left out: the kernel merges a
//! page only when it finds the same contents twice, with its thread at work in between; and it splits huge
//! pages for that, where the model passes them over. Of a forked child the model knows no contents: its pages
//! are not merged.

use super::call::{Call, Outcome};
use super::fault::Access;
use super::table::Pte;
use super::vma::Kind;
use super::{Kernel, Pid, State};
use crate::{AddressRange, Protection};
use std::collections::BTreeMap;

impl Kernel {
    /// Lets ksmd go over everything that may be merged, if the host merges. Returns how many OS pages became
    /// one with another.
    pub fn run_ksmd(&self) -> u64 {
        self.lock().ksmd()
    }
}

impl State {
    pub(super) fn allow_merging(&mut self, pid: Pid, range: AddressRange, merges: bool) -> Outcome<()> {
        let (index, _) = self.locate_mapped(pid, Call::Merge, range, self.physical.geometry.os)?;
        self.injector.ask(Call::Merge)?;
        if self.config.merges.is_none() {
            return Err(libc::EINVAL);
        }
        if !merges {
            for address in (range.start..range.end()).step_by(self.physical.geometry.os) {
                if self.is_merged(pid, index, address) {
                    let page = AddressRange::new(address, self.physical.geometry.os);
                    self.access(pid, page, Access::Populate).map_err(|_| libc::ENOMEM)?;
                }
            }
        }
        let room = self.room(pid);
        self.processes[pid].spaces[index].vmas.edit(range, room, |attributes| attributes.merges = merges)?;
        self.cut_ends(pid, index, range);
        Ok(())
    }

    fn is_merged(&self, pid: Pid, index: usize, address: usize) -> bool {
        let (entry, _) = self.processes[pid].spaces[index].entry(address, &self.physical);
        matches!(entry, Pte::Page { folio, page, .. } if self.physical.is_merged(folio, page))
    }

    /// Bytes of a process in pages that were merged.
    pub(super) fn merged(&self, pid: Pid) -> u64 {
        let os = self.physical.geometry.os;
        let mut bytes = 0;
        for (index, space) in self.processes[pid].spaces.iter().enumerate() {
            for (_, part) in space.used_chunks(space.range, self.physical.geometry) {
                let pages = (part.start..part.end()).step_by(os);
                bytes += pages.filter(|&address| self.is_merged(pid, index, address)).count() * os;
            }
        }
        bytes as u64
    }

    pub(super) fn exclusive(&self, pid: Pid, index: usize, range: AddressRange, found: &mut [u64]) {
        found.fill(0);
        let space = &self.processes[pid].spaces[index];
        let pages = (range.start..range.end()).step_by(self.physical.geometry.os);
        for (number, address) in pages.enumerate().take(found.len() * 64) {
            let (entry, _) = space.entry(address, &self.physical);
            let alone =
                |folio, page| !self.physical.is_shared(folio, page) && !self.physical.is_merged(folio, page);
            if matches!(entry, Pte::Page { folio, page, .. } if alone(folio, page)) {
                found[number / 64] |= 1 << (number % 64);
            }
        }
    }

    /// Entries that point to an OS page of its own and may be merged: process, reservation, address.
    fn mergeable(&self) -> Vec<(Pid, usize, usize)> {
        let geometry = self.physical.geometry;
        let mut found = Vec::new();
        for (pid, process) in self.processes.iter().enumerate() {
            for (index, space) in process.spaces.iter().enumerate().filter(|(_, space)| space.host.is_some())
            {
                for (range, attributes) in space.vmas.iter() {
                    let readable = attributes.protection == Protection::ReadWrite;
                    if !attributes.merges || attributes.kind != Kind::Anonymous || !readable {
                        continue;
                    }
                    for (_, part) in space.used_chunks(range, geometry) {
                        for address in (part.start..part.end()).step_by(geometry.os) {
                            let (entry, huge) = space.entry(address, &self.physical);
                            let Pte::Page { folio, .. } = entry else { continue };
                            if !huge && !self.physical.is_whole_huge(folio) {
                                found.push((pid, index, address));
                            }
                        }
                    }
                }
            }
        }
        found
    }

    fn ksmd(&mut self) -> u64 {
        if self.config.merges != Some(true) {
            return 0;
        }
        let os = self.physical.geometry.os;
        let mut first: BTreeMap<Vec<u8>, (Pid, usize, usize)> = BTreeMap::new();
        let mut merged = 0;
        for at in self.mergeable() {
            // SAFETY: mapped, readable, of the real memory behind a reservation, which lives as long as that.
            let contents = unsafe { core::slice::from_raw_parts(at.2 as *const u8, os).to_vec() };
            let same = *first.entry(contents).or_insert(at);
            if same != at && self.merge(same, at) {
                merged += 1;
            }
        }
        self.physical.events.merges += merged;
        merged
    }

    /// Has one entry point to what another points to. Says no if it does already.
    fn merge(&mut self, same: (Pid, usize, usize), at: (Pid, usize, usize)) -> bool {
        let entry = |state: &Self, (pid, index, address): (Pid, usize, usize)| match state.processes[pid]
            .spaces[index]
            .entry(address, &state.physical)
            .0
        {
            Pte::Page { folio, page, .. } => Some((folio, page)),
            Pte::None | Pte::Zero => None,
        };
        let (Some((folio, page)), Some(other)) = (entry(self, same), entry(self, at)) else { return false };
        if (folio, page) == other {
            return false;
        }
        self.physical.set_merged(folio, page);
        for (pid, index, address) in [same, at] {
            let pte = Pte::Page { folio, page, cow: true };
            self.processes[pid].spaces[index].put(address, pte, &mut self.physical);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::Config;
    use crate::{Backing, Facts, Pages};

    const PAGE: usize = 4096;

    fn written(config: Config, pages: usize) -> (Kernel, AddressRange) {
        let kernel = Kernel::new(config);
        let range = kernel.reserve(pages * PAGE, PAGE).unwrap();
        // SAFETY: the test owns the range.
        unsafe {
            kernel.map(range, Backing::Base).unwrap();
            core::ptr::write_bytes(range.start as *mut u8, 7, range.len);
        }
        kernel.touch(range).unwrap();
        (kernel, range)
    }

    fn alone(kernel: &Kernel, range: AddressRange) -> u64 {
        let mut found = [0];
        kernel.exclusive(range, &mut found).unwrap();
        found[0]
    }

    #[test]
    fn equal_pages_become_one_until_they_are_written() {
        let (kernel, range) = written(Config { merges: Some(true), ..Config::default() }, 4);
        assert_eq!((kernel.run_ksmd(), alone(&kernel, range)), (0, 0b1111), "not allowed");
        // SAFETY: the test owns the range.
        unsafe { kernel.merge(range, true).unwrap() };
        // SAFETY: as above.
        unsafe { (range.start as *mut u8).write(1) };
        assert_eq!(kernel.run_ksmd(), 2, "three are equal");
        kernel.check().unwrap();
        assert_eq!((kernel.charge(), kernel.rss()), (2 * PAGE as u64, 4 * PAGE as u64));
        assert_eq!((alone(&kernel, range), kernel.merged()), (1, Ok(3 * PAGE as u64)));
        assert_eq!(kernel.run_ksmd(), 0, "they are one already");
        for page in 1..4 {
            kernel.touch(AddressRange::new(range.start + page * PAGE, 1)).unwrap();
            kernel.check().unwrap();
            // The last one is copied, too, and the merged page freed.
            assert_eq!(kernel.charge(), (2 + page).min(4) as u64 * PAGE as u64, "{page}");
        }
        assert_eq!((kernel.merged(), alone(&kernel, range)), (Ok(0), 0b1111));
        assert_eq!(kernel.run_ksmd(), 2);
        // SAFETY: as above.
        unsafe { kernel.merge(range, false).unwrap() };
        assert_eq!((kernel.merged(), kernel.run_ksmd(), kernel.charge()), (Ok(0), 0, 4 * PAGE as u64));
        kernel.check().unwrap();
    }

    #[test]
    fn what_a_fork_shares_is_nobodys_alone_and_a_host_may_not_merge() {
        let (kernel, range) = written(Config::default(), 2);
        let child = kernel.fork();
        assert_eq!((alone(&kernel, range), alone(&child, range)), (0, 0));
        kernel.touch(AddressRange::new(range.start, 1)).unwrap();
        assert_eq!((alone(&kernel, range), alone(&child, range)), (1, 1));
        // SAFETY: the test owns the range.
        unsafe { kernel.merge(range, true).unwrap() };
        assert_eq!((kernel.merges(), kernel.run_ksmd()), (Ok(false), 0));
        let (kernel, range) = written(Config { merges: None, ..Config::default() }, 2);
        // SAFETY: as above.
        assert!(unsafe { kernel.merge(range, true) }.is_err());
        assert!(kernel.merges().is_err());
    }
}
