//! Hugetlb arenas and forked children.
//!
//! A child's reservation in the pool is not inherited. When parent or child writes to a page both share and the pool is empty, the
//! kernel takes the page away from the child, which then dies of `SIGBUS` at any access, however long after the fork.
//! hugeheap does not let that happen: before the fork the parent copies each hugetlb arena that has live runs into ordinary memory, and
//! the child's first act is to move the copies into the arenas' places. It never reads the shared pages, so
//! neither an empty pool nor a write of the parent can hurt it. The parent drops its copies and keeps its pages.
//!
//! ```text
//!   before fork (parent)      after fork, child                after fork, parent
//!   arena ──copy──▶ copy      unmap arena; relocate copy ▶ arena    release copy
//! ```
//!
//! The price is a copy of 2 MiB (about 0.3 ms) per hugetlb arena and fork; after the first fork the policy therefore takes no
//! further pages from the pool ([`Fallback::PoolForks`](crate::telemetry::Fallback::PoolForks)), in the parent and in the child.
//! Children made by `vfork` and `posix_spawn` only call exec and need no copy; fork handlers do not run for them.
//!
//! What another thread of the parent writes between the copy and the fork, the child does not see: without that thread in the child,
//! nothing there waits for the write.

use super::layout::ARENA_BYTES;
use super::record::{Made, State};
use super::{ArenaId, Arenas};
use hugeheap_os::{AddressRange, Backing, Os};

/// The copies made for one fork.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForkCopies {
    reservation: Option<AddressRange>,
    /// Arenas copied.
    pub arenas: usize,
    /// Arenas for whose copies the system had no memory: the child keeps sharing those pages.
    pub failed: usize,
}

impl ForkCopies {
    /// No copies.
    pub const NONE: Self = Self { reservation: None, arenas: 0, failed: 0 };
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
            return ForkCopies::default();
        }
        let reservation = self.os.reserve(count * ARENA_BYTES, ARENA_BYTES).and_then(|reservation| {
            // SAFETY: just reserved and used by nobody.
            let made = unsafe {
                self.os.map(reservation, Backing::Thp).or_else(|_| self.os.map(reservation, Backing::Plain))
            };
            made.map(|()| reservation).inspect_err(|_| {
                // SAFETY: the reservation was made above and nothing refers to it.
                let _ = unsafe { self.os.release(reservation) };
            })
        });
        let Ok(reservation) = reservation else {
            return ForkCopies { failed: count, ..ForkCopies::default() };
        };
        for (index, id) in self.hugetlb_arenas().enumerate() {
            let from = self.table.range(id).start as *const u8;
            let to = (reservation.start + index * ARENA_BYTES) as *mut u8;
            // SAFETY: both are mapped for a whole arena and do not overlap; the arena's pages are populated.
            unsafe { core::ptr::copy_nonoverlapping(from, to, ARENA_BYTES) };
        }
        ForkCopies { reservation: Some(reservation), arenas: count, failed: 0 }
    }

    /// After the fork, in the parent: drops the copies.
    pub fn after_fork_in_parent(&mut self, copies: ForkCopies) {
        if let Some(reservation) = copies.reservation {
            // SAFETY: made by `before_fork`, and nothing refers to it.
            let _ = unsafe { self.os.release(reservation) };
        }
    }

    /// After the fork, in the child: puts the copies in the arenas' places. Only async-signal-safe calls.
    pub fn after_fork_in_child(&mut self, copies: ForkCopies) {
        let Some(reservation) = copies.reservation else { return };
        let mut index = 0;
        // The iterator borrows the table, so the next arena is looked up by its number each time.
        let mut position = 0;
        loop {
            let next = self
                .table
                .used()
                .enumerate()
                .skip(position)
                .find(|&(_, id)| self.table.arena(id).made == Made::Hugetlb);
            let Some((at, id)) = next else { break };
            position = at + 1;
            let live = self.table.arena(id).in_use != 0;
            let range = self.table.range(id);
            // SAFETY: the arena is ours, and this process has one thread: nobody uses it until the copy is in place. An arena
            // without live runs is not copied, and its contents are not needed.
            if unsafe { self.os.unmap(range) }.is_err() {
                continue;
            }
            if live {
                let copy = AddressRange::new(reservation.start + index * ARENA_BYTES, ARENA_BYTES);
                index += 1;
                // SAFETY: `copy` is mapped and `range` is reserved now; both are arena-sized and ours.
                let moved = unsafe { self.os.relocate(copy, range) };
                if moved.is_err() {
                    // SAFETY: as above; the kernel cannot move pages, so they are copied.
                    unsafe {
                        if self.os.map(range, Backing::Plain).is_ok() {
                            core::ptr::copy_nonoverlapping(
                                copy.start as *const u8,
                                range.start as *mut u8,
                                ARENA_BYTES,
                            );
                        }
                    }
                }
                let arena = self.table.arena_mut(id);
                arena.made = Made::Thp;
                arena.wants_huge = true;
            } else {
                self.unfile(id);
                let arena = self.table.arena_mut(id);
                debug_assert_eq!(arena.state, State::Empty);
                let bytes = u64::from(arena.touched.count_ones()) * super::HEAP_PAGE_BYTES as u64;
                arena.touched = 0;
                arena.made = Made::Nothing;
                self.counters.retained -= bytes;
                self.counters.arenas -= 1;
                self.file(id);
            }
        }
        // SAFETY: made by `before_fork`; what was moved away is an empty mapping.
        let _ = unsafe { self.os.release(reservation) };
    }
}
