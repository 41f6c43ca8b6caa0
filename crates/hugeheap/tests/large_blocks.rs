//! Large blocks on this process's runtime and a real kernel: what they cost before they are used.

use hugeheap::arena::{ARENA_BYTES, HEAP_PAGE_BYTES};
use hugeheap::object::space;
use hugeheap::runtime::runtime;

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages: usize =
        text.split(' ').nth(1).and_then(|field| field.parse().ok()).expect("a number of pages");
    // SAFETY: no memory is involved.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize
}

/// `hh_malloc(2 GiB)` took seconds and filled a control group, though the program used three places of it.
#[test]
fn what_nobody_touches_of_a_large_block_is_not_resident() {
    let bytes = 1 << 30;
    let before = resident();
    let block = runtime().allocate_large(bytes, false).expect("address space").address.get();
    let grown = || resident().saturating_sub(before);
    assert!(grown() < 16 << 20, "{} bytes for nothing", grown());
    for part in 1..4 {
        // SAFETY: inside the block that was just taken.
        unsafe { ((block + part * (bytes / 4)) as *mut u8).write_volatile(1) };
    }
    assert!(grown() < (16 << 20) + 3 * ARENA_BYTES, "{} bytes for three places", grown());
    runtime().free_large(block).expect("just taken");
    runtime().give_back();
    assert_eq!(runtime().snapshot(false).retained, 0);
}

/// Says to a test that it is the process with the limit, or the one that nothing else is resident in.
const LIMITED: &str = "HUGEHEAP_TEST_LIMITED";
const APART: &str = "HUGEHEAP_TEST_APART";

/// A request for zeros that was aligned to more than a heap page, as a runtime's for its heap may be, was
/// written as a whole: a gigabyte was resident at once.
#[test]
fn aligned_zeros_are_not_resident_before_they_are_touched() {
    if std::env::var_os(APART).is_none() {
        return again_with("aligned_zeros_are_not_resident_before_they_are_touched", APART);
    }
    let mut heap = space().acquire().expect("memory");
    for align in [16, HEAP_PAGE_BYTES, 2 * HEAP_PAGE_BYTES, ARENA_BYTES] {
        let before = resident();
        let block = heap.allocate_aligned_zeroed(256 << 20, align).expect("address space");
        let grown = resident().saturating_sub(before);
        assert!(grown < 16 << 20, "{grown} bytes for nothing, aligned to {align}");
        // SAFETY: inside the block that was just taken, which nobody uses afterwards.
        unsafe {
            assert_eq!((block.as_ptr() as usize % align, block.add(200 << 20).read_volatile()), (0, 0));
            heap.free(block);
        }
        runtime().give_back();
    }
}

/// Runs a test of this program once more, with a variable.
fn again_with(name: &str, variable: &str) {
    let program = std::env::current_exe().expect("this program");
    let output = std::process::Command::new(program)
        .args(["--exact", name, "--nocapture"])
        .env(variable, "1")
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Under `ulimit -d` a large block that was refused, and large blocks that were given back, left nothing of the
/// limit for small blocks or for the C library.
#[test]
fn a_limit_on_data_is_there_for_small_blocks_after_large_ones() {
    if std::env::var_os(LIMITED).is_none() {
        return again_with("a_limit_on_data_is_there_for_small_blocks_after_large_ones", LIMITED);
    }
    let limit = libc::rlimit { rlim_cur: 400 << 20, rlim_max: 400 << 20 };
    // SAFETY: the structure is read only.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) }, 0);
    let heap = runtime();
    let small = |count: usize| {
        let blocks: Vec<_> =
            (0..count).map(|_| heap.allocate(HEAP_PAGE_BYTES).expect("a small block")).collect();
        blocks.into_iter().for_each(|block| heap.free(block.get(), HEAP_PAGE_BYTES).expect("just taken"));
    };
    let libc_has_room = || {
        // SAFETY: freed at once, or null.
        unsafe {
            let block = libc::malloc(64 << 20);
            assert!(!block.is_null(), "the C library is refused 64 MiB");
            libc::free(block);
        }
    };
    small(1);
    assert_eq!(heap.allocate_large(1_000_000_000, false), None);
    libc_has_room();
    small(3000);
    let mut blocks = Vec::with_capacity(1000);
    while let Some(block) = heap.allocate_large(3_000_000, false) {
        blocks.push(block.address.get());
    }
    assert!(blocks.len() > 30);
    blocks.iter().for_each(|&block| _ = heap.free_large(block).expect("it is live"));
    heap.give_back();
    libc_has_room();
    small(3000);
}
