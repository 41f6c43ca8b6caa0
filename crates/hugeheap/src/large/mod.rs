//! Large blocks: whole arenas of their own, growing in place or by moving pages instead of copying.
//!
//! ```text
//!   block of 5 MiB     ├── arena ──┼── arena ──┼── arena ──┤
//!                      Large        LargeRest   LargeRest: the tail, used in part
//! ```
//!
//! A large block begins at an arena and owns whole arenas, from the upper end of a region, away from small
//! arenas. It grows in place when the arenas behind it are idle; else its pages move to a place with room
//! (`mremap`: no byte is copied and huge pages stay whole). Freed, its arenas are ordinary empty arenas: kept,
//! reused and given back by the same rules.
//!
//! The tail is rounded up to a huge page only when that wastes little, or the block grows: see [`guess`]. What
//! is resident behind the end of a block for another reason, because it was before, goes by the rules of
//! [`tails`](crate::arena).
//!
//! Its memory becomes resident as the program touches it, a huge page at a time. Only the first arena of what
//! is asked for is touched at once, which tells whether the host has huge pages, and how long they take, and
//! one of which the block has a part: what is resident of the rest counts as kept. A hash table, a stack, what
//! `calloc` returns may be used in few places, and 2 GiB were resident for them.

mod guess;
mod left;
mod moving;
#[cfg(test)]
mod tests;

use crate::arena::layout::{ARENA_BYTES, HEAP_PAGE_BYTES, HEAP_PAGES};
use crate::arena::{ArenaId, Arenas, BadFree, First, LONG, MAX_REGION_ARENAS, State, pages_bytes};
use crate::telemetry::Fallback;
use core::num::NonZeroUsize;
use core::ops::Range;
use hugeheap_os::Os;

pub(crate) use left::Left;

/// Blocks of at least this many bytes are rounded up to huge pages.
const ROUND_UP: usize = LONG * ARENA_BYTES;

/// Live heap pages from which on a tail is a huge page.
const FULL_TAIL: u32 = HEAP_PAGES / 8 * 7;

/// A large block that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeBlock {
    /// Its first byte, at the beginning of an arena.
    pub address: NonZeroUsize,
    /// Whether all of its bytes are known to be zero.
    pub zeroed: bool,
}

/// Bitmap of the heap pages that `bytes` bytes use of the arena number `index` of a block. A block of 0 bytes
/// has a page, so that its arena is seen to be in use.
pub(crate) fn used_pages(bytes: usize, index: u32) -> u128 {
    let here = bytes.max(1).saturating_sub(index as usize * ARENA_BYTES).min(ARENA_BYTES);
    match here.div_ceil(HEAP_PAGE_BYTES) as u32 {
        0 => 0,
        pages => u128::MAX >> (u128::BITS - pages),
    }
}

/// Arenas of a block; `None` when it fits no region.
fn arenas_for(bytes: usize) -> Option<u32> {
    let count = bytes.max(1).div_ceil(ARENA_BYTES);
    (count <= MAX_REGION_ARENAS).then_some(count as u32)
}

/// Heap pages of a block that fits a region.
fn pages_for(bytes: usize) -> u32 {
    bytes.max(1).div_ceil(HEAP_PAGE_BYTES) as u32
}

/// Arenas in a row to look for, for a block of `count` that grows: half as many behind it. It costs address space only.
fn with_room(count: u32) -> u32 {
    (count + count / 2 + 1).min(MAX_REGION_ARENAS as u32)
}

impl<O: Os> Arenas<O> {
    /// Takes a large block of `bytes` bytes. `growing`: the block is expected to grow, so room is left behind
    /// it and its tail may be a huge page. `None` when the system has no memory or address space; counted.
    pub fn allocate_large(&mut self, bytes: usize, growing: bool) -> Option<LargeBlock> {
        self.allocate_large_first(First::Program, bytes, growing, u64::MAX)
    }

    /// The same if no more than `room` bytes have to come from the system for it: of what is free and resident,
    /// none do. Not counted where that is the reason: who asks may have another way. It is resident as a whole,
    /// as far as it becomes huge pages: two that each have room must not both be taken where there is room for
    /// one, which only what is charged shows.
    pub(crate) fn allocate_large_within(
        &mut self,
        bytes: usize,
        growing: bool,
        room: u64,
    ) -> Option<LargeBlock> {
        self.allocate_large_first(First::Maker, bytes, growing, room)
    }

    /// Takes a large block for a run that has grown to `bytes` bytes, half an arena at most, and is [better
    /// alone](Self::is_better_alone): on OS pages. Freed before it needs a second arena it goes back to the
    /// system at once.
    pub(crate) fn allocate_alone(&mut self, bytes: usize) -> Option<LargeBlock> {
        let block = self.allocate_large(bytes, false)?;
        if let Ok(id) = self.large_at(block.address.get()) {
            self.table.arena_mut(id).alone = true;
        }
        Some(block)
    }

    fn allocate_large_first(
        &mut self,
        touches: First,
        bytes: usize,
        growing: bool,
        room: u64,
    ) -> Option<LargeBlock> {
        let count = self.count_arenas_for(bytes)?;
        let first = self.find_span_for_new(bytes, count, if growing { with_room(count) } else { count })?;
        if bytes as u64 > room && self.missing(first, 0..count, bytes) > room {
            return None;
        }
        let zeroed = self.occupy(first, 0..count, bytes, growing, touches)?;
        let arena = self.table.arena_mut(first);
        arena.large_bytes = bytes as u64;
        arena.large_arenas = count;
        self.counters.allocations += 1;
        Some(LargeBlock { address: NonZeroUsize::new(self.table.range(first).start)?, zeroed })
    }

    /// Frees the large block at `address` and says how many bytes it had.
    ///
    /// # Errors
    /// When no large block begins there.
    pub fn free_large(&mut self, address: usize) -> Result<usize, BadFree> {
        Ok(self.free_large_or_alone(address)?.0)
    }

    /// The same. Says, too, whether its memory went back to the system: of what is
    /// [alone](Self::allocate_alone) and needs no second arena it does at once, unless it is a huge page by
    /// now. (The next one is alone because so much is retained: kept, it would be one more reason.)
    ///
    /// # Errors
    /// When no large block begins there.
    pub(crate) fn free_large_or_alone(&mut self, address: usize) -> Result<(usize, bool), BadFree> {
        let first = self.large_at(address)?;
        let arena = self.table.arena(first);
        let (bytes, count) = (arena.large_bytes, arena.large_arenas);
        // One that has grown a little beyond a run, too: kept, its OS pages are others' from then on.
        let goes = arena.alone && count == 1 && !arena.huge && !arena.busy;
        self.vacate(first, 0, count);
        let gone = goes && self.make_way(first);
        self.left.note(first, pages_for(bytes as usize));
        self.counters.frees += 1;
        Ok((bytes as usize, gone))
    }

    /// Bytes of the large block at `address`.
    ///
    /// # Errors
    /// When no large block begins there.
    pub fn large_bytes(&self, address: usize) -> Result<usize, BadFree> {
        Ok(self.table.arena(self.large_at(address)?).large_bytes as usize)
    }

    /// Gives the large block at `address` a new length; contents up to the lesser length stay. The address may change.
    /// `Ok(None)` when the system has no memory: the block is unchanged.
    ///
    /// # Errors
    /// When no large block begins there.
    pub fn resize_large(&mut self, address: usize, bytes: usize) -> Result<Option<NonZeroUsize>, BadFree> {
        let first = self.large_at(address)?;
        let (old_bytes, old_count) = {
            let arena = self.table.arena(first);
            (arena.large_bytes as usize, arena.large_arenas)
        };
        let Some(count) = self.count_arenas_for(bytes) else { return Ok(None) };
        if count <= old_count || self.is_room_behind(first, old_count, count) {
            let resized =
                self.resize_in_place(first, old_count, count, bytes, (bytes > old_bytes, First::Program));
            return Ok(NonZeroUsize::new(address).filter(|_| resized));
        }
        Ok(self.move_large(first, old_count, count, bytes))
    }

    /// Gives the large block at `address` a new length if its heap pages stay the same; says whether they do.
    /// Nothing that is counted changes.
    ///
    /// # Errors
    /// When no large block begins there.
    pub(crate) fn refit_large(&mut self, address: usize, bytes: usize) -> Result<bool, BadFree> {
        let first = self.large_at(address)?;
        let count = self.table.arena(first).large_arenas;
        let last = self.table.arena(self.nth(first, count - 1)).in_use;
        let stays = arenas_for(bytes) == Some(count) && used_pages(bytes, count - 1) == last;
        if stays {
            self.table.arena_mut(first).large_bytes = bytes as u64;
        }
        Ok(stays)
    }

    /// Makes the large block at `address` `bytes` bytes long where it is, not less than it has, if no more than
    /// `room` bytes have to come from the system for that. Says whether it is: not when the arenas behind it
    /// are in use, or the system has no memory, and nothing is changed then.
    ///
    /// # Errors
    /// When no large block begins there.
    pub(crate) fn extend_large_within(
        &mut self,
        address: usize,
        bytes: usize,
        room: u64,
    ) -> Result<bool, BadFree> {
        let first = self.large_at(address)?;
        let old_count = self.table.arena(first).large_arenas;
        let Some(count) = self.count_arenas_for(bytes) else { return Ok(false) };
        // Of the last arena it has, the end may be missing as well.
        let fits = self.is_room_behind(first, old_count, count)
            && self.missing(first, old_count - 1..count, bytes) <= room;
        Ok(fits && self.resize_in_place(first, old_count, count, bytes, (true, First::Maker)))
    }

    /// Whether the large block at `address` can have `bytes` bytes where it is, as far as what lies behind it goes.
    pub(crate) fn has_room_behind(&self, address: usize, bytes: usize) -> bool {
        let Ok(first) = self.large_at(address) else { return false };
        let have = self.table.arena(first).large_arenas;
        arenas_for(bytes).is_some_and(|count| self.is_room_behind(first, have, count))
    }

    /// Gives a block of `old_count` arenas `count`, of which those behind it are idle, and `bytes` bytes. Says
    /// no, with nothing changed, when the system has no memory.
    fn resize_in_place(
        &mut self,
        first: ArenaId,
        old_count: u32,
        count: u32,
        bytes: usize,
        (growing, touches): (bool, First),
    ) -> bool {
        if count > old_count {
            // It will be full: the next one may be the guess.
            self.end_guess(self.nth(first, old_count - 1));
            if self.occupy(first, old_count..count, bytes, growing, touches).is_none() {
                return false;
            }
        }
        if count < old_count {
            self.vacate(first, count, old_count);
        }
        self.relabel(first, count.min(old_count), bytes);
        let arena = self.table.arena_mut(first);
        arena.large_bytes = bytes as u64;
        arena.large_arenas = count;
        true
    }

    fn large_at(&self, address: usize) -> Result<ArenaId, BadFree> {
        let id = self.table.find(address).ok_or(BadFree::Foreign)?;
        match self.table.arena(id).state {
            State::Large if address % ARENA_BYTES == 0 => Ok(id),
            State::Large | State::LargeRest => Err(BadFree::Interior),
            // Not a block, but a run may begin there.
            _ => Err(match self.run_bytes(address) {
                Ok(actual) => BadFree::WrongSize { actual },
                Err(error) => error,
            }),
        }
    }

    /// Arenas of a block of `bytes`; counted when there can be none.
    fn count_arenas_for(&mut self, bytes: usize) -> Option<u32> {
        let count = arenas_for(bytes);
        if count.is_none() {
            self.count(Fallback::AddressSpace);
        }
        count
    }

    /// `count` idle arenas in a row, with room for `wanted` behind their beginning where there is.
    fn find_large_span(&mut self, count: u32, wanted: u32) -> Option<ArenaId> {
        let find = |heap: &mut Self| heap.table.find_span(wanted).or_else(|| heap.table.find_span(count));
        let mut found = find(self);
        if found.is_none() && self.add_region(count, wanted).is_some() {
            found = find(self);
        }
        let found = found.or_else(|| self.table.find_span_anywhere(count));
        match found {
            Some(first) => self.table.claim_span(first, count),
            None => self.count(Fallback::AddressSpace),
        }
        found
    }

    /// The same, of resident arenas if there are. Not for a block that moves: it brings its memory along, and
    /// what is resident where it goes is given back.
    fn find_span_for_new(&mut self, bytes: usize, count: u32, wanted: u32) -> Option<ArenaId> {
        let table = &self.table;
        let kept = |id| table.arena(id).state == State::Empty && table.is_idle(id);
        let free = |first: ArenaId| (first.0..first.0 + count).all(|id| kept(ArenaId(id)));
        if let Some(first) = self.left.take(pages_for(bytes), wanted, free) {
            return Some(first);
        }
        let Some(first) = self.empty.row(&self.table, count, wanted) else {
            return self.find_large_span(count, wanted);
        };
        self.table.claim_span(first, count);
        Some(first)
    }

    fn nth(&self, first: ArenaId, index: u32) -> ArenaId {
        ArenaId(first.0 + index)
    }

    fn is_room_behind(&self, first: ArenaId, have: u32, want: u32) -> bool {
        let mut last = self.nth(first, have - 1);
        (have..want).all(|_| match self.table.after(last) {
            Some(next) if self.table.is_idle(next) && self.table.was_high(next) => {
                last = next;
                true
            }
            _ => false,
        })
    }

    /// Makes the idle arenas of a range behind `first` part of a block of `bytes`. `touches`: who touches those
    /// that have no memory first, but for the first of them. Says whether all were zero; `None`, with nothing
    /// changed, when the system has no memory.
    fn occupy(
        &mut self,
        first: ArenaId,
        arenas: Range<u32>,
        bytes: usize,
        growing: bool,
        touches: First,
    ) -> Option<bool> {
        let Range { start: from, end: to } = arenas;
        let now = self.now();
        let (serial, before) = (self.serial, self.counters.live);
        let mut zeroed = true;
        for index in from..to {
            let id = self.nth(first, index);
            let used = used_pages(bytes, index);
            let part = used != u128::MAX;
            if self.unfile(id) == State::Empty {
                zeroed = false;
            } else {
                let huge = self.rounds_up(id, used.count_ones(), bytes, growing);
                // Of one that is used in part the rest is resident with the first touch, and counts as kept: it
                // has to be known whether there is one.
                let touches = if index == from || part { First::Maker } else { touches };
                if let Err(error) = self.supply_for(touches, id, now, huge) {
                    self.end_guess(id);
                    self.count_refusal(error);
                    self.put_back(id);
                    self.vacate(first, from, index);
                    self.withdraw_supplied(first, from..index, serial);
                    return None;
                }
            }
            let arena = self.table.arena_mut(id);
            let (here, fresh) = (pages_bytes(used), used & !arena.touched);
            arena.touched |= used;
            arena.in_use = used;
            arena.starts = u128::from(index == 0);
            arena.changed(now);
            arena.state = if index == 0 { State::Large } else { State::LargeRest };
            let mut reused = here;
            if fresh != 0 {
                let fresh = pages_bytes(fresh);
                self.demand.grew(now, fresh, self.counters.live);
                reused -= fresh;
            }
            self.retain_less(reused);
            self.note_density(id);
            self.counters.large += here;
            self.counters.live += here;
            if part {
                self.placed_tail(id, now);
            }
        }
        // Once for all of them: the demand is that of the block, and one that is refused is none.
        self.rose(now, self.counters.live - before);
        Some(zeroed)
    }

    /// Makes those of some arenas reserved again that were supplied from number `serial` on, for a block that
    /// could not be had. They stayed writable before: under `ulimit -d` a request that was too large by far
    /// left nothing of the limit for the small blocks after it.
    fn withdraw_supplied(&mut self, first: ArenaId, arenas: Range<u32>, serial: u32) {
        let supplied = self.serial.wrapping_sub(serial);
        for index in arenas {
            let id = self.nth(first, index);
            if self.table.arena(id).serial.wrapping_sub(serial) < supplied {
                // Where the system refuses, it is an empty arena like others.
                self.make_way(id);
            }
        }
    }

    /// Bytes that are not resident of some arenas of a block, or of idle ones that it is to have.
    fn missing(&self, first: ArenaId, arenas: Range<u32>, bytes: usize) -> u64 {
        let missing = |index| used_pages(bytes, index) & !self.table.arena(self.nth(first, index)).touched;
        arenas.map(|index| pages_bytes(missing(index))).sum()
    }

    /// Makes the arenas `from..to` of a block empty ones.
    fn vacate(&mut self, first: ArenaId, from: u32, to: u32) {
        let now = self.now();
        for index in from..to {
            let id = self.nth(first, index);
            let arena = self.table.arena_mut(id);
            self.guesses -= u64::from(core::mem::take(&mut arena.guess));
            let bytes = pages_bytes(arena.in_use);
            arena.in_use = 0;
            arena.starts = 0;
            arena.changed(now);
            // What was put off was a collapse; it may be given back at once.
            (arena.retry_at, arena.failures) = (0, 0);
            arena.forget_answers();
            self.counters.retained += bytes;
            self.counters.live -= bytes;
            self.counters.large -= bytes;
            self.file(id);
        }
        let live = self.counters.live;
        self.demand.record(now, live);
    }

    /// Corrects which pages of a block's first `count` arenas are in use, now that it has `bytes` bytes.
    fn relabel(&mut self, first: ArenaId, count: u32, bytes: usize) {
        let now = self.now();
        // Only the last two can differ: the tail before and the tail now.
        for index in count.saturating_sub(2)..count {
            let id = self.nth(first, index);
            let arena = self.table.arena_mut(id);
            let (was, used) = (arena.in_use, used_pages(bytes, index));
            if was == used {
                continue;
            }
            if used & !was != 0 {
                self.catch_up(id, used.count_ones(), bytes);
            }
            let arena = self.table.arena_mut(id);
            arena.in_use = used;
            arena.changed(now);
            if used.count_ones() >= FULL_TAIL {
                self.end_guess(id);
            }
            let arena = self.table.arena(id);
            let reused = used & !was & arena.touched;
            self.touch(id, now, used);
            self.retain_less(pages_bytes(reused));
            self.counters.retained += pages_bytes(was & !used);
            self.counters.live -= pages_bytes(was & !used);
            self.counters.large = self.counters.large + pages_bytes(used) - pages_bytes(was);
            self.count_live(now, pages_bytes(used & !was));
            self.note_density(id);
            self.note_tail(id);
        }
    }
}
