//! The garbage-collected heap: a nursery that is cut by a cursor in a register, and an old generation in heap pages.
//!
//! ```text
//!   mutator ──▶ window {cursor, limit} ──▶ object in the nursery
//!      │             │ no room: slow path
//!      │             ▼
//!      │        minor collection: survivors ──▶ old generation: blocks of size classes, page runs, large blocks
//!      │             ▲ directly after it                 ▲
//!      │             └── a step of marking or sweeping ──┘
//!      └─ write of a reference ──▶ barrier ──▶ remembered set, cards
//! ```
//!
//! | file | concept |
//! |---|---|
//! | `header` | the one word before each object |
//! | `layout`, `types`, `map`, `trace`, `length` | what a program says of a type; sizes, and where references are; slots as the bits of a word; lengths that were overwritten |
//! | `window` | where the next objects go |
//! | `nursery`, `nursery_size` | where objects begin, gaps between objects that stay; how large it is |
//! | `old`, `bins`, `lists`, `large`, `sweep` | where objects end: blocks, where the next one is, lists of pages, large objects, what becomes free |
//! | `roots`, `globals`, `addresses` | what is alive without being referred to; handles that outlive scopes; addresses with a count, for pins |
//! | `barrier`, `cards` | what a minor collection looks into besides roots; which slots of a large object were written |
//! | `minor`, `dirty`, `survivor`, `latest`, `noted`, `lost` | what a minor collection looks into; dirty cards; moving survivors; copies that wait; weak slots and finalizers meanwhile; when nobody knows what was written |
//! | `mark`, `stack`, `marks`, `prefetch`, `cycle` | marking in steps: what is to be looked into, where marks are, what the cache is asked for; a major collection from step to step |
//! | `joint` | marking of young and old objects together, where no room was for young ones |
//! | `weak`, `ephemeron` | slots that keep nothing alive |
//! | `finalizer` | what is handed to the program once it is unreachable |
//! | `identity` | a number that an object keeps while it moves |
//! | `evacuate`, `depart` | moving what lives out of sparse arenas: at once, in steps |
//! | `metadata` | giving back what nobody needs beside the pages |
//! | `pacing`, `overdue` | when, and how much at a time; when in a heap that does not grow |
//! | `heap`, `allocate`, `process` | one heap: settings, collections; allocation beyond the window; heaps over the process's runtime |
//! | `scope` | the safe interface: handles that cannot outlive their scope |
//! | `verify` | finding mistakes |
//! | `scan` | words that may be addresses |
//! | `fork` | what a forked child goes on sharing |
//! | `protect`, `fault` | heap pages whose next use is told |
//! | `ready`, `room` | memory before survivors need it; whether there is enough for what is taken at once |
//! | `events`, `log` | what happens, told while it happens |
//! | `statistics` | what a heap tells |
//!
//! Terms: *young* is what is in the nursery, *old* what is in the old generation. An object that *stays* is
//! young and not moved. A *slot* is a word that may hold a reference.
//!
//! Invariants between two calls of a heap:
//! * An old object that refers to a young one is remembered, or has a dirty card there.
//! * A young object has no flag but that it stays.
//! * While marking is under way, old objects are born marked; see `mark` for what holds of them.
//! * No bitmap of a heap page has a bit but where an object begins.

mod addresses;
mod allocate;
mod barrier;
mod bins;
mod cards;
mod cycle;
mod depart;
mod dirty;
mod ephemeron;
mod evacuate;
mod events;
mod fault;
mod finalizer;
mod fork;
mod globals;
mod header;
mod heap;
mod identity;
mod joint;
mod large;
mod latest;
mod layout;
mod length;
mod lists;
mod log;
mod lost;
mod map;
mod mark;
mod marks;
mod metadata;
mod minor;
mod noted;
mod nursery;
mod nursery_size;
mod old;
mod overdue;
mod pacing;
mod prefetch;
mod process;
mod protect;
mod ready;
mod room;
mod roots;
mod scan;
mod scope;
mod stack;
mod statistics;
mod survivor;
mod sweep;
#[cfg(test)]
mod tests;
mod trace;
mod types;
mod verify;
mod weak;
mod window;

pub use events::{Event, EventHook, counters};
pub use fault::{Fault, FaultHook, set_fault_hook};
pub use header::{
    BARRIER, CARDS, FORWARDED, HASH_BITS, HASH_SHIFT, HEADER_BYTES, Header, LENGTH_OFFSET, MIN_OBJECT,
    OBJECT_ALIGN, STAYS, TRACKED, TYPE_SHIFT,
};
pub use heap::{BadHeap, Exhausted, Heap, MAX_YOUNG, Settings};
pub use layout::{BadLayout, Layout, MAX_PART};
pub(crate) use log::tell_wrong as tell_wrong_log;
pub use log::{BadLog, LOG_VARIABLE};
pub use mark::Phase;
pub use nursery_size::{LEAST_NURSERY, MOST_NURSERY, nursery_bytes};
pub(crate) use process::space_at_hand;
pub use process::{ProcessHeap, space};
pub use protect::{CannotProtect, Forbid};
pub use roots::{Global, RootCallback};
pub use scan::{Scan, ScanCallback};
pub use scope::{Local, Scope};
pub use statistics::{BUCKETS, Pauses, Statistics};
pub use trace::{PartFunction, TraceFunction, Visitor};
pub use types::{MAX_TYPES, TypeId};
pub use verify::{Checks, Mistake, POISON};
pub use window::{CURSOR_OFFSET, LIMIT_OFFSET, Window};
