//! Which requests another allocator serves better where address space is limited.
//!
//! ```text
//!   128 KiB ─────────── runs ─────────── 1 MiB ──────────── large blocks ─────────────▶
//!   as many side by side as an arena has room for       whole arenas, at the end a tail
//!          └─ what is left of the arena ─┘                       └─ of the last one ─┘
//! ```
//!
//! An arena takes 2 MiB of a limit on address space (`RLIMIT_AS`, `ulimit -v`), whatever is used of it: with
//! blocks of 1,030 or 2,100 KiB a program had half of what it has with the C library, which maps each exactly
//! as long as it is. And a block that grows has to have its place and the next one within the limit; the C
//! library's grows where it is, or moves page by page.
//!
//! So where an eighth of the limit is taken, such a request goes to the allocator before, if who asks has one.
//! Until then everything is on huge pages as without a limit. What an embedder's heap is asked for is always
//! served here.

use super::layout::{ARENA_BYTES, HEAP_PAGE_BYTES};
use hugeheap_os::AddressSpaceLimit;

/// Least request in bytes that may be better served exactly: 128 KiB, from which on the C library makes
/// mappings. Heap pages waste an eighth at most of longer ones.
pub(crate) const LEAST: usize = 128 << 10;

/// Part of the limit, as a divisor, that has to be taken: as much as the first region of a heap under a limit.
const TAKEN: u64 = 8;

/// Part of an arena's bytes, as a divisor, that may be left over: as of the tail of a large block of which a
/// huge page is made.
const LEFT_OVER: usize = 8;

/// Part of the limit, as a divisor, above which a block is long: while it moves both of its places count, and
/// with the half that it may grow to that is a fifth of the limit.
const LONG: u64 = 16;

/// Whether a request of so many bytes is better served by an allocator that takes no more address space than that.
pub(crate) fn is_better_exact(bytes: usize, space: AddressSpaceLimit) -> bool {
    let is_taken = space.used > space.limit / TAKEN;
    bytes >= LEAST && is_taken && (bytes as u64 > space.limit / LONG || leaves_over(bytes))
}

/// Whether much of the arenas is left over that a block of so many bytes takes, and others like it.
fn leaves_over(bytes: usize) -> bool {
    let (taken, used) = if bytes <= ARENA_BYTES / 2 {
        let run = bytes.next_multiple_of(HEAP_PAGE_BYTES);
        (ARENA_BYTES, ARENA_BYTES / run * bytes)
    } else {
        // What no address space holds is refused by whoever is asked.
        (bytes.checked_next_multiple_of(ARENA_BYTES).unwrap_or(bytes), bytes)
    };
    taken - used > taken / LEFT_OVER
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 3000 << 20;

    fn exact(bytes: usize) -> bool {
        is_better_exact(bytes, AddressSpaceLimit { limit: LIMIT, used: LIMIT / 2 })
    }

    #[test]
    fn what_fills_its_arenas_stays_on_huge_pages_under_a_limit() {
        for bytes in [1 << 20, 2 << 20, 500_000, 290_000, 4_000_000, 40_000_000, 100, 100_000] {
            assert!(!exact(bytes), "{bytes}");
        }
    }

    /// A program had half of its limit with such blocks.
    #[test]
    fn what_leaves_much_of_its_arenas_over_is_better_exact() {
        for bytes in [1030 << 10, 2100 << 10, 5_000_000, 730_000, 300_000, 1_200_000] {
            assert!(exact(bytes), "{bytes}");
        }
    }

    #[test]
    fn a_long_block_is_better_exact_because_it_may_move() {
        assert!(!exact(LIMIT as usize / 17) && exact(LIMIT as usize / 15) && exact(usize::MAX));
    }

    #[test]
    fn as_long_as_little_of_the_limit_is_taken_nothing_is() {
        for bytes in [1030 << 10, 1 << 30, usize::MAX] {
            assert!(!is_better_exact(bytes, AddressSpaceLimit { limit: LIMIT, used: LIMIT / 8 }));
        }
    }

    /// With a mapping for each the limit on mappings would come first, and malloc's heap is no better.
    #[test]
    fn what_is_shorter_than_a_mapping_of_the_c_library_is_served_here() {
        assert!((1..LEAST).all(|bytes| !exact(bytes)));
    }
}
