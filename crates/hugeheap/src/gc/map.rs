//! Where the slots of an object are, as the bits of a word.
//!
//! ```text
//!   map   bit 63: word 0, the header ── bit 62: word 1 ── … ── bit 0: word 63            the lowest bit is the last slot
//! ```
//!
//! An object is *mapped* when all its slots lie in its first 64 words, and are at offsets, or items of one
//! word. Most objects are, of a fixed size or not. The map is walked in half the time that a list of offsets
//! takes, and one loop does for all of them: when it did for types of a fixed size only, a survivor with a
//! length and two items cost 255 instructions, and costs 190.
//!
//! It is walked from the last slot to the first, because what is found goes to lists and stacks of which the
//! last is taken first. So a collection goes through what the first slot leads to before what the others do, as
//! programs mostly do, and copies lie in the order in which they are met. From the first slot to the last, a
//! program that makes and counts trees spent a quarter of its time on one load, that of a node's first slot: in
//! turn, `hugeheap bench worker gc binary-trees 18 - --step 2 --nursery 4194304` took 0.77 s, and takes 0.57.

use super::layout::Layout;

/// Words of an object that a map covers: more than the slots that it can name.
pub(super) const WORDS: usize = u64::BITS as usize;

/// The slots of a type, where its objects may be mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Map {
    /// Slots at offsets.
    slots: u64,
    /// The first word of items, each of which is a slot; 0: none is; [`NOT_MAPPED`]: these are not all slots.
    /// One number, because the loops that move and mark objects look at it for each.
    row: u8,
}

/// In place of the first word of items.
const NOT_MAPPED: u8 = u8::MAX;

const _: () = assert!(WORDS < NOT_MAPPED as usize);

impl Map {
    pub(super) fn of(layout: &Layout) -> Self {
        let Layout { bytes, item_bytes, slots, item_slots, weak, trace, .. } = layout;
        let rows = !item_slots.is_empty();
        let short = slots.iter().all(|&offset| offset / 8 < WORDS);
        let in_words = !rows || *item_bytes == 8 && bytes % 8 == 0 && bytes / 8 < WORDS;
        if !short || !in_words || !weak.is_empty() || trace.is_some() {
            return Self { slots: 0, row: NOT_MAPPED };
        }
        Self {
            slots: slots.iter().fold(0, |map, offset| map | 1 << (WORDS - 1 - offset / 8)),
            row: if rows { (bytes / 8) as u8 } else { 0 },
        }
    }

    /// Whether all objects of the type have the same map.
    pub(super) fn is_fixed(self) -> bool {
        self.row == 0
    }

    /// The one that they have then.
    #[inline(always)]
    pub(super) fn fixed(self) -> u64 {
        self.slots
    }

    /// The map of an object of the type. `None` where it is not mapped. `length` is asked for where there are items.
    #[inline(always)]
    pub(super) fn for_length(self, length: impl FnOnce() -> usize) -> Option<u64> {
        if self.row == 0 {
            return Some(self.slots);
        }
        if self.row == NOT_MAPPED {
            return None;
        }
        let (first, length) = (usize::from(self.row), length());
        // Fewer than 64, because the header is none.
        (length <= WORDS - first).then(|| self.slots | !(u64::MAX >> length) >> first)
    }
}

/// Names the slots of a map in an object, from the last to the first.
#[inline(always)]
pub(crate) fn each_mapped(map: u64, object: usize, mut visit: impl FnMut(*mut usize)) {
    each_mapped_word(map, |word| visit((object as *mut usize).wrapping_add(word)));
}

/// The same by the words that they are in the object. (With `^`: a subtraction was one instruction more for
/// each slot, and two of 141 for a survivor.)
#[inline(always)]
pub(crate) fn each_mapped_word(mut map: u64, mut visit: impl FnMut(usize)) {
    while map != 0 {
        visit(map.trailing_zeros() as usize ^ (WORDS - 1));
        map &= map - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(layout: &Layout, length: usize) -> Option<Vec<usize>> {
        let mut offsets = Vec::new();
        each_mapped(Map::of(layout).for_length(|| length)?, 1 << 20, |slot| {
            offsets.push(slot as usize - (1 << 20));
        });
        Some(offsets)
    }

    #[test]
    fn slots_are_named_from_the_last_to_the_first() {
        assert_eq!(offsets(&Layout::fixed(600).slots(&[8, 24, 504]), 0), Some(vec![504, 24, 8]));
        assert_eq!(offsets(&Layout::fixed(64), 0), Some(vec![]));
        let closure = Layout::variable(24, 8).slots(&[16]).item_slots(&[0]);
        assert_eq!(offsets(&closure, 0), Some(vec![16]));
        assert_eq!(offsets(&closure, 2), Some(vec![32, 24, 16]));
        let text = Layout::variable(24, 1).slots(&[16]);
        assert_eq!(offsets(&text, 1_000_000), Some(vec![16]));
    }

    #[test]
    fn what_lies_behind_the_map_is_not_mapped() {
        assert_eq!(offsets(&Layout::fixed(600).slots(&[8, 512]), 0), None);
        let array = Layout::variable(16, 8).item_slots(&[0]);
        let all = (16..512).step_by(8).rev().collect::<Vec<_>>();
        assert_eq!((offsets(&array, 62), offsets(&array, 63)), (Some(all), None));
        assert_eq!(offsets(&array, usize::MAX), None);
        let last = Layout::variable(504, 8).item_slots(&[0]);
        assert_eq!(
            (offsets(&last, 0), offsets(&last, 1), offsets(&last, 2)),
            (Some(vec![]), Some(vec![504]), None)
        );
        assert_eq!(offsets(&Layout::variable(512, 8).item_slots(&[0]), 0), None);
        assert_eq!(offsets(&Layout::variable(16, 16).item_slots(&[8]), 1), None);
        assert_eq!(offsets(&Layout::variable(16, 8).weak_item_slots(&[0]), 1), None);
    }
}
