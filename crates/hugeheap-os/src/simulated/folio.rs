//! Folios: the pieces of physical memory, who maps them, and when they are freed.
//!
//! Terms: a *folio* is physical memory the kernel handles as one: an OS page, or a huge page. Its *pages* are the
//! OS pages it consists of. A page is *mapped* while some page table points to it.
//!
//! ```text
//!            all pages unmapped                                   all pages unmapped
//!   freed ◀────────────────────── whole ──────── split ────────▶ split ─────────▶ freed
//!                                  │  ▲           (cold, reclaim)  each page is charged alone
//!               some pages unmapped│  │all unmapped: freed
//!                                  ▼  │
//!                            whole, on the deferred-split queue:
//!                            everything charged, only a part mapped ("stranded")
//! ```
//!
//! Invariants: a whole folio is charged with all its pages; a split one with those mapped. A whole huge folio is on the
//! queue exactly while some of its pages were unmapped and some are not. Small folios are whole always.
//!
//! When a huge folio is split, pages nobody wrote to are replaced with the shared zero page (Linux 6.12 and
//! newer): they are *dropped*: page tables still point at them, but they read as zero, are not resident and not
//! charged.

use super::cgroup::Refusal;
use super::{Events, Geometry, Pid};
use std::collections::VecDeque;

pub(super) type FolioId = u32;

#[derive(Clone, Copy, Default)]
struct Page {
    /// Page tables that point here, in all processes.
    maps: u32,
    /// Whether it was written to (and not only populated or zero-filled).
    written: bool,
    /// Whether a split replaced it with the zero page.
    dropped: bool,
    /// Whether it is the one that equal pages became.
    merged: bool,
}

pub(super) struct Folio {
    whole: bool,
    /// Sum of `maps`.
    refs: u32,
    /// Pages that are mapped and not dropped.
    mapped: u32,
    pages: Box<[Page]>,
    /// Which process maps how many pages of it.
    mappers: Vec<(Pid, u32)>,
    queued: bool,
}

/// Why there is no huge page for a fault or a collapse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoHugePage {
    /// Physical memory has no free block of that size.
    Fragmented,
    /// The cgroup or the host has no room.
    NoRoom,
}

/// Physical memory and what it is charged to. One per simulated host.
pub(super) struct Physical {
    pub(super) geometry: Geometry,
    folios: Vec<Option<Folio>>,
    free_slots: Vec<FolioId>,
    /// The deferred-split queue, oldest first.
    queue: VecDeque<FolioId>,
    queued: usize,
    /// Bytes of folios charged.
    pub(super) charged: u64,
    /// Bytes of folios mapped somewhere.
    pub(super) mapped: u64,
    pub(super) limits: super::cgroup::Limits,
    /// Free blocks of the huge-page size; `None`: as many as there is memory.
    pub(super) free_huge: Option<u64>,
    /// Further blocks that direct compaction can make.
    pub(super) compactable: u64,
    /// Whether a split drops pages that were never written.
    pub(super) split_drops_zero: bool,
    pub(super) events: Events,
}

impl Physical {
    pub(super) fn new(geometry: Geometry, limits: super::cgroup::Limits) -> Self {
        Self {
            geometry,
            folios: Vec::new(),
            free_slots: Vec::new(),
            queue: VecDeque::new(),
            queued: 0,
            charged: 0,
            mapped: 0,
            limits,
            free_huge: None,
            compactable: 0,
            split_drops_zero: true,
            events: Events::default(),
        }
    }

    fn os(&self) -> u64 {
        self.geometry.os as u64
    }

    fn folio(&self, id: FolioId) -> &Folio {
        self.folios[id as usize].as_ref().expect("a page table points to a freed folio")
    }

    fn folio_mut(&mut self, id: FolioId) -> &mut Folio {
        self.folios[id as usize].as_mut().expect("a page table points to a freed folio")
    }

    fn insert(&mut self, pages: usize) -> FolioId {
        let folio = Folio {
            whole: true,
            refs: 0,
            mapped: 0,
            pages: vec![Page::default(); pages].into_boxed_slice(),
            mappers: Vec::new(),
            queued: false,
        };
        self.charged += pages as u64 * self.os();
        match self.free_slots.pop() {
            Some(id) => {
                self.folios[id as usize] = Some(folio);
                id
            }
            None => {
                self.folios.push(Some(folio));
                u32::try_from(self.folios.len() - 1).expect("fewer than 2^32 folios")
            }
        }
    }

    /// A new OS page, charged and not mapped yet.
    pub(super) fn small(&mut self) -> Result<FolioId, Refusal> {
        self.make_room(self.os())?;
        Ok(self.insert(1))
    }

    /// A new huge page, charged and not mapped yet. `direct`: whether memory may be compacted for it now.
    pub(super) fn huge(&mut self, direct: bool) -> Result<FolioId, NoHugePage> {
        let compact = match self.free_huge {
            Some(0) if direct && self.compactable > 0 => true,
            Some(0) => return Err(NoHugePage::Fragmented),
            _ => false,
        };
        if compact {
            self.compactable -= 1;
            self.free_huge = Some(1);
            self.events.compactions += 1;
        }
        self.make_room(self.geometry.chunk as u64).map_err(|_| NoHugePage::NoRoom)?;
        if let Some(free) = &mut self.free_huge {
            *free -= 1;
        }
        Ok(self.insert(self.geometry.pages()))
    }

    /// Notes that a page table of `pid` points to `page`.
    pub(super) fn map(&mut self, id: FolioId, page: u32, pid: Pid) {
        let os = self.os();
        let folio = self.folio_mut(id);
        let entry = &mut folio.pages[page as usize];
        entry.maps += 1;
        folio.refs += 1;
        let first = entry.maps == 1 && !entry.dropped;
        if first {
            folio.mapped += 1;
        }
        match folio.mappers.iter_mut().find(|(who, _)| *who == pid) {
            Some((_, count)) => *count += 1,
            None => folio.mappers.push((pid, 1)),
        }
        if first {
            self.mapped += os;
        }
    }

    /// Notes that a page table of `pid` no longer points to `page`, and frees what nobody maps.
    pub(super) fn unmap(&mut self, id: FolioId, page: u32, pid: Pid) {
        let os = self.os();
        let folio = self.folio_mut(id);
        let entry = &mut folio.pages[page as usize];
        entry.maps -= 1;
        let gone = entry.maps == 0 && !entry.dropped;
        folio.refs -= 1;
        let slot = folio.mappers.iter().position(|(who, _)| *who == pid).expect("the process maps the folio");
        folio.mappers[slot].1 -= 1;
        if folio.mappers[slot].1 == 0 {
            folio.mappers.remove(slot);
        }
        let mut uncharge = 0;
        if gone {
            folio.mapped -= 1;
            if !folio.whole {
                uncharge = os;
            }
        }
        let (refs, whole, len) = (folio.refs, folio.whole, folio.pages.len());
        let queue_it = gone && refs > 0 && whole && len > 1 && !folio.queued;
        if gone {
            self.mapped -= os;
        }
        if refs == 0 {
            if whole {
                uncharge = len as u64 * os;
            }
            self.discard(id);
        } else if queue_it {
            self.folio_mut(id).queued = true;
            self.queue.push_back(id);
            self.queued += 1;
        }
        self.charged -= uncharge;
    }

    fn discard(&mut self, id: FolioId) {
        let folio = self.folios[id as usize].take().expect("freed once");
        if folio.pages.len() > 1 {
            // Its pages are neighbours and all free: the buddy allocator has a huge block again.
            if let Some(free) = &mut self.free_huge {
                *free += 1;
            }
        }
        if folio.queued {
            self.unqueue(id);
        }
        self.free_slots.push(id);
    }

    /// Takes a folio off the queue now, so that a new one in the same slot does not inherit the entry.
    fn unqueue(&mut self, id: FolioId) {
        // The common cases first: reclaim takes the oldest, unmapping page by page the newest.
        if self.queue.front() == Some(&id) {
            self.queue.pop_front();
        } else if self.queue.back() == Some(&id) {
            self.queue.pop_back();
        } else {
            self.queue.retain(|&entry| entry != id);
        }
        self.queued -= 1;
    }

    /// Splits a whole huge folio: parts nobody maps are freed and uncharged, parts never written read as zero
    /// from now on.
    pub(super) fn split(&mut self, id: FolioId) {
        let drops = self.split_drops_zero;
        let os = self.os();
        let folio = self.folio_mut(id);
        if !folio.whole || folio.pages.len() == 1 {
            return;
        }
        folio.whole = false;
        let before = folio.mapped;
        for page in folio.pages.iter_mut().filter(|page| page.maps > 0 && !page.written && drops) {
            page.dropped = true;
            folio.mapped -= 1;
        }
        let now = folio.mapped;
        let len = folio.pages.len() as u64;
        if core::mem::take(&mut folio.queued) {
            self.unqueue(id);
        }
        self.mapped -= u64::from(before - now) * os;
        self.charged -= (len - u64::from(now)) * os;
        self.events.splits += 1;
    }

    /// Splits the longest waiting folio of the queue. Returns the bytes freed, `None` when the queue is empty.
    pub(super) fn split_oldest(&mut self) -> Option<u64> {
        let id = *self.queue.front()?;
        let before = self.charged;
        self.split(id);
        Some(before - self.charged)
    }

    /// Notes a write to a page.
    pub(super) fn write(&mut self, id: FolioId, page: u32) {
        self.folio_mut(id).pages[page as usize].written = true;
    }

    pub(super) fn is_written(&self, id: FolioId, page: u32) -> bool {
        self.folio(id).pages[page as usize].written
    }

    pub(super) fn is_dropped(&self, id: FolioId, page: u32) -> bool {
        self.folio(id).pages[page as usize].dropped
    }

    /// Whether it is a huge page that has not been split.
    pub(super) fn is_whole_huge(&self, id: FolioId) -> bool {
        let folio = self.folio(id);
        folio.whole && folio.pages.len() > 1
    }

    /// OS pages of it that somebody maps, and the entries of all page tables that point to it.
    pub(super) fn mapped(&self, id: FolioId) -> (u32, u32) {
        let folio = self.folio(id);
        (folio.mapped, folio.refs)
    }

    /// OS pages it consists of.
    pub(super) fn len(&self, id: FolioId) -> u32 {
        self.folio(id).pages.len() as u32
    }

    /// Whether no process but `pid` maps any of it.
    pub(super) fn is_only_of(&self, id: FolioId, pid: Pid) -> bool {
        self.folio(id).mappers.iter().all(|(who, _)| *who == pid)
    }

    /// Whether more than one page table points to the page.
    pub(super) fn is_shared(&self, id: FolioId, page: u32) -> bool {
        self.folio(id).pages[page as usize].maps > 1
    }

    /// Equal pages became this one.
    pub(super) fn set_merged(&mut self, id: FolioId, page: u32) {
        self.folio_mut(id).pages[page as usize].merged = true;
    }

    pub(super) fn is_merged(&self, id: FolioId, page: u32) -> bool {
        self.folio(id).pages[page as usize].merged
    }

    /// Folios on the deferred-split queue.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Compares all records with `maps`, the number of page-table entries per folio and page, found by walking.
    pub(super) fn check(&self, maps: &std::collections::BTreeMap<(FolioId, u32), u32>) -> Result<(), String> {
        let (mut charged, mut mapped, mut queued, mut entries) = (0, 0, 0, 0);
        for (id, folio) in self.folios.iter().enumerate() {
            let Some(folio) = folio else { continue };
            let mut live = 0_u32;
            for (index, page) in folio.pages.iter().enumerate() {
                let found = maps.get(&(id as FolioId, index as u32)).copied().unwrap_or(0);
                if found != page.maps {
                    return Err(format!("folio {id} page {index}: {found} entries, {} recorded", page.maps));
                }
                entries += usize::from(found > 0);
                live += u32::from(page.maps > 0 && !page.dropped);
            }
            let refs: u32 = folio.pages.iter().map(|page| page.maps).sum();
            if live != folio.mapped || refs != folio.refs || refs == 0 {
                return Err(format!("folio {id}: {live} pages mapped, {refs} references"));
            }
            let held = if folio.whole { folio.pages.len() as u32 } else { live };
            charged += u64::from(held) * self.os();
            mapped += u64::from(live) * self.os();
            let partial = folio.whole && live < folio.pages.len() as u32;
            if partial != folio.queued {
                return Err(format!("folio {id}: partially mapped {partial}, queued {}", folio.queued));
            }
            queued += usize::from(folio.queued);
        }
        if entries != maps.len() {
            return Err(format!("{} pages mapped, {entries} known", maps.len()));
        }
        if (charged, mapped, queued) != (self.charged, self.mapped, self.queued) || queued != self.queue.len()
        {
            return Err(format!(
                "charge {charged} mapped {mapped} queued {queued}, recorded {} {} {} {}",
                self.charged,
                self.mapped,
                self.queued,
                self.queue.len()
            ));
        }
        Ok(())
    }
}
