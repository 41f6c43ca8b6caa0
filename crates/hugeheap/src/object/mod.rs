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
//! | file | concept |
//! |---|---|
//! | `class` | size classes and how a heap page is cut |
//! | `tag` | whose a heap page is, and how it is cut |
//! | `space` | metadata of heap pages; address → metadata |
//! | `tables` | where that metadata lies, and what of it can be written |
//! | `huge_tables` | that of large heaps on huge pages |
//! | `shorten` | giving its address space back, where a program limits itself |
//! | `beside` | metadata of arenas that are made ahead |
//! | `bin` | where the next block of a class comes from |
//! | `heap` | a heap, and allocating: the fast paths |
//! | `free` | freeing by the owner: the fast paths |
//! | `instructions` | instructions that the compiler does not find |
//! | `apart` | what lies on cache lines of its own |
//! | `busy` | the mark that a heap is being changed, for forks |
//! | `lists` | pages with free blocks |
//! | `windows` | opening and leaving windows |
//! | `begin` | beginning a page without a live block |
//! | `refill` | the way to the next window, page, arena |
//! | `settle` | pages that a free leaves without a live block, or no longer full |
//! | `release` | blocks and pages that come back, from other threads too |
//! | `inbox` | pages in which other threads freed, collected late |
//! | `remote` | the lock-free steps of that |
//! | `model` | those steps, all interleavings: for tests |
//! | `vacate_model` | the steps of `vacate`, in the same way |
//! | `handed_model` | those of `handed` and of what is kept |
//! | `registry` | all heaps; ended threads and forked children |
//! | `lengths` | what a request above a block of a heap page gets |
//! | `spans` | page runs cut into blocks that do not end with a heap page |
//! | `span_place` | where their blocks are noted |
//! | `span_vacancy` | OS pages of these that can be given back |
//! | `runs` | short page runs of a heap, and blocks of spans, kept for reuse |
//! | `run_cache` | which of them, and how many |
//! | `handed` | those that other threads freed |
//! | `surplus` | those that their owner does not need |
//! | `pages` | page runs and large blocks of the arenas |
//! | `hardened` | heaps that clear, mix and guard their blocks |
//! | `resize` | aligned, zeroed, resized requests |
//! | `vacancy` | looking for OS pages without a live block |
//! | `vacate` | giving them back, while the owner goes on |
//! | `alike` | which OS pages can be made alike: a policy |
//! | `merging` | making them alike, for the kernel to merge them |
//! | `mistake` | what a wrong free is told |
//! | `global` | a heap per thread, over the process's runtime |
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
mod free;
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
mod run_cache;
mod runs;
mod settle;
mod shorten;
pub(crate) mod space;
mod span_place;
mod span_vacancy;
mod spans;
mod surplus;
mod tables;
mod tag;
#[cfg(test)]
mod tests;
mod unused;
mod vacancy;
mod vacate;
#[cfg(all(test, loom))]
mod vacate_model;
mod verify;
mod visit;
mod waiting;
mod walk;
mod windows;

/// The atomics of `remote`.
mod atomic {
    pub(super) use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

    /// What was written is seen before what is looked at next: nothing to do, because both are of the order SeqCst. The model, which takes that for less,
    /// has a fence here.
    #[inline(always)]
    pub(super) fn written_before_look() {}
}

#[cfg(feature = "allocator-api2")]
pub use allocator::LocalHeap;
pub use class::{CLASSES, MAX_BINNED, MAX_BLOCK, MAX_SMALL, SIZES};
pub use global::{GlobalHeap, ProcessHeap, space, thread_heap, thread_heap_at_hand, thread_heap_to_free};
pub(crate) use global::{set_thread_heap, thread_number};
pub use heap::Heap;
pub use lengths::block_bytes;
pub use mistake::Mistake;
pub use space::{Source, Space};
pub use walk::{ClassStatistics, Content, Statistics, Walk, WalkedPage};
