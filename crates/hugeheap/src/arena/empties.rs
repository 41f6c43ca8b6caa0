//! Empty arenas: without a live run, and kept. Which is used next, and which is given back first.
//!
//! ```text
//!            most recently emptied                     longest empty
//!   low      ├ arena ┼ arena ┼ … ┤          where heap pages come from        ◀─ given back: whichever of both ends
//!   high     ├ arena ┼ … ┤                  what large blocks left            ◀─ has been empty for longer
//!              └─▶ heap pages: of the low ones first; under a memory limit of whichever became empty last
//! ```
//!
//! A large block needs arenas in a row, and heap pages need any. With one list for all, the heap pages of a
//! program that had freed a large block and its small ones came to lie in what the large block had left,
//! because that was empty last. The next large block found no row and took new memory, beside low arenas that
//! were as empty (`docs/measurements/tables.py`: 116 MiB instead of 83).
//!
//! So a large block is first looked a row for among the high ones, of arenas that are resident as a whole: the
//! shortest that is long enough. The highest row of any idle arenas was taken before, also of those that were
//! given back, while as much memory was kept farther down.
//!
//! Invariants: both lists are in the order of `changed_at`, as far as [`PLACE`] allows; an arena knows in which
//! of them it is, because the border between low and high moves.

use super::list::{ArenaId, List};
use super::record::State;
use super::table::Table;

/// Empty arenas passed at most to find the place of one.
const PLACE: usize = 256;

/// Empty arenas at which a row for a large block is looked for at most: 2 GiB. Each is a cache line; making one
/// of them resident instead takes as long as looking at a thousand.
const ROWS: usize = 1024;

/// Where an empty arena is, in its `listed`.
const LOW: u16 = 0;
const HIGH: u16 = 1;

/// The empty arenas of one heap.
pub(crate) struct Empties {
    lists: [List; 2],
}

impl Empties {
    pub(crate) const NEW: Self = Self { lists: [List::EMPTY; 2] };

    pub(crate) fn is_empty(&self) -> bool {
        self.lists.iter().all(List::is_empty)
    }

    /// Adds an arena that has just become empty.
    pub(crate) fn push(&mut self, table: &mut Table, id: ArenaId) {
        self.list_for(table, id).push_front(table, id);
    }

    /// Adds an arena that was among them and that a pass had meanwhile, at its place: passes take the others
    /// from the end.
    pub(super) fn put_back(&mut self, table: &mut Table, id: ArenaId) {
        let changed_at = table.arena(id).changed_at;
        let list = self.list_for(table, id);
        let mut behind = list.tail;
        for _ in 0..PLACE {
            if !behind.is_some() || table.arena(behind).changed_at > changed_at {
                break;
            }
            behind = table.arena(behind).previous;
        }
        list.insert_behind(table, behind, id);
    }

    /// The list that an arena belongs to from now on.
    fn list_for(&mut self, table: &mut Table, id: ArenaId) -> &mut List {
        let listed = if table.was_high(id) { HIGH } else { LOW };
        table.arena_mut(id).listed = listed;
        &mut self.lists[listed as usize]
    }

    /// Inlined, because whether it is otherwise depends on what else the crate has: 70 instructions for a pair of
    /// large blocks (`tests/instructions/test_instructions.py`, `large`).
    #[inline]
    pub(crate) fn remove(&mut self, table: &mut Table, id: ArenaId) {
        self.lists[table.arena(id).listed as usize].remove(table, id);
    }

    /// Takes the one that heap pages are to use next. `limited`: the process has a memory limit, so it is the
    /// one that became empty last, wherever it is. The others were [offered](super::offer) to the kernel, which
    /// may have taken them: with low ones first a program would touch these again while what it has just freed
    /// elsewhere is charged still, and nobody can take it.
    pub(crate) fn take(&mut self, table: &mut Table, limited: bool) -> Option<ArenaId> {
        let since = |list: &List| list.head.is_some().then(|| table.arena(list.head).changed_at);
        let [low, high] = self.lists.each_ref().map(since);
        let list = match low {
            Some(_) if !limited => LOW,
            Some(since) if high.is_none_or(|other| other <= since) => LOW,
            _ => HIGH,
        };
        let id = self.lists[list as usize].head;
        if !id.is_some() {
            return None;
        }
        self.lists[list as usize].remove(table, id);
        Some(id)
    }

    /// The first of `count` resident arenas in a row, for a large block with room for `wanted`, where large blocks are.
    pub(crate) fn row(&self, table: &Table, count: u32, wanted: u32) -> Option<ArenaId> {
        let resident = |id: ArenaId| {
            let arena = table.arena(id);
            arena.state == State::Empty && arena.touched == u128::MAX && !arena.busy && !arena.apart
        };
        let begins = |&id: &ArenaId| resident(id) && table.before(id).is_none_or(|before| !resident(before));
        let length = |id: ArenaId| {
            let behind = core::iter::successors(Some(id), |&id| table.after(id));
            behind.take_while(|&id| resident(id)).count() as u32
        };
        let high = Self::members(&self.lists[HIGH as usize], table).take(ROWS).filter(begins);
        let rows = high.map(|id| (length(id), id)).filter(|&(length, _)| length >= count);
        // Those without the room that is wanted come after all that have it.
        rows.min_by_key(|&(length, _)| (length < wanted, length)).map(|(_, id)| id)
    }

    fn members<'a>(list: &List, table: &'a Table) -> impl Iterator<Item = ArenaId> + use<'a> {
        let next = |id: ArenaId| id.is_some().then_some(id);
        core::iter::successors(next(list.head), move |&id| next(table.arena(id).next))
    }

    /// In the order in which heap pages would use them without a limit.
    pub(crate) fn all<'a>(&'a self, table: &'a Table) -> impl Iterator<Item = ArenaId> + 'a {
        self.lists.iter().flat_map(move |list| Self::members(list, table))
    }

    /// The longest empty one first, without the `spared` that heap pages would use next.
    pub(super) fn oldest<'a>(
        &'a self,
        table: &'a Table,
        spared: u64,
    ) -> impl Iterator<Item = ArenaId> + use<'a> {
        let mut left = spared;
        let mut ends = self.lists.map(|list| {
            // The last one that is spared.
            let (mut last, mut next) = (ArenaId::NONE, list.head);
            while left > 0 && next.is_some() {
                (last, next) = (next, table.arena(next).next);
                left -= 1;
            }
            let first = if list.tail == last { ArenaId::NONE } else { list.tail };
            (first, last)
        });
        core::iter::from_fn(move || {
            let empty_since = |id: ArenaId| id.is_some().then(|| table.arena(id).changed_at);
            let [low, high] = ends.each_mut();
            let older = match (empty_since(low.0), empty_since(high.0)) {
                (Some(since_low), Some(since_high)) if since_high < since_low => high,
                (None, _) => high,
                _ => low,
            };
            let id = older.0;
            if !id.is_some() {
                return None;
            }
            let previous = table.arena(id).previous;
            older.0 = if previous == older.1 { ArenaId::NONE } else { previous };
            Some(id)
        })
    }

    /// For who takes them out on the way, and for tests.
    pub(super) fn lists(&self) -> &[List; 2] {
        &self.lists
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::tests::World;
    use crate::arena::{ARENA_BYTES, Arenas, HEAP_PAGES, Policy};
    use hugeheap_os::simulated::{Config, Kernel};
    use std::time::Duration;

    /// Empties arenas, one each millisecond: low ones, and where it says so those of a large block. Returns
    /// when each became empty, in milliseconds.
    fn emptied(high: &[bool]) -> World {
        let mut world = World::new(Policy::Thp, Config::default());
        let take = |world: &mut World, high: bool| match high {
            true => world.heap.allocate_large(ARENA_BYTES, false).expect("memory").address.get(),
            false => world.take(HEAP_PAGES),
        };
        let taken: Vec<_> = high.iter().map(|&high| take(&mut world, high)).collect();
        for (&high, &address) in high.iter().zip(&taken) {
            world.kernel.advance(Duration::from_millis(1));
            match high {
                true => assert_eq!(world.heap.free_large(address), Ok(ARENA_BYTES)),
                false => world.free(address, HEAP_PAGES),
            }
        }
        world
    }

    fn since(world: &World, ids: impl Iterator<Item = ArenaId>) -> Vec<u64> {
        let times: Vec<_> = ids.map(|id| world.heap.arena(id).changed_at).collect();
        let all = || world.heap.empty.all(&world.heap.table).map(|id| world.heap.arena(id).changed_at);
        // As the number of arenas that were empty before.
        times.iter().map(|time| all().filter(|other| other < time).count() as u64).collect()
    }

    #[test]
    fn the_longest_empty_goes_first_wherever_it_is_and_low_ones_are_used_first() {
        let world = emptied(&[true, false, false, true, true, false]);
        let (empty, table) = (&world.heap.empty, &world.heap.table);
        assert_eq!(since(&world, empty.all(table)), [5, 2, 1, 4, 3, 0]);
        assert_eq!(since(&world, empty.oldest(table, 0)), [0, 1, 2, 3, 4, 5]);
        // What is spared is what would be used next.
        assert_eq!(since(&world, empty.oldest(table, 2)), [0, 1, 3, 4]);
        assert_eq!(since(&world, empty.oldest(table, 4)), [0, 3]);
        assert_eq!(since(&world, empty.oldest(table, 6)), []);
        assert_eq!(since(&world, empty.oldest(table, 9)), []);
        world.check();
    }

    #[test]
    fn under_a_memory_limit_the_one_that_became_empty_last_is_used_first() {
        for (limited, order) in [(false, [4, 1, 0, 3, 2]), (true, [4, 3, 2, 1, 0])] {
            let mut world = emptied(&[false, false, true, true, false]);
            let oldest: Vec<_> = world.heap.empty.oldest(&world.heap.table, 0).collect();
            let heap = &mut world.heap;
            let taken: Vec<_> = core::iter::from_fn(|| heap.empty.take(&mut heap.table, limited)).collect();
            assert_eq!(taken, order.map(|number: usize| oldest[number]));
        }
    }

    #[test]
    fn each_list_may_be_empty() {
        for high in [false, true] {
            let world = emptied(&[high; 3]);
            let (empty, table) = (&world.heap.empty, &world.heap.table);
            assert_eq!(since(&world, empty.all(table)), [2, 1, 0]);
            assert_eq!(since(&world, empty.oldest(table, 1)), [0, 1]);
        }
        let world = emptied(&[]);
        assert!(world.heap.empty.is_empty());
        assert_eq!(world.heap.empty.oldest(&world.heap.table, 0).next(), None);
    }

    #[test]
    fn what_a_pass_had_comes_back_to_its_place_also_when_the_border_moved() {
        let mut world = emptied(&[true, true, true, false]);
        let ids: Vec<_> = world.heap.empty.oldest(&world.heap.table, 0).collect();
        let heap = &mut world.heap;
        heap.empty.remove(&mut heap.table, ids[1]);
        heap.empty.put_back(&mut heap.table, ids[1]);
        assert_eq!(heap.empty.oldest(&heap.table, 0).collect::<Vec<_>>(), ids);
        // From now on all are high, and what was low is still found where it was put.
        let border = |heap: &mut Arenas<Kernel>, high| {
            core::mem::replace(&mut heap.table.regions[0].as_mut().expect("the first region").high, high)
        };
        let before = border(heap, 0);
        heap.empty.remove(&mut heap.table, ids[3]);
        heap.empty.put_back(&mut heap.table, ids[3]);
        assert_eq!(heap.empty.oldest(&heap.table, 0).collect::<Vec<_>>(), ids);
        assert_eq!(heap.empty.take(&mut heap.table, false), Some(ids[3]), "the most recent");
        heap.empty.push(&mut heap.table, ids[3]);
        border(heap, before);
        world.check();
    }
}
