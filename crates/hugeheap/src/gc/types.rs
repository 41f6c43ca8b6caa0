//! Types, registered at run time: how large an object is, and where in it references are.
//!
//! ```text
//!   fixed      ├ header ┼ fields ──────────────┤
//!   variable   ├ header ┼ length ┼ fields ─┼ item 0 ┼ item 1 ┼ …   `length` of them
//! ```
//!
//! A *slot* is a word that may hold a reference: 0, or the address of an object (of its header), or a word whose low four bits are not zero,
//! which the collector leaves alone (a small integer with a tag). Where slots are is said by offsets, or by a *trace function*.
//! A *leaf* has none.

use super::header::{HEADER_BYTES, Header, LENGTH_OFFSET, MIN_OBJECT, OBJECT_ALIGN};
use super::trace::Trace;
pub(crate) use super::trace::{PartFunction, TraceFunction, Visit, Visitor};
use super::weak::WeakPart;
use core::fmt;

/// Most types of a heap. A heap verifies that a header has the number of a type: a limit well below 2³² makes chance hits rare.
pub const MAX_TYPES: usize = 1 << 20;

/// Largest fixed part and largest item, in bytes: sums of the two and of a length do not overflow.
pub const MAX_PART: usize = 1 << 30;

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

/// What a type is like, to be [registered](super::Heap::register).
#[derive(Clone, Debug)]
pub struct Layout {
    bytes: usize,
    item_bytes: usize,
    slots: Vec<usize>,
    item_slots: Vec<usize>,
    weak: WeakPart,
    finalized: bool,
    trace: Option<Trace>,
}

/// Why a type cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadLayout {
    /// No room for the header, and the length where there is one.
    TooSmall,
    /// The fixed part or an item has more than [`MAX_PART`] bytes.
    TooLarge,
    /// A slot is not a whole word inside its part, or lies on the header or on the length.
    Slot {
        /// Its offset.
        offset: usize,
    },
    /// A word is named as a slot twice.
    Twice {
        /// Its offset.
        offset: usize,
    },
    /// Items with slots are not multiples of a word, or do not begin at one.
    Items,
    /// The heap has [`MAX_TYPES`] types.
    TooMany,
    /// No memory for the description.
    NoMemory,
}

impl fmt::Display for BadLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall => {
                write!(f, "the type has no room for its header of {HEADER_BYTES} bytes and its length")
            }
            Self::TooLarge => write!(f, "a part of the type has more than {MAX_PART} bytes"),
            Self::Slot { offset } => write!(
                f,
                "the slot at offset {offset} is not a multiple of 8 inside the type and behind its header and length"
            ),
            Self::Twice { offset } => write!(f, "the word at offset {offset} is named as a slot twice"),
            Self::Items => f.write_str("items with slots must begin at, and have, a multiple of 8 bytes"),
            Self::TooMany => write!(f, "the heap has {MAX_TYPES} types, which is the most"),
            Self::NoMemory => f.write_str("there is no memory to describe the type"),
        }
    }
}

impl std::error::Error for BadLayout {}

impl Layout {
    /// Objects of `bytes` bytes, the header included.
    pub const fn fixed(bytes: usize) -> Self {
        Self::variable(bytes, 0)
    }

    /// Objects with a fixed part of `bytes` bytes, header and length included, and items of `item_bytes` bytes behind it.
    pub const fn variable(bytes: usize, item_bytes: usize) -> Self {
        let weak =
            WeakPart { slots: Vec::new(), item_slots: Vec::new(), pairs: Vec::new(), item_pairs: Vec::new() };
        Self {
            bytes,
            item_bytes,
            slots: Vec::new(),
            item_slots: Vec::new(),
            weak,
            finalized: false,
            trace: None,
        }
    }

    /// Slots of the fixed part, as offsets from the header.
    #[must_use]
    pub fn slots(mut self, offsets: &[usize]) -> Self {
        self.slots = offsets.to_vec();
        self
    }

    /// Slots of an item, as offsets from its beginning.
    #[must_use]
    pub fn item_slots(mut self, offsets: &[usize]) -> Self {
        self.item_slots = offsets.to_vec();
        self
    }

    /// Weak slots of the fixed part, as offsets from the header: what they refer to may die, and they become 0 then.
    #[must_use]
    pub fn weak_slots(mut self, offsets: &[usize]) -> Self {
        self.weak.slots = offsets.to_vec();
        self
    }

    /// Weak slots of an item, as offsets from its beginning.
    #[must_use]
    pub fn weak_item_slots(mut self, offsets: &[usize]) -> Self {
        self.weak.item_slots = offsets.to_vec();
        self
    }

    /// Ephemerons of the fixed part, as offsets of key and value from the header: the key is a weak slot, and the value's object lives if the
    /// key's does.
    #[must_use]
    pub fn ephemerons(mut self, pairs: &[(usize, usize)]) -> Self {
        self.weak.pairs = pairs.to_vec();
        self
    }

    /// Ephemerons of an item, as offsets of key and value from its beginning: a table with weak keys.
    #[must_use]
    pub fn item_ephemerons(mut self, pairs: &[(usize, usize)]) -> Self {
        self.weak.item_pairs = pairs.to_vec();
        self
    }

    /// Every object of the type is registered to be [finalized](super::Heap::finalize) when it is allocated. Such an object is not taken from
    /// a window: the fast path tells nobody.
    #[must_use]
    pub fn finalized(mut self) -> Self {
        self.finalized = true;
        self
    }

    /// Slots named by a function, besides those given as offsets. Such an object has no cards: the function cannot be asked for a part
    /// of it, as that of [`traced_in_parts_by`](Self::traced_in_parts_by) can.
    ///
    /// # Safety
    /// The function keeps the contract of [`TraceFunction`] for every object of the type.
    #[must_use]
    pub unsafe fn traced_by(mut self, function: TraceFunction) -> Self {
        self.trace = Some(Trace::Whole(function));
        self
    }

    /// The same with a function that is asked for parts of an object: a large one has cards, and is marked in steps.
    ///
    /// # Safety
    /// The function keeps the contract of [`PartFunction`] for every object of the type.
    #[must_use]
    pub unsafe fn traced_in_parts_by(mut self, function: PartFunction) -> Self {
        self.trace = Some(Trace::Parts(function));
        self
    }

    fn check(&self) -> Result<(), BadLayout> {
        let variable = self.item_bytes > 0;
        let first = if variable { LENGTH_OFFSET + 8 } else { HEADER_BYTES };
        if self.bytes < first {
            return Err(BadLayout::TooSmall);
        }
        if self.bytes > MAX_PART || self.item_bytes > MAX_PART {
            return Err(BadLayout::TooLarge);
        }
        let fits = |offset: usize, bytes: usize| offset % 8 == 0 && offset < bytes && bytes - offset >= 8;
        let mut slots: Vec<_> = self.slots.iter().copied().chain(self.weak.fixed()).collect();
        let mut item_slots: Vec<_> = self.item_slots.iter().copied().chain(self.weak.items()).collect();
        if let Some(&offset) = slots.iter().find(|&&offset| offset < first || !fits(offset, self.bytes)) {
            return Err(BadLayout::Slot { offset });
        }
        if let Some(&offset) = item_slots.iter().find(|&&offset| !fits(offset, self.item_bytes)) {
            return Err(BadLayout::Slot { offset });
        }
        if !item_slots.is_empty() && (self.bytes % 8 != 0 || self.item_bytes % 8 != 0) {
            return Err(BadLayout::Items);
        }
        for offsets in [&mut slots, &mut item_slots] {
            offsets.sort_unstable();
            if let Some(twice) = offsets.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(BadLayout::Twice { offset: twice[0] });
            }
        }
        Ok(())
    }
}

/// A type as the collector reads it.
#[derive(Debug)]
pub(crate) struct Descriptor {
    pub(crate) bytes: usize,
    /// 0: the type is fixed.
    pub(crate) item_bytes: usize,
    pub(crate) slots: Vec<usize>,
    pub(crate) item_slots: Vec<usize>,
    /// Away from the rest: most types have none.
    pub(crate) weak: Option<Box<WeakPart>>,
    pub(crate) finalized: bool,
    pub(crate) trace: Option<Trace>,
    leaf: bool,
}

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
        // SAFETY: by the contract.
        let length = unsafe { self.length(object) };
        // It was computed without overflow when the object was allocated.
        (self.bytes + length * self.item_bytes).max(MIN_OBJECT).next_multiple_of(OBJECT_ALIGN)
    }

    /// Whether it has no slot at all.
    #[inline(always)]
    pub(crate) fn is_leaf(&self) -> bool {
        self.leaf
    }

    /// Whether large objects of the type have cards.
    pub(crate) fn wants_cards(&self) -> bool {
        let items = !self.item_slots.is_empty() || self.weak.as_ref().is_some_and(|weak| weak.has_items());
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
        // SAFETY: by the contract. Whoever registered the type promised that the function can be called with its objects, and parts of them.
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
        if let Some(weak) = &self.weak {
            // SAFETY: by the contract.
            unsafe { weak.each_in(self, object, (from, to), visit) };
        }
        if self.item_slots.is_empty() {
            return;
        }
        let items = object + self.bytes;
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
        let weak = self.weak.as_deref();
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
        let Layout { bytes, item_bytes, slots, item_slots, weak, finalized, trace } = layout;
        let leaf = slots.is_empty() && item_slots.is_empty() && weak.is_empty() && trace.is_none();
        let weak = (!weak.is_empty()).then(|| Box::new(weak));
        self.types.push(Descriptor { bytes, item_bytes, slots, item_slots, weak, finalized, trace, leaf });
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
        // SAFETY: by the contract there is a header. That it names a type is checked: a header that was overwritten must not become a
        // wild read.
        let id = unsafe { Header::of(object) }.id();
        match self.get(id) {
            Some(descriptor) => descriptor,
            // Not a panic: a collection that is left in the middle leaves nothing to go on with.
            None => crate::complain::abort(format_args!(
                "the object at {object:#x} has the header of no type ({id}): it was overwritten, or is none"
            )),
        }
    }
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
    fn wrong_layouts_are_refused() {
        let mut types = Types::default();
        let mut refused = |layout| types.register(layout).expect_err("wrong");
        assert_eq!(refused(Layout::fixed(7)), BadLayout::TooSmall);
        assert_eq!(refused(Layout::variable(8, 1)), BadLayout::TooSmall);
        assert_eq!(refused(Layout::fixed(MAX_PART + 1)), BadLayout::TooLarge);
        assert_eq!(refused(Layout::fixed(24).slots(&[0])), BadLayout::Slot { offset: 0 });
        assert_eq!(refused(Layout::fixed(24).slots(&[12])), BadLayout::Slot { offset: 12 });
        assert_eq!(refused(Layout::fixed(24).slots(&[8, 24])), BadLayout::Slot { offset: 24 });
        assert_eq!(refused(Layout::fixed(20).slots(&[16])), BadLayout::Slot { offset: 16 });
        assert_eq!(refused(Layout::variable(16, 8).slots(&[8])), BadLayout::Slot { offset: 8 });
        assert_eq!(refused(Layout::variable(16, 8).item_slots(&[8])), BadLayout::Slot { offset: 8 });
        assert_eq!(refused(Layout::variable(20, 8).item_slots(&[0])), BadLayout::Items);
        assert_eq!(refused(Layout::variable(16, 12).item_slots(&[0])), BadLayout::Items);
        assert_eq!(refused(Layout::fixed(16).item_slots(&[0])), BadLayout::Slot { offset: 0 });
        assert!(types.get(0).is_none() && types.get(1).is_none());
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
        assert_eq!(text.bytes_for(usize::MAX - 20), None);
        assert!(text.is_leaf() && !text.wants_cards());
    }

    proptest! {
        #[test]
        fn parts_of_an_object_name_each_slot_once(length in 0usize..20, cuts in prop::collection::vec(0usize..64, 0..5)) {
            let mut types = Types::default();
            let ty = types.register(Layout::variable(32, 24).slots(&[16, 24]).item_slots(&[0, 16])).expect("right");
            let mut object = [0u64; 64];
            object[0] = ty.header().0;
            object[1] = length as u64;
            let address = object.as_ptr() as usize;
            let mut expected = vec![16, 24];
            for item in 0..length {
                expected.extend([32 + 24 * item, 48 + 24 * item]);
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
