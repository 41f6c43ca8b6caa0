//! Collections that take their memory from a heap, by the trait of allocator-api2.
#![cfg(all(target_os = "linux", feature = "allocator-api2"))]

use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use hugeheap::object::{GlobalHeap, LocalHeap, ProcessHeap, Walk, space};
use std::alloc::Layout;
use std::ptr::NonNull;

/// Sizes of blocks of all kinds, in bytes.
const SIZES: [usize; 9] = [0, 1, 16, 100, 1000, 8192, 20_000, 1 << 20, 5_000_000];

fn layouts() -> impl Iterator<Item = Layout> {
    let aligns = [1, 8, 16, 64, 4096, 1 << 20];
    SIZES.iter().flat_map(move |&size| aligns.map(|align| Layout::from_size_align(size, align).expect("one")))
}

/// Whether the first bytes are these.
fn holds(block: NonNull<u8>, value: u8, bytes: usize) -> bool {
    // SAFETY: a live block of the test with these bytes written.
    unsafe { std::slice::from_raw_parts(block.as_ptr(), bytes) }.iter().all(|&byte| byte == value)
}

fn fill(block: NonNull<u8>, value: u8, bytes: usize) {
    // SAFETY: a live block of the test, of these bytes.
    unsafe { block.write_bytes(value, bytes) };
}

fn every_layout_is_served_and_becomes_any_other(allocator: &impl Allocator) {
    for old in layouts() {
        let blocks: [_; 3] = std::array::from_fn(|_| allocator.allocate(old).expect("memory").cast::<u8>());
        assert!(blocks[0] != blocks[1] && blocks[1] != blocks[2], "also those of no bytes");
        for block in blocks {
            assert_eq!(block.as_ptr() as usize % old.align(), 0, "{old:?}");
            fill(block, 7, old.size());
            // SAFETY: taken above with that layout.
            unsafe { allocator.deallocate(block, old) };
        }
        let zeroed = allocator.allocate_zeroed(old).expect("memory").cast::<u8>();
        assert!(holds(zeroed, 0, old.size()), "{old:?}");
        // SAFETY: as above.
        unsafe { allocator.deallocate(zeroed, old) };
        for new in layouts() {
            let block = allocator.allocate(old).expect("memory").cast::<u8>();
            fill(block, 9, old.size());
            // SAFETY: a live block of the old layout, whose address is not used afterwards.
            let resized = unsafe {
                if new.size() >= old.size() {
                    allocator.grow_zeroed(block, old, new)
                } else {
                    allocator.shrink(block, old, new)
                }
            };
            let resized = resized.expect("memory");
            assert_eq!(
                (resized.len(), resized.cast::<u8>().as_ptr() as usize % new.align()),
                (new.size(), 0)
            );
            let kept = old.size().min(new.size());
            assert!(holds(resized.cast(), 9, kept), "{old:?} to {new:?}");
            // SAFETY: within the block.
            let rest = unsafe { resized.cast::<u8>().add(kept) };
            assert!(holds(rest, 0, new.size() - kept), "{old:?} to {new:?}");
            // SAFETY: live, with the new layout.
            unsafe { allocator.deallocate(resized.cast(), new) };
        }
    }
    for size in [isize::MAX as usize - 100, 1 << 46] {
        assert!(allocator.allocate(Layout::from_size_align(size, 8).expect("one")).is_err());
    }
    assert!(allocator.allocate(Layout::from_size_align(1, 1 << 30).expect("one")).is_err());
}

#[test]
fn a_local_heap_serves_every_layout() {
    let heap = LocalHeap::new().expect("memory");
    every_layout_is_served_and_becomes_any_other(&heap);
}

#[test]
fn the_threads_heap_serves_every_layout() {
    every_layout_is_served_and_becomes_any_other(&GlobalHeap);
}

#[test]
fn collections_take_their_blocks_from_the_heap() {
    let mut before: ProcessHeap = LocalHeap::new().expect("memory").into();
    let number = before.number();
    let live = |number| {
        let mut count = 0;
        space().walk(&mut |seen| {
            if let Walk::Page(page) = seen {
                if page.heap == number {
                    count += page.blocks().count();
                }
            }
        });
        count
    };
    assert_eq!(live(number), 0);
    let heap = LocalHeap::from(before);
    let mut rows = Vec::new_in(&heap);
    for row in 0..1000_usize {
        let mut cells = Vec::with_capacity_in(10, &heap);
        cells.extend(std::iter::repeat_n(row, 10));
        rows.push(Box::new_in(cells, &heap));
    }
    assert!(live(number) >= 2000, "{}", live(number));
    assert_eq!(rows.iter().map(|row| row.iter().sum::<usize>()).sum::<usize>(), 4_995_000);
    drop(rows);
    assert_eq!(live(number), 0);
}

#[test]
fn blocks_stay_when_their_heap_is_moved_or_dropped_and_go_to_other_threads() {
    let heap = LocalHeap::new().expect("memory");
    let block = heap.allocate(Layout::new::<[u64; 9]>()).expect("memory").cast::<u8>();
    fill(block, 5, 72);
    drop(std::boxed::Box::new(heap));
    assert!(holds(block, 5, 72));
    let mut numbers = Vec::new_in(GlobalHeap);
    numbers.extend(0..100_000_u64);
    let sum = std::thread::spawn(move || numbers.iter().sum::<u64>()).join().expect("it does not panic");
    assert_eq!(sum, 4_999_950_000);
    let other = LocalHeap::new().expect("memory");
    // SAFETY: of that layout, and used by nobody any more.
    unsafe { other.deallocate(block, Layout::new::<[u64; 9]>()) };
}
