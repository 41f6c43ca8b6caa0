//! Which OS pages of an arena can be made alike: a policy, without system calls, and without a look at memory.
//!
//! ```text
//!                     granules, live: letters; free: dots
//!   OS page 3         A A . . . . . . B B . . . . . .  ┐
//!   OS page 17        . . . C C . . . . . . . . . D .  ├─ no two live at the same place: a group
//!   OS page 200       . . . . . E E E . . . . . . . .  ┘
//!   what all become   A A . C C E E E B B . . . . D .     each keeps its own, and gets the others' where it has nothing
//! ```
//!
//! Free granules mean nothing, so a page of a group can hold what lives in all of them, each at the place where
//! it lives. Then they are equal, and a kernel that [merges](super::merging) equal pages needs the memory of
//! one.
//!
//! Pages are taken by how much lives in them, the fullest first, and put into the first group that has room
//! (*first fit, decreasing*): what is full finds few partners, and what is nearly empty fits anywhere. All
//! groups are tried, which for the 512 OS pages of an arena is at most 131,328 comparisons of four words. The
//! best of those that fit is no better than the first (9,803 groups of 48,738 pages instead of 9,820, of blocks
//! of 16 to 512 bytes of which a tenth lives), and pages of all arenas together, 64 tries each, are worse than
//! those of each arena alone with all tries (10,981).
//!
//! Invariants: no two pages of a group have a live granule in common; a group has at most as many pages as
//! granules, 256, which is also the most that the kernel has share one page (`max_page_sharing`).

use super::class::{GRANULE_SHIFT, Shape, WINDOWS};
use super::vacancy::Words;
use crate::arena::{ARENA_BYTES, HEAP_PAGE_BYTES};

/// Bytes of an OS page. Where it is another one, pages are not made alike: of larger ones few have partners.
pub(super) const OS_PAGE: usize = 4096;

/// OS pages of an arena.
pub(super) const PAGES: usize = ARENA_BYTES / OS_PAGE;

/// OS pages of a heap page.
pub(super) const PARTS: usize = HEAP_PAGE_BYTES / OS_PAGE;

/// Words of a bitmap over the granules of an OS page.
const WORDS: usize = WINDOWS / PARTS;

/// Granules of an OS page.
const GRANULES: usize = WORDS * 64;

/// A bitmap over the granules of an OS page.
pub(super) type Granules = [u64; WORDS];

/// No page, or no group.
const NONE: u16 = u16::MAX;

const _: () = assert!(PAGES < NONE as usize && GRANULES << GRANULE_SHIFT == OS_PAGE);

/// The OS pages of an arena and their groups. 40 KiB, so it is no local variable; zero, as memory from the
/// system is, it has no candidates.
#[repr(C)]
pub(super) struct Groups {
    /// What lives in each candidate; nothing: it is none.
    live: [Granules; PAGES],
    /// What lives in all pages of a group.
    union: [Granules; PAGES],
    /// Of a group its first page; of a page the next of its group.
    first: [u16; PAGES],
    next: [u16; PAGES],
    /// Candidates, the fullest first.
    order: [u16; PAGES],
    /// Where in the order the candidates of each number of live granules begin.
    starts: [u16; GRANULES + 1],
    count: u16,
}

impl Groups {
    /// A page may be made like others. `live` must hold all granules that somebody may use.
    pub(super) fn add(&mut self, page: usize, live: Granules) {
        self.live[page] = live;
    }

    /// What lives in a page.
    pub(super) fn live(&self, page: usize) -> &Granules {
        &self.live[page]
    }

    /// Forms the groups.
    pub(super) fn form(&mut self) {
        let candidates = self.sort();
        self.count = 0;
        for place in 0..candidates {
            let page = self.order[place];
            let live = self.live[page as usize];
            let groups = usize::from(self.count);
            let group = self.union[..groups].iter().position(|union| are_apart(union, &live));
            let group = group.unwrap_or_else(|| {
                (self.union[groups], self.first[groups]) = ([0; WORDS], NONE);
                self.count += 1;
                groups
            });
            self.union[group].iter_mut().zip(live).for_each(|(union, live)| *union |= live);
            self.next[page as usize] = self.first[group];
            self.first[group] = page;
        }
    }

    /// Orders the candidates by what lives in them, and says how many there are.
    fn sort(&mut self) -> usize {
        let rank =
            |live: &Granules| GRANULES - live.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        self.starts = [0; GRANULES + 1];
        self.live.iter().for_each(|live| self.starts[rank(live)] += 1);
        let mut before = 0;
        for start in &mut self.starts {
            before += core::mem::replace(start, before);
        }
        for (page, live) in self.live.iter().enumerate() {
            let start = &mut self.starts[rank(live)];
            self.order[usize::from(*start)] = page as u16;
            *start += 1;
        }
        // Those without a live granule come last, and are no candidates.
        PAGES - self.live.iter().filter(|live| rank(live) == GRANULES).count()
    }

    /// The groups of more than one page, by their numbers.
    pub(super) fn groups(&self) -> impl Iterator<Item = usize> + '_ {
        let several = |&group: &usize| self.next[usize::from(self.first[group])] != NONE;
        (0..usize::from(self.count)).filter(several)
    }

    /// The pages of a group.
    pub(super) fn pages(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        let page = |page: u16| (page != NONE).then_some(page);
        let pages =
            core::iter::successors(page(self.first[group]), move |&last| page(self.next[usize::from(last)]));
        pages.map(usize::from)
    }
}

/// Whether no granule is in both.
fn are_apart(one: &Granules, other: &Granules) -> bool {
    one.iter().zip(other).all(|(one, other)| one & other == 0)
}

/// The granules of the blocks of a heap page that are not free, by OS page.
pub(super) fn live_granules(shape: &Shape, free: &Words) -> [Granules; PARTS] {
    let mut live = [[0; WORDS]; PARTS];
    let block = shape.bytes as usize >> GRANULE_SHIFT;
    for (window, (starts, free)) in shape.starts.iter().zip(free).enumerate() {
        let mut starts = starts & !free;
        while starts != 0 {
            let first = window * 64 + starts.trailing_zeros() as usize;
            starts &= starts - 1;
            for granule in first..first + block {
                live[granule / GRANULES][granule % GRANULES / 64] |= 1 << (granule % 64);
            }
        }
    }
    live
}

/// The ranges of granules of a page that are, or are not, in a bitmap: first granule and how many.
pub(super) fn ranges(granules: &Granules, inside: bool) -> impl Iterator<Item = (usize, usize)> + '_ {
    let is = move |granule: &usize| (granules[granule / 64] >> (granule % 64) & 1 == 1) == inside;
    let mut next = 0;
    core::iter::from_fn(move || {
        let first = (next..GRANULES).find(is)?;
        next = (first..GRANULES).find(|granule| !is(granule)).unwrap_or(GRANULES);
        Some((first, next - first))
    })
}

#[cfg(test)]
mod tests {
    use super::super::class::SHAPES;
    use super::*;
    use proptest::prelude::*;

    fn groups() -> Box<Groups> {
        // Not made on the stack, for which it is large, nor by `Box::new_zeroed`, which the oldest compiler
        // does not have.
        // SAFETY: numbers, of which zero is a value, in memory of the layout that a box of them has.
        unsafe { Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<Groups>()).cast()) }
    }

    /// A page of blocks of so many granules, of which the `seed` says one in how many live.
    fn page(block: usize, seed: &mut u64) -> Granules {
        let mut live = [0; WORDS];
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let part = 2 + (*seed >> 60);
        for first in (0..GRANULES).step_by(block) {
            *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if (*seed >> 33) % part == 0 {
                (first..(first + block).min(GRANULES))
                    .for_each(|granule| live[granule / 64] |= 1 << (granule % 64));
            }
        }
        live
    }

    proptest! {
        #[test]
        fn each_candidate_is_in_one_group_and_no_two_of_a_group_overlap(
            blocks in proptest::collection::vec(0usize..40, PAGES),
            mut seed in any::<u64>(),
        ) {
            let mut groups = groups();
            let mut all = vec![[0; WORDS]; PAGES];
            // Twice, as nothing of the first may matter to the second.
            for _ in 0..2 {
                for (number, &block) in blocks.iter().enumerate() {
                    all[number] = if block == 0 { [0; WORDS] } else { page(block, &mut seed) };
                    groups.add(number, all[number]);
                }
                groups.form();
                let mut seen = vec![0; PAGES];
                for group in 0..usize::from(groups.count) {
                    let mut union = [0u64; WORDS];
                    for page in groups.pages(group) {
                        seen[page] += 1;
                        for (union, live) in union.iter_mut().zip(&all[page]) {
                            prop_assert_eq!(*union & live, 0);
                            *union |= live;
                        }
                    }
                    prop_assert_eq!(union, groups.union[group]);
                    prop_assert!(groups.pages(group).count() <= GRANULES);
                }
                for (page, live) in all.iter().enumerate() {
                    let candidate = u32::from(live.iter().any(|&word| word != 0));
                    prop_assert_eq!(seen[page], candidate);
                }
                let several: Vec<_> = groups.groups().collect();
                prop_assert!(several.iter().all(|&group| groups.pages(group).count() > 1));
                let alone = (0..usize::from(groups.count)).filter(|group| !several.contains(group));
                let mut last: Option<Granules> = None;
                for group in alone {
                    let live = all[groups.pages(group).next().expect("one")];
                    if let Some(last) = last {
                        prop_assert!(!are_apart(&last, &live), "two that are alone would have been a group");
                    }
                    last = Some(live);
                }
            }
        }

        #[test]
        fn ranges_and_their_complement_are_all_granules(words in any::<[u64; WORDS]>()) {
            let mut back = [[0u64; WORDS]; 2];
            for inside in [false, true] {
                for (first, count) in ranges(&words, inside) {
                    for granule in first..first + count {
                        back[usize::from(inside)][granule / 64] |= 1 << (granule % 64);
                    }
                }
            }
            prop_assert_eq!(back[1], words);
            prop_assert_eq!(back[0], words.map(|word| !word));
        }
    }

    #[test]
    fn live_granules_are_those_of_the_blocks_that_are_not_free() {
        for (class, shape) in SHAPES.iter().enumerate().skip(1) {
            for kept in [0, 1, usize::from(shape.blocks) - 1] {
                let first = shape.first as usize + kept * shape.bytes as usize;
                let mut free = [u64::MAX; WINDOWS];
                free[first >> 10] &= !(1 << (first >> GRANULE_SHIFT & 63));
                let live = live_granules(shape, &free);
                for (byte, granule) in (0..HEAP_PAGE_BYTES).step_by(16).zip(0..) {
                    let word = live[granule / GRANULES][granule % GRANULES / 64];
                    let inside = (first..first + shape.bytes as usize).contains(&byte);
                    assert_eq!(
                        word >> (granule % 64) & 1 == 1,
                        inside,
                        "class {class}, block {kept}, byte {byte}"
                    );
                }
            }
        }
    }

    #[test]
    fn of_small_blocks_of_which_a_tenth_lives_a_third_of_the_pages_is_enough() {
        let (mut groups, mut seed) = (groups(), 1u64);
        for number in 0..PAGES {
            let mut live = [0u64; WORDS];
            for first in (0..GRANULES).step_by(4) {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                if (seed >> 33) % 10 == 0 {
                    live[first / 64] |= 0b1111 << (first % 64);
                }
            }
            groups.add(number, live);
        }
        groups.form();
        assert!(usize::from(groups.count) < PAGES / 3, "{}", groups.count);
    }
}
