//! A mutator as a runtime would be: a window, a shadow stack of its own, objects by their addresses.
//!
//! ```text
//!   Machine ── window ──▶ nursery          take: an addition and a comparison
//!      └────── stack  ──▶ a root callback names its slots
//! ```
//!
//! Addresses are valid until the next allocation. What has to survive it is on the stack, or in the frame of
//! the allocation.

use super::waits::{Before, Watch};
use core::ptr::null_mut;
use hugeheap::gc::{Global, Heap, Layout, ProcessHeap, Settings, TypeId, Window, space};

/// Slots of the shadow stack: a tree needs one for each level.
const SLOTS: usize = 1024;

/// As runtimes have it: a cursor that moves through memory, not an index.
struct Stack {
    top: *mut usize,
    end: *mut usize,
    slots: [usize; SLOTS],
}

pub(crate) struct Machine {
    pub(crate) heap: ProcessHeap,
    window: Window,
    stack: *mut Stack,
    /// Who looks at the calls that may collect.
    pub(crate) watch: Option<Box<Watch>>,
}

/// A place of the shadow stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(*mut usize);

impl Place {
    /// What was pushed `number` pushes later.
    #[inline(always)]
    pub(crate) fn after(self, number: usize) -> Self {
        Self(self.0.wrapping_add(number))
    }
}

/// The top of the shadow stack where it is in a register, as compiled code has it: the collector is told it
/// when it may run, and not with every push. For calls that lead to calls, each with a top above the one
/// before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Top(*mut usize);

impl Top {
    /// The top with one more reference below it.
    ///
    /// # Safety
    /// There is room: see [`Machine::top`].
    #[inline(always)]
    pub(crate) unsafe fn push(self, object: usize) -> Self {
        // SAFETY: by the contract.
        unsafe {
            self.0.write(object);
            Self(self.0.add(1))
        }
    }

    /// What was pushed last.
    ///
    /// # Safety
    /// There is something.
    #[inline(always)]
    pub(crate) unsafe fn last(self) -> usize {
        // SAFETY: by the contract.
        unsafe { self.0.sub(1).read() }
    }
}

/// Where the next object goes, where that is in a register: it moves with every object, and through memory each
/// would wait until the one before it had been written there. For what allocates between [`Machine::cursor`]
/// and [`Machine::put_back`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor(usize);

/// A type with its size in the nursery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    ty: TypeId,
    bytes: usize,
}

/// A type of objects whose size the compiler knows, as it does in other languages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<const BYTES: usize>(TypeId);

impl<const BYTES: usize> Known<BYTES> {
    #[inline(always)]
    pub(crate) const fn kind(self) -> Kind {
        Kind { ty: self.0, bytes: BYTES.next_multiple_of(16) }
    }
}

impl Machine {
    /// # Errors
    /// One line when there is no memory.
    pub(crate) fn new(settings: Settings) -> Result<Self, String> {
        let mut heap = Heap::new(space(), settings).map_err(|error| error.to_string())?;
        let stack = Box::into_raw(Box::new(Stack { top: null_mut(), end: null_mut(), slots: [0; SLOTS] }));
        // SAFETY: the stack lives as long as the process (it is never freed) and holds references of this heap
        // up to its top.
        unsafe {
            let slots = (&raw mut (*stack).slots).cast::<usize>();
            ((*stack).top, (*stack).end) = (slots, slots.add(SLOTS));
            heap.add_roots(Box::new(move |visitor| {
                let mut slot = slots;
                while slot < (*stack).top {
                    visitor.slot(slot);
                    slot = slot.add(1);
                }
            }))
            .map_err(|error| error.to_string())?;
        }
        let window = heap.take_window();
        Ok(Self { heap, window, stack, watch: None })
    }

    /// Registers a type of a fixed size.
    pub(crate) fn fixed(&mut self, bytes: usize, slots: &[usize]) -> Result<Kind, String> {
        let ty = self.heap.register(Layout::fixed(bytes).slots(slots)).map_err(|error| error.to_string())?;
        Ok(Kind { ty, bytes: bytes.next_multiple_of(16) })
    }

    /// The same, of a size that the compiler knows.
    pub(crate) fn known<const BYTES: usize>(&mut self, slots: &[usize]) -> Result<Known<BYTES>, String> {
        Ok(Known(self.fixed(BYTES, slots)?.ty))
    }

    /// Registers arrays of words: of references, or of numbers.
    pub(crate) fn array(&mut self, references: bool) -> Result<TypeId, String> {
        let layout = Layout::variable(16, 8);
        let layout = if references { layout.item_slots(&[0]) } else { layout };
        self.heap.register(layout).map_err(|error| error.to_string())
    }

    /// A young object whose contents are undefined but for its header. `frame`: addresses that are needed afterwards.
    ///
    /// # Safety
    /// Slots of all objects allocated before are written, and those of the new one are before the next allocation.
    #[inline(always)]
    pub(crate) unsafe fn allocate<const N: usize>(&mut self, kind: Kind, frame: &mut [usize; N]) -> usize {
        match self.window.take(kind.bytes) {
            Some(object) => {
                // SAFETY: room for the object was just taken.
                unsafe { object.cast().write(kind.ty.header()) };
                object.as_ptr() as usize
            }
            // SAFETY: by the contract.
            None => unsafe { self.slow(kind.ty, 0, frame) },
        }
    }

    /// The same where the top of the stack and the cursor are in registers. Returns `needed`, what is needed
    /// afterwards and not on the stack: as an argument and a result it stays in registers, too, unless there is
    /// a collection.
    ///
    /// # Safety
    /// As [`allocate`](Self::allocate); above the top nothing is needed, and the cursor is the one that was
    /// returned last.
    #[inline(always)]
    pub(crate) unsafe fn allocate_at<const BYTES: usize, const N: usize>(
        &mut self,
        known: Known<BYTES>,
        top: Top,
        cursor: &mut Cursor,
        needed: [usize; N],
    ) -> (usize, [usize; N]) {
        let kind = known.kind();
        // SAFETY: by the contract.
        let mut window = unsafe { self.window_at(*cursor) };
        match window.take(kind.bytes) {
            Some(object) => {
                *cursor = Cursor(window.parts().0);
                // SAFETY: room for the object was just taken.
                unsafe { object.cast().write(kind.ty.header()) };
                (object.as_ptr() as usize, needed)
            }
            None => {
                // SAFETY: by the contract.
                let (object, needed) = unsafe { self.slow_at(kind.ty, top, *cursor, needed) };
                *cursor = self.cursor();
                (object, needed)
            }
        }
    }

    /// # Safety
    /// The cursor is the one that was returned last.
    #[inline(always)]
    unsafe fn window_at(&self, cursor: Cursor) -> Window {
        // SAFETY: by the contract; whatever replaces the window tells the cursor.
        unsafe { Window::from_parts(cursor.0, self.window.parts().1) }
    }

    /// The cursor, for a register.
    #[inline(always)]
    pub(crate) fn cursor(&self) -> Cursor {
        Cursor(self.window.parts().0)
    }

    /// The cursor comes back from the register.
    ///
    /// # Safety
    /// It is the one that was returned last.
    pub(crate) unsafe fn put_back(&mut self, cursor: Cursor) {
        // SAFETY: by the contract.
        self.window = unsafe { self.window_at(cursor) };
    }

    /// # Safety
    /// As [`allocate_at`](Self::allocate_at).
    #[inline(never)]
    #[cold]
    unsafe fn slow_at<const N: usize>(
        &mut self,
        ty: TypeId,
        top: Top,
        cursor: Cursor,
        mut needed: [usize; N],
    ) -> (usize, [usize; N]) {
        // SAFETY: the stack is never freed, and nobody else uses it meanwhile. By the contract everything up to
        // the top is needed.
        unsafe {
            self.put_back(cursor);
            let before = core::mem::replace(&mut (*self.stack).top, top.0);
            let object = self.slow(ty, 0, &mut needed);
            (*self.stack).top = before;
            (object, needed)
        }
    }

    /// # Safety
    /// As [`allocate`](Self::allocate).
    #[inline(never)]
    #[cold]
    unsafe fn slow(&mut self, ty: TypeId, length: usize, frame: &mut [usize]) -> usize {
        // Of sixteen thousand calls for trees six hundred collect: a look at two clocks before each was a
        // thirtieth of the time.
        let may = self.heap.may_collect(ty, length);
        let before = if may { self.before() } else { None };
        // SAFETY: by the contract; the window is this heap's.
        let object = unsafe { self.heap.allocate_slow(&mut self.window, ty, length, frame) };
        self.after(before);
        // The worker ends here, and its parent reports it.
        object.expect("memory for the workload").as_ptr() as usize
    }

    /// A zeroed array in the old generation.
    ///
    /// # Safety
    /// As [`allocate`](Self::allocate).
    pub(crate) unsafe fn allocate_array(&mut self, ty: TypeId, length: usize) -> usize {
        let before = self.before();
        // SAFETY: by the contract; the window is this heap's.
        let object = unsafe { self.heap.allocate_old(&mut self.window, ty, length, &mut []) };
        self.after(before);
        object.expect("memory for the workload").as_ptr() as usize
    }

    /// Pushes a reference; its place.
    #[inline(always)]
    pub(crate) fn push(&mut self, object: usize) -> Place {
        // SAFETY: the stack is never freed, and nobody else uses it meanwhile; below its end there is a slot.
        unsafe {
            let stack = &mut *self.stack;
            let place = stack.top;
            assert!(place < stack.end, "the shadow stack has {SLOTS} slots");
            place.write(object);
            stack.top = place.add(1);
            Place(place)
        }
    }

    #[inline(always)]
    pub(crate) fn pop(&mut self) -> usize {
        // SAFETY: as in `push`; what is popped was pushed, so there is a slot below the top.
        unsafe {
            let stack = &mut *self.stack;
            stack.top = stack.top.sub(1);
            stack.top.read()
        }
    }

    /// The top, with room for `slots` references above it.
    pub(crate) fn top(&self, slots: usize) -> Top {
        // SAFETY: as in `push`.
        let (top, end) = unsafe { ((*self.stack).top, (*self.stack).end) };
        assert!(slots <= (end as usize - top as usize) / 8, "the shadow stack has {SLOTS} slots");
        Top(top)
    }

    /// What is at a place of the stack now.
    #[inline(always)]
    pub(crate) fn at(&self, place: Place) -> usize {
        // SAFETY: as in `push`: places are slots of the stack.
        unsafe { place.0.read() }
    }

    /// Puts another reference at a place of the stack.
    #[inline(always)]
    pub(crate) fn replace(&mut self, place: Place, object: usize) {
        // SAFETY: as in `at`.
        unsafe { place.0.write(object) };
    }

    /// Writes a reference into a slot of an object, with the barrier.
    ///
    /// # Safety
    /// A live object with a slot at the offset, and a live one or 0.
    #[inline(always)]
    pub(crate) unsafe fn set(&mut self, object: usize, offset: usize, value: usize) {
        // SAFETY: by the contract.
        unsafe { self.heap.write(object, (object + offset) as *mut usize, value) };
    }

    /// Keeps an object where it is.
    ///
    /// # Safety
    /// A live object.
    pub(crate) unsafe fn pin(&mut self, object: usize) -> Global {
        // SAFETY: by the contract.
        unsafe { self.heap.pin(object) }.expect("memory for a pin")
    }

    /// A whole collection.
    pub(crate) fn collect(&mut self) {
        let before = self.before();
        // SAFETY: everything that is needed is on the stack, and all slots of all objects are written between
        // allocations.
        unsafe { self.heap.collect(&mut self.window, &mut []) };
        self.after(before);
    }

    /// Bytes of all objects so far. Collects the nursery, so that what is young is counted; nobody waits for that.
    pub(crate) fn allocated(&mut self) -> u64 {
        // SAFETY: as in `collect`.
        unsafe { self.heap.collect_minor(&mut self.window, &mut []) };
        let statistics = self.heap.statistics();
        statistics.nursery_bytes + statistics.old_bytes
    }

    fn before(&self) -> Option<Before> {
        self.watch.as_ref().map(|watch| watch.before(&self.heap))
    }

    fn after(&mut self, before: Option<Before>) {
        if let (Some(watch), Some(before)) = (&mut self.watch, before) {
            watch.after(&self.heap, &before);
        }
    }

    /// Prepares for a fork.
    pub(crate) fn prepare_fork(&mut self) {
        // SAFETY: as in `collect`.
        unsafe { self.heap.prepare_fork(&mut self.window, &mut []) };
    }
}

/// A word of an object.
///
/// # Safety
/// A live object with that many bytes.
#[inline(always)]
pub(crate) unsafe fn word(object: usize, offset: usize) -> usize {
    // SAFETY: by the contract.
    unsafe { ((object + offset) as *const usize).read() }
}

/// Writes a word that is no slot, or a slot of an object that was just allocated and is in the nursery.
///
/// # Safety
/// As [`word`].
#[inline(always)]
pub(crate) unsafe fn put(object: usize, offset: usize, value: usize) {
    // SAFETY: by the contract.
    unsafe { ((object + offset) as *mut usize).write(value) };
}
