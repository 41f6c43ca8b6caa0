//! Arenas and heap pages: which arena to fill, what to keep, what to give back, and how.
//!
//! | file | concept |
//! |---|---|
//! | [`layout`] | the three units |
//! | `bitmap` | free ranges of an arena |
//! | `record`, `list`, `table` | metadata of an arena; lists of arenas; regions and address → metadata |
//! | `order` | which partial arena to fill |
//! | `backing` | what the next arena is made of: the policies |
//! | `demand` | how much to keep: the retention rule |
//! | `arenas` | allocating and freeing page runs |
//! | `maintenance` | giving back, breaking, collapsing: planned under the lock, performed outside |
//! | `fork` | hugetlb arenas and forked children |
//!
//! Everything but `arenas`, `maintenance` and `fork` is free of system calls, and these three make them through
//! the traits of `hugeheap_os` only.

mod arenas;
mod backing;
mod bitmap;
mod demand;
mod fork;
pub mod layout;
mod list;
mod maintenance;
mod order;
mod policy;
mod record;
mod settings;
mod table;

pub use arenas::{Arenas, BadFree};
pub use fork::ForkCopies;
pub use layout::{ARENA_BYTES, HEAP_PAGE_BYTES, HEAP_PAGES};
pub use maintenance::{Plan, Wait};
pub use policy::Policy;
pub use settings::Settings;

pub(crate) use list::ArenaId;
pub(crate) use record::{Made, State};
