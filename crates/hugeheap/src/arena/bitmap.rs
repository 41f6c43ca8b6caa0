//! Ranges of clear bits in the bitmap of an arena: bit *i* is heap page *i*, set means in use.
//!
//! All functions are a handful of shifts and ands, without loops over pages. The idea is that of doubling: a bit
//! stays set in `free & (free >> 1)` when it begins two free pages, in that result and itself shifted by 2
//! when it begins four, and so on; any length is a sum of powers of two.

use core::ops::Range;

/// Ranges that are measured one after the other: 40 instructions for one, where doubling takes 260 for any number.
const FEW: u32 = 4;

/// Number of pages in the longest range of clear bits, 0 to 128.
pub(super) const fn longest_free_range(in_use: u128) -> u32 {
    let free = !in_use;
    if free == 0 {
        return 0;
    }
    if in_use == 0 {
        return u128::BITS;
    }
    let (mut rest, mut longest, mut ranges) = (free, 0, 0);
    while ranges < FEW {
        rest >>= rest.trailing_zeros();
        let length = rest.trailing_ones();
        longest = if length > longest { length } else { longest };
        rest >>= length;
        if rest == 0 {
            return longest;
        }
        ranges += 1;
    }
    longest_of_many(free)
}

/// The same where it is known that none is longer than `most` pages: one of that length ends the search.
pub(super) const fn longest_up_to(in_use: u128, most: u32) -> u32 {
    match only_range(in_use) {
        Some(length) => length,
        None if beginnings(in_use, most) != 0 => most,
        None => longest_free_range(in_use),
    }
}

/// The same after the pages of one range, `freed`, have become free, and the longest was `before`.
pub(super) const fn longest_after_free(in_use: u128, freed: u128, before: u32) -> u32 {
    if let Some(length) = only_range(in_use) {
        return length;
    }
    let first = freed.trailing_zeros();
    let above = (in_use >> first).trailing_zeros();
    let above = if above < u128::BITS - first { above } else { u128::BITS - first };
    let below = if first == 0 { 0 } else { (in_use << (u128::BITS - first)).leading_zeros() };
    let below = if below < first { below } else { first };
    if below + above > before { below + above } else { before }
}

/// The length of the range of clear bits, if there is one and no more. It is asked first: an arena that is
/// filled, or emptied, in a row costs no more than that.
const fn only_range(in_use: u128) -> Option<u32> {
    let free = !in_use;
    if free == 0 || in_use == 0 {
        return Some(if free == 0 { 0 } else { u128::BITS });
    }
    let rest = free >> free.trailing_zeros();
    let length = rest.trailing_ones();
    if rest >> length == 0 { Some(length) } else { None }
}

/// The longest, whatever the number of ranges.
const fn longest_of_many(free: u128) -> u32 {
    // begins[k]: bits that begin 2^k free pages.
    let mut begins = [0u128; 7];
    begins[0] = free;
    let mut top = 0;
    while top < 6 {
        let longer = begins[top] & (begins[top] >> (1u32 << top));
        if longer == 0 {
            break;
        }
        top += 1;
        begins[top] = longer;
    }
    let mut length = 1u32 << top;
    let mut still = begins[top];
    while top > 0 {
        top -= 1;
        let longer = still & (begins[top] >> length);
        if longer != 0 {
            still = longer;
            length += 1 << top;
        }
    }
    length
}

/// The bits at which `pages` clear bits begin.
const fn beginnings(in_use: u128, pages: u32) -> u128 {
    if pages == u128::BITS {
        return if in_use == 0 { 1 } else { 0 };
    }
    let mut begins = !in_use;
    let mut have = 1;
    while have < pages {
        let add = if have < pages - have { have } else { pages - have };
        begins &= begins >> add;
        have += add;
    }
    // Ranges reaching past bit 127 are excluded by the shift, which moves zeros in.
    begins
}

/// The lowest page at which `pages` (1 to 128) free ones begin.
pub(super) const fn find_lowest(in_use: u128, pages: u32) -> Option<u32> {
    let begins = beginnings(in_use, pages);
    if begins == 0 { None } else { Some(begins.trailing_zeros()) }
}

/// The highest page at which `pages` (1 to 128) free ones begin.
pub(super) const fn find_highest(in_use: u128, pages: u32) -> Option<u32> {
    let begins = beginnings(in_use, pages);
    if begins == 0 { None } else { Some(u128::BITS - 1 - begins.leading_zeros()) }
}

/// The lowest and the highest page that is a multiple of `align`, a power of two below 128, at which `pages`
/// free ones begin.
pub(super) const fn find_aligned(in_use: u128, pages: u32, align: u32) -> Option<(u32, u32)> {
    let multiples = u128::MAX / (u128::MAX >> (u128::BITS - align));
    let begins = beginnings(in_use, pages) & multiples;
    if begins == 0 { None } else { Some((begins.trailing_zeros(), u128::BITS - 1 - begins.leading_zeros())) }
}

/// The bits of `pages` (1 to 128) pages from `first`.
pub(super) const fn mask(first: u32, pages: u32) -> u128 {
    (u128::MAX >> (u128::BITS - pages)) << first
}

/// The ranges of set bits, lowest first.
pub(super) fn set_ranges(mut bits: u128) -> impl Iterator<Item = Range<u32>> {
    let mut offset = 0;
    core::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let skip = bits.trailing_zeros();
        bits >>= skip;
        let length = bits.trailing_ones();
        let start = offset + skip;
        offset = start + length;
        bits = if length == u128::BITS { 0 } else { bits >> length };
        Some(start..offset)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn longest_plainly(in_use: u128) -> u32 {
        let (mut best, mut run) = (0, 0);
        for page in 0..128 {
            run = if in_use >> page & 1 == 0 { run + 1 } else { 0 };
            best = best.max(run);
        }
        best
    }

    fn begins_plainly(in_use: u128, pages: u32) -> Vec<u32> {
        (0..=128 - pages).filter(|&first| in_use & mask(first, pages) == 0).collect()
    }

    // Uniform bits have no long ranges: make some with two and-ed or or-ed words.
    fn bitmaps() -> impl Strategy<Value = u128> {
        (any::<u128>(), any::<u128>(), any::<u128>(), 0u32..128, 1u32..=128).prop_map(
            |(a, b, c, first, pages)| {
                let pages = pages.min(128 - first).max(1);
                (a & b & c) & !mask(first, pages)
            },
        )
    }

    proptest! {
        #[test]
        fn longest_is_that_of_a_plain_count(in_use in bitmaps()) {
            prop_assert_eq!(longest_free_range(in_use), longest_plainly(in_use));
        }

        #[test]
        fn what_begins_at_a_multiple_is_that_of_a_plain_search(
            in_use in bitmaps(), pages in 1u32..=64, shift in 0u32..7
        ) {
            let mut begins = begins_plainly(in_use, pages);
            begins.retain(|first| first % (1 << shift) == 0);
            let ends = begins.first().copied().zip(begins.last().copied());
            prop_assert_eq!(find_aligned(in_use, pages, 1 << shift), ends);
        }

        #[test]
        fn what_is_known_of_the_longest_range_changes_nothing(
            in_use in bitmaps(), first in 0u32..128, pages in 1u32..=128, more in 0u32..=128
        ) {
            let before = longest_plainly(in_use);
            let most = (before + more).clamp(1, 128);
            prop_assert_eq!(longest_up_to(in_use, most), before);
            let freed = mask(first, pages.min(128 - first).max(1));
            let after = longest_plainly(in_use & !freed);
            prop_assert_eq!(longest_after_free(in_use & !freed, freed, before), after);
        }

        #[test]
        fn found_ranges_are_the_outermost_ones(in_use in bitmaps(), pages in 1u32..=128) {
            let begins = begins_plainly(in_use, pages);
            prop_assert_eq!(find_lowest(in_use, pages), begins.first().copied());
            prop_assert_eq!(find_highest(in_use, pages), begins.last().copied());
        }

        #[test]
        fn ranges_cover_exactly_the_set_bits(bits in bitmaps()) {
            let mut back = 0u128;
            let mut end = None;
            for range in set_ranges(bits) {
                prop_assert!(end.is_none_or(|end| range.start > end), "ranges are apart");
                back |= mask(range.start, range.end - range.start);
                end = Some(range.end);
            }
            prop_assert_eq!(back, bits);
        }
    }

    #[test]
    fn edges() {
        assert_eq!(longest_free_range(0), 128);
        assert_eq!(longest_free_range(u128::MAX), 0);
        assert_eq!(find_lowest(0, 128), Some(0));
        assert_eq!(find_lowest(1, 128), None);
        assert_eq!(find_highest(0, 1), Some(127));
        assert_eq!(set_ranges(u128::MAX).collect::<Vec<_>>(), vec![0..128]);
        assert_eq!(set_ranges(0).count(), 0);
    }
}
