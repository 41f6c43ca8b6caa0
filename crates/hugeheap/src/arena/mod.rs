//! Arenas and heap pages: which arena to fill, what to keep, what to give back, and how.
//!
//! | file | concept |
//! |---|---|
//! | [`layout`] | the three units |
//! | `bitmap` | free ranges of an arena |
//! | `record`, `list`, `table` | metadata of an arena; lists of arenas; regions and address → metadata |
//! | `order` | which partial arena to fill |
//! | `empties` | arenas without a live run: which is used next, and which given back first |
//! | `backing` | what the next arena is made of: the policies |
//! | `demand` | how much to keep: the retention rule |
//! | `arenas` | allocating and freeing page runs |
//! | `batch` | the same for heap pages in numbers |
//! | `resize` | runs that change their length where they are |
//! | `supply` | obtaining address space and memory |
//! | `refusals` | when refused address space is asked for again |
//! | `cut` | giving address space back, where the program limits itself |
//! | `exact` | what another allocator serves better where address space is limited |
//! | `ahead` | obtaining memory before an allocation asks for it, while the heap grows quickly |
//! | `maintenance` | giving back, breaking, collapsing: chosen and accounted for under the lock |
//! | `sweep` | the search for arenas to collapse |
//! | `tails` | what is resident behind the end of a large block |
//! | `offer` | kept memory that the kernel may take, where there is a memory limit |
//! | `tenant` | heap pages of which a part is vacant |
//! | `plan` | the system calls of that, made outside the lock |
//! | `fork` | hugetlb arenas and forked children |
//! | `report` | what it tells about itself |
//! | `clock` | time that never goes back |
//! | `policy`, `settings` | what a program may choose |
//! | `verify` | recomputes everything that is kept, for tests |
//!
//! Only `supply`, `cut`, `plan`, `table`, `offer`, `report` and `fork` make system calls, all through the
//! traits of `hugeheap_os`. (The clock is read everywhere: it is one of them, too.)

mod ahead;
mod arenas;
mod backing;
mod batch;
mod bitmap;
mod clock;
mod cut;
mod demand;
mod empties;
pub(crate) mod exact;
mod fork;
pub mod layout;
mod list;
mod maintenance;
mod offer;
mod order;
mod plan;
mod policy;
mod record;
mod refusals;
mod report;
mod resize;
mod settings;
mod supply;
mod sweep;
mod table;
mod tails;
pub(crate) mod tenant;
#[cfg(test)]
pub(crate) mod tests;
mod verify;

pub use ahead::Ahead;
pub(crate) use ahead::Beside;
pub use arenas::{Arenas, BadFree};
pub(crate) use cut::Cut;
pub use fork::ForkCopies;
pub use layout::{ARENA_BYTES, HEAP_PAGE_BYTES, HEAP_PAGES};
pub use maintenance::Wait;
pub use plan::Plan;
pub use policy::Policy;
pub use settings::Settings;

pub(crate) use arenas::pages_bytes;
pub(crate) use list::ArenaId;
pub(crate) use record::{Made, State};
pub(crate) use resize::with_spare;
pub(crate) use supply::First;
pub(crate) use table::{MAX_REGION_ARENAS, MAX_REGIONS};
pub(crate) use tails::LONG;
pub(crate) use tenant::{DueLook, GivenUp, Tenant, Vacancy};
