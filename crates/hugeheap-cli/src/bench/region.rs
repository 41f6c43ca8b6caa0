//! Memory of a measured process: one range of whole huge pages with one backing, and what the process says
//! about itself.

use crate::descriptors::told;
use hugeheap_os::linux::Linux;
use hugeheap_os::{AddressRange, Backing, Facts, Pages, Residency};
use serde::{Deserialize, Serialize};
use std::fs;

/// A range of its own, given up when dropped.
pub(crate) struct Region {
    os: Linux,
    pub(crate) range: AddressRange,
    pub(crate) os_page: usize,
    pub(crate) huge_page: usize,
}

impl Region {
    /// At least `len` bytes, in whole huge pages.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn map(len: u64, backing: Backing) -> Result<Self, String> {
        let os = Linux::new();
        let pages = os.page_sizes();
        let huge_page = pages.huge.ok_or("this kernel has no huge pages")?;
        let len = usize::try_from(len).map_err(|error| error.to_string())?;
        let len = len.checked_next_multiple_of(huge_page).ok_or("too much memory")?;
        let range = os.reserve(len, huge_page).map_err(|error| error.to_string())?;
        let region = Self { os, range, os_page: pages.os, huge_page };
        // SAFETY: the reservation was just made and nobody knows it.
        unsafe { region.os.map(range, backing) }.map_err(|error| error.to_string())?;
        Ok(region)
    }

    /// OS pages in it.
    pub(crate) fn os_pages(&self) -> usize {
        self.range.len / self.os_page
    }

    /// The ranges of its huge pages.
    pub(crate) fn units(&self) -> impl Iterator<Item = AddressRange> + Clone + use<> {
        let (range, unit) = (self.range, self.huge_page);
        (range.start..range.end()).step_by(unit).map(move |start| AddressRange::new(start, unit))
    }

    /// Writes one byte to each OS page.
    pub(crate) fn touch(&self) {
        for offset in (0..self.range.len).step_by(self.os_page) {
            self.write(offset, 1);
        }
    }

    /// Writes a number at `offset`.
    pub(crate) fn write(&self, offset: usize, value: u64) {
        assert!(offset + size_of::<u64>() <= self.range.len && offset % align_of::<u64>() == 0);
        // SAFETY: within the range, aligned, and the range is mapped as long as this lives. Volatile: the write
        // is the point.
        unsafe { ((self.range.start + offset) as *mut u64).write_volatile(value) };
    }

    /// Reads a number at `offset`.
    #[inline]
    pub(crate) fn read(&self, offset: usize) -> u64 {
        assert!(offset + size_of::<u64>() <= self.range.len && offset % align_of::<u64>() == 0);
        // SAFETY: as `write`.
        unsafe { ((self.range.start + offset) as *const u64).read_volatile() }
    }

    /// Drops the memory of `range`; its contents become zero.
    pub(crate) fn decommit(&self, range: AddressRange) -> Result<(), String> {
        assert!(range.start >= self.range.start && range.end() <= self.range.end());
        // SAFETY: a part of the range, and whoever calls gives its contents up.
        unsafe { self.os.decommit(range) }.map_err(|error| error.to_string())
    }

    /// Makes the kernel release the rest of huge pages of which only a part is mapped in `range`.
    pub(crate) fn split(&self, range: AddressRange) -> Result<(), String> {
        assert!(range.start >= self.range.start && range.end() <= self.range.end());
        // SAFETY: a part of the range; contents stay.
        unsafe { self.os.split(range) }.map_err(|error| error.to_string())
    }

    /// What backs it.
    pub(crate) fn residency(&self) -> Result<Residency, String> {
        self.os.residency(self.range).map_err(|error| told(&error).to_string())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: reserved by `map`, and nothing refers to it any more.
        let _ = unsafe { self.os.release(self.range) };
    }
}

/// What a process says about itself at one time. Bytes, but for faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Standing {
    /// Without pages of a hugetlb pool.
    pub(crate) rss: u64,
    pub(crate) hugetlb: u64,
    pub(crate) page_tables: u64,
    pub(crate) minor_faults: u64,
}

impl Standing {
    /// Of the process that asks.
    pub(crate) fn own() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
        };
        // SAFETY: all zero is a valid value of this plain struct, which is then filled.
        let faults = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage.ru_minflt as u64
        };
        Self {
            rss: field("VmRSS:"),
            hugetlb: field("HugetlbPages:"),
            page_tables: field("VmPTE:"),
            minor_faults: faults,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_memory_is_resident_and_can_be_dropped() {
        let before = Standing::own();
        let region = Region::map(4 << 20, Backing::Base).unwrap();
        region.touch();
        let after = Standing::own();
        assert!(after.minor_faults >= before.minor_faults + region.os_pages() as u64);
        assert_eq!(region.residency().unwrap().resident, region.range.len as u64);
        region.write(8, 77);
        assert_eq!(region.read(8), 77);
        let first = region.units().next().unwrap();
        region.decommit(first).unwrap();
        assert_eq!(region.read(8), 0);
    }
}
