//! What happens in a heap, told to a function of the program and to a log.

use super::statistics::{phase_number, tell};
use super::{Handle, must_be_outside};
use crate::status::Status;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::time::Duration;
use hugeheap::gc::{BadLog, Event};

/// `hh_gc_event`.
#[repr(C)]
#[derive(Default)]
struct Happened {
    size: u32,
    kind: u32,
    took: u64,
    held: u64,
    old: u64,
    nursery: u64,
    survivors: u64,
    survived: u64,
    staying: u64,
    not_moved: u64,
    from: u64,
    to: u64,
    number: u64,
    live: u64,
    finalizable: u64,
    moved: u64,
    moved_bytes: u64,
    freed_pages: u64,
    arenas: u64,
    empty: u64,
    given_back: u64,
}

const _: () = assert!(size_of::<Happened>() == 8 * 20);

/// `enum hh_gc_event_kind`.
const MINOR: u32 = 0;
const STEP: u32 = 1;
const MAJOR: u32 = 2;
const EVACUATION: u32 = 3;
const ARENAS: u32 = 4;

/// `hh_gc_hook`.
type Hook = unsafe extern "C" fn(data: *mut c_void, event: *const Happened);

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

impl Happened {
    /// `None`: of a kind that the header does not have.
    fn of(event: &Event) -> Option<Self> {
        let none = Self { size: size_of::<Self>() as u32, ..Self::default() };
        Some(match *event {
            Event::Minor { took, nursery, survivors, survived, staying, not_moved, old, held, .. } => Self {
                kind: MINOR,
                took: nanoseconds(took),
                held: held as u64,
                old: old as u64,
                nursery: nursery as u64,
                survivors,
                survived: survived as u64,
                staying: staying as u64,
                not_moved,
                ..none
            },
            Event::Step { took, from, to, old, held, .. } => Self {
                kind: STEP,
                took: nanoseconds(took),
                held: held as u64,
                old: old as u64,
                from: phase_number(from),
                to: phase_number(to),
                ..none
            },
            Event::Major { number, live, held, finalizable, .. } => Self {
                kind: MAJOR,
                held: held as u64,
                number,
                live: live as u64,
                finalizable: finalizable as u64,
                ..none
            },
            Event::Evacuation { took, moved, bytes, pages, held, .. } => Self {
                kind: EVACUATION,
                took: nanoseconds(took),
                held: held as u64,
                moved,
                moved_bytes: bytes,
                freed_pages: pages,
                ..none
            },
            Event::Arenas { held, arenas, empty, given_back, .. } => {
                Self { kind: ARENAS, held: held as u64, arenas, empty, given_back, ..none }
            }
            _ => return None,
        })
    }
}

/// The hook of a program.
#[derive(Clone, Copy)]
pub(super) struct Told {
    function: Hook,
    data: *mut c_void,
}

/// Tells the program's hook.
///
/// # Safety
/// A live handle; the program keeps the rules of the header.
pub(super) unsafe fn told(handle: *const Handle, event: &Event) {
    // SAFETY: by the contract; the heap that collects is another member.
    let hook = unsafe { (*handle).hook };
    if let (Some(hook), Some(happened)) = (hook, Happened::of(event)) {
        // SAFETY: by the header's contract the function is right as long as the heap has it.
        unsafe { (hook.function)(hook.data, &raw const happened) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_set_hook(handle: *mut Handle, hook: Option<Hook>, data: *mut c_void) {
    // SAFETY: by the header's contract; nothing collects, and no hook is under way.
    unsafe {
        must_be_outside(handle, "hh_gc_set_hook");
        let Handle { hook: told, teller, heap, .. } = &mut *handle;
        *told = hook.map(|function| Told { function, data });
        if told.is_none() {
            if let Some(was) = heap.set_hook(None) {
                *teller = Some(was);
            }
        } else if let Some(teller) = teller.take() {
            heap.set_hook(Some(teller));
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hh_gc_set_log(
    handle: *mut Handle,
    log: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: by the header's contract null or a string, here and below.
    let text = (!log.is_null()).then(|| unsafe { CStr::from_ptr(log) });
    // SAFETY: as above.
    unsafe { must_be_outside(handle, "hh_gc_set_log") };
    // SAFETY: as above; nothing collects.
    let set = unsafe { (*handle).heap.set_log_of_c(text) };
    let status = if set == Err(BadLog::NoMemory) { Status::NoMemory } else { Status::BadLog };
    // SAFETY: as above.
    unsafe { tell(set, status, buffer, size) }
}
