//! Lengths of what is longer than a block of a heap page: which one a request gets.
//!
//! ```text
//!   KiB        9   10   12   14   16   18   20   24   28   32   36   40   48   56   64   72   80   96   112   128   144  …  512
//!   page run                       1                        2              3         4         5    6     7     8     9  …   32 heap pages
//!   span       4/7  5/8  3/4  7/8     9/8  5/4  3/2  7/4       9/4  5/2       7/2       9/2        heap pages / blocks
//! ```
//!
//! Page runs alone would waste up to a heap page of each: a buffer of 16 KiB and a header had 32, one of 8 KiB and a header 16. The memory of such a program was twice what it asked for, and all of it is resident
//! on huge pages. With the lengths between, which are those of [spans](super::spans), it is at most a fifth more, and in the mean of all sizes up to 128 KiB a thirteenth.
//!
//! All are multiples of a kibibyte, and all but that of 9 KiB, of which no power of two cuts a span of few pages without rest, cut theirs exactly: so blocks are aligned as their length is, which buffers for direct
//! input and output want.

use super::class::{MAX_BLOCK, SHAPES, class_of};
use super::pages::MAX_RUN;
use crate::arena::HEAP_PAGE_BYTES;

/// The number of a length: page runs first, the shortest one is 0; then spans.
pub(crate) type Length = usize;

/// Heap pages of the longest page run that has a length, 512 KiB. Longer ones are used for longer than the arenas' lock takes, and are never kept.
pub(super) const LONGEST: usize = 32;

/// How a page run is cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Of a block, in KiB.
    pub(super) kib: u32,
    /// Heap pages.
    pub(super) pages: u32,
    /// Blocks.
    pub(super) blocks: u32,
}

impl Cut {
    /// Bytes of a block.
    pub(super) const fn bytes(&self) -> usize {
        (self.kib as usize) << 10
    }
}

/// Heap pages and blocks of spans, from short blocks to long ones. Few pages: those of a span come together, and go together.
const SPAN_CUTS: [(u32, u32); 12] =
    [(4, 7), (5, 8), (3, 4), (7, 8), (9, 8), (5, 4), (3, 2), (7, 4), (9, 4), (5, 2), (7, 2), (9, 2)];

/// How many lengths of spans there are.
pub(super) const SPANS: usize = SPAN_CUTS.len();

/// How many lengths there are.
pub(super) const LENGTHS: usize = LONGEST + SPANS;

/// Most blocks of a span.
pub(super) const MOST_BLOCKS: usize = 8;

/// KiB of a heap page.
const PAGE_KIB: u32 = (HEAP_PAGE_BYTES >> 10) as u32;

/// All lengths.
pub(super) const CUTS: [Cut; LENGTHS] = {
    let mut cuts = [Cut { kib: 0, pages: 0, blocks: 1 }; LENGTHS];
    let mut length = 0;
    while length < LENGTHS {
        cuts[length] = if length < LONGEST {
            let pages = length as u32 + 1;
            Cut { kib: pages * PAGE_KIB, pages, blocks: 1 }
        } else {
            let (pages, blocks) = SPAN_CUTS[length - LONGEST];
            Cut { kib: pages * PAGE_KIB / blocks, pages, blocks }
        };
        length += 1;
    }
    cuts
};

/// KiB of each, for who needs no more.
pub(super) const KIB: [u32; LENGTHS] = {
    let mut kib = [0; LENGTHS];
    let mut length = 0;
    while length < LENGTHS {
        kib[length] = CUTS[length].kib;
        length += 1;
    }
    kib
};

/// KiB of the longest request that may get a block of a span: above it a heap page is an eighth at most.
const TABLE_KIB: usize = 128;

/// The length of each size, in KiB.
const TABLE: [u8; TABLE_KIB + 1] = {
    let mut table = [0; TABLE_KIB + 1];
    let mut kib = 1;
    while kib <= TABLE_KIB {
        let (mut best, mut length) = (TABLE_KIB / PAGE_KIB as usize - 1, 0);
        while length < LENGTHS {
            let fits = CUTS[length].kib as usize >= kib;
            if fits && CUTS[length].kib < CUTS[best].kib {
                best = length;
            }
            length += 1;
        }
        table[kib] = best as u8;
        kib += 1;
    }
    table
};

/// The length of a request above [`MAX_BLOCK`]; `None` for one that is longer than all of them.
#[inline(always)]
pub(super) const fn length_of(bytes: usize) -> Option<Length> {
    let kib = bytes.div_ceil(1 << 10);
    if kib <= TABLE_KIB { Some(TABLE[kib] as Length) } else { run_length(bytes.div_ceil(HEAP_PAGE_BYTES)) }
}

/// The length of a page run.
pub(super) const fn run_length(pages: usize) -> Option<Length> {
    if pages.wrapping_sub(1) < LONGEST { Some(pages - 1) } else { None }
}

/// Bytes of what a heap hands out for a request of so many: of a block, a page run or a large block, as [`Heap::usable_size`](super::Heap::usable_size) says afterwards. Hardened heaps hand out more, of their guards.
///
/// For who has another allocator as well, and gives each what it serves best.
pub const fn block_bytes(bytes: usize) -> usize {
    if bytes <= MAX_BLOCK {
        return SHAPES[class_of(bytes)].bytes as usize;
    }
    match length_of(bytes) {
        Some(length) => CUTS[length].bytes(),
        None if bytes <= MAX_RUN => bytes.next_multiple_of(HEAP_PAGE_BYTES),
        None => bytes,
    }
}

/// Whether a length is that of the blocks of a span.
#[inline(always)]
pub(super) const fn is_span(length: Length) -> bool {
    length >= LONGEST
}

/// The length of a request of that alignment, a power of two up to a heap page.
pub(super) const fn aligned_length_of(bytes: usize, align: usize) -> Option<Length> {
    match length_of(bytes) {
        Some(length) if CUTS[length].bytes() % align == 0 => Some(length),
        _ => run_length(bytes.div_ceil(HEAP_PAGE_BYTES)),
    }
}

/// Whether what a request gets is aligned to a heap page, whoever frees it and whatever becomes of it.
pub(super) const fn is_whole(bytes: usize) -> bool {
    bytes > MAX_BLOCK && !matches!(length_of(bytes), Some(length) if is_span(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_gets_the_shortest_length_that_holds_it() {
        for bytes in MAX_BLOCK + 1..=LONGEST * HEAP_PAGE_BYTES {
            let cut = CUTS[length_of(bytes).expect("not longer than all")];
            assert!(cut.bytes() >= bytes);
            let shorter = CUTS.iter().filter(|other| other.bytes() >= bytes && other.bytes() < cut.bytes());
            assert_eq!(shorter.count(), 0, "{bytes}");
        }
        assert_eq!(length_of(LONGEST * HEAP_PAGE_BYTES + 1), None);
        assert_eq!(length_of(usize::MAX), None);
    }

    #[test]
    fn at_most_a_fifth_of_a_request_is_wasted_a_thirteenth_in_the_mean_and_of_a_span_a_sixtieth() {
        let (mut all, mut wasted_of_all) = (0, 0);
        for bytes in MAX_BLOCK + 1..=LONGEST * HEAP_PAGE_BYTES {
            let wasted = CUTS[length_of(bytes).expect("not longer than all")].bytes() - bytes;
            assert!(wasted * 5 <= bytes, "{wasted} of {bytes}");
            if bytes <= TABLE_KIB << 10 {
                (all, wasted_of_all) = (all + bytes, wasted_of_all + wasted);
            }
        }
        assert!(wasted_of_all * 13 <= all, "{wasted_of_all} of {all}");
        for (length, cut) in CUTS.iter().enumerate() {
            let (used, all) = (cut.bytes() * cut.blocks as usize, cut.pages as usize * HEAP_PAGE_BYTES);
            assert!(used <= all && (all - used) * 60 <= all, "length {length}");
            assert_eq!(is_span(length), cut.blocks > 1);
            assert!(cut.blocks as usize <= MOST_BLOCKS);
            // One mark has a place for two blocks that begin in its page.
            assert!(cut.bytes() * 2 >= HEAP_PAGE_BYTES, "length {length}");
        }
    }

    #[test]
    fn an_aligned_request_gets_a_length_of_which_every_block_is_aligned() {
        for shift in 0..=14 {
            let align = 1 << shift;
            for bytes in (MAX_BLOCK + 1..=LONGEST * HEAP_PAGE_BYTES).step_by(511) {
                let cut = CUTS[aligned_length_of(bytes, align).expect("not longer than all")];
                assert!(cut.bytes() >= bytes && cut.bytes() % align == 0, "{bytes} aligned to {align}");
            }
        }
        assert_eq!(aligned_length_of(20 << 10, 4096), length_of(20 << 10));
        assert!(is_whole(16 << 10) && is_whole(600 << 10) && !is_whole(17 << 10) && !is_whole(100));
    }
}
