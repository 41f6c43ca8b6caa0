//! Identity hashes: a number that an object keeps while it moves.
//!
//! It is made when it is asked for the first time, and lies in bits of the header that nobody else needs; so it
//! moves with the object, costs no memory, and an object that nobody asks has none. An address cannot be it,
//! because addresses change.

use super::header::{HASH_BITS, Header};
use super::heap::Heap;
use super::scope::{Local, Scope};
use crate::object::Source;

impl<S: Source> Heap<S> {
    /// The identity hash of an object: not 0, below 2²⁶, the same for the whole life of the object. Different
    /// objects may have the same.
    ///
    /// # Safety
    /// A live object of this heap begins there.
    pub unsafe fn identity_hash(&mut self, object: usize) -> u32 {
        // SAFETY: by the contract.
        let header = unsafe { Header::of(object) };
        match header.hash() {
            0 => {
                let hash = self.next_hash();
                // SAFETY: by the contract.
                unsafe { header.with_hash(hash).put(object) };
                hash
            }
            hash => hash,
        }
    }

    fn next_hash(&mut self) -> u32 {
        // Steps of an odd number pass through all values before one comes again; multiplied by one they are
        // spread over all bits.
        self.hashes = self.hashes.wrapping_add(1);
        let mixed = self.hashes.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS);
        // 0 says that there is none.
        if mixed == 0 { self.next_hash() } else { mixed }
    }
}

impl<S: Source> Scope<'_, S> {
    /// The identity hash of an object.
    ///
    /// # Panics
    /// When the handle is one of another heap.
    pub fn identity_hash(&mut self, local: Local<'_>) -> u32 {
        let object = self.object(local);
        // SAFETY: a handle holds a live object.
        unsafe { self.heap.identity_hash(object) }
    }
}
