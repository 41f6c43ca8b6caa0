//! Hugetlb arenas and forked children.
//!
//! A child's reservation in the pool is not inherited. When parent or child writes to a page both share and the
//! pool is empty, the kernel takes the page away from the child, which then dies of `SIGBUS` at any access,
//! however long after the fork. hugeheap does not let that happen: before the fork the parent copies each
//! hugetlb arena that has live runs into ordinary memory, and the child's first act is to move the copies into
//! the arenas' places. It never reads the shared pages, so neither an empty pool nor a write of the parent can
//! hurt it. The parent drops its copies and keeps its pages.
//!
//! ```text
//!   before fork (parent)      after fork, child                after fork, parent
//!   arena ──copy──▶ copy      unmap arena; relocate copy ▶ arena    release copy
//! ```
//!
//! The price is a copy of 2 MiB (about 0.3 ms) per hugetlb arena and fork; after the first fork the policy
//! therefore takes no further pages from the pool
//! ([`Fallback::PoolForks`](crate::telemetry::Fallback::PoolForks)), in the parent and in the child. Children
//! made by `vfork` and `posix_spawn` only call exec and need no copy; fork handlers do not run for them.
//!
//! Of other arenas the child shares the live ones like any memory. The empty ones, which the parent keeps for a
//! while, the child drops: when it used one, the kernel would copy contents that nobody reads, 4 KiB at a time;
//! and as long as it has them, the parent cannot give them back. What drops them, a call for each, would
//! otherwise be done when the child ends or executes another program.
//!
//! Where the system has memory for some of the copies only, as under `ulimit -d`, against which the arenas
//! count as well, the parent makes those, half or more of them. Each arena that the child replaces leaves room
//! for one more copy, so it makes the others itself, one at a time. Until then it reads shared pages: a parent
//! that writes meanwhile, with an empty pool, ends it, but no longer at any time afterwards. The parent cannot
//! move to ordinary pages instead: its other threads write meanwhile, and so may the kernel, for I/O under way.
//!
//! What another thread of the parent writes between the copy and the fork, the child does not see: without that
//! thread in the child, nothing there waits for the write.

use super::layout::ARENA_BYTES;
use super::record::Made;
use super::supply::is_out_of_memory;
use super::{ArenaId, Arenas, bitmap, pages_bytes};
use hugeheap_os::{AddressRange, Backing, Error as OsError, Os, Result as OsResult};

/// The copies made for one fork.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForkCopies {
    reservation: Option<AddressRange>,
    /// The copies are advised for huge pages.
    advised: bool,
    /// Arenas copied.
    pub arenas: usize,
    /// Arenas for whose copies the system had no memory: the child makes them.
    pub left: usize,
}

impl ForkCopies {
    /// No copies.
    pub const NONE: Self = Self { reservation: None, advised: false, arenas: 0, left: 0 };
}

impl<O: Os> Arenas<O> {
    fn hugetlb_arenas(&self) -> impl Iterator<Item = ArenaId> + '_ {
        self.table.used().filter(|&id| {
            let arena = self.table.arena(id);
            arena.made == Made::Hugetlb && arena.in_use != 0
        })
    }

    /// Before a fork, with the heap locked and no maintenance under way: copies hugetlb arenas. Allocates nothing
    /// from the process's heap.
    pub fn before_fork(&mut self) -> ForkCopies {
        self.forks += 1;
        let count = self.hugetlb_arenas().count();
        if count == 0 {
            return ForkCopies::NONE;
        }
        let mut arenas = count;
        let (reservation, advised) = loop {
            match self.room_for_copies(arenas * ARENA_BYTES) {
                Ok(room) => break room,
                Err(_) if arenas > 1 => arenas /= 2,
                Err(_) => return ForkCopies { left: count, ..ForkCopies::NONE },
            }
        };
        for (index, id) in self.hugetlb_arenas().take(arenas).enumerate() {
            let to = reservation.start + index * ARENA_BYTES;
            // SAFETY: both are mapped for a whole arena and do not overlap; the arena's pages are populated.
            unsafe { copy_pages(self.table.range(id).start, to, self.arena(id).in_use) };
        }
        ForkCopies { reservation: Some(reservation), advised, arenas, left: count - arenas }
    }

    /// Memory for copies, and whether it is advised for huge pages.
    ///
    /// The copies count against `ulimit -d`, so what is kept is given up for them: children died of the shared
    /// pages of their parents while that lay there.
    fn room_for_copies(&mut self, len: usize) -> OsResult<(AddressRange, bool)> {
        let reservation = self.os.reserve(len, ARENA_BYTES)?;
        let made = loop {
            // SAFETY: just reserved and used by nobody.
            let map = |backing| unsafe { self.os.map(reservation, backing) };
            let made = map(Backing::Thp).map(|()| true).or_else(|_| map(Backing::Plain).map(|()| false));
            if !is_out_of_memory(&made) || !self.withdraw(ArenaId::NONE) {
                break made;
            }
        };
        if made.is_err() {
            // SAFETY: the reservation was made above and nothing refers to it.
            let _ = unsafe { self.os.release(reservation) };
        }
        made.map(|advised| (reservation, advised))
    }

    /// After the fork, in the parent: drops the copies.
    pub fn after_fork_in_parent(&mut self, copies: ForkCopies) {
        self.give_up_room(copies.reservation);
    }

    /// After the fork, in the child: drops what is empty, and puts copies in the arenas' places. Only
    /// async-signal-safe calls. Answers how many arenas stay shared, since there was no memory for their
    /// copies.
    pub fn after_fork_in_child(&mut self, copies: ForkCopies) -> usize {
        for mut id in self.empty.lists().map(|list| list.head) {
            while id.is_some() {
                let next = self.arena(id).next;
                self.drop_shared(id);
                id = next;
            }
        }
        if copies.arenas + copies.left == 0 {
            return 0;
        }
        let mut room = copies.reservation;
        let (mut copied, mut shared, mut from) = (0, 0, ArenaId(0));
        // The iterator borrows the table, so the search begins anew behind each arena.
        while let Some(id) = self.next_hugetlb(from) {
            from = ArenaId(id.0 + 1);
            if self.arena(id).in_use == 0 {
                // It could not be dropped.
                continue;
            }
            let replaced = if let Some(copies_at) = room.filter(|_| copied < copies.arenas) {
                let copy = AddressRange::new(copies_at.start + copied * ARENA_BYTES, ARENA_BYTES);
                copied += 1;
                self.replace_shared(id, copy, copies.advised)
            } else {
                // What was moved away counts until its place is given up.
                self.give_up_room(room.take());
                self.copy_shared(id)
            };
            let Some(advised) = replaced else {
                shared += 1;
                continue;
            };
            let arena = self.table.arena_mut(id);
            arena.made = if advised { Made::Thp } else { Made::Plain };
            arena.huge = false;
            self.note_density(id);
        }
        self.give_up_room(room);
        shared
    }

    fn give_up_room(&self, room: Option<AddressRange>) {
        if let Some(room) = room {
            // SAFETY: made for copies; those that are needed were moved away, and nothing refers to the others.
            let _ = unsafe { self.os.release(room) };
        }
    }

    /// Replaces an arena that the parent had no memory to copy. As [`replace_shared`](Self::replace_shared);
    /// also `None` where there still is none.
    fn copy_shared(&mut self, id: ArenaId) -> Option<bool> {
        let (copy, advised) = self.room_for_copies(ARENA_BYTES).ok()?;
        // SAFETY: both are mapped for a whole arena and do not overlap, and this process has one thread.
        unsafe { copy_pages(self.table.range(id).start, copy.start, self.arena(id).in_use) };
        let replaced = self.replace_shared(id, copy, advised);
        self.give_up_room(Some(copy));
        replaced
    }

    fn next_hugetlb(&self, from: ArenaId) -> Option<ArenaId> {
        self.table.used_from(from).find(|&id| self.arena(id).made == Made::Hugetlb)
    }

    /// Puts a copy in the place of an arena that is shared with the parent. Says whether it is advised for huge
    /// pages there; `None`, when the system refuses even to unmap: then the arena stays as it is. Without
    /// memory for it the process ends.
    fn replace_shared(&mut self, id: ArenaId, copy: AddressRange, advised: bool) -> Option<bool> {
        let range = self.table.range(id);
        // SAFETY: the arena is ours, and this process has one thread: nobody uses it until the copy is in place.
        unsafe { self.os.unmap(range) }.ok()?;
        // SAFETY: `copy` is mapped and `range` is reserved now; both are arena-sized and ours.
        if unsafe { self.os.relocate(copy, range) }.is_ok() {
            return Some(advised);
        }
        // The kernel cannot move pages.
        if let Err(error) = self.map_again(range) {
            // It was told as an arena like others, and whatever used it later ended with SIGSEGV.
            missing(range, error);
        }
        // SAFETY: both are mapped for a whole arena and do not overlap. The copy has served: under strict
        // overcommit there may not be memory for all arenas beside all copies.
        unsafe {
            copy_pages(copy.start, range.start, self.arena(id).in_use);
            let _ = self.os.unmap(copy);
        }
        Some(false)
    }

    /// Maps the place of an arena, for which what is kept goes, as it does for the [copies](Self::room_for_copies).
    fn map_again(&mut self, range: AddressRange) -> OsResult<()> {
        loop {
            // SAFETY: the range is an arena's that was unmapped, and nobody uses it until the copy is there.
            let made = unsafe { self.os.map(range, Backing::Plain) };
            if !is_out_of_memory(&made) || !self.withdraw(ArenaId::NONE) {
                break made;
            }
        }
    }

    /// Drops an empty arena that is shared with the parent. Not given back, which it would be a regret to need
    /// again: the parent has it.
    fn drop_shared(&mut self, id: ArenaId) {
        let range = self.table.range(id);
        // A page of the pool stays shared until it is unmapped, and the child would die of a write to it.
        let unmap = self.arena(id).made == Made::Hugetlb;
        // SAFETY: the arena is ours and has no live run.
        let dropped = unsafe { if unmap { self.os.unmap(range) } else { self.os.decommit(range) } };
        if dropped.is_err() {
            return;
        }
        self.unfile(id);
        let arena = self.table.arena_mut(id);
        let bytes = pages_bytes(arena.touched);
        arena.touched = 0;
        if unmap {
            arena.made = Made::Nothing;
        }
        arena.huge = false;
        arena.unsplit = false;
        self.retain_less(bytes);
        self.counters.arenas -= 1;
        self.file(id);
    }
}

/// Ends a child without the memory of a live arena. The error's own text would be allocated, with the heap's
/// locks held.
fn missing(range: AddressRange, error: OsError) -> ! {
    crate::complain::abort(format_args!(
        "no memory in a forked child for {range} of the heap, whose pages its parent has from the hugetlb pool: {} failed \
         with error {}; use policy thp for programs that fork",
        error.call, error.code
    ))
}

/// Copies the live pages of an arena: what is in the others, nobody may rely on.
///
/// # Safety
/// Both are the beginning of a mapped arena's length, readable and writable, and do not overlap.
unsafe fn copy_pages(from: usize, to: usize, live: u128) {
    for pages in bitmap::set_ranges(live) {
        let offset = pages.start as usize * super::HEAP_PAGE_BYTES;
        let len = pages.len() * super::HEAP_PAGE_BYTES;
        // SAFETY: the pages lie in the two arenas.
        unsafe {
            core::ptr::copy_nonoverlapping((from + offset) as *const u8, (to + offset) as *mut u8, len)
        };
    }
}
