//! Handles that outlive scopes: places for addresses, and the numbers under which programs hold them.
//!
//! ```text
//!   number   ├ heap 16 ┼ use 16 ┼ place, from 1  32 ┤       one that was released, or is of another heap, is told from one that lives
//!   group    64 places    taken 1 1 0 1 …   young 0 1 0 0 …   pinned …       without memory while none is taken
//!   roomy    groups with a place, the last one is used next
//!   young    groups with a young object: all that a minor collection looks at
//! ```
//!
//! A program keeps a million handles for a moment, or for good. In one row, minor collections looked at as many
//! places as there ever had been: 4,000,000 instructions with 100,000 handles of old objects and as many that
//! were gone, and 900 without. Now they look at those whose object is in the nursery. Only what is new can be:
//! old objects do not become young, so a place leaves that list for good when its object has moved.

/// Places of a group: a word is a bitmap over it.
const PLACES: usize = 64;

/// Groups above which nothing is kept when the last handle ends: with 64 bytes for each, less than a heap page.
const KEPT: usize = 128;

/// A place, and which of its uses this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) index: u32,
    pub(crate) uses: u16,
}

#[derive(Clone, Copy, Debug, Default)]
struct Content {
    object: usize,
    uses: u16,
}

#[derive(Debug, Default)]
struct Group {
    taken: u64,
    young: u64,
    pinned: u64,
    /// It is in the list of that name.
    in_roomy: bool,
    in_young: bool,
    /// All of them, or none.
    places: Vec<Content>,
}

/// The handles of a heap.
#[derive(Debug, Default)]
pub(crate) struct Globals {
    groups: Vec<Group>,
    roomy: Vec<u32>,
    young: Vec<u32>,
    /// An empty group whose memory is kept: a program that takes one handle after the other asks nobody for
    /// memory each time.
    spare: Option<u32>,
    count: usize,
    /// Handles made so far. Not for each place: those of a group without memory would be forgotten.
    uses: u16,
}

impl Globals {
    /// Takes a place. `None`: there is no memory, or there are too many.
    pub(crate) fn add(&mut self, object: usize, young: bool, pinned: bool) -> Option<Place> {
        let number = self.roomy_group()?;
        let group = &mut self.groups[number as usize];
        if group.places.is_empty() {
            group.places.try_reserve_exact(PLACES).ok()?;
            group.places.resize(PLACES, Content::default());
        }
        if self.spare == Some(number) {
            self.spare = None;
        }
        let at = (!group.taken).trailing_zeros();
        let bit = 1 << at;
        self.uses = self.uses.wrapping_add(1);
        group.places[at as usize] = Content { object, uses: self.uses };
        group.taken |= bit;
        group.pinned |= if pinned { bit } else { 0 };
        if young {
            group.young |= bit;
            if !core::mem::replace(&mut group.in_young, true) {
                self.young.push(number);
            }
        }
        self.count += 1;
        Some(Place { index: number * PLACES as u32 + at, uses: self.uses })
    }

    /// A group with a vacant place.
    fn roomy_group(&mut self) -> Option<u32> {
        while let Some(&number) = self.roomy.last() {
            let group = &mut self.groups[number as usize];
            if group.taken != u64::MAX {
                return Some(number);
            }
            group.in_roomy = false;
            self.roomy.pop();
        }
        let groups = self.groups.len();
        // Its last place, from 1, is a number of 32 bits.
        let number = u32::try_from(groups).ok().filter(|number| *number < u32::MAX / PLACES as u32)?;
        self.groups.try_reserve(1).ok()?;
        // So that nothing needs memory later: each group is in a list once.
        self.roomy.try_reserve(groups + 1 - self.roomy.len()).ok()?;
        self.young.try_reserve(groups + 1 - self.young.len()).ok()?;
        self.groups.push(Group { in_roomy: true, ..Group::default() });
        self.roomy.push(number);
        Some(number)
    }

    fn find(&self, place: Place) -> Option<(&Group, usize)> {
        let (group, at) = (self.groups.get(place.index as usize / PLACES)?, place.index as usize % PLACES);
        let lives = group.taken >> at & 1 != 0 && group.places[at].uses == place.uses;
        lives.then_some((group, at))
    }

    /// The object that a handle keeps. `None`: it was released.
    pub(crate) fn get(&self, place: Place) -> Option<usize> {
        self.find(place).map(|(group, at)| group.places[at].object)
    }

    /// Ends a handle: the object that it kept, and whether it was pinned. `None`: it had been released.
    pub(crate) fn release(&mut self, place: Place) -> Option<(usize, bool)> {
        let object = self.get(place)?;
        let number = place.index / PLACES as u32;
        let group = &mut self.groups[number as usize];
        let bit = 1 << (place.index as usize % PLACES);
        let pinned = group.pinned & bit != 0;
        group.taken &= !bit;
        group.young &= !bit;
        group.pinned &= !bit;
        self.count -= 1;
        if !core::mem::replace(&mut group.in_roomy, true) {
            self.roomy.push(number);
        }
        if group.taken == 0 {
            self.emptied(number);
        }
        Some((object, pinned))
    }

    fn emptied(&mut self, number: u32) {
        if self.count == 0 && self.groups.len() > KEPT {
            *self = Self { uses: self.uses, ..Self::default() };
        } else if self.spare.is_none() {
            self.spare = Some(number);
        } else {
            self.groups[number as usize].places = Vec::new();
        }
    }

    /// Names every place that is taken.
    pub(crate) fn each(&mut self, mut visit: impl FnMut(&mut usize)) {
        for group in &mut self.groups {
            each_bit(group.taken, |at| visit(&mut group.places[at].object));
        }
    }

    /// Names the places whose object was young when this was asked last; `visit` says whether it still is.
    #[inline(always)]
    pub(crate) fn each_young(&mut self, visit: impl FnMut(&mut usize) -> bool) {
        if !self.young.is_empty() {
            self.each_listed(visit);
        }
    }

    #[inline(never)]
    fn each_listed(&mut self, mut visit: impl FnMut(&mut usize) -> bool) {
        let groups = &mut self.groups;
        self.young.retain(|&number| {
            let group = &mut groups[number as usize];
            each_bit(group.young, |at| {
                if !visit(&mut group.places[at].object) {
                    group.young &= !(1 << at);
                }
            });
            group.in_young = group.young != 0;
            group.in_young
        });
    }

    /// Bytes that it takes.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        let places: usize = self.groups.iter().map(|group| group.places.capacity()).sum();
        places * size_of::<Content>()
            + self.groups.capacity() * size_of::<Group>()
            + (self.roomy.capacity() + self.young.capacity()) * 4
    }
}

fn each_bit(mut bits: u64, mut visit: impl FnMut(usize)) {
    while bits != 0 {
        visit(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn places(globals: &mut Globals) -> Vec<usize> {
        let mut all = Vec::new();
        globals.each(|object| all.push(*object));
        all.sort_unstable();
        all
    }

    /// Of a row of places none ever went back.
    #[test]
    fn what_was_released_costs_no_memory_and_no_look() {
        let mut globals = Globals::default();
        let mut all: Vec<Place> =
            (1..=100_000).map(|n| globals.add(n, true, false).expect("memory")).collect();
        let full = globals.bytes();
        let kept = all.swap_remove(77_777);
        all.iter().for_each(|&place| _ = globals.release(place).expect("it lives"));
        assert!(globals.bytes() < full / 8, "{} of {full}", globals.bytes());
        let mut looked = 0;
        globals.each_young(|_| {
            looked += 1;
            false
        });
        assert_eq!((looked, globals.get(kept)), (1, Some(77_778)));
        globals.each_young(|_| unreachable!("it has moved"));
        // As many again need no more than the first time.
        let again: Vec<Place> = (0..99_999).map(|n| globals.add(n, false, false).expect("memory")).collect();
        assert!(globals.bytes() <= full);
        again.iter().chain([&kept]).for_each(|&place| _ = globals.release(place).expect("it lives"));
        assert_eq!(globals.bytes(), 0);
        assert_eq!(globals.get(kept), None);
    }

    #[test]
    fn one_handle_after_the_other_keeps_its_memory() {
        let mut globals = Globals::default();
        let first = globals.add(1, true, true).expect("memory");
        assert_eq!(globals.release(first), Some((1, true)));
        let places = globals.groups[0].places.as_ptr();
        for _ in 0..1000 {
            let next = globals.add(1, false, false).expect("memory");
            assert_eq!((next.index, globals.get(first)), (first.index, None), "the same place, another use");
            assert_eq!(globals.release(next), Some((1, false)));
        }
        assert_eq!(globals.groups[0].places.as_ptr(), places);
    }

    proptest! {
        #[test]
        fn places_are_those_of_a_plain_map(steps in prop::collection::vec((0u8..8, any::<u16>()), 1..2000)) {
            let mut globals = Globals::default();
            let mut model: BTreeMap<u32, (Place, usize, bool, bool)> = BTreeMap::new();
            let mut gone: Vec<Place> = Vec::new();
            for (number, (what, which)) in steps.into_iter().enumerate() {
                let chosen = || model.values().nth(usize::from(which) % model.len().max(1)).copied();
                match (what, chosen()) {
                    (0..4, _) => {
                        let (young, pinned) = (which & 1 != 0, which & 2 != 0);
                        let place = globals.add(number, young, pinned).expect("memory");
                        prop_assert!(model.insert(place.index, (place, number, young, pinned)).is_none());
                    }
                    (4..7, Some((place, object, _, pinned))) => {
                        prop_assert_eq!(globals.release(place), Some((object, pinned)));
                        model.remove(&place.index);
                        gone.push(place);
                    }
                    (7, _) => {
                        // What is even moves, and is young no more.
                        let mut young: Vec<usize> = Vec::new();
                        globals.each_young(|object| {
                            young.push(*object);
                            *object % 2 != 0
                        });
                        young.sort_unstable();
                        let mut expected: Vec<usize> =
                            model.values().filter(|known| known.2).map(|known| known.1).collect();
                        expected.sort_unstable();
                        prop_assert_eq!(young, expected);
                        model.values_mut().for_each(|known| known.2 &= known.1 % 2 != 0);
                    }
                    _ => {}
                }
                if let Some((place, object, ..)) = model.values().nth(usize::from(which) % model.len().max(1)) {
                    prop_assert_eq!(globals.get(*place), Some(*object));
                }
                if let Some(place) = gone.get(usize::from(which)) {
                    prop_assert_eq!(globals.get(*place), None);
                }
                prop_assert_eq!(globals.count, model.len());
            }
            let mut expected: Vec<usize> = model.values().map(|known| known.1).collect();
            expected.sort_unstable();
            prop_assert_eq!(places(&mut globals), expected);
        }
    }
}
