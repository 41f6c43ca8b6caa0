//! Blocks of a thread with few of them, of which several sizes share heap pages, are freed by their sizes in threads
//! with many, where these sizes lead to classes of their own.
#![cfg(target_os = "linux")]

use hugeheap::object::GlobalHeap;
use std::thread;

#[global_allocator]
static HEAP: GlobalHeap = GlobalHeap;

#[test]
fn a_threads_first_blocks_are_freed_by_one_with_many() {
    let many: Vec<_> = (0..20_000).map(|number| vec![1_u8; 65 + number % 500]).collect();
    let few: Vec<_> =
        thread::spawn(|| (65..565).map(|bytes| vec![2_u8; bytes]).collect()).join().expect("no panic");
    assert!(few.iter().zip(65..).all(|(block, bytes)| block.len() == bytes));
    drop(few);
    thread::spawn(move || drop(many)).join().expect("no panic");
}
