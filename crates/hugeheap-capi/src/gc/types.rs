//! Types, as C describes and names them.

use super::{Handle, must_be_outside};
use crate::status::Status;
use core::ffi::{c_int, c_void};
use hugeheap::complain;
use hugeheap::gc::{
    BadLayout, Layout, MAX_PART, MIN_OBJECT, OBJECT_ALIGN, PartFunction, TraceFunction, TypeId, Visitor,
};

/// A registered type: what the functions that allocate compare.
#[derive(Clone, Copy)]
pub(super) struct Known {
    id: TypeId,
    bytes: usize,
    item_bytes: usize,
    pub(super) finalizer: Option<Finalizer>,
}

/// `hh_gc_finalizer`.
pub(super) type Finalizer = unsafe extern "C" fn(heap: *mut Handle, object: *mut c_void);

/// `hh_gc_pair`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Pair {
    key: usize,
    value: usize,
}

/// `hh_gc_layout`.
#[repr(C)]
struct Description {
    size: usize,
    bytes: usize,
    item_bytes: usize,
    slots: *const usize,
    slot_count: usize,
    item_slots: *const usize,
    item_slot_count: usize,
    trace: Option<TraceFunction>,
    weak_slots: *const usize,
    weak_slot_count: usize,
    weak_item_slots: *const usize,
    weak_item_slot_count: usize,
    ephemerons: *const Pair,
    ephemeron_count: usize,
    item_ephemerons: *const Pair,
    item_ephemeron_count: usize,
    finalizer: Option<Finalizer>,
    trace_part: Option<PartFunction>,
}

/// Bytes of the struct before `trace_part` was added.
const WITHOUT_PARTS: usize = core::mem::offset_of!(Description, trace_part);

impl Description {
    /// The struct of a program, which may know fewer members.
    ///
    /// # Safety
    /// It has the size that it names itself.
    unsafe fn read(of: *const Self) -> Result<Self, Status> {
        // SAFETY: by the contract; the size is its first member.
        let size = unsafe { of.cast::<usize>().read() };
        if size != size_of::<Self>() && size != WITHOUT_PARTS {
            return Err(Status::BadSize);
        }
        let mut whole = core::mem::MaybeUninit::<Self>::zeroed();
        // SAFETY: as many bytes are there, and not more than the struct has; all its members may be zero.
        unsafe {
            core::ptr::copy_nonoverlapping(of.cast::<u8>(), whole.as_mut_ptr().cast(), size);
            Ok(whole.assume_init())
        }
    }
}

/// The offsets in a part of a type that has `part` bytes.
///
/// More than there are words are no offsets of slots, whatever they are: one is outside, or named twice. A
/// count that is none, of a subtraction below 0 say, was an attempt to copy so much memory, which ended the
/// process.
///
/// # Safety
/// An array of that length, or null.
unsafe fn array<'a, T>(at: *const T, count: usize, part: usize) -> Result<&'a [T], Status> {
    match (at.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Status::BadArgument),
        (false, _) if count > part / size_of::<T>() => Err(Status::LayoutSlot),
        // SAFETY: by the contract.
        (false, _) => Ok(unsafe { core::slice::from_raw_parts(at, count) }),
    }
}

/// # Errors
/// When there is no memory for a copy.
fn pairs(pairs: &[Pair]) -> Result<Vec<(usize, usize)>, Status> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(pairs.len()).map_err(|_| Status::NoMemory)?;
    copy.extend(pairs.iter().map(|pair| (pair.key, pair.value)));
    Ok(copy)
}

impl Description {
    /// # Safety
    /// The arrays have the lengths that are named, and the trace function keeps its contract.
    unsafe fn layout(&self) -> Result<Layout, Status> {
        let (fixed, item) = (self.bytes, self.item_bytes);
        if fixed > MAX_PART || item > MAX_PART {
            return Err(Status::LayoutLarge);
        }
        // SAFETY: by the contract, here and below.
        let (slots, item_slots, weak, weak_items) = unsafe {
            (
                array(self.slots, self.slot_count, fixed)?,
                array(self.item_slots, self.item_slot_count, item)?,
                array(self.weak_slots, self.weak_slot_count, fixed)?,
                array(self.weak_item_slots, self.weak_item_slot_count, item)?,
            )
        };
        // SAFETY: as above.
        let (ephemerons, item_ephemerons) = unsafe {
            (
                array(self.ephemerons, self.ephemeron_count, fixed)?,
                array(self.item_ephemerons, self.item_ephemeron_count, item)?,
            )
        };
        let has_items = !item_slots.is_empty() || !weak_items.is_empty() || !item_ephemerons.is_empty();
        if self.item_bytes == 0 && has_items {
            return Err(Status::LayoutSlot);
        }
        let layout = match self.item_bytes {
            0 => Layout::fixed(self.bytes),
            items => Layout::variable(self.bytes, items),
        };
        let layout = layout.slots(slots).item_slots(item_slots).weak_slots(weak).weak_item_slots(weak_items);
        let layout = layout.ephemerons(&pairs(ephemerons)?).item_ephemerons(&pairs(item_ephemerons)?);
        let layout = if self.finalizer.is_some() { layout.finalized() } else { layout };
        Ok(match (self.trace, self.trace_part) {
            (Some(_), Some(_)) => return Err(Status::LayoutTwice),
            // SAFETY: by the contract.
            (Some(trace), None) => unsafe { layout.traced_by(trace) },
            // SAFETY: as above.
            (None, Some(trace)) => unsafe { layout.traced_in_parts_by(trace) },
            (None, None) => layout,
        })
    }
}

fn status_of(mistake: BadLayout) -> Status {
    match mistake {
        BadLayout::TooSmall => Status::LayoutSmall,
        BadLayout::TooLarge => Status::LayoutLarge,
        BadLayout::Slot { .. } => Status::LayoutSlot,
        BadLayout::Twice { .. } => Status::LayoutTwice,
        BadLayout::Items => Status::LayoutItems,
        BadLayout::TooMany => Status::LayoutMany,
        BadLayout::NoMemory => Status::NoMemory,
    }
}

/// # Safety
/// As the header says.
unsafe fn register(handle: *mut Handle, description: &Description) -> Result<u32, Status> {
    // SAFETY: by the header's contract, here and below.
    unsafe { must_be_outside(handle, "hh_gc_register") };
    // SAFETY: as above.
    let layout = unsafe { description.layout() }?;
    // SAFETY: as above; nothing here collects.
    let (types, heap) = unsafe { (&mut (*handle).types, &mut (*handle).heap) };
    types.try_reserve(1).map_err(|_| Status::NoMemory)?;
    let id = heap.register(layout).map_err(status_of)?;
    // Only this function registers types, so a type's number is its place here, from 1.
    types.push(Known {
        id,
        bytes: description.bytes,
        item_bytes: description.item_bytes,
        finalizer: description.finalizer,
    });
    debug_assert_eq!(id.number() as usize, types.len());
    Ok(id.number())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_register(handle: *mut Handle, layout: *const Description, ty: *mut u32) -> c_int {
    if layout.is_null() || ty.is_null() {
        return Status::BadArgument as c_int;
    }
    // SAFETY: by the header's contract, here and below: a struct of the size that it names itself.
    match unsafe { Description::read(layout).and_then(|layout| register(handle, &layout)) } {
        Ok(number) => {
            // SAFETY: by the header's contract a number may be written there.
            unsafe { ty.write(number) };
            Status::Ok as c_int
        }
        Err(status) => status as c_int,
    }
}

/// What the header hands on for a size that is 0 when it is rounded: of 0 bytes, and of the last 15 numbers.
/// From the window such objects were on top of each other.
const NO_SIZE: usize = usize::MAX;

/// The type that a program names, for an object with `length` items that it takes to have `bytes` bytes,
/// rounded (0: it does not know; [`NO_SIZE`]). A wrong type or size ends the process: the object would overlap
/// others.
///
/// # Safety
/// A live handle.
pub(super) unsafe fn checked(handle: *const Handle, number: u32, length: usize, bytes: usize) -> TypeId {
    // SAFETY: by the contract; nobody writes to the types meanwhile.
    let types = unsafe { &(*handle).types };
    let Some(known) = types.get((number as usize).wrapping_sub(1)) else {
        complain::abort(format_args!("type {number} is not registered with this heap"));
    };
    if bytes != 0 && known.finalizer.is_some() {
        complain::abort(format_args!(
            "type {number} has a finalizer: its objects are made by hh_gc_alloc_finalized"
        ));
    }
    if length != 0 && known.item_bytes == 0 {
        complain::abort(format_args!(
            "an object of type {number} is allocated with a length of {length}, but the type has no items: its length is 0"
        ));
    }
    let has = length.checked_mul(known.item_bytes).and_then(|items| items.checked_add(known.bytes));
    let has = has.and_then(|bytes| bytes.max(MIN_OBJECT).checked_next_multiple_of(OBJECT_ALIGN));
    if bytes != 0 && has != Some(bytes) {
        let has = has.unwrap_or(usize::MAX);
        if bytes == NO_SIZE {
            complain::abort(format_args!(
                "an object of type {number} is allocated with 0 bytes, or more than an address can say, but has {has}: the sizes are those of \
                 the layout"
            ));
        }
        complain::abort(format_args!(
            "an object of type {number} is allocated with {bytes} bytes, but has {has}: the sizes are those of the layout"
        ));
    }
    known.id
}

/// Ends the process for a type without a finalizer. One that is not registered is left to [`checked`].
///
/// # Safety
/// A live handle.
pub(super) unsafe fn must_be_finalized(handle: *const Handle, number: u32) {
    // SAFETY: by the contract; nobody writes to the types meanwhile.
    let types = unsafe { &(*handle).types };
    if types.get((number as usize).wrapping_sub(1)).is_some_and(|known| known.finalizer.is_none()) {
        complain::abort(format_args!(
            "hh_gc_alloc_finalized of type {number}, which has no finalizer: hh_gc_alloc makes its objects, and hh_gc_finalize registers one"
        ));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_visit(visitor: &mut Visitor<'_>, slot: *mut c_void) {
    // SAFETY: by the header's contract it is a slot.
    unsafe { visitor.slot(slot.cast()) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_visit_row(visitor: &mut Visitor<'_>, slots: *mut c_void, count: usize) {
    for index in 0..count {
        // SAFETY: as above; there are `count` slots.
        unsafe { visitor.slot(slots.cast::<usize>().add(index)) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_visit_weak(visitor: &mut Visitor<'_>, slot: *mut c_void) {
    // SAFETY: as above.
    unsafe { visitor.weak_slot(slot.cast()) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_visit_ephemeron(visitor: &mut Visitor<'_>, key: *mut c_void, value: *mut c_void) {
    // SAFETY: as above, for both.
    unsafe { visitor.ephemeron(key.cast(), value.cast()) };
}
