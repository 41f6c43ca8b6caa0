//! The page tables of a process: /proc/PID/pagemap.
//!
//! Two ways to read it. `ioctl(PAGEMAP_SCAN)` (Linux 6.7) hands out runs and tells huge pages; the file itself has
//! a 64-bit entry per OS page on every kernel:
//!
//! ```text
//!   bit 63 present   62 swapped   56 mapped by this process alone   0–54 physical page, zero without CAP_SYS_ADMIN
//! ```

use super::super::pagemap::{self, HUGE, PRESENT, REGIONS, Region, SWAPPED, Wanted, ZERO_PAGE};
use super::super::read::{File, PathBuffer};
use super::{gone, open};
use crate::process::{PageKind, PageRun, PartialPage};
use crate::{AddressRange, Error, Result};

const NAME: &str = "read(/proc/PID/pagemap)";

/// Everything that is resident or swapped, the page of zeros too.
const ALL: Wanted = Wanted {
    inverted: 0,
    required: 0,
    any_of: PRESENT | SWAPPED,
    reported: PRESENT | SWAPPED | ZERO_PAGE | HUGE,
};

/// Entries read per call: 4 KiB, one huge page's worth on most machines.
const ENTRIES: usize = 512;
const ENTRY: usize = size_of::<u64>();

/// An entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry(pub(super) u64);

impl Entry {
    pub(super) const fn is_present(self) -> bool {
        self.0 & 1 << 63 != 0
    }

    const fn is_swapped(self) -> bool {
        self.0 & 1 << 62 != 0
    }

    /// Whether this process alone maps the page.
    const fn is_exclusive(self) -> bool {
        self.0 & 1 << 56 != 0
    }

    /// Number of the physical page.
    pub(super) const fn frame(self) -> u64 {
        self.0 & ((1 << 55) - 1)
    }
}

/// An open pagemap.
pub(super) struct Tables {
    file: File,
    os_page: usize,
    /// Whether `PAGEMAP_SCAN` works.
    pub(super) scans: bool,
    entries: Vec<Entry>,
}

impl Tables {
    pub(super) fn open(path: &PathBuffer, os_page: usize) -> Result<Self> {
        let file = open(path, NAME)?;
        let mut regions = [Region::NONE; REGIONS];
        let scans = pagemap::scan_step(&file, 0, os_page as u64, ALL, &mut regions).is_ok();
        Ok(Self { file, os_page, scans, entries: Vec::new() })
    }

    /// Takes the process for changes: a lock on this file, which nobody can have who may not look at the
    /// process's memory, and which leaves nothing behind when its holder or the process ends. The kernel has
    /// one such file for all who open it below the same mount of /proc.
    pub(super) fn take(&self) -> Result<()> {
        // SAFETY: a system call with numbers only, on a descriptor of ours.
        if unsafe { libc::flock(self.file.descriptor(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        let error = Error::last("flock(/proc/PID/pagemap)");
        // Where /proc has no locks, nobody is known to have it.
        if error.code == libc::EWOULDBLOCK { Err(Error::new(error.call, libc::EALREADY)) } else { Ok(()) }
    }

    /// Gives it back, also when a fork has a copy of the descriptor.
    pub(super) fn let_go(&self) {
        // SAFETY: as above.
        unsafe { libc::flock(self.file.descriptor(), libc::LOCK_UN) };
    }

    /// What is in `range`.
    pub(super) fn runs(&mut self, range: AddressRange, visit: &mut dyn FnMut(PageRun)) -> Result<()> {
        if self.scans { self.scanned(range, visit) } else { self.counted(range, visit) }
    }

    fn scanned(&self, range: AddressRange, visit: &mut dyn FnMut(PageRun)) -> Result<()> {
        let mut regions = [Region::NONE; REGIONS];
        let (mut from, end) = (range.start as u64, range.end() as u64);
        while from < end {
            let (count, walked) =
                pagemap::scan_step(&self.file, from, end, ALL, &mut regions).map_err(gone)?;
            for region in &regions[..count] {
                let kind = match region.categories {
                    kinds if kinds & ZERO_PAGE != 0 => PageKind::Zero,
                    kinds if kinds & PRESENT == 0 => PageKind::Swapped,
                    kinds if kinds & HUGE != 0 => PageKind::Huge,
                    _ => PageKind::Small,
                };
                let range = AddressRange::new(region.start as usize, (region.end - region.start) as usize);
                visit(PageRun { range, kind });
            }
            if walked <= from {
                // The kernel promises progress; without it this loop would not end.
                return Err(Error::new(NAME, libc::EIO));
            }
            from = walked;
        }
        Ok(())
    }

    fn counted(&mut self, range: AddressRange, visit: &mut dyn FnMut(PageRun)) -> Result<()> {
        let mut at = range.start;
        while at < range.end() {
            let len = (range.end() - at).min(ENTRIES * self.os_page);
            let os_page = self.os_page;
            let entries = self.entries(AddressRange::new(at, len))?;
            for (index, entry) in entries.iter().enumerate() {
                let kind = match entry {
                    entry if entry.is_present() => PageKind::Small,
                    entry if entry.is_swapped() => PageKind::Swapped,
                    _ => continue,
                };
                visit(PageRun { range: AddressRange::new(at + index * os_page, os_page), kind });
            }
            at += len;
        }
        Ok(())
    }

    /// The entries of `range`. Addresses nothing is known of have an empty entry.
    pub(super) fn entries(&mut self, range: AddressRange) -> Result<&[Entry]> {
        let (first, count) = (range.start / self.os_page, range.len / self.os_page);
        self.entries.clear();
        let mut buffer = [0_u8; ENTRIES * ENTRY];
        while self.entries.len() < count {
            let wanted = (count - self.entries.len()).min(ENTRIES) * ENTRY;
            let offset = ((first + self.entries.len()) * ENTRY) as u64;
            let read = self.file.read_at(&mut buffer[..wanted], offset).map_err(gone)? / ENTRY;
            if read == 0 {
                self.entries.resize(count, Entry(0));
            }
            let numbers = buffer[..read * ENTRY].chunks_exact(ENTRY);
            self.entries.extend(
                numbers.map(|bytes| {
                    Entry(u64::from_ne_bytes(<[u8; ENTRY]>::try_from(bytes).unwrap_or_default()))
                }),
            );
        }
        Ok(&self.entries)
    }

    /// Present pages of `unit` that this process does not map alone.
    pub(super) fn shared(&mut self, unit: AddressRange) -> Result<u32> {
        let entries = self.entries(unit)?;
        Ok(entries.iter().filter(|entry| entry.is_present() && !entry.is_exclusive()).count() as u32)
    }

    /// A unit of which a part is present counts as a part of a huge page.
    pub(super) fn partial(
        &mut self,
        range: AddressRange,
        unit: usize,
        visit: &mut dyn FnMut(PartialPage),
    ) -> Result<()> {
        let os_page = self.os_page;
        let entries = self.entries(range)?;
        let present = entries.iter().filter(|entry| entry.is_present()).count();
        let whole = range.len == unit && present == entries.len();
        if let (Some(first), false) = (entries.iter().position(|entry| entry.is_present()), whole) {
            visit(PartialPage {
                identity: (range.start & !(unit - 1)) as u64,
                page: range.start + first * os_page,
                mapped_here: present as u32,
                mapped: None,
                entries: None,
            });
        }
        Ok(())
    }
}
