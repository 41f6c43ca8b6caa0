//! Where objects begin: one block of whole arenas, emptied by each minor collection but for the objects that stay.
//!
//! ```text
//!   memory   ├────────── gap ──────────┼ stays ┼──── gap ────┼ stays ┼─ gap ─┤
//!   stays    0 0 0 0 0 0 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 0 1 0 0 0 0 0 0      a bit per granule, beside the heap pages
//!   queued   0 0 0 0 …                                                           of these, not looked into yet, for which the list has no memory
//!   listed   ├ addresses ─┤                                                      the others that were not looked into yet
//! ```
//!
//! An object *stays* when it is pinned, or when the old generation had no room for it. The bits are those of
//! `Space` for the nursery's heap pages. Gaps are handed out from below as windows. Without an object that
//! stays there is one gap: everything.

use super::fault::{self, Kind};
use super::header::{Header, OBJECT_ALIGN, STAYS};
use super::heap::MAX_YOUNG;
use super::room::{self, Room};
use super::types::Types;
use super::window::Window;
use crate::arena::{ARENA_BYTES, HEAP_PAGE_BYTES};
use crate::object::space::{Bitmap, Page};
use crate::object::{Source, Space};
use core::sync::atomic::Ordering;
use hugeheap_os::{AddressRange, Pages, Protection};
use std::collections::VecDeque;

/// Bytes that are handed out at once. Whoever comes for the next ones is asked whether a collection is due
/// ([`Remembered::places`]): for each 8,192 of the smallest objects, which is two hundredths of an instruction
/// for each.
///
/// [`Remembered::places`]: super::barrier::Remembered::places
pub(super) const PIECE: usize = 128 << 10;

/// Nurseries that are protected at once where they are rotated: so many collections later an address that was
/// kept is still found.
const NURSERIES: usize = 3;

/// The nursery of a heap.
pub(crate) struct Nursery<S: Source> {
    space: &'static Space<S>,
    start: usize,
    bytes: usize,
    /// How many bytes of it are handed out until the next collection: as many as the pace allows, or as what is
    /// ready is enough for.
    pub(crate) part: usize,
    /// How many bytes the pace allows. Apart, because an arena that is being made now will soon be there: one
    /// collection of half as much was followed by four to come back to 4 MiB.
    pub(crate) paced: usize,
    /// Where the next gap is looked for.
    next: usize,
    /// Objects that stay.
    stays: usize,
    /// Of these, those that have to be looked into.
    queued: usize,
    /// Addresses between which these lie, both included, but for those that are in the list.
    queue: (usize, usize),
    /// Of these, those for which the process's allocator had room; they have no bit.
    listed: Vec<usize>,
    /// Bytes that were handed out in windows since the last collection.
    handed_out: usize,
    /// What was used of each gap since the last collection, if somebody has to know where objects begin.
    gaps: Option<Vec<(usize, usize)>>,
    /// Nurseries that were used before and are protected, the oldest first.
    before: VecDeque<usize>,
}

/// Entries of the list of what has to be looked into whose memory is kept, 32 KiB: a program with as many
/// pinned objects asks for none in each collection.
const LISTED: usize = 4096;

impl<S: Source> Nursery<S> {
    /// Takes `bytes` bytes, a multiple of a heap page, in whole arenas.
    ///
    /// # Errors
    /// How many bytes were left: fewer than that, or the system refused.
    pub(crate) fn new(space: &'static Space<S>, bytes: usize) -> Result<Self, u64> {
        let start = Self::block(space, bytes)?;
        Ok(Self {
            space,
            start,
            bytes,
            part: bytes,
            paced: bytes,
            next: start,
            stays: 0,
            queued: 0,
            queue: (0, 0),
            listed: Vec::new(),
            handed_out: 0,
            gaps: None,
            before: VecDeque::new(),
        })
    }

    fn block(space: &'static Space<S>, bytes: usize) -> Result<usize, u64> {
        let arenas = bytes.checked_next_multiple_of(ARENA_BYTES).ok_or(u64::MAX)?;
        // "Growing", so that its last arena may be a huge page as well.
        let block = room::take(space, &mut Room::default(), (arenas, true), room::left_for_nursery)?;
        let start = block.address.get();
        if space.pages_or_add(start, arenas).is_none() {
            let _ = space.source().with(|arenas_of| arenas_of.free_large(start));
            return Err(u64::MAX);
        }
        Ok(start)
    }

    /// Uses another nursery from now on, and protects this one, if nothing stays in it. Directly after
    /// [`empty`](Self::empty). Says no when it goes on with the same.
    pub(crate) fn rotate(&mut self) -> bool {
        let os = self.space.source().os();
        let range = |start| AddressRange { start, len: self.bytes };
        if self.stays > 0 || self.before.try_reserve(1).is_err() {
            return false;
        }
        let next = if self.before.len() < NURSERIES {
            Self::block(self.space, self.bytes).ok()
        } else {
            self.before.front().copied()
        };
        let Some(next) = next else { return false };
        let reused = self.before.front() == Some(&next);
        if reused && !self.open(next) {
            return false;
        }
        // SAFETY: nothing lives in this nursery. Who accesses it has an address that is wrong.
        let protected = fault::add(self.start, self.bytes, Kind::OldNursery)
            && unsafe { os.protect(range(self.start), Protection::None) }.is_ok();
        if reused {
            self.before.pop_front();
        }
        if !protected {
            fault::remove(self.start);
            // SAFETY: as above. A call that failed may have protected a part.
            let _ = unsafe { os.protect(range(self.start), Protection::ReadWrite) };
            let freed = self.space.source().with(|arenas| arenas.free_large(next));
            debug_assert!(freed.is_ok(), "a nursery is a large block");
            return false;
        }
        self.before.push_back(self.start);
        (self.start, self.next) = (next, next);
        true
    }

    /// Lifts the protection of a nursery. Says no when the system refuses.
    fn open(&self, start: usize) -> bool {
        let range = AddressRange { start, len: self.bytes };
        // SAFETY: a nursery of this heap, in which nothing lives.
        let opened = unsafe { self.space.source().os().protect(range, Protection::ReadWrite) }.is_ok();
        if opened {
            fault::remove(start);
        }
        opened
    }

    /// Goes on in the beginning of its block, if nothing stays in it. Directly after [`empty`](Self::empty).
    /// Says no when it goes on in all of it.
    ///
    /// In another block the kernel found memory for two huge pages in the pause, 11 ms where a hypervisor was
    /// slow. What the arenas get back they keep or give to the system by their rules, also where it is in pages
    /// of a pool.
    pub(crate) fn shrink(&mut self, bytes: usize) -> bool {
        let (start, whole) = (self.start, bytes.next_multiple_of(ARENA_BYTES));
        self.resize(bytes, |space| {
            let resized = space.source().with(|arenas| arenas.resize_large(start, whole));
            debug_assert!(resized.is_ok(), "a nursery is a large block");
            resized.ok().flatten().map(|start| start.get())
        })
    }

    /// Goes on in a longer block that begins where this one does, if nothing stays in it and there is room
    /// behind it. Directly after [`empty`](Self::empty). `limited`: it may have what is resident, and nothing
    /// else. Says no when it goes on in the same.
    ///
    /// So the kernel finds memory in the pause for what is added only. In another block it did for all of it,
    /// and what this one had stayed resident: three of seven huge pages of what grew from 2 to 8 MiB.
    pub(crate) fn extend(&mut self, bytes: usize, limited: bool) -> bool {
        let (start, whole) = (self.start, bytes.next_multiple_of(ARENA_BYTES));
        let before = self.bytes.next_multiple_of(ARENA_BYTES);
        self.resize(bytes, |space| {
            if !room::extend(space, start, whole, limited) {
                return None;
            }
            let ready = space.pages_or_add(start, whole).is_some();
            if !ready {
                let _ = space.source().with(|arenas| arenas.resize_large(start, before));
            }
            ready.then_some(start)
        })
    }

    /// Goes on in another block, within the limits of one, if nothing stays in this one. Directly after
    /// [`empty`](Self::empty). Says no when it goes on in the same.
    pub(crate) fn replace(&mut self, bytes: usize) -> bool {
        let before = self.start;
        self.resize(bytes, |space| {
            let start = Self::block(space, bytes).ok()?;
            let freed = space.source().with(|arenas| arenas.free_large(before));
            debug_assert!(freed.is_ok(), "a nursery is a large block");
            Some(start)
        })
    }

    /// Goes on with so many bytes from the address that `take` answers on, if nothing stays in this nursery and
    /// no other one takes turns with it.
    fn resize(&mut self, bytes: usize, take: impl FnOnce(&'static Space<S>) -> Option<usize>) -> bool {
        if self.stays > 0 || !self.before.is_empty() {
            return false;
        }
        let Some(start) = take(self.space) else { return false };
        (self.start, self.next, self.bytes) = (start, start, bytes);
        true
    }

    pub(crate) fn start(&self) -> usize {
        self.start
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn end(&self) -> usize {
        self.start + self.bytes
    }

    /// Whether a word is a reference into the nursery: one test for the range and for the low bits.
    #[inline(always)]
    pub(crate) fn contains(&self, word: usize) -> bool {
        word.wrapping_sub(self.start).rotate_right(OBJECT_ALIGN.trailing_zeros()) < self.bytes / OBJECT_ALIGN
    }

    fn page(&self, address: usize) -> Page {
        match self.space.page(address) {
            Some(page) => page,
            None => unreachable!("the nursery's region was made known when it was taken"),
        }
    }

    fn stays_of(page: Page) -> &'static Bitmap {
        page.remote()
    }

    fn queued_of(page: Page) -> &'static Bitmap {
        page.vacant()
    }

    fn set_stays(&mut self, object: usize, stays: bool) {
        let (word, bit) = place(object);
        let word = &Self::stays_of(self.page(object))[word];
        let before = word.load(Ordering::Relaxed);
        debug_assert_eq!(before & bit == 0, stays);
        word.store(before ^ bit, Ordering::Relaxed);
        if stays {
            self.stays += 1;
        } else {
            self.stays -= 1;
        }
    }

    /// Sees to it that an object stays.
    ///
    /// # Safety
    /// An object of this nursery that does not stay begins there.
    pub(crate) unsafe fn keep(&mut self, object: usize) {
        // SAFETY: by the contract.
        unsafe { Header::of(object).with(STAYS).put(object) };
        self.set_stays(object, true);
    }

    /// The next collection may move an object again.
    ///
    /// # Safety
    /// An object of this nursery that stays begins there.
    pub(crate) unsafe fn let_go(&mut self, object: usize) {
        // SAFETY: by the contract.
        unsafe { Header::of(object).without(STAYS).put(object) };
        self.set_stays(object, false);
    }

    /// Notes that an object that stays has to be looked into.
    #[inline(never)]
    pub(crate) fn queue(&mut self, object: usize) {
        let marked = self.queued - self.listed.len();
        self.queued += 1;
        if self.listed.try_reserve(1).is_ok() {
            return self.listed.push(object);
        }
        let (word, bit) = place(object);
        Self::queued_of(self.page(object))[word].fetch_or(bit, Ordering::Relaxed);
        let (low, high) = if marked == 0 { (object, object) } else { self.queue };
        self.queue = (low.min(object), high.max(object));
    }

    /// The same for all that stay. A word of the bitmap at a time: with a search from one to the next each
    /// object took 180 instructions of 530 in a collection, where 1,000 were pinned.
    #[inline(never)]
    pub(crate) fn queue_staying(&mut self) {
        for start in (self.start..self.end()).step_by(HEAP_PAGE_BYTES) {
            let bitmap = Self::stays_of(self.page(start));
            for (window, word) in bitmap.iter().enumerate() {
                let mut bits = word.load(Ordering::Relaxed);
                while bits != 0 {
                    let granule = window * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    self.queue(start + granule * OBJECT_ALIGN);
                }
            }
        }
    }

    /// Takes an object that has to be looked into: the last one of the list. Where that had no memory, the
    /// first one at or behind `from`, else the first of all, and looks only between the ends of the queue: a
    /// list that grew at its head queues one object at a time, each below the one before, and the search for
    /// the next one through all of the nursery took seconds.
    ///
    /// Without the list, of two lists that are looked into at a time the bitmap was gone through from one to
    /// the other for every second object: with a nursery of 4 MiB that was 2,200 instructions for each object
    /// that stayed, and the larger the nursery the more.
    #[inline(never)]
    pub(crate) fn unqueue(&mut self, from: usize) -> Option<usize> {
        if self.queued == 0 {
            return None;
        }
        if let Some(object) = self.listed.pop() {
            self.queued -= 1;
            if self.listed.is_empty() && self.listed.capacity() > LISTED {
                self.listed = Vec::new();
            }
            return Some(object);
        }
        let (low, high) = self.queue;
        let behind = self.next_bit_up_to(from.max(low), high, Self::queued_of);
        if behind.is_none() {
            self.queue.1 = high.min(from);
        }
        let object = match behind {
            Some(object) => object,
            None => self.next_bit_up_to(low, self.queue.1, Self::queued_of)?,
        };
        if behind.is_none() {
            self.queue.0 = object;
        }
        let (word, bit) = place(object);
        Self::queued_of(self.page(object))[word].fetch_and(!bit, Ordering::Relaxed);
        self.queued -= 1;
        Some(object)
    }

    /// Whether objects that stay have to be looked into.
    #[inline(always)]
    pub(crate) fn has_queued(&self) -> bool {
        self.queued > 0
    }

    /// Objects that stay.
    #[inline(always)]
    pub(crate) fn staying(&self) -> usize {
        self.stays
    }

    /// Whether an object that stays begins at an address of the nursery.
    pub(crate) fn is_staying(&self, object: usize) -> bool {
        let (word, bit) = place(object);
        self.stays > 0 && Self::stays_of(self.page(object))[word].load(Ordering::Relaxed) & bit != 0
    }

    /// The first object that stays, at or behind `from`.
    pub(crate) fn next_staying(&self, from: usize) -> Option<usize> {
        if self.stays == 0 { None } else { self.next_bit(from, Self::stays_of) }
    }

    fn next_bit(&self, from: usize, bitmap: fn(Page) -> &'static Bitmap) -> Option<usize> {
        self.next_bit_up_to(from, self.end() - 1, bitmap)
    }

    /// The first bit at or behind `from`, where none behind `last` is wanted.
    fn next_bit_up_to(&self, from: usize, last: usize, bitmap: fn(Page) -> &'static Bitmap) -> Option<usize> {
        let mut at = from;
        while at <= last {
            let (word, bit) = place(at);
            let bits = bitmap(self.page(at))[word].load(Ordering::Relaxed) & bit.wrapping_neg();
            let window = at & !(64 * OBJECT_ALIGN - 1);
            if bits != 0 {
                return Some(window + bits.trailing_zeros() as usize * OBJECT_ALIGN);
            }
            at = window + 64 * OBJECT_ALIGN;
        }
        None
    }

    /// Makes a window longer, by the next piece of its gap, or gives it one of the next gap, so that it has at
    /// least `least` bytes. Says no, with the window empty, when there are none.
    pub(crate) fn refill(&mut self, types: &Types, window: &mut Window, least: usize) -> bool {
        if window.limit == self.next {
            if let Some(piece) = self.next_piece(types, OBJECT_ALIGN) {
                self.handed_out += piece.room();
                window.limit = piece.limit;
            }
            if window.room() >= least {
                return true;
            }
        }
        self.retire(window);
        while let Some(piece) = self.next_piece(types, least) {
            if piece.room() >= least {
                if let Some(gaps) = &mut self.gaps {
                    if !super::barrier::push(gaps, (piece.cursor, piece.cursor), usize::MAX) {
                        return false;
                    }
                }
                self.handed_out += piece.room();
                *window = piece;
                return true;
            }
        }
        false
    }

    /// Whether the next piece surely has room for any young object: not where objects stay, between which it
    /// may be short.
    pub(crate) fn has_piece(&self) -> bool {
        self.stays == 0
            && self.gaps.is_none()
            && self.part.saturating_sub(self.handed_out).min(self.end() - self.next) >= MAX_YOUNG
    }

    /// The next gap, or as much of it as is handed out at once, of the part of the nursery that has at least
    /// `least` bytes left. It may be empty.
    #[inline(always)]
    fn next_piece(&mut self, types: &Types, least: usize) -> Option<Window> {
        // Of what is free, wherever it lies: objects that stay at the beginning once filled the part, and
        // allocations were refused in an empty nursery.
        let left = self.part.saturating_sub(self.handed_out);
        if left < least {
            return None;
        }
        let mut gap = self.next_gap(types)?;
        let most = PIECE.min(left & !(OBJECT_ALIGN - 1));
        if gap.room() > most {
            gap.limit = gap.cursor + most;
            self.next = gap.limit;
        }
        Some(gap)
    }

    /// The next gap, which may be empty.
    #[inline(always)]
    fn next_gap(&mut self, types: &Types) -> Option<Window> {
        let (cursor, end) = (self.next, self.end());
        if cursor >= end {
            return None;
        }
        if self.stays > 0 {
            return self.next_gap_between(types, cursor, end);
        }
        self.next = end;
        Some(Window { cursor, limit: end })
    }

    /// The same where objects stay: a function of its own, which most nurseries never call.
    #[inline(never)]
    fn next_gap_between(&mut self, types: &Types, cursor: usize, end: usize) -> Option<Window> {
        let mut cursor = cursor;
        // Between objects that lie side by side there is no gap.
        while cursor < end && self.is_staying(cursor) {
            // SAFETY: objects whose bit is set are live ones of this heap.
            cursor += unsafe { types.of(cursor).size(cursor) };
        }
        let staying = self.next_staying(cursor).filter(|&object| object < end);
        // SAFETY: as above.
        self.next = staying.map_or(end, |object| object + unsafe { types.of(object).size(object) });
        Some(Window { cursor, limit: staying.unwrap_or(end) })
    }

    /// Takes the unused rest of a window back.
    pub(crate) fn retire(&mut self, window: &mut Window) {
        self.handed_out -= window.room();
        if let Some((_, used)) = self.gaps.as_mut().and_then(|gaps| gaps.last_mut()) {
            *used = window.cursor.max(*used);
        }
        *window = Window::EMPTY;
    }

    /// Bytes that were used since the last collection.
    pub(crate) fn used(&self) -> usize {
        self.handed_out
    }

    /// All but the objects that stay is free again.
    pub(crate) fn empty(&mut self) {
        self.next = self.start;
        self.handed_out = 0;
        if let Some(gaps) = &mut self.gaps {
            gaps.clear();
        }
    }

    /// From now on it is known where objects begin. Before the first allocation, or directly after a collection.
    pub(crate) fn keep_gaps(&mut self) {
        self.gaps.get_or_insert_default();
    }

    /// Gaps of which something was used since the last collection.
    pub(crate) fn gaps(&self) -> usize {
        self.gaps.as_ref().map_or(0, Vec::len)
    }

    /// The used part of a gap: one object behind the other.
    pub(crate) fn gap_at(&self, index: usize) -> (usize, usize) {
        self.gaps.as_ref().and_then(|gaps| gaps.get(index).copied()).unwrap_or_default()
    }

    /// Whether an address is in the nursery, of an object or inside of one.
    pub(crate) fn has(&self, address: usize) -> bool {
        address.wrapping_sub(self.start) < self.bytes
    }

    /// Overwrites what is free. Only directly after [`empty`](Self::empty).
    pub(crate) fn poison(&mut self, types: &Types, word: u64) {
        while let Some(gap) = self.next_gap(types) {
            fill(gap.cursor, gap.limit, word);
        }
        self.next = self.start;
    }

    /// Gives the memory back to the arenas.
    pub(crate) fn release(&mut self) {
        for address in (self.start..self.end()).step_by(HEAP_PAGE_BYTES) {
            let page = self.page(address);
            for word in page.remote().iter().chain(page.vacant()) {
                if word.load(Ordering::Relaxed) != 0 {
                    word.store(0, Ordering::Relaxed);
                }
            }
        }
        // One that stays protected is lost: whoever got it next could not use it.
        let before = core::mem::take(&mut self.before);
        for start in before.into_iter().filter(|&start| self.open(start)).chain([self.start]) {
            let freed = self.space.source().with(|arenas| arenas.free_large(start));
            debug_assert!(freed.is_ok(), "a nursery is a large block");
        }
    }
}

/// Writes a word everywhere in a free range.
pub(crate) fn fill(from: usize, to: usize, word: u64) {
    for at in (from..to).step_by(8) {
        // SAFETY: the callers name free memory of their own, in multiples of a granule.
        unsafe { (at as *mut u64).write(word) };
    }
}

/// Word and bit of an object in the bitmap of its heap page.
fn place(object: usize) -> (usize, u64) {
    let granule = object % HEAP_PAGE_BYTES / OBJECT_ALIGN;
    (granule / 64, 1 << (granule % 64))
}
