//! The page runs, and blocks of [spans](super::spans), that a heap keeps: lists by [length](super::lengths),
//! and how much may be in them. What is said of runs here goes for both.
//!
//! ```text
//!   kept[length]  ─▶ mark of the run's first page ── next ─▶ mark of the next ─▶ 0       what was kept last is first
//!   kib           in all lists                    ≤ limit:  LEAST … MOST
//!   low           the least that `kib` was since somebody looked: nobody needed these
//!   spilled[length]   runs that found no room, and went to the arenas
//! ```
//!
//! A *spill* makes room: kept runs go to the arenas, those of one length after the other, so that what a
//! program does no longer need makes place for what it does. A run that is wanted after one of its length was
//! spilled, and has to come from the arenas, is *missed*: the limit may grow by its length. (Of its length:
//! what a growing list leaves behind is not what it needs next. When any run that was spilled counted, sixty
//! lists that grew in turn to 300 KB held 158 % of their memory instead of 132.) What is *surplus*, because
//! nobody needed it since the last look, goes, and the limit with it (see [`surplus`](super::surplus)).
//!
//! So a program that needs few runs at a time keeps 512 KiB at most, and one that takes a hundred buffers of 16
//! KiB and frees them keeps all of them as long as it does that. With a bound of 512 KiB for all, and four to
//! sixteen runs of each length, those hundred took 3.8 times as long as with mimalloc, and twenty of 100 kB
//! eight times.
//!
//! The limit grows only where what is kept has *drained*: nothing is left, or so little that with the missed
//! run half of the limit would not be used. Where blocks of many lengths replace each other the heap is full of
//! runs that nobody wants just now: a hundred buffers of 64 to 512 KiB, the oldest replaced each time, had 8 MiB
//! kept for them and 52 MiB resident, which were 41 then, and a thousand of 16 to 128 KiB 99 and 89.
//!
//! Or, for a short run, where it stays a small part of what lives: with hundreds of live runs of many lengths a few
//! of each length are nearly always enough for the next one, and cost little beside them. Kept were half a
//! mebibyte, whatever lived: one in three of such blocks came from the arenas, by the lock that all threads share.
//! `larson least=4000 most=40000`, 110 MiB live in each thread, takes 0.68 of the time with a sixteenth, with two
//! threads 0.57, and has 1 to 2 % more memory; with an eighth 0.60 and 0.54, and 3.5. With a twenty-fourth 0.77, and
//! 0.75 to 0.96: two threads wait for the lock again.
//!
//! A fork by another thread may come between any two instructions of the owner: the heap is not marked as busy
//! here, for which a child would lose all of it. So what is kept changes with one store, that of a list's first
//! run; a run that is being taken or kept at that moment is used by nobody in the child, and no more. `kib` may
//! then be too high by that run, never too low; it is corrected when the lists are found empty.

use super::lengths::{KIB, LENGTHS, Length};
use super::mark::Mark;
use core::sync::atomic::{AtomicUsize, Ordering, compiler_fence};

/// KiB that may be kept in any heap.
pub(super) const LEAST: u32 = 512;

/// KiB that may be kept where the program shows that it needs them: 8 MiB. With 4 MiB the peers' workload
/// `buffers`, stacks of up to a hundred buffers of 8 to 128 KiB, takes 0.96 s, with 8 0.55 and with 16 0.48.
const MOST: u32 = 8 << 10;

/// The part of the limit that a spill leaves free: the lock and the clock are paid once for some runs.
const SLACK: u32 = 8;

/// The part of the limit, as a divisor, of which no more may be used with a missed run for the limit to grow.
/// With the whole limit, and with no bound at all, 8 MiB were kept where a half keeps one.
const DRAINED: u32 = 2;

/// The part of what lives, as a divisor, up to which the limit grows though what is kept has not drained: see
/// above.
const LIVE: u32 = 16;

/// KiB of the longest run for which it does. A longer one is used for so long that the lock does not matter, and
/// was what made the hundred buffers of 64 to 512 KiB keep 2 MiB more; `larson least=16 most=100000` takes 1.05 of
/// the time that it takes without this bound, half of what it took.
const SHORT: u32 = 64;

/// Runs that go to the arenas together, at most.
pub(super) const TOGETHER: usize = 32;

/// A run, or a block of a span, that is kept or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) address: usize,
    pub(super) length: Length,
}

impl Kept {
    const NONE: Self = Self { address: 0, length: 0 };

    /// The page run that begins at an address, in a page with that mark.
    #[inline(always)]
    pub(super) fn run(address: usize, mark: &Mark) -> Self {
        Self { address, length: usize::from(mark.free()) - 1 }
    }

    fn kib(self) -> u32 {
        KIB[self.length]
    }
}

/// What is taken out of a cache.
///
/// With room for one more than are taken out together: the one that found no room.
pub(super) struct Spilled {
    runs: [Kept; TOGETHER + 1],
    count: usize,
}

impl Spilled {
    pub(super) const fn none() -> Self {
        Self { runs: [Kept::NONE; TOGETHER + 1], count: 0 }
    }

    pub(super) fn add(&mut self, run: Kept) {
        self.runs[self.count] = run;
        self.count += 1;
    }

    pub(super) fn is_full(&self) -> bool {
        self.count >= TOGETHER
    }

    pub(super) fn runs(&self) -> &[Kept] {
        &self.runs[..self.count]
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct RunCache {
    /// Address of the first run of each length; 0: none is kept.
    kept: [usize; LENGTHS],
    kib: u32,
    /// KiB that came from the arenas and did not go there again: what lives and what is kept, as far as this heap
    /// knows. Others keep blocks of spans that it took, and give back runs of it that nobody came for, and it keeps
    /// theirs; so no more than it has to be for the limit to be the highest.
    lent: u32,
    limit: u32,
    low: u32,
    spilled: [u8; LENGTHS],
    /// The length that is spilled next.
    turn: u32,
}

impl RunCache {
    pub(crate) const EMPTY: Self =
        Self { kept: [0; LENGTHS], kib: 0, lent: 0, limit: LEAST, low: 0, spilled: [0; LENGTHS], turn: 0 };

    /// KiB in all of them.
    pub(super) fn kib(&self) -> u32 {
        self.kib
    }

    /// The same of a heap of another thread.
    ///
    /// # Safety
    /// It is a heap's.
    pub(super) unsafe fn kib_of(cache: *const Self) -> u32 {
        // SAFETY: by the contract.
        unsafe { (&raw const (*cache).kib).read_volatile() }
    }

    /// Whether more is kept than any heap may.
    pub(super) fn is_raised(&self) -> bool {
        self.kib > LEAST
    }

    /// Takes the run of a length that was kept last. `link`: finds the link of a kept run.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        length: Length,
        link: impl FnOnce(Kept) -> &'static AtomicUsize,
    ) -> Option<usize> {
        let run = self.first(length)?;
        self.take_first(run, link(run));
        Some(run.address)
    }

    /// The run of a length that was kept last.
    #[inline(always)]
    pub(super) fn first(&self, length: Length) -> Option<Kept> {
        let address = self.kept[length];
        if address == 0 { None } else { Some(Kept { address, length }) }
    }

    /// Takes it, which has that link.
    #[inline(always)]
    pub(super) fn take_first(&mut self, run: Kept, link: &AtomicUsize) {
        self.kept[run.length] = link.load(Ordering::Relaxed);
        compiler_fence(Ordering::Release);
        self.kib -= run.kib();
        self.low = self.low.min(self.kib);
    }

    /// Keeps a run. Says no where there is no room.
    #[inline(always)]
    pub(super) fn keep(&mut self, run: Kept, link: impl FnOnce(Kept) -> &'static AtomicUsize) -> bool {
        if self.kib + run.kib() > self.limit {
            return false;
        }
        self.kib += run.kib();
        link(run).store(self.kept[run.length], Ordering::Relaxed);
        // What is in a list is whole.
        compiler_fence(Ordering::Release);
        self.kept[run.length] = run.address;
        true
    }

    /// A live run has another length, each of this heap's if it has one.
    pub(super) fn resized(&mut self, before: Option<Length>, after: Option<Length>) {
        if let Some(length) = before {
            self.went(length);
        }
        if let Some(length) = after {
            self.came(length);
        }
    }

    /// KiB of this heap's that live, as far as it knows.
    pub(super) fn live(&self) -> u32 {
        self.lent.saturating_sub(self.kib)
    }

    /// A run of a length came from the arenas.
    pub(super) fn came(&mut self, length: Length) {
        self.lent = (self.lent + KIB[length]).min(LIVE * MOST + self.kib);
    }

    /// A run of a length, which is not kept, goes to the arenas.
    pub(super) fn went(&mut self, length: Length) {
        self.lent = self.lent.saturating_sub(KIB[length]);
    }

    /// Makes room for a run of a length. Says no where there can be none.
    pub(super) fn make_room(
        &mut self,
        length: Length,
        spilled: &mut Spilled,
        link: impl Fn(Kept) -> &'static AtomicUsize,
    ) -> bool {
        let (before, kib) = (spilled.runs().len(), KIB[length]);
        let fits = kib <= self.limit && {
            let left = (self.limit - self.limit / SLACK).min(self.limit - kib);
            self.reduce(left, spilled, &link);
            self.kib <= self.limit - kib
        };
        let gone = spilled.runs()[before..].iter().map(|run| run.length);
        for length in gone.chain((!fits).then_some(length)) {
            let count = &mut self.spilled[length];
            *count = count.saturating_add(1);
        }
        fits
    }

    /// A run of a length was wanted and had to come from the arenas. Says whether the limit grew.
    pub(super) fn missed(&mut self, length: Length) -> bool {
        let (before, spilled) = (self.limit, &mut self.spilled[length]);
        if *spilled > 0 {
            *spilled -= 1;
            let drained = self.kib == 0 || self.kib + KIB[length] <= before / DRAINED;
            if drained || KIB[length] <= SHORT && before + KIB[length] <= self.live() / LIVE {
                self.limit = (before + KIB[length]).min(MOST);
            }
        }
        self.limit > before
    }

    /// Takes out what is surplus, or everything; says whether there is more than room for it.
    pub(super) fn shed(
        &mut self,
        all: bool,
        spilled: &mut Spilled,
        link: impl Fn(Kept) -> &'static AtomicUsize,
    ) -> bool {
        let surplus = if all { self.kib } else { self.low.min(self.kib) };
        let before = self.kib;
        self.reduce(before - surplus, spilled, link);
        let went = before - self.kib;
        self.limit = self.limit.saturating_sub(went).max(LEAST).max(self.kib);
        let more = spilled.is_full() && went < surplus;
        self.low = if more { surplus - went } else { self.kib };
        self.spilled = [0; LENGTHS];
        more
    }

    /// Takes runs out, of one length after the other, until at most so many KiB are left, or there is no room for more.
    fn reduce(&mut self, kib: u32, spilled: &mut Spilled, link: impl Fn(Kept) -> &'static AtomicUsize) {
        let mut passed = 0;
        while self.kib > kib && !spilled.is_full() {
            let length = self.turn as usize;
            match self.take(length, &link) {
                Some(address) => {
                    spilled.add(Kept { address, length });
                    self.went(length);
                    passed = 0;
                }
                // Counted, and in no list: see above.
                None if passed == LENGTHS => (self.kib, self.low) = (0, 0),
                None => {
                    self.turn = (self.turn + 1) % LENGTHS as u32;
                    passed += 1;
                }
            }
        }
    }

    /// The runs that are kept: for the verifier.
    pub(super) fn runs(
        &self,
        link: impl Fn(Kept) -> &'static AtomicUsize + Copy,
    ) -> impl Iterator<Item = Kept> {
        self.kept.into_iter().enumerate().flat_map(move |(length, first)| {
            let run = move |address| Some(Kept { address, length }).filter(|run| run.address != 0);
            let next = move |&kept: &Kept| run(link(kept).load(Ordering::Relaxed));
            core::iter::successors(run(first), next)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::lengths::{LONGEST, length_of};
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

        fn link(&self) -> impl Fn(Kept) -> &'static AtomicUsize + Copy + use<> {
            let marks = self.marks;
            move |run| &marks[run.address].links.next
        }

        fn length(&self, run: usize) -> Length {
            self.marks[run].free().into()
        }

        fn take(&mut self, length: Length) -> usize {
            let run = self.cache.take(length, self.link()).unwrap_or_else(|| {
                self.cache.missed(length);
                self.cache.came(length);
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

        fn take_many(&mut self, count: usize, length: Length) {
            (0..count).for_each(|_| _ = self.take(length));
        }

        /// As [`Own::keep_or_spill`](super::super::heap::Own).
        fn give(&mut self, run: usize) {
            let (link, length) = (self.link(), self.length(run));
            let run = Kept { address: run, length };
            let mut spilled = Spilled::none();
            self.kept.insert(run.address);
            let cache = &mut self.cache;
            let kept =
                cache.keep(run, link) || cache.make_room(length, &mut spilled, link) && cache.keep(run, link);
            if !kept {
                cache.went(length);
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
            for &Kept { address: run, length } in spilled.runs() {
                assert_eq!(self.length(run), length);
                assert!(self.kept.remove(&run), "{run} was not kept");
                self.free.push(run);
            }
        }

        /// A look.
        fn shed(&mut self, all: bool) {
            let mut more = true;
            while more {
                let mut spilled = Spilled::none();
                more = self.cache.shed(all, &mut spilled, self.link());
                self.gone(&spilled);
            }
        }

        fn check(&self) {
            let kept: Vec<_> = self.cache.runs(self.link()).collect();
            assert!(kept.iter().all(|run| self.length(run.address) == run.length));
            let runs: BTreeSet<_> = kept.iter().map(|run| run.address).collect();
            assert_eq!((runs.len(), &runs), (kept.len(), &self.kept));
            assert_eq!(self.cache.kib(), kept.iter().map(|run| run.kib()).sum());
            let live: u32 = self.live.iter().map(|&run| KIB[self.length(run)]).sum();
            assert!(self.cache.live() == live || live > LIVE * MOST, "{} KiB of {live}", self.cache.live());
            assert!(self.cache.kib <= self.cache.limit && self.cache.low <= self.cache.kib);
            assert!((LEAST..=MOST).contains(&self.cache.limit));
        }
    }

    proptest! {
        #[test]
        fn what_is_kept_is_what_was_freed_and_not_more_than_may_be(
            steps in proptest::collection::vec((0..8u8, 0..1000usize, 0..LENGTHS), 1..600),
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
            prop_assert_eq!(runs.cache.kib(), 0);
        }
    }

    #[test]
    fn a_program_that_takes_many_and_frees_them_by_turns_soon_asks_for_none() {
        for (count, kib) in [(100, 16), (20, 112), (8, 512), (200, 9), (90, 24)] {
            let length = length_of(kib << 10).expect("one of them");
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
            assert_eq!(runs.asked, 0, "{count} of {kib} KiB");
            runs.check();
        }
    }

    #[test]
    fn one_that_needs_many_once_keeps_few() {
        let mut runs = Runs::new();
        runs.take_many(1000, 0);
        runs.give_all();
        assert!(runs.cache.kib() <= LEAST);
    }

    #[test]
    fn what_a_program_does_no_longer_need_makes_room() {
        let mut runs = Runs::new();
        for (length, count) in [(1, 250), (2, 160), (31, 16), (LENGTHS - 1, 64)] {
            for _ in 0..6 {
                runs.take_many(count, length);
                runs.give_all();
            }
            runs.asked = 0;
            runs.take_many(count, length);
            runs.give_all();
            assert_eq!(runs.asked, 0, "{count} of length {length}");
        }
        runs.check();
    }

    /// They asked for one page more each time, and had all that they had left.
    #[test]
    fn lists_that_grow_by_turns_keep_no_more_than_any_heap_may() {
        let mut runs = Runs::new();
        runs.take_many(60, 0);
        for length in 1..LONGEST {
            for _ in 0..60 {
                let old = runs.live.remove(0);
                runs.take(length);
                runs.give(old);
            }
        }
        assert_eq!(runs.cache.limit, LEAST);
        runs.check();
    }

    /// All that was kept was of another length, and more of it was kept with each that was missed, up to the most.
    #[test]
    fn runs_of_many_lengths_that_replace_each_other_keep_little() {
        let mut runs = Runs::new();
        let mut random = 1_u64;
        for number in 0..4000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            runs.take(4 + (random >> 33) as usize % 28);
            if number >= 100 {
                let oldest = runs.live.remove(0);
                runs.give(oldest);
            }
        }
        assert!(runs.cache.limit <= 4 * LEAST, "{} KiB", runs.cache.limit);
        runs.check();
    }

    /// Whatever lived, half a mebibyte was kept, and one of five came from the arenas.
    #[test]
    fn many_that_live_and_replace_each_other_seldom_come_from_the_arenas() {
        let mut runs = Runs::new();
        let mut random = 1_u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % below
        };
        let lengths = [8, 40].map(|kib| length_of(kib << 10).expect("one of them"));
        let length_of_any = |random: usize| lengths[0] + random % (lengths[1] - lengths[0]);
        for _ in 0..4000 {
            runs.take(length_of_any(next(1000)));
        }
        for number in 0..60_000 {
            if number == 20_000 {
                runs.asked = 0;
            }
            let which = next(4000);
            let gone = runs.live.swap_remove(which);
            runs.give(gone);
            runs.take(length_of_any(next(1000)));
        }
        runs.check();
        assert!(runs.asked < 40_000 / 20, "{} of 40000", runs.asked);
        assert!(
            runs.cache.kib() <= runs.cache.live() / LIVE,
            "{} of {} KiB",
            runs.cache.kib(),
            runs.cache.live()
        );
        // Nobody needs them.
        runs.give_all();
        runs.shed(false);
        runs.shed(false);
        assert!(runs.cache.kib() == 0, "{} KiB", runs.cache.kib());
    }

    #[test]
    fn what_nobody_needed_between_two_looks_goes_and_the_limit_with_it() {
        let mut runs = Runs::new();
        for _ in 0..6 {
            runs.take_many(200, 0);
            runs.give_all();
        }
        runs.shed(false);
        runs.take_many(50, 0);
        runs.give_all();
        assert_eq!(runs.cache.kib(), 200 * 16);
        runs.shed(false);
        assert_eq!((runs.cache.kib(), runs.cache.limit), (50 * 16, 50 * 16), "150 were never needed");
        runs.check();
        // Nobody needs any.
        runs.shed(false);
        assert_eq!((runs.cache.kib(), runs.cache.limit), (0, LEAST));
        runs.check();
    }

    /// A child that was forked while a run was taken or kept counts it, and has it in no list.
    #[test]
    fn pages_that_are_in_no_list_are_not_counted_for_ever() {
        let mut runs = Runs::new();
        runs.take_many(4, 3);
        runs.give_all();
        runs.cache.kib += 128;
        runs.shed(true);
        assert_eq!(runs.cache.kib(), 0);
        runs.check();
    }
}
