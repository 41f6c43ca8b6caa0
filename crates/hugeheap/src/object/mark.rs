//! The mark of a heap page: whose it is, where something is free in it, and how much of it lives. All that a
//! free of the owner needs besides the bitmap.
//!
//! ```text
//!   tag      see `tag`
//!   links    next, previous: neighbours in a list; inbox: the next page with frees of other threads
//!   looked, gone    states at the last looks for vacant OS pages (see `vacancy`)
//!   idle            of a page of a span: blocks that do not live (see `span_place`)
//!   resized         of a page without a tag: how long what begins there is, if it was resized (see `resized_length`)
//!   state    31             20   19    18    17  16  15            0
//!            ├ count, signed ──┼ unused ┼ listed ┼ used ┼ free ─────┤
//!            live − 1           + 512 at hand, − 1,536 full
//! ```
//!
//! *free*: windows that may have a free block, but for the open one. A free does not note its window here: when
//! none is left, who wants one looks at all words of the page. *full*: the page has no free block, and is
//! neither at hand nor in a list, so that the first block that is freed there has to see to it that it is
//! found. *live*: blocks that are live, those that other threads freed and nobody has collected included, and
//! the free ones of the open window: taking a block there changes nothing here, and C does it without a call. A
//! page at hand has [`AT_HAND`] more there, so that it is never found to be without one: a program may take and
//! free a block in turn, and have no other one of the class. When each such free was looked at only to find
//! that the page stays, the pair took twice the instructions. *listed*: the list of the bin that the page is
//! in. *used*: the page was in use once, so its metadata is resident.
//!
//! A mark has a cache line to itself, of which a page of blocks needs 48 bytes: each allocation and each free
//! writes to one, and the pages of two threads' heaps lie side by side. With two to a line `larson` with two
//! threads took 0.20 to 0.43 s in some hours of one virtual machine, one run like the other or not, and takes 0.15
//! to 0.21 s (30 runs each, by turns); in other hours as long. `glibc-thread` takes 7 % less. One thread takes
//! as long. It is 0.2 % of the memory. (Eight shared one while the links were in an array of their own.)
//!
//! The tag is written by the owner; another thread only sets its pending bit. The state is the owner's; others
//! may read it for statistics. So it is changed by plain loads and stores, and all of it in one word: what is
//! left when a free has counted says by its sign whether the page has to be looked at: it is less than nothing
//! where no block lives, and where the page is full. (With a bit for full pages, and a comparison, the state was
//! read once more for each free: the processor had no register for it.)
//!
//! With a count of live blocks a page without any is found at once. It was found by the bitmap before: where no
//! window was without a free block, all of them were looked at when one had no live block left. But whether a
//! window has one left is not foreseen where it has few: with a look at the block's own window with each free
//! `glibc-thread` took a sixth longer, and with one at four windows, of which one nearly always has a live
//! block, 5 %.

use super::class::WINDOWS;
use super::resized_length::ResizedLength;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The page was in use once.
const USED: u32 = 1 << 16;

/// Where the number of the list begins, and all of its bits.
const LISTED_SHIFT: u32 = 17;
const LISTED: u32 = 3 << LISTED_SHIFT;

/// What a live block is in the state, the twelve highest bits of which are a signed number: the live blocks but
/// one, up to 1,023.
const LIVE_SHIFT: u32 = 20;
const LIVE: u32 = 1 << LIVE_SHIFT;

/// What a page at hand counts besides its live blocks. Half of what the positive numbers have room for beside
/// the 1,024 of a page: in a forked child a count may be too high by the block that a missing thread was taking
/// or freeing, in a child's child by two.
const AT_HAND: u32 = 512 * LIVE;

/// What a page counts less that is full, and where nobody looks for blocks: however many live there, and with what
/// a fork may have left, that is below all that other pages count.
const FULL: u32 = 1536 * LIVE;

/// A page that counts less is full: halfway between these and those that are not.
const FULL_BELOW: i32 = -256;

/// Blocks of a span that begin in a page, at most.
pub(super) const SPAN_BLOCKS: usize = 4;

/// Words of a mark in which other threads note what they free.
pub(super) const FREED_WORDS: usize = SPAN_BLOCKS - 2;

/// Tag, summary and count of a heap page, and its links.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) tag: AtomicU32,
    state: AtomicU32,
    pub(crate) links: Links,
    /// Of a page of a span: the links of the third and fourth block that begin there. The first two have those
    /// of lists, right before these. Of a page of blocks of 128 bytes or more: what others freed there (see
    /// [`freed`](super::freed)).
    more_links: [AtomicUsize; FREED_WORDS],
    /// The state at the last look for vacant OS pages, and when some were given back last; 0: never. See
    /// `vacancy`: written by who looks.
    looked: AtomicU32,
    gone: AtomicU32,
    /// Of a page of a span: for each block that begins there, 1 if it does not live. Bytes, so that one that
    /// begins to live changes nothing of another's.
    idle: [AtomicU8; SPAN_BLOCKS],
    /// Of the live run or large block that begins at a page without a tag, and was resized: its length (see
    /// [`ResizedLength`]); 0: none does, or it is not known.
    resized: AtomicU32,
}

const _: () = assert!(
    size_of::<AtomicUsize>() == size_of::<AtomicU64>()
        && align_of::<AtomicUsize>() == align_of::<AtomicU64>()
);

// A page of the smallest blocks has the most: one for each bit of its windows.
const _: () = assert!(2 * AT_HAND + 64 * WINDOWS as u32 * LIVE == 1 << 31);
const _: () = assert!(64 * WINDOWS as i32 - (FULL / LIVE) as i32 + 256 <= FULL_BELOW && FULL < 1 << 31);

// Four times the number of a window without its place in the page is the way to the mark.
const _: () = assert!(size_of::<Mark>() == 4 * WINDOWS);

/// Neighbours of a heap page in the lists it is in, as addresses of pages; 0: none.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Links {
    /// Next page with remote frees.
    pub(crate) inbox: AtomicUsize,
    pub(crate) next: AtomicUsize,
    pub(crate) previous: AtomicUsize,
}

/// Where the links of the blocks of a span are in a mark: one behind the other.
const SPAN_LINKS: usize = offset_of!(Mark, links) + offset_of!(Links, next);

const _: () = assert!(
    offset_of!(Mark, links) + offset_of!(Links, previous) == SPAN_LINKS + size_of::<AtomicUsize>()
        && offset_of!(Mark, more_links) == SPAN_LINKS + 2 * size_of::<AtomicUsize>()
);

impl Mark {
    #[inline(always)]
    fn state(&self) -> u32 {
        self.state.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn change(&self, change: impl FnOnce(u32) -> u32) {
        self.state.store(change(self.state()), Ordering::Relaxed);
    }

    /// A block was freed. Says whether the page has to be looked at: it is noted as full, or has no live block
    /// any more.
    #[inline(always)]
    pub(super) fn note_free(&self) -> bool {
        let state = self.state().wrapping_sub(LIVE);
        self.state.store(state, Ordering::Relaxed);
        (state as i32) < 0
    }

    /// Whether it is noted as full.
    pub(super) fn is_full(&self) -> bool {
        is_full(self.state())
    }

    /// It has no free block, and is neither at hand nor in a list.
    pub(super) fn set_full(&self) {
        if !self.is_full() {
            self.change(|state| state.wrapping_sub(FULL));
        }
    }

    /// Windows that may have a free block. (Of the first page of a run: its length in pages. Of a page of a
    /// span: see [`span_place`](super::span_place). Of a collected object with cards: their words with dirty
    /// ones.)
    #[inline(always)]
    pub(crate) fn free(&self) -> u16 {
        self.state() as u16
    }

    pub(crate) fn set_free(&self, free: u16) {
        self.change(|state| state & !0xffff | u32::from(free));
    }

    /// These windows have free blocks.
    #[inline(always)]
    pub(super) fn add_windows(&self, windows: u16) {
        self.change(|state| state | u32::from(windows));
    }

    /// A window has a free block. Returns the windows that had one before.
    #[inline(always)]
    pub(crate) fn add_free(&self, window: usize) -> u16 {
        let before = self.free();
        self.change(|state| state | 1 << window);
        before
    }

    /// A window was opened, or has no free block.
    #[inline(always)]
    pub(crate) fn remove_free(&self, window: usize) {
        self.change(|state| state & !(1 << window));
    }

    /// Blocks that are live, or free in the open window. Of a page at hand see [`live_at_hand`](Self::live_at_hand).
    #[inline(always)]
    pub(crate) fn live(&self) -> u32 {
        let state = self.state();
        (count(state_unless_full(state)) + 1).max(0) as u32
    }

    /// The same of a page at hand.
    #[inline(always)]
    pub(super) fn live_at_hand(&self) -> u32 {
        self.live().wrapping_sub(AT_HAND / LIVE)
    }

    /// Whether the page may be at hand: it counts so many. Of the smallest blocks one that is not may count as
    /// many, too.
    pub(super) fn may_be_at_hand(&self) -> bool {
        self.live() >= AT_HAND / LIVE
    }

    /// A page with free blocks becomes the one at hand of its bin. It is in no list.
    #[inline(always)]
    pub(super) fn come_to_hand(&self) {
        self.change(|state| state.wrapping_add(AT_HAND));
    }

    /// It is at hand no more.
    #[inline(always)]
    pub(super) fn leave_hand(&self) {
        self.change(|state| state.wrapping_sub(AT_HAND));
    }

    /// Blocks became live, or their window was opened.
    #[inline(always)]
    pub(crate) fn add_live(&self, blocks: u32) {
        self.change(|state| state.wrapping_add(blocks * LIVE));
    }

    /// Blocks were freed without [`note_free`](Self::note_free), or are free in a window that is left.
    #[inline(always)]
    pub(crate) fn remove_live(&self, blocks: u32) {
        self.change(|state| state.wrapping_sub(blocks * LIVE));
    }

    /// The page is cut into blocks of a class, none of which is live, and at hand: those windows have free ones.
    #[inline(always)]
    pub(super) fn begin_at_hand(&self, windows: u16) {
        // It may have been a page of a span.
        (0..FREED_WORDS).for_each(|number| self.freed(number).store(0, Ordering::Relaxed));
        self.change(|state| state & USED | (AT_HAND - LIVE) | u32::from(windows));
    }

    /// Number of the list of its bin that the page is in; 0: in none.
    #[inline(always)]
    pub(super) fn listed(&self) -> usize {
        ((self.state() & LISTED) >> LISTED_SHIFT) as usize
    }

    /// The list that the page is in; 0: in none, which is at hand or a spare page. In either case nobody has to
    /// find it.
    pub(super) fn set_listed(&self, list: usize) {
        self.change(|state| state_unless_full(state) & !LISTED | (list as u32) << LISTED_SHIFT & LISTED);
    }

    /// The state, were the blocks collected that others freed.
    fn state_without(&self, others: u32) -> u32 {
        self.state().wrapping_sub(others.wrapping_mul(LIVE))
    }

    /// The page is looked at for vacant OS pages, with so many blocks that others freed. Says whether its state
    /// is that of the look before.
    pub(super) fn look(&self, others: u32) -> bool {
        let (state, before) = (self.state_without(others), self.looked.load(Ordering::Relaxed));
        if state != before {
            // Not written where it is the same: the line is the owner's, and a forked child's page.
            self.looked.store(state, Ordering::Relaxed);
        }
        state == before
    }

    /// The state in which vacant OS pages of it were given back; 0: never.
    pub(super) fn gone(&self) -> u32 {
        self.gone.load(Ordering::Relaxed)
    }

    /// Whether they were given back, and its state has not changed since.
    pub(super) fn is_gone(&self, others: u32) -> bool {
        self.gone() == self.state_without(others)
    }

    /// Its vacant OS pages were given back.
    pub(super) fn set_gone(&self, others: u32) {
        self.gone.store(self.state_without(others), Ordering::Relaxed);
    }

    /// It is a page like any other again.
    pub(super) fn forget_gone(&self) {
        if self.gone() != 0 {
            self.gone.store(0, Ordering::Relaxed);
        }
    }

    /// What others freed of a page of blocks of 128 bytes or more: see [`freed`](super::freed).
    #[inline(always)]
    pub(super) fn freed(&self, number: usize) -> &AtomicU64 {
        let link: &AtomicUsize = &self.more_links[number % FREED_WORDS];
        // SAFETY: as large, and aligned alike, as asserted above; the page has no links there.
        unsafe { &*core::ptr::from_ref(link).cast() }
    }

    /// Of a page of a span: whether a block that begins there does not live.
    #[inline(always)]
    pub(super) fn idle(&self, block: usize) -> &AtomicU8 {
        &self.idle[block % SPAN_BLOCKS]
    }

    /// Of a page of a span: the link of that block.
    #[inline(always)]
    pub(super) fn span_link(&self, block: usize) -> &AtomicUsize {
        let links = (&raw const *self).cast::<u8>().wrapping_add(SPAN_LINKS).cast::<AtomicUsize>();
        // SAFETY: four links lie there in the mark, as asserted above. Found by a branch for each, which of
        // them it is cost as much as all else that is looked up.
        unsafe { &*links.add(block % SPAN_BLOCKS) }
    }

    /// Of a page without a tag: how long what begins there is, if that is known without the arenas' lock.
    pub(super) fn resized(&self) -> Option<ResizedLength> {
        ResizedLength::unpack(self.resized.load(Ordering::Relaxed))
    }

    /// What begins there is so long. Whoever has it.
    pub(super) fn set_resized(&self, length: ResizedLength) {
        self.resized.store(length.pack(), Ordering::Relaxed);
    }

    /// The same; it is freed, or moved, and not known any more.
    pub(super) fn take_resized(&self) -> Option<ResizedLength> {
        // Written only where it was: metadata that nobody used may not be writable.
        let length = self.resized()?;
        self.resized.store(0, Ordering::Relaxed);
        Some(length)
    }

    /// Whether the page was in use once.
    pub(super) fn is_used(&self) -> bool {
        self.state() & USED != 0
    }

    /// By who has just taken it from the arenas.
    pub(super) fn set_used(&self) {
        self.change(|state| state | USED);
    }
}

/// What a state counts.
#[inline(always)]
fn count(state: u32) -> i32 {
    state as i32 >> LIVE_SHIFT
}

#[inline(always)]
fn is_full(state: u32) -> bool {
    count(state) < FULL_BELOW
}

/// The state of the page were it not full.
#[inline(always)]
fn state_unless_full(state: u32) -> u32 {
    state.wrapping_add(if is_full(state) { FULL } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_state_do_not_touch_each_other() {
        let links =
            Links { next: AtomicUsize::new(0), previous: AtomicUsize::new(0), inbox: AtomicUsize::new(0) };
        let [tag, state, looked, gone] = [0; 4].map(AtomicU32::new);
        let mark = Mark {
            tag,
            state,
            links,
            looked,
            gone,
            idle: [0; SPAN_BLOCKS].map(AtomicU8::new),
            more_links: [0; 2].map(AtomicUsize::new),
            resized: AtomicU32::new(0),
        };
        mark.set_used();
        mark.begin_at_hand(0);
        mark.add_live(1024);
        assert_eq!(
            (mark.live_at_hand(), mark.listed(), mark.is_full(), mark.is_used()),
            (1024, 0, false, true)
        );
        mark.remove_live(1023);
        assert!(!mark.note_free(), "at hand, and so never looked at");
        assert_eq!((mark.live_at_hand(), mark.free(), mark.is_full()), (0, 0, false));
        mark.leave_hand();
        mark.add_live(1024);
        mark.set_listed(2);
        assert_eq!((mark.free(), mark.live(), mark.listed(), mark.is_used()), (0, 1024, 2, true));
        assert!(!mark.note_free(), "it is in a list");
        assert_eq!((mark.free(), mark.live(), mark.listed(), mark.is_used()), (0, 1023, 2, true));
        mark.set_listed(0);
        mark.set_full();
        assert!(mark.note_free(), "nobody finds it");
        assert!(mark.is_full() && mark.note_free(), "as long as that is so");
        assert_eq!((mark.live(), mark.listed(), mark.is_used()), (1021, 0, true));
        mark.set_listed(1);
        assert!(!mark.is_full() && !mark.note_free());
        mark.set_listed(0);
        mark.remove_live(1019);
        mark.set_free(1 << 15 | 1);
        mark.remove_free(15);
        assert!(mark.note_free(), "it has no live block");
        assert_eq!((mark.free(), mark.live(), mark.listed(), mark.is_used()), (1, 0, 0, true));
        assert_eq!(mark.add_free(3), 1);
        mark.set_free(8);
        assert_eq!((mark.free(), mark.live(), mark.listed(), mark.is_used()), (8, 0, 0, true));
        // It was a page of a span, whose third and fourth block were kept before others.
        (2..4).for_each(|block| mark.span_link(block).store(usize::MAX, Ordering::Relaxed));
        mark.begin_at_hand(0);
        let noted = [0, 1].map(|number| mark.freed(number).load(Ordering::Relaxed));
        assert_eq!(noted, [0, 0], "nobody freed any of its blocks");
        mark.leave_hand();
        mark.add_live(1);
        mark.set_free(8);
        assert!(mark.note_free());
        // As after a fork that another thread's free was in the middle of.
        assert!(mark.note_free());
        assert_eq!((mark.free(), mark.listed(), mark.is_used()), (8, 0, true));
    }
}
