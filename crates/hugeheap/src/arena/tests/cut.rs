//! Programs that limit their own address space.

use super::super::cut::Cut;
use super::*;
use hugeheap_os::Pages;
use hugeheap_os::simulated::Call;
use proptest::prelude::*;

fn in_region(arenas: usize) -> World {
    let settings = Settings { policy: Policy::Thp, region: Some(arenas * ARENA_BYTES), ..Settings::DEFAULT };
    World::with(settings, Config::default())
}

impl World {
    fn address_space(&self) -> usize {
        self.kernel.mapping_list().iter().map(|mapping| mapping.range.len).sum()
    }

    /// Sets a limit as the program would; returns what the layer above was told.
    fn limit(&mut self, bytes: usize) -> Vec<Cut> {
        let mut told = Vec::new();
        self.heap.cut_address_space(bytes as u64, |cut| told.push(cut));
        self.kernel.set_address_space_limit(Some(bytes as u64));
        self.check();
        told
    }

    /// Whether others could map so much.
    fn has_room(&self, bytes: usize) -> bool {
        let others = self.kernel.reserve(bytes, 4096);
        // SAFETY: reserved here.
        others.map(|range| unsafe { self.kernel.release(range) }).is_ok()
    }
}

const ROOM: usize = 64 << 20;

#[test]
fn others_have_room_under_a_limit_that_the_program_sets_itself() {
    let mut world = in_region(10_000);
    let arenas = world.take_arenas(20);
    let limit = 1 << 30;
    let told = world.limit(limit);
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].kept, told[0].behind), (84 * ARENA_BYTES, None), "an eighth to grow into");
    assert!(world.address_space() < limit / 4 && world.has_room(limit / 2));
    // It grows on, up to the limit, as if that had been there before.
    let mut more = Vec::new();
    while let Some(arena) = world.heap.allocate(HEAP_PAGES) {
        world.use_all(arena.get(), ARENA_BYTES);
        more.push(arena.get());
    }
    assert!(more.len() > 400, "{}", more.len());
    assert!(world.address_space() <= limit);
    arenas.iter().chain(&more).for_each(|&arena| world.check_contents(arena, ARENA_BYTES));
    world.free_arenas(&more);
    world.free_arenas(&arenas);
    world.run(3.0);
    assert_eq!(world.kernel.charge(), 0);
}

#[test]
fn large_blocks_stay_at_the_other_end() {
    let mut world = in_region(10_000);
    let small = world.take_arenas(5);
    let large = world.heap.allocate_large(9 * ARENA_BYTES, false).expect("memory").address.get();
    world.use_all(large, 9 * ARENA_BYTES);
    let end = large - small[0];
    let told = world.limit(256 << 20);
    assert_eq!(
        told,
        [Cut { region: small[0], kept: 21 * ARENA_BYTES, behind: Some((end, 10_000 * ARENA_BYTES)) }]
    );
    assert!(world.has_room(ROOM));
    world.check_contents(large, 9 * ARENA_BYTES);
    // What is between is nobody's: neither found nor handed out.
    for offset in [told[0].kept, end / 2, end - 1] {
        assert!(!world.heap.owns(small[0] + offset));
        assert_eq!(
            world.heap.free(small[0] + offset / HEAP_PAGE_BYTES * HEAP_PAGE_BYTES, 1),
            Err(BadFree::Foreign)
        );
    }
    assert!(world.heap.owns(small[0] + told[0].kept - 1) && world.heap.owns(large));
    let block = world.heap.allocate_large(12 * ARENA_BYTES, true).expect("in what is left to grow into");
    assert!(block.address.get() < small[0] + told[0].kept);
    // It may not grow into the gap.
    let longer = world.heap.resize_large(block.address.get(), 20 * ARENA_BYTES).expect("it is live");
    world.check();
    world.heap.free_large(longer.unwrap_or(block.address).get()).expect("it is live");
    world.heap.free_large(large).expect("it is live");
    world.free_arenas(&small);
    world.run(3.0);
    assert_eq!(world.kernel.charge(), 0);
}

#[test]
fn what_was_given_back_goes_too() {
    let mut world = in_region(10_000);
    let arenas = world.take_arenas(600);
    let large = world.heap.allocate_large(300 * ARENA_BYTES, false).expect("memory").address.get();
    world.free_arenas(&arenas[3..]);
    world.heap.free_large(large).expect("it is live");
    world.run(3.0);
    world.limit(512 << 20);
    assert!(world.address_space() < 160 << 20, "{}", world.address_space());
    let more = world.take_arenas(100);
    assert!(!more.iter().any(|more| arenas[..3].contains(more)));
    world.check();
}

/// The program ended, for which the block had to have as many arenas as the one that was freed before the limit
/// was set, and its memory to be given back since.
#[test]
fn the_place_of_the_block_that_was_freed_last_was_looked_at_after_it_had_been_cut_away() {
    let mut world = in_region(10_000);
    world.take(1);
    let bytes = 5 * ARENA_BYTES;
    let block = world.heap.allocate_large(bytes, false).expect("memory").address.get();
    world.use_all(block, bytes);
    world.heap.free_large(block).expect("it is live");
    world.heap.forget_demand();
    world.run(5.0);
    world.limit(256 << 20);
    assert!(!world.heap.owns(block));
    let next = world.heap.allocate_large(bytes, false).expect("memory").address.get();
    world.use_all(next, bytes);
    world.check();
}

#[test]
fn what_is_reserved_beside_a_region_goes_if_nobody_asked_for_it() {
    let mut world = in_region(10_000);
    world.heap.reserve_beside(|region| region / HEAP_PAGE_BYTES * 400 + 4096);
    let arena = world.take_arenas(1)[0];
    assert!(world.address_space() > 10_000 * (ARENA_BYTES + 128 * 400));
    world.limit(256 << 20);
    assert!(world.address_space() < 64 << 20, "{}", world.address_space());
    let (region, beside) = world.heap.region_of(arena).expect("it is known");
    assert_eq!(
        (region, beside),
        (AddressRange::new(arena, 17 * ARENA_BYTES), None),
        "as long as what is left"
    );
}

#[test]
fn each_lower_limit_takes_more() {
    let mut world = in_region(10_000);
    world.take_arenas(5);
    let large = world.heap.allocate_large(4 * ARENA_BYTES, false).expect("memory").address.get();
    let mut before = world.address_space();
    for limit in [4 << 30, 1 << 30, 300 << 20] {
        world.limit(limit);
        assert!(world.address_space() < before && world.has_room(ROOM));
        before = world.address_space();
    }
    // The same again, and a higher one, change nothing.
    for limit in [300 << 20, 1 << 30] {
        assert_eq!(world.limit(limit), []);
        assert_eq!(world.address_space(), before);
    }
    world.heap.free_large(large).expect("it is live");
    world.run(3.0);
    assert_eq!(world.limit(300 << 20).len(), 1, "what the large block left");
    assert!(world.address_space() < before);
    world.check();
}

#[test]
fn a_large_block_in_front_of_a_gap_does_not_keep_what_lies_before_it() {
    let mut world = in_region(10_000);
    let small = world.take_arenas(3);
    let mut take = |limit: usize| {
        let block = world.heap.allocate_large(4 * ARENA_BYTES, false).expect("memory").address.get();
        world.use_all(block, 4 * ARENA_BYTES);
        let told = world.limit(limit);
        (block, told, world.address_space())
    };
    let cuts: Vec<_> = [8 << 30, 4 << 30, 2 << 30, 1 << 30, 512 << 20].into_iter().map(&mut take).collect();
    assert!(cuts.windows(2).all(|pair| pair[1].0 < pair[0].0), "each lies before the gap of the one before");
    let (last, rest) = cuts.split_last().expect("five");
    for (index, (_, told, space)) in rest.iter().enumerate() {
        assert_eq!(told.len(), 1);
        assert!(*space <= (8 << 30 >> index) / 6, "{index}: {space}");
    }
    assert_eq!(last.1, [], "as many gaps as a region has");
    cuts.iter().for_each(|&(block, ..)| world.check_contents(block, 4 * ARENA_BYTES));
    // Whatever goes first: what is left belongs to the gap around it.
    for &(block, ..) in cuts.iter().rev().take(4) {
        world.heap.free_large(block).expect("it is live");
    }
    world.run(3.0);
    let told = world.limit(512 << 20);
    assert_eq!(told[0].behind, Some((cuts[0].0 - small[0], 10_000 * ARENA_BYTES)), "one gap of all");
    assert!(world.address_space() < 128 << 20, "{}", world.address_space());
    world.heap.free_large(cuts[0].0).expect("it is live");
    world.free_arenas(&small);
    world.run(3.0);
    assert_eq!(world.kernel.charge(), 0);
}

/// Of a second region with as many arenas as there are numbers none was taken out of the list of those that can
/// be used again.
#[test]
fn arenas_of_a_second_region_of_the_greatest_length_are_forgotten() {
    let mut world = in_region(8);
    let first = world.take_arenas(8);
    world.heap.table.add_region(&world.kernel, crate::arena::MAX_REGION_ARENAS).expect("address space");
    world.heap.counters.metadata = world.heap.table.metadata_bytes() as u64;
    let arenas = world.take_arenas(40);
    world.free_arenas(&arenas);
    world.run(3.0);
    let left = |world: &World| {
        let some = |id: crate::arena::ArenaId| Some(id).filter(|id| id.is_some());
        let next = |id: &crate::arena::ArenaId| some(world.heap.table.arena(*id).next);
        core::iter::successors(some(world.heap.given_back.head), next).count()
    };
    assert_eq!(left(&world), 40);
    world.limit(64 << 20);
    assert_eq!(left(&world), 4, "those that stay for growth");
    world.kernel.set_address_space_limit(None);
    world.free_arenas(&first);
}

#[test]
fn arenas_that_the_system_does_not_take_are_not_used_all_the_same() {
    let mut world = in_region(1000);
    world.take_arenas(5);
    world.kernel.fail_every(Call::ReleasePart, 1, libc::ENOMEM);
    let told = world.limit(256 << 20);
    world.kernel.fail_no_more();
    assert_eq!(told.len(), 1);
    world.kernel.set_address_space_limit(None);
    let more = world.take_arenas(40);
    assert!(more.iter().all(|arena| arena.wrapping_sub(told[0].region) < told[0].kept
        || !(told[0].region..told[0].region + 1000 * ARENA_BYTES).contains(arena)));
    world.check();
}

#[test]
fn a_limit_that_leaves_enough_takes_nothing() {
    let mut world = in_region(1000);
    world.take_arenas(5);
    let before = world.address_space();
    assert_eq!(world.limit(1 << 40), []);
    assert_eq!(world.address_space(), before);
}

/// A program under a limit: the first region is an eighth of it, and there are many.
fn under(limit: usize) -> World {
    let config = Config { address_space_limit: Some(limit as u64), ..Config::default() };
    World::with(Settings { policy: Policy::Thp, ..Settings::DEFAULT }, config)
}

/// With all small blocks freed, the longest block that others got was an eighth of the limit: what was reserved
/// for them was nobody else's.
#[test]
fn what_small_arenas_left_is_others_when_they_need_it() {
    const LIMIT: usize = 1 << 30;
    let mut world = under(LIMIT);
    for round in 0..2 {
        let mut arenas = Vec::new();
        while let Some(arena) = world.heap.allocate(HEAP_PAGES) {
            world.use_all(arena.get(), HEAP_PAGE_BYTES);
            arenas.push(arena.get());
        }
        assert!(arenas.len() * ARENA_BYTES > LIMIT / 20 * 19, "{} in round {round}", arenas.len());
        world.heap.squeeze_address_space(u64::MAX, |_| ());
        world.check();
        arenas.iter().for_each(|&arena| world.check_contents(arena, HEAP_PAGE_BYTES));
        world.free_arenas(&arenas);
        // What is kept, because it was needed again in the round before, goes first.
        world.heap.forget_demand();
        world.run(3.0);
        assert!(!world.has_room(LIMIT / 2));
        world.heap.squeeze_address_space(u64::MAX, |_| ());
        world.check();
        assert!(world.has_room(LIMIT / 100 * 97), "{} taken in round {round}", world.address_space());
    }
}

/// At the limit each small block was three attempts to make a region: 20 times the time of a program on stock.
#[test]
fn with_an_allocator_below_a_heap_at_its_limit_asks_for_a_region_now_and_then() {
    let mut world = under(256 << 20);
    let mut refused = 0;
    let mut attempts = |world: &mut World, requests: u32| {
        let before = world.kernel.calls(Call::Reserve);
        for _ in 0..requests {
            refused += u32::from(world.heap.allocate(HEAP_PAGES).is_none());
        }
        world.kernel.calls(Call::Reserve) - before
    };
    attempts(&mut world, 200);
    let each = attempts(&mut world, 1);
    assert!(each > 0 && attempts(&mut world, 64) == 64 * each);
    world.heap.refusals.pass_on();
    assert_eq!(attempts(&mut world, 64 * 5), 5 * each);
    assert!(refused > 64 * 6);
    // What is freed is had at once, and what others free soon.
    world.kernel.set_address_space_limit(None);
    assert!((0..64).any(|_| world.heap.allocate(HEAP_PAGES).is_some()));
    world.check();
}

#[test]
fn no_more_is_squeezed_out_than_somebody_needs() {
    let mut world = under(1 << 30);
    let arenas = world.take_arenas(300);
    world.free_arenas(&arenas);
    world.heap.forget_demand();
    world.run(3.0);
    let before = world.address_space();
    world.heap.squeeze_address_space(100 << 20, |_| ());
    let gone = before - world.address_space();
    assert!((100 << 20..256 << 20).contains(&gone), "{gone}");
    world.heap.squeeze_address_space(0, |_| ());
    assert_eq!(world.address_space(), before - gone);
    world.check();
}

/// Regions have numbers for so many rounds; after that hugeheap has no memory, and says so.
#[test]
fn a_heap_without_numbers_for_regions_has_no_memory_and_goes_on() {
    let mut world = under(64 << 20);
    let mut rounds = 0;
    while let Some(arena) = world.heap.allocate(HEAP_PAGES) {
        world.use_all(arena.get(), HEAP_PAGE_BYTES);
        world.free_arenas(&[arena.get()]);
        world.heap.forget_demand();
        world.run(3.0);
        world.heap.squeeze_address_space(u64::MAX, |_| ());
        world.check();
        rounds += 1;
    }
    assert_eq!(rounds, crate::arena::MAX_REGIONS);
    assert!(world.heap.allocate(1).is_none() && world.heap.allocate_large(ARENA_BYTES, true).is_none());
    assert_eq!(world.kernel.charge(), 0);
    world.check();
}

#[test]
fn what_lives_stays_where_all_else_is_squeezed_out() {
    const LIMIT: usize = 1 << 30;
    let mut world = under(LIMIT);
    let mut arenas = Vec::new();
    while let Some(arena) = world.heap.allocate(HEAP_PAGES) {
        world.use_all(arena.get(), ARENA_BYTES);
        arenas.push(arena.get());
    }
    let kept = arenas.split_off(arenas.len() - 2);
    let first = arenas.remove(0);
    world.free_arenas(&arenas);
    world.heap.forget_demand();
    world.run(3.0);
    world.heap.squeeze_address_space(u64::MAX, |_| ());
    world.check();
    assert!(world.has_room(LIMIT / 4 * 3));
    for &arena in kept.iter().chain([&first]) {
        world.check_contents(arena, ARENA_BYTES);
    }
    assert_eq!(world.kernel.violations(), []);
    world.free_arenas(&kept);
    world.free_arenas(&[first]);
    world.run(3.0);
    assert_eq!(world.kernel.charge(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_heap_that_is_cut_again_and_again_keeps_its_promises(
        steps in proptest::collection::vec((0u32..11, any::<prop::sample::Index>(), 1usize..40), 1..120)
    ) {
        let mut world = in_region(2000);
        let (mut runs, mut blocks) = (Vec::new(), Vec::new());
        for (what, which, size) in steps {
            match what {
                0..=3 => runs.extend(world.heap.allocate(HEAP_PAGES).map(|run| run.get())),
                4..=5 => if let Some(block) = world.heap.allocate_large(size * ARENA_BYTES, which.index(2) == 1) {
                    blocks.push((block.address.get(), size));
                },
                6 if !runs.is_empty() => world.free(runs.swap_remove(which.index(runs.len())), HEAP_PAGES),
                7 if !blocks.is_empty() => {
                    let (block, _) = blocks.swap_remove(which.index(blocks.len()));
                    world.heap.free_large(block).expect("it is live");
                }
                8 => world.run(size as f64 / 10.0),
                10 => { world.heap.squeeze_address_space(u64::MAX, |_| ()); world.check(); }
                9 => { world.limit((size * 100) << 20); world.kernel.set_address_space_limit(None); }
                _ => {}
            }
            if let Some(&run) = runs.last() {
                world.use_all(run, ARENA_BYTES);
            }
            prop_assert_eq!(world.heap.table.check_barren(), Ok(()));
        }
        world.check();
        for (block, size) in blocks {
            prop_assert_eq!(world.heap.large_bytes(block), Ok(size * ARENA_BYTES));
            world.use_all(block, size * ARENA_BYTES);
        }
        runs.iter().for_each(|&run| world.check_contents(run, HEAP_PAGE_BYTES));
    }
}
