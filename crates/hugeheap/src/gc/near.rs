//! The heap page in which an object was marked last: the next one is there, too, more often than not.
//!
//! So the page and its class are looked up once for many objects. Forgotten when a step ends: the next time it may be another's. An object with heap pages
//! of its own is marked at the first granule of its first page, which is where it begins.

use super::header::OBJECT_ALIGN;
use super::nursery::Nursery;
use super::old::Old;
use crate::arena::HEAP_PAGE_BYTES;
use crate::object::Source;
use crate::object::class::{GRANULE_SHIFT, WINDOWS};
use crate::object::space::Bitmap;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// The heap page in which an object was marked last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near {
    page: usize,
    marks: &'static Bitmap,
}

/// Where there is no page.
const NOWHERE: usize = 1 << 63;

/// The marks there: nothing is ever marked for the first time.
static NO_MARKS: Bitmap = [const { AtomicU64::new(u64::MAX) }; WINDOWS];

impl Near {
    /// No page is there.
    pub(super) const NONE: Self = Self { page: NOWHERE, marks: &NO_MARKS };

    /// The page of the object of the old generation that a word may refer to.
    #[inline(never)]
    fn of<S: Source>(nursery: &Nursery<S>, old: &Old<S>, word: usize) -> Self {
        if nursery.contains(word) {
            return Self::NONE;
        }
        old.page_at(word).map_or(Self::NONE, |page| Self { page: page.address(), marks: page.remote() })
    }

    /// Marks what a word refers to, if that is an object of the old generation, and says whether it was not marked.
    #[inline(always)]
    pub(super) fn mark<S: Source>(&mut self, nursery: &Nursery<S>, old: &Old<S>, word: usize) -> bool {
        if word == 0 {
            return false;
        }
        if word.wrapping_sub(self.page) >= HEAP_PAGE_BYTES {
            if word % OBJECT_ALIGN != 0 {
                return false;
            }
            *self = Self::of(nursery, old, word);
            if self.page == NOWHERE {
                return false;
            }
        }
        let offset = word.wrapping_sub(self.page);
        offset % OBJECT_ALIGN == 0 && mark_in(self.marks, offset >> GRANULE_SHIFT)
    }
}

/// Marks the object at a granule of a heap page; says whether it was not.
#[inline(always)]
fn mark_in(marks: &Bitmap, granule: usize) -> bool {
    let (word, bit) = (&marks[granule / 64 % WINDOWS], 1 << (granule % 64));
    let before = word.load(Relaxed);
    let fresh = before & bit == 0;
    if fresh {
        word.store(before | bit, Relaxed);
    }
    fresh
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_marked_where_there_is_no_page() {
        for offset in 0..HEAP_PAGE_BYTES {
            assert!(!mark_in(Near::NONE.marks, offset >> GRANULE_SHIFT));
        }
    }

    #[test]
    fn an_object_is_marked_for_the_first_time_once() {
        let marks: Bitmap = [const { AtomicU64::new(0) }; WINDOWS];
        for granule in [0, 63, 64, 1023] {
            assert!(mark_in(&marks, granule) && !mark_in(&marks, granule));
        }
        assert_eq!(marks.iter().map(|word| word.load(Relaxed).count_ones()).sum::<u32>(), 4);
    }
}
