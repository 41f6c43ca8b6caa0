//! What a minor collection comes back to: weak slots, ephemerons, and what is to be finalized.
//!
//! ```text
//!   weak slot, key of an ephemeron ─▶ young, not known to live ─▶ noted
//!                     │ its object was moved meanwhile                     │ everything reachable was moved
//!                     ▼                                                    ▼
//!               the ephemeron's value is looked into                 cleared; then what is to be finalized
//! ```
//!
//! Most collections note nothing: each part is behind a look whether there is something.

use super::barrier::Remembered;
use super::ephemeron::Waiting;
use super::finalizer::Finalizers;
use super::header::{CARDS, Header, TRACKED};
use super::mark::Marker;
use super::minor::{Minor, remember};
use super::old::Old;
use super::roots::Roots;
use super::types::Visit;
use crate::object::Source;

/// Notes whose memory is kept from one collection to the next, 64 KiB of weak slots and 200 of ephemerons: a
/// program that has as many each time asks for none.
const KEPT: usize = 4096;

/// What a minor collection has to come back to. Kept from one to the next, because making it costs more than a
/// look whether it is empty.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    /// Weak slots that refer to objects not known to live, and whose they are.
    pub(super) weak: Vec<(usize, *mut usize)>,
    /// Ephemerons whose key is not known to live.
    pub(super) waiting: Waiting,
}

impl<S: Source> Minor<'_, S> {
    #[inline(never)]
    pub(super) fn note_weak(&mut self) {
        if !self.marker.add_weak(self.object) {
            let mut strong = Strong { marker: self.marker, old: self.old };
            // SAFETY: as in `look_into`.
            unsafe { self.types.of(self.object).each_slot(self.object, &mut strong) };
        }
    }

    /// Looks into the ephemerons that waited for a key.
    #[inline(always)]
    pub(super) fn reached(&mut self, remembered: &mut Remembered, key: usize) {
        if !self.noted.waiting.is_empty() {
            self.resolve(remembered, key);
        }
    }

    #[inline(never)]
    pub(super) fn resolve(&mut self, remembered: &mut Remembered, key: usize) {
        let mut at = self.noted.waiting.take(key);
        while let Some((entry, next)) = self.noted.waiting.next(at) {
            at = next;
            if self.is_left(entry.object) {
                continue;
            }
            self.begin_object(entry.object, self.old.black && self.old.is_marked(entry.object));
            self.ephemeron(entry.key, entry.value);
            self.end_object();
            self.note_young(remembered, entry.object, entry.value);
        }
    }

    /// After a slot was looked into: sees to it that the object is looked into again if the slot refers to an
    /// object that stays.
    fn note_young(&mut self, remembered: &mut Remembered, object: usize, slot: *mut usize) {
        if !self.young || self.nursery.contains(object) {
            return;
        }
        // SAFETY: a live object of the old generation.
        let header = unsafe { Header::of(object) };
        if header.has(CARDS) {
            if let Some(page) = self.old.dirty(slot as usize).page() {
                remembered.add_page(page);
            }
        } else if header.has(TRACKED) {
            remember(remembered, object);
        }
    }

    /// Whether there is something to [`clear`](Self::clear), or to forget: what no longer waits has entries,
    /// too. As long as every key was reached they were kept from one collection to the next, up to 128 MiB;
    /// then none could be added, and young keys of ephemerons lived until the next major collection.
    pub(super) fn has_noted(&self) -> bool {
        !self.noted.weak.is_empty() || !self.noted.waiting.is_unused()
    }

    /// Everything reachable is known: clears what refers to anything else. Returns how many slots.
    #[inline(never)]
    pub(super) fn clear(&mut self, remembered: &mut Remembered) -> u64 {
        let mut cleared = 0;
        let mut weak = core::mem::take(&mut self.noted.weak);
        for (object, slot) in weak.drain(..) {
            // SAFETY: noted slots are in live objects, or in what is left of one in the nursery; both can be read.
            let word = unsafe { slot.read() };
            if self.is_left(object) || !self.nursery.contains(word) {
                continue;
            }
            if self.is_reached(word) {
                self.young = false;
                self.follow(slot, word);
                self.note_young(remembered, object, slot);
            } else {
                // SAFETY: as above.
                unsafe { slot.write(0) };
                cleared += 1;
            }
        }
        if weak.capacity() <= KEPT {
            self.noted.weak = weak;
        }
        let mut waiting = core::mem::take(&mut self.noted.waiting);
        waiting.drain(|entry| {
            if self.is_left(entry.object) {
                return;
            }
            // SAFETY: slots of live objects.
            unsafe {
                entry.key.write(0);
                entry.value.write(0);
            }
            cleared += 1;
        });
        if waiting.is_small(KEPT) {
            self.noted.waiting = waiting;
        }
        cleared
    }

    /// Hands over what is to be finalized and was not reached. See `finalizer`.
    pub(super) fn finalize(
        &mut self,
        remembered: &mut Remembered,
        finalizers: &mut Finalizers,
        roots: &mut Roots,
    ) -> u64 {
        let before = roots.ready.len();
        let mut reached = 0;
        for index in 0..finalizers.young.len() {
            let object = finalizers.young[index];
            if self.is_reached(object) {
                finalizers.young[reached] = object;
                reached += 1;
            } else {
                // Room for as many was reserved.
                finalizers.young_candidates.push(object);
                self.look_into(object, false);
                self.drain(remembered);
            }
        }
        finalizers.young.truncate(reached);
        let last = finalizers.young_candidates.last().copied();
        for object in finalizers.young_candidates.drain(..) {
            let alone = Some(object) == last && roots.ready.len() == before;
            if !self.is_reached(object) || alone {
                let target = self.move_out(object);
                roots.ready.push_back(target);
            } else {
                finalizers.young.push(object);
            }
        }
        self.drain(remembered);
        let Finalizers { young, old, .. } = finalizers;
        young.retain(|&object| {
            let target = self.move_out(object);
            if target != object {
                old.push(target);
            }
            target == object
        });
        (roots.ready.len() - before) as u64
    }
}

/// Shades all slots of a marked object, weak ones like others.
struct Strong<'a, S: Source> {
    marker: &'a mut Marker,
    old: &'a Old<S>,
}

impl<S: Source> Visit for Strong<'_, S> {
    fn slot(&mut self, slot: *mut usize) {
        // SAFETY: visited slots can be read.
        self.marker.shade(self.old, unsafe { slot.read() });
    }
}
