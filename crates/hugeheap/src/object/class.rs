//! Size classes: which block a request gets.
//!
//! ```text
//!   bytes       1 … 576            577 … 4096                    4097 … 1 MiB     above
//!   block       next multiple      next of 19 sizes that         spans, whole     whole
//!               of 16              cut a heap page without rest  heap pages       arenas
//! ```
//!
//! Two more sizes, 5,440 and 8,192, are for collected and hardened heaps only.
//!
//! A heap page is cut into blocks of one class, from its beginning. Its bitmap has a bit per *granule* of 16
//! bytes, not per block, so that the bit of an address is found by a shift, without a division, and an address
//! inside a block meets a bit that no block begins at. 64 neighbouring granules are a *window*: one word of the
//! bitmap, 1 KiB of the page.
//!
//! ```text
//!   cache lines            │                │                │
//!   64 bytes        ├ h ┼ object ──┤├ h ┼ object ──┤        all in one line
//!   64, headed               ├ h ┼ object ──┤├ h ┼ object ──┤        h: what lies before the object
//! ```
//!
//! A *headed* class has the blocks of another one, of whole cache lines, but the first one begins 16 bytes
//! before a line. It is for interpreters whose objects have a header of so many bytes in front: the object
//! begins with a line, and its header ends the line before. Their collector looks at the header of each object,
//! and at the object. Where both are in one line, and the objects that follow each other in its lists a few
//! lines apart, the processor foresees nothing, and each object is waited for; a second line that follows the
//! first is what it takes for the beginning of more. CPython's collection of 330,000 dictionaries and lists
//! from `json.loads` takes half as long (`docs/measurements/cyclic.py`). pymalloc has objects there, too,
//! because its pages have a header of 48 bytes.
//!
//! Granules are the same in all classes. With granules of 64 bytes in pages of blocks above 576 bytes each free
//! had to foresee which of the two it was: of the branches of `glibc-thread` that were not foreseen that was a
//! third (`valgrind --tool=callgrind --branch-sim=yes bench/target/release/workloads-hugeheap glibc-thread`).

use crate::arena::HEAP_PAGE_BYTES;

/// Largest block of a size class, in bytes. Two blocks to a heap page.
pub const MAX_BLOCK: usize = 8 << 10;

/// Largest request, in bytes, that gets a block of its class. Of longer ones a heap page has room for three or
/// two, and what they are rounded to is up to half as much again as they ask for: they get blocks of
/// [spans](super::spans). But in hardened heaps, and in collected ones, which move what is in their way.
pub const MAX_BINNED: usize = 4 << 10;

/// Largest block, in bytes, of the classes in steps of 16: pymalloc's range, in its steps, and 64 bytes more. A
/// request of a power of two is often one of a few bytes more, for a header or a zero at the end: with 512 and
/// 640 for the next class a program with a twelfth of its objects a byte above 512 had 4 % more resident memory
/// than with malloc.
pub const MAX_SMALL: usize = 576;

/// Bytes of a granule, as a power of two. The alignment of every block.
pub(crate) const GRANULE_SHIFT: u32 = 4;

/// Number of small classes; class `n` has blocks of `16 n` bytes. Class 0 does not exist, so that a zeroed tag
/// means nothing.
const SMALL: usize = MAX_SMALL >> GRANULE_SHIFT;

/// Blocks of the medium classes in bytes: the largest multiple of 64 that fits a heap page 25, 23, 21, … 2
/// times. So at most a twentieth of a page is left over. Powers of two are among them for requests that are
/// aligned.
const MEDIUM: [u16; 21] = [
    640, 704, 768, 832, 896, 960, 1024, 1088, 1152, 1216, 1344, 1472, 1600, 1792, 2048, 2304, 2688, 3264,
    4096, 5440, 8192,
];

/// Number of classes that requests are rounded to, and one more than the highest of them.
pub const SIZES: usize = 1 + SMALL + MEDIUM.len();

/// The classes of which there are headed ones: those of one and two cache lines. Nearly all objects of an
/// interpreter that fill cache lines are of one (dictionaries, lists, pairs); more have no number in a tag.
const HEADED: [Class; 2] = [small_class_of(CACHE_LINE), small_class_of(2 * CACHE_LINE)];

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

/// Bytes of the header in front of an object: two words, as CPython has them.
const HEADER: usize = 16;

/// Number of classes, and one more than the highest. Headed ones come last.
pub const CLASSES: usize = SIZES + HEADED.len();

/// Windows of a heap page.
pub(crate) const WINDOWS: usize = HEAP_PAGE_BYTES >> (GRANULE_SHIFT + 6);

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
    /// Windows in which a block begins, as a bitmap: all of them up to a kibibyte.
    pub(crate) windows: u16,
    /// For each window the granules at which a block begins.
    pub(crate) starts: [u64; WINDOWS],
    /// How many these are.
    begin: [u8; WINDOWS],
    /// Where in the page the first block begins, in bytes.
    pub(crate) first: u32,
}

impl Shape {
    /// How many blocks those of a window are. All of them in a window without a live block, for which bits are
    /// not counted: without an instruction for it that takes twelve.
    #[inline(always)]
    pub(crate) fn blocks_of(&self, window: usize, blocks: u64) -> u32 {
        if blocks == self.starts[window] { u32::from(self.begin[window]) } else { blocks.count_ones() }
    }
}

/// The class that requests of the size of its blocks are rounded to: another one for headed classes only. What
/// a tag has in place of a class stays what it is.
pub(crate) const fn plain(class: Class) -> Class {
    if class >= SIZES && class < CLASSES { HEADED[class - SIZES] } else { class }
}

/// The headed class of a class that has one, and the class itself of any other.
pub(crate) const fn headed(class: Class) -> Class {
    let mut number = 0;
    while number < HEADED.len() {
        if HEADED[number] == class {
            return SIZES + number;
        }
        number += 1;
    }
    class
}

const fn bytes_of(class: Class) -> usize {
    let class = plain(class);
    if class <= SMALL { class << GRANULE_SHIFT } else { MEDIUM[class - SMALL - 1] as usize }
}

const fn shape_of(class: Class) -> Shape {
    let bytes = bytes_of(class);
    let mut start = if class < SIZES { 0 } else { CACHE_LINE - HEADER };
    let mut shape = Shape {
        bytes: bytes as u32,
        blocks: 0,
        windows: 0,
        starts: [0; WINDOWS],
        begin: [0; WINDOWS],
        first: start as u32,
    };
    if class == 0 {
        return shape;
    }
    while start + bytes <= HEAP_PAGE_BYTES {
        let granule = start >> GRANULE_SHIFT;
        shape.starts[granule / 64] |= 1 << (granule % 64);
        shape.windows |= 1 << (granule / 64);
        shape.begin[granule / 64] += 1;
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

/// Class of each size, in steps of a granule.
const BLOCK_CLASSES: [u8; (MAX_BLOCK >> GRANULE_SHIFT) + 1] = {
    let mut classes = [0; (MAX_BLOCK >> GRANULE_SHIFT) + 1];
    let (mut step, mut class) = (1, 1);
    while step < classes.len() {
        if bytes_of(class) < step << GRANULE_SHIFT {
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
    (bytes + 15) >> GRANULE_SHIFT
}

/// The class of a request of at most [`MAX_BLOCK`] bytes; 0 for 0 bytes.
pub(crate) const fn block_class_of(bytes: usize) -> Class {
    BLOCK_CLASSES[(bytes + 15) >> GRANULE_SHIFT] as Class
}

/// The same with 0 bytes as 1.
pub(crate) const fn class_of(bytes: usize) -> Class {
    if bytes == 0 { 1 } else { block_class_of(bytes) }
}

/// Whether a request of so many bytes, at most [`MAX_BLOCK`], may have a block of that class.
pub(crate) fn fits(bytes: usize, class: Class) -> bool {
    class_of(bytes) == plain(class)
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
        if class == SIZES {
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
        assert_eq!(bytes_of(SIZES - 1), MAX_BLOCK);
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
            let rest = HEAP_PAGE_BYTES - used - shape.first as usize;
            assert!(rest < shape.bytes as usize, "class {class}: room for one more");
            assert!(used * 20 >= HEAP_PAGE_BYTES * 19, "class {class}: {used} bytes used of a page");
        }
    }

    #[test]
    fn what_follows_a_header_begins_with_a_cache_line() {
        let headed_ones: Vec<_> = (1..SIZES).filter(|&class| headed(class) != class).collect();
        assert_eq!(headed_ones, HEADED);
        for class in headed_ones.into_iter().map(headed) {
            let shape = &SHAPES[class];
            assert_eq!((bytes_of(class), plain(class)), (bytes_of(plain(class)), plain(class)));
            for granule in
                (0..WINDOWS * 64).filter(|granule| shape.starts[granule / 64] >> (granule % 64) & 1 != 0)
            {
                assert_eq!(((granule << GRANULE_SHIFT) + HEADER) % CACHE_LINE, 0, "class {class}");
            }
        }
        assert!((1..SIZES).all(|class| SHAPES[class].first == 0 && plain(class) == class));
    }

    #[test]
    fn medium_blocks_are_the_largest_of_as_many_to_a_page() {
        let mut sizes: Vec<usize> = (2..=25).rev().map(|blocks| HEAP_PAGE_BYTES / blocks / 64 * 64).collect();
        sizes.dedup();
        assert_eq!(MEDIUM.map(usize::from).to_vec(), sizes);
    }
}
