//! Address space given back where the program limits itself.
//!
//! ```text
//!   before   ├─ small arenas ─▶ ············ never used ··········· ◀─ large blocks ─┤ ····· ┤
//!   after    ├─ small arenas ─▶ ··growth··┤           gap           ├─ large blocks ─┤
//! ```
//!
//! A region is four times the memory of the host, and all of it counts against a limit on address space. Where
//! there is one before the start, regions are small. A program that sets one on itself
//! (`resource.setrlimit(RLIMIT_AS, …)`) was over it at once: its objects went on growing in what was reserved,
//! and each thread, each import, each mapping of others was refused. So before such a limit holds, what no
//! arena uses is given back, but for a part of the limit to grow into. What the heap needs later comes from
//! further regions, by the rule for limits.
//!
//! A *gap* is nobody's, or somebody else's by now: no arena of it is handed out, no address in it is found. It
//! only grows. A large block may be put into what is left for growth, in front of the gap: a lower limit makes
//! another gap before it.
//!
//! Regions made under a limit are cut as well, for growth leaves little to gain; when somebody else is refused
//! address space, they are *squeezed*: nothing stays for growth, as far as is needed.

use super::Arenas;
use super::layout::ARENA_BYTES;
use super::list::ArenaId;
use super::record::State;
use super::table::{GAPS, NO_GAP, Region, Table};
use crate::large::Left;
use hugeheap_os::Os;

/// What stays for growth in each region, as a part of the limit: an eighth, as much as a region takes that is
/// made under one.
const GROWTH: u64 = 8;

/// Least gap worth a call, in arenas: 8 MiB, the least region under a limit.
const LEAST: u32 = 4;

/// What was taken from a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Where the region begins.
    pub(crate) region: usize,
    /// Bytes from there on of which nothing was taken.
    pub(crate) kept: usize,
    /// Where the region goes on, and where it ends, in bytes from its beginning. `None`: it does not go on.
    pub(crate) behind: Option<(usize, usize)>,
}

/// Arenas in a row that nobody uses.
#[derive(Clone, Copy, Debug)]
struct Unused {
    first: u32,
    end: u32,
    /// As many of them are not within a gap already.
    new: u32,
}

impl<O: Os> Arenas<O> {
    /// Gives back the address space that no arena uses, but for growth: before a limit of so many bytes holds
    /// for the process. `cutting` is told of each region before that happens: the layer above gives up what it
    /// keeps for the pages there.
    ///
    /// What the system does not take stays reserved, and is not used.
    pub(crate) fn cut_address_space(&mut self, limit: u64, mut cutting: impl FnMut(Cut)) {
        let growth = u32::try_from(limit / GROWTH / ARENA_BYTES as u64).unwrap_or(u32::MAX);
        for number in 0..self.table.count {
            if let Some(unused) = self.table.unused(number, growth).filter(|unused| unused.new >= LEAST) {
                self.cut_region(number, unused, &mut cutting);
            }
        }
    }

    /// Gives back address space that no arena uses, and leaves nothing to grow into, until `enough` bytes have
    /// gone: for somebody who was refused that under a limit. The most in a row first: a region that has gone
    /// does not leave its number. `cutting` as above.
    pub(crate) fn squeeze_address_space(&mut self, enough: u64, mut cutting: impl FnMut(Cut)) {
        let mut gone = 0;
        while gone < enough {
            let regions =
                (0..self.table.count).filter_map(|number| Some((number, self.table.unused(number, 0)?)));
            let Some((number, unused)) = regions.max_by_key(|(_, unused)| unused.new) else { return };
            if !self.cut_region(number, unused, &mut cutting) {
                return;
            }
            gone += u64::from(unused.new) * ARENA_BYTES as u64;
        }
    }

    /// Says whether it did.
    fn cut_region(&mut self, number: usize, unused: Unused, cutting: &mut impl FnMut(Cut)) -> bool {
        let Unused { first, end, .. } = unused;
        self.forget(number, first, end);
        let Some((before, after)) = self.table.cut(number, first, end) else { return false };
        let bytes = |arenas: u32| arenas as usize * ARENA_BYTES;
        let behind = after.without_gaps(end, after.arenas).find(|(start, end)| start < end);
        let behind = behind.map(|(start, end)| (bytes(start), bytes(end)));
        cutting(Cut { region: before.range.start, kept: bytes(first), behind });
        let rest = before.reserved.min(after.reserved.max(end));
        for (first, end) in before.without_gaps(first, end).chain([(rest, before.reserved)]) {
            if first < end {
                // SAFETY: of a region of this heap; no arena of it is used or will be, and nothing refers to it.
                let _ = unsafe { self.os.release_part(before.range_of(first, end)) };
            }
        }
        if let Some(beside) = before.beside {
            // SAFETY: the whole reservation, for which nobody asked yet. Who does makes its own, as long as
            // what is left.
            let _ = unsafe { self.os.release(beside) };
        }
        true
    }

    /// Takes arenas without memory out of the list of those that can be used again. Nobody looks at their
    /// records any more.
    fn forget(&mut self, number: usize, first: u32, end: u32) {
        // Places of blocks that were freed lately may be there.
        self.left = Left::NONE;
        let mut next = Table::id(number, first);
        // Not the id of that number: the longest region has one arena for each, and behind the last begins the
        // next region.
        let behind = ArenaId(Table::id(number, 0).0 + end);
        loop {
            let gone = |id: &ArenaId| (next..behind).contains(id);
            let Some(id) = self.table.used_from(next).next().filter(gone) else { return };
            if self.table.arena(id).state == State::GivenBack {
                self.given_back.remove(&mut self.table, id);
            }
            next = ArenaId(id.0 + 1);
        }
    }
}

impl Table {
    /// Arenas of a region that nobody uses and nobody needs, if there are any: from behind the small arenas,
    /// and `growth` more, to the first that a large block uses. Gaps are among them.
    fn unused(&self, number: usize, growth: u32) -> Option<Unused> {
        let region = self.regions[number].as_ref()?;
        let idle = |index: &u32| self.is_without_memory(Self::id(number, *index));
        let below = (0..region.low).rev().find(|index| !idle(index)).map_or(0, |last| last + 1);
        let parts = region.without_gaps(region.high.max(region.low), region.arenas);
        let above = parts.flat_map(|(first, end)| first..end).find(|index| !idle(index));
        let first = below.checked_add(growth)?.min(region.gaps[0].0);
        let end = above.unwrap_or(region.reserved);
        let new: u32 = region.without_gaps(first, end.max(first)).map(|(first, end)| end - first).sum();
        // Those that lie behind it stay, and this one is one more.
        let left = region.gaps.iter().filter(|gap| **gap != NO_GAP && gap.0 >= end).count();
        (new > 0 && left < GAPS).then_some(Unused { first, end, new })
    }

    /// Takes these arenas out of a region for good, and what is reserved behind all. Returns how it was, and
    /// how it is. What was beside it is no more its own.
    fn cut(&mut self, number: usize, first: u32, end: u32) -> Option<(Region, Region)> {
        let region = self.regions[number].as_mut()?;
        let before = *region;
        region.beside = None;
        region.low = before.low.min(first);
        if end >= before.arenas {
            region.gaps = [NO_GAP; GAPS];
            region.arenas = before.arenas.min(first);
            region.high = before.high.min(region.arenas);
            region.reserved = first;
        } else {
            let behind = before.gaps.into_iter().filter(|gap| gap.0 >= end && *gap != NO_GAP);
            let mut gaps = [NO_GAP; GAPS];
            for (gap, to) in core::iter::once((first, end)).chain(behind).zip(&mut gaps) {
                *to = gap;
            }
            region.gaps = gaps;
            region.reserved = before.arenas;
        }
        region.before_gaps = region.arenas.min(region.gaps[0].0);
        region.range.len = region.reserved as usize * ARENA_BYTES;
        region.barren = region.barren.map(|barren| barren.min(region.arenas));
        Some((before, *region))
    }

    /// Whether an arena has no memory and nobody is about to change that.
    fn is_without_memory(&self, id: ArenaId) -> bool {
        let arena = self.arena(id);
        self.is_idle(id) && arena.state != State::Empty
    }
}
