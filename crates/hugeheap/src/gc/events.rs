//! What happens in a heap, told while it happens: to a function of the program, and to the log.
//!
//! ```text
//!   collection ─▶ Event ─┬▶ hook of the heap
//!                        └▶ log: a line, if its section is asked for
//! ```
//!
//! Nobody looks at a clock for an event that nobody wants. Sums over all heaps of the process are kept always:
//! [`counters`].

use super::heap::Heap;
use super::log::{self, LogOf};
use super::mark::Phase;
use crate::arena::ARENA_BYTES;
use crate::object::Source;
use crate::telemetry::Snapshot;
use crate::telemetry::collectors::{COLLECTORS, Collector, LONG_PAUSE, lengths};
use core::fmt;
use core::time::Duration;
use hugeheap_os::Facts;

/// Something that happened in a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A minor collection.
    Minor {
        /// How long it took.
        took: Duration,
        /// Bytes that were used of the nursery.
        nursery: usize,
        /// Objects that moved to the old generation.
        survivors: u64,
        /// Bytes of these.
        survived: usize,
        /// Objects that stay in the nursery.
        staying: usize,
        /// Of these, those for which the old generation had no room.
        not_moved: u64,
        /// Bytes of objects in the old generation.
        old: usize,
        /// Bytes of its heap pages and large blocks.
        held: usize,
    },
    /// A step of a major collection, or all of it.
    Step {
        /// How long it took.
        took: Duration,
        /// What was done.
        from: Phase,
        /// What comes next.
        to: Phase,
        /// Bytes of objects in the old generation.
        old: usize,
        /// Bytes of its heap pages and large blocks.
        held: usize,
    },
    /// A major collection ended.
    Major {
        /// How many did before, and this one.
        number: u64,
        /// Bytes that live.
        live: usize,
        /// Bytes of heap pages and large blocks.
        held: usize,
        /// Objects that can be finalized.
        finalizable: usize,
    },
    /// What lives left sparse arenas.
    Evacuation {
        /// How long it took.
        took: Duration,
        /// Objects that moved.
        moved: u64,
        /// Bytes of these.
        bytes: u64,
        /// Heap pages that became free.
        pages: u64,
        /// Bytes of heap pages and large blocks afterwards.
        held: usize,
    },
    /// The old generation holds at least an arena more or less than when this was told last.
    Arenas {
        /// Bytes of its heap pages and large blocks.
        held: usize,
        /// Arenas of the process with memory, whoever uses them.
        arenas: u64,
        /// Of these, arenas without anything live.
        empty: u64,
        /// Bytes given back to the system so far.
        given_back: u64,
    },
}

impl fmt::Display for Event {
    /// What a line of the log says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |phase| match phase {
            Phase::Idle => "idle",
            Phase::Marking => "marking",
            Phase::Clearing => "clearing",
            Phase::Sweeping => "sweeping",
        };
        match *self {
            Self::Minor { took, nursery, survivors, survived, staying, not_moved, old, held } => write!(
                f,
                "seconds={:.9} nursery={nursery} survivors={survivors} survived={survived} staying={staying} not_moved={not_moved} old={old} held={held}",
                took.as_secs_f64()
            ),
            Self::Step { took, from, to, old, held } => write!(
                f,
                "seconds={:.9} from={} to={} old={old} held={held}",
                took.as_secs_f64(),
                name(from),
                name(to)
            ),
            Self::Major { number, live, held, finalizable } => {
                write!(f, "number={number} live={live} held={held} finalizable={finalizable}")
            }
            Self::Evacuation { took, moved, bytes, pages, held } => write!(
                f,
                "seconds={:.9} evacuated={moved} bytes={bytes} freed_pages={pages} held={held}",
                took.as_secs_f64()
            ),
            Self::Arenas { held, arenas, empty, given_back } => {
                write!(f, "held={held} arenas={arenas} empty={empty} given_back={given_back}")
            }
        }
    }
}

/// A function that is told what happens.
pub type EventHook = Box<dyn FnMut(&Event)>;

/// Who is told what happens in a heap.
#[derive(Default)]
pub(crate) struct Listeners {
    hook: Option<EventHook>,
    pub(super) log: Option<LogOf>,
    /// What the old generation held when arenas were told last.
    held: usize,
    /// When the sums were shown to other processes last.
    shown: Duration,
}

impl Listeners {
    pub(crate) fn new(log: Option<LogOf>) -> Self {
        Self { hook: None, log, held: 0, shown: Duration::ZERO }
    }

    /// Whether somebody wants any events.
    pub(crate) fn wants_any(&self) -> bool {
        self.hook.is_some() || self.log.is_some()
    }

    /// Whether somebody wants such events.
    #[inline(always)]
    pub(crate) fn want(&self, section: u8) -> bool {
        self.hook.is_some() || self.log.as_ref().is_some_and(|log| log.sections & section != 0)
    }
}

impl<S: Source> Heap<S> {
    /// Has a function told what happens in this heap, instead of the one before, which is answered. It is
    /// called inside collections, so it neither panics nor uses the heap.
    pub fn set_hook(&mut self, hook: Option<EventHook>) -> Option<EventHook> {
        let before = core::mem::replace(&mut self.listeners.hook, hook);
        self.watch();
        before
    }

    pub(super) fn tell(&mut self, section: u8, event: Event) {
        if let Some(hook) = &mut self.listeners.hook {
            hook(&event);
        }
        if let Some(log) = self.listeners.log.as_ref().filter(|log| log.sections & section != 0) {
            log.write(self.old.space().source().os().now(), section, self.number, &event);
        }
    }

    /// When a part of a collection begins, if somebody wants to know how long it takes.
    #[inline(always)]
    pub(super) fn begin_part(&self, section: u8) -> Option<Duration> {
        (self.watched && self.listeners.want(section)).then(|| self.old.space().source().os().now())
    }

    pub(super) fn took(&self, begin: Duration) -> Duration {
        self.old.space().source().os().now().saturating_sub(begin)
    }

    /// Tells of a step that began then, if somebody wants to know.
    pub(super) fn tell_step(&mut self, begin: Option<Duration>, from: Phase) {
        if let Some(begin) = begin {
            let (old, held) = (self.old.used(), self.old.held());
            let event = Event::Step { took: self.took(begin), from, to: self.marker.phase, old, held };
            self.tell(log::MAJOR, event);
        }
    }

    /// Tells of arenas, if there is something to tell.
    #[inline(always)]
    pub(super) fn tell_arenas(&mut self) {
        if self.listeners.want(log::ARENA) {
            self.look_at_arenas();
        }
    }

    #[cold]
    fn look_at_arenas(&mut self) {
        let held = self.old.held();
        if held.abs_diff(self.listeners.held) < ARENA_BYTES {
            return;
        }
        self.listeners.held = held;
        let snapshot = self.old.space().source().with(|arenas| arenas.snapshot());
        let arenas = snapshot.arenas_full + snapshot.arenas_partial + snapshot.arenas_empty;
        let event =
            Event::Arenas { held, arenas, empty: snapshot.arenas_empty, given_back: snapshot.given_back };
        self.tell(log::ARENA, event);
    }

    /// After a pause: brings the sums of the process up to date, once in a while.
    #[inline(always)]
    pub(super) fn count(&mut self) {
        if self.statistics.pauses.count % EVERY == 0 || self.statistics.major != self.counted.major {
            self.count_all();
        }
    }

    /// Adds what is new to the sums of the process.
    #[cold]
    pub(super) fn count_all(&mut self) {
        let now = &self.statistics;
        let long = LONG_PAUSE.ilog2() as usize;
        let all = Collector {
            nursery: self.nursery.bytes() as u64,
            old: self.old.used() as u64,
            held: self.old.held() as u64,
            minor: now.minor,
            major: now.major,
            pauses: now.pauses.count,
            long_pauses: now.pauses.histogram[long..].iter().sum(),
            pause_total: now.pauses.total,
            lengths: lengths(&now.pauses.histogram),
        };
        COLLECTORS.changed(&self.counted, &all, now.pauses.longest);
        self.counted = all;
        let source = self.old.space().source();
        let now = source.os().now();
        // A clock that was turned back must not keep them from being shown until it comes there again.
        if now.abs_diff(self.listeners.shown) >= SHOWN {
            self.listeners.shown = now;
            source.changed();
        }
    }

    /// At the heap's end: what it did stays in the sums, what it had goes.
    pub(super) fn count_end(&mut self) {
        self.count_all();
        COLLECTORS.changed(&self.counted, &Collector { nursery: 0, old: 0, held: 0, ..self.counted }, 0);
    }
}

/// Pauses after which the sums of the process are brought up to date: an atomic addition each would be a
/// fiftieth of the least pause.
const EVERY: u64 = 16;

/// How often a heap shows its numbers to other processes at most, where its collections do not change the
/// arenas: four times in the interval of `hugeheap top`. It takes a microsecond, and 5 ns for each arena, whose
/// states are counted.
const SHOWN: Duration = Duration::from_millis(250);

/// Name and value of what all heaps of the process did, ended ones too: in the form of the telemetry's
/// counters. Times are nanoseconds. The last few minor collections of a heap may be missing.
pub fn counters() -> [(&'static str, u64); 10] {
    let mut snapshot = Snapshot::EMPTY;
    COLLECTORS.fill(&mut snapshot);
    [
        ("gc_heaps", snapshot.gc_heaps),
        ("gc_nursery", snapshot.gc_nursery),
        ("gc_old", snapshot.gc_old),
        ("gc_held", snapshot.gc_held),
        ("gc_minor", snapshot.gc_minor),
        ("gc_major", snapshot.gc_major),
        ("gc_pauses", snapshot.gc_pauses),
        ("gc_long_pauses", snapshot.gc_long_pauses),
        ("gc_pause_total", snapshot.gc_pause_total),
        ("gc_longest_pause", snapshot.gc_longest_pause),
    ]
}
