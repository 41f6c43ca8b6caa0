//! Which partial arena to fill: smallest sufficient longest free range, then most runs, then oldest.
//!
//! The order is tcmalloc's ("Beyond malloc efficiency to fleet efficiency", Hunter et al., OSDI 2021, §4.4): a
//! request spoils the least valuable free range, and arenas with few runs are left alone, so that they drain
//! and their whole huge page becomes free. Lists are indexed by the longest free range (1 to 127 pages) and the
//! logarithm of the number of runs (8 classes); one bitmap over the lengths and one byte per length say which
//! lists have members, so the choice is two bit scans. Within a list the first [`LOOK`] members are compared
//! exactly (runs, then age): O(1), and exact for lists that short. tcmalloc stops at the class; looking a
//! little further costs a few cache lines once per page run and keeps old arenas full.
//!
//! Of arenas that are no huge page, those with free pages that are resident come before their like. Before, a
//! program that had many broken arenas and freed what it allocated went from one to the next: each burst
//! touched pages that were given back, and left as many behind.

use super::bitmap;
use super::layout::HEAP_PAGES;
use super::list::{ArenaId, List};
use super::record::{Arena, State};
use super::table::Table;

/// Members of a list that are compared exactly.
const LOOK: usize = 8;

const CLASSES: usize = 8;

/// The arenas with room, by how good they are to fill.
pub(crate) struct Order {
    pub(super) lists: [[List; CLASSES]; HEAP_PAGES as usize],
    /// Bit *n*: some list of length *n* has members.
    pub(super) lengths: u128,
    /// For each length, bit *c*: the list of class *c* has members.
    pub(super) classes: [u8; HEAP_PAGES as usize],
}

/// Class of a number of runs, 0 to 7: its logarithm.
const fn class_of(runs: u32) -> usize {
    if runs == 0 { 0 } else { (u32::BITS - 1 - runs.leading_zeros()) as usize }
}

/// The list an arena belongs to: its longest free range and the class of its runs.
#[inline]
pub(super) const fn key_of(in_use: u128, runs: u32) -> (usize, usize) {
    (bitmap::longest_free_range(in_use) as usize, class_of(runs))
}

/// The longest free range of an arena when it was put where it belongs last, if it was among the arenas of
/// runs. Nobody has changed what is free there since.
pub(super) fn longest_when_filed(arena: &Arena) -> Option<u32> {
    match arena.state {
        _ if arena.busy || arena.apart => None,
        State::Partial => Some(u32::from(arena.listed) / CLASSES as u32),
        State::Full => Some(0),
        _ => None,
    }
}

impl Order {
    pub(crate) const NEW: Self = Self {
        lists: [[List::EMPTY; CLASSES]; HEAP_PAGES as usize],
        lengths: 0,
        classes: [0; HEAP_PAGES as usize],
    };

    /// Whether no arena has room.
    pub(crate) fn is_empty(&self) -> bool {
        self.lengths == 0
    }

    /// Adds an arena with between 1 and 127 free pages in a row.
    pub(crate) fn insert(&mut self, table: &mut Table, id: ArenaId) {
        let arena = table.arena_mut(id);
        let length = match core::mem::take(&mut arena.longest) {
            0 => bitmap::longest_free_range(arena.in_use) as usize,
            known => known as usize,
        };
        let class = class_of(arena.runs());
        debug_assert_eq!((length, class), key_of(arena.in_use, arena.runs()), "what was known was true");
        debug_assert!(
            length > 0 && length < HEAP_PAGES as usize,
            "only arenas with runs and room are ordered"
        );
        arena.listed = (length * CLASSES + class) as u16;
        let list = &mut self.lists[length][class];
        if table.arena(id).has_pages_at_hand() {
            list.push_front(table, id);
        } else {
            list.push_back(table, id);
        }
        self.lengths |= 1 << length;
        self.classes[length] |= 1 << class;
    }

    /// Takes an arena out that was inserted and whose bitmaps may have changed since.
    pub(crate) fn remove(&mut self, table: &mut Table, id: ArenaId) {
        let key = table.arena(id).listed as usize;
        let (length, class) = (key / CLASSES, key % CLASSES);
        let list = &mut self.lists[length][class];
        list.remove(table, id);
        if list.is_empty() {
            self.classes[length] &= !(1 << class);
            if self.classes[length] == 0 {
                self.lengths &= !(1 << length);
            }
        }
    }

    /// The arena to take `pages` (1 to 127) from.
    pub(crate) fn best(&self, table: &Table, pages: u32) -> Option<ArenaId> {
        let lengths = self.lengths >> pages << pages;
        if lengths == 0 {
            return None;
        }
        let length = lengths.trailing_zeros() as usize;
        let class = 7 - self.classes[length].leading_zeros() as usize;
        let mut best = self.lists[length][class].head;
        let mut next = table.arena(best).next;
        for _ in 1..LOOK {
            if !next.is_some() {
                break;
            }
            let (one, other) = (table.arena(next), table.arena(best));
            let key = |arena: &Arena, rival: &Arena| (arena.runs(), arena.has_pages_at_hand(), rival.serial);
            if key(one, other) > key(other, one) {
                best = next;
            }
            next = one.next;
        }
        Some(best)
    }

    /// The arenas, those with the longest free range first, among these those with the fewest runs.
    pub(crate) fn emptiest<'a>(&'a self, table: &'a Table) -> impl Iterator<Item = ArenaId> + 'a {
        let mut lengths = self.lengths;
        let mut class = 0;
        let mut next = ArenaId::NONE;
        core::iter::from_fn(move || {
            while !next.is_some() {
                if lengths == 0 {
                    return None;
                }
                let length = (HEAP_PAGES - 1 - lengths.leading_zeros()) as usize;
                if class == CLASSES {
                    lengths &= !(1 << length);
                    class = 0;
                    continue;
                }
                next = self.lists[length][class].head;
                class += 1;
            }
            let id = next;
            next = table.arena(id).next;
            Some(id)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_logarithms() {
        assert_eq!([1, 2, 3, 4, 7, 8, 64, 127, 128].map(class_of), [0, 1, 1, 2, 2, 3, 6, 6, 7]);
    }

    fn table_with(bitmaps: &[(u128, u128)]) -> (Table, Order) {
        let mut table = Table::for_tests(bitmaps.len());
        let mut order = Order::NEW;
        for (index, &(in_use, starts)) in bitmaps.iter().enumerate() {
            let id = ArenaId(index as u32);
            let arena = table.arena_mut(id);
            arena.in_use = in_use;
            arena.starts = starts;
            arena.serial = index as u32;
            order.insert(&mut table, id);
        }
        (table, order)
    }

    #[test]
    fn the_smallest_sufficient_range_wins() {
        let (table, order) =
            table_with(&[(bitmap::mask(0, 64), 1), (bitmap::mask(0, 96), 1), (bitmap::mask(0, 120), 1)]);
        assert_eq!(order.best(&table, 8), Some(ArenaId(2)));
        assert_eq!(order.best(&table, 9), Some(ArenaId(1)));
        assert_eq!(order.best(&table, 64), Some(ArenaId(0)));
        assert_eq!(order.best(&table, 65), None);
    }

    #[test]
    fn among_equal_ranges_most_runs_then_the_oldest_wins() {
        let half = bitmap::mask(0, 64);
        let (table, order) = table_with(&[(half, 1), (half, 0b1111), (half, 0b11111), (half, 0b11111)]);
        assert_eq!(order.best(&table, 64), Some(ArenaId(2)));
    }

    #[test]
    fn removal_keeps_the_bitmaps_of_lists_true() {
        let half = bitmap::mask(0, 64);
        let (mut table, mut order) = table_with(&[(half, 1), (half, 1), (bitmap::mask(0, 100), 1)]);
        order.remove(&mut table, ArenaId(2));
        assert_eq!(order.best(&table, 1), Some(ArenaId(0)));
        order.remove(&mut table, ArenaId(0));
        assert_eq!(order.best(&table, 1), Some(ArenaId(1)));
        order.remove(&mut table, ArenaId(1));
        assert_eq!(order.best(&table, 1), None);
        assert_eq!(order.emptiest(&table).count(), 0);
    }

    #[test]
    fn emptiest_begins_with_the_longest_free_range() {
        let (table, order) =
            table_with(&[(bitmap::mask(0, 120), 1), (bitmap::mask(0, 64), 1), (bitmap::mask(0, 64), 0b111)]);
        let ids: Vec<u32> = order.emptiest(&table).map(|id| id.0).collect();
        assert_eq!(ids, vec![1, 2, 0]);
    }
}
