//! The blocks that a bin remembers: a ring, of which the block that was put there last is taken first.
//!
//! ```text
//!            ┌──────── room of what is gathered ────────┐
//!   places   ├ next but one ┼ next ┼ none ┼ none ┼ … ┼ none ┤         full: the oldest is written over
//!                              top ─┘  └─ freed: put here
//! ```
//!
//! A place has the granule of a free block in the first region, or [`NO_BLOCK`]. 32 bits: those of the first 64
//! GiB; blocks beyond are not remembered ([`Own::granules`](super::heap::Own::granules)). Before the oldest block is a
//! place without one: so nobody counts how many there are, and neither putting a block there nor taking one
//! needs a branch but for that.
//!
//! A ring of 16 places was too short for programs that take many objects and drop all of them: what did not fit
//! was taken from windows again, and which of the two comes next is not foreseen where sizes are mixed. 300
//! blocks of 16 to 400 bytes at a time, all freed before the next, take 0.8 of the time with 64, of 16 to 128
//! bytes 0.75, and programs that replace blocks at random 0.95 (`bench/target/release/workloads-hugeheap
//! batches`, `larson`). With 128 batches of 1,000 take 0.95 of the time with 64, the others as long.
//!
//! Rings are apart from the bins, and a bin gets one with its first page: a thread with blocks of few sizes has
//! few OS pages of them. Until then it has the places of [`NONE`], to which nothing is ever written.

use super::instructions::{add_to_lowest_byte, in_register, write_row};
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

/// Blocks remembered per bin, at most: see above. A power of two.
pub(super) const RECENT: usize = 64;

/// Blocks gathered at once: half of what a bin remembers, so that those freed meanwhile do not overwrite them.
pub(super) const GATHERED: usize = RECENT / 2;

/// The same where they are of the only page of their class: few, because OS pages in which a block is remembered
/// stay with a thread that waits.
pub(super) const GATHERED_OF_FEW: usize = 8;

/// Blocks up to which those on top are looked at one by one, when all of a page are forgotten: five instructions
/// for each, where a look at all places is 130.
const FEW_ON_TOP: usize = 24;

/// In place of a granule: no block is remembered there.
pub(super) const NO_BLOCK: u32 = u32::MAX;

/// The places of a ring. They begin at a multiple of their length, so that the way from one to the next, and from
/// the last to the first, is an addition to the lowest byte of an address.
#[derive(Debug)]
#[repr(C, align(256))]
pub(crate) struct Places([u32; RECENT]);

const _: () = assert!(size_of::<Places>() == 1 << 8 && align_of::<Places>() == 1 << 8);

/// Those of all rings without places of their own: nothing is remembered before a page is cut.
static NONE: Places = Places([NO_BLOCK; RECENT]);

// SAFETY: the address of a static is not null. (`NonNull::from` is not const.)
const NOWHERE: NonNull<u32> = unsafe { NonNull::new_unchecked((&raw const NONE).cast_mut().cast()) };

/// The ring of a bin: all of it but the places, in the bin's line of the cache.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Ring {
    /// The place of the next block. The places are this ring's alone, but for [`NONE`]; the heap's owner writes
    /// to them.
    ///
    /// An address, and not the number of a place besides: programs that take and free many blocks of one size in a
    /// row wait for it from one to the next, and took 5 % longer.
    top: NonNull<u32>,
    /// Odd while those that are remembered are moved, and another number each time: see
    /// [`read_of_another`](Self::read_of_another).
    moves: AtomicU32,
}

/// The places of which this is one.
#[inline(always)]
fn places_of(place: *mut u32) -> *mut Places {
    place.map_addr(|address| address & !(size_of::<Places>() - 1)).cast()
}

/// The place so many bytes from there, in the same ring.
#[inline(always)]
fn neighbour<const BYTES: i8>(place: NonNull<u32>) -> NonNull<u32> {
    let neighbour = place.as_ptr().map_addr(add_to_lowest_byte::<BYTES>);
    // SAFETY: one of its places, which are not at 0: these are 256 bytes from a multiple of that.
    unsafe { NonNull::new_unchecked(neighbour) }
}

/// Places for the rings of a heap: each gets some with its bin's first page.
///
/// Not a part of what the owner has an exclusive reference to: rings point to them.
#[repr(transparent)]
pub(crate) struct Unused<const RINGS: usize>(UnsafeCell<[Places; RINGS]>);

impl<const RINGS: usize> Unused<RINGS> {
    /// The first of them.
    pub(super) fn first(unused: *const Self) -> NonNull<Places> {
        // A cell begins with what is in it.
        // SAFETY: it is somewhere, and not at 0.
        unsafe { NonNull::new_unchecked(unused.cast_mut().cast::<Places>()) }
    }
}

impl Ring {
    /// Of a new heap.
    pub(super) const fn empty() -> Self {
        Self { top: NOWHERE, moves: AtomicU32::new(0) }
    }

    /// Whether it has places of its own.
    pub(super) fn has_places(&self) -> bool {
        self.top != NOWHERE
    }

    /// Gives it places, and says which those after them are.
    ///
    /// # Safety
    /// Memory that nobody else uses, as long as the ring does.
    pub(super) unsafe fn set_places(&mut self, places: NonNull<Places>) -> NonNull<Places> {
        // SAFETY: by the contract.
        unsafe {
            places.write(Places([NO_BLOCK; RECENT]));
            // After they were written: another thread may look there at any time.
            compiler_fence(Ordering::Release);
            self.top = places.cast();
            places.add(1)
        }
    }

    fn places(&self) -> &[u32; RECENT] {
        // SAFETY: the ring's alone, or never written.
        unsafe { &(*places_of(self.top.as_ptr())).0 }
    }

    #[inline(always)]
    fn places_mut(&mut self) -> &mut [u32; RECENT] {
        debug_assert!(self.has_places());
        // SAFETY: the ring's alone. One whose bin has a page has places of its own, and before nothing is
        // remembered.
        unsafe { &mut (*places_of(self.top.as_ptr())).0 }
    }

    /// The number of the place of the block to be taken next.
    fn top(&self) -> usize {
        self.top.as_ptr() as usize % size_of::<Places>() / size_of::<u32>()
    }

    fn set_top(&mut self, place: usize) {
        self.top = NonNull::from(&mut self.places_mut()[place]);
    }

    /// Remembers one more block, the next one to be taken.
    ///
    /// No branch: that the ring is full is not foreseen where many blocks are freed in a row by a program with
    /// branches of its own. A count of what is remembered, which stops at [`RECENT`], was four instructions
    /// more.
    #[inline(always)]
    pub(super) fn push(&mut self, granule: usize) {
        debug_assert!(self.has_places());
        self.top = neighbour::<4>(self.top);
        // SAFETY: a place of this ring.
        unsafe { *self.top.as_ptr() = granule as u32 };
    }

    /// The granule of the block remembered last, and its place, from which it is to be [taken](Self::recall_from).
    #[inline(always)]
    pub(super) fn last(&self) -> Option<(usize, NonNull<u32>)> {
        // Of 64 bits from the beginning: known to be one of 32, it is compared as one of 64 with a constant
        // that has to be loaded.
        // SAFETY: a place of this ring, or of `NONE`.
        let granule = in_register(unsafe { *self.top.as_ptr() } as usize);
        (granule as u32 != NO_BLOCK).then_some((granule, self.top))
    }

    /// Forgets the block that is remembered last, in that place.
    #[inline(always)]
    pub(super) fn recall_from(&mut self, place: NonNull<u32>) {
        // SAFETY: of this ring, by who had it from there.
        unsafe { *place.as_ptr() = NO_BLOCK };
        self.top = neighbour::<-4>(place);
    }

    /// The granules that are remembered, the one to be taken next first.
    pub(super) fn latest(&self) -> impl Iterator<Item = u32> + '_ {
        let top = self.top();
        let places = (0..RECENT).map(move |back| top.wrapping_sub(back) % RECENT);
        places.map(|place| self.places()[place]).take_while(|&granule| granule != NO_BLOCK)
    }

    /// What a heap of another thread remembers of a class: all that it remembers as long as this takes, and
    /// perhaps more. `None`: that was moved meanwhile. See `vacate`. `in_order`: what was read before was there
    /// before what is read next.
    ///
    /// One place is read after the other. What moved from a place not read yet to one that had been read was in
    /// none of them, and the OS page of a block that was remembered all the time was given back.
    ///
    /// # Safety
    /// The ring is one of a heap.
    pub(super) unsafe fn read_of_another<E>(
        ring: *const Self,
        in_order: impl Fn() -> Result<(), E>,
    ) -> Result<Option<[u32; RECENT]>, E> {
        // SAFETY: by the contract; nobody has an exclusive reference to what is atomic only. The owner writes
        // whole words, and places stay where they are.
        let (moves, places) =
            unsafe { (&(*ring).moves, places_of((&raw const (*ring).top).read_volatile().as_ptr())) };
        let before = moves.load(Ordering::Relaxed);
        in_order()?;
        // SAFETY: as above.
        let recent = core::array::from_fn(|place| unsafe { (&raw const (*places).0[place]).read_volatile() });
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

    /// Where blocks that are gathered are remembered: from its end to its beginning, the first of them to be
    /// taken first. None is remembered now.
    ///
    /// Written there at once: with a list of them that was remembered afterwards, the last of them first,
    /// gathering eight blocks took three times as many instructions.
    #[inline(always)]
    pub(super) fn room<const LENGTH: usize>(&mut self) -> &mut [u32; LENGTH] {
        const { assert!(LENGTH <= GATHERED) };
        debug_assert!(self.latest().next().is_none());
        let (room, _) = self.places_mut().split_first_chunk_mut().expect("half of it");
        room
    }

    /// All but the first `left` places of a [room](Self::room) of so many were written. Says whether there is
    /// one.
    ///
    /// The place before them is made empty: in a forked child it may not be. A thread that it does not have may
    /// have emptied the place of a block that it was taking, and not have moved the top yet: then nothing seems
    /// to be remembered, and the older ones are still there. Without the empty place they were reached behind
    /// those that were gathered, when others used them.
    #[inline(always)]
    pub(super) fn gathered(&mut self, left: usize, length: usize) -> bool {
        self.places_mut()[left.wrapping_sub(1) % RECENT] = NO_BLOCK;
        self.set_top(length - 1);
        left < length
    }

    /// Remembers blocks whose granules are `step` apart, from `first` on and before `end`: at least one, and as
    /// many as there is room for. Says where the next one would be.
    ///
    /// Where they are is not looked up in their page's bitmap. All of the room is written, whatever of it is
    /// needed: a length that is known is no loop, and nothing that a processor has to foresee.
    #[inline(always)]
    pub(super) fn gather_row(&mut self, first: u32, step: u32, end: u32) -> u32 {
        write_row(self.room::<GATHERED>(), first, step, end - first);
        self.gathered(0, GATHERED);
        first + (end - first).min(GATHERED as u32 * step)
    }

    /// Forgets the blocks whose granules are such, of which there are so many at most: their page leaves the bin, or
    /// their window is opened.
    ///
    /// Blocks that are freed in their order lie together: a page whose last one was freed has them on top, or
    /// there are no others. So these two are asked for first, and only then one by one.
    pub(super) fn forget_if(&mut self, most: usize, is_such: impl Fn(u32) -> bool) {
        if !self.has_places() {
            return;
        }
        // All of them, where a page has few: the other places need no look.
        if most <= FEW_ON_TOP && self.forget_on_top(&is_such) == most {
            return;
        }
        let is_remembered_and_such = |granule: u32| granule != NO_BLOCK && is_such(granule);
        // No branch for each.
        let is_other = |granule: u32| granule != NO_BLOCK && !is_such(granule);
        if !self.places().iter().fold(false, |any, &granule| any | is_other(granule)) {
            *self.places_mut() = [NO_BLOCK; RECENT];
            return;
        }
        self.forget_on_top(&is_such);
        // No branch for each.
        if self.places().iter().fold(false, |any, &granule| any | is_remembered_and_such(granule)) {
            self.note_moves();
            self.forget_among(is_such);
            self.note_moves();
        }
    }

    /// The same for those that would be taken next. Says how many these were.
    #[inline(always)]
    fn forget_on_top(&mut self, is_such: impl Fn(u32) -> bool) -> usize {
        let mut forgotten = 0;
        while let Some((_, place)) = self.last().filter(|&(granule, _)| is_such(granule as u32)) {
            self.recall_from(place);
            forgotten += 1;
        }
        forgotten
    }

    /// The same for those between others.
    fn forget_among(&mut self, is_such: impl Fn(u32) -> bool) {
        let back = |place: usize| place.wrapping_sub(1) % RECENT;
        // From the one to be taken next to the oldest: what is kept moves towards the end.
        let (mut from, mut to) = (self.top(), self.top());
        let mut forgotten = 0;
        let places = self.places_mut();
        for _ in 0..RECENT {
            let granule = places[from];
            if granule == NO_BLOCK {
                break;
            }
            // Each is written, also where it was: nothing that a processor has to foresee.
            places[to] = granule;
            let is_such = is_such(granule);
            forgotten += usize::from(is_such);
            to = if is_such { to } else { back(to) };
            from = back(from);
        }
        for _ in 0..forgotten {
            places[to] = NO_BLOCK;
            to = back(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use proptest::prelude::*;

    /// One with places of its own, which are never given back.
    fn ring() -> Ring {
        let mut ring = Ring::empty();
        // SAFETY: nobody else knows them.
        unsafe { ring.set_places(NonNull::from(Box::leak(Box::new(Places([0; RECENT]))))) };
        ring
    }

    impl Ring {
        fn recall(&mut self) -> Option<usize> {
            let (granule, place) = self.last()?;
            self.recall_from(place);
            Some(granule)
        }
    }

    #[test]
    fn a_row_is_remembered_in_its_order_as_far_as_there_is_room() {
        for (blocks, step) in [(1, 256), (2, 3), (GATHERED as u32 - 1, 1), (GATHERED as u32, 5), (1000, 1)] {
            let mut ring = ring();
            let rest = ring.gather_row(7, step, 7 + blocks * step);
            let gathered = blocks.min(GATHERED as u32);
            assert_eq!(rest, 7 + gathered * step);
            let expected: Vec<u32> = (0..gathered).map(|block| 7 + block * step).collect();
            assert_eq!(ring.latest().collect::<Vec<_>>(), expected, "{blocks} blocks {step} apart");
            assert_eq!(ring.places().iter().filter(|&&granule| granule != NO_BLOCK).count(), expected.len());
        }
    }

    /// A child that was forked while another thread took a block handed out blocks twice.
    #[test]
    fn what_a_missing_thread_left_behind_is_not_reached_behind_what_is_gathered() {
        for freed in 1..=2 * RECENT as u32 {
            for gathered in [1, 2, GATHERED as u32 - 1, GATHERED as u32] {
                let mut ring = ring();
                (1..=freed).for_each(|granule| ring.push(granule as usize));
                // In the middle of taking the latest one: its place is empty, and the top where it was.
                let top = ring.top();
                ring.places_mut()[top] = NO_BLOCK;
                assert_eq!(ring.recall(), None, "{freed} freed");
                ring.gather_row(1000, 1, 1000 + gathered);
                // Whatever is freed meanwhile, also more than there is room for.
                for more in [0, 1, GATHERED as u32, RECENT as u32 - 1, RECENT as u32, RECENT as u32 + 3] {
                    (0..more).for_each(|granule| ring.push(2000 + granule as usize));
                    let recalled: Vec<_> = core::iter::from_fn(|| ring.recall()).collect();
                    assert!(
                        recalled.len() >= RECENT.min(more as usize),
                        "{freed} freed, {gathered} gathered, {more} more"
                    );
                    assert!(recalled.iter().all(|&granule| granule >= 1000), "{freed} freed: {recalled:?}");
                }
            }
        }
    }

    /// The OS page of a block that was remembered all the time was given back.
    #[test]
    fn who_reads_what_another_remembers_misses_nothing_that_moves() {
        const KEPT: u32 = 1;
        struct Owner(UnsafeCell<Ring>);
        // SAFETY: one thread changes it; the other one reads as another thread may.
        unsafe impl Sync for Owner {}
        let (owner, ends) = (Owner(UnsafeCell::new(ring())), AtomicBool::new(false));
        // Apart, because one block is remembered from before until after all this.
        let (owner, ends) = (&owner, &ends);
        let looks = std::thread::scope(|scope| {
            scope.spawn(move || {
                // SAFETY: the only thread that changes it.
                let ring = unsafe { &mut *owner.0.get() };
                ring.push(KEPT as usize);
                while !ends.load(Ordering::Relaxed) {
                    // What is not kept comes after it and is forgotten: it moves by one place each time.
                    for granule in [10, 20] {
                        ring.push(granule as usize);
                    }
                    ring.forget_if(RECENT, |granule| granule == 10);
                    ring.recall();
                    core::hint::black_box(&mut *ring);
                }
            });
            let (mut seen, mut missed) = (0, 0);
            let in_order = || {
                compiler_fence(Ordering::SeqCst);
                Ok::<(), ()>(())
            };
            // SAFETY: the ring lives as long as the scope.
            let look = || unsafe { Ring::read_of_another(owner.0.get(), in_order) };
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
            frees in prop::collection::vec(1u32..9, 0..150), recalled in 0usize..70, kind in 0u32..5, known: bool
        ) {
            let mut ring = ring();
            frees.iter().for_each(|&granule| ring.push(granule as usize));
            let mut latest: Vec<_> = frees.iter().rev().take(RECENT).copied().collect();
            for _ in 0..recalled.min(latest.len()) {
                prop_assert_eq!(ring.recall(), Some(latest.remove(0) as usize));
            }
            // Whether it is known how many there are at most, or not.
            let most = if known { latest.iter().filter(|&granule| granule / 2 == kind).count() } else { RECENT };
            ring.forget_if(most, |granule| granule / 2 == kind);
            latest.retain(|granule| granule / 2 != kind);
            prop_assert_eq!(ring.latest().collect::<Vec<_>>(), &latest[..]);
            // The ring goes on.
            ring.push(100);
            latest.insert(0, 100);
            latest.truncate(RECENT);
            for granule in latest {
                prop_assert_eq!(ring.recall(), Some(granule as usize));
            }
            prop_assert_eq!(ring.recall(), None);
        }
    }
}
