//! The tag of a heap page: whose it is, and how it is cut.
//!
//! ```text
//!     31      30           13 12     7 6    0
//!   ├ pending ┼─ heap number ─┼─ class ─┼ zero ┤
//! ```
//!
//! 0: not cut into blocks. The class stands where it is a multiple of a bin's size: a free of the owner makes
//! the difference of the page's tag and its own, and has the way to the bin, without a shift; the tag of any
//! other heap, and a pending one, give a number that is too large.

use super::bin::Bin;
use super::class::{CLASSES, Class, GRANULE_SHIFT, MAX_BINNED, block_class_of, headed};

/// Another thread freed in the page, and the owner has not collected it yet.
pub(crate) const PENDING: u32 = 1 << 31;

/// Shift of the class: a bin's size as a power of two.
pub(crate) const CLASS_SHIFT: u32 = size_of::<Bin>().trailing_zeros();

const HEAP_SHIFT: u32 = CLASS_SHIFT + 6;

/// Class of pages that belong to a heap without being cut.
pub(crate) const SPARE: Class = 63;

/// Class of the first page of a page run that belongs to a heap.
pub(crate) const RUN: Class = 62;

/// Class of all pages of spans, which are of no heap: its number is 0 there. See [`spans`](super::spans).
pub(crate) const SPAN: Class = 61;

const _: () = assert!(size_of::<Bin>().is_power_of_two() && CLASSES < SPAN);

/// The tag of a page of `class` in heap number `heap`; with class 0 what all tags of the heap have in common.
pub(crate) const fn tag(heap: u32, class: Class) -> u32 {
    heap << HEAP_SHIFT | (class as u32) << CLASS_SHIFT
}

/// The ways to the bins of all sizes up to [`MAX_BINNED`], in steps of a granule.
pub(crate) type Ways = [u16; (MAX_BINNED >> GRANULE_SHIFT) + 1];

/// What they are.
pub(crate) const WAYS: Ways = ways(false);

/// The same in a heap of objects with headers.
pub(crate) const HEADED_WAYS: Ways = ways(true);

const fn ways(headers: bool) -> Ways {
    let mut ways = [0; (MAX_BINNED >> GRANULE_SHIFT) + 1];
    let mut step = 0;
    while step < ways.len() {
        let class = block_class_of(step << GRANULE_SHIFT);
        ways[step] = tag(0, if headers { headed(class) } else { class }) as u16;
        step += 1;
    }
    ways
}

const _: () = assert!(CLASSES << CLASS_SHIFT <= 1 << 16);

/// The way to the bin of the class of a request of at most [`MAX_BINNED`] bytes; of a headed class never. For 0
/// bytes that to the bin of class 0.
///
/// Looked up for all of them, though the classes of small ones are a shift: a program does not foresee which of
/// the two the next one is. Where the size is a constant, so is the way.
#[inline(always)]
pub(crate) const fn way_of(bytes: usize) -> usize {
    WAYS[(bytes + 15) >> GRANULE_SHIFT] as usize
}

/// The class whose bin a way leads to.
#[inline(always)]
pub(crate) const fn class_on(way: usize) -> Class {
    way >> CLASS_SHIFT
}

/// Whether a page is pending, of another heap and of the class that a way leads to, by the difference of its
/// tag, this heap's and the way: nothing but the numbers of the heaps differs, and the pending bit is set. One
/// comparison for all of it.
pub(crate) const fn is_pending_elsewhere(difference: u32) -> bool {
    const BIT: u32 = PENDING >> HEAP_SHIFT;
    // Below the pending bit the numbers of the heaps, above it what has to be zero.
    difference.rotate_right(HEAP_SHIFT).wrapping_sub(BIT + 1) < BIT - 1
}

/// The highest class that a tag has room for; all bits of one.
pub(super) const CLASSES_IN_TAG: Class = 63;

/// The class in a tag.
pub(crate) const fn class(tag: u32) -> Class {
    (tag >> CLASS_SHIFT) as Class & CLASSES_IN_TAG
}

/// The number of the heap in a tag.
pub(crate) const fn heap(tag: u32) -> u32 {
    (tag & !PENDING) >> HEAP_SHIFT
}

/// Whether another thread freed in the page.
pub(crate) const fn is_pending(tag: u32) -> bool {
    tag & PENDING != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All pairs of such heaps and classes, pending or not, against what the one comparison stands for.
    #[test]
    fn a_page_is_pending_elsewhere_when_another_heap_has_it_in_the_class_of_the_way() {
        let heaps = [1, 2, 3, 0x1000, (PENDING >> HEAP_SHIFT) - 1];
        let classes = [1, 2, CLASSES - 1, SPAN, RUN, SPARE];
        for (own, theirs) in heaps.iter().flat_map(|&own| heaps.map(|theirs| (own, theirs))) {
            for (expected, class) in classes.iter().flat_map(|&one| classes.map(|class| (one, class))) {
                for pending in [0, PENDING] {
                    let page = tag(theirs, class) | pending;
                    let difference = page ^ tag(own, 0) ^ tag(0, expected);
                    let is = pending != 0 && theirs != own && class == expected;
                    assert_eq!(is_pending_elsewhere(difference), is, "{own} {theirs} {expected} {class}");
                }
            }
            // Pages of no heap.
            assert!(!is_pending_elsewhere(tag(own, 0) ^ tag(0, 1)));
        }
    }
}
