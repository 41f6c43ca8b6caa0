//! Page runs that become longer or shorter where they are.
//!
//! ```text
//!   in_use   1 1 1 1 0 0 0 1      a run of four pages can grow to seven: nobody has to copy it
//!   starts   1 0 0 0 0 0 0 1
//! ```
//!
//! A list that grows by an eighth at a time is copied ten times until it is three times as long; in place it is
//! not copied at all, as long as the pages behind it are free. What has grown once gets room for that: see
//! [`Arenas::allocate_growing`].
//!
//! Room costs memory, which is resident on huge pages. Where much of it is retained already
//! ([`Arenas::is_wasteful`]) the next ones are put where they fit best, and what grows little by little has a
//! few pages *to spare*: they are a part of its run, nobody else can have them, and it is not copied for each
//! heap page.

use super::Arenas;
use super::arenas::{BIG_RUN, BadFree};
use super::bitmap;
use super::layout::HEAP_PAGES;
use super::order::Order;
use core::num::NonZeroUsize;
use hugeheap_os::Os;

/// Part of the live bytes that may be retained where what has grown gets room behind it, as a divisor. Where it
/// always had, 1.9 times what two hundred texts and lists needed that grew at random was resident; now it is 1.3
/// times (`object::tests::growing`).
const ROOMY: u64 = 10;

/// Part of the live bytes that may be retained where another huge page is taken for a run that has grown, in
/// percent: so much more than stock a program may hold for it. At 10 a fifth of the peers' workload `growing`
/// was on OS pages, at 15 a twentieth is, with two threads a ninth; for that sixty lists that grow by turns to
/// 700 KB have 4 % more at the most, to 1 MiB 9. At 20 it was 7 % more.
const LEFT_BEHIND: u64 = 15;

/// Heap pages from which on what has grown may be alone. Shorter ones find room soon, in what another one leaves.
const ALONE: u32 = 9;

/// Part of its length that what grows little by little has to spare, as a divisor. With 4 `growing` takes 2 %
/// less time and 2 % more memory, with 3 6 % and 4.
const SPARE: u32 = 6;

/// A run for what has grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grown {
    pub(crate) address: NonZeroUsize,
    /// Heap pages, what it has to spare included.
    pub(crate) pages: u32,
}

impl<O: Os> Arenas<O> {
    /// Takes a run of `pages` heap pages (1 to 128) for what has grown, and so is likely to grow on: with room
    /// behind it, if twice as many pages are free in a row. `None` as for [`allocate`](Self::allocate).
    ///
    /// Among single pages it gets the middle of what is free, because the next ones come from below and short
    /// runs from above. Among longer runs it gets the lower end: when all had the middle, 400 lists of 40,000
    /// elements took 1.5 times their memory, because nothing fits between lists that have ended; now 1.2 times.
    pub fn allocate_growing(&mut self, pages: u32) -> Option<NonZeroUsize> {
        let (now, room) = (self.recently(), 2 * pages);
        let partial = (room < HEAP_PAGES).then(|| self.partial.best(&self.table, room)).flatten();
        let Some(id) = partial else { return self.allocate(pages) };
        self.partial.remove(&mut self.table, id);
        let in_use = self.table.arena(id).in_use;
        let Some(low) = bitmap::find_lowest(in_use, room) else {
            unreachable!("the order names arenas with room")
        };
        let free = (!in_use >> low).trailing_ones();
        let among_pages = 2 * self.table.arena(id).runs() >= in_use.count_ones();
        let first = if among_pages { low + (free - pages) / 2 } else { low };
        self.begin_run(id, first, pages, now)
    }

    /// Whether a run that has grown to `pages` heap pages (1 to 64) is to be a large block, in an arena of its
    /// own, although it is short: no arena in use has room for it, and what runs left behind when they grew is
    /// more than [`LEFT_BEHIND`] allows.
    ///
    /// Lists that grow in turn all need a little more than any of them has just left, so each eighth that they
    /// grow by opened new huge pages. An arena of its own is of OS pages, of which those that are touched are
    /// resident, and whoever is there grows on without being copied.
    ///
    /// All of that arena counts against a limit on data or on address space. So not where there is one: texts
    /// of 38 MB had all of 150 MiB.
    pub(crate) fn is_better_alone(&self, pages: u32) -> bool {
        let wasted = self.counters.retained > self.counters.live / 100 * LEFT_BEHIND;
        let seldom = pages >= ALONE && wasted && self.empty.is_empty();
        seldom && self.spares_address_space() && !self.has_room(pages)
    }

    /// Whether arenas may be used in small part. Of address space that is told by what is reserved: four times
    /// the memory of the host where there is no limit, and no more than is needed next where there is one.
    fn spares_address_space(&self) -> bool {
        self.host.data_limit.is_none() && 2 * self.counters.arenas <= self.table.capacity()
    }

    /// Whether so much is retained that what grows is to be put where it fits best.
    pub(crate) fn is_wasteful(&self) -> bool {
        self.counters.retained > self.counters.live / ROOMY
    }

    /// Takes a run of `pages` heap pages (1 to 64) for what grows little by little where much is left behind
    /// (see [`is_wasteful`](Self::is_wasteful)): with pages to spare, as many as fit where no other arena has
    /// to be taken for them. `None` as for [`allocate`](Self::allocate).
    pub(crate) fn allocate_with_spare(&mut self, pages: u32) -> Option<Grown> {
        let most = with_spare(pages);
        let pages = (pages..=most).rev().find(|&pages| self.has_room(pages)).unwrap_or(most);
        Some(Grown { address: self.allocate(pages)?, pages })
    }

    /// Whether an arena in use has room for a run of `pages` heap pages.
    fn has_room(&self, pages: u32) -> bool {
        let room = |order: &Order| order.best(&self.table, pages).is_some();
        let small = pages < BIG_RUN && self.small.is_some() && {
            let arena = self.table.arena(self.small);
            !arena.busy && bitmap::find_highest(arena.in_use, pages).is_some()
        };
        small || room(&self.partial) || room(&self.broken)
    }

    /// Gives a run another length, of `pages` heap pages (1 to 128), where it is. Says no when there is no room
    /// behind it; then nothing has changed.
    ///
    /// # Errors
    /// When no live run begins at the address.
    pub fn resize(&mut self, address: usize, pages: u32) -> Result<bool, BadFree> {
        debug_assert!((1..=HEAP_PAGES).contains(&pages));
        let id = self.table.find(address).ok_or(BadFree::Foreign)?;
        let first = self.check_run(id, address)?;
        let arena = self.table.arena(id);
        let length = arena.run_length(first).ok_or(BadFree::NotLive)?;
        if pages <= length {
            if pages < length {
                self.take_back(id, bitmap::mask(first + pages, length - pages));
            }
            return Ok(true);
        }
        let more = pages - length;
        let refused = arena.busy || arena.apart && pages >= BIG_RUN || first + pages > HEAP_PAGES;
        if refused || arena.in_use & bitmap::mask(first + length, more) != 0 {
            return Ok(false);
        }
        let now = self.recently();
        self.unfile(id);
        let grown = bitmap::mask(first + length, more);
        self.table.arena_mut(id).in_use |= grown;
        self.allocated(id, now, grown);
        Ok(true)
    }
}

/// Heap pages of a run for what has `pages` (1 to 64) and grows little by little: not more than half an arena.
pub(crate) fn with_spare(pages: u32) -> u32 {
    (pages + (pages / SPARE).max(1)).min(HEAP_PAGES / 2).max(pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Policy;
    use crate::arena::tests::{ARENA, PAGE, World};
    use hugeheap_os::simulated::Config;
    use proptest::prelude::*;

    fn live(world: &World) -> u64 {
        world.heap.verify().expect("consistent");
        world.heap.snapshot().live
    }

    #[test]
    fn a_run_grows_into_what_is_free_behind_it_and_no_further() {
        let mut world = World::new(Policy::Thp, Config::default());
        let low = world.take(32);
        let next = world.take(32);
        assert_eq!(next, low + 32 * PAGE as usize, "long runs lie low, side by side");
        assert_eq!(world.heap.resize(low, 33), Ok(false));
        assert_eq!(live(&world), 64 * PAGE);
        assert_eq!(world.heap.resize(next, 96), Ok(true));
        assert_eq!(world.heap.resize(next, 97), Ok(false), "the arena ends");
        assert_eq!((live(&world), world.heap.run_bytes(next)), (128 * PAGE, Ok(96 * PAGE as usize)));
        assert_eq!(world.heap.resize(next, 1), Ok(true));
        assert_eq!(world.heap.resize(low, 32), Ok(true), "as it is");
        assert_eq!(live(&world), 33 * PAGE);
        world.free(next, 1);
        assert_eq!(world.heap.resize(low, 128), Ok(true));
        world.free(low, 128);
        assert_eq!(live(&world), 0);
        assert_eq!(world.heap.resize(low, 1), Err(BadFree::NotLive));
    }

    #[test]
    fn what_grows_little_by_little_has_pages_to_spare_but_takes_no_arena_for_them() {
        let mut world = World::new(Policy::Thp, Config::default());
        let sizes = |world: &World, grown: Grown| {
            let bytes = world.heap.run_bytes(grown.address.get()).expect("live");
            assert_eq!(bytes, grown.pages as usize * PAGE as usize);
            (grown.pages, world.heap.snapshot().arenas)
        };
        let first = world.heap.allocate_with_spare(60).expect("memory");
        assert_eq!(sizes(&world, first), (64, 1), "a sixth, but not more than half an arena");
        let second = world.heap.allocate_with_spare(48).expect("memory");
        assert_eq!(sizes(&world, second), (56, 1));
        // Eight pages are left: a page less than it would have.
        let third = world.heap.allocate_with_spare(8).expect("memory");
        assert_eq!(sizes(&world, third), (8, 1));
        let fourth = world.heap.allocate_with_spare(1).expect("memory");
        assert_eq!(sizes(&world, fourth), (2, 2));
        assert_eq!([1, 6, 12, 47, 55, 64].map(with_spare), [2, 7, 14, 54, 64, 64]);
    }

    #[test]
    fn what_finds_no_room_is_alone_where_much_is_retained_unless_it_is_short() {
        let mut world = World::new(Policy::Thp, Config::default());
        let runs: Vec<_> = (0..32).map(|_| world.take(32)).collect();
        assert!(!world.heap.is_better_alone(40), "nothing is retained");
        // Seven heap pages are free behind each.
        for &run in &runs {
            assert_eq!(world.heap.resize(run, 25), Ok(true));
        }
        let alone = [7, 8, 9, 40, 64].map(|pages| world.heap.is_better_alone(pages));
        assert_eq!(alone, [false, false, true, true, true]);
        world.free(runs[0], 25);
        assert!(world.heap.is_better_alone(40) && !world.heap.is_better_alone(30), "there is room");
        world.take(128);
        let empty = world.take(128);
        world.free(empty, 128);
        assert!(!world.heap.is_better_alone(40), "an arena is empty");
    }

    #[test]
    fn what_grows_gets_room_behind_it() {
        let mut world = World::new(Policy::Thp, Config::default());
        let mut pages = [0; 8];
        world.heap.allocate_pages(&mut pages, 0);
        let start = pages[0];
        let first = |address: usize| (address - start) / PAGE as usize;
        let growing = world.heap.allocate_growing(16).expect("memory").get();
        // 120 pages are free: 52 before it, 52 behind it.
        assert_eq!(first(growing), 8 + 52);
        assert_eq!(first(world.take(2)), 126);
        world.heap.allocate_pages(&mut pages, 0);
        assert_eq!(first(pages[7]), 15);
        assert_eq!(world.heap.resize(growing, 66), Ok(true));
        assert_eq!(world.heap.resize(growing, 67), Ok(false));
        // 44 pages are free, and it is not alone.
        let other = world.heap.allocate_growing(12).expect("memory").get();
        assert_eq!(first(other), 16);
        // Where the double of it is nowhere free in a row, it is a run like others.
        let last = world.heap.allocate_growing(20).expect("memory").get();
        assert_eq!(first(last), 28);
        assert_eq!(live(&world), (8 + 66 + 2 + 8 + 12 + 20) * PAGE);
    }

    #[test]
    fn lists_that_ended_lie_side_by_side() {
        let mut world = World::new(Policy::Thp, Config::default());
        for _ in 0..100 {
            // As a list of 20,000 elements grows.
            let mut run = world.take(8);
            for (pages, before) in [(9, 8), (10, 9), (11, 10)] {
                if world.heap.resize(run, pages) != Ok(true) {
                    let moved = world.heap.allocate_growing(pages).expect("memory").get();
                    world.free(run, before);
                    run = moved;
                }
            }
        }
        let snapshot = world.heap.snapshot();
        assert!(
            snapshot.arenas * ARENA <= live(&world) / 20 * 21 + ARENA,
            "{} arenas for {}",
            snapshot.arenas,
            snapshot.live
        );
    }

    #[test]
    fn long_runs_do_not_grow_where_short_ones_are_kept_apart() {
        let mut world = World::new(Policy::Auto, Config::default());
        // The upper one goes, so that there is room behind the other.
        let upper = world.take(BIG_RUN - 1);
        let short = world.take(2);
        world.free(upper, BIG_RUN - 1);
        assert_eq!(world.heap.resize(short, BIG_RUN), Ok(false));
        assert_eq!(world.heap.resize(short, BIG_RUN - 1), Ok(true));
        assert_eq!(world.heap.resize(short, 1), Ok(true));
        assert_eq!(live(&world), PAGE);
    }

    proptest! {
        // Each verifies the heap up to sixty times.
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn lengths_change_as_in_a_plain_list(steps in prop::collection::vec((0usize..8, 1u32..=40), 1..60)) {
            let mut world = World::new(Policy::Thp, Config::default());
            let mut take = |growing| if growing { world.heap.allocate_growing(4).expect("memory").get() } else { world.take(4) };
            let mut runs: Vec<(usize, u32)> = (0..8).map(|number| (take(number % 2 == 1), 4)).collect();
            for (index, pages) in steps {
                let (address, before) = runs[index];
                let others: Vec<_> = runs.iter().filter(|run| run.0 != address).copied().collect();
                let end = |pages: u32| address + pages as usize * PAGE as usize;
                let free = others.iter().all(|&(other, _)| other < address || other >= end(pages));
                let within = address % crate::arena::ARENA_BYTES + pages as usize * PAGE as usize <= crate::arena::ARENA_BYTES;
                let changed = world.heap.resize(address, pages).expect("live");
                prop_assert_eq!(changed, pages <= before || free && within);
                if changed {
                    runs[index].1 = pages;
                }
                let sum: u32 = runs.iter().map(|run| run.1).sum();
                prop_assert_eq!(live(&world), u64::from(sum) * PAGE);
                prop_assert_eq!(world.heap.run_bytes(address), Ok(runs[index].1 as usize * PAGE as usize));
            }
        }
    }
}
