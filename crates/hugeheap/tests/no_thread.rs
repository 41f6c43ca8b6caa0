//! A process in which no thread can be started: maintenance happens on the program's own. On this process's
//! runtime and a real kernel; one test: the runtime is the process's.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::ffi::{c_int, c_void};
use hugeheap::arena::Settings;
use hugeheap::object::{space, thread_heap};
use hugeheap::runtime::runtime;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Threads are refused, as under `ulimit -u`. (Root has no such limit.)
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Where the stack was when memory was given back: the highest and the lowest address.
static STACK: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(usize::MAX)];

/// What the C library calls by a name.
fn next(name: &core::ffi::CStr) -> *mut c_void {
    // SAFETY: a name that ends with a zero.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

#[unsafe(no_mangle)]
extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: *const c_void,
    argument: *mut c_void,
) -> c_int {
    type Create =
        extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, *const c_void, *mut c_void) -> c_int;
    if REFUSED.load(Ordering::Relaxed) {
        return libc::EAGAIN;
    }
    // SAFETY: the C library's function of that name.
    let create: Create = unsafe { core::mem::transmute(next(c"pthread_create")) };
    create(thread, attributes, start, argument)
}

#[unsafe(no_mangle)]
extern "C" fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    type Advise = extern "C" fn(*mut c_void, usize, c_int) -> c_int;
    if REFUSED.load(Ordering::Relaxed) {
        let here = core::ptr::from_ref(&advice) as usize;
        STACK[0].fetch_max(here, Ordering::Relaxed);
        STACK[1].fetch_min(here, Ordering::Relaxed);
    }
    // SAFETY: the C library's function of that name.
    let advise: Advise = unsafe { core::mem::transmute(next(c"madvise")) };
    advise(address, bytes, advice)
}

/// A pass that gave back metadata on huge pages was an event itself, and led to the next pass: with 5.5 GB it
/// needed half a megabyte of the program's stack.
#[test]
fn giving_a_large_heap_back_takes_no_more_stack_than_a_pass() {
    const BYTES: usize = 8192;
    runtime().start(Settings { decay: 10_000_000, ..Settings::DEFAULT });
    REFUSED.store(true, Ordering::Relaxed);
    // SAFETY: for this test alone.
    let mut heap = unsafe { thread_heap() }.expect("memory");
    let before = space().metadata_bytes();
    let blocks: Vec<_> = (0..(1 << 30) / BYTES).map(|_| heap.allocate(BYTES).expect("memory")).collect();
    assert!(space().metadata_bytes() > before + (10 << 20));
    // SAFETY: taken above, and used by nobody.
    blocks.into_iter().for_each(|block| unsafe { heap.free(block) });
    heap.trim();
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(20));
        // An event of the arenas: longer than what the heap keeps for reuse.
        let block = heap.allocate(2 << 20).expect("memory");
        // SAFETY: just taken.
        unsafe { heap.free(block) };
        if space().metadata_bytes() < before + (1 << 20) {
            break;
        }
    }
    assert!(space().metadata_bytes() < before + (1 << 20), "all went: {}", space().metadata_bytes());
    let stack = STACK[0].load(Ordering::Relaxed) - STACK[1].load(Ordering::Relaxed);
    assert!(stack < 32 << 10, "{stack} bytes");
    REFUSED.store(false, Ordering::Relaxed);
}
