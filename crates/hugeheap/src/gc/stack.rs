//! The stack of marking while a step works on it.
//!
//! ```text
//!   Vec   ├ base ──── marked, to be looked into ──── top ┼──── room ──── end ┤
//! ```
//!
//! For each marked object an address is pushed and one popped. Through the `Vec` each of these waited for the length that the one before had just
//! written to memory, and looked at two limits. Here the top is in a register, and there is one limit: the room there is, or the entries that are
//! allowed. What is rare gets and returns the registers by value, because a variable whose address is taken is kept in memory.

use super::barrier::push;

/// The top of a stack, and the end of its room.
#[derive(Clone, Copy)]
pub(super) struct Top {
    base: *mut usize,
    top: *mut usize,
    end: *mut usize,
}

impl Top {
    /// Of a stack that nobody uses otherwise until [`leave`](Self::leave). `most`: entries that it may have.
    pub(super) fn of(stack: &mut Vec<usize>, most: usize) -> Self {
        let (base, len) = (stack.as_mut_ptr(), stack.len());
        let room = stack.capacity().min(most).max(len);
        // SAFETY: both are within the room of the stack.
        unsafe { Self { base, top: base.add(len), end: base.add(room) } }
    }

    /// The stack has what was pushed.
    ///
    /// # Safety
    /// It is the one that this is the top of.
    pub(super) unsafe fn leave(self, stack: &mut Vec<usize>) {
        // SAFETY: below the top everything was written.
        unsafe { stack.set_len(self.top.offset_from(self.base) as usize) };
    }

    #[inline(always)]
    pub(super) fn is_empty(self) -> bool {
        self.top == self.base
    }

    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: between base and top there is an entry.
        unsafe {
            self.top = self.top.sub(1);
            Some(self.top.read())
        }
    }

    /// Says no when there is no room, in the stack or in memory.
    ///
    /// # Safety
    /// As in [`leave`](Self::leave), with the same number of entries as in [`of`](Self::of).
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, stack: &mut Vec<usize>, most: usize, object: usize) -> bool {
        if self.top == self.end {
            // SAFETY: by the contract.
            let (grown, fits) = unsafe { self.grow(stack, most, object) };
            *self = grown;
            return fits;
        }
        // SAFETY: below the end there is room.
        unsafe {
            self.top.write(object);
            self.top = self.top.add(1);
        }
        true
    }

    /// # Safety
    /// As in [`push`](Self::push).
    #[cold]
    #[inline(never)]
    unsafe fn grow(self, stack: &mut Vec<usize>, most: usize, object: usize) -> (Self, bool) {
        // SAFETY: by the contract.
        unsafe { self.leave(stack) };
        let fits = push(stack, object, most);
        (Self::of(stack, most), fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_holds_what_a_stack_would(most in 0usize..40, pushes in prop::collection::vec(any::<bool>(), 0..200)) {
            let (mut stack, mut model) = (Vec::new(), Vec::new());
            let mut top = Top::of(&mut stack, most);
            for (number, &pushes) in pushes.iter().enumerate() {
                if pushes {
                    // SAFETY: the stack is the one it was made of.
                    let fits = unsafe { top.push(&mut stack, most, number) };
                    prop_assert_eq!(fits, model.len() < most);
                    model.extend(fits.then_some(number));
                } else {
                    prop_assert_eq!(top.is_empty(), model.is_empty());
                    prop_assert_eq!(top.pop(), model.pop());
                }
            }
            // SAFETY: as above.
            unsafe { top.leave(&mut stack) };
            prop_assert_eq!(stack, model);
        }
    }
}
