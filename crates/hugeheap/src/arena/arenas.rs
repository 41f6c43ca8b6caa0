//! The arenas of one heap: allocating and freeing page runs.
//!
//! A *page run* is 1 to 128 neighbouring heap pages of one arena. It is taken from a partial arena in the order
//! of [`order`](super::order), else from an arena that was kept empty, else from one that was given back, else
//! from a new one. Runs of at least [`BIG_RUN`] pages are put low in their arena and smaller ones high, so that
//! the two do not cut each other's ranges.
//!
//! Every address that comes back is checked exactly: ours, a heap page's start, a live run's start, of that length.
//! Obtaining memory belongs to [`supply`](super::supply); giving back, breaking and collapsing to
//! [`maintenance`](super::maintenance), away from the caller's path.

use super::ahead::Growth;
use super::backing::{Host, Latency};
use super::bitmap;
use super::clock::Clock;
use super::demand::Demand;
use super::empties::Empties;
use super::layout::{ARENA_BYTES, HEAP_PAGE_BYTES, HEAP_PAGES};
use super::list::{ArenaId, List};
use super::offer::Offers;
use super::order::{self, Order};
use super::record::{Arena, Made, State};
use super::refusals::Refusals;
use super::sweep::{DENSE, Sweep};
use super::table::Table;
use super::tenant::Looks;
use super::{Policy, Settings};
use crate::large::Left;
use crate::telemetry::{Fallback, Snapshot};
use core::fmt;
use core::num::NonZeroUsize;
use hugeheap_os::{AddressRange, Os};

/// Runs of at least this many pages go low in an arena. A quarter of pymalloc's arena before 3.10; data-stack chunks
/// (1 page and growing) are below.
pub(super) const BIG_RUN: u32 = 16;

/// Arenas from which on the one for small runs is to be a huge page as well, once it is dense: what it may grow
/// by, an eighth, is below 1 % of the memory then. On OS pages for good it was what kept a heap of 60 MiB
/// (`rptest` with two threads) at a coverage of 94.3 %.
pub(super) const GROWN: u64 = 16;

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
    pub(super) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) table: Table,
    pub(crate) host: Host,
    pub(super) host_read: bool,
    pub(crate) latency: Latency,
    /// Partial arenas that are whole huge pages, or may become them by a touch.
    pub(crate) partial: Order,
    /// Partial arenas that were broken: filled only when no other has room.
    pub(crate) broken: Order,
    /// Kept without a live run.
    pub(crate) empty: Empties,
    /// Given back, most recently first.
    pub(crate) given_back: List,
    pub(crate) demand: Demand,
    /// Of address space, for a while.
    pub(crate) refusals: Refusals,
    /// How fast whole arenas are taken, and what is made ahead of that.
    pub(super) growth: Growth,
    /// The base arena for small runs that policy `auto` keeps apart, in no list; `NONE` before the first small run.
    pub(crate) small: ArenaId,
    /// Where large blocks were that were freed lately.
    pub(crate) left: Left,
    pub(crate) serial: u32,
    /// Bytes mapped when the limits were read last.
    pub(super) limits_read_at: u64,
    /// The counters that events change; what can be counted at leisure is filled in by [`snapshot`](Self::snapshot).
    pub(crate) counters: Snapshot,
    /// The search of maintenance for arenas to collapse and to split.
    pub(super) sweep: Sweep,
    /// The looks for heap pages of which a part is vacant.
    pub(super) looks: Looks,
    /// What the kernel may take.
    pub(super) offers: Offers,
    pub(crate) forks: u64,
    /// Retained bytes when maintenance found nothing to do last.
    pub(crate) settled: u64,
    /// Whether memory was tight at the last pass, and retained bytes after it.
    pub(super) at_pass: (bool, u64),
    /// Arenas that are a guess (see `large`).
    pub(crate) guesses: u64,
    /// There may be tails of large blocks of which more is resident than has to be.
    pub(crate) tails: bool,
}

impl<O: Os> Arenas<O> {
    /// A heap without arenas. Asks nothing of the operating system before the first allocation.
    pub const fn new(os: O, settings: Settings) -> Self {
        Self {
            os,
            clock: Clock::new(),
            demand: Demand::new(settings.decay),
            refusals: Refusals::NONE,
            growth: Growth::NONE,
            settings,
            table: Table::NEW,
            host: Host::UNKNOWN,
            host_read: false,
            latency: Latency::NEW,
            partial: Order::NEW,
            broken: Order::NEW,
            empty: Empties::NEW,
            given_back: List::EMPTY,
            small: ArenaId::NONE,
            left: Left::NONE,
            serial: 0,
            limits_read_at: 0,
            counters: Snapshot::EMPTY,
            sweep: Sweep::NEW,
            looks: Looks::NEW,
            offers: Offers::NONE,
            forks: 0,
            settled: 0,
            at_pass: (false, 0),
            guesses: 0,
            tails: false,
        }
    }

    /// The operating system under this heap.
    pub fn os(&self) -> &O {
        &self.os
    }

    /// Changes the settings; arenas that exist keep their backing until they are given back or collapsed.
    pub fn set(&mut self, settings: Settings) {
        let decay = settings.decay != self.settings.decay;
        // Another policy may collapse what this one leaves alone.
        self.sweep.news |= settings.policy != self.settings.policy && self.counters.arenas > 0;
        if settings != self.settings {
            // What was rightly kept under the old ones may be too much now.
            self.settled = 0;
        }
        // What there is of that was looked at before.
        self.looks.kept |= settings.merge && !self.settings.merge && self.counters.arenas > 0;
        self.settings = settings;
        if decay {
            self.forget_demand();
        }
    }

    /// Forgets past demand: nothing is kept for it.
    pub(crate) fn forget_demand(&mut self) {
        let now = self.now();
        self.demand = self.demand.restarted(self.settings.decay);
        self.demand.record(now, self.counters.live);
    }

    /// The settings.
    pub const fn settings(&self) -> Settings {
        self.settings
    }

    /// Nanoseconds for which a processor has worked for the calling thread.
    pub(super) fn thread_time(&self) -> u64 {
        self.os.thread_time().as_nanos() as u64
    }

    /// Whether the address lies in a region of this heap.
    #[inline]
    pub fn owns(&self, address: usize) -> bool {
        self.table.find(address).is_some()
    }

    /// The region that contains an address, and what is reserved beside it: the first that asks gets that.
    pub(crate) fn region_of(&mut self, address: usize) -> Option<(AddressRange, Option<AddressRange>)> {
        self.table.region_of(address)
    }

    /// Reserves address space together with each further region, as many bytes as `bytes` says for its own: for
    /// metadata of a layer above, which has to be had for every heap page that can be.
    pub(crate) fn reserve_beside(&mut self, bytes: fn(usize) -> usize) {
        self.table.reserve_beside(bytes);
    }

    pub(crate) fn count(&mut self, reason: Fallback) {
        self.counters.fallbacks[reason as usize] += 1;
    }

    /// Takes a run of `pages` heap pages (1 to 128). Its contents are undefined: what an earlier run left, or zero.
    /// `None` when the system has no memory or address space; counted.
    pub fn allocate(&mut self, pages: u32) -> Option<NonZeroUsize> {
        debug_assert!((1..=HEAP_PAGES).contains(&pages));
        let now = self.recently();
        let id = self.arena_with_room(pages, pages < BIG_RUN, now)?;
        let arena = self.table.arena_mut(id);
        let first = if pages >= BIG_RUN {
            bitmap::find_lowest(arena.in_use, pages)
        } else {
            bitmap::find_highest(arena.in_use, pages)
        };
        let Some(first) = first else { unreachable!("the order names arenas with room") };
        self.begin_run(id, first, pages, now)
    }

    /// The same, beginning at a multiple of `align` heap pages, a power of two; `pages` and `align` together
    /// are 128 at most.
    pub(crate) fn allocate_aligned(&mut self, pages: u32, align: u32) -> Option<NonZeroUsize> {
        debug_assert!(pages > 0 && align.is_power_of_two() && pages + align <= HEAP_PAGES);
        let now = self.recently();
        let id = match self.arena_with_aligned(pages, align) {
            Some(id) => id,
            None => self.arena_with_room(pages + align - 1, false, now)?,
        };
        let in_use = self.table.arena(id).in_use;
        let Some((lowest, highest)) = bitmap::find_aligned(in_use, pages, align) else {
            unreachable!("in so much room a multiple begins that leaves enough")
        };
        self.begin_run(id, if pages >= BIG_RUN { lowest } else { highest }, pages, now)
    }

    /// An arena in use with room for such a run, out of all lists: of each length of its longest range that may
    /// do, the best. Where only what has room for certain was looked for, the places that such runs had left
    /// were not found.
    fn arena_with_aligned(&mut self, pages: u32, align: u32) -> Option<ArenaId> {
        let mut length = pages;
        while length < pages + align {
            let id = self.partial.best(&self.table, length)?;
            let in_use = self.table.arena(id).in_use;
            if bitmap::find_aligned(in_use, pages, align).is_some() {
                self.partial.remove(&mut self.table, id);
                return Some(id);
            }
            length = bitmap::longest_free_range(in_use) + 1;
        }
        None
    }

    /// Notes a new run in an arena that is out of all lists.
    pub(super) fn begin_run(
        &mut self,
        id: ArenaId,
        first: u32,
        pages: u32,
        now: u64,
    ) -> Option<NonZeroUsize> {
        let run = bitmap::mask(first, pages);
        let arena = self.table.arena_mut(id);
        arena.in_use |= run;
        arena.starts |= 1 << first;
        self.allocated(id, now, run);
        self.counters.allocations += 1;
        NonZeroUsize::new(self.table.range(id).start + first as usize * HEAP_PAGE_BYTES)
    }

    /// An arena with room for a run of `pages` heap pages, out of all lists. `small`: it is one that policy
    /// `auto` keeps apart.
    pub(super) fn arena_with_room(&mut self, pages: u32, small: bool, now: u64) -> Option<ArenaId> {
        let from_order =
            |order: &Order, table: &Table| (pages < HEAP_PAGES).then(|| order.best(table, pages)).flatten();
        if let Some(id) = small.then(|| self.room_for_small(pages, now)).flatten() {
            Some(id)
        } else if let Some(id) = from_order(&self.partial, &self.table) {
            self.partial.remove(&mut self.table, id);
            Some(id)
        } else if let Some(id) = from_order(&self.broken, &self.table) {
            self.broken.remove(&mut self.table, id);
            Some(id)
        } else {
            // Exactly: how soon one arena follows another is a matter of milliseconds.
            self.take_whole(self.now())
        }
    }

    /// The arena for small runs, if the policy has one and it has room.
    fn room_for_small(&mut self, pages: u32, now: u64) -> Option<ArenaId> {
        if self.settings.policy != Policy::Auto {
            return None;
        }
        if !self.small.is_some() {
            let id = self.any_without_memory()?;
            if self.supply(id, now, false).is_err() {
                // Not counted: the request is served elsewhere, or refused there.
                self.put_back(id);
                return None;
            }
            self.small = id;
            self.table.arena_mut(id).apart = true;
            return Some(id);
        }
        let arena = self.table.arena(self.small);
        if arena.busy || bitmap::find_highest(arena.in_use, pages).is_none() {
            return None;
        }
        if arena.state == State::GivenBack {
            // It stays mapped and in no list, so it is not supplied again.
            self.count_arena();
        }
        Some(self.small)
    }

    /// Notes that `pages` of an arena are needed: those that were not resident have to come from the system.
    pub(crate) fn touch(&mut self, id: ArenaId, now: u64, pages: u128) {
        let arena = self.table.arena_mut(id);
        let fresh = pages & !arena.touched;
        arena.touched |= pages;
        if fresh != 0 {
            self.demand.grew(now, pages_bytes(fresh), self.counters.live);
        }
    }

    /// Notes that retained memory is live again, or gone.
    pub(crate) fn retain_less(&mut self, bytes: u64) {
        self.counters.retained -= bytes;
        self.settled = self.settled.min(self.counters.retained);
    }

    /// Takes a run of `pages` heap pages back.
    ///
    /// # Errors
    /// When `address` is not the beginning of a live run of exactly that length.
    pub fn free(&mut self, address: usize, pages: u32) -> Result<(), BadFree> {
        let (id, page, length) = self.live_run(address)?;
        if length != pages {
            return Err(BadFree::WrongSize { actual: length as usize * HEAP_PAGE_BYTES });
        }
        self.table.arena_mut(id).starts &= !(1 << page);
        self.take_back(id, bitmap::mask(page, length));
        self.counters.frees += 1;
        Ok(())
    }

    /// Takes back pages of an arena that were in use: a run without a start any more, or the end of one.
    pub(super) fn take_back(&mut self, id: ArenaId, pages: u128) {
        let now = self.recently();
        self.no_more_used(id, pages, now);
        let live = self.counters.live;
        self.demand.record(now, live);
    }

    /// The same, without telling how much lives.
    #[inline]
    pub(super) fn no_more_used(&mut self, id: ArenaId, pages: u128, now: u64) {
        let before = order::longest_when_filed(self.arena(id));
        self.unfile(id);
        let now = self.emptied_at(id, pages, now);
        let arena = self.table.arena_mut(id);
        arena.in_use &= !pages;
        arena.changed(now);
        if let Some(before) = before.filter(|_| arena.in_use != 0) {
            arena.longest = bitmap::longest_after_free(arena.in_use, pages, before) as u8;
        }
        self.counters.retained += pages_bytes(pages);
        self.file(id);
        self.counters.live -= pages_bytes(pages);
    }

    /// When pages of an arena are no more used, `now` about: exactly if none is then. Empty arenas are used and given
    /// back in the order in which they became so, and not before a millisecond has passed.
    pub(super) fn emptied_at(&self, id: ArenaId, pages: u128, now: u64) -> u64 {
        if self.arena(id).in_use & !pages == 0 { self.now() } else { now }
    }

    /// Length in bytes of the live run that begins at `address`.
    ///
    /// # Errors
    /// When none does.
    pub fn run_bytes(&self, address: usize) -> Result<usize, BadFree> {
        self.live_run(address).map(|(.., length)| length as usize * HEAP_PAGE_BYTES)
    }

    /// The live run that begins at `address`: its arena, its first heap page there, and how many it has.
    #[inline]
    pub(super) fn live_run(&self, address: usize) -> Result<(ArenaId, u32, u32), BadFree> {
        let id = self.table.find(address).ok_or(BadFree::Foreign)?;
        let page = self.check_run(id, address)?;
        let length = self.table.arena(id).run_length(page).ok_or(BadFree::NotLive)?;
        Ok((id, page, length))
    }

    /// The heap page of an address that should begin a run.
    pub(super) fn check_run(&self, id: ArenaId, address: usize) -> Result<u32, BadFree> {
        let arena = self.table.arena(id);
        let offset = address % ARENA_BYTES;
        match arena.state {
            State::Partial | State::Full => {}
            State::Large if offset == 0 => {
                return Err(BadFree::WrongSize { actual: arena.large_bytes as usize });
            }
            State::Large | State::LargeRest => return Err(BadFree::Interior),
            _ => return Err(BadFree::NotLive),
        }
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
        self.rose(now, bytes);
    }

    /// What lives has become more, by so many bytes.
    pub(crate) fn rose(&mut self, now: u64, bytes: u64) {
        self.looks.taken(bytes);
        self.counters.live_peak = self.counters.live_peak.max(self.counters.live);
        let live = self.counters.live;
        self.demand.record(now, live);
    }

    /// Puts an arena with consistent bitmaps where it belongs, unless maintenance has it.
    pub(crate) fn file(&mut self, id: ArenaId) {
        // Looked up once: each time is a tenth of this.
        let mut arena = self.table.arena_mut(id);
        let was = arena.state;
        arena.state = match arena.in_use {
            0 if arena.touched == 0 => State::GivenBack,
            0 => State::Empty,
            u128::MAX => State::Full,
            _ => State::Partial,
        };
        if arena.in_use == 0 && arena.vacated {
            self.forget_vacated(id);
            arena = self.table.arena_mut(id);
        }
        if arena.state == State::GivenBack && was != State::GivenBack && arena.made == Made::Broken {
            // All of it is gone, so nothing of the broken page is left: the next touch may be huge again.
            arena.made = Made::Base;
        }
        let (state, made, unlisted) = (arena.state, arena.made, arena.busy || arena.apart);
        if matches!(state, State::Empty | State::GivenBack) {
            // Nothing lives there, so its density is none.
            self.sweep.news |= arena.unsplit;
            arena.alone = false;
            let _ = self.offers.note(arena);
            self.table.note_idle(id);
        } else {
            self.note_density(id);
        }
        if unlisted {
            return;
        }
        match state {
            // A pass had it, and put it nowhere else: others may have become empty since it did.
            State::Empty if was == State::Empty => self.empty.put_back(&mut self.table, id),
            State::Empty => {
                self.empty.push(&mut self.table, id);
                if was != State::GivenBack {
                    self.leave_room();
                }
            }
            State::GivenBack => self.given_back.push_front(&mut self.table, id),
            State::Partial if made == Made::Broken => self.broken.insert(&mut self.table, id),
            State::Partial => self.partial.insert(&mut self.table, id),
            _ => {}
        }
    }

    /// Sees to it that an arena that became dense without a huge page, or that is used again though not split,
    /// is looked at. First, what its state means for what the kernel may take: that may have cost it its huge
    /// page.
    #[inline(always)]
    pub(crate) fn note_density(&mut self, id: ArenaId) {
        let mut arena = self.table.arena_mut(id);
        if self.offers.note(arena) {
            self.ask_again(id);
            arena = self.table.arena_mut(id);
        }
        let unsplit = arena.unsplit;
        let dense = !arena.huge && arena.live_pages() >= DENSE && !self.stays_apart(id);
        self.sweep.news |= unsplit || dense && self.may_collapse();
    }

    /// Whether this is the arena for small runs, and the heap so small that it stays on OS pages.
    pub(super) fn stays_apart(&self, id: ArenaId) -> bool {
        id == self.small && self.counters.arenas < GROWN
    }

    /// Takes an arena out of the list it is in. Returns its state.
    pub(crate) fn unfile(&mut self, id: ArenaId) -> State {
        let arena = self.table.arena(id);
        let state = arena.state;
        if arena.busy || arena.apart {
            return state;
        }
        match (state, arena.made) {
            (State::Empty, _) => self.empty.remove(&mut self.table, id),
            (State::GivenBack, _) => self.given_back.remove(&mut self.table, id),
            (State::Partial, Made::Broken) => self.broken.remove(&mut self.table, id),
            (State::Partial, _) => self.partial.remove(&mut self.table, id),
            _ => {}
        }
        state
    }

    /// An arena without live runs, mapped, out of all lists.
    fn take_whole(&mut self, now: u64) -> Option<ArenaId> {
        let limited = self.host.limit().is_some();
        let id = match self.empty.take(&mut self.table, limited) {
            Some(id) => id,
            None => self.supply_any(now)?,
        };
        self.took_whole(now);
        Some(id)
    }

    /// An arena that had no memory, mapped, out of all lists.
    fn supply_any(&mut self, now: u64) -> Option<ArenaId> {
        let Some(id) = self.any_without_memory() else {
            self.count(Fallback::AddressSpace);
            return None;
        };
        match self.supply(id, now, true) {
            Ok(()) => Some(id),
            Err(error) => {
                self.count_refusal(error);
                self.put_back(id);
                None
            }
        }
    }

    pub(crate) fn arena(&self, id: ArenaId) -> &Arena {
        self.table.arena(id)
    }
}

/// Bytes of the heap pages in a bitmap.
pub(crate) const fn pages_bytes(pages: u128) -> u64 {
    pages.count_ones() as u64 * HEAP_PAGE_BYTES as u64
}
