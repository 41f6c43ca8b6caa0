//! Reservations and their page tables: what each address of a process points to.
//!
//! A *chunk* is an aligned range of huge-page size. It is in one of these states, like a PMD entry:
//!
//! ```text
//!   no entry ── first touch of a huge page ───────────────▶ Huge (one entry for the whole folio)
//!      │  ╲── first read where a huge page would be ──────▶ HugeZero
//!      │                                                      │ demote: a part is unmapped, protected, copied,
//!      └── first touch of an OS page ──▶ Ptes ◀───────────────┘         or a mapping now ends inside
//!                                         │
//!                                         └── collapse ──▶ Huge
//! ```
//!
//! A chunk with a page table (`Ptes`) does not get a huge page at a touch, even when nothing in it is resident
//! any more: the table must go first. It goes when one call drops the whole chunk (`decommit`: since Linux 6.14),
//! or by collapse.
//!
//! `cow`: the page was shared with another process by `fork` and is copied before it is written, unless
//! it is no longer shared then.
//!
//! Invariant: a `Huge` entry points to a whole folio. (A split is made by the only process that maps the folio, which
//! demotes its entry first, or by reclaim, which takes folios of which some page is not mapped by anybody.)
//! So splitting a folio need not find the page tables that point to it; an entry of a page that the split
//! dropped stays and means the zero page (`resolve`).

use super::folio::{FolioId, Physical};
use super::host::Host;
use super::hugetlb::HugetlbEntry;
use super::vma::Vmas;
use super::{Geometry, Pid};
use crate::{AddressRange, Residency};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pte {
    None,
    /// The shared page of zeros: reads work, nothing is resident.
    Zero,
    Page {
        folio: FolioId,
        page: u32,
        cow: bool,
    },
}

pub(super) enum Table {
    Huge { folio: FolioId, cow: bool },
    HugeZero,
    Ptes(Box<[Pte]>),
}

/// One reservation of one process.
pub(super) struct Space {
    pub(super) pid: Pid,
    /// Order of creation, the same in parent and child.
    pub(super) id: u64,
    pub(super) range: AddressRange,
    /// Real memory; `None` for a reservation inherited by `fork`, whose addresses are the parent's.
    pub(super) host: Option<Host>,
    pub(super) vmas: Vmas,
    /// Chunk → table.
    pub(super) tables: BTreeMap<usize, Table>,
    /// OS pages that were offered and not written since.
    pub(super) offered: BTreeSet<usize>,
    /// Address → page, for hugetlb mappings.
    pub(super) hugetlb: BTreeMap<usize, HugetlbEntry>,
}

impl Physical {
    /// What an entry means: a page dropped by a split is the zero page.
    pub(super) fn resolve(&self, pte: Pte) -> Pte {
        match pte {
            Pte::Page { folio, page, .. } if self.is_dropped(folio, page) => Pte::Zero,
            other => other,
        }
    }
}

/// The chunks that `range` touches, each with the part inside.
pub(super) fn chunks(range: AddressRange, geometry: Geometry) -> impl Iterator<Item = (usize, AddressRange)> {
    let first = geometry.chunk_of(range.start);
    (first..range.end()).step_by(geometry.chunk).map(move |chunk| {
        let (start, end) = (chunk.max(range.start), (chunk + geometry.chunk).min(range.end()));
        (chunk, AddressRange::new(start, end - start))
    })
}

impl Space {
    /// The chunks that have a table in `range`. Cheap where a big range is empty.
    pub(super) fn used_chunks(&self, range: AddressRange, geometry: Geometry) -> Vec<(usize, AddressRange)> {
        let first = geometry.chunk_of(range.start);
        let clip = |chunk: usize| {
            let (start, end) = (chunk.max(range.start), (chunk + geometry.chunk).min(range.end()));
            (chunk, AddressRange::new(start, end - start))
        };
        self.tables.range(first..range.end().max(first)).map(|(&chunk, _)| clip(chunk)).collect()
    }

    /// Turns a huge entry into single ones; the folio stays whole, nothing is charged or freed.
    pub(super) fn demote(&mut self, chunk: usize, geometry: Geometry) {
        let Some(table) = self.tables.get_mut(&chunk) else { return };
        let pages = geometry.pages() as u32;
        let ptes: Box<[Pte]> = match *table {
            Table::Huge { folio, cow } => (0..pages).map(|page| Pte::Page { folio, page, cow }).collect(),
            Table::HugeZero => (0..pages).map(|_| Pte::Zero).collect(),
            Table::Ptes(_) => return,
        };
        *table = Table::Ptes(ptes);
    }

    /// The single entries of a chunk, made if there are none.
    pub(super) fn ptes(&mut self, chunk: usize, geometry: Geometry) -> &mut [Pte] {
        self.demote(chunk, geometry);
        let table = self.tables.entry(chunk).or_insert_with(|| {
            let none: Box<[Pte]> = vec![Pte::None; geometry.pages()].into_boxed_slice();
            Table::Ptes(none)
        });
        match table {
            Table::Ptes(ptes) => ptes,
            _ => unreachable!("demoted above"),
        }
    }

    /// Pages that are written, or gone, are offered no more: of a huge page none of them.
    pub(super) fn withdraw(&mut self, range: AddressRange, geometry: Geometry) {
        if self.offered.is_empty() {
            return;
        }
        for (chunk, part) in chunks(range, geometry) {
            let huge = matches!(self.tables.get(&chunk), Some(Table::Huge { .. }));
            let part = if huge { AddressRange::new(chunk, geometry.chunk) } else { part };
            let pages: Vec<_> = self.offered.range(part.start..part.end()).copied().collect();
            for page in pages {
                self.offered.remove(&page);
            }
        }
    }

    /// Replaces one entry and drops what it pointed to.
    pub(super) fn put(&mut self, address: usize, pte: Pte, physical: &mut Physical) {
        let geometry = physical.geometry;
        let pid = self.pid;
        self.offered.remove(&address);
        let entry = &mut self.ptes(geometry.chunk_of(address), geometry)[geometry.index(address)];
        let old = core::mem::replace(entry, pte);
        // The new page is counted first, so that a folio that is in both is not freed in between.
        if let Pte::Page { folio, page, .. } = pte {
            physical.map(folio, page, pid);
        }
        if let Pte::Page { folio, page, .. } = old {
            physical.unmap(folio, page, pid);
        }
    }

    /// Puts a huge page at an empty chunk, or at one whose single entries it replaces.
    pub(super) fn put_huge(&mut self, chunk: usize, folio: FolioId, physical: &mut Physical) {
        for page in 0..physical.len(folio) {
            physical.map(folio, page, self.pid);
        }
        self.withdraw(AddressRange::new(chunk, physical.geometry.chunk), physical.geometry);
        let old = self.tables.insert(chunk, Table::Huge { folio, cow: false });
        self.forget(old, physical);
    }

    fn forget(&mut self, table: Option<Table>, physical: &mut Physical) {
        match table {
            Some(Table::Huge { folio, .. }) => {
                for page in 0..physical.len(folio) {
                    physical.unmap(folio, page, self.pid);
                }
            }
            Some(Table::Ptes(ptes)) => {
                for pte in ptes {
                    if let Pte::Page { folio, page, .. } = pte {
                        physical.unmap(folio, page, self.pid);
                    }
                }
            }
            Some(Table::HugeZero) | None => {}
        }
    }

    /// Makes nothing resident in `range`. `free_tables`: whether page tables go with chunks dropped as a whole.
    pub(super) fn zap(&mut self, range: AddressRange, free_tables: bool, physical: &mut Physical) {
        let geometry = physical.geometry;
        for (chunk, part) in self.used_chunks(range, geometry) {
            let whole = part.len == geometry.chunk;
            let has_table = matches!(self.tables[&chunk], Table::Ptes(_));
            if whole && (free_tables || !has_table) {
                self.withdraw(part, geometry);
                let table = self.tables.remove(&chunk);
                self.forget(table, physical);
                continue;
            }
            for address in (part.start..part.end()).step_by(geometry.os) {
                self.put(address, Pte::None, physical);
            }
        }
    }

    /// `MADV_COLD`: splits huge pages of which this range holds only a part, unless another process shares them.
    pub(super) fn cold(&mut self, range: AddressRange, physical: &mut Physical) {
        let geometry = physical.geometry;
        for (chunk, part) in self.used_chunks(range, geometry) {
            if let Table::Huge { folio, .. } = self.tables[&chunk] {
                if part.len < geometry.chunk && physical.is_only_of(folio, self.pid) {
                    self.demote(chunk, geometry);
                    physical.split(folio);
                }
                continue;
            }
            let Table::Ptes(ptes) = &self.tables[&chunk] else { continue };
            let (mut index, end) =
                (geometry.index(part.start), geometry.index(part.start) + part.len / geometry.os);
            while index < end {
                let Pte::Page { folio, page, .. } = ptes[index] else {
                    index += 1;
                    continue;
                };
                // A run of neighbours that are neighbours in the folio too counts as one.
                let mut run = 1;
                while index + run < end
                    && matches!(ptes[index + run], Pte::Page { folio: f, page: p, .. }
                        if f == folio && p == page + run as u32)
                {
                    run += 1;
                }
                if physical.is_whole_huge(folio)
                    && (run as u32) < physical.len(folio)
                    && physical.is_only_of(folio, self.pid)
                {
                    physical.split(folio);
                }
                index += run;
            }
        }
    }

    /// A mapping begins or ends at `boundary` now: no huge entry may reach over it.
    pub(super) fn cut(&mut self, boundary: usize, geometry: Geometry) {
        let is_boundary = self.vmas.at(boundary).is_none_or(|(whole, _)| whole.start == boundary);
        if boundary % geometry.chunk != 0 && is_boundary {
            self.demote(geometry.chunk_of(boundary), geometry);
        }
    }

    /// What `address` points to, and whether by a huge entry of its own.
    pub(super) fn entry(&self, address: usize, physical: &Physical) -> (Pte, bool) {
        let geometry = physical.geometry;
        let index = geometry.index(address);
        match self.tables.get(&geometry.chunk_of(address)) {
            None => (Pte::None, false),
            Some(Table::HugeZero) => (Pte::Zero, true),
            Some(&Table::Huge { folio, cow }) => (Pte::Page { folio, page: index as u32, cow }, true),
            Some(Table::Ptes(ptes)) => (physical.resolve(ptes[index]), false),
        }
    }

    /// What is resident in `range`.
    pub(super) fn residency(&self, range: AddressRange, physical: &Physical) -> Residency {
        let geometry = physical.geometry;
        let mut sum = Residency::default();
        for (chunk, part) in self.used_chunks(range, geometry) {
            if let Table::Huge { .. } = self.tables[&chunk] {
                sum.resident += part.len as u64;
                sum.thp += part.len as u64;
                continue;
            }
            for address in (part.start..part.end()).step_by(geometry.os) {
                if let (Pte::Page { .. }, _) = self.entry(address, physical) {
                    sum.resident += geometry.os as u64;
                }
            }
        }
        // Hugetlb pages may be larger than a chunk: begin at the one that may reach into the range.
        for (&start, entry) in self.hugetlb.range(..range.end()) {
            let from = start.max(range.start);
            let to = (start + entry.page_size).min(range.end());
            if from < to {
                sum.resident += (to - from) as u64;
                sum.hugetlb += (to - from) as u64;
            }
        }
        sum
    }
}
