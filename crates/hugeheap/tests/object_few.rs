//! A thread of a program with few blocks: their sizes share heap pages, whichever function of the allocator
//! gives them. A program of its own, so that no other test's heap is adopted: of one with many blocks each size has
//! pages of its own.
#![cfg(target_os = "linux")]

use hugeheap::arena::HEAP_PAGE_BYTES;
use hugeheap::object::{GlobalHeap, space};
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::thread;

#[global_allocator]
static HEAP: GlobalHeap = GlobalHeap;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 8).expect("a layout")
}

/// Takes blocks of 32 sizes in a thread, and says in how many heap pages they are.
fn pages(take: impl Fn(usize) -> *mut u8 + Send + 'static) -> usize {
    let count = move || {
        let blocks: Vec<_> = (65..=576).step_by(16).map(|bytes| (bytes, take(bytes))).collect();
        let pages: BTreeSet<_> = blocks.iter().map(|&(_, block)| block as usize / HEAP_PAGE_BYTES).collect();
        for (bytes, block) in blocks {
            assert!(space().usable_size(block as usize).expect("live") >= bytes);
            // SAFETY: taken above with that layout, and used by nobody else.
            unsafe { HEAP.dealloc(block, layout(bytes)) };
        }
        pages.len()
    };
    thread::spawn(count).join().expect("no panic")
}

#[test]
fn the_first_blocks_of_a_thread_share_heap_pages() {
    // SAFETY: the layouts are of more than no bytes, and blocks become larger.
    let counts = unsafe {
        [
            pages(|bytes| HEAP.alloc(black_box(layout(bytes)))),
            pages(|bytes| HEAP.alloc_zeroed(black_box(layout(bytes)))),
            pages(|bytes| HEAP.realloc(HEAP.alloc(layout(1)), layout(1), bytes)),
        ]
    };
    assert!(counts.iter().all(|&pages| pages <= 12), "{counts:?} for 32 sizes");
}
