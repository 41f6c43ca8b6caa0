//! Kept memory where the process has a memory limit: it is *offered* to the kernel.
//!
//! An offered arena (`MADV_FREE`) is kept like any other, and costs no fault when it is used again. But what
//! the program allocates elsewhere does not compete with it: the kernel takes offered pages before it kills
//! anybody, and needs no swap for that.
//!
//! ```text
//!              becomes empty                 a pass: plan, perform, complete
//!   in use ──────────────────▶ waiting ─────────────────────────────────────▶ offered
//!     ▲                           │                                              │
//!     └───────────────────────────┴───────────── used again: is it still huge? ──┘
//! ```
//!
//! *What failed before.* Kept memory was given back when less than a sixteenth of the limit was left. But that
//! was looked at when this heap needed an arena, and in passes, an eighth of a decay time apart. A program that
//! dropped 120 MiB of large blocks and made 120 MiB of small ones with glibc, 50 ms later, was killed with a
//! limit of 230 MiB; without hugeheap it ran with 150.
//!
//! What waits is offered when it is more than a thirty-second of the limit: less is no danger, and a program
//! that frees and takes the same few arenas all the time is left in peace. For the same reason an arena has to
//! be empty for a millisecond.
//!
//! Where the kernel refuses, what is kept is at most a quarter of what the limit would leave without it. That
//! is looked at when memory becomes kept and every tenth of a second, so it is weaker: what grows faster
//! elsewhere is not seen in time.
//!
//! Invariant: only an empty arena waits or is offered; of an offered one `touched` says what *may* be resident,
//! as always, and `huge` what was true when it was offered. When it is used again the kernel is asked.

use super::layout::ARENA_BYTES;
use super::list::ArenaId;
use super::plan::{Action, Plan, Step};
use super::record::{Arena, Made, State};
use super::{Arenas, maintenance};
use crate::telemetry::Fallback;
use hugeheap_os::{AddressRange, Os};

/// Part of the limit, as a divisor, that may wait.
const WAITING: u64 = 32;

/// Nanoseconds that an arena is empty before it is offered. Glibc's first touch of 1 MiB takes a quarter of that.
const YOUNG: u64 = 1_000_000;

/// Longest time between passes of which none found anything old enough, in nanoseconds.
const PATIENT: u64 = 128_000_000;

/// Nanoseconds between passes as long as memory is kept that the kernel does not take.
const REFUSED: u64 = 100_000_000;

/// Part, as a divisor, of what the limit would leave that is kept then.
const KEPT: u64 = 4;

/// Decay times after which the kernel is asked again.
const RETRY: u64 = 10;

/// Whether the kernel may take an empty arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Offer {
    /// It is in use, has no memory, or cannot be offered. The state of zeroed metadata.
    No = 0,
    /// It will be offered where there is a limit.
    Waits,
    /// The kernel was told that it may take it.
    Made,
}

/// What a heap offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offers {
    /// Arenas that wait.
    pub(super) waiting: u64,
    /// The same after the last pass.
    seen: u64,
    /// How long the next pass waits, if there is a reason for one.
    pause: u64,
    /// The kernel refused, and is not asked before that; 0: it did not.
    retry_at: u64,
}

impl Offers {
    pub(crate) const NONE: Self = Self { waiting: 0, seen: 0, pause: YOUNG, retry_at: 0 };
}

impl Offers {
    /// Notes what the state of an arena means for it. Called whenever that changed. Says whether the arena is
    /// used again after it was offered, and the kernel has to be [asked](Arenas::ask_again) whether it is still
    /// huge.
    #[inline(always)]
    pub(super) fn note(&mut self, arena: &mut Arena) -> bool {
        let can = arena.state == State::Empty && arena.made != Made::Hugetlb && !arena.apart;
        if can == (arena.offer != Offer::No) {
            return false;
        }
        if can {
            arena.offer = Offer::Waits;
            self.waiting += 1;
            return false;
        }
        if core::mem::replace(&mut arena.offer, Offer::No) == Offer::Waits {
            self.waiting -= 1;
            self.seen = self.seen.min(self.waiting);
            return false;
        }
        arena.huge && arena.in_use != 0
    }
}

impl<O: Os> Arenas<O> {
    /// Asks the kernel whether an arena that was offered is still a huge page.
    #[cold]
    pub(super) fn ask_again(&mut self, id: ArenaId) {
        let huge = is_still_huge(&self.os, self.table.range(id));
        self.table.arena_mut(id).huge = huge;
    }

    /// Whether so much waits that a pass is due for it.
    pub(super) fn offers_due(&self) -> bool {
        self.is_much(self.offers.waiting)
    }

    fn is_much(&self, arenas: u64) -> bool {
        arenas > 0 && self.host.limit().is_some_and(|limit| arenas * ARENA_BYTES as u64 > limit / WAITING)
    }

    /// Whether a pass at `look` comes too late for what became kept since the last one.
    pub(super) fn offers_before(&self, look: u64) -> bool {
        self.is_much(self.offers.waiting - self.offers.seen) && look > self.now().saturating_add(YOUNG)
    }

    fn is_refused(&self, now: u64) -> bool {
        now < self.offers.retry_at
    }

    /// Bytes that may be kept; `None`: as many as the retention rule says.
    pub(super) fn most_kept(&self, now: u64) -> Option<u64> {
        let room = self.host.room().filter(|_| self.is_refused(now))?;
        Some((room + self.counters.retained) / KEPT)
    }

    /// `kept`: the most recent of these were made ahead, and are needed at any moment.
    pub(super) fn plan_offers(&mut self, plan: &mut Plan, now: u64, kept: u64) {
        if !self.offers_due() || self.is_refused(now) {
            return;
        }
        for id in self.empty.oldest(&self.table, kept).take(maintenance::LOOK) {
            if plan.is_full() {
                return;
            }
            let arena = self.arena(id);
            if arena.offer == Offer::Waits {
                // Those before it became empty later.
                if now < arena.changed_at.saturating_add(YOUNG) {
                    return;
                }
                plan.push(id, self.table.range(id), Action::Offer);
            }
        }
    }

    /// Takes over what the kernel answered. Says whether it will take the arena when it has to.
    pub(super) fn offered(&mut self, step: &Step, now: u64) -> bool {
        if step.result.is_err() {
            if self.offers.retry_at == 0 {
                self.count(Fallback::OfferRefused);
            }
            self.offers.retry_at = now.saturating_add(self.demand.decay().saturating_mul(RETRY));
            return false;
        }
        let arena = self.table.arena_mut(step.id);
        if arena.offer == Offer::Waits {
            arena.offer = Offer::Made;
            self.offers.waiting -= 1;
        }
        true
    }

    /// After a pass, in which arenas were `offered` or the kernel `refused` that: how long until the next one
    /// for what still waits, if that has to be.
    pub(super) fn next_offers(&mut self, now: u64, offered: bool, refused: bool) -> Option<u64> {
        self.offers.seen = self.offers.waiting;
        let due = self.offers_due();
        self.offers.pause = if offered || !due { YOUNG } else { (self.offers.pause * 2).min(PATIENT) };
        let pause = match refused {
            // This pass did not know it yet, and kept more than is kept then.
            true => YOUNG,
            false if self.is_refused(now) => REFUSED,
            false => self.offers.pause,
        };
        due.then_some(pause)
    }
}

/// Whether an offered arena that is used again is a huge page. Its first OS page is touched, which the program
/// would do next anyway: if the kernel took the arena, that is the fault that decides what it is.
fn is_still_huge<O: Os>(os: &O, range: AddressRange) -> bool {
    let page = AddressRange::new(range.start, os.os_page());
    // SAFETY: the arena is mapped, and what it holds is nobody's yet; neither call changes contents.
    let _ = unsafe { os.populate(page) };
    os.residency(page).is_ok_and(|residency| residency.huge() > 0)
}
