//! Calls that fail: nothing is lost, nothing is counted twice, no arena stays busy, and it goes on afterwards.

use super::*;
use hugeheap_os::simulated::Call;

/// The calls an allocation, a free or maintenance makes.
const CALLS: [Call; 10] = [
    Call::Map,
    Call::Advise,
    Call::Populate,
    Call::Decommit,
    Call::Split,
    Call::Collapse,
    Call::Unmap,
    Call::Relocate,
    Call::Residency,
    Call::IsResident,
];

/// Uses every kind of call: a sparse arena to break, dense ones to collapse, empty ones to give back, a block to move.
fn exercise(world: &mut World) {
    let mut live: Vec<(usize, u32)> = Vec::new();
    let mut blocks: Vec<(usize, usize)> = Vec::new();
    for round in 0..3_usize {
        for step in 0..40 {
            let pages = [1, 64, HEAP_PAGES, 16][step % 4];
            if let Some(address) = world.heap.allocate(pages) {
                world.use_all(address.get(), pages as usize * HEAP_PAGE_BYTES);
                live.push((address.get(), pages));
            }
        }
        let bytes = (3 + round) * ARENA_BYTES / 2 + 100;
        if let Some(block) = world.heap.allocate_large(bytes, round % 2 == 0) {
            let mut address = block.address.get();
            world.use_all(address, bytes);
            let mut length = bytes;
            if let Some(new) = world.heap.resize_large(address, 4 * bytes).expect("it is live") {
                world.check_moved(address, new.get(), bytes);
                (address, length) = (new.get(), 4 * bytes);
            }
            world.use_all(address, length);
            blocks.push((address, length));
        }
        world.check();
        for _ in 0..30 {
            if live.is_empty() {
                break;
            }
            let (address, pages) = live.swap_remove(round * 17 % live.len());
            world.check_contents(address, pages as usize * HEAP_PAGE_BYTES);
            world.free(address, pages);
        }
        world.run(2.5);
        assert!(world.heap.table.used().all(|id| !world.heap.arena(id).busy), "an arena stays busy");
    }
    for (address, pages) in live {
        world.check_contents(address, pages as usize * HEAP_PAGE_BYTES);
        world.free(address, pages);
    }
    for (address, bytes) in blocks {
        world.check_contents(address, bytes);
        assert_eq!(world.heap.free_large(address), Ok(bytes));
    }
    assert_eq!((world.heap.counters.live, world.heap.counters.large), (0, 0));
}

fn survives(policy: Policy, fail: impl Fn(&Kernel)) {
    let mut world = World::new(policy, Config::default().with_pool(6));
    fail(&world.kernel);
    exercise(&mut world);
    world.run(30.0);
    // Afterwards all is as if nothing had been: what failed is tried again within ten decay times, doubled a few times.
    world.kernel.fail_no_more();
    let arenas = world.take_arenas(30);
    world.free_arenas(&arenas);
    world.run(1000.0);
    let snapshot = world.heap.snapshot();
    assert_eq!(snapshot.retained, 0, "{policy}");
    assert_eq!(world.kernel.charge(), 0, "{policy}");
    assert_eq!(world.heap.maintain(), Wait::Idle);
}

#[test]
fn every_call_may_fail_for_a_while() {
    for (index, policy) in Policy::ALL.into_iter().enumerate() {
        for call in CALLS {
            let errors = call.plausible_errors();
            survives(policy, |kernel| kernel.fail_every(call, 2, errors[index % errors.len()]));
        }
    }
}

#[test]
fn every_call_of_maintenance_may_fail_for_long() {
    for (index, policy) in [Policy::Auto, Policy::Dense, Policy::Hugetlb].into_iter().enumerate() {
        for call in [Call::Advise, Call::Decommit, Call::Split, Call::Collapse, Call::Unmap, Call::Relocate] {
            let errors = call.plausible_errors();
            survives(policy, |kernel| kernel.fail_every(call, 1, errors[index % errors.len()]));
        }
    }
}

#[test]
fn calls_may_fail_at_random() {
    for seed in 0..10 {
        survives(Policy::ALL[seed as usize % 5], |kernel| kernel.fail_randomly(seed, 150));
    }
}

#[test]
fn locked_memory_is_left_alone_after_some_tries() {
    // mlockall: every decommit answers EINVAL, forever.
    let mut world = World::new(Policy::Thp, Config::default());
    world.kernel.fail_every(Call::Decommit, 1, libc::EINVAL);
    let arenas = world.take_arenas(50);
    world.free_arenas(&arenas);
    world.run(10_000.0);
    let tries = world.kernel.calls(Call::Decommit);
    assert!(tries <= 50 * 8, "{tries}");
    assert_eq!(world.heap.maintain(), Wait::Idle);
    assert_eq!(world.heap.snapshot().retained, 50 * ARENA);
    assert_eq!(world.heap.snapshot().given_back, 0);
    // The memory is reused, and when it is used again it is tried again.
    let again = world.take_arenas(50);
    assert_eq!(world.kernel.events().huge_faults, 50);
    world.kernel.fail_no_more();
    world.free_arenas(&again);
    world.run(5.0);
    assert_eq!(world.kernel.charge(), 0);
}

#[test]
fn failing_arenas_do_not_keep_others_from_being_given_back() {
    let mut world = World::new(Policy::Thp, Config::default());
    let arenas = world.take_arenas(100);
    world.free_arenas(&arenas);
    world.run(0.9);
    // More than a pass holds fail, once each.
    world.kernel.fail_next(Call::Decommit, libc::EINVAL, 40);
    world.run(2.0);
    assert_eq!(world.heap.snapshot().arenas_given_back, 60);
    world.run(12.0);
    assert_eq!(world.heap.snapshot().arenas_given_back, 100);
}

#[test]
fn a_break_that_fails_in_the_middle_counts_what_was_dropped() {
    let mut world = World::new(Policy::Thp, Config::default());
    // Two free ranges around the live page.
    let pages: Vec<_> = (0..128).map(|_| world.take(1)).collect();
    let middle = pages.iter().copied().find(|page| page % ARENA_BYTES == 100 * HEAP_PAGE_BYTES);
    let middle = middle.expect("one of them");
    pages.iter().filter(|&&page| page != middle).for_each(|&page| world.free(page, 1));
    world.kernel.advance(Duration::from_secs(3));
    // The first of the two decommits works.
    world.kernel.fail_every(Call::Decommit, 2, libc::EAGAIN);
    world.heap.maintain();
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.given_back, snapshot.retained), (100 * PAGE, 27 * PAGE));
    assert_eq!(snapshot.arenas_broken, 1);
    assert_eq!(world.kernel.charge(), 28 * PAGE, "split, so that what was dropped is not charged");
    world.kernel.fail_no_more();
    world.run(15.0);
    assert_eq!(world.kernel.charge(), PAGE);
    world.check_contents(middle, HEAP_PAGE_BYTES);
}

#[test]
fn what_could_not_be_split_is_split_later_whatever_became_of_the_arena() {
    for refill in [0, 60, 127] {
        let mut world = World::new(Policy::Base, Config::default());
        world.heap.set(Settings { policy: Policy::Thp, ..Settings::DEFAULT });
        let live = world.sparse_arenas(4, 1);
        world.kernel.fail_every(Call::Split, 1, libc::EAGAIN);
        world.run(3.0);
        assert_eq!(world.kernel.charge(), 4 * ARENA, "dropped, and charged");
        assert_eq!(world.kernel.stranded(), 4 * (ARENA - PAGE));
        world.heap.set(Settings { policy: Policy::Base, ..Settings::DEFAULT });
        (0..4 * refill).for_each(|_| {
            world.take(1);
        });
        world.kernel.fail_no_more();
        world.run(30.0);
        assert_eq!(world.kernel.stranded(), 0, "{refill} pages were taken again");
        assert_eq!(world.kernel.charge(), world.heap.snapshot().live);
        live.iter().for_each(|&page| world.check_contents(page, HEAP_PAGE_BYTES));
    }
}

/// Breaks an arena of which the first `keep` pages are live, on a kernel that splits nothing. What is freed
/// later is retained: see [`retain_all`].
fn broken_and_not_split(keep: usize) -> (World, Vec<usize>) {
    let mut world = World::new(Policy::Base, Config::default());
    world.heap.set(Settings { policy: Policy::Thp, ..Settings::DEFAULT });
    let live = world.sparse_arenas(1, keep);
    world.kernel.fail_every(Call::Split, 1, libc::EAGAIN);
    pass_after(&mut world, 3);
    // No collapse does the work of a split.
    world.heap.set(Settings { policy: Policy::Base, ..Settings::DEFAULT });
    (world, live)
}

/// Without the thread: for less than two arenas it does not wake up.
fn pass_after(world: &mut World, seconds: u64) {
    world.kernel.advance(Duration::from_secs(seconds));
    world.heap.maintain();
}

/// Lets time pass in which the heap believes that it will need two arenas.
fn retain_all(world: &mut World, seconds: usize) {
    for _ in 0..seconds {
        world.heap.demand.record(world.heap.now(), 2 * ARENA);
        world.run(1.0);
    }
}

#[test]
fn an_arena_that_was_emptied_before_it_could_be_split_is_not_kept_with_all_of_its_huge_page() {
    let (mut world, live) = broken_and_not_split(1);
    assert_eq!(world.kernel.stranded(), ARENA - PAGE);
    world.free(live[0], 1);
    world.kernel.fail_no_more();
    retain_all(&mut world, 20);
    assert_eq!((world.heap.snapshot().arenas_empty, world.heap.snapshot().retained), (1, PAGE));
    assert_eq!(world.kernel.charge(), PAGE, "what is retained, and no more");
}

#[test]
fn a_huge_page_is_split_also_where_nothing_of_it_is_live_any_more() {
    let (mut world, live) = broken_and_not_split(1);
    // Not of the huge page: that was dropped, and this is new.
    let new = world.take(2);
    assert_eq!(new / ARENA_BYTES, live[0] / ARENA_BYTES);
    world.free(live[0], 1);
    world.kernel.fail_no_more();
    retain_all(&mut world, 20);
    assert_eq!((world.heap.snapshot().live, world.heap.snapshot().retained), (2 * PAGE, PAGE));
    assert_eq!(world.kernel.charge(), 3 * PAGE, "what is live and retained, and no more");
}

#[test]
fn pages_that_a_break_cannot_drop_are_split_off_too() {
    let (mut world, live) = broken_and_not_split(20);
    let new = world.take(21);
    assert_eq!(new / ARENA_BYTES, live[0] / ARENA_BYTES);
    live.iter().for_each(|&page| world.free(page, 1));
    world.kernel.fail_no_more();
    world.kernel.fail_every(Call::Decommit, 1, libc::EAGAIN);
    pass_after(&mut world, 20);
    assert_eq!(world.heap.snapshot().retained, 20 * PAGE);
    assert_eq!(world.kernel.charge(), 41 * PAGE, "what is live and retained, and no more");
}

#[test]
fn what_khugepaged_filled_and_a_break_cannot_drop_is_retained() {
    let config = Config { split_drops_zero: false, ..Config::default() };
    let mut world = World::new(Policy::Thp, config);
    world.kernel.set_free_huge_pages(Some(0));
    let _live = world.take(1);
    world.kernel.set_free_huge_pages(None);
    world.kernel.run_khugepaged(1 << 20);
    let more: Vec<_> = (0..80).map(|_| world.take(1)).collect();
    more.into_iter().for_each(|page| world.free(page, 1));
    world.kernel.fail_every(Call::Decommit, 1, libc::EAGAIN);
    pass_after(&mut world, 3);
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.arenas_broken, snapshot.live + snapshot.retained), (1, world.kernel.charge()));
    world.kernel.fail_no_more();
    pass_after(&mut world, 20);
    assert_eq!(world.kernel.charge(), PAGE);
}

#[test]
fn a_huge_page_of_which_nothing_could_be_dropped_is_split_before_a_part_is() {
    for full in [true, false] {
        let mut world = World::new(Policy::Base, Config::default());
        world.heap.set(Settings { policy: Policy::Thp, ..Settings::DEFAULT });
        let mut pages = world.sparse_arenas(1, 1);
        world.kernel.fail_every(Call::Decommit, 1, libc::EAGAIN);
        world.kernel.fail_every(Call::Split, 1, libc::EAGAIN);
        pass_after(&mut world, 3);
        assert_eq!((world.heap.snapshot().arenas_broken, world.huge_bytes()), (1, ARENA));
        world.heap.set(Settings { policy: Policy::Base, ..Settings::DEFAULT });
        if full {
            pages.extend((0..127).map(|_| world.take(1)));
        } else {
            world.free(pages.remove(0), 1);
        }
        world.kernel.fail_no_more();
        retain_all(&mut world, 20);
        assert_eq!(world.kernel.charge(), ARENA);
        if !full {
            pages.push(world.take(1));
        }
        pages.drain(1..).for_each(|page| world.free(page, 1));
        world.heap.forget_demand();
        pass_after(&mut world, 20);
        assert_eq!(world.kernel.charge(), PAGE, "full: {full}");
    }
}

#[test]
fn an_arena_advised_against_huge_pages_by_a_failed_break_is_not_believed_huge() {
    let mut world = World::new(Policy::Thp, Config::default());
    let live = world.sparse_arenas(1, 1);
    world.kernel.fail_every(Call::Decommit, 1, libc::EAGAIN);
    world.run(3.0);
    world.kernel.fail_no_more();
    // Emptied, given back, made again: it must be advised again.
    world.free(live[0], 1);
    world.heap.forget_demand();
    world.run(40.0);
    assert_eq!(world.kernel.charge(), 0);
    let again = world.take(HEAP_PAGES);
    assert_eq!(again / ARENA_BYTES, live[0] / ARENA_BYTES);
    assert_eq!((world.huge_bytes(), world.fallbacks()), (ARENA, vec![]));
}

#[test]
fn a_first_touch_that_fails_is_no_reason_to_refuse() {
    for &code in Call::Populate.plausible_errors() {
        let mut world = World::new(Policy::Thp, Config::default());
        world.kernel.fail_every(Call::Populate, 1, code);
        world.take_arenas(3);
        assert_eq!(world.huge_bytes(), 3 * ARENA, "the program's touch does it");
        assert_eq!(world.fallbacks(), []);
        world.kernel.fail_no_more();
        world.run(5.0);
        assert_eq!(world.heap.snapshot().arenas_thp, 3);
    }
}

#[test]
fn one_page_is_known_to_be_resident_when_the_first_touch_was_not_huge() {
    let mut world = World::new(Policy::Thp, Config::default());
    world.kernel.set_free_huge_pages(Some(0));
    // Small runs lie at the other end of the arena.
    world.heap.allocate(1).expect("there is memory");
    assert_eq!(world.kernel.rss(), 4096);
    assert_eq!(world.heap.snapshot().retained, PAGE);
    world.check();
}
