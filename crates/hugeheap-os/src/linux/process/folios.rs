//! Partial huge pages, exactly: from the physical pages behind a process's page tables.
//!
//! ```text
//!   /proc/PID/pagemap   which physical page each OS page is on
//!   /proc/kpageflags    what that physical page is: head or tail of a larger one, part of a transparent huge page
//!   /proc/kpagecount    how many page-table entries, of all processes, point to it
//! ```
//!
//! A huge page lies on a physical address of its size, so the 512 physical pages around one of its parts,
//! aligned, are all of it. Those whose count is 0 are stranded. Smaller folios (mTHP) have their heads closer
//! together, and are left out.
//!
//! A heap on OS pages is scattered over all of memory, and a look at each of its pages would take microseconds.
//! Only the first page of each aligned block is looked at, and blocks that hold no huge page are remembered for
//! the time of one look ([`REMEMBERED`]): a host has few blocks (12,000 in 24 GiB), a process many pages.
//!
//! Kernels built with `CONFIG_NO_PAGE_MAPCOUNT` answer the average instead of each page's count: every page
//! then has the same, at least 1. So equal counts on a page that is mapped here only in part say nothing, and
//! count as not told.

use super::super::host;
use super::super::read::{File, PathBuffer, Root};
use super::tables::{Entry, Tables};
use crate::process::PartialPage;
use crate::{PageSizes, Result};
use core::time::Duration;
use std::collections::HashSet;

const FLAGS: &str = "read(/proc/kpageflags)";
const COUNTS: &str = "read(/proc/kpagecount)";

const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;
const THP: u64 = 1 << 22;

/// How long a block is believed to hold no huge page. Longer than looking at one process usually takes; what a
/// collapse makes meanwhile is whole and not looked for.
const REMEMBERED: Duration = Duration::from_secs(1);

const NUMBER: usize = size_of::<u64>();

/// The two files, open.
pub(super) struct Folios {
    flags: File,
    counts: File,
    /// OS pages of a huge page.
    pages: usize,
    os_page: usize,
    /// Pages of a unit: physical number, index in the unit.
    frames: Vec<(u64, usize)>,
    buffer: Vec<u8>,
    /// First pages of blocks that held no huge page, and since when that is believed.
    plain: HashSet<u64>,
    since: Duration,
}

impl Folios {
    /// Opens them. `None` where they cannot be read, or physical numbers are kept from this process.
    pub(super) fn open(sizes: PageSizes) -> Option<Self> {
        let open = |path: &[u8], name| File::open(&Root::REAL.path(path).ok()?, name).ok();
        let folios = Self {
            flags: open(b"/proc/kpageflags", FLAGS)?,
            counts: open(b"/proc/kpagecount", COUNTS)?,
            pages: sizes.huge? / sizes.os,
            os_page: sizes.os,
            frames: Vec::new(),
            buffer: Vec::new(),
            plain: HashSet::new(),
            since: host::now(),
        };
        // A page that is certainly there: this function's own stack.
        let here = 0_u8;
        let address = (&raw const here) as usize & !(sizes.os - 1);
        let path: PathBuffer = Root::REAL.path(b"/proc/self/pagemap").ok()?;
        let mut tables = Tables::open(&path, sizes.os).ok()?;
        let entry = *tables.entries(crate::AddressRange::new(address, sizes.os)).ok()?.first()?;
        (entry.is_present() && entry.frame() != 0).then_some(folios)
    }

    /// The partial huge pages behind `entries`, the page table from `start` on.
    pub(super) fn partial(
        &mut self,
        entries: &[Entry],
        start: usize,
        visit: &mut dyn FnMut(PartialPage),
    ) -> Result<()> {
        let now = host::now();
        if now.abs_diff(self.since) > REMEMBERED {
            self.plain.clear();
            self.since = now;
        }
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        let present = entries.iter().enumerate().filter(|(_, entry)| entry.is_present());
        frames.extend(present.map(|(index, entry)| (entry.frame(), index)));
        frames.sort_unstable();
        let pages = self.pages as u64;
        let result = frames
            .chunk_by(|one, other| one.0 / pages == other.0 / pages)
            .try_for_each(|block| self.block(block, start, visit));
        self.frames = frames;
        result
    }

    /// Pages of one aligned block of physical memory.
    fn block(
        &mut self,
        found: &[(u64, usize)],
        start: usize,
        visit: &mut dyn FnMut(PartialPage),
    ) -> Result<()> {
        let pages = self.pages;
        // All of it is mapped here: nothing is stranded. (The common case of a unit whose huge entry was split only.)
        if found.len() == pages {
            return Ok(());
        }
        let Some(&(first, _)) = found.first() else { return Ok(()) };
        let base = first / pages as u64 * pages as u64;
        if self.plain.contains(&base) {
            return Ok(());
        }
        let first = numbers(&mut self.flags, &mut self.buffer, base, 1)?;
        if first.first().is_none_or(|flags| flags & (HEAD | THP) != HEAD | THP) {
            self.plain.insert(base);
            return Ok(());
        }
        let mut flags = numbers(&mut self.flags, &mut self.buffer, base, pages)?.into_iter();
        // A head at its place again: the block may have been split since.
        let head = flags.next().is_some_and(|flags| flags & (HEAD | THP) == HEAD | THP);
        if !head || !flags.all(|flags| flags & TAIL != 0) {
            return Ok(());
        }
        let counts = numbers(&mut self.counts, &mut self.buffer, base, pages)?;
        let told = counts.windows(2).any(|pair| pair[0] != pair[1]);
        let entries = counts.iter().sum::<u64>();
        let mapped = counts.iter().filter(|count| **count > 0).count();
        let first = found.iter().map(|(_, index)| *index).min().unwrap_or(0);
        visit(PartialPage {
            identity: base,
            page: start + first * self.os_page,
            mapped_here: found.len() as u32,
            mapped: told.then_some(mapped as u32),
            entries: told.then_some(u32::try_from(entries).unwrap_or(u32::MAX)),
        });
        Ok(())
    }
}

/// `count` numbers of one of the files from physical page `first` on; less at the end of memory.
fn numbers(file: &mut File, buffer: &mut Vec<u8>, first: u64, count: usize) -> Result<Vec<u64>> {
    buffer.resize(count * NUMBER, 0);
    let read = file.read_at(&mut buffer[..], first * NUMBER as u64)?;
    let bytes = buffer[..read].chunks_exact(NUMBER);
    Ok(bytes.map(|bytes| u64::from_ne_bytes(<[u8; NUMBER]>::try_from(bytes).unwrap_or_default())).collect())
}
