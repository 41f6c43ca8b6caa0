//! What a heap tells about itself: one schema for Rust, C, Python and JSON.
//!
//! * [`Snapshot`] is the schema: plain numbers, fixed layout, versioned.
//! * [`Snapshot::merge`] makes one of several: a process can contain more than one runtime.
//! * [`Fallback`] lists every reason why memory did not get the backing its policy wanted.
//! * [`publish`] shares the snapshot of a running process through a memory-mapped file, so that others read
//!   it without stopping the process, also after the process was killed.
//! * [`numbers`] does the same for every process on hugeheap, in shared memory without a file.

pub(crate) mod collectors;
mod fallback;
mod merge;
pub mod numbers;
pub mod publish;
mod sequence;
mod snapshot;

pub use fallback::Fallback;
pub use snapshot::{HookState, Level, SCHEMA, Snapshot};
