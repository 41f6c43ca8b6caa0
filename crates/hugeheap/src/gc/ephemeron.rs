//! Ephemerons whose key is not known to live yet.
//!
//! ```text
//!   key ─▶ entry ─▶ entry ─▶ …      an entry: object, slot of the key, slot of the value
//! ```
//!
//! When a collection reaches a key, the values that wait for it are looked into. So each ephemeron is looked at
//! twice at most; going through all of them again and again until nothing changes costs the square of the
//! length of a chain of them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Room for how many times as many ephemerons as there were is kept: lists grow to twice their size, and the
/// least has four.
const SLACK: usize = 4;

/// An ephemeron that waits for its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The object that it is in.
    pub(crate) object: usize,
    pub(crate) key: *mut usize,
    pub(crate) value: *mut usize,
    /// The next of the same key, plus 1; 0: none.
    next: usize,
}

/// A hash of addresses: a multiplication. The keys are the program's own objects, so nobody chooses them to collide.
#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_usize(usize::from(byte));
        }
    }

    fn write_usize(&mut self, value: usize) {
        // 2⁶⁴ divided by the golden ratio; the table uses the upper bits and the lowest ones.
        self.0 = (self.0 ^ value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

/// Ephemerons by the address of their key.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    first: HashMap<usize, usize, BuildHasherDefault<AddressHasher>>,
    entries: Vec<Entry>,
}

impl Waiting {
    /// Whether nothing waits for a key.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Whether nothing has waited since the last [`clear`](Self::clear) or [`drain`](Self::drain). What waited
    /// for a key that was reached has an entry still: until then others of the same key may be looked into.
    pub(crate) fn is_unused(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an ephemeron. Says no when there is no memory, or `most` are there: then it has to be kept as if
    /// its key lived.
    pub(crate) fn add(&mut self, object: usize, key: *mut usize, value: *mut usize, most: usize) -> bool {
        if self.entries.len() >= most
            || self.entries.try_reserve(1).is_err()
            || self.first.try_reserve(1).is_err()
        {
            return false;
        }
        // SAFETY: the callers pass slots of a live object.
        let address = unsafe { key.read() };
        let first = self.first.entry(address).or_insert(0);
        self.entries.push(Entry { object, key, value, next: *first });
        *first = self.entries.len();
        true
    }

    /// Takes what waits for a key: a place for [`next`](Self::next).
    pub(crate) fn take(&mut self, key: usize) -> usize {
        self.first.remove(&key).unwrap_or(0)
    }

    /// The entry at a place, and the next place. `None`: there are no more.
    pub(crate) fn next(&self, at: usize) -> Option<(Entry, usize)> {
        let entry = *self.entries.get(at.checked_sub(1)?)?;
        Some((entry, entry.next))
    }

    /// Forgets all, and gives its memory back, which a program that had very many of them once in its life would keep.
    #[inline(never)]
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets all; returns those that still waited to the caller's function. Keeps the memory of about as many
    /// as there were: to go through a table costs what it has room for.
    pub(crate) fn drain(&mut self, mut call: impl FnMut(Entry)) {
        let count = self.entries.len();
        for (_, first) in self.first.drain() {
            let mut at = first;
            while let Some(entry) = at.checked_sub(1).and_then(|index| self.entries.get(index)) {
                call(*entry);
                at = entry.next;
            }
        }
        self.entries.clear();
        if self.entries.capacity() > SLACK * count {
            self.clear();
        }
    }

    /// Whether its memory is that of `most` ephemerons at most.
    pub(crate) fn is_small(&self, most: usize) -> bool {
        self.entries.capacity() <= most
    }
}
