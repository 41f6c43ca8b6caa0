//! The object heap for dynamic-language runtimes, on huge pages.
//!
//! ```text
//!   runtime     one per process: the lock, the maintenance thread, fork handlers, the exported interface
//!   gc          objects that are found dead by themselves: nursery and old generation
//!   object      blocks of size classes in heap pages
//!   large       blocks of whole arenas
//!   arena       arenas and heap pages: what to fill, what to keep, what to give back
//!   telemetry   what a heap tells about itself
//! ```
//!
//! Memory comes from the traits of `hugeheap_os`, so that every decision here can be driven by a simulated kernel.
pub mod arena;
#[cfg(target_os = "linux")]
pub mod complain;
#[cfg(target_os = "linux")]
pub mod gc;
pub mod large;
#[cfg(target_os = "linux")]
pub mod lock;
#[cfg(target_os = "linux")]
pub mod object;
#[cfg(target_os = "linux")]
pub mod runtime;
pub mod telemetry;
#[cfg(target_os = "linux")]
mod thread_end;
