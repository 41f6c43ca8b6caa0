//! The mappings of one reservation, with Linux's rules for splitting and merging.
//!
//! Terms: a *mapping* (VMA) is a range with the same *attributes*: what it is, advice, protection, name.
//! A call on a part of a mapping splits it; neighbours with equal attributes merge again. The kernel limits
//! how many a process may have (`vm.max_map_count`), and a call that would pass the limit fails with nothing changed.
//!
//! ```text
//!   │ reserved        │ anonymous, huge │ anonymous  │ hugetlb │ reserved     │
//!   start                                                                    end
//! ```
//!
//! Invariants: the mappings of a reservation cover it without overlap, and without gap but for parts that were
//! released; no two neighbours are equal, but for hugetlb mappings, which the kernel never merges.
//!
//! Left out: the kernel does not merge anonymous mappings that were both touched before they met (each has an
//! `anon_vma` of its own), and it counts mappings in the middle of a call, before merging. So a real count can
//! be higher.

use super::call::Outcome;
use crate::{AddressRange, Advice, Protection};
use core::ffi::CStr;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Reserved,
    Anonymous,
    Hugetlb {
        page_size: usize,
        /// Whether this process holds the pool's promise for pages not yet touched. A forked child does not.
        owner: bool,
        /// Whether the owner took a shared page back from this mapping: every new fault in it is `SIGBUS` now.
        stolen: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) kind: Kind,
    pub(super) advice: Option<Advice>,
    /// Equal pages may become one.
    pub(super) merges: bool,
    pub(super) protection: Protection,
    pub(super) name: Option<Arc<CStr>>,
}

impl Attributes {
    pub(super) fn reserved() -> Self {
        Self { kind: Kind::Reserved, advice: None, merges: false, protection: Protection::None, name: None }
    }

    pub(super) fn mapped(kind: Kind, advice: Option<Advice>) -> Self {
        Self { kind, advice, merges: false, protection: Protection::ReadWrite, name: None }
    }

    /// Whether it counts as data.
    pub(super) fn is_data(&self) -> bool {
        matches!(self.kind, Kind::Anonymous | Kind::Hugetlb { .. })
            && self.protection == Protection::ReadWrite
    }

    fn merges_with(&self, other: &Self) -> bool {
        self == other && !matches!(self.kind, Kind::Hugetlb { .. })
    }
}

/// A mapping, or the part of it that a range cuts out.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// The part inside the range asked about.
    pub(super) part: AddressRange,
    /// The whole mapping.
    pub(super) whole: AddressRange,
    pub(super) attributes: Attributes,
}

#[derive(Clone)]
pub(super) struct Vmas {
    /// Start → end and attributes.
    map: BTreeMap<usize, (usize, Attributes)>,
    /// Bytes that were released.
    released: usize,
}

impl Vmas {
    pub(super) fn new(range: AddressRange) -> Self {
        Self { map: BTreeMap::from([(range.start, (range.end(), Attributes::reserved()))]), released: 0 }
    }

    pub(super) fn count(&self) -> usize {
        self.map.len()
    }

    /// The mapping at an address of this reservation.
    pub(super) fn at(&self, address: usize) -> Option<(AddressRange, &Attributes)> {
        let (&start, (end, attributes)) = self.map.range(..=address).next_back()?;
        (address < *end).then_some((AddressRange::new(start, end - start), attributes))
    }

    /// The mappings that `range` touches, in order of address.
    pub(super) fn pieces(&self, range: AddressRange) -> Vec<Piece> {
        let first = self.at(range.start).map_or(range.start, |(whole, _)| whole.start);
        self.map
            .range(first..range.end().max(first))
            .map(|(&start, (end, attributes))| {
                let (from, to) = (start.max(range.start), (*end).min(range.end()));
                Piece {
                    part: AddressRange::new(from, to - from),
                    whole: AddressRange::new(start, end - start),
                    attributes: attributes.clone(),
                }
            })
            .collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (AddressRange, &Attributes)> {
        self.map.iter().map(|(&start, (end, attributes))| (AddressRange::new(start, end - start), attributes))
    }

    /// Makes `range` one mapping with `attributes`. `room` is by how many the count may grow.
    pub(super) fn set(&mut self, range: AddressRange, attributes: Attributes, room: usize) -> Outcome<()> {
        let inside = vec![(range, attributes)];
        self.replace(range, inside, room)
    }

    /// Takes `range` out.
    pub(super) fn remove(&mut self, range: AddressRange, room: usize) -> Outcome<()> {
        self.replace(range, Vec::new(), room)?;
        self.released += range.len;
        Ok(())
    }

    /// Changes the attributes of each mapping in `range`. A mapping that does not change is not split.
    pub(super) fn edit(
        &mut self,
        range: AddressRange,
        room: usize,
        change: impl Fn(&mut Attributes),
    ) -> Outcome<()> {
        let mut inside = Vec::new();
        let mut covered = range;
        for piece in self.pieces(range) {
            let mut attributes = piece.attributes.clone();
            change(&mut attributes);
            let part = if attributes == piece.attributes { piece.whole } else { piece.part };
            covered = hull(covered, part);
            inside.push((part, attributes));
        }
        self.replace(covered, inside, room)
    }

    /// Marks hugetlb mappings touched by `range` as robbed by their owner.
    pub(super) fn mark_stolen(&mut self, address: usize) {
        if let Some((_, (_, attributes))) = self.map.range_mut(..=address).next_back() {
            if let Kind::Hugetlb { stolen, .. } = &mut attributes.kind {
                *stolen = true;
            }
        }
    }

    /// Turns every hugetlb mapping into one without the pool's promise: what `fork` does to a child.
    pub(super) fn disown(&mut self) {
        for (_, attributes) in self.map.values_mut() {
            if let Kind::Hugetlb { owner, .. } = &mut attributes.kind {
                *owner = false;
            }
        }
    }

    fn replace(
        &mut self,
        range: AddressRange,
        inside: Vec<(AddressRange, Attributes)>,
        room: usize,
    ) -> Outcome<()> {
        // One address more on each side, so that the neighbours that may merge are looked at too.
        let wide = AddressRange::new(range.start.saturating_sub(1), range.len + 2);
        let old = self.pieces(wide);
        let mut new: Vec<(AddressRange, Attributes)> = Vec::with_capacity(old.len() + 2);
        let mut push = |part: AddressRange, attributes: Attributes| {
            if let Some((last, same)) = new.last_mut() {
                if last.end() == part.start && same.merges_with(&attributes) {
                    last.len += part.len;
                    return;
                }
            }
            if part.len > 0 {
                new.push((part, attributes));
            }
        };
        for piece in old.iter().filter(|piece| piece.whole.start < range.start) {
            let len = piece.whole.end().min(range.start) - piece.whole.start;
            push(AddressRange::new(piece.whole.start, len), piece.attributes.clone());
        }
        for (part, attributes) in inside {
            push(part, attributes);
        }
        for piece in old.iter().filter(|piece| piece.whole.end() > range.end()) {
            let start = piece.whole.start.max(range.end());
            push(AddressRange::new(start, piece.whole.end() - start), piece.attributes.clone());
        }
        if new.len() > old.len() + room {
            return Err(libc::ENOMEM);
        }
        for piece in &old {
            self.map.remove(&piece.whole.start);
        }
        for (part, attributes) in new {
            self.map.insert(part.start, (part.end(), attributes));
        }
        Ok(())
    }

    /// Whether the invariants hold for the reservation `range`.
    pub(super) fn check(&self, range: AddressRange) -> Result<(), String> {
        let (mut next, mut missing) = (range.start, 0);
        let mut last: Option<&Attributes> = None;
        for (part, attributes) in self.iter() {
            if part.start < next || part.len == 0 {
                return Err(format!("mapping {part} starts before {next:#x}, or is empty"));
            }
            if part.start == next && last.is_some_and(|last| last.merges_with(attributes)) {
                return Err(format!("mapping {part} should have merged with the one before"));
            }
            missing += part.start - next;
            next = part.end();
            last = Some(attributes);
        }
        if next > range.end() {
            return Err(format!("mappings end at {next:#x}, behind {range}"));
        }
        missing += range.end() - next;
        if missing == self.released {
            Ok(())
        } else {
            Err(format!("{missing} bytes of {range} are in no mapping, {} were released", self.released))
        }
    }
}

fn hull(a: AddressRange, b: AddressRange) -> AddressRange {
    let start = a.start.min(b.start);
    AddressRange::new(start, a.end().max(b.end()) - start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anonymous(advice: Option<Advice>) -> Attributes {
        Attributes::mapped(Kind::Anonymous, advice)
    }

    const ALL: AddressRange = AddressRange::new(0x1000, 0x10000);

    #[test]
    fn parts_split_and_equal_neighbours_merge() {
        let mut vmas = Vmas::new(ALL);
        vmas.set(AddressRange::new(0x3000, 0x1000), anonymous(None), 9).unwrap();
        assert_eq!(vmas.count(), 3);
        vmas.set(AddressRange::new(0x4000, 0x1000), anonymous(None), 9).unwrap();
        assert_eq!(vmas.count(), 3);
        vmas.set(AddressRange::new(0x5000, 0x1000), anonymous(Some(Advice::Huge)), 9).unwrap();
        assert_eq!(vmas.count(), 4);
        vmas.edit(AddressRange::new(0x3000, 0x3000), 9, |a| a.advice = Some(Advice::Huge)).unwrap();
        assert_eq!(vmas.count(), 3);
        vmas.set(ALL, Attributes::reserved(), 0).unwrap();
        assert_eq!(vmas.count(), 1);
        vmas.check(ALL).unwrap();
    }

    #[test]
    fn the_limit_is_kept_and_a_refused_change_leaves_no_trace() {
        let mut vmas = Vmas::new(ALL);
        assert_eq!(vmas.set(AddressRange::new(0x3000, 0x1000), anonymous(None), 1), Err(libc::ENOMEM));
        assert_eq!(vmas.count(), 1);
        vmas.set(AddressRange::new(0x3000, 0x1000), anonymous(None), 2).unwrap();
        vmas.check(ALL).unwrap();
    }

    #[test]
    fn an_edit_without_effect_splits_nothing() {
        let mut vmas = Vmas::new(ALL);
        vmas.set(ALL, anonymous(Some(Advice::Huge)), 0).unwrap();
        vmas.edit(AddressRange::new(0x3000, 0x1000), 0, |a| a.advice = Some(Advice::Huge)).unwrap();
        assert_eq!(vmas.count(), 1);
    }

    #[test]
    fn hugetlb_mappings_never_merge() {
        let mut vmas = Vmas::new(ALL);
        let hugetlb =
            Attributes::mapped(Kind::Hugetlb { page_size: 0x1000, owner: true, stolen: false }, None);
        vmas.set(AddressRange::new(0x1000, 0x1000), hugetlb.clone(), 9).unwrap();
        vmas.set(AddressRange::new(0x2000, 0x2000), hugetlb, 9).unwrap();
        assert_eq!(vmas.count(), 3);
        let part = AddressRange::new(0x2000, 0x1000);
        vmas.edit(part, 9, |a| a.protection = Protection::ReadWrite).unwrap();
        assert_eq!(vmas.count(), 3);
        vmas.edit(part, 9, |a| a.protection = Protection::Read).unwrap();
        vmas.edit(part, 9, |a| a.protection = Protection::ReadWrite).unwrap();
        assert_eq!(vmas.count(), 4);
        vmas.check(ALL).unwrap();
    }
}
