//! Lengths of what is longer than a block of a heap page: which one a request gets.
//!
//! ```text
//!   KiB        4.25  4.75  5.25  6    7    8    8.5   10   12   14   16   17     20   24   28   32   36   40   48   56   64   72   80   96   112  … 1024
//!   page run                                                          1                           2              3         4         5    6     7  …   32 heap pages
//!   span       4/15  3/10  4/12  3/8  4/9  4/8  8/15  5/8  3/4  7/8       16/15  5/4  3/2  7/4       9/4  5/2       7/2       9/2        heap pages / blocks
//! ```
//!
//! Page runs alone would waste up to a heap page of each: a buffer of 16 KiB and a header had 32, one of 8 KiB
//! and a header 16. The memory of such a program was twice what it asked for, and all of it is resident on huge
//! pages. Of what is shorter than that a heap page has room for three or two, 5,440 or 8,192 bytes: with
//! classes for these up to half as much again was lost. With the lengths between, which are those of
//! [spans](super::spans), it is at most a fifth more, in the mean of all sizes up to 128 KiB a thirteenth, and
//! a sixteenth just above 4, 8 and 16 KiB: buffers are mostly of a power of two and a header. Above 32 that
//! cannot be had: the longer spans that it takes leave as much of an arena.
//!
//! All are multiples of [`UNIT`], and blocks are aligned as their length is. A request with an alignment that
//! its length does not have gets the next one that has it.

use super::class::{MAX_BINNED, MAX_BLOCK, SHAPES, class_of};
use super::pages::MAX_RUN;
use crate::arena::HEAP_PAGE_BYTES;

/// The number of a length: page runs first, the shortest one is 0; then spans.
pub(crate) type Length = usize;

/// Heap pages of the longest page run that has a length: 1 MiB, as long as runs are. With 512 KiB a pair of
/// `malloc` and `free` of 1 MiB took 3,100 instructions instead of 250.
pub(super) const LONGEST: usize = 64;

/// How a page run is cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Of a block.
    bytes: u32,
    /// Heap pages.
    pub(super) pages: u32,
    /// Blocks.
    pub(super) blocks: u32,
}

impl Cut {
    /// Bytes of a block.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// KiB of a block, or of its greater part.
    pub(super) const fn kib(&self) -> u32 {
        self.bytes.div_ceil(1 << 10)
    }
}

/// Heap pages and blocks of spans, from short blocks to long ones. Few pages: those of a span come together,
/// and go together.
const SPAN_CUTS: [(u32, u32); 18] = [
    (4, 15),
    (3, 10),
    (4, 12),
    (3, 8),
    (4, 9),
    (4, 8),
    (8, 15),
    (5, 8),
    (3, 4),
    (7, 8),
    (16, 15),
    (5, 4),
    (3, 2),
    (7, 4),
    (9, 4),
    (5, 2),
    (7, 2),
    (9, 2),
];

/// How many lengths of spans there are.
pub(super) const SPANS: usize = SPAN_CUTS.len();

/// How many lengths there are.
pub(super) const LENGTHS: usize = LONGEST + SPANS;

/// Most blocks of a span.
pub(super) const MOST_BLOCKS: usize = 15;

/// Bytes that all lengths are multiples of: seven bits say how many of them lie before the first block of a
/// page ([`span_place`](super::span_place)).
pub(super) const UNIT: usize = 256;

/// All lengths.
pub(super) const CUTS: [Cut; LENGTHS] = {
    let mut cuts = [Cut { bytes: 0, pages: 0, blocks: 1 }; LENGTHS];
    let mut length = 0;
    while length < LENGTHS {
        cuts[length] = if length < LONGEST {
            let pages = length as u32 + 1;
            Cut { bytes: pages * HEAP_PAGE_BYTES as u32, pages, blocks: 1 }
        } else {
            let (pages, blocks) = SPAN_CUTS[length - LONGEST];
            let bytes = pages * HEAP_PAGE_BYTES as u32 / blocks;
            Cut { bytes: bytes - bytes % UNIT as u32, pages, blocks }
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
        kib[length] = CUTS[length].kib();
        length += 1;
    }
    kib
};

/// Bytes up to which lengths are looked up: all of spans are.
const LOOKED_UP: usize = 128 << 10;

const _: () = assert!(CUTS[LENGTHS - 1].bytes() < LOOKED_UP);

/// The length of each size up to that, in units.
const TABLE: [u8; LOOKED_UP / UNIT + 1] = {
    let mut table = [0; LOOKED_UP / UNIT + 1];
    let mut units = 1;
    while units < table.len() {
        let (mut best, mut length) = (LONGEST - 1, 0);
        while length < LENGTHS {
            let bytes = CUTS[length].bytes();
            if bytes >= units * UNIT && bytes < CUTS[best].bytes() {
                best = length;
            }
            length += 1;
        }
        table[units] = best as u8;
        units += 1;
    }
    table
};

/// The length of a request above [`MAX_BINNED`]; `None` for one that is longer than all of them.
#[inline(always)]
pub(super) const fn length_of(bytes: usize) -> Option<Length> {
    if bytes <= LOOKED_UP {
        Some(TABLE[bytes.div_ceil(UNIT)] as Length)
    } else {
        run_length(bytes.div_ceil(HEAP_PAGE_BYTES))
    }
}

/// The length that a block gets which grows to more than [`MAX_BINNED`] bytes and not more than [`MAX_BLOCK`]:
/// it is likely to grow on, and would be copied for each of the lengths between.
pub(super) const GROWN: Length = length_of_exactly(MAX_BLOCK);

const fn length_of_exactly(bytes: usize) -> Length {
    match length_of(bytes) {
        Some(length) if CUTS[length].bytes() == bytes => length,
        _ => panic!("no length"),
    }
}

/// Whether a request of so many bytes can have got a block of a span of that length.
#[inline(always)]
pub(super) fn fits_span(bytes: usize, length: Length) -> bool {
    let grew = length == GROWN && bytes <= MAX_BLOCK;
    bytes > MAX_BINNED && (grew || length_of(bytes) == Some(length))
}

/// The length of a page run.
pub(super) const fn run_length(pages: usize) -> Option<Length> {
    if pages.wrapping_sub(1) < LONGEST { Some(pages - 1) } else { None }
}

/// Bytes of what a heap hands out for a request of so many: of a block, a page run or a large block, as
/// [`Heap::usable_size`](super::Heap::usable_size) says afterwards. Hardened heaps hand out more, of their
/// guards.
///
/// The first blocks of a thread may be [longer](super::Heap::allocate_by_table).
///
/// For who has another allocator as well, and gives each what it serves best.
pub const fn block_bytes(bytes: usize) -> usize {
    if bytes <= MAX_BINNED {
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
    let mut least = bytes;
    // Ends at the latest with a page run.
    loop {
        let Some(rounded) = least.checked_next_multiple_of(align) else { return None };
        match length_of(rounded) {
            Some(length) if CUTS[length].bytes() % align != 0 => least = CUTS[length].bytes() + 1,
            found => return found,
        }
    }
}

/// Whether what a request gets is aligned to a heap page, whoever frees it and whatever becomes of it.
pub(super) const fn is_whole(bytes: usize) -> bool {
    bytes > MAX_BINNED && !matches!(length_of(bytes), Some(length) if is_span(length))
}

#[cfg(test)]
mod tests {
    use super::super::mark::SPAN_BLOCKS;
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
            if bytes <= 128 << 10 {
                (all, wasted_of_all) = (all + bytes, wasted_of_all + wasted);
            }
        }
        assert!(wasted_of_all * 13 <= all, "{wasted_of_all} of {all}");
        for (length, cut) in CUTS.iter().enumerate() {
            let (used, all) = (cut.bytes() * cut.blocks as usize, cut.pages as usize * HEAP_PAGE_BYTES);
            assert!(used <= all && (all - used) * 60 <= all, "length {length}");
            assert_eq!(is_span(length), cut.blocks > 1);
            assert!(cut.blocks as usize <= MOST_BLOCKS);
            // One mark has a place for so many blocks that begin in its page.
            assert!(cut.bytes() * SPAN_BLOCKS > HEAP_PAGE_BYTES, "length {length}");
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
