//! The one word before each object.
//!
//! ```text
//!    63             32 31            6 5  4 3 2 1 0
//!   ├──── type id ────┼ identity hash ┼ 0, ──┼─┼─┼─┼─┤
//!                                        NOTED│ │ │ └ FORWARDED  the word is the object's new address, plus 1
//!                                             │ │ └── TRACKED    a write of a reference must be told to the barrier
//!                                             │ └──── CARDS      the barrier keeps cards of this object, not the object
//!                                             └────── STAYS      in the nursery, and not moved by the next minor collection
//! ```
//!
//! NOTED, bit 4: while a marking is under way, an object with weak slots that will be looked through. Only such
//! objects are written by marking, and most of them are to clear the slots anyway.
//!
//! The identity hash is 0 until it is asked for. An object that was just allocated in the nursery has no flag,
//! so its header is a constant of its type. Whether an object is marked is not here but in a bitmap beside its
//! heap page: marking writes to no object, and a forked child goes on sharing them.

/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;

/// Alignment of every object, in bytes: so a word whose low four bits are not zero is no reference. A granule
/// of the object allocator.
pub const OBJECT_ALIGN: usize = 16;

/// Least bytes of an object. The collector needs a word behind the header for the list of copied objects.
pub const MIN_OBJECT: usize = 16;

/// Where an object of variable length has its length: the word behind the header.
pub const LENGTH_OFFSET: usize = 8;

/// Shift of the type id.
pub const TYPE_SHIFT: u32 = 32;

/// Shift of the identity hash.
pub const HASH_SHIFT: u32 = 6;

/// Bits of the identity hash.
pub const HASH_BITS: u32 = TYPE_SHIFT - HASH_SHIFT;

/// Flag: the word is not a header but the object's new address, plus 1.
pub const FORWARDED: u64 = 1;

/// Flag: an object of the old generation that is not in the remembered set. Of the nursery, in a joint marking
/// only: one that was reached.
pub const TRACKED: u64 = 2;

/// Flag: a large object with cards.
pub const CARDS: u64 = 4;

/// Flag: an object in the nursery that a collection leaves where it is.
pub const STAYS: u64 = 8;

/// Flag: an object whose weak slots are looked through when marking is over. Not of an object that was moved,
/// whose new address may have this bit.
pub(super) const NOTED: u64 = 16;

/// The flags with which a write of a reference must be told to the barrier.
pub const BARRIER: u64 = TRACKED | CARDS;

/// All flags of a header.
pub(crate) const FLAGS: u64 = TRACKED | CARDS | STAYS | NOTED;

/// A header, or the address that a moved object left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Header(pub u64);

const _: () = assert!(size_of::<Header>() == HEADER_BYTES && align_of::<Header>() == 8);
const _: () = assert!(LENGTH_OFFSET == HEADER_BYTES && MIN_OBJECT >= LENGTH_OFFSET + 8);
const _: () = assert!(
    OBJECT_ALIGN == 1 << crate::object::class::GRANULE_SHIFT,
    "an object begins where a granule does"
);
const _: () = assert!(
    (FLAGS & !NOTED | FORWARDED) < OBJECT_ALIGN as u64 && FORWARDED == 1 && NOTED >> HASH_SHIFT == 0,
    "told apart from an address by low bits"
);

impl Header {
    /// The header of a new object.
    #[inline(always)]
    pub const fn new(id: u32) -> Self {
        Self((id as u64) << TYPE_SHIFT)
    }

    /// The header of the object at an address.
    ///
    /// # Safety
    /// An object, or what it left behind in the nursery, begins there.
    #[inline(always)]
    pub(crate) unsafe fn of(object: usize) -> Self {
        // SAFETY: by the contract the word is there, and objects are aligned.
        unsafe { (object as *const Self).read() }
    }

    /// Writes the header of the object at an address.
    ///
    /// # Safety
    /// As in [`of`](Self::of), and nobody else uses the word.
    #[inline(always)]
    pub(crate) unsafe fn put(self, object: usize) {
        // SAFETY: as in `of`.
        unsafe { (object as *mut Self).write(self) };
    }

    /// What an object that was moved leaves behind.
    pub(crate) const fn forwarded(to: usize) -> Self {
        Self(to as u64 | FORWARDED)
    }

    /// Where the object was moved to.
    #[inline(always)]
    pub(crate) const fn target(self) -> Option<usize> {
        if self.0 & FORWARDED != 0 { Some((self.0 & !FORWARDED) as usize) } else { None }
    }

    /// The number of its type.
    #[inline(always)]
    pub const fn id(self) -> u32 {
        (self.0 >> TYPE_SHIFT) as u32
    }

    /// Whether one of the flags is set.
    #[inline(always)]
    pub const fn has(self, flags: u64) -> bool {
        self.0 & flags != 0
    }

    /// With flags.
    #[inline(always)]
    pub(crate) const fn with(self, flags: u64) -> Self {
        Self(self.0 | flags)
    }

    /// Without flags.
    #[inline(always)]
    pub(crate) const fn without(self, flags: u64) -> Self {
        Self(self.0 & !flags)
    }

    /// The identity hash; 0: it has none yet.
    pub(crate) const fn hash(self) -> u32 {
        (self.0 >> HASH_SHIFT) as u32 & ((1 << HASH_BITS) - 1)
    }

    /// With an identity hash, which it did not have.
    pub(crate) const fn with_hash(self, hash: u32) -> Self {
        Self(self.0 | (hash as u64) << HASH_SHIFT)
    }

    /// Whether the bits that are always zero are.
    pub(crate) const fn is_clean(self) -> bool {
        self.0 & ((1 << HASH_SHIFT) - 1) & !FLAGS == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_told_from_a_forwarding_address() {
        for id in [1, 77, u32::MAX] {
            let header = Header::new(id);
            assert_eq!((header.id(), header.target()), (id, None));
            let flagged = header.with(TRACKED | STAYS);
            assert!(flagged.has(BARRIER) && flagged.is_clean());
            assert_eq!((flagged.id(), flagged.without(FLAGS)), (id, header));
        }
        assert_eq!(Header::forwarded(0x7000_0010).target(), Some(0x7000_0010));
        assert!(!Header(0x20).is_clean() && Header::new(7).with(NOTED).is_clean());
        let most = (1 << HASH_BITS) - 1;
        let hashed = Header::new(7).with(TRACKED).with_hash(most);
        assert_eq!(
            (hashed.hash(), hashed.id(), hashed.has(CARDS), hashed.is_clean()),
            (most, 7, false, true)
        );
    }
}
