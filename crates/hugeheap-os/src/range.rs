//! A range of addresses: where it starts and how many bytes it has.

use core::fmt;

/// `len` bytes of address space starting at `start`. Says nothing about what is mapped there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressRange {
    /// The first address.
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
}

impl AddressRange {
    /// The range of `len` bytes at `start`.
    pub const fn new(start: usize, len: usize) -> Self {
        Self { start, len }
    }

    /// The first address after the range.
    pub const fn end(self) -> usize {
        self.start + self.len
    }

    /// Whether `address` lies in the range. One subtraction and one comparison.
    pub const fn contains(self, address: usize) -> bool {
        address.wrapping_sub(self.start) < self.len
    }

    /// Whether the whole of `other` lies in the range.
    pub const fn encloses(self, other: Self) -> bool {
        other.start >= self.start && other.end() <= self.end()
    }

    /// Whether start and length are multiples of `unit`, a power of two.
    pub const fn is_aligned_to(self, unit: usize) -> bool {
        (self.start | self.len) & (unit - 1) == 0
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}-{:#x}", self.start, self.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contains_excludes_both_sides() {
        let range = AddressRange::new(0x1000, 0x1000);
        assert!(!range.contains(0xfff));
        assert!(range.contains(0x1000));
        assert!(range.contains(0x1fff));
        assert!(!range.contains(0x2000));
        assert!(!AddressRange::new(0x1000, 0).contains(0x1000));
    }

    #[test]
    fn encloses_is_about_the_whole_range() {
        let range = AddressRange::new(0x1000, 0x2000);
        assert!(range.encloses(range));
        assert!(range.encloses(AddressRange::new(0x2000, 0x1000)));
        assert!(!range.encloses(AddressRange::new(0x2000, 0x1001)));
    }
}
