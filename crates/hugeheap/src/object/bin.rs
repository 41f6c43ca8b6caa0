//! The bin of a size class: where its next block comes from, and where a freed one goes.
//!
//! ```text
//!   allocate:  1. recent           the block that was freed last: still in the cache
//!              2. current window   the bin points to its word: one bit per block
//!              3. current page     its next window with a free block; or some of its free blocks become recent ones
//!              4. partial          pages with free blocks; then the sparse ones
//!              5. a page           spare, or from the arenas
//!   free:      a bit in the page's bitmap; away from the current window the block is also put on top of `recent`
//!
//!   recent     ├ oldest ┼ … ┼ freed last ┤          full: the oldest is written over
//!                                        └─▶ allocate
//! ```
//!
//! The bin points to the word of its current window in the page's bitmap: allocating, and freeing what lies
//! beside what was allocated last, finds the word without looking the page up, and never touches the block. A
//! copy of the word in the bin was tried first. It saves an instruction, but then another thread cannot see
//! that a block was freed there already, and a fork can meet bin and bitmap disagreeing.
//!
//! A block in `recent` is free in its page's bitmap like any other, and its page is found, so it may be
//! forgotten at any time. But it is taken from nowhere else: windows are opened where none of their blocks is
//! remembered. (A stack of which the older half was forgotten when it was full needed a branch for that. Each
//! eighth free took it where many blocks were freed in a row, and an interpreter's did not foresee it: it
//! dropped a list of a million objects in 13 to 50 % more time.) To note the window of a block in its page's
//! mark when it is forgotten was tried, too, while each free noted it: a pair of blocks that replace each other
//! at random cost 4 instructions less, one of blocks that are freed in their order up to 20 more. Now nobody
//! notes it.
//!
//! A free away from the current window does the same whatever was freed before. Until it did, the first block
//! that was freed in a window was remembered, and those after it in the latest two windows needed the bit only:
//! cheaper where blocks are freed in their order. But where they are freed at random no predictor knows which
//! it is, nor whether the current window still has a block: a program that replaces blocks of 8 to 500 bytes
//! had 0.40 branches per pair that were not foreseen, and has 0.24, and takes an eighth less time
//! (`valgrind --tool=callgrind --branch-sim=yes bench/target/release/workloads-hugeheap larson`). Remembering
//! windows instead of blocks was tried twice, too. Opened for each, they cost such a program twice as long;
//! with their blocks taken one by one, a quarter more.
//!
//! Programs are of two kinds, and change between them. One takes blocks in a row: the current window has them
//! for the fewest instructions. The other takes and frees in turn, and each time it was not foreseen whether a
//! block is remembered, nor whether the one that is freed lies in the current window. So once all remembered
//! ones are taken again, and some of them were freed since that was so last, the window is left and the next
//! free blocks of the page are remembered ([`Own::gather`](super::heap::Own::gather)): now the answers are yes
//! and no until nothing is freed for a while. In `mstress` that saves every third of the branches that were not
//! foreseen, one in two allocations, for a twelfth more instructions. Blocks of which a window has few are
//! always gathered: opening a window for each costs more.
//!
//! The interpreters' hooks ask the current window first ([`Heap::allocate_near`](super::Heap::allocate_near)):
//! they are called for objects that are mostly made one after the other, and have no register to spare. They
//! never leave it for that, nor does C, which has the window inline. But it follows where blocks are taken and
//! freed in turn ([`recent`](super::recent)).

use super::class::CLASSES;
use super::instructions::in_register;
use super::window::Window;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

/// Blocks remembered per bin, at most: a cache line of 32 bits each. With 8 of 64 bits programs that replace
/// objects of many sizes at random opened so many windows that they took a sixth longer; 32, on two lines, made
/// no difference.
pub(super) const RECENT: usize = 16;

/// Blocks gathered at once: half of what a bin remembers, so that those freed meanwhile do not overwrite them.
/// With 16, all, programs that take and free blocks in their order had more branches that were not foreseen,
/// and no program had fewer.
pub(super) const GATHERED: usize = RECENT / 2;

/// In place of a granule: no block is remembered there.
pub(super) const NO_BLOCK: u32 = u32::MAX;

/// Allocations after frees in the current window, in one window, until blocks are gathered instead. More than
/// one, because gathering closes the window: a program that frees a block now and then and goes on taking many
/// is better off with it. In `larson blocks=50` and `glibc-thread slots=64 most=512` 4 took 0.99 and 1.01 of
/// the time with 16, and 64 took 0.93 and 0.91, within the spread of five runs each by turns.
const TURNS: u32 = 16;

/// What happened in a bin since no block was remembered; more than nothing means that who takes a block looks
/// there first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
struct Since(u32);

impl Since {
    /// Nothing: no block is remembered.
    const NOTHING: Self = Self(0);
    /// A block was freed in the current window, by who wants to know it.
    const IN_TURN: Self = Self(1);
    /// Blocks were gathered.
    const GATHERED: Self = Self(2);
    /// A block was freed away from the current window; or in it after some were gathered.
    const FREED: Self = Self(3);
}

/// The bin of a class.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Bin {
    /// Where blocks are taken from.
    pub(crate) current: Window,
    /// The page whose windows become current, 0: none.
    pub(crate) page: usize,
    /// It stays when all that was remembered is taken again, until it is [asked for](Self::begin_anew).
    since: Since,
    /// How often [`Since::IN_TURN`] was answered, in the current window.
    turns: u32,
    /// Where in `recent` the next one goes: less than its length.
    end: u32,
    /// The number of the window of the block that was retaken last, for who asks the current window first.
    pub(super) window: u32,
    /// A ring of granules of free blocks in the first region, the one to be taken next at its end; the oldest
    /// are written over. Before the oldest is [`NO_BLOCK`]: so nobody counts how many there are. 32 bits hold
    /// granules of the first 64 GiB; blocks beyond are not remembered
    /// ([`Own::granules`](super::heap::Own::granules)): 64 bits for all would be half as many.
    recent: [u32; RECENT],
    /// Odd while those that are remembered are moved, and another number each time: see
    /// [`recent_of_another`](Self::recent_of_another).
    moves: AtomicU32,
}

const _: () = assert!(size_of::<Bin>() == 128 && RECENT.is_power_of_two());

// Where `include/hugeheap_inline.h` looks for its window: another layout has another number there.
const _: () = assert!(offset_of!(Bin, current) == 0);

impl Bin {
    const fn empty() -> Self {
        Self {
            current: Window::NONE,
            page: 0,
            since: Since::NOTHING,
            turns: 0,
            end: 0,
            window: u32::MAX,
            recent: [NO_BLOCK; RECENT],
            moves: AtomicU32::new(0),
        }
    }

    /// Makes the bins of a new heap, one after the other: see [`Own::make_at`](super::heap::Own::make_at).
    ///
    /// # Safety
    /// Memory that nobody else knows.
    pub(super) unsafe fn make_all_at(bins: *mut [Self; CLASSES]) {
        for class in 0..CLASSES {
            // SAFETY: by the contract; within the bins.
            unsafe { bins.cast::<Self>().add(class).write(Self::empty()) };
        }
    }

    /// A block was freed away from the current window.
    ///
    /// No branch: that the ring is full is not foreseen where many blocks are freed in a row by a program with
    /// branches of its own. A count of what is remembered, which stops at [`RECENT`], was four instructions
    /// more.
    #[inline(always)]
    pub(super) fn note_free(&mut self, granule: usize) {
        debug_assert!(granule < NO_BLOCK as usize);
        self.push(granule as u32);
        self.since = Since::FREED;
    }

    /// A block was freed in the current window.
    #[inline(always)]
    pub(super) fn note_free_here(&mut self) {
        self.since.0 |= Since::IN_TURN.0;
    }

    /// Another window is current.
    #[inline(always)]
    pub(super) fn set_current(&mut self, window: Window) {
        self.current = window;
        self.turns = 0;
    }

    /// Remembers one more block, the next one to be taken.
    #[inline(always)]
    fn push(&mut self, granule: u32) {
        let end = self.end();
        self.recent[end] = granule;
        self.end = (end + 1) as u32 % RECENT as u32;
    }

    /// The place of the next block to be remembered.
    #[inline(always)]
    fn end(&self) -> usize {
        let end = self.end as usize;
        // SAFETY: it is set modulo the length of the ring only. Not taken modulo that here, which would be two
        // instructions more.
        unsafe { core::hint::assert_unchecked(end < RECENT) };
        end
    }

    /// The granules that are remembered, the one to be taken next first.
    fn latest(&self) -> impl Iterator<Item = u32> + '_ {
        let places = (1..=RECENT as u32).map(|back| self.end.wrapping_sub(back) as usize % RECENT);
        places.map(|place| self.recent[place]).take_while(|&granule| granule != NO_BLOCK)
    }

    /// How many blocks are remembered.
    pub(super) fn count(&self) -> usize {
        self.latest().count()
    }

    /// Whether blocks are remembered, or all were taken again and some of them were freed ones.
    #[inline(always)]
    pub(super) fn remembers(&self) -> bool {
        self.since != Since::NOTHING
    }

    /// The remembered blocks, the one to be taken next first.
    pub(super) fn recent(&self) -> impl Iterator<Item = usize> + '_ {
        self.latest().map(|granule| granule as usize)
    }

    /// What a heap of another thread remembers of a class: all that it remembers as long as this takes, and
    /// perhaps more. `None`: that was moved meanwhile. See `vacate`. `in_order`: what was read before was there
    /// before what is read next.
    ///
    /// One place is read after the other. What moved from a place not read yet to one that had been read was in
    /// none of them, and the OS page of a block that was remembered all the time was given back.
    ///
    /// # Safety
    /// The bin is one of a heap.
    pub(super) unsafe fn recent_of_another<E>(
        bin: *const Self,
        in_order: impl Fn() -> Result<(), E>,
    ) -> Result<Option<[u32; RECENT]>, E> {
        // SAFETY: by the contract; nobody has an exclusive reference to what is atomic only.
        let moves = unsafe { &(*bin).moves };
        let before = moves.load(Ordering::Relaxed);
        in_order()?;
        // SAFETY: by the contract; the owner writes whole words.
        let recent =
            core::array::from_fn(|place| unsafe { (&raw const (*bin).recent[place]).read_volatile() });
        in_order()?;
        let moved = before % 2 != 0 || before != moves.load(Ordering::Relaxed);
        Ok((!moved).then_some(recent))
    }

    /// What is remembered is moved from now on, or not any more.
    fn note_moves(&self) {
        compiler_fence(Ordering::SeqCst);
        self.moves.store(self.moves.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// The granule of the block remembered last, and its place, from which it is to be [taken](Self::recall_from).
    #[inline(always)]
    pub(super) fn last(&self) -> Option<(usize, usize)> {
        let place = (self.end.wrapping_sub(1) % RECENT as u32) as usize;
        // Of 64 bits from the beginning: known to be one of 32, it is compared as one of 64 with a constant
        // that has to be loaded.
        let granule = in_register(self.recent[place] as usize);
        (granule as u32 != NO_BLOCK).then_some((granule, place))
    }

    /// Forgets the block that is remembered last, in that place.
    #[inline(always)]
    pub(super) fn recall_from(&mut self, place: usize) {
        self.recent[place] = NO_BLOCK;
        self.end = place as u32;
    }

    /// The granule of the block remembered last, which is forgotten.
    #[cfg(test)]
    fn recall(&mut self) -> Option<usize> {
        let (granule, place) = self.last()?;
        self.recall_from(place);
        Some(granule)
    }

    /// No block is remembered: says whether the next ones are better gathered than taken from the current
    /// window, because one was remembered that had been freed since this was asked last, or blocks come and go
    /// in that window.
    #[inline(always)]
    pub(super) fn begin_anew(&mut self) -> bool {
        debug_assert!(self.count() == 0);
        let since = core::mem::replace(&mut self.since, Since::NOTHING);
        self.turns += u32::from(since == Since::IN_TURN);
        since == Since::FREED || self.has_turned()
    }

    /// Whether blocks come and go in the current window.
    #[inline(always)]
    pub(super) fn has_turned(&self) -> bool {
        self.turns >= TURNS
    }

    /// Where blocks that are gathered are remembered: from the end to the beginning, the first of them to be
    /// taken first. None is remembered now.
    ///
    /// Written there at once: with a list of them that was remembered afterwards, the last of them first,
    /// gathering eight blocks took three times as many instructions.
    #[inline(always)]
    pub(super) fn room(&mut self) -> &mut [u32; GATHERED] {
        debug_assert!(self.count() == 0);
        let (room, _) = self.recent.split_first_chunk_mut().expect("half of it");
        room
    }

    /// Remembers the first blocks of a page in which none is live, of so many: their granules are `step` apart.
    /// Says how many these are.
    ///
    /// Where they are is not looked up in the page's bitmap, which is a third of the instructions for a page of
    /// eight blocks.
    #[inline(always)]
    pub(super) fn gather_row(&mut self, first: u32, step: u32, blocks: usize) -> usize {
        let count = blocks.min(GATHERED);
        let mut granule = first;
        for place in self.room()[GATHERED - count..].iter_mut().rev() {
            *place = granule;
            granule = granule.wrapping_add(step);
        }
        self.gathered(GATHERED - count);
        count
    }

    /// All but the first `left` places of that [room](Self::room) were written. Says whether there is one.
    ///
    /// The place before them is made empty: in a forked child it may not be. A thread that it does not have may
    /// have emptied the place of a block that it was taking, and not have moved the end yet: then nothing seems
    /// to be remembered, and the older ones are still there. Without the empty place they were reached behind
    /// those that were gathered, when others used them.
    #[inline(always)]
    pub(super) fn gathered(&mut self, left: usize) -> bool {
        self.recent[left.wrapping_sub(1) % RECENT] = NO_BLOCK;
        self.end = GATHERED as u32;
        let any = left < GATHERED;
        self.since = if any { Since::GATHERED } else { Since::NOTHING };
        any
    }

    /// Forgets the blocks whose granules are such: their page leaves the bin, or their window is opened.
    ///
    /// Blocks that are freed in their order lie together: a page whose last one was freed has them on top, or
    /// there are no others. So these two are asked for first, and only then one by one.
    pub(super) fn forget_if(&mut self, is_such: impl Fn(u32) -> bool) {
        let is_remembered_and_such = |granule: u32| granule != NO_BLOCK && is_such(granule);
        // No branch for each.
        if !self.recent.iter().fold(false, |any, &granule| any | (granule != NO_BLOCK && !is_such(granule))) {
            self.recent = [NO_BLOCK; RECENT];
            return;
        }
        loop {
            let top = self.end().wrapping_sub(1) % RECENT;
            if !is_remembered_and_such(self.recent[top]) {
                break;
            }
            self.recent[top] = NO_BLOCK;
            self.end = top as u32;
        }
        // No branch for each.
        if self.recent.iter().fold(false, |any, &granule| any | is_remembered_and_such(granule)) {
            self.note_moves();
            self.forget_among(is_such);
            self.note_moves();
        }
    }

    /// The same for those between others.
    fn forget_among(&mut self, is_such: impl Fn(u32) -> bool) {
        let back = |place: usize| place.wrapping_sub(1) % RECENT;
        // From the one to be taken next to the oldest: what is kept moves towards the end.
        let (mut from, mut to) = (back(self.end()), back(self.end()));
        let mut forgotten = 0;
        for _ in 0..RECENT {
            let granule = self.recent[from];
            if granule == NO_BLOCK {
                break;
            }
            // Each is written, also where it was: nothing that a processor has to foresee.
            self.recent[to] = granule;
            let is_such = is_such(granule);
            forgotten += usize::from(is_such);
            to = if is_such { to } else { back(to) };
            from = back(from);
        }
        for _ in 0..forgotten {
            self.recent[to] = NO_BLOCK;
            to = back(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::UnsafeCell;
    use core::sync::atomic::AtomicBool;
    use proptest::prelude::*;

    /// A child that was forked while another thread took a block handed out blocks twice.
    #[test]
    fn what_a_missing_thread_left_behind_is_not_reached_behind_what_is_gathered() {
        for freed in 1..=2 * RECENT {
            for gathered in 0..=GATHERED {
                let mut bin = Bin::empty();
                (0..freed).for_each(|granule| bin.note_free(granule));
                // In the middle of taking the latest one: its place is empty, and the end where it was.
                let top = bin.end().wrapping_sub(1) % RECENT;
                bin.recent[top] = NO_BLOCK;
                assert_eq!(bin.recall(), None, "{freed} freed");
                assert_eq!(bin.gather_row(100, 1, gathered), gathered);
                // Whatever is freed meanwhile, also more than there is room for.
                for more in [0, 1, GATHERED, RECENT - 1, RECENT, RECENT + 3] {
                    (0..more).for_each(|granule| bin.note_free(200 + granule));
                    let recalled: Vec<_> = core::iter::from_fn(|| bin.recall()).collect();
                    assert!(
                        recalled.len() >= more.min(RECENT),
                        "{freed} freed, {gathered} gathered, {more} more"
                    );
                    assert!(recalled.iter().all(|&granule| granule >= 100), "{freed} freed: {recalled:?}");
                }
            }
        }
    }

    /// The OS page of a block that was remembered all the time was given back.
    #[test]
    fn who_reads_what_another_remembers_misses_nothing_that_moves() {
        const KEPT: u32 = 1;
        struct Owner(UnsafeCell<Bin>);
        // SAFETY: one thread changes it; the other one reads as another thread may.
        unsafe impl Sync for Owner {}
        let bin = Bin::empty();
        let (owner, ends) = (Owner(UnsafeCell::new(bin)), AtomicBool::new(false));
        // Apart, because one block is remembered from before until after all this.
        let (owner, ends) = (&owner, &ends);
        let looks = std::thread::scope(|scope| {
            scope.spawn(move || {
                // SAFETY: the only thread that changes it.
                let bin = unsafe { &mut *owner.0.get() };
                bin.note_free(KEPT as usize);
                while !ends.load(Ordering::Relaxed) {
                    // What is not kept comes after it and is forgotten: it moves by one place each time.
                    for granule in [10, 20] {
                        bin.note_free(granule);
                    }
                    bin.forget_if(|granule| granule == 10);
                    bin.recall();
                    core::hint::black_box(&mut *bin);
                }
            });
            let (mut seen, mut missed) = (0, 0);
            let in_order = || {
                compiler_fence(Ordering::SeqCst);
                Ok::<(), ()>(())
            };
            // SAFETY: the bin lives as long as the scope.
            let look = || unsafe { Bin::recent_of_another(owner.0.get(), in_order) };
            while seen < 20_000 {
                let Ok(Some(recent)) = look() else { continue };
                // Before the first block was remembered there is nothing.
                if seen > 0 || recent.contains(&KEPT) {
                    seen += 1;
                    missed += usize::from(!recent.contains(&KEPT));
                }
            }
            ends.store(true, Ordering::Relaxed);
            (seen, missed)
        });
        assert_eq!(looks, (20_000, 0));
    }

    proptest! {
        /// Windows of few granules, so that those of one lie together, at the top, among others, and all over.
        #[test]
        fn what_is_forgotten_is_all_of_its_kind_and_nothing_else(
            frees in prop::collection::vec(0u32..8, 0..40), recalled in 0usize..20, kind in 0u32..4
        ) {
            let mut bin = Bin::empty();
            frees.iter().for_each(|&granule| bin.note_free(granule as usize));
            let mut latest: Vec<_> = frees.iter().rev().take(RECENT).copied().collect();
            for _ in 0..recalled.min(latest.len()) {
                prop_assert_eq!(bin.recall(), Some(latest.remove(0) as usize));
            }
            bin.forget_if(|granule| granule / 2 == kind);
            latest.retain(|granule| granule / 2 != kind);
            prop_assert_eq!(bin.latest().collect::<Vec<_>>(), &latest[..]);
            // The ring goes on.
            bin.note_free(100);
            latest.insert(0, 100);
            latest.truncate(RECENT);
            for granule in latest {
                prop_assert_eq!(bin.recall(), Some(granule as usize));
            }
            prop_assert_eq!(bin.recall(), None);
        }
    }
}
