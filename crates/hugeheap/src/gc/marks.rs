//! Where the marks of objects are: found from an address alone, with nothing looked up that was not asked for.
//!
//! ```text
//!   address − start of the region ─▶ granule ─▶ window of 64 granules ─▶ word of the bitmap
//!                                                        └─▶ heap page ─▶ tag: is it one of this heap?
//! ```
//!
//! That is for the first region, of which there is one unless `ulimit -v` kept it small; for others the page is
//! asked. An object with heap pages of its own is marked at the first granule of the first of them, where it
//! begins. A page that is none of this heap's old generation has another tag: also those of the nursery, whose
//! objects are not marked.
//!
//! The heap page of the object before was remembered, because the next one is there, too, more often than not.
//! But objects are looked into some steps after they were found ([`prefetch`](super::prefetch)), and so from
//! several pages by turns: of a tree every second one was another, for 35 instructions each, and in a shuffled
//! table all were.

use super::header::OBJECT_ALIGN;
use super::old::{Old, is_of_heap};
use crate::object::Source;
use crate::object::class::{GRANULE_SHIFT, WINDOWS};
use crate::object::mark::Mark;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Where the marks of a heap are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    /// First byte of the region.
    start: usize,
    /// Its granules; 0: nothing is known of it.
    granules: usize,
    pages: *const Mark,
    bitmaps: *const AtomicU64,
    /// What the tags of the heap's pages have in common.
    tag: u32,
}

impl Marks {
    /// Nothing is known: everything is looked up.
    pub(super) const UNKNOWN: Self =
        Self { start: 0, granules: 0, pages: core::ptr::null(), bitmaps: core::ptr::null(), tag: 0 };

    pub(super) fn of<S: Source>(old: &Old<S>) -> Self {
        let Some(region) = old.space.regions().first() else { return Self::UNKNOWN };
        Self {
            start: region.start,
            granules: region.bytes() >> GRANULE_SHIFT,
            pages: region.marks,
            bitmaps: region.remote.cast(),
            tag: old.tag,
        }
    }

    /// Marks what a word refers to, if that is an object of the old generation, and says whether it was not marked.
    #[inline(always)]
    pub(super) fn mark<S: Source>(&self, old: &Old<S>, word: usize) -> bool {
        if word == 0 {
            return false;
        }
        // Too large for a word that is not aligned, too.
        let granule = word.wrapping_sub(self.start).rotate_right(GRANULE_SHIFT);
        if granule >= self.granules {
            return Self::mark_elsewhere(old, word);
        }
        let window = granule / 64;
        // SAFETY: the granule lies in the region, each page of which has a mark, of four bytes for each window,
        // and each window of which a word.
        let (page, marks) =
            unsafe { (&*self.pages.byte_add((window & !(WINDOWS - 1)) * 4), &*self.bitmaps.add(window)) };
        if !is_of_heap(page.tag.load(Relaxed), self.tag) {
            return false;
        }
        let (bit, before) = (1 << (granule % 64), marks.load(Relaxed));
        let fresh = before & bit == 0;
        if fresh {
            marks.store(before | bit, Relaxed);
        }
        fresh
    }

    /// Words that are no references of this region, and references of others.
    #[inline(never)]
    fn mark_elsewhere<S: Source>(old: &Old<S>, word: usize) -> bool {
        word % OBJECT_ALIGN == 0 && old.mark(word)
    }
}
