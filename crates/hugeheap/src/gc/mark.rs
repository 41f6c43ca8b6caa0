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
//! *Shading* marks an object and puts it on the stack of those to look into. Invariant between steps: what a marked object refers to is marked,
//! unless the object is on the stack, or was written since the last minor collection: then the barrier remembers it, and the next minor
//! collection, which comes before the next step, shades what it refers to, or notes it: a larger object on the stack, and cards. The nursery is empty during a step but for objects that stay: they
//! are looked into as roots.
//!
//! When all that is reachable is marked the program can reach nothing else: not through weak slots either, which answer 0 for what is not. So what
//! is marked after that, for finalizers, needs no second look at the roots.
//!
//! The stack is bounded. What does not fit is marked and found again by looking through all marked objects, page by page.

use super::barrier::push;
use super::depart::{Departure, Survey};
use super::ephemeron::Waiting;
use super::events::Event;
use super::header::{CARDS, Header, OBJECT_ALIGN};
use super::heap::Heap;
use super::log;
use super::nursery::Nursery;
use super::old::Old;
use super::pacing::CHUNK;
use super::types::{Types, Visit};
use super::weak::Clear;
use crate::object::Source;
use hugeheap_os::Facts;

/// Entries of the stack: at most 32 MiB of addresses. Lists, trees and tables need few. Many arrays that are written all the time need one for each
/// object in them, because each minor collection shades what is in those that were written; with a million too few two million objects in such
/// arrays were looked through again and again, and the old generation grew by half more.
const MOST: usize = 1 << 22;

/// Bytes of a large array that are looked into at once: a part of a step.
const PART: usize = 64 << 10;

/// Bytes that a look into a card counts for besides its own, so that many single ones do not make a step long: what they refer to is anywhere.
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
    weak: Vec<(usize, usize)>,
    /// Ephemerons in marked objects, whose key is not marked.
    waiting: Waiting,
    stack: Vec<usize>,
    /// Large arrays, and up to where they were looked into.
    parts: Vec<(usize, usize)>,
    /// Heap pages whose marked objects are looked into again. None is freed during a marking; objects in new ones are looked into by the minor
    /// collection that moved them there.
    again: Vec<usize>,
    /// Heap pages of marked objects of which cards were written.
    written: Vec<usize>,
    /// What leaves sparse arenas in steps, and who refers to it.
    pub(crate) departure: Departure,
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
            waiting: Waiting::default(),
            stack: Vec::new(),
            parts: Vec::new(),
            again: Vec::new(),
            written: Vec::new(),
            departure: Departure::default(),
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

    fn is_done(&self) -> bool {
        self.stack.is_empty()
            && self.parts.is_empty()
            && self.again.is_empty()
            && self.written.is_empty()
            && !self.overflowed
    }

    /// Looks into what is on the stack until `budget` bytes were looked into or nothing is left.
    fn step<S: Source>(
        &mut self,
        types: &Types,
        nursery: &Nursery<S>,
        old: &Old<S>,
        mut budget: usize,
    ) -> usize {
        while budget > 0 {
            // What was found before the next part: the stack holds a part of an array, not all of it.
            let bytes = if let Some(object) = self.stack.pop() {
                self.enter(types, nursery, old, object)
            } else if let Some((object, from)) = self.parts.pop() {
                self.part(types, nursery, old, object, from)
            } else if let Some(page) = self.written.pop() {
                self.cards(types, nursery, old, page)
            } else if let Some(page) = self.again.pop() {
                let mut bytes = crate::arena::HEAP_PAGE_BYTES;
                old.each_marked_in(page, |object| bytes += self.enter(types, nursery, old, object));
                bytes
            } else if self.overflowed {
                self.overflowed = false;
                if !old.pages_to(&mut self.again) {
                    // No memory for a list of pages either: all at once.
                    old.each_live(|object| {
                        if old.is_marked(object) {
                            self.look_into(types, nursery, old, object);
                        }
                    });
                }
                crate::arena::HEAP_PAGE_BYTES
            } else {
                break;
            };
            budget = budget.saturating_sub(bytes);
        }
        budget
    }

    /// Looks into a marked object, or into the first part of a large one. Returns how many bytes that were.
    fn enter<S: Source>(
        &mut self,
        types: &Types,
        nursery: &Nursery<S>,
        old: &Old<S>,
        object: usize,
    ) -> usize {
        // SAFETY: marked objects are live ones of the old generation.
        let (header, bytes) = unsafe { (Header::of(object), types.of(object).size(object)) };
        if header.has(CARDS) && bytes > PART {
            return self.part(types, nursery, old, object, object);
        }
        self.look_into(types, nursery, old, object);
        bytes
    }

    /// Notes that a marked object has weak slots that may have to be cleared. Says no when there is no memory.
    pub(crate) fn add_weak(&mut self, object: usize) -> bool {
        // Cards of a table come one after the other.
        self.weak.last() == Some(&(object, object))
            || push(&mut self.weak, (object, object), self.most.max(2))
    }

    pub(crate) fn look_into<S: Source>(
        &mut self,
        types: &Types,
        nursery: &Nursery<S>,
        old: &Old<S>,
        object: usize,
    ) {
        self.visit(types, nursery, old, object, None);
        self.reached(nursery, old, object);
    }

    fn visit<S: Source>(
        &mut self,
        types: &Types,
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
                    Some((from, to)) => types.of(object).each_slot_in(object, from, to, shading),
                    None => types.of(object).each_slot(object, shading),
                }
            }
        };
        each(&mut shading);
        if shading.weak && !shading.marker.add_weak(object) {
            each(&mut Shading { object: STRONG, ..shading });
        }
    }

    /// Shades the values that waited for a key.
    fn reached<S: Source>(&mut self, nursery: &Nursery<S>, old: &Old<S>, key: usize) {
        if self.waiting.is_empty() {
            return;
        }
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
        let end = object + unsafe { types.of(object).size(object) };
        let to = (from + PART).min(end);
        if to < end {
            self.overflowed |= !push(&mut self.parts, (object, to), self.most);
        }
        self.visit(types, nursery, old, object, Some((from, to)));
        if from == object {
            self.reached(nursery, old, object);
        }
        to - from
    }

    /// Looks into the cards of a page that were written. Returns how many bytes that were.
    fn cards<S: Source>(&mut self, types: &Types, nursery: &Nursery<S>, old: &Old<S>, page: usize) -> usize {
        let Some(cards) = old.take_noted(page) else { return 0 };
        let (object, mut bytes) = (cards.object(), 0);
        for (from, to) in cards {
            self.visit(types, nursery, old, object, Some((from, to)));
            bytes += CARD_LOOK + to - from;
        }
        bytes
    }

    /// Whether a word refers to an object that is not known to live.
    pub(crate) fn must_wait<S: Source>(&self, nursery: &Nursery<S>, old: &Old<S>, word: usize) -> bool {
        word % OBJECT_ALIGN == 0 && !nursery.contains(word) && old.is_unmarked(word)
    }

    /// Notes an ephemeron of a marked object. Says no when there is no memory.
    pub(crate) fn wait(&mut self, object: usize, key: *mut usize, value: *mut usize) -> bool {
        self.waiting.add(object, key, value, self.most)
    }
}

/// In place of an object in [`Shading`]: weak slots are like others, because there is no memory to note the object.
const STRONG: usize = 0;

/// The same: the slots are roots. They are asked for again before marking ends, so nothing has to wait.
const ROOTS: usize = 1;

/// Shades what slots refer to.
struct Shading<'a, S: Source> {
    marker: &'a mut Marker,
    nursery: &'a Nursery<S>,
    old: &'a Old<S>,
    /// Whose slots they are, or [`STRONG`], or [`ROOTS`].
    object: usize,
    /// It has weak slots that may have to be cleared.
    weak: bool,
    /// Something was shaded that was not marked.
    shaded: bool,
}

impl<S: Source> Visit for Shading<'_, S> {
    #[inline(always)]
    fn slot(&mut self, slot: *mut usize) {
        // SAFETY: visited slots can be read.
        let word = unsafe { slot.read() };
        if word % OBJECT_ALIGN == 0 && !self.nursery.contains(word) && self.old.mark(word) {
            self.marker.overflowed |= !push(&mut self.marker.stack, word, self.marker.most);
            self.shaded = true;
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

impl<S: Source> Heap<S> {
    /// Goes on with the major collection, directly after a minor one that added `added` bytes to the old generation.
    pub(super) fn go_on(&mut self, frame: &mut [usize], added: usize) {
        let phase = self.marker.phase;
        let departs = self.marker.departure.is_under_way();
        if phase == Phase::Idle && !departs && !self.pacing.begins(self.old.used()) {
            return;
        }
        let told = self.begin_part(log::MAJOR);
        if phase == Phase::Idle {
            self.begin_marking(frame);
            self.statistics.steps += 1;
            return self.tell_step(told, phase);
        }
        let mut budget = self.pacing.step(added);
        let begin = self.elapsed();
        let may = self.pacing.step_after(begin);
        while budget > 0 && self.marker.phase == phase {
            let chunk = budget.min(CHUNK);
            match phase {
                Phase::Idle => {}
                Phase::Marking => self.mark_step(frame, chunk),
                Phase::Clearing => self.clear_step(chunk),
                Phase::Sweeping => self.sweep_step(frame, chunk),
            }
            budget -= chunk;
            if budget > 0 && self.pacing.is_over(self.elapsed() - begin, may, self.old.used()) {
                break;
            }
        }
        self.pacing.owes(if self.marker.phase == phase { budget } else { 0 });
        self.statistics.steps += 1;
        self.tell_step(told, phase);
        if phase == Phase::Sweeping && self.marker.phase == Phase::Idle {
            self.plan_departure();
        }
    }

    /// Time since the collection that is under way began.
    pub(super) fn elapsed(&self) -> core::time::Duration {
        self.old.space().source().os().now().saturating_sub(self.begin)
    }

    pub(super) fn begin_marking(&mut self, frame: &mut [usize]) {
        (self.marker.phase, self.marker.stage) = (Phase::Marking, Stage::Reachable);
        self.pacing.begin(self.old.used());
        self.old.black = true;
        self.shade_roots(frame);
    }

    /// Says whether a root referred to an object that was not marked.
    fn shade_roots(&mut self, frame: &mut [usize]) -> bool {
        let Self { types, nursery, old, roots, marker, .. } = self;
        let mut shading = Shading { marker, nursery, old, object: ROOTS, weak: false, shaded: false };
        roots.each(frame, &mut shading);
        let mut staying = nursery.next_staying(nursery.start());
        while let Some(object) = staying {
            // SAFETY: an object that stays is one of this heap, and alive until the next minor collection.
            unsafe { types.of(object).each_slot(object, &mut shading) };
            staying = nursery.next_staying(object + OBJECT_ALIGN);
        }
        shading.shaded
    }

    fn mark_step(&mut self, frame: &mut [usize], mut budget: usize) {
        loop {
            budget = self.marker.step(&self.types, &self.nursery, &self.old, budget);
            if !self.marker.is_done() {
                return;
            }
            match self.marker.stage {
                Stage::Reachable => {
                    if !self.shade_roots(frame) {
                        return self.begin_clearing();
                    }
                }
                Stage::Chosen => return self.begin_clearing(),
                _ if budget == 0 => return,
                Stage::Candidates => {
                    if !self.next_candidate(&mut budget) {
                        self.marker.stage = Stage::Choice;
                    }
                }
                Stage::Choice => {
                    if !self.choose(&mut budget) {
                        self.marker.stage = Stage::Chosen;
                    }
                }
            }
        }
    }

    fn begin_clearing(&mut self) {
        self.marker.phase = Phase::Clearing;
        self.marker.waiting.clear();
        let Self { types, nursery, old, .. } = self;
        let mut clear = Clear { old, cleared: 0 };
        // Objects in the nursery are not noted: they may move before it is their turn.
        let mut staying = nursery.next_staying(nursery.start());
        while let Some(object) = staying {
            // SAFETY: as in `shade_roots`.
            unsafe { types.of(object).each_slot(object, &mut clear) };
            staying = nursery.next_staying(object + OBJECT_ALIGN);
        }
        self.statistics.cleared += clear.cleared;
        if self.marker.weak.is_empty() {
            self.end_clearing();
        }
    }

    fn clear_step(&mut self, mut budget: usize) {
        let Self { types, old, marker, .. } = self;
        let mut clear = Clear { old, cleared: 0 };
        while budget > 0 {
            let Some((object, from)) = marker.weak.pop() else { break };
            // SAFETY: noted objects are marked, and so alive.
            let (header, end) = unsafe { (Header::of(object), object + types.of(object).size(object)) };
            let to = if header.has(CARDS) { (from + PART).min(end) } else { end };
            if to < end {
                // There is room: it was just popped.
                marker.weak.push((object, to));
            }
            // SAFETY: as above; nobody else runs.
            unsafe {
                if header.has(CARDS) {
                    types.of(object).each_slot_in(object, from, to, &mut clear);
                } else {
                    types.of(object).each_slot(object, &mut clear);
                }
            }
            budget = budget.saturating_sub(to - from);
        }
        self.statistics.cleared += clear.cleared;
        if self.marker.weak.is_empty() {
            self.end_clearing();
        }
    }

    fn end_clearing(&mut self) {
        if self.marker.stage == Stage::Reachable && !self.finalizers.is_empty() {
            (self.marker.phase, self.marker.stage) = (Phase::Marking, Stage::Candidates);
            self.finalizers.begin();
        } else {
            self.end_marking();
        }
    }

    fn end_marking(&mut self) {
        self.statistics.finalized += self.finalizers.chosen.len() as u64;
        self.roots.ready.extend(self.finalizers.chosen.drain(..));
        let old = &self.old;
        // What is dead must not be looked into after it was swept. Cards of dead objects are told by their page.
        self.remembered.objects.retain(|&object| old.is_marked(object));
        self.marker.phase = Phase::Sweeping;
        let surveys = self.evacuate.is_some() || self.checks.moving;
        self.old.survey = surveys.then(Survey::default);
        self.old.begin_sweep();
    }

    fn sweep_step(&mut self, frame: &mut [usize], budget: usize) {
        for _ in 0..budget.div_ceil(crate::arena::HEAP_PAGE_BYTES) {
            if self.old.sweep_page().is_none() {
                break;
            }
        }
        if !self.old.has_unswept() && !self.depart(frame) {
            self.end_sweeping();
        }
    }

    fn end_sweeping(&mut self) {
        self.marker.phase = Phase::Idle;
        self.pacing.finished(self.old.used());
        self.statistics.major += 1;
        if self.listeners.want(log::MAJOR) {
            let (live, held) = (self.old.used(), self.old.held());
            let (number, finalizable) = (self.statistics.major, self.finalizable());
            self.tell(log::MAJOR, Event::Major { number, live, held, finalizable });
        }
    }

    /// Ends the major collection that is under way, if one is.
    pub(super) fn finish(&mut self, frame: &mut [usize]) {
        loop {
            match self.marker.phase {
                Phase::Marking => self.mark_step(frame, usize::MAX),
                Phase::Clearing => self.clear_step(usize::MAX),
                Phase::Idle | Phase::Sweeping => break,
            }
        }
        while self.marker.phase == Phase::Sweeping {
            self.sweep_step(frame, usize::MAX);
        }
    }
}
