//! Doubly linked lists of arenas, threaded through their metadata.
//!
//! An arena is in at most one list. All operations are O(1).

use super::table::Table;

/// Names an arena: its region and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct ArenaId(pub(crate) u32);

impl ArenaId {
    /// No arena.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn is_some(self) -> bool {
        self != Self::NONE
    }
}

/// A list of arenas.
#[derive(Clone, Copy)]
pub(crate) struct List {
    pub(crate) head: ArenaId,
    pub(crate) tail: ArenaId,
}

impl List {
    pub(crate) const EMPTY: Self = Self { head: ArenaId::NONE, tail: ArenaId::NONE };

    pub(crate) fn is_empty(&self) -> bool {
        !self.head.is_some()
    }

    pub(crate) fn push_front(&mut self, table: &mut Table, id: ArenaId) {
        let head = self.head;
        let arena = table.arena_mut(id);
        arena.previous = ArenaId::NONE;
        arena.next = head;
        if head.is_some() {
            table.arena_mut(head).previous = id;
        } else {
            self.tail = id;
        }
        self.head = id;
    }

    pub(crate) fn push_back(&mut self, table: &mut Table, id: ArenaId) {
        let tail = self.tail;
        let arena = table.arena_mut(id);
        arena.next = ArenaId::NONE;
        arena.previous = tail;
        if tail.is_some() {
            table.arena_mut(tail).next = id;
        } else {
            self.head = id;
        }
        self.tail = id;
    }

    /// Behind a member; `NONE`: in front of all.
    pub(crate) fn insert_behind(&mut self, table: &mut Table, before: ArenaId, id: ArenaId) {
        if !before.is_some() {
            return self.push_front(table, id);
        }
        let next = table.arena(before).next;
        if !next.is_some() {
            return self.push_back(table, id);
        }
        let arena = table.arena_mut(id);
        arena.previous = before;
        arena.next = next;
        table.arena_mut(before).next = id;
        table.arena_mut(next).previous = id;
    }

    pub(crate) fn remove(&mut self, table: &mut Table, id: ArenaId) {
        let (previous, next) = {
            let arena = table.arena_mut(id);
            let links = (arena.previous, arena.next);
            arena.previous = ArenaId::NONE;
            arena.next = ArenaId::NONE;
            links
        };
        if previous.is_some() {
            table.arena_mut(previous).next = next;
        } else {
            self.head = next;
        }
        if next.is_some() {
            table.arena_mut(next).previous = previous;
        } else {
            self.tail = previous;
        }
    }
}
