//! Allocates and frees in a loop, for counting instructions: `pairs KIND COUNT`.
//!
//! The difference between two counts, divided by the difference of the loops, is the cost of one pair without
//! start-up. Kinds: `run` takes a page run of 1 MiB, as pymalloc does; `large` a block of 8 MiB; `owns` asks
//! whose address it is; `block` and `sized` take a block of 48 bytes and free it, without and with its size;
//! `global` does so as Rust's global allocator; `loop` does nothing, in the same loop; `random` replaces one of
//! 1,000 blocks of 16 to 512 bytes at random, `global-random` as Rust's global allocator; `order` takes 1,000
//! blocks of 64 bytes, and frees them in their order; `gaps` takes 600 blocks of 144 bytes, frees two of three,
//! takes as many again, and frees all in the order of their places; `streams` takes 1,000 blocks of 64 bytes,
//! and frees them in two places in turn; `medium` takes a block of 1,000 bytes and frees it, `medium-sized`
//! with its size; `others` takes 1,000 blocks of 64 bytes, and another heap frees them, `left` the same after
//! their heap was left; `grow` takes a block of 40 bytes, has it grow to 80 and frees it; `text` has one of
//! 200,000 bytes grow and shrink by 8, `text-large` one of 3,000,000; `pages` takes and frees a page run, of
//! 30,000 bytes, `span` a block of a span, of 20,000. `hardened`, `hardened-random` and `hardened-pages` are
//! `block`, `random` and `pages` with a hardened heap.

use hugeheap::arena::{Arenas, Settings};
use hugeheap::object::{GlobalHeap, ProcessHeap, space};
use hugeheap_os::linux::Linux;
use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;

fn blocks(heap: &mut ProcessHeap, count: u32) {
    for _ in 0..count {
        let block = black_box(heap.allocate(48).expect("memory"));
        // SAFETY: just allocated and used by nobody.
        unsafe { heap.free(block) };
    }
}

fn medium(heap: &mut ProcessHeap, count: u32) {
    for _ in 0..count {
        let block = black_box(heap.allocate(1000).expect("memory"));
        // SAFETY: just allocated and used by nobody.
        unsafe { heap.free(block) };
    }
}

fn pages(heap: &mut ProcessHeap, bytes: usize, count: u32) {
    // Keeps the arena from becoming empty.
    let _neighbour = heap.allocate(bytes).expect("memory");
    for _ in 0..count {
        let run = black_box(heap.allocate(black_box(bytes)).expect("memory"));
        // SAFETY: just allocated and used by nobody.
        unsafe { heap.free(run) };
    }
}

fn sized(heap: &mut ProcessHeap, count: u32) {
    for _ in 0..count {
        let block = black_box(heap.allocate(48).expect("memory"));
        // SAFETY: as above.
        unsafe { heap.free_sized(block, 48) };
    }
}

fn medium_sized(heap: &mut ProcessHeap, count: u32) {
    for _ in 0..count {
        let block = black_box(heap.allocate(1000).expect("memory"));
        // SAFETY: just allocated and used by nobody.
        unsafe { heap.free_sized(block, 1000) };
    }
}

fn for_others(heap: &mut ProcessHeap, count: u32) {
    let mut other = space().acquire().expect("memory");
    for _ in 0..count / 1000 {
        let blocks: [_; 1000] = std::array::from_fn(|_| heap.allocate(64).expect("memory"));
        for block in black_box(blocks) {
            // SAFETY: just allocated and used by nobody.
            unsafe { other.free_sized(block, 64) };
        }
    }
}

/// Of a heap that waits, by another one.
fn left(other: &mut ProcessHeap, count: u32) {
    for _ in 0..count / 1000 {
        let mut heap = space().acquire().expect("memory");
        let blocks: [_; 1000] = std::array::from_fn(|_| heap.allocate(64).expect("memory"));
        drop(heap);
        for block in black_box(blocks) {
            // SAFETY: just allocated and used by nobody.
            unsafe { other.free_sized(block, 64) };
        }
    }
}

fn grow(heap: &mut ProcessHeap, count: u32) {
    for _ in 0..count {
        let block = black_box(heap.allocate(black_box(40)).expect("memory"));
        // SAFETY: just allocated and used by nobody.
        unsafe {
            let grown = black_box(heap.reallocate(block, black_box(80)).expect("memory"));
            heap.free_sized(grown, 80);
        }
    }
}

/// As text to which a little is appended: its heap pages stay the same.
fn text(heap: &mut ProcessHeap, bytes: usize, count: u32) {
    let mut block = heap.allocate(bytes).expect("memory");
    for number in 0..count {
        let bytes = bytes + 8 * (number % 2) as usize;
        // SAFETY: just allocated and used by nobody.
        block = black_box(unsafe { heap.reallocate(block, black_box(bytes)) }.expect("memory"));
    }
    // SAFETY: as above.
    unsafe { heap.free(block) };
}

/// As what a program calls for its global allocator: functions that know no layout.
#[inline(never)]
fn global_alloc(bytes: usize, align: usize) -> *mut u8 {
    // SAFETY: a layout that is not empty.
    unsafe { GlobalHeap.alloc(Layout::from_size_align_unchecked(bytes, align)) }
}

#[inline(never)]
fn global_dealloc(block: *mut u8, bytes: usize, align: usize) {
    // SAFETY: the block is from above, with that layout, and used by nobody.
    unsafe { GlobalHeap.dealloc(block, Layout::from_size_align_unchecked(bytes, align)) }
}

fn global(count: u32) {
    for _ in 0..count {
        global_dealloc(global_alloc(48, 8), 48, 8);
    }
}

fn global_random(count: u32) {
    let mut random = generator();
    let mut blocks: Vec<_> = (0..1000).map(|_| (std::ptr::null_mut(), 0)).collect();
    for (block, bytes) in &mut blocks {
        *bytes = 16 + random() % 497;
        *block = global_alloc(*bytes, 8);
    }
    for _ in 0..count {
        let index = random() % blocks.len();
        let (block, bytes) = &mut blocks[index];
        global_dealloc(*block, *bytes, 8);
        *bytes = 16 + random() % 497;
        *block = global_alloc(*bytes, 8);
    }
}

/// A linear congruential generator: the same sequence every time.
fn generator() -> impl FnMut() -> usize {
    let mut state = 1u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    }
}

fn replace(heap: &mut ProcessHeap, count: u32) {
    let mut random = generator();
    let mut blocks: Vec<_> = (0..1000).map(|_| heap.allocate(16 + random() % 497).expect("memory")).collect();
    for _ in 0..count {
        let index = random() % blocks.len();
        // SAFETY: the block is live, and replaced at once.
        unsafe { heap.free(blocks[index]) };
        blocks[index] = heap.allocate(16 + random() % 497).expect("memory");
    }
}

fn in_order(heap: &mut ProcessHeap, count: u32) {
    for _ in 0..count / 1000 {
        let blocks: [_; 1000] = std::array::from_fn(|_| heap.allocate(64).expect("memory"));
        for block in black_box(blocks) {
            // SAFETY: just allocated and used by nobody.
            unsafe { heap.free(block) };
        }
    }
}

fn in_two_streams(heap: &mut ProcessHeap, count: u32) {
    for _ in 0..count / 1000 {
        let blocks: [_; 1000] = std::array::from_fn(|_| heap.allocate(64).expect("memory"));
        let (first, second) = black_box(&blocks).split_at(500);
        for (&one, &other) in first.iter().zip(second) {
            // SAFETY: just allocated and used by nobody.
            unsafe {
                heap.free(one);
                heap.free(other);
            }
        }
    }
}

fn with_gaps(heap: &mut ProcessHeap, count: u32) {
    // 600 and 400.
    for _ in 0..count / 1000 {
        let mut blocks: [_; 600] = std::array::from_fn(|_| heap.allocate(144).expect("memory"));
        for place in (0..600).filter(|place| place % 3 != 0) {
            // SAFETY: just allocated and used by nobody; the place is filled again before it is looked at.
            unsafe { heap.free(blocks[place]) };
        }
        for place in (0..600).filter(|place| place % 3 != 0) {
            blocks[place] = heap.allocate(144).expect("memory");
        }
        for block in black_box(blocks) {
            // SAFETY: just allocated and used by nobody.
            unsafe { heap.free(block) };
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (Some(kind), Some(count)) =
        (arguments.get(1), arguments.get(2).and_then(|text| text.parse::<u32>().ok()))
    else {
        eprintln!(
            "usage: pairs run|large|owns|loop|block|sized|order|streams|gaps|medium[-sized]|others|left|grow|text[-large]|global[-random]|[hardened-]random|[hardened-]pages|span|hardened COUNT"
        );
        std::process::exit(2);
    };
    if let "block" | "sized" | "order" | "streams" | "gaps" | "medium" | "medium-sized" | "others" | "left"
    | "grow" | "text" | "text-large" | "random" | "pages" | "span" | "hardened" | "hardened-random"
    | "hardened-pages" = kind.as_str()
    {
        let hardened = kind.starts_with("hardened");
        let heap = if hardened { space().acquire_hardened() } else { space().acquire() };
        let mut heap = heap.expect("memory");
        return match kind.trim_start_matches("hardened-") {
            "block" | "hardened" => blocks(&mut heap, count),
            "sized" => sized(&mut heap, count),
            "order" => in_order(&mut heap, count),
            "streams" => in_two_streams(&mut heap, count),
            "gaps" => with_gaps(&mut heap, count),
            "medium" => medium(&mut heap, count),
            "medium-sized" => medium_sized(&mut heap, count),
            "others" => for_others(&mut heap, count),
            "left" => left(&mut heap, count),
            "grow" => grow(&mut heap, count),
            "text" => text(&mut heap, 200_000, count),
            "text-large" => text(&mut heap, 3_000_000, count),
            "pages" => pages(&mut heap, 30_000, count),
            "span" => pages(&mut heap, 20_000, count),
            _ => replace(&mut heap, count),
        };
    } else if kind == "loop" {
        return (0..count).for_each(|_| _ = black_box(std::ptr::NonNull::<u8>::dangling()));
    } else if kind == "global" {
        return global(count);
    } else if kind == "global-random" {
        return global_random(count);
    }
    let mut arenas = Arenas::new(Linux::new(), Settings::DEFAULT);
    // Neighbours keep the arena from becoming empty, as in a program that runs.
    let keep: Vec<_> = (0..9).filter_map(|_| arenas.allocate(64)).collect();
    let mut sum = 0usize;
    for _ in 0..count {
        match kind.as_str() {
            "run" => {
                let address = arenas.allocate(64).expect("memory").get();
                arenas.free(address, 64).expect("just allocated");
                sum ^= address;
            }
            "large" => {
                let block = arenas.allocate_large(8 << 20, false).expect("memory");
                arenas.free_large(block.address.get()).expect("just allocated");
                sum ^= block.address.get();
            }
            _ => sum += usize::from(arenas.owns(black_box(keep[0].get()))),
        }
    }
    black_box(sum);
}
