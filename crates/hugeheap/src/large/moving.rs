//! Growing a large block by moving it.
//!
//! ```text
//!   block   ├ huge ┼ huge ┼ tail ┤          the kernel moves mappings of one kind in one call
//!              │relocate│  │copy           what it cannot move is copied
//!              ▼        ▼  ▼
//!   place   ├──────┼──────┼──────┼ new ┤   the new arenas are supplied first: then nothing else needs memory, mostly
//! ```
//!
//! Either the whole block arrives or it stays where it was, with its contents: where the kernel moved a part
//! and memory for the copy of another cannot be had, what was moved is copied back. A relocated source stays
//! mapped, so the way back needs no call that could fail; and it is in no list until the block has arrived or
//! is back. It was filed at once, as given back, and what was refused for the copy had the write access taken
//! from what is given back ([`withdraw`](Arenas::withdraw)): a list that grew under `ulimit -d` was copied back
//! to where nothing could be written.
//!
//! Copying is done with the heap locked, 0.1 ms per MiB. It happens where the kernel cannot move (before 5.7),
//! for arenas from a pool, and for arenas that maintenance works on.

use super::{ARENA_BYTES, ArenaId, Arenas, First, State, pages_bytes, with_room};
use crate::arena::Made;
use core::num::NonZeroUsize;
use core::ops::Range;
use hugeheap_os::{AddressRange, ErrorKind, Os};

impl<O: Os> Arenas<O> {
    /// Moves a growing block to a place with room. `None`, with nothing changed, when the system has no memory.
    pub(super) fn move_large(
        &mut self,
        first: ArenaId,
        old_count: u32,
        count: u32,
        bytes: usize,
    ) -> Option<NonZeroUsize> {
        let to = self.find_large_span(count, with_room(count))?;
        let old_bytes = self.table.arena(first).large_bytes as usize;
        self.end_guess(self.nth(first, old_count - 1));
        self.occupy(to, old_count..count, bytes, true, First::Program)?;
        if !self.move_arenas(first, to, old_count, old_bytes) {
            self.vacate(to, old_count, count);
            return None;
        }
        self.leave(first, old_count);
        self.relabel(to, old_count, bytes);
        let arena = self.table.arena_mut(to);
        arena.large_bytes = bytes as u64;
        arena.large_arenas = count;
        NonZeroUsize::new(self.table.range(to).start)
    }

    /// Moves the first `count` arenas of a block, by the kernel or by copying. False, with nothing changed,
    /// when there is no memory for a copy.
    fn move_arenas(&mut self, from: ArenaId, to: ArenaId, count: u32, bytes: usize) -> bool {
        let mut index = 0;
        let mut one_by_one = true;
        while index < count {
            let alike = self.alike(from, index, count);
            if self.relocate(from, to, index..index + alike) {
                index += alike;
                continue;
            }
            // The kernel may have kept neighbours of one kind as several mappings.
            if alike > 1 && one_by_one && self.relocate(from, to, index..index + 1) {
                index += 1;
                continue;
            }
            one_by_one = false;
            if self.occupy(to, index..index + alike, bytes, true, First::Maker).is_none() {
                self.move_back(from, to, index);
                return false;
            }
            self.copy(from, to, index..index + alike, bytes);
            index += alike;
        }
        true
    }

    /// Makes the first `count` arenas of a block empty ones, of which the contents are elsewhere by now.
    fn leave(&mut self, from: ArenaId, count: u32) {
        for index in 0..count {
            let id = self.nth(from, index);
            if self.is_left(id) {
                self.table.arena_mut(id).busy = false;
                self.file(id);
            } else {
                self.vacate(from, index, index + 1);
            }
        }
    }

    /// Whether an arena of a block that moves was relocated.
    fn is_left(&self, id: ArenaId) -> bool {
        self.table.arena(id).state == State::GivenBack
    }

    /// How many arenas of a block from number `index` on, below `end`, can be moved by one call.
    fn alike(&self, first: ArenaId, index: u32, end: u32) -> u32 {
        let made = self.table.arena(self.nth(first, index)).made;
        let same =
            (index + 1..end).take_while(|&other| self.table.arena(self.nth(first, other)).made == made);
        1 + same.count() as u32
    }

    /// Copies what a block of `bytes` has in some of its arenas.
    fn copy(&self, from: ArenaId, to: ArenaId, part: Range<u32>, bytes: usize) {
        let start = part.start as usize * ARENA_BYTES;
        let end = bytes.min(part.end as usize * ARENA_BYTES);
        let source = self.table.range(from).start + start;
        let target = self.table.range(to).start + start;
        // SAFETY: both are mapped for these bytes and belong to one block, whose owner is in the call that
        // leads here; they are different arenas, so they do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(source as *const u8, target as *mut u8, end - start) };
    }

    /// Undoes the move of the first `count` arenas of a block.
    fn move_back(&mut self, from: ArenaId, to: ArenaId, count: u32) {
        for index in 0..count {
            let (old, new) = (self.nth(from, index), self.nth(to, index));
            if !self.is_left(old) {
                // It was copied: the original is untouched.
                self.vacate(to, index, index + 1);
                continue;
            }
            let (in_use, starts, state) = {
                let arena = self.table.arena(new);
                (arena.in_use, arena.starts, arena.state)
            };
            let now = self.now();
            let arena = self.table.arena_mut(old);
            arena.busy = false;
            arena.in_use = in_use;
            arena.starts = starts;
            arena.state = state;
            arena.changed(now);
            self.count_arena();
            self.touch(old, now, in_use);
            self.copy_pages(new, old, in_use);
            self.counters.large += pages_bytes(in_use);
            self.count_live(now, pages_bytes(in_use));
            self.vacate(to, index, index + 1);
        }
    }

    /// Copies the first pages of an arena, those in the bitmap.
    fn copy_pages(&self, from: ArenaId, to: ArenaId, pages: u128) {
        self.copy(from, to, 0..1, pages_bytes(pages) as usize);
    }

    /// Moves the memory and the metadata of some arenas of a block to idle ones. False, with nothing changed,
    /// when the system cannot.
    fn relocate(&mut self, from: ArenaId, to: ArenaId, part: Range<u32>) -> bool {
        let stays = |index: u32| {
            let arena = self.table.arena(self.nth(from, index));
            arena.made == Made::Hugetlb || arena.busy
        };
        if part.clone().any(stays) || !part.clone().all(|index| self.make_way(self.nth(to, index))) {
            return false;
        }
        let range = |first| {
            let start = self.table.range(self.nth(first, part.start)).start;
            AddressRange::new(start, part.len() * ARENA_BYTES)
        };
        let (source, target) = (range(from), range(to));
        // SAFETY: the source is the block's own mapped arenas, which the caller of realloc owns alone; the
        // target was unmapped above.
        while let Err(error) = unsafe { self.os.relocate(source, target) } {
            // Until the source is given up both count against `ulimit -d`.
            if error.kind() != ErrorKind::OutOfMemory || !self.withdraw(ArenaId::NONE) {
                return false;
            }
        }
        for index in part {
            self.relocated(self.nth(from, index), self.nth(to, index));
        }
        true
    }

    /// Moves the metadata after the memory.
    fn relocated(&mut self, old: ArenaId, new: ArenaId) {
        self.unfile(new);
        let content = *self.table.arena(old);
        let arena = self.table.arena_mut(new);
        (arena.in_use, arena.starts, arena.touched) = (content.in_use, content.starts, content.touched);
        (arena.changed_at, arena.serial) = (content.changed_at, content.serial);
        (arena.retry_at, arena.failures) = (content.retry_at, content.failures);
        (arena.made, arena.state) = (content.made, content.state);
        (arena.huge, arena.unsplit, arena.guess) = (content.huge, content.unsplit, content.guess);
        arena.untold = content.untold;
        arena.forget_answers();
        // What stays behind is an empty mapping with the old advice.
        let arena = self.table.arena_mut(old);
        (arena.in_use, arena.starts, arena.touched) = (0, 0, 0);
        (arena.huge, arena.unsplit, arena.guess, arena.untold) = (false, false, false, false);
        arena.busy = true;
        self.file(old);
    }
}
