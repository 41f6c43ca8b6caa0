//! Allocation beyond the window: in the nursery's next gap, in the old generation, after collections.
//!
//! ```text
//!   window has no room ─▶ next gap ─▶ a minor collection, a step ─▶ old generation
//!   above MAX_YOUNG, or asked for ─▶ old generation ─▶ a whole collection ─▶ refused
//! ```

use super::header::{CARDS, Header, LENGTH_OFFSET, TRACKED};
use super::heap::{Exhausted, Heap, MAX_YOUNG};
use super::types::TypeId;
use super::window::Window;
use crate::object::Source;
use core::ptr::NonNull;

impl<S: Source> Heap<S> {
    /// Bytes of an object of a type with `length` items (0 for a fixed one).
    pub(super) fn bytes_for(&self, ty: TypeId, length: usize) -> Result<usize, Exhausted> {
        let Some(descriptor) = self.types.get(ty.0) else { panic!("type {} is of another heap", ty.0) };
        descriptor.bytes_for(length).ok_or(Exhausted { bytes: usize::MAX })
    }

    /// Allocates where [`Window::take`] found no room, and refills the window. Header and length are written,
    /// the rest is undefined unless the object is larger than [`MAX_YOUNG`] bytes: such an object is zero and
    /// in the old generation, so that writes of references into it need the barrier.
    ///
    /// # Errors
    /// When there is no memory, after everything dead was freed.
    ///
    /// # Panics
    /// When the type is one of another heap.
    ///
    /// # Safety
    /// The window is the one that was taken from this heap. Everything that is to survive is reachable from a
    /// root or from `frame`, which holds what slots may hold; addresses of objects that are held elsewhere are
    /// wrong after the call. All slots of all objects allocated before are written.
    #[inline(always)]
    pub unsafe fn allocate_slow(
        &mut self,
        window: &mut Window,
        ty: TypeId,
        length: usize,
        frame: &mut [usize],
    ) -> Result<NonNull<u8>, Exhausted> {
        // A copy: a window whose address goes to a function that is not inlined is kept in memory by the
        // compiler, on the fast path too.
        let mut copy = *window;
        // SAFETY: by the contract.
        let result = unsafe { self.refill(&mut copy, ty, length, frame) };
        *window = copy;
        result
    }

    /// Whether [`allocate_slow`](Self::allocate_slow) of such an object may collect. No means that it hands out
    /// the next piece of the nursery, as it does for most calls.
    ///
    /// For whoever has something to do before a pause: where a program looked at clocks around each call, for a
    /// microsecond, that was a thirtieth of the time in which it built trees.
    ///
    /// # Panics
    /// When the type is one of another heap.
    pub fn may_collect(&self, ty: TypeId, length: usize) -> bool {
        self.bytes_for(ty, length).map_or(true, |bytes| bytes > MAX_YOUNG)
            || self.crowded
            || self.checks.stress.is_some()
            || self.pacing.is_scattered(self.remembered.places())
            || !self.nursery.has_piece()
    }

    /// # Safety
    /// As in [`allocate_slow`](Self::allocate_slow).
    #[inline(never)]
    #[cold]
    unsafe fn refill(
        &mut self,
        window: &mut Window,
        ty: TypeId,
        length: usize,
        frame: &mut [usize],
    ) -> Result<NonNull<u8>, Exhausted> {
        let bytes = self.bytes_for(ty, length)?;
        if self.checks.stress.is_some() {
            self.count_allocation(window, frame);
        }
        if bytes > MAX_YOUNG {
            self.before_old(window, frame, bytes);
            return self.place_old(window, ty, length, bytes, frame);
        }
        let collected = self.crowded && self.before_old(window, frame, bytes);
        // As if it were known to live long: it is remembered, so that what is written into it needs no barrier
        // until the next collection.
        let room = if self.crowded { None } else { self.room(window, bytes, frame, collected) };
        let Some(object) = room else { return self.place_old(window, ty, length, bytes, frame) };
        self.initialise(object, ty, length, ty.header())?;
        Ok(object)
    }

    /// Room in the nursery: what the window has, the next gap, or a collection, unless that has just been.
    /// `None`: what stays leaves none.
    fn room(
        &mut self,
        window: &mut Window,
        bytes: usize,
        frame: &mut [usize],
        collected: bool,
    ) -> Option<NonNull<u8>> {
        for attempt in u32::from(collected)..=1 {
            let mut own = Window::EMPTY;
            // Where every allocation is counted, the caller's window stays empty, so that each comes here.
            let stressed = self.checks.stress.is_some();
            if stressed {
                self.return_window(core::mem::replace(window, Window::EMPTY));
                own = self.take_window();
            }
            let from = if stressed { &mut own } else { &mut *window };
            let mut taken = from.take(bytes);
            let due = attempt == 0 && self.pacing.is_scattered(self.remembered.places());
            if taken.is_none() && !due && self.nursery.refill(&self.types, from, bytes) {
                taken = from.take(bytes);
            }
            if stressed {
                self.window = own;
            }
            if taken.is_some() {
                return taken;
            }
            if attempt == 0 {
                // A whole one where something found no room.
                self.collect_some(window, frame);
            }
        }
        self.crowded = true;
        None
    }

    fn initialise(
        &mut self,
        object: NonNull<u8>,
        ty: TypeId,
        length: usize,
        header: Header,
    ) -> Result<(), Exhausted> {
        let address = object.as_ptr() as usize;
        let (variable, finalized) =
            self.types.get(ty.0).map_or((false, false), |ty| (ty.item_bytes > 0, ty.finalized));
        // SAFETY: the object was just allocated, with room for the header and, where the type has one, the length.
        unsafe {
            header.put(address);
            if variable {
                ((address + LENGTH_OFFSET) as *mut usize).write(length);
            }
            if finalized { self.finalize(address) } else { Ok(()) }
        }
    }

    /// Allocates in the old generation, for an object that is known to live long. Everything behind header and
    /// length is zero. Until the next collection writes of references into it need no barrier, unless it is
    /// larger than [`MAX_YOUNG`] bytes.
    ///
    /// # Errors
    /// As in [`allocate_slow`](Self::allocate_slow).
    ///
    /// # Panics
    /// When the type is one of another heap.
    ///
    /// # Safety
    /// As in [`allocate_slow`](Self::allocate_slow).
    pub unsafe fn allocate_old(
        &mut self,
        window: &mut Window,
        ty: TypeId,
        length: usize,
        frame: &mut [usize],
    ) -> Result<NonNull<u8>, Exhausted> {
        let bytes = self.bytes_for(ty, length)?;
        if self.checks.stress.is_some() {
            self.count_allocation(window, frame);
        }
        self.before_old(window, frame, bytes);
        self.place_old(window, ty, length, bytes, frame)
    }

    /// Objects that begin in the old generation make collections due, too: a nursery of them is as much as a
    /// nursery. Says whether there was one.
    fn before_old(&mut self, window: &mut Window, frame: &mut [usize], bytes: usize) -> bool {
        let scattered = self.pacing.is_scattered(self.remembered.places());
        let due = scattered || self.added.saturating_add(bytes) > self.nursery.part && self.added > 0;
        if due {
            self.collect_some(window, frame);
        }
        due
    }

    fn place_old(
        &mut self,
        window: &mut Window,
        ty: TypeId,
        length: usize,
        bytes: usize,
        frame: &mut [usize],
    ) -> Result<NonNull<u8>, Exhausted> {
        let mut placed = self.place(ty, bytes);
        if placed.is_none() {
            self.collect_all(window, frame);
            placed = self.place(ty, bytes);
        }
        let (address, header) = placed.ok_or(Exhausted { bytes })?;
        let object = NonNull::new(address as *mut u8).ok_or(Exhausted { bytes })?;
        self.initialise(object, ty, length, header)?;
        if !header.has(TRACKED | CARDS) {
            self.remembered.add_object(address);
        }
        self.added += bytes;
        self.statistics.old_bytes += bytes as u64;
        Ok(object)
    }

    /// A zeroed place in the old generation, and the header for it.
    fn place(&mut self, ty: TypeId, bytes: usize) -> Option<(usize, Header)> {
        let descriptor = self.types.get(ty.0)?;
        let large = bytes > MAX_YOUNG;
        let flags = match (descriptor.is_leaf(), large && descriptor.wants_cards()) {
            (true, _) => TRACKED,
            (false, true) => CARDS,
            // Remembered from the start: what is written into it need not be told.
            (false, false) => 0,
        };
        let (object, zeroed) = if large {
            self.old.allocate_large(bytes, flags == CARDS)?
        } else {
            (self.old.allocate(bytes)?, false)
        };
        if !zeroed {
            // SAFETY: just allocated with at least that many bytes.
            unsafe { (object as *mut u8).write_bytes(0, bytes) };
        }
        Some((object, ty.header().with(flags)))
    }
}
