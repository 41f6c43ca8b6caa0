//! The arenas of one heap: allocating and freeing page runs.
//!
//! A *page run* is 1 to 128 neighbouring heap pages of one arena. It is taken from a partial arena in the order of
//! [`order`](super::order), else from an arena that was kept empty, else from one that was given back, else from a new one. Runs of
//! at least [`BIG_RUN`] pages are put low in their arena and smaller ones high, so that the two do not cut each other's ranges.
//!
//! Every address that comes back is checked exactly: ours, a heap page's start, a live run's start, of that length.
//! The operating system is called here only to obtain memory. Giving back, breaking and collapsing belong to
//! [`maintenance`](super::maintenance), away from the caller's path.

use super::backing::{self, Choice, Host, Latency, Situation};
use super::bitmap;
use super::demand::Demand;
use super::layout::{ARENA_BYTES, HEAP_PAGE_BYTES, HEAP_PAGES};
use super::list::{ArenaId, List};
use super::order::Order;
use super::record::{Arena, Made, State};
use super::table::{MAX_REGION_ARENAS, Table};
use super::{Policy, Settings};
use crate::telemetry::{Fallback, Snapshot};
use core::fmt;
use core::num::NonZeroUsize;
use hugeheap_os::{AddressRange, Advice, Backing, Error, ErrorKind, Os, Residency, Result as OsResult};

/// Runs of at least this many pages go low in an arena. A quarter of pymalloc's arena before 3.10; data-stack chunks
/// (1 page and growing) are below.
const BIG_RUN: u32 = 16;

/// Least size of a region, for hosts with little memory.
const MIN_REGION_BYTES: u64 = 64 << 30;

/// Least size of a region under a limit on address space.
const MIN_LIMITED_REGION_BYTES: u64 = 64 << 20;

/// Why an address could not be freed. The heap is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadFree {
    /// Not an address of this heap.
    Foreign,
    /// In this heap, but not the beginning of a run.
    Interior,
    /// Nothing live begins there: freed twice, or never handed out.
    NotLive,
    /// A live run begins there, but it has another length.
    WrongSize {
        /// Its length in bytes.
        actual: usize,
    },
}

impl fmt::Display for BadFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("the address is not from this heap"),
            Self::Interior => f.write_str("the address is inside a run, not at its beginning"),
            Self::NotLive => f.write_str("nothing live begins at the address (freed twice?)"),
            Self::WrongSize { actual } => write!(f, "the run at the address has {actual} bytes"),
        }
    }
}

impl std::error::Error for BadFree {}

/// The arenas of one heap. See the module's text.
pub struct Arenas<O> {
    pub(crate) os: O,
    pub(crate) settings: Settings,
    pub(crate) table: Table,
    pub(crate) host: Host,
    host_read: bool,
    pub(crate) latency: Latency,
    /// Partial arenas that are whole huge pages, or may become them by a touch.
    pub(crate) partial: Order,
    /// Partial arenas that were broken: filled only when no other has room.
    pub(crate) broken: Order,
    /// Kept, most recently emptied first.
    pub(crate) empty: List,
    /// Given back, most recently first.
    pub(crate) given_back: List,
    pub(crate) demand: Demand,
    /// The base arena for small runs that policy `auto` keeps apart, in no list; `NONE` before the first small run.
    pub(crate) small: ArenaId,
    serial: u32,
    /// Bytes mapped when the limits were read last.
    limits_read_at: u64,
    /// The counters that events change; what can be counted at leisure is filled in by [`snapshot`](Self::snapshot).
    pub(crate) counters: Snapshot,
    /// Some arena without a huge page filled up: maintenance looks for arenas to collapse.
    pub(crate) collapse_pending: bool,
    /// Where maintenance goes on looking for them.
    pub(crate) sweep: usize,
    pub(crate) forks: u64,
    /// Retained bytes when maintenance found nothing to do last.
    pub(crate) settled: u64,
}

impl<O: Os> Arenas<O> {
    /// A heap without arenas. Asks nothing of the operating system before the first allocation.
    pub const fn new(os: O, settings: Settings) -> Self {
        Self {
            os,
            demand: Demand::new(settings.decay),
            settings,
            table: Table::NEW,
            host: Host::UNKNOWN,
            host_read: false,
            latency: Latency::NEW,
            partial: Order::NEW,
            broken: Order::NEW,
            empty: List::EMPTY,
            given_back: List::EMPTY,
            small: ArenaId::NONE,
            serial: 0,
            limits_read_at: 0,
            counters: Snapshot::EMPTY,
            collapse_pending: false,
            sweep: 0,
            forks: 0,
            settled: 0,
        }
    }

    /// The operating system under this heap.
    pub fn os(&self) -> &O {
        &self.os
    }

    /// Changes the settings; arenas that exist keep their backing until they are given back or collapsed.
    pub fn set(&mut self, settings: Settings) {
        if settings.decay != self.settings.decay {
            let now = self.now();
            let live = self.counters.live;
            self.demand = Demand::new(settings.decay);
            self.demand.record(now, live);
        }
        self.settings = settings;
    }

    /// The settings.
    pub const fn settings(&self) -> Settings {
        self.settings
    }

    /// Nanoseconds of the system's clock.
    pub(crate) fn now(&self) -> u64 {
        self.os.now().as_nanos() as u64
    }

    /// Whether the address lies in a region of this heap.
    #[inline]
    pub fn owns(&self, address: usize) -> bool {
        self.table.find(address).is_some()
    }

    /// Bytes of the arenas that have memory.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.counters.arenas * ARENA_BYTES as u64
    }

    pub(crate) fn is_tight(&self) -> bool {
        self.host.is_tight(self.mapped_bytes(), self.settings.limit)
    }

    pub(crate) fn count(&mut self, reason: Fallback) {
        self.counters.fallbacks[reason as usize] += 1;
    }

    /// Takes a run of `pages` heap pages (1 to 128). Its contents are undefined: what an earlier run left, or zero.
    /// `None` when the system has no memory or address space; counted.
    pub fn allocate(&mut self, pages: u32) -> Option<NonZeroUsize> {
        debug_assert!((1..=HEAP_PAGES).contains(&pages));
        let now = self.now();
        let from_order =
            |order: &Order, table: &Table| (pages < HEAP_PAGES).then(|| order.best(table, pages)).flatten();
        let id = if let Some(id) = self.room_for_small(pages, now) {
            id
        } else if let Some(id) = from_order(&self.partial, &self.table) {
            self.partial.remove(&mut self.table, id);
            id
        } else if let Some(id) = from_order(&self.broken, &self.table) {
            self.broken.remove(&mut self.table, id);
            id
        } else {
            self.take_whole(now)?
        };
        let arena = self.table.arena_mut(id);
        let first = if pages >= BIG_RUN {
            bitmap::find_lowest(arena.in_use, pages)
        } else {
            bitmap::find_highest(arena.in_use, pages)
        };
        let Some(first) = first else { unreachable!("the order names arenas with room") };
        let run = bitmap::mask(first, pages);
        let newly_live = u64::from(pages) * HEAP_PAGE_BYTES as u64;
        let reused = u64::from((run & arena.touched).count_ones()) * HEAP_PAGE_BYTES as u64;
        arena.in_use |= run;
        arena.starts |= 1 << first;
        arena.touched |= run;
        arena.changed_at = now;
        self.counters.retained -= reused;
        self.settled = self.settled.min(self.counters.retained);
        self.file(id);
        self.count_live(now, newly_live);
        self.counters.allocations += 1;
        let address = self.table.range(id).start + first as usize * HEAP_PAGE_BYTES;
        NonZeroUsize::new(address)
    }

    /// The arena for small runs, if this is one and it has room.
    fn room_for_small(&mut self, pages: u32, now: u64) -> Option<ArenaId> {
        if pages >= BIG_RUN || self.settings.policy != Policy::Auto {
            return None;
        }
        if !self.small.is_some() {
            let id = self.any_without_memory()?;
            if let Err(error) = self.supply(id, now, false) {
                self.refused(id, error);
                return None;
            }
            self.small = id;
        }
        let arena = self.table.arena(self.small);
        (!arena.busy && bitmap::find_highest(arena.in_use, pages).is_some()).then_some(self.small)
    }

    /// Takes a run of `pages` heap pages back.
    ///
    /// # Errors
    /// When `address` is not the beginning of a live run of exactly that length.
    pub fn free(&mut self, address: usize, pages: u32) -> Result<(), BadFree> {
        let id = self.table.find(address).ok_or(BadFree::Foreign)?;
        let page = self.check_run(id, address)?;
        let arena = self.table.arena_mut(id);
        let length = arena.run_length(page).ok_or(BadFree::NotLive)?;
        if length != pages {
            return Err(BadFree::WrongSize { actual: length as usize * HEAP_PAGE_BYTES });
        }
        let now = self.now();
        self.unfile(id);
        let arena = self.table.arena_mut(id);
        arena.in_use &= !bitmap::mask(page, length);
        arena.starts &= !(1 << page);
        arena.changed_at = now;
        let bytes = u64::from(length) * HEAP_PAGE_BYTES as u64;
        self.counters.retained += bytes;
        self.file(id);
        self.counters.live -= bytes;
        self.counters.frees += 1;
        let live = self.counters.live;
        self.demand.record(now, live);
        Ok(())
    }

    /// Length in bytes of the live run that begins at `address`.
    ///
    /// # Errors
    /// When none does.
    pub fn run_bytes(&self, address: usize) -> Result<usize, BadFree> {
        let id = self.table.find(address).ok_or(BadFree::Foreign)?;
        let page = self.check_run(id, address)?;
        let length = self.table.arena(id).run_length(page).ok_or(BadFree::NotLive)?;
        Ok(length as usize * HEAP_PAGE_BYTES)
    }

    /// The heap page of an address that should begin a run.
    fn check_run(&self, id: ArenaId, address: usize) -> Result<u32, BadFree> {
        let arena = self.table.arena(id);
        if !matches!(arena.state, State::Partial | State::Full) {
            return Err(match arena.state {
                State::Large | State::LargeRest => BadFree::Interior,
                _ => BadFree::NotLive,
            });
        }
        let offset = address % ARENA_BYTES;
        let page = (offset / HEAP_PAGE_BYTES) as u32;
        if arena.in_use >> page & 1 == 0 {
            return Err(BadFree::NotLive);
        }
        if offset % HEAP_PAGE_BYTES != 0 || arena.starts >> page & 1 == 0 {
            return Err(BadFree::Interior);
        }
        Ok(page)
    }

    pub(crate) fn count_live(&mut self, now: u64, bytes: u64) {
        self.counters.live += bytes;
        self.counters.live_peak = self.counters.live_peak.max(self.counters.live);
        let live = self.counters.live;
        self.demand.record(now, live);
    }

    /// Puts an arena with consistent bitmaps where it belongs, unless maintenance has it.
    pub(crate) fn file(&mut self, id: ArenaId) {
        let arena = self.table.arena_mut(id);
        let was = arena.state;
        arena.state = match arena.in_use {
            0 if arena.touched == 0 => State::GivenBack,
            0 => State::Empty,
            u128::MAX => State::Full,
            _ => State::Partial,
        };
        if arena.state == State::GivenBack && was != State::GivenBack && arena.made == Made::Broken {
            // All of it is gone, so nothing of the broken page is left: the next touch may be huge again.
            arena.made = Made::Base;
        }
        let (state, made, busy) = (arena.state, arena.made, arena.busy);
        let without = arena.wants_huge || !matches!(made, Made::Thp | Made::Hugetlb);
        if state == State::Full && without && id != self.small {
            self.collapse_pending = true;
        }
        if busy || id == self.small {
            return;
        }
        match state {
            State::Empty => self.empty.push_front(&mut self.table, id),
            State::GivenBack => self.given_back.push_front(&mut self.table, id),
            State::Partial if made == Made::Broken => self.broken.insert(&mut self.table, id),
            State::Partial => self.partial.insert(&mut self.table, id),
            _ => {}
        }
    }

    /// Takes an arena out of the list it is in.
    pub(crate) fn unfile(&mut self, id: ArenaId) {
        let arena = self.table.arena(id);
        if arena.busy || id == self.small {
            return;
        }
        match (arena.state, arena.made) {
            (State::Empty, _) => self.empty.remove(&mut self.table, id),
            (State::GivenBack, _) => self.given_back.remove(&mut self.table, id),
            (State::Partial, Made::Broken) => self.broken.remove(&mut self.table, id),
            (State::Partial, _) => self.partial.remove(&mut self.table, id),
            _ => {}
        }
    }

    /// An arena without live runs, mapped, out of all lists.
    fn take_whole(&mut self, now: u64) -> Option<ArenaId> {
        if self.empty.head.is_some() {
            let id = self.empty.head;
            self.empty.remove(&mut self.table, id);
            return Some(id);
        }
        let id = self.any_without_memory()?;
        match self.supply(id, now, true) {
            Ok(()) => Some(id),
            Err(error) => {
                self.refused(id, error);
                None
            }
        }
    }

    /// An arena that was given back or never used, out of all lists.
    fn any_without_memory(&mut self) -> Option<ArenaId> {
        if self.given_back.head.is_some() {
            let id = self.given_back.head;
            self.given_back.remove(&mut self.table, id);
            return Some(id);
        }
        if let Some(id) = self.table.fresh() {
            return Some(id);
        }
        self.add_region(1)?;
        self.table.fresh()
    }

    /// Notes that the system had no memory for an arena that is out of all lists, and keeps the arena for later.
    pub(crate) fn refused(&mut self, id: ArenaId, error: Error) {
        let arena = self.table.arena_mut(id);
        arena.in_use = 0;
        arena.touched = 0;
        arena.state = State::GivenBack;
        self.given_back.push_front(&mut self.table, id);
        self.count(match error.kind() {
            ErrorKind::OutOfMemory | ErrorKind::Busy | ErrorKind::Again => Fallback::OutOfMemory,
            _ => Fallback::AddressSpace,
        });
    }

    /// Reserves a further region that has room for `arenas` at least.
    pub(crate) fn add_region(&mut self, arenas: u32) -> Option<()> {
        if !self.host_read {
            self.host = Host::read(&self.os);
            self.host_read = true;
        }
        let need = u64::from(arenas) * ARENA_BYTES as u64;
        let mut bytes =
            self.settings.region.map_or_else(|| self.region_bytes(), |bytes| bytes as u64).max(need);
        loop {
            let count = (bytes / ARENA_BYTES as u64).clamp(1, MAX_REGION_ARENAS as u64) as usize;
            if self.table.add_region(&self.os, count).is_ok() {
                self.counters.metadata = self.table.metadata_bytes() as u64;
                return Some(());
            }
            bytes /= 2;
            if bytes < need {
                self.count(Fallback::AddressSpace);
                return None;
            }
        }
    }

    /// Address space to reserve: four times the memory of the host, so that one region is enough for good; under a limit an
    /// eighth of what is left, because a reservation counts against it.
    fn region_bytes(&self) -> u64 {
        if let Some(limit) = self.os.address_space_limit() {
            return (limit.limit.saturating_sub(limit.used) / 8).max(MIN_LIMITED_REGION_BYTES);
        }
        self.os
            .total_memory()
            .map_or(MIN_REGION_BYTES, |memory| memory.saturating_mul(4).max(MIN_REGION_BYTES))
    }

    fn situation(&self, now: u64) -> Situation {
        Situation { forks: self.forks, tight: self.is_tight(), slow: self.latency.is_slow(now) }
    }

    /// Gives memory to an arena that has none (unmapped or given back), with the backing the policy chooses. `huge` false: the
    /// arena will be used only in part, so OS pages are better whatever the policy.
    pub(crate) fn supply(&mut self, id: ArenaId, now: u64, huge: bool) -> OsResult<()> {
        self.refresh_limits();
        let mut choice = if huge {
            backing::choose(self.settings.policy, &self.host, self.situation(now))
        } else {
            Choice { made: Made::Base, effective: self.counters_policy(), fallback: None }
        };
        if choice.made == Made::Hugetlb {
            match self.make(id, Made::Hugetlb) {
                Ok(()) => {}
                Err(error) => {
                    let reason = match error.kind() {
                        ErrorKind::OutOfMemory => Fallback::PoolEmpty,
                        _ => Fallback::PoolRefused,
                    };
                    self.count(reason);
                    choice = backing::advised(&self.host, self.situation(now));
                }
            }
        }
        if choice.made != Made::Hugetlb {
            if let Err(error) = self.make(id, choice.made) {
                if choice.made != Made::Thp || error.kind() == ErrorKind::OutOfMemory {
                    return Err(error);
                }
                // The kernel refused the advice: plain pages still work.
                choice = Choice {
                    made: Made::Plain,
                    effective: Policy::Base,
                    fallback: Some(Fallback::ThpUnsupported),
                };
                self.make(id, Made::Plain)?;
            }
        }
        if let Some(reason) = choice.fallback {
            self.count(reason);
        }
        self.counters.effective_policy = choice.effective as u32;
        let asked = choice.made == Made::Thp && choice.effective == Policy::Thp;
        let whole = choice.made == Made::Hugetlb || asked && self.first_touch(id);
        let serial = self.serial;
        self.serial += 1;
        self.counters.arenas += 1;
        self.counters.arenas_peak = self.counters.arenas_peak.max(self.counters.arenas);
        let live = self.counters.live;
        self.demand.grew(now, ARENA_BYTES as u64, live);
        let arena = self.table.arena_mut(id);
        arena.serial = serial;
        arena.in_use = 0;
        arena.starts = 0;
        // A huge page is resident as a whole from its first touch on.
        arena.touched = if whole { u128::MAX } else { 0 };
        arena.wants_huge = asked && !whole;
        arena.retry_at = 0;
        if whole {
            self.counters.retained += ARENA_BYTES as u64;
        }
        Ok(())
    }

    fn counters_policy(&self) -> Policy {
        Policy::from_number(self.counters.effective_policy).unwrap_or_default()
    }

    /// Reads the cgroup's limits again when the heap grew by a part of them.
    fn refresh_limits(&mut self) {
        let Some(limits) = self.host.limits else { return };
        let Some(limit) = [limits.max, limits.high].into_iter().flatten().min() else { return };
        if self.mapped_bytes().abs_diff(self.limits_read_at) > limit / 64 {
            self.limits_read_at = self.mapped_bytes();
            self.host.refresh(&self.os);
        }
    }

    /// Maps an arena without memory as `made`, or changes the advice of a mapped one.
    fn make(&mut self, id: ArenaId, made: Made) -> OsResult<()> {
        let range = self.table.range(id);
        let was = self.table.arena(id).made;
        let backing = match made {
            Made::Base | Made::Broken => Backing::Base,
            Made::Plain => Backing::Plain,
            Made::Thp => Backing::Thp,
            Made::Hugetlb => Backing::Hugetlb(ARENA_BYTES),
            Made::Nothing => unreachable!("nothing is not made"),
        };
        let same = was == made || (was == Made::Base && made == Made::Plain);
        if was != Made::Nothing && !same {
            let advice = match made {
                Made::Base => Some(Advice::NoHuge),
                Made::Thp => Some(Advice::Huge),
                _ => None,
            };
            // SAFETY: the arena is mapped and has no live run; advice does not change contents.
            let advised = advice.map(|advice| unsafe { self.os.advise(range, advice) });
            match advised {
                Some(Ok(())) => {
                    self.table.arena_mut(id).made = made;
                    return Ok(());
                }
                Some(Err(error)) if error.kind() == ErrorKind::OutOfMemory => {
                    // Too many mappings: the memory is usable with the advice it has.
                    self.count(Fallback::MappingLimit);
                    return Ok(());
                }
                Some(Err(error)) => return Err(error),
                None => self.unmake(id)?,
            }
        } else if same && was != Made::Nothing {
            return Ok(());
        }
        // SAFETY: the arena is a reserved range of a region that this heap owns, and has no live run.
        unsafe { self.os.map(range, backing) }?;
        self.table.arena_mut(id).made = made;
        Ok(())
    }

    /// Unmaps an arena without live runs.
    pub(crate) fn unmake(&mut self, id: ArenaId) -> OsResult<()> {
        if !self.table.is_mapped(id) {
            return Ok(());
        }
        // SAFETY: the arena belongs to this heap, is mapped, and has no live run.
        unsafe { self.os.unmap(self.table.range(id)) }?;
        self.table.arena_mut(id).made = Made::Nothing;
        Ok(())
    }

    /// Touches an advised arena, and asks the kernel whether it became a huge page; times it. The program would touch the
    /// arena next anyway.
    fn first_touch(&mut self, id: ArenaId) -> bool {
        let range = self.table.range(id);
        let page = AddressRange::new(range.start, self.os.page_sizes().os);
        let before = self.now();
        // SAFETY: the arena is mapped and has no live run; populating changes no contents.
        let populated = unsafe { self.os.populate(page) };
        let after = self.now();
        self.latency.record(after, after.saturating_sub(before));
        if populated.is_err() {
            // An old kernel: what the policy expects is assumed.
            return true;
        }
        match self.os.residency(page) {
            Ok(residency) if residency.huge() == 0 => {
                self.count(Fallback::NoHugePage);
                false
            }
            _ => true,
        }
    }

    /// What backs all arenas now, from the kernel.
    ///
    /// # Errors
    /// Where the kernel cannot be asked (/proc closed).
    pub fn residency(&self) -> OsResult<Residency> {
        let mut sum = Residency::default();
        for range in self.table.mapped_ranges() {
            if range.len > 0 {
                sum += self.os.residency(range)?;
            }
        }
        Ok(sum)
    }

    /// The range number `index` in which this heap may have memory. With [`residency`](Self::residency) for callers that hold a lock.
    pub(crate) fn mapped_range(&self, index: usize) -> Option<AddressRange> {
        self.table.mapped_ranges().filter(|range| range.len > 0).nth(index)
    }

    /// Forgets past demand: nothing is kept for it.
    pub(crate) fn forget_demand(&mut self) {
        let now = self.now();
        self.demand = Demand::new(self.settings.decay);
        let live = self.counters.live;
        self.demand.record(now, live);
    }

    /// The numbers of this heap now. Walks the metadata of all arenas; no system call.
    pub fn snapshot(&self) -> Snapshot {
        let mut out = self.counters;
        out.policy = self.settings.policy as u32;
        out.regretted = self.demand.regretted();
        let mut demand = self.demand;
        out.retention_target = demand.target(self.now()).saturating_sub(out.live);
        out.forks = self.forks;
        for id in self.table.used() {
            let arena = self.table.arena(id);
            match arena.state {
                State::Full | State::Large | State::LargeRest => out.arenas_full += 1,
                State::Partial => out.arenas_partial += 1,
                State::Empty => out.arenas_empty += 1,
                _ => {}
            }
            match arena.made {
                Made::Thp if !arena.wants_huge => out.arenas_thp += 1,
                Made::Hugetlb => out.arenas_hugetlb += 1,
                Made::Broken => out.arenas_broken += 1,
                Made::Base | Made::Plain | Made::Thp => out.arenas_base += 1,
                Made::Nothing => {}
            }
        }
        out
    }

    pub(crate) fn arena(&self, id: ArenaId) -> &Arena {
        self.table.arena(id)
    }
}
