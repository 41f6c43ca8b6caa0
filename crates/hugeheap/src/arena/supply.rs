//! Obtaining memory: address space for arenas, and what backs them.
//!
//! ```text
//!   any_without_memory          supply
//!   given back ─┐               choose ─▶ make (map, or advise what is mapped) ─▶ first touch: is it huge?
//!   never used ─┼─▶ arena ────▶   └── the pool is empty: choose again
//!   new region ─┘              └────────── begin_supply ──────────┘  └─ Making::touch ─┘ complete_supply
//! ```
//!
//! But for arenas that are made [ahead](super::ahead) all this runs on the caller's path, so it makes the calls
//! that a program on OS pages would make too (map, first touch) and one more, the question whether the touch
//! found a huge page: an arena that is believed huge and is not would hide the most common reason why nothing
//! becomes faster.
//!
//! An arena that is not what its policy wanted is counted once, under the first reason.
//!
//! Of a large block only the first arena is touched, and the last where the block has a part of it. When all
//! were, a block of 2 GiB was resident before the program had written a byte of it: each first touch of 4 KiB
//! brings 2 MiB. What the others consist of the kernel is asked when maintenance wants to collapse them, see
//! [`sweep`](super::sweep).

use super::Arenas;
use super::Policy;
use super::arenas::{GROWN, pages_bytes};
use super::backing::{self, Choice, Host, Situation};
use super::layout::{ARENA_BYTES, HEAP_PAGE_BYTES, HEAP_PAGES};
use super::list::ArenaId;
use super::record::{Arena, Made, State};
use super::table::MAX_REGION_ARENAS;
use crate::telemetry::Fallback;
use hugeheap_os::{AddressRange, Advice, Backing, Error, ErrorKind, Os, Result as OsResult, ThpMode};

/// Least size of a region, for hosts with little memory.
const MIN_REGION_BYTES: u64 = 64 << 30;

/// Least size of a region under a limit on address space. Small: under `ulimit -v 80000` regions of 64 MiB left
/// the C library no room for a block of 700 KiB, and a program that needs 30 MB on stock failed. Not one arena:
/// there is a table of 64 regions.
const MIN_LIMITED_REGION_BYTES: u64 = 8 << 20;

/// Arenas that lose their write access at once when the system refuses one: what is asked for, and room for
/// what others ask for.
const WITHDRAWN: u32 = 8;

/// Part of a limit on data that may be kept in empty arenas, as a divisor.
const KEPT_OF_DATA: u64 = 8;

/// Part of a limit on data that the records of a region's arenas may take, as a divisor: they can be written
/// from the beginning, used or not. Those of four times the memory of a host with 256 GiB are 64 MiB, two
/// thirds of `ulimit -d 100000`. A sixty-fourth is enough for 256 times the limit in arenas.
const RECORDS_OF_DATA: u64 = 64;

/// An arena that was mapped or advised, and not touched yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Making {
    made: Made,
    choice: Choice,
    /// The policy's reason for less than it wanted, or the system's.
    fallback: Option<Fallback>,
    may_be_huge: bool,
}

/// Who touches an arena first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// Who makes it: the program is about to use it, and the kernel tells at once whether it is huge.
    Maker,
    /// The program, if it ever does: what it never touches costs no memory.
    Program,
}

/// What the first touch of an arena made resident.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touched {
    /// What may be resident now, or at the program's own first touch.
    pages: u128,
    huge: bool,
    /// The kernel said that it is not huge.
    pub(super) missing: bool,
    /// How long a processor worked for it, in nanoseconds; `None`: it was not touched.
    took: Option<u64>,
}

impl Touched {
    const NOTHING: Self = Self { pages: 0, huge: false, missing: false, took: None };
}

impl Making {
    /// Whether mapping the arena made all of it resident.
    pub(super) fn is_resident(&self) -> bool {
        self.made == Made::Hugetlb
    }

    /// Whether the first touch may do that.
    pub(super) fn may_be_huge(&self) -> bool {
        self.may_be_huge
    }

    /// Touches the arena, if that may make it a huge page, and asks the kernel whether it did; times it. For
    /// arenas that the program touches next anyway. `ahead`: it does not yet, and maps others meanwhile.
    pub(super) fn touch<O: Os>(&self, os: &O, range: AddressRange, ahead: bool) -> Touched {
        if self.is_resident() {
            return Touched { pages: u128::MAX, huge: true, missing: false, took: None };
        }
        if self.may_be_huge {
            return first_touch(os, range, ahead);
        }
        Touched::NOTHING
    }
}

impl<O: Os> Arenas<O> {
    /// Bytes of the arenas that have memory.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.counters.arenas * ARENA_BYTES as u64
    }

    pub(crate) fn is_tight(&self) -> bool {
        self.host.is_tight(self.mapped_bytes(), self.settings.limit)
    }

    /// One more arena has memory.
    pub(crate) fn count_arena(&mut self) {
        self.counters.arenas += 1;
        // The arena for small runs may have been dense for long, and change no more.
        self.sweep.news |= self.counters.arenas == GROWN && self.small.is_some() && self.may_collapse();
        self.counters.arenas_peak = self.counters.arenas_peak.max(self.counters.arenas);
    }

    /// An arena that was given back or never used, out of all lists. `None` when no address space is left.
    pub(super) fn any_without_memory(&mut self) -> Option<ArenaId> {
        if self.given_back.head.is_some() {
            let id = self.given_back.head;
            self.given_back.remove(&mut self.table, id);
            return Some(id);
        }
        if let Some(id) = self.table.fresh() {
            return Some(id);
        }
        if !self.refusals.may_ask() {
            return None;
        }
        let refused = self.add_region(1, 1).is_none();
        self.refusals.note(refused);
        if refused { self.table.spare() } else { self.table.fresh() }
    }

    /// Keeps an arena that is out of all lists, and could not be supplied, for later.
    pub(crate) fn put_back(&mut self, id: ArenaId) {
        self.table.arena_mut(id).state = State::GivenBack;
        self.table.note_idle(id);
        self.given_back.push_front(&mut self.table, id);
    }

    /// Counts why there is no memory for a request.
    pub(crate) fn count_refusal(&mut self, error: Error) {
        self.count(match error.kind() {
            ErrorKind::OutOfMemory | ErrorKind::Busy | ErrorKind::Again => Fallback::OutOfMemory,
            _ => Fallback::AddressSpace,
        });
    }

    /// Reserves a further region, with room for `wanted` arenas in a row if possible, for `least` at least.
    pub(crate) fn add_region(&mut self, least: u32, wanted: u32) -> Option<()> {
        if !self.host_read {
            self.host = Host::read(&self.os);
            self.host_read = true;
        }
        let arenas = |bytes: u64| (bytes / ARENA_BYTES as u64).min(MAX_REGION_ARENAS as u64) as usize;
        let least = least as usize;
        if least > MAX_REGION_ARENAS {
            return None;
        }
        let usual = self.settings.region.map_or_else(|| self.region_bytes(), |bytes| bytes as u64);
        let mut count = arenas(usual).max((wanted as usize).min(MAX_REGION_ARENAS)).max(least);
        loop {
            if self.table.add_region(&self.os, count).is_ok() {
                self.counters.metadata = self.table.metadata_bytes() as u64;
                return Some(());
            }
            if count == least {
                return None;
            }
            count = (count / 2).max(least);
        }
    }

    /// Address space to reserve: four times the memory of the host, so that one region is enough for good;
    /// under a limit on it an eighth of what is left, because a reservation counts against it. Under one on
    /// data as much as the arenas of which have records in a small part of it.
    fn region_bytes(&self) -> u64 {
        if let Some(limit) = self.os.address_space_limit() {
            return (limit.limit.saturating_sub(limit.used) / 8).max(MIN_LIMITED_REGION_BYTES);
        }
        let usual = self
            .os
            .total_memory()
            .map_or(MIN_REGION_BYTES, |memory| memory.saturating_mul(4).max(MIN_REGION_BYTES));
        let Some(limit) = self.host.data_limit else { return usual };
        let arenas = limit / RECORDS_OF_DATA / size_of::<Arena>() as u64;
        usual.min((arenas * ARENA_BYTES as u64).max(MIN_LIMITED_REGION_BYTES))
    }

    /// Whether the policy has the kernel asked for huge pages now, and they would be had.
    pub(crate) fn advises(&mut self) -> bool {
        self.refresh_limits();
        let situation = self.situation(self.now());
        let choice = match backing::choose(self.settings.policy, &self.host, situation) {
            Choice { made: Made::Hugetlb, .. } => backing::advised(&self.host, situation),
            choice => choice,
        };
        choice.made == Made::Thp && self.host.advice_fails().is_none()
    }

    fn situation(&self, now: u64) -> Situation {
        Situation { forks: self.forks, tight: self.is_tight(), slow: self.latency.is_slow(now) }
    }

    /// Gives memory to an arena that has none (unmapped or given back), with the backing the policy chooses.
    /// `huge` false: the arena will be used only in part, so OS pages are better whatever the policy.
    pub(crate) fn supply(&mut self, id: ArenaId, now: u64, huge: bool) -> OsResult<()> {
        self.supply_for(First::Maker, id, now, huge)
    }

    /// The same, where the program may be the first to touch it.
    pub(crate) fn supply_for(&mut self, first: First, id: ArenaId, now: u64, huge: bool) -> OsResult<()> {
        let making = self.begin_supply(huge, id, now)?;
        let touched = match first {
            First::Program if !making.is_resident() => Touched::NOTHING,
            _ => making.touch(&self.os, self.table.range(id), false),
        };
        self.complete_supply(id, now, making, touched);
        Ok(())
    }

    /// The first half: chooses the backing, and maps or advises.
    pub(super) fn begin_supply(&mut self, huge: bool, id: ArenaId, now: u64) -> OsResult<Making> {
        self.refresh_limits();
        let situation = self.situation(now);
        let mut choice = if huge {
            backing::choose(self.settings.policy, &self.host, situation)
        } else {
            Choice { made: Made::Base, effective: self.effective_policy(), fallback: None }
        };
        let mut made = self.make(id, choice.made);
        if choice.made != Made::Hugetlb && is_out_of_memory(&made) && self.withdraw(id) {
            made = self.make(id, choice.made);
        }
        if let (Made::Hugetlb, Err(error)) = (choice.made, made) {
            let reason = match error.kind() {
                ErrorKind::OutOfMemory => Fallback::PoolEmpty,
                _ => Fallback::PoolRefused,
            };
            choice = Choice { fallback: Some(reason), ..backing::advised(&self.host, situation) };
            made = self.make(id, choice.made);
            if is_out_of_memory(&made) && self.withdraw(id) {
                made = self.make(id, choice.made);
            }
        }
        let (made, refused) = made?;
        let fallback = choice.fallback.or(refused);
        if refused.is_some() && choice.effective == Policy::Thp {
            choice.effective = Policy::Base;
        }
        let may_be_huge = match made {
            Made::Thp => self.host.advice_fails().is_none(),
            // The mode was changed after the choice of unadvised memory was made.
            Made::Plain => self.host.thp == Some(ThpMode::Always) && self.host.advice_fails().is_none(),
            _ => false,
        };
        Ok(Making { made, choice, fallback, may_be_huge })
    }

    /// The second half: accounts for what the first touch found.
    pub(super) fn complete_supply(&mut self, id: ArenaId, now: u64, making: Making, touched: Touched) {
        if let Some(took) = touched.took {
            let after = self.now();
            self.latency.record(after, took);
        }
        self.counters.effective_policy = making.choice.effective as u32;
        let missing = touched.missing && making.choice.effective == Policy::Thp;
        if let Some(reason) = making.fallback.or(missing.then_some(Fallback::NoHugePage)) {
            self.count(reason);
        }
        let serial = self.serial;
        self.serial = self.serial.wrapping_add(1);
        self.count_arena();
        let arena = self.table.arena_mut(id);
        arena.serial = serial;
        arena.huge = touched.huge;
        arena.untold = making.may_be_huge && touched.took.is_none();
        arena.retry_at = 0;
        arena.failures = 0;
        arena.forget_answers();
        self.counters.retained += pages_bytes(touched.pages);
        self.touch(id, now, touched.pages);
    }

    /// Takes the write access from arenas that were given back and are mapped still, [`WITHDRAWN`] of them,
    /// when the system refuses one more; then from empty ones that are kept. Says whether there were any.
    ///
    /// The former cost no memory, but count against `ulimit -d` and strict overcommit. Without such a limit
    /// they stay mapped: reserving and mapping them again would be two calls for each arena that comes and
    /// goes. The latter count as well: a program that had freed a list of 140 MiB under `ulimit -d` was refused
    /// the next one at 37, because what was kept lay in no row for it.
    pub(crate) fn withdraw(&mut self, wanted: ArenaId) -> bool {
        let (mut id, mut withdrawn) = (self.given_back.tail, 0);
        while id.is_some() && withdrawn < WITHDRAWN {
            let previous = self.table.arena(id).previous;
            if id != wanted && self.table.is_mapped(id) {
                // What the system refuses to take back stays as it is, and is tried the next time.
                withdrawn += u32::from(self.unmake(id).is_ok());
            }
            id = previous;
        }
        while withdrawn < WITHDRAWN {
            let Some(id) = self.empty.oldest(&self.table, 0).next() else { break };
            if !self.make_way(id) {
                break;
            }
            withdrawn += 1;
        }
        // A limit that was set after the host was asked.
        self.refresh_data_limit();
        withdrawn > 0
    }

    /// Gives an idle arena up with its mapping: for what is moved there, or for what it counts against. Says no
    /// when the system refuses.
    pub(crate) fn make_way(&mut self, id: ArenaId) -> bool {
        self.unfile(id);
        let unmapped = self.unmake(id).is_ok();
        if unmapped {
            let arena = self.table.arena_mut(id);
            let bytes = pages_bytes(arena.touched);
            arena.touched = 0;
            arena.huge = false;
            arena.unsplit = false;
            arena.untold = false;
            if bytes > 0 {
                self.retain_less(bytes);
                self.counters.given_back += bytes;
                self.counters.arenas_given_back += 1;
                self.counters.arenas -= 1;
            }
        }
        self.file(id);
        unmapped
    }

    /// Under `ulimit -d`: gives up the longest empty arenas while what is kept is more than a part of the
    /// limit. It is of no use to others: a list of 120 MiB was freed under a limit of 150, and the C library
    /// was refused a megabyte until the decay time had passed.
    pub(super) fn leave_room(&mut self) {
        let Some(limit) = self.host.data_limit else { return };
        while self.counters.retained > limit / KEPT_OF_DATA {
            let Some(id) = self.empty.oldest(&self.table, 0).next() else { return };
            if !self.make_way(id) {
                return;
            }
        }
    }

    fn effective_policy(&self) -> Policy {
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

    /// Maps an arena without memory as `made`, or changes the advice of a mapped one. Where the system refuses
    /// the advice the memory is used without it: returns what was made, and why it is not what was asked for.
    fn make(&mut self, id: ArenaId, made: Made) -> OsResult<(Made, Option<Fallback>)> {
        let was = self.table.arena(id).made;
        // What once was advised can only be advised against, which is as good as no advice.
        let made = if was == Made::Thp && made == Made::Plain { Made::Base } else { made };
        if was == made || was == Made::Base && made == Made::Plain {
            return Ok((was, None));
        }
        let advice = match made {
            Made::Base => Some(Advice::NoHuge),
            Made::Thp => Some(Advice::Huge),
            _ => None,
        };
        if let (Made::Base | Made::Plain | Made::Thp, Some(advice)) = (was, advice) {
            // SAFETY: the arena is mapped and has no live run; advice does not change contents.
            let advised = unsafe { self.os.advise(self.table.range(id), advice) };
            let refused = advised.err().map(refusal_of_advice);
            let made = if refused.is_none() { made } else { was };
            self.table.arena_mut(id).made = made;
            return Ok((made, refused));
        }
        self.unmake(id)?;
        match self.map(id, made) {
            Err(error) if advice.is_some() && error.kind() != ErrorKind::OutOfMemory => {
                self.map(id, Made::Plain)?;
                Ok((Made::Plain, Some(refusal_of_advice(error))))
            }
            result => result.map(|()| (made, None)),
        }
    }

    fn map(&mut self, id: ArenaId, made: Made) -> OsResult<()> {
        let backing = match made {
            Made::Base | Made::Broken => Backing::Base,
            Made::Plain => Backing::Plain,
            Made::Thp => Backing::Thp,
            Made::Hugetlb => Backing::Hugetlb(ARENA_BYTES),
            Made::Nothing => unreachable!("nothing is not made"),
        };
        // SAFETY: the arena is a reserved range of a region that this heap owns.
        unsafe { self.os.map(self.table.range(id), backing) }?;
        self.table.arena_mut(id).made = made;
        Ok(())
    }

    /// Unmaps an arena without live runs, if it is mapped.
    pub(crate) fn unmake(&mut self, id: ArenaId) -> OsResult<()> {
        if self.table.is_mapped(id) {
            // SAFETY: the arena belongs to this heap, is mapped, and has no live run.
            unsafe { self.os.unmap(self.table.range(id)) }?;
            self.table.arena_mut(id).made = Made::Nothing;
        }
        Ok(())
    }
}

pub(super) fn is_out_of_memory<T>(result: &OsResult<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::OutOfMemory)
}

fn first_touch<O: Os>(os: &O, range: AddressRange, ahead: bool) -> Touched {
    let os_page = os.os_page();
    let page = AddressRange::new(range.start, os_page);
    // A touch of the first OS page brings the last one if it brings a huge page, and not otherwise: so it is
    // enough to ask whether that is there, which takes 4 µs with the question before. To ask what backs it
    // opens two files, 24 µs for each arena, where the huge page itself takes 229 (docs/measurements/calls.py);
    // and the size of a huge page, of which nothing is needed here, was read from a third one.
    let last = AddressRange::new(range.end() - os_page, os_page);
    let was_there = os.is_resident(last).unwrap_or(true);
    // Not the clock's time: where four programs shared two processors it said 25 ms for what takes 0.2, and
    // `auto` gave huge pages up.
    let before = os.thread_time();
    // SAFETY: the arena is mapped and has no live run; neither changes contents.
    let populated = unsafe { if ahead { os.touch(page) } else { os.populate(page) } };
    let took = Some(os.thread_time().saturating_sub(before).as_nanos() as u64);
    // What was there before says nothing. (Some sandboxes say that everything is.)
    let huge = || if was_there { Ok(os.residency(page)?.huge() > 0) } else { os.is_resident(last) };
    match populated.map(|()| huge()) {
        Ok(Ok(false)) => Touched {
            pages: u128::MAX >> (HEAP_PAGES as usize - os_page.div_ceil(HEAP_PAGE_BYTES)),
            huge: false,
            missing: true,
            took,
        },
        // A kernel that does not answer: what the policy expects is assumed.
        Ok(_) => Touched { pages: u128::MAX, huge: true, missing: false, took },
        // An old kernel, or one that is short of something. In the latter case a collapse makes sure.
        Err(error) => {
            let old = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unsupported);
            Touched { pages: u128::MAX, huge: old, missing: false, took }
        }
    }
}

/// The reason for memory without the advice that it should have. The kernel answers `EAGAIN` or `ENOMEM` where
/// one more mapping would be too many.
fn refusal_of_advice(error: Error) -> Fallback {
    match error.kind() {
        ErrorKind::Again | ErrorKind::OutOfMemory => Fallback::MappingLimit,
        _ => Fallback::ThpUnsupported,
    }
}
