//! Workloads for allocators, in the manner of the suites the field trusts, and what they look like from outside.
//!
//! ```text
//!   program    the command line of the little programs, one per allocator
//!      │
//!   catalogue  every workload with its parameters
//!      │
//!   larson, mstress, …   the workloads: a fixed amount of work, whatever time it takes
//!      ├── memory      blocks: taken and given plainly, checked, or timed one by one
//!      ├── stage       the moments of a workload: steady, idle
//!      └── random      numbers that are the same in every run
//! ```
//!
//! The library knows no allocator: it asks `std::alloc`, and the program that uses it chooses with
//! `#[global_allocator]`.

pub mod catalogue;
pub mod program;

mod alloc_test;
mod batches;
mod buffers;
mod cache;
mod glibc;
mod growing;
mod histogram;
mod idle_threads;
mod larson;
mod look;
mod memory;
mod mstress;
mod phase_shift;
mod pool;
mod random;
mod random_drop;
mod rptest;
mod sparse;
mod stage;
mod xmalloc;
