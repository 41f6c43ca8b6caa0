//! Heap pages in numbers: what the object allocator takes and gives back.
//!
//! Single heap pages are the most frequent request. One at a time, reading the clock and filing the arena cost
//! more than filling the page with blocks of 512 bytes; a batch does both once per arena.

use super::arenas::{BadFree, GROWN, pages_bytes};
use super::bitmap;
use super::layout::{HEAP_PAGE_BYTES, HEAP_PAGES};
use super::order;
use super::{ArenaId, Arenas};
use hugeheap_os::Os;

/// Heap pages in one request from which on they are no small runs, which policy `auto` keeps apart on OS pages.
/// A heap of blocks that asks for as many at once has 16 already, 256 KiB, and is growing: CPython at level
/// `objects` filled the whole arena kept apart and began a huge page all the same, 500 faults more than with
/// its blocks on the huge page from here on (`hugeheap bench obmalloc --level objects`, faults of `startup`).
const GROWING: usize = 8;

/// Heap pages that are taken back at once: a bit of a word for each.
const BATCH: usize = 64;

const HEAP_PAGE_SHIFT: u32 = HEAP_PAGE_BYTES.trailing_zeros();

impl<O: Os> Arenas<O> {
    /// Takes single heap pages, as many as `to` has room for, and writes their addresses there. Returns how
    /// many there are: less when the system has no more memory, or would have to make an arena for the rest,
    /// and that takes a millisecond or more. Contents are undefined, as with [`allocate`](Self::allocate).
    ///
    /// In an arena they are looked for from heap page number `from` (0 to 127) on, then from its beginning: who
    /// takes them from different places has neighbouring ones, as long as there is room.
    pub fn allocate_pages(&mut self, to: &mut [usize], from: u32) -> usize {
        debug_assert!(from < HEAP_PAGES);
        let now = self.recently();
        let small = to.len() < GROWING;
        let mut count = 0;
        while count < to.len() && (count == 0 || !self.would_make()) {
            let left = if small { None } else { self.left_by_small() };
            let Some(id) = left.or_else(|| self.arena_with_room(1, small, now)) else { break };
            let start = self.table.range(id).start;
            let arena = self.table.arena_mut(id);
            let mut taken = 0u128;
            // What is resident, where that is what it is for.
            let usable = if left.is_some() { arena.touched } else { u128::MAX };
            while count < to.len() && usable & !arena.in_use != 0 {
                // From below, and handed out in that order: a program walks its objects in the order it made
                // them, and the processor fetches ahead only upwards. From above, such a walk took a third
                // longer.
                let free = usable & !arena.in_use;
                let behind = free >> from << from;
                let page = if behind != 0 { behind } else { free }.trailing_zeros();
                arena.in_use |= 1 << page;
                taken |= 1 << page;
                to[count] = start + page as usize * HEAP_PAGE_BYTES;
                count += 1;
            }
            arena.starts |= taken;
            self.allocated(id, now, taken);
            self.counters.allocations += u64::from(taken.count_ones());
        }
        count
    }

    /// The arena for small runs, if the heap has grown and pages that these left there are resident: they are
    /// used before others. A list that had grown to 8 MiB among a million tuples had left a MiB of them, half a
    /// percent of all memory, until they had not been used for the decay time. Those that were never touched
    /// are not taken: each is four faults more, where a huge page has one for all.
    fn left_by_small(&self) -> Option<ArenaId> {
        if self.counters.arenas < GROWN || !self.small.is_some() {
            return None;
        }
        let arena = self.table.arena(self.small);
        (!arena.busy && arena.retained_pages() > 0).then_some(self.small)
    }

    /// Takes single heap pages back.
    ///
    /// # Errors
    /// An address that is not a live run of one page. Others may have been taken back, each of them whole.
    pub fn free_pages(&mut self, pages: &[usize]) -> Result<(), (usize, BadFree)> {
        let now = self.recently();
        let mut freed = 0;
        let result = pages.chunks(BATCH).try_for_each(|pages| self.free_batch(pages, now, &mut freed));
        self.looks.freed(freed * HEAP_PAGE_BYTES as u64);
        self.counters.frees += freed;
        let live = self.counters.live;
        self.demand.record(now, live);
        result
    }

    /// Takes back runs of any length: by who knows that they live.
    ///
    /// # Errors
    /// An address where none begins. Those before it have been taken back.
    pub(crate) fn free_runs(&mut self, runs: &[usize]) -> Result<(), (usize, BadFree)> {
        let now = self.recently();
        let result = runs.iter().try_for_each(|&run| {
            let (id, page, length) = self.live_run(run).map_err(|bad| (run, bad))?;
            self.table.arena_mut(id).starts &= !(1 << page);
            self.no_more_used(id, bitmap::mask(page, length), now);
            self.counters.frees += 1;
            Ok(())
        });
        let live = self.counters.live;
        self.demand.record(now, live);
        result
    }

    /// The same for at most [`BATCH`], by arena: each of them is looked at, and filed, once.
    fn free_batch(&mut self, pages: &[usize], now: u64, freed: &mut u64) -> Result<(), (usize, BadFree)> {
        let mut left = u64::MAX >> (BATCH - pages.len());
        while left != 0 {
            let first = pages[left.trailing_zeros() as usize];
            let id = self.single_page(first).map_err(|bad| (first, bad))?;
            let singles = self.table.arena(id).singles();
            let start = self.table.range(id).start;
            let mut taken = 0u128;
            let mut others = left;
            while others != 0 {
                let index = others.trailing_zeros();
                others &= others - 1;
                // Of an address that begins no page a number that is too large.
                let page = (pages[index as usize].wrapping_sub(start)).rotate_right(HEAP_PAGE_SHIFT);
                let bit = if page < HEAP_PAGES as usize { singles & !taken & 1 << page } else { 0 };
                taken |= bit;
                left &= !(u64::from(bit != 0) << index);
            }
            self.unfile(id);
            let now = self.emptied_at(id, taken, now);
            let arena = self.table.arena_mut(id);
            arena.in_use &= !taken;
            arena.starts &= !taken;
            arena.changed(now);
            // First, for who gives up what is kept when an arena becomes empty.
            self.counters.retained += pages_bytes(taken);
            self.counters.live -= pages_bytes(taken);
            self.file(id);
            *freed += u64::from(taken.count_ones());
        }
        Ok(())
    }

    /// The arena of a live run of one page.
    fn single_page(&self, address: usize) -> Result<ArenaId, BadFree> {
        match self.live_run(address)? {
            (id, _, 1) => Ok(id),
            (.., length) => Err(BadFree::WrongSize { actual: length as usize * HEAP_PAGE_BYTES }),
        }
    }

    /// After the pages of new runs were marked in use in an arena that is in no list.
    pub(super) fn allocated(&mut self, id: ArenaId, now: u64, pages: u128) {
        let arena = self.table.arena_mut(id);
        let reused = pages & arena.touched;
        arena.changed(now);
        self.touch(id, now, pages);
        self.retain_less(pages_bytes(reused));
        let arena = self.table.arena_mut(id);
        if let Some(most) = order::longest_when_filed(arena) {
            // It has become no longer. (Of a full arena it is none, which is no news.)
            arena.longest = bitmap::longest_up_to(arena.in_use, most) as u8;
        }
        self.file(id);
        self.count_live(now, pages_bytes(pages));
    }
}

#[cfg(test)]
mod tests {
    use crate::arena::ahead::{LATE, SHOWS};
    use crate::arena::tests::{PAGE, World};
    use crate::arena::{BadFree, HEAP_PAGE_BYTES, HEAP_PAGES, Policy};
    use core::time::Duration;
    use hugeheap_os::simulated::{Call, Config};

    #[test]
    fn a_batch_is_what_single_requests_are() {
        let mut world = World::new(Policy::Thp, Config::default());
        let mut pages = [0; 300];
        assert_eq!(world.heap.allocate_pages(&mut pages, 0), 300);
        world.heap.verify().expect("consistent");
        let mut sorted = pages;
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= PAGE as usize));
        assert_eq!(world.heap.snapshot().live, 300 * PAGE);
        // Some one by one, the others at once.
        for &page in &pages[..100] {
            world.free(page, 1);
        }
        assert_eq!(world.heap.free_pages(&pages[100..]), Ok(()));
        world.heap.verify().expect("consistent");
        assert_eq!(world.heap.snapshot().live, 0);
        assert_eq!(world.heap.free_pages(&pages[100..]), Err((pages[100], BadFree::NotLive)));
        world.heap.verify().expect("consistent");
    }

    #[test]
    fn runs_of_any_length_are_taken_back_together() {
        let mut world = World::new(Policy::Thp, Config::default());
        let lengths = [2, 30, 1, HEAP_PAGES, 7, 64, 2, 100];
        let runs = lengths.map(|pages| world.take(pages));
        // The fifth begins nowhere: those before it are gone, and nothing else.
        let wrong = runs[4] + HEAP_PAGE_BYTES;
        let mixed = [runs[5], runs[0], runs[3], runs[7], wrong, runs[1]];
        assert_eq!(world.heap.free_runs(&mixed), Err((wrong, BadFree::Interior)));
        world.heap.verify().expect("consistent");
        assert_eq!(world.heap.snapshot().live, (30 + 1 + 7 + 2) * PAGE);
        assert_eq!(world.heap.snapshot().frees, 4);
        assert_eq!(world.heap.free_runs(&[runs[6], runs[1], runs[4], runs[2]]), Ok(()));
        world.heap.verify().expect("consistent");
        assert_eq!((world.heap.snapshot().live, world.heap.snapshot().frees), (0, 8));
        assert_eq!(world.heap.free_runs(&[runs[1]]), Err((runs[1], BadFree::NotLive)));
    }

    /// A heap gives its runs back together, and then nothing happens any more.
    #[test]
    fn what_is_taken_back_together_is_given_back_as_soon_as_what_is_freed_one_by_one() {
        for together in [false, true] {
            let mut world = World::new(Policy::Thp, Config::default());
            let runs: Vec<_> = (0..40).map(|_| world.take(100)).collect();
            world.run(10.0);
            if together {
                world.heap.free_runs(&runs).expect("live");
            } else {
                runs.iter().for_each(|&run| world.free(run, 100));
            }
            world.run(3.0);
            assert_eq!(
                (world.heap.snapshot().retained, world.kernel.charge()),
                (0, 0),
                "together: {together}"
            );
        }
    }

    /// The timer notes every fourth millisecond, which is enough for what is in use: an arena that becomes empty is
    /// offered to the kernel a millisecond later.
    #[test]
    fn when_an_arena_became_empty_is_known_exactly() {
        const STEP: u64 = 1_100_000;
        for single in [false, true] {
            let mut world = World::new(Policy::Thp, Config::default());
            let runs: Vec<_> = (0..HEAP_PAGES / 2).map(|_| world.take(if single { 1 } else { 2 })).collect();
            let changed = |world: &World| {
                let id = world.heap.table.find(runs[0]).expect("an arena");
                world.heap.arena(id).changed_at
            };
            let (few, rest) = runs.split_at(10);
            for (part, exactly) in [(few, false), (rest, true)] {
                world.kernel.advance(Duration::from_nanos(STEP));
                if single {
                    assert_eq!(world.heap.free_pages(part), Ok(()));
                } else {
                    assert_eq!(world.heap.free_runs(part), Ok(()));
                }
                let now = world.heap.now();
                assert_eq!(changed(&world) == now, exactly, "single: {single}");
                assert!(changed(&world) <= now && now - changed(&world) < 4_000_000);
            }
        }
    }

    #[test]
    fn a_batch_has_runs_of_one_page_only() {
        let mut world = World::new(Policy::Thp, Config::default());
        // The last page of an arena and what is before it.
        let mut pages = [0; HEAP_PAGES as usize];
        assert_eq!(world.heap.allocate_pages(&mut pages, 0), pages.len());
        assert_eq!(world.heap.free_pages(&pages[120..127]), Ok(()));
        let run = world.take(2);
        let single = world.take(1);
        for (page, bad) in [
            (run, BadFree::WrongSize { actual: 2 * HEAP_PAGE_BYTES }),
            (run + HEAP_PAGE_BYTES, BadFree::Interior),
            (pages[0] + 16, BadFree::Interior),
            (8, BadFree::Foreign),
        ] {
            assert_eq!(world.heap.free_pages(&[page]), Err((page, bad)));
        }
        assert_eq!(world.heap.free_pages(&[single, pages[127]]), Ok(()));
        assert_eq!(world.heap.free_pages(&[pages[127]]), Err((pages[127], BadFree::NotLive)));
        // Twice in a batch; and what is none among others of its arena.
        assert_eq!(world.heap.free_pages(&[pages[0], pages[0]]), Err((pages[0], BadFree::NotLive)));
        let inside = run + HEAP_PAGE_BYTES;
        assert_eq!(world.heap.free_pages(&[pages[1], inside]), Err((inside, BadFree::Interior)));
        assert_eq!(world.heap.free_pages(&[pages[2], run]).map_err(|(page, _)| page), Err(run));
        let odd = pages[4] + 16;
        assert_eq!(world.heap.free_pages(&[pages[3], odd]), Err((odd, BadFree::Interior)));
        world.heap.verify().expect("consistent");
        world.free(pages[4], 1);
        world.free(run, 2);
        world.heap.verify().expect("consistent");
    }

    /// Each is filed once, whatever their order.
    #[test]
    fn a_batch_of_several_arenas_is_taken_back_whole() {
        let mut world = World::new(Policy::Thp, Config::default());
        let mut pages = [0; 3 * HEAP_PAGES as usize];
        assert_eq!(world.heap.allocate_pages(&mut pages, 0), pages.len());
        // By turns from each.
        let mixed: Vec<_> =
            (0..pages.len()).map(|index| pages[index % 3 * HEAP_PAGES as usize + index / 3]).collect();
        for (batch, live) in mixed.chunks(100).zip([284, 184, 84, 0]) {
            assert_eq!(world.heap.free_pages(batch), Ok(()));
            world.heap.verify().expect("consistent");
            assert_eq!(world.heap.snapshot().live, live * PAGE);
        }
        assert_eq!(world.heap.free_pages(&[]), Ok(()));
    }

    #[test]
    fn pages_are_looked_for_from_where_it_is_said_and_then_from_the_beginning() {
        let mut world = World::new(Policy::Thp, Config::default());
        let mut pages = [0; 40];
        assert_eq!(world.heap.allocate_pages(&mut pages, 100), 40);
        let numbers = pages.map(|page| page / HEAP_PAGE_BYTES % 128);
        assert!(numbers.into_iter().eq((100..128).chain(0..12)), "{numbers:?}");
        let mut others = [0; 88];
        assert_eq!(world.heap.allocate_pages(&mut others, 5), 88);
        assert!(others.into_iter().map(|page| page / HEAP_PAGE_BYTES % 128).eq(12..100));
        assert_eq!(world.heap.snapshot().arenas, 1);
        world.heap.verify().expect("consistent");
    }

    /// Where a hypervisor had to find the memory, a program waited 5 ms for an arena of which it needed nothing yet.
    #[test]
    fn an_arena_that_takes_long_is_not_made_for_the_rest_of_a_batch() {
        for (takes, counts) in [(2 * SHOWS, [128, 112, 16, 32]), (SHOWS / 5, [128, 112, 32, 32])] {
            let mut world = World::new(Policy::Thp, Config::default());
            world.kernel.set_cost(Call::HugeFault, Duration::from_nanos(takes));
            // So many that the time of one is known.
            (0..8).for_each(|_| _ = world.take(HEAP_PAGES));
            let mut pages = [0; 128];
            let found = [128, 112, 32, 32].map(|wanted| world.heap.allocate_pages(&mut pages[..wanted], 0));
            assert_eq!(found, counts);
            world.heap.verify().expect("consistent");
        }
    }

    /// The first arena that took long was not known to be one: for the rest of a batch another was made in the
    /// pause, 6 ms on a processor and 5 behind the first.
    #[test]
    fn while_the_first_arena_that_takes_long_is_made_none_is_made_for_the_rest_of_a_batch() {
        for (time, count) in [(LATE - 1, 32), (LATE, 16)] {
            let mut world = World::new(Policy::Thp, Config::default());
            // Enough to live, in quick succession, that arenas are made ahead.
            (0..64).for_each(|_| _ = world.take(HEAP_PAGES));
            let mut pages = [0; 112];
            assert_eq!(world.heap.allocate_pages(&mut pages, 0), 112, "all but 16 of one that was quick");
            let ahead = world.heap.begin_ahead().expect("the heap grows");
            world.kernel.advance(Duration::from_nanos(time));
            assert_eq!(world.heap.allocate_pages(&mut pages[..32], 0), count);
            world.heap.complete_ahead(ahead);
            world.heap.verify().expect("consistent");
        }
    }
}
