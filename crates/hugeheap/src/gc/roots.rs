//! What is alive without being referred to by an object.
//!
//! | roots | for |
//! |---|---|
//! | the shadow stack | local variables: handles of a [`Scope`](super::Scope) |
//! | a frame | addresses in local variables of a caller that keeps its window in registers, for the time of one call |
//! | globals | what outlives scopes: [`Global`]; their places: `globals` |
//! | pins | globals whose object must not move |
//! | the ready | what was found unreachable and waits to be finalized |
//! | what a scan found | words of a stack that may be addresses |
//! | callbacks | structures of the program that hold references |

use super::addresses::Addresses;
use super::globals::{Globals, Place};
use super::scan::Scans;
use super::types::{Visit, Visitor};
use super::{Exhausted, heap::Heap};
use crate::object::Source;
use std::collections::VecDeque;

/// A handle that keeps an object alive until it is [released](Heap::release). Dropped without that, it does so
/// until the heap ends.
#[derive(Debug)]
#[must_use = "the object stays alive until the handle is released"]
pub struct Global {
    pub(crate) place: Place,
    pub(crate) heap: u32,
}

impl Global {
    /// The handle as a number, not 0, for a program that holds it where there are no types: C, or generated code.
    pub fn into_number(self) -> u64 {
        u64::from(self.heap as u16) << 48 | u64::from(self.place.uses) << 32 | u64::from(self.place.index + 1)
    }
}

/// Names the slots that a program holds outside of objects.
pub type RootCallback = Box<dyn FnMut(&mut Visitor<'_>)>;

/// The roots of a heap.
#[derive(Default)]
pub(crate) struct Roots {
    pub(crate) stack: Vec<usize>,
    globals: Globals,
    callbacks: Vec<RootCallback>,
    /// Objects that the program has to finalize.
    pub(crate) ready: VecDeque<usize>,
    /// Pinned objects in the nursery, and how many pins each has.
    pub(crate) pins: Addresses,
    /// The same in the old generation.
    pub(crate) old_pins: Addresses,
    /// Objects of the old generation that must not move in the collection that is under way.
    pub(crate) found: Addresses,
    /// There was no memory to note all of those: until the next scan no object of the old generation is known
    /// to be dead, and none moves.
    pub(crate) not_all_found: bool,
    /// Where words lie that may be addresses.
    pub(crate) scans: Scans,
}

impl Roots {
    /// Names every root.
    pub(crate) fn each<V: Visit>(&mut self, frame: &mut [usize], visit: &mut V) {
        self.each_but_globals(frame, visit);
        self.globals.each(|slot| visit.slot(slot));
    }

    /// Names every root but globals that do not refer to young objects, for a minor collection. `is_young`:
    /// whether a word still does afterwards.
    pub(crate) fn each_young<V: Visit>(
        &mut self,
        frame: &mut [usize],
        visit: &mut V,
        is_young: impl Fn(&V, usize) -> bool,
    ) {
        self.each_but_globals(frame, visit);
        self.globals.each_young(|slot| {
            visit.slot(slot);
            is_young(visit, *slot)
        });
    }

    #[inline(always)]
    fn each_but_globals<V: Visit>(&mut self, frame: &mut [usize], visit: &mut V) {
        for slot in self.stack.iter_mut().chain(frame) {
            visit.slot(slot);
        }
        if !self.ready.is_empty() {
            self.ready.iter_mut().for_each(|slot| visit.slot(slot));
        }
        if !self.found.is_empty() {
            // What is found does not move, so nothing is written back.
            self.found.iter().for_each(|mut object| visit.slot(&mut object));
        }
        for callback in &mut self.callbacks {
            callback(&mut Visitor(visit));
        }
    }

    /// Pushes a slot of the shadow stack.
    pub(crate) fn push(&mut self, object: usize) -> Result<u32, Exhausted> {
        let index = u32::try_from(self.stack.len()).map_err(|_| Exhausted { bytes: 8 })?;
        self.stack.try_reserve(1).map_err(|_| Exhausted { bytes: 8 })?;
        self.stack.push(object);
        Ok(index)
    }
}

impl<S: Source> Heap<S> {
    /// Keeps an object alive, beyond all scopes.
    ///
    /// # Errors
    /// When there is no memory for the handle.
    ///
    /// # Safety
    /// A live object of this heap begins there.
    pub unsafe fn global(&mut self, object: usize) -> Result<Global, Exhausted> {
        self.add_global(object, false)
    }

    /// Keeps an object alive and where it is.
    ///
    /// # Errors
    /// When there is no memory for the handle.
    ///
    /// # Safety
    /// As in [`global`](Self::global).
    pub unsafe fn pin(&mut self, object: usize) -> Result<Global, Exhausted> {
        let young = self.nursery.contains(object);
        let pins = if young { &mut self.roots.pins } else { &mut self.roots.old_pins };
        if !pins.add(object) {
            return Err(Exhausted { bytes: 16 });
        }
        let global = self.add_global(object, true).inspect_err(|_| self.unpin(object))?;
        if young && !self.nursery.is_staying(object) {
            // SAFETY: by the contract.
            unsafe { self.nursery.keep(object) };
        }
        Ok(global)
    }

    fn add_global(&mut self, object: usize, pinned: bool) -> Result<Global, Exhausted> {
        let young = self.nursery.contains(object);
        let place = self.roots.globals.add(object, young, pinned).ok_or(Exhausted { bytes: 16 })?;
        Ok(Global { place, heap: self.number })
    }

    /// The address of the object that a handle keeps.
    ///
    /// # Panics
    /// When the handle is one of another heap, or was released by its number.
    pub fn address(&self, global: &Global) -> usize {
        assert_eq!(global.heap, self.number, "the handle belongs to another heap");
        match self.roots.globals.get(global.place) {
            Some(object) => object,
            None => panic!("the handle was released"),
        }
    }

    /// The same for its [number](Global::into_number). `None`: it was released, or is one of another heap. (Of
    /// 65,536 numbers that are no handle's any more, one may be that of a later one.)
    pub fn address_of(&self, number: u64) -> Option<usize> {
        self.roots.globals.get(self.place_of(number)?)
    }

    fn place_of(&self, number: u64) -> Option<Place> {
        let index = (number as u32).checked_sub(1)?;
        ((number >> 48) as u16 == self.number as u16).then_some(Place { index, uses: (number >> 32) as u16 })
    }

    /// Ends a handle.
    ///
    /// # Panics
    /// As in [`address`](Self::address).
    #[allow(clippy::needless_pass_by_value, reason = "the handle ends here")]
    pub fn release(&mut self, global: Global) {
        assert_eq!(global.heap, self.number, "the handle belongs to another heap");
        assert!(self.release_place(global.place), "the handle was released");
    }

    /// The same for its [number](Global::into_number). Says no when it was released, or is one of another heap.
    pub fn release_number(&mut self, number: u64) -> bool {
        self.place_of(number).is_some_and(|place| self.release_place(place))
    }

    fn release_place(&mut self, place: Place) -> bool {
        let Some((object, pinned)) = self.roots.globals.release(place) else { return false };
        if pinned {
            self.unpin(object);
        }
        true
    }

    /// A pinned object of the nursery stays until the next minor collection all the same: it may be alive, and
    /// the gaps go around it.
    fn unpin(&mut self, object: usize) {
        self.roots.pins.remove(object);
        self.roots.old_pins.remove(object);
    }

    /// Adds a function that names slots which the program holds outside of objects. It is called in every collection.
    ///
    /// # Errors
    /// When there is no memory to note it: it is dropped.
    ///
    /// # Safety
    /// Every slot it names may be read and written at any collection from now on, and holds what a slot may
    /// hold. It neither uses the heap nor panics.
    pub unsafe fn add_roots(&mut self, callback: RootCallback) -> Result<(), Exhausted> {
        let callbacks = &mut self.roots.callbacks;
        callbacks.try_reserve(1).map_err(|_| Exhausted { bytes: size_of::<RootCallback>() })?;
        callbacks.push(callback);
        Ok(())
    }
}
