//! Heap pages of which a part is vacant: who uses them tells which, and gives up what can be had.
//!
//! ```text
//!   event: pages freed, or used in part ─▶ half a decay time ─▶ look ─▶ half a decay time ─▶ look ─▶ break, with what is vacant in live heap pages
//!                                                              changed since the look before │      │
//!                                                                            ◀───────────────┘      └─▶ nothing vacant: none before the next event
//! ```
//!
//! An arena is *vacant* when so little of it lives that its huge page is worth less than what is not used of
//! it. The arenas do not know: to them a heap page in use is in use as a whole. So the *tenant*, the object
//! allocator, looks, outside of the lock, and tells what it found; the arenas decide; the tenant gives the OS
//! pages up one arena at a time.
//!
//! A look costs time in proportion to the heap: not more than one part in [`SHARE`] of the time is spent with
//! it, whatever the decay time.

use super::ARENA_BYTES;
use super::layout::HEAP_PAGE_BYTES;
use super::list::ArenaId;
use super::maintenance::{break_of, is_whole};
use super::plan::{Plan, Vacate};
use super::record::{Made, State};
use super::{Arenas, layout};
use crate::telemetry::Fallback;
use hugeheap_os::{AddressRange, Os, Result as OsResult};

/// Arenas that one look tells of: as many as a pass has steps.
const TOLD: usize = super::plan::STEPS;

/// Live bytes of an arena up to which its huge page is given up for vacant OS pages: a quarter. At half, a heap
/// that lost every second object would lose all of its huge pages for the tenth of it that can be had.
const LIVE: usize = ARENA_BYTES / 4;

/// The same near the memory limit.
const LIVE_WHEN_TIGHT: usize = ARENA_BYTES / 2;

/// Vacant bytes that are worth a huge page: an eighth of it.
const VACANT: usize = ARENA_BYTES / 8;

/// The same where no huge page is lost.
const VACANT_WITHOUT_HUGE: usize = ARENA_BYTES / 32;

/// Live bytes from which on an arena of which OS pages were given back is like any other again, and may be a
/// huge page: half of it.
const REFILLED: usize = ARENA_BYTES / 2;

/// One part in so many of the time a processor looks, on the whole. A look at 300 MiB took 10 ms.
///
/// Of the looking thread's time, and not the clock's. Where eight programs shared two processors, looks that
/// took 0.1 ms took 45 by the clock, and a third of the programs that had lost nine of ten objects gave nothing
/// back for nine seconds.
const SHARE: u64 = 200;

/// Rounds of looks that may come one after the other before that share counts: two find what is vacant after a
/// heap has shrunk, and it may not have been done with it at the first.
const BURST: u64 = 3;

/// Decay times for which an arena of which OS pages were made alike is not made so again. It takes a
/// millisecond of the maintenance thread's time, and each page that the program writes to afterwards costs it a
/// fault and a copy: where a program uses an arena now and then, what is merged would not last as long as it
/// took.
const REST: u64 = 8;

/// The part by which runs become more between two rounds in a heap that grows: nothing is given back of it.
/// `phase-shift`, which fills 256 MiB six times and keeps a hundredth of each, had huge pages for 75 % of its
/// memory where each time took a second.
const GROWTH: u64 = 64;

/// The part of a decay time by which a look may be late. A pass comes an eighth of it after the one before at
/// the earliest, and who makes passes sets its own clock a moment after it was told the time: taken exactly,
/// nearly every look was found to be late, and each event woke the maintenance thread for a pass that had
/// nothing to do, and read the host's state from a dozen files. `mstress` had 109 to 184 of them, and has 19 to
/// 41 (command: docs/mechanisms/maintenance-thread.md).
const LATE: u64 = 4;

/// Live bytes from which on anything is looked at: with less there is little to be had, and a small program is
/// spared a thread. It costs 0.2 ms, a tenth of what a program of a few milliseconds takes, and one whose only
/// thread locks and unlocks all the time a seventh (docs/mechanisms/maintenance-thread.md, "Without the thread").
const WORTH: u64 = 4 * ARENA_BYTES as u64;

/// The same in a program that has threads of its own, which has paid for both: a quarter of an arena. `batches
/// --threads 2` idled with 2.7 MiB of anonymous memory, of which 0.4 lived, and `larson` with 1.2, now 0.5
/// (`bench/target/release/workloads-hugeheap larson --mode memory --idle 4`).
const WORTH_WITH_THREADS: u64 = ARENA_BYTES as u64 / 4;

/// Freed bytes that make a look worth it: 16 heap pages, and a part in so many of what lives. A heap of blocks
/// of 16 to 512 bytes that loses nine of ten at random frees one page in 200, and a fifth of its OS pages is
/// vacant.
const NEWS: u64 = 16 * HEAP_PAGE_BYTES as u64;
const NEWS_PART: u64 = 1024;

/// What a tenant gave up of an arena, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GivenUp {
    /// OS pages in which nothing lives.
    pub(crate) vacant: usize,
    /// Others, which were made alike.
    pub(crate) alike: usize,
}

/// What uses heap pages in parts.
pub(crate) trait Tenant {
    /// Gives up the OS pages of an arena in which nothing lives, though something does in their heap pages:
    /// calls `drop` with each range, which loses its contents. Until it fails. `merge`: and makes OS pages in
    /// which something lives equal to each other, for the kernel to merge them. Returns the bytes, and the
    /// first error.
    fn vacate(
        &self,
        arena: AddressRange,
        merge: bool,
        drop: &mut dyn FnMut(AddressRange) -> OsResult<()>,
    ) -> (GivenUp, OsResult<()>);

    /// An arena in which nothing lives was given back. It cannot come into use before this returns: what the
    /// tenant keeps beside it can go as well.
    fn given_back(&self, _arena: AddressRange) {}
}

/// Nobody does.
pub(crate) struct NoTenant;

impl Tenant for NoTenant {
    fn vacate(
        &self,
        _: AddressRange,
        _: bool,
        _: &mut dyn FnMut(AddressRange) -> OsResult<()>,
    ) -> (GivenUp, OsResult<()>) {
        (GivenUp::default(), Ok(()))
    }
}

/// What a tenant tells of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Vacancy {
    /// Where it begins.
    pub(crate) arena: usize,
    /// Heap pages that the tenant uses in parts.
    pub(crate) blocks: u128,
    /// What lives there, in bytes.
    pub(crate) live: usize,
    /// OS pages that can be given up there, in bytes, but for those of pages at hand.
    pub(crate) bytes: usize,
    /// Those of pages from which the tenant takes its next blocks.
    pub(crate) at_hand: usize,
    /// About how many bytes fewer it takes when OS pages are made alike in which something lives; 0 unless it
    /// was asked for.
    pub(crate) alike: usize,
    /// Some were, and the arena is not as it was before.
    pub(crate) gone: bool,
}

/// When to look, and what the last look told.
#[derive(Clone, Copy)]
pub(super) struct Looks {
    /// Somebody looks when it is due.
    pub(super) tenant: bool,
    /// Bytes of heap pages that a tenant freed or came to use in part since the last look began, and of runs
    /// that were taken.
    freed: u64,
    taken: u64,
    /// Whether the host merges equal pages, as it was seen last.
    merges: Option<bool>,
    /// The program has more than one thread, or had.
    threads: bool,
    /// A tenant keeps more runs than before: it is looked at whatever lives.
    pub(super) kept: bool,
    /// When the next one is due, in nanoseconds of the system's clock; `u64::MAX`: not before something happens.
    pub(super) due: u64,
    /// After which arena it goes on; 0: it begins with the first.
    after: usize,
    /// A look of this round saw what changed since the one before.
    later: bool,
    /// Bytes in runs when the round before began, and whether they have become more since.
    live: u64,
    grows: bool,
    /// When this round began, and how long a processor looked in it.
    began: u64,
    took: u64,
    /// What is the share of the rounds so far is over then, and the most that a round took of it since it was
    /// last over: a round that costs less than the ones before, in a heap that has become small, waits no
    /// longer than those.
    rests_until: u64,
    rest: u64,
    told: [Vacancy; TOLD],
    count: usize,
    /// Arenas of which OS pages were given back and that were not refilled since.
    pub(super) arenas: u32,
}

const NOTHING: Vacancy =
    Vacancy { arena: 0, blocks: 0, live: 0, bytes: 0, at_hand: 0, alike: 0, gone: false };

impl Vacancy {
    /// Bytes of OS pages that can be given up and are worth it where at least so many have to be.
    ///
    /// Pages at hand count where they are as many by themselves. Where all did, a program that paused after it
    /// had grown lost the huge page of the arena that it would have filled next, for what was vacant in the few
    /// pages at hand that lay there.
    const fn worth(&self, least: usize) -> usize {
        self.bytes + if self.at_hand >= least { self.at_hand } else { 0 }
    }
}

impl Looks {
    pub(super) const NEW: Self = Self {
        tenant: false,
        freed: 0,
        taken: 0,
        threads: false,
        kept: false,
        merges: None,
        due: u64::MAX,
        after: 0,
        later: false,
        live: 0,
        grows: false,
        began: 0,
        took: 0,
        rests_until: 0,
        rest: 0,
        told: [NOTHING; TOLD],
        count: 0,
        arenas: 0,
    };

    /// Heap pages were freed, or are used in part: by a tenant, so that who takes runs as a whole has nothing
    /// looked at.
    pub(super) fn freed(&mut self, bytes: u64) {
        self.freed = self.freed.saturating_add(bytes);
    }

    /// Runs were taken.
    pub(super) fn taken(&mut self, bytes: u64) {
        self.taken = self.taken.saturating_add(bytes);
    }

    /// When a round that is wanted at a moment may begin.
    fn earliest(&self, wanted: u64) -> u64 {
        wanted.max(self.rests_until.saturating_sub(self.rest.saturating_mul(BURST)))
    }

    /// Whether so much happened that a look may find something, with `live` bytes in runs. What is taken is of
    /// no meaning unless it refills what was given back.
    fn has_news(&self, live: u64) -> bool {
        let enough = (live / NEWS_PART).max(NEWS);
        let changed = self.freed >= enough || self.arenas > 0 && self.taken >= ARENA_BYTES as u64;
        let worth = if self.threads { WORTH_WITH_THREADS } else { WORTH };
        self.tenant && (self.kept || live >= worth && changed)
    }
}

/// A look that is due, or that somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DueLook {
    /// After which arena; 0: at all of them.
    pub(crate) after: usize,
    /// What changed lately is left alone.
    pub(crate) quiet: bool,
    /// It is the program's own time, and no share of it that is over.
    pub(crate) asked: bool,
}

/// What a look told, while it is made: without the lock.
pub(crate) struct Told {
    began: u64,
    /// How long a processor had worked for this thread then.
    worked: u64,
    look: DueLook,
    told: [Vacancy; TOLD],
    count: usize,
}

impl Told {
    /// Notes what is told. Says whether there is room for more.
    pub(crate) fn note(&mut self, vacancy: Vacancy) -> bool {
        // Most that are told are not worth it, and need no room.
        let worth = vacancy.worth(VACANT_WITHOUT_HUGE) + vacancy.alike;
        if worth >= VACANT_WITHOUT_HUGE || vacancy.gone && vacancy.live >= REFILLED {
            self.told[self.count] = vacancy;
            self.count += 1;
        }
        self.count < TOLD
    }
}

impl<O: Os> Arenas<O> {
    /// The same with a tenant, that of the heaps over these arenas: who makes passes asks for looks that are
    /// [due](Self::due_look) before each, and [performs](Plan::perform_with) plans with it.
    pub(crate) const fn with_tenant(mut self) -> Self {
        self.looks.tenant = true;
        self
    }

    /// Whether a look is due at some time.
    pub(crate) fn has_look_ahead(&self) -> bool {
        self.looks.due != u64::MAX || self.looks.has_news(self.counters.live)
    }

    /// Whether the tenant is to look before a moment. Something may have happened since passes were planned
    /// last: a heap that slept until its retention changed was not looked at while it did.
    pub(super) fn looks_before(&mut self, moment: u64) -> bool {
        self.has_look_ahead() && moment > 0 && {
            let now = self.recently();
            self.schedule_look(now).saturating_add(self.demand.decay() / LATE) < moment
        }
    }

    /// When the next look is due: half a decay time after something happened. `u64::MAX`: nothing did.
    pub(super) fn schedule_look(&mut self, now: u64) -> u64 {
        if self.looks.due == u64::MAX && self.looks.has_news(self.counters.live) {
            self.looks.due = self.looks.earliest(now.saturating_add(self.demand.decay() / 2));
        }
        self.looks.due
    }

    /// So many heap pages of a tenant are used in part only.
    pub(crate) fn became_partial(&mut self, pages: u64) {
        self.looks.freed(pages * HEAP_PAGE_BYTES as u64);
    }

    /// The program has more than one thread: less has to live for a look.
    pub(crate) fn gained_threads(&mut self) {
        self.looks.threads = true;
    }

    /// A tenant keeps more page runs that nobody uses than before.
    pub(crate) fn keeps_runs(&mut self) {
        self.looks.kept = true;
    }

    /// What could not be had of an arena may be tried again at that time: then it has to be told of again.
    pub(super) fn look_again_at(&mut self, time: u64) {
        self.looks.due = self.looks.due.min(time);
    }

    /// The tenant cannot give up anything in this process, and is not asked any more.
    pub(crate) fn cannot_vacate(&mut self) {
        if core::mem::replace(&mut self.looks.tenant, false) {
            self.count(Fallback::NoBarrier);
        }
        // Each time: a plan that was under way may have asked for another look since.
        (self.looks.due, self.looks.count) = (u64::MAX, 0);
    }

    /// Nobody is there to look. Due forever, each event led to a pass.
    pub(crate) fn leave_looks(&mut self) {
        let looks = &mut self.looks;
        (looks.due, looks.freed, looks.taken, looks.kept) = (u64::MAX, 0, 0, false);
    }

    /// Whether the tenant is to look now.
    pub(crate) fn due_look(&mut self) -> Option<DueLook> {
        if self.looks.due > self.now() {
            return None;
        }
        let look = DueLook { after: self.looks.after, quiet: !self.is_tight(), asked: false };
        // What is kept from here on may be kept where was looked by then.
        self.looks.kept &= look.after != 0;
        Some(look)
    }

    /// A look begins, of the calling thread.
    pub(crate) fn begin_look(&self, look: DueLook) -> Told {
        Told { began: self.now(), worked: self.thread_time(), look, told: [NOTHING; TOLD], count: 0 }
    }

    /// Takes over what a look of this thread told. `next`: where the next one goes on, `later`: something
    /// changed since the look before. Returns the arenas that were refilled, for the tenant to forget what was
    /// given up there.
    pub(crate) fn looked(&mut self, told: &Told, next: Option<usize>, later: bool) -> [usize; TOLD] {
        let (now, worked) = (self.now(), self.thread_time());
        let decay = self.demand.decay();
        let looks = &mut self.looks;
        if looks.after == 0 {
            (looks.began, looks.took, looks.later) = (told.began, 0, false);
            (looks.freed, looks.taken) = (0, 0);
            looks.grows = self.counters.live > looks.live.saturating_add(looks.live / GROWTH);
            looks.live = self.counters.live;
        }
        looks.took = looks.took.saturating_add(worked.saturating_sub(told.worked));
        // A heap that grows has a use for huge pages, and for some of what is vacant.
        let waits = told.look.quiet && looks.grows;
        looks.later |= later || waits;
        (looks.told, looks.count) = (told.told, if waits { 0 } else { told.count });
        (looks.after, looks.due) = match next {
            Some(next) => (next, now),
            None => {
                // With what a program asks for counted, one that gave back all the time for seconds was not
                // looked at for minutes.
                if !told.look.asked {
                    let rest = looks.took.saturating_mul(SHARE);
                    looks.rest = if looks.rests_until > now { looks.rest.max(rest) } else { rest };
                    looks.rests_until = looks.rests_until.max(now).saturating_add(rest);
                }
                let next = looks.earliest(looks.began.saturating_add(decay / 2));
                (0, if looks.later { next } else { u64::MAX })
            }
        };
        let mut refilled = [0; TOLD];
        for (vacancy, refilled) in told.told[..told.count].iter().zip(&mut refilled) {
            if vacancy.gone && vacancy.live >= REFILLED && self.refilled(vacancy.arena) {
                *refilled = vacancy.arena;
            }
        }
        refilled
    }

    /// An arena of which OS pages were given back is in use again. It may be collapsed from now on.
    fn refilled(&mut self, start: usize) -> bool {
        let Some(id) = self.table.find(start) else { return false };
        self.sweep.news |= self.forget_vacated(id);
        true
    }

    /// Breaks arenas of which little lives, and gives back what is vacant in their live heap pages.
    pub(super) fn plan_vacating(&mut self, plan: &mut Plan, now: u64, tight: bool) {
        let (told, count) = (self.looks.told, core::mem::take(&mut self.looks.count));
        for vacancy in &told[..count] {
            if plan.is_full() {
                // Nobody remembers them: they are told of again, in a round from the beginning.
                self.looks.after = 0;
                self.look_again_at(now);
                return;
            }
            let Some(id) = self.table.find(vacancy.arena) else { continue };
            let arena = self.arena(id);
            let used = matches!(arena.state, State::Partial | State::Full);
            if !used || arena.made == Made::Hugetlb {
                continue;
            }
            // Another plan has it, or it is too early to try again.
            let free_at =
                if arena.busy { now.saturating_add(self.demand.decay() / 2) } else { arena.retry_at };
            if now < free_at {
                self.look_again_at(free_at);
                continue;
            }
            let whole = is_whole(arena, self.host.thp);
            let others = (arena.in_use & !vacancy.blocks).count_ones() as usize * HEAP_PAGE_BYTES;
            let most = if tight { LIVE_WHEN_TIGHT } else { LIVE };
            let least = if whole { VACANT } else { VACANT_WITHOUT_HUGE };
            let free = arena.retained_pages() as usize * HEAP_PAGE_BYTES;
            let rests_until = match arena.alike_at {
                0 => 0,
                before => before.saturating_add(self.demand.decay().saturating_mul(REST)),
            };
            let wanted = vacancy.alike > 0 && self.merges();
            let merges = wanted && now >= rests_until;
            let spared = vacancy.worth(least) + free + if merges { vacancy.alike } else { 0 };
            if vacancy.live + others > most || spared < least {
                if wanted && !merges {
                    self.look_again_at(rests_until);
                }
                continue;
            }
            let what = if merges { Vacate::AndMerge } else { Vacate::Yes };
            let action = break_of(arena, whole, what);
            plan.push(id, self.table.range(id), action);
        }
    }

    /// Whether it was asked for to make OS pages alike.
    pub(crate) const fn wants_merging(&self) -> bool {
        self.settings.merge
    }

    /// Notes whether the host merges equal pages. Where it was asked for and the host does not, that is
    /// counted: once, and again when it did meanwhile.
    pub(crate) fn note_merging(&mut self, host: bool) {
        if self.looks.merges.replace(host) != Some(host) && !host {
            self.count(Fallback::NoMerging);
        }
    }

    /// Whether OS pages are made alike: it was asked for, and the host merges.
    pub(crate) fn merges(&self) -> bool {
        self.settings.merge && self.looks.merges == Some(true)
    }

    /// Notes that OS pages of live heap pages of an arena were given up, and others made alike.
    pub(super) fn vacated(&mut self, id: ArenaId, bytes: u64, alike: u64, now: u64) {
        let arena = self.table.arena_mut(id);
        if bytes + alike > 0 && !arena.vacated && arena.in_use != 0 {
            arena.vacated = true;
            self.looks.arenas += 1;
        }
        if alike > 0 {
            (arena.alike_at, arena.merging) = (now, true);
            self.counters.alike += alike;
        }
        self.counters.given_back += bytes;
        self.counters.vacated += bytes;
    }

    /// Nothing lives in an arena any more, or it was refilled.
    pub(super) fn forget_vacated(&mut self, id: ArenaId) -> bool {
        let was = core::mem::take(&mut self.table.arena_mut(id).vacated);
        self.looks.arenas -= u32::from(was);
        was
    }
}

// A heap page is never given up by a tenant as a whole: that is what freeing it is for.
const _: () = assert!(VACANT_WITHOUT_HUGE >= layout::HEAP_PAGE_BYTES);
