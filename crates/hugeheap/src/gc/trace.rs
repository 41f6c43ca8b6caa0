//! Who names slots, and to whom.
//!
//! | who | names |
//! |---|---|
//! | offsets of a [`Layout`](super::Layout) | the slots of an object, or those in a part of it |
//! | a trace function | those of an object that no offset says |
//! | a trace function for parts | the same, of a part: of an object that is marked in steps, of a card that was written |
//! | a root callback | slots outside of objects |

/// Tells a visitor the slots of the object at an address.
///
/// It must name every slot of the object, the same ones each time as long as nobody writes to the object, and
/// may neither panic nor use the heap. With C's calling convention, so that a function of a C program is one,
/// too.
pub type TraceFunction = unsafe extern "C" fn(object: *mut u8, visitor: &mut Visitor<'_>);

/// What is done with each slot of an object. Called with a slot of a live object, or a root.
pub(crate) trait Visit {
    fn slot(&mut self, slot: *mut usize);

    /// A slot that keeps nothing alive. Who does not tell it from others treats it as one of them.
    fn weak(&mut self, slot: *mut usize) {
        self.slot(slot);
    }

    /// A weak slot, and one whose object lives if that of the first does.
    fn ephemeron(&mut self, key: *mut usize, value: *mut usize) {
        self.slot(key);
        self.slot(value);
    }
}

/// Takes the slots that a [`TraceFunction`] or a root callback names.
pub struct Visitor<'a>(pub(crate) &'a mut dyn Visit);

impl Visitor<'_> {
    /// Names a slot.
    ///
    /// # Safety
    /// The slot may be read and written, and holds what a slot may hold.
    pub unsafe fn slot(&mut self, slot: *mut usize) {
        self.0.slot(slot);
    }

    /// Names a weak slot of an object: it keeps nothing alive, and becomes 0 when what it refers to is dead. A
    /// root is no weak slot.
    ///
    /// # Safety
    /// As in [`slot`](Self::slot).
    pub unsafe fn weak_slot(&mut self, slot: *mut usize) {
        self.0.weak(slot);
    }

    /// Names an ephemeron of an object: the key is a weak slot, and what the value refers to lives if the key does.
    ///
    /// # Safety
    /// As in [`slot`](Self::slot), for both.
    pub unsafe fn ephemeron(&mut self, key: *mut usize, value: *mut usize) {
        self.0.ephemeron(key, value);
    }
}

/// The same for those slots of the object that begin in `from..to`, which lies in the object. An ephemeron is
/// named if one of its slots does. Naming others, too, costs time only.
pub type PartFunction =
    unsafe extern "C" fn(object: *mut u8, from: *mut u8, to: *mut u8, visitor: &mut Visitor<'_>);

/// The trace function of a type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trace {
    /// For whole objects.
    Whole(TraceFunction),
    /// For parts of them.
    Parts(PartFunction),
}
