//! Heaps for objects with a header in front.

use super::super::SIZES;
use super::super::mistake::Mistake;
use super::*;
use crate::arena::HEAP_PAGE_BYTES;

const HEADER: usize = 16;

/// A space for objects with headers, and a heap in it.
fn headed() -> (&'static Space<World>, Heap<World>) {
    let space = space();
    space.expect_headers();
    (space, space.acquire().expect("memory"))
}

/// As an interpreter asks.
fn near(heap: &mut Heap<World>, bytes: usize) -> NonNull<u8> {
    heap.allocate_near(bytes).or_else(|| heap.allocate_far(bytes)).expect("memory")
}

#[test]
fn an_object_that_fills_cache_lines_with_its_header_begins_with_one() {
    let (_, mut heap) = headed();
    for bytes in [49, 56, 64, 113, 128] {
        // More than a page, as interpreters and others ask for them.
        for _ in 0..600 {
            let near = near(&mut heap, bytes);
            let zeroed = heap.allocate_zeroed(bytes).expect("memory");
            assert_eq!(((at(near) + HEADER) % 64, (at(zeroed) + HEADER) % 64), (0, 0), "{bytes} bytes");
            assert_eq!(at(heap.take(bytes)) % 64, 0, "a request that may be a constant: {bytes} bytes");
        }
    }
    heap.verify().expect("sound");
}

/// The current window of another class was looked at, so it was taken for one of no current window: remembered
/// there, and free in it, it was handed out twice.
#[test]
fn an_object_with_a_header_that_was_freed_with_its_size_was_handed_out_twice() {
    for bytes in [49, 56, 64, 113, 120, 128] {
        let (_, mut heap) = headed();
        for round in 0..40 {
            let mut live: Vec<_> = (0..round).map(|_| near(&mut heap, bytes)).collect();
            live.iter().for_each(|&object| fill(object, bytes, round));
            let last = near(&mut heap, bytes);
            // SAFETY: live, and used by nobody.
            unsafe { heap.free_sized(last, bytes) };
            heap.check();
            live.extend((0..70).map(|_| near(&mut heap, bytes)));
            let apart: std::collections::BTreeSet<_> = live.iter().map(|&object| at(object)).collect();
            assert_eq!(apart.len(), live.len(), "{bytes} bytes");
            for object in live {
                // SAFETY: as above.
                unsafe { heap.free_sized(object, bytes) };
            }
            heap.check();
        }
        heap.check_empty();
    }
}

#[test]
fn other_blocks_begin_where_they_do_elsewhere() {
    let (_, mut heap) = headed();
    let (_, mut other) = super::heap();
    for bytes in [1, 32, 48, 65, 80, 129, 192, 512, 640, 4096] {
        for _ in 0..3 {
            let (one, two) = (heap.take(bytes), other.take(bytes));
            assert_eq!(at(one) % HEAP_PAGE_BYTES, at(two) % HEAP_PAGE_BYTES, "{bytes} bytes");
        }
    }
}

#[test]
fn who_asks_for_an_alignment_gets_it() {
    let (_, mut heap) = headed();
    for align in [32, 64, 128, 256] {
        for bytes in [1, 40, 64, 100, 128, 200] {
            let kept: Vec<_> =
                (0..40).map(|_| heap.allocate_aligned(bytes, align).expect("memory")).collect();
            assert!(kept.iter().all(|&block| at(block) % align == 0), "{bytes} bytes at {align}");
            for block in kept {
                // SAFETY: used by nobody else.
                unsafe { heap.free_sized(block, bytes.next_multiple_of(align)) };
            }
        }
    }
    heap.verify().expect("sound");
}

#[test]
fn a_block_is_resized_and_freed_by_the_size_that_was_asked_for() {
    let (space, mut heap) = headed();
    let mut other = space.acquire().expect("memory");
    let (first, second) = (near(&mut heap, 64), heap.allocate_aligned(64, 64).expect("memory"));
    for block in [first, second] {
        fill(block, 64, 7);
        assert_eq!(heap.usable_size(block), Ok(64));
        assert_eq!(space.check_size(at(block), 49), Ok(()));
        assert_eq!(space.check_size(at(block), 48), Err(Mistake::WrongSize { bytes: 64, given: 48 }));
        // SAFETY: used by nobody else.
        unsafe {
            assert_eq!(other.try_reallocate(block, 50), Ok(Some(block)), "another heap's stays as well");
            let moved = heap.try_reallocate(block, 130).expect("live").expect("memory");
            assert!(holds(moved, 64, 7));
            let back = heap.try_reallocate(moved, 64).expect("live").expect("memory");
            assert!(holds(back, 64, 7) && (at(back) + HEADER) % 64 == 0);
            other.free_sized(back, 64);
        }
    }
    heap.collect_all();
    heap.verify().expect("sound");
    assert_eq!(space.statistics().live_bytes(), 0);
}

#[test]
fn an_address_within_a_block_is_no_block() {
    let (_, mut heap) = headed();
    let block = near(&mut heap, 64);
    for inside in (16..64).step_by(16) {
        // SAFETY: refused.
        let freed = unsafe { heap.try_free(pointer(at(block) + inside)) };
        assert_eq!(freed, Err(Mistake::Interior { bytes: 64 }), "{inside} bytes behind its beginning");
    }
    // SAFETY: used by nobody else.
    unsafe { assert_eq!(heap.try_free(block), Ok(())) };
    // SAFETY: refused.
    unsafe { assert!(heap.try_free(block).is_err(), "it is gone") };
}

#[test]
fn statistics_tell_of_sizes_and_not_of_classes() {
    let (space, mut heap) = headed();
    let kept = [near(&mut heap, 64), heap.take(64), near(&mut heap, 128)];
    let statistics = space.statistics();
    let sizes: Vec<_> = statistics.classes[..SIZES].iter().map(|class| class.block_bytes).collect();
    assert!(sizes[1..].is_sorted_by(|one, two| one < two), "each once, from small to large");
    let of = |bytes| statistics.classes.iter().find(|class| class.block_bytes == bytes).expect("a class");
    assert_eq!((of(64).pages, of(64).live_blocks, of(64).live_bytes), (2, 2, 128));
    assert_eq!((of(128).pages, of(128).live_blocks), (1, 1));
    let mut found = Vec::new();
    space.walk(&mut |step| {
        if let super::super::Walk::Page(page) = step {
            found.extend(page.blocks());
        }
    });
    let mut kept = kept.map(at);
    kept.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, kept);
}

#[test]
fn all_blocks_of_a_page_are_used_and_given_back() {
    let (space, mut heap) = headed();
    for (bytes, blocks) in [(64, 255), (128, 127)] {
        let kept: Vec<_> = (0..blocks).map(|_| near(&mut heap, bytes)).collect();
        assert!(
            kept.iter().all(|&block| page_of(block) == page_of(kept[0])),
            "one page has {blocks} of {bytes} bytes"
        );
        assert_ne!(page_of(near(&mut heap, bytes)), page_of(kept[0]));
        for block in kept {
            // SAFETY: used by nobody else.
            unsafe { heap.free(block) };
        }
    }
    heap.trim();
    heap.verify().expect("sound");
    assert_eq!(live(space), 2 * HEAP_PAGE_BYTES as u64, "those of the two that live");
}
