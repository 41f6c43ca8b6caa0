//! What a process's memory consists of, unit by unit, gathered under a deadline.
//!
//! The tables are walked a gigabyte of address space at a time, so that a deadline is kept to about what such a
//! walk takes (1 to 10 ms where every OS page has an entry). What was not reached is said: `complete` is false
//! then.

use super::{PageKind, Process, ProcessMapping};
use crate::{AddressRange, Result};
use core::time::Duration;

/// Address space walked between two looks at the clock.
const STRIDE: usize = 1 << 30;

/// What one unit consists of, as far as one mapping reaches. In OS pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The part of the mapping in this unit; the whole unit unless the mapping begins or ends inside.
    pub range: AddressRange,
    /// Pages mapped with entries of their own.
    pub small: u32,
    /// Pages mapped by a huge page's entry.
    pub huge: u32,
    /// Pages that are the shared page of zeros.
    pub zero: u32,
    /// Pages in swap.
    pub swapped: u32,
}

impl Unit {
    /// Resident OS pages.
    pub const fn resident(&self) -> u32 {
        self.small + self.huge
    }

    /// Whether it is mapped by a huge page's entry.
    pub const fn is_huge(&self) -> bool {
        self.huge > 0
    }
}

/// A mapping and what is resident of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingPicture {
    /// The mapping.
    pub mapping: ProcessMapping,
    /// The units in which anything is resident or swapped, in the order of addresses.
    pub units: Vec<Unit>,
}

impl MappingPicture {
    fn sum(&self, pages: impl Fn(&Unit) -> u32) -> u64 {
        self.units.iter().map(|unit| u64::from(pages(unit))).sum()
    }
}

/// What was gathered about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// The OS page in bytes.
    pub os_page: usize,
    /// The unit in bytes.
    pub unit: usize,
    /// Mappings that were looked at, in the order of addresses.
    pub mappings: Vec<MappingPicture>,
    /// Whether all that were asked for were looked at before the deadline.
    pub complete: bool,
    /// Address space that was not looked at, in bytes.
    pub unseen: u64,
}

impl Picture {
    /// Looks at the mappings that `wanted` takes, until `deadline` (on the process's clock).
    ///
    /// # Errors
    /// What [`Process`] answers; `ENODEV` on a kernel without transparent huge pages.
    pub fn gather(
        process: &impl Process,
        wanted: impl Fn(&ProcessMapping) -> bool,
        deadline: Duration,
    ) -> Result<Self> {
        let sizes = process.page_sizes();
        let unit = sizes.huge.ok_or(crate::Error::new("transparent huge pages", libc::ENODEV))?;
        let mut picture = Self { os_page: sizes.os, unit, mappings: Vec::new(), complete: true, unseen: 0 };
        for mapping in process.mappings()?.into_iter().filter(|mapping| wanted(mapping)) {
            let range = mapping.range;
            let mut units = Vec::new();
            let mut at = range.start;
            while at < range.end() && process.now() < deadline {
                let end = range.end().min((at / STRIDE + 1).saturating_mul(STRIDE));
                process.pages(AddressRange::new(at, end - at), &mut |run| {
                    add(&mut units, range, run, unit, sizes.os);
                })?;
                at = end;
            }
            picture.unseen += (range.end() - at) as u64;
            picture.mappings.push(MappingPicture { mapping, units });
        }
        picture.complete = picture.unseen == 0;
        Ok(picture)
    }

    /// Resident bytes.
    pub fn resident(&self) -> u64 {
        self.sum(Unit::resident)
    }

    /// Resident bytes mapped by huge pages.
    pub fn huge(&self) -> u64 {
        self.sum(|unit| unit.huge)
    }

    /// Share of resident memory mapped by huge pages; `None` when nothing is resident.
    pub fn coverage(&self) -> Option<f64> {
        let resident = self.resident();
        (resident > 0).then(|| self.huge() as f64 / resident as f64)
    }

    fn sum(&self, pages: impl Fn(&Unit) -> u32 + Copy) -> u64 {
        self.mappings.iter().map(|mapping| mapping.sum(pages)).sum::<u64>() * self.os_page as u64
    }
}

/// Adds a run of pages to the units it touches.
fn add(units: &mut Vec<Unit>, mapping: AddressRange, run: super::PageRun, unit: usize, os: usize) {
    let mut at = run.range.start.max(mapping.start);
    let end = run.range.end().min(mapping.end());
    while at < end {
        let start = at & !(unit - 1);
        let stop = end.min(start + unit);
        let (first, last) = (start.max(mapping.start), (start + unit).min(mapping.end()));
        if units.last().is_none_or(|last| last.range.start != first) {
            let range = AddressRange::new(first, last - first);
            units.push(Unit { range, small: 0, huge: 0, zero: 0, swapped: 0 });
        }
        if let Some(current) = units.last_mut() {
            let pages = ((stop - at) / os) as u32;
            *match run.kind {
                PageKind::Small => &mut current.small,
                PageKind::Huge => &mut current.huge,
                PageKind::Zero => &mut current.zero,
                PageKind::Swapped => &mut current.swapped,
            } += pages;
        }
        at = stop;
    }
}

#[cfg(test)]
mod tests {
    use super::super::PageRun;
    use super::*;

    const OS: usize = 4096;
    const UNIT: usize = 2 << 20;

    #[test]
    fn runs_fall_into_units_and_do_not_reach_over_the_mapping() {
        let mapping = AddressRange::new(UNIT / 2, 3 * UNIT);
        let mut units = Vec::new();
        let run = |start, len, kind| PageRun { range: AddressRange::new(start, len), kind };
        add(&mut units, mapping, run(0, UNIT + OS, PageKind::Small), UNIT, OS);
        add(&mut units, mapping, run(UNIT + OS, OS, PageKind::Zero), UNIT, OS);
        add(&mut units, mapping, run(2 * UNIT, UNIT, PageKind::Huge), UNIT, OS);
        add(&mut units, mapping, run(3 * UNIT, UNIT, PageKind::Swapped), UNIT, OS);
        let seen: Vec<_> =
            units.iter().map(|u| (u.range.start, u.range.len, u.small, u.huge, u.zero, u.swapped)).collect();
        assert_eq!(
            seen,
            [
                (UNIT / 2, UNIT / 2, 256, 0, 0, 0),
                (UNIT, UNIT, 1, 0, 1, 0),
                (2 * UNIT, UNIT, 0, 512, 0, 0),
                (3 * UNIT, UNIT / 2, 0, 0, 0, 256),
            ]
        );
    }
}
