//! The object allocator: blocks of size classes in heap pages, bitmaps outside them, every free checked exactly.
//!
//! ```text
//!   Heap (one owner) ──▶ Bin per class ──▶ window: one word of a page's bitmap
//!     │                                        ▲
//!     │ page wanted, page empty                │ address → metadata: subtraction and shifts
//!     ▼                                        │
//!   Source: arenas behind a lock            Space: marks and bitmaps of all heap pages
//! ```
//!
//! What is known of a heap page, outside of it:
//!
//! | file | concept |
//! |---|---|
//! | `class` | size classes and how a heap page is cut |
//! | `tag` | whose a heap page is, and how it is cut |
//! | `mark` | its tag, where something is free in it, how much of it lives, its links |
//! | `space` | the metadata of all heap pages; address → metadata |
//! | `tables` | where that metadata lies, and what of it can be written |
//! | `huge_tables` | that of large heaps on huge pages |
//! | `shorten` | giving its address space back, where a program limits itself |
//! | `unused` | giving back what belongs to arenas that were given back |
//! | `beside` | metadata of arenas that are made ahead |
//!
//! Blocks of heap pages, by their owner:
//!
//! | file | concept |
//! |---|---|
//! | `heap` | a heap, and allocating: the fast paths |
//! | `free` | freeing by the owner: the fast paths |
//! | `bin` | where the next block of a class comes from |
//! | `window` | the bits from which it takes blocks one after the other |
//! | `ring` | the blocks that a bin remembers |
//! | `recent` | taking them, and having it remember some |
//! | `windows` | opening and leaving windows |
//! | `begin` | beginning a page without a live block |
//! | `refill` | the way to the next window, page, arena |
//! | `spares` | pages without a live block that a heap keeps |
//! | `lists` | pages with free blocks |
//! | `settle` | pages that a free leaves without a live block, or no longer full |
//! | `release` | blocks and pages that come back away from the fast paths; what an address lies in |
//! | `resize` | aligned, zeroed, resized requests |
//! | `few` | the classes of a thread with few blocks |
//! | `hardened` | heaps that clear, mix and guard their blocks |
//! | `instructions` | instructions that the compiler does not find |
//!
//! What is longer than a block of a heap page:
//!
//! | file | concept |
//! |---|---|
//! | `lengths` | what such a request gets |
//! | `runs` | short page runs of a heap, and blocks of spans, kept for reuse |
//! | `run_cache` | which of them, and how many |
//! | `surplus` | those that their owner does not need |
//! | `handed` | those that other threads freed |
//! | `spans` | page runs cut into blocks that do not end with a heap page |
//! | `span_place` | where their blocks are noted |
//! | `pages` | page runs and large blocks of the arenas |
//! | `resized_length` | how long those are that were resized |
//!
//! Several threads:
//!
//! | file | concept |
//! |---|---|
//! | `registry` | all heaps; ended threads and forked children |
//! | `busy` | the mark that a heap is being changed, for forks |
//! | `remote` | the lock-free steps of freeing another's block |
//! | `remote_free` | that free, with its checks |
//! | `freed` | where it is noted |
//! | `inbox` | pages in which other threads freed, collected late |
//! | `ownerless` | heaps that wait for an owner |
//! | `waiting` | their quarantine |
//! | `idle` | collecting for an owner that does nothing, without its word |
//! | `visit` | the same for an interpreter's, with its lock |
//! | `apart` | what lies on cache lines of its own |
//! | `model`, `handed_model`, `idle_model`, `leave_model`, `vacate_model`, `vacate_at_hand_model` | those steps, all interleavings: for tests |
//!
//! OS pages without a live block:
//!
//! | file | concept |
//! |---|---|
//! | `vacancy` | looking for them |
//! | `vacate` | giving them back, while the owner goes on |
//! | `vacate_at_hand` | those of pages at hand |
//! | `span_vacancy` | those of spans |
//! | `alike` | which could be made alike, of those in which something lives: a policy |
//! | `merging` | making them so, for the kernel to merge them |
//!
//! Seen from outside:
//!
//! | file | concept |
//! |---|---|
//! | `global` | a heap per thread, over the process's runtime |
//! | `allocator` | heaps as allocators of single collections |
//! | `mistake` | what a wrong free is told |
//! | `walk` | regions, arenas, pages and blocks, one after the other; statistics |
//! | `verify` | everything that is kept, recomputed: for tests |

mod alike;
#[cfg(feature = "allocator-api2")]
mod allocator;
mod apart;
mod begin;
mod beside;
mod bin;
mod busy;
pub(crate) mod class;
mod few;
mod free;
mod freed;
mod global;
mod handed;
#[cfg(all(test, loom))]
mod handed_model;
mod hardened;
mod heap;
mod huge_tables;
mod idle;
#[cfg(all(test, loom))]
mod idle_model;
mod inbox;
mod instructions;
#[cfg(all(test, loom))]
mod leave_model;
mod lengths;
mod lists;
pub(crate) mod mark;
mod merging;
mod mistake;
#[cfg(all(test, loom))]
mod model;
mod ownerless;
mod pages;
mod recent;
mod refill;
mod registry;
mod release;
mod remote;
mod remote_free;
mod resize;
mod resized_length;
mod ring;
mod run_cache;
mod runs;
mod settle;
mod shorten;
pub(crate) mod space;
mod span_place;
mod span_vacancy;
mod spans;
mod spares;
mod surplus;
mod tables;
mod tag;
#[cfg(test)]
mod tests;
mod unused;
mod vacancy;
mod vacate;
mod vacate_at_hand;
#[cfg(all(test, loom))]
mod vacate_at_hand_model;
#[cfg(all(test, loom))]
mod vacate_model;
mod verify;
mod visit;
mod waiting;
mod walk;
mod window;
mod windows;

/// The atomics of `remote`.
mod atomic {
    pub(super) use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

    /// What was written is seen before what is looked at next: nothing to do, because both are of the order
    /// SeqCst. The model, which takes that for less, has a fence here.
    #[inline(always)]
    pub(super) fn written_before_look() {}
}

#[cfg(feature = "allocator-api2")]
pub use allocator::LocalHeap;
pub use class::{CLASSES, MAX_BINNED, MAX_BLOCK, MAX_SMALL, SIZES};
pub use free::Unfreed;
pub use global::{
    GlobalHeap, ProcessHeap, space, thread_heap, thread_heap_at_hand, thread_heap_from_start,
    thread_heap_to_free,
};
pub(crate) use global::{set_thread_heap, thread_number};
pub use heap::Heap;
pub use lengths::block_bytes;
pub use mistake::Mistake;
pub use space::{Source, Space};
pub use walk::{ClassStatistics, Content, Statistics, Walk, WalkedPage};
