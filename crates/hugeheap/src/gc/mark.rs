//! Marking, in bounded steps, each directly after a minor collection.
//!
//! ```text
//!            used ≥ threshold             nothing left to look into            every page swept
//!   Idle ─────────────────────▶ Marking ──────────────────────────▶ Sweeping ─────────────────▶ Idle
//!         roots are shaded               roots are shaded again;
//!         objects are born marked        if that shaded nothing
//! ```
//!
//! *Shading* marks an object and puts it on the stack of those to look into. Invariant between steps: what a marked object refers to is marked,
//! unless the object is on the stack, or was written since the last minor collection: then the barrier remembers it, and the next minor
//! collection, which comes before the next step, shades what it refers to. The nursery is empty during a step but for objects that stay: they
//! are looked into as roots.
//!
//! The stack is bounded. What does not fit is marked and found again by looking through all marked objects.

use super::barrier::push;
use super::header::{CARDS, Header, OBJECT_ALIGN};
use super::heap::Heap;
use super::nursery::Nursery;
use super::old::Old;
use super::types::{Types, Visit};
use crate::object::Source;

/// Entries of the stack: 8 MiB of addresses. Lists and trees need few; a table of a million objects needs them all.
const MOST: usize = 1 << 20;

/// Bytes of a large array that are looked into at once: a part of a step.
const PART: usize = 64 << 10;

/// Where a major collection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// None is under way.
    #[default]
    Idle,
    /// Live objects are being marked.
    Marking,
    /// What is not marked becomes free.
    Sweeping,
}

/// What marking has still to look into.
#[derive(Debug)]
pub(crate) struct Marker {
    pub(crate) phase: Phase,
    stack: Vec<usize>,
    /// Large arrays, and up to where they were looked into.
    parts: Vec<(usize, usize)>,
    /// There are marked objects that are neither looked into nor on the stack.
    pub(crate) overflowed: bool,
    /// Entries of the stack; less than [`MOST`] only in tests.
    pub(crate) most: usize,
}

impl Default for Marker {
    fn default() -> Self {
        Self { phase: Phase::Idle, stack: Vec::new(), parts: Vec::new(), overflowed: false, most: MOST }
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

    fn is_done(&self) -> bool {
        self.stack.is_empty() && self.parts.is_empty() && !self.overflowed
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
            let bytes = if let Some((object, from)) = self.parts.pop() {
                self.part(types, nursery, old, object, from)
            } else if let Some(object) = self.stack.pop() {
                // SAFETY: on the stack are live objects of the old generation.
                let (header, bytes) = unsafe { (Header::of(object), types.of(object).size(object)) };
                if header.has(CARDS) && bytes > PART {
                    self.part(types, nursery, old, object, object)
                } else {
                    self.look_into(types, nursery, old, object);
                    bytes
                }
            } else if self.overflowed {
                self.overflowed = false;
                old.each_live(|object| {
                    if old.is_marked(object) {
                        self.look_into(types, nursery, old, object);
                    }
                });
                old.used()
            } else {
                break;
            };
            budget = budget.saturating_sub(bytes);
        }
        budget
    }

    fn look_into<S: Source>(&mut self, types: &Types, nursery: &Nursery<S>, old: &Old<S>, object: usize) {
        let mut shading = Shading { marker: self, nursery, old, shaded: false };
        // SAFETY: a live object of this heap; nobody else runs.
        unsafe { types.of(object).each_slot(object, &mut shading) };
    }

    fn part<S: Source>(
        &mut self,
        types: &Types,
        nursery: &Nursery<S>,
        old: &Old<S>,
        object: usize,
        from: usize,
    ) -> usize {
        // SAFETY: as in `look_into`.
        let end = object + unsafe { types.of(object).size(object) };
        let to = (from + PART).min(end);
        if to < end {
            self.overflowed |= !push(&mut self.parts, (object, to), self.most);
        }
        let mut shading = Shading { marker: self, nursery, old, shaded: false };
        // SAFETY: as in `look_into`.
        unsafe { types.of(object).each_slot_in(object, from, to, &mut shading) };
        to - from
    }
}

/// Shades what slots refer to.
struct Shading<'a, S: Source> {
    marker: &'a mut Marker,
    nursery: &'a Nursery<S>,
    old: &'a Old<S>,
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
    }
}

impl<S: Source> Heap<S> {
    /// Goes on with the major collection, directly after a minor one that added `added` bytes to the old generation.
    pub(super) fn go_on(&mut self, frame: &mut [usize], added: usize) {
        let budget = self.pacing.step(added);
        match self.marker.phase {
            Phase::Idle if self.pacing.begins(self.old.used()) => self.begin_marking(frame),
            Phase::Idle => return,
            Phase::Marking => self.mark_step(frame, budget),
            Phase::Sweeping => self.sweep_step(budget),
        }
        self.statistics.steps += 1;
    }

    pub(super) fn begin_marking(&mut self, frame: &mut [usize]) {
        self.marker.phase = Phase::Marking;
        self.old.black = true;
        self.shade_roots(frame);
    }

    /// Says whether a root referred to an object that was not marked.
    fn shade_roots(&mut self, frame: &mut [usize]) -> bool {
        let Self { types, nursery, old, roots, marker, .. } = self;
        let mut shading = Shading { marker, nursery, old, shaded: false };
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
            if !self.shade_roots(frame) {
                return self.end_marking();
            }
        }
    }

    fn end_marking(&mut self) {
        let old = &self.old;
        // What is dead must not be looked into after it was swept. Cards of dead objects are told by their page.
        self.remembered.objects.retain(|&object| old.is_marked(object));
        self.marker.phase = Phase::Sweeping;
        self.old.begin_sweep();
    }

    fn sweep_step(&mut self, budget: usize) {
        for _ in 0..budget.div_ceil(crate::arena::HEAP_PAGE_BYTES) {
            if self.old.sweep_page().is_none() {
                break;
            }
        }
        if !self.old.has_unswept() {
            self.end_sweeping();
        }
    }

    fn end_sweeping(&mut self) {
        self.marker.phase = Phase::Idle;
        self.pacing.finished(self.old.used());
        self.statistics.major += 1;
    }

    /// Ends the major collection that is under way, if one is.
    pub(super) fn finish(&mut self, frame: &mut [usize]) {
        while self.marker.phase == Phase::Marking {
            self.mark_step(frame, usize::MAX);
        }
        if self.marker.phase == Phase::Sweeping {
            self.sweep_step(usize::MAX);
        }
    }
}
