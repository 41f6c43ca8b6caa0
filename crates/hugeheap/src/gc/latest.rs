//! Copies whose slots are still to be looked into: the latest ones by themselves, the others in a list.
//!
//! ```text
//!   list     ├ old place: new address, next ┼─▶┼ … ┤        in the nursery: needs no memory, however long
//!   latest   ├ old place, new one, map ┼ … ┤◀── pushed, popped          [`LATEST`] at most: full, they go to the list
//! ```
//!
//! The last one is taken first, wherever it is: the latest are all younger than what is in the list.
//!
//! Of the latest everything is known that is needed of them, and their slots are read where they were: the list
//! has not written there. From the list it is found again by the new address, its header and its type; and
//! slots are read from a copy that may not have left the store buffer. With the very last copy alone kept out
//! of the list a node of a tree was 123 instructions, and is 107; 12.4 ns in the median of the collections of
//! `binary-trees`, and 10.5.

use super::header::{HEADER_BYTES, Header};
use super::prefetch::prefetch;
use core::mem::MaybeUninit;

/// Copies that are not in the list. A tree has about as many as it has levels, and 64 are 1.5 KiB, which stay
/// in the cache.
const LATEST: usize = 64;

const _: () = assert!(LATEST.is_power_of_two(), "an index needs no comparison");

/// In place of a map, which has no bit for the header: the object is not [mapped](super::map).
pub(super) const NOT_MAPPED: u64 = 1 << 63;

/// A copy whose slots have to be looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copied {
    /// Where it was in the nursery.
    pub(super) object: usize,
    pub(super) target: usize,
    /// Of its slots, or [`NOT_MAPPED`].
    pub(super) map: u64,
}

/// The copies that were made last.
pub(super) struct Latest {
    copies: [MaybeUninit<Copied>; LATEST],
    count: usize,
}

impl Latest {
    pub(super) const NONE: Self = Self { copies: [const { MaybeUninit::uninit() }; LATEST], count: 0 };

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// One more, for which there is room: afterwards there may be none.
    ///
    /// # Safety
    /// There is room: [`is_full`](Self::is_full) says no.
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, copy: Copied) {
        debug_assert!(!self.is_full());
        self.copies[self.count % LATEST].write(copy);
        self.count += 1;
    }

    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.count == LATEST
    }

    /// The last one.
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<Copied> {
        self.count = self.count.checked_sub(1)?;
        // SAFETY: below the count all were written.
        Some(unsafe { self.copies[self.count % LATEST].assume_init() })
    }

    /// Asks the cache for what the first slot of the last one refers to: another one is about to be pushed, so
    /// it waits for all that this one leads to. Where a program makes trees from below, the last child lies
    /// beside its parent, and the first one elsewhere; from above, both lie together.
    ///
    /// # Safety
    /// There is one, a live object that was copied.
    #[inline(always)]
    pub(super) unsafe fn fetch(&self) {
        // SAFETY: by the contract there is one, and slots of an object can be read.
        unsafe {
            let Copied { object, map, .. } = self.copies[self.count.wrapping_sub(1) % LATEST].assume_init();
            let first = (map & !NOT_MAPPED).leading_zeros() as usize % u64::BITS as usize;
            prefetch((object as *const usize).wrapping_add(first).read());
        }
    }

    /// Puts all into the list, so that the last one is its first. Returns that, or the one that was first if
    /// there is none.
    ///
    /// # Safety
    /// They are objects that were copied, which have room for a word behind the header that nobody needs any more.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn leave(&mut self, mut list: usize) -> usize {
        for copy in &self.copies[..self.count] {
            // SAFETY: as in `pop`; by the contract.
            unsafe {
                let object = copy.assume_init().object;
                next_copied(object).write(list);
                list = object;
            }
        }
        self.count = 0;
        list
    }
}

/// The next object of the list.
pub(super) fn next_copied(object: usize) -> *mut usize {
    (object + HEADER_BYTES) as *mut usize
}

/// Where an object of the list is now.
///
/// # Safety
/// What is left of an object that was copied begins there.
#[inline(always)]
pub(super) unsafe fn target_of(object: usize) -> usize {
    // SAFETY: by the contract.
    let Some(target) = (unsafe { Header::of(object) }).target() else {
        unreachable!("in the list are objects that were copied")
    };
    target
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_last_one_comes_first_wherever_it_is(pushes in prop::collection::vec(prop::bool::weighted(0.7), 0..400)) {
            // What is left of an object: its new address, and a word for the list.
            let mut places = vec![[0u64; 2]; pushes.len()];
            let (mut latest, mut list, mut model) = (Latest::NONE, 0, Vec::new());
            let pop = |latest: &mut Latest, list: &mut usize| {
                latest.pop().map(|copy| (copy.object, copy.target)).or_else(|| {
                    let object = *list;
                    // SAFETY: in the list are places of this test.
                    (object != 0).then(|| unsafe {
                        *list = next_copied(object).read();
                        (object, target_of(object))
                    })
                })
            };
            for (number, pushes) in pushes.into_iter().enumerate() {
                if !pushes {
                    prop_assert_eq!(pop(&mut latest, &mut list), model.pop());
                    continue;
                }
                let (object, target) = (places[number..].as_mut_ptr() as usize, 16 * (number + 1));
                // SAFETY: the place is one of this test, as those that were pushed before; there is room.
                unsafe {
                    Header::forwarded(target).put(object);
                    if latest.is_full() {
                        list = latest.leave(list);
                        prop_assert_eq!(latest.count(), 0);
                    }
                    latest.push(Copied { object, target, map: 1 });
                }
                model.push((object, target));
            }
            while let Some(last) = model.pop() {
                prop_assert_eq!(pop(&mut latest, &mut list), Some(last));
            }
            prop_assert_eq!((pop(&mut latest, &mut list), list), (None, 0));
        }
    }
}
