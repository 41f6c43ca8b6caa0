//! Where arenas are looked for, and found.

use super::*;
use hugeheap_os::simulated::{Config, Kernel};
use proptest::prelude::*;

const ARENAS: usize = 200;

fn set(table: &mut Table, first: u32, count: u32, state: State) {
    for index in first..first + count {
        table.arena_mut(ArenaId(index)).state = state;
        if state == State::GivenBack {
            table.note_idle(ArenaId(index));
        }
    }
}

/// The highest row of `count` idle arenas, looked for everywhere.
fn naive(table: &Table, count: u32) -> Option<ArenaId> {
    let last = (ARENAS as u32).checked_sub(count)?;
    let row = |first: u32| (first..first + count).all(|index| table.is_idle(ArenaId(index)));
    (0..=last).rev().find(|&first| row(first)).map(ArenaId)
}

proptest! {
    #[test]
    fn searches_find_what_looking_everywhere_finds(
        steps in proptest::collection::vec((any::<bool>(), 1u32..20, any::<prop::sample::Index>()), 1..200)
    ) {
        let kernel = Kernel::new(Config::default());
        let mut table = Table::NEW;
        table.add_region(&kernel, ARENAS).expect("the simulated kernel has room");
        let mut blocks = Vec::new();
        for (take, count, which) in steps {
            if take || blocks.is_empty() {
                let found = table.find_span(count);
                prop_assert_eq!(found, naive(&table, count));
                // Every fifth is found and not used, as when memory is refused.
                if let Some(first) = found.filter(|_| count % 5 != 0) {
                    table.claim_span(first, count);
                    set(&mut table, first.0, count, State::Large);
                    blocks.push((first.0, count));
                }
            } else {
                let (first, count) = blocks.swap_remove(which.index(blocks.len()));
                set(&mut table, first, count, State::GivenBack);
            }
            prop_assert_eq!(table.check_barren(), Ok(()));
        }
    }
}

/// A table of one region that is longer than what is used first.
fn wide(arenas: usize) -> Table {
    let mut table = Table::NEW;
    let kernel = Kernel::new(Config::default());
    table.add_region(&kernel, arenas).expect("the simulated kernel has room");
    core::mem::forget(kernel);
    table
}

#[test]
fn large_blocks_begin_where_small_arenas_may_take_over() {
    let mut table = wide(3 * NEAR);
    let first = table.find_span(7).expect("there is room");
    assert_eq!(first, ArenaId(NEAR as u32 - 7));
    // Beyond is nobody's yet: also for an address of a program that frees what it must not.
    let start = table.range(ArenaId(0)).start;
    assert_eq!(table.find(start + NEAR * ARENA_BYTES - 1), Some(ArenaId(NEAR as u32 - 1)));
    assert_eq!(table.find(start + NEAR * ARENA_BYTES), None);
}

#[test]
fn what_is_beyond_is_used_when_all_before_it_is() {
    let mut table = wide(3 * NEAR);
    let count = NEAR as u32;
    // Small arenas and one large block meet.
    for index in 0..10 {
        assert_eq!(table.fresh(), Some(ArenaId(index)));
    }
    table.claim_span(ArenaId(10), count - 10);
    set(&mut table, 10, count - 10, State::Large);
    table.find_span(1);
    assert_eq!(table.check_barren(), Ok(()));
    let last = table.find_span(5).expect("what is beyond");
    assert_eq!(last, ArenaId(2 * count - 5));
    table.claim_span(last, 5);
    set(&mut table, last.0, 5, State::Large);
    assert_eq!(table.check_barren(), Ok(()));
    assert_eq!(table.fresh(), Some(ArenaId(count)));
    assert!(table.used().any(|id| id == last) && table.used().any(|id| id == ArenaId(count)));
    // Longer than what is left of that: all of it.
    let long = table.find_span(count - 5).expect("the region has as many");
    assert_eq!(long, ArenaId(3 * count - (count - 5)));
    assert_eq!(table.find_span(3 * count), None);
    assert_eq!(table.check_barren(), Ok(()));
}

#[test]
fn small_arenas_go_on_beyond_what_is_used_first() {
    let mut table = wide(NEAR + 3);
    let seen: Vec<_> = core::iter::from_fn(|| table.fresh()).collect();
    assert_eq!(seen.len(), NEAR + 3);
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(table.used().count(), NEAR + 3);
}

#[test]
fn a_search_does_not_pass_the_blocks_that_live() {
    let kernel = Kernel::new(Config::default());
    let mut table = Table::NEW;
    table.add_region(&kernel, ARENAS).expect("the simulated kernel has room");
    for count in [1, 3, 1, 3, 7, 3] {
        let first = table.find_span(count).expect("there is room");
        table.claim_span(first, count);
        set(&mut table, first.0, count, State::Large);
        let known = table.regions[0].expect("it was added").barren[count.ilog2() as usize];
        assert_eq!(known, first.0 + count, "the next search for {count} begins elsewhere");
    }
    set(&mut table, 190, 1, State::GivenBack);
    assert_eq!(table.find_span(1), Some(ArenaId(190)));
}
