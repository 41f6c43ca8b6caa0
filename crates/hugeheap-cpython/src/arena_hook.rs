//! pymalloc's arenas from hugeheap.
//!
//! What CPython asks for, and what it gives back:
//! * 1 MiB arenas (256 KiB before 3.10, 2 MiB with 3.15's build option); since 3.11 also data-stack chunks, 16
//!   KiB and growing, per thread. The size is taken from the call.
//! * `free` may get null, and addresses that were mapped before the hook: those go to the allocator that was
//!   there before.
//! * With subinterpreters that have their own GIL (3.12) both are called by several threads at once: the runtime locks.

use crate::install::tell_level;
use crate::symbols::{ArenaAllocator, Symbols};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use hugeheap::arena::BadFree;
use hugeheap::complain;
use hugeheap::runtime::runtime;

/// The allocator that was there before. Written once, before the hook can be called.
struct Previous(UnsafeCell<ArenaAllocator>);

// SAFETY: written once by `install`, which runs once per process before the hook is visible; only read afterwards.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous =
    Previous(UnsafeCell::new(ArenaAllocator { context: core::ptr::null_mut(), alloc: None, free: None }));

fn previous() -> ArenaAllocator {
    // SAFETY: see `Previous`.
    unsafe { *PREVIOUS.0.get() }
}

unsafe extern "C" fn alloc(_context: *mut c_void, bytes: usize) -> *mut c_void {
    if let Some(address) = runtime().allocate(bytes) {
        // At level `objects` pymalloc hardly gets an arena. It asks for one with each object when there is no
        // memory: with a look each time, which asks the dynamic linker, that took most of the time at the end
        // of a limit.
        tell_level();
        return address.get() as *mut c_void;
    }
    // The reason was counted; CPython's own way may still find memory, and if not, raises MemoryError.
    let previous = previous();
    match previous.alloc {
        // SAFETY: CPython's own arena allocator with its own context.
        Some(alloc) => unsafe { alloc(previous.context, bytes) },
        None => core::ptr::null_mut(),
    }
}

unsafe extern "C" fn free(_context: *mut c_void, pointer: *mut c_void, bytes: usize) {
    if pointer.is_null() {
        return;
    }
    match runtime().free(pointer as usize, bytes) {
        Ok(()) => {}
        Err(BadFree::Foreign) => {
            let previous = previous();
            if let Some(free) = previous.free {
                // SAFETY: not from this heap, so it was mapped by the allocator before.
                unsafe { free(previous.context, pointer, bytes) };
            }
        }
        Err(mistake) => {
            complain::abort(format_args!("arena freed wrongly: {bytes} bytes at {pointer:p}: {mistake}"))
        }
    }
}

/// Installs the hook. Once per process.
///
/// # Safety
/// The symbols are those of this process's CPython, no other thread changes its arena allocator now, and this
/// library is never unloaded.
pub(crate) unsafe fn install(symbols: &Symbols) {
    // SAFETY: by the contract above; PREVIOUS is written before the hook is visible.
    unsafe {
        (symbols.get_arena)(PREVIOUS.0.get());
        let mut ours = ArenaAllocator { free: Some(free), ..previous() };
        // First what knows the arenas of both: see `DomainAllocator::put_over`.
        (symbols.set_arena)(&raw mut ours);
        ours = ArenaAllocator { context: core::ptr::null_mut(), alloc: Some(alloc), free: Some(free) };
        (symbols.set_arena)(&raw mut ours);
    }
}
