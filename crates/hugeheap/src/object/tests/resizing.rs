//! Other sizes for what is live: contents stay, the place too where it can.

use super::*;
use crate::arena::HEAP_PAGE_BYTES;

/// Where bytes are written: everywhere in the first 64 KiB, then here and there. The places of fewer bytes are
/// among those of more.
fn places(bytes: usize) -> impl Iterator<Item = usize> {
    (0..bytes.min(1 << 16)).chain((1 << 16..bytes).step_by(1021))
}

/// Writes a different byte at each place, as far as a byte can.
pub(super) fn write(address: NonNull<u8>, bytes: usize) {
    for offset in places(bytes) {
        // SAFETY: the test owns the block.
        unsafe { address.add(offset).write((offset * 31 + offset / 251) as u8) };
    }
}

pub(super) fn check_contents(address: NonNull<u8>, bytes: usize) {
    for offset in places(bytes) {
        // SAFETY: the test owns the block and wrote to it.
        let found = unsafe { address.add(offset).read() };
        assert_eq!(found, (offset * 31 + offset / 251) as u8, "byte {offset} of {bytes}");
    }
}

/// Gives a block another size; there must be memory.
pub(super) fn resize(heap: &mut Heap<World>, address: NonNull<u8>, bytes: usize) -> NonNull<u8> {
    // SAFETY: the block is live and this test's.
    let moved = unsafe { heap.try_reallocate(address, bytes) }.expect("live").expect("memory");
    assert!(heap.usable_size(moved).expect("live") >= bytes);
    moved
}

/// Bytes that the arenas say what begins there has.
pub(super) fn bytes_by_the_arenas(space: &Space<World>, block: NonNull<u8>) -> usize {
    space
        .source()
        .with(|arenas| arenas.run_bytes(at(block)).or_else(|_| arenas.large_bytes(at(block))).expect("live"))
}

const SIZES: [usize; 18] = [
    0,
    1,
    16,
    48,
    500,
    512,
    513,
    576,
    577,
    3000,
    8192,
    8193,
    40_000,
    1 << 20,
    (1 << 20) + 1,
    2 << 20,
    (4 << 20) + 1,
    9 << 20,
];

#[test]
fn a_run_that_became_shorter_where_it_is_is_kept_for_reuse_as_what_it_is() {
    let (_, mut heap) = heap();
    let run = heap.take(7 * HEAP_PAGE_BYTES);
    assert_eq!(resize(&mut heap, run, 3 * HEAP_PAGE_BYTES), run);
    assert_eq!(heap.usable_size(run), Ok(3 * HEAP_PAGE_BYTES));
    // Four pages behind it, which may be used at once.
    let behind = heap.take(4 * HEAP_PAGE_BYTES);
    fill(behind, 4 * HEAP_PAGE_BYTES, 3);
    heap.give(run).expect("live");
    let others = heap.take_many(4, 7 * HEAP_PAGE_BYTES);
    others.iter().for_each(|&other| fill(other, 7 * HEAP_PAGE_BYTES, 5));
    assert!(holds(behind, 4 * HEAP_PAGE_BYTES, 3));
    heap.check();
    heap.give_all(others);
    heap.give(behind).expect("live");
    heap.check_empty();
}

#[test]
fn a_list_that_grows_among_objects_is_seldom_copied_when_it_is_long() {
    let (_, mut heap) = heap();
    // As CPython's lists do: by an eighth, while eight bytes of list are one object of 64.
    let (mut bytes, mut list, mut copied) = (8 << 10, heap.take(8 << 10), 0);
    let mut objects = Vec::new();
    write(list, bytes);
    while bytes < 1 << 20 {
        let more = bytes + bytes / 8;
        objects.extend(heap.take_many((more - bytes) / 8, 64));
        let now = resize(&mut heap, list, more);
        check_contents(now, bytes);
        write(now, more);
        copied += if now == list { 0 } else { bytes };
        (list, bytes) = (now, more);
    }
    assert!(copied < 27 * bytes / 5, "{copied} bytes copied for {bytes}");
    heap.check();
    heap.give_all(objects);
    heap.give(list).expect("live");
    heap.check_empty();
}

#[test]
fn contents_stay_between_all_kinds_of_sizes() {
    let (_, mut heap) = heap();
    for from in SIZES {
        for to in SIZES {
            let block = heap.take(from);
            write(block, from);
            let moved = resize(&mut heap, block, to);
            check_contents(moved, from.min(to));
            if moved != block {
                assert!(heap.usable_size(block).is_err(), "{from} to {to}: the old place is free");
            }
            heap.give(moved).expect("live");
        }
    }
    heap.check_empty();
}

#[test]
fn a_list_that_grows_keeps_its_contents() {
    let (_, mut heap) = heap();
    let (mut block, mut bytes) = (heap.take(8), 8);
    write(block, bytes);
    while bytes < 12 << 20 {
        let more = bytes + bytes / 8 + 6;
        block = resize(&mut heap, block, more);
        check_contents(block, bytes);
        bytes = more;
        write(block, bytes);
    }
    while bytes > 8 {
        bytes = bytes / 3 + 1;
        block = resize(&mut heap, block, bytes);
        check_contents(block, bytes);
    }
    heap.give(block).expect("live");
    heap.check_empty();
}

#[test]
fn within_a_class_and_a_run_the_place_stays() {
    let (_, mut heap) = heap();
    for (from, to) in
        [(33, 48), (48, 33), (1, 0), (961, 1024), (20_000, 20_480), (20_000, 18_433), (32_768, 16_385)]
    {
        let block = heap.take(from);
        assert_eq!(resize(&mut heap, block, to), block, "{from} to {to}");
        heap.give(block).expect("live");
    }
    heap.check_empty();
}

#[test]
fn a_run_grows_and_shrinks_where_it_is() {
    let (_, mut heap) = heap();
    // From one that the heap would keep to one too long for that, and back.
    let long = heap.take(300_000);
    write(long, 300_000);
    assert_eq!(resize(&mut heap, long, 900_000), long);
    check_contents(long, 300_000);
    assert_eq!(resize(&mut heap, long, 20_000), long);
    check_contents(long, 20_000);
    heap.give(long).expect("live");
    // Short runs lie high, the next one below: what is above is freed.
    let (above, short) = (heap.take(160_000), heap.take(60_000));
    heap.give(above).expect("live");
    heap.trim();
    for bytes in [130_000, 60_000, 210_000] {
        write(short, 60_000);
        assert_eq!(resize(&mut heap, short, bytes), short, "{bytes}");
        check_contents(short, 60_000);
    }
    heap.give(short).expect("live");
    heap.check_empty();
}

#[test]
fn the_block_of_another_heap_can_be_resized() {
    let (space, mut heap) = heap();
    let mut other = space.acquire().expect("memory");
    for (from, to) in [(48, 40), (48, 5000), (5000, 48), (20_000, 50_000), (3 << 20, 5 << 20)] {
        let block = heap.take(from);
        write(block, from);
        let moved = resize(&mut other, block, to);
        check_contents(moved, from.min(to));
        heap.check();
        other.check();
        heap.give(moved).expect("live");
    }
    other.trim();
    heap.trim();
    other.trim();
    assert_eq!(live(space), 0);
}

/// It has a guard, and is cleared, by what its tag says: that was taken from it before it was freed.
#[test]
fn a_guarded_run_that_another_heap_makes_longer_leaves_no_guard_behind() {
    let space = space();
    let mut hardened = space.acquire_hardened().expect("memory");
    let mut other = space.acquire().expect("memory");
    let run = hardened.take(200_000);
    write(run, 200_000);
    let grown = resize(&mut other, run, 900_000);
    check_contents(grown, 200_000);
    // Where it was, among others.
    let runs = other.take_many(30, 200_000);
    assert!(runs.contains(&run));
    runs.iter().for_each(|&run| fill(run, 13 * HEAP_PAGE_BYTES, 1));
    other.give_all(runs);
    other.give(grown).expect("live");
    hardened.check();
    other.check_empty();
}

#[test]
fn a_guarded_run_stays_where_it_is_as_long_as_its_os_pages_are_the_same() {
    let mut heap = space().acquire_hardened().expect("memory");
    for bytes in [3 * 4096, 200_704, 3 << 20] {
        let run = heap.take(bytes);
        assert_eq!(heap.usable_size(run), Ok(bytes));
        write(run, bytes);
        assert_eq!(resize(&mut heap, run, bytes - 4095), run, "{bytes}");
        // An OS page less, and one more: the guard is another one.
        let shorter = resize(&mut heap, run, bytes - 4096);
        assert_eq!((shorter == run, heap.usable_size(shorter)), (false, Ok(bytes - 4096)));
        let longer = resize(&mut heap, shorter, bytes + 1);
        assert_eq!((longer == shorter, heap.usable_size(longer)), (false, Ok(bytes + 4096)));
        check_contents(longer, bytes - 4096);
        heap.give(longer).expect("live");
        heap.check();
    }
}

#[test]
fn sizes_beyond_the_address_space_change_nothing() {
    let (_, mut heap) = heap();
    for bytes in [48, 5000, 20_000, 3 << 20] {
        let block = heap.take(bytes);
        write(block, bytes);
        for silly in [usize::MAX, isize::MAX as usize, 1 << 50] {
            // SAFETY: the block is live and this test's.
            assert_eq!(unsafe { heap.try_reallocate(block, silly) }, Ok(None), "{bytes} to {silly}");
        }
        check_contents(block, bytes);
        heap.give(block).expect("live");
    }
    heap.check_empty();
}

#[test]
fn a_list_that_grows_out_of_its_page_run_is_on_a_huge_page() {
    // It was taken like a block that stays as it is, with OS pages for the part of its last arena that it fills.
    let (space, mut heap) = heap();
    let run = heap.take(1 << 20);
    let huge = || space.source().kernel.events().huge_faults;
    let before = huge();
    let grown = resize(&mut heap, run, 1_600_000);
    assert_eq!(huge(), before + 1);
    heap.give(grown).expect("live");
    let before = huge();
    let block = heap.take(1_600_000);
    assert_eq!(huge(), before, "a quarter of a huge page would be wasted");
    heap.give(block).expect("live");
    heap.check_empty();
}

/// Most bytes of what has grown to `bytes`.
fn most_of(bytes: usize) -> usize {
    let pages = bytes.div_ceil(HEAP_PAGE_BYTES);
    (pages + (pages / 6).max(1)) * HEAP_PAGE_BYTES
}

/// Lists that are appended to by turns, as CPython's are by an eighth, until all have `end` bytes. Answers them
/// and the most that was resident meanwhile.
pub(super) fn grow_by_turns(
    space: &Space<World>,
    heap: &mut Heap<World>,
    lists: usize,
    end: usize,
) -> (Vec<NonNull<u8>>, u64) {
    let (mut bytes, mut peak) = (8 << 10, 0);
    let mut lists = heap.take_many(lists, bytes);
    while bytes < end {
        bytes = (bytes + bytes / 8).min(end);
        for list in &mut lists {
            *list = resize(heap, *list, bytes);
            if bytes >= 16_384 {
                // Wherever it is, to a heap page, and to a sixth to spare: what is known of it without the
                // arenas is no more than that.
                let usable = heap.usable_size(*list).expect("live");
                assert_eq!(usable, bytes_by_the_arenas(space, *list));
                assert!(
                    usable % HEAP_PAGE_BYTES == 0 && (bytes..=most_of(bytes)).contains(&usable),
                    "{bytes}"
                );
            }
            let now = space.source().arenas.lock().snapshot();
            peak = peak.max(now.live + now.retained);
        }
    }
    (lists, peak)
}

/// Each needed a little more than any of them had just left, and got new huge pages: half as much again was
/// resident, and more.
#[test]
fn lists_that_grow_by_turns_leave_little_behind() {
    for (lists, end, most) in [(60, 300_000, 137), (60, 700_000, 121), (60, 1_000_000, 121)] {
        // Address space as there is where nothing limits it: more than they need by far.
        let space = space_with(Config::default(), 4 * REGION);
        let mut heap = space.acquire().expect("memory");
        let (all, peak) = grow_by_turns(space, &mut heap, lists, end);
        let percent = peak as usize * 100 / (lists * end);
        assert!(percent <= most, "{percent} % of {lists} lists of {end} bytes");
        heap.check();
        heap.give_all(all);
        heap.check_empty();
    }
}

#[test]
fn lists_that_grow_one_after_the_other_mostly_share_huge_pages() {
    let (space, mut heap) = heap();
    let all: Vec<_> = (0..100).flat_map(|_| grow_by_turns(space, &mut heap, 1, 160_000).0).collect();
    let snapshot = space.source().arenas.lock().snapshot();
    assert!(snapshot.large <= snapshot.live / 3, "{} of {}", snapshot.large, snapshot.live);
    heap.check();
    heap.give_all(all);
    heap.check_empty();
}

#[test]
fn a_list_in_an_arena_of_its_own_stays_there_while_it_is_as_short_as_a_run() {
    let (space, mut heap) = heap();
    let (all, _) = grow_by_turns(space, &mut heap, 60, 600_000);
    let is_alone = |list: &NonNull<u8>| space.source().arenas.lock().large_bytes(at(*list)).is_ok();
    let alone = *all.iter().find(|list| is_alone(list)).expect("one of them");
    write(alone, 600_000);
    for bytes in [1 << 20, 530_000, 600_000, 310_000, 400_000, 2 << 20] {
        assert_eq!(resize(&mut heap, alone, bytes), alone, "{bytes}");
        check_contents(alone, 310_000);
    }
    let moved = resize(&mut heap, alone, 1 << 20);
    assert!(moved != alone && !is_alone(&moved));
    check_contents(moved, 310_000);
    heap.check();
    heap.give_all(all.into_iter().map(|list| if list == alone { moved } else { list }));
    heap.check_empty();
}

/// Each went to the arenas, at both ends: a program of buffers aligned to 4096 bytes took five times as long as
/// with others.
#[test]
fn aligned_and_zeroed_requests_get_the_page_runs_that_are_kept() {
    let (space, mut heap) = heap();
    for bytes in [12_000, 16_000, 20_000, 100_000] {
        let kept = heap.take(bytes);
        fill(kept, bytes, 7);
        heap.give(kept).expect("live");
        space.source().when_asked(|| {});
        let aligned = heap.allocate_aligned(bytes, 4096).expect("memory");
        assert!(aligned == kept && !space.source().asked(), "{bytes}");
        heap.give(aligned).expect("live");
        let zeroed = heap.allocate_zeroed(bytes).expect("memory");
        assert!(zeroed == kept && holds(zeroed, bytes, 0), "{bytes}");
        heap.give(zeroed).expect("live");
        assert!(!space.source().asked(), "{bytes}");
        // Short ones that no class aligns are page runs, too.
        let least = heap.allocate_aligned(100, 8192).expect("memory");
        assert_eq!(at(least) % 8192, 0);
        heap.give(least).expect("live");
        space.source().with(|_| {});
    }
    heap.check_empty();
}

/// They were always copied, by a heap of one thread too; those aligned to more than a heap page for longer than others.
#[test]
fn aligned_page_runs_and_large_blocks_are_resized_where_they_are() {
    let (_, mut heap) = heap();
    for (bytes, more, align) in [
        (30_000, 32_000, 4096),
        (300_000, 320_000, 64),
        (3 << 20, (4 << 20) - 100, 16384),
        (3 << 20, (4 << 20) - 100, 32768),
        (1 << 20, (2 << 20) - 5, 2 << 20),
    ] {
        let block = heap.allocate_aligned_zeroed(bytes, align).expect("memory");
        assert!(at(block) % align == 0 && holds(block, bytes, 0));
        write(block, bytes);
        // SAFETY: live, of that size, and the old address is not used any more.
        let longer = unsafe { heap.reallocate_aligned(block, bytes, more, align) }.expect("memory");
        assert_eq!(longer, block, "{bytes}");
        check_contents(longer, bytes);
        // SAFETY: as before.
        let short = unsafe { heap.reallocate_aligned(longer, more, 100, 64) }.expect("memory");
        assert_eq!(at(short) % 64, 0);
        heap.give(short).expect("live");
    }
    heap.check_empty();
}
