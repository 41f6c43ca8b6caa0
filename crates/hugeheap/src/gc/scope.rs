//! The safe interface: handles of local variables, which no one can use too long or forget.
//!
//! ```text
//!   heap.scope(|outer| {            shadow stack   ├ a ┤
//!       let a = outer.allocate(…);
//!       outer.scope(|inner| {                      ├ a ┼ b ┼ c ┤
//!           …                                                     the end of the closure cuts the stack off
//!       });                                        ├ a ┤
//!   });
//! ```
//!
//! A [`Local`] is a place on the shadow stack, so a collection that moves the object changes the place and not
//! the handle. Its lifetime is that of its scope and of no other, so the compiler refuses a handle that leaves
//! it. There is no guard value that could be forgotten: a scope ends with its closure, by a panic too.
//!
//! ```compile_fail,E0521
//! # use hugeheap::gc::{Heap, Layout, Local, Settings, space};
//! # let mut heap = Heap::new(space(), Settings::default()).unwrap();
//! # let number = heap.register(Layout::fixed(16)).unwrap();
//! heap.scope(|outer| {
//!     let mut kept = Vec::new();
//!     kept.push(outer.allocate(number, 0).unwrap());
//!     // Refused: the inner handle would be used after its place is gone.
//!     outer.scope(|inner| kept.push(inner.allocate(number, 0).unwrap()));
//! });
//! ```
//!
//! Nothing here can damage the heap: an offset is checked against the type, new objects are zero, writes go
//! through the barrier.

use super::header::{HEADER_BYTES, LENGTH_OFFSET, OBJECT_ALIGN};
use super::heap::{Exhausted, Heap};
use super::roots::Global;
use super::types::{Descriptor, TypeId};
use super::weak::WeakPart;
use crate::object::Source;
use core::marker::PhantomData;

/// A handle of an object in a scope.
#[derive(Clone, Copy, Debug)]
pub struct Local<'s> {
    index: u32,
    heap: u32,
    /// Exactly this lifetime, neither a longer nor a shorter one.
    scope: PhantomData<fn(&'s ()) -> &'s ()>,
}

impl Local<'_> {
    /// The place on the shadow stack.
    pub(super) fn place(self) -> usize {
        self.index as usize
    }
}

/// A piece of the program with local variables. See the module's text.
#[derive(Debug)]
pub struct Scope<'s, S: Source> {
    pub(super) heap: &'s mut Heap<S>,
    base: usize,
    scope: PhantomData<fn(&'s ()) -> &'s ()>,
}

impl<S: Source> Heap<S> {
    /// Runs a piece of the program. Its handles end with it.
    pub fn scope<R>(&mut self, work: impl FnOnce(&mut Scope<'_, S>) -> R) -> R {
        let base = self.roots.stack.len();
        work(&mut Scope { heap: self, base, scope: PhantomData })
    }
}

impl<S: Source> Drop for Scope<'_, S> {
    fn drop(&mut self) {
        self.heap.roots.stack.truncate(self.base);
    }
}

impl<'s, S: Source> Scope<'s, S> {
    /// Runs a piece of the program with handles of its own, and with those of this scope.
    pub fn scope<R>(&mut self, work: impl FnOnce(&mut Scope<'_, S>) -> R) -> R {
        self.heap.scope(work)
    }

    /// The same for a piece whose result is an object: it gets a handle of this scope.
    ///
    /// # Errors
    /// What the piece answers, and when there is no memory for the handle.
    pub fn scope_for<E: From<Exhausted>>(
        &mut self,
        work: impl for<'i> FnOnce(&mut Scope<'i, S>) -> Result<Local<'i>, E>,
    ) -> Result<Local<'s>, E> {
        let result = self.handle(0)?;
        let object = self.heap.scope(|inner| work(inner).map(|local| inner.object(local)))?;
        // Nothing was allocated since the address was read.
        self.heap.roots.stack[result.index as usize] = object;
        Ok(result)
    }

    /// The heap, for its numbers and settings.
    pub fn heap(&self) -> &Heap<S> {
        self.heap
    }

    pub(super) fn handle(&mut self, object: usize) -> Result<Local<'s>, Exhausted> {
        let index = self.heap.roots.push(object)?;
        Ok(Local { index, heap: self.heap.number, scope: PhantomData })
    }

    /// The address of an object, until the next call that may collect.
    ///
    /// # Panics
    /// When the handle is one of another heap.
    pub fn object(&self, local: Local<'_>) -> usize {
        assert_eq!(local.heap, self.heap.number, "the handle belongs to another heap");
        self.heap.roots.stack[local.index as usize]
    }

    fn descriptor(&self, object: usize) -> &Descriptor {
        // SAFETY: a handle holds a live object of its heap.
        unsafe { self.heap.types.of(object) }
    }

    /// Allocates a zeroed object; `length` is its number of items, 0 where the type is fixed.
    ///
    /// # Errors
    /// When there is no memory, after everything dead was freed.
    ///
    /// # Panics
    /// When the type is one of another heap.
    pub fn allocate(&mut self, ty: TypeId, length: usize) -> Result<Local<'s>, Exhausted> {
        let local = self.handle(0)?;
        let bytes = self.heap.bytes_for(ty, length)?;
        let mut window = self.heap.take_window();
        // SAFETY: the window is this heap's. All references are in handles and globals, and in the slots of
        // objects, all of which are written at once, below.
        let object = unsafe { self.heap.allocate_slow(&mut window, ty, length, &mut []) };
        self.heap.return_window(window);
        let object = object?.as_ptr() as usize;
        let begin = object + self.descriptor(object).data();
        // SAFETY: the new object has `bytes` bytes; what is behind header and length belongs to its fields and items.
        unsafe { (begin as *mut u8).write_bytes(0, object + bytes - begin) };
        self.heap.roots.stack[local.index as usize] = object;
        Ok(local)
    }

    /// The same in the old generation, for an object that is known to live long.
    ///
    /// # Errors
    /// As in [`allocate`](Self::allocate).
    ///
    /// # Panics
    /// As in [`allocate`](Self::allocate).
    pub fn allocate_old(&mut self, ty: TypeId, length: usize) -> Result<Local<'s>, Exhausted> {
        let local = self.handle(0)?;
        let mut window = self.heap.take_window();
        // SAFETY: as in `allocate`; objects of the old generation are zero.
        let object = unsafe { self.heap.allocate_old(&mut window, ty, length, &mut []) };
        self.heap.return_window(window);
        self.heap.roots.stack[local.index as usize] = object?.as_ptr() as usize;
        Ok(local)
    }

    /// A minor collection, and a step of the major one if that is due.
    pub fn collect_minor(&mut self) {
        let mut window = self.heap.take_window();
        // SAFETY: as in `allocate`.
        unsafe { self.heap.collect_minor(&mut window, &mut []) };
    }

    /// A whole collection.
    pub fn collect(&mut self) {
        let mut window = self.heap.take_window();
        // SAFETY: as in `allocate`.
        unsafe { self.heap.collect(&mut window, &mut []) };
    }

    /// Items of an object.
    ///
    /// # Panics
    /// When the handle is one of another heap.
    pub fn length(&self, local: Local<'_>) -> usize {
        let object = self.object(local);
        // SAFETY: as in `descriptor`.
        unsafe { self.descriptor(object).length(object) }
    }

    /// The type of an object.
    ///
    /// # Panics
    /// When the handle is one of another heap.
    pub fn type_of(&self, local: Local<'_>) -> TypeId {
        // SAFETY: as in `descriptor`.
        TypeId(unsafe { super::header::Header::of(self.object(local)) }.id())
    }

    /// Offset of an item in an object.
    ///
    /// # Panics
    /// When the object has no such item, or the handle is one of another heap.
    pub fn item(&self, local: Local<'_>, index: usize) -> usize {
        let length = self.length(local);
        assert!(index < length, "item {index} of an object with {length}");
        let descriptor = self.descriptor(self.object(local));
        descriptor.bytes + index * descriptor.item_bytes
    }

    /// The word at an offset, checked to be the object's and to be (`slot`), or not to be, one that may hold a
    /// reference.
    fn word(&self, local: Local<'_>, offset: usize, slot: bool) -> *mut usize {
        let object = self.object(local);
        let descriptor = self.descriptor(object);
        // SAFETY: as in `descriptor`.
        let (length, size) = unsafe { (descriptor.length(object), descriptor.size(object)) };
        let inside = offset % 8 == 0 && offset >= descriptor.data() && offset < size;
        assert!(inside, "there is no field at offset {offset} of an object of {size} bytes");
        let is_slot = descriptor.is_slot(offset, length);
        assert!(is_slot || !slot, "the word at offset {offset} is no slot");
        assert!(
            slot || !is_slot && descriptor.trace.is_none(),
            "the word at offset {offset} may hold a reference"
        );
        (object + offset) as *mut usize
    }

    /// What a slot refers to. `None`: it holds 0, or a word that is no reference.
    ///
    /// # Errors
    /// When there is no memory for the handle.
    ///
    /// # Panics
    /// When there is no slot at the offset, or the handle is one of another heap.
    pub fn get(&mut self, local: Local<'_>, offset: usize) -> Result<Option<Local<'s>>, Exhausted> {
        // SAFETY: a slot of a live object.
        let word = unsafe { self.heap.weak(self.word(local, offset, true)) };
        if word == 0 || word % OBJECT_ALIGN != 0 { Ok(None) } else { self.handle(word).map(Some) }
    }

    /// Makes a slot refer to an object, or to none.
    ///
    /// # Panics
    /// When there is no slot at the offset, or a handle is one of another heap.
    pub fn set(&mut self, local: Local<'_>, offset: usize, value: Option<Local<'_>>) {
        let value = value.map_or(0, |value| self.object(value));
        let slot = self.word(local, offset, true);
        // SAFETY: a slot of a live object of this heap; the value is one, or 0.
        unsafe { self.heap.write(self.object(local), slot, value) };
    }

    /// A word that holds no reference.
    ///
    /// # Panics
    /// When there is none at the offset, or the handle is one of another heap.
    pub fn read(&self, local: Local<'_>, offset: usize) -> u64 {
        // SAFETY: a word of a live object.
        unsafe { self.word(local, offset, false).read() as u64 }
    }

    /// Writes a word that holds no reference.
    ///
    /// # Panics
    /// As in [`read`](Self::read).
    pub fn write(&mut self, local: Local<'_>, offset: usize, value: u64) {
        // SAFETY: a word of a live object that the collector does not look at.
        unsafe { self.word(local, offset, false).write(value as usize) };
    }

    /// The items of an object without references, as bytes.
    ///
    /// # Panics
    /// When its items may hold references, or the handle is one of another heap.
    pub fn bytes(&mut self, local: Local<'_>) -> &mut [u8] {
        let object = self.object(local);
        let descriptor = self.descriptor(object);
        let weak = descriptor.weak().is_some_and(WeakPart::has_items);
        let plain = descriptor.item_slots.is_empty() && !weak && descriptor.trace.is_none();
        assert!(plain, "the items may hold references");
        // SAFETY: as in `descriptor`; the items are bytes of the object without references, and `&mut self`
        // keeps everyone else away.
        unsafe {
            let bytes = descriptor.length(object) * descriptor.item_bytes;
            core::slice::from_raw_parts_mut((object + descriptor.bytes) as *mut u8, bytes)
        }
    }

    /// Another handle, of this scope, for an object.
    ///
    /// # Errors
    /// When there is no memory for the handle.
    ///
    /// # Panics
    /// When the handle is one of another heap.
    pub fn same_as(&mut self, local: Local<'_>) -> Result<Local<'s>, Exhausted> {
        let object = self.object(local);
        self.handle(object)
    }

    /// Makes a handle that exists refer to what another one refers to: for loops, which would fill the shadow
    /// stack with new ones.
    ///
    /// # Panics
    /// When a handle is one of another heap.
    pub fn assign(&mut self, to: Local<'_>, from: Local<'_>) {
        let object = self.object(from);
        assert_eq!(to.heap, self.heap.number, "the handle belongs to another heap");
        self.heap.roots.stack[to.index as usize] = object;
    }

    /// Whether two handles refer to the same object.
    ///
    /// # Panics
    /// When a handle is one of another heap.
    pub fn same(&self, one: Local<'_>, other: Local<'_>) -> bool {
        self.object(one) == self.object(other)
    }

    /// Keeps an object alive beyond all scopes.
    ///
    /// # Errors
    /// When there is no memory for the handle.
    ///
    /// # Panics
    /// When the handle is one of another heap.
    pub fn global(&mut self, local: Local<'_>) -> Result<Global, Exhausted> {
        let object = self.object(local);
        // SAFETY: a handle holds a live object.
        unsafe { self.heap.global(object) }
    }

    /// Keeps an object alive and where it is.
    ///
    /// # Errors
    /// When there is no memory for the handle.
    ///
    /// # Panics
    /// When the handle is one of another heap.
    pub fn pin(&mut self, local: Local<'_>) -> Result<Global, Exhausted> {
        let object = self.object(local);
        // SAFETY: as above.
        unsafe { self.heap.pin(object) }
    }

    /// A handle in this scope for what a global handle keeps.
    ///
    /// # Errors
    /// When there is no memory for the handle.
    ///
    /// # Panics
    /// When the handle is one of another heap.
    pub fn local(&mut self, global: &Global) -> Result<Local<'s>, Exhausted> {
        let object = self.heap.address(global);
        self.handle(object)
    }

    /// Ends a global handle.
    ///
    /// # Panics
    /// When it is one of another heap.
    pub fn release(&mut self, global: Global) {
        self.heap.release(global);
    }

    /// Checks the whole heap.
    ///
    /// # Errors
    /// The first mistake.
    pub fn verify(&mut self) -> Result<(), super::Mistake> {
        self.heap.verify(&mut [])
    }
}

impl Descriptor {
    /// Offset of the first byte behind header and length.
    fn data(&self) -> usize {
        if self.item_bytes > 0 { LENGTH_OFFSET + 8 } else { HEADER_BYTES }
    }
}
