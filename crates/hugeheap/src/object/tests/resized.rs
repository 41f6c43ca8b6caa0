//! Runs and large blocks that are resized where they are: how long they are is known without the arenas, as
//! long as they live.

use super::resizing::{bytes_by_the_arenas, check_contents, resize, write};
use super::*;
use crate::arena::HEAP_PAGE_BYTES;

/// Each time the arenas saw to it whether maintenance was due, and read the clock: text to which 8 bytes at a
/// time were appended took twice as long as with stock CPython.
#[test]
fn what_grew_by_a_few_bytes_was_an_event_each_time() {
    let (space, mut heap) = heap();
    for (bytes, pages) in [(20_000, 2), (200_000, 13), (800_000, 49), (3_000_000, 184)] {
        let block = heap.take(bytes);
        // What is rounded to a block of a span becomes a run, if it is not one.
        let block = resize(&mut heap, block, pages * HEAP_PAGE_BYTES - 8);
        write(block, bytes);
        space.source().when_asked(|| {});
        for less in [16_000, 9, 4_000, 0, 16_383, 1] {
            let bytes = pages * HEAP_PAGE_BYTES - less;
            assert_eq!(resize(&mut heap, block, bytes), block, "{bytes}");
        }
        assert!(!space.source().asked(), "{bytes}");
        heap.check();
        space.source().when_asked(|| {});
        // A byte more than its last page has, and as many as one page less: neither stays as it is.
        let longer = resize(&mut heap, block, pages * HEAP_PAGE_BYTES + 1);
        assert!(space.source().asked(), "{bytes}");
        assert!(heap.usable_size(longer).expect("live") > pages * HEAP_PAGE_BYTES);
        space.source().when_asked(|| {});
        let shorter = resize(&mut heap, longer, pages * HEAP_PAGE_BYTES);
        assert!(space.source().asked() && shorter == longer, "{bytes}");
        assert_eq!(heap.usable_size(shorter).expect("live"), pages * HEAP_PAGE_BYTES);
        check_contents(shorter, bytes);
        heap.check();
        heap.give(shorter).expect("live");
        // SAFETY: not live any more; nothing is done but to say so.
        assert!(unsafe { heap.try_reallocate(shorter, bytes) }.is_err(), "{bytes}");
        // SAFETY: as above.
        assert!(unsafe { heap.try_reallocate(shorter, pages * HEAP_PAGE_BYTES - 8) }.is_err(), "{bytes}");
    }
    heap.check_empty();
}

/// How long something is that was resized is known without the arenas: nothing may be left of that when it is
/// gone, or what comes to its place would be as long for who resizes it.
#[test]
fn the_place_of_what_was_resized_says_nothing_of_what_comes_next() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let mut reached = 0;
    for (short, long) in [(700_000, 900_000), (1_200_000, 1_900_000), (3 << 20, 5 << 20)] {
        for way in 0..5 {
            let mut block = heap.take(short);
            for bytes in [long, short + 100, long - 50_000, long] {
                block = resize(&mut heap, block, bytes);
                assert_eq!(heap.usable_size(block), Ok(bytes_by_the_arenas(space, block)));
            }
            match way {
                0 => heap.give(block).expect("live"),
                1 => other.give(block).expect("live"),
                // SAFETY: live, and not used any more.
                2 => unsafe { space.free(block) },
                // SAFETY: as above; a size that it can have been asked for with.
                3 => unsafe { heap.free_sized(block, long) },
                // It goes elsewhere, by its pages or its contents.
                _ => {
                    let moved = resize(&mut heap, block, 4 * long);
                    heap.give(moved).expect("live");
                }
            }
            // At the same place, perhaps after others.
            let others: Vec<_> = std::iter::repeat_with(|| heap.take(short))
                .take_while(|&next| next != block)
                .take(40)
                .collect();
            let next = if others.len() == 40 { heap.take(short) } else { block };
            reached |= 1 << way & u32::from(next == block) << way;
            assert_eq!(bytes_by_the_arenas(space, next).next_multiple_of(HEAP_PAGE_BYTES), {
                short.next_multiple_of(HEAP_PAGE_BYTES)
            });
            write(next, short);
            let grown = resize(&mut heap, next, long);
            assert!(bytes_by_the_arenas(space, grown) >= long, "{short} {way}");
            check_contents(grown, short);
            heap.give(grown).expect("live");
            heap.give_all(others);
            heap.check();
        }
    }
    assert_eq!(reached, 0b11111, "each way led to the same place once");
    drop(other);
    heap.check_empty();
}

#[test]
fn a_size_that_what_was_resized_cannot_have_is_a_mistake() {
    let (space, mut heap) = heap();
    for bytes in [700_000, 1_200_000, 3 << 20] {
        let block = heap.take(bytes / 2);
        let block = resize(&mut heap, block, bytes);
        let block = resize(&mut heap, block, bytes + 100);
        let usable = heap.usable_size(block).expect("live");
        assert_eq!(usable, (bytes + 100).next_multiple_of(HEAP_PAGE_BYTES));
        for given in [bytes + 100, usable] {
            assert_eq!(space.check_size(at(block), given), Ok(()));
        }
        for given in [usable + 1, usable - HEAP_PAGE_BYTES, 0] {
            assert_eq!(space.check_size(at(block), given), Err(Mistake::WrongSize { bytes: usable, given }));
        }
        heap.give(block).expect("live");
    }
    heap.check_empty();
}

#[test]
fn a_run_that_becomes_too_long_to_be_kept_and_short_again_is_one_of_the_arenas() {
    let (space, mut heap) = heap();
    let run = heap.take(200_000);
    let mut longest = run;
    for bytes in [600_000, 900_000, 900_100, 300_000, 300_100, 40_000] {
        longest = resize(&mut heap, longest, bytes);
        assert_eq!(bytes_by_the_arenas(space, longest), bytes.next_multiple_of(HEAP_PAGE_BYTES));
        assert_eq!(heap.usable_size(longest), Ok(bytes.next_multiple_of(HEAP_PAGE_BYTES)));
        heap.check();
    }
    heap.give(longest).expect("live");
    // SAFETY: not live any more; nothing is done but to say so.
    assert!(unsafe { heap.try_reallocate(longest, 40_100) }.is_err());
    heap.check_empty();
}

#[test]
fn nothing_is_resized_from_inside_of_a_run_or_a_large_block() {
    let (_, mut heap) = heap();
    for bytes in [200_000, 800_000, 3_000_000] {
        let mut block = heap.take(bytes);
        for _ in 0..2 {
            for offset in [16, 4096, HEAP_PAGE_BYTES] {
                let inside = NonNull::new(block.as_ptr().wrapping_add(offset)).expect("an address");
                // SAFETY: nothing begins there; nothing is done but to say so.
                let mistake = unsafe { heap.try_reallocate(inside, bytes) };
                assert!(matches!(mistake, Err(Mistake::Interior { .. })), "{offset} of {bytes}: {mistake:?}");
            }
            // How long it is is known by now.
            block = resize(&mut heap, block, bytes + 1);
        }
        heap.give(block).expect("live");
    }
    heap.check_empty();
}

#[test]
fn a_run_of_a_page_that_shrinks_to_a_block_becomes_one() {
    let (space, mut heap) = heap();
    let run = heap.take(HEAP_PAGE_BYTES);
    write(run, HEAP_PAGE_BYTES);
    for bytes in [HEAP_PAGE_BYTES, 8_193] {
        assert_eq!(resize(&mut heap, run, bytes), run, "{bytes}");
    }
    let block = resize(&mut heap, run, 5_000);
    assert!(block != run && heap.usable_size(block).expect("live") < HEAP_PAGE_BYTES);
    assert!(heap.usable_size(run).is_err());
    check_contents(block, 5_000);
    assert_eq!(space.check_size(at(block), 5_000), Ok(()));
    heap.give(block).expect("live");
    heap.check_empty();
}
