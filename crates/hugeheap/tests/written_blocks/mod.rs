//! Blocks that are written throughout, each with contents of its own: what is lost, or had by two, is seen.

use hugeheap::object::{Heap, Source};
use std::ptr::NonNull;

/// Random numbers, the same each time.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Such a block; an address and no pointer, for who hands it to another thread.
pub(crate) struct Block {
    address: usize,
    pub(crate) bytes: usize,
    value: u64,
}

impl Block {
    /// One of 16 bytes to `most` and a little more: small ones are many, large ones have whole OS pages between them.
    pub(crate) fn take<S: Source>(heap: &mut Heap<S>, random: &mut Random, most: u64) -> Self {
        let magnitude = random.below(most.ilog2().into());
        let bytes = 16 + random.below(1 << magnitude) as usize;
        let address = heap.allocate(bytes).expect("memory");
        let block = Self { address: address.as_ptr() as usize, bytes, value: random.below(1 << 31) };
        for place in 0..bytes / 8 {
            // SAFETY: inside of the block, which is 16-aligned and this thread's.
            unsafe { address.cast::<u64>().add(place).write(block.value ^ place as u64) };
        }
        block
    }

    pub(crate) fn check(&self) {
        let words = self.address as *const u64;
        for place in 0..self.bytes / 8 {
            // SAFETY: as in `take`.
            let found = unsafe { words.add(place).read() };
            let expected = self.value ^ place as u64;
            assert_eq!(found, expected, "{:#x}, place {place} of {} bytes", self.address, self.bytes);
        }
    }

    pub(crate) fn give<S: Source>(self, heap: &mut Heap<S>) {
        self.check();
        // SAFETY: nobody else knows it.
        unsafe { heap.free(NonNull::new(self.address as *mut u8).expect("not null")) };
    }
}
