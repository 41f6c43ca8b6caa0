//! Large blocks: whole arenas of their own, growing in place or by moving pages instead of copying.
//!
//! ```text
//!   block of 5 MiB     ├── arena ──┼── arena ──┼── arena ──┤
//!                      Large        LargeRest   LargeRest: the tail, used in part
//! ```
//!
//! A large block begins at an arena and owns whole arenas, from the upper end of a region, away from small arenas. It grows in place when
//! the arenas behind it are idle; else its pages move to a place with room (`mremap`: no byte is copied and huge pages stay
//! whole). Freed, its arenas are ordinary empty arenas: kept, reused and given back by the same rules.
//!
//! The tail is rounded up to a huge page only when that wastes little: it is seven eighths full, or the block is at least [`ROUND_UP`],
//! or the block grows (it was resized upwards: a list being appended to will fill the page).

use crate::arena::layout::{ARENA_BYTES, HEAP_PAGE_BYTES, HEAP_PAGES};
use crate::arena::{ArenaId, Arenas, BadFree, State};
use core::num::NonZeroUsize;
use hugeheap_os::{AddressRange, Os};

/// Blocks of at least this many bytes are rounded up to huge pages: the waste is at most an eighth.
const ROUND_UP: usize = 8 * ARENA_BYTES;

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

/// Bitmap of the heap pages that `bytes` bytes use of the arena number `index` of a block.
fn used_pages(bytes: usize, index: u32) -> u128 {
    let here = bytes.saturating_sub(index as usize * ARENA_BYTES).min(ARENA_BYTES);
    match here.div_ceil(HEAP_PAGE_BYTES) as u32 {
        0 => 0,
        pages => u128::MAX >> (u128::BITS - pages),
    }
}

fn arenas_for(bytes: usize) -> Option<u32> {
    u32::try_from(bytes.max(1).div_ceil(ARENA_BYTES)).ok()
}

impl<O: Os> Arenas<O> {
    /// Takes a large block of `bytes` bytes. `growing`: the block is expected to grow, so room is left behind it and its tail may be
    /// a huge page. `None` when the system has no memory or address space; counted.
    pub fn allocate_large(&mut self, bytes: usize, growing: bool) -> Option<LargeBlock> {
        let count = arenas_for(bytes)?;
        let first = self.find_large_span(count, if growing { count + count / 2 + 1 } else { count })?;
        let zeroed = self.occupy(first, 0, count, bytes, growing)?;
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
        let first = self.large_at(address)?;
        let (bytes, count) = (self.table.arena(first).large_bytes, self.table.arena(first).large_arenas);
        self.vacate(first, 0, count);
        self.counters.frees += 1;
        let now = self.now();
        let live = self.counters.live;
        self.demand.record(now, live);
        Ok(bytes as usize)
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
        let Some(count) = arenas_for(bytes) else { return Ok(None) };
        let growing = bytes > old_bytes;
        if count <= old_count || self.is_room_behind(first, old_count, count) {
            if count > old_count && self.occupy(first, old_count, count, bytes, growing).is_none() {
                return Ok(None);
            }
            if count < old_count {
                self.vacate(first, count, old_count);
            }
            self.relabel(first, count.min(old_count), bytes);
            let arena = self.table.arena_mut(first);
            arena.large_bytes = bytes as u64;
            arena.large_arenas = count;
            return Ok(NonZeroUsize::new(address));
        }
        Ok(self.move_large(first, old_count, count, bytes))
    }

    fn large_at(&self, address: usize) -> Result<ArenaId, BadFree> {
        let id = self.table.find(address).ok_or(BadFree::Foreign)?;
        match self.table.arena(id).state {
            State::Large if address % ARENA_BYTES == 0 => Ok(id),
            State::Large | State::LargeRest => Err(BadFree::Interior),
            _ => Err(BadFree::NotLive),
        }
    }

    /// `count` idle arenas in a row, with room for `wanted` behind their beginning where there is.
    fn find_large_span(&mut self, count: u32, wanted: u32) -> Option<ArenaId> {
        let found = self.table.find_span(wanted).or_else(|| self.table.find_span(count));
        let first = match found {
            Some(first) => first,
            None => {
                self.add_region(wanted)?;
                self.table.find_span(count)?
            }
        };
        self.table.claim_span(first);
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

    /// Makes the idle arenas `from..to` behind `first` part of a block of `bytes`. Says whether all were zero; `None`, with nothing
    /// changed, when the system has no memory.
    fn occupy(&mut self, first: ArenaId, from: u32, to: u32, bytes: usize, growing: bool) -> Option<bool> {
        let now = self.now();
        let mut zeroed = true;
        for index in from..to {
            let id = self.nth(first, index);
            let used = used_pages(bytes, index);
            self.unfile(id);
            let empty = self.table.arena(id).state == State::Empty;
            if empty {
                zeroed = false;
            } else {
                let huge = growing || bytes >= ROUND_UP || used.count_ones() >= FULL_TAIL;
                if let Err(error) = self.supply(id, now, huge) {
                    self.refused(id, error);
                    self.vacate(first, from, index);
                    return None;
                }
            }
            let arena = self.table.arena_mut(id);
            let reused = (used & arena.touched).count_ones();
            arena.in_use = used;
            arena.starts = u128::from(index == 0);
            arena.touched |= used;
            arena.changed_at = now;
            arena.state = if index == 0 { State::Large } else { State::LargeRest };
            self.counters.retained -= u64::from(reused) * HEAP_PAGE_BYTES as u64;
            self.count_large(now, used.count_ones());
        }
        self.settled = self.settled.min(self.counters.retained);
        Some(zeroed)
    }

    fn count_large(&mut self, now: u64, pages: u32) {
        let bytes = u64::from(pages) * HEAP_PAGE_BYTES as u64;
        self.counters.large += bytes;
        self.count_live(now, bytes);
    }

    /// Makes the arenas `from..to` of a block empty ones.
    fn vacate(&mut self, first: ArenaId, from: u32, to: u32) {
        let now = self.now();
        for index in from..to {
            let id = self.nth(first, index);
            let arena = self.table.arena_mut(id);
            let bytes = u64::from(arena.live_pages()) * HEAP_PAGE_BYTES as u64;
            arena.in_use = 0;
            arena.starts = 0;
            arena.changed_at = now;
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
            let used = used_pages(bytes, index);
            let arena = self.table.arena_mut(id);
            let (was, retained) = (arena.live_pages(), arena.retained_pages());
            arena.in_use = used;
            arena.touched |= used;
            arena.changed_at = now;
            let filled = used == u128::MAX && was < HEAP_PAGES;
            let kept = arena.retained_pages();
            let page = HEAP_PAGE_BYTES as u64;
            self.counters.retained =
                self.counters.retained + u64::from(kept) * page - u64::from(retained) * page;
            self.counters.live =
                self.counters.live + u64::from(used.count_ones()) * page - u64::from(was) * page;
            self.counters.large =
                self.counters.large + u64::from(used.count_ones()) * page - u64::from(was) * page;
            self.collapse_pending |= filled;
        }
        self.counters.live_peak = self.counters.live_peak.max(self.counters.live);
        let live = self.counters.live;
        self.demand.record(now, live);
    }

    /// Moves a growing block to a place with room, by moving its pages where the system can.
    fn move_large(
        &mut self,
        first: ArenaId,
        old_count: u32,
        count: u32,
        bytes: usize,
    ) -> Option<NonZeroUsize> {
        // Room to grow by half again in place; it costs address space only.
        let to = self.find_large_span(count, count + count / 2)?;
        let old_bytes = self.table.arena(first).large_bytes as usize;
        let moving = AddressRange::new(self.table.range(first).start, old_count as usize * ARENA_BYTES);
        let target = AddressRange::new(self.table.range(to).start, moving.len);
        if !self.relocate_arenas(first, to, old_count) {
            self.occupy(to, 0, count, bytes, true)?;
            // SAFETY: both blocks are mapped for `old_bytes` bytes and do not overlap: they are different arenas.
            unsafe {
                core::ptr::copy_nonoverlapping(moving.start as *const u8, target.start as *mut u8, old_bytes);
            }
            self.vacate(first, 0, old_count);
        } else if self.occupy(to, old_count, count, bytes, true).is_none() {
            // No memory for the growth: the block lives at the new place with its old length, which the caller must not
            // see. Moving back needs no memory.
            let back = self.relocate_arenas(to, first, old_count);
            debug_assert!(back, "the old place is still reserved");
            return None;
        } else {
            self.relabel(to, old_count, bytes);
        }
        let arena = self.table.arena_mut(to);
        arena.large_bytes = bytes as u64;
        arena.large_arenas = count;
        NonZeroUsize::new(target.start)
    }

    /// Moves the memory and the metadata of `count` arenas of a block to idle ones. False, with nothing changed, when the
    /// system cannot.
    fn relocate_arenas(&mut self, from: ArenaId, to: ArenaId, count: u32) -> bool {
        use crate::arena::Made;
        if (0..count).any(|index| {
            let arena = self.table.arena(self.nth(from, index));
            arena.made == Made::Hugetlb || arena.busy
        }) {
            return false;
        }
        for index in 0..count {
            let id = self.nth(to, index);
            self.unfile(id);
            let was = self.table.arena(id).touched;
            if self.unmake(id).is_err() {
                self.file(id);
                return false;
            }
            if was != 0 {
                self.table.arena_mut(id).touched = 0;
                self.counters.retained -= u64::from(was.count_ones()) * HEAP_PAGE_BYTES as u64;
                self.counters.arenas -= 1;
            }
            self.file(id);
        }
        let len = count as usize * ARENA_BYTES;
        let source = AddressRange::new(self.table.range(from).start, len);
        let target = AddressRange::new(self.table.range(to).start, len);
        // SAFETY: the source is the block's own mapped arenas, which the caller of realloc owns alone; the target was unmapped above.
        if unsafe { self.os.relocate(source, target) }.is_err() {
            return false;
        }
        for index in 0..count {
            let (old, new) = (self.nth(from, index), self.nth(to, index));
            self.unfile(new);
            let (in_use, starts, touched, made, state, wants_huge, serial) = {
                let arena = self.table.arena_mut(old);
                let parts = (
                    arena.in_use,
                    arena.starts,
                    arena.touched,
                    arena.made,
                    arena.state,
                    arena.wants_huge,
                    arena.serial,
                );
                // What stays behind is an empty mapping with the old advice.
                arena.in_use = 0;
                arena.starts = 0;
                arena.touched = 0;
                parts
            };
            let (large_bytes, large_arenas) =
                (self.table.arena(old).large_bytes, self.table.arena(old).large_arenas);
            self.file(old);
            let arena = self.table.arena_mut(new);
            arena.in_use = in_use;
            arena.starts = starts;
            arena.touched = touched;
            arena.made = made;
            arena.state = state;
            arena.wants_huge = wants_huge;
            arena.serial = serial;
            arena.large_bytes = large_bytes;
            arena.large_arenas = large_arenas;
        }
        true
    }
}
