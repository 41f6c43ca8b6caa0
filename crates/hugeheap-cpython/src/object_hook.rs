//! CPython's objects from hugeheap: the `mem` and `obj` domains at level `objects`.
//!
//! ```text
//!   PyObject_Malloc, PyMem_Malloc ─┬─ up to 3.11 ──▶ heap of the interpreters       under the lock that they share
//!                                  └─ since 3.12 ─┬▶ heap of the thread
//!                                                 └▶ heap of the main interpreter   under its lock, where there are many threads
//!   PyObject_Free ──▶ ours? ──no──▶ the allocator that was there before
//! ```
//!
//! Up to 3.11 all interpreters share one lock, so one heap serves them all, as pymalloc does. Since 3.12 an
//! interpreter may have a lock of its own, and which one a call runs under takes three calls to find out: with
//! one heap for the main interpreter, and that question before each use of it, a loop over numbers took 1.4
//! times as long as on stock. The heap of a thread belongs to nobody else whatever lock is held, and is found
//! without a call. But each has memory of its own, so only [`OWN_HEAPS`] have one. The main interpreter's other
//! threads share a heap, under its lock, and have to ask.
//!
//! What a thread frees of another's waits until its owner needs blocks. A worker that handed out what it built
//! and now waits needs none: as long as there is one interpreter, whoever holds its lock [visits](visit_due)
//! the worker's heap. Nothing else in a process uses the heaps of threads in this library, but at level
//! `malloc`, where nobody is visited.
//!
//! Where a process has many buffers, requests of which [rounding would waste much](wastes) go on to the
//! allocator that was there before, which for all above 512 bytes is malloc.
//!
//! Blocks of the allocator before go back to it: those that were there when the hook came, and those it grew
//! since. A block of pymalloc's may lie in an arena of ours; it never begins where a page run does, because a
//! pool begins with its header.

use crate::detect::version_numbers;
use crate::install::has_malloc;
use crate::symbols::{DOMAIN_MEM, DOMAIN_OBJ, DomainAllocator, Symbols, ThreadSymbols, same_object};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, Ordering};
use hugeheap::complain;
use hugeheap::object::{
    MAX_BINNED, Mistake, ProcessHeap, block_bytes, space, thread_heap, thread_heap_at_hand,
};
use hugeheap::runtime::runtime;

/// What the hook needs: written once, before the hook is visible.
struct State {
    /// The allocators that were there before, of the domains `mem` and `obj`.
    previous: [DomainAllocator; 2],
    /// How to find out which interpreter runs; for versions in which it matters.
    threads: Option<ThreadSymbols>,
    /// The heap under a lock: that of all interpreters, or of the main one.
    main: MaybeUninit<ProcessHeap>,
}

struct Once(UnsafeCell<State>);

// SAFETY: written once by `install`, before the hook is visible. Afterwards only `main` is changed, by who
// holds the lock of the main interpreter.
unsafe impl Sync for Once {}

static STATE: Once = Once(UnsafeCell::new(State {
    previous: [DomainAllocator::NONE; 2],
    threads: None,
    main: MaybeUninit::uninit(),
}));

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Threads that have a heap of their own, beside the one under the lock; more of the main interpreter's get
/// none. A hundred threads that build things of all sizes and go on waiting hold 20 MiB with it, 31 on stock,
/// and 110 with a heap for each (the program of `test_many_threads_free_what_each_other_made_and_hold_little`).
const OWN_HEAPS: usize = 16;

/// The heap under a lock.
///
/// # Safety
/// The hook is installed, and the caller holds the lock of the main interpreter.
#[inline(always)]
unsafe fn main_heap() -> &'static mut ProcessHeap {
    // SAFETY: initialised by `install`; exclusive by the lock. Each hook function takes it once.
    unsafe { (*STATE.0.get()).main.assume_init_mut() }
}

/// Whether the caller runs in the main interpreter.
#[inline(always)]
fn in_main() -> bool {
    // SAFETY: `threads` is not changed after installation.
    let threads = unsafe { &(*STATE.0.get()).threads };
    threads.as_ref().is_some_and(ThreadSymbols::in_main)
}

/// The heap of this thread.
#[inline(always)]
fn own() -> Option<ManuallyDrop<ProcessHeap>> {
    // SAFETY: each hook has it for one call into the library, and lets it go.
    unsafe { thread_heap() }
}

/// The same if it has one by now.
#[inline(always)]
fn own_at_hand() -> Option<ManuallyDrop<ProcessHeap>> {
    // SAFETY: as above.
    unsafe { thread_heap_at_hand() }
}

/// Works on the heap for this call. `LOCKS`: the version may have several. `None`: no memory for a heap.
#[inline(always)]
fn on_heap<const LOCKS: bool, R>(work: impl FnOnce(&mut ProcessHeap) -> R) -> Option<R> {
    if LOCKS {
        let heap = own_at_hand();
        if let Some(mut heap) = heap.or_else(|| if shares() { None } else { own() }) {
            return Some(work(&mut heap));
        }
        if !in_main() {
            return None;
        }
    }
    // SAFETY: the domains `mem` and `obj` are used with the interpreter's lock held, and that is the only one
    // or that of the main interpreter.
    Some(work(unsafe { main_heap() }))
}

/// Whether a thread without a heap uses the one under the main interpreter's lock.
#[inline(always)]
fn shares() -> bool {
    space().heaps_in_use() > OWN_HEAPS && in_main()
}

/// Index in `State::previous`. A constant of the hook functions, and not their context: a free that has to
/// remember its context as well needs a register more than it may use without saving one.
type Domain = usize;

const MEM: Domain = 0;
const OBJ: Domain = 1;

/// The allocator before.
fn previous<const DOMAIN: Domain>() -> &'static DomainAllocator {
    // SAFETY: not changed after installation; hook functions are called by then.
    unsafe { &(*STATE.0.get()).previous[DOMAIN] }
}

fn pointer(block: Option<Option<NonNull<u8>>>) -> *mut c_void {
    block.flatten().map_or(null_mut(), |block| block.as_ptr().cast())
}

unsafe extern "C" fn malloc<const LOCKS: bool, const DOMAIN: Domain>(
    _: *mut c_void,
    bytes: usize,
) -> *mut c_void {
    // What most calls need has to save no registers: the rest is a function of its own, and the last thing called.
    let block = if !LOCKS {
        // SAFETY: the domains `mem` and `obj` are used with the interpreter's lock held.
        unsafe { main_heap() }.allocate_near(bytes)
    } else if let Some(mut heap) = own_at_hand() {
        heap.allocate_near(bytes)
    } else {
        // SAFETY: the same request.
        return unsafe { malloc_shared::<DOMAIN>(bytes) };
    };
    match block {
        Some(block) => block.as_ptr().cast(),
        // SAFETY: the same request.
        None => unsafe { malloc_far::<LOCKS, DOMAIN>(bytes) },
    }
}

/// A thread without a heap.
#[inline(never)]
unsafe extern "C" fn malloc_shared<const DOMAIN: Domain>(bytes: usize) -> *mut c_void {
    // SAFETY: with the lock of the main interpreter held.
    if let Some(block) = shares().then(|| unsafe { main_heap() }.allocate_near(bytes)).flatten() {
        return block.as_ptr().cast();
    }
    // SAFETY: the same request.
    unsafe { malloc_far::<true, DOMAIN>(bytes) }
}

/// Bytes in spans from which on requests may go on to malloc, which rounds to 16 bytes: a process with less
/// wastes 5 MiB at most. Below, all are served here. When each request that wastes a tenth went on, a program
/// that makes and drops buffers of all sizes to 60 kB took twice to 3.4 times as long as on stock CPython:
/// malloc, with little else in its heap, gave that back to the system with each round, where interpreters'
/// other blocks would have been in the way.
const EXACT_FROM: usize = 32 << 20;

/// Part of a request, as a divisor, that may be wasted even then: with a tenth the `bytes` of reads of 4, 8 and
/// 16 KiB, of which a sixteenth is left over, would take more than on stock CPython however many there are.
const WASTE: usize = 20;

/// Bytes from which on malloc makes a mapping for each block, at first: 128 KiB. That takes longer than what
/// heap pages waste of them is worth, an eighth at most.
const MAPPED: usize = 128 << 10;

/// Whether a request is better served by malloc. Here all of a block is resident on a huge page: 200 MB of
/// buffers of 12, 32 or 64 KiB and a header take a sixth more (`docs/measurements/buffers.py`). Not where spans
/// had more before: that memory is still here, or was needed already, and would be held twice for a while. And
/// where address space is limited, of which an arena would take more.
fn wastes(bytes: usize) -> bool {
    leaves_over(bytes) && are_many(space().span_bytes()) || runtime().is_scarce_for(bytes)
}

/// Whether much of what the request would get is left over.
fn leaves_over(bytes: usize) -> bool {
    bytes > MAX_BINNED && bytes < MAPPED && block_bytes(bytes) - bytes > bytes / WASTE
}

/// Whether there are so many bytes of spans now, with so many at most until now, that what is left over counts.
fn are_many((now, most): (usize, usize)) -> bool {
    now >= EXACT_FROM && now >= most - most / 8
}

#[inline(never)]
unsafe extern "C" fn malloc_far<const LOCKS: bool, const DOMAIN: Domain>(bytes: usize) -> *mut c_void {
    if wastes(bytes) {
        // SAFETY: a request like any other; its own context.
        let block = unsafe { previous::<DOMAIN>().malloc(bytes) };
        if !block.is_null() {
            return block;
        }
    }
    let block = pointer(on_heap::<LOCKS, _>(|heap| heap.allocate_far(bytes)));
    if block.is_null() {
        // SAFETY: the allocator before may still have memory; its own context.
        return unsafe { previous::<DOMAIN>().malloc(bytes) };
    }
    block
}

unsafe extern "C" fn calloc<const LOCKS: bool, const DOMAIN: Domain>(
    _: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    if count.checked_mul(size).is_some_and(wastes) {
        // SAFETY: as in `malloc`.
        let block = unsafe { previous::<DOMAIN>().calloc(count, size) };
        if !block.is_null() {
            return block;
        }
    }
    let block = pointer(on_heap::<LOCKS, _>(|heap| heap.allocate_array(count, size)));
    if block.is_null() {
        // SAFETY: as in `malloc`; overflow is refused there as well.
        return unsafe { previous::<DOMAIN>().calloc(count, size) };
    }
    block
}

/// Whether a block that we do not know may be the previous allocator's.
fn is_previous(mistake: Mistake) -> bool {
    matches!(mistake, Mistake::Foreign | Mistake::Interior { bytes: 0 })
}

unsafe extern "C" fn realloc<const LOCKS: bool, const DOMAIN: Domain>(
    context: *mut c_void,
    old: *mut c_void,
    bytes: usize,
) -> *mut c_void {
    if old.is_null() {
        // A request like any other, and a frequent one: it has to save no registers either.
        // SAFETY: the same request.
        return unsafe { malloc::<LOCKS, DOMAIN>(context, bytes) };
    }
    // SAFETY: the same request.
    unsafe { realloc_far::<LOCKS, DOMAIN>(old, bytes) }
}

#[inline(never)]
unsafe extern "C" fn realloc_far<const LOCKS: bool, const DOMAIN: Domain>(
    old: *mut c_void,
    bytes: usize,
) -> *mut c_void {
    let Some(address) = NonNull::new(old.cast::<u8>()) else { return null_mut() };
    if wastes(bytes) {
        // SAFETY: as above.
        let moved = unsafe { realloc_without::<DOMAIN>(address, bytes) };
        if !moved.is_null() {
            return moved;
        }
    }
    // SAFETY: CPython gives the old block up when the answer is not null.
    match on_heap::<LOCKS, _>(|heap| unsafe { heap.try_reallocate(address, bytes) }) {
        Some(Ok(Some(block))) => block.as_ptr().cast(),
        // SAFETY: a block of the allocator before.
        Some(Err(mistake)) if is_previous(mistake) => unsafe { previous::<DOMAIN>().realloc(old, bytes) },
        Some(Err(mistake)) => complain::abort(format_args!("realloc of {old:p}: {mistake}")),
        // SAFETY: as above.
        Some(Ok(None)) | None => unsafe { realloc_without::<DOMAIN>(address, bytes) },
    }
}

/// Of the allocator before: it is better for so many bytes, or hugeheap has no memory for a larger block, or
/// for a heap.
///
/// # Safety
/// As for `realloc`.
#[inline(never)]
unsafe fn realloc_without<const DOMAIN: Domain>(old: NonNull<u8>, bytes: usize) -> *mut c_void {
    let before = previous::<DOMAIN>();
    let usable = match space().usable_size(old.as_ptr() as usize) {
        Ok(usable) => usable,
        // SAFETY: a block of the allocator before.
        Err(mistake) if is_previous(mistake) => return unsafe { before.realloc(old.as_ptr().cast(), bytes) },
        Err(mistake) => complain::abort(format_args!("realloc of {old:p}: {mistake}")),
    };
    // SAFETY: a request like any other; the new block is apart from the old one, which has so many bytes and is
    // given up afterwards.
    unsafe {
        let moved = before.malloc(bytes);
        if !moved.is_null() {
            core::ptr::copy_nonoverlapping(old.as_ptr(), moved.cast(), usable.min(bytes));
            space().free(old);
        }
        moved
    }
}

unsafe extern "C" fn free<const LOCKS: bool, const DOMAIN: Domain>(_: *mut c_void, block: *mut c_void) {
    fetch_next(block);
    // Null is not near, so it is looked for only where it does not cost.
    let is_freed = if !LOCKS {
        // SAFETY: CPython gives the block up, with the interpreter's lock held.
        unsafe { main_heap().free_near(block as usize) }
    } else if let Some(mut heap) = own_at_hand() {
        // SAFETY: CPython gives the block up.
        unsafe { heap.free_near(block as usize) }
    } else {
        // SAFETY: as above.
        return unsafe { free_shared::<DOMAIN>(block) };
    };
    if !is_freed {
        // SAFETY: as above.
        unsafe { free_far::<LOCKS, DOMAIN>(block) };
    }
}

/// How far below a block that is freed the next ones lie, in bytes: eight cache lines. With four and with
/// sixteen `bulk_small_alloc` takes as long.
#[cfg(target_arch = "x86_64")]
const NEXT: usize = 512;

/// Asks the processor for what is probably freed soon. CPython drops lists and tuples from their end, so
/// objects that were made in a row are freed downwards, and it reads an object's count of references before it
/// frees it.
///
/// A processor fetches ahead by itself, but only lines side by side. pymalloc writes into each block that is
/// freed, and so touches them all; here a freed block is not touched, and where every other one is no object,
/// as the buffer of a `bytearray`, the processor waited for each count. To make and drop a million of them took 1.10
/// times the time of level `arenas` with CPython 3.11 and 1.03 with 3.12, now 1.03 and 1.00; `fragmentation`
/// takes 4 to 7 % less, and programs that free at random, for which it fetches what is not needed, as long as
/// before (`hugeheap bench obmalloc`). To look whether windows are emptied in a row, and to fetch the next one
/// of those only, cost more than it brought.
#[inline(always)]
fn fetch_next(block: *mut c_void) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint: it reads nothing, and any address may be given.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(
            block.cast::<i8>().wrapping_sub(NEXT),
        );
    }
    // Elsewhere it was not measured.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = block;
}

/// A thread without a heap.
#[inline(never)]
unsafe extern "C" fn free_shared<const DOMAIN: Domain>(block: *mut c_void) {
    // SAFETY: as in `free`; with the lock of the main interpreter held.
    if !shares() || unsafe { !main_heap().free_near(block as usize) } {
        // SAFETY: as above.
        unsafe { free_far::<true, DOMAIN>(block) };
    }
}

/// `extern "C"`, because a hook of another language jumps only to what never unwinds.
#[inline(never)]
unsafe extern "C" fn free_far<const LOCKS: bool, const DOMAIN: Domain>(block: *mut c_void) {
    let Some(address) = NonNull::new(block.cast::<u8>()) else { return };
    // SAFETY: CPython gives the block up.
    match on_heap::<LOCKS, _>(|heap| unsafe { heap.free_far(address.as_ptr() as usize) }) {
        Some(Ok(())) => {
            if LOCKS && space().has_due() {
                visit_due();
            }
        }
        // SAFETY: a block of the allocator before.
        Some(Err(mistake)) if is_previous(mistake) => unsafe { previous::<DOMAIN>().free(block) },
        Some(Err(mistake)) => complain::abort(format_args!("free of {block:p}: {mistake}")),
        // SAFETY: as above.
        None => unsafe { free_without::<DOMAIN>(address) },
    }
}

/// A thread without a heap of its own frees in those of others, and what it got from the allocator before.
///
/// # Safety
/// As for `free`.
#[cold]
#[inline(never)]
unsafe fn free_without<const DOMAIN: Domain>(address: NonNull<u8>) {
    // SAFETY: by the contract. A block of the allocator before is that one's.
    unsafe {
        match space().usable_size(address.as_ptr() as usize) {
            Err(mistake) if is_previous(mistake) => previous::<DOMAIN>().free(address.as_ptr().cast()),
            _ => space().free(address),
        }
    }
}

/// Collects for a thread that does not come for what others freed in its heap.
#[cold]
#[inline(never)]
fn visit_due() {
    // SAFETY: `threads` is not changed after installation.
    let Some(threads) = (unsafe { &(*STATE.0.get()).threads }) else { return };
    let Some(number) = space().take_due() else { return };
    if !threads.in_main() {
        return;
    }
    // SAFETY: with the lock of the main interpreter held.
    let shared = unsafe { main_heap() };
    if shared.number() == number {
        shared.collect_for_visit();
    } else if threads.is_alone() && !has_malloc() {
        // Where `malloc` is this library's, threads use their heaps without the lock as well.
        // SAFETY: the domains `mem` and `obj` are used with the interpreter's lock held. That is this one, and
        // the caller holds it.
        unsafe { space().visit(number) };
    }
}

/// `LOCKS`: the version may have several. The context is not used, but others tell wrapped allocators by it
/// (see [`is_plain`]).
fn allocator<const LOCKS: bool, const DOMAIN: Domain>() -> DomainAllocator {
    DomainAllocator {
        context: core::ptr::from_ref(previous::<DOMAIN>()).cast_mut().cast(),
        malloc: Some(malloc::<LOCKS, DOMAIN>),
        calloc: Some(calloc::<LOCKS, DOMAIN>),
        realloc: Some(realloc::<LOCKS, DOMAIN>),
        free: Some(free::<LOCKS, DOMAIN>),
    }
}

/// Whether objects come from hugeheap.
pub(crate) fn is_installed() -> bool {
    INSTALLED.load(Ordering::Acquire)
}

/// Whether a domain has an allocator of the interpreter's that wraps no other.
///
/// Debug hooks would lose their guards below this hook. tracemalloc, and tools like it, put the allocator that
/// they wrap back when they end: that once took this hook out while its blocks lived, and they were freed by
/// malloc. All of them have a context; pymalloc has none.
unsafe fn is_plain(symbols: &Symbols, domain: c_int) -> bool {
    let Some(get) = symbols.get_domain else { return false };
    let mut top = DomainAllocator::NONE;
    // SAFETY: the function fills a struct.
    unsafe { get(domain, &raw mut top) };
    let own = |malloc| same_object(malloc as *const c_void, get as *const c_void);
    top.context.is_null() && top.malloc.is_some_and(own)
}

/// What lies at the context of the interpreter's debug hooks: `debug_alloc_api_t`, unchanged since 3.6.
#[repr(C)]
struct DebugContext {
    /// `m` or `o`, for the domain.
    letter: u8,
    /// The allocator below the hooks.
    below: DomainAllocator,
}

/// The allocator below the interpreter's debug hooks in the domain `obj`, if they are on top there.
///
/// They cannot be asked for. No other allocator of the interpreter's has a context that begins with that
/// letter: pymalloc has none, and that of tracemalloc begins with a pointer to something aligned, or null.
unsafe fn below_debug_hooks(symbols: &Symbols) -> Option<DomainAllocator> {
    let mut top = DomainAllocator::NONE;
    // SAFETY: the functions fill a struct; an allocator of the interpreter's own has null or a struct of at
    // least a word as context.
    unsafe {
        symbols.get_domain?(DOMAIN_OBJ, &raw mut top);
        let function = top.malloc? as *const c_void;
        let is_own = !top.context.is_null() && same_object(function, symbols.get_arena as *const c_void);
        if !is_own || *top.context.cast::<u8>() != b'o' {
            return None;
        }
        Some((*top.context.cast::<DebugContext>()).below)
    }
}

/// Whether the interpreter put its own allocators in our place after a preloaded library installed the hook: as
/// they are, which `PyPreConfig.allocator` and a second initialisation do, or under debug hooks, as with
/// `-X dev`.
pub(crate) fn is_overruled(symbols: &Symbols) -> bool {
    // SAFETY: the symbols are those of this process's CPython.
    if unsafe { is_plain(symbols, DOMAIN_OBJ) } {
        return true;
    }
    // SAFETY: as above.
    unsafe { below_debug_hooks(symbols) }.is_some_and(|below| {
        below.malloc.is_none_or(|malloc| {
            let malloc = malloc as *const c_void;
            malloc != self::malloc::<true, OBJ> as *const c_void
                && malloc != self::malloc::<false, OBJ> as *const c_void
        })
    })
}

/// Installs the hook. Once per process. Says whether objects come from hugeheap afterwards: not when the
/// interpreter lacks the functions, or when there is no memory for a heap, or when the domains are wrapped.
///
/// # Safety
/// The symbols are those of this process's CPython, no other thread runs in the interpreter now, and this
/// library is never unloaded.
pub(crate) unsafe fn install(symbols: &Symbols) -> bool {
    let (Some(get), Some(set)) = (symbols.get_domain, symbols.set_domain) else { return false };
    if is_installed() {
        return !is_overruled(symbols);
    }
    // SAFETY: the symbols are those of this process's CPython.
    if ![DOMAIN_MEM, DOMAIN_OBJ].into_iter().all(|domain| unsafe { is_plain(symbols, domain) }) {
        return false;
    }
    // Several locks since 3.12. A version that is not told is treated as a new one.
    let several = version_numbers(symbols.version()).is_none_or(|version| version >= (3, 12));
    let threads = ThreadSymbols::find();
    if several && threads.is_none() {
        return false;
    }
    space().expect_headers();
    let Some(heap) = space().acquire() else { return false };
    // SAFETY: by the contract above nobody uses the state before the hook is visible, which is last.
    unsafe {
        let state = &mut *STATE.0.get();
        state.threads = threads;
        state.main.write(heap);
        for (domain, previous) in [DOMAIN_MEM, DOMAIN_OBJ].into_iter().zip(&mut state.previous) {
            get(domain, previous);
        }
        INSTALLED.store(true, Ordering::Release);
        let ours = if several {
            [allocator::<true, MEM>(), allocator::<true, OBJ>()]
        } else {
            [allocator::<false, MEM>(), allocator::<false, OBJ>()]
        };
        for ((domain, ours), before) in [DOMAIN_MEM, DOMAIN_OBJ].into_iter().zip(ours).zip(state.previous) {
            ours.put_over(&before, |allocator| set(domain, allocator));
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_go_on_to_malloc_is_what_a_twentieth_of_is_left_over() {
        let ours =
            [0, 1, 512, 4096, 4_200, 5_300, 6_000, 7_000, 8_192, 8_500, 10_000, 14_000, 16_384, 17_000];
        for bytes in ours.into_iter().chain([32_768, 65_536, 131_072, 131_073, 1 << 20, usize::MAX]) {
            assert!(!leaves_over(bytes), "{bytes}");
        }
        for bytes in
            [4_097, 4_129, 5_500, 8_193, 8_225, 12_321, 16_385, 16_417, 29_000, 32_801, 65_569, 100_000]
        {
            assert!(leaves_over(bytes), "{bytes}");
        }
    }

    #[test]
    fn it_goes_on_where_there_are_more_than_32_mib_of_spans_and_were_no_more_before() {
        const MIB: usize = 1 << 20;
        for (now, most, many) in [
            (0, 0, false),
            (31, 31, false),
            (32, 32, true),
            (200, 200, true),
            (176, 200, true),
            (174, 200, false),
        ] {
            assert_eq!(are_many((now * MIB, most * MIB)), many, "{now} of {most} MiB");
        }
    }
}
