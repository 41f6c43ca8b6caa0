//! Making arenas before they are needed.
//!
//! Terms: a heap *grows quickly* while whole arenas are taken one soon after the other. An arena is made *ahead*
//! when the maintenance thread maps and touches it before an allocation asks for it. Until it is taken it is an
//! empty arena like any other.
//!
//! The kernel clears a huge page when it is touched first: 0.1 to 0.2 ms, in which a program fills half an
//! arena with objects. While the heap grows quickly the maintenance thread has that done on another processor.
//! The program then finds an empty arena, and waits for nothing.
//!
//! ```text
//!   take_whole ─▶ Growth::took: quick? ─▶ due ─▶ the thread:  begin (locked)      choose, make, mark busy
//!       ▲                                                     touch (not locked)  the kernel clears the page
//!       └──────────────── empty arenas ◀───────────────────── complete (locked)   account for it
//! ```
//!
//! A collector, which takes arenas in pauses, *expects* growth: it says how much its next pause may take, and
//! gets that many arenas ahead where it is little beside the heap, or where making one takes so long that it
//! shows in a pause. What it has [`Beside`] them is touched with them: metadata is 2 % of the memory, but its
//! OS pages are ten for each arena, and where a hypervisor has to find the memory one of them can take as long
//! as a huge page.
//!
//! What it may cost: one arena beside 64 live ones or more, two beside 128 (a collector's: beside 48), and they
//! count as retained. When the heap stops growing they are kept for the decay time like what was in use last,
//! then they go back. Nothing is made ahead near a memory limit, of OS pages (for these the program's own
//! touches decide how much is resident), or with one processor.

use super::layout::HEAP_PAGE_BYTES;
use super::list::ArenaId;
use super::record::State;
use super::supply::{Making, Touched};
use super::{ARENA_BYTES, Arenas};
use core::fmt::Debug;
use core::time::Duration;
use hugeheap_os::{AddressRange, Os};

/// Live arenas from which on one is made ahead. The peak has to stay within 5 % of the interpreter's own:
/// metadata takes 1.2 %, what the library itself takes and the rest of the arena at hand 2.8 MiB at most, so
/// this one has room beside 63 arenas. From 32 on a program with 40 arenas of objects, and a list of them whose
/// last arena is full to a tenth, had a peak of 1.072 of it; from 48 on `fragmentation`, which has 54, one of 1.053,
/// and has 1.040 (`hugeheap bench obmalloc --level objects`).
pub(super) const ONE_FROM: u64 = 64;

/// And two. With one, the thread has as long for a huge page as the program for an arena, and is late every
/// time that it wakes slowly; a third brought nothing (`docs/measurements/ahead.py`).
pub(super) const TWO_FROM: u64 = 128;

// A heap of so many arenas with some ahead has at most 5 % more than what lives in it: 1.2 % for metadata, 2.8
// MiB for the library and the rest of the arena at hand.
const _: () = {
    const KIB: u64 = ARENA_BYTES as u64 >> 10;
    let mut cases: &[(u64, u64)] = &[(ONE_FROM, 1), (TWO_FROM, 2)];
    while let [(arenas, ahead), rest @ ..] = cases {
        let live = *arenas * KIB;
        assert!((live * 12 / 1000 + KIB * 14 / 10 + *ahead * KIB) * 20 <= live);
        cases = rest;
    }
};

/// Longest time between two arenas of a heap that grows quickly, in nanoseconds. Clearing a page takes 0.2 ms:
/// of a slower growth less than 3 % can be won.
pub(super) const QUICK: u64 = 8_000_000;

/// Arenas in quick succession before it counts as growth, so that a burst does not start a thread.
pub(super) const LEAST: u32 = 4;

/// Nanoseconds from which on making an arena shows in a pause: a fifth of what one may take. Clearing a page
/// takes 0.2 ms; where a hypervisor has to find the memory, 5 to 13.
pub(super) const SHOWS: u64 = 1_000_000;

/// Nanoseconds from which on an arena that is being made is late: twice as long as the kernel needs to clear
/// it. The first one for which a hypervisor has to find the memory says so before its time is known, and was 6
/// to 8 ms in the pause that came next.
pub(super) const LATE: u64 = 400_000;

/// Live arenas from which on a collector gets what its next pause may take, however quickly arenas are made. It
/// knows that it grows, and how much: nothing is made ahead at the end of its growth.
pub(super) const EXPECTED_FROM: u64 = 48;

/// Arenas that are made ahead of a pause at most.
pub(super) const MOST_EXPECTED: u64 = 2;

/// Empty arenas and arenas with room that are looked at for what is at hand, at most: a cache miss each. Those
/// with the longest free ranges come first.
const LOOK: usize = 64;

/// What a collector has beside arenas, and needs as soon as it takes one.
pub(crate) trait Beside: Debug + Sync {
    /// Has the kernel find the memory for what is beside an arena. By the maintenance thread, without the heap's lock.
    fn touch(&self, arena: AddressRange);
}

/// How fast a heap grows. Pure: time comes in as nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    /// When a whole arena was taken last.
    taken_at: u64,
    /// Arenas taken in quick succession, up to `LEAST`.
    succession: u32,
    /// Arenas that are being made, one at a time.
    begun: u32,
    /// When the last of them was begun.
    begun_at: u64,
    /// Some were made in this succession.
    made: bool,
    /// The thread should look.
    due: bool,
    /// Arenas that a collector's next pause may take; 0 where that is not asked for.
    expected: u64,
    /// What that collector has beside them.
    beside: Option<&'static dyn Beside>,
}

impl Growth {
    pub(crate) const NONE: Self = Self {
        taken_at: 0,
        succession: 0,
        begun: 0,
        begun_at: 0,
        made: false,
        due: false,
        expected: 0,
        beside: None,
    };

    /// A whole arena is taken, for use at once.
    fn took(&mut self, now: u64) {
        let quick = now.saturating_sub(self.taken_at) <= QUICK;
        self.succession = if quick { (self.succession + 1).min(LEAST) } else { 1 };
        self.made &= quick;
        self.taken_at = now;
    }

    /// Who takes arenas has said that it wants more: of these, so many must be there.
    fn expect(&mut self, now: u64, arenas: u64, beside: &'static dyn Beside) {
        self.succession = LEAST;
        self.taken_at = now;
        self.expected = arenas;
        self.beside = (arenas > 0).then_some(beside);
    }

    /// Growth stopped, or nothing can be made ahead of it: it takes a new succession to try again.
    fn stop(&mut self) {
        self.succession = 0;
        self.due = false;
    }

    /// Arenas that should be empty and ready now, beside `live` bytes.
    fn wanted(&self, now: u64, live: u64) -> u64 {
        let grows = self.succession == LEAST && now.saturating_sub(self.taken_at) <= QUICK;
        if grows { self.most(live) } else { 0 }
    }

    /// Until when arenas made ahead are kept, and how many.
    fn kept(&self, now: u64, live: u64, decay: u64) -> Option<(u64, u64)> {
        let until = self.taken_at.saturating_add(decay);
        (self.made && now <= until && self.most(live) > 0).then(|| (until, self.most(live)))
    }

    fn most(&self, live: u64) -> u64 {
        allowed(live).max(self.expected)
    }
}

fn allowed(live: u64) -> u64 {
    let arenas = live / ARENA_BYTES as u64;
    u64::from(arenas >= ONE_FROM) + u64::from(arenas >= TWO_FROM)
}

/// What can be taken without a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    /// Free bytes that are resident, and that a request for heap pages finds.
    pub(crate) bytes: u64,
    /// The maintenance thread makes an arena.
    pub(crate) is_made: bool,
    /// It will: it has, since the heap grows.
    pub(crate) is_due: bool,
    /// It does, or will, and that takes so long that a pause had better end with waiting for it.
    pub(crate) comes: bool,
    /// How long making one took lately, on average.
    pub(crate) takes: Duration,
    /// How long it may take: as long as that, or as the last one.
    pub(crate) may_take: Duration,
}

/// An arena that is being made ahead: begun by [`Arenas::begin_ahead`], touched without the heap's lock, and handed to
/// [`Arenas::complete_ahead`].
#[derive(Debug)]
#[must_use = "the arena stays busy until it is completed"]
pub struct Ahead {
    id: ArenaId,
    range: AddressRange,
    making: Making,
    touched: Option<Touched>,
    beside: Option<&'static dyn Beside>,
}

impl Ahead {
    /// Has the kernel clear the memory. Without the heap's lock, and without that of the process's mappings:
    /// where a hypervisor had to find the memory, another thread that mapped and advised an arena meanwhile
    /// waited 5 ms behind `populate`, and 0.01 behind a touch. In a heap that grew it was 5 behind a touch,
    /// too, and why is not known: who can wait for this arena should.
    pub fn touch<O: Os>(&mut self, os: &O) {
        self.touched = Some(self.making.touch(os, self.range, true));
        if let Some(beside) = self.beside {
            beside.touch(self.range);
        }
    }
}

impl<O: Os> Arenas<O> {
    /// Notes that a whole arena is taken, and whether more should be made ahead.
    pub(super) fn took_whole(&mut self, now: u64) {
        self.growth.took(now);
        self.growth.due = self.missing_ahead(now) > 0;
    }

    /// Somebody who cannot wait for an arena says how many bytes it may need soon, however slowly the heap
    /// grows: a collector, which takes them in pauses. Making one has taken up to 20 ms, where a hypervisor had
    /// to find the memory. Two beside a heap of 96 MiB also where it takes 0.2: a host that had memory at hand
    /// has none from one arena to the next, and a pause of 4 MiB of survivors then waited for the second.
    pub(crate) fn expect_growth(&mut self, bytes: u64, beside: &'static dyn Beside) {
        let now = self.now();
        let is_little = self.counters.live / ARENA_BYTES as u64 >= EXPECTED_FROM;
        let arenas =
            if is_little || self.shows() { bytes.div_ceil(ARENA_BYTES as u64).min(MOST_EXPECTED) } else { 0 };
        self.growth.expect(now, arenas, beside);
        self.growth.due = self.missing_ahead(now) > 0;
    }

    /// What is there for somebody who cannot wait and may need so many bytes. No more than these are counted.
    ///
    /// Retained bytes are not the answer: the end of a large block is retained, too, and nobody else can have
    /// it. A heap with a table of 128 MiB took these 224 KiB for what its next collection would find, and made
    /// arenas in its pauses.
    pub(crate) fn ready(&self, wanted: u64) -> Ready {
        let is_made = self.growth.begun > 0;
        Ready {
            bytes: self.at_hand(wanted),
            is_made,
            is_due: self.growth.due && self.growth.made,
            comes: self.is_late() || self.shows() && (is_made || self.growth.due),
            takes: Duration::from_nanos(self.latency.average()),
            may_take: Duration::from_nanos(self.latency.most()),
        }
    }

    /// Free bytes that are resident, whoever can have them.
    pub(crate) fn retained(&self) -> u64 {
        self.counters.retained
    }

    /// Whether the next arena for a heap page has to be made, for which a pause had better not be longer.
    pub(super) fn would_make(&self) -> bool {
        let takes_long = self.shows() || self.is_late();
        takes_long && self.empty.is_empty() && self.partial.is_empty() && self.broken.is_empty()
    }

    /// Whether an arena is being made for so long that it is one of those that take long: perhaps the first, of
    /// which the average does not tell.
    fn is_late(&self) -> bool {
        self.growth.begun > 0 && self.now().saturating_sub(self.growth.begun_at) >= LATE
    }

    /// Resident bytes of empty arenas and of those with room, up to `most`.
    fn at_hand(&self, most: u64) -> u64 {
        let with_room = self.partial.emptiest(&self.table).chain(self.broken.emptiest(&self.table));
        let mut bytes = 0;
        for id in self.empty.all(&self.table).chain(with_room).take(LOOK) {
            if bytes >= most {
                break;
            }
            bytes += u64::from(self.arena(id).retained_pages()) * HEAP_PAGE_BYTES as u64;
        }
        bytes.min(most)
    }

    /// Whether making an arena takes so long that it shows in a pause.
    fn shows(&self) -> bool {
        self.latency.average() >= SHOWS
    }

    /// Whether the maintenance thread should make arenas ahead. Cheap; asked after every event.
    pub(crate) fn ahead_due(&self) -> bool {
        self.growth.due
    }

    /// Arenas to be made ahead now.
    fn missing_ahead(&self, now: u64) -> u64 {
        let wanted = self.growth.wanted(now, self.counters.live);
        if wanted == 0 || self.host.processors < 2 || self.is_tight() {
            return 0;
        }
        let begun = u64::from(self.growth.begun);
        let ready = begun + self.empty.all(&self.table).take(wanted as usize).count() as u64;
        wanted - ready.min(wanted)
    }

    /// Bytes of empty arenas that retention leaves alone because the heap grew quickly of late, and until when.
    pub(super) fn kept_ahead(&self, now: u64) -> Option<(u64, u64)> {
        let (until, arenas) = self.growth.kept(now, self.counters.live, self.demand.decay())?;
        Some((until, arenas * ARENA_BYTES as u64))
    }

    /// Begins to make the next arena ahead, if one is due.
    pub fn begin_ahead(&mut self) -> Option<Ahead> {
        let now = self.now();
        self.growth.due = false;
        while self.missing_ahead(now) > 0 {
            let id = self.any_without_memory()?;
            let Ok(making) = self.begin_supply(true, id, now) else {
                // Not counted: nobody asked for it.
                self.growth.stop();
                self.put_back(id);
                return None;
            };
            let range = self.table.range(id);
            if making.is_resident() {
                let touched = making.touch(&self.os, range, false);
                self.add_ahead(id, now, making, touched);
            } else if making.may_be_huge() {
                let arena = self.table.arena_mut(id);
                arena.state = State::GivenBack;
                arena.busy = true;
                self.growth.begun += 1;
                self.growth.begun_at = now;
                return Some(Ahead { id, range, making, touched: None, beside: self.growth.beside });
            } else {
                self.growth.stop();
                self.put_back(id);
            }
        }
        None
    }

    /// Takes over what came of it. True: another one may be due.
    pub fn complete_ahead(&mut self, ahead: Ahead) -> bool {
        let now = self.now();
        let Ahead { id, range, making, touched, .. } = ahead;
        let touched = touched.unwrap_or_else(|| making.touch(&self.os, range, false));
        self.growth.begun -= 1;
        self.table.arena_mut(id).busy = false;
        if touched.missing {
            // The host has no huge page. The program's own touches decide how much of the arena is resident.
            self.growth.stop();
        }
        self.add_ahead(id, now, making, touched);
        self.growth.due = self.missing_ahead(now) > 0;
        self.growth.due
    }

    fn add_ahead(&mut self, id: ArenaId, now: u64, making: Making, touched: Touched) {
        self.complete_supply(id, now, making, touched);
        self.file(id);
        self.growth.made = true;
        self.counters.arenas_ahead += 1;
    }

    /// Nobody is there to make arenas ahead.
    pub(crate) fn leave_ahead(&mut self) {
        self.growth.due = false;
    }
}
