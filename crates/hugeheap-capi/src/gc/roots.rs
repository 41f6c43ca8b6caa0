//! Roots: frames of the shadow stack, callbacks, and handles, which are the numbers of the library's own.

use super::boxed::boxed;
use super::{Handle, must_be_outside};
use crate::refuse;
use crate::status::Status;
use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicUsize;
use hugeheap::complain;
use hugeheap::gc::{Scan, Visitor};

/// `hh_gc_frame`.
#[repr(C)]
pub(super) struct Frame {
    previous: *mut Frame,
    slots: *mut usize,
    count: usize,
    heap: *mut Handle,
}

/// `hh_gc_roots`.
type RootFunction = unsafe extern "C" fn(data: *mut c_void, visitor: &mut Visitor<'_>);

/// A root callback of the program.
#[derive(Clone, Copy)]
pub(super) struct Callback {
    function: RootFunction,
    data: *mut c_void,
}

/// Names all slots of frames and callbacks.
///
/// # Safety
/// A live handle; the program keeps the rules of the header.
pub(super) unsafe fn each(handle: *const Handle, visitor: &mut Visitor<'_>) {
    // SAFETY: by the contract frames and callbacks are what the header says; the heap that collects is another member.
    unsafe {
        let mut frame = (*handle).frames;
        while let Some(pushed) = frame.as_ref() {
            for index in 0..pushed.count {
                visitor.slot(pushed.slots.add(index));
            }
            frame = pushed.previous;
        }
        for callback in &(*handle).callbacks {
            (callback.function)(callback.data, visitor);
        }
    }
}

/// Where frames are popped whose heap was dropped: as much of a handle as that writes, and nobody reads it.
static DROPPED: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

const _: () = assert!(core::mem::offset_of!(Handle, frames) + size_of::<usize>() <= size_of_val(&DROPPED));

/// Has the frames that are still pushed popped elsewhere. A program that drops the heap in the scope of its
/// `HH_GC_ROOTS` pops them afterwards: that wrote into memory that was another block of malloc's.
///
/// # Safety
/// A live handle; the program keeps the rules of the header.
pub(super) unsafe fn detach(handle: *mut Handle) {
    // SAFETY: by the contract the frames are where the program keeps them, as at each collection.
    unsafe {
        let mut frame = (*handle).frames;
        while let Some(pushed) = frame.as_mut() {
            pushed.heap = (&raw const DROPPED).cast_mut().cast();
            frame = pushed.previous;
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_add_roots(
    handle: *mut Handle,
    function: Option<RootFunction>,
    data: *mut c_void,
) -> c_int {
    let Some(function) = function else { return Status::BadArgument as c_int };
    // SAFETY: by the header's contract, here and below; nothing collects.
    unsafe { must_be_outside(handle, "hh_gc_add_roots") };
    // SAFETY: as above.
    let callbacks = unsafe { &mut (*handle).callbacks };
    if callbacks.try_reserve(1).is_err() {
        return Status::NoMemory as c_int;
    }
    callbacks.push(Callback { function, data });
    Status::Ok as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_remove_roots(
    handle: *mut Handle,
    function: Option<RootFunction>,
    data: *mut c_void,
) {
    // SAFETY: as above.
    unsafe { must_be_outside(handle, "hh_gc_remove_roots") };
    // SAFETY: as above.
    let callbacks = unsafe { &mut (*handle).callbacks };
    let is = |callback: &Callback| {
        Some(callback.function as usize) == function.map(|function| function as usize)
            && callback.data == data
    };
    if let Some(index) = callbacks.iter().rposition(is) {
        callbacks.remove(index);
    }
}

/// `hh_gc_range`.
type RangeFunction = unsafe extern "C" fn(data: *mut c_void, begin: *mut usize, end: *mut usize);

/// Words that are scanned.
pub(super) struct Range {
    function: RangeFunction,
    data: *mut c_void,
    scan: Scan,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_add_scan(
    handle: *mut Handle,
    function: Option<RangeFunction>,
    data: *mut c_void,
) -> c_int {
    let Some(function) = function else { return Status::BadArgument as c_int };
    let range = move || {
        let (mut begin, mut end) = (0, 0);
        // SAFETY: by the header's contract it says a range, and uses nothing of the heap.
        unsafe { function(data, &raw mut begin, &raw mut end) };
        (begin, end)
    };
    // SAFETY: by the header's contract, here and below; nothing collects.
    unsafe { must_be_outside(handle, "hh_gc_add_scan") };
    // SAFETY: as above.
    let scans = unsafe { &mut (*handle).scans };
    if scans.try_reserve(1).is_err() {
        return Status::NoMemory as c_int;
    }
    // SAFETY: by the header's contract the range can be read in each collection.
    let scan = boxed(range).and_then(|range| unsafe { (*handle).heap.add_scan(range) }.ok());
    let Some(scan) = scan else { return Status::NoMemory as c_int };
    scans.push(Range { function, data, scan });
    Status::Ok as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_remove_scan(
    handle: *mut Handle,
    function: Option<RangeFunction>,
    data: *mut c_void,
) {
    // SAFETY: as above.
    unsafe { must_be_outside(handle, "hh_gc_remove_scan") };
    // SAFETY: as above.
    let scans = unsafe { &mut (*handle).scans };
    let is = |range: &Range| {
        Some(range.function as usize) == function.map(|function| function as usize) && range.data == data
    };
    if let Some(index) = scans.iter().rposition(is) {
        let removed = scans.remove(index);
        // SAFETY: as above; the ranges and the heap are different members.
        unsafe { (*handle).heap.remove_scan(removed.scan) };
    }
}

/// # Safety
/// As the header says.
unsafe fn handle_for(handle: *mut Handle, object: *mut c_void, pinned: bool) -> u64 {
    // SAFETY: by the header's contract, here and below; nothing collects.
    unsafe { must_be_outside(handle, "a handle is made") };
    // SAFETY: as above.
    let heap = unsafe { &mut (*handle).heap };
    let object = object as usize;
    // SAFETY: by the header's contract a live object.
    let made = unsafe { if pinned { heap.pin(object) } else { heap.global(object) } };
    if let Ok(global) = made {
        return global.into_number();
    }
    let _ = refuse(libc::ENOMEM);
    0
}

/// Ends the process for a handle that does not live.
#[cold]
fn no_handle(number: u64) -> ! {
    complain::abort(format_args!(
        "the handle {number:#x} is none of this heap: it was released, or is another heap's"
    ))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_keep(handle: *mut Handle, object: *mut c_void) -> u64 {
    // SAFETY: the same contract.
    unsafe { handle_for(handle, object, false) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn hh_gc_pin(handle: *mut Handle, object: *mut c_void) -> u64 {
    // SAFETY: the same contract.
    unsafe { handle_for(handle, object, true) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_get(handle: *const Handle, number: u64) -> *mut c_void {
    // SAFETY: by the header's contract; nothing collects.
    let object = unsafe { (*handle).heap.address_of(number) };
    object.unwrap_or_else(|| no_handle(number)) as *mut c_void
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_release(handle: *mut Handle, number: u64) {
    if number == 0 {
        return;
    }
    // SAFETY: as above.
    unsafe { must_be_outside(handle, "hh_gc_release") };
    // SAFETY: as above.
    if !unsafe { (*handle).heap.release_number(number) } {
        no_handle(number);
    }
}
