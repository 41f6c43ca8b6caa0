//! A program whose `malloc` is hugeheap's, the C library's own requests included. Each test in a process of its
//! own that is killed when it hangs.
//!
//! The process that is tried is this program again: the fork would copy libtest's threads, and a hang there has
//! all signals blocked.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::alloc::Layout;
use core::ffi::c_void;
use hugeheap::object::{ProcessHeap, space, thread_heap, thread_heap_to_free};
use hugeheap::runtime::runtime;
use std::alloc::GlobalAlloc;
use std::mem::ManuallyDrop;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longer than any host needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What `calloc` handed out last, as long as it is not freed: addresses and lengths. The C library calls it for
/// a thread's tables.
static CLEARED: [[AtomicUsize; 2]; 64] = [const { [const { AtomicUsize::new(0) }; 2] }; 64];
static CLEARED_COUNT: AtomicUsize = AtomicUsize::new(0);

fn heap() -> Option<ManuallyDrop<ProcessHeap>> {
    // SAFETY: each function here has it for one call, and lets it go.
    unsafe { thread_heap() }
}

fn heap_to_free() -> Option<ManuallyDrop<ProcessHeap>> {
    // SAFETY: as above.
    unsafe { thread_heap_to_free() }
}

#[unsafe(no_mangle)]
extern "C" fn malloc(bytes: usize) -> *mut c_void {
    let block = heap().and_then(|mut heap| heap.allocate(bytes));
    block.map_or(core::ptr::null_mut(), |block| block.as_ptr().cast())
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(bytes) else { return core::ptr::null_mut() };
    let block = heap().and_then(|mut heap| heap.allocate_zeroed(bytes));
    let block = block.map_or(core::ptr::null_mut(), |block| block.as_ptr());
    let [address, length] = &CLEARED[CLEARED_COUNT.fetch_add(1, Ordering::Relaxed) % CLEARED.len()];
    address.store(block as usize, Ordering::Relaxed);
    length.store(bytes, Ordering::Relaxed);
    block.cast()
}

#[unsafe(no_mangle)]
extern "C" fn realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    let Some(old) = core::ptr::NonNull::new(block.cast::<u8>()) else { return malloc(bytes) };
    // SAFETY: by the contract of realloc.
    let moved = heap().and_then(|mut heap| unsafe { heap.reallocate(old, bytes) });
    moved.map_or(core::ptr::null_mut(), |block| block.as_ptr().cast())
}

#[unsafe(no_mangle)]
extern "C" fn free(block: *mut c_void) {
    if let Some(block) = core::ptr::NonNull::new(block.cast::<u8>()) {
        for [address, _] in &CLEARED {
            let freed = block.as_ptr() as usize;
            let _ = address.compare_exchange(freed, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        // SAFETY: by the contract of free.
        unsafe {
            match heap_to_free() {
                Some(mut heap) => heap.free(block),
                None => space().free(block),
            }
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut c_void {
    let Ok(layout) = Layout::from_size_align(bytes, align) else { return core::ptr::null_mut() };
    // SAFETY: hugeheap takes empty layouts.
    unsafe { hugeheap::object::GlobalHeap.alloc(layout) }.cast()
}

#[unsafe(no_mangle)]
extern "C" fn memalign(align: usize, bytes: usize) -> *mut c_void {
    aligned_alloc(align, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn posix_memalign(to: *mut *mut c_void, align: usize, bytes: usize) -> libc::c_int {
    let block = aligned_alloc(align, bytes);
    // SAFETY: by the contract of posix_memalign.
    unsafe { *to = block };
    if block.is_null() { libc::ENOMEM } else { 0 }
}

fn is_ours(block: *mut c_void) -> bool {
    space().usable_size(block as usize).is_ok()
}

/// Waits until the maintenance thread, which was started, has given back what was kept.
fn wait_until_given_back() {
    let began = Instant::now();
    while runtime().snapshot(false).retained > 8 << 20 {
        assert!(began.elapsed() < PATIENCE, "{} bytes are kept", runtime().snapshot(false).retained);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The event that starts the thread comes from a large block.
fn from_large_blocks() {
    let blocks: Vec<_> = (0..16).map(|_| malloc(4 << 20)).collect();
    for &block in &blocks {
        // SAFETY: just handed out with that many bytes.
        unsafe { block.write_bytes(1, 4 << 20) };
    }
    blocks.into_iter().for_each(|block| free(block));
}

/// It comes from the middle of a free: the heap gives half of its spare pages back.
fn from_small_blocks() {
    // The other classes have no pages: the request in the middle takes a spare one.
    let blocks: Vec<_> = (0..200_000).map(|_| malloc(200)).collect();
    blocks.into_iter().for_each(|block| free(block));
    // Twice as many as there are spare pages: a page that was handed out twice comes again.
    let taken: Vec<_> = (1..=36).flat_map(|size| (0..1500).map(move |_| (malloc(size * 16), size))).collect();
    for &(block, size) in &taken {
        // SAFETY: just handed out with that many bytes.
        unsafe { block.cast::<u8>().write_bytes(size as u8, size * 16) };
        for [address, length] in &CLEARED[..CLEARED_COUNT.load(Ordering::Relaxed).min(CLEARED.len())] {
            let (address, length) = (address.load(Ordering::Relaxed), length.load(Ordering::Relaxed));
            let apart = block as usize + size * 16 <= address || address + length <= block as usize;
            assert!(address == 0 || apart, "a table of a thread was handed out again");
        }
    }
    for &(block, size) in &taken {
        // SAFETY: as above.
        let bytes = unsafe { core::slice::from_raw_parts(block.cast::<u8>(), size * 16) };
        assert!(bytes.iter().all(|&byte| byte == size as u8), "a block was handed out twice");
    }
    taken.into_iter().for_each(|(block, _)| free(block));
}

/// What the C library keeps for a thread it frees when all destructors of the thread have run.
fn threads_of_which_something_is_left() {
    let ended = |what: fn()| {
        (0..50).for_each(|_| std::thread::spawn(what).join().expect("no panic"));
        space().heaps_in_use()
    };
    let before = ended(|| free(malloc(48)));
    let after = ended(|| {
        // SAFETY: the text, made for the thread because nothing has that number, is looked at before the next call.
        assert!(is_ours(unsafe { libc::strerror(123_456) }.cast()), "no longer from malloc");
    });
    assert!(
        after <= before + 2,
        "{after} heaps belong to somebody after fifty threads, {before} before them"
    );
}

/// A destructor that allocates each time it is called, and sees to it that it is called again, as often as the
/// C library does.
fn threads_that_allocate_to_the_last() {
    static KEY: AtomicUsize = AtomicUsize::new(0);
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn again(value: *mut c_void) {
        CALLS.fetch_add(1, Ordering::Relaxed);
        free(malloc(48));
        // SAFETY: the key was made.
        unsafe { libc::pthread_setspecific(KEY.load(Ordering::Relaxed) as libc::pthread_key_t, value) };
    }
    let mut key = 0;
    // SAFETY: plain call.
    let made = unsafe { libc::pthread_key_create(&raw mut key, Some(again)) };
    assert_eq!(made, 0);
    KEY.store(key as usize, Ordering::Relaxed);
    for _ in 0..50 {
        // SAFETY: a value that is not looked at.
        std::thread::spawn(move || unsafe { libc::pthread_setspecific(key, core::ptr::dangling()) })
            .join()
            .expect("no panic");
    }
    assert!(CALLS.load(Ordering::Relaxed) >= 150, "several rounds");
    let heaps = space().heaps_in_use();
    assert!(heaps < 10, "{heaps} heaps belong to somebody after fifty threads");
}

const SCENARIO: &str = "HUGEHEAP_TEST_SCENARIO";

/// `pthread_create` was called under a lock that the request of the C library came back to; without the lock,
/// that request met a half changed heap.
#[test]
fn the_thread_is_started_below_malloc() {
    if let Ok(scenario) = std::env::var(SCENARIO) {
        assert!(is_ours(malloc(48)) && is_ours(calloc(3, 100)), "not below malloc");
        // SAFETY: what strdup returns is a block of malloc's.
        assert!(is_ours(unsafe { libc::strdup(c"text".as_ptr()) }.cast()), "nor is the C library");
        match scenario.as_str() {
            "large" => from_large_blocks(),
            "small" => from_small_blocks(),
            "left" => return threads_of_which_something_is_left(),
            _ => return threads_that_allocate_to_the_last(),
        }
        return wait_until_given_back();
    }
    run("large");
    run("small");
}

/// The C library frees the last of what it keeps for a thread after its destructors. That free took a heap,
/// which nobody left: each thread cost one.
#[test]
fn a_thread_that_has_left_its_heap_takes_no_other_to_free() {
    run("left");
}

/// The heap that such a destructor took in the last round was left by nobody.
#[test]
fn a_thread_that_allocates_after_its_last_destructor_costs_no_heap() {
    run("last");
}

/// Runs this program again, for one scenario.
fn run(scenario: &str) {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(["--exact", "the_thread_is_started_below_malloc", "--nocapture"])
        .env(SCENARIO, scenario)
        .env("HUGEHEAP_DECAY", "0.2")
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break Some(status);
        }
        if began.elapsed() > PATIENCE {
            child.kill().expect("a child");
            child.wait().expect("a child");
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.is_some_and(|status| status.success()), "{scenario}: {status:?}");
}
