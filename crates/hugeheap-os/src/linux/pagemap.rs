//! What backs a range, from the page tables: /proc/self/pagemap.
//!
//! `ioctl(PAGEMAP_SCAN)`, Linux 6.7, hands out runs of pages with equal properties. Two of its rules matter here:
//! * `PAGE_IS_HUGE` is a page mapped by its own PMD entry *or* any page of a hugetlb mapping. The two are told
//!   apart by the mapping the run lies in ([`maps`]), looked up once per mapping and only for huge runs.
//! * The zero page, which a mere read maps, is present but is nobody's memory. It is left out,
//!   as the kernel leaves it out of RSS.
//!
//! The table's old form, one 64-bit entry per OS page, says only whether a page is present ([`present`]); zero
//! pages cannot be told from others there without privilege.

use super::maps::{self, Mapping};
use super::read::File;
use super::vm;
use crate::{AddressRange, Error, Residency, Result};
use core::mem::size_of;

const NAME: &str = "ioctl(PAGEMAP_SCAN)";

pub(super) const PRESENT: u64 = 1 << 3;
pub(super) const SWAPPED: u64 = 1 << 4;
pub(super) const ZERO_PAGE: u64 = 1 << 5;
pub(super) const HUGE: u64 = 1 << 6;

/// `struct page_region` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Region {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) categories: u64,
}

impl Region {
    pub(super) const NONE: Self = Self { start: 0, end: 0, categories: 0 };
}

/// Which pages a scan hands out, and what it says of them, as sets of properties.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// Taken as their opposite in `required`.
    pub(super) inverted: u64,
    /// A page has all of these.
    pub(super) required: u64,
    /// A page has one of these; none given: no condition.
    pub(super) any_of: u64,
    /// What is told.
    pub(super) reported: u64,
}

/// Resident memory.
const RESIDENT: Wanted =
    Wanted { inverted: ZERO_PAGE, required: PRESENT | ZERO_PAGE, any_of: 0, reported: PRESENT | HUGE };

/// `struct pm_scan_arg` of the kernel.
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    region_count: u64,
    max_pages: u64,
    inverted: u64,
    required: u64,
    any_of: u64,
    reported: u64,
}

const _: () = assert!(size_of::<Region>() == 24 && size_of::<Scan>() == 96);

/// `_IOWR('f', 16, struct pm_scan_arg)`
const PAGEMAP_SCAN: u64 = (3 << 30) | ((size_of::<Scan>() as u64) << 16) | ((b'f' as u64) << 8) | 16;

/// Runs taken per call: 3 KiB of stack. A range with more of them takes more calls.
pub(super) const REGIONS: usize = 128;

fn open() -> Result<File> {
    File::open_c(c"/proc/thread-self/pagemap", NAME)
}

/// What backs `range`, a multiple of the OS page.
///
/// # Errors
/// `ENOTTY` on kernels before 6.7.
#[inline(never)]
pub(super) fn scan(range: AddressRange) -> Result<Residency> {
    let file = open()?;
    let mut total = Residency::default();
    let mut known: Option<Mapping> = None;
    let mut regions = [Region::NONE; REGIONS];
    let mut from = range.start as u64;
    let end = range.end() as u64;
    while from < end {
        let (count, walked) = scan_step(&file, from, end, RESIDENT, &mut regions)?;
        for region in &regions[..count] {
            let run = AddressRange::new(region.start as usize, (region.end - region.start) as usize);
            total.resident += run.len as u64;
            if region.categories & HUGE != 0 {
                add_huge(&mut total, run, &mut known)?;
            }
        }
        if walked <= from {
            // The kernel promises progress; without it this loop would not end.
            return Err(Error::new(NAME, libc::EIO));
        }
        from = walked;
    }
    Ok(total)
}

/// Fills `regions` from the front. Answers how many, and the address up to which the table has been walked.
pub(super) fn scan_step(
    file: &File,
    start: u64,
    end: u64,
    wanted: Wanted,
    regions: &mut [Region; REGIONS],
) -> Result<(usize, u64)> {
    let mut scan = Scan {
        size: size_of::<Scan>() as u64,
        flags: 0,
        start,
        end,
        walk_end: 0,
        regions: regions.as_mut_ptr() as u64,
        region_count: REGIONS as u64,
        max_pages: 0,
        inverted: wanted.inverted,
        required: wanted.required,
        any_of: wanted.any_of,
        reported: wanted.reported,
    };
    // SAFETY: the request writes the structure, whose size it encodes, and at most `region_count` elements of
    // `regions`, which is borrowed for the call. Without flags it changes no page.
    let count = unsafe { libc::ioctl(file.descriptor(), PAGEMAP_SCAN as _, &raw mut scan) };
    match usize::try_from(count) {
        Ok(count) => Ok((count.min(REGIONS), scan.walk_end)),
        Err(_) => Err(Error::last(NAME)),
    }
}

/// Counts a run of huge pages as what its mappings make it; a run may go on over several mappings.
fn add_huge(total: &mut Residency, run: AddressRange, known: &mut Option<Mapping>) -> Result<()> {
    let mut at = run.start;
    while at < run.end() {
        let mapping = match *known {
            Some(mapping) if mapping.range.contains(at) => mapping,
            _ => match maps::mapping_at(at)? {
                Some(mapping) => *known.insert(mapping),
                // Another thread has unmapped it since the scan.
                None => return Ok(()),
            },
        };
        let end = mapping.range.end().min(run.end());
        let bytes = (end - at) as u64;
        if mapping.hugetlb {
            total.hugetlb += bytes;
        } else {
            total.thp += bytes;
        }
        at = end;
    }
    Ok(())
}

/// Whether this kernel serves the scan, tried on the page at `page`.
pub(super) fn scans(page: AddressRange) -> bool {
    let mut regions = [Region::NONE; REGIONS];
    open().is_ok_and(|file| {
        scan_step(&file, page.start as u64, page.end() as u64, RESIDENT, &mut regions).is_ok()
    })
}

/// Bytes of an entry of the table's old form.
const ENTRY: usize = 8;

/// Calls `entry` with the number of each OS page of `range`, a multiple of the OS page, and what the table's
/// old form says of it. Works on every kernel.
fn each_entry(range: AddressRange, mut entry: impl FnMut(usize, u64)) -> Result<()> {
    let mut file = open()?;
    let page = vm::os_page();
    let mut entries = [0_u8; 512 * ENTRY];
    let (first, last) = (range.start / page, range.end() / page);
    let mut next = first;
    while next < last {
        let wanted = (last - next).min(512) * ENTRY;
        let count = file.read_at(&mut entries[..wanted], (next * ENTRY) as u64)? / ENTRY;
        if count == 0 {
            // Addresses above the user's part of the address space.
            break;
        }
        for (index, bytes) in entries[..count * ENTRY].chunks_exact(ENTRY).enumerate() {
            if let Ok(bytes) = <[u8; ENTRY]>::try_from(bytes) {
                entry(next - first + index, u64::from_ne_bytes(bytes));
            }
        }
        next += count;
    }
    Ok(())
}

const PRESENT_BIT: u64 = 1 << 63;

/// Of a file, or shared by intention: what a private mapping of memory never is.
const FILE_BIT: u64 = 1 << 61;

/// One page table points to it, once. Linux 4.2; told without privilege. The zero page has no such bit, and
/// neither have pages that a fork shares or that were merged.
const EXCLUSIVE_BIT: u64 = 1 << 56;

/// Bytes of `range`, a multiple of the OS page, whose pages are present.
pub(super) fn present(range: AddressRange) -> Result<u64> {
    let mut pages = 0_u64;
    each_entry(range, |_, entry| pages += u64::from(entry & PRESENT_BIT != 0))?;
    Ok(pages * vm::os_page() as u64)
}

/// Sets the bits of the OS pages of `range` that are present and this process's alone.
pub(super) fn exclusive(range: AddressRange, found: &mut [u64]) -> Result<()> {
    found.fill(0);
    each_entry(range, |page, entry| {
        let alone = entry & (PRESENT_BIT | FILE_BIT | EXCLUSIVE_BIT) == PRESENT_BIT | EXCLUSIVE_BIT;
        if let Some(word) = found.get_mut(page / 64).filter(|_| alone) {
            *word |= 1 << (page % 64);
        }
    })
}
