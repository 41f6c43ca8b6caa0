//! `malloc`, `calloc`, `realloc`, `free` and their kin, from the heap of the calling thread.

use crate::c_library;
use core::ffi::{c_int, c_void};
use core::mem::ManuallyDrop;
use core::ptr::{NonNull, null_mut};
use hugeheap::complain;
use hugeheap::object::{
    Mistake, ProcessHeap, Unfreed, space, thread_heap, thread_heap_from_start, thread_heap_to_free,
};
use hugeheap::runtime::runtime;
use hugeheap_constructor::note_passed_on;

/// Null, and `errno` says why.
#[cold]
#[inline(never)]
pub(crate) fn refuse(errno: c_int) -> *mut c_void {
    // SAFETY: the location of errno is valid for the life of the calling thread.
    unsafe { *libc::__errno_location() = errno };
    null_mut()
}

/// The heap of this thread if it has one: whether hugeheap serves need not be asked then. This library is
/// preloaded and never opened later, so a load finds it.
#[inline(always)]
fn heap_at_hand() -> Option<ManuallyDrop<ProcessHeap>> {
    // SAFETY: each function here has it for one call into the library, and lets it go.
    unsafe { thread_heap_from_start() }
}

/// Whether nothing is hugeheap's as far as this thread can tell: it has no heap, and hugeheap does not serve.
/// To look for a block would take the heap's lock, which nobody sees to when such a process forks: a child
/// waited for it for ever.
#[inline(always)]
fn is_off() -> bool {
    heap_at_hand().is_none() && !c_library::serves()
}

/// The heap of this thread for what becomes of a block. One without gets it from `take`, but for a foreign block.
#[inline(always)]
fn heap_for(
    block: NonNull<u8>,
    take: impl FnOnce() -> Option<ManuallyDrop<ProcessHeap>>,
) -> Option<ManuallyDrop<ProcessHeap>> {
    let is_foreign = || space().usable_size(block.as_ptr() as usize) == Err(Mistake::Foreign);
    heap_at_hand().or_else(|| if is_foreign() { None } else { take() })
}

/// The heap of this thread for a request of so many bytes; what the C library has for it where hugeheap does
/// not serve, where the request is better served there, and where hugeheap has no memory: under a limit there
/// may be less than an arena left.
#[inline(always)]
pub(crate) fn with_heap(
    bytes: usize,
    request: impl FnOnce(&mut ProcessHeap) -> Option<NonNull<u8>>,
    foreign: impl Fn() -> *mut c_void + Copy,
) -> *mut c_void {
    if runtime().is_scarce_for(bytes) {
        let block = exactly(bytes, foreign);
        if !block.is_null() {
            return block;
        }
    }
    // SAFETY: as in `heap_at_hand`.
    let heap = heap_at_hand().or_else(|| if c_library::serves() { unsafe { thread_heap() } } else { None });
    match heap.and_then(|mut heap| request(&mut heap)) {
        Some(block) => block.as_ptr().cast(),
        None => pass_on(bytes, foreign),
    }
}

/// What the C library has for a request that hugeheap does not serve, or has no memory for.
#[cold]
#[inline(never)]
fn pass_on(bytes: usize, foreign: impl Fn() -> *mut c_void) -> *mut c_void {
    if c_library::serves() {
        note_passed_on();
    }
    again(bytes, foreign)
}

/// What the C library has for a request that it serves better: see
/// [`Runtime::is_scarce_for`](hugeheap::runtime::Runtime::is_scarce_for). Null: it is hugeheap's.
#[cold]
#[inline(never)]
fn exactly(bytes: usize, foreign: impl Fn() -> *mut c_void) -> *mut c_void {
    if c_library::serves() { again(bytes, foreign) } else { null_mut() }
}

/// What the C library answers; asked again as long as it was refused address space that is reserved here and not used.
#[cold]
#[inline(never)]
fn again(bytes: usize, foreign: impl Fn() -> *mut c_void) -> *mut c_void {
    loop {
        let block = foreign();
        let refused = block.is_null() && c_library::serves();
        if !(refused && runtime().make_address_space(bytes)) {
            return block;
        }
    }
}

/// What the C library's functions of these names say of a block that is wrong.
#[cold]
#[inline(never)]
fn end(function: &str, block: *const c_void, mistake: Mistake) -> ! {
    complain::abort(format_args!("{function} of {block:p}: {mistake}"))
}

#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut c_void {
    // What most calls need has to save no registers: the rest is a function of its own, and the last thing called.
    match heap_at_hand().and_then(|mut heap| heap.allocate_near(size)) {
        Some(block) => block.as_ptr().cast(),
        None => malloc_far(size),
    }
}

#[inline(never)]
extern "C" fn malloc_far(size: usize) -> *mut c_void {
    with_heap(size, |heap| heap.allocate_by_table(size), move || c_library::malloc(size))
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // What overflows is refused by whoever is asked.
    let bytes = count.saturating_mul(size);
    with_heap(bytes, |heap| heap.allocate_array(count, size), move || c_library::calloc(count, size))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: the caller gives the block up, by the contract of free. That it is one is checked.
    let is_freed = heap_at_hand().is_some_and(|mut heap| unsafe { heap.free_near(block as usize) });
    if !is_freed {
        // SAFETY: as above.
        unsafe { free_far(block) };
    }
}

#[inline(never)]
unsafe extern "C" fn free_far(block: *mut c_void) {
    let Some(address) = NonNull::new(block.cast::<u8>()) else { return };
    if let Some(mut heap) = heap_at_hand() {
        // Not tried near again: for a block that is another thread's that was 20 instructions.
        // SAFETY: the caller gives the block up, by the contract of free. That it is one is checked.
        if let Err(unfreed) = unsafe { heap.free_pending(block as usize) } {
            // SAFETY: as above.
            unsafe { free_rest(address, unfreed) }
        }
        return;
    }
    // SAFETY: as above.
    unsafe { free_first(address) }
}

/// The first call of a thread.
///
/// # Safety
/// As for `free`.
#[cold]
#[inline(never)]
unsafe fn free_first(address: NonNull<u8>) {
    // SAFETY: by the contract.
    unsafe { after_free(free_without(address), address) }
}

/// Apart: it saves registers, which nearly no free of another thread's block needs.
///
/// # Safety
/// As for `free`.
#[inline(never)]
unsafe fn free_rest(address: NonNull<u8>, unfreed: Unfreed) {
    let freed = match heap_at_hand() {
        // SAFETY: by the contract.
        Some(mut heap) => unsafe { heap.free_rest(address.as_ptr() as usize, unfreed) },
        // SAFETY: as above.
        None => unsafe { free_without(address) },
    };
    // SAFETY: as above.
    unsafe { after_free(freed, address) }
}

/// # Safety
/// As for `free`.
unsafe fn after_free(freed: Result<(), Mistake>, address: NonNull<u8>) {
    let block = address.as_ptr().cast();
    match freed {
        Ok(()) => {}
        // SAFETY: as above; it is the C library's.
        Err(Mistake::Foreign) => unsafe { c_library::free(block) },
        Err(mistake) => end("free", block, mistake),
    }
}

/// From a thread without a heap. It gets one, but for a foreign block.
///
/// # Safety
/// As for `free`.
#[cold]
#[inline(never)]
unsafe fn free_without(address: NonNull<u8>) -> Result<(), Mistake> {
    if is_off() {
        return Err(Mistake::Foreign);
    }
    // SAFETY: as in `heap_at_hand`.
    match heap_for(address, || unsafe { thread_heap_to_free() }) {
        // SAFETY: by the contract.
        Some(mut heap) => unsafe { heap.try_free(address) },
        // Without a heap of its own a thread can still free in those of others.
        // SAFETY: as above.
        None => unsafe { space().try_free(address) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    let Some(address) = NonNull::new(block.cast::<u8>()) else { return malloc(size) };
    if size == 0 {
        // As the C library has it.
        // SAFETY: the caller gives the block up.
        unsafe { free(block) };
        return null_mut();
    }
    if is_off() {
        // SAFETY: as in `free_far`.
        return unsafe { c_library::realloc(block, size) };
    }
    // SAFETY: as in `heap_at_hand`.
    let moved = match heap_for(address, || unsafe { thread_heap() }) {
        // SAFETY: the caller gives the block up when the answer is not null. That it is one is checked.
        Some(mut heap) => unsafe { heap.try_reallocate(address, size) },
        None => space().usable_size(address.as_ptr() as usize).map(|_| None),
    };
    match moved {
        Ok(Some(moved)) => moved.as_ptr().cast(),
        // SAFETY: as above; it is a live block.
        Ok(None) => unsafe { move_out(address, size) },
        // SAFETY: as above; it is the C library's.
        Err(Mistake::Foreign) => again(size, || unsafe { c_library::realloc(block, size) }),
        Err(mistake) => end("realloc", block, mistake),
    }
}

/// Gives a block the C library's memory where hugeheap has none for it. Null, and the block is as it was, when
/// there is none either.
///
/// # Safety
/// As for `realloc` of a live block of hugeheap's.
#[cold]
#[inline(never)]
unsafe fn move_out(block: NonNull<u8>, size: usize) -> *mut c_void {
    let moved = again(size, || c_library::malloc(size));
    if let (false, Ok(usable)) = (moved.is_null(), space().usable_size(block.as_ptr() as usize)) {
        // SAFETY: the new block is apart from the old one, which has so many bytes and is given up afterwards.
        unsafe {
            core::ptr::copy_nonoverlapping(block.as_ptr(), moved.cast(), usable.min(size));
            free(block.as_ptr().cast());
        }
    }
    moved
}

#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: by the contract of reallocarray.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => refuse(libc::ENOMEM),
    }
}

/// Of C23. The size is the program's word; the block knows its own.
#[unsafe(no_mangle)]
unsafe extern "C" fn free_sized(block: *mut c_void, _size: usize) {
    // SAFETY: by the contract of free.
    unsafe { free(block) }
}

/// As [`free_sized`].
#[unsafe(no_mangle)]
unsafe extern "C" fn free_aligned_sized(block: *mut c_void, _alignment: usize, _size: usize) {
    // SAFETY: by the contract of free.
    unsafe { free(block) }
}

/// The old name of `free`, which programs from before 2.26 of the C library are linked with.
#[unsafe(no_mangle)]
unsafe extern "C" fn cfree(block: *mut c_void) {
    // SAFETY: by the contract of free.
    unsafe { free(block) }
}

/// Bytes of a live block that may be used; 0 for null.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    let Some(address) = NonNull::new(block.cast::<u8>()) else { return 0 };
    if is_off() {
        // SAFETY: by the contract it is live, and it is the C library's.
        return unsafe { c_library::usable_size(block) };
    }
    // The owner of a window knows more than its page's bitmap does.
    let found = match heap_at_hand() {
        Some(mut heap) => heap.usable_size(address),
        None => space().usable_size(address.as_ptr() as usize),
    };
    match found {
        Ok(bytes) => bytes,
        // SAFETY: by the contract it is live, and it is the C library's.
        Err(Mistake::Foreign) => unsafe { c_library::usable_size(block) },
        Err(mistake) => end("malloc_usable_size", block, mistake),
    }
}
