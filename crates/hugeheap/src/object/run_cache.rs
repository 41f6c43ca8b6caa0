//! The page runs that a heap keeps: lists by length, and how much may be in them.
//!
//! ```text
//!   kept[length]  ─▶ mark of the run's first page ── next ─▶ mark of the next ─▶ 0       what was kept last is first
//!   pages         in all lists                    ≤ limit:  LEAST … MOST
//!   low           the least that `pages` was since somebody looked: nobody needed these
//!   spilled[length]   runs that found no room, and went to the arenas
//! ```
//!
//! A *spill* makes room: kept runs go to the arenas, those of one length after the other, so that what a program does no longer need makes place for what it does. A run that is wanted after one of its length was spilled, and has to come from the arenas, is *missed*:
//! the limit grows by its length. (Of its length: what a growing list leaves behind is not what it needs next. When any run that was spilled counted, sixty lists that grew in turn to 300 KB held 158 % of their memory instead of 132.) What is *surplus*, because nobody needed it since the last look, goes, and the limit with it (see [`surplus`](super::surplus)).
//!
//! So a program that needs few runs at a time keeps 512 KiB at most, and one that takes a hundred buffers of 16 KiB and frees them keeps all of them as long as it does that. With a bound of 512 KiB for all, and four to sixteen runs of each length, those hundred took 3.8 times as
//! long as with mimalloc, and twenty of 100 kB eight times.
//!
//! A fork by another thread may come between any two instructions of the owner: the heap is not marked as busy here, for which a child would lose all of it. So what is kept changes with one store, that of a list's first run; a run that is being taken or kept at that moment is
//! used by nobody in the child, and no more. `pages` may then be too high by that run, never too low; it is corrected when the lists are found empty.

use super::mark::Mark;
use core::sync::atomic::{Ordering, compiler_fence};

/// Longest run that is kept, in heap pages: 512 KiB. Longer ones are used for longer than the lock takes.
pub(super) const LONGEST: usize = 32;

/// Heap pages that may be kept in any heap: 512 KiB.
pub(super) const LEAST: u32 = 32;

/// Heap pages that may be kept where the program shows that it needs them: 8 MiB. With 4 MiB the peers' workload `buffers`, stacks of up to a hundred buffers of 8 to 128 KiB, takes 0.96 s, with 8 0.55 and with 16 0.48.
const MOST: u32 = 512;

/// The part of the limit that a spill leaves free: the lock and the clock are paid once for some runs.
const SLACK: u32 = 8;

/// Runs that go to the arenas together, at most.
pub(super) const TOGETHER: usize = 32;

/// Runs that are taken out of a cache, by their addresses.
///
/// With room for one more than are taken out together: the one that found no room.
pub(super) struct Spilled {
    runs: [usize; TOGETHER + 1],
    count: usize,
}

impl Spilled {
    pub(super) const fn none() -> Self {
        Self { runs: [0; TOGETHER + 1], count: 0 }
    }

    pub(super) fn add(&mut self, run: usize) {
        self.runs[self.count] = run;
        self.count += 1;
    }

    pub(super) fn is_full(&self) -> bool {
        self.count >= TOGETHER
    }

    pub(super) fn runs(&self) -> &[usize] {
        &self.runs[..self.count]
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct RunCache {
    /// Address of the first run of each length; 0: none is kept.
    kept: [usize; LONGEST],
    pages: u32,
    limit: u32,
    low: u32,
    spilled: [u8; LONGEST],
    /// The length that is spilled next, less one.
    turn: u32,
}

impl RunCache {
    pub(crate) const EMPTY: Self =
        Self { kept: [0; LONGEST], pages: 0, limit: LEAST, low: 0, spilled: [0; LONGEST], turn: 0 };

    /// Heap pages in all of them.
    pub(super) fn pages(&self) -> u32 {
        self.pages
    }

    /// The same of a heap of another thread.
    ///
    /// # Safety
    /// It is a heap's.
    pub(super) unsafe fn pages_of(cache: *const Self) -> u32 {
        // SAFETY: by the contract.
        unsafe { (&raw const (*cache).pages).read_volatile() }
    }

    /// Whether more is kept than any heap may.
    pub(super) fn is_raised(&self) -> bool {
        self.pages > LEAST
    }

    /// Takes the run of `length` pages (1 to [`LONGEST`]) that was kept last. `mark`: finds the mark of a kept run.
    #[inline(always)]
    pub(super) fn take(&mut self, length: usize, mark: impl FnOnce(usize) -> &'static Mark) -> Option<usize> {
        let run = self.kept[length - 1];
        if run == 0 {
            return None;
        }
        self.kept[length - 1] = mark(run).links.next.load(Ordering::Relaxed);
        compiler_fence(Ordering::Release);
        self.pages -= length as u32;
        self.low = self.low.min(self.pages);
        Some(run)
    }

    /// Keeps the run of a mark. Says no where there is no room.
    #[inline(always)]
    pub(super) fn keep(&mut self, length: usize, run: usize, mark: &Mark) -> bool {
        if self.pages + length as u32 > self.limit {
            return false;
        }
        self.pages += length as u32;
        mark.links.next.store(self.kept[length - 1], Ordering::Relaxed);
        // What is in a list is whole.
        compiler_fence(Ordering::Release);
        self.kept[length - 1] = run;
        true
    }

    /// Makes room for a run of `length` pages. Says no where there can be none.
    pub(super) fn make_room(
        &mut self,
        length: usize,
        spilled: &mut Spilled,
        mark: impl Fn(usize) -> &'static Mark,
    ) -> bool {
        let before = spilled.runs().len();
        let fits = length as u32 <= self.limit && {
            let left = (self.limit - self.limit / SLACK).min(self.limit - length as u32);
            self.reduce(left, spilled, &mark);
            self.pages <= self.limit - length as u32
        };
        let gone = spilled.runs()[before..].iter().map(|&run| mark(run).free() as usize);
        for length in gone.chain((!fits).then_some(length)) {
            let count = &mut self.spilled[length - 1];
            *count = count.saturating_add(1);
        }
        fits
    }

    /// A run of `length` pages was wanted and had to come from the arenas. Says whether the limit grew.
    pub(super) fn missed(&mut self, length: usize) -> bool {
        let (before, spilled) = (self.limit, &mut self.spilled[length - 1]);
        if *spilled > 0 {
            *spilled -= 1;
            self.limit = (before + length as u32).min(MOST);
        }
        self.limit > before
    }

    /// Takes out what is surplus, or everything; says whether there is more than room for it.
    pub(super) fn shed(
        &mut self,
        all: bool,
        spilled: &mut Spilled,
        mark: impl Fn(usize) -> &'static Mark,
    ) -> bool {
        let surplus = if all { self.pages } else { self.low.min(self.pages) };
        let before = self.pages;
        self.reduce(before - surplus, spilled, mark);
        let went = before - self.pages;
        self.limit = self.limit.saturating_sub(went).max(LEAST).max(self.pages);
        let more = spilled.is_full() && went < surplus;
        self.low = if more { surplus - went } else { self.pages };
        self.spilled = [0; LONGEST];
        more
    }

    /// Takes runs out, of one length after the other, until at most so many pages are left, or there is no room for more.
    fn reduce(&mut self, pages: u32, spilled: &mut Spilled, mark: impl Fn(usize) -> &'static Mark) {
        let mut passed = 0;
        while self.pages > pages && !spilled.is_full() {
            match self.take(self.turn as usize + 1, &mark) {
                Some(run) => {
                    spilled.add(run);
                    passed = 0;
                }
                // Counted, and in no list: see above.
                None if passed == LONGEST => (self.pages, self.low) = (0, 0),
                None => {
                    self.turn = (self.turn + 1) % LONGEST as u32;
                    passed += 1;
                }
            }
        }
    }

    /// The runs that are kept: for the verifier.
    pub(super) fn runs(
        &self,
        mark: impl Fn(usize) -> &'static Mark + Copy,
    ) -> impl Iterator<Item = (usize, usize)> {
        (1..).zip(self.kept).flat_map(move |(length, first)| {
            let run = |run| Some(run).filter(|&run| run != 0);
            let next = move |&kept: &usize| run(mark(kept).links.next.load(Ordering::Relaxed));
            core::iter::successors(run(first), next).map(move |run| (length, run))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Marks of as many runs as there are numbers; the number of a run is its address.
    struct Runs {
        marks: &'static [Mark],
        cache: RunCache,
        live: Vec<usize>,
        free: Vec<usize>,
        kept: BTreeSet<usize>,
        asked: usize,
    }

    impl Runs {
        fn new() -> Self {
            // SAFETY: a mark is made of atomics, for which zero is a value.
            let marks: Vec<Mark> = (0..10_000).map(|_| unsafe { core::mem::zeroed() }).collect();
            Self {
                marks: marks.leak(),
                cache: RunCache::EMPTY,
                live: Vec::new(),
                free: (1..10_000).collect(),
                kept: BTreeSet::new(),
                asked: 0,
            }
        }

        fn mark(&self) -> impl Fn(usize) -> &'static Mark + Copy + use<> {
            let marks = self.marks;
            move |run| &marks[run]
        }

        fn length(&self, run: usize) -> usize {
            self.marks[run].free().into()
        }

        fn take(&mut self, length: usize) -> usize {
            let run = self.cache.take(length, self.mark()).unwrap_or_else(|| {
                self.cache.missed(length);
                self.asked += 1;
                let run = self.free.pop().expect("enough");
                self.marks[run].set_free(length as u16);
                self.kept.insert(run);
                run
            });
            assert!(self.kept.remove(&run), "{run} was not there");
            assert_eq!(self.length(run), length);
            self.live.push(run);
            run
        }

        fn take_many(&mut self, count: usize, length: usize) {
            (0..count).for_each(|_| _ = self.take(length));
        }

        /// As [`Own::keep_or_spill`](super::super::heap::Own).
        fn give(&mut self, run: usize) {
            let (mark, length) = (self.mark(), self.length(run));
            let mut spilled = Spilled::none();
            self.kept.insert(run);
            let cache = &mut self.cache;
            let kept = cache.keep(length, run, mark(run))
                || cache.make_room(length, &mut spilled, mark) && cache.keep(length, run, mark(run));
            if !kept {
                spilled.add(run);
            }
            self.gone(&spilled);
        }

        fn give_all(&mut self) {
            while let Some(run) = self.live.pop() {
                self.give(run);
            }
        }

        fn gone(&mut self, spilled: &Spilled) {
            for &run in spilled.runs() {
                assert!(self.kept.remove(&run), "{run} was not kept");
                self.free.push(run);
            }
        }

        /// A look.
        fn shed(&mut self, all: bool) {
            let mut more = true;
            while more {
                let mut spilled = Spilled::none();
                more = self.cache.shed(all, &mut spilled, self.mark());
                self.gone(&spilled);
            }
        }

        fn check(&self) {
            let kept: Vec<_> = self.cache.runs(self.mark()).collect();
            assert!(kept.iter().all(|&(length, run)| self.length(run) == length));
            let runs: BTreeSet<_> = kept.iter().map(|&(_, run)| run).collect();
            assert_eq!((runs.len(), &runs), (kept.len(), &self.kept));
            let pages: usize = kept.iter().map(|&(length, _)| length).sum();
            assert_eq!(self.cache.pages() as usize, pages);
            assert!(self.cache.pages <= self.cache.limit && self.cache.low <= self.cache.pages);
            assert!((LEAST..=MOST).contains(&self.cache.limit));
        }
    }

    proptest! {
        #[test]
        fn what_is_kept_is_what_was_freed_and_not_more_than_may_be(
            steps in proptest::collection::vec((0..8u8, 0..1000usize, 1..=LONGEST), 1..600),
        ) {
            let mut runs = Runs::new();
            for (step, which, length) in steps {
                match step {
                    0..=3 => _ = runs.take(length),
                    4..=6 if !runs.live.is_empty() => {
                        let run = runs.live.swap_remove(which % runs.live.len());
                        runs.give(run);
                    }
                    7 => runs.shed(which % 4 == 0),
                    _ => {}
                }
                runs.check();
            }
            runs.give_all();
            runs.shed(true);
            runs.check();
            prop_assert_eq!(runs.cache.pages(), 0);
        }
    }

    #[test]
    fn a_program_that_takes_many_and_frees_them_by_turns_soon_asks_for_none() {
        for (count, length) in [(100, 1), (20, 7), (8, 32)] {
            let mut runs = Runs::new();
            for _ in 0..4 {
                runs.take_many(count, length);
                runs.give_all();
                runs.check();
            }
            runs.asked = 0;
            for _ in 0..5 {
                runs.take_many(count, length);
                runs.give_all();
            }
            assert_eq!(runs.asked, 0, "{count} runs of {length} pages");
            runs.check();
        }
    }

    #[test]
    fn one_that_needs_many_once_keeps_few() {
        let mut runs = Runs::new();
        runs.take_many(1000, 1);
        runs.give_all();
        assert!(runs.cache.pages() <= LEAST);
    }

    #[test]
    fn what_a_program_does_no_longer_need_makes_room() {
        let mut runs = Runs::new();
        for (length, count) in [(2, 250), (3, 160), (32, 16)] {
            for _ in 0..6 {
                runs.take_many(count, length);
                runs.give_all();
            }
            runs.asked = 0;
            runs.take_many(count, length);
            runs.give_all();
            assert_eq!(runs.asked, 0, "{count} runs of {length} pages");
        }
        runs.check();
    }

    /// They asked for one page more each time, and had all that they had left.
    #[test]
    fn lists_that_grow_by_turns_keep_no_more_than_any_heap_may() {
        let mut runs = Runs::new();
        runs.take_many(60, 1);
        for length in 2..=LONGEST {
            for _ in 0..60 {
                let old = runs.live.remove(0);
                runs.take(length);
                runs.give(old);
            }
        }
        assert_eq!(runs.cache.limit, LEAST);
        runs.check();
    }

    #[test]
    fn what_nobody_needed_between_two_looks_goes_and_the_limit_with_it() {
        let mut runs = Runs::new();
        for _ in 0..6 {
            runs.take_many(200, 1);
            runs.give_all();
        }
        runs.shed(false);
        runs.take_many(50, 1);
        runs.give_all();
        assert_eq!(runs.cache.pages(), 200);
        runs.shed(false);
        assert_eq!((runs.cache.pages(), runs.cache.limit), (50, 50), "150 were never needed");
        runs.check();
        // Nobody needs any.
        runs.shed(false);
        assert_eq!((runs.cache.pages(), runs.cache.limit), (0, LEAST));
        runs.check();
    }

    /// A child that was forked while a run was taken or kept counts it, and has it in no list.
    #[test]
    fn pages_that_are_in_no_list_are_not_counted_for_ever() {
        let mut runs = Runs::new();
        runs.take_many(4, 4);
        runs.give_all();
        runs.cache.pages += 8;
        runs.shed(true);
        assert_eq!(runs.cache.pages(), 0);
        runs.check();
    }
}
