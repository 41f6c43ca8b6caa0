//! Large blocks on this process's runtime and a real kernel: what they cost before they are used.

use hugeheap::arena::ARENA_BYTES;
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
