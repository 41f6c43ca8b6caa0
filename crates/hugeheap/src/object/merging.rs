//! Making OS pages alike, so that the kernel has one page for several: while the owners of their heaps go on.
//!
//! ```text
//!   vacate                          here                                      kernel (ksmd), by and by
//!   claims a page, reads it  ──▶    notes what lives in its OS pages
//!   … all of the arena       ──▶    forms groups (alike), and copies    ──▶   equal pages become one, copied when it is written
//!   opens the arena
//! ```
//!
//! What is not vacant cannot be given back, and a block cannot move. But of a heap that lost nine of ten small
//! blocks at random each OS page has some, in different places. Each page of a [group](super::alike) gets what
//! lives in the others, in granules in which nothing of its own lives. Then they are equal, and the kernel's
//! merging of equal pages does the rest: to the program memory is as private as it was.
//!
//! * *What is written*: granules of claimed pages of the closed arena that are free for good, as
//!   [`vacate`](super::vacate) finds them. It drops OS pages for which the same holds. No live block is
//!   written, none that its owner remembers, and none can be handed out before the arena is opened. So this
//!   needs no other proof; the model has it as a further write.
//! * *What is read*: live blocks, which their owners write meanwhile. They are copied word by word, and a torn
//!   copy is never looked at by a program: it makes two pages unequal, and they are not merged. What is equal
//!   only by chance is merged rightly.
//! * *Not of hardened heaps*: they clear what is freed, so that nobody who reads a freed block finds another's
//!   contents. Here it would hold some. They are never claimed.
//! * *Not what is shared*: a page that a parent or a child still has, since a fork, would be copied by the
//!   first write to it, and so would one that is merged. The kernel says which pages are this process's alone;
//!   it is asked each time, and where it does not tell, nothing is made alike. With that a page that is merged,
//!   and was not written since, is left as it is.
//! * A freed block is not zero where it was in a dropped OS page before: nobody relies on that, see
//!   [`allocate_zeroed`](super::Heap::allocate_zeroed).
//!
//! All of it is done for an arena at a time: 512 OS pages, 2 MiB that are read and at most as much that is
//! written, about a millisecond. Who finds no free block elsewhere waits as long.

use super::alike::{self, Granules, Groups, OS_PAGE, PAGES, PARTS};
use super::class::{GRANULE_SHIFT, Shape};
use super::vacancy::Words;
use crate::arena::HEAP_PAGE_BYTES;
use core::sync::atomic::{AtomicU64, Ordering};
use hugeheap_os::{AddressRange, Backing, Os};

/// Words of a granule.
const GRANULE_WORDS: usize = (1 << GRANULE_SHIFT) / size_of::<u64>();

/// Words of an OS page.
const PAGE_WORDS: usize = OS_PAGE / size_of::<u64>();

/// What it takes to make the pages of an arena alike, in memory of its own: it is more than a thread's stack
/// may have room for, and with one for all threads a forked child would find it in use by a thread that it does
/// not have.
pub(super) struct Merging<'a, O: Os> {
    os: &'a O,
    memory: AddressRange,
    arena: usize,
    /// OS pages that are this process's alone.
    alone: [u64; PAGES / 64],
}

/// What lies in that memory.
#[repr(C)]
struct Room {
    groups: Groups,
    /// What the pages of a group become.
    page: [u64; PAGE_WORDS],
}

impl<'a, O: Os> Merging<'a, O> {
    /// For an arena that is closed. `None`: pages cannot be made alike here.
    pub(super) fn begin(os: &'a O, arena: AddressRange) -> Option<Self> {
        if os.os_page() != OS_PAGE {
            return None;
        }
        let mut alone = [0; PAGES / 64];
        os.exclusive(arena, &mut alone).ok()?;
        let memory = os.reserve(size_of::<Room>().next_multiple_of(OS_PAGE), OS_PAGE).ok()?;
        let merging = Self { os, memory, arena: arena.start, alone };
        // SAFETY: just reserved, and nobody else's. Where it cannot be mapped, it is released with what was made.
        unsafe { os.map(memory, Backing::Base) }.ok()?;
        Some(merging)
    }

    fn room(&mut self) -> &mut Room {
        // SAFETY: mapped, large enough, aligned to the OS page and borrowed with `self`; numbers, of which zero
        // is a value.
        unsafe { &mut *core::ptr::with_exposed_provenance_mut::<Room>(self.memory.start) }
    }

    /// Notes a claimed heap page of the arena, in which these blocks are free for good.
    pub(super) fn add(&mut self, page: usize, shape: &Shape, free: &Words) {
        let first = (page - self.arena) / OS_PAGE;
        for (number, live) in (first..first + PARTS).zip(alike::live_granules(shape, free)) {
            let full = live.iter().all(|&word| word == u64::MAX);
            if !full && self.alone[number / 64] >> (number % 64) & 1 != 0 {
                self.room().groups.add(number, live);
            }
        }
    }

    /// Makes the pages alike that were noted. Returns how many bytes of them have an equal one now.
    pub(super) fn finish(mut self) -> usize {
        let arena = self.arena;
        let Room { groups, page: all } = self.room();
        groups.form();
        let mut pages = 0;
        for group in groups.groups() {
            all.fill(0);
            for page in groups.pages(group) {
                copy(arena + page * OS_PAGE, groups.live(page), true, |word, memory| {
                    all[word] = memory.load(Ordering::Relaxed);
                });
            }
            for page in groups.pages(group) {
                copy(arena + page * OS_PAGE, groups.live(page), false, |word, memory| {
                    memory.store(all[word], Ordering::Relaxed);
                });
                pages += 1;
            }
        }
        pages * OS_PAGE
    }
}

impl<O: Os> Drop for Merging<'_, O> {
    fn drop(&mut self) {
        // SAFETY: what was reserved, of which nothing is borrowed any more. That it stays where it cannot be
        // released is no harm.
        let _ = unsafe { self.os.release(self.memory) };
    }
}

/// Calls `copy` for each word of a page that lies in a live granule, or in none.
fn copy(page: usize, live: &Granules, inside: bool, mut copy: impl FnMut(usize, &AtomicU64)) {
    for (first, count) in alike::ranges(live, inside) {
        for word in first * GRANULE_WORDS..(first + count) * GRANULE_WORDS {
            let address = page + word * size_of::<u64>();
            // SAFETY: a resident OS page of a heap page in use. Others may write what lives there, with plain
            // stores of whatever size: what is read of that is looked at by nobody. What does not live is
            // nobody's as long as the arena is closed.
            copy(word, unsafe { AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut(address)) });
        }
    }
}

const _: () = assert!(PARTS * OS_PAGE == HEAP_PAGE_BYTES);
