//! The garbage-collected heap, declared in `include/hugeheap_gc.h`.
//!
//! ```text
//!   hh_gc* ─▶ window, frames, open      the program's: its inlined functions read and write them
//!             heap                      hugeheap::gc
//!             types, callbacks          what C names by numbers and function pointers
//! ```
//!
//! A call borrows the members that it needs and never the whole: while the heap collects, its one root callback
//! reads the frames and the callbacks beside it.
//!
//! A *frame* is a row of slots on the shadow stack of the program. The *open* window is in a local variable of
//! the program: whatever could collect without knowing it ends the process with one line.

mod allocation;
mod boxed;
mod events;
mod finalizers;
mod protection;
mod roots;
mod statistics;
mod types;

use crate::status::Status;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use hugeheap::complain;
use hugeheap::gc::{self, BadHeap, Checks, ProcessHeap, Settings, Window};
use std::alloc::{Layout, alloc, dealloc};

/// `hh_gc`.
#[repr(C)]
pub(crate) struct Handle {
    window: Window,
    frames: *mut roots::Frame,
    /// Not 0: the window is in a local variable of the program.
    open: u64,
    /// The heap works, and may be calling functions of the program that use nothing of it.
    working: bool,
    heap: ProcessHeap,
    types: Vec<types::Known>,
    callbacks: Vec<roots::Callback>,
    scans: Vec<roots::Range>,
    /// The program's hook.
    hook: Option<events::Told>,
    /// What tells it, while there is none: made with the heap, for hh_gc_set_hook cannot fail.
    teller: Option<gc::EventHook>,
}

// The constants of the header; it asserts on its side that its structs have them.
const _: () = assert!(core::mem::offset_of!(Handle, window) == 0);
const _: () =
    assert!(core::mem::offset_of!(Handle, frames) == 16 && core::mem::offset_of!(Handle, open) == 24);
const _: () = assert!(gc::CURSOR_OFFSET == 0 && gc::LIMIT_OFFSET == 8 && size_of::<Window>() == 16);
const _: () = assert!(gc::HEADER_BYTES == 8 && gc::LENGTH_OFFSET == 8 && gc::TYPE_SHIFT == 32);
const _: () = assert!(gc::OBJECT_ALIGN == 16 && gc::MIN_OBJECT == 16 && gc::MAX_YOUNG == 8192);
const _: () = assert!(gc::BARRIER == 6);

/// `hh_gc_options`.
#[repr(C)]
struct Options {
    size: usize,
    nursery: usize,
    maximum: usize,
    growth: u32,
    checks: u32,
    stress: u32,
    evacuate: u32,
    step: u64,
}

/// `enum hh_gc_check`.
const VERIFY: u32 = 1;
const BARRIERS: u32 = 2;
const POISON: u32 = 4;
const MOVING: u32 = 8;
const ROTATE: u32 = 16;

impl Options {
    #[allow(clippy::needless_update, reason = "a setting that is added is off here until the header has it")]
    fn settings(&self) -> Result<Settings, Status> {
        if self.size != size_of::<Self>() {
            return Err(Status::BadSize);
        }
        if self.checks & !(VERIFY | BARRIERS | POISON | MOVING | ROTATE) != 0 {
            return Err(Status::BadChecks);
        }
        let has = |check| self.checks & check != 0;
        let set = |value: usize| (value != 0).then_some(value);
        let checks = Checks {
            verify: has(VERIFY),
            barriers: has(BARRIERS),
            poison: has(POISON),
            moving: has(MOVING),
            rotate: has(ROTATE),
            stress: core::num::NonZeroU32::new(self.stress),
            ..Checks::default()
        };
        Ok(Settings {
            nursery: set(self.nursery),
            maximum: set(self.maximum),
            growth: (self.growth != 0).then_some(self.growth),
            evacuate: (self.evacuate != 0).then_some(self.evacuate),
            step: (self.step != 0).then_some(core::time::Duration::from_nanos(self.step)),
            checks,
            ..Settings::default()
        })
    }
}

fn make(options: Option<&Options>) -> Result<*mut Handle, Status> {
    let settings = options.map_or(Ok(Settings::default()), Options::settings)?;
    // Not a Box, which ends the process where there is no memory. And the heap is made there: on the stack and
    // copied it took 42 KB, more than a fibre has.
    // SAFETY: the struct has a size.
    let handle: *mut Handle = unsafe { alloc(Layout::new::<Handle>()) }.cast();
    if handle.is_null() {
        return Err(Status::NoMemory);
    }
    // SAFETY: new memory of the right size and alignment, each part of which is written. The two boxes are
    // dropped with the heap, and so before the handle.
    unsafe {
        let callback = boxed::boxed(move |visitor: &mut gc::Visitor<'_>| roots::each(handle, visitor));
        let teller = boxed::boxed(move |event: &gc::Event| events::told(handle, event));
        let (Some(callback), Some(teller)) = (callback, teller) else {
            dealloc(handle.cast(), Layout::new::<Handle>());
            return Err(Status::NoMemory);
        };
        let place = &mut *(&raw mut (*handle).heap).cast::<MaybeUninit<ProcessHeap>>();
        let made = match ProcessHeap::make_in(place, gc::space(), settings) {
            Ok(heap) => heap.add_roots(callback).map_err(|_| {
                core::ptr::from_mut(heap).drop_in_place();
                Status::NoMemory
            }),
            Err(BadHeap::Nursery { .. }) => Err(Status::BadNursery),
            Err(BadHeap::Growth { .. }) => Err(Status::BadGrowth),
            Err(BadHeap::NoMemory { .. }) => Err(Status::NoMemory),
        };
        if let Err(status) = made {
            dealloc(handle.cast(), Layout::new::<Handle>());
            return Err(status);
        }
        (&raw mut (*handle).window).write(Window::EMPTY);
        (&raw mut (*handle).frames).write(null_mut());
        (&raw mut (*handle).open).write(0);
        (&raw mut (*handle).working).write(false);
        (&raw mut (*handle).types).write(Vec::new());
        (&raw mut (*handle).callbacks).write(Vec::new());
        (&raw mut (*handle).scans).write(Vec::new());
        (&raw mut (*handle).hook).write(None);
        (&raw mut (*handle).teller).write(Some(teller));
        // All are named, so that the compiler asks for a new one.
        let Handle {
            window: _,
            frames: _,
            open: _,
            working: _,
            heap: _,
            types: _,
            callbacks: _,
            scans: _,
            hook: _,
            teller: _,
        } = &*handle;
    }
    Ok(handle)
}

/// The number in the name is that of the layout for which the functions of the header were compiled: the
/// members of `hh_gc`, and what the constants above say. When that changes, the number does, here and there.
#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_layout_1_new(options: *const Options, handle: *mut *mut Handle) -> c_int {
    if handle.is_null() {
        return Status::BadArgument as c_int;
    }
    // SAFETY: null, or a struct of the size that it names itself.
    let made = make(unsafe { options.as_ref() });
    let (status, made) = match made {
        Ok(made) => (Status::Ok, made),
        Err(status) => (status, null_mut()),
    };
    // SAFETY: by the header's contract a pointer may be written there.
    unsafe { handle.write(made) };
    status as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_drop(handle: *mut Handle) {
    if handle.is_null() {
        return;
    }
    // SAFETY: by the header's contract the handle is used for the last time; it was made as in `make`.
    unsafe {
        must_be_outside(handle, "hh_gc_drop");
        roots::detach(handle);
        handle.drop_in_place();
        dealloc(handle.cast(), Layout::new::<Handle>());
    }
}

/// Ends the process when the window is open during a call that could collect.
///
/// # Safety
/// A live handle.
unsafe fn must_be_closed(handle: *const Handle, function: &str) {
    // SAFETY: by the contract, here and below.
    unsafe { must_be_outside(handle, function) };
    // SAFETY: as above.
    if unsafe { (*handle).open } != 0 {
        complain::abort(format_args!("{function} while the window is open: hh_gc_close comes first"));
    }
}

/// Ends the process when a function is called from inside of a collection or a verification, by a root callback
/// for instance: what it would change is in use. Such a call was a fault at an address that says nothing.
///
/// # Safety
/// A live handle.
#[inline(always)]
unsafe fn must_be_outside(handle: *const Handle, function: &str) {
    // SAFETY: by the contract.
    if unsafe { (*handle).working } {
        called_inside(function);
    }
}

#[cold]
#[inline(never)]
fn called_inside(function: &str) -> ! {
    complain::abort(format_args!(
        "{function} inside of a collection or a verification: root callbacks, trace functions, ranges and hooks call nothing of the heap but \
         hh_gc_visit and its like"
    ))
}

/// Runs a piece of work during which the heap may call functions of the program.
///
/// # Safety
/// A live handle, used by nobody else.
unsafe fn inside<R>(handle: *mut Handle, work: impl FnOnce(&mut ProcessHeap) -> R) -> R {
    // SAFETY: by the contract; the root callback uses other members of the handle.
    unsafe {
        (*handle).working = true;
        let result = work(&mut (*handle).heap);
        (*handle).working = false;
        result
    }
}

/// Runs a piece of work on the heap that may collect, with the window that lies at `window`.
///
/// # Safety
/// A live handle, used by nobody else; `window` is its own or the open one, and the program keeps the rules of
/// the header.
unsafe fn with_window<R>(
    handle: *mut Handle,
    window: *mut Window,
    work: impl FnOnce(&mut ProcessHeap, &mut Window) -> R,
) -> R {
    // SAFETY: by the contract.
    unsafe {
        // Empty meanwhile: what allocates in a callback comes to hh_gc_refill, which says so.
        let mut copy = window.replace(Window::EMPTY);
        let result = inside(handle, |heap| work(heap, &mut copy));
        window.write(copy);
        result
    }
}

/// The window of a handle.
///
/// # Safety
/// A live handle.
unsafe fn own_window(handle: *mut Handle) -> *mut Window {
    // SAFETY: by the contract.
    unsafe { &raw mut (*handle).window }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_collect_minor(handle: *mut Handle) -> c_int {
    // SAFETY: by the header's contract, here and below.
    unsafe {
        must_be_closed(handle, "hh_gc_collect_minor");
        with_window(handle, own_window(handle), |heap, window| heap.collect_minor(window, &mut []));
        statistics::phase_number((*handle).heap.phase()) as c_int
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_collect(handle: *mut Handle) {
    // SAFETY: as above.
    unsafe {
        must_be_closed(handle, "hh_gc_collect");
        with_window(handle, own_window(handle), |heap, window| heap.collect(window, &mut []));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_prepare_fork(handle: *mut Handle) {
    // SAFETY: as above.
    unsafe {
        must_be_closed(handle, "hh_gc_prepare_fork");
        with_window(handle, own_window(handle), |heap, window| heap.prepare_fork(window, &mut []));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_is_young(handle: *const Handle, object: *const c_void) -> c_int {
    // SAFETY: as above.
    c_int::from(unsafe { (*handle).heap.is_young(object as usize) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_remember(handle: *mut Handle, object: *mut c_void, slot: *mut usize) {
    // SAFETY: as above.
    unsafe { (*handle).heap.before_write(object as usize, slot) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_weak(handle: *const Handle, slot: *const usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe { (*handle).heap.weak(slot) as *mut c_void }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_hash(handle: *mut Handle, object: *mut c_void) -> u32 {
    // SAFETY: as above.
    unsafe { must_be_outside(handle, "hh_gc_hash") };
    // SAFETY: as above.
    unsafe { (*handle).heap.identity_hash(object as usize) }
}
