//! What is handed out: large enough, aligned, apart, zero when asked for, and given back.

use super::*;

#[test]
fn blocks_of_every_size_are_apart_and_aligned() {
    let (_, mut heap) = heap();
    let mut blocks = Vec::new();
    for round in 0..3 {
        for bytes in (1..20_000).step_by(97).chain([0, 16, 576, 577, 8192, 8193, 1 << 20, (1 << 20) + 1]) {
            let address = heap.take(bytes);
            assert_eq!(at(address) % 16, 0);
            assert!(heap.usable_size(address).expect("live") >= bytes);
            let value = (blocks.len() * 7 + round) as u8;
            fill(address, bytes, value);
            blocks.push((address, bytes, value));
        }
        heap.check();
    }
    for &(address, bytes, value) in &blocks {
        assert!(holds(address, bytes, value), "{bytes} bytes were overwritten");
    }
    heap.give_all(blocks.into_iter().map(|(address, ..)| address));
    heap.check_empty();
}

#[test]
fn no_bytes_are_a_block_of_their_own() {
    let (_, mut heap) = heap();
    let blocks = heap.take_many(1000, 0);
    let apart: std::collections::BTreeSet<_> = blocks.iter().copied().map(at).collect();
    assert_eq!(apart.len(), 1000);
    assert_eq!(heap.usable_size(blocks[0]), Ok(16));
    for address in blocks {
        // SAFETY: live and not used any more.
        unsafe { heap.free_sized(address, 0) };
    }
    heap.check_empty();
}

#[test]
fn every_alignment_up_to_a_huge_page_is_kept() {
    let (_, mut heap) = heap();
    let mut blocks = Vec::new();
    for shift in 0..=21 {
        let align = 1 << shift;
        for bytes in [0, 1, 48, 100, 513, 4000, 8192, 8193, 20_000, 1 << 20, (1 << 20) + 1] {
            let address = heap.allocate_aligned(bytes, align).expect("memory");
            assert_eq!(at(address) % align, 0, "{bytes} bytes aligned to {align}");
            assert!(
                heap.usable_size(address).expect("live") >= bytes.max(1),
                "{bytes} bytes aligned to {align}"
            );
            let value = blocks.len() as u8;
            fill(address, bytes, value);
            blocks.push((address, bytes, value));
        }
    }
    heap.check();
    for (address, bytes, value) in blocks {
        assert!(holds(address, bytes, value), "{bytes} bytes were overwritten");
        heap.give(address).expect("live");
    }
    heap.check_empty();
}

#[test]
fn silly_alignments_and_sizes_get_nothing() {
    let (space, mut heap) = heap();
    for align in [24, 48, 100, (1 << 21) + 16, 1 << 22, 1 << 63, usize::MAX] {
        for bytes in [64, 16_000, 300_000, 3 << 20] {
            assert_eq!(heap.allocate_aligned(bytes, align), None, "{bytes} aligned to {align}");
            assert_eq!(heap.allocate_aligned_zeroed(bytes, align), None, "{bytes} aligned to {align}");
        }
    }
    for bytes in [usize::MAX, usize::MAX - 15, isize::MAX as usize, 1 << 50] {
        assert_eq!(heap.allocate(bytes), None, "{bytes}");
        assert_eq!(heap.allocate_zeroed(bytes), None, "{bytes}");
        for align in [32, 4096, 16 << 10, 1 << 21] {
            assert_eq!(heap.allocate_aligned(bytes, align), None, "{bytes} aligned to {align}");
        }
    }
    assert_eq!(heap.allocate_array(usize::MAX / 2, 3), None);
    assert_eq!(heap.allocate_array(1 << 32, 1 << 32), None);
    heap.check();
    assert_eq!(live(space), 0);
}

#[test]
fn zeroed_memory_is_zero_after_reuse() {
    let (_, mut heap) = heap();
    let sizes = [1, 16, 40, 576, 577, 5000, 8192, 8193, 100_000, 1 << 20, (1 << 20) + 1, 5 << 20];
    for round in 0..3 {
        for bytes in sizes {
            let address = heap.allocate_zeroed(bytes).expect("memory");
            assert!(holds(address, bytes, 0), "{bytes} bytes in round {round}");
            fill(address, bytes, 0xa5);
            let array = heap.allocate_array(bytes, 3).expect("memory");
            assert!(holds(array, 3 * bytes, 0), "3 × {bytes} bytes in round {round}");
            fill(array, 3 * bytes, 0x5a);
            heap.give_all([address, array]);
        }
        heap.trim();
    }
    heap.check_empty();
}

#[test]
fn pages_without_blocks_go_back_to_the_arenas() {
    let (space, mut heap) = heap();
    let blocks = heap.take_many(100_000, 64);
    assert!((6_400_000..6_700_000).contains(&live(space)), "{}", live(space));
    heap.give_all(blocks);
    heap.check_empty();
}

#[test]
fn what_was_freed_last_is_handed_out_first() {
    let (_, mut heap) = heap();
    // Whole pages, so that no window is left with free blocks.
    let blocks = heap.take_many(30 * (HEAP_PAGE_BYTES / 48), 48);
    for &address in [&blocks[9000], &blocks[17], &blocks[4711]] {
        heap.give(address).expect("live");
        assert_eq!(heap.take(48), address, "it is still in the cache");
    }
    heap.check();
    heap.give_all(blocks);
    heap.check_empty();
}

#[test]
fn who_replaces_page_runs_at_random_seldom_asks_the_arenas() {
    let (space, mut heap) = heap();
    let mut state = 1_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    // How many there are of a length at a time changes by chance.
    let sizes = [48, 12_000, 24_000];
    let mut slots = heap.take_many(100, sizes[0]);
    let asked = || space.source().with(|arenas| arenas.snapshot().allocations);
    let (mut runs, mut before) = (0, 0);
    for round in 0..20_000 {
        if round == 1000 {
            (runs, before) = (0, asked());
        }
        let slot = random() % slots.len();
        heap.give(slots[slot]).expect("live");
        let bytes = sizes[random() % sizes.len()];
        slots[slot] = heap.take(bytes);
        runs += u64::from(bytes > sizes[0]);
    }
    // With four kept of each length it is every eighth.
    assert!((asked() - before) * 12 < runs, "{} times for {runs} runs", asked() - before);
    heap.give_all(slots);
    heap.check_empty();
}
