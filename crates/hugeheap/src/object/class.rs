//! Size classes: which block a request gets.
//!
//! ```text
//!   bytes       1 … 576            577 … 8192                    8193 … 1 MiB     above
//!   block       next multiple      next of 21 sizes that         whole heap       whole
//!               of 16              cut a heap page without rest  pages            arenas
//!   granule     16 bytes           64 bytes                      –                –
//!   window      1 KiB              4 KiB
//! ```
//!
//! A heap page is cut into blocks of one class, from its beginning. Its bitmap has a bit per *granule*, not per block, so that the bit of
//! an address is found by a shift, without a division, and an address inside a block meets a bit that no block begins at. 64
//! neighbouring granules are a *window*: one word of the bitmap.

use crate::arena::HEAP_PAGE_BYTES;

/// Largest request, in bytes, that gets a block; larger ones get page runs. Two blocks to a heap page.
pub const MAX_BLOCK: usize = 8 << 10;

/// Largest block, in bytes, with granules of 16 bytes: pymalloc's range, in its steps, and 64 bytes more. A request of a power of two is
/// often one of a few bytes more, for a header or a zero at the end: with 512 and 640 for the next class a program with a twelfth of its objects a
/// byte above 512 had 4 % more resident memory than with malloc.
pub const MAX_SMALL: usize = 576;

/// Bytes of a granule of small blocks, as a power of two. The alignment of every block.
pub(crate) const SMALL_SHIFT: u32 = 4;

/// Bytes of a granule of medium blocks, as a power of two. With 128 bytes classes were coarser than they have to be; with 32 a window of
/// the smallest ones would have three blocks.
pub(crate) const MEDIUM_SHIFT: u32 = 6;

/// Bytes of a granule of medium blocks.
const MEDIUM_GRANULE: usize = 1 << MEDIUM_SHIFT;

/// Number of small classes; class `n` has blocks of `16 n` bytes. Class 0 does not exist, so that a zeroed tag means nothing.
pub(crate) const SMALL: usize = MAX_SMALL >> SMALL_SHIFT;

/// Blocks of the medium classes in bytes: the largest multiple of a granule that fits a heap page 25, 23, 21, … 2 times. So at most a
/// twentieth of a page is left over. Powers of two are among them for requests that are aligned.
const MEDIUM: [u16; 21] = [
    640, 704, 768, 832, 896, 960, 1024, 1088, 1152, 1216, 1344, 1472, 1600, 1792, 2048, 2304, 2688, 3264,
    4096, 5440, 8192,
];

/// Number of classes, and one more than the highest.
pub const CLASSES: usize = 1 + SMALL + MEDIUM.len();

/// Windows of a heap page of small blocks.
pub(crate) const WINDOWS: usize = HEAP_PAGE_BYTES >> (SMALL_SHIFT + 6);

const _: () = assert!(WINDOWS == 16, "a u16 is a bitmap over the windows of a page");
const _: () = assert!(CLASSES < 63, "a class fits six bits, and 63 is left for page runs");

/// A size class: 1 to [`CLASSES`] − 1.
pub(crate) type Class = usize;

/// What the allocator needs to know of a class. One cache line with the patterns of the first windows.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Shape {
    /// Bytes of a block.
    pub(crate) bytes: u32,
    /// Blocks in a heap page.
    pub(crate) blocks: u16,
    /// Windows in which a block begins, as a bitmap.
    pub(crate) windows: u16,
    /// Granule as a power of two.
    pub(crate) shift: u32,
    /// For each window the granules at which a block begins.
    pub(crate) starts: [u64; WINDOWS],
}

const fn bytes_of(class: Class) -> usize {
    if class <= SMALL { class << SMALL_SHIFT } else { MEDIUM[class - SMALL - 1] as usize }
}

const fn shape_of(class: Class) -> Shape {
    let bytes = bytes_of(class);
    let shift = if class <= SMALL { SMALL_SHIFT } else { MEDIUM_SHIFT };
    let mut shape = Shape { bytes: bytes as u32, blocks: 0, windows: 0, shift, starts: [0; WINDOWS] };
    if class == 0 {
        return shape;
    }
    let mut start = 0;
    while start + bytes <= HEAP_PAGE_BYTES {
        let granule = start >> shift;
        shape.starts[granule / 64] |= 1 << (granule % 64);
        shape.windows |= 1 << (granule / 64);
        shape.blocks += 1;
        start += bytes;
    }
    shape
}

const fn shapes() -> [Shape; CLASSES] {
    let mut shapes = [shape_of(0); CLASSES];
    let mut class = 1;
    while class < CLASSES {
        shapes[class] = shape_of(class);
        class += 1;
    }
    shapes
}

/// All classes. 11 KiB, of which a program that uses few classes touches few lines.
pub(crate) static SHAPES: [Shape; CLASSES] = shapes();

// So a page of small blocks has free blocks in all its windows exactly when its mark has all bits.
const _: () = {
    let mut class = 1;
    while class <= SMALL {
        assert!(SHAPES[class].windows == u16::MAX);
        class += 1;
    }
};

/// Class of each size above [`MAX_SMALL`], in steps of a granule.
const MEDIUM_CLASSES: [u8; MAX_BLOCK / MEDIUM_GRANULE + 1] = {
    let mut classes = [0; MAX_BLOCK / MEDIUM_GRANULE + 1];
    let mut step = 0;
    while step < classes.len() {
        let mut class = SMALL + 1;
        while bytes_of(class) < step * MEDIUM_GRANULE {
            class += 1;
        }
        classes[step] = class as u8;
        step += 1;
    }
    classes
};

/// The class of a request of at most [`MAX_SMALL`] bytes; 0 for 0 bytes, which the slow path makes 1.
#[inline(always)]
pub(crate) const fn small_class_of(bytes: usize) -> Class {
    (bytes + 15) >> SMALL_SHIFT
}

/// The class of a request of at most [`MAX_BLOCK`] bytes. 0 bytes are 1.
pub(crate) const fn class_of(bytes: usize) -> Class {
    if bytes == 0 {
        1
    } else if bytes <= MAX_SMALL {
        small_class_of(bytes)
    } else {
        medium_class_of(bytes)
    }
}

/// The same where the request is known to be above [`MAX_SMALL`].
#[inline(always)]
pub(crate) const fn medium_class_of(bytes: usize) -> Class {
    MEDIUM_CLASSES[bytes.div_ceil(MEDIUM_GRANULE)] as Class
}

/// The class of a request with an alignment of at most a heap page; `None` when no class has it.
///
/// A block is aligned as its size is, because a heap page is cut from its beginning.
pub(crate) const fn aligned_class_of(bytes: usize, align: usize) -> Option<Class> {
    let mut bytes = if bytes > 0 { bytes } else { 1 };
    if align > 16 {
        bytes = match bytes.checked_next_multiple_of(align) {
            Some(bytes) => bytes,
            None => return None,
        };
    }
    if bytes > MAX_BLOCK || align > MAX_BLOCK {
        return None;
    }
    let mut class = class_of(bytes);
    // Ends at the latest at 8192.
    while bytes_of(class) & (align - 1) != 0 {
        class += 1;
        if class == CLASSES {
            return None;
        }
    }
    Some(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_class_that_holds_it() {
        for bytes in 0..=MAX_BLOCK {
            let class = class_of(bytes);
            assert!(bytes_of(class) >= bytes, "{bytes}");
            assert!(class == 1 || bytes_of(class - 1) < bytes, "{bytes} fits a smaller class than {class}");
        }
        assert_eq!(bytes_of(CLASSES - 1), MAX_BLOCK);
    }

    #[test]
    fn alignment_is_that_of_the_block() {
        for shift in 0..=13 {
            let align = 1 << shift;
            for bytes in (0..=MAX_BLOCK).step_by(7) {
                let class =
                    aligned_class_of(bytes, align).expect("8192 is aligned to everything up to itself");
                assert!(
                    bytes_of(class) >= bytes && bytes_of(class) % align.min(HEAP_PAGE_BYTES) == 0
                        || align <= 16
                );
            }
        }
        assert_eq!(aligned_class_of(MAX_BLOCK + 1, 16), None);
        assert_eq!(aligned_class_of(usize::MAX, 64), None);
        assert_eq!(aligned_class_of(1, HEAP_PAGE_BYTES), None);
    }

    #[test]
    fn a_page_is_cut_almost_without_rest() {
        for (class, shape) in SHAPES.iter().enumerate().skip(1) {
            let used = shape.bytes as usize * shape.blocks as usize;
            let starts: u32 = shape.starts.iter().map(|word| word.count_ones()).sum();
            assert_eq!(starts, u32::from(shape.blocks), "class {class}");
            assert!(HEAP_PAGE_BYTES - used < shape.bytes as usize, "class {class}: room for one more");
            assert!(used * 20 >= HEAP_PAGE_BYTES * 19, "class {class}: {used} bytes used of a page");
        }
    }

    #[test]
    fn medium_blocks_are_the_largest_of_as_many_to_a_page() {
        let mut sizes: Vec<usize> =
            (2..=25).rev().map(|blocks| HEAP_PAGE_BYTES / blocks / MEDIUM_GRANULE * MEDIUM_GRANULE).collect();
        sizes.dedup();
        assert_eq!(MEDIUM.map(usize::from).to_vec(), sizes);
    }
}
