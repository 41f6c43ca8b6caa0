//! Wrong frees: each is told apart, and changes nothing.

use super::super::class::{GRANULE_SHIFT, class_of};
use super::super::freed;
use super::super::heap::Place;
use super::super::recent::MANY;
use super::hardened::child;
use super::*;
use core::sync::atomic::Ordering;
use std::os::unix::process::ExitStatusExt;
use std::thread;

/// The answer of both ways to free, which agree, and after which everything is as before.
fn refused(heap: &mut Heap<World>, address: usize) -> Mistake {
    let before = live(heap.own().space);
    // SAFETY: it is refused.
    let mistake = unsafe { heap.free_far(address) }.expect_err("a mistake");
    // SAFETY: nothing live begins there, so nothing is freed.
    assert_eq!(unsafe { heap.try_free(pointer(address)) }, Err(mistake));
    heap.check();
    assert_eq!(live(heap.own().space), before);
    mistake
}

#[test]
fn foreign_addresses() {
    let (_, mut heap) = heap();
    let own = Box::new([0_u64; 8]);
    let on_stack = 0_u64;
    // Before there is any block, and with some.
    for _ in 0..2 {
        for address in [&raw const *own as usize, &raw const on_stack as usize, 16, usize::MAX & !15, 8] {
            assert_eq!(refused(&mut heap, address), Mistake::Foreign, "{address:#x}");
        }
        heap.take(48);
        heap.take(5000);
        heap.take(20_000);
    }
}

#[test]
fn addresses_of_the_region_in_which_nothing_was_handed_out() {
    let (_, mut heap) = heap();
    let block = heap.take(48);
    let region = &heap.own().space.regions()[0];
    let mistake = refused(&mut heap, region.start + region.bytes() - HEAP_PAGE_BYTES);
    assert!(matches!(mistake, Mistake::Foreign | Mistake::NotLive { bytes: 0 }), "{mistake:?}");
    heap.give(block).expect("live");
}

/// The free collects what another thread freed, and with that the block's page may go back to the arenas: then
/// these are asked, not the heap, whose the page was when the free began.
#[test]
fn a_block_freed_twice_whose_page_went_back_meanwhile() {
    for picked in [0, 1, 40, 98, 99] {
        let (space, mut heap) = heap();
        let mut other = space.acquire().expect("memory");
        // Two to a page: more pages than a heap keeps without blocks.
        let blocks = heap.take_many(100, 4096);
        other.give_all(blocks.iter().copied());
        let address = at(blocks[picked]);
        // SAFETY: as above.
        let first = unsafe { heap.free_far(address) }.expect_err("a mistake");
        assert_eq!(refused(&mut heap, address), first, "block {picked}");
    }
}

#[test]
fn addresses_inside_a_block() {
    let (_, mut heap) = heap();
    for bytes in [32, 48, 512, 576, 640, 3264, 4096] {
        let block = at(heap.take(bytes));
        for offset in [16, bytes / 32 * 16, bytes - 16] {
            assert_eq!(refused(&mut heap, block + offset), Mistake::Interior { bytes });
        }
        heap.give(pointer(block)).expect("still live");
    }
    heap.check_empty();
}

#[test]
fn addresses_that_are_not_aligned() {
    let (_, mut heap) = heap();
    for bytes in [16, 48, 576, 640, 4096] {
        let block = at(heap.take(bytes));
        for offset in [1, 2, 7, 8, 15] {
            assert_eq!(refused(&mut heap, block + offset), Mistake::Interior { bytes });
        }
        heap.give(pointer(block)).expect("still live");
    }
    heap.check_empty();
}

#[test]
fn the_rest_of_a_page() {
    let (_, mut heap) = heap();
    // 16,384 = 341 × 48 + 16 = 3 × 5,376 + 256
    for (bytes, rest) in [(48, 16), (2688, 256)] {
        let block = heap.take(bytes);
        let address = page_of(block) + HEAP_PAGE_BYTES - rest;
        assert_eq!(refused(&mut heap, address), Mistake::Interior { bytes });
        heap.give(block).expect("still live");
    }
    heap.check_empty();
}

#[test]
fn never_handed_out() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    for bytes in [48, 640] {
        let block = heap.take(bytes);
        // In the window that is open, and in one that is not.
        let (near, far) = (at(block) + bytes, page_of(block) + 12 * bytes.max(640) / bytes * bytes);
        for address in [near, far] {
            assert_eq!(refused(&mut heap, address), Mistake::NotLive { bytes });
            assert_eq!(refused(&mut other, address), Mistake::NotLive { bytes });
        }
        heap.give(block).expect("still live");
    }
}

#[test]
fn freed_twice_by_the_owner() {
    let (_, mut heap) = heap();
    for bytes in [16, 48, 576, 640, 4096] {
        let blocks = heap.take_many(2000, bytes);
        // In an open window, one left long ago, and pages between.
        let twice = [1999, 0, 3, 1000];
        for block in twice.map(|index| blocks[index]) {
            heap.give(block).expect("live");
            assert_eq!(refused(&mut heap, at(block)), Mistake::NotLive { bytes });
        }
        assert_eq!(heap.usable_size(blocks[0]), Err(Mistake::NotLive { bytes }));
        let rest = blocks.iter().enumerate().filter(|(index, _)| !twice.contains(index));
        heap.give_all(rest.map(|(_, &block)| block));
    }
    heap.check_empty();
}

#[test]
fn freed_twice_page_runs_and_large_blocks() {
    let (_, mut heap) = heap();
    for bytes in [15_000, 100_000, 1 << 20, 3 << 20] {
        let block = heap.take(bytes);
        heap.give(block).expect("live");
        let mistake = refused(&mut heap, at(block));
        assert!(matches!(mistake, Mistake::NotLive { bytes: 0 }), "{bytes}: {mistake:?}");
    }
    heap.check_empty();
}

#[test]
fn inside_of_page_runs_and_large_blocks() {
    let (_, mut heap) = heap();
    for bytes in [30_000, 1 << 20, 5 << 20] {
        let block = heap.take(bytes);
        for offset in [1, 16, 4096, HEAP_PAGE_BYTES, bytes / 32 * 16] {
            let mistake = refused(&mut heap, at(block) + offset);
            assert!(matches!(mistake, Mistake::Interior { .. }), "{bytes} + {offset}: {mistake:?}");
        }
        heap.give(block).expect("still live");
    }
    heap.check_empty();
}

#[test]
fn freed_twice_after_the_page_has_another_class() {
    let (space, mut heap) = heap();
    // All blocks of one page, and nothing else.
    let first = heap.take_many(HEAP_PAGE_BYTES / 32, 32);
    let page = page_of(first[0]);
    heap.give_all(first.iter().copied());
    heap.trim();
    assert_eq!(live(space), 0);
    let second = heap.take_many(HEAP_PAGE_BYTES / 48, 48);
    assert!(second.iter().all(|&block| page_of(block) == page), "the page was used again");
    for &block in &first {
        if second.contains(&block) {
            continue;
        }
        let mistake = refused(&mut heap, at(block));
        assert_eq!(mistake, Mistake::Interior { bytes: 48 });
    }
    heap.give_all(second);
    heap.check_empty();
}

#[test]
fn freed_twice_after_the_page_became_a_run() {
    let (space, mut heap) = heap();
    let blocks = heap.take_many(HEAP_PAGE_BYTES / 32, 32);
    heap.give_all(blocks.iter().copied());
    heap.trim();
    assert_eq!(live(space), 0);
    let mut runs = core::iter::repeat_with(|| heap.take(15_000)).take(1000);
    let run = runs.find(|&run| at(run) == page_of(blocks[0])).expect("the page was used again");
    assert_eq!(refused(&mut heap, at(blocks[1])), Mistake::Interior { bytes: HEAP_PAGE_BYTES });
    heap.give(run).expect("still live");
    assert_eq!(refused(&mut heap, at(blocks[1])), Mistake::NotLive { bytes: 0 });
}

#[test]
fn freed_twice_while_the_page_is_spare() {
    let (_, mut heap) = heap();
    // Two pages: the first is at hand, the second becomes spare.
    let blocks = heap.take_many(3 * HEAP_PAGE_BYTES / 512, 512);
    heap.give_all(blocks.iter().copied());
    let spares: Vec<_> = blocks
        .iter()
        .filter(|&&block| tag::class(heap.own().space.page(at(block)).expect("known").tag()) == tag::SPARE)
        .copied()
        .collect();
    assert!(!spares.is_empty(), "a page without blocks is spare");
    for block in spares {
        assert_eq!(refused(&mut heap, at(block)), Mistake::NotLive { bytes: 0 });
        assert_eq!(refused(&mut heap, at(block) + 16), Mistake::NotLive { bytes: 0 });
    }
    heap.check_empty();
}

/// Of each kind of class: what others freed is noted in two places, and the smallest of the second was once in the
/// first.
const NOTED: [usize; 5] = [48, 112, 128, 256, 1024];

#[test]
fn freed_twice_by_another_thread() {
    for bytes in NOTED {
        let (space, mut heap) = heap();
        let mut other = space.acquire().expect("memory");
        let blocks = heap.take_many(1000, bytes);
        other.give(blocks[0]).expect("live");
        // Before the owner collected it, and after.
        assert_eq!(refused(&mut other, at(blocks[0])), Mistake::TwoThreads { bytes });
        assert_eq!(heap.usable_size(blocks[0]), Err(Mistake::NotLive { bytes }));
        assert_eq!(refused(&mut heap, at(blocks[0])), Mistake::NotLive { bytes });
        assert_eq!(refused(&mut other, at(blocks[0])), Mistake::NotLive { bytes });
        heap.give_all(blocks[1..].iter().copied());
        heap.check_empty();
    }
}

#[test]
fn freed_by_the_owner_and_then_by_another_thread() {
    for bytes in NOTED {
        let (space, mut heap) = heap();
        let mut other = space.acquire().expect("memory");
        let blocks = heap.take_many(1000, bytes);
        // Away from the current window.
        heap.give(blocks[3]).expect("live");
        assert_eq!(refused(&mut other, at(blocks[3])), Mistake::NotLive { bytes });
        assert_eq!(other.usable_size(blocks[3]), Err(Mistake::NotLive { bytes }));
        heap.check();
        other.check();
    }
}

#[test]
fn freed_by_the_owner_in_its_open_window_and_then_by_another_thread() {
    for bytes in NOTED {
        let (space, mut heap) = heap();
        let mut other = space.acquire().expect("memory");
        let block = heap.take(bytes);
        assert!(heap.own().bins[class_of(bytes)].current.is_open());
        heap.give(block).expect("live");
        assert_eq!(refused(&mut other, at(block)), Mistake::NotLive { bytes });
    }
}

/// What a child said that did a deed with so many bytes and the block of that number, for which it was ended.
fn ended(test: &str, (bytes, number): (usize, usize), deed: impl FnOnce(usize, usize)) -> String {
    const WHICH: &str = "HUGEHEAP_TEST_BLOCK";
    let output = child(&format!("checks::{test}"), (WHICH, &format!("{bytes} {number}")), || {
        let which = std::env::var(WHICH).expect("set");
        let (bytes, number) = which.split_once(' ').expect("two numbers");
        deed(bytes.parse().expect("a number"), number.parse().expect("a number"));
    });
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{number} of {bytes} bytes: {said}");
    said
}

/// In its open window the owner looks at where others note what they free, before it looks at the page's tag.
#[test]
fn freed_by_another_thread_and_then_by_the_owner_in_its_open_window_by_its_size() {
    let test = "freed_by_another_thread_and_then_by_the_owner_in_its_open_window_by_its_size";
    for bytes in NOTED {
        let said = ended(test, (bytes, 0), |bytes, _| {
            let (space, mut heap) = heap();
            let mut other = space.acquire().expect("memory");
            // The only ones of their class: of whichever that is, they are taken out of a window. Not the first one, if
            // there is another: its bit is the same wherever it is noted.
            let block = heap.take(bytes);
            let block = if bytes <= MANY { heap.take(bytes) } else { block };
            assert!(heap.own().bins[class_of(bytes)].current.is_open());
            other.give(block).expect("live");
            // SAFETY: it is not live, which is found out.
            unsafe { heap.free_sized(block, bytes) };
        });
        let expected = format!("size class {bytes}: nothing live begins at the address");
        assert!(said.contains(&expected), "{bytes} bytes: {said}");
    }
}

/// The owner frees by a plain store, so neither saw the other. It comes out when the owner takes back what
/// others freed, in the page at hand and in any other.
#[test]
fn freed_by_the_owner_and_by_another_thread_at_the_same_instant() {
    let test = "freed_by_the_owner_and_by_another_thread_at_the_same_instant";
    // Of three pages and of sixty, the last one at hand.
    for (bytes, number) in NOTED.into_iter().flat_map(|bytes| [(bytes, 3), (bytes, 998)]) {
        let said = ended(test, (bytes, number), |bytes, number| {
            let (space, mut heap) = heap();
            let mut other = space.acquire().expect("memory");
            let blocks = heap.take_many(1000, bytes);
            let page = space.page(at(blocks[number])).expect("it has blocks");
            let place = Place::of(page, class_of(bytes), at(blocks[number])).expect("a block begins there");
            heap.give(blocks[number]).expect("live");
            // The other thread was stopped after it had found the block live.
            let granule = at(blocks[number]) >> GRANULE_SHIFT;
            let (word, bit) = freed::place(page.tag(), granule, page.mark(), &page.remote()[place.window]);
            word.fetch_or(bit, Ordering::SeqCst);
            other.give(blocks[number - 1]).expect("live");
            heap.trim();
        });
        let expected = format!("size class {bytes}: two threads freed the block");
        assert!(said.contains(&expected), "{number} of {bytes} bytes: {said}");
    }
}

#[test]
fn wrong_addresses_in_the_pages_of_another_heap() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let block = at(heap.take(48));
    let medium = at(heap.take(1000));
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(refused(&mut other, block + 16), Mistake::Interior { bytes: 48 });
            assert_eq!(refused(&mut other, block + 1), Mistake::Interior { bytes: 48 });
            assert_eq!(refused(&mut other, medium + 64), Mistake::Interior { bytes: 1024 });
            let rest = (block & !(HEAP_PAGE_BYTES - 1)) + HEAP_PAGE_BYTES - 16;
            assert_eq!(refused(&mut other, rest), Mistake::Interior { bytes: 48 });
        });
    });
    heap.give_all([pointer(block), pointer(medium)]);
    heap.check_empty();
}

#[test]
fn a_wrong_size_is_known() {
    let (space, mut heap) = heap();
    let sizes = [64, 576, 577, 1000, 8192, 8193, 100_000, 1 << 20, 3 << 20];
    let blocks: Vec<_> = sizes.iter().map(|&bytes| (heap.take(bytes), bytes)).collect();
    for &(block, bytes) in &blocks {
        let size = heap.usable_size(block).expect("live");
        assert_eq!(space.check_size(at(block), bytes), Ok(()), "{bytes}");
        for given in [bytes / 2 - 15, 2 * bytes + 16, bytes + HEAP_PAGE_BYTES, 3 << 21, usize::MAX] {
            let wrong = Mistake::WrongSize { bytes: size, given };
            assert_eq!(space.check_size(at(block), given), Err(wrong), "{bytes}");
        }
    }
    for (block, bytes) in blocks {
        // SAFETY: live and not used any more.
        unsafe { heap.free_sized(block, bytes) };
    }
    heap.check_empty();
}

#[test]
fn a_sized_free_takes_every_size_of_the_class() {
    let (_, mut heap) = heap();
    for (bytes, sizes) in
        [(40, 33..=48), (1000, 961..=1024), (20_000, 18_433..=20_480), (30_000, 28_673..=32_768)]
    {
        for given in sizes {
            let block = heap.take(bytes);
            // SAFETY: live and not used any more.
            unsafe { heap.free_sized(block, given) };
        }
    }
    heap.check_empty();
}

#[test]
fn resizing_and_asking_are_checked_too() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    let block = heap.take(48);
    let gone = heap.take(48);
    heap.give(gone).expect("live");
    for heap in [&mut heap, &mut other] {
        let inside = pointer(at(block) + 16);
        assert_eq!(heap.usable_size(inside), Err(Mistake::Interior { bytes: 48 }));
        // SAFETY: refused.
        assert_eq!(unsafe { heap.try_reallocate(inside, 100) }, Err(Mistake::Interior { bytes: 48 }));
        let foreign = NonNull::from(&mut [0_u8; 64]).cast();
        assert_eq!(heap.usable_size(foreign), Err(Mistake::Foreign));
        // SAFETY: refused.
        assert_eq!(unsafe { heap.try_reallocate(foreign, 100) }, Err(Mistake::Foreign));
    }
    assert_eq!(heap.usable_size(gone), Err(Mistake::NotLive { bytes: 48 }));
    // SAFETY: refused.
    assert_eq!(unsafe { heap.try_reallocate(gone, 100) }, Err(Mistake::NotLive { bytes: 48 }));
    heap.give(block).expect("live");
    heap.check_empty();
}

#[test]
fn every_mistake_says_what_it_is() {
    for (mistake, line) in [
        (Mistake::Foreign, "the address is not from this heap"),
        (
            Mistake::Interior { bytes: 48 },
            "size class 48: the address is inside a block, not at its beginning",
        ),
        (Mistake::NotLive { bytes: 48 }, "size class 48: nothing live begins at the address (freed twice?)"),
        (Mistake::NotLive { bytes: 0 }, "no size class: nothing live begins at the address (freed twice?)"),
        (
            Mistake::WrongSize { bytes: 48, given: 100 },
            "size class 48: freed with a size of 100 bytes, which another class has",
        ),
        (
            Mistake::WrongSize { bytes: 48, given: 100 }.of_resize(),
            "size class 48: resized with an old size of 100 bytes, which another class has",
        ),
        (Mistake::Foreign.of_resize(), "the address is not from this heap"),
        (Mistake::TwoThreads { bytes: 48 }, "size class 48: two threads freed the block"),
    ] {
        assert_eq!(mistake.to_string(), line);
    }
}
