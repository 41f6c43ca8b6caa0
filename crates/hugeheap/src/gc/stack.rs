//! The stack of marking while a step works on it.
//!
//! ```text
//!   Vec   ├ base ──── marked, to be looked into ──── top ┼──── room ──── end ┤
//! ```
//!
//! For each marked object an address is pushed and one popped. Through the `Vec` each of these waited for the
//! length that the one before had just written to memory, and looked at two limits. Here the top is in a
//! register, and nothing grows: who pushes has asked before whether there is room for all that an object refers
//! to. As long as a push could call what made room, the compiler kept the top in memory for it.

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

    /// Whether there is room for so many more, in the memory there is and within what is allowed.
    #[inline(always)]
    pub(super) fn has_room(self, entries: usize) -> bool {
        self.end as usize - self.top as usize >= entries * size_of::<usize>()
    }

    /// # Safety
    /// There is room.
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, object: usize) {
        debug_assert!(self.has_room(1));
        // SAFETY: by the contract.
        unsafe {
            self.top.write(object);
            self.top = self.top.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_holds_what_a_stack_would(most in 0usize..40, room in 0usize..40, pushes in prop::collection::vec(any::<bool>(), 0..200)) {
            let (mut stack, mut model) = (Vec::with_capacity(room), Vec::new());
            let least = room.min(most);
            let mut top = Top::of(&mut stack, most);
            for (number, &pushes) in pushes.iter().enumerate() {
                for more in 0..3 {
                    // A `Vec` may have more room than was asked for.
                    let fits = top.has_room(more);
                    prop_assert!(fits || model.len() + more > least);
                    prop_assert!(!fits || model.len() + more <= most);
                }
                if pushes && top.has_room(1) {
                    // SAFETY: there is room.
                    unsafe { top.push(number) };
                    model.push(number);
                } else {
                    prop_assert_eq!(top.is_empty(), model.is_empty());
                    prop_assert_eq!(top.pop(), model.pop());
                }
            }
            // SAFETY: the stack is the one it was made of.
            unsafe { top.leave(&mut stack) };
            prop_assert_eq!(stack, model);
        }
    }
}
