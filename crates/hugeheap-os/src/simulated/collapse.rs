//! Making huge pages of pages that are there: collapse on request, and khugepaged in the background.
//!
//! | | collapse | khugepaged |
//! |---|---|---|
//! | sysfs mode | ignored | obeyed |
//! | advised against, switched off for the process | refused | left alone |
//! | absent pages | any number, if there is a page table | at most `max_ptes_none` |
//! | pages shared with another process | any number, un-shared | at most `max_ptes_shared` |
//! | no free block | `ENOMEM` | stops |
//! | cgroup full | `EBUSY` | goes on with the next |
//!
//! Both take a new huge page, charged in full before the old pages are freed, so they need room for a while.
//! Holes are filled with zero: charge and RSS may grow.

use super::call::{Call, Misuse, Outcome};
use super::folio::NoHugePage;
use super::table::{Pte, Table};
use super::vma::Kind;
use super::{Pid, State};
use crate::{AddressRange, Advice, ThpDisabled};

/// Where khugepaged goes on: process, reservation, chunk.
pub(super) type Cursor = (Pid, u64, usize);

impl State {
    pub(super) fn collapse(&mut self, pid: Pid, range: AddressRange) -> Outcome<()> {
        if range.len == 0 {
            return self.injector.ask(Call::Collapse);
        }
        let geometry = self.physical.geometry;
        let index = self.locate(pid, Call::Collapse, range, geometry.chunk)?;
        let pieces = self.processes[pid].spaces[index].vmas.pieces(range);
        if pieces.iter().any(|piece| piece.attributes.kind == Kind::Reserved) {
            return Err(self.record.violation(Call::Collapse, range, Misuse::NotMapped));
        }
        self.injector.ask(Call::Collapse)?;
        if !self.config.capabilities.collapse || !geometry.has_huge {
            return Err(libc::EINVAL);
        }
        let before = self.physical.events.compactions;
        let disabled = self.processes[pid].thp_disabled == ThpDisabled::Completely;
        let mut answer = Ok(());
        for piece in pieces {
            let attributes = &piece.attributes;
            let inside = self.aligned_part(piece.part);
            // A mapping that holds no aligned huge-page range, is not anonymous or is advised against: not possible.
            if attributes.kind != Kind::Anonymous
                || attributes.advice == Some(Advice::NoHuge)
                || disabled
                || self.aligned_part(piece.whole).len == 0
            {
                answer = Err(libc::EINVAL);
                break;
            }
            let result = self.collapse_part(pid, index, inside);
            if let Err((code, stop)) = result {
                answer = Err(code);
                if stop {
                    break;
                }
            }
        }
        self.clock.spend(Call::Compaction, self.physical.events.compactions - before);
        answer
    }

    /// The whole huge-page ranges in `range`.
    fn aligned_part(&self, range: AddressRange) -> AddressRange {
        let chunk = self.physical.geometry.chunk;
        let start = (range.start + chunk - 1) & !(chunk - 1);
        let end = range.end() & !(chunk - 1);
        AddressRange::new(start, end.saturating_sub(start))
    }

    /// Collapses whole chunks of one mapping. An error says whether the kernel stops at it or goes on to the next.
    fn collapse_part(&mut self, pid: Pid, index: usize, range: AddressRange) -> Result<(), (i32, bool)> {
        let mut answer = Ok(());
        for chunk in (range.start..range.end()).step_by(self.physical.geometry.chunk) {
            match self.processes[pid].spaces[index].tables.get(&chunk) {
                Some(Table::Huge { .. } | Table::HugeZero) => continue,
                // Nothing was ever touched here: there is no page table to collapse.
                None => answer = Err((libc::EINVAL, false)),
                Some(Table::Ptes(_)) => match self.collapse_chunk(pid, index, chunk, true) {
                    Ok(()) => self.physical.events.collapses += 1,
                    Err(NoHugePage::Fragmented) => return Err((libc::ENOMEM, true)),
                    Err(NoHugePage::NoRoom) => return Err((libc::EBUSY, true)),
                },
            }
        }
        answer
    }

    /// Puts a chunk that has a page table on one new huge page.
    fn collapse_chunk(
        &mut self,
        pid: Pid,
        index: usize,
        chunk: usize,
        direct: bool,
    ) -> Result<(), NoHugePage> {
        let State { processes, physical, .. } = self;
        let space = &mut processes[pid].spaces[index];
        let new = physical.huge(direct)?;
        // What was written stays written; holes and dropped pages are zero.
        for page in 0..physical.len(new) {
            let address = chunk + page as usize * physical.geometry.os;
            if let (Pte::Page { folio, page: old, .. }, _) = space.entry(address, physical) {
                if physical.is_written(folio, old) {
                    physical.write(new, page);
                }
            }
        }
        space.put_huge(chunk, new, physical);
        Ok(())
    }

    /// One round of khugepaged over at most `budget` OS pages. Returns how many huge pages it made.
    pub(super) fn khugepaged(&mut self, budget: u64) -> u64 {
        let Some(knobs) = self.config.thp.khugepaged else { return 0 };
        let geometry = self.physical.geometry;
        let before = self.physical.events.compactions;
        let targets = self.khugepaged_targets();
        let next = targets.partition_point(|target| *target < self.cursor);
        let rounds = (budget / geometry.pages() as u64).min(targets.len() as u64) as usize;
        let mut made = 0;
        for step in 0..rounds {
            let (pid, id, chunk) = targets[(next + step) % targets.len()];
            self.cursor = (pid, id, chunk + 1);
            let Some(index) = self.processes[pid].spaces.iter().position(|space| space.id == id) else {
                continue;
            };
            if !self.khugepaged_wants(pid, index, chunk, knobs.max_ptes_none) {
                continue;
            }
            match self.collapse_chunk(pid, index, chunk, knobs.defrag) {
                Ok(()) => made += 1,
                Err(NoHugePage::Fragmented) => break,
                Err(NoHugePage::NoRoom) => {}
            }
        }
        self.physical.events.khugepaged_collapses += made;
        self.clock.spend(Call::Compaction, self.physical.events.compactions - before);
        made
    }

    /// Everything khugepaged looks at, in its order: process, order of reservation, address.
    fn khugepaged_targets(&self) -> Vec<Cursor> {
        let mut targets = Vec::new();
        for (pid, process) in self.processes.iter().enumerate() {
            for space in &process.spaces {
                for (whole, attributes) in space.vmas.iter() {
                    if attributes.kind == Kind::Anonymous && self.huge_pages_apply(pid, attributes.advice) {
                        let part = self.aligned_part(whole);
                        let chunks = (part.start..part.end()).step_by(self.physical.geometry.chunk);
                        targets.extend(chunks.map(|chunk| (pid, space.id, chunk)));
                    }
                }
            }
        }
        targets
    }

    fn khugepaged_wants(&self, pid: Pid, index: usize, chunk: usize, max_none: u64) -> bool {
        let space = &self.processes[pid].spaces[index];
        let Some(Table::Ptes(ptes)) = space.tables.get(&chunk) else { return false };
        let (mut none, mut shared) = (0, 0);
        for &pte in ptes {
            match self.physical.resolve(pte) {
                Pte::Page { folio, page, .. } => {
                    shared += u64::from(self.physical.is_shared(folio, page));
                }
                Pte::None | Pte::Zero => none += 1,
            }
        }
        none <= max_none && shared <= self.config.max_ptes_shared
    }
}
