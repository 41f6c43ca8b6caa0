//! The size classes of a thread with few blocks.
//!
//! ```text
//!   request      …  129 … 144  145 … 160  161 … 176  177 … 192  …
//!   few blocks   …  ├──────────────── 192 ────────────────────┤ …     one page for all: the *group* of 192, which *stands* for it
//!   from its second page on, where that one is used up:
//!                …     144        160        176        192     …     a page for each
//! ```
//!
//! A heap has a page for each class that it ever needed, and a thread with a few blocks of each size needs all
//! of them. So a thread's heap begins with two classes for each doubling, of which each stands for those below
//! it. When the page of one is used up, it gets another one, and the others of its group are on their own: what
//! is lost by rounding up is a part of two pages for each group, however large the heap becomes.
//!
//! Only the table that leads a request to its bin is another one. Pages, bins and frees are as ever: the class
//! of a block is that of its page. So a request whose class is known when it is compiled
//! ([`Heap::allocate`](super::Heap::allocate) of a constant, and C's inline functions) gets its own class all
//! the same, and heaps with a handle, which are used that way, do not begin so.
//!
//! Of a block in a page of a class that stands for others nobody can tell for which of them it was taken: a
//! free with the size of any of them is [no mistake](super::Mistake::WrongSize). Hardened heaps have no groups.

use super::class::{CLASSES, Class, GRANULE_SHIFT, SHAPES, SIZES, block_class_of, headed};
use super::heap::{Heap, Own};
use super::space::Source;
use super::tag::{self, Ways};

/// Bytes of the classes that stand for others, two to a doubling. 256 threads with 64 blocks of 16 to 512 bytes
/// each have 74 MiB of anonymous memory after they replaced them at random, and 25 when they idled for four
/// seconds. With four to a doubling that is 102 and 31; with one, of which pages are used up sooner, 104 and
/// 35; without groups 150 and 45
/// (`bench/target/release/workloads-hugeheap idle-threads --mode memory --idle 4`). Above 2 KiB a block takes
/// most of an OS page whatever its class.
const STANDING: [usize; 10] = [96, 128, 192, 256, 384, 512, 768, 1024, 1472, 2048];

/// For each class the one that stands for it in a heap of few blocks; itself, if none does.
const STANDS_FOR: [u8; CLASSES] = {
    let mut stands = [0; CLASSES];
    let mut class = 1;
    while class < CLASSES {
        stands[class] = class as u8;
        let mut number = 0;
        // Headed classes are those of their own sizes, which stand for others: `ways` leads there.
        while number < STANDING.len() && class < SIZES {
            let standing = block_class_of(STANDING[number]);
            let above = number == 0 || class > block_class_of(STANDING[number - 1]);
            if above && class <= standing && class > block_class_of(LEAST) {
                stands[class] = standing as u8;
            }
            number += 1;
        }
        class += 1;
    }
    stands
};

/// Bytes up to which each class is on its own: there are four of them, of which threads mostly have blocks.
const LEAST: usize = 64;

/// The class that stands for a class in a heap of few blocks.
pub(super) const fn standing_for(class: Class) -> Class {
    STANDS_FOR[class] as Class
}

/// Whether what a tag has for a class is one that stands for others.
fn stands(class: Class) -> bool {
    (2..SIZES).contains(&class) && standing_for(class - 1) == class
}

/// The groups of a heap: a bit for each class that stands for others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups {
    /// Its group has no classes of its own.
    together: u64,
    /// Of these, those that have a page.
    begun: u64,
}

impl Groups {
    /// A heap without groups. All zero.
    pub(super) const NONE: Self = Self { together: 0, begun: 0 };

    /// Whether a class stands for its group.
    #[inline(always)]
    pub(super) fn has(&self, class: Class) -> bool {
        self.together >> class & 1 != 0
    }
}

const _: () = assert!(CLASSES <= 64, "a bit for each class");

impl<S: Source> Heap<S> {
    /// The heap is a thread's from now on, which may have few blocks.
    #[doc(hidden)]
    pub fn group(&mut self) {
        self.own().group();
    }
}

impl<S: Source> Own<S> {
    /// Has the classes of each group stand together, where none of them has pages with free blocks.
    fn group(&mut self) {
        if self.preset.is_some() {
            return;
        }
        for standing in STANDING.map(block_class_of) {
            let mut others = (1..standing).filter(|&class| standing_for(class) == standing);
            if others.all(|class| !self.has_free(class)) {
                let standing = self.headed_if(standing);
                self.groups.together |= 1 << standing;
                self.groups.begun &= !(1 << standing);
                self.groups.begun |= u64::from(self.has_free(standing)) << standing;
                self.lead(standing, true);
            }
        }
    }

    /// Whether a class has pages that are known to have free blocks, or a page at hand.
    fn has_free(&self, class: Class) -> bool {
        let lists = &self.lists[class];
        self.bins[class].page | lists.partial.first | lists.sparse.first != 0
    }

    /// The class in this heap: a headed one where it has them.
    fn headed_if(&self, class: Class) -> Class {
        if self.space.has_headers() { headed(class) } else { class }
    }

    /// Leads the requests of a group to the class that stands for it, or each to its own.
    fn lead(&mut self, standing: Class, together: bool) {
        let exact: &Ways = if self.space.has_headers() { &tag::HEADED_WAYS } else { &tag::WAYS };
        let most = SHAPES[standing].bytes as usize >> GRANULE_SHIFT;
        let plain = super::class::plain(standing);
        for step in (1..=most).rev() {
            if standing_for(block_class_of(step << GRANULE_SHIFT)) != plain {
                break;
            }
            self.ways[step] = if together { tag::tag(0, standing) as u16 } else { exact[step] };
        }
    }

    /// A page of a class that stands for its group is cut: the second one is the last that its group has together.
    #[cold]
    #[inline(never)]
    pub(super) fn count_page_of_group(&mut self, class: Class) {
        let bit = 1 << class;
        if self.groups.begun & bit == 0 {
            self.groups.begun |= bit;
        } else {
            self.groups.together &= !bit;
            self.lead(class, false);
        }
    }

    /// All classes are on their own: the next owner may be no thread.
    pub(super) fn ungroup(&mut self) {
        let groups = core::mem::replace(&mut self.groups, Groups::NONE);
        for standing in (1..CLASSES).filter(|&class| groups.has(class)) {
            self.lead(standing, false);
        }
    }

    /// Whether each size leads where its group says.
    pub(super) fn verify_ways(&self) -> Result<(), String> {
        for (step, &way) in self.ways.iter().enumerate().skip(1) {
            let alone = self.headed_if(block_class_of(step << GRANULE_SHIFT));
            let standing = self.headed_if(standing_for(block_class_of(step << GRANULE_SHIFT)));
            let expected = if self.groups.has(standing) { standing } else { alone };
            if tag::class_on(way.into()) != expected {
                let bytes = step << GRANULE_SHIFT;
                return Err(format!(
                    "{bytes} bytes lead to class {}, not {expected}",
                    tag::class_on(way.into())
                ));
            }
        }
        Ok(())
    }
}

/// Whether a request of so many bytes, at most [`MAX_BINNED`](super::class::MAX_BINNED), may have a block of a
/// class in a heap with groups.
pub(super) fn fits_in_group(bytes: usize, class: Class) -> bool {
    let plain = super::class::plain(class);
    stands(plain) && standing_for(super::class::class_of(bytes)) == plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_that_stands_for_another_is_at_most_half_as_long_again() {
        for class in 1..SIZES {
            let (bytes, standing) = (SHAPES[class].bytes, SHAPES[standing_for(class)].bytes);
            assert!(standing >= bytes && 2 * standing <= 3 * bytes, "{bytes} in {standing}");
            assert_eq!(standing_for(standing_for(class)), standing_for(class), "{bytes}");
        }
        let alone = (1..SIZES).filter(|&class| standing_for(class) == class).count();
        assert!(alone < SIZES / 2, "{alone} classes");
    }
}
