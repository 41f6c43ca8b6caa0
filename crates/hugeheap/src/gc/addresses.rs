//! Addresses in order, each with a count. Adding one may fail, and then nothing has changed: the maps of the
//! standard library end the process where there is no memory for a node.
//!
//! ```text
//!   chunks ─┬▶ 0x1000 ×1, 0x1040 ×3, …   at most CHUNK, never none
//!           └▶ 0x9000 ×1, …              above all of the chunk before
//! ```
//!
//! Of a hundred thousand pins one more moves half a chunk, 4 KiB; in one row it moved all, 800 KB.

/// Entries of a chunk at most: 8 KiB of them.
const CHUNK: usize = 512;

/// A set of addresses with counts.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    chunks: Vec<Vec<(usize, u32)>>,
    len: usize,
}

impl Addresses {
    /// How many different ones there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.len = 0;
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.chunks.iter().flatten().map(|&(address, _)| address)
    }

    /// The chunk in which an address is, or would be, and where in it. There is a chunk.
    fn place(&self, address: usize) -> (usize, Result<usize, usize>) {
        let chunk = self.chunks.partition_point(|chunk| chunk[0].0 <= address).saturating_sub(1);
        (chunk, self.chunks[chunk].binary_search_by_key(&address, |entry| entry.0))
    }

    pub(super) fn contains(&self, address: usize) -> bool {
        !self.is_empty() && self.place(address).1.is_ok()
    }

    /// Whether there is one from `from` to below `end`.
    pub(super) fn any_in(&self, from: usize, end: usize) -> bool {
        if self.is_empty() {
            return false;
        }
        let (chunk, Ok(index) | Err(index)) = self.place(from);
        let next =
            self.chunks[chunk].get(index).or_else(|| self.chunks.get(chunk + 1).map(|chunk| &chunk[0]));
        next.is_some_and(|entry| entry.0 < end)
    }

    /// Counts an address once more. Says no where there is no memory for a new one.
    #[must_use]
    pub(super) fn add(&mut self, address: usize) -> bool {
        if self.chunks.is_empty() {
            let mut first = Vec::new();
            if first.try_reserve(1).is_err() || self.chunks.try_reserve(1).is_err() {
                return false;
            }
            first.push((address, 1));
            self.chunks.push(first);
            self.len = 1;
            return true;
        }
        let (chunk, mut index) = match self.place(address) {
            (chunk, Ok(index)) => {
                self.chunks[chunk][index].1 += 1;
                return true;
            }
            (chunk, Err(index)) => (chunk, index),
        };
        let mut chunk = chunk;
        if self.chunks[chunk].len() < CHUNK {
            if self.chunks[chunk].try_reserve(1).is_err() {
                return false;
            }
        } else {
            let mut upper = Vec::new();
            if upper.try_reserve_exact(CHUNK).is_err() || self.chunks.try_reserve(1).is_err() {
                return false;
            }
            upper.extend(self.chunks[chunk].drain(CHUNK / 2..));
            self.chunks.insert(chunk + 1, upper);
            if index > CHUNK / 2 {
                (chunk, index) = (chunk + 1, index - CHUNK / 2);
            }
        }
        self.chunks[chunk].insert(index, (address, 1));
        self.len += 1;
        true
    }

    /// Counts an address once less, if it is there: at 0 it is gone.
    pub(super) fn remove(&mut self, address: usize) {
        if self.is_empty() {
            return;
        }
        let (chunk, Ok(index)) = self.place(address) else { return };
        let entries = &mut self.chunks[chunk];
        entries[index].1 -= 1;
        if entries[index].1 == 0 {
            entries.remove(index);
            self.len -= 1;
            if entries.is_empty() {
                self.chunks.remove(chunk);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Long runs of neighbours fill chunks and empty them, single ones come between.
        #[test]
        fn they_are_what_a_map_has(
            steps in prop::collection::vec((any::<bool>(), 0usize..4000, 1usize..900), 1..40)
        ) {
            let (mut addresses, mut model) = (Addresses::default(), BTreeMap::<usize, u32>::new());
            for (adds, from, count) in steps {
                for address in (from..from + count).map(|n| n * 7 % 4001) {
                    if adds {
                        prop_assert!(addresses.add(address));
                        *model.entry(address).or_insert(0) += 1;
                    } else {
                        addresses.remove(address);
                        if let Some(counted) = model.get_mut(&address) {
                            *counted -= 1;
                            if *counted == 0 {
                                model.remove(&address);
                            }
                        }
                    }
                }
                prop_assert_eq!(addresses.len(), model.len());
                prop_assert!(addresses.iter().eq(model.keys().copied()));
                prop_assert_eq!(addresses.is_empty(), model.is_empty());
                prop_assert_eq!(addresses.contains(from), model.contains_key(&from));
                prop_assert_eq!(addresses.any_in(from, from + count), model.range(from..from + count).next().is_some());
                prop_assert!(addresses.chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK));
            }
            addresses.clear();
            prop_assert!(addresses.is_empty() && !addresses.contains(0) && !addresses.any_in(0, usize::MAX));
        }
    }
}
