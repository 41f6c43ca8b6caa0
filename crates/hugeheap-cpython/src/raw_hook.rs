//! Large blocks from hugeheap: CPython's raw domain.
//!
//! pymalloc passes requests above 512 bytes on to the raw domain, which is malloc: the tables of large lists,
//! dicts, sets and buffers. malloc puts them on OS pages. Blocks of [`LARGE`] bytes and more are taken over
//! here and put on huge pages; the rest goes on to the allocator that was there before, at the price of one
//! comparison. A block is recognised when it comes back by its address: ours begin at an arena, 2 MiB aligned,
//! which malloc's never do.
//!
//! A block that grows over the threshold moves here; one that shrinks well below it moves back. Under a limit
//! on address space some stay where they were: see
//! [`Runtime::is_scarce_for`](hugeheap::runtime::Runtime::is_scarce_for).

use crate::symbols::{DOMAIN_RAW, DomainAllocator, Symbols, same_object};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::null_mut;
use hugeheap::arena::{ARENA_BYTES, BadFree};
use hugeheap::complain;
use hugeheap::runtime::runtime;

/// Bytes from which on a block is taken over: half an arena. Below, rounding to a huge page would waste more
/// than it wins.
const LARGE: usize = ARENA_BYTES / 2;

/// Bytes below which a shrinking block moves back. Half the threshold, so that a block at the threshold does
/// not wander.
const SMALL_AGAIN: usize = LARGE / 2;

/// The allocator that was there before. Written once, before the hook can be called.
struct Previous(UnsafeCell<DomainAllocator>);

// SAFETY: written once by `install`, before the hook is visible; only read afterwards.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(DomainAllocator::NONE));

fn previous() -> &'static DomainAllocator {
    // SAFETY: see `Previous`.
    unsafe { &*PREVIOUS.0.get() }
}

/// Whether a block is one of ours. One mask for almost all that are not.
fn is_ours(pointer: *mut c_void) -> bool {
    pointer as usize % ARENA_BYTES == 0 && !pointer.is_null() && runtime().owns(pointer as usize)
}

/// Whether a request is served here.
fn is_large(bytes: usize) -> bool {
    bytes >= LARGE && !runtime().is_scarce_for(bytes)
}

/// What the allocator before answers; asked again as long as it was refused address space that is reserved here
/// and not used.
fn again(bytes: usize, request: impl Fn() -> *mut c_void) -> *mut c_void {
    loop {
        let block = request();
        if !block.is_null() || !runtime().make_address_space(bytes) {
            return block;
        }
    }
}

unsafe extern "C" fn malloc(_context: *mut c_void, bytes: usize) -> *mut c_void {
    if is_large(bytes) {
        if let Some(block) = runtime().allocate_large(bytes, false) {
            return block.address.get() as *mut c_void;
        }
    }
    // SAFETY: as for any request of the raw domain.
    again(bytes, || unsafe { previous().malloc(bytes) })
}

unsafe extern "C" fn calloc(_context: *mut c_void, count: usize, size: usize) -> *mut c_void {
    if let Some(bytes) = count.checked_mul(size).filter(|&bytes| is_large(bytes)) {
        if let Some(block) = runtime().allocate_large(bytes, false) {
            let pointer = block.address.get() as *mut c_void;
            if !block.zeroed {
                // SAFETY: the block was just handed out with `bytes` bytes.
                unsafe { pointer.write_bytes(0, bytes) };
            }
            return pointer;
        }
    }
    // SAFETY: as for any request of the raw domain; overflow is the previous allocator's to refuse.
    again(count.saturating_mul(size), || unsafe { previous().calloc(count, size) })
}

unsafe extern "C" fn realloc(_context: *mut c_void, pointer: *mut c_void, bytes: usize) -> *mut c_void {
    if is_ours(pointer) {
        // SAFETY: a live block of ours, by CPython's contract and the check inside.
        return unsafe { realloc_ours(pointer, bytes) };
    }
    // Under a limit it stays what it is: it would move to and fro, with both places counted.
    if is_large(bytes) && (pointer.is_null() || !runtime().is_limited()) {
        // SAFETY: a live block of the previous allocator, or null.
        if let Some(moved) = unsafe { take_over(pointer, bytes) } {
            return moved;
        }
    }
    // SAFETY: a block of the previous allocator, which it still is where the answer is null.
    again(bytes, || unsafe { previous().realloc(pointer, bytes) })
}

/// Moves a block that grew over the threshold here.
unsafe fn take_over(pointer: *mut c_void, bytes: usize) -> Option<*mut c_void> {
    let old = if pointer.is_null() {
        0
    } else {
        // SAFETY: `install` made sure that the raw domain is the C library's malloc, whose block this is.
        unsafe { libc::malloc_usable_size(pointer) }
    };
    let block = runtime().allocate_large(bytes, !pointer.is_null())?;
    let moved = block.address.get() as *mut c_void;
    if !pointer.is_null() {
        // SAFETY: both blocks are live, apart, and have at least the bytes copied.
        unsafe {
            core::ptr::copy_nonoverlapping(pointer.cast::<u8>(), moved.cast::<u8>(), old.min(bytes));
            previous().free(pointer);
        }
    }
    Some(moved)
}

unsafe fn realloc_ours(pointer: *mut c_void, bytes: usize) -> *mut c_void {
    let wrong =
        |mistake: BadFree| -> ! { complain::abort(format_args!("realloc of {pointer:p}: {mistake}")) };
    if bytes >= SMALL_AGAIN {
        match runtime().resize_large(pointer as usize, bytes) {
            Ok(Some(address)) => return address.get() as *mut c_void,
            Ok(None) => {}
            Err(mistake) => wrong(mistake),
        }
    }
    let old = runtime().large_bytes(pointer as usize).unwrap_or_else(|mistake| wrong(mistake));
    // SAFETY: a request of the raw domain; both blocks are live and apart while they are copied.
    unsafe {
        let moved = again(bytes, || previous().malloc(bytes));
        if !moved.is_null() {
            core::ptr::copy_nonoverlapping(pointer.cast::<u8>(), moved.cast::<u8>(), old.min(bytes));
            free(null_mut(), pointer);
        }
        moved
    }
}

unsafe extern "C" fn free(_context: *mut c_void, pointer: *mut c_void) {
    if is_ours(pointer) {
        if let Err(mistake) = runtime().free_large(pointer as usize) {
            complain::abort(format_args!("block freed wrongly: {pointer:p}: {mistake}"));
        }
        return;
    }
    // SAFETY: not ours, so the previous allocator's, or null, which it takes.
    unsafe { previous().free(pointer) };
}

/// Installs the hook if the raw domain is the C library's malloc. Once per process.
///
/// tracemalloc and the debug hooks wrap the domain and put the allocator below back when they end: on top of
/// this hook that is right, below it would take it out while its blocks live. Both have a context; plain malloc
/// has none.
///
/// # Safety
/// The symbols are those of this process's CPython and this library is never unloaded.
pub(crate) unsafe fn install(symbols: &Symbols) -> bool {
    let (Some(get), Some(set)) = (symbols.get_domain, symbols.set_domain) else { return false };
    // SAFETY: by the contract above; PREVIOUS is written before the hook is visible.
    unsafe {
        get(DOMAIN_RAW, PREVIOUS.0.get());
        let before = previous();
        let plain = before.context.is_null()
            && before.malloc.is_some_and(|malloc| same_object(malloc as *const c_void, get as *const c_void));
        if !plain {
            return false;
        }
        let ours = DomainAllocator {
            context: null_mut(),
            malloc: Some(malloc),
            calloc: Some(calloc),
            realloc: Some(realloc),
            free: Some(free),
        };
        ours.put_over(before, |allocator| set(DOMAIN_RAW, allocator));
    }
    true
}
