//! CPython on hugeheap: what the preload library and the extension module share.
//!
//! No Python symbol is linked: everything is looked up in the running process, so one library serves every
//! version and is harmless in a process that is not CPython.
//!
//! ```text
//!   PyObject_Malloc ─▶ pymalloc ──arena hook──▶ page runs of 1 MiB (256 KiB before 3.10)
//!          │ > 512 bytes                   └──▶ data-stack chunks of 16 KiB and more (3.11)
//!          ▼
//!   PyMem_RawMalloc ──raw hook──▶ large blocks from 1 MiB on; smaller ones go on to malloc
//! ```
//!
//! | file | concept |
//! |---|---|
//! | `symbols` | the interpreter's functions, by dlsym |
//! | `detect` | whether to hook, as a pure function of what was found |
//! | `arena_hook` | pymalloc's arenas |
//! | `raw_hook` | large blocks |
//! | `object_hook` | all objects, at level `objects` |
//! | `after_fork` | maintenance in the parent of a fork |
//! | `install` | once per process, before or after the interpreter started |
//! | `interface` | one runtime per process: whichever library comes second uses the first |

mod after_fork;
mod arena_hook;
pub mod detect;
mod install;
pub mod interface;
mod object_hook;
mod raw_hook;
mod symbols;

pub use hugeheap::complain::line as print_line;
pub use install::{Moment, has_malloc, install, is_malloc_library, note_passed_on, tell_level};
