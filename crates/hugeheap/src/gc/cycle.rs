//! A major collection from step to step: which phase comes when, and what ends it. What marking is: `mark`.

use super::depart::Survey;
use super::events::Event;
use super::header::{CARDS, Header, NOTED, OBJECT_ALIGN};
use super::heap::Heap;
use super::log;
use super::mark::{PART, Phase, ROOTS, Shading, Stage};
use super::pacing::{CHUNK, SWEPT};
use super::weak::Clear;
use crate::object::Source;
use hugeheap_os::Facts;

impl<S: Source> Heap<S> {
    /// Goes on with the major collection, directly after a minor one that added `added` bytes to the old generation.
    pub(super) fn go_on(&mut self, frame: &mut [usize], added: usize) {
        let phase = self.marker.phase;
        let departs = self.marker.departure.is_under_way();
        if phase == Phase::Idle && !departs && !self.pacing.begins(self.old.used()) && !self.is_overdue() {
            return;
        }
        if self.must_not_mark() {
            return;
        }
        let told = self.begin_part(log::MAJOR);
        if phase == Phase::Idle {
            self.begin_marking(frame);
            self.statistics.steps += 1;
            return self.tell_step(told, phase);
        }
        let mut budget = self.pacing.step(added);
        if self.overdue.under_way {
            // Little is added, and with the least steps this collection would take a long time. As much as the
            // program has just used is bounded, and by the time of a step besides.
            budget = budget.max(self.nursery.bytes());
        }
        let begin = self.elapsed();
        let may = self.pacing.step_after(begin);
        while budget > 0 && self.marker.phase == phase {
            let chunk = budget.min(if phase == Phase::Sweeping { SWEPT } else { CHUNK });
            match phase {
                Phase::Idle => {}
                Phase::Marking => self.mark_step(frame, chunk),
                Phase::Clearing => self.clear_step(chunk),
                Phase::Sweeping => self.sweep_step(frame, chunk),
            }
            budget -= chunk;
            if budget > 0 && self.pacing.is_over(self.elapsed().saturating_sub(begin), may, self.old.used()) {
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

    /// Whether garbage among what is old is looked for though hardly anything was added.
    #[inline(always)]
    fn is_overdue(&mut self) -> bool {
        self.statistics.nursery_bytes >= self.overdue.next && self.asks_whether_overdue()
    }

    #[cold]
    #[inline(never)]
    fn asks_whether_overdue(&mut self) -> bool {
        let (used, allocated) = (self.old.used(), self.statistics.nursery_bytes);
        self.overdue.is_overdue(used, allocated, self.begin, self.nursery.bytes())
    }

    /// Whether marking must neither begin nor end: something that a scan found may be alive by nothing else,
    /// and there was no memory to note it.
    pub(super) fn must_not_mark(&self) -> bool {
        let marker = &self.marker;
        let reaches = marker.phase == Phase::Marking && marker.stage == Stage::Reachable;
        self.roots.not_all_found && (marker.phase == Phase::Idle || reaches)
    }

    /// Time since the collection that is under way began.
    pub(super) fn elapsed(&self) -> core::time::Duration {
        self.old.space().source().os().now().saturating_sub(self.begin)
    }

    /// How much of that time a processor worked for it: how much may survive does not depend on who else runs
    /// on the host. By the clock alone, one collection in which another program ran for 10 ms left a tenth of
    /// the nursery to many that followed, and more survived.
    pub(super) fn work(&self) -> core::time::Duration {
        let took = self.elapsed();
        match self.worked {
            Some(before) => self.old.space().source().os().thread_time().saturating_sub(before).min(took),
            None => took,
        }
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
        let mut staying = nursery.next_staying(nursery.start()).filter(|_| !shading.marker.joint);
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
        let Self { types, nursery, old, marker, .. } = self;
        let joint = marker.joint;
        let mut clear = Clear { old, nursery, joint, cleared: 0 };
        // Objects in the nursery are not noted where they may move before it is their turn.
        let mut staying = nursery.next_staying(nursery.start()).filter(|_| !joint);
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
        let Self { types, nursery, old, marker, .. } = self;
        let mut clear = Clear { old, nursery, joint: marker.joint, cleared: 0 };
        while budget > 0 {
            let Some((object, from)) = marker.weak.pop() else { break };
            // SAFETY: noted objects are marked, and so alive.
            let (header, end) =
                unsafe { (Header::of(object), object + old.size_of(types.of(object), object)) };
            let to = if header.has(CARDS) { (from + PART).min(end) } else { end };
            if to < end {
                // There is room: it was just popped.
                marker.weak.push((object, to));
            } else {
                // SAFETY: as above; nobody else runs.
                unsafe { header.without(NOTED).put(object) };
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
        self.statistics.cleared += clear.cleared + core::mem::take(&mut marker.cleared);
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
        if self.marker.joint {
            self.end_joint();
        }
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
        self.old.grows = false;
        let free = self.old.space().source().with(|arenas| arenas.retained());
        self.pacing.finished(self.old.used(), free as usize);
        self.overdue.ended(self.statistics.nursery_bytes, self.begin, self.nursery.bytes());
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
