//! Marking, in bounded steps, each directly after a minor collection.
//!
//! ```text
//!            used ≥ threshold             nothing left to look into           weak slots are clear            every page swept
//!   Idle ─────────────────────▶ Marking ─────────────────────────▶ Clearing ────────────────────▶ Sweeping ─────────────▶ Idle
//!         roots are shaded         ▲     roots are shaded again;      │
//!         objects are born marked  │     if that shaded nothing       │ once, where there is something to finalize
//!                                  └──────────────────────────────────┘ it and what it leads to is marked
//! ```
//!
//! *Shading* marks an object and puts it on the stack of those to look into. Invariant between steps: what a
//! marked object refers to is marked, unless the object is on the stack, or was written since the last minor
//! collection: then the barrier remembers it, and the next minor collection, which comes before the next step,
//! shades what it refers to, or notes it: a larger object on the stack, and cards. The nursery is empty during
//! a step but for objects that stay: they are looked into as roots, but where they may be dead (`joint`).
//!
//! When all that is reachable is marked the program can reach nothing else: not through weak slots either,
//! which answer 0 for what is not. So what is marked after that, for finalizers, needs no second look at the
//! roots.
//!
//! The stack is bounded. What does not fit is marked and found again by looking through all marked objects,
//! page by page.

use super::barrier::push;
use super::cards::{NOTED_WORDS, Taken};
use super::depart::Departure;
use super::ephemeron::Waiting;
use super::header::{CARDS, Header, NOTED, OBJECT_ALIGN};
use super::joint::is_unreached;
use super::map::{WORDS, each_mapped};
use super::marks::Marks;
use super::nursery::Nursery;
use super::old::Old;
use super::prefetch::Ahead;
use super::stack::Top;
use super::types::{Descriptor, Types, Visit};
use crate::arena::HEAP_PAGE_BYTES;
use crate::object::Source;

/// Entries of the stack: at most 32 MiB of addresses. Lists, trees and tables need few. Many arrays that are
/// written all the time need one for each object in them, because each minor collection shades what is in those
/// that were written; with a million too few two million objects in such arrays were looked through again and
/// again, and the old generation grew by half more.
const MOST: usize = 1 << 22;

/// Bytes of a large array that are looked into at once, 1,024 slots: a [`CHUNK`](super::pacing::CHUNK), for the
/// same reason. What they refer to goes on the stack first, and is looked into before the next part.
pub(super) const PART: usize = 8 << 10;

/// Bytes of a large array whose marks are asked for before they are looked at: 32 slots, about as many cache
/// misses as a core can have under way.
const FETCHED: usize = 256;

/// Bytes that a look into a card counts for besides its own, so that many single ones do not make a step long:
/// what they refer to is anywhere.
const CARD_LOOK: usize = 64;

/// Where a major collection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// None is under way.
    #[default]
    Idle,
    /// Live objects are being marked.
    Marking,
    /// Weak slots of what is dead become 0.
    Clearing,
    /// What is not marked becomes free.
    Sweeping,
}

/// What is being marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// What roots lead to.
    #[default]
    Reachable,
    /// What leads on from candidates for finalization.
    Candidates,
    /// It is decided which of them are handed out.
    Choice,
    /// These, and what waits for them.
    Chosen,
}

/// What marking has still to look into.
#[derive(Debug)]
pub(crate) struct Marker {
    pub(crate) phase: Phase,
    pub(crate) stage: Stage,
    /// Marked objects that have weak slots to clear, and up to where they were looked through.
    pub(super) weak: Vec<(usize, usize)>,
    /// Weak slots that minor collections cleared and no step has counted.
    pub(super) cleared: u64,
    /// Ephemerons in marked objects, whose key is not marked.
    pub(super) waiting: Waiting,
    pub(super) stack: Vec<usize>,
    marks: Marks,
    /// Large arrays, and up to where they were looked into.
    parts: Vec<(usize, usize)>,
    /// Heap pages whose marked objects are looked into again. None is freed during a marking; objects in new
    /// ones are looked into by the minor collection that moved them there.
    again: Vec<usize>,
    /// Heap pages of marked objects of which cards were written.
    written: Vec<usize>,
    /// What leaves sparse arenas in steps, and who refers to it.
    pub(crate) departure: Departure,
    /// What stays in the nursery is marked as what is old is: see [`joint`](super::joint).
    pub(super) joint: bool,
    /// There are marked objects that are neither looked into nor on the stack.
    pub(crate) overflowed: bool,
    /// Entries of the stack; less than [`MOST`] only in tests.
    pub(crate) most: usize,
}

impl Default for Marker {
    fn default() -> Self {
        Self {
            phase: Phase::Idle,
            stage: Stage::Reachable,
            weak: Vec::new(),
            cleared: 0,
            waiting: Waiting::default(),
            stack: Vec::new(),
            marks: Marks::UNKNOWN,
            parts: Vec::new(),
            again: Vec::new(),
            written: Vec::new(),
            departure: Departure::default(),
            joint: false,
            overflowed: false,
            most: MOST,
        }
    }
}

impl Marker {
    /// Marks what a slot refers to, if that is an object of the old generation.
    #[inline(always)]
    pub(crate) fn shade<S: Source>(&mut self, old: &Old<S>, word: usize) {
        if word % OBJECT_ALIGN == 0 && old.mark(word) {
            self.overflowed |= !push(&mut self.stack, word, self.most);
        }
    }

    /// A marked object was written: it is looked into again.
    pub(crate) fn look_again(&mut self, object: usize) {
        self.overflowed |= !push(&mut self.stack, object, self.most);
    }

    /// Cards of a page were written. Says no when there is no memory to note it.
    pub(crate) fn add_written(&mut self, page: usize) -> bool {
        let noted = push(&mut self.written, page, self.most);
        self.overflowed |= !noted;
        noted
    }

    pub(super) fn is_done(&self) -> bool {
        self.stack.is_empty()
            && self.parts.is_empty()
            && self.again.is_empty()
            && self.written.is_empty()
            && !self.overflowed
    }

    /// Looks into what is on the stack until `budget` bytes were looked into or nothing is left.
    pub(super) fn step<S: Source>(
        &mut self,
        types: &Types,
        nursery: &Nursery<S>,
        old: &Old<S>,
        mut budget: usize,
    ) -> usize {
        self.marks = Marks::of(old);
        let mut ahead = Ahead::default();
        while budget > 0 {
            // What was found before the next part: the stack holds a part of an array, not all of it.
            let bytes = if !self.stack.is_empty() || !ahead.is_empty() {
                budget = self.enter_all(types, nursery, old, &mut ahead, budget);
                0
            } else if let Some((object, from)) = self.parts.pop() {
                self.part(types, nursery, old, object, from)
            } else if let Some(page) = self.written.pop() {
                self.cards(types, nursery, old, page)
            } else if let Some(page) = self.again.pop() {
                let mut bytes = HEAP_PAGE_BYTES;
                old.each_marked_in(page, |object| bytes += self.enter(types, nursery, old, object));
                bytes
            } else if self.overflowed {
                self.overflowed = false;
                self.again_staying(types, nursery, old);
                if !old.pages_to(&mut self.again) {
                    // No memory for a list of pages either: all at once.
                    old.each_live(|object| {
                        if old.is_marked(object) {
                            self.look_into(types, nursery, old, object);
                        }
                    });
                }
                HEAP_PAGE_BYTES
            } else {
                break;
            };
            budget = budget.saturating_sub(bytes);
        }
        for object in ahead.left() {
            // Others may have taken their room.
            self.overflowed |= !push(&mut self.stack, object, self.most);
        }
        budget
    }

    /// Looks into what is on the stack until `budget` bytes were looked into, or nothing is left there.
    fn enter_all<S: Source>(
        &mut self,
        types: &Types,
        nursery: &Nursery<S>,
        old: &Old<S>,
        ahead: &mut Ahead,
        mut budget: usize,
    ) -> usize {
        while budget > 0 {
            // Slots are told to somebody, or objects: not there.
            let alone = !self.departure.is_under_way() && self.waiting.is_empty() && !self.joint;
            let next = if alone {
                let next;
                (budget, next) = self.enter_mapped(types, old, ahead, budget);
                next
            } else {
                self.next(ahead)
            };
            let Some(object) = next else { break };
            budget = budget.saturating_sub(self.enter(types, nursery, old, object));
        }
        budget
    }

    /// The next object to look into, where others may push meanwhile.
    fn next(&mut self, ahead: &mut Ahead) -> Option<usize> {
        let mut top = Top::of(&mut self.stack, self.most);
        let next = ahead.next(&mut top);
        // SAFETY: the stack is the one it was made of.
        unsafe { top.leave(&mut self.stack) };
        next
    }

    /// As [`enter_all`](Self::enter_all), until an object is met that is not mapped, or for whose slots the
    /// stack has no room: that one comes back with what is left of the budget, and is not looked into.
    ///
    /// Where objects are mapped this loop is what marking costs. What it needs is in registers: where marks
    /// are, the top of the stack, the objects that are ahead. With a call for each object a node of a tree took
    /// 166 instructions. With a stack that grew in the loop, and what is not mapped looked into there, it was
    /// 115, but the compiler had the top of the stack in memory, so that each push and pop waited for the one
    /// before: nodes took 12 ns and took 9 without, objects of a shuffled table 35 and 24 (example `gc_mark`).
    #[inline(never)]
    fn enter_mapped<S: Source>(
        &mut self,
        types: &Types,
        old: &Old<S>,
        ahead: &mut Ahead,
        mut budget: usize,
    ) -> (usize, Option<usize>) {
        // Without memory, or with as many entries as are allowed, objects come back one by one, and those that
        // find no room are found again.
        _ = self.stack.try_reserve(WORDS);
        let (marks, mut top) = (self.marks, Top::of(&mut self.stack, self.most));
        let mut next = core::mem::take(ahead);
        let mut other = None;
        while budget > 0 {
            let Some(object) = next.next(&mut top) else { break };
            // SAFETY: marked objects are live ones of the old generation; the length was looked at before the
            // map is used.
            let (bytes, map) = unsafe {
                let ty = types.of(object);
                (old.size_of(ty, object), ty.map_of(object).filter(|_| top.has_room(WORDS)))
            };
            let Some(map) = map else {
                other = Some(object);
                break;
            };
            each_mapped(map, object, |slot| {
                // SAFETY: slots of a live object can be read.
                let word = unsafe { slot.read() };
                if marks.mark(old, word) {
                    // SAFETY: there was room for as many as a map can name.
                    unsafe { top.push(word) };
                }
            });
            budget = budget.saturating_sub(bytes);
        }
        // SAFETY: the stack is the one it was made of.
        unsafe { top.leave(&mut self.stack) };
        *ahead = next;
        (budget, other)
    }

    /// Looks into a marked object, or into the first part of a large one. Returns how many bytes that were.
    pub(super) fn enter<S: Source>(
        &mut self,
        types: &Types,
        nursery: &Nursery<S>,
        old: &Old<S>,
        object: usize,
    ) -> usize {
        // SAFETY: marked objects are live ones of this heap.
        let ty = unsafe { types.of(object) };
        // SAFETY: as above; the length is looked at before the map is used.
        let bytes = unsafe { old.size_of(ty, object) };
        // SAFETY: as above.
        if let Some(map) = unsafe { ty.map_of(object) }.filter(|_| !self.joint) {
            let holds = self.departure.is_under_way();
            each_mapped(map, object, |slot| {
                // SAFETY: slots of a live object can be read.
                let word = unsafe { slot.read() };
                if self.marks.mark(old, word) {
                    self.overflowed |= !push(&mut self.stack, word, self.most);
                }
                if holds {
                    self.hold(old, nursery, object, slot, word);
                }
            });
            self.reached(nursery, old, object);
            return bytes;
        }
        // SAFETY: as above.
        if bytes > PART && unsafe { Header::of(object) }.has(CARDS) {
            return self.part(types, nursery, old, object, object);
        }
        self.visit(ty, nursery, old, object, None);
        self.reached(nursery, old, object);
        bytes
    }

    /// Notes, once, that a marked object has weak slots that may have to be cleared. Says no when there is no memory.
    pub(crate) fn add_weak(&mut self, object: usize) -> bool {
        debug_assert_eq!(self.phase, Phase::Marking, "afterwards what is dead is known");
        // SAFETY: marked objects are live ones of this heap.
        let header = unsafe { Header::of(object) };
        if header.has(NOTED) {
            return true;
        }
        let noted = push(&mut self.weak, (object, object), self.most.max(2));
        if noted {
            // SAFETY: as above, and nobody else runs.
            unsafe { header.with(NOTED).put(object) };
        }
        noted
    }

    pub(crate) fn look_into<S: Source>(
        &mut self,
        types: &Types,
        nursery: &Nursery<S>,
        old: &Old<S>,
        object: usize,
    ) {
        // SAFETY: marked objects, and candidates for finalization, are live ones of this heap.
        let ty = unsafe { types.of(object) };
        // SAFETY: as above.
        unsafe { old.size_of(ty, object) };
        self.visit(ty, nursery, old, object, None);
        self.reached(nursery, old, object);
    }

    fn visit<S: Source>(
        &mut self,
        ty: &Descriptor,
        nursery: &Nursery<S>,
        old: &Old<S>,
        object: usize,
        part: Option<(usize, usize)>,
    ) {
        let mut shading = Shading { marker: self, nursery, old, object, weak: false, shaded: false };
        let each = |shading: &mut Shading<'_, S>| {
            // SAFETY: a live object of this heap; nobody else runs.
            unsafe {
                match part {
                    Some((from, to)) => ty.each_slot_in(object, from, to, shading),
                    None => ty.each_slot(object, shading),
                }
            }
        };
        each(&mut shading);
        if shading.weak && !shading.marker.add_weak(object) {
            shading.object = STRONG;
            each(&mut shading);
        }
    }

    /// Shades the values that waited for a key.
    #[inline(always)]
    fn reached<S: Source>(&mut self, nursery: &Nursery<S>, old: &Old<S>, key: usize) {
        if !self.waiting.is_empty() {
            self.resolve(nursery, old, key);
        }
    }

    #[inline(never)]
    fn resolve<S: Source>(&mut self, nursery: &Nursery<S>, old: &Old<S>, key: usize) {
        let mut at = self.waiting.take(key);
        while let Some((entry, next)) = self.waiting.next(at) {
            let mut shading =
                Shading { marker: self, nursery, old, object: entry.object, weak: false, shaded: false };
            // SAFETY: the slots are in a marked object, which neither moves nor ends during the marking.
            if unsafe { entry.key.read() } == key {
                shading.slot(entry.value);
            }
            at = next;
        }
    }

    fn part<S: Source>(
        &mut self,
        types: &Types,
        nursery: &Nursery<S>,
        old: &Old<S>,
        object: usize,
        from: usize,
    ) -> usize {
        // SAFETY: a live object of this heap.
        let ty = unsafe { types.of(object) };
        // SAFETY: as above. Between two parts the program ran.
        let end = object + unsafe { old.size_of(ty, object) };
        let to = (from + PART).min(end);
        if to < end {
            self.overflowed |= !push(&mut self.parts, (object, to), self.most);
        }
        fetch_marks(old, from, to.min(from + FETCHED));
        for at in (from..to).step_by(FETCHED) {
            let end = (at + FETCHED).min(to);
            fetch_marks(old, end, to.min(end + FETCHED));
            self.visit(ty, nursery, old, object, Some((at, end)));
        }
        if from == object {
            self.reached(nursery, old, object);
        }
        to - from
    }

    /// Looks into the cards of a page that were written. Returns how many bytes that were.
    fn cards<S: Source>(&mut self, types: &Types, nursery: &Nursery<S>, old: &Old<S>, page: usize) -> usize {
        let mut taken = Taken::<NOTED_WORDS>::NOTHING;
        old.take_noted(page, |cards| taken.push(cards));
        // The page after this one.
        if let Some(&next) = self.written.last() {
            old.fetch_noted(next);
        }
        taken.ranges().for_each(|(from, to)| fetch_marks(old, from, to));
        let mut bytes = 0;
        for cards in taken.words() {
            // SAFETY: a live object of this heap.
            let ty = unsafe { types.of(cards.object) };
            for (from, to) in *cards {
                self.visit(ty, nursery, old, cards.object, Some((from, to)));
                bytes += CARD_LOOK + to - from;
            }
        }
        bytes
    }

    /// Whether a word refers to an object that is not known to live.
    pub(crate) fn must_wait<S: Source>(&self, nursery: &Nursery<S>, old: &Old<S>, word: usize) -> bool {
        is_unreached(self.joint, nursery, old, word)
    }

    /// Notes an ephemeron of a marked object. Says no when there is no memory.
    pub(crate) fn wait(&mut self, object: usize, key: *mut usize, value: *mut usize) -> bool {
        self.waiting.add(object, key, value, self.most)
    }
}

/// Lets the cache fetch what marking needs of the objects that slots refer to. The words need not be slots.
#[inline(always)]
fn fetch_marks<S: Source>(old: &Old<S>, from: usize, to: usize) {
    for slot in (from..to).step_by(8) {
        // SAFETY: a word of a live object of this heap.
        let word = unsafe { (slot as *const usize).read() };
        if word != 0 && word % OBJECT_ALIGN == 0 {
            old.fetch_mark(word);
        }
    }
}

/// In place of an object in [`Shading`]: weak slots are like others, because there is no memory to note the object.
const STRONG: usize = 0;

/// The same: the slots are roots. They are asked for again before marking ends, so nothing has to wait.
pub(super) const ROOTS: usize = 1;

/// Shades what slots refer to.
pub(super) struct Shading<'a, S: Source> {
    pub(super) marker: &'a mut Marker,
    pub(super) nursery: &'a Nursery<S>,
    pub(super) old: &'a Old<S>,
    /// Whose slots they are, or [`STRONG`], or [`ROOTS`].
    pub(super) object: usize,
    /// It has weak slots that may have to be cleared.
    pub(super) weak: bool,
    /// Something was shaded that was not marked.
    pub(super) shaded: bool,
}

impl<S: Source> Visit for Shading<'_, S> {
    #[inline(always)]
    fn slot(&mut self, slot: *mut usize) {
        // SAFETY: visited slots can be read.
        let word = unsafe { slot.read() };
        if self.marker.marks.mark(self.old, word) {
            self.marker.overflowed |= !push(&mut self.marker.stack, word, self.marker.most);
            self.shaded = true;
        } else if self.marker.joint {
            self.shaded |= self.marker.reach(self.nursery, word);
        }
        self.marker.hold(self.old, self.nursery, self.object, slot, word);
    }

    fn weak(&mut self, slot: *mut usize) {
        // SAFETY: as above.
        let word = unsafe { slot.read() };
        self.marker.hold(self.old, self.nursery, self.object, slot, word);
        if self.object == STRONG {
            self.slot(slot);
        } else {
            self.weak |= self.marker.must_wait(self.nursery, self.old, word);
        }
    }

    fn ephemeron(&mut self, key: *mut usize, value: *mut usize) {
        // SAFETY: as above.
        let word = unsafe { key.read() };
        // SAFETY: as above.
        let other = unsafe { value.read() };
        self.marker.hold(self.old, self.nursery, self.object, key, word);
        self.marker.hold(self.old, self.nursery, self.object, value, other);
        if !self.marker.must_wait(self.nursery, self.old, word) {
            self.slot(value);
        } else if self.object != ROOTS {
            self.weak = true;
            if self.object == STRONG || !self.marker.wait(self.object, key, value) {
                self.slot(key);
                self.slot(value);
            }
        }
    }
}
