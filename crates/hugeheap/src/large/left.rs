//! Where large blocks were that were freed lately, for others as long.
//!
//! ```text
//!   free ─▶ ├ last ┼ before ┼ … ┼ eighth ┤ ─▶ forgotten        a place that is used again is taken out
//! ```
//!
//! A place is a guess: others may have taken it, or a part of it, or it was given back. So its arenas are
//! looked at before it is used. What is found there needs no search for a row, and is resident as far as the
//! new block needs it.
//!
//! Only the last one was remembered. A program that took eight blocks of 3 MB and freed them, again and again,
//! had each of them but one looked for among all empty arenas, 2,100 instructions more for each pair.

use crate::arena::ArenaId;
use crate::arena::layout::HEAP_PAGES;

/// Places that are remembered. To pass one of another length are three instructions, a search is a thousand.
const PLACES: usize = 8;

/// First arena and heap pages of each, the last one first; 0 pages: none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left([(ArenaId, u32); PLACES]);

impl Left {
    pub(crate) const NONE: Self = Self([(ArenaId::NONE, 0); PLACES]);

    /// A block of so many heap pages was freed.
    pub(super) fn note(&mut self, first: ArenaId, pages: u32) {
        if self.0[0].1 != 0 {
            self.0.rotate_right(1);
        }
        self.0[0] = (first, pages);
    }

    /// Takes the place of a block of `pages` heap pages that is still `free`, the last one; or that of the
    /// block that was freed last, if it has `wanted` arenas.
    pub(super) fn take(
        &mut self,
        pages: u32,
        wanted: u32,
        free: impl Fn(ArenaId) -> bool,
    ) -> Option<ArenaId> {
        let fits = |place: usize, (first, left): (ArenaId, u32)| {
            let alike = if place == 0 { left.div_ceil(HEAP_PAGES) == wanted } else { left == pages };
            alike && free(first)
        };
        let place = (0..PLACES).find(|&place| fits(place, self.0[place]))?;
        let (first, _) = self.0[place];
        // The one before it does not become the last one: that gets blocks of other lengths, too.
        self.0[place] = (ArenaId::NONE, 0);
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_place_of_that_length_that_is_free_is_taken_once() {
        let mut left = Left::NONE;
        for (first, pages) in [(1, 200), (3, 400), (7, 200), (9, 200), (11, 100)] {
            left.note(ArenaId(first), pages);
        }
        let mut take =
            |pages: u32, used| left.take(pages, pages.div_ceil(HEAP_PAGES), |id| id != ArenaId(used));
        assert_eq!(take(200, 9), Some(ArenaId(7)), "the last one is in use");
        assert_eq!(take(200, 0), Some(ArenaId(9)));
        assert_eq!(take(200, 0), Some(ArenaId(1)));
        assert_eq!(take(200, 0), None);
        assert_eq!(take(300, 0), None);
        assert_eq!([take(400, 0), take(100, 0), take(100, 0)], [Some(ArenaId(3)), Some(ArenaId(11)), None]);
    }

    /// Blocks of other lengths have tails of other lengths: what is resident of them and not used was an eighth
    /// of the memory of a program that replaced blocks of 1 to 8 MiB at random.
    #[test]
    fn a_block_of_another_length_gets_the_last_place_only() {
        let mut left = Left::NONE;
        left.note(ArenaId(1), 200);
        left.note(ArenaId(3), 201);
        assert_eq!(left.take(202, 2, |id| id == ArenaId(1)), None);
        assert_eq!(left.take(202, 2, |_| true), Some(ArenaId(3)));
        assert_eq!(left.take(202, 2, |_| true), None, "it was not the last one");
        assert_eq!(left.take(200, 2, |_| true), Some(ArenaId(1)));
    }

    #[test]
    fn what_was_freed_long_ago_is_forgotten() {
        let mut left = Left::NONE;
        for first in 0..20 {
            left.note(ArenaId(first), 1);
        }
        let taken = core::iter::from_fn(|| left.take(1, 1, |_| true));
        assert!(taken.map(|id| id.0).eq((12..20).rev()));
    }
}
