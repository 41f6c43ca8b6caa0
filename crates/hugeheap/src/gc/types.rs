//! Types, registered at run time: how large an object is, and where in it references are.
//!
//! ```text
//!   descriptor   ├ map, bytes, class ─ one cache line ┼ lists of offsets, weak slots, function ┤
//! ```
//!
//! The first part answers for objects that are [mapped](super::map), as most are.
//!
//! A *slot* is a word that may hold a reference: 0, or the address of an object (of its header), or a word
//! whose low four bits are not zero, which the collector leaves alone (a small integer with a tag). Where slots
//! are is said by offsets, or by a *trace function*. A *leaf* has none.

use super::bins::Free;
use super::header::{Header, LENGTH_OFFSET, MIN_OBJECT, OBJECT_ALIGN};
use super::layout::{BadLayout, Layout};
use super::map::{Map, each_mapped};
use super::trace::Trace;
pub(crate) use super::trace::{Visit, Visitor};
use super::weak::WeakPart;
use crate::object::class::{Class, MAX_BLOCK, class_of};

/// Most types of a heap. A heap verifies that a header has the number of a type: a limit well below 2³² makes
/// chance hits rare.
pub const MAX_TYPES: usize = 1 << 20;

/// A registered type of one heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct TypeId(pub(crate) u32);

impl TypeId {
    /// The header of a new object of this type in the nursery.
    #[inline(always)]
    pub const fn header(self) -> Header {
        Header::new(self.0)
    }

    /// The number.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// A type as the collector reads it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Descriptor {
    map: Map,
    leaf: bool,
    pub(crate) finalized: bool,
    /// Class of the block of a fixed object in the old generation; 0: it is variable, or has none.
    class: u8,
    /// [Where](Free::place_of) blocks of a fixed and mapped object are taken from; 0, where there are none: it
    /// is another one.
    pub(super) place: u16,
    /// The length from which on an object of variable size is too large for a block; 0: any, as without a length.
    pub(super) too_long: u32,
    pub(crate) bytes: usize,
    /// Bytes of a fixed object, rounded up to the alignment; 0: the type is variable.
    fixed: usize,
    /// 0: the type is fixed.
    pub(crate) item_bytes: usize,
    pub(crate) slots: Vec<usize>,
    pub(crate) item_slots: Vec<usize>,
    /// One or none, away from the rest: most types have none. Not a box, which ends the process where there is
    /// no memory.
    weak: Vec<WeakPart>,
    pub(crate) trace: Option<Trace>,
}

const _: () =
    assert!(core::mem::offset_of!(Descriptor, slots) <= 64, "what mapped objects need is in one cache line");

impl Descriptor {
    /// Bytes of an object with `length` items, rounded up to the alignment. `None` when the sum overflows.
    pub(crate) fn bytes_for(&self, length: usize) -> Option<usize> {
        let bytes = length.checked_mul(self.item_bytes)?.checked_add(self.bytes)?;
        bytes.max(MIN_OBJECT).checked_next_multiple_of(OBJECT_ALIGN)
    }

    /// Items of an object.
    ///
    /// # Safety
    /// An object of this type begins at the address.
    #[inline(always)]
    pub(crate) unsafe fn length(&self, object: usize) -> usize {
        if self.item_bytes == 0 {
            return 0;
        }
        // SAFETY: objects of variable length have it there.
        unsafe { ((object + LENGTH_OFFSET) as *const usize).read() }
    }

    /// Bytes of an object.
    ///
    /// # Safety
    /// As in [`length`](Self::length).
    #[inline(always)]
    pub(crate) unsafe fn size(&self, object: usize) -> usize {
        if self.fixed != 0 {
            return self.fixed;
        }
        // SAFETY: by the contract.
        let length = unsafe { self.length(object) };
        // It was computed without overflow when the object was allocated. Since then it may have been
        // overwritten: no panic.
        let bytes = length.wrapping_mul(self.item_bytes).wrapping_add(self.bytes).max(MIN_OBJECT);
        bytes.wrapping_add(OBJECT_ALIGN - 1) & !(OBJECT_ALIGN - 1)
    }

    /// Bytes of an object that is not too large for a block, and the class of its block.
    ///
    /// # Safety
    /// As in [`length`](Self::length), but the length may be any.
    #[inline(always)]
    pub(crate) unsafe fn block(&self, object: usize) -> (usize, Class) {
        if self.class != 0 {
            return (self.fixed, self.class.into());
        }
        // SAFETY: by the contract.
        unsafe { self.variable_block(object) }
    }

    /// # Safety
    /// As in [`block`](Self::block).
    #[inline(always)]
    unsafe fn variable_block(&self, object: usize) -> (usize, Class) {
        // SAFETY: by the contract.
        let length = unsafe { self.length(object) };
        // Not the bytes: of a length that was overwritten they may wrap. Without the comparison it was an index
        // out of bounds.
        if length >= self.too_long as usize {
            overwritten_length(object, length);
        }
        // SAFETY: by the contract.
        let bytes = unsafe { self.size(object) };
        (bytes, class_of(bytes))
    }

    /// Bytes of a fixed object, rounded up to the alignment; 0: the type is variable.
    #[inline(always)]
    pub(super) fn fixed_bytes(&self) -> usize {
        self.fixed
    }

    /// Whether an object says of itself that it has more bytes than there are.
    ///
    /// # Safety
    /// As in [`length`](Self::length).
    pub(crate) unsafe fn exceeds(&self, object: usize, bytes: usize) -> bool {
        // SAFETY: by the contract.
        self.bytes_for(unsafe { self.length(object) }).is_none_or(|has| has > bytes)
    }

    /// Whether it has no slot at all.
    #[inline(always)]
    pub(crate) fn is_leaf(&self) -> bool {
        self.leaf
    }

    /// Its weak slots and ephemerons.
    #[inline(always)]
    pub(crate) fn weak(&self) -> Option<&WeakPart> {
        self.weak.first()
    }

    /// Whether large objects of the type have cards.
    pub(crate) fn wants_cards(&self) -> bool {
        let items = !self.item_slots.is_empty() || self.weak().is_some_and(WeakPart::has_items);
        match self.trace {
            None => items,
            Some(Trace::Whole(_)) => false,
            Some(Trace::Parts(_)) => true,
        }
    }

    /// Names all slots of an object.
    ///
    /// # Safety
    /// As in [`length`](Self::length); nobody else uses its slots.
    #[inline(always)]
    pub(crate) unsafe fn each_slot<V: Visit>(&self, object: usize, visit: &mut V) {
        // SAFETY: by the contract.
        match unsafe { self.map_of(object) } {
            Some(map) => each_mapped(map, object, |slot| visit.slot(slot)),
            // SAFETY: as above.
            None => unsafe { self.each_slot_listed(object, visit) },
        }
    }

    /// The map of a fixed and mapped object.
    #[inline(always)]
    pub(super) fn fixed_map(&self) -> u64 {
        self.map.fixed()
    }

    /// A bit for each slot of an object, for [`each_mapped`]. `None` where it is not mapped, and so for all
    /// that have cards.
    ///
    /// # Safety
    /// As in [`length`](Self::length), but the length may be any.
    #[inline(always)]
    pub(crate) unsafe fn map_of(&self, object: usize) -> Option<u64> {
        // SAFETY: by the contract.
        self.map.for_length(|| unsafe { self.length(object) })
    }

    /// Names all slots of an object that is not mapped.
    ///
    /// # Safety
    /// As in [`each_slot`](Self::each_slot).
    unsafe fn each_slot_listed<V: Visit>(&self, object: usize, visit: &mut V) {
        // SAFETY: by the contract.
        unsafe { self.each_offset_in(object, object, usize::MAX, visit) };
        if let Some(trace) = self.trace {
            // SAFETY: by the contract.
            unsafe { self.trace_in(trace, object, (object, usize::MAX), visit) };
        }
    }

    /// Names those slots that lie in `from..to`, without those that only a [`TraceFunction`] knows.
    ///
    /// # Safety
    /// As in [`each_slot`](Self::each_slot).
    #[inline(always)]
    pub(crate) unsafe fn each_slot_in<V: Visit>(&self, object: usize, from: usize, to: usize, visit: &mut V) {
        // SAFETY: by the contract.
        unsafe { self.each_offset_in(object, from, to, visit) };
        if let Some(trace @ Trace::Parts(_)) = self.trace {
            // SAFETY: by the contract.
            unsafe { self.trace_in(trace, object, (from, to), visit) };
        }
    }

    /// # Safety
    /// As in [`each_slot`](Self::each_slot).
    unsafe fn trace_in<V: Visit>(
        &self,
        trace: Trace,
        object: usize,
        (from, to): (usize, usize),
        visit: &mut V,
    ) {
        // SAFETY: by the contract. Whoever registered the type promised that the function can be called with
        // its objects, and parts of them.
        unsafe {
            match trace {
                Trace::Whole(trace) => trace(object as *mut u8, &mut Visitor(visit)),
                Trace::Parts(trace) => {
                    let end = object + self.size(object);
                    let (from, to) = (from.clamp(object, end), to.clamp(object, end));
                    trace(object as *mut u8, from as *mut u8, to as *mut u8, &mut Visitor(visit));
                }
            }
        }
    }

    /// Names those slots given by offsets that lie in `from..to`.
    ///
    /// # Safety
    /// As in [`each_slot`](Self::each_slot).
    #[inline(always)]
    unsafe fn each_offset_in<V: Visit>(&self, object: usize, from: usize, to: usize, visit: &mut V) {
        for offset in &self.slots {
            let slot = object + offset;
            if (from..to).contains(&slot) {
                visit.slot(slot as *mut usize);
            }
        }
        if let Some(weak) = self.weak() {
            // SAFETY: by the contract.
            unsafe { weak.each_in(self, object, (from, to), visit) };
        }
        if self.item_slots.is_empty() {
            return;
        }
        let items = object + self.bytes;
        if self.item_bytes == 8 {
            // Each item is a slot: no division.
            // SAFETY: by the contract.
            let end = items + 8 * unsafe { self.length(object) };
            let mut slot = from.max(items);
            while slot < to.min(end) {
                visit.slot(slot as *mut usize);
                slot += 8;
            }
            return;
        }
        // SAFETY: by the contract.
        for item in unsafe { self.items_in(object, from, to) } {
            for offset in &self.item_slots {
                let slot = items + item * self.item_bytes + offset;
                // An item may lie across the ends of the part asked for.
                if (from..to).contains(&slot) {
                    visit.slot(slot as *mut usize);
                }
            }
        }
    }

    /// The items that lie in `from..to`, whole or in part. Only where the type has items.
    ///
    /// # Safety
    /// As in [`length`](Self::length).
    #[inline(always)]
    pub(crate) unsafe fn items_in(&self, object: usize, from: usize, to: usize) -> core::ops::Range<usize> {
        // SAFETY: by the contract.
        let length = unsafe { self.length(object) };
        let items = object + self.bytes;
        let first = from.saturating_sub(items) / self.item_bytes;
        first..length.min(to.saturating_sub(items).div_ceil(self.item_bytes))
    }

    /// Whether the word at an offset of an object with `length` items is a slot given by an offset.
    pub(crate) fn is_slot(&self, offset: usize, length: usize) -> bool {
        let weak = self.weak();
        if offset < self.bytes || self.item_bytes == 0 {
            return self.slots.contains(&offset)
                || weak.is_some_and(|weak| weak.fixed().any(|slot| slot == offset));
        }
        let (item, within) =
            ((offset - self.bytes) / self.item_bytes, (offset - self.bytes) % self.item_bytes);
        let named = || self.item_slots.contains(&within);
        item < length && (named() || weak.is_some_and(|weak| weak.items().any(|slot| slot == within)))
    }
}

/// The types of a heap. Type 0 does not exist, so that a zeroed header is no object.
#[derive(Debug, Default)]
pub(crate) struct Types {
    types: Vec<Descriptor>,
}

impl Types {
    pub(crate) fn register(&mut self, layout: Layout) -> Result<TypeId, BadLayout> {
        layout.check()?;
        if self.types.len() + 1 >= MAX_TYPES {
            return Err(BadLayout::TooMany);
        }
        self.types.try_reserve(1).map_err(|_| BadLayout::NoMemory)?;
        let map = Map::of(&layout);
        let Layout { bytes, item_bytes, slots, item_slots, weak, finalized, trace, .. } = layout;
        let leaf = slots.is_empty() && item_slots.is_empty() && weak.is_empty() && trace.is_none();
        let fixed = if item_bytes == 0 { bytes.max(MIN_OBJECT).next_multiple_of(OBJECT_ALIGN) } else { 0 };
        let class = if (1..=MAX_BLOCK).contains(&fixed) { class_of(fixed) as u8 } else { 0 };
        let place = if map.is_fixed() { Free::place_of(class.into()) } else { 0 };
        let longest = MAX_BLOCK.checked_sub(bytes).and_then(|items| items.checked_div(item_bytes));
        let too_long = longest.map_or(0, |longest| longest as u32 + 1);
        let mut weak_part = Vec::new();
        if !weak.is_empty() {
            weak_part.try_reserve_exact(1).map_err(|_| BadLayout::NoMemory)?;
            weak_part.push(weak);
        }
        self.types.push(Descriptor {
            map,
            leaf,
            finalized,
            class,
            place,
            too_long,
            bytes,
            fixed,
            item_bytes,
            slots,
            item_slots,
            weak: weak_part,
            trace,
        });
        Ok(TypeId(self.types.len() as u32))
    }

    /// The type with a number that may come from anywhere.
    pub(crate) fn get(&self, id: u32) -> Option<&Descriptor> {
        self.types.get((id as usize).wrapping_sub(1))
    }

    /// The type of an object.
    ///
    /// # Safety
    /// An object of this heap begins there.
    #[inline(always)]
    pub(crate) unsafe fn of(&self, object: usize) -> &Descriptor {
        // SAFETY: by the contract there is a header. That it names a type is checked: a header that was
        // overwritten must not become a wild read.
        let id = unsafe { Header::of(object) }.id();
        match self.get(id) {
            Some(descriptor) => descriptor,
            None => no_type(object, id),
        }
    }
}

/// Not a panic: a collection that is left in the middle leaves nothing to go on with. A function of its own:
/// what it names would be written to memory for each object by a caller that it is part of.
#[cold]
#[inline(never)]
fn no_type(object: usize, id: u32) -> ! {
    crate::complain::abort(format_args!(
        "the object at {object:#x} has the header of no type ({id}): it was overwritten, or is none"
    ))
}

/// As [`no_type`], for an object that is to move to a block.
#[cold]
#[inline(never)]
fn overwritten_length(object: usize, length: usize) -> ! {
    // SAFETY: its type was found by its header.
    let id = unsafe { Header::of(object) }.id();
    crate::complain::abort(format_args!(
        "the object at {object:#x} (type {id}) has a length of {length}, with which it would not be in the nursery: it was overwritten, or \
         never written"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Collects the offsets of slots.
    struct Offsets(usize, Vec<usize>);

    impl Visit for Offsets {
        fn slot(&mut self, slot: *mut usize) {
            self.1.push(slot as usize - self.0);
        }
    }

    fn slots_in(types: &Types, object: usize, from: usize, to: usize) -> Vec<usize> {
        let mut offsets = Offsets(object, Vec::new());
        // SAFETY: the tests make objects of the types they ask about.
        unsafe { types.of(object).each_slot_in(object, object + from, object + to, &mut offsets) };
        offsets.1
    }

    #[test]
    fn sizes_are_multiples_of_a_granule_and_do_not_overflow() {
        let mut types = Types::default();
        let small = types.register(Layout::fixed(8)).expect("a header is enough");
        let text = types.register(Layout::variable(16, 1)).expect("right");
        assert_eq!(types.get(small.0).and_then(|ty| ty.bytes_for(0)), Some(16));
        let text = types.get(text.0).expect("registered");
        assert_eq!(
            (text.bytes_for(0), text.bytes_for(1), text.bytes_for(17)),
            (Some(16), Some(32), Some(48))
        );
        assert_eq!(text.bytes_for(usize::MAX), None);
        assert_eq!(
            (text.too_long as usize, text.bytes_for(MAX_BLOCK - 16)),
            (MAX_BLOCK - 15, Some(MAX_BLOCK))
        );
        assert_eq!(text.bytes_for(usize::MAX - 20), None);
        assert!(text.is_leaf() && !text.wants_cards());
    }

    #[test]
    fn slots_that_no_map_has_room_for_are_named_all_the_same() {
        let mut types = Types::default();
        let object = [0u64; 80];
        for (offsets, mapped) in [(vec![8, 63 * 8], true), (vec![8, 63 * 8, 64 * 8, 79 * 8], false)] {
            let ty = types.register(Layout::fixed(80 * 8).slots(&offsets)).expect("right");
            let ty = types.get(ty.0).expect("registered");
            let mut named = Offsets(object.as_ptr() as usize, Vec::new());
            // SAFETY: the type is fixed, so nothing of the object is read.
            unsafe {
                assert_eq!(ty.map_of(named.0).is_some(), mapped);
                ty.each_slot(named.0, &mut named);
            }
            named.1.sort_unstable();
            assert_eq!(named.1, offsets);
        }
    }

    proptest! {
        #[test]
        fn parts_of_an_object_name_each_slot_once(
            (bytes, slots) in prop_oneof![Just((24, &[0, 16][..])), Just((8, &[0][..]))],
            length in 0usize..20,
            cuts in prop::collection::vec(0usize..64, 0..5),
        ) {
            let mut types = Types::default();
            let layout = Layout::variable(32, bytes).slots(&[16, 24]).item_slots(slots);
            let ty = types.register(layout).expect("right");
            let mut object = [0u64; 64];
            object[0] = ty.header().0;
            object[1] = length as u64;
            let address = object.as_ptr() as usize;
            let mut expected = vec![16, 24];
            for item in 0..length {
                expected.extend(slots.iter().map(|slot| 32 + bytes * item + slot));
            }
            prop_assert_eq!(&slots_in(&types, address, 0, 1 << 20), &expected);
            let descriptor = types.get(ty.0).expect("registered");
            let named: Vec<_> = (0..512).filter(|&offset| descriptor.is_slot(offset, length)).collect();
            prop_assert_eq!(&named, &expected);
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut * 8).chain([0, 512]).collect();
            cuts.sort_unstable();
            let mut parts: Vec<_> = cuts.windows(2).flat_map(|cut| slots_in(&types, address, cut[0], cut[1])).collect();
            parts.sort_unstable();
            prop_assert_eq!(parts, expected);
        }
    }
}
