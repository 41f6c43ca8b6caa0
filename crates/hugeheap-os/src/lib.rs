//! Pages from the operating system, and facts about them.
//!
//! Everything hugeheap asks of a kernel goes through the two traits of this crate, so that the
//! decisions above them (which arena to fill, what to give back) are pure code that a test can drive.
//!
//! ```text
//!   hugeheap::arena, ::runtime            policies: no system calls
//!        │                │
//!        ▼                ▼
//!   trait Pages      trait Facts          what a kernel can do  /  what a kernel says
//!        │                │
//!   ┌────┴─────┬──────────┴───┐
//!   linux   simulated   (windows, macos)
//! ```
//!
//! * [`Pages`] moves memory: reserve address space, map it with a backing, advise, populate, collapse,
//!   split, decommit, protect, name, and ask what really backs it.
//! * [`Facts`] reads: page sizes, the transparent-huge-page knobs, hugetlb pools, the memory cgroup,
//!   pressure, caches, NUMA nodes, and which kernel calls work here, probed and not guessed from a version.
//!
//! [`process::Process`] is the third: one process, this or another, looked at and changed from outside.
//! [`process`] has the operations on it, collapse and release.
//!
//! Neither of the first two allocates from the process's heap on the calls an allocator makes; the doc of each
//! method says whether it may.

mod error;
mod facts;
mod pages;
mod range;

#[cfg(target_os = "linux")]
pub mod linux;
pub mod process;
pub mod simulated;

pub use error::{Error, ErrorKind, Result};
pub use facts::*;
pub use pages::{Advice, Backing, Pages, Protection, Residency};
pub use range::AddressRange;

/// An operating system: pages and facts in one. Implemented for everything that has both.
pub trait Os: Pages + Facts {}
impl<T: Pages + Facts> Os for T {}
