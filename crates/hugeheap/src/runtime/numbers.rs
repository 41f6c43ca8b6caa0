//! The page of numbers that this process shows to others: see [`crate::telemetry::numbers`] for what is in it.
//!
//! ```text
//!   Unasked ──start()──▶ Wanted ──first event──▶ Open ──fork, in the child──▶ Wanted
//!      │ HUGEHEAP_PUBLISH=0         │ the system refuses
//!      └──────────▶ Off ◀───────────┘
//! ```
//!
//! When it is written: when maintenance comes to rest after passes; after an event when the number of arenas
//! changed, when live memory moved by [`STEP`] out of the range that was published lately, within which it
//! takes [`FEW`] events or [`FAR`], or when it is the [`EVENTS`]th since. Not by time: the last events before a
//! process falls idle would stay unseen, or need a thread. Between two of those an event costs some ten
//! instructions. Which state the arenas are in needs a walk over their records; it is made once per as many
//! writes as there are [`WALKED`] arenas, so that it costs a write the same however large the heap is.
//!
//! Everything here is called with the heap's lock held: plain loads and stores of atomics, no lock of its own.

use crate::telemetry::Snapshot;
use crate::telemetry::numbers::{NAME, Numbers, PAGE_BYTES, Page};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use hugeheap_os::AddressRange;

/// Bytes by which live memory may differ from what is published: half an arena, in which an event is one of 64.
const STEP: u64 = 1 << 20;

/// Bytes by which it may differ in the range that was published lately, after fewer than [`FEW`] events.
const FAR: u64 = 16 * STEP;

/// Events for which a write is worth it where live memory goes up and down: a write takes 0.8 µs with the
/// process's number, which the system is asked for. A program that took and freed two blocks of 1 MiB by turns,
/// of which it wrote one byte each, needed 1.6 s for what takes 0.3 unpublished.
const FEW: u32 = 32;

/// Events that may pass unpublished: less than five nanoseconds of a write for each.
const EVENTS: u32 = 256;

/// Arenas walked per write: 5 ns each, so that a walk adds as much again as the write itself at most.
const WALKED: u64 = 16;

const UNASKED: u8 = 0;
const WANTED: u8 = 1;
const OPEN: u8 = 2;
const OFF: u8 = 3;

/// Not to be executed, and so sealed against that (Linux 6.3; refused before).
const MFD_NOEXEC_SEAL: libc::c_uint = 8;

/// What an event asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Write,
    /// Also the states of the arenas are to be counted again.
    Walk,
}

/// The least and the most of some numbers. The lock of the heap is held: plain loads and stores.
struct Range {
    least: AtomicU64,
    most: AtomicU64,
}

impl Range {
    const fn new() -> Self {
        Self { least: AtomicU64::new(0), most: AtomicU64::new(0) }
    }

    fn get(&self) -> (u64, u64) {
        (self.least.load(Ordering::Relaxed), self.most.load(Ordering::Relaxed))
    }

    fn set(&self, (least, most): (u64, u64)) {
        self.least.store(least, Ordering::Relaxed);
        self.most.store(most, Ordering::Relaxed);
    }
}

/// See the module's text.
pub(super) struct NumbersPage {
    state: AtomicU8,
    page: AtomicPtr<Page>,
    /// The process that mapped it.
    owner: AtomicU32,
    /// What the last write said, and what happened since.
    arenas: AtomicU64,
    live: AtomicU64,
    events: AtomicU32,
    writes: AtomicU64,
    /// The live memory that writes of the last [`EVENTS`] told, and of as many before these.
    ranges: [Range; 2],
    /// How many of the last have passed.
    range_events: AtomicU32,
}

impl NumbersPage {
    pub(super) const fn new() -> Self {
        Self {
            state: AtomicU8::new(UNASKED),
            page: AtomicPtr::new(core::ptr::null_mut()),
            owner: AtomicU32::new(0),
            arenas: AtomicU64::new(0),
            live: AtomicU64::new(0),
            events: AtomicU32::new(0),
            writes: AtomicU64::new(1),
            ranges: [const { Range::new() }; 2],
            range_events: AtomicU32::new(0),
        }
    }

    /// The process has a heap: its numbers are wanted, unless the environment says no.
    pub(super) fn want(&self) {
        if self.state.load(Ordering::Relaxed) == UNASKED {
            let off = super::environment::is_off(c"HUGEHEAP_PUBLISH");
            self.state.store(if off { OFF } else { WANTED }, Ordering::Relaxed);
        }
    }

    /// What is to be done after an event. `whole`: the caller asks for everything.
    #[inline]
    pub(super) fn due(&self, arenas: u64, live: u64, whole: bool) -> Due {
        if !matches!(self.state.load(Ordering::Relaxed), WANTED | OPEN) {
            return Due::Nothing;
        }
        let events = self.events.load(Ordering::Relaxed) + 1;
        self.events.store(events, Ordering::Relaxed);
        let moved = live.abs_diff(self.live.load(Ordering::Relaxed));
        let moved = moved >= STEP && (self.is_beyond(live) || moved >= FAR || events >= FEW);
        if !whole && !moved && events < EVENTS && arenas == self.arenas.load(Ordering::Relaxed) {
            return Due::Nothing;
        }
        let writes = self.writes.load(Ordering::Relaxed);
        if whole || writes * WALKED >= arenas { Due::Walk } else { Due::Write }
    }

    /// Writes the page; maps it first when there is none yet, or only that of the process this one was forked from.
    pub(super) fn write(
        &self,
        snapshot: &Snapshot,
        walked: bool,
        now: u64,
        ranges: impl Iterator<Item = AddressRange>,
    ) {
        self.arenas.store(snapshot.arenas, Ordering::Relaxed);
        self.live.store(snapshot.live, Ordering::Relaxed);
        self.note_range(snapshot.live, self.events.swap(0, Ordering::Relaxed));
        let writes = if walked { 1 } else { self.writes.load(Ordering::Relaxed) + 1 };
        self.writes.store(writes, Ordering::Relaxed);
        let Some(page) = self.page_of(snapshot.pid) else { return };
        let mut numbers = Numbers { written_at: now, snapshot: *snapshot, ..Numbers::EMPTY };
        for range in ranges {
            if let Some(place) = numbers.ranges.get_mut(numbers.range_count as usize) {
                *place = [range.start as u64, range.len as u64];
            }
            numbers.range_count += 1;
        }
        page.write(&numbers);
    }

    /// Whether that is a [`STEP`] out of the range that was published lately.
    ///
    /// With the last events' range alone, which begins anew as a point, a program with buffers of 64 KiB to 1 MiB
    /// wrote with one event of ten: most of them to get the range again that it had before.
    fn is_beyond(&self, live: u64) -> bool {
        let [(least, most), (earlier_least, earlier_most)] = self.ranges.each_ref().map(Range::get);
        live >= most.max(earlier_most) + STEP || live + STEP <= least.min(earlier_least)
    }

    /// Notes what is written, after so many events.
    fn note_range(&self, live: u64, events: u32) {
        let passed = self.range_events.load(Ordering::Relaxed) + events;
        let [range, earlier] = &self.ranges;
        let (least, most) = range.get();
        if passed >= EVENTS {
            earlier.set((least, most));
            range.set((live, live));
            self.range_events.store(0, Ordering::Relaxed);
        } else {
            range.set((least.min(live), most.max(live)));
            self.range_events.store(passed, Ordering::Relaxed);
        }
    }

    fn page_of(&self, pid: u32) -> Option<&Page> {
        let mut page = self.page.load(Ordering::Relaxed);
        if page.is_null() || self.owner.load(Ordering::Relaxed) != pid {
            self.leave();
            page = map_page();
            self.page.store(page, Ordering::Relaxed);
            self.owner.store(pid, Ordering::Relaxed);
            self.state.store(if page.is_null() { OFF } else { OPEN }, Ordering::Relaxed);
        }
        // SAFETY: it stays mapped until `leave`, which only this function and a forked child's handler call,
        // under the same lock.
        unsafe { page.as_ref() }
    }

    /// In a forked child: the parent's page is not this process's.
    pub(super) fn leave(&self) {
        let page = self.page.swap(core::ptr::null_mut(), Ordering::Relaxed);
        if !page.is_null() {
            // SAFETY: the mapping was made by `map_page` and only this struct knows it.
            unsafe { libc::munmap(page.cast(), PAGE_BYTES) };
            self.state.store(WANTED, Ordering::Relaxed);
        }
    }
}

/// Maps a page of shared memory that has a name and no descriptor; null when the system refuses: a limit on
/// address space, on open files or on the size of files, or no memory. System calls only.
fn map_page() -> *mut Page {
    if !super::publisher::may_make_files() {
        return core::ptr::null_mut();
    }
    // SAFETY: plain system calls on a descriptor of this function's own; the file is filled before it is
    // mapped, and sealed so that nobody who can open it takes the memory away under the writer.
    unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let mut file = libc::memfd_create(NAME.as_ptr(), flags | MFD_NOEXEC_SEAL);
        if file < 0 && *libc::__errno_location() == libc::EINVAL {
            file = libc::memfd_create(NAME.as_ptr(), flags);
        }
        if file < 0 {
            return core::ptr::null_mut();
        }
        let mut page = core::ptr::null_mut();
        if super::publisher::take_space(file) {
            libc::fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let memory = libc::mmap(core::ptr::null_mut(), PAGE_BYTES, access, libc::MAP_SHARED, file, 0);
            if memory != libc::MAP_FAILED {
                page = memory.cast();
            }
        }
        libc::close(file);
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> NumbersPage {
        let page = NumbersPage::new();
        page.state.store(WANTED, Ordering::Relaxed);
        page
    }

    fn write(page: &NumbersPage, arenas: u64, live: u64, walked: bool) {
        // SAFETY: getpid has no preconditions.
        let pid = unsafe { libc::getpid() } as u32;
        let snapshot = Snapshot { pid, arenas, live, ..Snapshot::EMPTY };
        page.write(&snapshot, walked, 1, core::iter::empty());
    }

    #[test]
    fn nothing_is_published_before_there_is_a_heap() {
        assert_eq!(NumbersPage::new().due(1, 1 << 30, true), Due::Nothing);
    }

    #[test]
    fn what_is_published_is_near_what_is() {
        let page = wanted();
        assert_eq!(page.due(1, 0, false), Due::Walk, "the first");
        write(&page, 1, 0, true);
        for live in 1..u64::from(EVENTS) {
            assert_eq!(page.due(1, live, false), Due::Nothing, "{live}");
        }
        assert_ne!(page.due(1, 256, false), Due::Nothing, "many events");
        write(&page, 1, 256, true);
        assert_eq!(page.due(1, 256 + STEP - 1, false), Due::Nothing);
        assert_ne!(page.due(1, 256 + STEP, false), Due::Nothing, "live memory moved");
        assert_ne!(page.due(2, 256, false), Due::Nothing, "another arena");
        assert_eq!(page.due(1, 256, true), Due::Walk, "asked");
        page.leave();
    }

    #[test]
    fn growth_is_published_step_by_step_and_what_goes_up_and_down_seldom() {
        let page = wanted();
        write(&page, 1, 0, true);
        for step in 1..=40 {
            assert_ne!(page.due(1, step * STEP, false), Due::Nothing, "{step}");
            write(&page, 1, step * STEP, true);
        }
        let mut writes = 0;
        for event in 0..10 * u64::from(EVENTS) {
            let live = (32 + event % 8) * STEP;
            if page.due(1, live, false) != Due::Nothing {
                write(&page, 1, live, true);
                writes += 1;
            }
        }
        assert!((10..=130).contains(&writes), "{writes}");
        // Far within them, at once; and when that is long ago, also a step back.
        assert_ne!(page.due(1, 16 * STEP, false), Due::Nothing);
        write(&page, 1, 16 * STEP, true);
        for _ in 0..2 * EVENTS {
            if page.due(1, 16 * STEP, false) != Due::Nothing {
                write(&page, 1, 16 * STEP, true);
            }
        }
        assert_ne!(page.due(1, 15 * STEP, false), Due::Nothing);
        page.leave();
    }

    /// The range began anew as a point, and was written step by step until it was what it had been.
    #[test]
    fn a_range_is_remembered_for_two_periods() {
        let page = wanted();
        for live in [10 * STEP, 20 * STEP] {
            write(&page, 1, live, true);
        }
        let period = |live: u64| {
            for _ in 1..EVENTS {
                assert_eq!(page.due(1, live, false), Due::Nothing);
            }
            assert_ne!(page.due(1, live, false), Due::Nothing, "many events");
            write(&page, 1, live, true);
        };
        period(20 * STEP);
        assert_eq!(page.due(1, 10 * STEP, false), Due::Nothing, "it was there in the period before");
        assert_ne!(page.due(1, 22 * STEP, false), Due::Nothing, "and there it was not");
        write(&page, 1, 20 * STEP, true);
        period(20 * STEP);
        period(20 * STEP);
        assert_ne!(page.due(1, 10 * STEP, false), Due::Nothing, "that is long ago");
        page.leave();
    }

    #[test]
    fn walks_are_as_rare_as_the_heap_is_large() {
        let page = wanted();
        write(&page, 1600, 0, true);
        let mut writes = 0;
        while page.due(1601 + writes % 2, 0, false) == Due::Write {
            writes += 1;
            write(&page, 1601 + (writes + 1) % 2, 0, false);
            assert!(writes < 200);
        }
        assert!(writes >= 1600 / WALKED - 2, "{writes}");
        page.leave();
    }

    #[test]
    fn a_page_of_another_process_is_not_written() {
        let page = wanted();
        write(&page, 1, 5, true);
        let first = page.page.load(Ordering::Relaxed);
        assert!(!first.is_null());
        page.owner.fetch_add(1, Ordering::Relaxed);
        write(&page, 1, 6, true);
        assert!(!page.page.load(Ordering::Relaxed).is_null());
        // SAFETY: getpid has no preconditions.
        assert_eq!(page.owner.load(Ordering::Relaxed), unsafe { libc::getpid() } as u32);
        page.leave();
        assert_eq!(page.state.load(Ordering::Relaxed), WANTED);
    }
}
