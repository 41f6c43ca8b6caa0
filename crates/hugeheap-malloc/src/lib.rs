//! `libhugeheap_malloc.so`: the preload library with a `malloc`, for level `malloc`.
//!
//! ```text
//!   malloc, calloc, realloc, free …      blocks    ─▶ heap of the calling thread ─▶ hugeheap::object
//!   memalign, posix_memalign …           aligned   ─▶ the same
//!   malloc_usable_size, mallinfo2 …      report    ─▶ numbers of the process's runtime
//!   prctl(PR_SET_THP_DISABLE)            switch    ─▶ the kernel, narrowed
//!   dlopen(…, RTLD_DEEPBIND)             deepbind  ─▶ the C library's, without that flag
//!   what is not, or not yet, hugeheap's  c_library ─▶ the C library's own malloc
//!   constructor, limits, CPython's hooks ──────────▶ hugeheap-constructor
//! ```
//!
//! Terms: a *foreign* block is one of the C library's own `malloc`. A program has some all the same: of whoever
//! calls `__libc_malloc`, of an alignment above a huge page, and all of them where hugeheap is switched off.
//! They go back to where they came from.
//!
//! Rules that every function keeps:
//! * The C library's manual says what it does: this is another implementation of it, not another interface.
//! * Nothing is allocated but what the caller asked for. The first call comes from the dynamic linker, before
//!   any constructor and before the environment can be read.
//! * No memory is null and `ENOMEM`; a wrong free is one line and an end, as everywhere in hugeheap.
//! * No panic crosses into C: the compiler ends the process where one would leave an `extern "C"` function.

// Its exported functions and its constructor.
use hugeheap_constructor as _;

/// By this name the runtime knows that its library has a `malloc`.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static hugeheap_malloc_v1: u32 = 1;

mod aligned;
mod blocks;
mod c_library;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod deepbind;
mod report;
#[cfg(target_pointer_width = "64")]
mod switch;
